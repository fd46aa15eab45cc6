"""Samples NVIDIA devices through NVML, matched to the program's devices by UUID."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bottleneck.harness.sensors import Reading, Taken
from bottleneck.schema.telemetry import NOT_AVAILABLE


@dataclass(frozen=True)
class NvmlDevice:
    """Device, or a slice of one (MIG).

    ``card`` is the handle of the whole device, ``handle`` its own. ``slice_of`` is the UUID of the card that it is a
    slice of, ``instance`` the number of its GPU instance there.
    """

    sensor: str
    handle: Any
    card: Any
    slice_of: str | None = None
    instance: int | None = None


def find_devices(nvml: Any) -> tuple[list[NvmlDevice], list[str]]:
    """Finds the devices, each followed by its slices.

    The second result is complaints about those that cannot be reached.
    """
    devices: list[NvmlDevice] = []
    complaints: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            card = NvmlDevice(_uuid(nvml, handle), handle, handle)
        except (nvml.NVMLError, UnicodeDecodeError) as exc:
            complaints.append(f"NVIDIA device {index} cannot be reached: {exc}")
            continue
        devices += [card, *_slices(nvml, card)]
    return devices, complaints


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return re.sub(r"[^A-Za-z0-9_.:/-]", "-", uuid)[:128] or "GPU"


def _slices(nvml: Any, card: NvmlDevice) -> list[NvmlDevice]:
    """Returns the MIG slices of a card.

    None where it has no such mode or it is off.
    """
    try:
        is_on, _ = nvml.nvmlDeviceGetMigMode(card.handle)
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle) if is_on else 0
    except (nvml.NVMLError, AttributeError):
        return []
    slices = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, index)
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            slices.append(NvmlDevice(_uuid(nvml, handle), handle, card.handle, card.sensor, instance))
        except (nvml.NVMLError, UnicodeDecodeError):  # places for slices that were not made
            continue
    return slices


def match_sensors(
    facts: Iterable[Mapping[str, object]], environment: Mapping[str, str], sensors: Sequence[str]
) -> dict[int, str]:
    """Matches the sensor of each device as the program numbers them.

    Devices that cannot be told for certain are left out. What the program's own CUDA says of its devices comes first.
    Without it, ``CUDA_VISIBLE_DEVICES`` tells where it names UUIDs, or indexes in the order of the bus. A single device
    needs no telling.
    """
    by_facts = _by_facts(facts, sensors)
    return by_facts or _by_environment(
        environment, [sensor for sensor in sensors if sensor.startswith(("GPU-", "MIG-"))]
    )


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _by_facts(facts: Iterable[Mapping[str, object]], sensors: Sequence[str]) -> dict[int, str]:
    by_uuid = {_plain(sensor): sensor for sensor in sensors}
    by_index = {}
    for fact in facts:
        index, uuid = fact.get("index"), fact.get("uuid")
        if isinstance(index, int) and isinstance(uuid, str) and _plain(uuid) in by_uuid:
            by_index[index] = by_uuid[_plain(uuid)]
    return by_index


def _by_environment(environment: Mapping[str, str], sensors: Sequence[str]) -> dict[int, str]:
    cards = [sensor for sensor in sensors if sensor.startswith("GPU-")]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return {0: sensors[0]} if len(sensors) == 1 else {}
    is_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(cards) == 1
    by_index: dict[int, str] = {}
    for index, entry in enumerate(part.strip() for part in visible.split(",")):
        if entry.isdecimal() and is_bus_order:
            sensor = cards[int(entry)] if len(entry) < 5 and int(entry) < len(cards) else None
        else:
            sensor = _by_prefix(entry, sensors)
        if sensor is None:  # CUDA shows no device from the first entry on that it does not know
            break
        if sensor in by_index.values():  # CUDA shows none at all
            return {}
        by_index[index] = sensor
    return by_index


def _by_prefix(entry: str, sensors: Sequence[str]) -> str | None:
    """Returns the one sensor whose UUID begins so.

    CUDA takes as many letters as tell the devices apart.
    """
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    fitting = [sensor for sensor in sensors if sensor.lower().startswith(entry.lower())]
    return fitting[0] if len(fitting) == 1 else None


Values = Mapping[str, float | None]
Read = Callable[[Any, NvmlDevice], Values]

_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, milliwatts
_PCIE_TX, _PCIE_RX = 197, 198  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES, RX: counters
_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


def _memory_used(info: Any) -> float | None:
    # Where driver and binding disagree about the structure, more is used than there is.
    return info.used if info.used <= info.total else None


def _pcie_throughput(nvml: Any, device: NvmlDevice) -> Values:
    """Reads the traffic of the bus, in bytes per second.

    Each call blocks for 20 ms, over which the driver counts.
    """
    sent = nvml.nvmlDeviceGetPcieThroughput(device.card, nvml.NVML_PCIE_UTIL_TX_BYTES)
    received = nvml.nvmlDeviceGetPcieThroughput(device.card, nvml.NVML_PCIE_UTIL_RX_BYTES)
    return {"pcie_tx_bytes_per_s": _scaled(sent, 1e3), "pcie_rx_bytes_per_s": _scaled(received, 1e3)}


def _scaled(value: float, factor: float) -> float | None:
    """Returns the value in our unit.

    Null for a sentinel that stands for one that is not available.
    """
    return value * factor if value not in NOT_AVAILABLE else None


def _field(nvml: Any, device: NvmlDevice, field: int) -> float:
    """One field value; raises the error that stands in it."""
    (answer,) = nvml.nvmlDeviceGetFieldValues(device.card, [field])
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(answer.nvmlReturn)
    return float(getattr(answer.value, _TYPES[answer.valueType]))


def _make(
    columns: tuple[str, ...], read: Read, interval_s: float = 0.0, share: float = 0.001
) -> Callable[[Any], Reading]:
    """A reading, once the library is there."""
    return lambda nvml: Reading(columns, partial(read, nvml), interval_s, share)


def _value(
    column: str, read: Callable[[Any, NvmlDevice], float | None], interval_s: float = 0.0, share: float = 0.001
) -> Callable[[Any], Reading]:
    """A reading of one value."""
    return _make((column,), lambda nvml, device: {column: read(nvml, device)}, interval_s, share)


# Two samples of the activity counters have to lie about 100 ms apart.
_SHORTEST_GPM_S = 0.05

_PCIE = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
_CLOCKS = (
    _value("sm_clock_mhz", lambda nvml, one: nvml.nvmlDeviceGetClockInfo(one.card, nvml.NVML_CLOCK_SM), share=0.002),
    _value("throttle_bits", lambda nvml, one: nvml.nvmlDeviceGetCurrentClocksEventReasons(one.card), share=0.002),
    _value("throttle_bits", lambda nvml, one: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(one.card), share=0.002),
    _value("memory_clock_mhz", lambda nvml, one: nvml.nvmlDeviceGetClockInfo(one.card, nvml.NVML_CLOCK_MEM), 0.1),
    _value("temperature_c", lambda nvml, one: nvml.nvmlDeviceGetTemperature(one.card, nvml.NVML_TEMPERATURE_GPU), 1.0),
)
_USE = (
    _value("utilization", lambda nvml, one: _scaled(nvml.nvmlDeviceGetUtilizationRates(one.handle).gpu, 0.01), 0.1),
    _value(
        "memory_used_bytes",
        lambda nvml, one: _memory_used(nvml.nvmlDeviceGetMemoryInfo(one.handle, nvml.nvmlMemory_v2)),
        0.1,
    ),
    # As above, with what the driver keeps for itself counted as used.
    _value("memory_used_bytes", lambda nvml, one: _memory_used(nvml.nvmlDeviceGetMemoryInfo(one.handle)), 0.1),
)
# The energy counter moves about every 100 ms (ML.ENERGY, "Measuring GPU Energy: Best Practices").
READINGS = (
    *_CLOCKS,
    *_USE,
    _value("power_w", lambda nvml, one: _scaled(_field(nvml, one, _POWER_INSTANT), 1e-3), share=0.002),
    _value("average_power_w", lambda nvml, one: _scaled(nvml.nvmlDeviceGetPowerUsage(one.card), 1e-3), 0.1),
    _value("energy_j", lambda nvml, one: _scaled(nvml.nvmlDeviceGetTotalEnergyConsumption(one.card), 1e-3), 0.1),
    _make(_PCIE, _pcie_throughput, 2.0, share=0.02),
)
# A slice shares the card's clocks and temperature. Power, energy and PCIe traffic are those of all slices together.
SLICE_READINGS = (*_CLOCKS, *_USE)


class Gpm:
    """Activity counters of Hopper and newer.

    They are the difference between two samples of the device.
    """

    _METRICS: Mapping[int, tuple[str, float]] = {
        2: ("sm_activity", 0.01),
        5: ("tensor_activity", 0.01),
        10: ("dram_activity", 0.01),
        20: ("pcie_tx_bytes_per_s", 2.0**20),
        21: ("pcie_rx_bytes_per_s", 2.0**20),
    }

    def __init__(self, nvml: Any, device: NvmlDevice, clock: Callable[[], float]) -> None:
        self._nvml, self._device, self._clock = nvml, device, clock
        self._older, self._newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._took_s = clock()
        self._take(self._newer)
        self._asked = nvml.c_nvmlGpmMetricsGet_t()
        self.reading = Reading(tuple(self._compare()), self._read, interval_s=0.1, share=0.002)

    @classmethod
    def of(cls, nvml: Any, device: NvmlDevice, clock: Callable[[], float]) -> "Gpm | None":
        """The counters of this device; null where it has none."""
        try:
            return cls(nvml, device, clock) if nvml.nvmlGpmQueryDeviceSupport(device.card).isSupportedDevice else None
        except (nvml.NVMLError, AttributeError):
            return None

    def free(self) -> None:
        """Hands the two samples back."""
        for sample in (self._older, self._newer):
            self._nvml.nvmlGpmSampleFree(sample)

    def _read(self, device: NvmlDevice) -> Values:  # noqa: ARG002 - it belongs to one device
        """Reads the activity since the last time.

        Not if that is too short ago to say anything.
        """
        now_s = self._clock()
        if now_s - self._took_s < _SHORTEST_GPM_S:
            return {}
        self._took_s = now_s
        return self._compare()

    def _compare(self) -> Values:
        """Takes a sample and compares it with the last one."""
        self._take(self._older)
        self._older, self._newer = self._newer, self._older
        asked = self._asked
        asked.version, asked.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(self._METRICS)
        asked.sample1, asked.sample2 = self._older, self._newer
        for place, number in enumerate(self._METRICS):
            asked.metrics[place].metricId = number
        self._nvml.nvmlGpmMetricsGet(asked)
        return {
            column: asked.metrics[place].value * scale
            for place, (column, scale) in enumerate(self._METRICS.values())
            if asked.metrics[place].nvmlReturn == self._nvml.NVML_SUCCESS
        }

    def _take(self, sample: Any) -> None:
        if self._device.instance is None:
            self._nvml.nvmlGpmSampleGet(self._device.card, sample)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._device.card, self._device.instance, sample)


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
    """Samples all devices that NVML shows, by UUID.

    Which of them the program uses is found out when it has ended.
    """

    shortest_beat_s = 0.0

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.notes: list[str] = []
        self._clock = clock
        self._nvml: Any = None
        self._taken: dict[str, list[Taken]] = {}
        self._freed: list[Callable[[], None]] = []

    def open(self, process: int) -> bool:  # noqa: ARG002 - the devices are sampled whoever uses them
        """True if there is a device to sample.

        The reason against it is noted, unless there is no driver at all.
        """
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
        """The readings of each device, by its UUID."""
        return {
            sensor: [name for taken in taken_ for name in taken.reading.columns]
            for sensor, taken_ in self._taken.items()
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
        """Returns the readings that this device gives.

        Of those for the same columns the first. Their values are dropped. Each is tried before the measurement, since a
        first call takes longer than those that follow.
        """
        supported: list[Taken] = []
        covered: set[str] = set()
        for reading in self._readings(device):
            if covered >= set(reading.columns):
                continue
            taken = Taken(reading, device, self._clock, crowd)
            values = self._try(taken)
            if values is not None:
                covered |= set(values or reading.columns)
                supported.append(taken)
        return supported

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
        for taken in [one for one in self._taken.get(sensor, ()) if one.is_due(now_s)]:
            try:
                values |= taken.take(now_s)
            except self._nvml.NVMLError as exc:
                if self._is_over(sensor, taken, exc, now_s):
                    break
        return values

    def _is_over(self, sensor: str, each: Taken, exc: Any, now_s: float) -> bool:
        """True if an error ends the row.

        It draws the consequence for the reading, the device or the library.
        """
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
