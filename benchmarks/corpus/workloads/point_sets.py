"""Classifies sets of points: the same small network for each point, and the largest answer of all, trained."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 8, points: int = 256, width: int = 64, train: bool = True) -> Callable[[], object]:
    each = nn.Sequential(
        nn.Linear(3, width), nn.LayerNorm(width), nn.GELU(),
        nn.Linear(width, 2 * width), nn.LayerNorm(2 * width), nn.GELU(),
    )  # fmt: skip
    head = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 12))
    sets, labels = torch.randn(batch_size, points, 3), torch.randint(0, 12, (batch_size,))

    def infer() -> torch.Tensor:
        return head(each(sets).amax(1))  # type: ignore[no-any-return]

    if not train:
        for part in (each, head):
            part.eval()
        return torch.no_grad()(infer)
    optimizer = torch.optim.AdamW([*each.parameters(), *head.parameters()], lr=1e-3)

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(infer(), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step
