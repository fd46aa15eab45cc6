"""Which of the steps found are steady: first ones that still warm up and outliers are set aside, with the reason."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bottleneck.trace.nesting import Floats

# Of fewer steps than this none can be called unusual; but see _COLD.
_STEPS_TO_JUDGE = 4
# A first step counts as warming up when it takes this many times the median of the later ones, and stands out of
# their scatter: 3.5 standard deviations, estimated by 1.4826 median absolute deviations (Iglewicz and Hoaglin 1993).
_WARMING_UP = 1.2
_SCATTER = 3.5 * 1.4826
# Two later steps tell no scatter, so there the first must take this many times the longer of them.
_COLD = 2.0
_OUTLIER = 2.0
# More outliers than this are the program's own rhythm, such as an evaluation every few steps.
_RARE = 0.2


def judge(us: Sequence[float]) -> list[str | None]:
    """Why each step, given by how long it took, is set aside; null for those that count, which lie in one stretch.

    First steps are set aside while they stand out of the later half, then steps that took twice the median of what
    is left, and beside those whatever is not in the longest stretch without one (of equals the last).
    """
    times = np.asarray(us, dtype=np.float64)
    cold, usual_us = _warming_up(times)
    reasons: list[str | None] = [
        f"still warming up: {time / usual_us:.3g} times the median of the later steps" for time in times[:cold].tolist()
    ]
    return reasons + _judge_warm(times[cold:])


def _warming_up(times: Floats) -> tuple[int, float]:
    """How many first steps are not yet like the later ones, and the median of the later ones."""
    count = len(times)
    if count < _STEPS_TO_JUDGE - 1:
        return 0, np.nan
    later = times[-max(_STEPS_TO_JUDGE - 1, (count + 1) // 2) :] if count >= _STEPS_TO_JUDGE else times[1:]
    usual_us = float(np.median(later))
    if count >= _STEPS_TO_JUDGE:
        highest_us = max(_WARMING_UP * usual_us, usual_us + _SCATTER * float(np.median(np.abs(later - usual_us))))
    else:
        highest_us = _COLD * float(later.max())
    usual = times[: count - len(later)] <= highest_us
    return int(np.argmax(usual)) if usual.any() else len(usual), usual_us


def _judge_warm(times: Floats) -> list[str | None]:
    """The same for steps that are warm."""
    usual_us = float(np.median(times)) if len(times) else 0.0
    outliers = np.flatnonzero(times > _OUTLIER * usual_us)
    if len(times) < _STEPS_TO_JUDGE or not len(outliers) or len(outliers) > max(_RARE * len(times), 1):
        return [None] * len(times)
    bounds = pairwise([-1, *outliers.tolist(), len(times)])
    first, end = max(((low + 1, high) for low, high in bounds), key=lambda run: (run[1] - run[0], run[0]))
    reasons: list[str | None] = ["cut off from the longest steady stretch by an outlier"] * len(times)
    reasons[first:end] = [None] * (end - first)
    for row in outliers.tolist():
        reasons[row] = f"an outlier: {times[row] / usual_us:.3g} times the median"
    return reasons
