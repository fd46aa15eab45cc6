"""Interval nesting on tracks: the enclosing interval of each event, and the interval that runs at an instant."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_LONGEST_NS = 4e18  # two of them still add up within int64


def to_ns(us: Floats) -> Ints:
    """Microseconds as whole nanoseconds, the resolution of every profiler's clock.

    In floating point 434.706 + 4.124 may end a hair after 438.83, which would turn a child into a partial overlap.
    """
    return np.rint(np.clip(us * 1e3, -_LONGEST_NS, _LONGEST_NS)).astype(np.int64)


@dataclass(frozen=True)
class Nest:
    """Intervals as trees, sorted by track, then start, then longer first; row i describes input ``order[i]``.

    ``end_ns`` is clipped to the end of the parent. ``parent`` is a row of this nest, -1 at a root; ``self_ns`` is the
    length less that of the children.
    """

    order: Ints
    track: Ints
    start_ns: Ints
    end_ns: Ints
    parent: Ints
    depth: Ints
    children: Ints
    self_ns: Ints

    def innermost(self, track: Ints, at_ns: Ints) -> Ints:
        """Row of the innermost interval that is open at each instant on its track, -1 where none is.

        An interval is open from its start up to, not including, its end.
        """
        found = self._latest(track, at_ns)
        closed = np.flatnonzero((found >= 0) & (self.end_ns[found] <= at_ns)) if len(self.end_ns) else found[:0]
        while len(closed):
            found[closed] = self.parent[found[closed]]
            row = found[closed]
            closed = closed[(row >= 0) & (self.end_ns[row] <= at_ns[closed])]
        return found

    def _latest(self, track: Ints, at_ns: Ints) -> Ints:
        """Row of the last interval that started at or before each instant on its track, -1 where none did."""
        found = np.full(len(track), -1, dtype=np.int64)
        order = np.argsort(track, kind="stable")
        tracks, first = np.unique(track[order], return_index=True)
        low = np.searchsorted(self.track, tracks, side="left")
        high = np.searchsorted(self.track, tracks, side="right")
        for query, start, stop in zip(np.split(order, first[1:]), low, high, strict=False):
            row = start + np.searchsorted(self.start_ns[start:stop], at_ns[query], side="right") - 1
            found[query] = np.where(row >= start, row, -1)
        return found


def nest(track: Ints, start_ns: Ints, end_ns: Ints, tie: Ints | None = None) -> Nest:
    """The trees that intervals form on each track.

    An interval lies inside the latest earlier one that is still open when it starts; where it runs on past its
    parent's end it is cut there. Of two intervals with the same start and end the one with the lower ``tie`` is the
    outer one. Siblings never overlap, so the self times of a tree add up to the length of its root.
    """
    keys = (-end_ns, start_ns, track) if tie is None else (tie, -end_ns, start_ns, track)
    order = np.lexsort(keys).astype(np.int64)
    sorted_track, start = track[order], start_ns[order]
    parent, depth, end = _trees(sorted_track.tolist(), start.tolist(), end_ns[order].tolist())
    inside = np.flatnonzero(parent >= 0)
    children = np.bincount(parent[inside], minlength=len(order)).astype(np.int64)
    self_ns = end - start
    np.subtract.at(self_ns, parent[inside], (end - start)[inside])
    return Nest(order, sorted_track, start, end, parent, depth, children, self_ns)


def _trees(track: list[int], start: list[int], end: list[int]) -> tuple[Ints, Ints, Ints]:
    """Parent, depth, and end cut to the parent's, per interval; one pass with a stack of open intervals.

    A loop, because where intervals overlap each cut depends on the one before; plain integers make it fast enough.
    """
    parent = [-1] * len(start)
    depth = [0] * len(start)
    stack: list[int] = []
    current = None
    for row, begin in enumerate(start):
        if track[row] != current:
            current = track[row]
            stack.clear()
        while stack and end[stack[-1]] <= begin:
            stack.pop()
        if stack:
            outer = stack[-1]
            parent[row], depth[row] = outer, len(stack)
            if end[row] > end[outer]:  # noqa: PLR1730 - twice as fast as min() in the innermost loop of `link`
                end[row] = end[outer]
        stack.append(row)
    return np.asarray(parent, np.int64), np.asarray(depth, np.int64), np.asarray(end, np.int64)
