"""Renders checks as text and as JSON."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bottleneck.report.terminal import Look, wrapped
from bottleneck.report.text import clean
from bottleneck.schema.checks import DOCTOR_SCHEMA, Check, Checkup, Status, tally

_STYLES: dict[Status, str] = {"ok": "green", "limited": "yellow", "missing": "red", "unknown": "dim"}
_STATUS_WIDTH = 9
_TITLE_WIDTH = 14
_NARROWEST_GRID = 60
_PROSE = 600
_LONGEST_JSON_TEXT = 2000


def render_checkups(
    checkups: Sequence[Checkup], width: int = 80, *, color: bool = False, encoding: str = "utf-8"
) -> str:
    """All check-ups as text, with a blank line between them; escape sequences appear in it only with ``color``."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    console = Console(
        file=stream, width=width, force_terminal=color, color_system="standard" if color else None, _environ={}
    )
    look = Look(width, encoding)
    for number, checkup in enumerate(checkups):
        for line in [*([Text()] if number else []), *_lines(checkup, look)]:
            console.print(line, no_wrap=True, overflow="ignore", crop=False, highlight=False, markup=False, emoji=False)
    stream.seek(0)
    return stream.read()


def checkups_json(checkups: Sequence[Checkup], version: str) -> str:
    """The document of `doctor --format json`: schema, version, and the check-ups with empty texts left out as null."""
    document = {"schema": DOCTOR_SCHEMA, "version": version, "checkups": [_plain(checkup) for checkup in checkups]}
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _plain(checkup: Checkup) -> dict[str, object]:
    rows = [{key: _safe(value) for key, value in asdict(check).items()} for check in checkup.checks]
    head = {key: _safe(getattr(checkup, key)) for key in ("kind", "subject", "verdict", "sentence")}
    return {**head, "checks": rows}


def _safe(value: object) -> object:
    """Text with what could act on a terminal made visible, as everywhere; empty text is null."""
    return (clean(value, _LONGEST_JSON_TEXT) or None) if isinstance(value, str) else value


def _lines(checkup: Checkup, look: Look) -> list[Text]:
    bad = checkup.verdict in {"not ready", "damaged", "unreadable"}
    head = Text(look.text(f"{checkup.verdict.upper()}: {checkup.subject}", _PROSE), "bold red" if bad else "bold green")
    out = [*wrapped(head, look), *wrapped(Text(look.text(checkup.sentence, _PROSE), "bold"), look)]
    for group, checks in groupby(checkup.checks, key=lambda check: check.group):
        out += [Text(), *_title(group, look)]
        out += [line for check in checks for line in _row(check, look)]
    if checkup.checks:
        out += [Text(), Text(look.text(tally(checkup.checks)))]
    return out


def _title(group: str, look: Look) -> list[Text]:
    text = look.text(group[:1].upper() + group[1:])
    rule = look.glyphs.rule * max(look.width - cell_len(text) - 1, 0)
    return [Text.assemble((text, "bold"), " ", (rule, "dim"))] if rule else wrapped(Text(text, "bold"), look)


def _row(check: Check, look: Look) -> list[Text]:
    """Status, title and fact in columns where they fit, else the fact beneath; then why, and what to do."""
    status, title = Text(check.status.ljust(_STATUS_WIDTH), _STYLES[check.status]), look.text(check.title)
    is_wide = look.width >= _NARROWEST_GRID
    indent = _STATUS_WIDTH + _TITLE_WIDTH if is_wide else 2
    fact = wrapped(Text(look.text(check.fact, _PROSE)), look, indent)
    if is_wide and cell_len(title) < _TITLE_WIDTH:
        fact[0] = Text.assemble(
            status, (title + " " * (_TITLE_WIDTH - cell_len(title)), "bold"), fact[0].plain.lstrip()
        )
        out = fact
    else:
        out = [*wrapped(Text.assemble(status, (title, "bold")), look), *fact]
    return [*out, *_details(check, look, indent)]


def _details(check: Check, look: Look, indent: int) -> list[Text]:
    out = []
    for label, text in (("why", check.why), ("fix", check.remedy)):
        if text:
            out += wrapped(Text(look.text(f"{label}: {text}", _PROSE), "dim"), look, indent)
    if check.command:
        # Not broken into lines of ours: who copies it should get it whole.
        lead = "" if check.remedy else "fix: "
        out.append(Text(" " * indent + lead + look.text(check.command, _PROSE)))
    return out
