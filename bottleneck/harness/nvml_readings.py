"""What is read of an NVIDIA device, how often, and what it means; in the order of preference for a column."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bottleneck.harness.nvml_devices import NvmlDevice
from bottleneck.harness.readings import Reading
from bottleneck.sensors import NOT_AVAILABLE

Values = Mapping[str, float | None]
Read = Callable[[Any, NvmlDevice], Values]

_POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT, milliwatts
_PCIE_TX, _PCIE_RX = 197, 198  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES, RX: counters
_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


def _sm_clock(nvml: Any, device: NvmlDevice) -> Values:
    return {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(device.card, nvml.NVML_CLOCK_SM)}


def _memory_clock(nvml: Any, device: NvmlDevice) -> Values:
    return {"memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(device.card, nvml.NVML_CLOCK_MEM)}


def _power(nvml: Any, device: NvmlDevice) -> Values:
    milliwatts = _field(nvml, device, _POWER_INSTANT)
    return {"power_w": _scaled(milliwatts, 1e-3)}


def _average_power(nvml: Any, device: NvmlDevice) -> Values:
    return {"average_power_w": _scaled(nvml.nvmlDeviceGetPowerUsage(device.card), 1e-3)}


def _energy(nvml: Any, device: NvmlDevice) -> Values:
    return {"energy_j": _scaled(nvml.nvmlDeviceGetTotalEnergyConsumption(device.card), 1e-3)}


def _temperature(nvml: Any, device: NvmlDevice) -> Values:
    return {"temperature_c": nvml.nvmlDeviceGetTemperature(device.card, nvml.NVML_TEMPERATURE_GPU)}


def _utilization(nvml: Any, device: NvmlDevice) -> Values:
    return {"utilization": _scaled(nvml.nvmlDeviceGetUtilizationRates(device.handle).gpu, 0.01)}


def _throttle(nvml: Any, device: NvmlDevice) -> Values:
    return {"throttle_bits": nvml.nvmlDeviceGetCurrentClocksEventReasons(device.card)}


def _old_throttle(nvml: Any, device: NvmlDevice) -> Values:
    return {"throttle_bits": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device.card)}


def _memory(nvml: Any, device: NvmlDevice) -> Values:
    return _memory_used(nvml.nvmlDeviceGetMemoryInfo(device.handle, nvml.nvmlMemory_v2))


def _old_memory(nvml: Any, device: NvmlDevice) -> Values:
    """As above, with what the driver keeps for itself counted as used."""
    return _memory_used(nvml.nvmlDeviceGetMemoryInfo(device.handle))


def _memory_used(info: Any) -> Values:
    # Where driver and binding disagree about the structure, more is used than there is.
    return {"memory_used_bytes": info.used if info.used <= info.total else None}


def _pcie_throughput(nvml: Any, device: NvmlDevice) -> Values:
    """Blocks for 20 ms in each call, over which the driver counts; kB/s."""
    sent = nvml.nvmlDeviceGetPcieThroughput(device.card, nvml.NVML_PCIE_UTIL_TX_BYTES)
    received = nvml.nvmlDeviceGetPcieThroughput(device.card, nvml.NVML_PCIE_UTIL_RX_BYTES)
    return {"pcie_tx_bytes_per_s": _scaled(sent, 1e3), "pcie_rx_bytes_per_s": _scaled(received, 1e3)}


def _scaled(value: float, factor: float) -> float | None:
    """The value in our unit, unless it is a sentinel for one that is not available."""
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


# Two samples of the activity counters have to lie about 100 ms apart.
_SHORTEST_GPM_S = 0.05

_PCIE = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
_CLOCKS = (
    _make(("sm_clock_mhz",), _sm_clock, share=0.002),
    _make(("throttle_bits",), _throttle, share=0.002),
    _make(("throttle_bits",), _old_throttle, share=0.002),
    _make(("memory_clock_mhz",), _memory_clock, 0.1),
    _make(("temperature_c",), _temperature, 1.0),
)
_USE = (
    _make(("utilization",), _utilization, 0.1),
    _make(("memory_used_bytes",), _memory, 0.1),
    _make(("memory_used_bytes",), _old_memory, 0.1),
)
# The energy counter moves about every 100 ms (ML.ENERGY, "Measuring GPU Energy: Best Practices").
READINGS = (
    *_CLOCKS,
    *_USE,
    _make(("power_w",), _power, share=0.002),
    _make(("average_power_w",), _average_power, 0.1),
    _make(("energy_j",), _energy, 0.1),
    _make(_PCIE, _pcie_throughput, 2.0, share=0.02),
)
# A slice shares the card's clocks and temperature. Power, energy and PCIe traffic are those of all slices together.
SLICE_READINGS = (*_CLOCKS, *_USE)


class Gpm:
    """The activity counters of Hopper and newer: the difference between two samples of the device."""

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
        """The activity since the last time, unless that is too short ago to say anything."""
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
