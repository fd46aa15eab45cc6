"""Run in a process of its own: whether torch can be imported, records, and sees devices whose kernels it records.

Each stage is told as soon as it is reached, so that a crash in a later one leaves what was known before.
"""

import importlib
import json
import sys
import traceback
from datetime import UTC, datetime
from typing import Any


def tell(stage: str, **facts: object) -> None:
    """Writes a line that the other side recognises among whatever else is printed."""
    print(f"\nbottleneck-fact {json.dumps([stage, facts])}", flush=True)


def main() -> None:
    """All stages in turn."""
    torch: Any = importlib.import_module("torch")
    tell(
        "import",
        version=str(torch.__version__),
        file=str(torch.__file__),
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        threads=torch.get_num_threads(),
        kineto=bool(torch.autograd.kineto_available()),
    )
    for stage, look in (
        ("profiler", profile_host),
        ("cuda", find_devices),
        ("kernels", profile_device),
        ("calibration", find_calibration),
    ):
        try:
            facts = look(torch)
        except Exception as exc:  # whatever torch raises here is the finding
            traceback.print_exc()
            facts = {"error": f"{type(exc).__name__}: {exc}"}
        if facts is not None:
            tell(stage, **facts)


def profile_host(torch: Any) -> dict[str, object]:
    """How many events a tiny window on the CPU holds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as window:
        torch.ones(8, 8) @ torch.ones(8, 8)
    names = [event.name for event in window.events()]
    return {"ops": sum(name.startswith("aten::") for name in names)}


def find_devices(torch: Any) -> dict[str, object]:
    """The devices that torch can use, or why it can use none."""
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


def find_calibration(torch: Any) -> dict[str, object] | None:
    """The ceilings that are kept for the devices; null without a device, or where they are not all alike."""
    if not torch.cuda.is_available():
        return None
    from bottleneck.calibrate.cached import gpu_calibration

    known = gpu_calibration(_described(torch))
    if known is None:
        return None
    age = datetime.now(UTC) - datetime.fromisoformat(known.created)
    return {"age_days": age.total_seconds() / 86_400, "caveats": [caveat.message for caveat in known.caveats]}


def _why_unavailable(torch: Any) -> str:
    try:
        torch.cuda.init()
    except Exception as exc:
        return f"{exc}".splitlines()[0]
    return "torch.cuda.is_available() is false"


def profile_device(torch: Any) -> dict[str, object] | None:
    """How many pieces of device work a tiny window holds; null without a device."""
    if not torch.cuda.is_available():
        return None
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    numbers = torch.ones(1024, device="cuda")
    with torch.profiler.profile(activities=both) as window:
        (numbers + numbers).sum()
        torch.cuda.synchronize()
    kinds = [str(event.device_type) for event in window.events()]
    return {"recorded": sum(kind.endswith("CUDA") for kind in kinds)}


if __name__ == "__main__":
    main()
    sys.stdout.flush()
