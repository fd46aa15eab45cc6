"""Conditions of a calibration: clocks of the device, and processors that other programs keep busy meanwhile."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bottleneck.harness.machine import busy_processors
from bottleneck.harness.nvml import find_devices, match_sensors

# A sensor that moves by less is no sensor: virtual machines show one figure all the time.
_MOVES = 0.005


@dataclass(frozen=True)
class ClockStamp:
    """The clock in MHz before, during (median) and after the measurement; null where it cannot be read.

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
    ordered = sorted(seen)
    return ClockStamp(
        before_mhz=before,
        during_mhz=ordered[len(ordered) // 2] if ordered else None,
        after_mhz=after,
        is_sensed=bool(every) and max(every) > min(every) * (1 + _MOVES),
        memory_mhz=memory,
    )


def cpu_clock_mhz() -> float | None:
    """The mean clock of the processors as the system reports it; null where it does not."""
    psutil = _psutil()
    try:
        frequency = None if psutil is None else psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError, RuntimeError):
        return None
    return None if frequency is None else frequency.current or None


class OtherLoad:
    """Processors that other programs keep busy from now on: load of the machine less that of this process.

    Time that the hypervisor gave to others counts too, since it is lost alike.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = self._now()

    def busy_processors(self) -> float:
        """The mean so far; without psutil the load of the last minute, which counts our own work too."""
        now = self._now()
        if now is None or self._start is None:
            return busy_processors()
        seconds, machine, own = (later - earlier for later, earlier in zip(now, self._start, strict=True))
        return max(0.0, machine - own) / seconds if seconds > 0 else 0.0

    def _now(self) -> tuple[float, float, float] | None:
        psutil = _psutil()
        if psutil is None:
            return None
        times = psutil.cpu_times()._asdict()
        idle = sum(times.get(name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        return self._clock(), sum(times.values()) - idle, sum(os.times()[:4])


class NvmlClock:
    """The clocks of one NVIDIA device through NVML; everything is null where it cannot be reached."""

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
        return None if self._nvml is None else self._clock("NVML_CLOCK_SM")

    def memory_mhz(self) -> float | None:
        """The clock of the memory now."""
        return None if self._nvml is None else self._clock("NVML_CLOCK_MEM")

    def used_share(self) -> float | None:
        """The share of the last second in which any kernel ran."""
        if self._handle is None:
            return None
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        return None

    def _clock(self, domain: str) -> float | None:
        if self._handle is None:
            return None
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, getattr(self._nvml, domain)))
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
