"""Updates many small parameters with the optimizer that goes through them one by one."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 8, width: int = 48, layers: int = 24) -> Callable[[], None]:
    model = nn.Sequential(*(module for _ in range(layers) for module in (nn.Linear(width, width), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    inputs = torch.randn(batch_size, width)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step
