"""Reads every loss and metric back with `.item()`, layer by layer, in each step: many small stops of the host."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 16, width: int = 32, layers: int = 12) -> Callable[[], float]:
    body = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
    optimizer = torch.optim.SGD(body.parameters(), lr=0.01)
    inputs = torch.randn(batch_size, width)

    def step() -> float:
        optimizer.zero_grad()
        hidden, logged = inputs, 0.0
        for layer in body:
            hidden = torch.tanh(layer(hidden))
            logged += hidden.mean().item() + hidden.std().item() + hidden.abs().max().item()
        loss = hidden.square().mean()
        loss.backward()
        optimizer.step()
        return logged + loss.item()

    return step
