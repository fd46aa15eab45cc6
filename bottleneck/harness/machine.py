"""Where a program runs that leaves it to us: torch's default device and number of threads, set before it is loaded."""

import sys

from bottleneck.harness.notes import Plan


def prepare_torch(plan: Plan) -> None:
    """Sets what the plan names, and imports torch for it; ends the process with a reason where that cannot be had."""
    if plan.device is None and plan.threads is None:
        return
    import torch

    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    if plan.device is not None:
        torch.set_default_device(_present(plan.device))


def _present(name: str) -> str:
    """The device, if torch knows it and one is there."""
    import torch

    try:
        device = torch.device(name)
        count = 1 if device.type == "cpu" else torch.get_device_module(device).device_count()
    except (RuntimeError, AssertionError) as error:
        sys.exit(f"torch has no device {name}: {str(error).strip().splitlines()[0]}")
    if count <= (device.index or 0):
        sys.exit(f"there is no device {name} here: torch {torch.__version__} sees {count} of this kind")
    return name
