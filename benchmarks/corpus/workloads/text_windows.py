"""Classifies texts by convolutions over windows of three widths, trained."""

from collections.abc import Callable

import torch
from torch import nn


class Windows(nn.Module):
    """Embedded tokens, convolutions of three widths, and the largest answer of each."""

    def __init__(self, width: int, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, width)
        self.windows = nn.ModuleList(nn.Conv1d(width, filters, size, padding=size // 2) for size in (3, 5, 7))
        self.head = nn.Linear(3 * filters, 6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of six classes per text."""
        x = self.embedding(tokens).transpose(1, 2)
        found = [torch.relu(window(x)).amax(-1) for window in self.windows]
        return self.head(nn.functional.dropout(torch.cat(found, 1), 0.2, self.training))


def workload(batch_size: int = 16, length: int = 96, width: int = 64, filters: int = 64) -> Callable[[], object]:
    model = Windows(width, filters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = torch.randint(0, 2000, (batch_size, length)), torch.randint(0, 6, (batch_size,))

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
