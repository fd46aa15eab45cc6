"""When each rank reached each collective, on one clock: the evidence for who waits for whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bottleneck.analysis.timeline import Flags, Floats, Integers
from bottleneck.tracing import Linked

# Profilers start and stop at slightly different collectives on each rank.
_MOST_SHIFT = 3
_LEAST_OVERLAP = 0.5


@dataclass(frozen=True)
class Arrivals:
    """Starts and ends of the collectives that all ranks took part in: rows are ranks, columns collectives.

    In microseconds on the first rank's clock. ``inside`` tells which lie in the window of each rank, ``rows`` where
    they stand in its KERNELS; ``clock_us`` is by how much the ends had to be shifted to coincide, after the wall clocks
    were applied.
    """

    start: Floats
    end: Floats
    inside: Flags
    rows: Integers
    clock_us: Floats

    @property
    def late_us(self) -> Floats:
        """How much later than the first rank each one starts each collective."""
        return np.asarray(self.start - self.start.min(axis=0, keepdims=True))

    @property
    def waits_us(self) -> Floats:
        """How long each rank is in each collective before the last one starts it."""
        return np.asarray(self.start.max(axis=0, keepdims=True) - self.start)


@dataclass(frozen=True)
class _Track:
    """Collectives of one rank by name: starts, ends, whether they lie in the window, and rows in KERNELS."""

    by_name: Mapping[str, tuple[Floats, Floats, Flags, Integers]]
    has_wall_clock: bool


def match_collectives(ranks: Sequence[Linked]) -> Arrivals | None:
    """The collectives that occur on all ranks, matched by name and order; null when none can be matched.

    The i-th collective of a name on one rank is the i-th on the others, but for a few missing at either end: among
    the shifts that could explain those, the one whose ends coincide best is taken. No rank leaves a collective before
    the last one has entered it, so the ends also say how far the clocks are apart, and are made to coincide.
    """
    origin = min((linked.trace.start_unix_ns or 0 for linked in ranks), default=0)
    tracks = [_track(linked, origin, len(ranks)) for linked in ranks]
    names = sorted(set.intersection(*(set(track.by_name) for track in tracks))) if tracks else []
    columns = [column for name in names if (column := _aligned(tracks, name)) is not None]
    if not columns:
        return None
    start, end, inside, rows = (np.concatenate([column[part] for column in columns], axis=1) for part in range(4))
    clock_us = np.median(end - end[:1], axis=1)
    return Arrivals(start - clock_us[:, None], end - clock_us[:, None], inside > 0, rows.astype(np.int64), clock_us)


def _track(linked: Linked, origin_ns: int, ranks: int) -> _Track:
    kernels, unix_ns = linked.kernels, linked.trace.start_unix_ns
    rows = np.flatnonzero((kernels["kind"] == "collective").to_numpy() & _of_all_ranks(linked, ranks))
    start = kernels["ts_us"].to_numpy()[rows]
    end = start + kernels["dur_us"].to_numpy()[rows]
    inside = (end > linked.window.start_us) & (start < linked.window.end_us)
    clock_us = 0.0 if unix_ns is None else (unix_ns - origin_ns) / 1e3
    labels, codes = kernels["name"].cat.categories, kernels["name"].cat.codes.to_numpy()[rows]
    order = np.argsort(start, kind="stable")
    by_name = {}
    for code in np.unique(codes).tolist():
        mine = order[codes[order] == code]
        by_name[str(labels[code])] = start[mine] + clock_us, end[mine] + clock_us, inside[mine], rows[mine]
    return _Track(by_name, unix_ns is not None)


def _of_all_ranks(linked: Linked, ranks: int) -> Flags:
    """False for collectives among another number of ranks than are looked at, where the trace tells."""
    device_args, kernels = linked.trace.device_args, linked.kernels
    size = device_args.set_index("event")["group_size"].reindex(kernels["event"]).to_numpy(np.float64, na_value=np.nan)
    return np.asarray(np.isnan(size) | (size == ranks))


def _aligned(tracks: Sequence[_Track], name: str) -> tuple[Floats, ...] | None:
    """Starts, ends, window flags and rows in KERNELS of one name, by rank, for the collectives that all ranks have."""
    reference = max(tracks, key=lambda track: track.by_name[name][0].size)
    count = reference.by_name[name][0].size
    cells = np.full((4, len(tracks), count), np.nan)
    for row, track in enumerate(tracks):
        clocks = track.has_wall_clock and reference.has_wall_clock
        shift = _best_shift(track.by_name[name][1], reference.by_name[name][1], clocks)
        if shift is None:
            return None
        size = min(track.by_name[name][0].size, count - shift)
        skip = max(-shift, 0)
        for part, values in enumerate(track.by_name[name]):
            cells[part, row, shift + skip : shift + size] = values[skip:size]
    everywhere = ~np.isnan(cells[0]).any(axis=0)
    return tuple(cells[:, :, everywhere]) if everywhere.any() else None


def _best_shift(end: Floats, reference: Floats, clocks: bool) -> int | None:
    """By how many collectives the rank begins after the reference, by the ends; null when too few could coincide.

    Without wall clocks the ends say nothing, and only equal counts are believed.
    """
    if not clocks:
        return 0 if end.size == reference.size else None
    missing = reference.size - end.size
    distance = {}
    for shift in range(-_MOST_SHIFT, missing + _MOST_SHIFT + 1):
        low, high = max(shift, 0), min(shift + end.size, reference.size)
        if high - low >= max(_LEAST_OVERLAP * reference.size, 1):
            distance[shift] = float(np.median(np.abs(reference[low:high] - end[low - shift : high - shift])))
    return min(distance, key=lambda shift: (distance[shift], abs(shift)), default=None)
