"""Builds the table of a program's start."""

from collections.abc import Mapping, Sequence
from typing import TextIO

from bottleneck.report import terminal
from bottleneck.report.document import Action, ActionSection, Document, TableRow, TableSection, columns
from bottleneck.report.text import scale_of
from bottleneck.schema.analysis import Finding
from bottleneck.schema.start_up import START_FINDINGS, START_KINDS, StartKind, StartLedger, StartPart, tell_start_up
from bottleneck.units import apportion_groups, format_si, format_us

_MOST_IMPORTS, _MOST_PARTS = 10, 5
# What each stage of the compiler does, by the name that it has in a recording.
_STAGES = {"dynamo": "capture", "autograd": "autograd", "lowering": "lowering", "code": "code"}


def start_up_table(start: StartLedger | None, texts: Mapping[str, str] | None = None) -> TableSection | None:
    """Builds the table; null where the start was not followed.

    Kinds stand by size with their parts beneath, and add up to the total. ``texts`` are those of source lines.
    """
    if start is None or not start.parts:
        return None
    kinds = sorted(START_KINDS, key=lambda kind: -start.seconds(kind))
    groups = [(kind, start.of_kind(kind)) for kind in kinds if start.of_kind(kind)]
    scale = scale_of(start.total_s * 1e6)
    rounded = apportion_groups([[scale.quanta(part.seconds * 1e6) for part in parts] for _, parts in groups])
    rows: list[TableRow] = []

    def row(cells: tuple[str, str, str], quanta: int, members: Sequence[StartPart], role: str) -> TableRow:
        name, where, cache = cells
        seconds = scale.show(quanta, sum(part.seconds for part in members) * 1e6)
        before = () if start.earlier_s is None else (scale.one(_earlier_s(start, members, role) * 1e6),)
        return TableRow((name, where, seconds, *before, cache), role)  # type: ignore[arg-type]

    for (kind, parts), numbers in zip(groups, rounded, strict=True):
        rows.append(row((START_KINDS[kind], "", ""), sum(numbers), parts, "plain"))
        most = _MOST_IMPORTS if kind == "import" else _MOST_PARTS
        pairs = [pair for pair in zip(parts, numbers, strict=True) if pair[0].name or pair[0].source]
        for part, number in pairs[:most]:
            cells = (_name(part), _where(part, texts or {}), _cache(part.is_cold))
            rows.append(row(cells, number, [part], "part"))
        if rest := pairs[most:]:
            left = [part for part, _ in rest]
            cells = (f"{len(rest)} more", "", "")
            rows.append(row(cells, sum(number for _, number in rest), left, "part"))
    total = scale.show(sum(map(sum, rounded)), start.total_s * 1e6)
    before = () if start.earlier_s is None else (scale.one(start.earlier_s * 1e6),)
    rows.append(TableRow(("total", "", total, *before, ""), "total"))
    times = (scale.unit,) if start.earlier_s is None else (scale.unit, "before")
    heads = columns("words", "") + columns("place", "from") + columns("number", *times) + columns("words", "cache")
    return TableSection("From the process to the first steady step", heads, tuple(rows), _notes(start))


def _name(part: StartPart) -> str:
    """Names a part, by its line where it is the program's own."""
    return (part.source if part.kind == "program" else part.name) or part.source or part.name


def _where(part: StartPart, texts: Mapping[str, str]) -> str:
    """Tells the line that a part came from, and how fast files were read."""
    rate = part.bytes_per_s
    read = (
        f"{format_si(part.bytes, 'B')} at {format_si(rate, 'B/s')}, "
        if part.bytes is not None and rate is not None
        else ""
    )
    stages = ", ".join(
        f"{_STAGES.get(stage, stage)} {format_us(seconds * 1e6)}" for stage, seconds in part.stages.items()
    )
    text = texts.get(part.source or "")
    if part.kind == "program":
        return text or part.name
    line = part.source if part.source and part.source != _name(part) else ""
    return stages or f"{read}{line}".removesuffix(", ")


def _cache(is_cold: bool | None) -> str:
    return "" if is_cold is None else "cold" if is_cold else "warm"


def _earlier_s(start: StartLedger, members: Sequence[StartPart], role: str) -> float:
    """Sums the same parts, or all of their kind, of the recording before."""
    kind: StartKind = members[0].kind
    names = {_name(part) for part in members}
    return sum(
        part.seconds for part in start.earlier if part.kind == kind and (role == "plain" or _name(part) in names)
    )


def _notes(start: StartLedger) -> tuple[str, ...]:
    notes = [f"bottleneck itself took {format_us(start.own_s * 1e6)} meanwhile, which is set aside."]
    if start.steps is None:
        notes.append("No steady step was seen: this is the time until the end of what was measured.")
    if any(part.stages for part in start.parts):
        notes.append("Stages of a graph are by the compiler's clock, with the imports that it makes.")
    if start.storage_bytes is not None:
        from_storage = format_si(start.storage_bytes, "B") if start.storage_bytes else "Nothing"
        notes.append(f"{from_storage} came from storage; the rest was in memory already.")
    if any(part.is_cold is not None for part in start.parts):
        notes.append("cold: no cache had it (compiled modules of Python, Inductor's graphs); warm: one had.")
    if start.earlier_s is not None:
        notes.append("before: the recording of this program before this one.")
    elif start.is_sampled:
        notes.append("Run it again to see beside these what caches save: the table then has both.")
    if not start.is_sampled:
        notes.append("bottleneck run --startup tells more: weights, data, and the lines of the program.")
    return tuple(notes)


def start_up_text(start: StartLedger, stream: TextIO, texts: Mapping[str, str], found: Sequence[Finding] = ()) -> str:
    """Renders the table for a terminal, with the findings on the start beneath it."""
    table = start_up_table(start, texts)
    items = tuple(
        Action(finding.title, code=tuple((finding.code or "").splitlines()), key=finding.slug)
        for finding in found
        if finding.slug in START_FINDINGS
    )
    advice = ActionSection("What would shorten it", items) if items else None
    document = Document(
        headline="start-up",
        sentence=tell_start_up(start).partition(": ")[2],
        sections=tuple(section for section in (table, advice) if section is not None),
    )
    return terminal.render(document, terminal.stream_style(stream))
