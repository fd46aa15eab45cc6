"""Combines the analyses of several ranks: who waits for whom, from the arrival of each rank at each collective."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bottleneck.analysis.collectives import message_of, messages_of, paces, quickest_of, repaced, with_transfer
from bottleneck.analysis.verdict import find_bound, grounds_of
from bottleneck.schema.accounts import phrase_of
from bottleneck.schema.analysis import ONE_RANK, Caveat, CollectiveSummary, RankSummary, StepAnalysis
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.measurements import StepTimes
from bottleneck.units import format_share, format_us

if TYPE_CHECKING:
    from bottleneck.schema.digest import Message

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
        """Delay of each rank at each collective after the first rank that starts it."""
        return np.asarray(self.start - self.start.min(axis=0, keepdims=True))

    @property
    def waits_us(self) -> Floats:
        """Time that each rank is in each collective before the last one starts it."""
        return np.asarray(self.start.max(axis=0, keepdims=True) - self.start)


@dataclass(frozen=True)
class _RankCollectives:
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


def _track(linked: Linked, origin_ns: int, ranks: int) -> _RankCollectives:
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
    return _RankCollectives(by_name, unix_ns is not None)


def _of_all_ranks(linked: Linked, ranks: int) -> Flags:
    """False for collectives among another number of ranks than are looked at, where the trace tells."""
    device_args, kernels = linked.trace.device_args, linked.kernels
    size = device_args.set_index("event")["group_size"].reindex(kernels["event"]).to_numpy(np.float64, na_value=np.nan)
    return np.asarray(np.isnan(size) | (size == ranks))


def _aligned(tracks: Sequence[_RankCollectives], name: str) -> tuple[Floats, ...] | None:
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
    """Number of collectives by which the rank begins after the reference; null when too few ends could coincide.

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


# A rank is called a straggler when the others wait for it this part of their step.
_STRAGGLING = 0.05
# Between hosts, clocks kept by NTP agree to about this.
_CLOCKS_AGREE_US = 1000.0


@dataclass(frozen=True)
class _Straggler:
    """The rank that the others wait for (position among the ranks), and for how long per step on average."""

    position: int
    waited_us: float


def combine_ranks(ranks: Sequence[Evidence], path: str | None = None) -> Evidence:
    """The evidence of all ranks: that of the rank which sets the pace, with a summary of each; one rank stays as it is.

    Every rank waits for the last one, so an average over ranks would describe none of them. The pace is set by the
    straggler, the rank that starts collectives last; without one, by the rank with the longest step. ``path`` is that
    of the whole job, where it has one; otherwise the path of that rank is kept.
    """
    if len(ranks) == 1:
        return ranks[0]
    ordered = sorted(ranks, key=lambda one: (one.linked.trace.rank is None, one.linked.trace.rank or 0))
    arrivals = match_collectives([one.linked for one in ordered])
    straggler = _find_straggler(ordered, arrivals)
    walls = [one.analysis.steps.wall_us for one in ordered]
    position = straggler.position if straggler else int(np.argmax(walls))
    body = ordered[position]
    numbers = _numbers(ordered)
    analysis = replace(
        body.analysis,
        recording=replace(body.analysis.recording, path=path or body.analysis.recording.path, world_size=len(ordered)),
        ranks=_summaries(ordered, numbers, arrivals),
        collectives=_collectives(ordered, position, arrivals),
        caveats=(
            *(caveat for caveat in body.analysis.caveats if caveat.slug != ONE_RANK),
            *_caveats(ordered, numbers, arrivals),
        ),
    )
    sentence = None if straggler is None else _sentence(straggler, numbers, body.analysis)
    return replace(body, analysis=analysis, straggler=sentence)


def _numbers(ordered: Sequence[Evidence]) -> list[int]:
    """Rank numbers as the traces tell them; positions where they do not, or not uniquely."""
    found = [one.linked.trace.rank for one in ordered]
    known = [rank for rank in found if rank is not None]
    return known if len(set(known)) == len(ordered) else list(range(len(ordered)))


def _find_straggler(ordered: Sequence[Evidence], arrivals: Arrivals | None) -> _Straggler | None:
    """The rank that is last on average, when the others wait for it a good part of their step; else null."""
    if arrivals is None or len(ordered) < 2:
        return None
    position = int(np.argmax(_late_us(arrivals)))
    last = arrivals.start.argmax(axis=0) == position
    others = [row for row in range(len(ordered)) if row != position]
    waits = [
        float(arrivals.waits_us[row, last & arrivals.inside[row]].sum()) / ordered[row].analysis.steps.count
        for row in others
    ]
    walls = [ordered[row].analysis.steps.wall_us for row in others]
    waited_us = float(np.mean(waits))
    return _Straggler(position, waited_us) if waited_us >= _STRAGGLING * float(np.mean(walls)) else None


def _late_us(arrivals: Arrivals) -> list[float]:
    """Mean lateness of each rank over the collectives in its window."""
    return [
        float(late[inside].mean()) if inside.any() else 0.0
        for late, inside in zip(arrivals.late_us, arrivals.inside, strict=True)
    ]


def _sentence(straggler: _Straggler, numbers: Sequence[int], body: StepAnalysis) -> str:
    late = numbers[straggler.position]
    waiting = [number for number in numbers if number != late]
    others = (entry for entry in body.ledger if entry.group != "communication")
    own = max(others, key=lambda entry: entry.us, default=None)
    ranks = f"Rank {waiting[0]} waits" if len(waiting) == 1 else f"Ranks {_listed(waiting)} wait"
    words = f"; the largest part of its own step is {phrase_of(own.account)} ({format_share(own.share)})" if own else ""
    return f"{ranks} in collectives {format_us(straggler.waited_us)} per step for rank {late}{words}."


def _listed(numbers: Sequence[int]) -> str:
    """'0, 1 and 3'; beyond eight the count of the rest."""
    if len(numbers) > 8:
        return f"{', '.join(str(number) for number in numbers[:6])} and {len(numbers) - 6} more"
    return f"{', '.join(str(number) for number in numbers[:-1])} and {numbers[-1]}"


def _collectives(
    ordered: Sequence[Evidence], position: int, arrivals: Arrivals | None
) -> tuple[CollectiveSummary, ...]:
    """The collectives of one rank beside the quickest calls of all ranks.

    Where no call of one size was quickest, the rank that came last to a call tells: it waited for nobody.
    """
    mine = ordered[position]
    quickest = quickest_of([paces(one.linked) for one in ordered])
    found = repaced(mine.analysis.collectives, quickest)
    if arrivals is None:
        return found
    inside = arrivals.inside[position]
    messages = messages_of(mine.linked, arrivals.rows[position][inside])
    dur = (arrivals.end - arrivals.start)[:, inside]
    spent: dict[Message, list[float]] = {}
    for message, own, least in zip(messages, dur[position].tolist(), dur.min(axis=0).tolist(), strict=True):
        sums = spent.setdefault(message, [0.0, 0.0])
        sums[0], sums[1] = sums[0] + own, sums[1] + least
    return tuple(
        with_transfer(one, spent_us[1] / spent_us[0])
        if one.transfer_us is None and (spent_us := spent.get(message_of(one))) and spent_us[0] > 0
        else one
        for one in found
    )


def _summaries(
    ordered: Sequence[Evidence], numbers: Sequence[int], arrivals: Arrivals | None
) -> tuple[RankSummary, ...]:
    late: list[float | None] = [None] * len(ordered)
    if arrivals is not None:
        late = list(_late_us(arrivals))
    return tuple(
        RankSummary(
            rank=number,
            path=one.analysis.recording.path,
            wall_us=one.analysis.steps.wall_us,
            ledger=one.analysis.ledger,
            skew_us=late_us,
            verdict=find_bound(grounds_of(one)).bound,
        )
        for one, number, late_us in zip(ordered, numbers, late, strict=True)
    )


def _chosen(steps: StepTimes) -> str:
    """The steps that a rank explains, spelt as ``--steps`` takes them."""
    kept = [number for number, step in enumerate(steps.each) if step.set_aside is None]
    return f"{kept[0]}:{kept[-1] + 1}" if kept else "0:0"


def _caveats(ordered: Sequence[Evidence], numbers: Sequence[int], arrivals: Arrivals | None) -> tuple[Caveat, ...]:
    caveats = []
    world = max((one.linked.trace.world_size or 0 for one in ordered), default=0)
    if world > len(ordered):
        caveats.append(Caveat("missing-ranks", f"{len(ordered)} of {world} ranks were given: {_listed(numbers)}"))
    if numbers != [one.linked.trace.rank for one in ordered]:
        caveats.append(
            Caveat("unnumbered-ranks", "the traces do not tell their ranks apart; they are counted as given")
        )
    chosen = [_chosen(one.analysis.steps) for one in ordered]
    if len(set(chosen)) > 1:
        found = ", ".join(f"rank {number} {steps}" for number, steps in list(zip(numbers, chosen, strict=True))[:8])
        message = f"the ranks do not explain the same steps ({found}); --steps A:B takes the same of all"
        caveats.append(Caveat("other-steps", message))
    if arrivals is None:
        caveats.append(
            Caveat("unmatched-ranks", "no collective could be matched across the ranks: lateness is unknown")
        )
    elif float(np.ptp(arrivals.clock_us)) > _CLOCKS_AGREE_US:
        apart = format_us(float(np.ptp(arrivals.clock_us)))
        caveats.append(
            Caveat("rank-clocks", f"the ranks' clocks are {apart} apart; the ends of collectives align them")
        )
    return tuple(caveats)
