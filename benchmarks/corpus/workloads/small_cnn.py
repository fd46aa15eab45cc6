"""A convolutional network with batch norms on images that lie channels first, trained."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 8, channels: int = 32, side: int = 32, blocks: int = 3) -> Callable[[], object]:
    def block(number: int) -> list[nn.Module]:
        inputs = channels if number else 3
        return [nn.Conv2d(inputs, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]

    body = [module for number in range(blocks) for module in block(number)]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = torch.randn(batch_size, 3, side, side), torch.randint(0, 10, (batch_size,))

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
