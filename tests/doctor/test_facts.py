"""Facts come from probe processes, from the real binding on a stub of the driver, and from files of the system."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from bottleneck.doctor import facts
from bottleneck.doctor.facts import (
    driver_facts,
    folder_access,
    last_line,
    read_stages,
    relevant_variables,
    run_probes,
    shadows_in,
)
from tests.harness.nvml import CARD, OTHER_CARD, build, environment


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def probe_nvml(library: Path, folder: Path, script: list[str]) -> facts.ProbeOutput:
    path = folder / "script"
    path.write_text("\n".join(script) + "\n")
    (output,) = run_probes(("nvml",), environment(library, path))
    return output


def test_torch_and_pandas_of_this_environment_reach_all_stages() -> None:
    pytest.importorskip("torch")
    torch, pandas = run_probes(("torch", "pandas"), os.environ)
    assert (torch.status, pandas.status) == (0, 0)
    assert torch.stages["import"]["kineto"]
    assert torch.stages["profiler"]["ops"] > 0
    assert not pandas.stages["bottleneck"]["is_array_library"]
    assert pandas.stages["median"]["value"] == 2.0


def test_what_is_in_the_folder_that_we_are_in_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pandas.py").write_text("raise SystemExit('the file of the folder was run')")
    monkeypatch.chdir(tmp_path)
    (output,) = run_probes(("pandas",), os.environ)
    assert output.stages["median"]["value"] == 2.0


def test_an_array_library_in_our_place_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "bottleneck.py").write_text("__version__ = '1.4.2'\ndef nanmedian(values): raise TypeError('theirs')\n")
    (output,) = run_probes(("pandas",), {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert output.stages["bottleneck"] == {"file": str(tmp_path / "bottleneck.py"), "is_array_library": True}


@pytest.mark.parametrize(
    ("text", "status", "stages"),
    [
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV, {}),
        ("raise ImportError('libcudart.so.12: cannot open')", 1, {}),
        (
            "print('noise'); print('bottleneck-fact [\"import\", {\"a\": 1}]', flush=True); import os; os._exit(7)",
            7,
            {"import": {"a": 1}},
        ),
    ],
    ids=["crash", "error", "after a stage"],
)
def test_a_probe_that_dies_leaves_its_earlier_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int, stages: object
) -> None:
    script = tmp_path / "probe.py"
    script.write_text(text)
    monkeypatch.setattr(facts, "_PROBE_SCRIPT", script)
    (output,) = run_probes(("torch",), os.environ)
    assert (output.status, output.stages) == (status, stages)


def test_a_probe_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "probe.py"
    script.write_text("import signal\nsignal.pause()")
    monkeypatch.setattr(facts, "_PROBE_SCRIPT", script)
    (output,) = run_probes(("torch",), os.environ, patience_s=0.5)
    assert output.status is None


def test_lines_that_are_no_facts_are_passed_over() -> None:
    assert read_stages('bottleneck-fact nonsense\nbottleneck-fact [1]\nx\nbottleneck-fact ["a", {"b": 2}]') == {
        "a": {"b": 2}
    }
    assert last_line("Traceback\n  file\nValueError: x\n\n") == "ValueError: x"
    assert last_line("") == ""


def test_devices_and_their_sensors_are_named_by_the_real_binding(library: Path, tmp_path: Path) -> None:
    stages = probe_nvml(library, tmp_path, ["devices 2", "set 0 name H100 \x1b[31m"]).stages
    assert list(stages["devices"]["names"]) == [CARD, OTHER_CARD]
    assert stages["binding"]["is_official"]
    assert "sm_clock_mhz" in stages["sensors"]["columns"][CARD]


@pytest.mark.parametrize("code", [4, 9, 18, 999])
def test_each_refusal_of_the_driver_keeps_its_number(library: Path, tmp_path: Path, code: int) -> None:
    stages = probe_nvml(library, tmp_path, ["devices 1", f"fail nvmlInitWithFlags {code}"]).stages
    assert stages["refusal"]["code"] == code
    assert stages["refusal"]["text"]


def test_a_reading_that_is_not_supported_is_absent(library: Path, tmp_path: Path) -> None:
    stages = probe_nvml(library, tmp_path, ["devices 1", "fail nvmlDeviceGetTemperature 3"]).stages
    columns = stages["sensors"]["columns"][CARD]
    assert "temperature_c" not in columns
    assert "sm_clock_mhz" in columns


def test_a_lost_device_is_a_complaint(library: Path, tmp_path: Path) -> None:
    stages = probe_nvml(library, tmp_path, ["devices 1", "fail nvmlDeviceGetHandleByIndex_v2 15"]).stages
    assert "cannot be reached" in stages["devices"]["complaints"][0]


def test_only_variables_of_interest_are_read() -> None:
    seen = relevant_variables({"CUDA_VISIBLE_DEVICES": "0", "AWS_SECRET": "x", "NSYS_A": "1", "HOME": "/root"})
    assert seen == {"CUDA_VISIBLE_DEVICES": "0", "NSYS_A": "1"}


def test_files_that_hide_modules_are_found_and_others_not(tmp_path: Path) -> None:
    for name in ("types.py", "torch.py", "model.py", "test.py", "queue.txt", "numpy.cfg"):
        (tmp_path / name).write_text("")
    (tmp_path / "random").mkdir()
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text("")
    assert [path.name for path in shadows_in(tmp_path)] == ["pandas", "torch.py", "types.py"]
    assert shadows_in(tmp_path / "absent") == []


def test_the_folder_in_which_packages_are_installed_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert shadows_in(tmp_path) == []


def test_the_drivers_files_are_read(tmp_path: Path) -> None:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    for folder in (proc / "driver/nvidia", proc / "self", proc / "sys/kernel/yama", dev):
        folder.mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text("NVRM version: 570.1\nGCC version: 12\n")
    (proc / "driver/nvidia/params").write_text("ResmanDebugLevel: 4\nRmProfilingAdminOnly: 1\n")
    (proc / "self/status").write_text("Name:\tx\nCapEff:\t0000000000200000\n")
    (proc / "sys/kernel/yama/ptrace_scope").write_text("1\n")
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "kfd"):
        (dev / name).write_text("")
    found = driver_facts(proc, dev)
    assert (found.nvidia, found.nvidia_files, found.amd) == ("NVRM version: 570.1", 2, True)
    assert (found.admin_only, found.is_privileged, found.ptrace_scope) == (True, True, "1")


def test_a_machine_without_these_files_has_none_of_it(tmp_path: Path) -> None:
    found = driver_facts(tmp_path, tmp_path)
    assert (found.nvidia, found.nvidia_files, found.admin_only, found.is_privileged) == (None, 0, None, False)


def test_a_folder_that_is_not_there_yet_counts_as_the_one_that_would_hold_it(tmp_path: Path) -> None:
    found = folder_access(tmp_path / "a" / "b")
    assert found.is_writable
    assert found.free_bytes
    assert not folder_access(Path("/proc/none")).is_writable or os.geteuid() == 0
    assert list(tmp_path.iterdir()) == []


def test_facts_travel_as_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    from bottleneck.doctor.probe_process import print_stage

    print_stage("stage", text="a\nb")
    line = capsys.readouterr().out.strip()
    assert read_stages(line) == {"stage": {"text": "a\nb"}}
    assert json.loads(line.removeprefix("bottleneck-fact "))[0] == "stage"
