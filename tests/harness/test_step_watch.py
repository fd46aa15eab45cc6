"""What is usual among steps, what a step is charged with, and hooks that end inside a step of an optimizer."""

import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness.boundaries import OptimizerHook
from bottleneck.harness.messages import Program
from bottleneck.harness.phase_hooks import PhaseHooks
from bottleneck.harness.step_log import StepLog
from bottleneck.harness.step_watch import StepWatch, Usual
from bottleneck.harness.watched_windows import WatchedWindows, WindowWishes
from bottleneck.schema.watch_log import STEP_FIELDS
from bottleneck.watched.read_log import read_watched

US = [name for name, _ in STEP_FIELDS].index("us")


def record(us: float) -> tuple[Any, ...]:
    return tuple(us if place == US else 0 for place in range(len(STEP_FIELDS)))


def usual_of(*steps_us: float) -> Usual:
    usual = Usual()
    for us in steps_us:
        usual.add([record(us)])
    return usual


def test_slow_steps_are_not_the_usual_ones() -> None:
    usual = usual_of(*([1_000.0] * 100), *([9_000.0, 1_000.0, 1_000.0] * 100))
    assert usual.record()["us"] == 1_000.0 and usual.limit_us == 2_000.0


def test_steps_that_stay_slow_become_the_usual_ones() -> None:
    before, after = [1_000.0] * 100, [9_000.0] * 300
    assert usual_of(*before, *after[:190]).limit_us == 2_000.0
    assert usual_of(*before, *after).limit_us == 18_000.0
    # A quick step now and then does not keep it from that.
    assert usual_of(*before, *([9_000.0] * 19 + [1_000.0]) * 20).limit_us == 18_000.0


def test_what_is_usual_can_be_told_at_any_step() -> None:
    usual = usual_of(*([1_000.0] * 100))
    for _ in range(300):
        usual.add([record(9_000.0)])
        assert usual.record()["us"] in {1_000.0, 9_000.0}


def test_a_hook_that_removes_itself_leaves_those_behind_it_alone() -> None:
    """Torch goes through its hooks while it calls them: the program would get a RuntimeError."""
    torch = pytest.importorskip("torch")
    from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    count, calls = len(_global_optimizer_post_hooks), []
    mine = OptimizerHook(register_optimizer_step_post_hook, lambda _: (calls.append("mine"), mine.remove()))
    theirs = register_optimizer_step_post_hook(lambda *_: calls.append("theirs"))
    optimizer.step()
    optimizer.step()
    assert calls == ["mine", "theirs", "theirs"]
    OptimizerHook(register_optimizer_step_post_hook, lambda _: None).remove()
    theirs.remove()
    assert len(_global_optimizer_post_hooks) == count


def test_a_hook_that_is_removed_in_another_thread_stays_until_it_has_been_called() -> None:
    torch = pytest.importorskip("torch")
    from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    count = len(_global_optimizer_post_hooks)
    hook: OptimizerHook

    def remove_elsewhere(_: object) -> None:
        thread = threading.Thread(target=hook.remove)
        thread.start()
        thread.join()

    hook = OptimizerHook(register_optimizer_step_post_hook, remove_elsewhere)
    optimizer.step()
    assert len(_global_optimizer_post_hooks) == count + 1
    OptimizerHook(register_optimizer_step_post_hook, lambda _: None).remove()
    assert len(_global_optimizer_post_hooks) == count


class Clock:
    """A clock that goes on by a microsecond at each look."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1_000
        return self.now_ns


def watched(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: Callable[[int], None]) -> StepWatch:
    """Watches ten calls of this, in which threads use the processor all the time by a clock of ours."""
    used = namedtuple("used", "ru_utime ru_stime ru_nivcsw ru_majflt")
    monkeypatch.setattr("resource.getrusage", lambda _: used(clock.now_ns / 1e9, 0.0, clock.now_ns // 1_000_000, 0))
    watch = StepWatch(StepLog(folder, 0), None, 0, 1, clock)
    watch.start()
    try:
        for number in range(10):
            step(number)
    finally:
        watch.finish(0)
    return watch


def test_after_another_optimizer_the_phase_is_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    parameter, clock = torch.zeros(1, requires_grad=True), Clock()
    first, second = (torch.optim.SGD([parameter], lr=0.1) for _ in range(2))

    def step(_: int) -> None:
        second.step()
        clock.now_ns += 5_000_000
        first.step()

    # The first that steps leads: a step is from one of its ends to the next.
    watched(tmp_path, clock, monkeypatch, lambda number: first.step() if not number else step(number))
    (rank,) = read_watched(tmp_path)
    assert rank.header.step_source == "optimizer" and rank.steps == 9
    assert (rank.records["rest_us"] >= 5_000).all() and (rank.records["optimizer_us"] < 1_000).all()


def test_short_steps_share_a_reading_of_the_processor_time_and_lose_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    optimizer, clock = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), Clock()

    def step(_: int) -> None:
        clock.now_ns += 1_000_000
        optimizer.step()

    watched(tmp_path, clock, monkeypatch, step)
    (rank,) = read_watched(tmp_path)
    assert rank.records["cpu_us"] == pytest.approx(rank.records["us"], rel=0.01)
    switches = [int(count) for count in rank.records["switches"]]
    assert sum(switches) >= rank.steps - 1 and 0 in switches


def test_a_failure_of_ours_at_the_end_is_noted_and_leaves_the_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    optimizer, clock = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), Clock()

    def fail(_: object) -> None:
        raise ImportError("the package was changed meanwhile")

    monkeypatch.setattr(PhaseHooks, "forget", fail)
    watch = watched(tmp_path, clock, monkeypatch, lambda _: optimizer.step())
    (rank,) = read_watched(tmp_path)
    assert watch.header.problem == rank.header.problem == "ImportError: the package was changed meanwhile"
    assert rank.header.is_complete
    monkeypatch.undo()
    watch._hooks.forget()


class Windows(WatchedWindows):
    """Windows that never open, and note the slow steps that they are told of."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, WindowWishes(Program("train.py", form="script")), Clock(), 1)
        self.slow: list[float] = []

    def tell_slow(self, times: float) -> None:
        self.slow.append(times)


@pytest.mark.parametrize(("rank", "is_waiting", "asks"), [(0, True, True), (1, True, False), (1, False, True)])
def test_a_rank_that_waited_for_another_leaves_the_window_to_that_one(
    tmp_path: Path, rank: int, is_waiting: bool, asks: bool
) -> None:
    torch = pytest.importorskip("torch")
    parameter, clock, windows = torch.zeros(1, requires_grad=True), Clock(), Windows(tmp_path)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    watch = StepWatch(StepLog(tmp_path, rank), None, rank, 2, clock, windows)
    watch.start()
    try:
        for number in range(200):
            late_ns = 50_000_000 if number == 150 else 1_000_000
            clock.now_ns += 1_000_000 if is_waiting else late_ns
            parameter.sum().backward()  # in it a rank waits
            clock.now_ns += late_ns if is_waiting else 1_000_000
            optimizer.step()
    finally:
        watch.finish(0)
    assert bool(windows.slow) is asks


FAILS = """
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(lambda *_: None)  # one of the program's own
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
import bottleneck
with bottleneck.watch("log", quiet=True) as watched:
    def fail(*_): raise OSError("no space left")
    watched._watch._log.flush = fail
    watched._watch._log.add = fail
    for _ in range(300):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
print("trained", watched._watch is None)
"""


@pytest.mark.process
def test_a_failure_of_ours_ends_the_watching_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(FAILS)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "trained True\n"), done.stderr
    assert "no space left" in (tmp_path / "log" / "watch.rank0.json").read_text()
