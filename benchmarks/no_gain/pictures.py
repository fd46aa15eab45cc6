"""Trains a small network of convolutions on pictures with Adam, and keeps the loss of each step as a number."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 4, channels: int = 32, size: int = 32) -> Callable[[], torch.Tensor]:
    convolutions = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4)]
    model = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Linear(channels, 10)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
    pictures, labels = torch.randn(batch_size, 3, size, size), torch.randint(0, 10, (batch_size,))
    losses: list[float] = []

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(model(pictures)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss

    return step
