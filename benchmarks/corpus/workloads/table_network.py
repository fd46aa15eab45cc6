"""A residual network over a table with categories: small embeddings, batch norms, dropout, many small parameters."""

from collections.abc import Callable

import torch
from torch import nn


class Table(nn.Module):
    """An embedding per categorical column beside the numeric ones."""

    def __init__(self, categories: int, numbers: int, width: int, blocks: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(50, 8) for _ in range(categories))
        self.stem = nn.Linear(8 * categories + numbers, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width)
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """One score per row."""
        embedded = [table(categories[:, column]) for column, table in enumerate(self.embeddings)]
        x = self.stem(torch.cat([*embedded, numbers], dim=1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(torch.relu(x)).squeeze(1)


def workload(
    batch_size: int = 256, categories: int = 12, width: int = 128, blocks: int = 3, train: bool = True
) -> Callable[[], object]:
    model = Table(categories, 10, width, blocks)
    columns, numbers = torch.randint(0, 50, (batch_size, categories)), torch.randn(batch_size, 10)
    targets = torch.randn(batch_size)
    if not train:
        model.eval()
        return lambda: model(columns, numbers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(columns, numbers), targets)
        loss.backward()
        optimizer.step()
        return loss

    return step
