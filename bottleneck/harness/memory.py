"""What Linux and torch say about memory: how much this process used at most, and how much is still to be had."""

from pathlib import Path
from typing import Any, Literal

from bottleneck.measured import PeakMemory

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_MEMORY = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_RESET_PEAK = "5"  # what proc(5) has one write to reset the peak resident size


def peak_resident_bytes() -> int | None:
    """Most memory that this process had resident at once; null where the system does not tell."""
    return _entry(_STATUS, "VmHWM:")


def available_bytes() -> int | None:
    """Memory that can be had without swapping, within the limit of this process's control group; null if not told."""
    amounts = [amount for amount in (_entry(_MEMORY, "MemAvailable:"), _group_bytes()) if amount is not None]
    return min(amounts) if amounts else None


def reset_peak(torch: Any) -> bool:
    """Makes the peak begin anew; whether the system allowed it. Never for a script: it may ask for its peak itself."""
    if is_on_gpu(torch):
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)
        return True
    try:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def peak_memory(torch: Any, *, was_reset: bool) -> PeakMemory:
    """The peak since it was made to begin anew, else since the program started: of its fullest GPU, or the process."""
    since: Literal["steps", "start"] = "steps" if was_reset else "start"
    if is_on_gpu(torch):
        cuda = torch.cuda
        fullest = max(range(cuda.device_count()), key=cuda.max_memory_allocated)
        reserved_bytes = cuda.max_memory_reserved(fullest)
        return PeakMemory(cuda.max_memory_allocated(fullest), "device", since, reserved_bytes=reserved_bytes)
    peak = peak_resident_bytes()
    reason = None if peak is not None else "the system does not tell what a process had resident"
    return PeakMemory(peak, "process", since, reason)


def peak_of_script(torch: Any) -> PeakMemory:
    """The peak of a script since it started: its GPU's. That of the process holds what our own first windows took."""
    if is_on_gpu(torch):
        return peak_memory(torch, was_reset=False)
    return PeakMemory(None, "process", "start", "the peak of a script's process holds what profiling took, too")


def is_on_gpu(torch: Any) -> bool:
    """Whether the program has used a GPU; asking wakes none."""
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized())


def _entry(path: Path, name: str) -> int | None:
    """The bytes of a line such as 'VmHWM:   1024 kB'."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), None)
    except (OSError, ValueError, IndexError):
        return None


def _group_bytes() -> int | None:
    """What the control group (version 2) of this process may still take; null where it has no limit."""
    try:
        group = _GROUPS / _OWN_GROUP.read_text(encoding="utf-8").rpartition("::/")[2].strip()
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        return max(int(limit) - int(used), 0)
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return None
