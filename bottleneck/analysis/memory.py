"""Measures memory over the window by the events of the allocator.

It gives use over time, and what lives at its peak.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.host import places_of
from bottleneck.analysis.idle import coded
from bottleneck.analysis.ledger import allocates, open_ops
from bottleneck.analysis.phases import NAMES, find_phases
from bottleneck.analysis.queue import marked_rows
from bottleneck.schema.analysis import KindBytes, LiveAllocations, MemoryKind, MemoryUse, PhaseName
from bottleneck.schema.intervals import NOTHING, Floats, Integers, grouped
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.measurements import RestingMemory
from bottleneck.schema.tables import as_integers, nearest_ancestor, text_matches

NO_EVENTS = "no memory events were recorded; `bottleneck run --memory` or profile_memory=True records them"
NONE_IN_WINDOW = "nothing was allocated or freed in the window"
_EARLIER = "allocated before recording began"
_HOST_LIMIT = "of the host only what was allocated since recording began is counted, without parameters made before"
_HOST_LIMIT_AT_REST = (
    "of the host, what models and optimizers hold is counted and what was allocated since recording began, without "
    "other tensors made before"
)
_AT_REST: Mapping[MemoryKind, str] = {
    "parameters": "what models held before the window, buffers included",
    "gradients": "kept from the step before",
    "optimizer state": "what optimizers held before the window",
}
_NO_TOTALS = "the events hold no totals: memory in use before the first of them is not counted"
_NO_ADDRESSES = "the events hold no addresses: which allocations live at the peak is not known"
_LOST_FREES = "events that free memory are missing: the latest allocations are taken to be those that live"
_MOST_ROWS = 50
# Two moments per parameter, each as large as the parameter.
_TWO_MOMENTS = re.compile(r"^Optimizer\.step#(Adam|AdamW|NAdam|RAdam|Adamax)\.step")


class _MemoryEvents(Struct, frozen=True):
    """Events of one allocator in order.

    They are bytes, the total after each, and when allocations are freed.

    ``freed`` is the position of the event that frees an allocation, beyond the last where none does, also for frees.
    """

    frame: pd.DataFrame
    device: int | None
    at_us: Floats
    bytes: Integers
    total: Integers
    freed: Integers
    has_totals: bool
    has_addresses: bool

    @property
    def freed_us(self) -> Floats:
        """Instant at which each allocation is freed; infinite where none is on record."""
        return np.append(self.at_us, np.inf)[self.freed]


def measure_memory(linked: Linked, resting: Sequence[RestingMemory] = ()) -> tuple[MemoryUse | None, str | None]:
    """Measures memory over the window.

    Null, with the reason, where the trace has no memory events in it.

    Of a trace with a device only that counts; of several devices the one with the highest peak. ``resting`` is what
    models and optimizers held before the window.
    """
    memory, window = linked.trace.memory, linked.window
    if memory.empty:
        return None, NO_EVENTS
    device = np.where(memory["on_device"], as_integers(memory["device"]), -1)
    device = np.where(memory["on_device"] & (device < 0), 0, device)
    by_device = [
        events
        for index, rows in grouped(device)
        if (events := _events(memory.iloc[rows], index if index >= 0 else None)) and _inside(events, linked).size
    ]
    on_device = [events for events in by_device if events.device is not None]
    if not by_device:
        return None, NONE_IN_WINDOW
    events = max(on_device or by_device, key=lambda candidate: int(candidate.total[_inside(candidate, linked)].max()))
    inside = _inside(events, linked)
    before = int(events.total[inside[0]] - events.bytes[inside[0]])
    peak = int(inside[np.argmax(events.total[inside])])
    if before > events.total[peak]:  # it only falls: what lives at the start is the most
        peak = int(inside[0]) - 1
    peak_bytes = max(before, int(events.total[inside].max()))
    rest = next((one for one in resting if one.device == events.device), None)
    return _describe(linked, events, peak, peak_bytes, _curve(events, inside, before, window.host_us[0]), rest), None


def _events(frame: pd.DataFrame, device: int | None) -> _MemoryEvents:
    size = frame["bytes"].to_numpy(dtype=np.int64)
    totals, address = frame["total_allocated"], frame["address"]
    # Of the host, torch adds up what was allocated under any profiler and does not see what is freed between them.
    has_totals, has_addresses = device is not None and bool(totals.notna().all()), bool(address.notna().all())
    counted = np.cumsum(size)
    count, freed = size.size, np.full(size.size, size.size, dtype=np.int64)
    if has_addresses:
        key = as_integers(address)
        order = np.lexsort((np.arange(count), key))
        earlier, later = order[:-1], order[1:]
        ends = (key[earlier] == key[later]) & (size[earlier] > 0) & (size[later] < 0)
        freed[earlier[ends]] = later[ends]
    # What is freed without having been allocated here was there before.
    is_earlier = size < 0
    is_earlier[freed[freed < count]] = False
    before = -int(size[is_earlier].sum()) if has_addresses else -min(0, int(counted.min()))
    total = as_integers(totals) if has_totals else counted + before
    return _MemoryEvents(frame, device, frame["ts_us"].to_numpy(), size, total, freed, has_totals, has_addresses)


def _inside(events: _MemoryEvents, linked: Linked) -> Integers:
    """Positions of the events in the window, on the clock of the host."""
    low, high = linked.window.host_us
    return np.flatnonzero((events.at_us >= low) & (events.at_us <= high))


def _curve(
    events: _MemoryEvents, inside: Integers, before: int, start_us: float
) -> tuple[tuple[float, int, int | None], ...]:
    reserved = as_integers(events.frame["total_reserved"])
    rows = inside[marked_rows(events.total[inside])]
    is_told = bool((reserved[inside] > 0).any())
    first = (0.0, before, int(reserved[inside[0]]) if is_told else None)
    points = zip(events.at_us[rows] - start_us, events.total[rows], reserved[rows], strict=True)
    return (first, *((float(at), int(used), int(held) if is_told else None) for at, used, held in points))


def _describe(
    linked: Linked,
    events: _MemoryEvents,
    peak: int,
    peak_bytes: int,
    curve: tuple[tuple[float, int, int | None], ...],
    rest: RestingMemory | None,
) -> MemoryUse:
    """The blocks that live after the event at position ``peak``."""
    order = np.arange(events.bytes.size)
    live = np.flatnonzero((events.bytes > 0) & (order <= peak) & (events.freed > peak) & events.has_addresses)
    limits = [
        text
        for text, holds in (
            (_HOST_LIMIT if rest is None else _HOST_LIMIT_AT_REST, events.device is None),
            (_NO_TOTALS, not events.has_totals and events.device is not None),
            (_NO_ADDRESSES, not events.has_addresses),
        )
        if holds
    ]
    latest = np.cumsum(events.bytes[live][::-1])[::-1] <= peak_bytes
    if not latest.all():
        live = live[latest]
        limits.append(_LOST_FREES)
    made = _Origins(linked, events)
    kinds, reasons = made.kinds(live)
    at_rest = made.resting_parts(rest)
    if events.device is None:  # its events do not count what was there before
        base = sum(part.bytes for part in at_rest)
        peak_bytes, curve = peak_bytes + base, tuple((at_us, used + base, held) for at_us, used, held in curve)
    earlier = peak_bytes - int(events.bytes[live].sum())
    rows = tuple(made.folded(live, kinds))
    reserved = [held for _, _, held in curve if held is not None]
    return MemoryUse(
        device=events.device,
        curve=curve,
        peak_at_us=0.0 if peak < 0 else max(float(events.at_us[peak]) - linked.window.host_us[0], 0.0),
        peak_bytes=peak_bytes,
        reserved_bytes=max(reserved, default=None),
        earlier_bytes=earlier,
        kinds=_kinds(events, live, kinds, reasons, made.earlier_parts(earlier, at_rest)),
        allocations=rows[:_MOST_ROWS],
        other_bytes=sum(row.bytes for row in rows[_MOST_ROWS:]),
        reason="; ".join(limits) or None,
    )


class _Origins:
    """The place and the phase of the step of each allocation."""

    def __init__(self, linked: Linked, events: _MemoryEvents) -> None:
        self._linked = linked
        self._events = events
        self.op = open_ops(linked.ops, events.frame)
        parent = as_integers(linked.ops["parent"])
        self._root = np.append(nearest_ancestor(parent, parent < 0), -1)[self.op]
        marks = find_phases(linked)
        self._edges = np.zeros(0) if marks is None else marks[0]
        self._phase = None if marks is None else [NAMES[code] for code in marks[1].tolist()]

    def phases(self, rows: Integers) -> list[PhaseName]:
        """Gives the phase in which each allocation was made.

        It is 'forward' where the trace marks none, 'other' outside ops.
        """
        if self._phase is None:
            return ["forward" if op >= 0 else "other" for op in self.op[rows].tolist()]
        after = np.searchsorted(self._edges, self._events.at_us[rows], side="right")
        return [self._names[code] for code in after.tolist()]

    @property
    def _names(self) -> list[PhaseName]:
        """The phase before each edge, and after the last."""
        return ["other", *(self._phase or ()), "other"]

    def _phase_end(self, rows: Integers) -> Floats:
        """When the phase ends in which each was made."""
        names = self._names
        ends, end = np.full(len(names), np.inf), np.inf
        for index in range(len(names) - 2, -1, -1):
            end = end if names[index] == names[index + 1] else float(self._edges[index])
            ends[index] = end
        return ends[np.searchsorted(self._edges, self._events.at_us[rows], side="right")]

    def kinds(self, rows: Integers) -> tuple[list[MemoryKind], list[str | None]]:
        """Kind of each allocation, and why it is not known where it is not."""
        ops, root, freed = self._linked.ops, self._root[rows], self._events.freed_us[rows]
        root_end = np.append((ops["ts_us"] + ops["dur_us"]).to_numpy(), np.inf)[root]
        outlives = (freed > self._phase_end(rows)).tolist(), ((freed > root_end) & (root >= 0)).tolist()
        pairs = [_kind(*facts) for facts in zip(self.phases(rows), *outlives, strict=True)]
        return [kind for kind, _ in pairs], [reason for _, reason in pairs]

    def resting_parts(self, rest: RestingMemory | None) -> list[KindBytes]:
        """Gives what models and optimizers held before the window and hold still.

        Gradients that the steps make anew are not among it.
        """
        if rest is None:
            return []
        sizes: dict[MemoryKind, int] = {
            "parameters": rest.bytes.get("parameters", 0) + rest.bytes.get("buffers", 0),
            "optimizer state": rest.bytes.get("optimizer state", 0),
            "gradients": 0 if self._gradient_bytes() else rest.bytes.get("gradients", 0),
        }
        return [KindBytes(kind, size, None, _AT_REST[kind]) for kind, size in sizes.items() if size]

    def earlier_parts(self, earlier: int, at_rest: list[KindBytes]) -> list[KindBytes]:
        """Gives memory from before the recording by kind.

        It is what was at rest then, or of a device as far as gradients tell what it holds.
        """
        if earlier <= 0:
            return []
        parts, left = [], earlier
        for part in at_rest or self._deduced_parts():
            if part.bytes <= left:
                parts.append(part)
                left -= part.bytes
        return [*parts, KindBytes("unknown", left, None, _EARLIER)] if left else parts

    def _deduced_parts(self) -> list[KindBytes]:
        """Gives the parameters, and the moments of an optimizer, of a device."""
        gradients = 0 if self._events.device is None else self._gradient_bytes()
        if not gradients:
            return []
        parts = [KindBytes("parameters", gradients, None, "as many bytes as their gradients")]
        if text_matches(self._linked.trace.events["name"], _TWO_MOMENTS.search).any():
            reason = "two moments per parameter, as this optimizer keeps"
            parts.append(KindBytes("optimizer state", 2 * gradients, None, reason))
        return parts

    def _gradient_bytes(self) -> int:
        """Gives bytes of the gradients after the last backward pass.

        They live at the end of it. 0 where there is none on record.
        """
        names = self._names
        ends = [index for index, name in enumerate(names[:-1]) if name == "backward" and names[index + 1] != name]
        if self._phase is None or not ends:
            return 0
        at_us = float(self._edges[ends[-1]])
        made = np.flatnonzero(
            (self._events.bytes > 0) & (self._events.at_us <= at_us) & (self._events.freed_us > at_us)
        )
        kinds, _ = self.kinds(made)
        return int(sum(self._events.bytes[row] for row, kind in zip(made, kinds, strict=True) if kind == "gradients"))

    def places(self, rows: Integers) -> list[tuple[str | None, str | None, str | None]]:
        """Gives op, module and line of each allocation.

        An op that only allocates stands for the op that called it.
        """
        linked, op = self._linked, self.op[rows]
        working = nearest_ancestor(as_integers(linked.ops["parent"]), ~allocates(linked))
        op = np.where((op >= 0) & (np.append(working, -1)[op] >= 0), np.append(working, -1)[op], op)
        place = self._place_rows(rows)

        def texts(name: str) -> list[str | None]:
            of_op = coded(linked.ops[name]).on(op)
            return (of_op if linked.places is None else of_op.or_else(coded(linked.places[name]).on(place))).texts()

        return list(zip(coded(linked.ops["name"]).on(op).texts(), texts("module"), texts("source"), strict=True))

    def _place_rows(self, rows: Integers) -> Integers:
        """Row in PLACES of each, -1 where not known."""
        places = np.full(rows.size, -1, dtype=np.int64)
        threads = self._events.frame["thread"].cat
        codes = {str(label): code for code, label in enumerate(self._linked.trace.events["thread"].cat.categories)}
        segments = places_of(self._linked)
        for code, mine in grouped(threads.codes.to_numpy()[rows].astype(np.int64)):
            stretches = segments.get(codes.get(str(threads.categories[code]), -1), NOTHING)
            places[mine] = stretches.at(self._events.at_us[rows[mine]])
        return places

    def folded(self, rows: Integers, kinds: list[MemoryKind]) -> list[LiveAllocations]:
        """The allocations folded by place and kind, most bytes first."""
        groups: dict[tuple[tuple[str | None, str | None, str | None], MemoryKind], list[int]] = defaultdict(list)
        for row, place, kind in zip(rows.tolist(), self.places(rows), kinds, strict=True):
            groups[place, kind].append(row)
        lives = self._events.freed_us - self._events.at_us
        made = []
        for ((op, module, source), kind), mine in groups.items():
            longest = float(lives[mine].max())
            size = int(self._events.bytes[mine].sum())
            made.append(
                LiveAllocations(op, module, source, kind, size, len(mine), longest if np.isfinite(longest) else None)
            )
        return sorted(made, key=lambda group: -group.bytes)


def _kind(phase: PhaseName, past_phase: bool, past_op: bool) -> tuple[MemoryKind, str | None]:
    """Gives the kind of an allocation, and a reason.

    It follows from the phase that made it, and whether it outlives the phase or its outermost op. The reason is that of
    an unknown kind.
    """
    if phase == "backward":
        return ("gradients" if past_phase else "temporaries"), None
    if phase == "optimizer":
        return ("optimizer state" if past_phase else "temporaries"), None
    if phase == "forward":
        return ("activations" if past_op else "temporaries"), None
    if phase == "data":
        return "unknown", "batches that the data loader made"
    return "unknown", "allocated outside of forward, backward and optimizer"


def _kinds(
    events: _MemoryEvents, live: Integers, kinds: list[MemoryKind], reasons: list[str | None], earlier: list[KindBytes]
) -> tuple[KindBytes, ...]:
    """Bytes by kind, most first; each reason once."""
    singles = [
        KindBytes(kind, int(events.bytes[row]), 1, reason)
        for row, kind, reason in zip(live, kinds, reasons, strict=True)
    ]
    made = []
    for kind in dict.fromkeys(part.kind for part in (*singles, *earlier)):
        parts = [part for part in (*singles, *earlier) if part.kind == kind]
        counts = [part.count for part in parts]
        total = None if None in counts else sum(count or 0 for count in counts)
        why = "; ".join(dict.fromkeys(part.reason for part in parts if part.reason)) or None
        made.append(KindBytes(kind, sum(part.bytes for part in parts), total, why))
    return tuple(sorted(made, key=lambda part: -part.bytes))
