"""Renders a document as text for a terminal or a pipe.

It is readable at 80 columns without colour or Unicode.
"""

import functools
import io
import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bottleneck.report.document import (
    Action,
    ActionSection,
    BarSection,
    CheckSection,
    Document,
    FoldedSection,
    IntervalBar,
    Intervals,
    LabelledLine,
    ListSection,
    Section,
    Sparkline,
    TableColumn,
    TableRow,
    TableSection,
    Waterfall,
    WaterfallBar,
)
from bottleneck.report.kernel_names import cut_end, cut_place, short_names
from bottleneck.report.text import clean, join_units, sparkline_cells
from bottleneck.schema.checks import Check, Status
from bottleneck.schema.records import replace
from bottleneck.schema.watch_log import PHASES
from bottleneck.units import apportion

STYLES = {
    "compute": "green",
    "memory": "cyan",
    "overhead": "yellow",
    "communication": "magenta",
    "transfer": "blue",
    "device": "green",
    "mixed": "yellow",
    "unknown": "dim",
    "inconclusive": "red",
    "good": "green",
    "bad": "red",
}
"""Styles of groups, of verdicts and of the tones of a headline."""

_PROSE = 600  # characters of a text that are shown
_COMMAND = 2000  # and of a command, which is of no use without its end
_NARROW = 40
_GAP = 2

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


class Glyphs(Struct, frozen=True):
    """The characters of one character set.

    ``bars`` differ in shape, so that a bar reads without colour. Those of the phases of a step have none: a phase is no
    account.
    """

    bars: dict[str, str]
    rule: str
    dot: str
    bullet: str
    ellipsis: str
    levels: str  # of a sparkline: nothing, then from least to most
    line: str  # upright, through the rows of a picture


UNICODE = Glyphs(
    {"compute": "█", "memory": "▓", "overhead": "░", "communication": "▚", "transfer": "▌", "unknown": "·"}
    | dict(zip(PHASES, "▒▀▄▞▐", strict=True)),
    "─",
    "·",
    "•",
    "…",
    "·▁▂▃▄▅▆▇█",
    "│",
)
ASCII = Glyphs(
    {"compute": "#", "memory": "=", "overhead": "-", "communication": "+", "transfer": ">", "unknown": "?"}
    | dict(zip(PHASES, "%~_/.", strict=True)),
    "-",
    "|",
    "*",
    "...",
    "._-=+*%#@",
    "|",
)


class TerminalStyle(Struct, frozen=True):
    """The width of a terminal, its characters and its colours.

    The characters are those that it can encode.
    """

    width: int = 80
    encoding: str = "utf-8"
    color: bool = False

    @property
    def glyphs(self) -> Glyphs:
        """Characters of the drawings that the encoding has."""
        return UNICODE if self.encoding.lower().startswith("utf") else ASCII

    def text(self, text: str, limit: int = 200) -> str:
        """The text made safe to show, in characters that the encoding has."""
        safe = clean(text, limit)
        if self.glyphs is UNICODE:
            return safe
        return safe.translate(_PLAIN).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def narrowed(self, columns: int) -> "TerminalStyle":
        """The same terminal with this many columns less."""
        return replace(self, width=self.width - columns)


PLAIN = TerminalStyle()
"""80 columns of UTF-8 without colour, for files and pipes."""


_WIDEST = 1_000


def stream_style(stream: TextIO) -> TerminalStyle:
    """Gives the style of text on a stream.

    It is as wide as its terminal, and in colour only where it shows some.
    """
    console = Console(file=stream, force_jupyter=False)
    color = console.is_terminal and not console.no_color and console.color_system is not None
    # A terminal that has not been told its size says 0; COLUMNS may say anything.
    return TerminalStyle(min(console.width or PLAIN.width, _WIDEST), console.encoding, color)


def render(document: Document, style: TerminalStyle = PLAIN) -> str:
    """Renders the document as text.

    Escape sequences appear in it only where the style has colour.
    """
    return to_text(document_lines(document, style), style)


def height(lines: Iterable[Text], style: TerminalStyle) -> int:
    """Counts the rows of the terminal that the lines take.

    What is longer than a row goes on in the next.
    """
    return sum(max(1, -(-cell_len(line.plain) // style.width)) for line in lines)


def to_text(lines: Iterable[Text], style: TerminalStyle) -> str:
    """The lines as one text, with escape sequences only where the style has colour."""
    stream = io.TextIOWrapper(io.BytesIO(), style.encoding)
    console = Console(
        file=stream,
        width=style.width,
        force_terminal=style.color,
        color_system="standard" if style.color else None,
        force_jupyter=False,  # in a notebook rich displays each line and writes nothing
        _environ={},
    )
    for line in map(_harmless, lines):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, markup=False, emoji=False)
    stream.seek(0)
    return stream.read()


# A log of GitHub Actions obeys lines that begin with two colons, and '##[' anywhere in a line (ActionCommand.cs of
# actions/runner); others obey '##vso[' and '##teamcity['. What a report names must not become a command.
_COMMAND_START = re.compile(r"^(\s*)::")
_OTHER_COMMAND = re.compile(r"##(?=\w*\[)")


def _harmless(line: Text) -> Text:
    """Breaks what a log would obey by a backslash.

    The line stays as wide as before.
    """
    plain = _COMMAND_START.sub(r"\1\\:", _OTHER_COMMAND.sub(r"#\\", line.plain))
    if plain != line.plain:
        line = line.copy()
        line.plain = plain
    return line


def document_lines(document: Document, style: TerminalStyle) -> list[Text]:
    """The document line by line."""
    out = _opening_lines(document, style)
    facts = [Text(), *_fact_lines(document, style)] if document.facts else []
    if facts and document.facts_title:
        facts[1:1] = _title_lines(document.facts_title, style)
    out += [] if document.facts_title else facts
    for section in document.sections:
        out += [Text(), *(_title_lines(section.title, style) if section.title else ())]
        out += _section_lines(section, style)
    out += facts if document.facts_title else []
    for warning in document.warnings:
        out += [Text(), *wrapped(Text(style.text(warning, _PROSE), "yellow"), style)]
    # The closing may be a command. It is not broken into lines of ours: who copies it should get it whole.
    out += [Text(), Text(style.text(document.closing, _PROSE))] if document.closing else []
    out += [Text()] if document.ending else []
    return [*out, *(line for text in document.ending for line in wrapped(Text(style.text(text, _PROSE)), style))]


def _opening_lines(document: Document, style: TerminalStyle) -> list[Text]:
    """Writes headline, conditions and sentence; with lines the first comes before the conditions."""
    tone = STYLES.get(document.tone, "")
    gap = f" {style.glyphs.dot} " if document.lines else " "
    subject = f"{gap}{style.text(document.subject, _PROSE)}" if document.subject else ""
    headline = Text(style.text(document.headline).upper(), f"bold {tone}".strip())
    headline.append(subject, "dim" if document.lines else "")
    out, conditions = wrapped(headline, style), _condition_lines(document, style)
    if not document.lines:
        return out + conditions + wrapped(Text(style.text(document.sentence, _PROSE), "bold"), style)
    width = max(len(line.label) for line in document.lines) + 2
    for at, line in enumerate(document.lines):
        text = Text(style.text(line.text, _PROSE), "bold" if at == 0 else "")
        is_column = line.label and style.width >= _NARROW
        lead = line.label.ljust(width) if is_column else f"{line.label}: " if line.label else ""
        out += wrapped(text, style, width if is_column else 0, lead)
        out += conditions if at == 0 else []
    return out


def _condition_lines(document: Document, style: TerminalStyle) -> list[Text]:
    """Lists the conditions; one that is alone stands behind its title."""
    out = []
    for condition in document.conditions:
        leads = [style.text(lead, _PROSE) for (lead,) in condition.items]
        if len(leads) == 1:
            out += wrapped(Text(f"{condition.title} {leads[0]}", "yellow"), style)
            continue
        out += wrapped(Text(condition.title, "yellow"), style)
        for lead in leads:
            out += wrapped(Text(lead, "yellow"), style, 2, f"{style.glyphs.bullet} ")
    return out


def _fact_lines(document: Document, style: TerminalStyle) -> list[Text]:
    out = []
    width = document.fact_width if style.width >= _NARROW else 0
    for label, text in document.facts:
        lead = label.ljust(width) if width else f"{label}: "
        out += wrapped(Text(style.text(text, _PROSE)), style, width, lead)
    return out


def _title_lines(title: str, style: TerminalStyle) -> list[Text]:
    """The title of a section, ruled to the width."""
    text = style.text(title)
    rule = style.glyphs.rule * max(style.width - cell_len(text) - 1, 0)
    return [Text.assemble((text, "bold"), " ", (rule, "dim"))] if rule else wrapped(Text(text, "bold"), style)


def _section_lines(section: Section, style: TerminalStyle) -> list[Text]:
    """A section without its title."""
    match section:
        case BarSection():
            lines = _bar_section_lines(section, style)
        case TableSection():
            lines = table_lines(section, style) if section.rows else []
            lines += [line for note in section.notes for line in _dim(note, style)]
        case Sparkline():
            cells = sparkline_cells(section.values, style.width, style.glyphs.levels)
            lines = [Text(cells), *wrapped(Text(style.text(section.caption, _PROSE)), style, 2)]
        case ActionSection():
            lines = _action_section_lines(section, style)
        case Waterfall():
            lines = waterfall_lines(section, style)
        case Intervals():
            lines = interval_lines(section, style)
        case CheckSection():
            lines = [line for check in section.checks for line in _check_lines(check, style)]
        case FoldedSection():
            lines = _fold_lines(section, style)
        case ListSection():
            lines = _list_lines(section, style)
    return lines


def _dim(note: str, style: TerminalStyle) -> list[Text]:
    return wrapped(Text(style.text(note, _PROSE), "dim"), style, 2)


def _fold_lines(fold: FoldedSection, style: TerminalStyle) -> list[Text]:
    """The sections of a fold one after the other; their titles are not ruled."""
    out: list[Text] = []
    for section in fold.sections:
        out += wrapped(Text(style.text(section.title), "bold"), style) if section.title else []
        out += _section_lines(section, style)
    return out


_LEAST_IN_LEGEND = 0.001  # a smaller share would only say that it is one


def _bar_section_lines(section: BarSection, style: TerminalStyle) -> list[Text]:
    bar = group_bar(section, style)
    out = [] if bar is None else [bar]
    if section.table is not None:
        return [*out, *_section_lines(section.table, style)]
    legend = (
        Text.assemble((style.glyphs.bars.get(group, "?"), STYLES.get(group, "")), f"{GLUE}{group}{GLUE}{words}")
        for group, share, words in section.parts
        if share >= _LEAST_IN_LEGEND
    )
    return [*out, *wrapped(Text("  ").join(legend), style)]


def group_bar(section: BarSection, style: TerminalStyle) -> Text | None:
    """Draws one bar over the whole width.

    Every group that has time has at least one cell.
    """
    groups = section.parts
    if not groups or style.width < len(groups):
        return None
    room = style.width - len(groups)
    total = sum(share for _, share, _ in groups)
    cells = apportion([share / total * room for _, share, _ in groups])
    bar = Text()
    for (group, _, _), count in zip(groups, cells, strict=True):
        bar.append(style.glyphs.bars.get(group, "?") * (1 + count), STYLES.get(group, ""))
    return bar


def _list_lines(section: ListSection, style: TerminalStyle) -> list[Text]:
    out: list[Text] = []
    for lead, *rest in section.items:
        out += wrapped(Text(style.text(lead, _PROSE)), style, 2, f"{style.glyphs.bullet} ")
        for line in rest:
            out += wrapped(Text(style.text(line, _PROSE), "dim"), style, 4)
    return out


_NARROWEST_GRID = 60
GLUE = "\ue000"  # stands for a space at which no line may break; cleaned text cannot hold it
_EXPLAIN = re.compile(r"bottleneck explain [a-z-]+")  # stands in sentences, and is copied whole
_NARROWEST = {"name": 16, "place": 10, "words": 6, "number": 1}


def table_lines(table: TableSection, style: TerminalStyle) -> list[Text]:
    """Gives the rows of a table.

    They are a grid if every column stays readable, else one paragraph per row.
    """
    shown = [[style.text(cell, 2000) for cell in row.cells] for row in table.rows]
    table = replace(table, columns=tuple(replace(one, title=style.text(one.title)) for one in table.columns))
    for row, cells in zip(table.rows, shown, strict=True):
        cells[0] = "  " + cells[0] if row.role == "part" else cells[0]
    widths = _widths(table, shown, style) if style.width >= _NARROWEST_GRID else None
    if any(column.may_move for column in table.columns) and (widths is None or _cuts_names(table, shown, widths)):
        return table_lines(_moved(table), style)
    lines: list[Text] = []
    if widths is None:
        for row, cells in zip(table.rows, shown, strict=True):
            lines += _stacked(table, row, cells, style)
        return lines
    columns = [
        _shorten(column, [cells[index] for cells in shown], widths[index], style)
        for index, column in enumerate(table.columns)
    ]
    margin = _margin(table)
    lines.append(_line(margin, [column.title for column in table.columns], table.columns, widths, "dim"))
    for row, *cells in zip(table.rows, *columns, strict=True):
        line = _line(margin, cells, table.columns, widths, {"total": "bold", "rest": "dim"}.get(row.role, ""))
        lines.append(_mark(row.group, style) + line[2:] if row.group else line)
        lines += _details(row, style, margin + 2)
    return lines


# Names that are cut to fewer cells than this no longer tell an op with its shapes.
_READABLE_NAME = 32


def _cuts_names(table: TableSection, shown: list[list[str]], widths: list[int]) -> bool:
    return any(
        column.kind == "name" and widths[index] < min(max(cell_len(cells[index]) for cells in shown), _READABLE_NAME)
        for index, column in enumerate(table.columns)
    )


def _moved(table: TableSection) -> TableSection:
    """The table with its columns that may move as details of the rows.

    Cells that say nothing are left out.
    """
    stay = [index for index, column in enumerate(table.columns) if not column.may_move]
    move = [index for index, column in enumerate(table.columns) if column.may_move]
    rows = []
    for row in table.rows:
        texts = [f"{table.columns[index].title} {row.cells[index]}" for index in move if row.cells[index].strip("- ")]
        rows.append(replace(row, cells=tuple(row.cells[index] for index in stay), details=(*row.details, *texts)))
    return replace(table, columns=tuple(table.columns[index] for index in stay), rows=tuple(rows))


def wrapped(text: Text, style: TerminalStyle, indent: int = 0, lead: str = "") -> list[Text]:
    """Breaks the text at words into indented lines.

    They have the terminal's width; ``lead`` stands before the first.
    """
    if style.width - indent < 12 or cell_len(lead) > indent:
        text, indent, lead = Text.assemble(lead, text), 0, ""
    glued = text.copy()
    glued.plain = _EXPLAIN.sub(lambda command: command[0].replace(" ", GLUE), join_units(text.plain, GLUE))
    lines = list(glued.wrap(_ruler(), max(style.width - indent, 1), overflow="fold"))
    for line in lines:
        line.plain = line.plain.replace(GLUE, " ")
        line.rstrip()
    return [Text((lead if index == 0 else "").ljust(indent)) + line for index, line in enumerate(lines)]


@functools.cache
def _ruler() -> Console:
    """Gives a console that rich asks for when it wraps.

    Nothing is ever written to it.
    """
    return Console(file=io.StringIO(), width=80, _environ={})


def _margin(table: TableSection) -> int:
    return 2 if any(row.group for row in table.rows) else 0


def _widths(table: TableSection, shown: list[list[str]], style: TerminalStyle) -> list[int] | None:
    """Gives cells per column.

    Numbers are as wide as they are, the others as there is room. Null if that is too little.
    """
    widths = [
        max(cell_len(text) for text in (column.title, *(cells[index] for cells in shown)))
        for index, column in enumerate(table.columns)
    ]
    flexible = [index for index, column in enumerate(table.columns) if column.kind != "number"]
    least = {index: min(widths[index], _NARROWEST[table.columns[index].kind]) for index in flexible}
    excess = sum(widths) + _GAP * (len(widths) - 1) + _margin(table) - style.width
    while excess > 0:
        able = [index for index in flexible if widths[index] > least[index]]
        if not able:
            return None
        widths[max(able, key=lambda index: widths[index])] -= 1
        excess -= 1
    return widths


def _shorten(column: TableColumn, texts: list[str], width: int, style: TerminalStyle) -> list[str]:
    ellipsis = style.glyphs.ellipsis
    if column.kind == "name":
        return short_names(texts, width, ellipsis)
    cut = cut_place if column.kind == "place" else cut_end
    return [cut(text, width, ellipsis) for text in texts]


def _line(margin: int, cells: list[str], columns: tuple[TableColumn, ...], widths: list[int], emphasis: str) -> Text:
    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        space = " " * (width - cell_len(cell))
        parts.append(space + cell if column.kind == "number" else cell + space)
    return Text(" " * margin + (" " * _GAP).join(parts).rstrip(), emphasis)


def _mark(group: str, style: TerminalStyle) -> Text:
    return Text(f"{style.glyphs.bars.get(group, ' ')} ", STYLES.get(group, ""))


def _details(row: TableRow, style: TerminalStyle, indent: int) -> list[Text]:
    if not row.details:
        return []
    first, *others = [style.text(detail) for detail in row.details]
    text = Text.assemble((first, STYLES.get(row.group or "", "")))
    for other in others:
        text.append(f" {style.glyphs.dot} {other}", "dim")
    return wrapped(text, style, indent)


def _stacked(table: TableSection, row: TableRow, cells: list[str], style: TerminalStyle) -> list[Text]:
    """Gives one row as a paragraph.

    It has its first cell, then 'title value' for each other cell that holds something.
    """
    lead = Text(cells[0].strip() or table.columns[0].title, "bold")
    if row.group:
        lead = _mark(row.group, style) + lead
    pairs = zip(table.columns[1:], cells[1:], strict=True)
    values = ", ".join(f"{column.title} {cell.strip()}".strip() for column, cell in pairs if cell.strip())
    indent = 4 if row.role == "part" else 2
    return [*wrapped(lead, style, indent - 2), *wrapped(Text(values), style, indent), *_details(row, style, indent)]


_LABEL_WIDTH = 6
_CONTINUED = " \\"  # how a shell command goes on in the next line
_WORD = re.compile(r"(?:'[^']*'|[^\s'])+|'")  # quoted as by shlex: a break within would be part of the word


def _action_section_lines(section: ActionSection, style: TerminalStyle) -> list[Text]:
    """Gives the lines of a section of ranked actions.

    They are the actions, what they come to, those without a rank, and what is left out.
    """
    width = len(f"{len(section.items)}. ")
    out = _sentences(section.intro, style)
    for number, action in enumerate(section.items, 1):
        out += _action_lines(action, style, f"{number}. ".ljust(width), "bold")
    out += _sentences(section.totals, style)
    for heading, actions in section.groups:
        out += _sentences((heading,), style)
        out += [line for action in actions for line in _action_lines(action, style, f"{style.glyphs.bullet} ", "")]
    return [*out, *_sentences(section.closing, style, "dim")]


def _sentences(texts: Sequence[str], style: TerminalStyle, emphasis: str = "") -> list[Text]:
    return [line for text in texts for line in wrapped(Text(style.text(text, _PROSE), emphasis), style)]


def _action_lines(action: Action, style: TerminalStyle, lead: str, emphasis: str) -> list[Text]:
    indent = len(lead)
    out = wrapped(Text(style.text(action.title, _PROSE), emphasis), style, indent, lead)
    for labelled in action.lines:
        out += _labelled_lines(labelled, style, indent)
    inner = 0 if style.width < _NARROW else indent + _LABEL_WIDTH
    for line in action.code:
        # The indentation of the code also holds where a line has to be broken.
        code = style.text(line, _PROSE)
        bare = code.lstrip(" ")
        out += wrapped(Text(bare, "cyan"), style, inner + len(code) - len(bare)) if bare else [Text()]
    if action.command is not None:
        out += _command("try", action.command, style, indent)
    return out


def _labelled_lines(labelled: LabelledLine, style: TerminalStyle, indent: int) -> list[Text]:
    """Gives a sentence with its label in the margin.

    The label stands before it where it is too long. Code and command stand beneath.
    """
    label, text = labelled.label, style.text(labelled.text, _PROSE)
    if not label:
        return wrapped(Text(text), style, indent)
    inner = indent if style.width < _NARROW else indent + _LABEL_WIDTH
    if style.width < _NARROW or len(label) >= _LABEL_WIDTH:
        out = wrapped(Text(f"{label}: {text}"), style, indent)
    else:
        out = wrapped(Text(text), style, inner, " " * indent + label.ljust(_LABEL_WIDTH))
    if labelled.code:
        out += wrapped(Text(style.text(labelled.code, _PROSE), "dim"), style, inner + 2)
    return out + (_command("", labelled.command, style, indent) if labelled.command else [])


def _command(label: str, command: str, style: TerminalStyle, indent: int) -> list[Text]:
    """Gives a command that can be copied.

    Where it is too long for a line, a backslash says that it goes on. No word is broken, however long: its halves would
    be two.
    """
    shown = style.text(command, _COMMAND)
    if style.width < _NARROW:
        return wrapped(Text(shown), style, indent, f"{label}: " if label else "")
    room = style.width - indent - _LABEL_WIDTH - len(_CONTINUED)
    lines: list[str] = []
    for word in _WORD.findall(shown):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    lines = lines or [""]
    leads = [" " * indent + label.ljust(_LABEL_WIDTH), *(" " * (indent + _LABEL_WIDTH) for _ in lines[1:])]
    ends = [*(_CONTINUED for _ in lines[1:]), ""]
    return [Text(f"{lead}{line}{end}") for lead, line, end in zip(leads, lines, ends, strict=True)]


_WIDE = 64
_LEAST_BAR, _MOST_BAR = 8, 40
_WIDEST_LABEL, _NARROW_LABEL = 24, 15


def waterfall_lines(drawn: Waterfall, style: TerminalStyle) -> list[Text]:
    """Gives a waterfall without its title.

    Both steps come first, to one scale. The accounts follow, with all their numbers and bars where it is wide, else one
    number and, if they fit, bars.
    """
    is_wide = style.width >= _WIDE
    first, last = drawn.steps
    total = replace(last, label="the step", short="the step", before=first.before, amount=last.change)
    rows = [_bar_cells(bar, style, is_wide=is_wide) for bar in (*drawn.accounts, total)]
    titles = (f"in {drawn.unit}", *(("before", "after", "change") if is_wide else ("",)))
    widths = [max(cell_len(row[index]) for row in (titles, *rows)) for index in range(len(titles))]
    numbers = sum(width + _GAP for width in widths[1:])
    widths[0] = max(min(widths[0], style.width - numbers - 2), 4)
    half = (min(style.width - 2 - widths[0] - numbers - _GAP, _MOST_BAR) - 1) // 2
    has_bars = half >= _LEAST_BAR // 2
    sides = " " * (_GAP + half - 4) + f"less{style.glyphs.line}more" if has_bars else ""
    lines = [*_step_lines(drawn, style), Text(f"  {_set_bar(titles, widths, style)}{sides}".rstrip(), "dim")]
    for bar, row in zip((*drawn.accounts, total), rows, strict=True):
        line = Text(f"{style.glyphs.bars.get(bar.group, ' ')} ")
        line.append(_set_bar(row, widths, style), "bold" if bar.is_step else "")
        if has_bars:
            line.append_text(_drawn_bar(bar, drawn, half, style))
        line.rstrip()
        lines.append(line)
    return lines


def _step_lines(drawn: Waterfall, style: TerminalStyle) -> list[Text]:
    """Draws the step before and after, each group in its own characters."""
    width = max(cell_len(bar.amount) for bar in drawn.steps)
    lines = []
    for bar in drawn.steps:
        lead = f"{bar.label.ljust(6)}  {bar.amount.rjust(width)} {drawn.unit}"
        room = style.width - cell_len(lead) - _GAP
        share = bar.end_us / drawn.longest_us if drawn.longest_us else 0.0
        parts = tuple((group, us, "") for group, us in bar.parts if us > 0)
        cells = max(round(room * share), len(parts))
        stack = group_bar(BarSection("", parts), replace(style, width=cells)) if parts else None
        lines.append(Text(lead) if stack is None or room < _LEAST_BAR else Text(f"{lead}{' ' * _GAP}") + stack)
    return lines


def _bar_cells(bar: WaterfallBar, style: TerminalStyle, *, is_wide: bool) -> tuple[str, ...]:
    if is_wide:
        label = cut_end(style.text(bar.label), _WIDEST_LABEL, style.glyphs.ellipsis)
        return label, bar.before, bar.after, bar.change
    return cut_end(style.text(bar.short), _NARROW_LABEL, style.glyphs.ellipsis), bar.amount


def _set_bar(cells: Sequence[str], widths: Sequence[int], style: TerminalStyle) -> str:
    label = cut_end(cells[0], widths[0], style.glyphs.ellipsis)
    numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return (" " * _GAP).join([label + " " * (widths[0] - cell_len(label)), *numbers])


def _drawn_bar(bar: WaterfallBar, drawn: Waterfall, half: int, style: TerminalStyle) -> Text:
    """Gives the bar of a line, and the line at zero.

    It has ``half`` cells at most to each side. What is not nothing has at least one.
    """
    change_us = 0.0 if bar.is_step else bar.change_us
    cells = max(round(abs(change_us) / drawn.most_us * half), 1) if change_us else 0
    glyphs = style.glyphs
    drawn_cells = glyphs.bars.get(bar.group, glyphs.bars["unknown"]) * cells
    left, right = (drawn_cells, "") if change_us < 0 else ("", drawn_cells)
    gap = " " * (_GAP + half - len(left))
    return Text.assemble(gap, (left, "green"), (glyphs.line, "dim"), (right, "red"))


def interval_lines(drawn: Intervals, style: TerminalStyle) -> list[Text]:
    """Gives a picture of intervals without its title.

    It is a row of cells for each, with the line at 1 through them, and the axis beneath. Label and words alone where
    that is all that fits.
    """
    labels = [style.text(bar.label) for bar in drawn.bars]
    words = [style.text(bar.words) for bar in drawn.bars]
    wide = max(map(cell_len, words))
    room = min(style.width - wide - 2 * _GAP - min(max(map(cell_len, labels)), _WIDEST_LABEL), _MOST_INTERVAL)
    widest = max(style.width - wide - _GAP - (room + _GAP if room >= _LEAST_BAR else 0), 4)
    labels = short_names(labels, min(widest, _WIDEST_LABEL), style.glyphs.ellipsis)
    width = max(map(cell_len, labels))
    lines = []
    for bar, label, value in zip(drawn.bars, labels, words, strict=True):
        line = Text(label + " " * (width - cell_len(label) + _GAP))
        if room >= _LEAST_BAR:
            line.append_text(_interval_cells(bar, drawn, room, style)).append(" " * _GAP)
        line.append(value)
        lines.append(line)
    if room < _LEAST_BAR:
        return lines
    axis = " " * (width + _GAP) + _tick_cells(drawn, room)
    return [*lines, Text(axis.rstrip(), "dim"), *_keys(drawn, width + _GAP, style)]


def _keys(drawn: Intervals, indent: int, style: TerminalStyle) -> list[Text]:
    """Says what the cells of a picture of intervals stand for.

    Empty where only what was measured is drawn.
    """
    glyphs = style.glyphs
    words = f"{glyphs.bars['overhead']} interval  {glyphs.line} as fast as now"
    if drawn.has_both:
        words = f"{glyphs.bars['compute']} measured  {glyphs.bars['overhead']} predicted"
    return [Text(" " * indent + words, "dim")] if any(bar.predicted for bar in drawn.bars) else []


_MOST_INTERVAL = 48


def _interval_cells(bar: IntervalBar, drawn: Intervals, room: int, style: TerminalStyle) -> Text:
    """Draws the measured interval over the predicted one, with the line at 1.

    The line is hidden only where the measured interval holds 1.
    """
    glyphs, tone = style.glyphs, STYLES.get(bar.tone, "")
    cells = [(" ", "")] * room

    def place(value: float) -> int:
        return round(drawn.share(value) * (room - 1))

    def fill(ends: tuple[float, float], cell: tuple[str, str]) -> None:
        low, high = map(place, ends)
        cells[low : high + 1] = [cell] * (high + 1 - low)

    if bar.predicted is not None:
        fill(bar.predicted, (glyphs.bars["overhead"], "dim" if bar.measured else tone))
    fill((1.0, 1.0), (glyphs.line, "dim"))
    if bar.measured is not None:
        fill(bar.measured, (glyphs.bars["compute"], tone))
    return Text.assemble(*cells)


def _tick_cells(drawn: Intervals, room: int) -> str:
    """Writes the ticks beneath an axis, each where it has room, 1 first."""
    cells = [" "] * room
    for value, words in sorted(drawn.ticks, key=lambda tick: tick[0] != 1):
        left = min(round(drawn.share(value) * (room - 1)), room - len(words))
        near = cells[max(left - 1, 0) : left + len(words) + 1]
        if left >= 0 and not "".join(near).strip():
            cells[left : left + len(words)] = words
    return "".join(cells)


_STATUS_STYLES: dict[Status, str] = {"ok": "green", "limited": "yellow", "missing": "red", "unknown": "dim"}
_STATUS_WIDTH = 9
_TITLE_WIDTH = 14


def _check_lines(check: Check, style: TerminalStyle) -> list[Text]:
    """Gives status, title and fact, then why, and what to do.

    They are in columns where they fit, else the fact stands beneath.
    """
    status, title = Text(check.status.ljust(_STATUS_WIDTH), _STATUS_STYLES[check.status]), style.text(check.title)
    is_wide = style.width >= _NARROWEST_GRID
    indent = _STATUS_WIDTH + _TITLE_WIDTH if is_wide else 2
    fact = wrapped(Text(style.text(check.fact, _PROSE)), style, indent)
    if is_wide and cell_len(title) < _TITLE_WIDTH:
        padded = title + " " * (_TITLE_WIDTH - cell_len(title))
        out = [Text.assemble(status, (padded, "bold"), fact[0].plain.lstrip()), *fact[1:]]
    else:
        out = [*wrapped(Text.assemble(status, (title, "bold")), style), *fact]
    for label, text in (("why", check.why), ("fix", check.remedy)):
        if text:
            out += wrapped(Text(style.text(f"{label}: {text}", _PROSE), "dim"), style, indent)
    if check.command:
        # Not broken into lines of ours: who copies it should get it whole.
        lead = "" if check.remedy else "fix: "
        out.append(Text(" " * indent + lead + style.text(check.command, _PROSE)))
    return out
