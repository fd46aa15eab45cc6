"""The verdict on a patch from what both sides count and compute, with made counts and times."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.errors import UndecidedError, WorkloadError
from bottleneck.experiment.side import Side
from bottleneck.gate.count_program import Counted
from bottleneck.harness.messages import Program
from bottleneck.judge import judge_patch as judging
from bottleneck.judge.judge_patch import JudgeEffort, JudgeRun, count_changes, find_risks, judge_patch, moved_counts
from bottleneck.judge.sides import PatchSides
from bottleneck.report.judgement import render
from bottleneck.schema.counters import Counts, Fingerprint, Site
from bottleneck.schema.gate_result import TimeResult
from bottleneck.schema.judgement import PatchJudgement
from bottleneck.schema.measurements import Ratio, Timing
from bottleneck.schema.numerics import Numerics, TensorDigest

LOSS = TensorDigest("float32", (1,), norm=2.0, mean=2.0, projection=2.0)


def counts(sites: tuple[Site, ...] = (), numerics: Numerics | None = None, **values: int) -> Counts:
    """The counts of a side, whose step returns a loss."""
    known = numerics or Numerics(3, {"returned of step 1": LOSS}, precision="fp32", reductions=2)
    return Counts(values, Fingerprint(), sites=sites, numerics=known)


def line(number: int, text: str, **counted: int) -> Site:
    """A line of the program and what it counts."""
    return Site("train.py", number, text, counted)


@pytest.fixture
def sides(tmp_path: Path) -> PatchSides:
    """Two folders that hold the workload."""
    for name in ("base", "changed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.py").write_text("")
    return PatchSides(Side("main", tmp_path / "base"), Side("this", tmp_path / "changed"), {"train.py": frozenset({9})})


Judge = Callable[..., PatchJudgement]


@pytest.fixture
def judge(sides: PatchSides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judges one workload of these counts and of this time."""

    def judged(before: Counts | Exception, after: Counts, timed: TimeResult, **effort: Any) -> PatchJudgement:
        def count(_program: Program, _folder: Path, side: Side, *_: object, **__: object) -> Counted:
            known = before if side is sides.base else after
            if isinstance(known, Exception):
                raise known
            return Counted(known, (), None)  # type: ignore[arg-type]

        monkeypatch.setattr(judging, "count_program", count)
        monkeypatch.setattr(judging, "time_in_pairs", lambda *_, **__: timed)
        monkeypatch.setattr(judging, "record_as_timed", lambda *_, **__: (_ for _ in ()).throw(UndecidedError("none")))
        run = JudgeRun(sides, tmp_path, tmp_path / "scratch", JudgeEffort(**effort))
        (tmp_path / "scratch").mkdir(exist_ok=True)
        return judge_patch(run, [Program("bench.py")])

    return judged


STEP = Timing(1000.0, 990.0, 1010.0, 7)
FASTER = TimeResult(
    "faster", ratio=Ratio(0.8, 0.79, 0.82, 14), base_us=STEP, candidate_us=replace(STEP, median=800.0), confirming=7
)
SAME_TIME = TimeResult("fine", ratio=Ratio(1.001, 0.996, 1.005, 7), smallest_visible=0.008)
SLOWER = TimeResult("slower", ratio=Ratio(1.02, 1.012, 1.03, 14))
OPEN = TimeResult(
    "undecided", "20 pairs scatter too much", Ratio(1.0, 0.9, 1.1, 20), smallest_visible=0.04, seconds=200
)


def test_faster_with_the_same_results_and_what_it_does_less_often(judge: Judge) -> None:
    judged = judge(counts(syncs=276, ops=900), counts(syncs=0, ops=800), FASTER)
    assert judged.sentence == "faster 1.25x (1.22 to 1.27), same results, 276 fewer syncs"
    assert judged.exit_code == 0


def test_no_difference_names_what_is_left_possible(judge: Judge) -> None:
    judged = judge(counts(syncs=1), counts(syncs=1), SAME_TIME)
    assert judged.sentence == "no difference beyond 0.5 %, same results"
    assert judged.exit_code == 0 and judged.results[0].bound == pytest.approx(0.005)


def test_slower_is_said_as_how_many_times_as_long(judge: Judge) -> None:
    judged = judge(counts(), counts(), SLOWER)
    assert judged.sentence == "slower 1.020x (1.012 to 1.030), same results"
    assert judged.exit_code == 1


def test_undecided_says_which_budget_would_decide_it(judge: Judge) -> None:
    judged = judge(counts(), counts(), OPEN)
    words = "undecided, same results: 20 pairs scatter too much; 54 minutes would probably decide it"
    assert judged.sentence == f"{words}: --budget 3240"
    assert judged.exit_code == 5


def test_too_few_pairs_are_shown_with_the_time_that_seven_and_seven_fresh_ones_take(judge: Judge) -> None:
    few = TimeResult("undecided", "2 pairs", pairs=(-0.22, -0.23), seconds=59.0, base_us=STEP, candidate_us=STEP)
    judged = judge(counts(), counts(), few)
    assert judged.results[0].budget_to_decide == pytest.approx(413.0, abs=1.0)
    assert "--budget 420" in judged.sentence
    assert "2 pairs of processes so far: -19.7 %, -20.5 %" in render(judged, "markdown")


def test_other_results_are_said_whatever_the_time(judge: Judge) -> None:
    other = Numerics(3, {"returned of step 1": replace(LOSS, norm=2.1, mean=2.1, projection=2.1)}, precision="fp32")
    for timed, words in (
        (FASTER, "results differ, faster 1.25x (1.22 to 1.27)"),
        (SAME_TIME, "results differ, no difference beyond 0.5 %"),
        (OPEN, "results differ; its time is undecided: 20 pairs scatter too much"),
    ):
        judged = judge(counts(), counts(numerics=other), timed)
        assert judged.sentence.startswith(words) and judged.exit_code == 1


def test_results_of_a_coarser_format_differ_unless_its_rounding_is_allowed(judge: Judge) -> None:
    rounded = replace(LOSS, norm=2.004, mean=2.004, projection=2.004)
    coarse = Numerics(3, {"returned of step 1": rounded}, precision="bf16", reductions=2)
    strict = judge(counts(), counts(numerics=coarse), FASTER)
    assert strict.sentence.startswith("results differ, faster") and strict.exit_code == 1
    assert [risk.text for risk in strict.results[0].risks] == ["computes in bf16 where the base computes in fp32"]
    allowed = judge(counts(), counts(numerics=coarse), FASTER, precision="bf16")
    assert "same results" in allowed.sentence and allowed.exit_code == 0


def test_memory_that_was_traded_stands_in_the_line(judge: Judge) -> None:
    judged = judge(counts(peak_bytes=100_000_000), counts(peak_bytes=180_000_000), FASTER)
    assert judged.sentence.endswith("same results, 76.3 MiB more peak memory (1.80 times as much)")


def test_a_side_that_fails_is_named(judge: Judge) -> None:
    judged = judge(WorkloadError("bench.py failed in main", why="ImportError: no model"), counts(), FASTER)
    assert judged.exit_code == 4
    assert judged.sentence == "failed: bench.py failed in main: ImportError: no model"


def test_a_program_without_steps_to_count_is_timed_all_the_same(judge: Judge) -> None:
    judged = judge(UndecidedError("bench.py made no steps to count", why="none was found"), counts(), FASTER)
    assert judged.sentence == "faster 1.25x (1.22 to 1.27), results not compared"
    assert "made no steps to count" in judged.results[0].warnings[0]


def test_what_runs_disagree_on_is_a_risk_only_where_the_base_does_not() -> None:
    unstable = replace(counts(), unstable={"ops": "runs differ: 4 to 6"})
    assert [risk.kind for risk in find_risks(counts(), unstable)] == ["determinism"]
    assert find_risks(unstable, unstable) == ()
    assert [risk.text for risk in find_risks(counts(recompiles=1), counts(recompiles=3))] == [
        "2 more recompiles of torch.compile"
    ]


def test_a_sync_that_moved_is_told_from_one_that_is_gone(sides: PatchSides) -> None:
    before = counts((line(4, "a.item()", syncs=1), line(7, "b.sum()")), syncs=1)
    after = counts((line(5, "losses.append(float(loss))", syncs=1), line(7, "b.sum()")), syncs=1)
    moved = moved_counts(before, after, None)
    assert [(row.metric, row.count, row.before, row.after) for row in moved] == [
        ("syncs", 1, "train.py:4", "train.py:5")
    ]
    assert moved_counts(before, before, None) == ()
    assert count_changes(before, after, sides) == ()
    # A line that only stands elsewhere in its file is the same line.
    elsewhere = counts((line(40, "a.item()", syncs=1),), syncs=1)
    assert moved_counts(before, elsewhere, None) == ()
    assert moved_counts(before, elsewhere, {"train.py": frozenset({2})}) == ()
    # Where the patch put it there, it moved; a line that the patch edited did not.
    assert len(moved_counts(before, elsewhere, {"train.py": frozenset({40})})) == 1
    edited = counts((line(4, "b.item()", syncs=1),), syncs=1)
    assert moved_counts(before, edited, {"train.py": frozenset({4})}) == ()


def test_a_counter_that_grew_names_the_line_of_the_patch(sides: PatchSides) -> None:
    before, after = counts((line(4, "x.sum()"),), syncs=0), counts((line(9, "x.item()", syncs=2),), syncs=2)
    (grown,) = count_changes(before, after, sides)
    assert grown.culprits[0].site is not None and grown.culprits[0].site.place == "train.py:9"
    assert grown.culprits[0].is_touched
    (shrunk,) = count_changes(after, before, sides)
    assert shrunk.culprits[0].site is not None and shrunk.culprits[0].site.place == "train.py:9"
