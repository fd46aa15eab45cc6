"""Interval arithmetic of the ledger: unions, covered time, gaps and shared charges, all on sorted boundaries.

Times are microseconds as float64 arrays. Nothing here knows of kernels or threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def tally(codes: Integers, weights: Floats, size: int) -> Floats:
    """Sum of the weights of each code in 0 … size - 1."""
    return np.bincount(codes, weights=weights, minlength=size).astype(np.float64)


def grouped(codes: Integers) -> Iterator[tuple[int, Integers]]:
    """Each distinct code with the positions that hold it, in order; one sort, however many codes there are."""
    order = np.argsort(codes, kind="stable")
    if order.size:
        for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            yield int(codes[rows[0]]), rows


@dataclass(frozen=True)
class Spans:
    """Disjoint, sorted intervals of positive length; ``first`` is the input row that opens each."""

    start: Floats
    end: Floats
    first: Integers

    def covered_until(self, points: Floats) -> Floats:
        """Time covered by the spans up to each point."""
        if not self.start.size:
            return np.zeros(points.shape)
        length = self.end - self.start
        before = np.concatenate(([0.0], np.cumsum(length)[:-1]))
        span = np.searchsorted(self.start, points, side="right") - 1
        known = np.maximum(span, 0)
        inside = before[known] + np.clip(points - self.start[known], 0.0, length[known])
        return np.where(span < 0, 0.0, inside)

    def covered_between(self, start: Floats, end: Floats) -> Floats:
        """Time covered by the spans in each [start, end)."""
        return np.maximum(self.covered_until(end) - self.covered_until(start), 0.0)

    def total(self) -> float:
        """Time covered by all spans."""
        return float(np.sum(self.end - self.start))


def union(start: Floats, end: Floats) -> Spans:
    """The union of intervals; those without length are dropped, those that touch are joined."""
    rows = np.flatnonzero(end > start)
    order = rows[np.argsort(start[rows], kind="stable")]
    if not order.size:
        return Spans(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
    starts, reach = start[order], np.maximum.accumulate(end[order])
    fresh = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((fresh[1:], [True]))
    return Spans(starts[fresh], reach[last], order[fresh])


def join(one: Spans, other: Spans) -> Spans:
    """The union of two sets of spans; ``first`` counts within one, then other."""
    if not one.start.size or not other.start.size:
        return one if one.start.size else other
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def gaps(spans: Spans, low: float, high: float) -> tuple[Floats, Floats, Integers]:
    """Starts and ends of what the spans leave open in [low, high), and the span that ends each (-1: none does)."""
    starts = np.concatenate(([low], spans.end))
    ends = np.concatenate((spans.start, [high]))
    following = np.concatenate((np.arange(spans.start.size), [-1]))
    open_ = ends > starts
    return starts[open_], ends[open_], following[open_]


def shared_charge(start: Floats, end: Floats, layer: Integers) -> Floats:
    """Exclusive time of each interval: an instant belongs to the lowest layer active, in equal parts to its members.

    The charge is the integral of 1/n(t) over the interval, n counting the active intervals of the lowest layer that is
    active at all, so the charges add up to the union. O(n log n).
    """
    count = start.size
    if not count:
        return np.zeros(0)
    times = np.concatenate((start, end))
    # Stable: at one instant starts come before ends, so no count ever drops below zero.
    order = np.argsort(times, kind="stable")
    elapsed = np.diff(times[order])
    sign = np.where(order < count, 1, -1)
    layers = np.concatenate((layer, layer))[order]
    charge = np.zeros(count)
    free = np.ones(elapsed.size, dtype=bool)
    position = np.empty(2 * count, dtype=np.int64)
    position[order] = np.arange(2 * count)
    for level in np.unique(layer):
        active = np.cumsum(np.where(layers == level, sign, 0))[:-1]
        mine = free & (active > 0)
        rate = np.divide(1.0, active, out=np.zeros(elapsed.size), where=mine)
        integral = np.concatenate(([0.0], np.cumsum(elapsed * rate)))
        members = np.flatnonzero(layer == level)
        charge[members] = integral[position[members + count]] - integral[position[members]]
        free &= active <= 0
    return charge
