"""Frozen records of the memory of a step: use over time, and what lives at the peak (a part of ``analysis.json``)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from bottleneck.schema.doc import Doc

MemoryKind = Literal["parameters", "gradients", "optimizer state", "activations", "temporaries", "unknown"]


@dataclass(frozen=True)
class KindBytes:
    """Memory of one kind at the peak."""

    kind: Annotated[
        MemoryKind,
        Doc(
            "what it holds: 'gradients' outlive the backward pass that makes them, 'activations' the forward op that "
            "makes them, 'temporaries' do neither"
        ),
    ]
    bytes: Annotated[int, Doc("at the peak; those of all kinds add up to peak_bytes", "B")]
    count: Annotated[int | None, Doc("allocations; null where the recording does not show them one by one")]
    reason: Annotated[str | None, Doc("what it is deduced from, or why its kind is not known")] = None


@dataclass(frozen=True)
class LiveAllocations:
    """Allocations of one op, module, line and kind that live at the peak."""

    op: Annotated[str | None, Doc("op that allocated; null outside ops")]
    module: Annotated[str | None, Doc("path of the nn.Module that allocated")]
    source: Annotated[str | None, Doc("line that allocated, 'file.py:57'; in the backward pass not known")]
    kind: Annotated[MemoryKind, Doc("what it holds, see kinds")]
    bytes: Annotated[int, Doc("at the peak", "B")]
    count: Annotated[int, Doc("allocations")]
    longest_us: Annotated[float | None, Doc("the longest life of one; null where one outlives the recording", "us")]


@dataclass(frozen=True)
class MemoryUse:
    """Memory over the window by the events of the allocator, and what lives at the instant of its peak.

    Of several devices it is the one with the highest peak. The total of a device counts all of its memory that torch
    allocated, that of the host only what was allocated since recording began.
    """

    device: Annotated[int | None, Doc("device index; null for memory of the host")]
    curve: Annotated[
        tuple[tuple[float, int, int | None], ...],
        Doc("time since the host began the first step, bytes allocated, bytes reserved; thinned", "us, B, B"),
    ]
    peak_at_us: Annotated[float, Doc("instant of the highest use, since the host began the first step", "us")]
    peak_bytes: Annotated[int, Doc("allocated at that instant", "B")]
    reserved_bytes: Annotated[
        int | None, Doc("most that the allocator held of the device; null where it does not tell", "B")
    ]
    earlier_bytes: Annotated[
        int, Doc("part of peak_bytes that was allocated before recording began, whose op is not known", "B")
    ]
    kinds: Annotated[tuple[KindBytes, ...], Doc("peak_bytes by kind, most first")]
    allocations: Annotated[
        tuple[LiveAllocations, ...],
        Doc("what lives at the peak, most bytes first; with earlier_bytes and other_bytes it adds up to peak_bytes"),
    ]
    other_bytes: Annotated[int, Doc("those that live at the peak and are too small to be listed", "B")] = 0
    reason: Annotated[str | None, Doc("limits of these figures; null where there are none")] = None
