"""Two views of each sample are brought together and all others apart, in training with a momentum copy."""

from collections.abc import Callable

import torch
from torch import nn


def workload(batch_size: int = 64, width: int = 128, looped: bool = False) -> Callable[[], object]:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(80, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 64))

    online, slow = network(), network()
    optimizer = torch.optim.AdamW(online.parameters(), lr=1e-3, foreach=False if looped else None)
    samples, labels = torch.randn(batch_size, 80), torch.arange(batch_size)

    def step() -> object:
        optimizer.zero_grad()
        one, other = (samples + 0.1 * torch.randn_like(samples) for _ in range(2))
        with torch.no_grad():
            keys = nn.functional.normalize(slow(other), dim=1)
        queries = nn.functional.normalize(online(one), dim=1)
        loss = nn.functional.cross_entropy(queries @ keys.T / 0.1, labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(slow.parameters(), online.parameters(), strict=True):
                kept.mul_(0.99).add_(new, alpha=0.01)
        return loss

    return step
