"""Multiplies every number of a vector `repeat` times in one kernel. Expected verdict: memory, then compute.

The kernel that torch.compile makes of the whole chain (it needs a C++ compiler, or Triton on a GPU) reads each number
once and writes it once, whatever `repeat` is: eight bytes of memory traffic for `repeat` multiplications. The time
stays flat while the traffic takes longer than the arithmetic, and doubles with `repeat` beyond the ridge of the device:
`bottleneck sweep examples/intensity.py --param repeat=1:256:x2 --plot intensity.png` finds it by experiment.

The result goes to memory that is used again in every step. New memory for each would cost more than the arithmetic: the
system has to hand out and clear its pages.
"""

from collections.abc import Callable

import torch


def workload(elements: int = 32 * 2**20, repeat: int = 8) -> Callable[[], torch.Tensor]:
    values = torch.randn(elements)
    result = torch.empty_like(values)

    @torch.compile
    def chain(tensor: torch.Tensor, out: torch.Tensor) -> None:
        for _ in range(repeat):
            tensor = tensor * 1.0001
        out.copy_(tensor)

    def step() -> torch.Tensor:
        chain(values, result)
        return result

    return step
