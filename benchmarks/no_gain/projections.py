"""Projects batches through wide layers without gradients, and reads the mean: all of it products."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 256, width: int = 512, layers: int = 12) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    rows = torch.randn(batch_size, width)
    means: list[float] = []

    def step() -> torch.Tensor:
        with torch.no_grad():
            scores = model(rows)
        means.append(scores[:, 0].mean().item())
        return scores

    return step
