"""`bottleneck run` reads the machine's sensors beside the program, from the supervisor."""

import os
import statistics
from pathlib import Path

import pytest

from bottleneck.schema.telemetry import HOST, TELEMETRY_FILE, read_samples
from tests.harness.driver import Run, record
from tests.harness.nvml import CARD, OTHER_CARD, build

# Ends when the samples are there that the test waits for, without looking at a clock.
WAITS = """
    import sys
    open("enough").read()
    print(sorted({"pynvml", "psutil"} & set(sys.modules)))
    raise SystemExit(3)
"""
_TELL = """
    import collections
    from bottleneck.harness import sensors
    wanted, seen = {wanted}, collections.Counter()
    def add(log, sample, add=sensors.SensorLog.add):
        add(log, sample)
        seen[sample.sensor] += 1
        if wanted and all(seen[sensor] >= count for sensor, count in wanted.items()):
            wanted.clear()
            open("enough", "w").close()
    sensors.SensorLog.add = add
"""
SENSORS = {"host": HOST, "card": CARD, "other": OTHER_CARD}
WORKLOAD = """
    import torch

    def workload():
        weight = torch.ones(200, 200)
        return lambda: (weight @ weight).sum()
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def wait_for(folder: Path, *options: str, **wanted: int) -> Run:
    """The run of a program that ends when sensors have told so many samples; their names are in ``SENSORS``."""
    os.mkfifo(folder / "enough")
    named = {SENSORS[name]: count for name, count in wanted.items()}
    return record(folder, WAITS, *options, setup=_TELL.format(wanted=named))


@pytest.fixture
def stub(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "script"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("NVML_STUB", str(script))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return script


def test_devices_and_host_are_sampled_and_the_program_knows_nothing_of_it(stub: Path, tmp_path: Path) -> None:
    stub.write_text("devices 2\nset 0 gpm 1\n")
    run = wait_for(tmp_path, host=3, card=10, other=10)
    assert (run.status, run.stdout, run.stderr) == (3, "[]\n", "")
    samples = read_samples(run.folder)
    assert {sample.sensor for sample in samples} == {HOST, CARD, OTHER_CARD}
    assert run.recording.sampling is not None
    assert run.recording.sampling.samples == len(samples)
    assert run.recording.sampling.period_ms == 20.0
    assert run.recording.sampling.sensors == {}  # the program did not say which of the two it used, if any
    own = [sample.values["process_cpu_s"] for sample in samples if "process_cpu_s" in sample.values]
    assert own == sorted(own) and len(own) >= 3


def test_a_device_that_is_lost_in_the_middle_leaves_the_program_alone(stub: Path, tmp_path: Path) -> None:
    stub.write_text("devices 2\nfail nvmlDeviceGetClockInfo 15 12 0\n")
    run = wait_for(tmp_path, host=2, card=3, other=30)
    assert (run.status, run.stdout, run.stderr) == (3, "[]\n", "")
    assert f"{CARD} was lost" in run.said
    assert any(CARD in warning for warning in run.recording.warnings)


def test_a_driver_that_was_updated_is_named_and_the_host_still_read(stub: Path, tmp_path: Path) -> None:
    stub.write_text("fail nvmlInitWithFlags 18\n")
    run = wait_for(tmp_path, host=2)
    assert run.status == 3
    assert "restart the machine" in run.said
    assert {sample.sensor for sample in read_samples(run.folder)} == {HOST}


def test_a_driver_that_hangs_does_not_keep_the_report_waiting(stub: Path, tmp_path: Path) -> None:
    stub.write_text("devices 1\nsleep nvmlInitWithFlags 60000000\n")
    run = wait_for(tmp_path, host=2)
    assert run.status == 3
    assert "did not answer" in run.said


def test_a_single_device_is_the_programs(stub: Path, tmp_path: Path) -> None:
    stub.write_text("devices 1\n")
    run = wait_for(tmp_path, card=2)
    assert run.recording.sampling is not None
    assert run.recording.sampling.sensors == {0: CARD}


def test_the_samples_lie_on_the_clock_of_the_step_marks(tmp_path: Path) -> None:
    run = record(tmp_path, WORKLOAD, "--steps", "3")
    samples, marks_ns = read_samples(run.folder), run.recording.traces[0].step_marks_ns
    timed_ns = run.recording.timed_ns
    assert timed_ns is not None and timed_ns[0] < timed_ns[1] <= marks_ns[0]
    assert samples[0].unix_ns < timed_ns[0] and marks_ns[-1] < samples[-1].unix_ns + 5e9
    # Both clocks are read one after the other; where another program ran in between, they are further apart.
    apart_s = [sample.unix_ns / 1e9 - sample.elapsed_s for sample in samples]
    assert statistics.median(apart_s) == pytest.approx(min(apart_s), abs=0.05)


def test_no_sensor_is_read_when_the_user_says_so(stub: Path, tmp_path: Path) -> None:
    stub.write_text("devices 1\n")
    run = record(tmp_path, "raise SystemExit(3)", "--telemetry-ms", "0")
    assert run.status == 3
    assert run.recording.sampling is None
    assert not (run.folder / TELEMETRY_FILE).exists()


def test_a_new_recording_leaves_nothing_of_the_old_ones_log(tmp_path: Path) -> None:
    record(tmp_path, "pass")
    (tmp_path / "recording" / TELEMETRY_FILE).write_text("old")
    run = record(tmp_path, "pass", "--force", "--telemetry-ms", "0")
    assert not (run.folder / TELEMETRY_FILE).exists()
