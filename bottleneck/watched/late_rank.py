"""Finds the rank that the others wait for.

It says in which steps, and in which phase the rank loses its time. In its backward pass a rank waits for the others
too, so that its own work is the rest of its step.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bottleneck.schema.watch_log import PHASES, Phase
from bottleneck.schema.watched import LateRank
from bottleneck.watched.read_log import WatchedRank
from bottleneck.watched.turning_point import first_beyond

Floats = npt.NDArray[np.float64]
_OWN: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase != "backward")
# A rank is late whose own work takes so much more than that of the quickest, and so much of a step.
_LATE, _LEAST_OF_STEP = 1.05, 0.05
# The run is looked at in so many parts. In a stretch each part in which the rank is not late counts against so many.
_PARTS, _WEIGHT_OF_OTHERS, _LEAST_PARTS = 40, 2.0, 2


def find_late(ranks: Sequence[WatchedRank]) -> LateRank | None:
    """Gives the rank that costs the others most.

    Null where none is late.
    """
    if len(ranks) < 2:
        return None
    end = min(int(rank.records["first"][-1] + rank.records["count"][-1]) for rank in ranks)
    edges = np.unique(np.linspace(1, end, _PARTS + 1).astype(np.int64))
    if edges.size < 2:
        return None
    own_us = {phase: np.array([_medians(rank, f"{phase}_us", edges) for rank in ranks]) for phase in _OWN}
    step_us = np.array([_medians(rank, "us", edges) for rank in ranks])
    work_us = sum(own_us.values(), np.zeros_like(step_us))
    stretches = [_stretch(position, work_us, step_us) for position in range(len(ranks))]
    costs_us = [0.0 if one is None else _beyond_us(position, one, work_us) for position, one in enumerate(stretches)]
    late = int(np.argmax(costs_us))
    stretch = stretches[late]
    if stretch is None:
        return None
    quickest = _quickest_other(late, stretch, work_us)
    beyond_us = {phase: float(np.nansum(us[late, stretch] - us[quickest, stretch])) for phase, us in own_us.items()}
    limit_us = float(np.nanmean(work_us[[late, quickest], stretch]))
    return LateRank(
        rank=ranks[late].header.rank,
        first=_first_late(ranks[late], edges, stretch.start, limit_us),
        last=int(edges[stretch.stop]) - 1,
        own_us=float(np.nanmean(work_us[late, stretch])),
        others_us=float(np.nanmean(work_us[quickest, stretch])),
        phase=max(_OWN, key=lambda phase: beyond_us[phase]),
        is_from_start=stretch.start == 0,
        is_to_end=stretch.stop == edges.size - 1,
    )


def _first_late(rank: WatchedRank, edges: npt.NDArray[np.int64], start: int, limit_us: float) -> int:
    """The step from which on the rank is late.

    It lies in the part where that begins, or in the one before.
    """
    if start == 0:
        return int(edges[0])
    records = rank.records
    begin, end = np.searchsorted(records["first"], (edges[start - 1], edges[start + 1]))
    work_us = sum((records[f"{phase}_us"] / records["count"] for phase in _OWN), np.zeros(records.size))[begin:end]
    return int(records["first"][begin + first_beyond(work_us, limit_us)]) if work_us.size else int(edges[start])


def _medians(rank: WatchedRank, name: str, edges: npt.NDArray[np.int64]) -> Floats:
    """The median of a field per step, in each part of the run.

    Not a number where no step was timed.
    """
    records = rank.records
    values = records[name] / records["count"]
    places = np.searchsorted(records["first"], edges)
    parts = itertools.pairwise(places)
    return np.array([np.median(values[start:stop]) if stop > start else np.nan for start, stop in parts])


def _stretch(position: int, work_us: Floats, step_us: Floats) -> slice | None:
    """The longest stretch of parts in which this rank is late.

    Null where there is none.
    """
    quickest_us = np.delete(work_us, position, axis=0).min(axis=0)
    mine_us = work_us[position]
    is_late = (mine_us > _LATE * quickest_us) & (mine_us - quickest_us > _LEAST_OF_STEP * step_us[position])
    # The stretch with the largest sum.
    sums = np.concatenate(([0.0], np.where(is_late, 1.0, -_WEIGHT_OF_OTHERS).cumsum()))
    gains = sums - np.minimum.accumulate(sums)
    stop = int(np.argmax(gains))
    start = int(np.argmin(sums[: stop + 1]))
    return slice(start, stop) if gains[stop] >= min(_LEAST_PARTS, is_late.size) else None


def _quickest_other(position: int, stretch: slice, work_us: Floats) -> int:
    means_us = np.nanmean(work_us[:, stretch], axis=1)
    means_us[position] = np.inf
    return int(np.argmin(means_us))


def _beyond_us(position: int, stretch: slice, work_us: Floats) -> float:
    quickest = _quickest_other(position, stretch, work_us)
    return float(np.nansum(work_us[position, stretch] - work_us[quickest, stretch]))
