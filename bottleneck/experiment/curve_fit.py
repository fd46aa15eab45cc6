"""Fits a fixed and a growing part to measured step times.

The fit is robust against single bad points.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bottleneck.schema.analysis import Interval
from bottleneck.schema.trials import Fit, Point, Roof
from bottleneck.units import format_share

Floats = NDArray[np.float64]

# What differs between processes that measure the same (placement of memory, clock) and no interval of one shows.
LEAST_ERROR = 0.02
# Huber's tuning constant: 95 % as efficient as least squares where the noise is normal.
_HUBER = 1.345
_ROUNDS = 50
_EXACT = 1e-14


@dataclass(frozen=True)
class FittedLine:
    """Line of a fixed and a growing part, neither negative.

    t = fixed + each x ("sum"), or the larger of fixed and each x ("max").

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


def sum_line(x: Floats, t: Floats, error: Floats) -> FittedLine:
    """Fits t = fixed + each x through three points or more.

    It uses least squares with Huber's loss.

    Least squares in units of each point's error: over a sweep times grow by decades, and it is their relative error
    that is alike. Huber's loss gives single disturbed points little weight; unlike the median of slopes (Theil-Sen)
    it uses how well each point is known, without which the slopes between small neighbouring values are mostly noise.
    The intervals are Student's, by the scatter of the residuals or the errors of the points, whichever is larger.
    """
    from scipy.optimize import least_squares  # help needs none of it

    # Both parts as shares of the largest time, so that neither is lost beside the other.
    unit = np.array([t.max(), t.max() / x.max()])
    slopes = np.column_stack((np.ones_like(x), x)) * unit / error[:, None]
    shares, scale = np.array([0.5, 0.5]), 1.0
    for _ in range(_ROUNDS):
        fit = least_squares(
            lambda parts: slopes @ parts - t / error,
            shares,
            jac=lambda _: slopes,
            bounds=(0.0, np.inf),
            method="dogbox",
            loss="huber",
            f_scale=_HUBER * scale,
            xtol=_EXACT,
            ftol=_EXACT,
            gtol=_EXACT,
        )
        before, shares, scale = scale, fit.x, _scatter(fit.fun)
        if math.isclose(before, scale, rel_tol=1e-9):
            break
    fixed, growth = (float(part) for part in shares * unit)
    weights = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(fit.fun), 1e-300)) / error**2
    return _line((fixed, growth), _widths(x, t - fixed - growth * x, weights), (x, t, error), "sum")


def max_line(x: Floats, t: Floats, error: Floats) -> FittedLine | None:
    """Fits the best t = max(fixed, each x) through points.

    The points are sorted by x, with two at least on either side. Null below four.
    """
    lines = [_bent_at(split, x, t, error) for split in range(2, len(x) - 1)]
    return min(lines, key=lambda line: line.squares, default=None)


def _bent_at(split: int, x: Floats, t: Floats, error: Floats) -> FittedLine:
    weights = 1.0 / error**2
    flat, steep = slice(None, split), slice(split, None)
    fixed = float((weights * t)[flat].sum() / weights[flat].sum())
    growth = float((weights * x * t)[steep].sum() / (weights * x * x)[steep].sum())
    parts = ((flat, t - fixed, np.ones_like(x)), (steep, t - growth * x, x))
    fixed_width, each_width = (
        _width_of_one(residual[part], scale[part], weights[part]) for part, residual, scale in parts
    )
    return _line((fixed, growth), (fixed_width, each_width), (x, t, error), "max")


def _line(
    parts: tuple[float, float],
    widths: tuple[float, float],
    data: tuple[Floats, Floats, Floats],
    model: Literal["sum", "max"],
) -> FittedLine:
    (fixed, growth), (x, t, error) = parts, data
    residual = t - (np.maximum(fixed, growth * x) if model == "max" else fixed + growth * x)
    return FittedLine(fixed, growth, *widths, float(((residual / error) ** 2).sum()), residual / t, model)


def _scatter(residual: Floats) -> float:
    """Returns the scatter of residuals in units of their errors.

    It is 1 at least, and larger where all points scatter more.
    """
    freedom = len(residual) / max(len(residual) - 2, 1)
    return max(1.0, 1.4826 * float(np.median(np.abs(residual))) * math.sqrt(freedom))


def _widths(x: Floats, residual: Floats, weights: Floats) -> tuple[float, float]:
    """Half of the 95 % intervals of both parts of a line."""
    total = weights.sum()
    x_mean = (weights * x).sum() / total
    spread = (weights * (x - x_mean) ** 2).sum()
    noise = _noise(residual, weights, len(x) - 2)
    return float(noise * math.sqrt(1.0 / total + x_mean**2 / spread)), float(noise / math.sqrt(spread))


def _width_of_one(residual: Floats, scale: Floats, weights: Floats) -> float:
    return float(_noise(residual, weights, len(residual) - 1) / math.sqrt(float((weights * scale**2).sum())))


def _noise(residual: Floats, weights: Floats, freedom: int) -> float:
    return math.sqrt(max(1.0, float((weights * residual**2).sum()) / freedom)) * quantile(freedom)


def quantile(freedom: int) -> float:
    """Student's t at 97.5 %."""
    from scipy.special import stdtrit  # help needs none of it

    return float(stdtrit(freedom, 0.975))


_PREFERRED = "batch_size"
_FEWEST = 3
# Of one point this far from the line, something went wrong; of two, it is no line.
_OFF_SHARE = 0.10
_FEWEST_OF_RANGE = 4
# From so many points on a range may hold one that something disturbed.
_MANY = 6
# Overlapping parts are believed where they leave less than this of the squares that parts in a row leave.
_CLEARLY_BETTER = 0.5
# Growth of the peak over the whole sweep, as a share of it, that is no growth yet: pages come and go.
_LEAST_GROWTH = 0.05
# A line that misses a point by more than this is none, unless all others lie on it.
_NO_LINE_SHARE = 0.3
_NORMAL = 1.96


@dataclass(frozen=True)
class _FitPoints:
    """Points of one fit, by the value of its parameter.

    ``failed`` are the values of those without figures.
    """

    series: str
    parameter: str
    others: Mapping[str, int | float | str]
    points: tuple[Point, ...]
    failed: tuple[float, ...]

    @property
    def x(self) -> Floats:
        return np.array([point.values[self.parameter] for point in self.points], dtype=np.float64)


def fit_series(points: Sequence[Point], parameters: Sequence[str], roofs: Sequence[Roof] = ()) -> tuple[Fit, ...]:
    """Fits each series for each value of its other parameters.

    A fit runs along the batch size, else along the first parameter that is a number everywhere. Without such a
    parameter there is no fit. The order of the points changes nothing.
    """
    numeric = [name for name in parameters if all(not isinstance(point.values[name], str) for point in points)]
    if not numeric:
        return ()
    parameter = _PREFERRED if _PREFERRED in numeric else numeric[0]
    memory = {roof.series: roof.memory_bytes for roof in roofs}
    return tuple(_fit(curve, memory.get(curve.series)) for curve in _curves(points, parameter))


def _curves(points: Sequence[Point], parameter: str) -> Iterator[_FitPoints]:
    groups: dict[tuple[str, tuple[tuple[str, int | float | str], ...]], list[Point]] = {}
    for point in points:
        others = tuple((name, value) for name, value in point.values.items() if name != parameter)
        groups.setdefault((point.series, others), []).append(point)
    for (series, others), members in groups.items():
        timed = [point for point in members if point.step_us is not None and point.step_us.median > 0]
        yield _FitPoints(
            series=series,
            parameter=parameter,
            others=dict(others),
            points=tuple(sorted(timed, key=lambda point: float(point.values[parameter]))),
            failed=tuple(sorted(float(point.values[parameter]) for point in members if point.step_us is None)),
        )


def _fit(curve: _FitPoints, memory_bytes: int | None) -> Fit:
    largest, why = _largest(curve, memory_bytes)
    nothing = Fit(
        series=curve.series,
        parameter=curve.parameter,
        fixed_us=None,
        each_us=None,
        knee=None,
        residual_share=None,
        largest=largest,
        largest_reason=why,
        points=len(curve.points),
        others=curve.others,
    )
    if len(set(curve.x)) < _FEWEST:
        reason = f"a line needs {_FEWEST} values of {curve.parameter} that were measured; there are {len(set(curve.x))}"
        return replace(nothing, reason=reason, knee_reason=reason)
    line, within = _choose(curve.x, *_times(curve))
    x, off = curve.x[within], np.abs(line.shares) > _OFF_SHARE
    is_one_apart = off.sum() == 1 and len(x) >= _FEWEST_OF_RANGE
    if line.worst_share > _NO_LINE_SHARE and not is_one_apart:
        reason = f"no line describes the points: they lie up to {format_share(line.worst_share)} from the best"
        return replace(nothing, reason=reason, knee_reason=reason)
    knee, knee_reason = _knee(line, curve.parameter, x)
    return replace(
        nothing,
        fixed_us=Interval(max(line.fixed - line.fixed_width, 0.0), line.fixed + line.fixed_width),
        each_us=Interval(max(line.each - line.each_width, 0.0), line.each + line.each_width),
        fixed_mid_us=line.fixed,
        each_mid_us=line.each,
        model=line.model,
        over=Interval(float(x[0]), float(x[-1])),
        points=len(x),
        knee=knee,
        knee_reason=knee_reason,
        residual_share=float(np.abs(line.shares[~off]).max()) if is_one_apart else line.worst_share,
        apart=float(x[off][0]) if is_one_apart else None,
    )


def _times(curve: _FitPoints) -> tuple[Floats, Floats]:
    """Returns medians and their standard errors.

    The errors come from the interval of each median and from what no interval shows.
    """
    timings = [point.step_us for point in curve.points if point.step_us is not None]
    medians = np.array([timing.median for timing in timings])
    errors = np.array([(timing.high - timing.low) / (2 * _NORMAL) for timing in timings])
    return medians, np.maximum(errors, LEAST_ERROR * medians)


def _choose(x: Floats, t: Floats, error: Floats) -> tuple[FittedLine, slice]:
    """Chooses the line that the points follow, and its points.

    They are all points, or the longest range in which they follow one line.

    What leaves a cache or fills a device bends the curve; a line through both sides would be wrong on either.
    """
    line = _line_through(x, t, error)
    if _points_off(line) <= 1 and not (len(x) >= _MANY and _bends_at_an_end(line)):
        return line, slice(None)
    ranges = [slice(start, end) for start in range(len(x)) for end in range(start + _FEWEST_OF_RANGE, len(x) + 1)]
    ranges.sort(key=lambda part: part.start - part.stop)
    for part in ranges:
        if 2 * (part.stop - part.start) < len(x):
            break
        within = _line_through(x[part], t[part], error[part])
        if _holds_over_range(within):
            return within, part
    return line, slice(None)


def _line_through(x: Floats, t: Floats, error: Floats) -> FittedLine:
    """Parts in a row, or parts that overlap where those clearly fit better."""
    line, bent = sum_line(x, t, error), max_line(x, t, error)
    if bent is not None and line.worst_share > _OFF_SHARE and bent.squares < _CLEARLY_BETTER * line.squares:
        return bent
    return line


def _holds_over_range(line: FittedLine) -> bool:
    """Returns whether the points of a range follow the line.

    All must, or of many all but one in between.
    """
    off = _points_off(line)
    return off == 0 or (off == 1 and len(line.shares) >= _MANY and not _bends_at_an_end(line))


def _bends_at_an_end(line: FittedLine) -> bool:
    """Returns whether the first or the last point is off.

    A disturbed point may lie anywhere, but a bend misses the ends.
    """
    return max(abs(float(line.shares[0])), abs(float(line.shares[-1]))) > _OFF_SHARE


def _points_off(line: FittedLine) -> int:
    return int((np.abs(line.shares) > _OFF_SHARE).sum())


def _knee(line: FittedLine, parameter: str, x: Floats) -> tuple[float | None, str | None]:
    """Returns the value at which both parts are equal.

    Without one, it gives the reason.
    """
    if line.each - line.each_width <= 0 and line.each * x[-1] < _LEAST_GROWTH * line.fixed:
        return None, f"the step does not grow with {parameter} from {x[0]:g} to {x[-1]:g}"
    if line.each - line.each_width <= 0:
        return None, f"how much the step grows with {parameter} is not known: its interval reaches zero"
    if 0 < line.fixed <= line.fixed_width:
        return None, "how much of the step is fixed is not known: its interval reaches zero"
    return line.fixed / line.each, None


def _largest(curve: _FitPoints, memory_bytes: int | None) -> tuple[float | None, str | None]:
    """Returns the largest value whose memory fits, or the reason for none.

    It follows a line through the peaks. Never one beyond a value that was tried and failed.
    """
    measured = [point for point in curve.points if point.peak_memory_bytes]
    x = np.array([float(point.values[curve.parameter]) for point in measured])
    if len(set(x)) < _FEWEST:
        return None, f"a line needs the peak memory of {_FEWEST} values; it is known of {len(set(x))}"
    if memory_bytes is None:
        return None, "how much memory there is, is not known"
    peaks = np.array([float(point.peak_memory_bytes or 0) for point in measured])
    line = sum_line(x, peaks, LEAST_ERROR * peaks)
    if line.each * (x[-1] - x[0]) < _LEAST_GROWTH * peaks.max():
        return None, f"the peak memory hardly grows with {curve.parameter} from {x[0]:g} to {x[-1]:g}"
    # What comes out whole but for the last digit is whole.
    largest = max(float(math.floor((memory_bytes - line.fixed) / line.each * (1 + 1e-12))), float(x[-1]))
    beyond = [value for value in curve.failed if x[-1] < value <= largest]
    if beyond:
        return float(x[-1]), f"{curve.parameter}={beyond[0]:g} failed, though its memory should fit"
    return largest, None
