"""Runs one probe of the check-up in a process of its own.

torch, NVML or pandas may hang or crash the caller. Run as ``python -P probe_process.py NAME``. Each stage is printed as
soon as it is reached, so that a crash in a later one leaves what was known before. Imports nothing of this package at
its top: whether ``import bottleneck`` finds it is one of the questions.
"""

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any


def print_stage(stage: str, **facts: object) -> None:
    """Prints the facts of a stage as a line.

    The caller finds that line among other output.
    """
    print(f"\nbottleneck-fact {json.dumps([stage, facts])}", flush=True)


def probe_pandas() -> None:
    """Probes the package's name and pandas.

    Stages: the package that ``import bottleneck`` finds; the version of pandas; a median by pandas.
    """
    import bottleneck

    print_stage("bottleneck", file=str(bottleneck.__file__), is_array_library=hasattr(bottleneck, "nanmedian"))
    import pandas as pd

    print_stage("import", version=str(pd.__version__))
    median = float(pd.Series([3.0, 1.0, 2.0, float("nan")]).median())
    print_stage("median", value=median)


def probe_nvml() -> None:
    """Stages: the Python binding; the library's refusal or the devices; the sensors."""
    import pynvml

    # The unofficial package of the same name lacks what the official one keeps for itself.
    print_stage("binding", file=str(pynvml.__file__), is_official=hasattr(pynvml, "_nvmlGetFunctionPointer"))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        print_stage("refusal", code=int(exc.value), text=str(exc))
        return
    print_stage("devices", **_nvml_devices(pynvml))
    from bottleneck.harness.nvml import NvmlSampler

    sampler = NvmlSampler()
    if sampler.open(0):
        print_stage("sensors", columns=sampler.columns())
        sampler.close()


def _nvml_devices(nvml: Any) -> dict[str, object]:
    from bottleneck.harness.nvml import find_devices

    devices, complaints = find_devices(nvml)
    names = {device.sensor: _nvml_name(nvml, device.handle) for device in devices}
    return {"names": names, "slices": [one.sensor for one in devices if one.slice_of], "complaints": complaints}


def _nvml_name(nvml: Any, handle: object) -> str:
    try:
        return str(nvml.nvmlDeviceGetName(handle))
    except Exception:  # names with odd bytes raise what they like
        return "NVIDIA device"


def probe_torch() -> None:
    """Probes torch and its devices.

    Stages: the build of torch; a profiled window on the CPU; its libraries; the devices; one on a device; their
    calibration.
    """
    torch: Any = importlib.import_module("torch")
    print_stage(
        "import",
        version=str(torch.__version__),
        file=str(torch.__file__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        threads=torch.get_num_threads(),
        kineto=bool(torch.autograd.kineto_available()),
    )
    for stage, look in (
        ("profiler", _profile_host),
        ("libraries", _find_libraries),
        ("cuda", _find_devices),
        ("kernels", _profile_device),
        ("calibration", _find_calibration),
    ):
        try:
            facts = look(torch)
        except Exception as exc:  # whatever torch raises here is the finding
            traceback.print_exc()
            facts = {"error": f"{type(exc).__name__}: {exc}"}
        if facts is not None:
            print_stage(stage, **facts)


def _profile_host(torch: Any) -> dict[str, object]:
    """The number of ops recorded in a tiny window on the CPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as window:
        torch.ones(8, 8) @ torch.ones(8, 8)
    names = [event.name for event in window.events()]
    return {"ops": sum(name.startswith("aten::") for name in names)}


def _find_libraries(torch: Any) -> dict[str, object]:
    """The libraries that torch is linked with, and those of BLAS and LAPACK."""
    from bottleneck.harness.torch_state import built_with, linked_libraries

    return {"linked": linked_libraries(torch), "built_with": built_with(torch)}


def _find_devices(torch: Any) -> dict[str, object]:
    """The devices that torch can use, or the reason why it can use none."""
    if not (torch.version.cuda or getattr(torch.version, "hip", None)):
        return {"devices": []}
    if not torch.cuda.is_available():
        return {"devices": [], "error": _why_unavailable(torch)}
    return {"devices": _described(torch), "built_for": list(torch.cuda.get_arch_list())}


def _described(torch: Any) -> list[dict[str, Any]]:
    """Each device as a recording describes it."""
    from bottleneck.harness.torch_state import describe_torch

    torch.cuda.init()
    return list(describe_torch(torch)["device_facts"])


def _find_calibration(torch: Any) -> dict[str, object] | None:
    """Finds the kept ceilings of the devices.

    Null without a device, or if the devices differ.
    """
    if not torch.cuda.is_available():
        return None
    from bottleneck.calibrate.cache import gpu_calibration

    ceilings = gpu_calibration(_described(torch))
    if ceilings is None:
        return None
    age = datetime.now(UTC) - datetime.fromisoformat(ceilings.created)
    return {"age_days": age.total_seconds() / 86_400, "caveats": [caveat.message for caveat in ceilings.caveats]}


def _why_unavailable(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as exc:
        return f"{exc}".splitlines()[0]
    return "torch.cuda.is_available() is false"


def _profile_device(torch: Any) -> dict[str, object] | None:
    """Counts the work recorded in a tiny window on the device.

    It is kernels, copies and fills. Null without a device.
    """
    if not torch.cuda.is_available():
        return None
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    numbers = torch.ones(1024, device="cuda")
    with torch.profiler.profile(activities=both) as window:
        (numbers + numbers).sum()
        torch.cuda.synchronize()
    kinds = [str(event.device_type) for event in window.events()]
    return {"recorded": sum(kind.endswith("CUDA") for kind in kinds)}


PROBES: Mapping[str, Callable[[], None]] = {"torch": probe_torch, "pandas": probe_pandas, "nvml": probe_nvml}

if __name__ == "__main__":
    PROBES[sys.argv[1]]()
    sys.stdout.flush()
