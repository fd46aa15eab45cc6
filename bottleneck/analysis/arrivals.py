"""Matches the collectives of several ranks, group by group, and aligns the clocks of the ranks by their ends.

The i-th collective of a kind and element type in a process group is the same call on all of its ranks, but for a few
missing where a recording begins or ends. No rank leaves a collective before the last one has entered it, so that the
ends say how far the clocks are apart. Only one group's calls are held at a time, and starts and ends of some of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bottleneck.schema.digest import CollectiveCalls, Message, RankDigest
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import ProcessGroup

# Profilers start and stop at slightly different collectives on each rank.
_MOST_SHIFT = 3
_LEAST_OVERLAP = 0.5
# Cells of one matrix of ranks x calls: 16 MB.
_MOST_CELLS = 2**21
SEND_RECV = "send_recv"

Label = tuple[str, str]


@dataclass(frozen=True)
class Group:
    """A process group: the positions of its ranks among the digests, and its position in the groups of each."""

    process_group: ProcessGroup
    members: tuple[int, ...]
    codes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Block:
    """Some calls of a group: rows are its ranks, columns calls; in microseconds on the clock of its first rank.

    ``inside`` tells which lie in the window of each rank, ``message`` is the call's in the messages of each rank.
    ``label`` is the position of each column's label, ``step`` that of the step of the first rank that it begins in.
    ``own_us`` is the time of each rank since it left the collective before, of whatever group.
    """

    start: Floats
    end: Floats
    own_us: Floats
    inside: Flags
    message: Integers
    label: Integers
    step: Integers

    @property
    def late_us(self) -> Floats:
        """Delay of each rank at each collective after the first rank that starts it."""
        return np.asarray(self.start - self.start.min(axis=0, keepdims=True))

    @property
    def waits_us(self) -> Floats:
        """Time that each rank is in each collective before the last one starts it."""
        return np.asarray(np.clip(self.start.max(axis=0, keepdims=True) - self.start, 0.0, self.end - self.start))


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The calls of a group that its ranks have in common.

    ``members`` are positions among the digests, of the ranks that could be matched; ``clock_us`` is by how much the
    ends of each had to be shifted to coincide with those of the first, after the wall clocks were applied.
    """

    group: ProcessGroup
    members: tuple[int, ...]
    labels: tuple[Label, ...]
    clock_us: Floats
    calls: tuple[CollectiveCalls, ...]
    own_us: tuple[Floats, ...]
    shift_us: Floats
    rows: tuple[Integers, ...]
    label: Integers
    step_start_us: Floats

    @property
    def size(self) -> int:
        """Calls that all of the ranks have."""
        return int(self.label.size)

    def blocks(self) -> Iterator[Block]:
        """The calls, as many at a time as fit in a bounded matrix."""
        width = max(1, _MOST_CELLS // len(self.members))
        for low in range(0, self.size, width):
            part = slice(low, low + width)
            start, end, inside, message = (
                np.stack([getattr(calls, name)[rows[part]] for calls, rows in zip(self.calls, self.rows, strict=True)])
                for name in ("start_us", "end_us", "is_inside", "message")
            )
            step = np.searchsorted(self.step_start_us, start[0], side="right") - 1
            shift = self.shift_us[:, None]
            own_us = np.stack([own[rows[part]] for own, rows in zip(self.own_us, self.rows, strict=True)])
            yield Block(start + shift, end + shift, own_us, inside, message, self.label[part], np.maximum(step, 0))


def find_groups(digests: Sequence[RankDigest]) -> list[Group]:
    """The process groups of a job, the largest first; calls of which the trace tells no group are of all ranks.

    Groups are the same on two ranks where name and ranks are. Of a name alone, without ranks, at most as many ranks may
    have it as the group has: otherwise several groups share it, which cannot be told apart.
    """
    found: dict[tuple[str, tuple[int, ...]], list[tuple[int, int, ProcessGroup]]] = {}
    for position, digest in enumerate(digests):
        known = {group.name: group for group in digest.process_groups}
        for code, name in enumerate(digest.calls.groups):
            group = known.get(name) or ProcessGroup(name, "", _size(digest.calls, code) or len(digests))
            found.setdefault((name, group.ranks), []).append((position, code, group))
    groups = [
        Group(named[0][2], tuple(each[0] for each in named), tuple(each[1] for each in named))
        for _, named in sorted(found.items())
        if not named[0][2].name or len(named) <= named[0][2].size
    ]
    return sorted(groups, key=lambda group: -len(group.members))


def _size(calls: CollectiveCalls, code: int) -> int | None:
    """Ranks in the calls of a group whose name the trace tells without its size."""
    messages = [calls.messages[each] for each in np.unique(calls.message[calls.group == code]).tolist()]
    return max((message.group_size or 0 for message in messages), default=0) or None


def match_collectives(digests: Sequence[RankDigest], group: Group) -> Arrivals | None:
    """The calls that the ranks of a group have in common, matched by label and order; null when none can be matched.

    Among the shifts that could explain missing calls, the one whose ends coincide best is taken. A rank none of whose
    calls could be matched with the others' is left out. Sends and receives are between two ranks: those of a larger
    group do not match by order, but for unnamed ones, which may be part of a collective whose op was not recorded.
    """
    origin = min((digest.start_unix_ns or 0 for digest in digests), default=0)
    tracks = [
        _track(digests[at], code, group, len(digests)) for at, code in zip(group.members, group.codes, strict=True)
    ]
    clocks = [_clock_us(digests[at], origin) for at in group.members]
    names = sorted({name for track in tracks for name in track})
    columns = {name: found for name in names if (found := _aligned(digests, group, tracks, clocks, name))}
    most = max((len(found) for found in columns.values()), default=0)
    members = next((sorted(found) for found in columns.values() if len(found) == most), [])
    cut = {
        name: _common([found[row] for row in members])
        for name, found in columns.items()
        if found.keys() >= set(members)
    }
    cut = {name: rows for name, rows in cut.items() if rows}
    if not cut:
        return None
    rows = tuple(np.concatenate(parts) for parts in zip(*cut.values(), strict=True))
    calls = tuple(digests[group.members[row]].calls for row in members)
    clock_us = np.array([clocks[row] or 0.0 for row in members])
    ends = calls[0].end_us[rows[0]] + clock_us[0]
    apart_us = np.array(
        [
            np.median(one.end_us[mine] + own - ends)
            for one, mine, own in zip(calls, rows, clock_us.tolist(), strict=True)
        ]
    )
    return Arrivals(
        group=group.process_group,
        members=tuple(group.members[row] for row in members),
        labels=tuple(cut),
        clock_us=apart_us,
        calls=calls,
        own_us=tuple(_own_us(digests[group.members[row]]) for row in members),
        shift_us=clock_us - apart_us,
        rows=rows,
        label=np.repeat(np.arange(len(cut)), [rows[0].size for rows in cut.values()]),
        step_start_us=digests[group.members[members[0]]].step_start_us + clock_us[0],
    )


def _own_us(digest: RankDigest) -> Floats:
    """Time of a rank before each call since all that began before have ended; 0 for calls that overlap.

    It does not depend on clocks, and a rank that others made late has no more of it than they. The first call counts
    from the beginning of its step.
    """
    calls = digest.calls
    begun = digest.step_start_us[digest.step_start_us <= calls.start_us[:1]][-1:] if calls.start_us.size else ()
    ended = np.maximum.accumulate(np.concatenate((begun if len(begun) else calls.start_us[:1], calls.end_us)))
    return np.maximum(calls.start_us - ended[:-1], 0.0)


def _clock_us(digest: RankDigest, origin_ns: int) -> float | None:
    return None if digest.start_unix_ns is None else (digest.start_unix_ns - origin_ns) / 1e3


def _track(digest: RankDigest, code: int, group: Group, ranks: int) -> Mapping[Label, Integers]:
    """Rows of the calls of one rank in one group by label, in order."""
    calls, size = digest.calls, group.process_group.size
    is_known = np.array([_belongs(message, group, ranks) for message in calls.messages], dtype=bool)
    mine = np.flatnonzero(calls.group == code)
    mine = mine[is_known[calls.message[mine]]] if mine.size else mine
    found: dict[Label, list[Integers]] = {}
    for message in np.unique(calls.message[mine]).tolist():
        name = calls.messages[message].name
        if name != SEND_RECV or size == 2 or not group.process_group.name:
            found.setdefault((name, calls.messages[message].dtype or ""), []).append(
                mine[calls.message[mine] == message]
            )
    return {label: np.sort(np.concatenate(rows)).astype(np.int32) for label, rows in found.items()}


def _belongs(message: Message, group: Group, ranks: int) -> bool:
    """False for collectives among another number of ranks than are looked at, where the trace names no group."""
    return bool(group.process_group.name) or message.group_size is None or message.group_size == ranks


def _aligned(
    digests: Sequence[RankDigest],
    group: Group,
    tracks: Sequence[Mapping[Label, Integers]],
    clocks: Sequence[float | None],
    name: Label,
) -> dict[int, tuple[int, Integers]]:
    """Of each member that could be aligned: the column of its first call, and the rows of its calls."""
    own = {row: track[name] for row, track in enumerate(tracks) if name in track}
    ends = {row: digests[group.members[row]].calls.end_us[rows] + (clocks[row] or 0.0) for row, rows in own.items()}
    reference = max(own, key=lambda row: own[row].size)
    found = {}
    for row, rows in own.items():
        has_clocks = clocks[row] is not None and clocks[reference] is not None
        shift = 0 if row == reference else _best_shift(ends[row], ends[reference], has_clocks)
        if shift is not None:
            found[row] = (shift, rows)
    return found if len(found) > 1 else {}


def _best_shift(end: Floats, reference: Floats, clocks: bool) -> int | None:
    """Number of collectives by which the rank begins after the reference; null when too few ends could coincide.

    The ends differ by as much as the clocks do, whatever that is, where the shift is right. Collectives at equal
    distances do not tell: equal numbers of them are then taken to begin together, others where the wall clocks agree
    best. Without wall clocks only equal counts are believed.
    """
    if not clocks:
        return 0 if end.size == reference.size else None
    missing = reference.size - end.size
    found = []
    for shift in range(-_MOST_SHIFT, missing + _MOST_SHIFT + 1):
        low, high = max(shift, 0), min(shift + end.size, reference.size)
        if high - low >= max(_LEAST_OVERLAP * reference.size, 1):
            apart = reference[low:high] - end[low - shift : high - shift]
            middle = float(np.median(apart))
            found.append((float(np.median(np.abs(apart - middle))), abs(middle), shift))
    if not found:
        return None
    least = min(found)[0]
    likely = [(distance, shift) for spread, distance, shift in found if spread <= 2 * least + 1.0]
    if missing == 0 and any(shift == 0 for _, shift in likely):
        return 0
    return min(likely, key=lambda each: (each[0], abs(each[1])))[1]


def _common(found: Sequence[tuple[int, Integers]]) -> list[Integers]:
    """The rows of each member in the columns that all of them have; empty where there are none."""
    low = max(shift for shift, _ in found)
    high = min(shift + rows.size for shift, rows in found)
    return [rows[low - shift : high - shift] for shift, rows in found] if high > low else []
