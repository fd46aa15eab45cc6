"""A randomised singular value decomposition by power iterations: products and small factorisations."""

from collections.abc import Callable

import torch


def workload(rows: int = 1500, columns: int = 400, rank: int = 16, iterations: int = 3) -> Callable[[], object]:
    matrix = torch.randn(rows, columns)

    def step() -> object:
        basis = torch.linalg.qr(matrix @ torch.randn(columns, rank))[0]
        for _ in range(iterations):
            basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis)[0])[0]
        left, values, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
        return (basis @ left) * values @ right

    return step
