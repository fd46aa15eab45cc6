"""Builds the document of a check-up by ``doctor``, and renders check-ups as text, JSON and a page."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from bottleneck.report import terminal
from bottleneck.report.document import CheckSection, Document, ListSection
from bottleneck.report.json_text import encode
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import clean
from bottleneck.schema.checks import DOCTOR_SCHEMA, Checkup, tally
from bottleneck.schema.records import replace

_LONGEST_JSON_TEXT = 2000


def build(checkup: Checkup) -> Document:
    """The document of one check-up: a section per group of checks."""
    bad = checkup.verdict in {"not ready", "damaged", "unreadable"}
    groups = groupby(checkup.checks, key=lambda check: check.group)
    return Document(
        headline=f"{checkup.verdict}:",
        subject=checkup.subject,
        tone="bad" if bad else "good",
        sentence=checkup.sentence,
        sections=tuple(CheckSection(group[:1].upper() + group[1:], tuple(checks)) for group, checks in groups),
        closing=tally(checkup.checks),
    )


def to_terminal(checkups: Sequence[Checkup], style: TerminalStyle = PLAIN) -> str:
    """All check-ups as text, with a blank line between them; escape sequences only where the style has colour."""
    return "\n".join(terminal.render(build(checkup), style) for checkup in checkups)


def to_html(checkups: Sequence[Checkup]) -> str:
    """All check-ups as one page for a browser; of several the sections name the subject."""
    from bottleneck.report.page import document_to_html  # noqa: PLC0415 - jinja2 is loaded only where it is used

    documents = [build(checkup) for checkup in checkups]
    if len(documents) == 1:
        return document_to_html(documents[0])
    verdicts = Counter(checkup.verdict for checkup in checkups)
    lead = ListSection("Check-ups", tuple((f"{each.subject}: {each.verdict}. {each.sentence}",) for each in checkups))
    sections = (
        replace(section, title=f"{checkup.subject}: {section.title}")
        for checkup, document in zip(checkups, documents, strict=True)
        for section in document.sections
    )
    together = Document(
        headline="check-up",
        sentence=f"{len(checkups)} traces: {', '.join(f'{n} {word}' for word, n in verdicts.items())}.",
        tone="bad" if any(document.tone == "bad" for document in documents) else "good",
        sections=(lead, *sections),
        closing=tally([check for checkup in checkups for check in checkup.checks]),
    )
    return document_to_html(together)


def to_json(checkups: Sequence[Checkup], version: str) -> str:
    """The document of `doctor --format json`: schema, version, and the check-ups with empty texts as null."""
    document = {"schema": DOCTOR_SCHEMA, "version": version, "checkups": list(checkups)}
    return encode(document, text=lambda text: clean(text, _LONGEST_JSON_TEXT) or None)
