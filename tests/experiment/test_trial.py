"""One change tried: verdicts on steps whose speed is known, refusals, and what each leaves in its record."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.errors import WorkloadError
from bottleneck.experiment.trial import ChangePrediction, TrialEffort, TrialSetup, try_changes
from bottleneck.experiment.variants import Built
from bottleneck.experiment.worker import NO_TIME, Refused
from bottleneck.harness.messages import Program
from bottleneck.schema.analysis import Interval
from bottleneck.schema.measurements import Difference
from tests.experiment import own_changes

pytestmark = pytest.mark.process

pytest.importorskip("torch")


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrialSetup:
    """A setup for the program of our own, with the changes of our own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "program.py").write_text(own_changes.PROGRAM)
    return TrialSetup(
        Program(str(tmp_path / "program.py")),
        tmp_path,
        TrialEffort(budget_s=4.0),
        own_changes.CHANGES,
        (own_changes.__file__,),
    )


@pytest.mark.sample
def test_a_quarter_of_the_work_is_faster_and_a_fresh_process_says_so_too(setup: TrialSetup) -> None:
    told: list[str] = []
    setup = TrialSetup(setup.program, setup.folder, setup.effort, setup.changes, setup.child, tell=told.append)
    trial = try_changes(setup, ("less-work",), ChangePrediction(("a-finding",), Interval(2.0, 5.0)))
    assert trial.verdict == "faster", trial
    assert "confirming in a fresh process" in told
    assert trial.findings == ("a-finding",) and trial.predicted_speedup == Interval(2.0, 5.0)
    assert trial.speedup is not None and 1 < trial.speedup.low <= trial.speedup.median <= trial.speedup.high
    assert trial.speedup.n >= 14
    assert trial.original_us is not None and trial.changed_us is not None
    assert trial.original_us.median > trial.changed_us.median
    assert trial.setup_s is not None and trial.break_even_steps is not None
    assert trial.peak_before_bytes and trial.peak_after_bytes


def test_four_times_the_work_is_slower_and_is_never_paid_back(setup: TrialSetup) -> None:
    trial = try_changes(setup, ("more-work",), ChangePrediction())
    assert trial.verdict == "slower", trial
    assert trial.break_even_steps is None
    assert trial.speedup is not None and trial.speedup.high < 1


def test_twice_the_samples_in_the_same_time_count_per_sample(setup: TrialSetup) -> None:
    trial = try_changes(setup, ("double",), ChangePrediction())
    assert trial.verdict in {"faster", "inconclusive"}, trial  # a busy machine may hide even this
    assert trial.speedup is not None and trial.speedup.median > 1.2


def test_no_change_is_neither_faster_nor_slower_in_one_process_or_in_two(setup: TrialSetup) -> None:
    for name in ("nothing", "apart"):
        trial = try_changes(setup, (name,), ChangePrediction())
        assert trial.verdict in {"no effect", "inconclusive"}, trial
        assert trial.smallest_visible is not None and trial.smallest_visible > 0
        assert trial.peak_before_bytes and trial.peak_after_bytes


def test_a_part_of_the_step_is_measured_against_the_same_part(setup: TrialSetup) -> None:
    trial = try_changes(setup, ("half-a-part",), ChangePrediction())
    assert trial.is_part and trial.is_bound
    assert trial.speedup is not None and trial.speedup.median > 3
    assert [difference.reason for difference in trial.differences] == [
        "it does other work, whose results are not compared"
    ]


def test_a_change_that_spoils_the_results_is_wrong_however_fast(setup: TrialSetup) -> None:
    trial = try_changes(setup, ("spoiled",), ChangePrediction())
    assert trial.verdict == "wrong", trial
    assert trial.reason is not None and "differ" in trial.reason
    assert any(difference.is_within is False for difference in trial.differences)
    assert trial.speedup is not None  # measured all the same


def test_results_of_a_process_of_its_own_are_compared_too(setup: TrialSetup) -> None:
    trial = try_changes(setup, ("apart", "spoiled"), ChangePrediction())
    assert trial.verdict == "wrong", trial
    assert all(difference.is_within for difference in try_changes(setup, ("apart",), ChangePrediction()).differences)


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ("needs-more", "not applicable", "needs a loader"),
        ("needs-installing", "missing", "pip install something"),
        ("raises", "failed", "ValueError: first line"),
        ("dies", "failed", "its process was killed by SIGABRT"),
    ],
)
def test_a_change_that_cannot_be_tried_is_a_record_with_its_reason(
    setup: TrialSetup, change: str, verdict: str, reason: str
) -> None:
    trial = try_changes(setup, (change,), ChangePrediction())
    assert trial.verdict == verdict
    assert trial.reason is not None and trial.reason.startswith(reason)
    assert trial.speedup is None


@pytest.mark.sample
def test_a_program_that_fails_without_any_change_is_an_error_of_the_workload(setup: TrialSetup) -> None:
    Path(setup.program.target).write_text("def workload():\n    raise RuntimeError('no data')\n")
    with pytest.raises(WorkloadError) as error:
        try_changes(setup, ("nothing",), ChangePrediction())
    assert error.value.why == "RuntimeError: no data"


def test_steps_too_long_for_the_budget_are_inconclusive_and_say_what_it_would_take(setup: TrialSetup) -> None:
    short = TrialSetup(setup.program, setup.folder, TrialEffort(budget_s=0.01), setup.changes, setup.child)
    trial = try_changes(short, ("nothing",), ChangePrediction())
    assert trial.verdict == "inconclusive"
    assert trial.reason is not None and "pass --budget" in trial.reason


def test_steps_too_long_for_the_time_that_is_left_are_skipped_whatever_the_budget(setup: TrialSetup) -> None:
    program = Program(setup.program.target, settings=(("work", "60_000_000"),))
    limited = replace(setup, program=program, effort=TrialEffort(budget_s=0.1), until=time.monotonic() + 30)
    trial = try_changes(limited, ("nothing",), ChangePrediction())
    assert trial.verdict == "skipped" and (trial.reason or "").startswith("no time was left"), trial


def test_what_no_time_is_left_to_confirm_keeps_its_first_measurement(setup: TrialSetup) -> None:
    def tell(text: str) -> None:
        if text == "confirming in a fresh process":
            raise Refused("skipped", NO_TIME)

    trial = try_changes(replace(setup, tell=tell, until=time.monotonic() + 3600), ("less-work",), ChangePrediction())
    assert trial.verdict == "inconclusive"
    assert trial.speedup is not None and trial.speedup.low > 1
    assert trial.reason == "no time was left to confirm it in a fresh process"


def test_several_changes_are_applied_together(setup: TrialSetup) -> None:
    trial = try_changes(setup, ("less-work", "double"), ChangePrediction())
    assert trial.change == "less-work+double"
    assert trial.title == "Add a quarter of the numbers; Twice the batch"
    assert trial.verdict == "faster", trial


class Copies:
    """Stands for a process with two copies of a step, of which the changed one takes ``ratio`` times as long."""

    def __init__(self, ratio: float) -> None:
        self._us = {"original": 300_000.0, "changed": 300_000.0 * ratio}

    def __enter__(self) -> "Copies":
        return self

    def __exit__(self, *_: object) -> None: ...

    def build(self, name: str, *_: object, **__: object) -> Built:
        return Built(0.0, 1, 1.0, self._us[name])

    def compare(self, *_: object) -> tuple[Difference, ...]:
        return ()

    def turn(self, name: str, *_: object) -> list[float]:
        return [self._us[name]]


@dataclass(frozen=True)
class Places(TrialSetup):
    """A setup where it depends on the process how long the changed copy takes; ``ratios`` are those of each in turn."""

    ratios: tuple[float, ...] = ()
    started: list[float] = field(default_factory=list)

    def worker(self, *_: object) -> Any:
        self.started.append(self.ratios[len(self.started)])
        return Copies(self.started[-1])


@pytest.mark.sample
@pytest.mark.parametrize(
    ("ratios", "verdict", "processes"),
    [
        ((0.95, 0.95, 0.95, 0.95), "faster", 4),
        ((0.95, 0.95, 1.1), "inconclusive", 3),
        ((0.95, 1.0), "inconclusive", 2),
        ((1.06, 1.06, 1.06, 1.06), "slower", 4),
        ((0.5, 0.5), "faster", 2),
    ],
    ids=["shown by all", "not by the third", "not by the second", "slower in all", "too large for chance"],
)
def test_a_small_effect_has_to_show_in_each_of_several_fresh_processes(
    tmp_path: Path, ratios: tuple[float, ...], verdict: str, processes: int
) -> None:
    places = Places(Program("none.py"), tmp_path, TrialEffort(budget_s=30.0), ratios=ratios)
    trial = try_changes(places, (), ChangePrediction())
    assert (trial.verdict, len(places.started)) == (verdict, processes)
