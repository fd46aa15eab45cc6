"""Does `repeat` operations on every number of a vector in one kernel. Expected verdict: memory, then compute.

The kernel that torch.compile makes of all of them (it needs a C++ compiler, or Triton on a GPU) reads each number once
and writes it once, whatever `repeat` is: eight bytes of memory traffic for `repeat` multiplications and additions. The
time stays flat while the traffic takes longer than the arithmetic, and doubles with `repeat` beyond the ridge of the
device: `bottleneck sweep examples/intensity.py --param repeat=1:256:x2 --plot intensity.png` finds it by experiment.

The multiplications form several chains that do not wait for one another. A processor looks a few hundred instructions
ahead: in one long chain, where each waits four cycles for the one before, it finds too little to do meanwhile, and the
rate of arithmetic falls again (on a CPU by half at 128 and by more at 256).

The result goes to memory that is used again in every step. New memory for each would cost more than the arithmetic: the
system has to hand out and clear its pages.
"""

import functools
import operator
from collections.abc import Callable

import torch

CHAINS = 8


def lengths(repeat: int) -> list[int]:
    """The multiplications of each chain; with the additions that join the chains they are ``repeat`` operations."""
    chains = min(CHAINS, (repeat + 1) // 2)
    multiplications = repeat - (chains - 1)
    return [multiplications // chains + (index < multiplications % chains) for index in range(chains)]


def multiplied(tensor: torch.Tensor, factor: float, times: int) -> torch.Tensor:
    """The tensor, multiplied so often, one multiplication after the other."""
    for _ in range(times):
        tensor = tensor * factor
    return tensor


def workload(elements: int = 32 * 2**20, repeat: int = 8) -> Callable[[], torch.Tensor]:
    values = torch.randn(elements)
    result = torch.empty_like(values)

    @torch.compile
    def operations(tensor: torch.Tensor, out: torch.Tensor) -> None:
        chains = [multiplied(tensor, 1.0001 + index / 1e4, times) for index, times in enumerate(lengths(repeat))]
        out.copy_(functools.reduce(operator.add, chains))

    def step() -> torch.Tensor:
        operations(values, result)
        return result

    return step
