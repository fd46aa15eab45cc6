"""Whether a window has two sides, one where the device waits and one where it works, that no single verdict fits."""

from dataclasses import dataclass

import numpy as np

from bottleneck.analysis.timeline import Spans

# A side counts from this share of the window on; one must be idle, the other busy, beyond the second figure.
_SMALLEST_SIDE = 0.15
_ONE_SIDED = 0.8


@dataclass(frozen=True)
class TwoSided:
    """The moment that parts the window, as a share of it, and the share of each side in which the device was busy."""

    split: float
    busy_before: float
    busy_after: float


def find_sides(busy: Spans, wall_us: float) -> TwoSided | None:
    """The split with the greatest contrast between the busy shares of its sides; null when they are not opposites."""
    candidates = np.concatenate((busy.start, busy.end))
    candidates = candidates[(candidates >= _SMALLEST_SIDE * wall_us) & (candidates <= (1 - _SMALLEST_SIDE) * wall_us)]
    if not candidates.size:
        return None
    done = busy.covered_until(candidates)
    before, after = done / candidates, (busy.total() - done) / (wall_us - candidates)
    best = int(np.argmax(np.abs(before - after)))
    low, high = sorted((float(before[best]), float(after[best])))
    if low >= 1 - _ONE_SIDED or high <= _ONE_SIDED:
        return None
    return TwoSided(float(candidates[best] / wall_us), float(before[best]), float(after[best]))
