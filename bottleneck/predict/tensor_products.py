"""Prices matrix products on tensor cores by tiles and waves.

A block computes a tile of the result, or a part of the inner dimension of one. A wave is a block on each
multiprocessor. Each tile and each split has a time, and a library takes the quickest. Rows that do not begin at 16
bytes are loaded by 4 or 2 bytes at once, which bounds the arithmetic whatever the tensor cores could do.
tensor_products.csv holds what was learned, by generation. `python -m benchmarks.tensor_core_rates FOLDER --ship`
learns it from public traces and published benchmarks of products. int8_products.csv holds the shares that products of
8-bit integers reach, from published ones (`python -m benchmarks.int8_products --ship`).
"""

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct

from bottleneck.analysis.tiles import count_tiles
from bottleneck.schema.intervals import Floats

TABLE = Path(__file__).with_name("tensor_products.csv")
INT8_TABLE = Path(__file__).with_name("int8_products.csv")
# A generation that was not timed has the mean of the others.
OTHERS = "others"
# Rows that begin at multiples of this are loaded as quickly as the hardware can.
ALIGNED_BYTES = 16.0
# Sizes in the names of cuBLAS's and CUTLASS's kernels. Those with 16 rows are for thin products.
_TILES = (
    (256.0, 128.0),
    (128.0, 256.0),
    (128.0, 128.0),
    (128.0, 64.0),
    (64.0, 128.0),
    (64.0, 64.0),
    (32.0, 32.0),
    (64.0, 16.0),
    (16.0, 64.0),
)
_SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# The shortest part of an inner dimension that is split.
_LEAST_INNER = 256.0
# Partial sums are fp32: written, and read to be added.
_PARTIAL_BYTES = 8.0


class TensorProducts(Struct, frozen=True):
    """Products on tensor cores as arrays: their sizes, and the ceilings of their devices.

    Rates are per microsecond. ``share`` is the part of the peak that large products reach on the device's generation.
    """

    rows: Floats
    columns: Floats
    inner: Floats
    batch: Floats
    load_bytes: Floats
    element_bytes: Floats
    peak: Floats
    share: Floats
    multiprocessors: Floats
    cycles: Floats
    bandwidth: Floats


def arithmetic_us(products: TensorProducts, rates: Mapping[str, float]) -> Floats:
    """Returns the microseconds of the arithmetic of each product.

    A library takes the quickest tile and split.
    """
    best = np.full(products.rows.shape, np.inf)
    for tile_rows, tile_columns in _TILES:
        for parts in _SPLITS:
            best = np.minimum(best, _tiled_us(products, (tile_rows, tile_columns), parts, rates))
    return best


def _tiled_us(products: TensorProducts, tile: tuple[float, float], parts: float, rates: Mapping[str, float]) -> Floats:
    """Returns the time of products in tiles of one size.

    Their inner dimension is in so many parts.
    """
    tiles = count_tiles(products.rows, products.columns, products.batch * parts, *tile)
    waves = np.ceil(tiles / products.multiprocessors)
    inner = products.inner if parts == 1.0 else np.maximum(products.inner / parts, _LEAST_INNER)
    full = products.peak * products.share / products.multiprocessors * _efficiency(tile, rates["intensity"])
    loaded = _loaded(products, rates) * _efficiency(tile, rates["intensity"])
    flops = waves * 2.0 * tile[0] * tile[1]
    us = flops * (inner / np.minimum(full, loaded) + rates["inner"] / full)
    if parts == 1.0:
        return np.asarray(us)
    sums = products.rows * products.columns * products.batch * parts * _PARTIAL_BYTES / products.bandwidth
    return np.asarray(us + rates["split"] + sums)


def _efficiency(tile: tuple[float, float], intensity: float) -> float:
    """Returns the rate in a tile relative to the largest.

    A small one reuses fewer of its loads.
    """
    reuse, most = (rows * columns / (rows + columns) for rows, columns in (tile, _TILES[0]))
    return reuse / (reuse + intensity) * (most + intensity) / most


def _loaded(products: TensorProducts, rates: Mapping[str, float]) -> Floats:
    """Returns FLOPs per microsecond of a multiprocessor that its loads allow.

    They are those in the largest tile. Loads of 4 bytes go to shared memory on their own and bring one or two elements;
    those of 2 bytes go through registers.
    """
    by_four = rates["loads of 4 bytes"] * 4.0 / products.element_bytes
    rate = np.where(products.load_bytes >= 4.0, by_four, rates["loads of 2 bytes"])
    return np.where(products.load_bytes >= ALIGNED_BYTES, np.inf, rate * products.cycles)


def width_of(engine: str) -> str:
    """Returns 'tf32', 'int8' or 'half', by which shares are learned."""
    return next((width for width in ("tf32", "int8") if engine.startswith(width)), "half")


@lru_cache(maxsize=1)
def product_rates() -> Mapping[str, float]:
    """Reads what was learned of products on tensor cores, by name."""
    rates: dict[str, float] = {}
    for table in (TABLE, INT8_TABLE):
        with table.open(encoding="utf-8", newline="") as lines:
            rates |= {row["name"]: float(row["value"]) for row in csv.DictReader(lines)}
    return rates


def of_generation(rates: Mapping[str, float], architecture: str | None, name: str) -> float:
    """Returns a rate of a generation.

    It is that of the others where it was not timed.
    """
    return rates.get(f"{architecture}:{name}", rates[f"{OTHERS}:{name}"])


def is_timed(architecture: str | None) -> bool:
    """Tells whether products on tensor cores of a generation were timed."""
    return any(name.startswith(f"{architecture}:") for name in product_rates())
