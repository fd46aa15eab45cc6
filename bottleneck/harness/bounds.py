"""How far a window may go beside its budget of events: in memory, because each event takes some, and in seconds."""

import math
import os
import resource
import sys
import time
from pathlib import Path

MOST_GROWTH_BYTES, MOST_SECONDS = 1e9, 60.0


class Bounds:
    """Counts from when it is made, which is when the window opens.

    Memory counts beyond what the process has ever had in use: a step that allocates as much as the one before is none
    of the window's doing.
    """

    def __init__(self) -> None:
        self._since_s, self._usual_bytes = time.perf_counter(), max(peak_bytes(), resident_bytes())

    def passed(self) -> str | None:
        """The bound that the window has reached, in words; null while there is none."""
        if self.is_memory_passed():
            return f"{MOST_GROWTH_BYTES / 1e9:g} GB of memory"
        if time.perf_counter() - self._since_s >= MOST_SECONDS:
            return f"{MOST_SECONDS:g} s"
        return None

    def is_memory_passed(self) -> bool:
        """Whether it is the memory; false where the system does not tell."""
        size_bytes = resident_bytes()
        return math.isfinite(size_bytes) and size_bytes - self._usual_bytes > MOST_GROWTH_BYTES


def resident_bytes() -> float:
    """Memory that this process has in use; infinite where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return math.inf
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def peak_bytes() -> float:
    """The most memory that this process has ever had in use."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
