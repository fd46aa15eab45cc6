"""Ceilings from a user's file, and devices as JSON and back."""

import json
from pathlib import Path

import msgspec
import pytest

from bottleneck.devices.catalogue import device_from_json, device_from_peaks_file
from bottleneck.devices.match import device_by_name
from bottleneck.errors import UsageError
from tests.architecture.test_imports import modules_after

TOML = """
name = "our board"
kind = "cuda"
bandwidth_bytes_per_s = 2e12
sm_count = 100
[peaks_flops_per_s]
bf16_tensor = 4e14
fp32_vector = 25_000_000_000_000
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_toml_file_describes_a_device(tmp_path: Path) -> None:
    device = device_from_peaks_file(written(tmp_path / "ours.toml", TOML))
    assert (device.name, device.source, device.kind, device.sm_count) == ("our board", "user", "cuda", 100)
    assert device.ridge_flops_per_byte == {"bf16_tensor": 200.0, "fp32_vector": 12.5}


def test_a_json_file_describes_a_device(tmp_path: Path) -> None:
    data = {"name": "x", "peaks_flops_per_s": {"fp32_vector": 1e12}, "bandwidth_bytes_per_s": 1e11}
    device = device_from_peaks_file(written(tmp_path / "ours.json", json.dumps(data)))
    assert (device.kind, device.count, device.vendor) == ("other", 1, None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "missing keys: bandwidth_bytes_per_s, name, peaks_flops_per_s"),
        (TOML.replace("sm_count", "sm_cuont"), "unknown keys: sm_cuont"),
        (TOML.replace("bf16_tensor", "bf16"), "unknown peaks: bf16"),
        (TOML.replace("4e14", "-4e14"), "peaks_flops_per_s.bf16_tensor is -4"),
        (TOML.replace("2e12", "nan"), "bandwidth_bytes_per_s is nan"),
        (TOML.replace("2e12", "'fast'"), "str"),
        (TOML.replace('"cuda"', '"toaster"'), "toaster"),
        ("name = ", "Invalid value"),
        ("bandwidth_by_bytes = [[1e6]]" + TOML, "length"),
    ],
)
def test_a_malformed_file_is_refused_with_its_fault(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match="does not describe a device") as caught:
        device_from_peaks_file(written(tmp_path / "ours.toml", text))
    assert complaint in caught.value.why


@pytest.mark.parametrize("text", ["[1, 2]", "{", '{"name": 1}', "[" * 100_000])
def test_json_of_any_kind_is_refused_politely(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        device_from_peaks_file(written(tmp_path / "ours.json", text))


def test_a_missing_file_is_a_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        device_from_peaks_file(tmp_path / "absent.toml")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="does not describe a device"):
        device_from_peaks_file(path)


def test_a_device_survives_json() -> None:
    device = device_by_name("h200")
    assert device_from_json(json.loads(json.dumps(msgspec.to_builtins(device)))) == device


def test_a_device_with_a_strange_key_is_no_device() -> None:
    with pytest.raises(ValueError, match="unknown keys: colour"):
        device_from_json(msgspec.to_builtins(device_by_name("h200")) | {"colour": "green"})


def test_matching_a_device_imports_neither_torch_nor_pandas() -> None:
    seen = modules_after("from bottleneck.devices import catalogue, match; match.device_by_name('h200')")
    assert "csv" in seen and not seen & {"torch", "pandas", "numpy"}
