"""Renders a document as GitHub flavoured markdown for a pull request comment.

No text of a trace acts as markup.
"""

import html
import re
from collections.abc import Iterable, Sequence

from rich.text import Text

from bottleneck.report.document import (
    Action,
    ActionSection,
    BarSection,
    CheckSection,
    Document,
    FoldedSection,
    Intervals,
    LabelledLine,
    ListSection,
    Section,
    Sparkline,
    TableColumn,
    TableRow,
    TableSection,
    Waterfall,
)
from bottleneck.report.kernel_names import cut_place, short_names
from bottleneck.report.terminal import UNICODE, TerminalStyle, group_bar, interval_lines, waterfall_lines
from bottleneck.report.text import UNKNOWN, clean, sparkline_cells

_PROSE = 600
_NAME_WIDTH = 60
_BAR_CELLS = 50
_NARROW = TerminalStyle(40)  # of pictures, as narrow as a phone
_SPARKLINE_CELLS = 60

_HARMLESS = re.compile(r"[\w.,:;%'\"/+=()?!…·\u00d7\u2013\u2192-]+")
# Made of harmless characters, yet GitHub or markdown would make a link, a picture, a mention or emphasis of it.
_LINKED = re.compile(r"://|www\.|:[\w+-]+:|\bGH-\d|\b(?=\w*\d)[0-9a-f]{7,40}\b|(?<!\w)_|_(?!\w)", re.IGNORECASE)
_STARTS_BLOCK = re.compile(r"(?:[-+=]+|\d+[.)])$")


def render(document: Document) -> str:
    """Renders the document as markdown without raw HTML.

    Words that could be markup stand in code spans.
    """
    return "\n".join(document_lines(document)).rstrip("\n") + "\n"


def document_lines(document: Document) -> list[str]:
    """The document line by line."""
    out = _opening_lines(document)
    facts = [*(f"- {label}: {prose(text)}" for label, text in document.facts), ""] if document.facts else []
    out += [] if document.facts_title else facts
    for section in document.sections:
        out += [f"### {prose(section.title)}", ""] if section.title and not isinstance(section, FoldedSection) else []
        out += section_lines(section)
    out += [f"### {document.facts_title}", "", *facts] if facts and document.facts_title else []
    out += [*(f"- {prose(warning)}" for warning in document.warnings), ""] if document.warnings else []
    return [*out, prose(document.closing)]


def _opening_lines(document: Document) -> list[str]:
    """Headline, conditions and sentence; the sentence as a list where it has lines."""
    heading = f"{document.headline}{' · ' if document.lines else ' '}{document.subject}".strip()
    head, *others = document.lines or (LabelledLine("", document.sentence),)
    if document.lines:
        out = [f"## {prose(head.text)}", "", f"{prose(heading[:1].upper() + heading[1:])}", ""]
    else:
        out = [f"## {prose(heading)}", ""]
    for condition in document.conditions:
        texts = [prose(lead) for (lead,) in condition.items]
        is_alone = len(texts) == 1
        out += [f"{condition.title} {texts[0]}", ""] if is_alone else [condition.title, "", *_list_lines(condition), ""]
    if not document.lines:
        return [*out, f"**{prose(head.text) or '(no sentence)'}**", ""]
    lines = (f"- {f'**{line.label}:** ' if line.label else ''}{prose(line.text)}" for line in others)
    return [*out, *lines, ""] if others else out


def section_lines(section: Section) -> list[str]:
    """A section without its title, with an empty line after it."""
    match section:
        case BarSection():
            lines = _bar_section_lines(section)
        case TableSection():
            grid = [*table_lines(section), ""] if section.rows else []
            lines = [*grid, *(line for note in section.notes for line in (prose(note), ""))]
        case Sparkline():
            cells = sparkline_cells(section.values, _SPARKLINE_CELLS, UNICODE.levels)
            lines = [code(cells), "", prose(section.caption), ""]
        case ActionSection():
            lines = _action_section_lines(section)
        case Waterfall():
            lines = _picture(waterfall_lines(section, _NARROW))
        case Intervals():
            lines = _picture(interval_lines(section, _NARROW))
        case CheckSection():
            lines = [f"- {check.status}: {name(check.title)}: {prose(check.fact)}" for check in section.checks] + [""]
        case FoldedSection():
            lines = _folded(section)
        case ListSection():
            lines = [*_list_lines(section), ""]
    return lines


def _picture(lines: Iterable[Text]) -> list[str]:
    """Gives lines of a terminal; no label in them can close the fence."""
    return ["```text", *(line.plain.replace("`", "'") for line in lines), "```", ""]


def _bar_section_lines(section: BarSection) -> list[str]:
    bar = group_bar(section, TerminalStyle(_BAR_CELLS))
    legend = ", ".join(f"{group} {words}" for group, _, words in section.parts)
    below = section_lines(section.table) if section.table is not None else [prose(legend), ""]
    return [*([] if bar is None else [code(bar.plain), ""]), *below]


def _folded(fold: FoldedSection) -> list[str]:
    """Gives sections behind a title that opens them.

    The empty lines let markdown be markdown inside of HTML.
    """
    title = html.escape(clean(fold.title, _PROSE))  # no markdown is read beside a tag, but a mention is outside of code
    shown = title if prose(fold.title) == title else f"<code>{title}</code>"
    out = [f"<details><summary>{shown}</summary>", ""]
    for section in fold.sections:
        out += [f"#### {prose(section.title)}", ""] if section.title else []
        out += section_lines(section)
    return [*out, "</details>", ""]


def prose(text: str) -> str:
    """Cleans a text, with every run of unsafe words in a code span.

    They are words that could be markup, a link or a mention. An arrow of two characters becomes one, which reads
    better so.
    """
    out: list[str] = []
    unsafe: list[str] = []
    shown = clean(text, _PROSE).replace(" -> ", " → ")
    for index, word in enumerate(_words(shown)):
        if span := _SPAN.fullmatch(word):
            out += [*([_coded(unsafe)] if unsafe else []), f"{span[1]}{code(span[2])}{span[3]}"]
            unsafe = []
        elif _HARMLESS.fullmatch(word) and not _LINKED.search(word) and not (index == 0 and _STARTS_BLOCK.match(word)):
            out += [_coded(unsafe)] if unsafe else []
            out, unsafe = [*out, word], []
        else:
            unsafe.append(word)
    return " ".join([*out, _coded(unsafe)] if unsafe else out)


# A bracket that opens before a name and closes behind a later one, and the comma between.
_LISTED = re.compile(r"(\(?)([^()]+?)([,;]?)")


def _coded(words: Sequence[str]) -> str:
    """Sets words in a code span, without what only separates them from others."""
    text = " ".join(words)
    parts = _LISTED.fullmatch(text)
    return code(text) if parts is None else f"{parts[1]}{code(parts[2])}{parts[3]}"


# What a text sets between backticks, unless more text touches it.
_SPAN = re.compile(r"(\(?)`([^`]+)`([.,;:)]*)")
_WORD = re.compile(rf"(?<!\S){_SPAN.pattern}(?!\S)|\S+")


def _words(text: str) -> list[str]:
    """The words of a text; what stands between backticks is one."""
    return [match[0] for match in _WORD.finditer(text)]


def name(text: str) -> str:
    """Cleans a text and puts it in one code span if needed.

    It needs none where all of it is harmless.
    """
    shown = prose(text)
    return shown if shown == " ".join(clean(text, _PROSE).split()) else code(text)


def code(text: str) -> str:
    """The text cleaned, as one code span, whatever backticks it holds."""
    shown = clean(text, _PROSE).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    inner = f" {shown} " if shown.startswith("`") or shown.endswith("`") else shown
    return f"{fence}{inner}{fence}"


def _cell(text: str) -> str:
    """Gives a cell of a table with its pipes escaped.

    One that follows a backslash cannot be, and is shown broken.
    """
    return re.sub(r"(?<=\\)\|", "¦", text).replace("|", "\\|")


def table_lines(table: TableSection) -> list[str]:
    """Gives the rows of a table beneath its titles.

    Details have a column of their own.
    """
    columns = list(table.columns)
    texts = [[row.cells[index] for row in table.rows] for index in range(len(columns))]
    shown = [_column(column, cells) for column, cells in zip(columns, texts, strict=True)]
    below: list[str] = []
    if not table.details.title:
        below = [f"- {prose(detail)}" for detail in dict.fromkeys(text for row in table.rows for text in row.details)]
    elif any(row.details for row in table.rows):
        columns.append(table.details)
        shown.append([_cell(_details(row, table.details)) for row in table.rows])
    head = "| " + " | ".join(column.title for column in columns) + " |"
    rule = "|" + "|".join("---:" if column.kind == "number" else "---" for column in columns) + "|"
    rows = [_row(row, list(cells)) for row, *cells in zip(table.rows, *shown, strict=True)]
    return [head, rule, *rows, *(["", *below] if below else [])]


def _details(row: TableRow, column: TableColumn) -> str:
    """Gives the details of a row in one cell.

    Where they are names, the first of them is words all the same.
    """
    if column.kind == "words":
        return prose("; ".join(row.details))
    if column.kind == "code":
        return "; ".join(map(code, row.details))
    return "; ".join([*map(prose, row.details[:1]), *map(name, row.details[1:])])


def _column(column: TableColumn, cells: list[str]) -> list[str]:
    if column.kind == "number":
        return list(cells)
    if column.kind == "name":
        cells = short_names([clean(cell, 2000) for cell in cells], _NAME_WIDTH)
    if column.kind == "place":
        cells = [cut_place(clean(cell, 2000), _NAME_WIDTH) for cell in cells]
    shown = prose if column.kind == "words" else name
    return [_cell(cell if cell == UNKNOWN else shown(cell)) for cell in cells]


def _row(row: TableRow, cells: list[str]) -> str:
    if row.role == "total":
        cells = [f"**{cell}**" if cell else cell for cell in cells]
    mark = {"part": "&emsp;"}.get(row.role, f"{UNICODE.bars.get(row.group, '')} " if row.group else "")
    cells[0] = mark + cells[0]
    return "| " + " | ".join(cells) + " |"


def _list_lines(section: ListSection) -> list[str]:
    out = []
    for lead, *rest in section.items:
        out += [f"- {prose(lead)}", *(f"  - {prose(line)}" for line in rest)]
    return out


def _action_section_lines(section: ActionSection) -> list[str]:
    out = [line for text in section.intro for line in (prose(text), "")]
    out += [line for number, action in enumerate(section.items, 1) for line in action_lines(action, f"{number}. ")]
    out += [""] if section.items else []
    out += [line for text in section.totals for line in (prose(text), "")]
    for heading, actions in section.groups:
        out += [prose(heading), "", *(line for action in actions for line in action_lines(action, "- ")), ""]
    return [*out, *(line for text in section.closing for line in (prose(text), ""))]


def action_lines(action: Action, mark: str) -> list[str]:
    """Gives one item of a list.

    Its lines are a list of their own and its code stands in a fence.
    """
    indent = " " * len(mark)
    out = [f"{mark}{prose(action.title)}"]
    out += [f"{indent}- {_labelled(line)}" for line in action.lines]
    out += [f"{indent}- try: {code(action.command)}"] if action.command is not None else []
    return [*out, *(f"{indent}{line}".rstrip() for line in _fenced_code(action.code))]


def _labelled(line: LabelledLine) -> str:
    """A sentence behind its label, with code and command each in one piece."""
    spans = [code(part) for part in (line.code, line.command) if part]
    return " ".join([f"{line.label}: {prose(line.text)}".rstrip(), *spans])


def _fenced_code(lines: Sequence[str]) -> list[str]:
    """Gives code as a block of its own.

    It is fenced by more backticks than any line of it holds.
    """
    if not lines:
        return []
    shown = [clean(line, _PROSE) for line in lines]
    longest = max(len(run) for run in re.findall("`+", "".join(shown)) or [""])
    fence = "`" * max(3, longest + 1)
    return ["", f"{fence}python", *shown, fence, ""]
