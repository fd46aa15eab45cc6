"""Which ceilings a device has: by name, checked against what the trace itself says of it, else by fingerprint."""

import difflib
from collections.abc import Sequence
from dataclasses import replace

from bottleneck.devices.catalogue import Entry, entries
from bottleneck.devices.derive import alike, memory_agrees
from bottleneck.devices.found import KINDS, Found, by_fingerprint, by_formula, doubts, from_entry, scaled, unknown
from bottleneck.errors import UsageError
from bottleneck.records import Caveat, Device
from bottleneck.tracing import DeviceProperties


def match_device(
    properties: Sequence[DeviceProperties], used: Sequence[int], flavour: str
) -> tuple[Device, tuple[Caveat, ...]]:
    """The device that did the work of a trace, and what is doubtful about its ceilings.

    ``used`` holds the indexes of the devices with work, ``flavour`` that of the trace. The name picks a row of the
    table only where multiprocessor count and memory agree; slices and cut-down parts are scaled, parts without a row
    derived, both with source 'derived'. An unknown device has no ceilings and source null.
    """
    if flavour == "cpu":
        # The machine may list GPUs, but none of them did any work.
        found = unknown(DeviceProperties(), flavour)
        return found.device, found.caveats
    chosen = [device for device in properties if device.index in used] or list(properties[:1])
    first = chosen[0] if chosen else DeviceProperties()
    found = _find(first, flavour)
    device = replace(found.device, kind=KINDS.get(flavour, "other"), count=max(1, len(set(used))))
    return device, found.caveats + _mixed(chosen)


def device_by_name(name: str) -> Device:
    """The device of the table that a user names, whole ('NVIDIA A100 80GB PCIe') or by its own words ('mi300x').

    Raises UsageError with the nearest names when no row, or more than one, fits.
    """
    query = _words(name)
    if not query:
        raise UsageError("no device is called ''", fix="name a device, for example --device H200")
    named = {label: entry for entry in entries() for label in entry.names + entry.exact_names}
    exact = [entry for label, entry in named.items() if _words(label) == query or _words(label)[1:] == query]
    loose = [entry for label, entry in named.items() if set(query) <= set(_words(label))]
    fitting = _distinct(exact) or _distinct(loose)
    if len(fitting) == 1:
        return from_entry(fitting[0])
    near = [entry.label for entry in fitting] or _near_names(name, list(named))
    raise UsageError(
        f"{'several devices fit' if fitting else 'no device is called'} {name!r}",
        why=f"nearest: {', '.join(near)}" if near else "nothing in the device table resembles it",
        fix="name one of the device table in full, or describe the device in a file: --peaks FILE",
    )


def _words(name: str) -> list[str]:
    return name.lower().replace("-", " ").replace("instinct ", "").split()


def _distinct(found: Sequence[Entry]) -> list[Entry]:
    return [entry for index, entry in enumerate(found) if entry not in found[:index]]


def _near_names(name: str, names: list[str]) -> list[str]:
    """Names of which the whole, or the end from some word on, is spelt much like the query."""
    tails = {" ".join(_words(label)[start:]): label for label in names for start in range(len(_words(label)))}
    hits = difflib.get_close_matches(" ".join(_words(name)), tails, n=4, cutoff=0.6)
    return list(dict.fromkeys(tails[hit] for hit in hits))


def _find(properties: DeviceProperties, flavour: str) -> Found:
    named = _by_name(properties.name)
    if named is not None and _is_another_part(named, properties):
        named = None
    if named is not None and _agrees(named, properties):
        return Found(from_entry(named, properties), doubts(named))
    twins = alike(properties, flavour)
    if twins and (named is None or named.vendor == "AMD"):
        return by_fingerprint(twins, properties)
    if named is not None:
        return scaled(named, properties)
    return by_formula(properties, flavour) or unknown(properties, flavour)


def _by_name(name: str) -> Entry | None:
    """The row with the longest pattern that the name is, or continues with another word; null when there is none."""
    plain = name.strip().removeprefix("NVIDIA ")
    hits = [
        (len(pattern), entry)
        for entry in entries()
        for pattern in (label.removeprefix("NVIDIA ") for label in entry.names)
        if plain.startswith(pattern) and not plain[len(pattern) :][:1].isalnum()
    ]
    exact = [entry for entry in entries() if name.strip() in entry.exact_names]
    return exact[0] if exact else max(hits, key=lambda hit: hit[0], default=(0, None))[1]


def _agrees(entry: Entry, properties: DeviceProperties) -> bool:
    count = properties.sm_count
    return (count is None or count in entry.sm_counts) and memory_agrees(entry, properties.memory_bytes)


def _is_another_part(entry: Entry, properties: DeviceProperties) -> bool:
    """Whether a longer name means a bigger board: an RTX 3060 Ti has more multiprocessors than an RTX 3060."""
    longer = properties.name.strip() not in entry.names + entry.exact_names
    return longer and (properties.sm_count or 0) > max(entry.sm_counts)


def _mixed(chosen: Sequence[DeviceProperties]) -> tuple[Caveat, ...]:
    kinds = {(device.name, device.sm_count) for device in chosen}
    if len(kinds) < 2:
        return ()
    names = ", ".join(sorted(repr(name) for name, _ in kinds))
    return (Caveat("mixed-devices", f"work ran on different devices ({names}); all is judged by the first"),)
