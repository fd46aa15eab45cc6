"""Measures the ceilings of this machine.

The roofline of a recording made on it is compared to them.
"""

import re
from typing import Any

from bottleneck.calibrate.calibration import Calibration
from bottleneck.calibrate.probes import OnProgress, ProbeEffort
from bottleneck.errors import UsageError, WorkloadError
from bottleneck.harness.torch_private import OLDEST, refuse_old

_NAME = re.compile(r"(cpu)|cuda(?::(\d{1,3}))?", re.ASCII)


def calibrate_device(
    name: str | None,
    threads: int | None,
    on_progress: OnProgress,
    *,
    seconds: float | None = None,
    fresh: bool = False,
    is_short: bool = False,
) -> Calibration:
    """Calibrates a device by torch's name.

    Without a name it is the first GPU if there is any, else the CPU.

    ``seconds`` is how long it takes at least; null: until two rounds agree. ``is_short`` is for a CPU only.
    Raises UsageError for a name that is none, WorkloadError where torch or the device is missing.
    """
    match = _NAME.fullmatch(name or "cpu")
    if match is None:
        raise UsageError(f"--device {name} is no device", fix="write cpu, cuda or, for the second GPU, cuda:1")
    if threads and name and not match[1]:
        raise UsageError("--threads is for a CPU", fix="leave --threads out, or pass --device cpu")
    torch = _torch()
    has_gpu = bool(torch.cuda.is_available())
    if match[1] and (name or threads or not has_gpu):
        from bottleneck.calibrate.cpu import SHORT_EFFORT, calibrate_cpu

        effort = SHORT_EFFORT if is_short else ProbeEffort().lasting(seconds)
        return calibrate_cpu(threads, on_progress, effort, fresh=fresh)
    if is_short:
        raise UsageError("--short is for a CPU", fix="leave --short out, or pass --device cpu")
    if not has_gpu:
        raise WorkloadError(
            f"there is no GPU here for --device {name}",
            why=_why_none(torch),
            fix="`bottleneck doctor` says what is missing; --device cpu measures the CPU",
        )
    index = int(match[2] or 0)
    if index >= torch.cuda.device_count():
        raise UsageError(
            f"there is no device cuda:{index}",
            why=f"torch sees {torch.cuda.device_count()}, numbered from 0",
            fix="name one of them, for example --device cuda:0",
        )
    from bottleneck.calibrate.gpu import GPU_EFFORT, calibrate_gpu

    return calibrate_gpu(index, on_progress, GPU_EFFORT.lasting(seconds), fresh=fresh)


def _torch() -> Any:
    try:
        import torch
    except (ImportError, OSError) as exc:
        raise WorkloadError(
            "torch cannot be imported, and the ceilings are measured with it",
            why=f"{type(exc).__name__}: {exc}",
            fix="run bottleneck with the Python that your program uses, or install its torch: pip install torch",
        ) from exc
    refusal = refuse_old(torch)
    if refusal is not None:
        raise WorkloadError(refusal, fix=f"install {OLDEST[0]}.{OLDEST[1]} or newer")
    return torch


def _why_none(torch: Any) -> str:
    built = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)
    return "torch finds none that it can use" if built else f"torch {torch.__version__} was built without CUDA"
