"""Samples NVIDIA devices through NVML; each error of the library has one consequence."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bottleneck.harness.nvml_devices import NvmlDevice, find_devices
from bottleneck.harness.nvml_readings import READINGS, SLICE_READINGS, Gpm
from bottleneck.harness.readings import Reading, Taken, taken

# Error codes of nvml.h. What is not named here may pass.
NO_DRIVER = frozenset({9, 12})  # driver not loaded, library not found
_LIBRARY_GONE = frozenset({1})  # uninitialised: the driver was taken away under us
_DEVICE_GONE = frozenset({6, 15, 16, 28})  # not found, GPU lost, reset required, GPU not found
_NEVER = frozenset({2, 3, 4, 13, 25, 26})  # argument, not supported, permission, function, version, deprecated

REMEDIES: Mapping[int, str] = {
    4: "this user may not read them",
    9: "the NVIDIA driver is not loaded: `sudo modprobe nvidia`, or restart the machine",
    12: "there is no libnvidia-ml.so.1: install the NVIDIA driver, or start the container with its GPUs (--gpus all)",
    18: "the NVIDIA driver was updated without a restart: restart the machine",
    999: "in a container this follows a `systemctl daemon-reload` on the host: restart the container",
}


class NvmlSampler:
    """All devices that NVML shows, by UUID. Which of them the program uses is found out when it has ended."""

    shortest_beat_s = 0.0

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.notes: list[str] = []
        self._clock = clock
        self._nvml: Any = None
        self._taken: dict[str, list[Taken]] = {}
        self._freed: list[Callable[[], None]] = []

    def open(self, process: int) -> bool:  # noqa: ARG002 - the devices are sampled whoever uses them
        """Whether there is a device to sample; why not is noted, unless there is no driver at all."""
        try:
            import pynvml
        except ImportError:
            self.notes.append("the sensors of NVIDIA devices were not read: pip install nvidia-ml-py")
            return False
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            devices, complaints = find_devices(pynvml)
        except (pynvml.NVMLError, AttributeError) as exc:
            self._note_refusal(exc)
            return False
        self.notes += complaints
        for device in devices:
            self._taken[device.sensor] = self._supported(device, len(devices))
        return any(self._taken.values())

    def sample(self, now_s: float) -> Sequence[tuple[str, Mapping[str, float]]]:
        """One row for each device of what is due."""
        rows = ((sensor, self._row(sensor, now_s)) for sensor in list(self._taken))
        return [(sensor, values) for sensor, values in rows if values]

    def columns(self) -> dict[str, list[str]]:
        """What each device gives, by its UUID."""
        return {
            sensor: [name for each in taken_ for name in each.reading.columns] for sensor, taken_ in self._taken.items()
        }

    def close(self) -> None:
        """Hands the library's memory back."""
        try:
            for free in self._freed:
                free()
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _note_refusal(self, exc: Exception) -> None:
        code = int(getattr(exc, "value", 0))
        if code in NO_DRIVER:
            return  # nothing is amiss where no NVIDIA driver is at work
        remedy = f" ({REMEDIES[code]})" if code in REMEDIES else ""
        self.notes.append(f"the sensors of NVIDIA devices were not read: {exc}{remedy}")

    def _supported(self, device: NvmlDevice, crowd: int) -> list[Taken]:
        """The readings that this device gives; of those for the same columns the first. Their values are dropped.

        Each is tried before the measurement, since a first call takes longer than those that follow.
        """
        kept: list[Taken] = []
        covered: set[str] = set()
        for each in taken(self._readings(device), device, self._clock, crowd):
            if covered >= set(each.reading.columns):
                continue
            values = self._try(each)
            if values is not None:
                covered |= set(values or each.reading.columns)
                kept.append(each)
        return kept

    def _readings(self, device: NvmlDevice) -> Sequence[Reading]:
        gpm = Gpm.of(self._nvml, device, self._clock)
        if gpm is not None:
            self._freed.append(gpm.free)
        readings = READINGS if device.slice_of is None else SLICE_READINGS
        return [*([gpm.reading] if gpm is not None else []), *(reading(self._nvml) for reading in readings)]

    def _try(self, each: Taken) -> dict[str, float] | None:
        """The values, or null where the device will never give them."""
        try:
            each.take(float("-inf"))
            return each.take(float("-inf"))
        except self._nvml.NVMLError as exc:
            return None if exc.value in _NEVER else {}
        except (AttributeError, UnicodeDecodeError):
            return None

    def _row(self, sensor: str, now_s: float) -> dict[str, float]:
        values: dict[str, float] = {}
        for each in [one for one in self._taken.get(sensor, ()) if one.is_due(now_s)]:
            try:
                values |= each.take(now_s)
            except self._nvml.NVMLError as exc:
                if self._is_over(sensor, each, exc, now_s):
                    break
        return values

    def _is_over(self, sensor: str, each: Taken, exc: Any, now_s: float) -> bool:
        """Whether an error ends the row; draws its consequence for the reading, the device or the library."""
        if exc.value in _LIBRARY_GONE:
            self.notes.append(f"the NVIDIA driver went away {now_s:.1f} s after sampling began: {exc}")
            self._taken.clear()
        elif exc.value in _DEVICE_GONE:
            self.notes.append(f"{sensor} was lost {now_s:.1f} s after sampling began: {exc}")
            del self._taken[sensor]
        elif exc.value in _NEVER or each.failed():
            self._taken[sensor].remove(each)
            return False
        return sensor not in self._taken
