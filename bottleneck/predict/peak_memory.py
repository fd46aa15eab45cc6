"""The most device memory that a step holds, from the lifetimes of its tensors."""

from collections.abc import Sequence

import numpy as np

from bottleneck.schema.prediction import StepMemory
from bottleneck.schema.step_calls import StepCalls, Storage

# torch hands out memory in pieces of this size (c10/cuda/CUDACachingAllocator.h: kMinBlockSize).
BLOCK_BYTES = 512
# What the driver's context, the workspaces of the libraries and unusable gaps between blocks take beside the tensors.
RESERVED_BYTES = 2**30


def step_memory(calls: StepCalls) -> StepMemory | None:
    """The memory of the step at its peak; null where no lifetimes are known.

    It counts what tensors hold, in the blocks of torch's allocator. Workspaces of libraries and gaps between blocks
    are not in it: RESERVED_BYTES stand for them where it is compared with a device.
    """
    if not calls.storages:
        return None
    position, peak = _peak(calls.storages, len(calls.calls))
    alive = [storage for storage in calls.storages if _is_alive(storage, position)]

    def held(*kinds: str) -> int:
        return sum(_blocks(storage) for storage in alive if storage.kind in kinds)

    return StepMemory(
        peak_bytes=peak,
        parameter_bytes=held("parameter", "buffer"),
        gradient_bytes=held("gradient"),
        optimizer_bytes=held("optimizer state"),
        input_bytes=held("input"),
        activation_bytes=held("activation"),
        phase=calls.calls[position].phase if position < len(calls.calls) else None,
    )


def largest_batch(points: Sequence[tuple[int, int]], memory_bytes: int) -> int | None:
    """Returns the largest batch size whose peak fits into a memory.

    It is 0 for none; null where that cannot be told. ``points`` are batch sizes and peaks. Between batch sizes and
    beyond the largest the peak is taken to grow along the line through the two largest.
    """
    by_batch = sorted(dict(points).items())
    if len(by_batch) < 2:
        return None
    (small, low), (large, high) = by_batch[-2:]
    slope = (high - low) / (large - small)
    usable = memory_bytes - RESERVED_BYTES
    if slope <= 0:
        return None
    return max(int((usable - (low - slope * small)) / slope), 0)


def fits(peak_bytes: int, memory_bytes: int) -> bool:
    """True if a step with this peak fits into the memory of a device."""
    return peak_bytes + RESERVED_BYTES <= memory_bytes


def _peak(storages: Sequence[Storage], calls: int) -> tuple[int, int]:
    """Position of the call during which most memory is held, and how much."""
    change = np.zeros(calls + 2, dtype=np.int64)
    for storage in storages:
        begun = max(storage.created, 0)
        ended = calls + 1 if storage.freed is None else storage.freed
        if ended > begun:
            change[begun] += _blocks(storage)
            change[ended] -= _blocks(storage)
    held = np.cumsum(change)[:-1]
    position = int(held.argmax())
    return position, int(held[position])


def _is_alive(storage: Storage, position: int) -> bool:
    return storage.created <= position and (storage.freed is None or storage.freed > position)


def _blocks(storage: Storage) -> int:
    return -(-storage.bytes // BLOCK_BYTES) * BLOCK_BYTES
