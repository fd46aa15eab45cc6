"""What the control groups of this process leave it: processors and memory; containers limit both."""

from pathlib import Path

_ROOT, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_NO_LIMIT = 2**60  # version 1 writes a huge number where nothing is limited


def processor_quota(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> float | None:
    """Processors' worth of time that the groups grant, by the strictest of them; null where none limits it."""
    grants = []
    for folder in _folders(root, membership):
        words = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(words) == 2 and words[0] > 0 and words[1] > 0:
            grants.append(words[0] / words[1])
    return min(grants, default=None)


def memory_left(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int | None:
    """Bytes that the groups and the machine still have, whichever is less; null where neither tells."""
    left = [] if (machine := _machine_memory()) is None else [machine]
    for folder in _folders(root, membership):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = _words(folder / limit), _words(folder / used)
            if most and now and most[0] < _NO_LIMIT:
                left.append(int(max(most[0] - now[0], 0)))
    return min(left, default=None)


def _folders(root: Path, membership: Path) -> list[Path]:
    """The folders of the groups that this process is in, and of those around them."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [root, root / "cpu", root / "cpu,cpuacct", root / "memory"]
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        inside = root / controllers / path.lstrip("/") if controllers else root / path.lstrip("/")
        if ".." not in path:
            found += [each for each in (inside, *inside.parents) if each.is_relative_to(root)]
    return list(dict.fromkeys(found))


def _words(path: Path) -> list[float]:
    """The numbers in a file; empty where there is none, or 'max' stands for no limit."""
    try:
        return [float(word) for word in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError):
        return []


def _machine_memory() -> int | None:
    try:
        import psutil

        return int(psutil.virtual_memory().available)
    except (ImportError, OSError, RuntimeError):
        return None
