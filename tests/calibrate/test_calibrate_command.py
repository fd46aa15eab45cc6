"""``bottleneck calibrate``: what it prints, where it keeps it, and how it ends when it cannot measure."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.calibrate import cpu as calibrate_cpu
from bottleneck.calibrate.cache import read_calibration, to_plain
from bottleneck.calibrate.calibration import Calibration, calibration_table
from bottleneck.calibrate.probes import ClockStamp, OnProgress, ProbeEffort, RoundProgress
from bottleneck.cli import _run
from bottleneck.schema.recording import read_recording
from tests.architecture.test_imports import modules_after, run_fresh
from tests.calibrate.test_calibration import NOISY, ceiling, made


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement takes no time, tells two rounds, and comes to what ``made`` makes."""
    pytest.importorskip("torch")

    def measure(threads: int | None, effort: ProbeEffort, on_progress: OnProgress) -> Calibration:
        for step in (
            RoundProgress("fp32 product", 1, 0, 2),
            RoundProgress("DRAM stream", 1, 1, 2),
            RoundProgress("DRAM stream", 3, 0, 1, is_rest=True),
        ):
            on_progress(step)
        return made(threads=threads or 2, is_default=threads is None)

    monkeypatch.setattr(calibrate_cpu, "measure_cpu", measure)


def run(*arguments: str) -> int:
    return _run(["calibrate", *arguments])


@pytest.mark.usefixtures("_measured")
class TestOutput:
    def test_the_table_is_the_result_and_the_progress_is_not(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--device", "cpu") == 0
        out, err = capsys.readouterr()
        known = read_calibration()
        assert known is not None and out == calibration_table(known)
        assert "round 1: 2 ceilings" in err and "round 3: 1 that have not settled" in err and "kept in" in err

    def test_quiet_leaves_only_the_result(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--device", "cpu", "--quiet") == 0
        out, err = capsys.readouterr()
        assert out and err == ""

    def test_json_is_the_calibration_itself(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--device", "cpu", "--format", "json") == 0
        known = read_calibration()
        assert known is not None and json.loads(capsys.readouterr().out) == json.loads(json.dumps(to_plain(known)))

    def test_a_file_takes_the_result_instead(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--device", "cpu", "-q", "-o", str(tmp_path / "ceilings.txt")) == 0
        assert capsys.readouterr().out == ""
        assert "fp32" in (tmp_path / "ceilings.txt").read_text()

    def test_seconds_are_what_the_measurement_takes_at_least(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[ProbeEffort] = []

        def measure(threads: int | None, effort: ProbeEffort, on_progress: OnProgress) -> Calibration:
            asked.append(effort)
            return made()

        monkeypatch.setattr(calibrate_cpu, "measure_cpu", measure)
        assert run("--device", "cpu", "-q", "--seconds", "90") == run("--device", "cpu", "-q") == 0
        assert [effort.least_seconds for effort in asked] == [90.0, 0.0]
        assert asked[1] == ProbeEffort()

    def test_threads_mean_the_cpu_and_have_a_calibration_of_their_own(self) -> None:
        assert run("--threads", "1", "-q") == 0
        assert read_calibration(1) is not None and read_calibration(2) is None

    def test_a_noisy_result_is_improved_on_unless_fresh_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        peaks = []
        for fast, flags in ((2.0, ()), (1.0, ()), (1.0, ("--fresh",))):
            noisy = made(caveats=NOISY)
            scaled = replace(noisy.device, peaks_flops_per_s={"fp32_tensor": fast * 1e11})
            now = replace(noisy, device=scaled)
            monkeypatch.setattr(calibrate_cpu, "measure_cpu", lambda threads, effort, on_progress, now=now: now)
            assert run("-q", "--device", "cpu", *flags) == 0
            known = read_calibration()
            peaks.append(known.device.peaks_flops_per_s["fp32_tensor"] if known else None)
        assert peaks == [2e11, 2e11, 1e11]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--device", "gpu"),
        ("--device", "cuda:x"),
        ("--device", "cuda", "--threads", "2"),
        ("--threads", "0"),
        ("--seconds", "0"),
    ],
)
def test_what_cannot_be_asked_for_is_wrong_usage(arguments: Sequence[str]) -> None:
    assert run(*arguments) == 2


def test_without_a_gpu_asking_for_one_fails_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert run("--device", "cuda") == 4
    error = capsys.readouterr().err
    assert "no GPU" in error and "why:" in error and "--device cpu" in error


def test_without_torch_it_fails_and_says_what_to_do() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from bottleneck.cli import _run\n"
        "sys.exit(_run(['calibrate', '--quiet']))"
    )
    done = run_fresh(code)
    assert done.returncode == 4 and done.stdout == ""
    assert done.stderr.startswith("error: torch cannot be imported") and "fix:" in done.stderr


def test_help_imports_neither_torch_nor_numpy() -> None:
    seen = modules_after("from bottleneck.cli import _run\nassert _run(['calibrate', '--help']) == 0")
    assert "typer" in seen and not seen & {"torch", "numpy", "pandas", "msgspec"}


class TestTable:
    def test_it_fits_a_terminal_and_marks_what_did_not_settle(self) -> None:
        restless = replace(made().ceilings[0], stable=False, spread=0.123)
        text = calibration_table(made(ceilings=(restless, *made().ceilings[1:]), caveats=NOISY))
        assert max(map(len, text.splitlines())) <= 80
        assert "12.3 % !" in text and "did not settle within 3 %" in text and "other programs" in text

    def test_the_data_sheet_stands_beside_what_was_reached(self) -> None:
        reached = ceiling("bf16 product", "matrix", 791.5e12, "FLOP/s", nominal=989.4e12, clock_mhz=1530.0)
        text = calibration_table(
            made(ceilings=(reached,), clock=ClockStamp(1980.0, 1530.0, 1965.0, is_sensed=True, memory_mhz=3201.0))
        )
        (row,) = (line for line in text.splitlines() if "bf16" in line)
        assert row.split()[:4] == ["bf16", "product", "792", "TFLOP/s"]
        assert row.split()[4:] == ["989", "TFLOP/s", "80.0", "%", "1.0", "%", "1530", "MHz"]
        assert "clock: 1980 MHz before, 1530 MHz while measuring, 1965 MHz after" in text
        assert "; memory 3201" in text

    def test_without_a_data_sheet_or_a_clock_there_are_no_such_columns(self) -> None:
        text = calibration_table(made(clock=ClockStamp(2445.0, 2445.0, 2445.0)))
        assert "data sheet" not in text and "share" not in text
        assert "clock: 2445 MHz all the time" in text

    def test_only_a_gpu_tells_the_pace_that_predictions_take(self) -> None:
        of_gpu, of_cpu = (
            calibration_table(made(device=replace(made().device, kind=kind), dispatch_us=4.13))
            for kind in ("cuda", "cpu")
        )
        assert "predictions for this machine take --host-pace 4.1" in of_gpu
        assert "--host-pace" not in of_cpu

    def test_what_could_not_be_measured_is_named_with_the_reason(self) -> None:
        text = calibration_table(made(missing={"fp8 product": "no kernel for this device"}))
        assert "not measured: fp8 product (no kernel for this device)" in text


@pytest.mark.process
def test_a_run_measures_this_cpu_where_no_ceilings_are_kept_and_the_next_one_takes_those(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a machine with a GPU: it does not announce a measurement of its CPU")
    (tmp_path / "model.py").write_text(
        "import torch\ndef workload():\n    values = torch.ones(8, 8)\n    return lambda: values @ values\n"
    )
    said = []
    for name in ("first", "second"):
        command = [sys.executable, "-m", "bottleneck.cli", "run", "--probe-budget", "0", "-o", name, "model.py"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        said.append(done.stderr)
    assert "5 s of them to measure this CPU (once per machine)" in said[0]
    assert "bottleneck: measuring the ceilings of this CPU, once per machine" in said[0]
    assert "to measure this CPU" not in said[1] and "measuring the ceilings" not in said[1]
    devices = [read_recording(tmp_path / name).device for name in ("first", "second")]
    assert devices[0] is not None and devices[0].source == "measured" and devices[0].peaks_flops_per_s
    assert devices[0] == devices[1]
