"""Keeps the memory of an analysis small.

A temporary file holds what is too large, and freed pages are given back. No result depends on either.
"""

import ctypes
import functools
import math
import sys
import tempfile
import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from bottleneck.errors import WorkloadError
from bottleneck.system.process_usage import peak_bytes

P = ParamSpec("P")
R = TypeVar("R")

_HELD_BYTES = 32 * 2**20
# Below this peak little is to be had, and the next step would take the same pages again: of a report of 80 MB that is
# a third of all page faults.
_WORTH_BYTES = 256 * 2**20


class Spool:
    """Bytes in a temporary file, in memory as long as they are few.

    The file lies in the folder for temporary files (TMPDIR). It has no name and is gone with this object.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_HELD_BYTES)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)
        self._size = 0

    def reserve(self, size: int) -> int:
        """The position of so many new bytes, to be written later."""
        self._size += size
        return self._size - size

    def write(self, position: int, data: bytes) -> None:
        """Puts bytes at a position that was reserved."""
        try:
            self._file.seek(position)
            self._file.write(data)
        except OSError as exc:
            raise WorkloadError(
                f"cannot write to the folder for temporary files, {tempfile.gettempdir()}",
                why=exc.strerror or str(exc),
                fix="make room, or name another folder: TMPDIR=/folder",
            ) from exc

    def read(self, position: int, size: int) -> bytes:
        """The bytes at a position."""
        self._file.seek(position)
        data: bytes = self._file.read(size)
        return data


def returns_memory(stage: Callable[P, R]) -> Callable[P, R]:
    """Wraps a stage so that it gives back freed memory at its end."""

    @functools.wraps(stage)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        result = stage(*arguments, **options)
        return_freed_memory()
        return result

    return run


def return_freed_memory() -> None:
    """Gives freed memory back to the system where the C library keeps it.

    That is glibc: it keeps up to 64 MB on top of the heap, and all holes in it: 0.1 GB after the linking of a trace of
    1 GB. The call takes milliseconds.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and _WORTH_BYTES <= peak_bytes() < math.inf:
        trim(0)
