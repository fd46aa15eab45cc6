"""Counts the tiles and waves of matrix products.

They are those of kernels that ran, and of those that are predicted.
"""

import re

import numpy as np
from msgspec import Struct

from bottleneck.analysis.floors import RooflineInput
from bottleneck.schema.intervals import Flags, Floats

# cutlass and nvjet write the tile as 128x256, cuBLASLt as tilesize128x128x64, hipBLASLt as MT320x224x64.
_TILE = re.compile(r"(?:tilesize|_MT|_)(\d{2,3})x(\d{2,3})(?=[x_(])")
# FlashAttention 2 lists width of a head, queries and keys of a block as template arguments.
_FLASH_TILE = re.compile(r"kernel_traits<\d+, (\d{1,3}), (\d{1,3})\b", re.IGNORECASE)
# Kernels that may share their tiles out in another way than one block each.
_OTHER_SCHEDULE = re.compile(r"persistent|stream_?k|_SK\d|split_?k|GSU(?!0|1(?!\d))\d", re.IGNORECASE)
LARGE_TILE = 128 * 128  # one such block fills a multiprocessor
_NO_SUCH_TILE = 1000.0
_ROUNDING = 1e-9  # of a number of waves
_PADDING = 1.1  # grids are rounded up so that neighbouring blocks share operands in the cache


def count_tiles(m: Floats, n: Floats, batch: Floats, rows: Floats | float, columns: Floats | float) -> Floats:
    """Counts the tiles that cover results of m by n.

    A tile has so many rows and columns.
    """
    return np.asarray(np.ceil(m / rows) * np.ceil(n / columns) * batch)


def fill_of_waves(waves: Floats) -> Floats:
    """Gives the part of whole waves' slots that is taken.

    1 where nothing is known.
    """
    return np.where(waves > 0, waves / np.ceil(waves - _ROUNDING), 1.0)


def fill_of_tiles(size: Floats, tile: float) -> Floats:
    """The part of whole tiles that a size takes."""
    return size / (np.ceil(size / tile) * tile)


class Waves(Struct, frozen=True):
    """Tiles and waves per group.

    They are the tile (0 for none), its number over all products, and the parts of the device that it fills.

    ``wave_fill`` is the part of the slots of whole waves that tiles take, ``tile_fill`` the part of the tiles that the
    result takes; 1 where the grid does not prove one block per tile. ``m`` and ``n`` are the result's sizes.
    """

    rows: Floats
    columns: Floats
    tiles: Floats
    wave_fill: Floats
    tile_fill: Floats


def find_waves(work: RooflineInput) -> Waves:
    """Finds the waves of groups with one block per tile.

    The sizes of the result or the grid alone must prove it.

    A library that works in column order swaps rows and columns: the way whose tiles are the blocks is taken. Blocks
    that match neither way (split-K, stream-K, persistent kernels) prove nothing. Without sizes the grid of a large tile
    is taken for its tiles, unless it has at most one block per multiprocessor, as persistent kernels do.
    """
    rows, columns = np.divmod(work.per_name(_tile), _NO_SUCH_TILE)
    blocks, slots = work.groups.blocks, float(work.device.sm_count or np.nan)
    m, n, batch = work.cost("m"), work.cost("n"), work.cost("batch")
    one_each = work.per_name(_OTHER_SCHEDULE.search) == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        straight, swapped = count_tiles(m, n, batch, rows, columns), count_tiles(n, m, batch, rows, columns)
        # Attention: a block takes some queries of one head, and walks over all its keys.
        of_queries = np.ceil(m / rows) * batch
        ways = [_is_grid(straight, blocks), _is_grid(swapped, blocks), _is_grid(of_queries, blocks)]
        unsized = np.isnan(m) & (rows * columns >= LARGE_TILE) & (blocks > slots)
        tiles = np.select([*ways, one_each & unsized], [straight, swapped, of_queries, blocks])
        waves = tiles / slots
        wave_fill = fill_of_waves(waves)
        padded = np.select(
            ways,
            [
                straight * rows * columns,
                swapped * rows * columns,
                of_queries * rows * np.ceil(n / columns) * columns,
            ],
            np.nan,
        )
        tile_fill = np.where(padded > 0, m * n * batch / padded, 1.0)
    large = rows * columns >= LARGE_TILE
    return Waves(rows, columns, tiles, np.where(large & (waves > 1), wave_fill, 1.0), np.minimum(tile_fill, 1.0))


def _is_grid(tiles: Floats, blocks: Floats) -> Flags:
    """Tells whether so many tiles make a grid of so many blocks.

    The grid may be padded.
    """
    return np.asarray((tiles > 0) & (blocks >= tiles) & (blocks <= np.maximum(_PADDING * tiles, tiles + 1)))


def _tile(name: str) -> float:
    """Gives the tile that a name states.

    Rows and columns are packed into one number. 0 for none.
    """
    match = _FLASH_TILE.search(name) or _TILE.search(name)
    return float(match[1]) * _NO_SUCH_TILE + float(match[2]) if match else 0.0
