"""The devices that NVML shows, and which of them is which to the program: by UUID, never by index."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NvmlDevice:
    """A device, or a slice of one (MIG). ``card`` is the handle of the whole device, ``handle`` its own.

    ``slice_of`` is the UUID of the card that it is a slice of, ``instance`` the number of its GPU instance there.
    """

    sensor: str
    handle: Any
    card: Any
    slice_of: str | None = None
    instance: int | None = None


def find_devices(nvml: Any) -> tuple[list[NvmlDevice], list[str]]:
    """The devices, each followed by its slices, and complaints about those that cannot be reached."""
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
    return re.sub(r"[^A-Za-z0-9_.:/-]", "?", uuid).replace("?", "-")[:128] or "GPU"


def _slices(nvml: Any, card: NvmlDevice) -> list[NvmlDevice]:
    """The MIG slices of a card; none where it has no such mode or it is off."""
    try:
        is_on, _ = nvml.nvmlDeviceGetMigMode(card.handle)
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle) if is_on else 0
    except (nvml.NVMLError, AttributeError):
        return []
    found = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, index)
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            found.append(NvmlDevice(_uuid(nvml, handle), handle, card.handle, card.sensor, instance))
        except (nvml.NVMLError, UnicodeDecodeError):  # places for slices that were not made
            continue
    return found


def match_sensors(
    facts: Iterable[Mapping[str, object]], environment: Mapping[str, str], sensors: Sequence[str]
) -> dict[int, str]:
    """The sensor of each device as the program numbers them; devices that cannot be told for certain are left out.

    What the program's own CUDA says of its devices comes first. Without it, ``CUDA_VISIBLE_DEVICES`` tells where it
    names UUIDs, or indexes in the order of the bus. A single device needs no telling.
    """
    told = _by_facts(facts, sensors)
    return told or _by_environment(environment, [sensor for sensor in sensors if sensor.startswith(("GPU-", "MIG-"))])


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _by_facts(facts: Iterable[Mapping[str, object]], sensors: Sequence[str]) -> dict[int, str]:
    by_uuid = {_plain(sensor): sensor for sensor in sensors}
    found = {}
    for fact in facts:
        index, uuid = fact.get("index"), fact.get("uuid")
        if isinstance(index, int) and isinstance(uuid, str) and _plain(uuid) in by_uuid:
            found[index] = by_uuid[_plain(uuid)]
    return found


def _by_environment(environment: Mapping[str, str], sensors: Sequence[str]) -> dict[int, str]:
    cards = [sensor for sensor in sensors if sensor.startswith("GPU-")]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return {0: sensors[0]} if len(sensors) == 1 else {}
    is_bus_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(cards) == 1
    found: dict[int, str] = {}
    for index, entry in enumerate(part.strip() for part in visible.split(",")):
        sensor = _by_index(entry, cards) if entry.isdecimal() and is_bus_order else _by_prefix(entry, sensors)
        if sensor is None:  # CUDA shows no device from the first entry on that it does not know
            break
        if sensor in found.values():  # CUDA shows none at all
            return {}
        found[index] = sensor
    return found


def _by_index(entry: str, cards: Sequence[str]) -> str | None:
    return cards[int(entry)] if len(entry) < 5 and int(entry) < len(cards) else None


def _by_prefix(entry: str, sensors: Sequence[str]) -> str | None:
    """The one sensor whose UUID begins so; CUDA takes as many letters as tell the devices apart."""
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    found = [sensor for sensor in sensors if sensor.lower().startswith(entry.lower())]
    return found[0] if len(found) == 1 else None
