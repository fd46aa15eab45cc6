"""Tells and fills the heap of this process, where the C library is glibc.

glibc cuts a few bytes off at both ends of a block that has to be aligned, as those of tensors have. What a profiler
keeps for each op lands in such cuts. The block then no longer joins them when it is freed, so that the next tensor of
its size does not fit in and is written to new pages. Their first touch takes longer than most ops do. A stretch of free
memory in the heap, touched already, takes such tensors in.
"""

import ctypes
import functools
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Variables with which glibc keeps the memory that a process frees: no block is mapped by itself, nothing is trimmed.
KEEPS_MEMORY = f"MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_={2**62}"

# Below the size from which glibc maps a block apart from the heap (M_MMAP_THRESHOLD is 128 KiB at first).
_PIECE_BYTES = 64 * 1024
_PAGE_BYTES = mmap.PAGESIZE
# Half a gigabyte of events, and what a step of the program has freed at its end.
_MOST_FILLED_BYTES = 2 * 2**30


class _HeapUsage(ctypes.Structure):
    """The result of ``mallinfo2``, in its order."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    """Returns glibc with the calls that are needed here.

    Null for another C library, or one before 2.33.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - no other library has it
        library.mallinfo2.restype = _HeapUsage
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
        library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        library.malloc_trim.argtypes = [ctypes.c_size_t]
        library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        library.sbrk.restype, library.sbrk.argtypes = ctypes.c_size_t, [ctypes.c_ssize_t]
    except (AttributeError, OSError, TypeError):
        return None
    return library


def free_heap_bytes() -> int:
    """Returns the bytes of the heap that nothing uses.

    They are 0 where the C library does not tell.
    """
    library = _c_library()
    return 0 if library is None else int(library.mallinfo2().fordblks)


class HeapLimits(NamedTuple):
    """Sizes by which glibc maps blocks apart, and shrinks the heap.

    They are in bytes.
    """

    trim: int
    mmap: int


# Of glibc's malloc_par: trim_threshold, top_pad, mmap_threshold, arena_test, arena_max (malloc/malloc.c).
_PARAMETERS = ctypes.c_uint64 * 5
_TOP_PAD, _ARENA_TEST = 128 * 1024, 8
_DATA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw\S* .*/libc(?:-[\d.]+)?\.so(?:\.6)?$", re.MULTILINE)


def read_limits() -> HeapLimits | None:
    """Reads the limits that glibc has by now.

    Null where they are not its own: it is another library, or they were set by hand.
    """
    parameters = _parameters()
    return None if parameters is None else HeapLimits(parameters[0], parameters[2])


def restore_limits(limits: HeapLimits | None) -> None:
    """Lowers the limits to these.

    The heap goes on as if nothing of ours had been freed. A freed block that was mapped apart raises both for good:
    later blocks of its size stay in the heap, and their pages are not taken anew. What a profiler frees would so mend
    what is to be measured.
    """
    parameters = _parameters()
    if parameters is not None and limits is not None and limits.mmap < parameters[2]:
        parameters[0], parameters[2] = limits.trim, limits.mmap


@functools.cache
def _parameters() -> "ctypes.Array[ctypes.c_uint64] | None":
    """Finds glibc's parameters in its data.

    There is no call that reads them, and the one that sets them keeps glibc from adapting them any more.
    """
    if _c_library() is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    matching = [address for begin, end in _data_of_library() for address in _matching(begin, end)]
    return _PARAMETERS.from_address(matching[0]) if len(matching) == 1 else None


def _data_of_library() -> Iterator[tuple[int, int]]:
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for begin, end in _DATA.findall(maps):
        yield int(begin, 16), int(end, 16)


def _matching(begin: int, end: int) -> Iterator[int]:
    """Yields the addresses of words that look like the parameters.

    It is as glibc keeps them by itself.
    """
    words = (ctypes.c_uint64 * ((end - begin) // 8)).from_address(begin)
    values = list(words)
    for at in range(len(values) - 4):
        trim, top_pad, mmap, arena_test, arena_max = values[at : at + 5]
        if (top_pad, arena_test, arena_max) == (_TOP_PAD, _ARENA_TEST, 0) and trim in {2 * mmap, _TOP_PAD}:
            yield begin + 8 * at


class UsualHeap:
    """The heap as the program has it without a profiler's records.

    The limits are those at the time when this is made: what the program frees raises them again to what it needs.
    Blocks take up all that is free. A program whose tensors find room in what a profiler has freed would take no new
    pages any more; with these blocks it takes them as in a heap of its own. What it frees itself comes back as ever.
    """

    def __init__(self) -> None:
        self._limits, self._blocks = read_limits(), list[int]()

    def restore(self) -> None:
        """Makes the heap what it was, after records were freed.

        Call it in the thread whose ops are to do without what is free.
        """
        restore_limits(self._limits)
        library, free_bytes = _c_library(), free_heap_bytes()
        if library is None or free_bytes > _MOST_FILLED_BYTES:
            return
        end = library.sbrk(0)
        for _ in range(free_bytes // _PIECE_BYTES):
            block = library.malloc(_PIECE_BYTES)
            if block is None:
                break
            self._blocks.append(block)
            if block >= end:  # the heap grows: nothing of this size is free
                break
            # Its pages go to the system.
            begin = -(-block // _PAGE_BYTES) * _PAGE_BYTES
            library.madvise(begin, (block + _PIECE_BYTES) // _PAGE_BYTES * _PAGE_BYTES - begin, mmap.MADV_DONTNEED)

    def release(self) -> None:
        """Gives back what was taken up, with the limits as they were.

        Nothing more is measured, and the program goes on.
        """
        restore_limits(self._limits)
        _give_back(self._blocks)


def _give_back(blocks: list[int]) -> None:
    """Frees these blocks, and gives what is free of the heap back."""
    library = _c_library()
    if library is None or not blocks:
        return
    for block in blocks:
        library.free(block)
    library.malloc_trim(0)
    blocks.clear()


class SpareHeap:
    """Free memory of the heap that the system has handed out already.

    Blocks above it stay in use, so that the heap does not shrink past it. Without glibc there is none.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._barriers: list[int] = []

    def provide(self, size_bytes: float) -> None:
        """Makes so much of it in all, beside what is free.

        Call it in the thread whose ops are to use it: each thread may have a heap of its own.
        """
        library, more_bytes = _c_library(), int(size_bytes) - self.bytes
        if library is None or more_bytes < 2 * _PIECE_BYTES:
            return
        # The first pieces fill what is free already, which the program's own tensors come back to.
        count = (more_bytes + free_heap_bytes()) // _PIECE_BYTES
        pieces = []
        for _ in range(count):
            piece = library.malloc(_PIECE_BYTES)
            if piece is None:
                break
            library.memset(piece, 0, _PIECE_BYTES)
            pieces.append(piece)
        if not pieces:
            return
        barrier = max(pieces)
        self._barriers.append(barrier)
        self.bytes += more_bytes
        for piece in pieces:
            if piece != barrier:
                library.free(piece)

    def release(self) -> None:
        """Gives it back to the system, with what else of the heap is free."""
        if self._barriers:
            _give_back(self._barriers)
            self.bytes = 0
