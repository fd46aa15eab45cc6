"""Runs convolutions with batch norms on images in the contiguous layout, for inference."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 8, channels: int = 32, side: int = 56, blocks: int = 4) -> Callable[[], torch.Tensor]:
    def block(first: bool) -> list[nn.Module]:
        return [nn.Conv2d(3 if first else channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]

    model = nn.Sequential(*(module for number in range(blocks) for module in block(number == 0))).eval()
    images = torch.randn(batch_size, 3, side, side)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return model(images)

    return step
