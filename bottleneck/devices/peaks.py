"""Devices from other sources than the table: a file of ceilings by the user, a calibration, a recording."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bottleneck.devices.catalogue import PEAKS
from bottleneck.errors import UsageError
from bottleneck.schema.analysis import Device

# A CPU's ceilings are measured with matrix products, so fp32 and fp64 have a tensor peak there too.
KNOWN_PEAKS = frozenset({*PEAKS, "fp32_tensor"})

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
    """FLOPs per byte at which each peak and the bandwidth take equally long; empty without a bandwidth."""
    if not bandwidth_bytes_per_s:
        return {}
    return {peak: value / bandwidth_bytes_per_s for peak, value in peaks_flops_per_s.items()}


def device_to_json(device: Device) -> dict[str, Any]:
    """The device as plain dicts, sequences and numbers."""
    import msgspec  # noqa: PLC0415 - as below

    return dict(msgspec.to_builtins(device))


def device_from_json(data: Mapping[str, Any]) -> Device:
    """The device that ``device_to_json`` wrote; ValueError when a field is missing, unknown or of another type."""
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
    """The device that a TOML or JSON file describes, with the fields of ``Device`` as keys and source 'user'.

    ``name``, ``peaks_flops_per_s`` and ``bandwidth_bytes_per_s`` must be there; ridges are computed. Raises UsageError
    when the file cannot be read, is malformed, or holds a ceiling that is not a positive number.
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
            )
        },
    }
    for name, value in ceilings.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}, not a positive number")
