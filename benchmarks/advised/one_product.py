"""Multiplies two large fp32 matrices: as near to the peak as the library brings it, and nothing helps."""

from collections.abc import Callable

import torch


def workload(size: int = 1536) -> Callable[[], torch.Tensor]:
    left, right = torch.randn(size, size), torch.randn(size, size)

    def step() -> torch.Tensor:
        return left @ right

    return step
