"""A strip of characters: one line that shows how a value changes over time."""

from collections.abc import Sequence

import numpy as np


def strip_cells(values: Sequence[float], width: int, levels: str) -> str:
    """The values as this many characters, each the mean of its part; ``levels`` run from nothing to the most.

    Something never looks like nothing: the first level is for parts in which every value is 0.
    """
    cells = min(width, len(values))
    if cells < 1:
        return ""
    means = _means(np.array(values, dtype=np.float64), cells)
    most = float(means.max())
    if most <= 0:
        return levels[0] * cells
    heights = np.where(means > 0, np.clip(np.ceil(means / most * (len(levels) - 1)), 1, len(levels) - 1), 0)
    return "".join(levels[int(height)] for height in heights)


def _means(
    values: "np.ndarray[tuple[int], np.dtype[np.float64]]", cells: int
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Mean of each of so many equal parts, values counted by the part of them that lies in it."""
    area = np.concatenate(([0.0], np.cumsum(values)))
    edges = np.linspace(0, len(values), cells + 1)
    return np.diff(np.interp(edges, np.arange(len(area)), area)) * cells / len(values)
