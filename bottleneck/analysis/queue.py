"""Queue depth of a device over time.

It is launches issued less launches done. Idle time with an empty queue means a slow host.
"""

import numpy as np
from msgspec import Struct

from bottleneck.schema.analysis import Queue
from bottleneck.schema.intervals import Floats, Integers, gaps, grouped, union
from bottleneck.schema.linked_trace import Linked

MOST_POINTS = 400
_POINTS_PER_PART = 4  # first, last, lowest, highest


class _Depth(Struct, frozen=True):
    """The depth from each instant on, until the next.

    The first instant is the window's start, the last its end.
    """

    at: Floats
    depth: Integers

    def empty_between(self, start: Floats, end: Floats) -> Floats:
        """Time in each interval in which nothing was queued."""
        empty = np.concatenate(([0.0], np.cumsum(np.diff(self.at) * (self.depth[:-1] <= 0))))
        return np.asarray(np.interp(end, self.at, empty) - np.interp(start, self.at, empty))


def measure_queue(linked: Linked, devices: tuple[int, ...]) -> Queue | None:
    """Measures queue depth in the window.

    Null where no launches are linked or there is no device.

    Work is issued when its launch call returns, or when it starts, if that is earlier. A launch is done when its last
    kernel ends. Of several devices the shares are taken over all of them, and the curve is that of the one with most
    launches. Idle time before work whose launch is not on record proves nothing and is left out of the share.
    """
    measured = []
    for device in devices:
        rows = np.flatnonzero(linked.kernels["device"].to_numpy() == device)
        issued, done = _launches(linked, rows)
        if issued.size:
            depth = _depth(issued, done, linked.window.wall_us)
            measured.append((issued.size, depth, _idle(linked, rows, depth)))
    if not measured or not linked.window.wall_us > 0:
        return None
    _, depth, _ = max(measured, key=lambda entry: entry[0])
    idle_us, empty_us = (sum(entry[2][part] for entry in measured) for part in (0, 1))
    return Queue(
        empty_idle_share=min(empty_us / idle_us, 1.0) if idle_us > 0 else None,
        median_depth=_median(depth),
        highest_depth=int(depth.depth.max()),
        curve=_thinned(depth),
    )


def _launches(linked: Linked, rows: Integers) -> tuple[Floats, Floats]:
    """Gives the times at which launches were issued and done.

    They are those of some device work, in us from the window's start, also outside of it.

    A graph is one launch of many kernels.
    """
    kernels, origin = linked.kernels, linked.window.start_us
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    start = kernels["ts_us"].to_numpy()[rows] - origin
    end = start + kernels["dur_us"].to_numpy()[rows]
    called = kernels["launch_end_us"].to_numpy()[rows] - origin
    _, of_launch = np.unique(launch, return_inverse=True)
    count = int(of_launch.max(initial=-1)) + 1
    issued, done = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(issued, of_launch, np.minimum(called, start))
    np.maximum.at(done, of_launch, end)
    return issued, done


def _depth(issued: Floats, done: Floats, wall_us: float) -> _Depth:
    """The steps of the depth inside the window."""
    times = np.rint(np.concatenate((issued, done)) * 1e3) / 1e3
    change = np.repeat([1, -1], issued.size)
    at, which = np.unique(np.clip(times, 0.0, wall_us), return_inverse=True)
    # What is issued or done outside the window counts at its edge; only the depth at the very end is that of all.
    depth = np.cumsum(np.bincount(which, weights=change, minlength=at.size).astype(np.int64))
    at, depth = np.concatenate(([0.0], at)), np.concatenate(([0], depth))
    if at[-1] < wall_us:
        at, depth = np.append(at, wall_us), np.append(depth, depth[-1])
    depth[-1] = depth[-2] if depth.size > 1 else 0
    keep = np.concatenate((np.diff(at) > 0, [True]))
    return _Depth(at[keep], depth[keep])


def _idle(linked: Linked, rows: Integers, depth: _Depth) -> tuple[float, float]:
    """Gives idle time of a device, and that with nothing queued.

    Only idle time that ends with work whose launch is known counts.
    """
    kernels, wall_us = linked.kernels, linked.window.wall_us
    start = np.rint((kernels["ts_us"].to_numpy()[rows] - linked.window.start_us) * 1e3) / 1e3
    end = start + np.rint(kernels["dur_us"].to_numpy()[rows] * 1e3) / 1e3
    busy = union(np.clip(start, 0.0, wall_us), np.clip(end, 0.0, wall_us))
    opened, closed, following = gaps(busy, 0.0, wall_us)
    is_linked = np.append(kernels["launch"].notna().to_numpy()[rows][busy.first], True)[following]
    opened, closed = opened[is_linked], closed[is_linked]
    return float(np.sum(closed - opened)), float(np.sum(depth.empty_between(opened, closed)))


def _median(depth: _Depth) -> float:
    """The depth that is not exceeded half of the time."""
    length = np.diff(depth.at)
    order = np.argsort(depth.depth[:-1], kind="stable")
    passed = np.cumsum(length[order])
    return float(depth.depth[:-1][order][np.searchsorted(passed, passed[-1] / 2)])


def marked_rows(values: Integers | Floats) -> Integers:
    """Picks at most MOST_POINTS points of a curve.

    They are the first and last, the lowest and highest of each part of it.
    """
    points = np.arange(values.size)
    if values.size <= MOST_POINTS:
        return points
    part = points * (MOST_POINTS // _POINTS_PER_PART) // values.size
    return np.unique([row for _, rows in grouped(part) for row in _marks(rows, values)])


def _thinned(depth: _Depth) -> tuple[tuple[float, float], ...]:
    points = marked_rows(depth.depth)
    return tuple(zip(depth.at[points].tolist(), depth.depth[points].astype(np.float64).tolist(), strict=True))


def _marks(rows: Integers, depth: Integers | Floats) -> tuple[int, ...]:
    values = depth[rows]
    return int(rows[0]), int(rows[-1]), int(rows[values.argmin()]), int(rows[values.argmax()])
