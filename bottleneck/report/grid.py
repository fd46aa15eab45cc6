"""A table as lines for a terminal: a grid where it fits, a list where it does not."""

import functools
import io
import re

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bottleneck.report.layout import Column, Row, Table
from bottleneck.report.look import STYLES, Look
from bottleneck.report.names import cut_end, cut_start, short_names

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
