"""The largest items of a long list, with numbers that re-add: those shown, the rest in one row, and the sum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from bottleneck.records import IdleCause, KernelSummary
from bottleneck.report.numbers import Scale, percents, scale_of

Item = TypeVar("Item", KernelSummary, IdleCause)


@dataclass(frozen=True)
class Top(Generic[Item]):
    """The largest items, and the numbers that they show: (time, share) for each, for the rest, and for the sum."""

    shown: Sequence[Item]
    hidden: int
    scale: Scale
    each: Sequence[tuple[str, str]]
    rest: tuple[str, str] | None
    total: tuple[str, str]


def top_of(items: Sequence[Item], top: int) -> Top[Item]:
    """The ``top`` items by time; a single one left over is shown too, since its row costs the same."""
    ordered = sorted((item for item in items if item.us > 0), key=lambda item: -item.us)
    cut = top if len(ordered) > top + 1 else len(ordered)
    shown, hidden = ordered[:cut], ordered[cut:]
    us, share = [item.us for item in shown], [item.share for item in shown]
    if hidden:
        us.append(math.fsum(item.us for item in hidden))
        share.append(math.fsum(item.share for item in hidden))
    scale = scale_of(math.fsum(us))
    numbers = list(zip(scale.column(us), percents(share), strict=True))
    rest = numbers[cut] if hidden else None
    return Top(shown, len(hidden), scale, numbers[:cut], rest, numbers[-1])
