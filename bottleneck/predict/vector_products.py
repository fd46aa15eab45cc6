"""Prices products of few rows with a large matrix of weights.

The decoding of tokens is made of them. They read each weight once. Weights narrower than the activations are unpacked
on the lanes meanwhile: converted, scaled, multiplied and added. The fewer bytes a weight has, the more of the time this
takes, and the less of the bandwidth is reached. vector_products.csv holds the rates, solved from steps that others
timed, whose other kernels have the prices that they have here (`python -m benchmarks.vector_products`).
"""

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

TABLE = Path(__file__).with_name("vector_products.csv")
# Rows of a tile of the tensor cores, for which a weight is unpacked once.
MOST_ROWS = 16.0
# A multiplication with an addition is one operation of a lane, and two FLOPs of its peak.
_FLOPS = 2.0


@lru_cache(maxsize=1)
def vector_rates() -> Mapping[str, float]:
    """Reads the rates by name."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return {row["name"]: float(row["value"]) for row in csv.DictReader(lines)}


def unpacking_flops(weights: float, weight_bytes: float) -> float:
    """Returns the time of unpacking as FLOPs at the peak of the lanes.

    Weights of two bytes and more take none.
    """
    return weights * _FLOPS * vector_rates().get(f"operations per weight of {weight_bytes:g} bytes", 0.0)
