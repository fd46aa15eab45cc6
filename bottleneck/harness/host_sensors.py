"""Samples the host: CPU time of the program and of the machine, processor clocks, memory."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bottleneck.harness.sensors import Reading, taken
from bottleneck.schema.telemetry import HOST

_BEAT_S = 0.2
# Its last word is the number that the system gave out last.
_NEWEST = Path("/proc/loadavg")


class HostSampler:
    """The host's sensors by psutil. What the system does not tell is absent."""

    # The system counts CPU time in hundredths of a second; twenty of them are worth a look. A look takes a processor
    # from the program for a moment, and where its threads hold them all, they wait for the one that made room.
    shortest_beat_s = _BEAT_S

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        newest: Callable[[], str | None] | None = None,
    ) -> None:
        self.notes: list[str] = []
        self._clock, self._newest = clock, newest or newest_process

    def open(self, process: int) -> bool:
        """True if psutil is there."""
        try:
            import psutil
        except ImportError:
            self.notes.append("the host's sensors were not read: psutil is missing (pip install psutil)")
            return False
        self._program = _ProgramProcesses(psutil, process, self._newest)
        self._taken = taken(_READINGS, self._program, self._clock, 1)
        self._errors = (psutil.Error, OSError, NotImplementedError, AttributeError, RuntimeError)
        return True

    def sample(self, now_s: float) -> Sequence[tuple[str, Mapping[str, float]]]:
        """One row of what is due."""
        values: dict[str, float] = {}
        for reading in [each for each in self._taken if each.is_due(now_s)]:
            try:
                values |= reading.take(now_s)
            except self._errors:
                if reading.failed():
                    self._taken.remove(reading)
        return [(HOST, values)] if values else []

    def close(self) -> None:
        """Nothing is held."""


class _ProgramProcesses:
    """The program's processes: the one that was started, and those that it started in turn."""

    def __init__(self, psutil: Any, process: int, newest: Callable[[], str | None]) -> None:
        self.psutil = psutil
        self._root, self._newest = process, newest
        self._known: dict[Any, None] = {}
        self._unseen_s = 0.0
        self._last: str | None = None

    def find(self) -> dict[str, float | None]:
        """Looks for processes that were started since the last time, if any was, for that takes long; no column.

        What they used before they were found is left out, so that the sum does not jump.
        """
        newest = self._newest()
        if newest is not None and newest == self._last:
            return {}
        root = self.psutil.Process(self._root)
        if root not in self._known:
            self._known[root] = None
        found = [process for process in root.children(recursive=True) if process not in self._known]
        self._known |= dict.fromkeys(found)
        self._unseen_s += sum(self._used_s(process) or 0.0 for process in found)
        self._last = newest
        return {}

    def cpu_s(self) -> dict[str, float | None]:
        """User and system time of all of them, and of those that ended and were waited for."""
        each = [used for process in self._known if (used := self._used_s(process)) is not None]
        return {"process_cpu_s": sum(each) - self._unseen_s if each else None}

    def _used_s(self, process: Any) -> float | None:
        times = self._ask(process.cpu_times)
        if times is None:
            return None
        waited_for = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        return float(times.user + times.system + waited_for)

    def memory(self) -> dict[str, float | None]:
        """Resident memory of all of them; what they share counts several times."""
        each = [info.rss for process in self._known if (info := self._ask(process.memory_info))]
        return {"process_memory_bytes": sum(each) if each else None}

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer, or null where the process is gone or may not be asked."""
        try:
            return question()
        except (self.psutil.Error, OSError):
            return None


def newest_process() -> str | None:
    """The number of the process or thread that was started last on this machine; null where the system does not say."""
    try:
        newest = _NEWEST.read_text().split()[-1]
    except (OSError, IndexError):
        return None
    return newest if newest != "0" else None


def _machine_cpu(program: _ProgramProcesses) -> dict[str, float | None]:
    """Time in which processors worked, and all their time. What a guest used is part of user time."""
    times = program.psutil.cpu_times()._asdict()
    total = sum(seconds for name, seconds in times.items() if name not in {"guest", "guest_nice"})
    rest = sum(times.get(name, 0.0) for name in ("idle", "iowait", "steal"))
    return {"busy_cpu_s": total - rest, "total_cpu_s": total} if total else {}


def _clock(program: _ProgramProcesses) -> dict[str, float | None]:
    frequency = program.psutil.cpu_freq()
    return {"cpu_clock_mhz": frequency.current or None} if frequency is not None else {}


def _machine_memory(program: _ProgramProcesses) -> dict[str, float | None]:
    memory = program.psutil.virtual_memory()
    return {"memory_used_bytes": memory.total - memory.available}


_READINGS = (
    Reading((), _ProgramProcesses.find, interval_s=1.0, share=0.002),
    Reading(("process_cpu_s",), _ProgramProcesses.cpu_s, interval_s=_BEAT_S, share=0.002),
    Reading(("process_memory_bytes",), _ProgramProcesses.memory, interval_s=0.6),
    Reading(("busy_cpu_s", "total_cpu_s"), _machine_cpu, interval_s=_BEAT_S, share=0.002),
    Reading(("cpu_clock_mhz",), _clock, interval_s=0.6),
    Reading(("memory_used_bytes",), _machine_memory, interval_s=1.0),
)
