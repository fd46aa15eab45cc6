"""Queue depth over the step: the proof that the host, or the device, is the one that waits; as a strip and in words."""

from collections.abc import Sequence

import numpy as np

from bottleneck.records import Analysis, Queue
from bottleneck.report.layout import Strip
from bottleneck.units import format_share, format_us

_CELLS = 200
_HOST_BOUND = 0.8  # of the idle time with an empty queue: launching sooner would have filled it


def queue_strip(analysis: Analysis) -> Strip | None:
    """The depth over the window, 0 to the highest; null where no launches are on record."""
    queue = analysis.queue
    if queue is None or len(queue.curve) < 2:
        return None
    length_us = queue.curve[-1][0] - queue.curve[0][0]
    words = f"from 0 to {queue.highest_depth} launches over {format_us(length_us)}; {queue_words(queue)}"
    return Strip("Queue depth: launches issued, kernels not yet done", mean_depths(queue.curve, _CELLS), words)


def queue_words(queue: Queue) -> str:
    """What the depth of the queue proves."""
    typical = f"the median depth is {queue.median_depth:.0f}"
    if queue.empty_idle_share is None:
        return typical
    empty = f"{typical}, and the queue was empty in {format_share(queue.empty_idle_share)} of the device's idle time"
    return f"{empty}: the host does not keep up" if queue.empty_idle_share >= _HOST_BOUND else empty


def mean_depths(curve: Sequence[tuple[float, float]], cells: int) -> tuple[float, ...]:
    """Mean depth in this many equal parts of the curve, which holds each depth until the next point."""
    at, depth = (np.array(column, dtype=np.float64) for column in zip(*curve, strict=True))
    edges = np.linspace(at[0], at[-1], cells + 1)
    area = np.concatenate(([0.0], np.cumsum(depth[:-1] * np.diff(at))))
    width = (at[-1] - at[0]) / cells
    if width <= 0:
        return ()
    return tuple((np.diff(np.interp(edges, at, area)) / width).tolist())
