"""A dense network for inference; without `no_grad` it records a graph that nobody uses."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 256, width: int = 768, layers: int = 4, grad: bool = True) -> Callable[[], object]:
    model = nn.Sequential(*(module for _ in range(layers) for module in (nn.Linear(width, width), nn.GELU()))).eval()
    inputs = torch.randn(batch_size, width)

    def step() -> object:
        with torch.set_grad_enabled(grad):
            return model(inputs)

    return step
