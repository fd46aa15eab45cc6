"""Words and document of a judgement of a patch.

One line each, then time, results, counts and what changed.
"""

import math
from collections.abc import Sequence

from bottleneck.report import comparison as compare
from bottleneck.report import render_document
from bottleneck.report.ci import phrases
from bottleneck.report.document import (
    Document,
    FoldedSection,
    LabelledLine,
    ListSection,
    Section,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.json_text import encode
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import as_sentence
from bottleneck.schema.accounts import phrase_of
from bottleneck.schema.comparison import Bar, ChangeRow
from bottleneck.schema.counters import COUNTERS
from bottleneck.schema.gate_result import Culprit
from bottleneck.schema.judgement import CountChange, JudgeVerdict, PatchJudgement, RiskKind, WorkloadJudgement
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.records import replace
from bottleneck.units import counted, format_memory, format_share, format_us

MARK = "<!-- bottleneck-judge -->"

# Below this a ratio needs a third decimal to show its interval.
_CLOSE = 1.1
_ROWS, _COUNTS, _PLACES = 10, 20, 3
_EXIT_WORDS = {
    0: "nothing is slower, and no results differ",
    1: "something is slower, or results differ",
    4: "a side does not run",
    5: "it is not decided",
}
_TONES = {"faster": "good", "slower": "bad", "failed": "bad"}
# Those first that need somebody's attention.
_ORDER: tuple[JudgeVerdict, ...] = ("failed", "slower", "undecided", "faster", "no difference")


def exit_code_of(results: Sequence[WorkloadJudgement]) -> int:
    """Decides the exit code: a failure, then slower or other results, then undecided."""
    if not results or any(result.verdict == "failed" for result in results):
        return 4
    if any(result.verdict == "slower" or result.is_same is False for result in results):
        return 1
    return 5 if any(result.verdict == "undecided" for result in results) else 0


def sentence_of(result: WorkloadJudgement) -> str:
    """Words a verdict in one line.

    'faster 1.24x (1.21 to 1.27), same results, 276 fewer syncs'.
    """
    return _verdict_words(result) + (f": {why}" if (why := _why_open(result)) else "")


def _verdict_words(result: WorkloadJudgement) -> str:
    """Words a verdict without why it is open."""
    if result.verdict == "failed":
        return f"failed: {result.reason}"
    memory = next((risk.text for risk in result.risks if risk.kind == "memory"), "")
    if result.is_same is False:  # whatever its time is, this is the verdict, as in the exit code
        is_open = result.verdict == "undecided"
        time = "" if is_open else _time_words(result)
        words = ", ".join(filter(None, ("results differ", time, _count_words(result), memory)))
        return f"{words}; its time is undecided" if is_open else words
    parts = [_time_words(result), _results_words(result), _count_words(result), memory]
    return ", ".join(filter(None, parts))


def sentence_of_all(results: Sequence[WorkloadJudgement]) -> str:
    """All verdicts in one line; with one workload it is that one's."""
    if len(results) == 1:
        return results[0].sentence
    groups = []
    for verdict in _ORDER:
        names = [result.name for result in results if result.verdict == verdict]
        groups += [f"{verdict}: {', '.join(names)}"] if names else []
    others = [result.name for result in results if result.is_same is False]
    return "; ".join([*([f"results differ: {', '.join(others)}"] if others else []), *groups])


def _time_words(result: WorkloadJudgement) -> str:
    speedup = result.speedup
    if result.verdict == "no difference":
        return "no difference" if result.bound is None else f"no difference beyond {format_share(result.bound)}"
    if result.verdict == "undecided" or speedup is None:
        return "undecided"
    ratio = speedup if result.verdict == "faster" else _inverse(speedup)
    return (
        f"{result.verdict} {_times(ratio.median, ratio)}x ({_times(ratio.low, ratio)} to {_times(ratio.high, ratio)})"
    )


def _inverse(ratio: Ratio) -> Ratio:
    return Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, ratio.n)


def _times(value: float, ratio: Ratio) -> str:
    return f"{value:,.{3 if ratio.median < _CLOSE else 2}f}"


def _results_words(result: WorkloadJudgement) -> str:
    if result.is_same is None:
        return "" if result.time is None else "results not compared"
    return "same results"


def _count_words(result: WorkloadJudgement) -> str:
    """The costliest counter that changed, or what moved."""
    calls = _call_counts(result)
    if calls:
        return _more_or_fewer(calls[0])
    moved = sum(moved.count for moved in result.moved if moved.metric == "syncs")
    return f"{counted(moved, COUNTERS['syncs'].one)} moved" if moved else ""


def _call_counts(result: WorkloadJudgement) -> list[CountChange]:
    """The counters of calls; amounts of bytes and FLOPs stand in the table."""
    return [change for change in result.counts if COUNTERS[change.metric].unit is None]


def _more_or_fewer(change: CountChange) -> str:
    """'276 fewer syncs'."""
    counter, grown = COUNTERS[change.metric], change.after - change.before
    noun = counter.one if abs(grown) == 1 else counter.many
    return f"{abs(grown):,} {'more' if grown > 0 else 'fewer'} {noun}"


def _why_open(result: WorkloadJudgement) -> str:
    """Says why a verdict is undecided, and the budget that would decide it.

    'the times scatter by 4 %; 12 minutes would probably decide it: --budget 720'.
    """
    if result.verdict != "undecided":
        return ""
    budget = ""
    if result.budget_to_decide is not None:
        budget_s = _budget_s(result.budget_to_decide)
        budget = f"{counted(budget_s // 60, 'minute')} would probably decide it: --budget {budget_s}"
    return "; ".join(filter(None, (result.reason, budget)))


def _budget_s(seconds: float) -> int:
    """Rounds a budget up to whole minutes."""
    return 60 * math.ceil(seconds / 60)


def describe_risk(kind: RiskKind, before: int, after: int, what: str = "") -> str:
    """Words a risk, by the values of both sides."""
    if kind == "memory":
        times = f" ({after / before:.2f} times as much)" if before else ""
        return f"{format_memory(after - before)} more peak memory{times}"
    if kind == "recompilation":
        return f"{counted(after - before, 'more recompile')} of torch.compile"
    if kind == "precision":
        return f"computes in {what.rpartition(' ')[2]} where the base computes in {what.partition(' ')[0]}"
    more = f" and {counted(after - 1, 'more figure')}" if after > 1 else ""
    return f"{what}{more} differ{'' if more else 's'} from run to run, and not in the base"


def build(judgement: PatchJudgement, *, full: bool = True) -> Document:
    """The document of a judgement, the workload that needs attention most first.

    Without ``full`` there are no tables of counters and of where the time went.
    """
    results = sorted(judgement.results, key=lambda result: (result.is_same is not False, _ORDER.index(result.verdict)))
    is_single = len(results) == 1
    sections: list[Section] = []
    for result in results:
        name = "" if is_single else f"{result.name}: "
        if not is_single:
            lines = tuple((line.text if not line.label else f"{line.label}: {line.text}",) for line in _lines(result))
            sections.append(ListSection(f"{name}{result.sentence}", lines))
        sections += _tables(result, name) if full else []
    first = results[0] if results else None
    worst = "" if first is None else "results differ" if first.is_same is False else first.verdict
    # Why a verdict is open is longer than the verdict.
    verdict, why = (_verdict_words(first), _why_open(first)) if first and is_single else (judgement.sentence, "")
    # What is wrong with the two sides says how far the rest can be trusted.
    opening = (
        LabelledLine("", as_sentence(verdict)),
        *([LabelledLine("Why", as_sentence(why))] if why else []),
        *(LabelledLine("Note", as_sentence(warning)) for warning in judgement.warnings),
    )
    return Document(
        headline="judge",
        subject=first.name if first is not None and is_single else counted(len(results), "workload"),
        tone="bad" if first is not None and first.is_same is False else _TONES.get(worst, "unknown"),
        sentence=as_sentence(verdict),
        lines=(*opening, *_lines(results[0])) if is_single else opening[1:],
        facts=_facts(judgement),
        fact_width=9,
        sections=tuple(sections),
        warnings=tuple(warning for result in results for warning in result.warnings),
        closing=f"Exit code {judgement.exit_code}: {_EXIT_WORDS[judgement.exit_code]}.",
    )


def _facts(judgement: PatchJudgement) -> tuple[tuple[str, str], ...]:
    """Names both sides; numbers of others have no lines and no duration."""
    sides = (("base", judgement.base), ("changed", judgement.changed))
    if not judgement.seconds:
        return sides
    return (*sides, ("lines", _touched_words(judgement)), ("took", phrases.took(judgement.seconds)))


def render(judgement: PatchJudgement, form: str, style: TerminalStyle = PLAIN, *, full: bool = False) -> str:
    """Renders a judgement in one of the formats of a result.

    On a terminal it has no tables unless ``full``.
    """
    if form == "json":
        return encode(judgement)
    text = render_document(build(judgement, full=full or form != "terminal"), form, style)
    return f"{MARK}\n{text}" if form == "markdown" else text


def _touched_words(judgement: PatchJudgement) -> str:
    """'12 in 2 files: model.py:40, train.py:8'."""
    if not judgement.touched:
        return "the patch adds or changes no line of a file that is known"
    number = sum(len(lines) for lines in judgement.touched.values())
    places = [f"{name}:{lines[0]}" for name, lines in judgement.touched.items() if lines]
    more = ", …" if len(places) > _PLACES else ""
    return f"{number:,} in {counted(len(judgement.touched), 'file')}: {', '.join(places[:_PLACES])}{more}"


def _lines(result: WorkloadJudgement) -> tuple[LabelledLine, ...]:
    rows = [
        ("First", _first(result)),
        ("Time", _time_evidence(result)),
        ("Results", _results_evidence(result)),
        ("Counts", _counts_evidence(result)),
        ("Why", _why(result)),
        ("Risk", "; ".join(risk.text for risk in result.risks if risk.kind != "memory")),
    ]
    return tuple(LabelledLine(label, text) for label, text in rows if text)


def _first(result: WorkloadJudgement) -> str:
    """Words what to do first; empty where nothing speaks against the patch."""
    if result.verdict == "failed":
        return "Mend what it raises on that side, then judge again"
    if result.is_same is False:
        what = result.numerics.changes[0].name if result.numerics is not None and result.numerics.changes else "they"
        return f"See why {what} differs; where a coarser format is meant, judge with --rounding FORMAT"
    if result.verdict == "slower":
        grown = [change for change in _call_counts(result) if change.after > change.before]
        culprits = [one for change in grown for one in change.culprits[:1] if one.site is not None]
        return f"Undo {phrases.describe_culprit(culprits[0])}" if culprits else "See below where the time went: --full"
    if result.verdict == "undecided":
        more = "" if result.budget_to_decide is None else f" with --budget {_budget_s(result.budget_to_decide)}"
        return f"Judge again{more}{', or' if more else ''} on a machine where nothing else runs"
    return ""


def _time_evidence(result: WorkloadJudgement) -> str:
    timed = result.time
    if timed is None or timed.base_us is None or timed.candidate_us is None:
        return ""
    if timed.ratio is None:
        pairs = ", ".join(phrases.growth(math.exp(log)) for log in timed.pairs)
        return f"{counted(len(timed.pairs), 'pair')} of processes so far: {pairs}"
    visible = (
        "" if result.smallest_visible is None else f"; a change of {format_share(result.smallest_visible)} would show"
    )
    fresh = f", {timed.confirming} of them fresh ones to confirm" if timed.confirming else ""
    return (
        f"{format_us(timed.base_us.median)} to {format_us(timed.candidate_us.median)} per step, "
        f"{counted(timed.ratio.n, 'pair')} of processes in turns{fresh}{visible}"
    )


def _results_evidence(result: WorkloadJudgement) -> str:
    numerics = result.numerics
    if numerics is None or numerics.verdict not in {"same", "differs"}:
        return "" if numerics is None or numerics.reason is None else f"not compared: {numerics.reason}"
    if numerics.verdict == "differs":
        words = phrases.describe_output(numerics.changes[0])
        return f"{len(numerics.changes)} of {counted(numerics.compared, 'output')} differ; {words}"
    gradients = f", {numerics.gradients} of them gradients" if numerics.gradients else ""
    most = numerics.closest
    if most is None or most.difference is None or most.tolerance is None:
        bounds = ", ".join(f"{bound:.1e} of the size of a {dtype}" for dtype, bound in numerics.bounds.items() if bound)
        bounds = f"; rounding may explain {bounds}" if bounds else ""
        return f"{counted(numerics.compared, 'output')}{gradients}, equal to the last digit{bounds}"
    return (
        f"{counted(numerics.compared, 'output')}{gradients}; the largest difference is {most.difference:.1e} of its "
        f"size ({most.name}), and rounding explains {most.tolerance:.1e}"
    )


def _counts_evidence(result: WorkloadJudgement) -> str:
    words = [f"{_more_or_fewer(change)}{_place_words(change)}" for change in _call_counts(result)[:_PLACES]]
    words += [
        f"{counted(moved.count, COUNTERS[moved.metric].one, COUNTERS[moved.metric].many)} moved from {moved.before} to "
        f"{moved.after}"
        for moved in result.moved
    ]
    return "; ".join(words)


def _place_words(change: CountChange) -> str:
    culprit = next((culprit for culprit in change.culprits if culprit.site is not None), None)
    if culprit is None or culprit.site is None:
        return ""
    side = "" if change.after > change.before else " of the base"
    return f" ({culprit.site.place}{side}{_changed_here(culprit)})"


def _changed_here(culprit: Culprit) -> str:
    return ", a line of the patch" if culprit.is_touched else ""


def _why(result: WorkloadJudgement) -> str:
    """Words where the change of the step comes from.

    Other work and waits come first. That the same work took longer in one recording than in the other may be chance: it
    is told where those do not make most of the change.
    """
    compared = result.comparison
    if compared is None or compared.before.step_us is None or compared.after.step_us is None:
        return ""
    change_us = compared.after.step_us - compared.before.step_us
    certain = [row for row in compared.rows if row.kind in _OTHER_WORK or (row.is_touched and row.kind != "same")]
    parts = [(row.change_us, _row_words(row)) for row in map(_group, compare.fold_alike(certain))]
    parts += [(bar.change_us, _bar_words(bar)) for bar in compared.idle]
    if sum(us for us, _ in parts) / change_us < _MOST if change_us else True:
        rest = [row for row in compared.rows if row not in certain and row.kind != "same"]
        parts += [(row.change_us, _row_words(row)) for row in map(_group, compare.fold_alike(rest))]
    largest = sorted(
        (part for part in parts if abs(part[0]) >= _LEAST * abs(change_us)), key=lambda part: -abs(part[0])
    )
    return "; ".join(f"{format_us(abs(us))} {'more' if us > 0 else 'less'} {words}" for us, words in largest[:_PLACES])


_OTHER_WORK = frozenset({"new", "gone", "more", "fewer"})
_MOST, _LEAST = 0.5, 0.05
_ROW_KINDS = {"new": "new", "gone": "gone", "more": "called more often", "fewer": "called less often"}


def _group(folded: compare.RowGroup) -> ChangeRow:
    return folded.row


def _row_words(row: ChangeRow) -> str:
    """'in aten::sum (gone), model.py:8'."""
    kind = _ROW_KINDS.get(row.kind, row.kind)
    place = row.source or row.module or ""
    mark = ", a line of the patch" if row.is_touched else ""
    return f"in {row.name} ({kind})" + (f" at {place}{mark}" if place else "")


def _bar_words(bar: Bar) -> str:
    """'in Python between ops, normalize() (model.py:5)'."""
    return f"in {phrase_of(bar.account)}" + (f", {bar.source}" if bar.source else "")


def _tables(result: WorkloadJudgement, name: str) -> list[Section]:
    sections: list[Section] = []
    if result.counts:
        sections.append(FoldedSection(f"{name}Counters that differ", (_count_table(result),), "Counters"))
    if result.comparison is not None:
        compared = compare.build(replace(result.comparison, counters=()), _ROWS)
        parts = (*compared.conditions, ListSection("", ((compared.sentence,),)), *compared.sections)
        sections.append(FoldedSection(f"{name}Where the time went", parts, "Where the time went"))
    return sections


def _count_table(result: WorkloadJudgement) -> TableSection:
    """Lists the counters; causes that several share stand beneath the first of them."""
    rows: list[TableRow] = []
    last: tuple[str, ...] = ()
    for change in result.counts[:_COUNTS]:
        shown = phrases.amounts(change.metric, change.before, change.after)
        causes = tuple(map(phrases.describe_culprit, change.culprits))
        rows.append(TableRow((change.metric, *shown), details=() if causes == last else causes))
        last = causes
    heads = columns("name", "counter") + columns("number", "base", "changed", "difference")
    return TableSection("", heads, tuple(rows))
