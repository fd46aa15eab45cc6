"""How far results of a changed step may lie from the original's, by the precision that the change names."""

import math
from collections.abc import Mapping
from typing import Any

from bottleneck.harness.changes.change import Precision
from bottleneck.harness.changes.subject import Subject

# Distance from 1 to the next number: 10 bits of mantissa in TF32 (NVIDIA A100 whitepaper, "TF32") and in fp16, 7 in
# bf16, 7 bits and a sign in int8.
EPS: Mapping[Precision, float] = {"tf32": 2.0**-10, "fp16": 2.0**-10, "bf16": 2.0**-7, "int8": 2.0**-7}
_FP32_EPS = 2.0**-23

# What torch.testing.assert_close allows by default, in such distances: 1.6e-2 for bf16, 1e-3 for fp16, 1.3e-6 for fp32,
# 1e-7 for fp64 (table in its docstring). That is for one operation.
_ROUNDINGS: Mapping[str, float] = {"torch.bfloat16": 2.05, "torch.float16": 1.03, "torch.float32": 10.9}
_ROUNDINGS_OF_FEW_BITS = 2.05

# The error of a sum of n numbers grows as the root of n where roundings are independent: Higham and Mary 2019, "A new
# approach to probabilistic rounding error analysis", theorem 2.4; with this factor it holds but once in a thousand.
_SUM = 4.0


def allowance(subject: Subject, precision: Precision) -> float:
    """What a change may alter relative to the largest value, whatever the step makes of it.

    0 where the bits have to be the same. Else each layer rounds, and these errors add up as a root; besides, sums are
    added up in another order, in fp32 or finer.
    """
    if precision == "same":
        return 0.0
    torch, kinds = subject.torch, _kinds(subject)
    rounded: float = max(_ROUNDINGS.get(str(kind), 1.0) * torch.finfo(kind).eps for kind in kinds)
    if precision in EPS or _rounds_to_tf32(subject):
        rounded = max(rounded, _ROUNDINGS_OF_FEW_BITS * EPS.get(precision, EPS["tf32"]))
    summed: float = _SUM * math.sqrt(_longest_sum(subject)) * min(_FP32_EPS, *(torch.finfo(kind).eps for kind in kinds))
    return summed + rounded * math.sqrt(_layers(subject))


def shake(subject: Subject, precision: Precision, seed: int) -> Subject:
    """The same subject, every number of its parameters moved by one distance of this precision, up or down at random.

    ``seed`` leaves the program's random numbers alone.
    """
    torch = subject.torch
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in _parameters(subject):
            eps = max(EPS.get(precision, 0.0), torch.finfo(parameter.dtype).eps)
            signs = torch.randint(0, 2, parameter.shape, generator=draw, dtype=torch.int8) * 2 - 1
            parameter.mul_(1.0 + eps * signs.to(parameter.device, torch.float64).to(parameter.dtype))
    return subject


def _parameters(subject: Subject) -> list[Any]:
    is_lazy = subject.torch.nn.parameter.is_lazy
    return [each for each in subject.trained() if not is_lazy(each) and each.is_floating_point()]


def _kinds(subject: Subject) -> set[Any]:
    return {tensor.dtype for tensor in subject.floating()} or {subject.torch.float32}


def _layers(subject: Subject) -> int:
    """Modules that hold parameters of their own: each works on what the one before has rounded."""
    parts = (part for module in subject.modules for part in module.modules())
    return max(1, sum(bool(part._parameters) for part in parts))


def _longest_sum(subject: Subject) -> float:
    """The most numbers that a sum is likely to have: the fan-in of a layer, or all of a loose tensor."""
    fans = [each.numel() / max(1, each.shape[0]) for each in _parameters(subject) if each.dim()]
    return float(max([1.0, *fans, *(tensor.numel() for tensor in subject.tensors)]))


def _rounds_to_tf32(subject: Subject) -> bool:
    """Whether the original itself may: convolutions on a GPU do by default, but not in every kernel."""
    if "cuda" not in subject.device_types():
        return False
    torch = subject.torch
    return bool(torch.backends.cudnn.allow_tf32 or torch.get_float32_matmul_precision() != "highest")
