"""Matches the collectives of several ranks and aligns their clocks.

Ranks are matched group by group, and clocks by the ends of collectives.

The i-th collective of a kind and element type in a process group is the same call on all of its ranks, but for a few
missing where a recording begins or ends. No rank leaves a collective before the last one has entered it, so that the
ends say how far the clocks are apart. The calls of one rank are held at a time, or some calls of all ranks of a group.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bottleneck.schema.digest import CollectiveCalls, RankDigest
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import ProcessGroup
from bottleneck.system.working_memory import Spool

# Profilers start and stop at slightly different collectives on each rank.
_MOST_SHIFT = 3
_LEAST_OVERLAP = 0.5
# Payloads tell the order where most of them agree, those of uneven exchanges do not; nearly as many are as good.
_MOSTLY, _ALIKE = 0.5, 0.9
# By how much another order has to fit better than that of equal steps.
_FAR_BETTER = 10
# Cells of one matrix of ranks x calls: 8 MB.
_MOST_CELLS = 2**20
SEND_RECV = "send_recv"

Label = tuple[str, str]


# One call of one rank in a temporary file.
_CELL = np.dtype([("start", "f8"), ("end", "f8"), ("own_us", "f8"), ("message", "i4"), ("inside", "?")])


@dataclass(frozen=True)
class Usage:
    """The calls of one rank in one group.

    They have their kinds and group size, and the number, time and bytes of those in the rank's window.

    ``has_sizes`` is True for reductions of several sizes; ``all_to_all_bytes`` is NaN where one size is unknown.
    """

    kinds: frozenset[str]
    group_size: int | None
    has_sizes: bool
    calls: int
    us: float
    all_to_all_bytes: float


@dataclass(frozen=True)
class Group:
    """A process group and its ranks.

    ``members`` are the positions of its ranks among the digests, ``codes`` its position in the groups of each.
    """

    process_group: ProcessGroup
    members: tuple[int, ...]
    codes: tuple[int, ...]
    usages: tuple[Usage, ...]


@dataclass(frozen=True, eq=False)
class CallBlock:
    """Some calls of a group.

    Rows are its ranks, columns calls, in microseconds on the clock of its first rank.

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
    shift_us: Floats
    label: Integers
    step_start_us: Floats
    cells: "_Cells"

    @property
    def size(self) -> int:
        """Calls that all of the ranks have."""
        return int(self.label.size)

    def blocks(self) -> Iterator[CallBlock]:
        """The calls, as many at a time as fit in a bounded matrix."""
        shift = self.shift_us[:, None]
        for part, cells in self.cells.blocks():
            start = cells["start"] + shift
            step = np.searchsorted(self.step_start_us, start[0], side="right") - 1
            yield CallBlock(
                start=start,
                end=cells["end"] + shift,
                own_us=np.ascontiguousarray(cells["own_us"]),
                inside=np.ascontiguousarray(cells["inside"]),
                message=cells["message"].astype(np.int64),
                label=self.label[part],
                step=np.maximum(step, 0),
            )


class _Cells:
    """A matrix of ranks x calls in a temporary file.

    It is stored block by block of columns, and written rank by rank.
    """

    def __init__(self, spool: Spool, ranks: int, size: int) -> None:
        self._spool, self._ranks, self._size = spool, ranks, size
        self._width = max(1, _MOST_CELLS // ranks)
        self._position = spool.reserve(ranks * size * _CELL.itemsize)

    def write(self, row: int, values: npt.NDArray[np.void]) -> None:
        for part in self._parts():
            data = values[part].tobytes()
            self._spool.write(self._begin(part) + row * len(data), data)

    def blocks(self) -> Iterator[tuple[slice, npt.NDArray[np.void]]]:
        for part in self._parts():
            width = part.stop - part.start
            data = self._spool.read(self._begin(part), self._ranks * width * _CELL.itemsize)
            yield part, np.frombuffer(data, dtype=_CELL).reshape(self._ranks, width)

    def _parts(self) -> Iterator[slice]:
        for low in range(0, self._size, self._width):
            yield slice(low, min(low + self._width, self._size))

    def _begin(self, part: slice) -> int:
        return self._position + self._ranks * int(part.start) * _CELL.itemsize


def find_groups(digests: Sequence[RankDigest]) -> list[Group]:
    """Finds the process groups of a job, the largest first.

    Calls of which the trace tells no group are of all ranks.

    Groups are the same on two ranks where name and ranks are. Of a name alone, without ranks, at most as many ranks may
    have it as the group has: otherwise several groups share it, which cannot be told apart.
    """
    by_group: dict[tuple[str, tuple[int, ...]], list[tuple[int, int, ProcessGroup, Usage]]] = {}
    for position, digest in enumerate(digests):
        by_name = {group.name: group for group in digest.process_groups}
        calls = digest.calls.read()
        for code, name in enumerate(calls.groups):
            usage = _usage(calls, code)
            group = by_name.get(name) or ProcessGroup(name, "", usage.group_size or len(digests))
            by_group.setdefault((name, group.ranks), []).append((position, code, group, usage))
    groups = [
        Group(
            process_group=named[0][2],
            members=tuple(at for at, _, _, _ in named),
            codes=tuple(code for _, code, _, _ in named),
            usages=tuple(usage for _, _, _, usage in named),
        )
        for _, named in sorted(by_group.items())
        if not named[0][2].name or len(named) <= named[0][2].size
    ]
    return sorted(groups, key=lambda group: -len(group.members))


_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})


def _usage(calls: CollectiveCalls, code: int) -> Usage:
    mine = calls.group == code
    messages = [calls.messages[at] for at in np.unique(calls.message[mine]).tolist()]
    inside = mine & calls.is_inside
    is_exchange = np.array([message.name == "all_to_all" for message in calls.messages], dtype=bool)
    exchanges = calls.message[inside][is_exchange[calls.message[inside]]] if calls.messages else calls.message[:0]
    return Usage(
        kinds=frozenset(message.name for message in messages),
        group_size=max((message.group_size or 0 for message in messages), default=0) or None,
        has_sizes=len({message.payload for message in messages if message.name in _REDUCTIONS} - {None}) > 1,
        calls=int(inside.sum()),
        us=float((calls.end_us - calls.start_us)[inside].sum()),
        all_to_all_bytes=float(payloads(calls)[exchanges].sum()),
    )


def payloads(calls: CollectiveCalls) -> Floats:
    """Payload of each message; NaN where unknown."""
    return np.array([np.nan if message.payload is None else message.payload for message in calls.messages], np.float64)


def match_collectives(digests: Sequence[RankDigest], group: Group, spool: Spool) -> Arrivals | None:
    """Matches the calls that the ranks of a group have in common.

    They are matched by label and order. Null when none can be matched.

    Among the shifts that could explain missing calls, the one whose ends coincide best is taken. A rank none of whose
    calls could be matched with the others' is left out. Sends and receives are between two ranks: those of a larger
    group do not match by order, but for unnamed ones, which may be part of a collective whose op was not recorded.
    The calls are put into ``spool``.
    """
    tracks = _RankTracks(digests, group)
    columns = tracks.aligned()
    most = max((len(spans) for spans in columns.values()), default=0)
    members = next((sorted(spans) for spans in columns.values() if len(spans) == most), [])
    cut = {
        name: common
        for name, spans in columns.items()
        if spans.keys() >= set(members) and (common := _common([spans[row] for row in members]))
    }
    if not cut:
        return None
    sizes = [common[0].stop - common[0].start for common in cut.values()]
    cells = _Cells(spool, len(members), sum(sizes))
    clock_us = np.array([tracks.clocks[row] or 0.0 for row in members])
    apart_us, ends = np.zeros(len(members)), np.zeros(0)
    for place, row in enumerate(members):
        calls, track = tracks.read(row)
        rows = np.concatenate([track[name][common[place]] for name, common in cut.items()])
        mine = calls.end_us[rows] + clock_us[place]
        ends = mine if place == 0 else ends
        apart_us[place] = np.median(mine - ends)
        cells.write(place, _cells(calls, rows, digests[group.members[row]]))
    return Arrivals(
        group=group.process_group,
        members=tuple(group.members[row] for row in members),
        labels=tuple(cut),
        clock_us=apart_us,
        shift_us=clock_us - apart_us,
        label=np.repeat(np.arange(len(cut)), sizes),
        step_start_us=digests[group.members[members[0]]].step_start_us + clock_us[0],
        cells=cells,
    )


def _cells(calls: CollectiveCalls, rows: Integers, digest: RankDigest) -> npt.NDArray[np.void]:
    cells = np.zeros(rows.size, dtype=_CELL)
    columns = (calls.start_us, calls.end_us, own_times(digest, calls), calls.message, calls.is_inside)
    for name, column in zip(_CELL.names or (), columns, strict=True):
        cells[name] = column[rows]
    return cells


def own_times(digest: RankDigest, calls: CollectiveCalls) -> Floats:
    """Gives the time of a rank before each call.

    It counts since all calls that began before have ended, and is 0 for calls that overlap.

    It does not depend on clocks, and a rank that others made late has no more of it than they. The first call counts
    from the beginning of its step.
    """
    begun = digest.step_start_us[digest.step_start_us <= calls.start_us[:1]][-1:] if calls.start_us.size else ()
    ended = np.maximum.accumulate(np.concatenate((begun if len(begun) else calls.start_us[:1], calls.end_us)))
    return np.maximum(calls.start_us - ended[:-1], 0.0)


class _RankTracks:
    """The calls of the ranks of a group by label.

    They are read one rank at a time. ``clocks`` are the wall clocks by row.
    """

    def __init__(self, digests: Sequence[RankDigest], group: Group) -> None:
        self._digests, self._group = digests, group
        origin = min((digest.start_unix_ns or 0 for digest in digests), default=0)
        starts = [digests[at].start_unix_ns for at in group.members]
        self.clocks = [None if start is None else (start - origin) / 1e3 for start in starts]

    def read(self, row: int) -> tuple[CollectiveCalls, Mapping[Label, Integers]]:
        """Gives the calls of a rank, and the group's by label.

        The latter are rows of the calls, in order.
        """
        calls, group = self._digests[self._group.members[row]].calls.read(), self._group.process_group
        # Where the trace names no group, collectives among another number of ranks are of another group.
        sizes = {None, len(self._digests), *(digest.world_size for digest in self._digests)}
        is_known = np.array([bool(group.name) or message.group_size in sizes for message in calls.messages], dtype=bool)
        mine = np.flatnonzero(calls.group == self._group.codes[row])
        mine = mine[is_known[calls.message[mine]]] if mine.size else mine
        rows_by_label: dict[Label, list[Integers]] = {}
        for message in np.unique(calls.message[mine]).tolist():
            name = calls.messages[message].name
            if name != SEND_RECV or group.size == 2 or not group.name:
                rows_by_label.setdefault((name, calls.messages[message].dtype or ""), []).append(
                    mine[calls.message[mine] == message]
                )
        return calls, {label: np.sort(np.concatenate(rows)) for label, rows in rows_by_label.items()}

    def aligned(self) -> dict[Label, dict[int, tuple[int, int]]]:
        """Gives by label the columns of each member that could be aligned.

        They are the column of the member's first call, and the number of its calls.

        The rank with the most calls of a label is the one that the others are held against.
        """
        most: dict[Label, tuple[int, int]] = {}
        for row in range(len(self.clocks)):
            for label, rows in self.read(row)[1].items():
                if rows.size > most.get(label, (0, 0))[0]:
                    most[label] = (rows.size, row)
        reference: dict[Label, _OfRank] = {}
        for row in {row for _, row in most.values()}:
            calls, track = self.read(row)
            reference |= {
                label: self._of_rank(row, calls, rows) for label, rows in track.items() if most[label][1] == row
            }
        columns: dict[Label, dict[int, tuple[int, int]]] = {label: {} for label in sorted(most)}
        for row in range(len(self.clocks)):
            calls, track = self.read(row)
            for label, rows in track.items():
                is_reference = row == most[label][1]
                shift = 0 if is_reference else _best_shift(self._of_rank(row, calls, rows), reference[label])
                if shift is not None:
                    columns[label][row] = (shift, int(rows.size))
        return {label: rows for label, rows in columns.items() if len(rows) > 1}

    def _of_rank(self, row: int, calls: CollectiveCalls, rows: Integers) -> "_OfRank":
        clock_us, digest = self.clocks[row], self._digests[self._group.members[row]]
        end_us = calls.end_us[rows] + (clock_us or 0.0)
        return _OfRank(end_us, payloads(calls)[calls.message[rows]], clock_us is not None, digest.step_numbers)


class _OfRank(NamedTuple):
    """The calls of one rank with one label, in order.

    Their ends and payloads are NaN where unknown.

    ``step_numbers`` are those of the steps that the rank recorded, empty where they are not known.
    """

    end_us: Floats
    payload: Floats
    has_clock: bool
    step_numbers: tuple[int, ...]


def _best_shift(rank: _OfRank, reference: _OfRank) -> int | None:
    """Counts the collectives by which a rank begins after the reference.

    Null when too few ends could coincide.

    The ends differ by as much as the clocks do, whatever that is, where the shift is right, and as many payloads agree
    as can. Collectives at equal distances do not tell: equal numbers of them are then taken to begin together, others
    where the wall clocks agree best. Those of the same steps do, too, unless their ends lie far better otherwise: few
    calls on a busy machine coincide by chance. Without wall clocks only equal counts are believed.
    """
    size, most = rank.end_us.size, reference.end_us.size
    if not (rank.has_clock and reference.has_clock):
        return 0 if size == most else None
    missing = most - size
    shifts = []
    for shift in range(-_MOST_SHIFT, missing + _MOST_SHIFT + 1):
        low, high = max(shift, 0), min(shift + size, most)
        if high - low >= min(max(_LEAST_OVERLAP * most, 1), size):
            theirs, own = slice(low, high), slice(low - shift, high - shift)
            apart = reference.end_us[theirs] - rank.end_us[own]
            middle = float(np.median(apart))
            alike = float(np.mean(np.isclose(reference.payload[theirs], rank.payload[own], rtol=0, equal_nan=True)))
            shifts.append((alike, float(np.median(np.abs(apart - middle))), abs(middle), shift))
    if not shifts:
        return None
    most_alike = max(shifts)[0]
    enough = _ALIKE * most_alike if most_alike > _MOSTLY else 0.0
    fitting = [candidate[1:] for candidate in shifts if candidate[0] >= enough]
    least = min(fitting)[0]
    likely = [(distance, shift) for spread, distance, shift in fitting if spread <= 2 * least + 1.0]
    is_same = rank.step_numbers == reference.step_numbers != ()
    together = (_FAR_BETTER if is_same else 2) * least + 1.0
    if missing == 0 and any(shift == 0 and spread <= together for spread, _, shift in fitting):
        return 0
    return min(likely, key=lambda candidate: (candidate[0], abs(candidate[1])))[1]


def _common(found: Sequence[tuple[int, int]]) -> list[slice]:
    """Gives each member's calls in the columns that all have.

    Empty where there are no such columns.
    """
    low = max(shift for shift, _ in found)
    high = min(shift + size for shift, size in found)
    return [slice(low - shift, high - shift) for shift, _ in found] if high > low else []
