"""Times steps in the program's process.

Marks their ends, warms up, and tells whether times have settled.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from bottleneck.harness.machine import is_on_gpu
from bottleneck.schema.measurements import Timing
from bottleneck.schema.statistics import summarise_durations
from bottleneck.system.process_usage import minor_page_faults
from bottleneck.units import format_us

Step = Callable[[], Any]


def within(step: Step, context: Callable[[], AbstractContextManager[Any]]) -> Step:
    """The step, each time inside a new context of this kind."""

    def run() -> Any:
        with context():
            return step()

    return run


def is_disturbed(profiled_us: Sequence[float], undisturbed_us: Sequence[float]) -> bool:
    """Tells whether something besides the profiler slowed the profiled steps down.

    It is another program, as a rule.

    The profiler makes a step of many tiny ops up to three times as long and hits each alike. Steps that vary by
    themselves show it without the profiler too.
    """
    if not profiled_us or not undisturbed_us:
        return False
    usual, typical = statistics.median(undisturbed_us), statistics.median(profiled_us)
    variation = max(1.0, statistics.fmean(undisturbed_us) / usual)
    return typical > 5 * usual or statistics.fmean(profiled_us) > 1.5 * variation * typical


# By how much the wall clock may leave the monotonic one; a clock that is set jumps by more, one that is tuned by less.
_JUMP_NS = 10_000_000
_READINGS = 3


@dataclass(frozen=True)
class Clocks:
    """Nanoseconds of the wall clock and of one that only runs forward.

    Bound before the program starts, and where no tool finds them that freezes the time of a program's tests.
    """

    wall_ns: Callable[[], int] = time.time_ns
    tick_ns: Callable[[], int] = time.perf_counter_ns


_CLOCKS = Clocks()


class Stopwatch:
    """Marks at step boundaries.

    On a GPU that the program already uses, also on the device's own clock.

    The wall clock, which the trace is written by, is read at the first mark only: it may be set at any time, by the
    system or by a program that plays with its own.

    Each mark also reads the page faults of the process, which takes about a microsecond.

    The host may run far ahead of the GPU, so that host marks alone would time the launching of a step and not the
    step. An event recorded at each boundary costs microseconds and waits for nothing.

    ``first_step`` is the number of the program's step that begins at the first mark, where its steps are counted.
    """

    def __init__(self, torch: Any, clocks: Clocks = _CLOCKS) -> None:
        self._torch = torch
        self._clocks = clocks
        self._on_gpu = is_on_gpu(torch)
        self._events: list[Any] = []
        self._ticks_ns: list[int] = []
        self._page_faults: list[int] = []
        self._offset_ns: int | None = None
        self._own: list[tuple[int, int]] = []
        self.first_step: int | None = None

    def now_ns(self) -> int:
        """Nanoseconds of the clock that only runs forward."""
        return self._clocks.tick_ns()

    def own_since(self, began_ns: int) -> None:
        """Notes that the time since then was our own, not the program's.

        ``began_ns`` is a time by ``now_ns``.
        """
        self._own.append((began_ns, self._clocks.tick_ns()))

    @property
    def own_ns(self) -> list[tuple[int, int]]:
        """The stretches that were our own, by the wall clock as the marks are."""
        offset_ns = self._offset_ns or 0
        return [(begin + offset_ns, end + offset_ns) for begin, end in self._own]

    def mark(self) -> None:
        """Marks a boundary."""
        if self._on_gpu:
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        self._page_faults.append(minor_page_faults())
        self._ticks_ns.append(self._clocks.tick_ns())
        if self._offset_ns is None:
            self._offset_ns = self._read_offset_ns()

    @property
    def marks_ns(self) -> list[int]:
        """Each mark by the wall clock that ran at the first one."""
        return [tick_ns + (self._offset_ns or 0) for tick_ns in self._ticks_ns]

    @property
    def ticks_ns(self) -> list[int]:
        """Each mark by the clock that only runs forward."""
        return list(self._ticks_ns)

    def keep_last(self, steps: int) -> None:
        """Forgets all steps but the last ones."""
        for marks in (self._events, self._ticks_ns, self._page_faults):
            del marks[: -steps - 1]

    def wait(self) -> None:
        """Waits until the GPU has done all that it was given.

        So no work crosses a boundary.
        """
        if self._on_gpu:
            self._torch.cuda.synchronize()

    @property
    def steps(self) -> int:
        """Steps between the marks so far."""
        return max(0, len(self._ticks_ns) - 1)

    @property
    def page_faults(self) -> float | None:
        """Minor page faults per step; null before the first step has ended."""
        return (self._page_faults[-1] - self._page_faults[0]) / self.steps if self.steps else None

    @property
    def is_clock_set(self) -> bool:
        """True if the wall clock was set since the first mark.

        The times of a trace recorded meanwhile are wrong.
        """
        if self._offset_ns is None:
            return False
        return abs(self._read_offset_ns() - self._offset_ns) > _JUMP_NS

    def _read_offset_ns(self) -> int:
        """Reads the wall clock less the monotonic one.

        Between two readings a busy machine may run another program.
        """
        return min(-self._clocks.tick_ns() + self._clocks.wall_ns() for _ in range(_READINGS))

    @property
    def elapsed_s(self) -> float:
        """Host seconds from the first mark to the last."""
        return (self._ticks_ns[-1] - self._ticks_ns[0]) / 1e9 if self._ticks_ns else 0.0

    def host_durations_us(self) -> list[float]:
        """Microseconds of each step by the host's clock."""
        return [(end - begin) / 1e3 for begin, end in itertools.pairwise(self._ticks_ns)]

    def durations_us(self) -> list[float]:
        """Gives the microseconds of each step, and waits for the GPU.

        They are by the clock of the GPU where there is one.
        """
        if not (self._on_gpu and self._events):
            return self.host_durations_us()
        self._events[-1].synchronize()
        return [begin.elapsed_time(end) * 1e3 for begin, end in itertools.pairwise(self._events)]

    def timing(self) -> Timing | None:
        """Median and interval of the steps so far."""
        return summarise_durations(self.durations_us())


# With fewer steps, halves say nothing.
STEPS_FOR_TREND = 6

_RECENT = 4
_ALIKE = 1.1
_BLOCK = 10
# The steps that were judged, and so are settled ones themselves: by the first rule, and by the second.
CALM_STEPS, STEADY_STEPS = _RECENT, 2 * _BLOCK
_STEADY = 1.05


def has_settled(durations_us: Sequence[float]) -> bool:
    """Tells whether step times have settled.

    The last four steps lie within 10 %, or the medians of the last ten and the ten before within 5 %.

    The first rule suits calm steps, the second those that scatter without a trend: steps of two kinds in turns, or a
    machine that others use.
    """
    recent = durations_us[-_RECENT:]
    if len(recent) == _RECENT and max(recent) <= _ALIKE * min(recent):
        return True
    if len(durations_us) < 2 * _BLOCK:
        return False
    late, early = (statistics.median(part) for part in (durations_us[-_BLOCK:], durations_us[-2 * _BLOCK : -_BLOCK]))
    return max(late, early) <= _STEADY * min(late, early)


@dataclass(frozen=True)
class WarmUp:
    """Bounds of warming up a step.

    It ends once times have settled, after ``seconds`` at the latest. From ``many`` steps on it ends after
    ``seconds_for_many``. Times count as settled after ``least_s`` only.
    """

    seconds: float
    many: int
    seconds_for_many: float
    least_s: float = 0.0

    def is_over(self, stopwatch: Stopwatch) -> bool:
        """True if times have settled, or warming up has taken long enough."""
        if stopwatch.elapsed_s >= (self.seconds_for_many if stopwatch.steps >= self.many else self.seconds):
            return True
        return stopwatch.elapsed_s > self.least_s and has_settled(stopwatch.host_durations_us())


def warm_up(step: Step, torch: Any, until: WarmUp | None, least: int = 0) -> Stopwatch:
    """Repeats a step until it is warm, at least ``least`` times.

    Exactly so many times without bounds.
    """
    stopwatch = Stopwatch(torch)
    stopwatch.mark()
    while stopwatch.steps < least or not (until is None or until.is_over(stopwatch)):
        step()
        stopwatch.mark()
    return stopwatch


def mark_steps(step: Step, stopwatch: Stopwatch, steps: int, lead: int = 1) -> None:
    """Marks so many steps, after ``lead`` steps that do not count.

    No work of the GPU crosses the first or the last mark.
    """
    for _ in range(lead):
        step()
    stopwatch.wait()
    stopwatch.mark()
    for _ in range(steps):
        step()
        began_ns = stopwatch.now_ns()
        stopwatch.mark()
        stopwatch.own_since(began_ns)
    stopwatch.wait()


def time_steps(step: Step, torch: Any, steps: int, lead: int) -> list[float]:
    """Microseconds of each of so many steps, after ``lead`` steps that do not count.

    Those refill the caches, which other work has used before.
    """
    stopwatch = Stopwatch(torch)
    stopwatch.wait()
    for _ in range(lead):
        step()
    stopwatch.mark()
    for _ in range(steps):
        step()
        stopwatch.mark()
    stopwatch.wait()
    return stopwatch.durations_us()


def find_trend(durations_us: Sequence[float]) -> str | None:
    """Describes the trend from the first half of the steps on.

    Null unless they differ beyond chance and by over 10 %.

    Beyond chance: the intervals of the two medians do not touch.
    """
    half = len(durations_us) // 2
    early, late = summarise_durations(durations_us[:half]), summarise_durations(durations_us[half:])
    if len(durations_us) < STEPS_FOR_TREND or early is None or late is None:
        return None
    apart = early.low > late.high or late.low > early.high
    if not apart or max(early.median, late.median) <= _ALIKE * min(early.median, late.median):
        return None
    return f"{format_us(early.median)} in the first half, {format_us(late.median)} in the second"
