"""Builds the document of a check-up by ``doctor``.

Renders check-ups as text, JSON and a page.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from bottleneck import __version__
from bottleneck.report import render_document
from bottleneck.report.document import CheckSection, Document, ListSection
from bottleneck.report.json_text import LONGEST_TEXT, encode
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import clean
from bottleneck.schema.checks import DOCTOR_SCHEMA, Checkup, tally
from bottleneck.schema.records import replace


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


def render(checkups: Sequence[Checkup], form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders all check-ups as text, JSON or one page.

    Texts have a blank line between them. In JSON, empty texts are null.
    """
    if form == "json":
        document = {"schema": DOCTOR_SCHEMA, "version": __version__, "checkups": list(checkups)}
        return encode(document, text=lambda text: clean(text, LONGEST_TEXT) or None)
    documents = [build(checkup) for checkup in checkups]
    if form == "html":
        return render_document(documents[0] if len(documents) == 1 else _together(checkups, documents), form)
    return "\n".join(render_document(document, form, style) for document in documents)


def _together(checkups: Sequence[Checkup], documents: Sequence[Document]) -> Document:
    """The document of several check-ups, whose sections name the subject."""
    verdicts = Counter(checkup.verdict for checkup in checkups)
    lead = ListSection(
        "Check-ups", tuple((f"{checked.subject}: {checked.verdict}. {checked.sentence}",) for checked in checkups)
    )
    sections = (
        replace(section, title=f"{checkup.subject}: {section.title}")
        for checkup, document in zip(checkups, documents, strict=True)
        for section in document.sections
    )
    return Document(
        headline="check-up",
        sentence=f"{len(checkups)} traces: {', '.join(f'{n} {word}' for word, n in verdicts.items())}.",
        tone="bad" if any(document.tone == "bad" for document in documents) else "good",
        sections=(lead, *sections),
        closing=tally([check for checkup in checkups for check in checkup.checks]),
    )
