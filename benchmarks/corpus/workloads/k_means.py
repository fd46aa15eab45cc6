"""One iteration of k-means by hand: distances, nearest centres, means by `index_add`, and a test of convergence."""

from collections.abc import Callable

import torch


def workload(points: int = 20_000, width: int = 16, clusters: int = 32, expanded: bool = False) -> Callable[[], object]:
    data = torch.randn(points, width)
    centres = data[:clusters].clone()

    def step() -> object:
        nonlocal centres
        differences = data[:, None, :] - centres[None] if expanded else None
        distances = torch.cdist(data, centres) if differences is None else (differences**2).sum(-1)
        nearest = distances.argmin(dim=1)
        sums = torch.zeros(clusters, width).index_add_(0, nearest, data)
        counts = torch.zeros(clusters).index_add_(0, nearest, torch.ones(points))
        moved = sums / counts.clamp(min=1.0)[:, None]
        shift = (moved - centres).norm().item()
        centres = moved if shift > 0 else centres
        return centres

    return step
