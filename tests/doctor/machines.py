"""Facts about machines for the tests of the check-up: a sound one without a GPU, and one with an H100."""

from dataclasses import replace
from typing import Any

from bottleneck.doctor.environment_checks import judge
from bottleneck.doctor.facts import (
    Driver,
    Facts,
    FolderAccess,
    KeptCalibration,
    Machine,
    ProbeOutput,
    Processors,
    Programs,
    Screen,
)
from bottleneck.schema.checks import Check

CARD = "GPU-00000000-0000-0000-0000-000000000000"
IMPORTED = {"version": "2.13.0+cpu", "file": "x", "cuda": None, "hip": None, "threads": 4, "kineto": True}
TORCH = {"import": IMPORTED, "profiler": {"ops": 11}, "cuda": {"devices": []}}
PANDAS = {
    "bottleneck": {"file": "x", "is_array_library": False},
    "import": {"version": "3.1.1"},
    "median": {"value": 2.0},
}
NO_LIBRARY = {
    "binding": {"file": "x", "is_official": True},
    "refusal": {"code": 12, "text": "NVML Shared Library Not Found"},
}

MACHINE = Machine(
    processors=Processors(machine=8, allowed=8, quota=None, busy=0.1),
    memory_bytes=16 * 10**9,
    work=FolderAccess("/work", True, 50 * 10**9),
    cache=FolderAccess("/cache", True, 50 * 10**9),
    calibration=KeptCalibration(3.0, 4, ()),
    compiler="/usr/bin/g++",
    host_sensors=("busy_cpu_s", "cpu_clock_mhz", "memory_used_bytes", "process_cpu_s", "process_memory_bytes"),
    screen=Screen("utf-8", 80, True, "en_US.UTF-8"),
)
CPU_ONLY = Facts(
    programs=Programs("CPython 3.11.9", "Linux x86_64", "0.1.0", "2.13.0+cpu", None),
    driver=Driver(),
    machine=MACHINE,
    environment={},
    torch=ProbeOutput(TORCH),
    pandas=ProbeOutput(PANDAS),
    nvml=ProbeOutput(NO_LIBRARY),
)

EVERYTHING = [
    "sm_clock_mhz", "power_w", "energy_j", "temperature_c", "utilization", "throttle_bits",
    "memory_used_bytes", "pcie_tx_bytes_per_s", "sm_activity",
]  # fmt: skip
NVML = {
    "binding": {"file": "x", "is_official": True},
    "devices": {"names": {CARD: "NVIDIA H100 80GB HBM3"}, "slices": [], "complaints": []},
    "sensors": {"columns": {CARD: EVERYTHING}},
}
SEEN = [{"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0}]
WITH_GPU = replace(
    CPU_ONLY,
    driver=Driver(nvidia="NVRM version: 570.1", nvidia_files=1, admin_only=False),
    torch=ProbeOutput(
        {
            **TORCH,
            "import": {**IMPORTED, "cuda": "12.8"},
            "cuda": {"devices": SEEN},
            "kernels": {"recorded": 3},
            "calibration": {"age_days": 2.0, "caveats": []},
        }
    ),
    nvml=ProbeOutput(NVML),
)


def rows(facts: Facts, slug: str) -> list[Check]:
    """All rows of a slug."""
    return [check for check in judge(facts).checks if check.slug == slug]


def row(facts: Facts, slug: str) -> Check:
    """The only row of a slug."""
    (check,) = rows(facts, slug)
    return check


def with_torch(facts: Facts, **stages: Any) -> Facts:
    """The same with stages of the torch probe replaced; null leaves one out."""
    kept = {name: value for name, value in {**facts.torch.stages, **stages}.items() if value is not None}
    return replace(facts, torch=replace(facts.torch, stages=kept))


def with_machine(facts: Facts, **changes: Any) -> Facts:
    """The same on another machine."""
    return replace(facts, machine=replace(facts.machine, **changes))
