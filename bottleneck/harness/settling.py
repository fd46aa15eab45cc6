"""Whether step times have settled: whether they still show a trend, whatever their scatter."""

import statistics
from collections.abc import Sequence

from bottleneck.harness.stopwatch import summarise_durations
from bottleneck.units import format_us

# With fewer steps, halves say nothing.
STEPS_FOR_TREND = 6

_RECENT = 4
_ALIKE = 1.1
_BLOCK = 10
# The steps that were judged, and so are settled ones themselves: by the first rule, and by the second.
CALM_STEPS, STEADY_STEPS = _RECENT, 2 * _BLOCK
_STEADY = 1.05


def has_settled(durations_us: Sequence[float]) -> bool:
    """True when the last four steps lie within 10 %, or the medians of the last ten and the ten before within 5 %.

    The first rule suits calm steps, the second those that scatter without a trend: steps of two kinds in turns, or a
    machine that others use.
    """
    recent = durations_us[-_RECENT:]
    if len(recent) == _RECENT and max(recent) <= _ALIKE * min(recent):
        return True
    if len(durations_us) < 2 * _BLOCK:
        return False
    late, early = (statistics.median(part) for part in (durations_us[-_BLOCK:], durations_us[-2 * _BLOCK : -_BLOCK]))
    return max(late, early) <= _STEADY * min(late, early)


def find_trend(durations_us: Sequence[float]) -> str | None:
    """Says that the second half of the steps differs from the first beyond chance and by over 10 %; null if not.

    Beyond chance: the intervals of the two medians do not touch.
    """
    half = len(durations_us) // 2
    early, late = summarise_durations(durations_us[:half]), summarise_durations(durations_us[half:])
    if len(durations_us) < STEPS_FOR_TREND or early is None or late is None:
        return None
    apart = early.low > late.high or late.low > early.high
    if not apart or max(early.median, late.median) <= _ALIKE * min(early.median, late.median):
        return None
    return f"{format_us(early.median)} in the first half, {format_us(late.median)} in the second"
