"""Builds the document of the gate's result, which its page shows, and the sections that its text and markdown share."""

from collections.abc import Sequence

from bottleneck.report import comparison as compare
from bottleneck.report import render_document
from bottleneck.report.ci import phrases
from bottleneck.report.document import Action, ActionSection, Document, Section, TableRow, TableSection, columns
from bottleneck.schema.comparison import Comparison
from bottleneck.schema.gate_result import CounterChange, Gate, WorkloadResult
from bottleneck.schema.records import replace


def build(gate: Gate) -> Document:
    """The document of a gate: the workloads, the worst first, then the evidence for each that does not pass."""
    verdict, results = phrases.verdict_of(gate), phrases.worst_first(gate.results)
    passed = tuple(_action(result) for result in results if result.verdict == "pass")
    failed = tuple(_action(result) for result in results if result.verdict != "pass")
    sides = (("base", gate.base), ("candidate", gate.candidate))
    return Document(
        headline=phrases.VERDICTS[verdict],
        subject="bottleneck gate",
        tone={"pass": "good", "fail": "bad", "failed": "bad"}.get(verdict, "unknown"),
        sentence=phrases.closing(gate),
        facts=tuple((label, text) for label, text in sides if text),
        sections=(
            ActionSection("Workloads", failed, groups=(("Passed", passed),) if passed else ()),
            *(section for result in results for section in _evidence(result)),
        ),
        warnings=gate.warnings,
    )


def to_html(gate: Gate) -> str:
    """The page of a gate for a browser."""
    return render_document(build(gate), "html")


def labelled_lines(result: WorkloadResult) -> list[tuple[str, str]]:
    """The story, the time and the base of a workload that does not pass, each line with its label."""
    time = [] if result.time is None else [("time", phrases.describe_time(result.time))]
    base = [("base", result.base)] if result.base else []
    return [] if result.verdict == "pass" else [*phrases.story(result), *time, *base]


def counter_table(changes: Sequence[CounterChange], title: str = "") -> TableSection:
    """The counters with their causes, a cause that several share beneath the first of them."""
    causes = [tuple(phrases.describe_cause(change)) for change in changes]
    rows = []
    for change, cause, before in zip(changes, causes, [(), *causes], strict=False):
        words = phrases.describe_limit(change), phrases.CHANGES[change.verdict]
        cells = (change.metric, *phrases.amounts(change), *words)
        rows.append(TableRow(cells, details=() if cause == before else cause))
    heads = columns("name", "counter") + columns("number", "before", "after", "change") + columns("words", "limit", "")
    return TableSection(title, heads, tuple(rows))


def bare_comparison(comparison: Comparison) -> Comparison:
    """The comparison without its counters, which stand in a table of their own, and without folders of this run."""
    before, after = replace(comparison.before, path=""), replace(comparison.after, path="")
    return replace(comparison, before=before, after=after, counters=())


def _action(result: WorkloadResult) -> Action:
    """A workload with its labelled lines; the first command among them, with its line, comes last, to be copied."""
    lines, last, command = [("result", phrases.headline(result))], [], ""
    for label, text in [*labelled_lines(result), *phrases.asides(result)]:
        phrase, found = phrases.split_command(text)
        if found and not command:
            last, command = [(label, phrase)], found
        else:
            lines.append((label, text.replace("  ", ": ", 1)))  # between an event and its line of code
    return Action(f"{phrases.VERDICTS[result.verdict]} {result.name}", (*lines, *last), command=command or None)


def _evidence(result: WorkloadResult) -> list[Section]:
    """The counters that differ and the comparison of the times of a workload that does not pass."""
    if result.verdict == "pass":
        return []
    changes = phrases.differing(result)
    found: list[Section] = [counter_table(changes, "Counters that differ")] if changes else []
    if result.comparison is not None:
        found += compare.build(bare_comparison(result.comparison)).sections
    return [replace(section, title=f"{section.title}: {result.name}") for section in found]
