"""Sums up a judgement of a patch for an agent."""

from pydantic import Field

from bottleneck.agent.results import (
    Amount,
    AmountRange,
    AnswerSize,
    ResultColumn,
    ResultTable,
    ToolResult,
    TraceText,
    all_from_trace,
    amount,
    fitted,
    from_trace,
    marked,
    measured,
    rounded,
)
from bottleneck.report.text import clean
from bottleneck.schema.counters import COUNTERS
from bottleneck.schema.judgement import CountChange, PatchJudgement, WorkloadJudgement


class WorkloadAnswer(ToolResult):
    """The verdict on one workload."""

    workload: TraceText
    verdict: str = Field(description="'faster', 'slower', 'no difference', 'undecided' or 'failed'")
    sentence: TraceText
    speedup: AmountRange | None = Field(default=None, description="base time / changed time, its 98 % interval")
    same_results: bool | None = Field(default=None, description="absent where that is not known")
    smallest_visible: Amount | None = Field(default=None, description="smallest change that would have shown")
    counts: ResultTable = Field(description="counters that differ, the costliest first")
    differing_outputs: list[TraceText] | None = None
    moved: list[TraceText] | None = Field(default=None, description="work that another line does now")
    risks: list[TraceText] | None = None
    reason: TraceText | None = Field(default=None, description="why it is undecided or failed")
    budget_to_decide: Amount | None = Field(default=None, description="budget that would probably decide it")
    warnings: list[TraceText] | None = None


class JudgeAnswer(ToolResult):
    """The verdict on a patch: is it faster, and does it compute the same."""

    base: TraceText
    changed: TraceText
    sentence: TraceText
    results: list[WorkloadAnswer]
    took: Amount
    warnings: list[TraceText] | None = None


_SIZES = (AnswerSize(8, 240), AnswerSize(5, 160), AnswerSize(3, 120), AnswerSize(1, 80))
_ALL = AnswerSize(10_000, 2_000)


def answer_judge(judgement: PatchJudgement, *, full: bool = False) -> JudgeAnswer:
    """The judgement in brief; ``full`` holds all counters."""
    return fitted(lambda size: _of_size(judgement, size), (_ALL,) if full else _SIZES)


def _of_size(judgement: PatchJudgement, size: AnswerSize) -> JudgeAnswer:
    return JudgeAnswer(
        base=marked(judgement.base, size.characters),
        changed=marked(judgement.changed, size.characters),
        sentence=marked(judgement.sentence, 2 * size.characters),
        results=[_workload(result, size) for result in judgement.results],
        took=measured(judgement.seconds, "s"),
        warnings=all_from_trace(judgement.warnings[: size.rows], size.characters) or None,
    )


def _workload(result: WorkloadJudgement, size: AnswerSize) -> WorkloadAnswer:
    speedup, numerics = result.speedup, result.numerics
    outputs = [] if numerics is None else [f"{change.name}: {change.what}" for change in numerics.changes]
    moved = [f"{change.count} {change.metric}: {change.before} to {change.after}" for change in result.moved]
    texts = {
        "differing_outputs": outputs,
        "moved": moved,
        "risks": [risk.text for risk in result.risks],
        "warnings": result.warnings,
    }
    return WorkloadAnswer(
        workload=marked(result.name, size.characters),
        verdict=result.verdict,
        sentence=marked(result.sentence, size.characters),
        speedup=None
        if speedup is None
        else AmountRange(low=rounded(speedup.low), high=rounded(speedup.high), unit="ratio", basis="measured"),
        same_results=result.is_same,
        smallest_visible=None if result.smallest_visible is None else measured(result.smallest_visible, "share"),
        counts=_counts(result.counts[: size.rows], size),
        reason=from_trace(result.reason, size.characters),
        budget_to_decide=None if result.budget_to_decide is None else amount(result.budget_to_decide, "s", "predicted"),
        **{name: all_from_trace(words[: size.rows], size.characters) or None for name, words in texts.items()},
    )


def _counts(changes: tuple[CountChange, ...], size: AnswerSize) -> ResultTable:
    return ResultTable(
        kind="counts",
        columns=[
            ResultColumn(name="counter"),
            ResultColumn(name="unit"),
            ResultColumn(name="before", unit="by row", basis="measured"),
            ResultColumn(name="after", unit="by row", basis="measured"),
            ResultColumn(name="line, of the side that counts more", from_trace=True),
        ],
        rows=[
            [
                change.metric,
                _unit(change.metric),
                change.before,
                change.after,
                clean(_place(change), size.characters),
            ]
            for change in changes
        ],
    )


def _place(change: CountChange) -> str:
    """The line that most of a change comes from; empty where none is known."""
    return next((culprit.site.place for culprit in change.culprits if culprit.site is not None), "")


def _unit(metric: str) -> str:
    """The unit of a counter; those of modules and most others are counts."""
    counter = COUNTERS.get(metric)
    return "count" if counter is None else counter.unit or "count"
