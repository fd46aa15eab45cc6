"""Explains a device's memory by a snapshot of torch's caching allocator.

The snapshot has the blocks of its own time. Its history is undone, event by event, back to the moment that matters:
the last request that failed, else the peak. Sizes are those that were asked for; the allocator rounds them up.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from bottleneck.analysis.memory_remedies import describe_failure, memory_remedies
from bottleneck.schema.allocator import (
    AllocatorEvent,
    AllocatorSnapshot,
    FailedRequest,
    FreePieces,
    GrowingHolder,
    HeldMemory,
    HolderKind,
    MemoryHolder,
    MemorySegment,
    StackFrame,
)
from bottleneck.schema.records import replace
from bottleneck.schema.source_text import LIBRARY_FOLDER

# The allocator rounds requests up to this, and keeps those up to 1 MiB in segments of 2 MiB (CUDACachingAllocator).
_ROUNDED_TO_BYTES = 512
_SMALL_BYTES, _SMALL_SEGMENT_BYTES = 2**20, 2 * 2**20
_CURVE_POINTS = 200
# A line that grows does so from each fifth of the history to the next, by this share of the memory in the end.
_PARTS, _LEAST_GROWTH = 5, 0.02
# What a model is made of; and what only steps that are repeated ask for, in so many of the parts at least.
_LOADED: frozenset[HolderKind] = frozenset({"parameters", "optimizer state", "before the history"})
_OF_LOOPS: frozenset[HolderKind] = frozenset({"backward pass", "optimizer temporaries", "no Python frame"})
_LOOP_PARTS = 3

_LIBRARY = re.compile(LIBRARY_FOLDER)
_PYTHON_FILE = re.compile(r"\.pyi?$|^<ipython|^<stdin|ipykernel_")
# What calls below the user's line say that memory is for; the first that matches wins.
_PURPOSES: tuple[tuple[HolderKind, str, str], ...] = (
    ("optimizer state", r"torch[/\\]optim[/\\]|apex[/\\]optimizers|bitsandbytes", r"_init_group|init_state|^_init"),
    ("optimizer temporaries", r"torch[/\\]optim[/\\]|apex[/\\]optimizers|bitsandbytes", r""),
    (
        "communication",
        r"torch[/\\]distributed[/\\]|deepspeed|torch[/\\]nn[/\\]parallel[/\\]distributed",
        r"^(?!forward)",
    ),
    ("backward pass", r"torch[/\\](?:_tensor|autograd[/\\]__init__|autograd[/\\]function)\.py", r"backward|grad"),
    (
        "parameters",
        r"torch[/\\]nn[/\\]",
        r"^(?:__init__|_apply|to|cuda|half|float|load_state_dict|_load_from_state_dict|reset_parameters|.*_)$",
    ),
)
_WHICH = tuple((kind, re.compile(file), re.compile(function)) for kind, file, function in _PURPOSES)
_CALLS_MODULE = re.compile(r"^(?:forward|_call_impl|_wrapped_call_impl)$")

_Owner = tuple[str | None, HolderKind]


class _Live(Struct, frozen=True):
    """A block in use: its size, and the stack that asked for it.

    ``owner`` is set where something else than the stack tells.
    """

    requested_bytes: int
    block_bytes: int
    stack: int | None
    owner: _Owner | None = None


_EARLIER: _Owner = (None, "before the history")
_GRAPH_POOL: _Owner = (None, "CUDA graph pool")


def explain_snapshot(snapshot: AllocatorSnapshot) -> tuple[HeldMemory, ...]:
    """Says what holds the memory of each device with segments or a history."""
    devices = sorted({one.device for one in snapshot.segments} | set(snapshot.events))
    owners = _Owners(snapshot.stacks)
    return tuple(_explain(snapshot, device, owners) for device in devices)


def _explain(snapshot: AllocatorSnapshot, device: int, owners: "_Owners") -> HeldMemory:
    segments = [one for one in snapshot.segments if one.device == device]
    events = snapshot.events.get(device, ())
    history = _History(segments, events)
    at, moment = history.moment()
    state = history.state_before(at)
    owned: dict[_Owner, list[int]] = defaultdict(list)
    for live in state.live.values():
        owned[live.owner or owners.of(live.stack)].append(live.requested_bytes)
    holders = [MemoryHolder(place, kind, sum(sizes), len(sizes), max(sizes)) for (place, kind), sizes in owned.items()]
    allocated = sum(one.held_bytes for one in holders)
    free = state.free_pieces()
    explained = HeldMemory(
        device=device,
        moment=moment,
        allocated_bytes=allocated,
        reserved_bytes=state.reserved_bytes,
        free=_summed(free),
        holders=tuple(sorted(holders, key=lambda one: (-one.held_bytes, one.place or "", one.kind))),
        growing=_growing(history, at if moment == "out of memory" else len(events), owners, allocated),
        failed=_failed(events[at], state, owners) if moment == "out of memory" else None,
        curve=history.curve(),
        is_expandable=any(one.is_expandable for one in segments),
        history_reason=history.reason,
    )
    return replace(explained, remedies=memory_remedies(explained), failure=describe_failure(explained))


def _summed(pieces: Sequence[int]) -> FreePieces:
    return FreePieces(sum(pieces), len(pieces), max(pieces, default=0))


class _Owners:
    """The line and the purpose of each stack, told once."""

    def __init__(self, stacks: Sequence[Sequence[StackFrame]]) -> None:
        self._stacks = stacks
        self._told: dict[int, _Owner] = {}

    def of(self, stack: int | None) -> _Owner:
        """The owner of what this stack asked for."""
        if stack is None:
            return (None, "no Python frame")
        if stack not in self._told:
            self._told[stack] = _owner(self._stacks[stack])
        return self._told[stack]


def _owner(stack: Sequence[StackFrame]) -> _Owner:
    """Finds the user's line in a stack, and the purpose of its calls.

    Frames begin with the innermost call.
    """
    python = [frame for frame in stack if _PYTHON_FILE.search(frame.file)]
    if not python:
        return (None, "no Python frame")
    at = next((at for at, frame in enumerate(python) if not _LIBRARY.search(frame.file)), len(python))
    place = _place(python[at]) if at < len(python) else _place(python[-1])
    for kind, file, function in _WHICH:
        if any(file.search(frame.file) and function.search(frame.function) for frame in python[:at]):
            return (place, kind)
    is_forward = any(_CALLS_MODULE.search(frame.function) for frame in python)
    return (place, "forward pass" if is_forward else "other code")


def _place(frame: StackFrame) -> str:
    """'train.py:31', and its function where it has a name."""
    name = re.split(r"[/\\]", frame.file)[-1]
    return f"{name}:{frame.line}" + (f" {frame.function}()" if frame.function.isidentifier() else "")


@dataclass
class _MemoryState:
    """Blocks in use and memory in segments at one moment.

    ``mapped`` has the end of each stretch by its beginning; ``growing`` are the beginnings of those that can grow.
    """

    live: dict[int, _Live]
    mapped: dict[int, int]
    pools: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def reserved_bytes(self) -> int:
        """All memory in segments."""
        return sum(end - begin for begin, end in self.mapped.items())

    def free_pieces(self, *, for_bytes: int | None = None) -> list[int]:
        """The stretches that no block uses; for a request those that it may use.

        Small and large requests have segments of their own, and so has each CUDA graph.
        """
        live, at, pieces = sorted((begin, one.block_bytes) for begin, one in self.live.items()), 0, []
        for begin, end in sorted(self.mapped.items()):
            while at < len(live) and live[at][0] < begin:
                at += 1
            edge, mine = begin, []
            while at < len(live) and live[at][0] < end:
                mine.append(live[at][0] - edge)
                edge, at = max(edge, live[at][0] + live[at][1]), at + 1
            mine.append(end - edge)
            if for_bytes is not None and (
                begin in self.pools or (for_bytes > _SMALL_BYTES) != (end - begin > _SMALL_SEGMENT_BYTES)
            ):
                continue
            pieces += [size for size in mine if size >= _ROUNDED_TO_BYTES]
        return pieces

    def add(self, begin: int, size: int, *, grows: bool) -> None:
        """Adds a stretch; one that grows joins its neighbours."""
        end = begin + size
        if grows:
            before = next((first for first, last in self.mapped.items() if last == begin), None)
            if before is not None:
                begin = before
            end = self.mapped.pop(end, end)
        self.mapped[begin] = end

    def remove(self, begin: int, size: int) -> None:
        """Takes a stretch away, which may be a part of another."""
        end = begin + size
        for first, last in list(self.mapped.items()):
            if first < end and begin < last:
                del self.mapped[first]
                if first < begin:
                    self.mapped[first] = begin
                if end < last:
                    self.mapped[end] = last


class _History:
    """The history of a device, with the blocks that it ends in.

    ``before`` holds for each ``free_completed`` what is known of the block that it frees.
    """

    def __init__(self, segments: Sequence[MemorySegment], events: Sequence[AllocatorEvent]) -> None:
        self.events = events
        self.last = _MemoryState(
            live=dict(_used(segments)),
            mapped={one.address: one.address + one.total_bytes for one in segments},
            pools={one.address: one.pool for one in segments if one.pool is not None},
        )
        self.freed: dict[int, _Live] = {}
        newest: dict[int, _Live] = {}
        for at, event in enumerate(events):
            if event.address is None:
                continue
            if event.action == "alloc":
                newest[event.address] = _Live(event.event_bytes, _rounded(event.event_bytes), event.stack)
            elif event.action == "free_completed":
                earlier = _Live(event.event_bytes, _rounded(event.event_bytes), None, _EARLIER)
                self.freed[at] = newest.pop(event.address, earlier)
        totals = sum(one.requested_bytes for one in self.last.live.values())
        self.totals = [totals]
        for event in reversed(events):
            totals -= {"alloc": 1, "free_completed": -1}.get(event.action, 0) * event.event_bytes
            self.totals.append(totals)
        self.totals.reverse()

    @property
    def reason(self) -> str | None:
        """Says what the history lacks; null where nothing."""
        if not self.events:
            return "no history was recorded: torch.cuda.memory._record_memory_history() before the program begins"
        if min(self.totals) < 0:
            return "the history frees more than it and the snapshot hold: a part of it is missing"
        return None

    def moment(self) -> tuple[int, Literal["out of memory", "peak", "snapshot"]]:
        """The position of the event before which memory is explained, and what it is."""
        failed = [at for at, event in enumerate(self.events) if event.action == "oom"]
        if failed:
            return failed[-1], "out of memory"
        if not self.events:
            return 0, "snapshot"
        return max(range(len(self.totals)), key=lambda at: self.totals[at]), "peak"

    def state_before(self, at: int) -> _MemoryState:
        """Undoes the history back to before this event."""
        state = _MemoryState(dict(self.last.live), dict(self.last.mapped), self.last.pools)
        for position in range(len(self.events) - 1, at - 1, -1):
            event = self.events[position]
            if event.address is None:
                continue
            if event.action == "alloc":
                state.live.pop(event.address, None)
            elif event.action == "free_completed":
                state.live[event.address] = self.freed[position]
            elif event.action in ("segment_alloc", "segment_map"):
                state.remove(event.address, event.event_bytes)
            elif event.action in ("segment_free", "segment_unmap"):
                state.add(event.address, event.event_bytes, grows=event.action == "segment_unmap")
        return state

    def curve(self) -> tuple[tuple[float, int], ...]:
        """Gives seconds since the first event and bytes; the highest of each stretch."""
        times = [event.time_us for event in self.events]
        if not times or any(time is None for time in times):
            return ()
        origin, size = min(time or 0 for time in times), max(1, -(-len(times) // _CURVE_POINTS))
        points = []
        for begin in range(0, len(times), size):
            at = max(range(begin, min(begin + size, len(times))), key=lambda one: self.totals[one + 1])
            points.append((((times[at] or 0) - origin) / 1e6, max(self.totals[at + 1], 0)))
        return tuple(points)

    def floors(self, until: int, owners: _Owners) -> list["_Floor"]:
        """Gives the least that each line holds in each part.

        It is of what the line added since the history began.
        """
        floors: dict[_Owner, _Floor] = {}
        edges = [until * part // _PARTS for part in range(_PARTS + 1)]
        for part, (begin, end) in enumerate(pairwise(edges)):
            for floor in floors.values():
                floor.least[part] = floor.held_bytes
            for at in range(begin, end):
                event = self.events[at]
                if event.action == "alloc":
                    owner, sign = owners.of(event.stack), 1
                elif event.action == "free_completed" and self.freed[at].owner is None:
                    owner, sign = owners.of(self.freed[at].stack), -1
                else:
                    continue
                floors.setdefault(owner, _Floor(owner)).count(part, sign, event.event_bytes)
        return list(floors.values())


@dataclass
class _Floor:
    """Memory that a line added in the history, with its least in each part."""

    owner: _Owner
    held_bytes: int = 0
    blocks: int = 0
    freed: int = 0
    least: list[int] = field(default_factory=lambda: [0] * _PARTS)
    parts: set[int] = field(default_factory=set)

    def count(self, part: int, sign: int, size: int) -> None:
        """Counts a request, or a block that was given back."""
        self.held_bytes += sign * size
        self.blocks += sign
        self.freed += sign < 0
        self.least[part] = min(self.least[part], self.held_bytes)
        self.parts.add(part)


def _used(segments: Iterable[MemorySegment]) -> Iterator[tuple[int, _Live]]:
    for segment in segments:
        for block in segment.blocks:
            if block.state != "free":
                owner = _GRAPH_POOL if segment.pool is not None and block.stack is None else None
                yield block.address, _Live(block.requested_bytes, block.block_bytes, block.stack, owner)


def _rounded(size: int) -> int:
    return -(-size // _ROUNDED_TO_BYTES) * _ROUNDED_TO_BYTES


def _growing(history: _History, until: int, owners: _Owners, allocated: int) -> tuple[GrowingHolder, ...]:
    """Finds lines whose least memory grows in each part of the history.

    A model that is loaded grows too, and so does the first forward pass: its activations count in a loop alone, which
    gives some of them back or runs backward passes.
    """
    floors = history.floors(until, owners) if until >= _PARTS else []
    is_loop = any(one.owner[1] in _OF_LOOPS and len(one.parts) >= _LOOP_PARTS for one in floors)
    growing = []
    for one in floors:
        place, kind = one.owner
        is_kept = kind not in _LOADED and (kind != "forward pass" or one.freed > 0 or is_loop)
        grown = one.least[-1] - one.least[0]
        rises = all(before < after for before, after in pairwise(one.least))
        if is_kept and rises and grown >= _LEAST_GROWTH * allocated:
            growing.append(GrowingHolder(place, kind, grown, one.blocks))
    return tuple(sorted(growing, key=lambda one: -one.grown_bytes))


def _failed(event: AllocatorEvent, state: _MemoryState, owners: _Owners) -> FailedRequest:
    """Says why a request failed: what was free was in pieces, or too little."""
    free = sum(state.free_pieces(for_bytes=event.event_bytes)) + (event.device_free_bytes or 0)
    lacking = max(event.event_bytes - free, 0)
    return FailedRequest(
        requested_bytes=event.event_bytes,
        place=owners.of(event.stack)[0],
        device_free_bytes=event.device_free_bytes,
        cause="full" if lacking else "fragmented",
        lacking_bytes=lacking,
    )
