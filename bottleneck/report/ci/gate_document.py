"""Builds the document of a gate, the worst workload first.

Behind the workloads stands the evidence for each that does not pass.

As markdown it is short enough for a comment, and its first line is a mark by which the comment is found again.
"""

from collections.abc import Iterable, Sequence

from bottleneck.report import comparison as compare
from bottleneck.report import markdown, render_document
from bottleneck.report.ci import phrases
from bottleneck.report.document import (
    Action,
    ActionSection,
    Document,
    FoldedSection,
    LabelledLine,
    ListSection,
    Section,
    TableColumn,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.schema.gate_result import CounterChange, Gate, WorkloadResult
from bottleneck.schema.records import replace
from bottleneck.units import counted

MARK = "<!-- bottleneck-gate -->"

# A comment on GitHub holds 65 536 characters; these are bytes, and leave room for a line that links to the run.
MOST_BYTES = 58_000

_TITLE = "Workloads"
_MOST_COUNTERS = 40
_COMMENT_ROWS = 5


def build(gate: Gate, *, rows: int = compare.TOP) -> Document:
    """Builds the document of a gate.

    ``rows`` is how many rows of each comparison of times are shown; with 0 there is none.
    """
    results = phrases.worst_first(gate.results)
    took = phrases.took(gate.seconds) if len(results) != 1 else ""  # a workload that is alone says it
    sides = (("base", gate.base), ("candidate", gate.candidate), ("took", took))
    verdict = phrases.verdict_of(gate)
    actions = ActionSection(_TITLE, tuple(_action(result, gate.base) for result in results))
    lines = _lines(gate, results)
    return Document(
        headline="gate" if lines else phrases.verdict_words(gate),
        subject=results[0].name if lines else "bottleneck gate",
        tone={"pass": "good", "fail": "bad", "failed": "bad"}.get(verdict, "unknown"),
        sentence=gate.sentence,
        lines=lines,
        facts=tuple((label, text) for label, text in sides if text),
        fact_width=10,
        sections=(
            *([actions] if actions.items else []),
            *(fold for result in results for fold in _evidence(result, rows)),
        ),
        warnings=gate.warnings,
        closing=f"{phrases.verdict_and_code(gate)}.",
    )


def _lines(gate: Gate, results: Sequence[WorkloadResult]) -> tuple[LabelledLine, ...]:
    """Gives what failed and by how much, and what to undo.

    Of several workloads also how all did. Nothing without a failure.
    """
    worst = phrases.failure(results[0]) if results and results[0].verdict == "fail" else ""
    if not worst:
        return ()
    every = gate.sentence if len(results) > 1 else ""
    lines = (("", f"{phrases.VERDICTS['fail']}: {worst}"), ("First", phrases.undo(results[0])), ("All", every))
    return tuple(LabelledLine(label, text) for label, text in lines if text)


def to_terminal(gate: Gate, style: TerminalStyle = PLAIN) -> str:
    """Renders the gate as text, without the comparisons of times.

    Their causes are in the workloads' own lines.
    """
    return render_document(build(gate, rows=0), "terminal", style)


def to_html(gate: Gate) -> str:
    """The page of a gate for a browser."""
    return render_document(build(gate), "html")


def to_markdown(gate: Gate) -> str:
    """Renders the gate as markdown of at most ``MOST_BYTES``.

    Where it gets longer, evidence is left out, then workloads.
    """
    document = build(gate, rows=_COMMENT_ROWS)
    actions = [
        action for section in document.sections if isinstance(section, ActionSection) for action in section.items
    ]
    folds = [section for section in document.sections if isinstance(section, FoldedSection)]
    warnings = document.warnings[:_COMMENT_ROWS]
    frame = replace(document, sections=(ActionSection(_TITLE, ()),), warnings=(*warnings, _cut(10**6, 10**6)))
    room = MOST_BYTES - _size([MARK, markdown.render(frame)])
    shown, room = _fitting((markdown.action_lines(action, f"{at}. ") for at, action in enumerate(actions, 1)), room)
    opened, _ = _fitting(map(markdown.section_lines, folds), room if shown == len(actions) else 0)
    left_out = len(actions) - shown, len(folds) - opened
    sections: tuple[Section, ...] = (ActionSection(_TITLE, tuple(actions[:shown])), *folds[:opened])
    cut = replace(document, sections=sections, warnings=(*warnings, *([_cut(*left_out)] if any(left_out) else [])))
    return f"{MARK}\n{markdown.render(cut if actions else replace(cut, sections=()))}"


def _fitting(blocks: Iterable[Sequence[str]], room: int) -> tuple[int, int]:
    """Counts the first blocks that fit, and the room left.

    No block is made after those.
    """
    number = 0
    for block in blocks:
        size = _size(block)
        if size > room:
            break
        number, room = number + 1, room - size
    return number, room


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode("utf-8", "backslashreplace")) + 1 for line in lines)


def _cut(workloads: int, tables: int) -> str:
    """Notes what was left out, and which file has it."""
    left_out = f"{counted(workloads, 'workload')} and {counted(tables, 'table')} of evidence"
    return f"cut to fit into a comment: {left_out} only in gate.json"


def _action(result: WorkloadResult, usual_base: str) -> Action:
    """Builds the action of a workload: story, time, base, facts.

    The base is left out where it is the usual one, which stands above.
    """
    lead = f"{phrases.workload_verdict(result)} {result.name}: {phrases.headline(result)}"
    if result.verdict == "pass":
        return Action(lead, tuple(phrases.asides(result)))
    time = [] if result.time is None else [LabelledLine("time", phrases.describe_time(result.time))]
    base = [LabelledLine("base", result.base)] if result.base not in {"", usual_base} else []
    return Action(lead, (*phrases.story(result), *time, *base, *phrases.asides(result)))


def _evidence(result: WorkloadResult, rows: int) -> list[FoldedSection]:
    """Builds the evidence on a workload that does not pass.

    The counters that differ, and the comparison of the times.
    """
    if result.verdict == "pass":
        return []
    changes = phrases.differing(result)
    folds = (
        [FoldedSection(f"Counters that differ: {result.name}", (_counter_table(changes),), "Counters")]
        if changes
        else []
    )
    if result.comparison is not None and rows:
        # The counters stand in a table of their own.
        compared = compare.build(replace(result.comparison, counters=()), rows)
        sections = (*compared.conditions, ListSection("", ((compared.sentence,),)), *compared.sections)
        folds.append(FoldedSection(f"Where the time went: {result.name}", sections, "Where the time went"))
    return folds


def _counter_table(changes: Sequence[CounterChange]) -> TableSection:
    """Builds four columns, as many as a phone shows.

    A cause that several counters share stands beneath the first of them.
    """
    causes = [tuple(phrases.describe_cause(change)) for change in changes]
    rows = []
    for change, cause, before in zip(changes[:_MOST_COUNTERS], causes, [(), *causes], strict=False):
        old, new, grown = phrases.amounts(change.metric, change.before, change.after)
        cells = (change.metric, f"{old} → {new} ({grown})", phrases.describe_limit(change))
        rows.append(TableRow((*cells, phrases.CHANGES[change.verdict]), details=() if cause == before else cause))
    heads = columns("name", "counter") + columns("number", "change") + columns("words", "limit", "")
    more = len(changes) - len(rows)
    notes = (f"and {more} more",) if more > 0 else ()
    return TableSection("", heads, tuple(rows), notes, details=TableColumn("", "words"))
