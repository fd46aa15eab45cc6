"""Asks for eight times as many threads as there are processors, for operators that are over in microseconds."""

import os
from collections.abc import Callable

import torch

torch.set_num_threads(8 * (os.cpu_count() or 1))


def workload(elements: int = 200_000, repeat: int = 20) -> Callable[[], torch.Tensor]:
    values, weights = torch.randn(elements), torch.randn(elements)

    def step() -> torch.Tensor:
        total = values
        for _ in range(repeat):
            total = total * weights + values
        return total

    return step
