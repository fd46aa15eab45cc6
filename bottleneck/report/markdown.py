"""An analysis as GitHub flavoured markdown, fit for a comment on a pull request; nothing from a trace is markup."""

import re
from collections.abc import Sequence

from bottleneck.report.analysis_document import Document, Part, build
from bottleneck.report.document import Column, Notes, Remedies, Remedy, Row, Strip, Table
from bottleneck.report.kernel_names import short_names
from bottleneck.report.terminal import UNICODE
from bottleneck.report.text import UNKNOWN, apportion, clean, strip_cells
from bottleneck.schema.analysis import Analysis

_PROSE = 600
_NAME_WIDTH = 60
_BAR_CELLS = 50
_STRIP_CELLS = 60

_HARMLESS = re.compile(r"[\w.,:;%'\"/+=()?!…·\u00d7\u2013\u2192-]+")
# Made of harmless characters, yet GitHub or markdown would make a link, a picture, a mention or emphasis of it.
_LINKED = re.compile(r"://|www\.|:[\w+-]+:|\bGH-\d|\b(?=\w*\d)[0-9a-f]{7,40}\b|(?<!\w)_|_(?!\w)", re.IGNORECASE)
_STARTS_BLOCK = re.compile(r"(?:[-+=]+|\d+[.)])$")


def render(analysis: Analysis, *, all_findings: bool = False) -> str:
    """The report as markdown without raw HTML; words that could be markup stand in code spans."""
    return "\n".join(lines(build(analysis, all_findings=all_findings))) + "\n"


def lines(document: Document) -> list[str]:
    """The report line by line."""
    out = [f"## {prose(document.headline)}", "", f"**{prose(document.sentence) or '(no sentence)'}**", ""]
    out += [*(f"- {label}: {prose(text)}" for label, text in document.facts), ""]
    bar = [code(_bar(document.groups)), ""] if document.groups else []
    for part in document.parts:
        out += [f"### {prose(part.title)}", ""]
        if isinstance(part, Table):
            out, bar = [*out, *bar], []
        out += body(part)
    return [*out, prose(document.next_step)]


def body(part: Part) -> list[str]:
    """A part of a document without its title, with an empty line after it."""
    if isinstance(part, Table):
        return [*_table(part), "", *(line for note in part.notes for line in (prose(note), ""))]
    if isinstance(part, Strip):
        return [code(strip_cells(part.values, _STRIP_CELLS, UNICODE.levels)), "", prose(part.words), ""]
    if isinstance(part, Remedies):
        return _remedies(part)
    return [*_notes(part), ""]


def prose(text: str) -> str:
    """The text cleaned, with every run of words that could be markup, a link or a mention in one code span."""
    out: list[str] = []
    unsafe: list[str] = []
    for index, word in enumerate(clean(text, _PROSE).split()):
        if _HARMLESS.fullmatch(word) and not _LINKED.search(word) and not (index == 0 and _STARTS_BLOCK.match(word)):
            out += [code(" ".join(unsafe))] if unsafe else []
            out, unsafe = [*out, word], []
        else:
            unsafe.append(word)
    return " ".join([*out, code(" ".join(unsafe))] if unsafe else out)


def name(text: str) -> str:
    """The text cleaned, all of it in one code span unless all of it is harmless."""
    shown = prose(text)
    return code(text) if "`" in shown else shown


def code(text: str) -> str:
    """The text cleaned, as one code span, whatever backticks it holds."""
    shown = clean(text, _PROSE).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    inner = f" {shown} " if shown.startswith("`") or shown.endswith("`") else shown
    return f"{fence}{inner}{fence}"


def _cell(text: str) -> str:
    """A cell of a table: pipes escaped; one that follows a backslash cannot be, and is shown broken."""
    return re.sub(r"(?<=\\)\|", "¦", text).replace("|", "\\|")


def _bar(groups: tuple[tuple[str, float], ...]) -> str:
    total = sum(share for _, share in groups)
    cells = apportion([share / total * (_BAR_CELLS - len(groups)) for _, share in groups])
    return "".join(UNICODE.bars.get(group, "?") * (1 + count) for (group, _), count in zip(groups, cells, strict=True))


def _table(table: Table) -> list[str]:
    columns = list(table.columns)
    texts = [[row.cells[index] for row in table.rows] for index in range(len(columns))]
    shown = [_column(column, cells) for column, cells in zip(columns, texts, strict=True)]
    if any(row.details for row in table.rows):
        columns.append(Column("what it is", "words"))
        shown.append(
            [_cell("; ".join([*map(prose, row.details[:1]), *map(name, row.details[1:])])) for row in table.rows]
        )
    head = "| " + " | ".join(column.title for column in columns) + " |"
    rule = "|" + "|".join("---:" if column.kind == "number" else "---" for column in columns) + "|"
    return [head, rule, *(_row(row, list(cells)) for row, *cells in zip(table.rows, *shown, strict=True))]


def _column(column: Column, cells: list[str]) -> list[str]:
    if column.kind == "number":
        return list(cells)
    if column.kind == "name":
        cells = short_names([clean(cell, 2000) for cell in cells], _NAME_WIDTH)
    shown = prose if column.kind == "words" else name
    return [_cell(cell if cell == UNKNOWN else shown(cell)) for cell in cells]


def _row(row: Row, cells: list[str]) -> str:
    if row.role == "total":
        cells = [f"**{cell}**" if cell else cell for cell in cells]
    mark = {"part": "&emsp;"}.get(row.role, f"{UNICODE.bars.get(row.group, '')} " if row.group else "")
    cells[0] = mark + cells[0]
    return "| " + " | ".join(cells) + " |"


def _notes(notes: Notes) -> list[str]:
    out = []
    for lead, *rest in notes.items:
        out += [f"- {prose(lead)}", *(f"  - {prose(line)}" for line in rest)]
    return out


def _remedies(part: Remedies) -> list[str]:
    out = [line for text in part.before for line in (prose(text), "")]
    out += [line for number, remedy in enumerate(part.items, 1) for line in _remedy(remedy, f"{number}. ")]
    out += [""] if part.items else []
    out += [line for text in part.sums for line in (prose(text), "")]
    for heading, remedies in part.groups:
        out += [prose(heading), "", *(line for remedy in remedies for line in _remedy(remedy, "- ")), ""]
    return [*out, *(line for text in part.closing for line in (prose(text), ""))]


def _remedy(remedy: Remedy, mark: str) -> list[str]:
    """One item of a list, with its lines as a list of their own and its code in a fence."""
    indent = " " * len(mark)
    out = [f"{mark}{prose(remedy.lead)}"]
    out += [f"{indent}- {label}: {prose(text)}" for label, text in remedy.lines]
    out += [f"{indent}- try: {code(remedy.command)}"] if remedy.command is not None else []
    return [*out, *(f"{indent}{line}".rstrip() for line in _fenced(remedy.code))]


def _fenced(lines: Sequence[str]) -> list[str]:
    """Code as a block of its own, fenced by more backticks than any line of it holds."""
    if not lines:
        return []
    shown = [clean(line, _PROSE) for line in lines]
    longest = max(len(run) for run in re.findall("`+", "".join(shown)) or [""])
    fence = "`" * max(3, longest + 1)
    return ["", f"{fence}python", *shown, fence, ""]
