"""Timing of two sides: fresh processes, drawn orders, verdicts, failures, and too little time."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from bottleneck.errors import WorkloadError
from bottleneck.experiment.side import Side
from bottleneck.experiment.turns import (
    TURNS,
    TURNS_AT_MOST,
    PairedProcesses,
    Role,
    SideFailed,
    SideWorker,
    TimingEffort,
    time_in_pairs,
    turns_of,
)
from bottleneck.experiment.variants import Built
from bottleneck.harness.messages import Program
from bottleneck.schema.gate_result import Limit, TimeResult
from bottleneck.schema.statistics import GATE_LOOKS

SIDES: dict[Role, Side] = {"base": Side("main", Path("b")), "candidate": Side("this", Path("c"))}


@dataclass
class FakeMachine:
    """A machine whose steps take the time that the test states, and which records what happens.

    A minute of its clock passes while a pair is made, none while it is measured.
    """

    us: dict[Role, float]
    noise: Callable[[random.Random], float] = lambda _: 0.0
    faults: Callable[[float], float | None] = lambda _: None
    failures: dict[tuple[Role, int], str] = field(default_factory=dict)
    needs_both_out: bool = False
    turns_take_time: bool = False
    happened: list[str] = field(default_factory=list)
    opened: dict[Role, int] = field(default_factory=lambda: {"base": 0, "candidate": 0})
    alive: int = 0
    now_s: float = 0.0
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def open(self, program: Program, role: Role, side: Side, log: Path) -> SideWorker:
        """A process of this side."""
        self.opened[role] += 1
        return cast("SideWorker", cast("Any", FakeWorker(self, role, side.label, self.opened[role])))

    def time(self, effort: TimingEffort | None = None, told: list[str] | None = None) -> TimeResult:
        """The result of timing on this machine."""
        tell = (lambda _: None) if told is None else told.append
        timing = PairedProcesses(
            Program("step.py"), SIDES, Path(), effort or TimingEffort(), tell, lambda: self.now_s, self.open
        )
        return timing.result()


@dataclass
class FakeWorker:
    """One process of the machine, the ``number``-th of its side."""

    machine: FakeMachine
    role: Role
    label: str
    number: int
    faults_per_step: list[float | None] = field(default_factory=list)

    def __enter__(self) -> "FakeWorker":
        self.machine.alive += 1
        self.machine.happened.append(f"open {self.role}")
        return self

    def __exit__(self, *_: object) -> None:
        self.machine.alive -= 1

    def start_making(self, name: str) -> None:
        self.machine.happened.append(f"start {self.role}")

    def made(self) -> Built:
        self.machine.happened.append(f"made {self.role}")
        self.machine.now_s += 5.0
        if self.machine.needs_both_out and self.machine.alive > 1:
            raise SideFailed(self.role, self.label, "it was too much", is_for_memory=True)
        if (self.role, self.number) in self.machine.failures:
            raise SideFailed(self.role, self.label, self.machine.failures[self.role, self.number])
        return Built(0.1, None, 1.0, self.machine.us[self.role])

    def turn(self, name: str, steps: int, lead: int, usual_us: float) -> list[float]:
        self.machine.happened.append(f"turn {self.role} {steps}+{lead}")
        scatter = self.machine.noise(self.machine.draw)
        self.faults_per_step.append(self.machine.faults(scatter))
        if self.machine.turns_take_time:
            self.machine.now_s += (steps + lead) * self.machine.us[self.role] / 1e6
        return [self.machine.us[self.role] * math.exp(scatter)] * steps


def machine(candidate: float = 1.0, **more: Any) -> FakeMachine:
    """Steps of a millisecond; the candidate's take so many times as long."""
    return FakeMachine({"base": 1000.0, "candidate": 1000.0 * candidate}, **more)


def calm(draw: random.Random) -> float:
    return draw.gauss(0, 0.004)


def wild(draw: random.Random) -> float:
    return draw.gauss(0, 0.5)


def test_an_unchanged_step_is_fine_after_seven_pairs_of_fresh_processes() -> None:
    here = machine(noise=calm)
    found = here.time()
    assert (found.verdict, found.reason, len(found.pairs), found.confirming) == ("fine", None, 7, 0)
    assert here.opened == {"base": 7, "candidate": 7}
    assert found.base_us is not None and found.base_us.n == 7
    assert found.smallest_visible is not None and found.smallest_visible < 0.03
    assert found.seconds == 7 * 10.0


def test_scatter_that_is_of_page_faults_is_named_with_what_takes_it_away() -> None:
    found = machine(noise=wild, faults=lambda scatter: 1000 * math.exp(scatter)).time()
    assert found.verdict == "undecided"
    assert "100 % of the scatter is that of page faults" in (found.reason or "")
    assert "MALLOC_MMAP_MAX_=0" in (found.reason or "")
    other = machine(noise=wild, faults=lambda _: 100.0).time()
    assert other.verdict == "undecided"
    assert "page faults" not in (other.reason or "")


def test_a_verdict_says_nothing_of_page_faults() -> None:
    found = machine(noise=calm, faults=lambda scatter: 1000 * math.exp(scatter)).time()
    assert (found.verdict, found.reason) == ("fine", None)


def test_a_slower_step_is_red_once_fresh_pairs_confirm_it() -> None:
    told: list[str] = []
    found = machine(1.1, noise=calm).time(told=told)
    assert (found.verdict, len(found.pairs), found.confirming, found.is_confirmed) == ("slower", 14, 7, True)
    assert found.ratio is not None and found.ratio.median == pytest.approx(1.1, rel=0.01)
    assert found.low_bound is not None and found.low_bound > 1.09
    assert [line.partition(",")[0] for line in (told[0], told[7])] == [
        "taking turns: pair 1 of processes",
        "confirming: pair 1 of processes",
    ]
    assert len(told) == 14 and told[0].endswith("%")


def test_a_faster_step_is_reported_and_never_red() -> None:
    assert machine(0.8, noise=calm).time().verdict == "faster"


def test_steps_that_scatter_too_much_are_undecided_and_say_what_they_could_have_seen() -> None:
    found = machine(noise=wild).time()
    assert found.verdict == "undecided" and len(found.pairs) == GATE_LOOKS[-1]
    assert found.reason is not None and "20 pairs scatter too much" in found.reason


def test_both_processes_of_a_pair_are_made_at_once_and_live_while_they_take_turns() -> None:
    here = machine()
    here.time()
    first = here.happened[: 8 + 2 * TURNS]
    assert sorted(first[:2]) == ["open base", "open candidate"]
    assert sorted(first[2:4]) == ["start base", "start candidate"]
    assert sorted(first[4:6]) == ["made base", "made candidate"]
    # One turn of each to see how long a step is alone; then turns of fifty milliseconds, the first step dropped.
    assert first[6:8] == ["turn base 49+1", "turn candidate 49+1"]
    assert sorted(first[8:10]) == ["turn base 49+1", "turn candidate 49+1"]
    assert len(here.happened) == 7 * (8 + 2 * TURNS)


def test_who_starts_and_who_goes_first_is_drawn_and_the_seed_draws_it_again() -> None:
    def order(seed: int) -> list[str]:
        here = machine(noise=calm)
        assert here.time(TimingEffort(seed=seed)).seed == seed
        return here.happened

    assert order(1) == order(1) != order(2)
    starts = [each for each in order(1) if each.startswith("open")][::2]
    assert {"open base", "open candidate"} == set(starts)


def test_turns_that_scatter_are_followed_by_more_up_to_a_limit() -> None:
    scattered, few = machine(noise=wild), machine(noise=calm)
    for each in (scattered, few):
        each.time(TimingEffort(pairs_at_most=7))
    count = [sum(line.startswith("turn") for line in each.happened) for each in (scattered, few)]
    assert count == [7 * 2 * (1 + TURNS_AT_MOST), 7 * 2 * (1 + TURNS)]


@pytest.mark.parametrize(
    ("turn_s", "measured_s", "turns"),
    [(0.1, 16.0, 16), (1.0, 16.0, 16), (2.0, 16.0, 8), (2.0, 10.0, 5), (100.0, 16.0, 4)],
)
def test_long_turns_are_fewer(turn_s: float, measured_s: float, turns: int) -> None:
    assert turns_of(turn_s, measured_s) == turns


def test_a_short_limit_takes_fewer_turns_a_pair_so_that_two_batches_fit() -> None:
    slow_us = 200_000.0  # a turn of both sides takes 1.2 s
    counts = []
    for limit_s in (255.0, 600.0):
        here = FakeMachine({"base": slow_us, "candidate": slow_us}, noise=calm)
        here.time(TimingEffort(time_limit_s=limit_s, pairs_at_most=7))
        counts.append(sum(line.startswith("turn") for line in here.happened))
    # A 24th of 255 s is eight turns of each. Making a pair takes 10 s, known from the first one on, which leaves less.
    assert 7 * 2 * (1 + 5) < counts[0] < 7 * 2 * (1 + 8)
    assert counts[1] == 7 * 2 * (1 + 13)


def test_two_batches_fit_where_making_the_processes_takes_most_of_a_pair() -> None:
    here = FakeMachine({"base": 200_000.0, "candidate": 300_000.0}, noise=calm, turns_take_time=True)
    found = here.time(TimingEffort(time_limit_s=265.0))
    assert (found.verdict, len(found.pairs), found.confirming) == ("slower", 14, 7)
    assert found.seconds <= 265.0


def test_a_base_that_fails_is_not_the_fault_of_the_candidate() -> None:
    found = machine(failures={("base", 1): "ModuleNotFoundError: No module named 'old'"}).time()
    assert found.verdict == "not run"
    assert found.reason == "base fails (main): ModuleNotFoundError: No module named 'old'"


def test_a_candidate_that_fails_is_an_error_of_its_own_also_where_the_base_fails_too() -> None:
    both: dict[tuple[Role, int], str] = {("base", 1): "ValueError: x", ("candidate", 1): "ValueError: y"}
    with pytest.raises(WorkloadError) as raised:
        machine(failures=both).time()
    assert raised.value.what == "step.py fails in this"
    assert raised.value.why == "ValueError: y"
    assert raised.value.fix == "see that it runs: bottleneck run step.py"


def test_a_base_that_fails_later_leaves_the_pairs_before() -> None:
    found = machine(failures={("base", 4): "its process was killed by SIGSEGV"}).time()
    assert (found.verdict, len(found.pairs)) == ("undecided", 3)
    assert found.reason is not None and found.reason.startswith(
        "base fails (main): its process was killed by SIGSEGV; "
    )


def test_no_pair_begins_that_would_end_after_the_time_limit() -> None:
    here = machine(1.1, noise=calm)
    found = here.time(TimingEffort(time_limit_s=95.0))
    assert (found.verdict, len(found.pairs), found.seconds) == ("undecided", 9, 90.0)
    assert (
        found.reason == "the time limit of 95 s was reached; 7 pairs showed a slowdown; 2 fresh pairs "
        "followed, and it takes 7 to confirm it"
    )


def test_a_step_too_long_for_the_time_limit_is_not_run_and_says_what_to_do() -> None:
    found = FakeMachine({"base": 30e6, "candidate": 30e6}).time()
    assert (found.verdict, found.pairs) == ("not run", ())
    assert (
        found.reason is not None
        and "would take more than 1680 s" in found.reason
        and "raise time_limit" in found.reason
    )


def test_what_does_not_fit_into_memory_twice_runs_one_after_the_other() -> None:
    here = machine(1.1, noise=calm, needs_both_out=True)
    found = here.time(TimingEffort(time_limit_s=1000.0))
    assert (found.verdict, len(found.pairs), found.confirming) == ("slower", 24, 12)
    assert found.reason is not None and "did not fit into memory" in found.reason
    rounds = [line.removeprefix("open ") for line in here.happened if line.startswith("open")][2:]
    assert rounds[:8] == ["base", "candidate", "candidate", "base"] * 2


def test_limits_in_microseconds_hold_beside_the_share() -> None:
    assert machine(1.1, noise=calm).time(TimingEffort(Limit("step_us", relative=0.03, floor=200.0))).verdict == "fine"
    assert machine(1.1, noise=calm).time(TimingEffort(Limit("step_us", absolute=200.0))).verdict == "fine"
    assert machine(1.1, noise=calm).time(TimingEffort(Limit("step_us", absolute=50.0))).verdict == "slower"


# With a limit of so much no median of turns is too uncertain.
FEW_TURNS = TimingEffort(Limit("step_us", relative=10.0))

WORKLOAD = """
import torch

def workload(work={work}):
    def step():
        total = 0
        for number in range(work):
            total += number
    return step
"""


@pytest.mark.process
def test_real_processes_show_which_side_does_more(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name, work in (("base", 20_000), ("candidate", 60_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.py").write_text(WORKLOAD.format(work=work))
    sides: dict[Role, Side] = {
        name: Side(name, tmp_path / name, {"OMP_NUM_THREADS": "1"}) for name in ("base", "candidate")
    }
    pair = PairedProcesses(Program("step.py"), sides, tmp_path, FEW_TURNS)._in_turns()
    # Three times as much work; on a busy machine the longer step also meets more of other programs.
    assert pair.log_ratio > math.log(1.5)
    assert pair.candidate_us > pair.base_us > 0


SCRIPT = """
import torch
from torch import nn

class Adder(nn.Module):
    def forward(self, value):
        total = 0
        for number in range({work}):
            total += number
        return value

adder, value = Adder(), torch.ones(1)
for _ in range({steps}):
    adder(value)
"""


def script_sides(folder: Path, steps: int) -> dict[Role, Side]:
    """A script that knows nothing of us, which does three times as much in the candidate."""
    for name, work in (("base", 20_000), ("candidate", 60_000)):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(SCRIPT.format(work=work, steps=steps))
    return {name: Side(name, folder / name, {"OMP_NUM_THREADS": "1"}) for name in ("base", "candidate")}


@pytest.mark.process
def test_real_scripts_wait_at_their_steps_while_it_is_the_other_s_turn(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sides = script_sides(tmp_path, 10**9)
    pair = PairedProcesses(Program("train.py", form="script"), sides, tmp_path, FEW_TURNS)._in_turns()
    assert pair.log_ratio > math.log(1.5)
    assert pair.candidate_us > pair.base_us > 0


def test_a_real_script_that_ends_too_soon_is_not_run_and_says_what_would_be(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sides = script_sides(tmp_path, 9)
    found = time_in_pairs(Program("train.py", form="script"), sides["base"], sides["candidate"])
    assert found.verdict == "not run" and found.reason is not None
    assert "the script ended after 8 steps, before its turns were over: let it go on for longer" in found.reason


def test_a_real_script_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit('no data')\n")
    side = Side("this", tmp_path)
    with pytest.raises(WorkloadError, match=r"train\.py fails in this") as raised:
        time_in_pairs(Program("train.py", form="script"), side, side)
    assert raised.value.why == "SystemExit: no data"


def test_a_real_candidate_that_raises_is_named(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("raise ValueError('too bad')\n")
    side = Side("this", tmp_path)
    with pytest.raises(WorkloadError, match=r"step\.py fails in this") as raised:
        time_in_pairs(Program(str(tmp_path / "step.py")), side, side)
    assert raised.value.why == "ValueError: too bad"


_HOLDER = """
import sys
from pathlib import Path
from bottleneck.experiment.turns import time_in_pairs
from bottleneck.harness.messages import Program
from bottleneck.experiment.side import Side
side = Side("this", Path(sys.argv[1]))
time_in_pairs(Program("step.py"), side, side)
"""
_ENDLESS = "import os, time\nopen(f'{os.getpid()}.pid', 'w').close()\ntime.sleep(3600)\n"


def test_ctrl_c_ends_both_processes_and_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, scratch = tmp_path / "sources", tmp_path / "scratch"
    for folder in (sources, scratch):
        folder.mkdir()
    (sources / "step.py").write_text(_ENDLESS)
    monkeypatch.setenv("TMPDIR", str(scratch))
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(sources)], stderr=subprocess.DEVNULL) as holder:
        _wait_until(lambda: len(list(sources.glob("*.pid"))) == 2)
        holder.send_signal(signal.SIGINT)
        holder.wait()
    numbers = [int(each.stem) for each in sources.glob("*.pid")]
    _wait_until(lambda: not any(_is_running(number) for number in numbers))
    assert not list(scratch.iterdir())


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _wait_until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)
