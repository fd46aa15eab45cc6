"""Scores long sequences by attention between wide projections, without gradients."""

from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
    """Attention and the products around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inwards = nn.Linear(width, 3 * width)
        self.outwards = nn.Linear(width, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """As many rows, each a mixture of all."""
        batch, length, width = rows.shape
        parts = self.inwards(rows).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        return self.outwards(mixed.transpose(1, 2).reshape(batch, length, width))


def workload(batch_size: int = 1, length: int = 512, width: int = 256, layers: int = 2) -> Callable[[], torch.Tensor]:
    model = nn.Sequential(*[Block(width, 8) for _ in range(layers)])
    rows = torch.randn(batch_size, length, width)
    largest: list[float] = []

    def step() -> torch.Tensor:
        with torch.no_grad():
            scores = model(rows)
        largest.append(scores.max().item())
        return scores

    return step
