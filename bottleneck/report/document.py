"""What a report says, before any medium: verdict, facts, the bar, tables and notes, as text that is already rounded.

Terminal and markdown are two ways of setting the same ``Document``, so they cannot disagree.
"""

from dataclasses import dataclass

from bottleneck.records import GROUPS, Analysis
from bottleneck.report import extras, facts, places, sections, waits
from bottleneck.report.collectives import collectives
from bottleneck.report.findings import findings
from bottleneck.report.layout import Notes, Remedies, Strip, Table
from bottleneck.report.queue import queue_strip

_PLACES = 6  # lines and modules: enough to see where to look, since the JSON has them all

Part = Table | Notes | Remedies | Strip


@dataclass(frozen=True)
class Document:
    """The parts of a report in reading order. ``groups`` are the shares of the bar; all text is uncleaned."""

    headline: str
    sentence: str
    bound: str
    facts: tuple[tuple[str, str], ...]
    groups: tuple[tuple[str, float], ...]
    parts: tuple[Part, ...]
    next_step: str


def build(analysis: Analysis, top: int = 10, *, all_findings: bool = False) -> Document:
    """The document of an analysis, with at most ``top`` rows in the tables that could grow without end.

    ``all_findings`` shows those too that the run's noise would hide, and all that follow the first few.
    """
    verdict = analysis.verdict
    parts: tuple[Part | None, ...] = (
        sections.ledger(analysis),
        findings(analysis, all_findings=all_findings),
        extras.batch_test(analysis.batch_test),
        sections.kernels(analysis, top),
        waits.idle(analysis, top),
        queue_strip(analysis),
        places.lines(analysis, _PLACES),
        places.modules(analysis, _PLACES),
        collectives(analysis, top),
        sections.ranks(analysis, top),
        facts.coverage(analysis),
        facts.caveats(analysis),
    )
    shares = {group: sum(entry.share for entry in analysis.ledger if entry.group == group) for group in GROUPS}
    return Document(
        headline=facts.headline(verdict),
        sentence=verdict.sentence,
        bound=verdict.bound,
        facts=facts.facts(analysis),
        groups=tuple((group, share) for group, share in shares.items() if share > 0),
        parts=tuple(part for part in parts if part),
        next_step=facts.next_step(analysis),
    )
