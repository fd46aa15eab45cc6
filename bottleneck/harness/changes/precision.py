"""Changes that let products be computed in fewer bits: bf16 by autocast, TF32."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bottleneck.harness.changes.change import Change
from bottleneck.harness.changes.outcomes import NotApplicable
from bottleneck.harness.changes.subject import Subject

Step = Callable[[], Any]

# What torch runs in TF32 needs compute capability 8.0 (NVIDIA's CUDA C++ guide, arithmetic instructions).
_TF32_CAPABILITY = (8, 0)


def autocast_to_bf16(subject: Subject) -> Step:
    """The step within `torch.autocast`: its products take bf16, sums such as softmax and losses stay in fp32.

    The cast copies of parameters are dropped after each update, which the user's own loop would do by leaving autocast.
    """
    torch, inner, kinds = subject.torch, subject.step, sorted(subject.device_types())
    if not any(tensor.dtype is torch.float32 for tensor in subject.floating()):
        raise NotApplicable("needs float32 parameters or inputs; the step holds none")
    kinds = [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
    if not kinds or ("cuda" in kinds and not torch.cuda.is_bf16_supported()):
        raise NotApplicable(f"needs a device that computes in bf16; the step runs on {', '.join(kinds) or 'none'}")
    for optimizer in subject.optimizers:
        optimizer.register_step_post_hook(lambda *_: torch.clear_autocast_cache())

    def step() -> Any:
        with ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, dtype=torch.bfloat16))
            return inner()

    return step


def use_tf32(subject: Subject) -> Step:
    """The step with TF32 allowed in products of float32 matrices; back to what it was between steps."""
    torch, inner = subject.torch, subject.step
    if "cuda" not in subject.device_types():
        raise NotApplicable("needs a step that runs on an NVIDIA GPU")
    if torch.cuda.get_device_capability() < _TF32_CAPABILITY:
        raise NotApplicable("needs a GPU with TF32: compute capability 8.0 or later")
    if not any(tensor.dtype is torch.float32 for tensor in subject.floating()):
        raise NotApplicable("needs float32 parameters or inputs; the step holds none")
    if torch.get_float32_matmul_precision() != "highest":
        raise NotApplicable("needs products in full float32; the program allows TF32 already")

    def step() -> Any:
        torch.set_float32_matmul_precision("high")
        try:
            return inner()
        finally:
            torch.set_float32_matmul_precision("highest")

    return step


CHANGES = (
    Change("bf16-autocast", "run products in bf16 by torch.autocast", "bf16", autocast_to_bf16),
    Change("tf32", "allow TF32 in float32 products: torch.set_float32_matmul_precision('high')", "tf32", use_tf32),
)
