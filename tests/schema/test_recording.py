import dataclasses
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.schema.device import Device
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import (
    RECORDING_FILE,
    RankTrace,
    Recording,
    is_recording,
    kept_command,
    kept_environment,
    kept_source,
    read_recording,
    write_recording,
)

DEVICE = Device(
    name="a processor",
    vendor=None,
    kind="cpu",
    count=1,
    peaks_flops_per_s={"fp32_vector": 1e11},
    bandwidth_bytes_per_s=2e10,
    launch_floor_us=0.5,
    source="measured",
    ridge_flops_per_byte={"fp32_vector": 5.0},
    bandwidth_by_bytes=((32768.0, 1e11), (1e9, 2e10)),
)

RECORDING = Recording(
    created="2026-01-02T03:04:05+00:00",
    command=("train.py", "--epochs", "2"),
    form="script",
    step_source="optimizer",
    program_status=143,
    framework="PyTorch 2.13.0",
    versions={"python": "3.11.7"},
    environment={"OMP_NUM_THREADS": "2"},
    traces=(RankTrace(0, "trace.rank0.json.gz", (1_700_000_000_000_000_001, 1_700_000_000_000_000_900)),),
    unprofiled=Timing(1.0, 0.5, 2.0, 20),
    profiled=Timing(1.5, 1.0, 3.0, 5),
    perturbation=1.5,
    threads=2,
    device_facts=({"index": 0, "name": "a card", "total_memory": 85018279936, "clock_rate": None},),
    device=DEVICE,
    warnings=("something",),
)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    write_recording(tmp_path, RECORDING)
    assert read_recording(tmp_path) == RECORDING
    assert is_recording(tmp_path)


def test_writing_leaves_one_file_and_replaces_the_last(tmp_path: Path) -> None:
    write_recording(tmp_path, RECORDING)
    write_recording(tmp_path, dataclasses.replace(RECORDING, program_status=0))
    assert [path.name for path in tmp_path.iterdir()] == [RECORDING_FILE]
    assert read_recording(tmp_path).program_status == 0


def test_a_folder_without_the_file_is_no_recording(tmp_path: Path) -> None:
    assert not is_recording(tmp_path)
    with pytest.raises(TraceError, match="cannot read"):
        read_recording(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"created": 3}', "\x00", '{"a":' * 100_000, '"\ud800"'], ids=range(8)
)
def test_a_malformed_file_is_a_trace_error(text: str, tmp_path: Path) -> None:
    (tmp_path / RECORDING_FILE).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(TraceError, match="not a recording"):
        read_recording(tmp_path)


def test_a_recording_of_another_format_version_is_named(tmp_path: Path) -> None:
    write_recording(tmp_path, dataclasses.replace(RECORDING, schema="bottleneck/recording/99"))
    with pytest.raises(TraceError, match="recording/99"):
        read_recording(tmp_path)


@pytest.mark.parametrize("file", ["../trace.json", "/etc/passwd", "", "..", "a/b.json"])
def test_a_recording_cannot_point_outside_its_folder(file: str, tmp_path: Path) -> None:
    write_recording(tmp_path, dataclasses.replace(RECORDING, traces=(RankTrace(0, file),)))
    with pytest.raises(TraceError, match="outside"):
        read_recording(tmp_path)


def test_the_environment_keeps_what_shapes_performance() -> None:
    environment = {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/home/me", "PATH": "/bin"}
    assert kept_environment(environment) == {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_HUB_TOKEN", "x"),
        ("NCCL_API_KEY", "x"),
        ("PYTORCH_password", "x"),
        ("TORCH_REMOTE", "https://me:hunter2@example.org/"),
        ("CUDA_THING", "a1b2c3d4e5f6a7b8c9d0a1b2c3d4e5f6a7b8"),
    ],
)
def test_a_variable_that_looks_secret_is_dropped(name: str, value: str) -> None:
    assert kept_environment({name: value, "OMP_NUM_THREADS": "1"}) == {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["train.py", "--password", "hunter2", "x"], ("train.py", "--password", "[redacted]", "x")),
        (["--api-key=abc", "--lr=0.1"], ("--api-key=[redacted]", "--lr=0.1")),
        (["--token", "--verbose", "name"], ("--token", "--verbose", "name")),
        (["s3://me:hunter2@store"], ("[redacted]",)),
        (["train.py", "--epochs", "2"], ("train.py", "--epochs", "2")),
    ],
)
def test_the_command_line_is_kept_without_its_secrets(arguments: list[str], kept: tuple[str, ...]) -> None:
    assert kept_command(arguments) == kept


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("    loss = model(x)  # forward\n", "loss = model(x)"),
        ("login(token='hf_abc', name=user)", "login(token='[redacted]', name=user)"),
        ('key = self.key(x) + "', 'key = self.key(x) + "'),
        ('wandb.init("a1b2c3d4e5f6a7b8c9d0a1b2c3d4e5f6")', 'wandb.init("[redacted]")'),
        ('store = open("s3://me:hunter2@store")', 'store = open("[redacted]")'),
        (r"print('it\'s # no comment', x)", r"print('it\'s # no comment', x)"),
        ("password = 'begun and", "password = '[redacted]'"),
        ("# only a comment", ""),
    ],
)
def test_a_line_of_the_program_is_kept_without_comment_and_secrets(line: str, kept: str) -> None:
    assert kept_source(line) == kept


def test_a_long_line_of_the_program_is_cut() -> None:
    assert kept_source("x" * 500) == "x" * 119 + "…"
