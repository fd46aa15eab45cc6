"""The floor of a comparison.

It is by how much the step times of two recordings of the same code may differ.

The spread of the steps within a recording does not tell it: a process keeps its memory layout and its machine its load,
so that steps of one process agree far better than two processes do.
"""

import math
from collections.abc import Mapping

from bottleneck.compare.sides import ComparedSide
from bottleneck.schema.analysis import DISTURBED_SLUGS
from bottleneck.schema.comparison import FloorBasis, TimeFloor
from bottleneck.schema.gate_result import TimeResult
from bottleneck.schema.measurements import Timing
from bottleneck.units import counted, format_share

# With fewer steps the range of their times does not predict the next recording.
FEWEST_STEPS = 3
# Recordings of examples on a CPU, one after the other (`python -m benchmarks.same_code`; accuracy of `run`).
SAME_CODE: Mapping[FloorBasis, float] = {"measured elsewhere": 0.1, "measured elsewhere, busy": 0.5}
# Assumed, not measured on a GPU: that kernels repeat within so much, however much the host's part of a step varies.
DEVICE_ROWS = 0.05


def find_floor(before: ComparedSide, after: ComparedSide, timed: TimeResult | None = None) -> TimeFloor | None:
    """Finds the floor of the difference.

    Null where a side has no times. ``timed`` are turns that both sides took.
    """
    old, new = before.step_us, after.step_us
    if old is None or new is None:
        return None
    if timed is not None and timed.ratio is not None:
        turns = timed.ratio
        return TimeFloor((turns.high - turns.low) / 2, "turns", turns.low <= 1 <= turns.high, turns)
    share, basis = _untimed(before, after)
    return TimeFloor(share, basis, abs(new - old) <= share * old)


def row_floor(before: ComparedSide, after: ComparedSide) -> float:
    """The same for a row, whose times come from one recording of each side."""
    is_on_host = any(side.analysis is not None and side.analysis.device.kind == "cpu" for side in (before, after))
    share, _ = _untimed(before, after)
    return share if is_on_host else min(share, DEVICE_ROWS)


def _untimed(before: ComparedSide, after: ComparedSide) -> tuple[float, FloorBasis]:
    """The largest difference that anything known of two recordings allows."""
    sides = (before, after)
    caveats = [caveat for side in sides if side.analysis is not None for caveat in side.analysis.caveats]
    is_busy = any(caveat.slug in DISTURBED_SLUGS for caveat in caveats)
    elsewhere: FloorBasis = "measured elsewhere, busy" if is_busy else "measured elsewhere"
    candidates: list[tuple[float, FloorBasis]] = [
        (SAME_CODE[elsewhere], elsewhere),
        (math.hypot(*map(_spread, sides)), "steps"),
        (max(map(_between_windows, sides)), "windows"),
    ]
    return max(candidates, key=lambda candidate: candidate[0])


def has_few_steps(side: ComparedSide) -> bool:
    """True if there are too few steps to tell their spread."""
    return _timing(side) is None


def _spread(side: ComparedSide) -> float:
    """Gives half of the interval of the median step, as a share.

    0 where there are too few steps.
    """
    timing = _timing(side)
    half = 0.0 if timing is None else (timing.high - timing.low) / 2 / timing.median
    return half if 0 <= half < math.inf else 0.0


def _timing(side: ComparedSide) -> Timing | None:
    """The steps behind the ledger: unprofiled ones where they were measured."""
    steps = None if side.analysis is None else side.analysis.steps
    timing = None if steps is None else steps.unprofiled_us or steps.profiled_us
    if timing is None or timing.n < FEWEST_STEPS or not 0 < timing.median < math.inf:
        return None
    return timing


def _between_windows(side: ComparedSide) -> float:
    """Gives the difference between the two quickest windows of a recording.

    It is a share of the quickest. 0 where there are no two.
    """
    times = sorted(us for us in (() if side.analysis is None else side.analysis.steps.windows_us) if 0 < us < math.inf)
    return times[1] / times[0] - 1 if len(times) > 1 else 0.0


_BESIDES: Mapping[FloorBasis, str] = {
    "measured elsewhere": "",
    "measured elsewhere, busy": " beside other programs",
    "steps": ", by the spread of their steps",
    "windows": ", as the windows of one recording do here",
    "turns": "",
}


def floor_share(floor: TimeFloor) -> str:
    """Words the share of a step up to which a change may be noise."""
    return f"{floor.share * 100:.0f} %" if floor.basis in SAME_CODE else format_share(floor.share)


def describe_floor(floor: TimeFloor) -> str:
    """Describes the floor in words.

    'two recordings of the same code differ by up to about 10 %'. Of turns it tells what they show.
    """
    turns = floor.turns
    if turns is None:
        share = f"{'about ' if floor.basis in SAME_CODE else ''}{floor_share(floor)}"
        return f"two recordings of the same code differ by up to {share}{_BESIDES[floor.basis]}"
    return f"{counted(turns.n, 'pair')} of processes that took turns show {_change(turns.low)} to {_change(turns.high)}"


def _change(ratio: float) -> str:
    """'1.2 % less', '0.3 % more'."""
    return f"{format_share(abs(ratio - 1))} {'more' if ratio >= 1 else 'less'}"
