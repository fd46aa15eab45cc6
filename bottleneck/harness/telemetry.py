"""Samples the machine's sensors from the supervisor while the program runs, one thread per sampler."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bottleneck.harness.sensor_log import SensorLog
from bottleneck.sensors import Sample

# A driver that does not answer must not keep the report waiting.
_PATIENCE_S = 1.0
# What a sampler may take of a processor. Where waking up is dear or devices are many, its ticks come less often.
# The first samples may be dearer than those that follow.
_MOST_CPU_SHARE, _CREDIT_S = 0.01, 0.01

Values = Mapping[str, float]


class Sampler(Protocol):
    """The sensors of one vendor, or of the host. All calls come from one thread.

    ``shortest_beat_s`` is the time between calls below which nothing is gained. ``notes`` fill with what the user
    should know: why there is no sensor, which device was lost.
    """

    notes: list[str]
    shortest_beat_s: float

    def open(self, process: int) -> bool:
        """Whether there is anything to sample beside the program, whose process this is."""
        ...

    def sample(self, now_s: float) -> Sequence[tuple[str, Values]]:
        """What the sensors say that are due at this time: name of the sensor, values by column."""
        ...

    def close(self) -> None:
        """Lets go of the library."""
        ...


@dataclass(frozen=True)
class Clock:
    """Where the time comes from; tests give their own. ``wait`` ends early, with true, when the event is set."""

    unix_ns: Callable[[], int] = time.time_ns
    monotonic_s: Callable[[], float] = time.perf_counter
    thread_s: Callable[[], float] = time.thread_time
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait


@dataclass
class Beat:
    """Ticks at multiples of a period. Those that are past when it is asked for the next are left out and counted."""

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
    """What was sampled. ``cpu_share`` is the CPU time that sampling took, as a share of one processor.

    ``missed_share`` is the share of ticks that were left out: a period or more late, or too dear.
    """

    samples: tuple[Sample, ...]
    notes: tuple[str, ...]
    period_s: float
    cpu_share: float | None
    missed_share: float | None


class Monitor:
    """Runs the samplers from ``start`` to ``stop``; whatever happens to them, the program goes on."""

    def __init__(
        self,
        samplers: Sequence[Sampler],
        period_s: float,
        log: SensorLog | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._samplers, self._period_s, self._clock = samplers, period_s, clock or Clock()
        self._log = log or SensorLog()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._beats = [Beat(max(period_s, sampler.shortest_beat_s)) for sampler in samplers]
        self._cpu_s = [0.0 for _ in samplers]
        self._began_s = self._clock.monotonic_s()

    def start(self, process: int) -> None:
        """Begins to sample beside this process. Call it with the signals blocked that the threads must not take."""
        self._began_s = self._clock.monotonic_s()
        for number in range(len(self._samplers)):
            thread = threading.Thread(target=self._follow, args=(number, process), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> Telemetry:
        """What was sampled; a thread that its driver holds is left behind."""
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
            cpu_share=sum(self._cpu_s) / elapsed_s if elapsed_s > 0 else None,
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
