"""Trains on rows of a table that a loader without workers parses from text, one row at a time."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Lines of comma-separated numbers, the last of which is the target."""

    def __init__(self, count: int, columns: int) -> None:
        self.lines = [
            ",".join(str((7 * row + 13 * column) % 101) for column in range(columns + 1)) for row in range(count)
        ]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = [float(cell) / 101 for cell in self.lines[index].split(",")]
        return torch.tensor(values[:-1]), torch.tensor(values[-1:])


def workload(batch_size: int = 128, columns: int = 60, width: int = 256, workers: int = 0) -> Callable[[], object]:
    loader = DataLoader(Rows(4096, columns), batch_size, num_workers=workers, drop_last=True)
    model = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = iter(loader)

    def step() -> object:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    return step
