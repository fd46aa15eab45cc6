"""Builds the report that fits a terminal of 24 lines.

It is the answer: what holds the step back, a bar, and the first findings. Everything else is in the whole report.
"""

import shlex
from collections.abc import Mapping
from itertools import accumulate
from typing import Literal, TextIO

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from bottleneck.report import render_report, terminal
from bottleneck.report.analysis_document import (
    WHOLE_FACTS,
    are_usual,
    build,
    comparable_step_us,
    ledger_bar,
    to_terminal,
    trust_in_brief,
)
from bottleneck.report.document import Document, LabelledLine
from bottleneck.report.findings import findings_in_brief
from bottleneck.report.job_section import worst_ranks
from bottleneck.report.no_gain import no_gain_in_brief
from bottleneck.report.terminal import PLAIN, TerminalStyle, stream_style
from bottleneck.report.text import as_sentence, cut_text
from bottleneck.schema.analysis import Analysis, RecordingInfo
from bottleneck.schema.records import replace

SCREEN_LINES = 23
"""Rows of the report, with one more for the prompt."""


class _Room(Struct, frozen=True):
    """Amounts that a screen has room for.

    ``asides`` are lines of the verdict that are no part of the answer, ``ranks`` the slow ranks that are named,
    ``advised`` the findings after the first with a line on what to do (below 0 the others have no names either),
    ``remarks`` the sentences beneath the findings, ``characters`` those of a text that may be cut, and ``trust`` those
    of the main caveat. Without ``facts`` it is not said how far the recorded steps stand for the run, unless much of
    the run is elsewhere; ``fact`` cuts that. ``answer`` cuts the lines of the verdict itself, which happens to none but
    made-up ones.
    """

    asides: int = 3
    ranks: int = 3
    findings: int = 3
    advised: int = 3
    remarks: int = 3
    characters: int = 200
    trust: int = 148
    facts: bool = True
    fact: int = 600
    answer: int = 600


# What is given up for the report to fit, one after the other, and the limit then.
_SHRINKS: tuple[Mapping[str, int], ...] = (
    {"ranks": 1},
    {"trust": 110},
    {"remarks": 2},
    {"characters": 148},
    {"trust": 0},
    {"asides": 2},
    {"characters": 110},
    {"remarks": 1},
    {"asides": 1},
    {"characters": 74},
    {"advised": 1},
    {"advised": 0},
    {"asides": 0},
    {"facts": False},
    {"advised": -1},
    {"remarks": 0},
    {"findings": 2},
    {"findings": 1},
    {"ranks": 0, "asides": 0},
    {"fact": 140},
    {"fact": 70},
    *({"answer": characters} for characters in (300, 230, 190, 150, 130, 110, 90, 76)),
)
_MUCH_ELSEWHERE = 0.2
# Lines of the verdict that are never left out: what holds the step back, the worst place, what to do, and doubts.
_ANSWER = frozenset({"", "Worst", "Largest", "First", "Cut", "But", "Sure"})


def _screen(analysis: Analysis, whole: Document, room: _Room) -> Document:
    """Builds the document of one screen from the whole one."""
    remarks = (
        *no_gain_in_brief(analysis.no_gain, room.characters),
        trust_in_brief(analysis, room.trust),
    )
    ranks = worst_ranks(analysis, room.ranks, room.characters) if room.ranks and not _is_said(analysis, whole) else None
    closing = (*remarks[: room.remarks], _where_the_rest_is(analysis.recording))
    sections = (
        None if ranks is None else replace(ranks, title=""),
        ledger_bar(analysis),
        findings_in_brief(analysis, room.findings, room.advised, room.characters, closing),
    )
    return replace(
        whole,
        subject=cut_text(whole.subject, room.answer),
        lines=_shortened(whole.lines, room),
        ending=tuple(cut_text(text, room.answer) for text in whole.ending),
        facts=tuple((label, cut_text(text, room.fact)) for label, text in whole.facts if label in WHOLE_FACTS)
        if room.facts or _stands_for_little(analysis)
        else (),
        sections=tuple(filter(None, sections)),
        facts_title="",
        closing="",
    )


def _stands_for_little(analysis: Analysis) -> bool:
    """True where much of the run is not like the recorded steps."""
    run = analysis.run
    return run is not None and (
        run.elsewhere_share >= _MUCH_ELSEWHERE or not (run.growth or are_usual(run, comparable_step_us(analysis)))
    )


def _is_said(analysis: Analysis, whole: Document) -> bool:
    """True where the only slow rank is that of the first line."""
    job, first = analysis.job, next((line.text for line in whole.lines), "")
    if job is None or len(job.slow) != 1 or job.slow_links:
        return False
    return first.startswith(as_sentence(job.slow[0].name))


def _shortened(lines: tuple[LabelledLine, ...], room: _Room) -> tuple[LabelledLine, ...]:
    """Leaves out the asides for which there is no room.

    The first of them stay.
    """
    asides = [line for line in lines if line.label not in _ANSWER][: room.asides]
    return tuple(
        replace(line, text=_cut(line.text, room.answer if line.label in _ANSWER else room.characters))
        for line in lines
        if line.label in _ANSWER or line in asides
    )


def _cut(text: str, limit: int) -> str:
    """Cuts a labelled line; it ends without a full stop, wherever it is cut."""
    return cut_text(text, limit).removesuffix(".")


def _where_the_rest_is(recording: RecordingInfo) -> str:
    """Gives the command that shows everything, as one line.

    A long path is left out, since a broken one cannot be copied.
    """
    command = f"Full report: bottleneck report {shlex.quote(recording.path)} --full"
    noun = "recording" if recording.kind == "run" else "trace"
    return command if cell_len(command) <= PLAIN.width else f"Full report: bottleneck report --full, with this {noun}"


def to_screen(analysis: Analysis, style: TerminalStyle = PLAIN) -> str:
    """The report that fits one screen: 24 lines on a terminal of 80 columns."""
    lines: list[Text] = []
    whole = build(analysis)
    for room in accumulate(_SHRINKS, lambda room, limits: replace(room, **limits), initial=_Room()):
        lines = terminal.document_lines(_screen(analysis, whole, room), style)
        if terminal.height(lines, style) <= SCREEN_LINES:
            break
    return terminal.to_text(lines, style)


Extent = Literal["screen", "full", "all findings"]  # of the report that is printed


def report_text(analysis: Analysis, stream: TextIO, form: str = "terminal", extent: Extent = "screen") -> str:
    """Renders the report in a format.

    That for a terminal has the width, colours and character set of the stream.
    """
    all_findings = extent == "all findings"
    if form != "terminal":
        return render_report(analysis, form, all_findings=all_findings)
    style = stream_style(stream)
    return to_screen(analysis, style) if extent == "screen" else to_terminal(analysis, style, all_findings=all_findings)
