"""Sorts the points of a sweep into curves for its picture and for the charts of its page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bottleneck.report.line_chart import ChartCurve, ChartPoint, LineChart
from bottleneck.report.sweep import describe_place
from bottleneck.report.text import clean
from bottleneck.schema.trials import Fit, Point, Sweep
from bottleneck.units import US_PER_S, format_si, format_us


@dataclass(frozen=True)
class SweepCurve:
    """The measured points of one series and one combination of the parameters that the axis does not show."""

    label: str
    x: tuple[float, ...]
    points: tuple[Point, ...]
    fit: Fit | None = None


@dataclass(frozen=True)
class SweepAxis:
    """The axis below the curves: its parameter, or the names of places where no parameter is a number."""

    parameter: str | None
    places: tuple[str, ...]


def curves_of(sweep: Sweep) -> tuple[tuple[SweepCurve, ...], SweepAxis]:
    """The curves, with their points from left to right, and their axis."""
    parameter = _parameter(sweep)
    places = [] if parameter else list(dict.fromkeys(_place(point) for point in sweep.points))
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in sweep.points:
        others = {name: value for name, value in point.values.items() if parameter and name != parameter}
        groups.setdefault((point.series, describe_place(others)), []).append(point)
    several_series = len({series for series, _ in groups}) > 1
    fits = {(fit.series, describe_place(fit.others)): fit for fit in sweep.fits}
    found = []
    for key, members in groups.items():
        known = [point for point in members if point.step_us is not None and point.step_us.median > 0]
        at = [float(point.values[parameter]) if parameter else float(places.index(_place(point))) for point in known]
        order = sorted(range(len(known)), key=at.__getitem__)
        label = ", ".join(word for word in (key[0] if several_series or not key[1] else "", key[1]) if word)
        label = label if known else f"{label} (not measured)"
        points, x = tuple(known[each] for each in order), tuple(at[each] for each in order)
        found.append(SweepCurve(clean(label, 60), x, points, fits.get(key)))
    return tuple(found), SweepAxis(parameter, tuple(clean(place, 24) for place in places))


def _parameter(sweep: Sweep) -> str | None:
    """The parameter of the axis: that of the fits, else the first that is a number; null where there is none."""
    numeric = [
        name for name in sweep.parameters if all(not isinstance(point.values[name], str) for point in sweep.points)
    ]
    return next((fit.parameter for fit in sweep.fits), next(iter(numeric), None))


def _place(point: Point) -> str:
    return describe_place(point.values) or point.series


def rate_name(points: Sequence[Point]) -> str:
    """Samples per second where the batch size is a parameter; else FLOP/s where they are known; else steps."""
    if points and all(point.samples_per_s is not None for point in points):
        return "samples per second"
    if points and all(point.flops_per_s is not None for point in points):
        return "achieved FLOP/s"
    return "steps per second"


def rate_of(point: Point, name: str) -> float:
    """The rate of this name; not a number where it is not known."""
    if name == "samples per second":
        return point.samples_per_s or math.nan
    if name == "achieved FLOP/s":
        return point.flops_per_s or math.nan
    return US_PER_S / point.step_us.median if point.step_us is not None else math.nan


def fit_line(fit: Fit, *, is_log: bool) -> tuple[list[float], list[float]]:
    """The fit as a line of 101 points over the values that it was made from; no points where there is no fit."""
    if fit.over is None or fit.step_us(fit.over.low) is None:
        return [], []
    low, high = fit.over.low, fit.over.high
    parts = [index / 100 for index in range(101)]
    across = [low * (high / low) ** part if is_log else low + (high - low) * part for part in parts]
    return across, [fit.step_us(x) or math.nan for x in across]


def charts(sweep: Sweep) -> tuple[LineChart, ...]:
    """Step time and rate along the parameter; of a single curve the time has its fit and its knee. Empty if unknown."""
    curves, axis = curves_of(sweep)
    points = [point for curve in curves for point in curve.points]
    if not points:
        return ()
    x_title, rate = axis.parameter or "", rate_name(points)
    times = LineChart("Step time", x_title, tuple(map(_times, curves)), format_us, axis.places)
    fit = curves[0].fit if len(curves) == 1 and not axis.places else None
    if fit is not None:
        across, up = fit_line(fit, is_log=times.x_scale.is_log)
        line = ChartCurve("fit", tuple(map(ChartPoint, across, up)), is_guide=True)
        mark = None if fit.knee is None else (fit.knee, f"knee {fit.knee:.3g}")
        times = LineChart("Step time", x_title, (*times.curves, *([line] if up else [])), format_us, (), mark)
    rates = tuple(
        ChartCurve(
            curve.label,
            tuple(ChartPoint(x, rate_of(point, rate)) for x, point in zip(curve.x, curve.points, strict=True)),
        )
        for curve in curves
    )
    title = rate[:1].upper() + rate[1:]
    return times, LineChart(title, x_title, rates, lambda value: format_si(value, "").strip(), axis.places)


def _times(curve: SweepCurve) -> ChartCurve:
    timings = [point.step_us for point in curve.points if point.step_us is not None]
    return ChartCurve(
        curve.label,
        tuple(ChartPoint(x, one.median, one.low, one.high) for x, one in zip(curve.x, timings, strict=True)),
    )
