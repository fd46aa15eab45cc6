"""What two recordings can tell apart, by the spread of the steps of each."""

import math
from dataclasses import dataclass

from bottleneck.comparing.sides import Compared
from bottleneck.measured import Timing

# Below this many steps the range of their times says little of the next recording.
FEWEST_STEPS = 3
# Taken for the spread of a recording whose steps tell none: times of kernels repeat within a few percent.
UNTOLD_SPREAD = 0.05


@dataclass(frozen=True)
class Noise:
    """``share``: by how much of a time the two differ anyhow; ``is_known`` unless a side has too few steps to tell.

    ``is_within`` tells whether the change of the step is no more than that; null where it is not known. ``row_share``
    is that of a row: kernels of a device repeat within a few percent, however much the host's part of a step varies.
    """

    share: float
    is_known: bool
    is_within: bool | None
    row_share: float = UNTOLD_SPREAD


def find_noise(before: Compared, after: Compared) -> Noise:
    """Noise of a difference: the spreads of both medians, taken as independent (root of the sum of squares)."""
    spreads = [_spread(side) for side in (before, after)]
    known = [spread for spread in spreads if spread is not None]
    share = math.hypot(*(UNTOLD_SPREAD if spread is None else spread for spread in spreads))
    is_known = len(known) == len(spreads)
    old, new = before.step_us, after.step_us
    is_on_host = any(side.told is not None and side.told.device.kind == "cpu" for side in (before, after))
    row_share = share if is_on_host else min(share, UNTOLD_SPREAD)
    if not is_known or old is None or new is None:
        return Noise(share, is_known, None, row_share)
    return Noise(share, True, abs(new - old) <= share * max(old, new), row_share)


def _spread(side: Compared) -> float | None:
    """Half of the interval of the median step as a share of it; null where there are too few steps."""
    timing = timing_of(side)
    if timing is None or timing.n < FEWEST_STEPS or not 0 < timing.median < math.inf:
        return None
    half = (timing.high - timing.low) / 2 / timing.median
    return half if 0 <= half < math.inf else None


def timing_of(side: Compared) -> Timing | None:
    """The step times behind the ledger: unprofiled ones where they were measured."""
    if side.told is None:
        return None
    return side.told.steps.unprofiled_us or side.told.steps.profiled_us
