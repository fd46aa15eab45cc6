"""A recurrent cell in a Python loop over time, for forecasting: many small ops, trained or not."""

from collections.abc import Callable

import torch
from torch import nn


class Forecast(nn.Module):
    """A GRU cell that goes through a series step by step."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.cell, self.head, self.width = nn.GRUCell(features, width), nn.Linear(width, features), width

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """A forecast after each value of the series."""
        state = torch.zeros(series.shape[0], self.width)
        outputs = []
        for place in range(series.shape[1]):
            state = self.cell(series[:, place], state)
            outputs.append(self.head(state))
        return torch.stack(outputs, dim=1)


def workload(
    batch_size: int = 16, length: int = 32, features: int = 8, width: int = 64, train: bool = True
) -> Callable[[], object]:
    model = Forecast(features, width)
    series = torch.randn(batch_size, length, features)
    if not train:
        model.eval()
        return lambda: model(series)  # a graph is recorded that nobody uses
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(series)[:, :-1], series[:, 1:])
        loss.backward()
        optimizer.step()
        return loss

    return step
