"""How a program ended, in plain words, with what the system knows about a death for lack of memory."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from bottleneck.harness.supervisor import End

_MEANINGS = {
    signal.SIGHUP: "its terminal or session ended",
    signal.SIGINT: "it was interrupted",
    signal.SIGQUIT: "it was told to quit",
    signal.SIGILL: "native code used an instruction that this processor lacks",
    signal.SIGABRT: "native code gave up, after a failed check or a corrupted heap",
    signal.SIGBUS: "native code read memory that could not be had: often /dev/shm is too small for a data loader",
    signal.SIGFPE: "native code divided by zero",
    signal.SIGSEGV: "native code crashed",
    signal.SIGPIPE: "the reader of its output went away",
    signal.SIGTERM: "it was told to end, as batch systems and containers do",
    signal.SIGXCPU: "its limit of CPU time was reached",
}
_OOM_KILLS = re.compile(r"^oom_kill (\d{1,18})$", re.MULTILINE)


@dataclass(frozen=True)
class MemoryKills:
    """The kills for lack of memory that the program's control group counted before it began; null where unknown."""

    before: int | None

    def since(self) -> int | None:
        """The kills since then."""
        now = count_memory_kills()
        return None if now is None or self.before is None else now - self.before


def count_memory_kills(root: Path = Path("/")) -> int | None:
    """How often the kernel killed for lack of memory in our control group; null where it does not say.

    Version 2 counts in `memory.events`, version 1 in `memory.oom_control`.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        files = {
            "": f"sys/fs/cgroup{path}/memory.events",
            "memory": f"sys/fs/cgroup/memory{path}/memory.oom_control",
        }
        try:
            found = _OOM_KILLS.search((root / files[controllers]).read_text())
        except (KeyError, OSError):
            continue
        if found:
            return int(found[1])
    return None


def describe_end(end: End, steps: int | None, memory_kills: int | None) -> str:
    """One sentence without a full stop; ``steps`` are those that were seen, null where they were not counted."""
    after = f" after {steps} step{'s' * (steps != 1)}" if steps is not None else ""
    if end.signal is None:
        return f"the program ended with status {end.status}{after}"
    told = f"the program ended by signal {end.signal} ({_name(end.signal)}){after}"
    if end.signal == signal.SIGKILL:
        return f"{told}: {_killed(end, memory_kills)}"
    meaning = _MEANINGS.get(signal.Signals(end.signal)) if end.signal in _numbers() else None
    return f"{told}: {meaning}" if meaning else told


def _killed(end: End, memory_kills: int | None) -> str:
    held = f"one of its processes held {end.peak_memory_bytes / 1e9:.2g} GB of memory"
    if memory_kills:
        return f"the system killed it for lack of memory; {held}"
    if memory_kills == 0:
        return f"it was killed; not for lack of memory, by what its control group counts, though {held}"
    return f"it was killed, perhaps by the system for lack of memory; {held}"


def _numbers() -> frozenset[int]:
    return frozenset(signal.Signals)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in _numbers() else "real-time"
