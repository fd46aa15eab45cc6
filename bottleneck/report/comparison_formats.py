"""A comparison in each medium: text of a terminal, markdown, JSON; nothing of a trace is markup or an escape."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from bottleneck.report.comparison import TOP, WATERFALL_TITLE, ComparisonDocument, Waterfall, build, waterfall_lines
from bottleneck.report.document import Table
from bottleneck.report.markdown import body, prose
from bottleneck.report.terminal import Look, body_lines, title_lines, wrapped
from bottleneck.schema.comparison import Comparison

_PROSE = 600
_LABEL_WIDTH = 8
_NARROW = 40
_BREAKS = "Not only the code differs, so that these times do not compare the code:"
_COLOURS, _ALSO = "Not only the code differs:", "Also:"


def render(
    comparison: Comparison, width: int = 80, *, color: bool = False, encoding: str = "utf-8", top: int = TOP
) -> str:
    """The comparison as text; escape sequences appear in it only with ``color``."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, _environ={}
    )
    for line in lines(build(comparison, top), Look(width, encoding)):
        console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, markup=False, emoji=False)
    stream.seek(0)
    return stream.read()


def lines(document: ComparisonDocument, look: Look) -> list[Text]:
    """The text line by line: what differs besides the code stands before all else."""
    out = wrapped(Text(look.text(f"COMPARE {document.title}", _PROSE), "bold"), look)
    for heading, conditions in _differing(document):
        out += _conditions(heading, conditions, look)
    out += [*wrapped(Text(look.text(document.sentence, _PROSE), "bold"), look), Text()]
    label_width = _LABEL_WIDTH if look.width >= _NARROW else 0
    for label, text in document.facts:
        lead = label.ljust(label_width) if label_width else f"{label}: "
        out += wrapped(Text(look.text(text, _PROSE)), look, label_width, lead)
    if document.waterfall is not None:
        out += [Text(), *title_lines(WATERFALL_TITLE, look), *waterfall_lines(document.waterfall, look)]
        out += wrapped(Text(document.waterfall.note, "dim"), look, 2) if document.waterfall.note else []
    for part in document.parts:
        out += [Text(), *title_lines(part.title, look)]
        out += body_lines(part, look) if not isinstance(part, Table) or part.rows else _asides(part, look)
    return out


def to_markdown(comparison: Comparison, *, top: int = TOP) -> str:
    """Markdown for a comment on a pull request, readable on a phone: the waterfall is as narrow as one."""
    document = build(comparison, top)
    out = [f"## compare {prose(document.title)}", ""]
    for heading, conditions in _differing(document):
        out += [heading, "", *(f"- {prose(each)}" for each in conditions), ""] if conditions else []
    out += [f"**{prose(document.sentence)}**", "", *(f"- {label}: {prose(text)}" for label, text in document.facts), ""]
    if document.waterfall is not None:
        out += [f"### {WATERFALL_TITLE}", "", *_fenced(document.waterfall), ""]
    for part in document.parts:
        out += [f"### {prose(part.title)}", ""]
        if isinstance(part, Table) and not part.rows:
            out += [line for note in part.notes for line in (prose(note), "")]
        else:
            out += body(part)
    return "\n".join(out).rstrip("\n") + "\n"


def to_json(comparison: Comparison) -> str:
    """The comparison as indented JSON in ASCII; what is not finite is null, as what is not known."""
    plain = msgspec.to_builtins(comparison)
    ordered = {key: plain[key] for key in ("schema", "version", *plain)}
    return json.dumps(_finite(ordered), indent=1, ensure_ascii=True) + "\n"


def _differing(document: ComparisonDocument) -> tuple[tuple[str, Sequence[str]], ...]:
    """What differs besides the code, with its headings, the worst first."""
    return ((_BREAKS, document.breaks), (_ALSO if document.breaks else _COLOURS, document.colours))


def _conditions(heading: str, conditions: Sequence[str], look: Look) -> list[Text]:
    if not conditions:
        return []
    out = wrapped(Text(heading, "yellow"), look)
    for each in conditions:
        out += wrapped(Text(look.text(each, _PROSE), "yellow"), look, 2, f"{look.glyphs.bullet} ")
    return out


def _asides(table: Table, look: Look) -> list[Text]:
    return [line for note in table.notes for line in wrapped(Text(look.text(note, _PROSE), "dim"), look, 2)]


def _fenced(drawn: Waterfall) -> list[str]:
    """The waterfall as a block of fixed width; its labels are cleaned, and a fence cannot be closed by one of them."""
    shown = [line.plain.replace("`", "'") for line in waterfall_lines(drawn, Look(_NARROW))]
    return ["```text", *shown, *([drawn.note] if drawn.note else []), "```"]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


FORMATS: Mapping[str, Callable[[Comparison], str]] = {"terminal": render, "markdown": to_markdown, "json": to_json}
