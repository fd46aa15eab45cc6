"""Draws the speedups of changes as intervals on one axis.

The reports of ``verify``, measured and predicted, begin with this picture.
"""

import math
from collections.abc import Iterable

from bottleneck.report.document import IntervalBar, Intervals
from bottleneck.report.line_chart import ChartScale, round_values, scale_with_room

TITLE = "How many times as fast"
# The axis holds these at least: else noise of a thousandth would fill the picture.
_LEAST, _MOST = 0.9, 1.1


def speedup_scale(bars: Iterable[IntervalBar]) -> ChartScale:
    """Makes the axis that holds all of these bars, and 1."""
    ends = [end for bar in bars for end in (bar.value, *(bar.measured or ()), *(bar.predicted or ())) if end]
    held = [end for end in ends if math.isfinite(end) and end > 0]
    return scale_with_room(min([*held, _LEAST]), max([*held, _MOST]))


def speedup_intervals(title: str, bars: Iterable[IntervalBar], scale: ChartScale) -> list[Intervals]:
    """Builds the picture of the bars that have an interval.

    Empty where none has.
    """
    drawn = tuple(bar for bar in bars if bar.measured or bar.predicted)
    ticks = tuple((value, f"{value:.3g}") for value in round_values(scale))
    return [Intervals(title, drawn, scale, ticks, TITLE)] if drawn else []
