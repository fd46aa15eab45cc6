"""Builds the report of a snapshot of the allocator."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from bottleneck.report import render_document
from bottleneck.report.document import (
    Action,
    ActionSection,
    Document,
    LabelledLine,
    Section,
    Sparkline,
    TableRow,
    TableSection,
    columns,
)
from bottleneck.report.json_text import encode
from bottleneck.report.line_chart import ChartCurve, ChartPoint, LineChart
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.schema.allocator import HeldMemory, SnapshotRemedy
from bottleneck.units import counted, format_memory, format_share

HELD_SCHEMA = "bottleneck/held-memory/1"
_MOST_ROWS, _MOST_CHANGES, _MOST_DEVICES = 12, 5, 8
_CELLS = 60
_MOMENTS = {
    "out of memory": "as a request failed",
    "peak": "at the peak of the recorded history",
    "snapshot": "at the time of the snapshot",
}
_NOTES = {
    "no Python frame": "no Python frame: asked for by C++ alone, most often the backward pass, which runs on a thread "
    "of its own",
    "before the history": "before the history: asked for before recording began, or pushed out of it "
    "(max_entries of _record_memory_history)",
}


def build_held(held: Sequence[HeldMemory], name: str, left_out: int = 0, *, has_charts: bool = False) -> Document:
    """Builds the document of a snapshot.

    Of several devices the one that failed comes first, else that which holds most. A medium that ``has_charts`` draws
    the memory over time itself.
    """
    ordered = sorted(held, key=lambda one: (one.failed is None, -one.allocated_bytes))
    first = ordered[0]
    sections: list[Section] = []
    for one in ordered[:_MOST_DEVICES]:
        sections += _sections(one, f" of device {one.device}" if len(ordered) > 1 else "", has_charts=has_charts)
    lines = (LabelledLine("", _sentence(first)), *_lines(first))
    repeated = [_in_one_line(line) for line in lines if line.label == "First"]
    return Document(
        headline="out of memory" if first.failed is not None else "memory",
        subject=f"{name} · device {first.device} · {_MOMENTS[first.moment]}",
        tone="memory",
        sentence=f"{_sentence(first)}.",
        lines=lines,
        sections=tuple(sections),
        warnings=tuple(_warnings(left_out, len(ordered) - _MOST_DEVICES)),
        ending=(f"{_sentence(first)}.", *(f"{text}." for text in repeated)),
    )


def _in_one_line(line: LabelledLine) -> str:
    """Gives a line with its label; a change goes on in lower case."""
    text = line.text[0].lower() + line.text[1:] if line.label == "First" else line.text
    return f"{line.label}: {text}"


def _warnings(left_out: int, more_devices: int) -> Iterator[str]:
    if left_out:
        yield f"{counted(left_out, 'entry', 'entries')} of the file could not be read, and left out"
    if more_devices > 0:
        yield f"{counted(more_devices, 'more device')} in --format json"


def held_in_brief(held: Sequence[HeldMemory]) -> list[str]:
    """Gives the first lines on a snapshot as sentences.

    They are of the device that failed, or that holds most.
    """
    if not held:
        return []
    first = min(held, key=lambda one: (one.failed is None, -one.allocated_bytes))
    lines = [_in_one_line(line) for line in _lines(first)]
    unknown = sum(one.held_bytes for one in first.holders if one.place is None)
    if unknown > first.allocated_bytes / 2:
        lines.append("lines are noted where the program is run with bottleneck run --memory")
    return [_sentence(first), *lines]


def _sentence(held: HeldMemory) -> str:
    if held.failure is not None:
        return held.failure
    spare = format_memory(held.reserved_bytes - held.allocated_bytes) if held.reserved_bytes else "none"
    return (
        f"The program holds {format_memory(held.allocated_bytes)} {_MOMENTS[held.moment]}; "
        f"{format_memory(held.reserved_bytes)} is reserved, {spare} of it unused"
    )


def _lines(held: HeldMemory) -> list[LabelledLine]:
    lines = []
    if held.holders:
        worst = held.holders[0]
        where = worst.place or worst.kind
        share = f"{format_share(worst.held_bytes / max(held.allocated_bytes, 1))} of what is allocated"
        kind = f", {worst.kind}" if worst.place else ""
        blocks = counted(worst.blocks, "block")
        lines.append(LabelledLine("Largest", f"{where}{kind}: {format_memory(worst.held_bytes)} ({share}) in {blocks}"))
    if held.growing:
        grows = held.growing[0]
        lines.append(
            LabelledLine(
                "Grows",
                f"{grows.place or grows.kind}: {format_memory(grows.grown_bytes)} more by the end of the history",
            )
        )
    first = (LabelledLine("First", one.change + _given(one), code=one.code) for one in held.remedies[:1])
    return [*lines, *first]


def _given(remedy: SnapshotRemedy) -> str:
    if remedy.gives_bytes is None:
        return ""
    least, most = (format_memory(size) for size in remedy.gives_bytes)
    return f" (gives back {least})" if least == most else f" (gives back {least} to {most})"


def _sections(held: HeldMemory, suffix: str, *, has_charts: bool) -> list[Section]:
    sections: list[Section] = []
    if remedies := held.remedies[:_MOST_CHANGES]:
        actions = tuple(
            Action(one.change + _given(one), (LabelledLine("seen", one.reason),), code=tuple(one.code.splitlines()))
            for one in remedies
        )
        sections.append(ActionSection(f"What to change{suffix}", actions))
    sections += [_by_kind(held, suffix), _by_line(held, suffix)]
    if held.curve and not has_charts:
        values = [size for _, size in held.curve]
        top, seconds = format_memory(max(values)), held.curve[-1][0]
        sections.append(
            Sparkline(
                f"Memory over time{suffix}",
                tuple(map(float, values[:: max(1, len(values) // _CELLS)])),
                f"allocated, over {seconds:.3g} s of history; the highest is {top}",
            )
        )
    return sections


def _by_kind(held: HeldMemory, suffix: str) -> TableSection:
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for one in held.holders:
        size, blocks = sums[one.kind]
        sums[one.kind] = (size + one.held_bytes, blocks + one.blocks)
    rows = [
        TableRow((kind, format_memory(size), _share(size, held.reserved_bytes), f"{blocks:,}"))
        for kind, (size, blocks) in sorted(sums.items(), key=lambda item: -item[1][0])
    ]
    # What the allocator rounds up, and what is free between blocks.
    rounding = max(held.reserved_bytes - held.allocated_bytes - held.free.free_bytes, 0)
    if rounding:
        rows.append(TableRow(("rounded up", format_memory(rounding), _share(rounding, held.reserved_bytes), "")))
    if held.free.free_bytes:
        free = held.free
        rows.append(
            TableRow(
                (
                    f"free, the largest piece {format_memory(free.largest_bytes)}",
                    format_memory(free.free_bytes),
                    _share(free.free_bytes, held.reserved_bytes),
                    f"{free.pieces:,}",
                )
            )
        )
    if held.reserved_bytes:
        rows.append(TableRow(("reserved", format_memory(held.reserved_bytes), "100.0 %", ""), role="total"))
    notes = tuple(text for kind, text in _NOTES.items() if kind in sums)
    notes += () if held.history_reason is None else (held.history_reason,)
    heads = (*columns("words", "what it is for"), *columns("number", "memory", "of reserved", "blocks"))
    return TableSection(f"Memory by kind{suffix}", heads, tuple(rows), notes)


def _by_line(held: HeldMemory, suffix: str) -> TableSection:
    rows = [
        TableRow(
            (
                one.place or one.kind,
                format_memory(one.held_bytes),
                _share(one.held_bytes, held.allocated_bytes),
                f"{one.blocks:,}",
                format_memory(one.largest_bytes),
                one.kind,
            )
        )
        for one in held.holders[:_MOST_ROWS]
    ]
    if rest := held.holders[_MOST_ROWS:]:
        size, blocks = sum(one.held_bytes for one in rest), sum(one.blocks for one in rest)
        largest = max(one.largest_bytes for one in rest)
        cells = (
            counted(len(rest), "other line"),
            format_memory(size),
            _share(size, held.allocated_bytes),
            f"{blocks:,}",
            format_memory(largest),
            "",
        )
        rows.append(TableRow(cells, role="rest"))
    heads = columns("place", "line") + columns("number", "memory", "of allocated", "blocks", "largest")
    return TableSection(f"Memory by line{suffix}", heads + columns("words", "kind"), tuple(rows))


def _share(part: int, whole: int) -> str:
    return format_share(part / whole) if whole > 0 else "-"


def held_text(held: Sequence[HeldMemory], name: str, form: str, style: TerminalStyle = PLAIN, left_out: int = 0) -> str:
    """Renders a snapshot for a terminal, in markdown, as JSON or as a page."""
    if form == "json":
        content = {"schema": HELD_SCHEMA, "snapshot": name, "left_out": left_out, "devices": json.loads(encode(held))}
        return json.dumps(content, indent=1) + "\n"
    charts = [_chart(one) for one in held if one.curve][:_MOST_DEVICES] if form == "html" else []
    return render_document(build_held(held, name, left_out, has_charts=bool(charts)), form, style, charts)


def _chart(held: HeldMemory) -> LineChart:
    # In the unit in which the length of the history is a number of at least one.
    unit, parts = ("seconds", 1.0) if held.curve[-1][0] >= 1 else ("milliseconds", 1e3)
    points = tuple(ChartPoint(seconds * parts, float(size)) for seconds, size in held.curve)
    return LineChart(
        f"Memory of device {held.device} over time",
        f"{unit} of the history",
        (ChartCurve("allocated", points, role="memory"),),
        format_memory,
        show_x=lambda time: f"{time:g}",
        from_zero=True,
        is_memory=True,
    )
