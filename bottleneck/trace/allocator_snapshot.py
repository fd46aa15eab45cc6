"""Reads snapshots of torch's CUDA allocator, as ``torch.cuda.memory._dump_snapshot`` writes them.

They are pickles, or the same in JSON, of dicts and lists: segments with their blocks, and for each device the history
of requests. The field names are those of torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/_memory_viz.py. Nothing of
a pickle is run.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from bottleneck.errors import TraceError
from bottleneck.schema.allocator import (
    AllocatorEvent,
    AllocatorSnapshot,
    BlockState,
    EventAction,
    MemoryBlock,
    MemorySegment,
    StackFrame,
)
from bottleneck.system.files import cannot_read, read_file
from bottleneck.system.plain_pickle import MAGIC, PlainPickleError, read_plain_pickle

_LARGEST_BYTES = 2 * 2**30
_HEAD_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
# Segments, blocks, events and frames in all: one list may stand in many places of a pickle.
_MOST_ENTRIES = 20_000_000
# A file names each entry of a list with so many bytes at least: more entries than that are lists that occur twice.
_LEAST_ENTRY_BYTES = 2
_MOST_FRAMES = 200
_LARGEST_NUMBER = 2**63
_STATES: Mapping[str, BlockState] = {
    "active_allocated": "active",
    "active_pending_free": "pending",
    "active_awaiting_free": "pending",
    "inactive": "free",
}
_ACTIONS: Mapping[str, EventAction] = {name: name for name in get_args(EventAction)}
# What a snapshot begins with, in its first bytes: the key of its segments.
_KEYS = (b"segments", b'"segments"')
_FIX = "write it with torch.cuda.memory._dump_snapshot('snapshot.pickle')"


def is_allocator_snapshot(path: Path) -> bool:
    """True for a file that looks like a snapshot of the allocator.

    It is a pickle, or JSON text, whose first bytes name its segments.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES) if path.is_file() else b""
    except OSError:
        return False
    if head[:2] == _GZIP:
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return False
    if head[:1] == MAGIC:
        return True
    return head[:1] == b"{" and any(key in head[:200] for key in _KEYS) and b"traceEvents" not in head


def read_allocator_snapshot(path: Path) -> AllocatorSnapshot:
    """Reads a snapshot of the allocator.

    Raises TraceError for a file that cannot be read, that is cut, or that holds more than plain data.
    """
    try:
        content = read_file(path, _LARGEST_BYTES)
        if content[:2] == _GZIP:
            content = _inflated(content)
    except OSError as error:
        raise cannot_read(path, error) from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"cannot read {path.name}", why=f"its compression is broken: {error}", fix=_FIX) from error
    if content[:1] == MAGIC:
        try:
            value = read_plain_pickle(content)
        except PlainPickleError as error:
            raise TraceError(
                f"{path.name} is a pickle that is not read",
                why=f"{error}; pickles can run programs, and only plain data is read",
                fix=_FIX,
            ) from error
    else:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path.name} is no whole JSON text", why=str(error)[:200], fix=_FIX) from error
    # Old versions of torch wrote the list of segments alone.
    whole = {"segments": value} if isinstance(value, list) else value
    if not isinstance(whole, dict) or not isinstance(whole.get("segments"), list):
        raise TraceError(f"{path.name} holds no snapshot of the allocator", why="it has no list of segments", fix=_FIX)
    return _Reader(path, min(_MOST_ENTRIES, len(content) // _LEAST_ENTRY_BYTES)).read(whole)


def _inflated(content: bytes) -> bytes:
    with gzip.open(io.BytesIO(content)) as file:
        inflated = file.read(_LARGEST_BYTES + 1)
    if len(inflated) > _LARGEST_BYTES:
        raise OSError(f"it is too large: over {_LARGEST_BYTES} bytes")
    return inflated


class _Reader:
    """Turns the dicts of one snapshot into records, and counts what is none."""

    def __init__(self, path: Path, most_entries: int) -> None:
        self._path = path
        self._most_entries = most_entries
        self._left_out = 0
        self._entries = 0
        self._stacks: list[tuple[StackFrame, ...]] = []
        # The lists of frames by identity: the snapshot is alive meanwhile, and shares them.
        self._stack_of_list: dict[int, int | None] = {}
        self._stack_of_frames: dict[tuple[StackFrame, ...], int] = {}

    def read(self, whole: Mapping[str, Any]) -> AllocatorSnapshot:
        """The records of a whole snapshot."""
        segments = tuple(filter(None, map(self._segment, self._dicts(whole["segments"]))))
        traces = whole.get("device_traces")
        events = {
            device: tuple(filter(None, map(self._event, self._dicts(trace))))
            for device, trace in enumerate(traces if isinstance(traces, list) else [])
            if isinstance(trace, list) and trace
        }
        settings = whole.get("allocator_settings")
        return AllocatorSnapshot(
            segments=segments,
            events=events,
            stacks=tuple(self._stacks),
            settings={str(name)[:100]: str(value)[:200] for name, value in settings.items()}
            if isinstance(settings, dict)
            else {},
            left_out=self._left_out,
        )

    def _dicts(self, entries: Any) -> Iterator[dict[str, Any]]:
        """The dicts of a list; what is none is counted as left out."""
        for entry in entries if isinstance(entries, list | tuple) else ():
            self._entries += 1
            if self._entries > self._most_entries:
                raise TraceError(
                    f"{self._path.name} has too many entries",
                    why=f"it has more than {self._most_entries:,}, which a snapshot of this size does not hold",
                    fix=_FIX,
                )
            if isinstance(entry, dict):
                yield entry
            else:
                self._left_out += 1

    def _segment(self, entry: Mapping[str, Any]) -> MemorySegment | None:
        address, total = _number(entry.get("address")), _number(entry.get("total_size"))
        if address is None or total is None:
            self._left_out += 1
            return None
        blocks, at = [], address
        for block in self._dicts(entry.get("blocks")):
            one = self._block(block, at)
            if one is not None:
                blocks.append(one)
                at = one.address + one.block_bytes
        return MemorySegment(
            address=address,
            total_bytes=total,
            device=_number(entry.get("device")) or 0,
            is_expandable=entry.get("is_expandable") is True,
            pool=_pool(entry.get("segment_pool_id")),
            blocks=tuple(blocks),
        )

    def _block(self, entry: Mapping[str, Any], at: int) -> MemoryBlock | None:
        """Reads a block; in old versions of torch only its order gives the address."""
        size, state = _number(entry.get("size")), _STATES.get(str(entry.get("state")))
        if size is None or state is None:
            self._left_out += 1
            return None
        address, requested = _number(entry.get("address")), _number(entry.get("requested_size"))
        frames = entry.get("frames")
        history = entry.get("history")
        if frames is None and isinstance(history, list) and history and isinstance(history[0], dict):
            frames = history[0].get("frames")
        return MemoryBlock(
            address=at if address is None else address,
            block_bytes=size,
            requested_bytes=size if requested is None else min(requested, size),
            state=state,
            stack=self._stack(frames),
        )

    def _event(self, entry: Mapping[str, Any]) -> AllocatorEvent | None:
        name, size = str(entry.get("action")), _number(entry.get("size"))
        action = _ACTIONS.get(name)
        if action is None or size is None:
            self._left_out += name != "snapshot"
            return None
        return AllocatorEvent(
            action=action,
            address=_number(entry.get("addr")),
            event_bytes=size,
            stack=self._stack(entry.get("frames")),
            time_us=_number(entry.get("time_us")),
            device_free_bytes=_number(entry.get("device_free")),
        )

    def _stack(self, frames: Any) -> int | None:
        """Gives the position of a list of frames; null for none."""
        if not isinstance(frames, list) or not frames:
            return None
        if id(frames) in self._stack_of_list:
            return self._stack_of_list[id(frames)]
        stack = tuple(filter(None, map(_frame, self._dicts(frames[:_MOST_FRAMES]))))
        at = None
        if stack:
            at = self._stack_of_frames.setdefault(stack, len(self._stacks))
            if at == len(self._stacks):
                self._stacks.append(stack)
        self._stack_of_list[id(frames)] = at
        return at


def _frame(entry: Mapping[str, Any]) -> StackFrame | None:
    file, function, line = entry.get("filename"), entry.get("name"), _number(entry.get("line"))
    if not isinstance(file, str) or not isinstance(function, str):
        return None
    return StackFrame(file, line or 0, function)


def _number(value: object) -> int | None:
    """A number of bytes, an address or a time; null for anything else."""
    return value if type(value) is int and 0 <= value < _LARGEST_NUMBER else None


def _pool(value: object) -> tuple[int, int] | None:
    """The private pool of a segment; null for the common one."""
    parts = [_number(part) for part in value] if isinstance(value, Sequence) and not isinstance(value, str) else []
    first, second = parts if len(parts) == 2 else (0, 0)
    return (first or 0, second or 0) if first or second else None
