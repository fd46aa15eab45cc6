"""Disjoint stretches that a row of some table holds each, and intervals cut at instants: what pieces are made of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bottleneck.analysis.timeline import Floats, Integers

# Two instants closer than this are one: the clock counts whole nanoseconds.
RESOLUTION_US = 5e-4


@dataclass(frozen=True)
class Segments:
    """Disjoint, sorted stretches of positive length with the row that holds each."""

    start: Floats
    end: Floats
    row: Integers

    def at(self, times: Floats) -> Integers:
        """The row that holds each instant, -1 for none."""
        if not self.start.size:
            return np.full(times.shape, -1, dtype=np.int64)
        found = np.searchsorted(self.start, times, side="right") - 1
        held = (found >= 0) & (times < self.end[np.maximum(found, 0)])
        return np.where(held, self.row[found], -1)


NOTHING = Segments(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))


def outermost(start: Floats, end: Floats, row: Integers) -> Segments:
    """Each instant to the interval that began first of those that are open; the longest of equals."""
    order = np.lexsort((-end, start))
    start, end, row = start[order], end[order], row[order]
    reach = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1])) if end.size else end
    begin = np.maximum(start, reach)
    kept = np.flatnonzero(end > begin)
    return Segments(begin[kept], end[kept], row[kept])


@dataclass(frozen=True)
class Cuts:
    """Pieces of intervals: the interval that each is part of, its start and its end."""

    interval: Integers
    start: Floats
    end: Floats


def cut(start: Floats, end: Floats, points: Sequence[Floats]) -> Cuts:
    """Intervals cut at every point inside them; the pieces of each add up to it. O((n + points) log points)."""
    inner = np.unique(np.rint(np.concatenate([np.zeros(0), *points]) * 1e3)) / 1e3
    low = np.searchsorted(inner, start + RESOLUTION_US, side="left")
    count = np.maximum(np.searchsorted(inner, end - RESOLUTION_US, side="right") - low, 0) + 1
    interval = np.repeat(np.arange(start.size), count)
    first = np.cumsum(count) - count
    nth = np.arange(interval.size) - first[interval]
    inner = np.append(inner, np.nan)
    begin = np.where(nth == 0, start[interval], inner[low[interval] + nth - 1])
    finish = np.where(nth == count[interval] - 1, end[interval], inner[np.minimum(low[interval] + nth, inner.size - 1)])
    return Cuts(interval, begin, finish)
