"""Trains a wide network on rows that lie in memory, with a loader in the same process and a loss that is printed."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def workload(batch_size: int = 512, width: int = 512) -> Callable[[], torch.Tensor]:
    rows, targets = torch.randn(16 * batch_size, width), torch.randn(16 * batch_size, 1)
    blocks = TensorDataset(rows.view(-1, 64, width), targets.view(-1, 64, 1))
    loader = DataLoader(blocks, batch_size=batch_size // 64)
    model = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width), nn.Tanh())
    head = nn.Linear(width, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    batches = iter(loader)
    losses: list[float] = []

    def step() -> torch.Tensor:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        features, wanted = (part.flatten(0, 1) for part in batch)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(head(model(features)), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss

    return step
