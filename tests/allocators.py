"""A small caching allocator, with the rules of torch's, that makes honest snapshots for tests.

Requests are rounded up to 512 bytes. Those up to 1 MiB share segments of 2 MiB, those below 10 MiB segments of 20 MiB,
larger ones have segments of their own size. The smallest free stretch that fits is taken and split. Where the device
has no memory left, wholly free segments are given back, and then the request fails.
"""

from collections.abc import Sequence
from typing import Any

MIB = 2**20
Frames = Sequence[tuple[str, int, str]]


class OutOfMemoryError(Exception):
    """The device has no memory for a request."""


class CachingAllocator:
    """The memory of one device; ``dump`` is what torch.cuda.memory._snapshot() returns."""

    def __init__(self, device_bytes: int) -> None:
        self._left = device_bytes
        self._segments: dict[int, tuple[int, str]] = {}
        self._free: dict[int, int] = {}
        self._used: dict[int, tuple[int, int, list[dict[str, Any]]]] = {}
        self._events: list[dict[str, Any]] = []
        self._next = 0x7F0000000000

    def _log(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        key = "device_free" if action == "oom" else "addr"
        event = {"action": action, key: address, "size": size, "stream": 0, "frames": frames}
        self._events.append({**event, "time_us": 1_700_000_000_000_000 + 10 * len(self._events)})

    def allocate(self, size: int, *calls: tuple[str, int, str]) -> int:
        """Takes memory for calls, the innermost first; gives its address."""
        frames = [{"filename": file, "line": line, "name": name} for file, line, name in calls]
        rounded = -(-size // 512) * 512
        pool = "small" if rounded <= MIB else "large"
        address = self._fitting(rounded, pool)
        if address is None:
            address = self._segment(rounded, pool, frames)
        whole = self._free.pop(address)
        rest = whole - rounded
        if rest >= (512 if pool == "small" else MIB + 1):
            self._free[address + rounded] = rest
        else:
            rounded = whole
        self._used[address] = (rounded, size, frames)
        self._log("alloc", address, size, frames)
        return address

    def _fitting(self, size: int, pool: str) -> int | None:
        fits = [
            (free, address)
            for address, free in self._free.items()
            if free >= size and self._segments[self._segment_of(address)][1] == pool
        ]
        return min(fits)[1] if fits else None

    def _segment_of(self, address: int) -> int:
        return max(begin for begin in self._segments if begin <= address)

    def _segment(self, size: int, pool: str, frames: list[dict[str, Any]]) -> int:
        total = 2 * MIB if pool == "small" else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if total > self._left:
            for address, (length, _) in list(self._segments.items()):
                if self._free.get(address) == length:
                    del self._segments[address], self._free[address]
                    self._left += length
                    self._log("segment_free", address, length, [])
        if total > self._left:
            self._log("oom", self._left, size, frames)
            raise OutOfMemoryError
        address, self._next = self._next, self._next + total + 4 * MIB
        self._left -= total
        self._segments[address], self._free[address] = (total, pool), total
        self._log("segment_alloc", address, total, frames)
        return address

    def free(self, address: int) -> None:
        """Gives memory back, joined with its free neighbours."""
        rounded, size, _ = self._used.pop(address)
        segment = self._segment_of(address)
        for action in ("free_requested", "free_completed"):
            self._log(action, address, size, [])
        end = address + rounded
        if end in self._free and self._segment_of(end) == segment:
            rounded += self._free.pop(end)
        before = next((begin for begin, length in self._free.items() if begin + length == address), None)
        if before is not None and self._segment_of(before) == segment:
            address, rounded = before, rounded + self._free.pop(before)
        self._free[address] = rounded

    def dump(self, *, history: bool = True) -> dict[str, Any]:
        """A snapshot in the format of torch 2.x."""
        return {
            "segments": [self._dumped(begin, *self._segments[begin]) for begin in sorted(self._segments)],
            "device_traces": [list(self._events)] if history else [[]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        }

    def _dumped(self, begin: int, total: int, pool: str) -> dict[str, Any]:
        inside = [(at, size, size, "inactive", []) for at, size in self._free.items() if begin <= at < begin + total]
        inside += [
            (at, rounded, size, "active_allocated", frames)
            for at, (rounded, size, frames) in self._used.items()
            if begin <= at < begin + total
        ]
        blocks = [
            {"address": at, "size": size, "requested_size": asked, "state": state, "frames": frames}
            for at, size, asked, state, frames in sorted(inside, key=lambda block: block[0])
        ]
        return {
            "device": 0,
            "address": begin,
            "total_size": total,
            "allocated_size": sum(block["size"] for block in blocks if block["state"] != "inactive"),
            "stream": 0,
            "segment_type": pool,
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }
