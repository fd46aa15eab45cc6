"""Samples the machine's sensors in the supervisor into a bounded log.

Each sampler has a thread.

The sampler of the host is here: CPU time of the program and of the machine, processor clocks, memory.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bottleneck.harness.machine import numbers_of_processors, processor_times
from bottleneck.schema.telemetry import HOST, Sample, sound
from bottleneck.system.process_usage import waits_by_thread

# Costs are judged by the least of so many: one that was interrupted by other programs says nothing.
_COSTS = 3
_MOST_FAILURES = 5


@dataclass(frozen=True)
class Reading:
    """Columns that a call may give, the call, and how often it is made.

    ``interval_s`` is the time in which the value changes. ``share`` is the part of the time that the call may take up:
    a slow driver is asked less often, for its calls take locks that the program needs too.
    """

    columns: tuple[str, ...]
    read: Callable[[Any], Mapping[str, float | None]]
    interval_s: float = 0.0
    share: float = 0.001


class Taken:
    """A reading of one source as time goes on.

    ``source`` is what the call takes, ``clock`` tells seconds. ``crowd`` is the number of sources that share the time
    for this reading.
    """

    def __init__(self, reading: Reading, source: Any, clock: Callable[[], float], crowd: int = 1) -> None:
        self.reading = reading
        self._source, self._clock = source, clock
        self._share = reading.share / crowd
        self._costs_s: deque[float] = deque(maxlen=_COSTS)
        self._due_s = 0.0
        self._failures = 0

    def is_due(self, now_s: float) -> bool:
        """True if it is time again; a beat that comes a little early counts."""
        return now_s + 1e-3 >= self._due_s

    def take(self, now_s: float) -> dict[str, float]:
        """The values by column; raises what the call raises."""
        began_s = self._clock()
        try:
            values = self.reading.read(self._source)
            self._failures = 0
            return sound(values)
        finally:
            self._costs_s.append(self._clock() - began_s)
            self._due_s = now_s + max(self.reading.interval_s, min(self._costs_s) / self._share)

    def failed(self) -> bool:
        """Counts a failure that may pass.

        Tells whether it has been one too many in a row.
        """
        self._failures += 1
        return self._failures >= _MOST_FAILURES


Span = tuple[float, float]

_MOST_SAMPLES = 20_000
_FRESH_NS = 10e9


class SensorLog:
    """Holds samples of several threads.

    When full, every second sample of each sensor goes, but not the newest.

    ``spans`` tells which stretches of the wall clock were measured, in ns: samples there are all kept, and around them.
    """

    def __init__(self, spans: Callable[[], Sequence[Span]] = tuple, most: int = _MOST_SAMPLES) -> None:
        self._spans, self._most = spans, most
        self._limit = most
        self._samples: list[Sample] = []
        self._lock = threading.Lock()

    def add(self, sample: Sample) -> None:
        """Appends a sample."""
        with self._lock:
            self._samples.append(sample)
            if len(self._samples) > self._limit:
                self._samples = _thinned(self._samples, self._spans())
                # Where most is worth keeping, thinning again at once would gain nothing.
                self._limit = max(self._most, len(self._samples) + self._most // 4)

    def samples(self) -> tuple[Sample, ...]:
        """The samples, oldest first."""
        with self._lock:
            return tuple(sorted(self._samples, key=lambda sample: sample.elapsed_s))


def _thinned(samples: Sequence[Sample], spans: Sequence[Span]) -> list[Sample]:
    """The samples without every second old one of each sensor outside the spans."""
    newest_ns = max(sample.unix_ns for sample in samples)
    kept_samples: list[Sample] = []
    is_next: dict[str, bool] = {}
    for sample in samples:
        is_next[sample.sensor] = not is_next.get(sample.sensor, False)
        is_fresh = sample.unix_ns >= newest_ns - _FRESH_NS
        # For a second around it counters are read for the ends of a span.
        is_measured = any(start - 1e9 <= sample.unix_ns <= end + 1e9 for start, end in spans)
        if is_fresh or is_next[sample.sensor] or is_measured:
            kept_samples.append(sample)
    return kept_samples


# A driver that does not answer must not keep the report waiting.
_PATIENCE_S = 1.0
# What a sampler may take of a processor. Where waking up is dear or devices are many, its ticks come less often.
# The first samples may be dearer than those that follow.
_MOST_CPU_SHARE, _CREDIT_S = 0.01, 0.01

Values = Mapping[str, float]


class Sampler(Protocol):
    """The sensors of one vendor, or of the host.

    All calls come from one thread.

    ``shortest_beat_s`` is the time between calls below which nothing is gained. ``notes`` fill with what the user
    should know: why there is no sensor, which device was lost.
    """

    notes: list[str]
    shortest_beat_s: float

    def open(self, process: int) -> bool:
        """True if there is anything to sample beside the program, whose process this is."""
        ...

    def sample(self, now_s: float) -> Sequence[tuple[str, Values]]:
        """Reads the sensors that are due at this time.

        Gives the name of each sensor with its values by column.
        """
        ...

    def close(self) -> None:
        """Lets go of the library."""
        ...


def make_samplers() -> tuple[Sampler, ...]:
    """Makes a sampler of each vendor and that of the host.

    Each finds out when it is opened whether it has any sensor.
    """
    from bottleneck.harness.nvml import NvmlSampler

    return NvmlSampler(), HostSampler()


@dataclass(frozen=True)
class Clock:
    """The source of the time.

    Tests give their own. ``wait`` ends early, with true, when the event is set.
    """

    unix_ns: Callable[[], int] = time.time_ns
    monotonic_s: Callable[[], float] = time.perf_counter
    thread_s: Callable[[], float] = time.thread_time
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait


@dataclass
class Beat:
    """Ticks at multiples of a period.

    Those that are past when it is asked for the next are left out and counted.
    """

    period_s: float
    ticks: int = 0
    missed: int = 0
    _last: int = 0

    def next_s(self, now_s: float) -> float:
        """The time of the next tick, which lies after now."""
        following = max(self._last, math.floor(now_s / self.period_s + 1e-9)) + 1
        self.missed += following - self._last - 1
        self._last = following
        self.ticks += 1
        return following * self.period_s


@dataclass(frozen=True)
class Telemetry:
    """The samples of all sensors.

    ``cpu_share`` is the CPU time that sampling took, as a share of one processor.

    ``missed_share`` is the share of ticks that were left out: a period or more late, or too dear.
    """

    samples: tuple[Sample, ...]
    notes: tuple[str, ...]
    period_s: float
    cpu_share: float | None
    missed_share: float | None


class Monitor:
    """Runs the samplers from ``start`` to ``stop``.

    Whatever happens to them, the program goes on.
    """

    def __init__(
        self, samplers: Sequence[Sampler], period_s: float, log: SensorLog | None = None, clock: Clock | None = None
    ) -> None:
        self._samplers, self._period_s, self._clock = samplers, period_s, clock or Clock()
        self._log = log or SensorLog()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._beats = [Beat(max(period_s, sampler.shortest_beat_s)) for sampler in samplers]
        self._cpu_s = [0.0 for _ in samplers]
        self._began_s = self._clock.monotonic_s()

    def start(self, process: int) -> None:
        """Starts to sample beside this process.

        Call it with the signals blocked that the threads must not take.
        """
        self._began_s = self._clock.monotonic_s()
        for number in range(len(self._samplers)):
            thread = threading.Thread(target=self._follow, args=(number, process), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> Telemetry:
        """The samples; a thread that its driver holds is left behind."""
        self._ended.set()
        notes = [note for sampler in self._samplers for note in sampler.notes]
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        if any(thread.is_alive() for thread in self._threads):
            notes.append("a driver did not answer: the sensors were left alone")
        elapsed_s = self._clock.monotonic_s() - self._began_s
        notes = list(dict.fromkeys([*notes, *(note for sampler in self._samplers for note in sampler.notes)]))
        expected = sum(beat.ticks + beat.missed for beat in self._beats)
        return Telemetry(
            samples=self._log.samples(),
            notes=tuple(notes),
            period_s=self._period_s,
            cpu_share=min(sum(self._cpu_s) / elapsed_s, 1.0) if elapsed_s > 0 else None,
            missed_share=sum(beat.missed for beat in self._beats) / expected if expected else None,
        )

    def _follow(self, number: int, process: int) -> None:
        """A sampler from beginning to end, in a thread of its own."""
        sampler = self._samplers[number]
        try:
            if sampler.open(process):
                self._sample(number)
                sampler.close()
        except Exception as exc:  # ours, or the driver's binding: the program and its report matter more
            sampler.notes.append(f"the sensors failed: {type(exc).__name__}: {exc}")

    def _sample(self, number: int) -> None:
        sampler, beat, clock = self._samplers[number], self._beats[number], self._clock
        # The clock of the beats begins here: what opening took is no missed tick.
        opened_s, used_s = clock.monotonic_s(), clock.thread_s()
        tick_s = 0.0
        while not self._ended.is_set():
            now_s = clock.monotonic_s()
            unix_ns = clock.unix_ns()
            for sensor, values in sampler.sample(tick_s):
                self._log.add(Sample(unix_ns, now_s - self._began_s, sensor, values))
            self._cpu_s[number] = clock.thread_s() - used_s
            affordable_s = (self._cpu_s[number] - _CREDIT_S) / _MOST_CPU_SHARE
            tick_s = beat.next_s(max(clock.monotonic_s() - opened_s, affordable_s - beat.period_s))
            clock.wait(self._ended, opened_s + tick_s - clock.monotonic_s())


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
        self._taken = [Taken(reading, self._program, self._clock) for reading in _READINGS]
        self._errors = (psutil.Error, OSError, NotImplementedError, AttributeError, RuntimeError)
        return True

    def sample(self, now_s: float) -> Sequence[tuple[str, Mapping[str, float]]]:
        """One row of what is due."""
        values: dict[str, float] = {}
        for reading in [taken for taken in self._taken if taken.is_due(now_s)]:
            try:
                values |= reading.take(now_s)
            except self._errors:
                if reading.failed():
                    self._taken.remove(reading)
        return [(HOST, values)] if values else []

    def close(self) -> None:
        """Nothing is held."""


class _ProgramProcesses:
    """The program's processes.

    These are the one that was started, and those that it started in turn.
    """

    def __init__(self, psutil: Any, process: int, newest: Callable[[], str | None]) -> None:
        self.psutil = psutil
        self._root, self._newest = process, newest
        self.processors = numbers_of_processors(process)
        self._known: dict[Any, None] = {}
        self._unseen_s = 0.0
        self._waited_ns: dict[int, int] = {}
        self._last: str | None = None

    def find(self) -> dict[str, float | None]:
        """Looks for processes that were started since the last time.

        Skipped where nothing was started on the machine, since looking takes long. Gives no column.

        What they used before they were found is left out, so that the sum does not jump.
        """
        newest = self._newest()
        if newest is not None and newest == self._last:
            return {}
        root = self.psutil.Process(self._root)
        self._known.setdefault(root)
        fresh = [process for process in root.children(recursive=True) if process not in self._known]
        self._known |= dict.fromkeys(fresh)
        self._unseen_s += sum(self._used_s(process) or 0.0 for process in fresh)
        self._last = newest
        return {}

    def cpu_s(self) -> dict[str, float | None]:
        """Sums the user and system time of all processes.

        Children that ended and were waited for count too. What a process used before it was found does not.
        """
        used_s = [used for process in self._known if (used := self._used_s(process)) is not None]
        return {"process_cpu_s": sum(used_s) - self._unseen_s if used_s else None}

    def _used_s(self, process: Any) -> float | None:
        times = self._ask(process.cpu_times)
        if times is None:
            return None
        waited_for = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        return float(times.user + times.system + waited_for)

    def waits(self) -> dict[str, float | None]:
        """Sums the time in which threads of the first process had no processor.

        They were ready. Threads that ended keep what was seen of them.
        """
        self._waited_ns |= waits_by_thread(self._root)
        return {"process_wait_s": sum(self._waited_ns.values()) / 1e9 if self._waited_ns else None}

    def memory(self) -> dict[str, float | None]:
        """Sums the resident memory of all processes.

        What they share counts several times.
        """
        sizes = [info.rss for process in self._known if (info := self._ask(process.memory_info))]
        return {"process_memory_bytes": sum(sizes) if sizes else None}

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer, or null where the process is gone or may not be asked."""
        try:
            return question()
        except (self.psutil.Error, OSError):
            return None


def newest_process() -> str | None:
    """Gives the number of the machine's last started process or thread.

    Null where the system does not say.
    """
    try:
        newest = _NEWEST.read_text().split()[-1]
    except (OSError, IndexError):
        return None
    return newest if newest != "0" else None


def _machine_cpu(program: _ProgramProcesses) -> dict[str, float | None]:
    """Gives the time in which processors worked, and all their time.

    They are those that the program may use. What a guest used is part of user time.
    """
    times = processor_times(program.psutil, program.processors)
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
    Reading(("process_wait_s",), _ProgramProcesses.waits, interval_s=_BEAT_S, share=0.002),
    Reading(("process_memory_bytes",), _ProgramProcesses.memory, interval_s=0.6),
    Reading(("busy_cpu_s", "total_cpu_s"), _machine_cpu, interval_s=_BEAT_S, share=0.002),
    Reading(("cpu_clock_mhz",), _clock, interval_s=0.6),
    Reading(("memory_used_bytes",), _machine_memory, interval_s=1.0),
)
