"""Tells the usage of this process so far.

Not every system tells it: `resource` is a module of POSIX systems only.
"""

import math
import sys

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]


def minor_page_faults() -> int:
    """Counts the pages that this process got without reading a disk.

    They are 0 where the system does not tell.
    """
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_bytes() -> float:
    """Returns the most memory that this process has ever used.

    It is infinite where the system does not tell.
    """
    if resource is None:
        return math.inf
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
