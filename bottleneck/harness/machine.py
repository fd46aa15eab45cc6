"""Reads facts of this machine from the system, without torch.

They are of its CPU, memory, control groups and cache folder.
"""

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bottleneck.schema.measurements import ChildWork, PeakMemory

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_NO_LIMIT = 2**60  # version 1 writes a huge number where nothing is limited
_OOM_KILLS = re.compile(r"^oom_kill (\d{1,18})$", re.MULTILINE)


def processor_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Returns processors' worth of time that the groups grant.

    By the strictest of them; null where none limits it.
    """
    grants = []
    for folder in _with_parents(root, membership):
        numbers = _numbers(folder / "cpu.max") or [
            *_numbers(folder / "cpu.cfs_quota_us"),
            *_numbers(folder / "cpu.cfs_period_us"),
        ]
        if len(numbers) == 2 and numbers[0] > 0 and numbers[1] > 0:
            grants.append(numbers[0] / numbers[1])
    return min(grants, default=None)


def group_memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Returns the bytes that the groups still grant.

    By the strictest of them; null where none limits it.
    """
    left = []
    for folder in _with_parents(root, membership):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = _numbers(folder / limit), _numbers(folder / used)
            if most and now and most[0] < _NO_LIMIT:
                left.append(int(max(most[0] - now[0], 0)))
    return min(left, default=None)


def count_memory_kills(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Counts the kills for lack of memory in this process's own group.

    Null where it does not count them. Version 2 counts in `memory.events`, version 1 in `memory.oom_control`.
    """
    for folder in _own_folders(root, membership):
        for name in ("memory.events", "memory.oom_control"):
            try:
                match = _OOM_KILLS.search((folder / name).read_text(encoding="utf-8"))
            except OSError:
                continue
            if match:
                return int(match[1])
    return None


def _own_folders(root: Path, membership: Path) -> list[Path]:
    """Returns the folders of the groups that this process is in.

    One per line of ``membership``.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    parts = ((*line.split(":", 2), "", "")[:3] for line in lines)
    return [root / controllers / path.lstrip("/") for _, controllers, path in parts if ".." not in path]


def _with_parents(root: Path, membership: Path) -> list[Path]:
    """Returns those folders and those of the groups around them.

    The usual ones too, which a container may see instead.
    """
    folders = [root, root / "cpu", root / "cpu,cpuacct", root / "memory"]
    for own in _own_folders(root, membership):
        folders += [parent for parent in (own, *own.parents) if parent.is_relative_to(root)]
    return list(dict.fromkeys(folders))


def _numbers(path: Path) -> list[float]:
    """Reads the numbers in a file.

    Empty where there is none, or 'max' stands for no limit.
    """
    try:
        return [float(word) for word in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError):
        return []


_CPUINFO = Path("/proc/cpuinfo")
_PROCESSORS = Path("/sys/devices/system/cpu")
_CACHES = _PROCESSORS / "cpu0/cache"
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon", "0x41": "ARM"}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

# Caches of a usual server core, for systems that do not tell.
_USUAL_L1_BYTES = 2**15
_USUAL_L2_BYTES = 2**20
_USUAL_LAST_BYTES = 32 * 2**20


@dataclass(frozen=True)
class CpuFacts:
    """The CPU as the system describes it.

    ``identity`` tells apart what shares a name (family, model, stepping).
    """

    model: str
    identity: str
    vendor: str | None
    l1_bytes: int
    l2_bytes: int
    last_level_bytes: int
    memory_bytes: int | None


def cpu_facts(cpuinfo: Path = _CPUINFO, caches: Path = _CACHES) -> CpuFacts:
    """The facts of this machine; usual cache sizes where it does not tell."""
    fields = _first_block(cpuinfo)
    model = fields.get("model name") or platform.processor() or platform.machine() or "CPU"
    sizes = _cache_sizes(caches)
    l2 = sizes.get(2, _USUAL_L2_BYTES)
    keys = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part")
    return CpuFacts(
        model=model,
        identity=" ".join([model, *(fields[key] for key in keys if key in fields)]),
        vendor=_VENDORS.get(fields.get("vendor_id", fields.get("CPU implementer", ""))),
        l1_bytes=sizes.get(1, _USUAL_L1_BYTES),
        l2_bytes=l2,
        last_level_bytes=max([l2, *sizes.values()]) if sizes else _USUAL_LAST_BYTES,
        memory_bytes=_memory_bytes(),
    )


def allowance() -> str:
    """Returns the limits on the threads of a program started here.

    They are processors that it may use, and settings that lower them.
    """
    settings = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
    return " ".join([f"{usable_processors()} processors", *settings])


def threads_from_environment() -> int | None:
    """Returns the number of threads that the environment gives to torch.

    Null where it sets none. MKL's variable goes before OpenMP's: a torch with MKL takes over the number that MKL has
    settled on.
    """
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        first = os.environ.get(name, "").partition(",")[0].strip()
        if first.isascii() and first.isdigit() and int(first) > 0:
            return int(first)
    return None


def usable_processors() -> int:
    """Processors that this process, and what it starts, may use."""
    return len(numbers_of_processors())


def numbers_of_processors(process: int = 0) -> frozenset[int]:
    """Numbers the processors that a process may use.

    Process 0 is this one. They are all of the machine where the system does not tell.
    """
    with suppress(OSError, AttributeError):  # the process is gone, or the system does not tell
        return frozenset(os.sched_getaffinity(process))
    return frozenset(range(os.cpu_count() or 1))


def processor_times(psutil: Any, numbers: Set[int]) -> Mapping[str, float]:
    """Sums the times of these processors, in seconds by their use.

    They are counted since the system started. What runs on others takes nothing from a program that may not use them.
    """
    every = psutil.cpu_times(percpu=True)
    chosen = [times._asdict() for number, times in enumerate(every) if number in numbers]
    if len(chosen) in {0, len(every)}:
        return dict(psutil.cpu_times()._asdict())
    return {name: sum(times[name] for times in chosen) for name in chosen[0]}


def usable_cores(processors: Path = _PROCESSORS) -> int | None:
    """Counts the cores that this process may use.

    Two processors may be two threads of one core. Null where the system does not tell.
    """
    try:
        siblings = [processors / f"cpu{one}/topology/thread_siblings_list" for one in numbers_of_processors()]
        return len({path.read_text() for path in siblings})
    except (OSError, ValueError):
        return None


def find_compiler() -> str | None:
    """Finds the C++ compiler that CXX names, else one of the usual names.

    Null where there is none.
    """
    named = (os.environ.get("CXX", ""), "g++", "clang++", "c++", "cc")
    return next((path for name in named if name and (path := shutil.which(name))), None)


# What torch's compiler makes for us is kept in this folder of the cache.
COMPILATIONS = "compilations"


def cache_folder() -> Path:
    """Returns our folder in the user's cache.

    A temporary one for a user without a home, as in some containers.
    """
    import platformdirs

    with suppress(RuntimeError):  # as recent versions answer for a user without a home; others give a relative path
        folder = platformdirs.user_cache_path("bottleneck", appauthor=False)
        if folder.is_absolute():
            return folder
    return Path(tempfile.gettempdir()) / f"bottleneck-{os.getuid()}"


def busy_processors() -> float:
    """Returns the load of the last minute: processors that had work.

    It is an average, of the work that waited for one too, and 0 where the system does not tell.
    """
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


def torch_version() -> str:
    """Returns the version of the torch that is installed.

    It is found without importing torch; empty when there is none.
    """
    from importlib import metadata  # reads the format of e-mail, and few commands ask for a version

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def cpu_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """Gives the CPU's instructions by the system's names; empty where unknown."""
    fields = _first_block(cpuinfo)
    return frozenset(fields.get("flags", fields.get("Features", "")).split())


def _first_block(cpuinfo: Path) -> dict[str, str]:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.split("\n\n", 1)[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines if value.strip()}


def _cache_sizes(caches: Path) -> dict[int, int]:
    """Bytes by level of the caches that serve data to the first processor."""
    sizes = {}
    for folder in sorted(caches.glob("index*")):
        try:
            level, size, kind = ((folder / name).read_text().strip() for name in ("level", "size", "type"))
            if kind != "Instruction":
                sizes[int(level)] = int(size[:-1]) * _UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return sizes


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_MEMORY = Path("/proc/meminfo")
_RESET_PEAK = "5"  # what proc(5) has one write to reset the peak resident size


def peak_resident_bytes() -> int | None:
    """Returns the most memory that this process had resident at once.

    Null where the system does not tell.
    """
    return _entry(_STATUS, "VmHWM:")


def available_bytes(root: Path = ROOT, membership: Path = MEMBERSHIP, meminfo: Path = _MEMORY) -> int | None:
    """Returns the memory that can be had without swapping.

    Within the limits of the control groups; null where neither is known.
    """
    amounts = (_entry(meminfo, "MemAvailable:"), group_memory_left(root, membership))
    return min((amount for amount in amounts if amount is not None), default=None)


def reset_peak(torch: Any) -> bool:
    """Makes the peak begin anew; true if the system allowed it.

    Never for a script: it may ask for its peak itself.
    """
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
    """Returns the peak since it was made to begin anew.

    Else since the program started. It is of its fullest GPU, or the process.
    """
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
    """Returns the peak of a script since it started: its GPU's.

    That of the process holds what our own first windows took.
    """
    if is_on_gpu(torch):
        return peak_memory(torch, was_reset=False)
    return PeakMemory(None, "process", "start", "the peak of a script's process holds what profiling took, too")


def is_on_gpu(torch: Any) -> bool:
    """True if the program has used a GPU; asking wakes none."""
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized())


def measure_child_work() -> ChildWork:
    """Returns the CPU time of this process and of those that it started.

    As far as it has waited for these.
    """
    spent = os.times()
    # The counter of multiprocessing's processes, which shows the next number: "count(3)".
    counter = getattr(sys.modules.get("multiprocessing.process"), "_process_counter", None)
    number = re.fullmatch(r"count\((\d+)\)", repr(counter))
    processes = int(number[1]) - 1 if number else 0
    children_s = spent.children_user + spent.children_system
    return ChildWork(spent.user + spent.system, children_s, processes or None)


def _entry(path: Path, name: str) -> int | None:
    """The bytes of a line such as 'VmHWM:   1024 kB'."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), None)
    except (OSError, ValueError, IndexError):
        return None
