"""Renders a document as text for a terminal or a pipe, readable at 80 columns without colour or Unicode."""

import functools
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bottleneck.report.analysis_document import Document, Part, build
from bottleneck.report.document import Column, Notes, Remedies, Remedy, Row, Strip, Table
from bottleneck.report.kernel_names import cut_end, cut_start, short_names
from bottleneck.report.text import apportion, clean, strip_cells
from bottleneck.schema.analysis import Analysis

STYLES = {
    "compute": "green",
    "memory": "cyan",
    "overhead": "yellow",
    "communication": "magenta",
    "mixed": "yellow",
    "unknown": "dim",
    "inconclusive": "red",
}

# What people write in sentences, for encodings that lack it; anything else becomes an escape.
_PLAIN = str.maketrans(
    {
        "…": "...",
        "·": "-",
        "•": "*",
        "µ": "u",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "“": '"',
        "”": '"',
        "±": "+/-",
        "≈": "~",
    }
    | {"\u2013": "-", "\u2014": "-", "\u00d7": "x", "\u03bc": "u", "\u2018": "'", "\u2019": "'"}
)


@dataclass(frozen=True)
class Glyphs:
    """The characters of one character set. ``bars`` differ in shape, so that a bar reads without colour."""

    bars: dict[str, str]
    rule: str
    dot: str
    bullet: str
    ellipsis: str
    levels: str  # of a strip: nothing, then from least to most


UNICODE = Glyphs(
    {"compute": "█", "memory": "▓", "overhead": "░", "communication": "▚", "unknown": "·"},
    "─",
    "·",
    "•",
    "…",
    "·▁▂▃▄▅▆▇█",
)
ASCII = Glyphs(
    {"compute": "#", "memory": "=", "overhead": "-", "communication": "+", "unknown": "?"},
    "-",
    "|",
    "*",
    "...",
    "._-=+*%#@",
)


@dataclass(frozen=True)
class Look:
    """A terminal: how wide it is and what it can encode."""

    width: int = 80
    encoding: str = "utf-8"
    glyphs: Glyphs = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "glyphs", UNICODE if self.encoding.lower().startswith("utf") else ASCII)

    def text(self, text: str, limit: int = 200) -> str:
        """The text made safe to show, in characters that the encoding has."""
        safe = clean(text, limit)
        if self.glyphs is UNICODE:
            return safe
        return safe.translate(_PLAIN).encode(self.encoding, "backslashreplace").decode(self.encoding)


_GAP = 2
_NARROWEST_GRID = 60
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mu]?s|[kMGTP]?(?:B|B/s|FLOP|FLOP/s)|MHz|W|J)(?!\w))")
GLUE = "\ue000"  # stands for a space at which no line may break; cleaned text cannot hold it
_NARROWEST = {"name": 16, "place": 10, "words": 6, "number": 1}


def table_lines(table: Table, look: Look) -> list[Text]:
    """The rows of a table: a grid if every column stays readable, else one paragraph per row."""
    shown = [[look.text(cell, 2000) for cell in row.cells] for row in table.rows]
    for row, cells in zip(table.rows, shown, strict=True):
        cells[0] = "  " + cells[0] if row.role == "part" else cells[0]
    widths = _widths(table, shown, look) if look.width >= _NARROWEST_GRID else None
    if widths is None:
        return [
            line for row, cells in zip(table.rows, shown, strict=True) for line in _stacked(table, row, cells, look)
        ]
    columns = [
        _shorten(column, [cells[index] for cells in shown], widths[index], look)
        for index, column in enumerate(table.columns)
    ]
    lines = [_line(_margin(table), [column.title for column in table.columns], table.columns, widths, "dim")]
    for row, *cells in zip(table.rows, *columns, strict=True):
        lines += _grid_row(table, row, cells, widths, look)
    return lines


def wrapped(text: Text, look: Look, indent: int = 0, lead: str = "") -> list[Text]:
    """The text broken at words into lines of the terminal's width, indented; ``lead`` stands before the first."""
    if look.width - indent < 12 or cell_len(lead) > indent:
        text, indent, lead = Text.assemble(lead, text), 0, ""
    glued = text.copy()
    glued.plain = _NUMBER_AND_UNIT.sub(GLUE, text.plain)
    lines = list(glued.wrap(_ruler(), max(look.width - indent, 1), overflow="fold"))
    for line in lines:
        line.plain = line.plain.replace(GLUE, " ")
        line.rstrip()
    return [Text((lead if index == 0 else "").ljust(indent)) + line for index, line in enumerate(lines)]


@functools.cache
def _ruler() -> Console:
    """A console that rich asks for when it wraps; nothing is ever written to it."""
    return Console(file=io.StringIO(), width=80, _environ={})


def _margin(table: Table) -> int:
    return 2 if any(row.group for row in table.rows) else 0


def _widths(table: Table, shown: list[list[str]], look: Look) -> list[int] | None:
    """Cells per column: numbers as wide as they are, the others as there is room; null if that is too little."""
    widths = [
        max(cell_len(text) for text in (column.title, *(cells[index] for cells in shown)))
        for index, column in enumerate(table.columns)
    ]
    flexible = [index for index, column in enumerate(table.columns) if column.kind != "number"]
    least = {index: min(widths[index], _NARROWEST[table.columns[index].kind]) for index in flexible}
    excess = sum(widths) + _GAP * (len(widths) - 1) + _margin(table) - look.width
    while excess > 0:
        able = [index for index in flexible if widths[index] > least[index]]
        if not able:
            return None
        widths[max(able, key=lambda index: widths[index])] -= 1
        excess -= 1
    return widths


def _shorten(column: Column, texts: list[str], width: int, look: Look) -> list[str]:
    ellipsis = look.glyphs.ellipsis
    if column.kind == "name":
        return short_names(texts, width, ellipsis)
    cut = cut_start if column.kind == "place" else cut_end
    return [cut(text, width, ellipsis) for text in texts]


def _grid_row(table: Table, row: Row, cells: list[str], widths: list[int], look: Look) -> list[Text]:
    margin, style = _margin(table), {"total": "bold", "rest": "dim"}.get(row.role, "")
    line = _line(margin, cells, table.columns, widths, style)
    if row.group:
        line = _mark(row.group, look) + line[2:]
    return [line, *_details(row, look, margin + 2)]


def _line(margin: int, cells: list[str], columns: tuple[Column, ...], widths: list[int], style: str) -> Text:
    parts = [_pad(cell, width, column.kind) for cell, column, width in zip(cells, columns, widths, strict=True)]
    return Text(" " * margin + (" " * _GAP).join(parts).rstrip(), style)


def _pad(cell: str, width: int, kind: str) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if kind == "number" else cell + space


def _mark(group: str, look: Look) -> Text:
    return Text(f"{look.glyphs.bars.get(group, ' ')} ", STYLES.get(group, ""))


def _details(row: Row, look: Look, indent: int) -> list[Text]:
    if not row.details:
        return []
    first, *others = [look.text(detail) for detail in row.details]
    text = Text.assemble((first, STYLES.get(row.group or "", "")))
    for other in others:
        text.append(f" {look.glyphs.dot} {other}", "dim")
    return wrapped(text, look, indent)


def _stacked(table: Table, row: Row, cells: list[str], look: Look) -> list[Text]:
    """One row as a paragraph: its first cell, then 'title value' for each other cell that holds something."""
    lead = Text(cells[0].strip() or table.columns[0].title, "bold")
    if row.group:
        lead = _mark(row.group, look) + lead
    pairs = zip(table.columns[1:], cells[1:], strict=True)
    values = ", ".join(f"{column.title} {cell.strip()}".strip() for column, cell in pairs if cell.strip())
    indent = 4 if row.role == "part" else 2
    return [*wrapped(lead, look, indent - 2), *wrapped(Text(values), look, indent), *_details(row, look, indent)]


_PROSE = 600
_LABEL_WIDTH = 6
_CONTINUED = " \\"  # how a shell command goes on in the next line
_QUOTED = re.compile("'[^']*'")  # as shlex quotes; a break within would be part of the word
_NARROW = 40


def remedy_lines(part: Remedies, look: Look) -> list[Text]:
    """The ranked remedies, what they come to, those without a rank, and what is left out."""
    width = len(f"{len(part.items)}. ")
    out = _sentences(part.before, look)
    for number, remedy in enumerate(part.items, 1):
        out += _remedy(remedy, look, f"{number}. ".ljust(width), "bold")
    out += _sentences(part.sums, look)
    for heading, remedies in part.groups:
        out += _sentences((heading,), look)
        out += [line for remedy in remedies for line in _remedy(remedy, look, f"{look.glyphs.bullet} ", "")]
    return [*out, *_sentences(part.closing, look, "dim")]


def _sentences(texts: Sequence[str], look: Look, style: str = "") -> list[Text]:
    return [line for text in texts for line in wrapped(Text(look.text(text, _PROSE), style), look)]


def _remedy(remedy: Remedy, look: Look, lead: str, style: str) -> list[Text]:
    indent = len(lead)
    out = wrapped(Text(look.text(remedy.lead, _PROSE), style), look, indent, lead)
    for label, text in remedy.lines:
        out += _labelled(label, look.text(text, _PROSE), look, indent)
    inner = 0 if look.width < _NARROW else indent + _LABEL_WIDTH
    for line in remedy.code:
        out += _code_line(look.text(line, _PROSE), look, inner)
    if remedy.command is not None:
        out += _command(look.text(remedy.command, _PROSE), look, indent)
    return out


def _labelled(label: str, text: str, look: Look, indent: int) -> list[Text]:
    if look.width < _NARROW:
        return wrapped(Text(f"{label}: {text}"), look, indent)
    return wrapped(Text(text), look, indent + _LABEL_WIDTH, " " * indent + label.ljust(_LABEL_WIDTH))


def _code_line(line: str, look: Look, indent: int) -> list[Text]:
    """A line of code with its own indentation, which also holds where it has to be broken."""
    code = line.lstrip(" ")
    return wrapped(Text(code, "cyan"), look, indent + len(line) - len(code)) if code else [Text()]


def _command(command: str, look: Look, indent: int) -> list[Text]:
    """A command that can be copied: where it is too long for a line, a backslash says that it goes on."""
    whole = Text(_QUOTED.sub(lambda words: words[0].replace(" ", GLUE), command))
    if look.width < _NARROW:
        return wrapped(whole, look, indent, "try: ")
    narrower = Look(look.width - len(_CONTINUED), look.encoding)
    lines = wrapped(whole, narrower, indent + _LABEL_WIDTH, " " * indent + "try".ljust(_LABEL_WIDTH))
    return [*(Text(f"{line.plain}{_CONTINUED}") for line in lines[:-1]), *lines[-1:]]


def show(analysis: Analysis, console: Console, *, all_findings: bool = False) -> None:
    """Writes the report to a console, which decides the width, the colours and the character set."""
    document = build(analysis, all_findings=all_findings)
    for line in lines(document, Look(console.width, console.encoding)):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, markup=False, emoji=False)


def render(
    analysis: Analysis, width: int = 80, *, color: bool = False, encoding: str = "utf-8", all_findings: bool = False
) -> str:
    """The report as text; escape sequences appear in it only with ``color``."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, _environ={}
    )
    show(analysis, console, all_findings=all_findings)
    stream.seek(0)
    return stream.read()


def lines(document: Document, look: Look) -> list[Text]:
    """The report line by line."""
    out = [*_verdict(document, look), Text()]
    label_width = 9 if look.width >= 40 else 0
    for label, text in document.facts:
        lead = label.ljust(label_width) if label_width else f"{label}: "
        out += wrapped(Text(look.text(text, _PROSE)), look, label_width, lead)
    bar = _bar(document.groups, look)
    for part in document.parts:
        out += [Text(), *title_lines(part.title, look)]
        if isinstance(part, Table) and bar:
            out, bar = [*out, bar], None
        out += body_lines(part, look)
    # The command is not broken into lines of ours: who copies it should get it whole.
    return [*out, Text(), Text(look.text(document.next_step, _PROSE))]


def body_lines(part: Part, look: Look) -> list[Text]:
    """A part of a document without its title."""
    if isinstance(part, Table):
        return [*table_lines(part, look), *(line for note in part.notes for line in _aside(note, look))]
    if isinstance(part, Strip):
        return _strip(part, look)
    if isinstance(part, Remedies):
        return remedy_lines(part, look)
    return _notes(part, look)


def _aside(note: str, look: Look) -> list[Text]:
    return wrapped(Text(look.text(note, _PROSE), "dim"), look, 2)


def _verdict(document: Document, look: Look) -> list[Text]:
    style = f"bold {STYLES.get(document.bound, '')}".strip()
    head = Text(look.text(document.headline).upper(), style)
    return [*wrapped(head, look), *wrapped(Text(look.text(document.sentence, _PROSE), "bold"), look)]


def title_lines(title: str, look: Look) -> list[Text]:
    """The title of a part, ruled to the width."""
    text = look.text(title)
    rule = look.glyphs.rule * max(look.width - len(text) - 1, 0)
    return [Text.assemble((text, "bold"), " ", (rule, "dim"))] if rule else wrapped(Text(text, "bold"), look)


def _bar(groups: tuple[tuple[str, float], ...], look: Look) -> Text | None:
    """One bar over the whole width: every group that has time has at least one cell."""
    if not groups or look.width < len(groups):
        return None
    room = look.width - len(groups)
    total = sum(share for _, share in groups)
    cells = apportion([share / total * room for _, share in groups])
    bars = look.glyphs.bars
    return Text.assemble(
        *(
            (bars.get(group, "?") * (1 + count), STYLES.get(group, ""))
            for (group, _), count in zip(groups, cells, strict=True)
        )
    )


def _strip(strip: Strip, look: Look) -> list[Text]:
    return [
        Text(strip_cells(strip.values, look.width, look.glyphs.levels)),
        *wrapped(Text(look.text(strip.words, _PROSE)), look, 2),
    ]


def _notes(notes: Notes, look: Look) -> list[Text]:
    out: list[Text] = []
    for lead, *rest in notes.items:
        out += wrapped(Text(look.text(lead, _PROSE)), look, 2, f"{look.glyphs.bullet} ")
        for line in rest:
            out += wrapped(Text(look.text(line, _PROSE), "dim"), look, 4)
    return out
