"""A judgement in brief: its verdict, its counts and its risks, in at most four kilobytes."""

from dataclasses import replace

import pytest

pytest.importorskip("pydantic", reason="it comes with the SDK: pip install mcp")

from bottleneck.agent.judgements import answer_judge
from bottleneck.agent.results import MOST_BYTES, size_of
from bottleneck.schema.counters import Site
from bottleneck.schema.gate_result import Culprit
from bottleneck.schema.judgement import CountChange, MovedCount, PatchJudgement, PatchRisk, WorkloadJudgement
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.numerics import NumericsResult, OutputChange

CULPRIT = Culprit("aten::item", 3, site=Site("train.py", 57, "loss.item()"))
RESULT = WorkloadJudgement(
    "bench",
    ("bench.py",),
    "faster",
    "faster 1.24x (1.21 to 1.27)",
    speedup=Ratio(1.24, 1.21, 1.27, 14),
    smallest_visible=0.007,
    is_same=False,
    numerics=NumericsResult("differs", 3, (OutputChange("returned of step 1", "1.0 became 1.5"),)),
    counts=(CountChange("syncs", 4, 7, (CULPRIT,)), CountChange("flops", 90, 80)),
    moved=(MovedCount("copies", 2, "train.py:5", "train.py:9"),),
    risks=(PatchRisk("memory", "12 MB more at the peak"),),
)


def judgement(*results: WorkloadJudgement) -> PatchJudgement:
    return PatchJudgement(results, 1, "faster, but results differ", base="main", changed="the working tree")


def test_a_judgement_says_verdict_results_counts_and_risks() -> None:
    (result,) = answer_judge(judgement(RESULT)).results
    assert (result.verdict, result.same_results) == ("faster", False)
    assert result.speedup is not None and (result.speedup.low, result.speedup.high) == (1.21, 1.27)
    assert result.speedup.basis == "measured"
    assert result.counts.rows == [["syncs", "count", 4, 7, "train.py:57"], ["flops", "FLOP", 90, 80, ""]]
    assert result.differing_outputs and result.differing_outputs[0].from_trace == "returned of step 1: 1.0 became 1.5"
    assert result.moved and result.moved[0].from_trace == "2 copies: train.py:5 to train.py:9"
    assert result.risks and result.risks[0].from_trace == "12 MB more at the peak"


def test_an_undecided_one_says_why_and_which_budget_would_decide_it() -> None:
    undecided = replace(RESULT, verdict="undecided", speedup=None, reason="too much noise", budget_to_decide=90.0)
    (result,) = answer_judge(judgement(undecided)).results
    assert result.speedup is None and result.reason is not None
    assert result.budget_to_decide is not None and (result.budget_to_decide.value, result.budget_to_decide.basis) == (
        90.0,
        "predicted",
    )


def test_a_judgement_with_much_to_say_stays_small_unless_all_is_asked_for() -> None:
    counts = tuple(CountChange(f"counter {number}", number, number + 1, (CULPRIT,)) for number in range(100))
    long = replace(RESULT, counts=counts, warnings=tuple("w" * 900 for _ in range(9)))
    brief, full = answer_judge(judgement(long)), answer_judge(judgement(long), full=True)
    assert size_of(brief) <= MOST_BYTES < size_of(full)
    assert len(full.results[0].counts.rows) == 100 > len(brief.results[0].counts.rows) > 0


def test_names_in_a_judgement_are_harmless() -> None:
    hostile = replace(
        RESULT, name="a\x1b[2J\nb", counts=(CountChange("ops", 1, 2, (replace(CULPRIT, site=Site("x\n.py", 1, "")),)),)
    )
    (result,) = answer_judge(judgement(hostile)).results
    assert result.workload.from_trace.isprintable()
    assert str(result.counts.rows[0][4]).isprintable()
