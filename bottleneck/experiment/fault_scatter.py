"""Tells how much of the scatter of step times is page faults.

On a CPU: glibc gives freed memory back to the system and takes it anew, more of it in some steps than in others. Steps
that allocate tensors above 128 KiB then scatter by percents where nothing else runs.
Source: `python -m benchmarks.patches --same 1 --of examples/transformer.py`, with and without ``KEEPS_MEMORY``.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bottleneck.system.heap import KEEPS_MEMORY

_LEAST_TURNS, _LEAST_SHARE = 20, 0.3


@dataclass(frozen=True)
class TimedTurn:
    """Typical step of a turn in microseconds, with its page faults."""

    us: float
    page_faults: float


def describe_fault_scatter(sides: Sequence[Sequence[TimedTurn]]) -> str | None:
    """Words the share of the scatter that page faults explain, with a remedy.

    It is the squared correlation over the turns of all sides, each from its side's mean. Null where it is below 30 %,
    where steps with more faults are no slower, or of fewer than twenty turns.
    """
    turns = [turn for side in sides for turn in side]
    if len(turns) < _LEAST_TURNS:
        return None
    us = [away for side in sides for away in _from_mean([turn.us for turn in side])]
    faults = [away for side in sides for away in _from_mean([turn.page_faults for turn in side])]
    correlation = statistics.correlation(us, faults) if any(us) and any(faults) else 0.0
    if correlation < math.sqrt(_LEAST_SHARE):
        return None
    low, high = (pick(turn.page_faults for turn in turns) for pick in (min, max))
    return (
        f"{100 * correlation**2:.0f} % of the scatter is that of page faults ({low:,.0f} to {high:,.0f} in a step): "
        f"{KEEPS_MEMORY} (glibc) for both sides would show smaller changes, but none of page faults"
    )


def _from_mean(values: Sequence[float]) -> list[float]:
    return [value - statistics.fmean(values) for value in values]
