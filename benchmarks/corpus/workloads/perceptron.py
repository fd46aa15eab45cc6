"""A dense network, trained: its optimizer may go from parameter to parameter, and its loss may be read back."""

from collections.abc import Callable

import torch
from torch import nn


def workload(
    batch_size: int = 128, width: int = 512, layers: int = 4, looped: bool = False, reads_loss: bool = False
) -> Callable[[], object]:
    model = nn.Sequential(*(module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False if looped else None)
    inputs, wanted = torch.randn(batch_size, width), torch.randn(batch_size, width)
    losses: list[float] = []

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        if reads_loss:
            losses[:] = [loss.item(), *(parameter.grad.norm().item() for parameter in model.parameters())]
        return loss

    return step
