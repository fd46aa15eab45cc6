"""Interval arithmetic: unions, covered time, gaps, shared time and overlap, all on sorted boundaries.

Times are microseconds as float64 arrays. Nothing here knows of kernels or threads.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.integer]  # of any width: narrow ones sort faster and take less memory


def tally(codes: Codes, weights: Floats, size: int) -> Floats:
    """Sum of the weights of each code in 0 … size - 1."""
    return np.bincount(codes, weights=weights, minlength=size).astype(np.float64)


def grouped(codes: Codes) -> Iterator[tuple[int, Integers]]:
    """Yields each distinct code with its positions, in order.

    It takes one sort, however many codes there are.
    """
    order = np.argsort(codes, kind="stable")
    if order.size:
        for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
            yield int(codes[rows[0]]), rows


_LARGEST_CODE = 2**31
# Distinct values that a hash table has room for at first. pandas would make room for a value per row, 40 bytes each.
FEW = 2**16


def numbered(*keys: Codes) -> tuple[Integers, Integers]:
    """Numbers the distinct combinations of codes, in sorted order.

    The second array is the first row of each combination.

    Codes are at least -1. Hashing beats the sort of ``np.unique`` where many rows hold few combinations.
    """
    number = first = np.zeros(keys[0].size, dtype=np.int64)
    for key in keys:
        if key.max(initial=-1) > _LARGEST_CODE:
            key = pd.factorize(key, sort=True)[0]  # noqa: PLW2901 - as codes that combine within 64 bits
        number *= int(key.max(initial=-1)) + 2
        number += key
        number += 1
        code, distinct = pd.factorize(number, size_hint=FEW)
        order = np.argsort(distinct)
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        number = place[code]
        np.maximum.accumulate(code, out=code)
        first = np.flatnonzero(np.append(code.size > 0, code[1:] > code[:-1])[: code.size])[order]
    return number, first


Arrays = TypeVar("Arrays", bound=Struct)


def some_rows(arrays: Arrays, rows: Flags | Integers | slice) -> Arrays:
    """A record of arrays of one length, with some of their rows."""
    return type(arrays)(*(getattr(arrays, name)[rows] for name in arrays.__struct_fields__))


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Records of arrays, one behind the other."""
    return type(parts[0])(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in parts[0].__struct_fields__)
    )


class Spans(Struct, frozen=True):
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
        clipped = np.maximum(span, 0)
        inside = before[clipped] + np.clip(points - self.start[clipped], 0.0, length[clipped])
        return np.where(span < 0, 0.0, inside)

    def covered_between(self, start: Floats, end: Floats) -> Floats:
        """Time covered by the spans in each [start, end)."""
        return np.maximum(self.covered_until(end) - self.covered_until(start), 0.0)

    def hold(self, points: Floats) -> Flags:
        """Mask of the points that lie in one of the spans."""
        span = np.searchsorted(self.start, points, side="right") - 1
        return np.asarray((span >= 0) & (points < np.append(self.end, -np.inf)[span]))

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


def hold_on_tracks(track: Codes, start: Floats, end: Floats, at_track: Codes, at: Floats) -> Flags:
    """Marks the instants that lie in an interval of the same track."""
    held = np.zeros(at.size, dtype=bool)
    asked = dict(grouped(at_track)) if track.size else {}
    for code, mine in grouped(track):
        rows = asked.get(code)
        if rows is not None:
            held[rows] = union(start[mine], end[mine]).hold(at[rows])
    return held


def join(one: Spans, other: Spans) -> Spans:
    """The union of two sets of spans; ``first`` counts within one, then other."""
    if not one.start.size or not other.start.size:
        return one if one.start.size else other
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def gaps(spans: Spans, low: float, high: float) -> tuple[Floats, Floats, Integers]:
    """Returns starts and ends of the gaps between spans in [low, high).

    The third array is the span that ends each gap, -1 where none does.
    """
    starts = np.concatenate(([low], spans.end))
    ends = np.concatenate((spans.start, [high]))
    following = np.concatenate((np.arange(spans.start.size), [-1]))
    open_ = ends > starts
    return starts[open_], ends[open_], following[open_]


def shared_charge(start: Floats, end: Floats, layer: Integers) -> Floats:
    """Returns the exclusive time of each interval.

    An instant belongs to the lowest layer active, in equal parts to its members.

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


# Two instants closer than this are one: the clock counts whole nanoseconds.
RESOLUTION_US = 5e-4


# So many times as many instants as stretches are looked up by the stretches.
_MANY_TIMES = 4


class Segments(Struct, frozen=True):
    """Disjoint, sorted stretches of positive length with the row that holds each."""

    start: Floats
    end: Floats
    row: Integers

    def at(self, times: Floats) -> Integers:
        """The row that holds each instant, -1 for none."""
        if not self.start.size:
            return np.full(times.shape, -1, dtype=np.int64)
        if times.size > _MANY_TIMES * self.start.size and bool((times[1:] >= times[:-1]).all()):
            return self._at_sorted(times)
        span = np.searchsorted(self.start, times, side="right") - 1
        held = (span >= 0) & (times < self.end[np.maximum(span, 0)])
        return np.where(held, self.row[span], -1)

    def _at_sorted(self, times: Floats) -> Integers:
        """Returns the row that holds each instant, for sorted instants.

        It looks up where each stretch begins and ends among them.
        """
        low, high = np.searchsorted(times, self.start), np.searchsorted(times, self.end)
        count = high - low
        rows = np.full(times.shape, -1, dtype=np.int64)
        place = np.repeat(low - np.cumsum(count) + count, count)
        place += np.arange(place.size)
        rows[place] = np.repeat(self.row, count)
        return rows


NOTHING = Segments(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))


# Intervals that are looked at together: millions of them are not held several times over.
_AT_ONCE = 2**18


def outermost(start: Floats, end: Floats, row: Integers, chosen: Integers | None = None) -> Segments:
    """Gives each instant to the open interval that began first.

    The longest of equals gets it. Of all intervals, or of those at the positions ``chosen``.
    """
    chosen = np.arange(start.size) if chosen is None else chosen
    bounds = range(0, chosen.size, _AT_ONCE)
    if not all(_are_sorted(start[some], end[some]) for some in (chosen[low : low + _AT_ONCE + 1] for low in bounds)):
        chosen = chosen[longest_first(start[chosen], end[chosen])]
    parts, reach = [NOTHING], -np.inf
    for some in (chosen[low : low + _AT_ONCE] for low in bounds):
        ends = end[some]
        begin = np.maximum(np.maximum.accumulate(np.append(reach, ends[:-1])), start[some])
        visible = np.flatnonzero(ends > begin)
        parts.append(Segments(begin[visible], ends[visible], row[some[visible]]))
        reach = max(reach, float(ends.max()))
    return joined(parts)


def longest_first(start: Floats | Integers, end: Floats | Integers) -> Integers:
    """Orders intervals by start, the longest of equal starts first.

    Equal intervals stay as they are. Events come in order of time, so that only those that begin at once are left to
    sort.
    """
    order = np.argsort(start, kind="stable")
    starts = start[order]
    same = np.zeros(order.size + 1, dtype=bool)
    np.equal(starts[1:], starts[:-1], out=same[1:-1])
    tied = np.flatnonzero(same[1:] | same[:-1])
    some = order[tied]
    order[tied] = some[np.lexsort((-end[some], starts[tied]))]
    return order


def by_track(track: Codes, start: Floats | Integers, *ties: Floats | Integers) -> Integers:
    """Orders intervals by track, then start, then the ``ties``.

    The first tie counts before the others. Equal intervals stay as they are.

    Times come nearly in order, and tracks are few, so that only those that begin at once are left to sort: a third of
    the time of ``np.lexsort``.
    """
    order = np.argsort(start, kind="stable")
    order = order[np.argsort(narrow(track)[order], kind="stable")]
    tracks, starts = track[order], start[order]
    same = np.zeros(order.size + 1, dtype=bool)
    np.logical_and(starts[1:] == starts[:-1], tracks[1:] == tracks[:-1], out=same[1:-1])
    tied = np.flatnonzero(same[1:] | same[:-1])
    some = order[tied]
    order[tied] = some[np.lexsort((*(tie[some] for tie in ties[::-1]), starts[tied], tracks[tied]))]
    return order


def narrow(codes: Codes) -> Codes:
    """Narrows numbers from -1 on to 16 bits where they fit.

    NumPy sorts those by radix, in linear time.
    """
    return codes.astype(np.int16, copy=False) if codes.max(initial=0) < 2**15 else codes


def _are_sorted(start: Floats, end: Floats) -> bool:
    is_after = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] <= end[:-1]))
    return bool(is_after.all())


def innermost(mine: Integers, start: Floats, end: Floats, parent: Integers, times: Floats) -> Integers:
    """Returns the innermost nested interval that is open at each time.

    -1 where none is open, and at an unknown time.

    ``mine`` are the rows that may be open, in order of their starts; ``parent`` is the row around each, -1: none.
    """
    row = np.append(-1, mine)[np.searchsorted(start[mine], times, side="right")]
    row[np.isnan(times)] = -1
    while (closed := (row >= 0) & (np.append(end, np.inf)[row] <= times)).any():
        row = np.where(closed, np.append(parent, -1)[row], row)
    return row


class Cuts(Struct, frozen=True):
    """Pieces of intervals, each with its interval, start and end."""

    interval: Integers
    start: Floats
    end: Floats


def cut(start: Floats, end: Floats, points: Sequence[Floats]) -> Cuts:
    """Cuts intervals at every point inside them.

    The pieces of each interval add up to it. O((n + points) log points).
    """
    inner = np.rint(np.concatenate([np.zeros(0), *points]) * 1e3)
    # The points come in order, one sequence after another: a sort that merges them takes a sixth of np.unique's time.
    inner.sort(kind="stable")
    inner = inner[np.append(inner.size > 0, inner[1:] != inner[:-1])[: inner.size]] / 1e3
    low = np.searchsorted(inner, start + RESOLUTION_US, side="left")
    count = np.maximum(np.searchsorted(inner, end - RESOLUTION_US, side="right") - low, 0) + 1
    interval = np.repeat(np.arange(start.size), count)
    first = np.cumsum(count) - count
    nth = np.arange(interval.size) - first[interval]
    inner = np.append(inner, np.nan)
    begin = np.where(nth == 0, start[interval], inner[low[interval] + nth - 1])
    finish = np.where(nth == count[interval] - 1, end[interval], inner[np.minimum(low[interval] + nth, inner.size - 1)])
    return Cuts(interval, begin, finish)


def shared_us(kernels: pd.DataFrame) -> Floats:
    """Returns microseconds that each row of KERNELS shares its device with others.

    At least one more row runs then. O(n log n).
    """
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
