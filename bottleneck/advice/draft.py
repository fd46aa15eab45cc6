"""What a rule gives back: a finding before it is ranked, with the parts of the step that its gain comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bottleneck.records import Confidence, Interval


@dataclass(frozen=True)
class Draft:
    """A finding as its rule knows it; ranking adds speedup, what it adds to others, and whether noise would hide it.

    ``gain_us`` is the time saved per step if nothing else changes, null where only a measurement can tell, which
    ``gain_reason`` then says; a remark without any gain to be had has no ``gain_us`` either. ``claims`` are the
    accounts of the ledger, or "kernel:NAME" for the time of one kernel row, that the gain comes from, in microseconds
    per step at most: two findings that claim the same time do not add up. Empty claims mean the whole step.
    """

    slug: str
    title: str
    evidence: tuple[str, ...]
    advice: str
    gain_us: Interval | None
    claims: Mapping[str, float] = field(default_factory=dict)
    code: str | None = None
    gain_reason: str | None = None
    tries: tuple[str, ...] = ()
    confidence: Confidence = "medium"


def up_to(us: float) -> Interval:
    """The interval for a gain of at most so much: from half of it, until a rule has a record (advice_rules)."""
    return Interval(us / 2, us)
