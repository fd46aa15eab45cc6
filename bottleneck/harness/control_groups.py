"""Reads this process's control groups, versions 1 and 2: processor quota, memory left, kills for lack of memory."""

import re
from pathlib import Path

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_NO_LIMIT = 2**60  # version 1 writes a huge number where nothing is limited
_OOM_KILLS = re.compile(r"^oom_kill (\d{1,18})$", re.MULTILINE)


def processor_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Processors' worth of time that the groups grant, by the strictest of them; null where none limits it."""
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
    """Bytes that the groups still grant, by the strictest of them; null where none limits it."""
    left = []
    for folder in _with_parents(root, membership):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = _numbers(folder / limit), _numbers(folder / used)
            if most and now and most[0] < _NO_LIMIT:
                left.append(int(max(most[0] - now[0], 0)))
    return min(left, default=None)


def count_memory_kills(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """The number of kills for lack of memory in this process's own group; null where it does not count them.

    Version 2 counts in `memory.events`, version 1 in `memory.oom_control`.
    """
    for folder in _own_folders(root, membership):
        for name in ("memory.events", "memory.oom_control"):
            try:
                found = _OOM_KILLS.search((folder / name).read_text(encoding="utf-8"))
            except OSError:
                continue
            if found:
                return int(found[1])
    return None


def _own_folders(root: Path, membership: Path) -> list[Path]:
    """The folders of the groups that this process is in, one per line of ``membership``."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    parts = ((*line.split(":", 2), "", "")[:3] for line in lines)
    return [root / controllers / path.lstrip("/") for _, controllers, path in parts if ".." not in path]


def _with_parents(root: Path, membership: Path) -> list[Path]:
    """Those folders and those of the groups around them; the usual ones, too, which a container may see instead."""
    found = [root, root / "cpu", root / "cpu,cpuacct", root / "memory"]
    for own in _own_folders(root, membership):
        found += [each for each in (own, *own.parents) if each.is_relative_to(root)]
    return list(dict.fromkeys(found))


def _numbers(path: Path) -> list[float]:
    """The numbers in a file; empty where there is none, or 'max' stands for no limit."""
    try:
        return [float(word) for word in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError):
        return []
