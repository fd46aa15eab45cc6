"""Depthwise separable convolutions, trained or for inference: little arithmetic for the bytes that they move."""

from collections.abc import Callable

import torch
from torch import nn


def _separable(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
    )


def workload(
    batch_size: int = 4, channels: int = 64, side: int = 28, blocks: int = 3, train: bool = True
) -> Callable[[], object]:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 100))
    model = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *(_separable(channels) for _ in range(blocks)), *head)
    images, labels = torch.randn(batch_size, 3, side, side), torch.randint(0, 100, (batch_size,))
    if not train:
        model.eval()

        def infer() -> object:
            with torch.no_grad():
                return model(images)

        return infer
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
