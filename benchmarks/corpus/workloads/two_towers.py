"""Two towers over large embedding tables with a contrastive loss; gradients are filled with zeros or dropped."""

from collections.abc import Callable

import torch
from torch import nn


class Tower(nn.Module):
    """A table and a dense layer."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table, self.dense = nn.Embedding(rows, width), nn.Linear(width, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """A unit vector per row."""
        return nn.functional.normalize(self.dense(self.table(rows)), dim=-1)


def workload(
    batch_size: int = 256, rows: int = 20_000, width: int = 64, zeroes: bool = True, looped: bool = False
) -> Callable[[], object]:
    model = nn.ModuleList([Tower(rows, width), Tower(rows, width)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False if looped else None)
    users, items = torch.randint(0, rows, (batch_size,)), torch.randint(0, rows, (batch_size,))

    def step() -> object:
        optimizer.zero_grad(set_to_none=not zeroes)
        scores = model[0](users) @ model[1](items).T / 0.07
        loss = nn.functional.cross_entropy(scores, torch.arange(batch_size))
        loss.backward()
        optimizer.step()
        return loss

    return step
