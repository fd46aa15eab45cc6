"""Reads the tables of devices, of rates and of kernel names.

They are CSV files beside this module; rates are per architecture. Devices from other sources follow: a file of ceilings
by the user, a calibration, a recording.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from bottleneck.errors import UsageError
from bottleneck.schema.device import ONEDNN_PEAK, Device
from bottleneck.schema.device_facts import read_rows

GIB = 2.0**30
MIB = 2.0**20

# Ceilings as the classifier keys them: '<dtype>_tensor', '<dtype>_vector', and AMD's fp32 matrix instructions.
PEAKS = (
    "fp64_vector",
    "fp64_tensor",
    "fp32_vector",
    "fp32_matrix",
    "tf32_tensor",
    "fp16_tensor",
    "bf16_tensor",
    "fp16_vector",
    "bf16_vector",
    "fp8_tensor",
    "int8_tensor",
    "fp4_tensor",
)

# One-way bytes/s of pinned copies over all lanes of a slot, as measured in practice; the table gives GB/s both ways.
_PCIE_PRACTICAL = {"PCIe3": (12e9, 32.0), "PCIe4": (25e9, 64.0), "PCIe5": (52e9, 128.0)}


@dataclass(frozen=True)
class Entry:
    """One row of the table in SI units.

    Peaks are dense with fp32 accumulation, per device as torch counts devices. A name in ``exact_names`` matches as a
    whole only; one in ``names`` also where another word follows it. ``sm_counts`` and ``memory_bytes`` hold every
    figure that the part is known to report; the first SM count is the one that the peaks belong to. ``called`` are what
    people call it.
    """

    names: tuple[str, ...]
    exact_names: tuple[str, ...]
    called: tuple[str, ...]
    vendor: str
    architecture: str
    sm_counts: tuple[int, ...]
    boost_mhz: float
    tensor_mhz: float
    peaks_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: float
    cache_bytes: float
    memory_bytes: tuple[float, ...]
    link_bytes_per_s: float | None
    source: str
    confidence: str
    notes: str

    @property
    def label(self) -> str:
        """The name to show: the first of the row."""
        return (self.names + self.exact_names)[0]


@cache
def entries() -> tuple[Entry, ...]:
    """Every row of table.csv, in its order."""
    return tuple(_entry(row) for row in read_rows("table.csv"))


@cache
def rates() -> Mapping[str, Mapping[str, float]]:
    """Returns FLOPs per clock and multiprocessor by architecture and peak.

    'special' holds special-function ops per clock.
    """
    return {
        row["architecture"]: {
            column.removesuffix("_flops_per_clock").removesuffix("_ops_per_clock"): float(value)
            for column, value in row.items()
            if column.endswith("_per_clock") and value and float(value) > 0
        }
        for row in read_rows("rates.csv")
    }


@cache
def reported_as() -> Mapping[str, tuple[str, ...]]:
    """Returns architectures by the compute capability that boards report.

    They are those whose boards report another than their own name.
    """
    by_report: dict[str, tuple[str, ...]] = {}
    for row in read_rows("rates.csv"):
        if row["reported_as"]:
            by_report[row["reported_as"]] = (*by_report.get(row["reported_as"], ()), row["architecture"])
    return by_report


@cache
def kinds_by_vendor() -> Mapping[str, str]:
    """The kind of devices that each vendor makes, as traces name it."""
    return {row["vendor"]: row["kind"] for row in read_rows("vendors.csv")}


@cache
def usual_names() -> Mapping[str, Entry]:
    """Returns rows by what people call them.

    Of several such devices it is the part that is rented most.
    """
    return {called: entry for entry in entries() for called in entry.called}


class KernelName(Struct, frozen=True):
    """Names of kernels made for a generation.

    With the architectures that run kernels of such names: libraries build some of their kernels for later generations
    under the old name.
    """

    pattern: re.Pattern[str]
    generation: str
    architectures: tuple[str, ...]


@cache
def kernel_names() -> tuple[KernelName, ...]:
    """The rows of kernel_names.csv, in the order in which they are tried."""
    return tuple(
        KernelName(re.compile(row["pattern"]), row["generation"], tuple(row["architectures"].split("|")))
        for row in read_rows("kernel_names.csv")
    )


def _entry(row: Mapping[str, str]) -> Entry:
    names = row["names"].split("|")
    return Entry(
        names=tuple(name for name in names if not name.startswith("=")),
        exact_names=tuple(name.removeprefix("=") for name in names if name.startswith("=")),
        called=tuple(row["called"].split("|")) if row["called"] else (),
        vendor=row["vendor"],
        architecture=row["architecture"],
        sm_counts=tuple(int(count) for count in row["sm_count"].split("/")),
        boost_mhz=float(row["boost_mhz"]),
        tensor_mhz=float(row["tensor_mhz"]),
        peaks_flops_per_s={
            peak: float(row[f"{peak}_tflop_per_s"]) * 1e12 for peak in PEAKS if row[f"{peak}_tflop_per_s"]
        },
        bandwidth_bytes_per_s=float(row["dram_gb_per_s"]) * 1e9,
        cache_bytes=(float(row["l2_mib"] or 0) + float(row["last_level_mib"] or 0)) * MIB,
        memory_bytes=tuple(float(size) * GIB for size in row["memory_gib"].split("/")),
        link_bytes_per_s=_link(row["interconnect_gb_per_s_both_ways"]),
        source=row["source"],
        confidence=row["confidence"],
        notes=row["notes"],
    )


def _link(text: str) -> float | None:
    """One-way bytes/s between host and device; null where the row names no PCIe link.

    'PCIe4 x8 32' is half of a full PCIe4 slot: the figure in the text gives the width.
    """
    words = text.replace(";", " ").split()
    for generation, (practical, full) in _PCIE_PRACTICAL.items():
        if generation in words:
            figures = [word for word in words[words.index(generation) + 1 :] if word.replace(".", "").isdigit()]
            return practical * float(figures[0]) / full
    return None


# A CPU's ceilings are measured with matrix products, so fp32 and fp64 have a tensor peak there too.
KNOWN_PEAKS = frozenset({*PEAKS, "fp32_tensor", ONEDNN_PEAK})

_DEFAULTS: Mapping[str, Any] = {
    "vendor": None,
    "kind": "other",
    "count": 1,
    "launch_floor_us": None,
    "bandwidth_bytes_per_s": None,
}
_FIX = (
    "give at least name, peaks_flops_per_s (keys such as bf16_tensor, fp32_vector; FLOP/s, dense) and "
    "bandwidth_bytes_per_s; see the reference page on devices"
)


def ridges(peaks_flops_per_s: Mapping[str, float], bandwidth_bytes_per_s: float | None) -> dict[str, float]:
    """Returns FLOPs per byte at which a peak and the bandwidth are equal.

    They are by peak; empty without a bandwidth.
    """
    if not bandwidth_bytes_per_s:
        return {}
    return {peak: value / bandwidth_bytes_per_s for peak, value in peaks_flops_per_s.items()}


def device_from_json(data: Mapping[str, Any]) -> Device:
    """Makes a device of plain values.

    Raises ValueError when a field is missing, unknown or of another type.
    """
    import msgspec  # noqa: PLC0415 - only reading foreign data needs it

    try:
        device = msgspec.convert(dict(data), Device)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from exc
    unknown = data.keys() - {field.name for field in fields(Device)}
    if unknown:
        raise ValueError(f"unknown keys: {', '.join(sorted(unknown))}")
    return device


def device_from_peaks_file(path: Path) -> Device:
    """Reads the device that a TOML or JSON file describes.

    Keys are the fields of ``Device``, and the source is 'user'. ``name``, ``peaks_flops_per_s`` and
    ``bandwidth_bytes_per_s`` must be there; ridges are computed. Raises UsageError when the file cannot be read, is
    malformed, or holds a ceiling that is not a positive number.
    """
    try:
        data = _read(path)
        missing = {"name", "peaks_flops_per_s", "bandwidth_bytes_per_s"} - data.keys()
        if missing:
            raise ValueError(f"missing keys: {', '.join(sorted(missing))}")
        bandwidth = data["bandwidth_bytes_per_s"]
        device = device_from_json({**_DEFAULTS, "ridge_flops_per_byte": {}, **data, "source": "user"})
        _check_ceilings(device)
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}", fix="name a TOML or JSON file of ceilings") from exc
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path} does not describe a device", why=str(exc), fix=_FIX) from exc
    return replace(device, ridge_flops_per_byte=ridges(device.peaks_flops_per_s, bandwidth))


def _read(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if not isinstance(data, dict):
        raise ValueError("the file holds no table of keys and values")
    return data


def _check_ceilings(device: Device) -> None:
    kinds = {"cpu", "other", *kinds_by_vendor().values()}
    if device.kind not in kinds:
        raise ValueError(f"unknown kind: {device.kind}; known: {', '.join(sorted(kinds))}")
    unknown = device.peaks_flops_per_s.keys() - KNOWN_PEAKS
    if unknown:
        raise ValueError(f"unknown peaks: {', '.join(sorted(unknown))}; known: {', '.join(sorted(KNOWN_PEAKS))}")
    ceilings: dict[str, float | None] = {
        **{f"peaks_flops_per_s.{peak}": value for peak, value in device.peaks_flops_per_s.items()},
        **{f"peak_clocks_mhz.{peak}": clock for peak, clock in device.peak_clocks_mhz.items()},
        **{f"bandwidth_by_bytes[{size:g}]": rate for size, rate in device.bandwidth_by_bytes},
        **{
            name: getattr(device, name)
            for name in (
                "bandwidth_bytes_per_s",
                "launch_floor_us",
                "special_ops_per_s",
                "link_bytes_per_s",
                "fresh_bytes_per_s",
                "compiled_call_us",
                "compiled_call_backward_us",
            )
        },
    }
    for name, value in ceilings.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}, not a positive number")
