"""Multiplies two large square matrices. Expected verdict: compute.

A product of n x n matrices does 2 n^3 floating-point operations on 3 n^2 numbers: at n = 2048 in fp32 that is 340
FLOP for each byte, far more than any processor needs. Try `--set n=8` for overhead, and `--set n=8192 --set columns=1`
(a matrix of 256 MiB times a vector: half a FLOP per byte) for memory.
"""

from collections.abc import Callable

import torch


def workload(n: int = 2048, columns: int | None = None, dtype: str = "float32") -> Callable[[], torch.Tensor]:
    left = torch.randn(n, n).to(getattr(torch, dtype))
    right = torch.randn(n, columns or n).to(getattr(torch, dtype))
    return lambda: left @ right
