"""The proof that the gate can fail: when it is one, when it is none, and how much has to be put into a step for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.experiment.side import Side
from bottleneck.experiment.turns import TimingEffort
from bottleneck.experiment.worktree import Base
from bottleneck.gate.count_program import Counted
from bottleneck.gate.judge import judge_counts
from bottleneck.gate.run_gate import GateRun
from bottleneck.gate.selftest import (
    NOTHING,
    STEP,
    GateUnderTest,
    Injection,
    Proof,
    one_more,
    prove,
    self_test,
    slowdown,
)
from bottleneck.gate.settings import default_budgets
from bottleneck.harness.forms import VARIABLE
from bottleneck.harness.messages import Program
from bottleneck.schema.counters import Counts, Fingerprint, Lock
from bottleneck.schema.gate_result import CounterChange, GateSettings, Limit, TimeResult, TimeVerdict
from bottleneck.schema.measurements import Ratio

SETTINGS = GateSettings(budgets=default_budgets())
COUNTS = Counts(
    {"ops": 100, "syncs": 0, "launches": 30}, Fingerprint({"torch": "2.13"}), steps=3, ops={"aten::mm": 100}
)


def counted(injection: Injection) -> Counts:
    """The counts of an undisturbed measurement."""
    number = int(injection.amounts[0]) if injection.amounts else 0
    more = {"op": {"ops": number}, "sync": {"ops": 2 * number, "syncs": number}}.get(injection.kind, {})
    return replace(COUNTS, values={name: value + more.get(name, 0) for name, value in COUNTS.values.items()})


def timed(injection: Injection) -> TimeResult:
    """The result of an honest measurement."""
    share = injection.amounts[0] if injection.amounts else 0.0
    verdict: TimeVerdict = "slower" if share else "fine"
    return TimeResult(verdict, ratio=Ratio(1 + share, 1 + share - 0.01, 1 + share + 0.01, 7), budget=0.03)


def proof(
    count: Callable[[Injection], Counts] = counted,
    time_in_pairs: Callable[[Injection], TimeResult] = timed,
    judge: Callable[[Lock, Counts, GateSettings], Sequence[CounterChange]] = judge_counts,
    settings: GateSettings = SETTINGS,
) -> Proof:
    """The proof with this counting and timing."""
    return self_test("train", settings, GateUnderTest(count, judge, time_in_pairs))


def test_a_gate_that_catches_all_and_stays_green_on_itself_is_proven() -> None:
    done = proof()
    assert done.is_proven
    first, *rest = done.text.splitlines()
    assert first == (
        "train: gate proven: it catches one more op, one more sync, a step longer by 6 %, 40.0 us at least "
        "(budget +3%); it stays green on the step itself (0 s)"
    )
    assert [line.split()[:2] for line in rest] == [["ok", "red"]] * 2 + [
        ["ok", "green"],
        ["ok", "red"],
        ["ok", "green"],
    ]
    assert "ops 100 to 101" in rest[0] and "syncs 0 to 1" in rest[1]


def test_a_count_that_does_not_see_what_is_put_in_proves_nothing() -> None:
    done = proof(count=lambda _: COUNTS)
    assert not done.is_proven
    assert done.text.startswith("train: gate NOT proven: it is green for one more op, green for one more sync\n")
    assert [check.said for check in done.checks] == ["green", "green", "green", "red", "green"]


def test_a_sync_that_shows_only_as_ops_is_not_caught() -> None:
    def blind(injection: Injection) -> Counts:
        counts = counted(injection)
        return replace(counts, values={**counts.values, "syncs": 0})

    assert [check.is_met for check in proof(count=blind).checks] == [True, False, True, True, True]


def test_a_gate_that_is_always_red_is_not_proven() -> None:
    def red(lock: Lock, counts: Counts, settings: GateSettings) -> Sequence[CounterChange]:
        return [CounterChange(name, 0, value, "broken") for name, value in counts.values.items()]

    done = proof(judge=red, time_in_pairs=lambda _: TimeResult("slower"))
    assert [check.is_met for check in done.checks] == [True, True, False, True, False]
    assert done.text.startswith("train: gate NOT proven: it is red for its own counters, red for its own time\n")


def test_a_gate_that_is_never_red_is_not_proven() -> None:
    done = proof(judge=lambda *_: (), time_in_pairs=lambda _: TimeResult("fine"))
    assert not any(check.is_met for check in done.checks[:4])
    assert done.checks[2].said == "open"  # a gate that compares nothing is not green


@pytest.mark.parametrize("verdict", ["undecided", "not run"])
def test_a_time_that_does_not_decide_proves_nothing(verdict: TimeVerdict) -> None:
    done = proof(time_in_pairs=lambda _: TimeResult(verdict, "too loud"))
    assert [check.said for check in done.checks[3:]] == ["open", "open"]
    assert not done.is_proven
    first, *_, last = done.text.splitlines()
    assert first.startswith("train: gate not proven: it could not decide on a step longer by 6 %")
    assert last == f"  open   open   its own time: {verdict}: step time {verdict}; too loud"


@pytest.mark.parametrize("field", ["unknown", "unstable"])
def test_a_counter_that_cannot_be_gated_says_why(field: str) -> None:
    counts = replace(COUNTS, values={"launches": 30}, **{field: {"ops": "8..10: by luck"}})
    done = proof(count=lambda _: counts)
    assert done.checks[0].said == "open"
    assert done.checks[0].detail == "ops: 8..10: by luck"
    assert done.checks[1].detail == "syncs: it was not counted"


def test_only_what_is_asked_for_is_demanded() -> None:
    def never(_: Injection) -> Counts:
        raise AssertionError

    done = self_test("train", SETTINGS, GateUnderTest(never, judge_counts, timed), ("time",))
    assert [check.what for check in done.checks][-1] == "its own time" and len(done.checks) == 2
    assert Proof("train", reason="the self-test needs a workload").text == (
        "train: gate not proven: the self-test needs a workload\n"
    )
    assert not Proof("train").is_proven


def test_what_cannot_be_counted_comes_through() -> None:
    def fails(_: Injection) -> Counts:
        raise RuntimeError("theirs")

    with pytest.raises(RuntimeError, match="theirs"):
        proof(count=fails)


def test_a_budget_that_lets_some_pass_takes_as_many_more() -> None:
    settings = replace(SETTINGS, budgets={**SETTINGS.budgets, "ops": Limit("ops", relative=0.05, text="+5%")})
    done = proof(settings=settings)
    assert done.is_proven
    assert done.checks[0].what == "6 more ops (budget +5%)"


LIMITS = st.builds(
    Limit,
    st.just("ops"),
    st.none() | st.floats(0, 2),
    st.none() | st.floats(0, 1000),
    st.floats(0, 1000),
)


@given(LIMITS, st.integers(0, 100_000))
def test_what_is_put_in_is_the_least_that_the_budget_forbids(limit: Limit, before: int) -> None:
    number = int(one_more("op", "ops", limit, before).amounts[0])
    assert not limit.allows(before, before + number)
    assert number == 1 or limit.allows(before, before + number - 1)


@pytest.mark.parametrize(
    ("limit", "told", "what"),
    [
        (Limit(STEP, relative=0.03, text="+3%"), "slowdown:0.06:0", "a step longer by 6 %"),
        (Limit(STEP, relative=0.015, text="+1.5%"), "slowdown:0.03:0", "a step longer by 3 %"),
        (Limit(STEP, absolute=200.0, text="+0.2ms"), "slowdown:0:400", "a step longer by 400 us at least"),
        (Limit(STEP, 0.03, None, 20.0, "+3%"), "slowdown:0.06:40", "a step longer by 6 %, 40.0 us at least"),
    ],
)
def test_a_slowdown_is_twice_the_budget(limit: Limit, told: str, what: str) -> None:
    injection = slowdown(limit)
    assert (injection.variable, injection.what) == (told, what)


def test_nothing_is_reported_where_nothing_is_put_in() -> None:
    assert NOTHING.variable == ""
    assert one_more("sync", "syncs", None, 5).variable == "sync:1"


def test_an_anchor_is_not_in_question() -> None:
    creep: Mapping[str, Limit] = {"ops": Limit("ops", relative=0.1)}
    assert proof(settings=replace(SETTINGS, creep=creep)).is_proven


PROVED_SETTINGS = GateSettings(budgets=default_budgets(), environment={"OMP_NUM_THREADS": "1"}, alpha=0.02)
PROVED_COUNTS = Counts({"ops": 100, "syncs": 0}, Fingerprint({"torch": "2.13"}), steps=3)
MORE: Mapping[str, Mapping[str, int]] = {"op:1": {"ops": 101}, "sync:1": {"ops": 102, "syncs": 1}}


class Stage:
    """Stands in for counting and timing: counts what a process is told, and remembers where it was to run."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.told: list[str] = []
        self.timed: list[tuple[Side, Side]] = []

    def count(self, program: Program, folder: Path, side: Side, runs: int = 1, tell: Any = None) -> Counted:
        folder.mkdir()
        self.folders.append(folder)
        self.told.append(side.variables[VARIABLE])
        counts = replace(PROVED_COUNTS, values={**PROVED_COUNTS.values, **MORE.get(self.told[-1], {})})
        return Counted(counts, (), None)  # type: ignore[arg-type]

    def time_in_pairs(
        self, program: Program, base: Side, candidate: Side, effort: TimingEffort, tell: Any
    ) -> TimeResult:
        assert effort.alpha == PROVED_SETTINGS.alpha
        self.timed.append((base, candidate))
        return TimeResult("slower" if candidate.variables[VARIABLE] else "fine")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage, in the place of processes."""
    stage = Stage()
    monkeypatch.setattr("bottleneck.gate.selftest.count_program", stage.count)
    monkeypatch.setattr("bottleneck.gate.selftest.time_in_pairs", stage.time_in_pairs)
    return stage


@pytest.fixture
def run(tmp_path: Path) -> GateRun:
    """A run in a folder, without a base: the self-test needs none."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return GateRun(tmp_path, PROVED_SETTINGS, scratch, Base(None, "nothing"))


def test_each_process_is_told_what_to_put_in_and_the_sources_are_the_candidates(stage: Stage, run: GateRun) -> None:
    proof = prove(run, Program("bench/train.py"))
    assert proof.is_proven, proof.text
    assert proof.name == "bench-train"
    assert stage.told == ["", "op:1", "sync:1", ""]
    assert len(set(stage.folders)) == 4 and all(folder.parent == run.scratch for folder in stage.folders)
    assert [candidate.variables[VARIABLE] for _, candidate in stage.timed] == ["slowdown:0.06:40", ""]
    for side in (each for pair in stage.timed for each in pair):
        assert side.folder == run.root and side.environment["OMP_NUM_THREADS"] == "1"
    assert [base.variables[VARIABLE] for base, _ in stage.timed] == ["", ""]  # whatever this process was told


def test_counters_or_time_alone_are_proven_alone(stage: Stage, run: GateRun) -> None:
    assert prove(replace(run, only="counters"), Program("train.py")).is_proven
    assert (len(stage.told), stage.timed) == (4, [])
    assert prove(replace(run, only="time"), Program("train.py")).is_proven
    assert (len(stage.told), len(stage.timed)) == (4, 2)


def test_a_script_is_no_proof_of_anything(stage: Stage, run: GateRun) -> None:
    proof = prove(run, Program("train.py", form="script"))
    assert not proof.is_proven and not stage.told
    assert proof.text.startswith("train: gate not proven: the self-test needs a workload")
