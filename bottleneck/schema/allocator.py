"""Records of a snapshot of torch's caching allocator, and of its explanation.

``AllocatorSnapshot`` is the file as it was read, ``HeldMemory`` what holds a device's memory at one moment.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Struct

from bottleneck.schema.records import Doc

BlockState = Literal["active", "pending", "free"]
EventAction = Literal[
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"
]
HolderKind = Literal[
    "parameters",
    "optimizer state",
    "optimizer temporaries",
    "forward pass",
    "backward pass",
    "communication",
    "CUDA graph pool",
    "other code",
    "no Python frame",
    "before the history",
]


class StackFrame(Struct, frozen=True):
    """A call that led to an allocation."""

    file: str
    line: int
    function: str


class MemoryBlock(Struct, frozen=True):
    """A part of a segment.

    ``stack`` is the position of its frames in the snapshot's, null where none were recorded.
    """

    address: int
    block_bytes: int
    requested_bytes: int
    state: BlockState
    stack: int | None


class MemorySegment(Struct, frozen=True):
    """Memory that the allocator has from the device.

    ``pool`` is the private pool of a CUDA graph, null for the common one.
    """

    address: int
    total_bytes: int
    device: int
    is_expandable: bool
    pool: tuple[int, int] | None
    blocks: tuple[MemoryBlock, ...]


class AllocatorEvent(Struct, frozen=True):
    """An entry of the allocator's history.

    ``address`` is null at an out-of-memory error, ``device_free_bytes`` is known there alone.
    """

    action: EventAction
    address: int | None
    event_bytes: int
    stack: int | None
    time_us: int | None = None
    device_free_bytes: int | None = None


class AllocatorSnapshot(Struct, frozen=True):
    """A snapshot as it was read.

    ``events`` are those of each device, in order; frames of a stack begin with the innermost call. ``settings`` are the
    allocator's, ``left_out`` counts the entries that were no such record.
    """

    segments: tuple[MemorySegment, ...]
    events: Mapping[int, tuple[AllocatorEvent, ...]]
    stacks: tuple[tuple[StackFrame, ...], ...]
    settings: Mapping[str, str]
    left_out: int = 0


class MemoryHolder(Struct, frozen=True):
    """The memory that one line of the program holds."""

    place: Annotated[str | None, Doc("line of the user's code with its function; null where no frame tells")]
    kind: Annotated[HolderKind, Doc("what it is for, by the calls that led to it")]
    held_bytes: Annotated[int, Doc("bytes of its blocks", "B")]
    blocks: Annotated[int, Doc("number of its blocks")]
    largest_bytes: Annotated[int, Doc("its largest block", "B")]


class FreePieces(Struct, frozen=True):
    """Memory inside of segments that no block uses."""

    free_bytes: Annotated[int, Doc("all of it", "B")]
    pieces: Annotated[int, Doc("number of stretches")]
    largest_bytes: Annotated[int, Doc("the longest stretch: no larger request fits", "B")]


class FailedRequest(Struct, frozen=True):
    """The last request that the device had no memory for."""

    requested_bytes: Annotated[int, Doc("what was asked for", "B")]
    place: Annotated[str | None, Doc("line that asked; null where no frame tells")]
    device_free_bytes: Annotated[int | None, Doc("what the device itself had left; null where not recorded", "B")]
    cause: Annotated[
        Literal["fragmented", "full"],
        Doc("'fragmented': enough was free, in pieces that were too small; 'full': too little was free"),
    ]
    lacking_bytes: Annotated[int, Doc("what was missing beside all that was free; 0 where fragmented", "B")]


class GrowingHolder(Struct, frozen=True):
    """A line whose memory grows: its least, from each fifth of the history on."""

    place: Annotated[str | None, Doc("line of the user's code; null where no frame tells")]
    kind: Annotated[HolderKind, Doc("what it is for, by the calls that led to it")]
    grown_bytes: Annotated[int, Doc("least of the last fifth less that of the first", "B")]
    blocks: Annotated[int, Doc("blocks that it asked for in the history and that nothing freed")]


class SnapshotRemedy(Struct, frozen=True):
    """A change that gives memory back."""

    change: Annotated[str, Doc("what to do")]
    reason: Annotated[str, Doc("what in the snapshot calls for it")]
    code: Annotated[str, Doc("code or setting that does it")]
    gives_bytes: Annotated[
        tuple[int, int] | None, Doc("least and most that it gives back; null where a snapshot does not tell", "B")
    ] = None


class HeldMemory(Struct, frozen=True):
    """Memory of a device at the moment that matters, by what holds it.

    Holders add up to ``allocated_bytes``.
    """

    device: Annotated[int, Doc("device index")]
    moment: Annotated[
        Literal["out of memory", "peak", "snapshot"],
        Doc("the failed request, the peak of the history, or the time of the snapshot, which has no history"),
    ]
    allocated_bytes: Annotated[int, Doc("in blocks that are in use", "B")]
    reserved_bytes: Annotated[int, Doc("in segments: what the process has of the device", "B")]
    free: Annotated[FreePieces, Doc("the rest of the segments")]
    holders: Annotated[tuple[MemoryHolder, ...], Doc("by line, most bytes first")]
    growing: Annotated[tuple[GrowingHolder, ...], Doc("lines whose memory only grew, most first")]
    failed: Annotated[FailedRequest | None, Doc("the request that failed; null where none did")] = None
    curve: Annotated[tuple[tuple[float, int], ...], Doc("seconds since the first event, bytes allocated; thinned")] = ()
    is_expandable: Annotated[bool, Doc("whether segments can grow (expandable_segments)")] = False
    failure: Annotated[str | None, Doc("why the request failed, in a sentence; null where none did")] = None
    remedies: Annotated[tuple[SnapshotRemedy, ...], Doc("changes, the first first")] = ()
    history_reason: Annotated[str | None, Doc("why the history is lacking or cut; null where it is whole")] = None
