"""Gives freed memory back to the system between the steps of an analysis; no step's result depends on it."""

import ctypes
import sys

# Below this peak little is to be had, and the next step would take the same pages again: of a report of 80 MB that is
# a third of all page faults.
_WORTH_KIB = 256 * 1024


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system where the C library keeps it, which is glibc.

    It keeps up to 64 MB on top of the heap, and all holes in it: 0.1 GB after the linking of a trace of 1 GB. The call
    takes milliseconds.
    """
    if sys.platform != "linux":
        return

    import resource  # noqa: PLC0415 - not on every system

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >= _WORTH_KIB:
        trim(0)
