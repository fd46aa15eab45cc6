"""Tells the usage of this process so far.

Not every system tells it: `resource` is a module of POSIX systems only.
"""

import math
import os
import sys
import time

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

_MOST_TASKS = 4096


def minor_page_faults() -> int:
    """Counts the pages that this process got without reading a disk.

    They are 0 where the system does not tell.
    """
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_faults_of(process: int) -> int | None:
    """Counts the pages that a process got without reading a disk.

    Null where the system does not tell, or the process is gone.
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:  # noqa: PTH123
            return int(stat.read().rpartition(b")")[2].split()[7])
    except (OSError, ValueError, IndexError):
        return None


def peak_bytes() -> float:
    """Returns the most memory that this process has ever used.

    It is infinite where the system does not tell.
    """
    if resource is None:
        return math.inf
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def seconds_since_start() -> float | None:
    """Returns the age of this process, to a hundredth of a second.

    Null where the system does not tell.
    """
    try:
        with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123 - little may be imported here
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def own_threads(most: int) -> list[int]:
    """Lists the threads of this process, so many at most.

    Empty where the system does not tell.
    """
    try:
        return [int(name) for name in os.listdir("/proc/self/task")[:most]]  # noqa: PTH208 - in the user's program
    except (OSError, ValueError):
        return []


def is_thread_at_work(name: str) -> bool:
    """True if a thread of that name computes or waits for a processor.

    It is one of this process. False where the system does not tell.
    """
    for thread in own_threads(_MOST_TASKS):
        try:
            with open(f"/proc/self/task/{thread}/stat", "rb") as stat:  # noqa: PTH123
                words, _, rest = stat.read().rpartition(b")")
        except OSError:  # it ended meanwhile
            continue
        if words.partition(b"(")[2] == name.encode() and rest.split()[0] == b"R":
            return True
    return False


def waited_for_processor_ns(process: int, thread: int | None = None) -> int | None:
    """Returns how long a thread was ready without a processor.

    It is the first of a process, unless another is named. Null where the system does not tell, or the process is gone.
    """
    try:
        path = f"/proc/{process}/task/{thread or process}/schedstat"
        with open(path, "rb") as usage:  # noqa: PTH123
            return int(usage.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def waits_by_thread(process: int) -> dict[int, int]:
    """Returns how long each thread of a process was ready without a processor.

    In nanoseconds, of so many threads at most. Empty where the system does not tell.
    """
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{process}/task")[:_MOST_TASKS]]  # noqa: PTH208
    except (OSError, ValueError):
        return {}
    waits = ((thread, waited_for_processor_ns(process, thread)) for thread in threads)
    return {thread: waited_ns for thread, waited_ns in waits if waited_ns is not None}


def bytes_from_storage() -> int | None:
    """Returns the bytes that storage was read for this process.

    What was in memory already is not among them. Null where the system does not tell.
    """
    try:
        with open("/proc/self/io", "rb") as usage:  # noqa: PTH123
            counts = dict(line.split(b": ") for line in usage.read().splitlines())
        return int(counts[b"read_bytes"])
    except (OSError, ValueError, KeyError):
        return None
