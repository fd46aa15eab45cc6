"""Runs ceiling measurements in short rounds until the best of two rounds agree.

Reads their conditions too: clocks of the device, and processors that other programs keep busy meanwhile.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bottleneck.harness.machine import busy_processors, numbers_of_processors, processor_times
from bottleneck.harness.nvml import find_devices, match_sensors

# A sensor that moves by less is no sensor: virtual machines show one figure all the time.
_MOVES = 0.005


@dataclass(frozen=True)
class ClockStamp:
    """The clock in MHz around a measurement.

    It is read before, during (median) and after. Null where it cannot be read.

    ``is_sensed``: the figure moved; many virtual machines show the same one all the time. ``memory_mhz`` is the clock
    of the memory, where the device reports it.
    """

    before_mhz: float | None = None
    during_mhz: float | None = None
    after_mhz: float | None = None
    is_sensed: bool = False
    memory_mhz: float | None = None


def clock_stamp(before: float | None, seen: tuple[float, ...], after: float | None, memory: float | None) -> ClockStamp:
    """The stamp from readings before, while and after measuring."""
    every = [value for value in (before, *seen, after) if value]
    return ClockStamp(
        before_mhz=before,
        during_mhz=statistics.median_high(seen) if seen else None,
        after_mhz=after,
        is_sensed=bool(every) and max(every) > min(every) * (1 + _MOVES),
        memory_mhz=memory,
    )


def cpu_clock_mhz() -> float | None:
    """Gives the mean clock of the processors, in MHz.

    As the system reports it. Null where it does not.
    """
    psutil = _psutil()
    try:
        frequency = None if psutil is None else psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError, RuntimeError):
        return None
    return None if frequency is None else frequency.current or None


class OtherLoad:
    """Processors that other programs keep busy from now on.

    It is the load of the processors that this process may use, less its own.

    Time that the hypervisor gave to others counts too, since it is lost alike.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = self._now()

    def busy_processors(self) -> float:
        """Gives the mean number of busy processors so far.

        Without psutil it is the load of the last minute, which counts our own work too.
        """
        now = self._now()
        if now is None or self._start is None:
            return busy_processors()
        seconds, machine, own = (later - earlier for later, earlier in zip(now, self._start, strict=True))
        return max(0.0, machine - own) / seconds if seconds > 0 else 0.0

    def _now(self) -> tuple[float, float, float] | None:
        psutil = _psutil()
        if psutil is None:
            return None
        times = processor_times(psutil, numbers_of_processors())
        idle = sum(times.get(name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        return self._clock(), sum(times.values()) - idle, sum(os.times()[:4])


class NvmlClock:
    """The clocks of one NVIDIA device through NVML.

    Everything is null where it cannot be reached.
    """

    def __init__(self, facts: Mapping[str, object]) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self.driver = ""
        with suppress(ImportError):
            import pynvml

            with suppress(pynvml.NVMLError, AttributeError, UnicodeDecodeError):
                pynvml.nvmlInit()
                self._nvml = pynvml
                with suppress(pynvml.NVMLError):
                    self.driver = str(pynvml.nvmlSystemGetDriverVersion())
                devices = {device.sensor: device for device in find_devices(pynvml)[0]}
                names = match_sensors([facts], {}, list(devices))
                self._handle = next((devices[name].card for name in names.values()), None)

    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors now."""
        return self._ask(lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM))

    def memory_mhz(self) -> float | None:
        """The clock of the memory now."""
        return self._ask(lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM))

    def used_share(self) -> float | None:
        """The share of the last second in which any kernel ran."""
        return self._ask(lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100)

    def _ask(self, question: Callable[[Any, Any], float]) -> float | None:
        if self._handle is None:
            return None
        with suppress(self._nvml.NVMLError):
            return float(question(self._nvml, self._handle))
        return None

    def close(self) -> None:
        """Releases the library."""
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def driver_version() -> str:
    """The version of the NVIDIA driver; empty where there is none."""
    sensors = NvmlClock({})
    sensors.close()
    return sensors.driver


def _psutil() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil


# How torch says that a device, a build or a version of it does not do a dtype, a size or a call.
REFUSALS = (RuntimeError, AssertionError, AttributeError, TypeError, ValueError)

Clock = Callable[[], float]
Look = Callable[[], None]
Take = Callable[[Look], float]

_ROUNDS_WITHOUT_END = 1_000_000


def product_name(dtype: str) -> str:
    """The ceiling of matrix products of a dtype."""
    return f"{dtype} product"


def stream_name(level: str) -> str:
    """The ceiling of the bandwidth of a level of memory."""
    return f"{level} stream"


@dataclass(frozen=True)
class ProbeEffort:
    """Limits on time and rounds.

    ``slice_seconds`` is what one probe may take in a round. Its first run is not counted.

    Short runs are many: on a busy machine some of them fall between the time slices of others.
    A ceiling has settled when the best of two rounds agree within ``tolerance``. What has not is measured again, in at
    most ``most_rounds``, none of which begins after ``most_seconds``. From the third round on only those probes of a
    ceiling are run that came within ``contending`` of its best. A round that begins before ``least_seconds`` measures
    what has settled, too. ``is_short`` where rounds are too few and too short to settle.
    """

    slice_seconds: float = 0.1
    fewest_runs: int = 10
    fewest_rounds: int = 2
    most_rounds: int = 6
    most_seconds: float = 20.0
    tolerance: float = 0.03
    contending: float = 0.8
    least_seconds: float = 0.0
    is_short: bool = False

    def lasting(self, seconds: float | None) -> "ProbeEffort":
        """Gives these limits with a time of at least ``seconds``.

        It has as many rounds as they hold. Null leaves the limits as they are.
        """
        if seconds is None:
            return self
        most_seconds = max(self.most_seconds, seconds)
        return replace(self, least_seconds=seconds, most_seconds=most_seconds, most_rounds=_ROUNDS_WITHOUT_END)


@dataclass(frozen=True)
class Probe:
    """One way to reach a ceiling.

    ``prepare`` makes the data and gives what is run: seconds of one run of ``amount``.

    ``amount`` is in FLOPs, bytes or calls. ``how`` distinguishes ways to the same ceiling. The clock of the device is
    looked at in each run, while it works or just after.
    """

    ceiling: str
    how: str
    amount: float
    prepare: Callable[[], Take]


@dataclass(frozen=True)
class ProbeResult:
    """A measured ceiling, as the best rate over all rounds.

    The rate is the amount per second. ``how`` is the way that reached it.

    ``spread`` is by how much the best of the second best round fell behind, null after a single round.
    """

    rate: float
    how: str
    spread: float | None
    stable: bool
    rounds: int
    clock_mhz: float | None = None


@dataclass(frozen=True)
class RoundProgress:
    """Progress of a measurement.

    Holds the ceiling that is next and its place among those of the round.

    ``is_rest`` where the round is for what has not settled, ``seconds`` since the measurement began.
    """

    ceiling: str
    round: int
    done: int
    total: int
    is_rest: bool = False
    seconds: float = field(default=0.0, compare=False)


OnProgress = Callable[[RoundProgress], None]


def no_progress(step: RoundProgress) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class ProbeResults:
    """Results by ceiling, and the reason for each ceiling without one."""

    measured: Mapping[str, ProbeResult]
    missing: Mapping[str, str] = field(default_factory=dict)


def best_of(take: Callable[[], float], seconds: float, effort: ProbeEffort, clock: Clock = time.perf_counter) -> float:
    """Gives the seconds of the best of several runs.

    Runs until the two best agree, or ``seconds`` have passed.

    The best, because a machine can be disturbed only towards slower. ``take`` gives the seconds of one run. One run
    comes before, uncounted.
    """
    take()
    taken: list[float] = []
    begin = clock()
    while len(taken) < effort.fewest_runs or not agree(taken, effort.tolerance):
        if taken and clock() - begin >= seconds:
            break
        taken.append(take())
    return min(taken)


def agree(taken: Sequence[float], tolerance: float) -> bool:
    """True if the two smallest times differ by no more than the tolerance."""
    best, second = sorted(taken)[:2]
    return second <= best * (1 + tolerance)


class ClockWatch:
    """Samples the clock of the device in MHz while a ceiling is measured."""

    def __init__(self, read: Callable[[], float | None], clock: Clock = time.perf_counter, apart_s: float = 0.02):
        self._read, self._clock, self._apart_s = read, clock, apart_s
        self._next_s = float("-inf")
        self._seen: list[tuple[str, float]] = []
        self.ceiling = ""

    def look(self) -> None:
        """Reads the clock, unless it was read a moment ago.

        The reading takes time too.
        """
        if self._clock() < self._next_s:
            return
        value = self._read()
        self._next_s = self._clock() + self._apart_s
        if value:
            self._seen.append((self.ceiling, value))

    def seen_mhz(self, ceiling: str | None = None) -> tuple[float, ...]:
        """All that was seen while a ceiling was measured, or any of them."""
        return tuple(value for name, value in self._seen if ceiling in {None, name})


def settle(
    probes: Sequence[Probe],
    effort: ProbeEffort,
    watch: ClockWatch,
    on_progress: OnProgress = no_progress,
    clock: Clock = time.perf_counter,
) -> ProbeResults:
    """Measures every ceiling in rounds.

    The rounds lie seconds apart: their agreement predicts that of later runs.

    A probe that the machine refuses (a dtype that it does not have, memory that is short) is left out; the reason is
    kept where no probe of its ceiling is left.
    """
    session = _Rounds(effort, watch, clock)
    begin = clock()
    for number in range(1, effort.most_rounds + 1):
        seconds = clock() - begin
        is_rest = number > effort.fewest_rounds and seconds >= effort.least_seconds
        open_ = [probe for probe in probes if session.is_open(probe, number, is_rest=is_rest)]
        if not open_ or (number > effort.fewest_rounds and seconds >= effort.most_seconds):
            break
        ceilings = list(dict.fromkeys(probe.ceiling for probe in open_))
        for done, ceiling in enumerate(ceilings):
            on_progress(RoundProgress(ceiling, number, done, len(ceilings), is_rest, clock() - begin))
            session.measure([probe for probe in open_ if probe.ceiling == ceiling], number)
    return session.outcome(probes)


class _Rounds:
    """The best rate of every probe in every round so far."""

    def __init__(self, effort: ProbeEffort, watch: ClockWatch, clock: Clock) -> None:
        self._effort, self._watch, self._clock = effort, watch, clock
        self._rates: dict[tuple[str, str], dict[int, float]] = {}
        self._refused: dict[tuple[str, str], str] = {}

    def is_open(self, probe: Probe, number: int, *, is_rest: bool) -> bool:
        """Tells whether a probe may still improve its ceiling in this round.

        With ``is_rest`` the round is for unsettled ceilings only.
        """
        if (probe.ceiling, probe.how) in self._refused:
            return False
        if number <= self._effort.fewest_rounds:
            return True
        best = max(self._rounds(probe.ceiling), default=0.0)
        own = max(self._rates[probe.ceiling, probe.how].values(), default=0.0)
        is_done = is_rest and self._is_settled(probe.ceiling)
        return not is_done and own >= self._effort.contending * best

    def measure(self, probes: Sequence[Probe], number: int) -> None:
        """One slice of each probe of a ceiling."""
        self._watch.ceiling = probes[0].ceiling
        for probe in probes:
            key = (probe.ceiling, probe.how)
            try:
                take = probe.prepare()
                seconds = best_of(lambda: take(self._watch.look), self._effort.slice_seconds, self._effort, self._clock)  # noqa: B023 - used before the next
            except REFUSALS as exc:
                self._refused[key] = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
            else:
                self._rates.setdefault(key, {})[number] = probe.amount / max(seconds, 1e-12)

    def outcome(self, probes: Sequence[Probe]) -> ProbeResults:
        """The results of all rounds."""
        ceilings = dict.fromkeys(probe.ceiling for probe in probes)
        measured = {name: self._measured(name) for name in ceilings if self._rounds(name)}
        refused = {name: why for (name, _), why in self._refused.items() if name not in measured}
        return ProbeResults(measured, refused)

    def _measured(self, ceiling: str) -> ProbeResult:
        rounds = sorted(self._rounds(ceiling), reverse=True)
        ways = {how: max(rates.values()) for (name, how), rates in self._rates.items() if name == ceiling}
        seen = self._watch.seen_mhz(ceiling)
        return ProbeResult(
            rate=rounds[0],
            how=max(ways, key=lambda how: ways[how]),
            spread=rounds[0] / rounds[1] - 1 if len(rounds) > 1 else None,
            stable=self._is_settled(ceiling),
            rounds=len(rounds),
            clock_mhz=statistics.median_high(seen) if seen else None,
        )

    def _rounds(self, ceiling: str) -> list[float]:
        """The best rate of each round, whichever way reached it."""
        best: dict[int, float] = {}
        for (name, _), rates in self._rates.items():
            for number, rate in rates.items() if name == ceiling else ():
                best[number] = max(rate, best.get(number, 0.0))
        return list(best.values())

    def _is_settled(self, ceiling: str) -> bool:
        rounds = self._rounds(ceiling)
        return len(rounds) > 1 and agree([1 / rate for rate in rounds], self._effort.tolerance)


def descending(streams: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Gives the points by working set, none slower than a larger one.

    What holds for more bytes holds for fewer.
    """
    points: list[tuple[float, float]] = []
    for size, rate in sorted(streams, reverse=True):
        points.append((size, max(rate, points[-1][1] if points else 0.0)))
    return tuple(reversed(points))
