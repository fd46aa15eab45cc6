"""An analysis as text for a terminal or a pipe: readable at 80 columns, without colour and without Unicode."""

import io

from rich.console import Console
from rich.text import Text

from bottleneck.records import Analysis
from bottleneck.report.document import Document, Part, build
from bottleneck.report.grid import table_lines, wrapped
from bottleneck.report.layout import Notes, Remedies, Strip, Table
from bottleneck.report.look import STYLES, Look
from bottleneck.report.numbers import apportion
from bottleneck.report.remedies import remedy_lines
from bottleneck.report.strips import strip_cells

_PROSE = 600


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
