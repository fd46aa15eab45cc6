"""Memory that the profiler makes a program ask for, put at hand before the steps that are to be profiled.

The profiler keeps some small blocks of each op until the window closes. glibc takes them from the bytes that it cuts
off behind every aligned block, so behind each tensor; where the tensor is freed there is then a place that fits it but
for those bytes, and asking for an aligned block takes them again. So each profiled step has to take fresh memory for
nearly all of its tensors, and pays a page fault for every 4 kB, thousands of them, which the program alone does not
have (seen with glibc 2.36). Memory at the end of the heap that has been touched before spares the steps that.
"""

import ctypes
import math
import os
import resource
from typing import Any

from bottleneck.harness.machine import available_bytes

# Below 128 kB, from where glibc may map a block outside the heap.
_BLOCK_BYTES, _BLOCKS_AT_ONCE = 64 * 1024 - 64, 16

# The first profiled steps still find old places for their tensors.
_LATER_FAULTS = 2.0
# Fewer than these cost a step next to nothing.
_FAULTS_AT_LEAST = 128
# A step that has its own page faults is to keep them.
_OWN_SHARE_AT_MOST = 0.25

_MOST_BYTES, _MOST_SHARE_OF_AVAILABLE = 256e6, 1 / 8
# How much of the heap may be searched for the part that is new, in multiples of what is wanted.
_SEARCH = 4


class PageFaults:
    """Counts the minor page faults of this process, in all its threads, from when it is made."""

    def __init__(self) -> None:
        self._before = _page_faults()

    @property
    def so_far(self) -> int:
        """Those since it was made."""
        return _page_faults() - self._before


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class StepFaults:
    """Page faults of a profiled step and of an unprofiled one, counted as the program goes from phase to phase."""

    def __init__(self) -> None:
        self.profiled = self.unprofiled = 0.0
        self._faults, self._first = PageFaults(), 0

    def begin(self, step: int) -> None:
        """Counts from this step on."""
        self._faults, self._first = PageFaults(), step

    def end_profiled(self, step: int) -> None:
        """Takes those of each step since then as those of a profiled one."""
        self.profiled = self._per_step(step)

    def end_unprofiled(self, step: int) -> None:
        """Takes those of each step since then as those of an unprofiled one."""
        self.unprofiled = self._per_step(step)

    def _per_step(self, step: int) -> float:
        return self._faults.so_far / max(step - self._first, 1)

    def pages_wanted(self, in_first: int, steps: int) -> int:
        """Pages that the steps of a window would have to take anew and unprofiled ones not, from those of its first."""
        profiled = max(self.profiled, in_first)
        if profiled < _FAULTS_AT_LEAST or self.unprofiled > _OWN_SHARE_AT_MOST * profiled:
            return 0
        return min(math.ceil(_LATER_FAULTS * profiled * steps), _most_pages())


def _most_pages() -> int:
    """As much as may be taken from this machine; none where it does not tell what it has."""
    available = available_bytes()
    if available is None:
        return 0
    return int(min(_MOST_BYTES, _MOST_SHARE_OF_AVAILABLE * available) // os.sysconf("SC_PAGE_SIZE"))


class Room:
    """Pages at the end of the heap, touched and free; one block in use behind them keeps glibc from returning them.

    Elsewhere than under glibc nothing is done: other allocators keep small blocks apart from large ones.
    """

    def __init__(self, pages: int) -> None:
        libc = ctypes.CDLL(None)
        self._free: Any = libc.free
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._last: int | None = None
        if hasattr(libc, "gnu_get_libc_version") and pages > 0:
            self._fill(libc, pages)

    def _fill(self, libc: Any, pages: int) -> None:
        """Takes blocks until that many pages were new, then gives all but the last back: it lies behind the others."""
        libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        libc.memset.argtypes, libc.memset.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p
        most_blocks = _SEARCH * pages * os.sysconf("SC_PAGE_SIZE") // _BLOCK_BYTES + 1
        blocks: list[int] = []
        new = PageFaults()
        try:
            while new.so_far < pages and len(blocks) < most_blocks:
                for _ in range(_BLOCKS_AT_ONCE):
                    block = libc.malloc(_BLOCK_BYTES)
                    if block is None:
                        return
                    blocks.append(block)
                    libc.memset(block, 0, _BLOCK_BYTES)
            self._last = blocks.pop()
        finally:
            for block in blocks:
                self._free(block)

    def leave(self) -> None:
        """Lets glibc return what is still free."""
        last, self._last = self._last, None
        if last is not None:
            self._free(last)
