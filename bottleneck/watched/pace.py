"""Finds steps of a watched run that take far longer than its others.

A step is noted as slow beside those before it. A run that is slow from its start, or for most of it, has none of these.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from bottleneck.schema.watch_log import PHASES, Phase
from bottleneck.watched.causes import AWAY_US
from bottleneck.watched.read_log import Floats, WatchedRank
from bottleneck.watched.turning_point import first_beyond

# Steps of slow stretches take so many times as long as the others. A run that grows all along has more than so much of
# its steps in the middle between the two.
_FAR, _MOST_BETWEEN = 2.0, 0.1
# The run is looked at in so many parts at most, and each part beside so many neighbours. Fewer steps are no stretch.
_MOST_PARTS, _NEIGHBOURS, _LEAST_STEPS = 400, 8, 8
# Told where they take so much of the run, and where steps noted as slow do not already explain so much of that.
_LEAST_SHARE, _MOST = 0.03, 0.5
_PHASE_FIELDS: dict[Phase, str] = {phase: f"{phase}_us" for phase in PHASES}
_Flags = npt.NDArray[np.bool_]


class SlowStretches(Struct, frozen=True):
    """Stretches of slow steps, each from its first step to its last.

    Where ``is_scattered``, the slow steps lie here and there between the first and last of one stretch.

    ``step_us`` and ``other_us`` are medians of a step, ``beyond_us`` the time of all slow ones beyond the other's mean.
    ``computed_share`` is the part of the slow steps, waits for data left out, in which their thread had a processor.
    ``is_starved`` is true where the system took the processor away for most of what they lost. ``start_s`` and
    ``end_s`` are the longest stretch, since the run's first step.
    """

    stretches: tuple[tuple[int, int], ...]
    steps: int
    step_us: float
    other_steps: int
    other_us: float
    beyond_us: float
    phase: Phase
    computed_share: float
    is_starved: bool
    start_s: float
    end_s: float
    is_scattered: bool = False

    @property
    def is_most(self) -> bool:
        """True where most steps are slow.

        The others may then do less than a usual step.
        """
        return self.steps > self.other_steps


def find_slow_stretches(rank: WatchedRank) -> SlowStretches | None:
    """Gives the slow stretches, or scattered steps that lacked a processor.

    Null for any other run.
    """
    is_slow = _far_slower(rank.step_us)
    stretches = None if is_slow is None else _beside_others(rank, is_slow)
    if stretches is not None:
        return stretches
    is_noted = np.isin(rank.records["first"], [one.step for one in rank.slow])
    scattered = _beside_others(rank, ~is_noted & (rank.step_us > _FAR * rank.usual_us))
    if scattered is None or not scattered.is_starved:
        return None
    return msgspec.structs.replace(
        scattered,
        stretches=((scattered.stretches[0][0], scattered.stretches[-1][1]),),
        start_s=0.0,
        end_s=float(rank.records["end_s"][-1]),
        is_scattered=True,
    )


def _beside_others(rank: WatchedRank, is_slow: _Flags) -> SlowStretches | None:
    """Compares slow steps with the others.

    Null where they are few, hardly slower, or noted as slow for the most.
    """
    records, values = rank.records, rank.step_us
    if is_slow.all() or not is_slow.any():
        return None
    slow, others = records[is_slow], records[~is_slow]
    step_us, other_us = float(np.median(values[is_slow])), float(np.median(values[~is_slow]))
    steps, other_steps = int(slow["count"].sum()), int(others["count"].sum())
    if min(steps, other_steps) < _LEAST_STEPS or step_us < _FAR * other_us:
        return None
    rises = {name: _mean(slow, name) - _mean(others, name) for name in ("us", "cpu_us", *_PHASE_FIELDS.values())}
    beyond_us = rises["us"] * steps
    places = list(_runs(is_slow))
    stretches = tuple(
        (int(records["first"][start]), int(records["first"][end - 1] + records["count"][end - 1] - 1))
        for start, end in places
    )
    noted_us = sum(
        (one.us - one.usual_us for one in rank.slow if any(first <= one.step <= last for first, last in stretches)), 0.0
    )
    if beyond_us < _LEAST_SHARE * rank.total_us or noted_us >= _MOST * beyond_us:
        return None
    away_us = (_mean(slow, "switches") - _mean(others, "switches")) * AWAY_US
    idle_us = rises["us"] - rises["data_us"] - rises["cpu_us"]
    worked_us = _mean(slow, "us") - _mean(slow, "data_us")
    start, end = max(places, key=lambda place: records["us"][place[0] : place[1]].sum())
    return SlowStretches(
        stretches,
        steps,
        step_us,
        other_steps,
        other_us,
        beyond_us,
        max(PHASES, key=lambda phase: rises[_PHASE_FIELDS[phase]]),
        min(_mean(slow, "cpu_us") / worked_us, 1.0) if worked_us > 0 else 1.0,
        min(idle_us, away_us) >= _MOST * rises["us"],
        float(records["end_s"][start] - records["us"][start] / 1e6),
        float(records["end_s"][end - 1]),
    )


def _mean(records: npt.NDArray[np.void], name: str) -> float:
    """The mean of a field per step."""
    return float(records[name].sum(dtype=np.float64) / records["count"].sum())


def _far_slower(values: Floats) -> _Flags | None:
    """Marks the records of slow stretches.

    Null for a run of one pace, one that grows all along, and one that is too short.
    """
    if values.size < 2 * _LEAST_STEPS:
        return None
    size = max(1, values.size // _MOST_PARTS)
    logs = np.log(np.maximum(values, 1e-9))
    parts = logs[: values.size // size * size].reshape(-1, size)
    levels = _among_neighbours(np.median(parts, axis=1))
    limit = _limit_between(levels)
    if limit is None:
        return None
    is_slow = np.zeros(values.size, dtype=np.bool_)
    reach = size * _NEIGHBOURS // 2
    for start, end in _runs(levels > limit):
        first = 0 if start == 0 else _edge(logs, start * size, reach, limit)
        left_out = 0 if end == levels.size else _edge(logs[::-1], values.size - end * size, reach, limit)
        is_slow[first : values.size - left_out] = True
    return is_slow


def _among_neighbours(parts: Floats) -> Floats:
    """The median of each part and its neighbours.

    Their number is even, so that steps that are long in turns have one level.
    """
    half = _NEIGHBOURS // 2
    padded = np.concatenate((np.full(half, np.median(parts[:half])), parts, np.full(half, np.median(parts[-half:]))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _NEIGHBOURS)[: parts.size]
    return np.asarray(np.median(windows, axis=1), dtype=np.float64)


def _limit_between(levels: Floats) -> float | None:
    """The middle between two groups of levels.

    Null where they do not lie far apart.
    """
    ordered = np.sort(levels)
    sums, squares = ordered.cumsum(), (ordered**2).cumsum()
    counts = np.arange(1, ordered.size)
    below = squares[:-1] - sums[:-1] ** 2 / counts
    above = squares[-1] - squares[:-1] - (sums[-1] - sums[:-1]) ** 2 / (ordered.size - counts)
    split = int(np.argmin(below + above)) + 1
    low, high = float(np.median(ordered[:split])), float(np.median(ordered[split:]))
    third = (high - low) / 3
    between = np.count_nonzero((ordered > low + third) & (ordered < high - third)) / ordered.size
    return (low + high) / 2 if high - low >= np.log(_FAR) and between <= _MOST_BETWEEN else None


def _edge(logs: Floats, near: int, reach: int, limit: float) -> int:
    """The record at which values begin to lie above the limit, near this place."""
    begin = max(near - reach, 0)
    return begin + first_beyond(logs[begin : near + reach], limit)


def _runs(flags: _Flags) -> Iterator[tuple[int, int]]:
    """The stretches of true values: where each starts, and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    yield from zip(map(int, edges[::2]), map(int, edges[1::2]), strict=True)
