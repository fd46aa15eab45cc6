"""Facts to rows: what the sensors of NVIDIA devices give, or in plain words why they give nothing."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bottleneck.checks import Check
from bottleneck.harness.checkup.device_rows import has_nvidia, sensor_names
from bottleneck.harness.checkup.facts import Facts
from bottleneck.harness.nvml import NO_DRIVER, REMEDIES

_SENSORS = partial(Check, "sensors", "devices", "sensors")
_MOST_DEVICES = 16
_BINDING = "pip install nvidia-ml-py"
_OFFICIAL = "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"

# Column of a sensor -> what people call it.
_CALLED = {
    "sm_clock_mhz": "clocks", "memory_clock_mhz": "clocks", "power_w": "power",
    "average_power_w": "power (1 s average)", "energy_j": "energy", "temperature_c": "temperature",
    "utilization": "use", "throttle_bits": "throttling", "memory_used_bytes": "memory",
    "pcie_tx_bytes_per_s": "PCIe", "pcie_rx_bytes_per_s": "PCIe", "sm_activity": "SM activity",
    "tensor_activity": "tensor activity", "dram_activity": "DRAM activity",
}  # fmt: skip
# What every device should give; activity counters only those of Hopper and newer have.
_WANTED = ("clocks", "power", "energy", "temperature", "use", "throttling", "memory", "PCIe")
_OF_THE_CARD = frozenset({"power", "energy", "PCIe"})


def sensor_rows(facts: Facts) -> list[Check]:
    """One row per device, or one that says why there is none to read; none on a machine without such devices."""
    told, binding = facts.nvml.told, facts.nvml.told.get("binding")
    if binding is not None and not binding["is_official"]:
        fact = f"the unofficial pynvml at {binding['file']} stands in the way of nvidia-ml-py"
        return [_SENSORS("missing", fact, command=_OFFICIAL)]
    if "refusal" in told:
        return _refused(facts, told["refusal"])
    if not has_nvidia(facts):
        return []
    if binding is None:
        return [_SENSORS("missing", "nvidia-ml-py cannot be imported", facts.nvml.last_words, command=_BINDING)]
    if "devices" not in told:
        why = "it did not answer in time" if facts.nvml.status is None else facts.nvml.last_words
        return [_SENSORS("missing", "the driver's library failed", why, "`nvidia-smi` may say more")]
    columns: Mapping[str, Sequence[str]] = told.get("sensors", {}).get("columns", {})
    slices = told["devices"].get("slices", [])
    names = list(sensor_names(facts).items())[:_MOST_DEVICES]
    each = [_device(f"{name} ({sensor})", columns.get(sensor, ()), is_slice=sensor in slices) for sensor, name in names]
    return [*each, *(_SENSORS("missing", text) for text in told["devices"].get("complaints", [])[:_MOST_DEVICES])]


def _refused(facts: Facts, refusal: Mapping[str, Any]) -> list[Check]:
    code = int(refusal["code"])
    if code in NO_DRIVER and not has_nvidia(facts):
        return []
    fact = f"the driver's library refuses: {refusal['text']} (error {code})"
    return [_SENSORS("missing", fact, remedy=REMEDIES.get(code, "`nvidia-smi` may say more"))]


def _device(name: str, columns: Sequence[str], *, is_slice: bool) -> Check:
    called = list(dict.fromkeys(_CALLED.get(column, column) for column in columns))
    if not called:
        return _SENSORS("missing", f"{name} gives nothing", "the driver supports no sensor of it, as in some VMs")
    absent = [word for word in _WANTED if not any(each.startswith(word) for each in called)]
    fact = f"{name}: {', '.join(called)}"
    if is_slice and set(absent) <= _OF_THE_CARD:
        return _SENSORS("ok", fact, "a slice of a card (MIG): power, energy and PCIe are those of all slices together")
    if absent:
        return _SENSORS("limited", fact, f"this device does not tell: {', '.join(absent)}")
    return _SENSORS("ok", fact)
