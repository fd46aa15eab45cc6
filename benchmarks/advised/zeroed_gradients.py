"""Fills large gradients with zeros in each step and then adds to them, instead of dropping them."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 4, width: int = 2048, layers: int = 3) -> Callable[[], None]:
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch_size, width)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(inputs).square().mean().backward()
        optimizer.step()

    return step
