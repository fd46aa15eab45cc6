"""The changes that are tried, their predictions, and how winners add up; trials themselves are given."""

from pathlib import Path

import pytest

from bottleneck.advice.interval_table import RuleTrial
from bottleneck.errors import WorkloadError
from bottleneck.experiment import verify as module
from bottleneck.experiment.scoreboard import (
    UNNAMED,
    ScoreEntry,
    append_entries,
    entries_of,
    read_entries,
    scores,
    trials_of,
)
from bottleneck.experiment.trial import ChangePrediction, TrialSetup
from bottleneck.experiment.verify import (
    add_best,
    left_out,
    prediction_of,
    prediction_of_all,
    tries_of,
    verify,
)
from bottleneck.harness.messages import Program
from bottleneck.schema.analysis import Caveat, Finding, Interval
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


ENTRY = ScoreEntry("2026-01-01T00:00:00+00:00", "launches", "compile", "faster", (1.5, 2.0), (1.6, 1.55, 1.65))


def test_each_finding_gets_an_entry_for_each_change_tried_for_it() -> None:
    findings = (
        finding("launches", ("compile", "cuda-graph"), Interval(1.5, 2.0)),
        finding("unfused", ("compile",), None),
        finding("other", ("tf32",), None),
    )
    trial = Trial("compile", "", "faster", speedup=Ratio(1.6, 1.5, 1.7, 14))
    done = Verification(("--set", "a=1", "/somewhere/model.py"), None, (trial,))
    entries = entries_of(done, findings, "now", "CPU")
    assert [(entry.finding, entry.change) for entry in entries] == [("launches", "compile"), ("unfused", "compile")]
    assert entries[0].predicted == (1.5, 2.0) and entries[1].predicted is None
    assert entries[0].measured == (1.6, 1.5, 1.7)
    assert entries[0].program == "model.py" and entries[0].device == "CPU"


def test_a_change_that_no_finding_names_is_predicted_to_gain_nothing() -> None:
    trials = [Trial(name, "", "faster", speedup=Ratio(1.6, 1.5, 1.7, 14)) for name in ("gc-freeze", "replay-batch")]
    entries = entries_of(Verification(("model.py",), None, tuple(trials)), (), "now", "CPU")
    assert [(entry.finding, entry.change, entry.predicted) for entry in entries] == [(UNNAMED, "gc-freeze", None)]
    (score,) = scores(entries)
    assert (score.finding, score.count, score.right) == (UNNAMED, 0, 0.0)


def test_what_states_no_gain_is_right_up_to_five_per_cent() -> None:
    speedups = (0.8, 1.04, 1.2, 1.3)
    words = [replace(ENTRY, finding="compile-does-not-pay", predicted=None, measured=(x, 0.7, 1.4)) for x in speedups]
    (score,) = scores(words)
    assert score.right == 0.5 and score.inside is None
    (gains,) = scores([ENTRY, replace(ENTRY, measured=(0.99, 0.9, 1.1))])
    assert gains.right == 0.5


def test_trials_are_those_that_were_judged_on_a_known_device() -> None:
    known = replace(ENTRY, stated=(1.4, 2.1), device="CPU")
    entries = [ENTRY, known, replace(known, verdict="wrong"), replace(known, stated=None)]
    assert trials_of(entries) == (RuleTrial("launches", Interval(1.4, 2.1), 1.6, "CPU"),)


def test_trials_of_measured_pieces_are_apart_from_those_of_formulas() -> None:
    known = replace(ENTRY, stated=(1.4, 2.1), device="CPU")
    entries = [replace(known, basis="measured"), replace(known, basis="formula", finding="another"), known]
    assert [trial.slug for trial in trials_of(entries)] == ["another", "launches"]
    assert [trial.slug for trial in trials_of(entries, "measured")] == ["launches"]


def test_an_entry_states_the_base_of_its_prediction() -> None:
    said = finding("launches", ("compile",), Interval(1.5, 2.0))
    trial = Trial("compile", "", "faster", speedup=Ratio(1.6, 1.5, 1.7, 14))
    findings = (
        replace(said, stated_speedup=Interval(1.5, 2.0)),
        replace(said, measured=True),
        replace(said, stated_speedup=None),
    )
    entries = entries_of(Verification(("model.py",), None, (trial,)), findings, "now", "CPU")
    assert [entry.basis for entry in entries] == ["formula", "measured", None]


def test_a_part_of_the_step_says_nothing_of_a_prediction_for_all_of_it() -> None:
    part = Trial("pad", "", "faster", speedup=Ratio(9.0, 8.0, 10.0, 14), is_part=True)
    done = Verification(("model.py",), None, (part,))
    assert entries_of(done, (finding("misaligned", ("pad",), Interval(1.0, 1.1)),), "now") == []


def test_entries_are_added_and_read_again_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "scores.jsonl"
    assert read_entries(path) == []
    append_entries(path, [ENTRY])
    with path.open("a") as file:
        file.write('not json\n{"format": "bottleneck/score/9"}\n[1]\n' + "[" * 100_000 + "\n")
    append_entries(path, [replace(ENTRY, change="cuda-graph")])
    assert read_entries(path) == [ENTRY, replace(ENTRY, change="cuda-graph")]


def test_no_entries_make_no_file(tmp_path: Path) -> None:
    append_entries(tmp_path / "scores.jsonl", [])
    assert not (tmp_path / "scores.jsonl").exists()


def test_a_rule_is_scored_by_what_was_predicted_and_judged() -> None:
    entries = [
        ENTRY,  # inside
        replace(ENTRY, measured=(1.4, 1.3, 1.55)),  # beside it, but the intervals meet
        replace(ENTRY, measured=(1.0, 0.99, 1.01), verdict="no effect"),
        replace(ENTRY, verdict="inconclusive"),
        replace(ENTRY, verdict="failed", measured=None),
        replace(ENTRY, predicted=None),
        replace(ENTRY, finding="another", predicted=None),
    ]
    another, launches = scores(entries)
    assert (another.finding, another.applied, another.count, another.inside) == ("another", 1, 0, None)
    assert (launches.applied, launches.count) == (6, 3)
    assert launches.inside == pytest.approx(1 / 3)
    assert launches.near == pytest.approx(2 / 3)
    predicted = (1 / 3 + 1 / 2) / 2
    assert launches.ratio == pytest.approx((1 - 1 / 1.4) / predicted)
