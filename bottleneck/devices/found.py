"""A device with the origin of its ceilings: a row, a scaled row, rows that look alike, a formula, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bottleneck.devices.catalogue import Entry
from bottleneck.devices.derive import (
    architectures,
    clock_of,
    default_clocks_mhz,
    formula_peaks,
    special_ops_per_s,
    upper_peaks,
)
from bottleneck.devices.peaks import ridges
from bottleneck.records import Caveat, Device
from bottleneck.tracing import DeviceProperties

Kind = Literal["cuda", "rocm", "xpu", "cpu", "other"]

KINDS: Mapping[str, Kind] = {"cuda": "cuda", "rocm": "rocm", "xpu": "xpu", "cpu": "cpu"}
_VENDOR_KINDS: Mapping[str, Kind] = {"NVIDIA": "cuda", "AMD": "rocm", "Intel": "xpu"}
_HOW_TO_TELL = "pass --device NAME or --peaks FILE to judge it against its ceilings"


@dataclass(frozen=True)
class Found:
    """Ceilings with where they come from and what to say about them."""

    device: Device
    caveats: tuple[Caveat, ...] = ()


def from_entry(entry: Entry, properties: DeviceProperties | None = None) -> Device:
    """The row as a device, with the name, multiprocessors and memory that the device itself reports."""
    told = properties or DeviceProperties()
    return Device(
        name=told.name.strip() or entry.label,
        vendor=entry.vendor,
        kind=_VENDOR_KINDS.get(entry.vendor, "other"),
        count=1,
        peaks_flops_per_s=dict(entry.peaks_flops_per_s),
        bandwidth_bytes_per_s=entry.bandwidth_bytes_per_s,
        launch_floor_us=None,
        source="datasheet",
        ridge_flops_per_byte=ridges(entry.peaks_flops_per_s, entry.bandwidth_bytes_per_s),
        sm_count=told.sm_count or entry.sm_counts[0],
        memory_bytes=told.memory_bytes or int(entry.memory_bytes[0]),
        cache_bytes=entry.cache_bytes or None,
        special_ops_per_s=special_ops_per_s(entry.architecture, entry.sm_counts[0], entry.boost_mhz),
        link_bytes_per_s=entry.link_bytes_per_s,
        peak_clocks_mhz={peak: clock_of(peak, entry.boost_mhz, entry.tensor_mhz) for peak in entry.peaks_flops_per_s},
    )


def doubts(entry: Entry) -> tuple[Caveat, ...]:
    """What is uncertain about a row that comes from secondary sources; nothing for the others."""
    if entry.confidence != "C":
        return ()
    message = f"the ceilings of {entry.label} come from secondary sources ({entry.source}); {_HOW_TO_TELL}"
    return (Caveat("unconfirmed-peaks", message),)


def scaled(entry: Entry, properties: DeviceProperties) -> Found:
    """The row cut to the multiprocessors that the device reports.

    Arithmetic scales with multiprocessors. Bandwidth and cache follow memory where the device is a slice (MIG, CPX:
    fewer multiprocessors and less memory) or has more memory than the row; a part that only has less memory keeps the
    row's bandwidth. Clocks of laptop and cut-down parts are lower and unknown: ceilings err on the high side.
    """
    whole = from_entry(entry, properties)
    memory = (
        min((properties.memory_bytes / size for size in entry.memory_bytes), key=lambda ratio: abs(ratio - 1))
        if properties.memory_bytes
        else 1.0
    )
    compute = properties.sm_count / entry.sm_counts[0] if properties.sm_count else 1.0
    follows = memory > 1.15 or (memory < 0.85 and compute < 0.95)
    ratio = memory if follows else 1.0
    peaks = {peak: value * compute for peak, value in whole.peaks_flops_per_s.items()}
    bandwidth = entry.bandwidth_bytes_per_s * ratio
    device = replace(
        whole,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        cache_bytes=whole.cache_bytes and whole.cache_bytes * min(1.0, ratio),
        special_ops_per_s=whole.special_ops_per_s and whole.special_ops_per_s * compute,
        source="derived",
    )
    message = (
        f"{whole.name!r} reports {properties.sm_count} multiprocessors, the {entry.label} of the device table has "
        f"{entry.sm_counts[0]}: ceilings are scaled by {compute:.3g} (arithmetic) and {ratio:.3g} (bandwidth) and may "
        f"be too high; {_HOW_TO_TELL}"
    )
    return Found(device, (Caveat("derived-peaks", message),))


def by_fingerprint(twins: Sequence[Entry], properties: DeviceProperties) -> Found:
    """The row, or the highest ceilings of the rows, with this architecture, multiprocessor count and memory.

    Only AMD names its parts so vaguely (none at all, 'AMD Radeon Graphics') that a fingerprint is as good as a name; a
    new NVIDIA name is a part that we do not know.
    """
    base = from_entry(twins[0], properties)
    peaks = upper_peaks(entry.peaks_flops_per_s for entry in twins)
    bandwidth = max(entry.bandwidth_bytes_per_s for entry in twins)
    unanimous = all(entry.peaks_flops_per_s == peaks and entry.bandwidth_bytes_per_s == bandwidth for entry in twins)
    device = replace(
        base,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        cache_bytes=max(entry.cache_bytes for entry in twins) or None,
        peak_clocks_mhz=base.peak_clocks_mhz if unanimous else {},
        source="datasheet" if unanimous and base.vendor == "AMD" else "derived",
    )
    labels = " or ".join(dict.fromkeys(entry.label for entry in twins))
    called = f"the device calls itself {properties.name!r}" if properties.name.strip() else "the device has no name"
    message = f"{called}; multiprocessors and memory are those of {labels}"
    return Found(device, (Caveat("device-by-fingerprint", f"{message}; {_HOW_TO_TELL} if that is wrong"),))


def by_formula(properties: DeviceProperties, flavour: str) -> Found | None:
    """Ceilings of the architecture at its fastest listed clock, bandwidth unknown; null when that cannot be told."""
    kinds = [kind for kind in architectures(properties, flavour) if default_clocks_mhz(kind) is not None]
    if not kinds or properties.sm_count is None:
        return None
    count = properties.sm_count
    clocks = [(kind, *(default_clocks_mhz(kind) or (0.0, 0.0))) for kind in kinds]
    peaks = upper_peaks(formula_peaks(kind, count, boost, tensor) for kind, boost, tensor in clocks)
    if "GTX" in properties.name:
        # GTX boards of the Turing generation have its compute capability but no tensor cores.
        peaks = {peak: value for peak, value in peaks.items() if not peak.endswith("_tensor")}
    fastest = max(boost for _, boost, _ in clocks), max(tensor for _, _, tensor in clocks)
    special = [rate for kind, boost, _ in clocks if (rate := special_ops_per_s(kind, count, boost)) is not None]
    device = replace(
        _bare(properties, flavour),
        vendor="AMD" if kinds[0].startswith("gfx") else "NVIDIA",
        peaks_flops_per_s=peaks,
        special_ops_per_s=max(special, default=None),
        source="derived",
        peak_clocks_mhz={peak: clock_of(peak, *fastest) for peak in peaks},
    )
    message = (
        f"{device.name!r} is not in the device table: arithmetic ceilings follow from its architecture at the fastest "
        f"clock listed for it and may be too high, its bandwidth is unknown; {_HOW_TO_TELL}"
    )
    return Found(device, (Caveat("derived-peaks", message),))


def _bare(properties: DeviceProperties, flavour: str) -> Device:
    return Device(
        name=properties.name.strip() or ("CPU" if flavour == "cpu" else "unknown device"),
        vendor=None,
        kind=KINDS.get(flavour, "other"),
        count=1,
        peaks_flops_per_s={},
        bandwidth_bytes_per_s=None,
        launch_floor_us=None,
        source=None,
        ridge_flops_per_byte={},
        sm_count=properties.sm_count,
        memory_bytes=properties.memory_bytes,
    )


def unknown(properties: DeviceProperties, flavour: str) -> Found:
    """A device without ceilings, and what the user can pass to give it some."""
    device = _bare(properties, flavour)
    if flavour == "cpu":
        message = (
            "the trace does not say which CPU it ran on, so no op is judged against ceilings; record there with "
            "`bottleneck run`, or pass --device cpu if it was this machine, or --peaks FILE"
        )
    else:
        message = f"the ceilings of {device.name!r} are not known, so no kernel is judged against them; {_HOW_TO_TELL}"
    return Found(device, (Caveat("unknown-device", message),))
