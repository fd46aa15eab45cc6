"""The section of what to change: findings ranked as they are in the analysis, the rest counted, nothing left unsaid."""

import math
from collections.abc import Sequence

from bottleneck.records import Analysis, Finding, Interval
from bottleneck.report.layout import Remedies, Remedy
from bottleneck.units import format_share, format_us

PAGE = "docs/reference/findings.md"
TITLE = "What to change"

_MOST = 5
_MOST_EVIDENCE = 3


def findings(analysis: Analysis, *, all_findings: bool = False) -> Remedies | None:
    """What to change and what that is predicted to be worth; null where no rule has anything to say.

    Without ``all_findings`` those that the run's own noise would hide are counted, not shown, as are those after the
    first few.
    """
    found = analysis.findings
    if not found:
        return None
    priced = [finding for finding in found if finding.predicted_gain_us is not None]
    remarks = [finding for finding in found if finding.predicted_gain_us is None]
    hidden = [] if all_findings else [finding for finding in priced if finding.within_noise]
    visible = [finding for finding in priced if all_findings or not finding.within_noise]
    most = len(found) if all_findings else _MOST
    shown = visible[:most]
    return Remedies(
        TITLE,
        tuple(_remedy(finding, len(finding.evidence) if all_findings else _MOST_EVIDENCE) for finding in shown),
        _together(shown, analysis.steps.wall_us),
        tuple(map(_remark, remarks[:most])),
        (*_more(visible[most:], remarks[most:]), *_hidden(hidden), f"Each [name] has its section in {PAGE}."),
    )


def _remedy(finding: Finding, most_evidence: int) -> Remedy:
    gain, speedup = finding.predicted_gain_us, finding.predicted_speedup
    lines = (
        ("gain", "" if gain is None or speedup is None else f"{_between(gain)} per step: {_times(speedup)} as fast"),
        ("adds", _added(finding)),
        ("seen", _evidence(finding.evidence, most_evidence)),
        ("do", finding.advice),
    )
    return Remedy(
        lead=f"{finding.title} [{finding.slug}]",
        lines=tuple((label, text) for label, text in lines if text),
        code=tuple((finding.code or "").rstrip().splitlines()),
        command=finding.verify,
    )


def _evidence(evidence: Sequence[str], most: int) -> str:
    more = [f"and {len(evidence) - most} more"] if len(evidence) > most else []
    return "; ".join([*evidence[:most], *more])


def _added(finding: Finding) -> str:
    """What is left of the gain once the findings above are done; nothing where that is all of it."""
    gain, added = finding.predicted_gain_us, finding.added_gain_us
    if gain is None or added is None or _reads_as(added.high, gain.high):
        return ""
    if _reads_as(added.high, 0.0):
        return "nothing to those above, which already save this time"
    return f"{_between(added)} to those above, which save some of the same time"


def _reads_as(one: float, other: float) -> bool:
    return format_us(one) == format_us(other)


def _between(interval: Interval) -> str:
    if _reads_as(interval.low, interval.high):
        return f"about {format_us(interval.high)}"
    if not interval.low > 0:
        return f"up to {format_us(interval.high)}"
    return f"{format_us(interval.low)} to {format_us(interval.high)}"


def _times(speedup: Interval) -> str:
    low, high = f"{speedup.low:.2f}", f"{speedup.high:.2f}"
    return f"{high} times" if low == high else f"{low} to {high} times"


def _together(shown: Sequence[Finding], wall_us: float) -> tuple[str, ...]:
    """What all of these are worth at most: they cannot save the same time twice."""
    us = math.fsum(finding.added_gain_us.high for finding in shown if finding.added_gain_us is not None)
    if len(shown) < 2 or not us > 0 or not wall_us > 0:
        return ()
    return (f"Together at most {format_us(us)}, {format_share(us / wall_us)} of the step.",)


def _remark(finding: Finding) -> Remedy:
    """A finding without a predicted gain, in one sentence, and the command that would tell."""
    reason = f" (no gain predicted: {finding.gain_reason})" if finding.gain_reason else ""
    lead = f"{finding.title}: {finding.advice.rstrip('.')}{reason} [{finding.slug}]"
    return Remedy(lead, command=finding.verify)


def _more(gains: Sequence[Finding], remarks: Sequence[Finding]) -> tuple[str, ...]:
    parts = [f"{len(gains)} more with smaller gains"] if gains else []
    parts += [f"{len(remarks)} more remark{'s' if len(remarks) > 1 else ''}"] if remarks else []
    return (f"{' and '.join(parts)} with --all-findings.",) if parts else ()


def _hidden(hidden: Sequence[Finding]) -> tuple[str, ...]:
    """How many the noise hides, and how little they would save."""
    if not hidden:
        return ()
    most_us = max(finding.predicted_gain_us.high for finding in hidden if finding.predicted_gain_us is not None)
    who = "1 finding is" if len(hidden) == 1 else f"{len(hidden)} findings are"
    return (
        f"{who} not shown: at most {format_us(most_us)} per step, less than these step times could show; see "
        "--all-findings.",
    )
