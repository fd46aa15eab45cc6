"""Checks of a machine: each fault has a row with its remedy, and a sound machine has none."""

from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.doctor.environment_checks import TESTED_TORCH, judge, release
from bottleneck.doctor.facts import Driver, Facts, FolderAccess, KeptCalibration, ProbeOutput, Processors, Screen
from tests.doctor.machines import (
    CARD,
    CPU_ONLY,
    IMPORTED,
    NO_LIBRARY,
    NVML,
    PANDAS,
    TORCH,
    WITH_GPU,
    row,
    rows,
    with_machine,
    with_torch,
)


@pytest.mark.parametrize("facts", [CPU_ONLY, WITH_GPU], ids=["cpu", "gpu"])
def test_a_sound_machine_is_ready_and_has_nothing_worth_a_look(facts: Facts) -> None:
    checkup = judge(facts)
    assert checkup.verdict == "ready"
    assert {check.slug for check in checkup.checks if check.status != "ok"} <= {"devices"}


def test_a_machine_without_accelerators_has_one_row_about_them() -> None:
    assert [check.slug for check in judge(CPU_ONLY).checks if check.group == "devices"] == ["devices"]
    assert row(CPU_ONLY, "devices").status == "missing"


def test_every_row_that_is_not_ok_says_more_than_its_fact() -> None:
    worst = replace(
        with_machine(
            with_torch(WITH_GPU, kernels={"recorded": 0}),
            processors=Processors(8, 2, 1.5, 7.0),
            memory_bytes=10**8,
            work=FolderAccess("/work", False, None),
            cache=FolderAccess("/cache", False, None),
            calibration=None,
            compiler=None,
            host_sensors=(),
            screen=Screen("ascii", 40, False, "C"),
        ),
        environment={"CUDA_VISIBLE_DEVICES": "-1", "NSYS_PROFILING_SESSION_ID": "1", "CUDA_LAUNCH_BLOCKING": "1"},
        programs=replace(WITH_GPU.programs, bottleneck="1.4.2", shadows=("/home/me/types.py",)),
    )
    bad = [check for check in judge(worst).checks if check.status != "ok"]
    assert len(bad) == 15
    assert all(check.why or check.remedy or check.command for check in bad)


@pytest.mark.parametrize(
    ("output", "installed", "words"),
    [
        (ProbeOutput({}, 1, "ModuleNotFoundError: No module named 'torch'"), None, "not installed"),
        (ProbeOutput({}, 1, "ImportError: libcudart.so.12"), "2.13.0", "libcudart"),
        (ProbeOutput({}, -11, ""), "2.13.0", "died of signal 11"),
        (ProbeOutput({}, None, ""), "2.13.0", "did not end in time"),
        (ProbeOutput({"import": {**IMPORTED, "kineto": False}}), "2.13.0", "no Kineto"),
        (
            ProbeOutput({"import": IMPORTED}, -11, "Segmentation fault"),
            "2.13.0",
            "died of signal 11: Segmentation",
        ),
        (ProbeOutput({**TORCH, "profiler": {"error": "RuntimeError: busy"}}), "2.13.0", "busy"),
        (ProbeOutput({**TORCH, "profiler": {"ops": 0}}), "2.13.0", "holds no op"),
    ],
)
def test_run_cannot_work_without_a_torch_that_records(output: ProbeOutput, installed: str | None, words: str) -> None:
    facts = replace(CPU_ONLY, torch=output, programs=replace(CPU_ONLY.programs, torch=installed))
    checkup = judge(facts)
    assert checkup.verdict == "not ready"
    assert any(words in f"{check.fact} {check.why}" for check in checkup.checks)


@pytest.mark.parametrize(
    ("version", "status", "verdict"),
    [
        ("2.13.1", "ok", "ready"),
        ("2.4.0", "ok", "ready"),
        ("2.15.0a0+git1", "limited", "ready"),
        ("2.3.1+cu121", "missing", "not ready"),
    ],
)
def test_a_newer_torch_may_run_and_one_that_is_too_old_may_not(version: str, status: str, verdict: str) -> None:
    facts = with_torch(CPU_ONLY, **{"import": {**IMPORTED, "version": version}})
    assert row(facts, "torch").status == status
    assert judge(facts).verdict == verdict


def test_the_package_asks_for_the_oldest_torch_and_knows_no_newest() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'run = ["torch>={".".join(map(str, TESTED_TORCH[0]))}"]' in text


@pytest.mark.parametrize(("text", "numbers"), [("2.13.0+cpu", (2, 13)), ("2", (0, 0)), ("", (0, 0)), ("x.y", (0, 0))])
def test_the_release_of_odd_versions_is_that_of_none(text: str, numbers: tuple[int, int]) -> None:
    assert release(text) == numbers


def test_the_build_of_torch_is_named() -> None:
    assert "CPU build" in row(CPU_ONLY, "torch").fact
    assert "CUDA 12.8 build" in row(WITH_GPU, "torch").fact
    assert "ROCm 6.2 build" in row(with_torch(CPU_ONLY, **{"import": {**IMPORTED, "hip": "6.2"}}), "torch").fact


def test_the_array_library_in_our_place_stops_everything() -> None:
    stolen = {**PANDAS, "bottleneck": {"file": "/site/bottleneck/__init__.py", "is_array_library": True}}
    facts = replace(CPU_ONLY, pandas=ProbeOutput(stolen))
    assert row(facts, "name").command == "pip uninstall Bottleneck"
    assert judge(facts).verdict == "not ready"


def test_the_array_library_beside_us_is_reported() -> None:
    facts = replace(CPU_ONLY, programs=replace(CPU_ONLY.programs, bottleneck="1.4.2"))
    assert row(facts, "name").status == "limited"
    assert judge(facts).verdict == "ready"


@pytest.mark.parametrize(
    "stages",
    [
        {"bottleneck": PANDAS["bottleneck"]},
        {**PANDAS, "median": {"value": 1.0}},
        {k: PANDAS[k] for k in ("bottleneck", "import")},
    ],
    ids=["no pandas", "wrong", "raises"],
)
def test_a_pandas_that_does_not_work_stops_everything(stages: dict[str, object]) -> None:
    facts = replace(CPU_ONLY, pandas=ProbeOutput(stages, 1, "AttributeError: nanmedian"))
    assert row(facts, "pandas").status == "missing"
    assert judge(facts).verdict == "not ready"


def test_files_that_hide_modules_are_named() -> None:
    facts = replace(CPU_ONLY, programs=replace(CPU_ONLY.programs, shadows=tuple(f"/home/me/{n}.py" for n in "abcdef")))
    assert row(facts, "shadows").fact.endswith("/home/me/d.py and 2 more")


@pytest.mark.parametrize(
    ("environment", "status"),
    [
        ({"CUDA_INJECTION64_PATH": "/x"}, "limited"),
        ({"LD_PRELOAD": "/opt/nsight/libinjection.so"}, "limited"),
        ({"KINETO_USE_DAEMON": "1"}, "limited"),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so"}, "ok"),
        ({"KINETO_LOG_LEVEL": "5"}, "ok"),
    ],
)
def test_another_profiler_is_told_by_its_variables(environment: dict[str, str], status: str) -> None:
    assert row(replace(CPU_ONLY, environment=environment), "other-profilers").status == status


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("0", 0)])
def test_settings_that_slow_the_program_are_reported_where_they_are_on(value: str, count: int) -> None:
    assert len(rows(replace(CPU_ONLY, environment={"CUDA_LAUNCH_BLOCKING": value}), "slowing")) == count


def test_a_cpu_build_beside_a_gpu_says_which_build_is_wanted() -> None:
    check = row(replace(CPU_ONLY, driver=Driver(nvidia_files=1)), "devices")
    assert (check.status, check.why) == ("limited", "this torch is a CPU build")
    assert "NVIDIA" in check.remedy


def test_a_gpu_build_that_sees_no_gpu_says_why() -> None:
    facts = with_torch(WITH_GPU, cuda={"devices": [], "error": "Found no NVIDIA driver"}, kernels=None)
    assert row(facts, "devices").why == "Found no NVIDIA driver"
    assert rows(facts, "kernels") == []


def test_an_amd_device_that_this_torch_does_not_use_is_reported() -> None:
    assert "AMD" in row(replace(CPU_ONLY, driver=Driver(amd=True)), "devices").fact


def test_kernels_that_were_recorded_need_no_rights() -> None:
    check = row(replace(WITH_GPU, driver=replace(WITH_GPU.driver, admin_only=True)), "kernels")
    assert check.status == "ok"
    assert "none are needed" in check.fact


def test_kernels_that_only_administrators_may_record_have_the_drivers_option() -> None:
    facts = with_torch(WITH_GPU, kernels={"recorded": 0})
    closed = replace(facts, driver=replace(facts.driver, admin_only=True))
    assert "NVreg_RestrictProfilingToAdminUsers=0" in row(closed, "kernels").command
    assert "stub library" in row(replace(facts, driver=replace(closed.driver, is_privileged=True)), "kernels").why


def test_a_crash_while_kernels_are_recorded_is_reported_in_its_own_words() -> None:
    facts = with_torch(WITH_GPU, kernels=None)
    crashed = replace(facts, torch=replace(facts.torch, status=-11, error="CUPTI_ERROR_NOT_INITIALIZED"))
    assert row(crashed, "kernels").why == "CUPTI_ERROR_NOT_INITIALIZED"


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        ("0", "ok", "=0"),
        (CARD[:9], "ok", "=GPU-"),
        ("", "limited", "hides all"),
        ("-1", "limited", "hides all"),
        ("0,3", "limited", "names 2, of which 1 can be found"),
        ("0,0", "limited", "names 2, of which 0 can be found"),
    ],
)
def test_visible_devices_are_compared_with_those_there_are(value: str, status: str, words: str) -> None:
    check = row(replace(WITH_GPU, environment={"CUDA_VISIBLE_DEVICES": value}), "visible")
    assert check.status == status
    assert words in check.fact


def test_visible_devices_say_nothing_where_there_are_none() -> None:
    assert rows(replace(CPU_ONLY, environment={"CUDA_VISIBLE_DEVICES": "0"}), "visible") == []


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (4, "may not read"),
        (9, "modprobe"),
        (12, "libnvidia-ml"),
        (18, "restart the machine"),
        (999, "daemon-reload"),
        (10, "nvidia-smi"),
    ],
)
def test_refusals_of_the_driver_are_reported_in_plain_words(code: int, remedy: str) -> None:
    stages = {**NO_LIBRARY, "refusal": {"code": code, "text": "some words"}}
    check = row(replace(WITH_GPU, nvml=ProbeOutput(stages)), "sensors")
    assert check.fact == f"the driver's library refuses: some words (error {code})"
    assert remedy in check.remedy


def test_a_refusal_for_want_of_rights_is_reported_even_where_nothing_else_shows_a_device() -> None:
    stages = {**NO_LIBRARY, "refusal": {"code": 4, "text": "Insufficient Permissions"}}
    assert row(replace(CPU_ONLY, nvml=ProbeOutput(stages)), "sensors").status == "missing"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (ProbeOutput({}, 1, "ModuleNotFoundError"), "nvidia-ml-py cannot be imported"),
        (ProbeOutput({"binding": {"file": "/x/pynvml.py", "is_official": False}}), "unofficial pynvml"),
        (ProbeOutput({"binding": NVML["binding"]}, None), "the driver's library failed"),
    ],
)
def test_sensors_that_cannot_be_asked_say_why(output: ProbeOutput, words: str) -> None:
    assert words in row(replace(WITH_GPU, nvml=output), "sensors").fact


def test_what_a_device_does_not_tell_is_named() -> None:
    stages = {**NVML, "sensors": {"columns": {CARD: ["sm_clock_mhz", "power_w", "temperature_c", "utilization"]}}}
    check = row(replace(WITH_GPU, nvml=ProbeOutput(stages)), "sensors")
    assert (check.status, check.why) == ("limited", "this device does not report: energy, throttling, memory, PCIe")


def test_a_slice_of_a_card_lacks_only_what_belongs_to_the_card() -> None:
    columns = ["sm_clock_mhz", "temperature_c", "utilization", "throttle_bits", "memory_used_bytes"]
    stages = {**NVML, "devices": {**NVML["devices"], "slices": [CARD]}, "sensors": {"columns": {CARD: columns}}}
    check = row(replace(WITH_GPU, nvml=ProbeOutput(stages)), "sensors")
    assert check.status == "ok"
    assert "MIG" in check.why


def test_a_device_without_sensors_and_one_that_is_lost_are_missing() -> None:
    devices = {**NVML["devices"], "complaints": ["NVIDIA device 1 cannot be reached: GPU is lost"]}
    first, second = rows(replace(WITH_GPU, nvml=ProbeOutput({**NVML, "devices": devices, "sensors": {}})), "sensors")
    assert (first.status, second.status) == ("missing", "missing")
    assert "lost" in second.fact


@pytest.mark.parametrize(
    ("processors", "environment", "status"),
    [
        (Processors(8, 8, None, 0), {}, "ok"),
        (Processors(8, 2, None, 0), {}, "limited"),
        (Processors(8, 8, 2.0, 0), {}, "limited"),
        (Processors(8, 8, None, 0), {"OMP_NUM_THREADS": "4"}, "limited"),
        (Processors(6, 6, None, 0), {"OMP_NUM_THREADS": "4"}, "ok"),
    ],
)
def test_threads_are_held_against_the_processors_that_there_are(
    processors: Processors, environment: dict[str, str], status: str
) -> None:
    facts = replace(with_machine(CPU_ONLY, processors=processors), environment=environment)
    assert row(facts, "threads").status == status


def test_threads_are_unknown_where_torch_did_not_tell() -> None:
    assert row(replace(CPU_ONLY, torch=ProbeOutput({}, 1)), "threads").status == "unknown"


@pytest.mark.parametrize(
    ("age", "caveats", "status"),
    [(3, (), "ok"), (300, (), "limited"), (None, (), "limited"), (3, ("noisy",), "limited")],
)
def test_an_old_or_doubtful_calibration_is_reported(age: float | None, caveats: tuple[str, ...], status: str) -> None:
    check = row(with_machine(CPU_ONLY, calibration=KeptCalibration(age, 4, caveats)), "calibration")
    assert check.status == status
    assert (check.command == "bottleneck calibrate --device cpu") == (status != "ok")


def test_a_missing_calibration_does_not_stop_a_run() -> None:
    facts = with_machine(CPU_ONLY, calibration=None)
    assert row(facts, "calibration").status == "missing"
    assert judge(facts).verdict == "ready"


@pytest.mark.parametrize(
    ("changes", "slug", "status"),
    [
        ({"memory_bytes": None}, "memory", "unknown"),
        ({"memory_bytes": 10**9}, "memory", "limited"),
        ({"work": FolderAccess("/w", True, None)}, "disk", "unknown"),
        ({"work": FolderAccess("/w", True, 10**6)}, "disk", "limited"),
        ({"work": FolderAccess("/w", False, 10**12)}, "disk", "limited"),
        ({"cache": FolderAccess("/c", False, 10**12)}, "cache", "limited"),
        ({"compiler": None}, "compiler", "limited"),
        ({"host_sensors": ("busy_cpu_s",)}, "host-sensors", "limited"),
        ({"host_sensors": ()}, "host-sensors", "missing"),
        ({"screen": Screen("ascii", 80, True, "C")}, "screen", "limited"),
        ({"processors": Processors(8, 8, None, 3.0)}, "load", "limited"),
    ],
)
def test_what_the_machine_lacks_is_reported_but_stops_nothing(
    changes: dict[str, object], slug: str, status: str
) -> None:
    facts = with_machine(CPU_ONLY, **changes)
    assert row(facts, slug).status == status
    assert judge(facts).verdict == "ready"
    assert row(CPU_ONLY, slug).status == "ok"


def test_rights_are_never_wanted() -> None:
    check = row(replace(CPU_ONLY, driver=Driver(ptrace_scope="1")), "rights")
    assert check.status == "ok"
    assert "ptrace scope 1" in check.fact


def test_a_gpu_without_ceilings_of_its_own_or_with_doubtful_ones_is_reported() -> None:
    assert row(with_torch(WITH_GPU, calibration=None), "gpu-calibration").status == "missing"
    doubtful = with_torch(WITH_GPU, calibration={"age_days": 1.0, "caveats": ["it was busy"]})
    assert (row(doubtful, "gpu-calibration").status, row(doubtful, "gpu-calibration").why) == ("limited", "it was busy")
    assert row(WITH_GPU, "gpu-calibration").fact == "measured 2 days ago"
    assert rows(CPU_ONLY, "gpu-calibration") == []


@pytest.mark.parametrize(
    ("targets", "runs"),
    [
        (["sm_80", "sm_90"], True),
        (["sm_80", "sm_86"], False),
        (["sm_80", "compute_80"], True),
        (["sm_100", "compute_120"], False),
        (["sm_90a"], True),
        (["gfx942"], True),
        ([], True),
    ],
)
def test_a_torch_that_is_not_built_for_the_device_is_reported(targets: list[str], runs: bool) -> None:
    stages = {**WITH_GPU.torch.stages["cuda"], "built_for": targets}
    assert row(with_torch(WITH_GPU, cuda=stages), "devices").status == ("ok" if runs else "limited")


def test_linked_libraries_are_listed_with_those_of_blas_and_lapack() -> None:
    stage = {
        "linked": {"MKL": "2024.2", "oneDNN": "3.12.0", "FBGEMM": ""},
        "built_with": {"blas": "mkl", "lapack": "open"},
    }
    fact = "torch is linked with MKL 2024.2, oneDNN 3.12.0, FBGEMM; BLAS by MKL, LAPACK by OpenBLAS"
    assert row(with_torch(CPU_ONLY, libraries=stage), "linked-libraries").fact == fact
    silent = row(with_torch(CPU_ONLY, libraries={"linked": {}, "built_with": {}}), "linked-libraries")
    assert silent.status == "unknown"
    assert rows(CPU_ONLY, "linked-libraries") == []


def test_other_installed_libraries_are_listed_by_what_they_take_over() -> None:
    programs = replace(CPU_ONLY.programs, libraries={"triton": "3.5.0", "openvino": "2026.1", "onnxruntime": "1.24.0"})
    check = row(replace(CPU_ONLY, programs=programs), "installed-libraries")
    assert check.fact == "whole models: openvino 2026.1, onnxruntime 1.24.0; kernels: triton 3.5.0"
    assert row(CPU_ONLY, "installed-libraries").fact == "no other library that computes what torch does"
