"""Multiplies one large vector by a number, `repeat` times over. Expected verdict: memory.

Every pass reads 64 MiB and writes 64 MiB to do one multiplication per element: 1/8 FLOP per byte, where a processor
needs several before arithmetic is the limit. The time grows with `repeat` because each pass goes to memory and back.
With `--set fused=True` torch.compile makes one pass of all of them (it needs a C++ compiler): the time then stays flat
until `repeat` is large enough for the arithmetic to show, and the verdict turns to compute.

The result goes to memory that is used again in every step. New memory for each would cost more than the arithmetic: the
system has to hand out and clear its pages.
"""

from collections.abc import Callable

import torch


def workload(elements: int = 16 * 2**20, repeat: int = 8, fused: bool = False) -> Callable[[], torch.Tensor]:
    values = torch.randn(elements)
    result = torch.empty_like(values)

    def chain(tensor: torch.Tensor, out: torch.Tensor) -> None:
        for _ in range(repeat):
            tensor = tensor * 1.0001
        out.copy_(tensor)

    def eager() -> torch.Tensor:
        torch.mul(values, 1.0001, out=result)
        for _ in range(repeat - 1):
            result.mul_(1.0001)
        return result

    if not fused:
        return eager
    compiled = torch.compile(chain)

    def compiled_step() -> torch.Tensor:
        compiled(values, result)
        return result

    return compiled_step
