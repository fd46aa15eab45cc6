"""What this machine says of its CPU, without torch: model, vendor, caches, and how many threads a program may use."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon", "0x41": "ARM"}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

# Caches of a usual server core, for systems that do not tell.
_USUAL_L1_BYTES = 2**15
_USUAL_L2_BYTES = 2**20
_USUAL_LAST_BYTES = 32 * 2**20


@dataclass(frozen=True)
class CpuFacts:
    """The CPU as the system describes it; ``identity`` tells apart what shares a name (family, model, stepping)."""

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
    """What limits the threads of a program started here: processors that it may use, and settings that lower them."""
    settings = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ]
    return " ".join([f"{usable_processors()} processors", *settings])


def usable_processors() -> int:
    """Processors that this process, and what it starts, may use."""
    return len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))


def busy_processors() -> float:
    """Processors kept busy on average over the last minute; 0 where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0.0


def torch_version() -> str:
    """The version of the torch that is installed, found without importing it; empty when there is none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _first_block(cpuinfo: Path) -> dict[str, str]:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.split("\n\n", 1)[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines if value.strip()}


def _cache_sizes(caches: Path) -> dict[int, int]:
    """Bytes by level of the caches that serve data to the first processor."""
    found = {}
    for folder in sorted(caches.glob("index*")):
        try:
            level, size, kind = ((folder / name).read_text().strip() for name in ("level", "size", "type"))
            if kind != "Instruction":
                found[int(level)] = int(size[:-1]) * _UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return found


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
