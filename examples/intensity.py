"""Multiplies every number of a vector `repeat` times, in one kernel. Expected verdict: memory, then compute.

The kernel that torch.compile makes of all multiplications (it needs a C++ compiler, or Triton on a GPU) reads each
number once and writes it once, whatever `repeat` is: eight bytes of memory traffic for `repeat` multiplications. The
time stays flat while the traffic takes longer than the arithmetic, and doubles with `repeat` beyond the ridge of the
device: `bottleneck sweep examples/intensity.py --param repeat=1:256:x2 --plot intensity.png` finds it by experiment.

The multiplications form several chains that do not wait for one another, whose results are multiplied in the end. A
processor looks a few hundred instructions ahead: in one long chain, where each waits three or four cycles for the one
before, it finds too little to do meanwhile, and the rate of arithmetic falls (here it does so at 128 and 256). All
numbers are 1 or -1 and all factors powers of two that cancel, so that what a chain leaves is exact.

The result goes where the numbers came from. A CPU that writes elsewhere first fetches what it will overwrite, half as
much traffic again that no operation asked for; new memory for each result would cost more than the arithmetic, since
the system has to hand out and clear its pages.
"""

import functools
import operator
from collections.abc import Callable

import torch

CHAINS = 8
_SHORTEST = 2


def lengths(repeat: int) -> list[int]:
    """The multiplications of each chain; with those that join the chains they are ``repeat``."""
    chains = max(1, min(CHAINS, (repeat + 1) // (_SHORTEST + 1)))
    each, more = divmod(repeat - (chains - 1), chains)
    return [each + (index < more) for index in range(chains)]


def factors(chain: int, times: int) -> list[float]:
    """What a chain multiplies by, one after the other: powers of two whose product is 1. No two chains have the same.

    A single multiplication by 1 would be left out: that by 0.9999 leaves a number almost as it was.
    """
    if times == 1:
        return [0.9999]
    up = 2.0 ** (chain + 1)
    odd = [up, up, up**-2] if times % 2 else []
    return [up, 1 / up] * ((times - len(odd)) // 2) + odd


def workload(elements: int = 32 * 2**20, repeat: int = 8) -> Callable[[], torch.Tensor]:
    values = torch.randn(elements).sign()

    @torch.compile
    def multiply(tensor: torch.Tensor) -> None:
        chains = [
            functools.reduce(operator.mul, factors(index, times), tensor) for index, times in enumerate(lengths(repeat))
        ]
        tensor.copy_(functools.reduce(operator.mul, chains))

    def step() -> torch.Tensor:
        multiply(values)
        return values

    return step
