"""How much of each kernel's time other work runs on the same device: it then has only a part of the device."""

import numpy as np
import pandas as pd

from bottleneck.analysis.timeline import Flags, Floats, Spans, grouped


def shared_us(kernels: pd.DataFrame) -> Floats:
    """Microseconds of each row of KERNELS during which at least one more row runs on its device. O(n log n)."""
    start = kernels["ts_us"].to_numpy()
    end = start + kernels["dur_us"].to_numpy()
    shared = np.zeros(len(kernels))
    for _, rows in grouped(kernels["device"].to_numpy().astype(np.int64)):
        shared[rows] = _crowded(start[rows], end[rows]).covered_between(start[rows], end[rows])
    return shared


def _crowded(start: Floats, end: Floats) -> Spans:
    """When at least two of the intervals are open."""
    times = np.concatenate((start, end))
    # Stable, ends first: intervals that touch do not overlap.
    order = np.lexsort((np.repeat([1, 0], start.size), times))
    running = np.cumsum(np.where(order < start.size, 1, -1))
    crowded: Flags = running[:-1] >= 2
    opened, closed = times[order][:-1][crowded], times[order][1:][crowded]
    long = closed > opened
    return Spans(opened[long], closed[long], np.zeros(np.count_nonzero(long), dtype=np.int64))
