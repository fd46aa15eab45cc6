"""Nests intervals on tracks.

Finds the enclosing interval of each event, and the interval that runs at an instant.
"""

from itertools import pairwise

import numpy as np
from msgspec import Struct

from bottleneck.schema.intervals import Codes, Floats, Integers, by_track, narrow

_LONGEST_NS = 4e18  # two of them still add up within int64


def to_ns(us: Floats) -> Integers:
    """Microseconds as whole nanoseconds, the resolution of every profiler's clock.

    In floating point 434.706 + 4.124 may end a hair after 438.83, which would turn a child into a partial overlap.
    """
    return np.rint(np.clip(us * 1e3, -_LONGEST_NS, _LONGEST_NS)).astype(np.int64)


class Nest(Struct, frozen=True):
    """Intervals as trees, sorted by track, then start, then longer first.

    Row i describes input ``order[i]``. ``end_ns`` is clipped to the end of the parent. ``parent`` is a row of this
    nest, -1 at a root; ``self_ns`` is the length less that of the children.
    """

    order: Integers
    track: Codes
    start_ns: Integers
    end_ns: Integers
    parent: Integers
    depth: Codes
    children: Codes
    self_ns: Integers

    def innermost(self, track: Codes, at_ns: Integers) -> Integers:
        """Finds the innermost interval open at each instant on its track.

        Gives its row, -1 where none is open. An interval is open from its start up to, not including, its end.
        """
        innermost = self._latest(track, at_ns)
        closed = (
            np.flatnonzero((innermost >= 0) & (self.end_ns[innermost] <= at_ns)) if len(self.end_ns) else innermost[:0]
        )
        while len(closed):
            innermost[closed] = self.parent[innermost[closed]]
            row = innermost[closed]
            closed = closed[(row >= 0) & (self.end_ns[row] <= at_ns[closed])]
        return innermost

    def _latest(self, track: Codes, at_ns: Integers) -> Integers:
        """Finds the last interval that started by each instant on its track.

        One that starts at the instant counts. Gives its row, -1 where none started.
        """
        latest = np.full(len(track), -1, dtype=np.int64)
        if not len(self.track):
            return latest
        order = np.argsort(narrow(track), kind="stable")
        tracks = track[order]
        first = np.flatnonzero(np.append(tracks.size > 0, tracks[1:] != tracks[:-1])[: tracks.size])
        tracks = tracks[first]
        low = np.searchsorted(self.track, tracks, side="left")
        high = np.searchsorted(self.track, tracks, side="right")
        for query, start, stop in zip(np.split(order, first[1:]), low, high, strict=False):
            row = start + np.searchsorted(self.start_ns[start:stop], at_ns[query], side="right") - 1
            latest[query] = np.where(row >= start, row, -1)
        return latest


def nest(track: Integers, start_ns: Integers, end_ns: Integers, tie: Integers | None = None) -> Nest:
    """The trees that intervals form on each track.

    An interval lies inside the latest earlier one that is still open when it starts; where it runs on past its
    parent's end it is cut there. Of two intervals with the same start and end the one with the lower ``tie`` is the
    outer one. Siblings never overlap, so the self times of a tree add up to the length of its root.
    """
    order = by_track(track, start_ns, -end_ns, *(() if tie is None else (tie,))).astype(np.int64, copy=False)
    sorted_track, start = narrow(track)[order], start_ns[order]
    parent, depth, end = _trees(sorted_track, start, end_ns[order])
    inside = np.flatnonzero(parent >= 0)
    around = parent[inside]
    children = np.bincount(around, minlength=len(order)).astype(np.int32)
    self_ns = end - start
    np.subtract.at(self_ns, around, self_ns[inside])
    return Nest(order, sorted_track, start, end, parent, depth, children, self_ns)


def _trees(track: Codes, start: Integers, end: Integers) -> tuple[Integers, Codes, Integers]:
    """Parent, depth, and end cut to the parent's, per interval.

    Where no interval runs on past the one around it, the depth is the number of intervals that are open, and the parent
    the latest one of the depth above. Trees in which one does are worked out one interval after the other.
    """
    depth = _open_at_start(track, start, end)
    parent = _latest_above(depth)
    inside = np.flatnonzero(parent >= 0)
    around = parent[inside]
    unsound = inside[(track[around] != track[inside]) | (end[around] <= start[inside]) | (end[around] < end[inside])]
    if unsound.size:
        roots = np.append(np.flatnonzero(depth == 0), len(start))
        end = end.copy()
        for tree in np.unique(np.searchsorted(roots, unsound, side="right") - 1).tolist():
            low, high = roots[tree], roots[tree + 1]
            rows = slice(low, high)
            above, depth[rows], end[rows] = _overlapping(start[rows].tolist(), end[rows].tolist())
            parent[rows] = np.where(above >= 0, above + low, -1)
    return parent, depth, end


def _open_at_start(track: Codes, start: Integers, end: Integers) -> Codes:
    """Number of earlier intervals of its track that are open when each begins."""
    rows = np.arange(len(start))
    ended = np.empty(len(start), dtype=np.int64)
    bounds = np.append(np.flatnonzero(np.diff(track, prepend=track[:1] - 1)), len(track)).tolist()
    for low, high in pairwise(bounds):
        ended[low:high] = low + np.searchsorted(np.sort(end[low:high], kind="stable"), start[low:high], side="right")
    # Intervals without length have ended when they begin, so they count themselves and those that follow.
    empty = np.flatnonzero(end <= start)
    if empty.size:
        is_first = (np.diff(start, prepend=start[:1] - 1) != 0) | (np.diff(track, prepend=track[:1] - 1) != 0)
        group = np.cumsum(is_first) - 1
        up_to = np.append(0, np.cumsum(end <= start))
        last = np.append(np.flatnonzero(is_first)[1:], len(start))[group]
        ended -= up_to[last] - up_to[:-1]
    return (rows - ended).astype(np.int32)


def _latest_above(depth: Codes) -> Integers:
    """Finds the last earlier row of the depth above each row's.

    -1 for depth 0.
    """
    parent = np.full(len(depth), -1, dtype=np.int64)
    order = np.argsort(narrow(depth), kind="stable")
    levels = np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)
    for above, rows in pairwise(levels):
        parent[rows] = above[np.searchsorted(above, rows) - 1]
    return parent


def _overlapping(start: list[int], end: list[int]) -> tuple[Integers, Integers, Integers]:
    """Gives parent, depth and cut end of intervals that overlap.

    They form a tree. Ends are cut to the parent's, and each cut depends on the last.
    """
    parent = [-1] * len(start)
    depth = [0] * len(start)
    stack: list[int] = []
    for row, begin in enumerate(start):
        while stack and end[stack[-1]] <= begin:
            stack.pop()
        if stack:
            outer = stack[-1]
            parent[row], depth[row] = outer, len(stack)
            if end[row] > end[outer]:  # noqa: PLR1730 - twice as fast as min() in an innermost loop
                end[row] = end[outer]
        stack.append(row)
    return np.asarray(parent, np.int64), np.asarray(depth, np.int64), np.asarray(end, np.int64)
