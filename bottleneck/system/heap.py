"""Tells and fills the heap of this process, where the C library is glibc.

glibc cuts a few bytes off at both ends of a block that has to be aligned, as those of tensors have. What a profiler
keeps for each op lands in such cuts. The block then no longer joins them when it is freed, so that the next tensor of
its size does not fit in and is written to new pages. Their first touch takes longer than most ops do. A stretch of free
memory in the heap, touched already, takes such tensors in.
"""

import ctypes
import functools

# Below the size from which glibc maps a block apart from the heap (M_MMAP_THRESHOLD is 128 KiB at first).
_PIECE_BYTES = 64 * 1024


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
    except (AttributeError, OSError, TypeError):
        return None
    return library


def free_heap_bytes() -> int:
    """Returns the bytes of the heap that nothing uses.

    They are 0 where the C library does not tell.
    """
    library = _c_library()
    return 0 if library is None else int(library.mallinfo2().fordblks)


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
        library = _c_library()
        if library is None or not self._barriers:
            return
        for barrier in self._barriers:
            library.free(barrier)
        library.malloc_trim(0)
        self._barriers, self.bytes = [], 0
