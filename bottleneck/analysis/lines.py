"""A line through measured times: weighted by their errors, little moved by a point that went wrong."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# What differs between processes that measure the same (placement of memory, clock) and no interval of one shows.
LEAST_ERROR = 0.02
# Huber's tuning constant: 95 % as efficient as least squares where the noise is normal.
_HUBER = 1.345
_ROUNDS = 50
# Student's t at 97.5 % by degrees of freedom, from 1 on.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Line:
    """t = fixed + each x ("sum"), or the larger of fixed and each x ("max"); neither part is negative.

    The widths are half of the 95 % intervals; ``squares`` is the sum of squared residuals in units of their errors,
    ``shares`` are the residuals as parts of the times.
    """

    fixed: float
    each: float
    fixed_width: float
    each_width: float
    squares: float
    shares: Floats
    model: Literal["sum", "max"] = "sum"

    @property
    def worst_share(self) -> float:
        """The largest residual, as a part of its time."""
        return float(np.abs(self.shares).max())


def sum_line(x: Floats, t: Floats, error: Floats) -> Line:
    """The line t = fixed + each x through three points or more, by least squares with Huber's weights.

    Least squares in units of each point's error: over a sweep times grow by decades, and it is their relative error
    that is alike. Huber's weights leave a single disturbed point little say; unlike the median of slopes (Theil-Sen)
    they use how well each point is known, without which the slopes between small neighbouring values are mostly noise.
    The intervals are Student's, by the scatter of the residuals or the errors of the points, whichever is larger.
    """
    precision = 1.0 / error**2
    weights = precision
    for _ in range(_ROUNDS):
        fixed, each = _solve(x, t, weights)
        weights = precision * _huber((t - fixed - each * x) / error)
    widths = _widths(x, (t - fixed - each * x), weights)
    if fixed < 0:
        fixed, each = 0.0, float((weights * x * t).sum() / (weights * x * x).sum())
    elif each < 0:
        fixed, each = float((weights * t).sum() / weights.sum()), 0.0
    return _line((fixed, each), widths, (x, t, error), "sum")


def max_line(x: Floats, t: Floats, error: Floats) -> Line | None:
    """The best t = max(fixed, each x) through points sorted by x, with two at least on either side; null below four."""
    found = [_bent_at(split, x, t, error) for split in range(2, len(x) - 1)]
    return min(found, key=lambda line: line.squares, default=None)


def _bent_at(split: int, x: Floats, t: Floats, error: Floats) -> Line:
    weights = 1.0 / error**2
    flat, steep = slice(None, split), slice(split, None)
    fixed = float((weights * t)[flat].sum() / weights[flat].sum())
    each = float((weights * x * t)[steep].sum() / (weights * x * x)[steep].sum())
    parts = ((flat, t - fixed, np.ones_like(x)), (steep, t - each * x, x))
    fixed_width, each_width = (
        _width_of_one(residual[part], scale[part], weights[part]) for part, residual, scale in parts
    )
    return _line((fixed, each), (fixed_width, each_width), (x, t, error), "max")


def _line(
    parts: tuple[float, float],
    widths: tuple[float, float],
    data: tuple[Floats, Floats, Floats],
    model: Literal["sum", "max"],
) -> Line:
    (fixed, each), (x, t, error) = parts, data
    residual = t - (np.maximum(fixed, each * x) if model == "max" else fixed + each * x)
    return Line(fixed, each, *widths, float(((residual / error) ** 2).sum()), residual / t, model)


def _solve(x: Floats, t: Floats, weights: Floats) -> tuple[float, float]:
    """The weighted least squares line; around the means, so that large values of x lose no digits."""
    total = weights.sum()
    x_mean, t_mean = (weights * x).sum() / total, (weights * t).sum() / total
    spread = (weights * (x - x_mean) ** 2).sum()
    each = (weights * (x - x_mean) * (t - t_mean)).sum() / spread
    return float(t_mean - each * x_mean), float(each)


def _huber(residual: Floats) -> Floats:
    """The weight of each residual in units of its error; the errors are made larger where all points scatter more."""
    freedom = len(residual) / max(len(residual) - 2, 1)
    scale = max(1.0, 1.4826 * float(np.median(np.abs(residual))) * math.sqrt(freedom))
    size = np.abs(residual) / scale
    return np.minimum(1.0, _HUBER / np.maximum(size, 1e-300))


def _widths(x: Floats, residual: Floats, weights: Floats) -> tuple[float, float]:
    """Half of the 95 % intervals of both parts of a line."""
    freedom = len(x) - 2
    total = weights.sum()
    x_mean = (weights * x).sum() / total
    spread = (weights * (x - x_mean) ** 2).sum()
    noise = math.sqrt(max(1.0, float((weights * residual**2).sum()) / freedom)) * quantile(freedom)
    return float(noise * math.sqrt(1.0 / total + x_mean**2 / spread)), float(noise / math.sqrt(spread))


def _width_of_one(residual: Floats, scale: Floats, weights: Floats) -> float:
    freedom = len(residual) - 1
    noise = math.sqrt(max(1.0, float((weights * residual**2).sum()) / freedom)) * quantile(freedom)
    return float(noise / math.sqrt(float((weights * scale**2).sum())))


def quantile(freedom: int) -> float:
    """Student's t at 97.5 %; beyond the table by its expansion around the normal quantile, right to 0.003."""
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
