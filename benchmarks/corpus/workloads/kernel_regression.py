"""Gaussian process regression: a kernel matrix from elementwise ops, its Cholesky factor, and a solve."""

from collections.abc import Callable

import torch


def workload(points: int = 500, width: int = 8, targets: int = 4) -> Callable[[], object]:
    inputs, values = torch.randn(points, width), torch.randn(points, targets)

    def step() -> object:
        squares = inputs.square().sum(-1)
        distances = (squares[:, None] + squares[None] - 2 * inputs @ inputs.T).clamp(min=0.0)
        kernel = torch.exp(-0.5 * distances / 4.0) + 0.1 * torch.eye(points)
        return torch.cholesky_solve(values, torch.linalg.cholesky(kernel))

    return step
