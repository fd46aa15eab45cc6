"""A click model: embedding bags, their pairwise products, and dense layers around them."""

from collections.abc import Callable

import torch
from torch import nn


class Clicks(nn.Module):
    """Bags of categories beside dense features."""

    def __init__(self, tables: int, rows: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """The log odds of a click."""
        low = self.bottom(dense)
        vectors = torch.stack([low, *(bag(categories[number]) for number, bag in enumerate(self.bags))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        above = torch.triu_indices(vectors.shape[1], vectors.shape[1], 1)
        return self.top(torch.cat([low, products[:, above[0], above[1]]], dim=1)).squeeze(1)


def workload(
    batch_size: int = 256, tables: int = 8, rows: int = 20_000, width: int = 16, sparse: bool = False
) -> Callable[[], object]:
    model = Clicks(tables, rows, width, sparse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dense, categories = torch.randn(batch_size, 13), torch.randint(0, rows, (tables, batch_size, 4))
    clicks = torch.randint(0, 2, (batch_size,)).float()

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, categories), clicks)
        loss.backward()
        optimizer.step()
        return loss

    return step
