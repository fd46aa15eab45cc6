"""Multiplies large fp32 matrices in a deep network without gradients: a processor with bf16 units can do it faster."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 512, width: int = 1024, layers: int = 4) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(*(module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU()))).eval()
    inputs = torch.randn(batch_size, width)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(inputs)

    return step
