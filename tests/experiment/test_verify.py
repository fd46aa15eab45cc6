"""The changes that are tried, their predictions, and how winners add up; trials themselves are given."""

from pathlib import Path

import pytest

from bottleneck.errors import WorkloadError
from bottleneck.experiment import verify as module
from bottleneck.experiment.trial import ChangePrediction, TrialSetup
from bottleneck.experiment.verify import (
    add_best,
    left_out,
    prediction_of,
    prediction_of_all,
    tries_of,
    tries_without_gain,
    verify,
    with_untried,
)
from bottleneck.harness.messages import Program
from bottleneck.schema.analysis import Caveat, Finding, Interval, NoGain
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.records import replace
from bottleneck.schema.trials import Trial, Verification
from tests.report.samples import cpu

NOW_S = 1000.0
LAB = TrialSetup(Program("model.py", settings=(("batch_size", "4"),)), Path())


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: NOW_S)


def finding(slug: str, tries: tuple[str, ...], speedup: Interval | None, added_us: Interval | None = None) -> Finding:
    """A finding that names these changes."""
    return Finding(
        slug=slug,
        title=slug,
        evidence=(),
        predicted_gain_us=added_us,
        predicted_speedup=speedup,
        advice="",
        verify=None,
        added_gain_us=added_us,
        tries=tries,
    )


FINDINGS = (
    finding("launches", ("compile", "cuda-graph"), Interval(1.5, 2.0), Interval(40, 50)),
    finding("unfused", ("compile",), Interval(1.1, 1.3), Interval(10, 20)),
    finding("allocator", ("gc-freeze",), None),
)


def test_changes_are_tried_once_in_the_order_of_the_findings_and_their_alternatives_last() -> None:
    assert tries_of(FINDINGS) == ("compile", "gc-freeze", "cuda-graph")


def test_a_prediction_is_what_any_finding_promises_never_a_sum() -> None:
    assert prediction_of("compile", FINDINGS) == ChangePrediction(("launches", "unfused"), Interval(1.5, 2.0))
    wide = finding("layout", ("compile",), Interval(1.0, 6.0), Interval(0, 80))
    assert prediction_of("compile", (wide, *FINDINGS[1:])).speedup == Interval(1.1, 6.0)


def test_nothing_is_predicted_where_no_finding_names_the_change_or_none_has_a_figure() -> None:
    assert prediction_of("channels-last", FINDINGS) == ChangePrediction()
    assert prediction_of("gc-freeze", FINDINGS) == ChangePrediction(("allocator",))


def test_several_changes_promise_what_each_finding_adds() -> None:
    both = prediction_of_all(("compile", "gc-freeze"), FINDINGS, 100.0)
    assert both.findings == ("launches", "unfused", "allocator")
    assert both.speedup == Interval(100 / 50, 100 / 30)


def trial(change: str, verdict: str, median: float = 1.0) -> Trial:
    """A trial with this outcome, known within one percent."""
    return Trial(change, change, verdict, speedup=Ratio(median, median * 0.99, median * 1.01, 14))  # type: ignore[arg-type]


def outcomes(monkeypatch: pytest.MonkeyPatch, known: dict[str, Trial]) -> list[str]:
    """Looks up each trial among these; gives the list of those that were made."""
    tried: list[str] = []

    def look_up(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
        tried.append("+".join(names))
        return known["+".join(names)]

    monkeypatch.setattr(module, "try_changes", look_up)
    return tried


def test_every_change_is_tried_alone_and_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = outcomes(monkeypatch, {name: trial(name, "no effect") for name in ("a", "b")})
    announced: list[tuple[str, int, int]] = []
    done = verify(LAB, ("a", "b"), None, lambda *told: announced.append(told))
    assert tried == ["a", "b"]
    assert announced == [("a", 0, 2), ("b", 1, 2)]
    assert done.program == ("--set", "batch_size=4", "model.py")
    assert done.best is None


def test_changes_that_find_no_time_are_skipped_and_named_but_the_first_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = outcomes(monkeypatch, {name: trial(name, "no effect") for name in ("gc-freeze", "tf32", "compile")})
    done = verify(replace(LAB, until=NOW_S - 1), ("gc-freeze", "tf32", "compile"), None)
    assert tried == ["gc-freeze"]
    assert [(each.verdict, each.reason) for each in done.trials[1:]] == [("skipped", "no time was left")] * 2
    assert left_out(done) == ("tf32", "compile")
    assert not done.is_interrupted


@pytest.mark.parametrize("slug", ["contended", "no-such-doubt"])
def test_a_recording_beside_other_programs_is_said_even_where_nothing_is_tried(slug: str) -> None:
    analysis = replace(cpu(), caveats=(Caveat(slug, "other programs used the processors", 0.9),))
    warnings = verify(LAB, (), analysis).warnings
    said = "the recording: other programs used the processors; try again on a quieter machine"
    assert warnings == ((said,) if slug == "contended" else ())


def test_changes_share_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[float] = []

    def note(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
        budgets.append(setup.effort.budget_s)
        return trial(names[0], "no effect")

    monkeypatch.setattr(module, "try_changes", note)
    verify(replace(LAB, until=NOW_S + 60), ("a", "b"), None)
    verify(LAB, ("a",), None)
    assert budgets == [pytest.approx(6), pytest.approx(12), 30.0]


def test_a_change_that_takes_long_leaves_the_others_the_least_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def note(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
        limits.append(setup.until - until)
        return trial(names[0], "no effect")

    monkeypatch.setattr(module, "try_changes", note)
    until = NOW_S + 60
    verify(replace(LAB, until=until), ("a", "b", "c"), None)
    assert limits == [pytest.approx(-16), pytest.approx(-8), pytest.approx(0)]


def test_of_more_changes_than_there_is_time_for_the_first_get_what_a_trial_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []

    def note(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
        limits.append(until - setup.until)
        return trial(names[0], "no effect")

    monkeypatch.setattr(module, "try_changes", note)
    until = NOW_S + 40
    verify(replace(LAB, until=until), ("a", "b", "c", "d", "e", "f"), None)
    assert limits[0] == pytest.approx(24)
    until = NOW_S + 9
    verify(replace(LAB, until=until), ("a", "b", "c"), None)
    assert limits[6] == 0


def test_ctrl_c_keeps_what_is_done_and_skips_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
        if names == ("tf32",):
            raise KeyboardInterrupt
        return trial("gc-freeze", "faster", 1.2)

    monkeypatch.setattr(module, "try_changes", interrupted)
    done = verify(LAB, ("gc-freeze", "tf32", "compile"), None)
    assert [(each.change, each.verdict) for each in done.trials] == [
        ("gc-freeze", "faster"),
        ("tf32", "skipped"),
        ("compile", "skipped"),
    ]
    assert done.is_interrupted
    assert add_best(LAB, done, None) is done


def test_a_program_that_fails_later_is_one_failed_trial_and_at_first_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(setup: TrialSetup, names: tuple[str, ...], prediction: ChangePrediction) -> Trial:
        if names == ("tf32",):
            raise WorkloadError("model.py fails without any change", why="out of memory")
        return trial(names[0], "no effect")

    monkeypatch.setattr(module, "try_changes", failing)
    done = verify(LAB, ("gc-freeze", "tf32", "compile"), None)
    assert [each.verdict for each in done.trials] == ["no effect", "failed", "no effect"]
    assert done.trials[1].reason == "model.py fails without any change: out of memory"
    with pytest.raises(WorkloadError):
        verify(LAB, ("tf32",), None)


def winners(*trials: Trial) -> Verification:
    """A verification of these."""
    return Verification(("model.py",), 100.0, trials)


def test_winners_are_added_from_the_fastest_on_and_kept_where_the_step_gets_faster_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = winners(
        trial("a", "faster", 1.2), trial("b", "faster", 1.5), trial("c", "faster", 1.1), trial("d", "slower")
    )
    tried = outcomes(monkeypatch, {"b+a": trial("b+a", "faster", 1.7), "b+a+c": trial("b+a+c", "faster", 1.705)})
    best = add_best(LAB, done, None)
    assert tried == ["b+a", "b+a+c"]
    assert best.best is not None and best.best.change == "b+a"
    assert [each.change for each in best.combinations] == ["b+a", "b+a+c"]


def test_a_combination_that_spoils_the_results_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes(monkeypatch, {"a+b": trial("a+b", "wrong", 3.0)})
    best = add_best(LAB, winners(trial("a", "faster", 1.5), trial("b", "faster", 1.2)), None)
    assert best.best is not None and best.best.change == "a"


def test_without_a_winner_there_is_no_best(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcomes(monkeypatch, {}) == []
    assert add_best(LAB, winners(trial("a", "wrong", 2.0)), None).best is None


def test_what_only_bounds_a_gain_is_no_winner_to_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = outcomes(monkeypatch, {})
    done = winners(trial("replay-batch", "faster", 9.0), trial("pad", "faster", 3.0), trial("compile", "faster", 1.2))
    best = add_best(LAB, done, None).best
    assert tried == [] and best is not None and best.change == "compile"


NO_GAIN = (
    NoGain("read-later", 0.004, "replayed", "queued_work", {"queued_us": 31_000.0}, "train.py:88"),
    NoGain("compile", 0.02, "replayed", "products", tries=("compile",)),
)


def test_what_would_bring_nothing_is_tried_with_its_speedup_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = replace(cpu(), findings=(), no_gain=NO_GAIN)
    assert tries_without_gain(NO_GAIN) == ("compile",)
    assert prediction_of("compile", (), NO_GAIN).most == pytest.approx(1 / 0.98)
    assert prediction_of("gc-freeze", (), NO_GAIN).most is None
    outcomes(monkeypatch, {"compile": trial("compile", "no effect")})
    done = with_untried(verify(LAB, tries_without_gain(NO_GAIN), analysis), NO_GAIN)
    assert [(each.change, each.verdict) for each in done.trials] == [
        ("compile", "no effect"),
        ("read-later", "not applicable"),
    ]
    assert done.tried == "no-gain"
    assert done.trials[1].predicted_most == pytest.approx(1 / 0.996)
    assert done.trials[1].reason is not None
