"""Gathers facts about this machine for the check-up.

They are of files, packages, environment and probes. Nothing is changed.
"""

import json
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from bottleneck import __version__
from bottleneck.calibrate.cache import read_calibration
from bottleneck.harness.machine import (
    available_bytes,
    busy_processors,
    cache_folder,
    find_compiler,
    processor_quota,
    torch_version,
    usable_processors,
)
from bottleneck.harness.sensors import HostSampler
from bottleneck.system.child_process import Child


@dataclass(frozen=True)
class ProbeOutput:
    """Output of a probe process.

    ``stages`` holds the facts of each stage that it reached. ``status`` is its exit status (negative: the signal that
    ended it), null if it took too long and was killed. ``error`` is the last line of its stderr.
    """

    stages: Mapping[str, Any] = field(default_factory=dict)
    status: int | None = 0
    error: str = ""


@dataclass(frozen=True)
class Programs:
    """Interpreter, and what is installed beside us.

    Versions of distributions are null where there is none. ``libraries`` holds the versions of those of ``LIBRARIES``
    that are installed.
    """

    python: str
    system: str
    ours: str
    torch: str | None
    bottleneck: str | None
    shadows: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Driver:
    """Accelerators, and the rights to profile them, as the system states them.

    ``admin_only`` is RmProfilingAdminOnly of the NVIDIA driver, ``is_privileged`` CAP_SYS_ADMIN or CAP_PERFMON.
    """

    nvidia: str | None = None
    nvidia_files: int = 0
    amd: bool = False
    admin_only: bool | None = None
    is_privileged: bool = False
    ptrace_scope: str | None = None
    perf_paranoid: str | None = None


@dataclass(frozen=True)
class Processors:
    """Processors of the machine.

    Also those that this process may use, the quota of its control group, and their load.
    """

    machine: int
    allowed: int
    quota: float | None
    busy: float


@dataclass(frozen=True)
class FolderAccess:
    """Folder that is written to.

    Its path, write access, and free bytes (null: unknown).
    """

    path: str
    is_writable: bool
    free_bytes: int | None


@dataclass(frozen=True)
class KeptCalibration:
    """Ceilings that are kept for this CPU.

    Their age, for how many threads, and their caveats.
    """

    age_days: float | None
    threads: int
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Screen:
    """The standard output: encoding, columns, whether it is a terminal, and the locale's name."""

    encoding: str
    columns: int
    is_terminal: bool
    locale: str


@dataclass(frozen=True)
class Machine:
    """The host apart from its accelerators; ``memory_bytes`` is what a program may still take."""

    processors: Processors
    memory_bytes: int | None
    work: FolderAccess
    cache: FolderAccess
    calibration: KeptCalibration | None
    compiler: str | None
    host_sensors: tuple[str, ...]
    screen: Screen


@dataclass(frozen=True)
class Facts:
    """All facts; ``environment`` holds only variables that shape a measurement."""

    programs: Programs
    driver: Driver
    machine: Machine
    environment: Mapping[str, str]
    torch: ProbeOutput
    pandas: ProbeOutput
    nvml: ProbeOutput


_PATIENCE_S = 180.0
_MARK = "bottleneck-fact "
_LONGEST_ERROR = 300
_PROBE_SCRIPT = Path(__file__).with_name("probe_process.py")


def run_probes(
    names: Sequence[str], environment: Mapping[str, str], patience_s: float = _PATIENCE_S
) -> list[ProbeOutput]:
    """Runs these probes at the same time, and returns their output.

    No process outlives the call.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-probes-") as folder, ExitStack() as stack:
        probes = [_ProbeProcess(name, Path(folder), environment) for name in names]
        for probe in probes:
            stack.callback(probe.child.end_tree, 0.0)
        return [probe.output(patience_s) for probe in probes]


class _ProbeProcess:
    """Probe under way.

    The current folder is not searched for modules (-P), so that no file there is run.
    """

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._logs = tuple(folder / f"{name}.{stream}" for stream in ("out", "err"))
        with self._logs[0].open("wb") as out, self._logs[1].open("wb") as err:
            self.child = Child(
                [sys.executable, "-P", str(_PROBE_SCRIPT), name],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )

    def output(self, patience_s: float) -> ProbeOutput:
        """Returns its output and its status.

        The status is null if it had to be ended after this time.
        """
        in_time = self.child.end_tree(patience_s)
        out, err = (log.read_text("utf-8", "replace") for log in self._logs)
        status = os.waitstatus_to_exitcode(self.child.wait().wait_status) if in_time else None
        return ProbeOutput(read_stages(out), status, last_line(err))


def read_stages(text: str) -> dict[str, Any]:
    """The facts of each stage in a probe's output; other lines are skipped."""
    by_stage: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith(_MARK):
            try:
                stage, facts = json.loads(line.removeprefix(_MARK))
            except (ValueError, TypeError):
                continue
            by_stage[str(stage)] = facts
    return by_stage


def last_line(text: str) -> str:
    """The last line with any text: the error of a Python traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_ERROR] if lines else ""


_PROC, _DEV = Path("/proc"), Path("/dev")

# Capabilities that let a process read performance counters (linux/capability.h).
_CAP_SYS_ADMIN, _CAP_PERFMON = 21, 38

# Names of variables that shape a measurement, or their beginning. No other variable is read.
_RELEVANT = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_", "NV_NSIGHT", "NV_COMPUTE_PROFILER", "KINETO_",
    "HSA_TOOLS_LIB", "ROCP_TOOL", "ROCPROFILER_", "LD_PRELOAD", "COVERAGE_PROCESS_START",
)  # fmt: skip

# Modules that `bottleneck run` and most programs import besides those of the standard library.
_OTHERS = frozenset(
    {"torch", "numpy", "pandas", "matplotlib", "psutil", "pynvml", "msgspec", "rich", "typer", "bottleneck"}
)
_HARMLESS = frozenset({"test", "this", "antigravity", "turtle", "turtledemo", "idlelib"})
_HIDEABLE = (sys.stdlib_module_names | _OTHERS) - _HARMLESS
_OURS = Path(__file__).parents[1]
_MOST_ENTRIES = 10_000


def gather() -> Facts:
    """All facts; takes as long as importing torch and recording two tiny windows does."""
    torch, pandas, nvml = run_probes(("torch", "pandas", "nvml"), os.environ)
    return Facts(
        programs=_programs(),
        driver=driver_facts(),
        machine=_machine(),
        environment=relevant_variables(os.environ),
        torch=torch,
        pandas=pandas,
        nvml=nvml,
    )


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that shape a measurement."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(_RELEVANT)}


def _programs() -> Programs:
    folders = [Path.cwd(), *(Path(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return Programs(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.machine()}",
        # The array library of our name may have put its own __version__ in the place of ours.
        ours=_version("torch-bottleneck") or __version__,
        torch=torch_version() or None,
        bottleneck=_version("Bottleneck"),
        shadows=tuple(str(path) for folder in dict.fromkeys(folders) for path in shadows_in(folder)),
        libraries=installed_libraries(),
    )


# Distributions whose code can compute what torch computes, by what they take over.
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "whole models": (
        "openvino", "onnxruntime", "onnxruntime-gpu", "apache-tvm", "executorch", "tensorrt", "torch-tensorrt",
        "torch-xla", "torchax", "jax", "iree-turbine", "intel-extension-for-pytorch", "lightning-thunder", "nvfuser",
    ),
    "attention": ("flash-attn", "flash-attn-3", "xformers", "flashinfer-python", "sageattention"),
    "kernels": (
        "triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows", "nvidia-cutlass", "nvidia-cutlass-dsl",
        "nvmath-python", "cupy-cuda12x", "cupy-cuda13x", "amd-aiter", "deep-gemm", "liger-kernel", "torchao",
        "bitsandbytes", "transformer-engine", "fbgemm-gpu", "mkl",
    ),
    "of NVIDIA's wheels": (
        "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12",
        "nvidia-nccl-cu13", "nvidia-cusparselt-cu12", "nvidia-cusparselt-cu13", "nvidia-nvshmem-cu12",
        "nvidia-nvshmem-cu13",
    ),
}  # fmt: skip


def installed_libraries() -> dict[str, str]:
    """Versions of the installed libraries by their packages; none is imported."""
    versions = {name: _version(name) for names in LIBRARIES.values() for name in names}
    return {name: version for name, version in versions.items() if version is not None}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def shadows_in(folder: Path) -> list[Path]:
    """Lists files and packages of a folder that hide a module.

    The module is of the standard library, or one that we need.
    """
    if folder.resolve() == Path(os.__file__).resolve().parent:
        return []
    shadows = []
    try:
        with os.scandir(folder) as entries:
            for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False):
                stem, dot, suffix = entry.name.partition(".")
                if stem in _HIDEABLE and (suffix == "py" or not dot) and _hides(stem, folder / entry.name):
                    shadows.append(folder / entry.name)
    except OSError:
        return []
    return sorted(shadows)


def _hides(name: str, path: Path) -> bool:
    """True if this module hides another one of its name."""
    if (path.is_dir() and not (path / "__init__.py").is_file()) or path.resolve() == _OURS:
        return False
    elsewhere = [folder for folder in sys.path if folder and Path(folder).resolve() != path.parent.resolve()]
    return name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere) is not None


def driver_facts(proc: Path = _PROC, dev: Path = _DEV) -> Driver:
    """Drivers and profiling rights as the kernel's files state them."""
    version, parameters = _text(proc / "driver/nvidia/version"), _text(proc / "driver/nvidia/params")
    values = [
        line.partition(":")[2].strip() for line in parameters.splitlines() if line.startswith("RmProfilingAdminOnly")
    ]
    return Driver(
        nvidia=version.splitlines()[0].strip() if version else None,
        nvidia_files=len([path for path in dev.glob("nvidia[0-9]*") if path.name[6:].isdecimal()]),
        amd=(dev / "kfd").exists(),
        admin_only=values[0] == "1" if values else None,
        is_privileged=_is_privileged(_text(proc / "self/status")),
        ptrace_scope=_text(proc / "sys/kernel/yama/ptrace_scope").strip() or None,
        perf_paranoid=_text(proc / "sys/kernel/perf_event_paranoid").strip() or None,
    )


def _is_privileged(status: str) -> bool:
    masks = [line.partition(":")[2].strip() for line in status.splitlines() if line.startswith("CapEff:")]
    try:
        mask = int(masks[0], 16) if masks else 0
    except ValueError:
        return False
    return bool(mask >> _CAP_SYS_ADMIN & 1 or mask >> _CAP_PERFMON & 1)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:100_000]
    except OSError:
        return ""


def _machine() -> Machine:
    sampler = HostSampler()
    samples = sampler.sample(0.0) if sampler.open(os.getpid()) else ()
    encoding, language = sys.stdout.encoding or "ascii", ".".join(filter(None, locale.getlocale())) or "C"
    return Machine(
        processors=Processors(os.cpu_count() or 1, usable_processors(), processor_quota(), busy_processors()),
        memory_bytes=available_bytes(),
        work=folder_access(Path.cwd()),
        cache=folder_access(cache_folder()),
        calibration=_calibration(),
        compiler=find_compiler(),
        host_sensors=tuple(sorted(name for _, values in samples for name in values)),
        screen=Screen(encoding, shutil.get_terminal_size().columns, sys.stdout.isatty(), language),
    )


def folder_access(folder: Path) -> FolderAccess:
    """Returns write access and free bytes of a folder.

    If it does not exist yet, those of the folder that would hold it.
    """
    there = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        free = None
    return FolderAccess(str(folder), there.is_dir() and os.access(there, os.W_OK | os.X_OK), free)


def _calibration() -> KeptCalibration | None:
    ceilings = read_calibration()
    if ceilings is None:
        return None
    try:
        age_days = (datetime.now(UTC) - datetime.fromisoformat(ceilings.created)).total_seconds() / 86_400
    except (ValueError, TypeError):
        age_days = None
    return KeptCalibration(age_days, ceilings.threads, tuple(caveat.message for caveat in ceilings.caveats))
