"""Three-dimensional convolutions over volumes with instance norms, for inference."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 1, side: int = 20, channels: int = 16, blocks: int = 2) -> Callable[[], object]:
    def block(number: int) -> list[nn.Module]:
        inputs = channels if number else 1
        return [nn.Conv3d(inputs, channels, 3, padding=1), nn.InstanceNorm3d(channels), nn.LeakyReLU()]

    body = [module for number in range(blocks) for module in block(number)]
    model = nn.Sequential(*body, nn.Conv3d(channels, 3, 1)).eval()
    volumes = torch.randn(batch_size, 1, side, side, side)

    def step() -> object:
        with torch.no_grad():
            return model(volumes).softmax(dim=1)

    return step
