"""Explicit steps of the heat equation on a grid, in shifted copies and elementwise ops."""

from collections.abc import Callable

import torch


def workload(side: int = 256, repeat: int = 8, double: bool = False) -> Callable[[], object]:
    grid = torch.rand(side, side, dtype=torch.float64 if double else torch.float32)

    def step() -> object:
        field = grid
        for _ in range(repeat):
            around = field.roll(1, 0) + field.roll(-1, 0) + field.roll(1, 1) + field.roll(-1, 1)
            field = field + 0.1 * (around - 4.0 * field) - 0.001 * field * field
        return field

    return step
