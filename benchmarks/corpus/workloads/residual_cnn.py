"""Residual blocks with batch norms for inference, on images that lie channels first."""

from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions beside an identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.second, self.second_norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's images, as large as its inputs."""
        hidden = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(hidden)))


def workload(batch_size: int = 2, channels: int = 48, side: int = 28, blocks: int = 3) -> Callable[[], object]:
    stem = nn.Sequential(nn.Conv2d(3, channels, 7, stride=2, padding=3), nn.BatchNorm2d(channels), nn.ReLU())
    model = nn.Sequential(stem, *(Block(channels) for _ in range(blocks))).eval()
    images = torch.randn(batch_size, 3, 2 * side, 2 * side)

    def step() -> object:
        with torch.no_grad():
            return model(images)

    return step
