"""Draws a sweep: step time, throughput and the roofline along a parameter."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from bottleneck.report.line_chart import LOG_FROM
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.roofline_plot import draw_roofs
from bottleneck.report.roofline_points import RooflineRoof
from bottleneck.report.sweep import sentence
from bottleneck.report.sweep_curves import SweepCurve, curves_of, fit_line, rate_name, rate_of
from bottleneck.report.text import clean
from bottleneck.schema.device import Device
from bottleneck.schema.trials import Fit, Point, Roof, Sweep
from bottleneck.units import format_si, format_us

_MARK_POINTS = 6.0


def has_roofline(points: Sequence[Point], roofs: Sequence[Roof]) -> bool:
    """True where at least two points have a position on the roofline and there is a roof."""
    return len(_placed(points)) > 1 and any(roof.flops_per_s and roof.bytes_per_s for roof in roofs)


def draw_roofline(axes: Axes, curves: Sequence[tuple[Sequence[Point], dict[str, Any]]], roofs: Sequence[Roof]) -> None:
    """Draws the points of each curve, given with its style, and the highest ceilings of all series."""
    placed = [(_placed(points), style) for points, style in curves]
    device, flats = _device(roofs)
    bandwidth = device.bandwidth_bytes_per_s or 1.0
    every = [place for places, _ in placed for place in places]
    _roofline_scale(axes, every, [flat.flops_per_s for flat in flats], bandwidth)
    for places, style in placed:
        if places:
            axes.plot(*zip(*places, strict=True), zorder=3, **style)
    marks = [_box(axes, place) for place in every]
    draw_roofs(axes, device, flats, marks)
    axes.set_title("against the roofs", fontsize=10, loc="left")
    axes.set_xlabel("arithmetic intensity, FLOP per byte of memory traffic", fontsize=9)
    axes.set_ylabel("achieved FLOP/s", fontsize=9)


def _placed(points: Sequence[Point]) -> list[tuple[float, float]]:
    """FLOP per byte, with the bytes that have to move, and FLOP/s of the points that have both."""
    return [
        (point.flops / point.bytes_low, point.flops_per_s)
        for point in points
        if point.flops and point.bytes_low and point.flops_per_s
    ]


def _device(roofs: Sequence[Roof]) -> tuple[Device, tuple[RooflineRoof, ...]]:
    """The ceilings of all series as those of one device: the highest of each name."""
    flats: dict[str, float] = {}
    for roof in roofs:
        if roof.peak is not None and roof.flops_per_s:
            flats[roof.peak] = max(roof.flops_per_s, flats.get(roof.peak, 0.0))
    bandwidth = max((roof.bytes_per_s for roof in roofs if roof.bytes_per_s), default=None)
    device = Device("", None, "other", 1, flats, bandwidth, None, None, {})
    return device, tuple(RooflineRoof(key, rate) for key, rate in sorted(flats.items(), key=lambda item: -item[1]))


def _roofline_scale(
    axes: Axes, places: Sequence[tuple[float, float]], flats: Sequence[float], bandwidth: float
) -> None:
    across = [x for x, _ in places] + [rate / bandwidth for rate in flats]
    up = [y for _, y in places] + list(flats)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(across) / 12, max(across) * 6)
    axes.set_ylim(min(up) / 12, max(up) * 4)
    labels = ((axes.xaxis, lambda value, _: f"{value:g}"), (axes.yaxis, lambda value, _: _prefixed(value)))
    for axis, label in labels:
        axis.set_major_locator(LogLocator(10, numticks=9))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(label))
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, length=3)
    axes.spines[["top", "right"]].set_visible(False)


def _prefixed(value: float) -> str:
    return format_si(value, "").replace(".00", "").replace(".0", "").strip()


def _box(axes: Axes, place: tuple[float, float]) -> Bbox:
    x, y = axes.transData.transform(place)
    half = _MARK_POINTS / 2 * axes.figure.dpi / 72
    return Bbox.from_extents(x - half, y - half, x + half, y + half)


_DPI = 150
_WIDTH, _TALL, _LOW = 8.0, 8.2, 4.6
# Okabe and Ito's colours, which differ for colour-blind readers too; markers and dashes say the same in grey.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_LEGEND_COLUMNS = 3


@dataclass(frozen=True)
class PlottedCurve(SweepCurve):
    """A curve and how it is drawn."""

    style: dict[str, Any] = field(default_factory=dict)


def save_sweep(sweep: Sweep, path: Path) -> None:
    """Draws the sweep into a file whose name ends in .png or .svg; the same sweep gives the same SVG."""
    save_figure(lambda: draw(sweep), path)


def draw(sweep: Sweep) -> Figure:
    """A figure with step time and throughput, and the roofline beneath where FLOPs and bytes are known."""
    curves, axis = curves_of(sweep)
    ticks = axis.places
    shown = [
        PlottedCurve(one.label, one.x, one.points, one.fit, _style(index, connect=not ticks))
        for index, one in enumerate(curves)
    ]
    points = [point for curve in shown for point in curve.points]
    is_tall = has_roofline(points, sweep.roofs)
    height = _TALL if is_tall else _LOW
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    FigureCanvasAgg(figure)
    header, legend, footer = 0.75 / height, _legend_inches(shown) / height, 0.55 / height
    bottom = footer + (3.45 / height if is_tall else 0.0)
    size = 1.0 - header - legend - bottom - 0.35 / height
    left = figure.add_axes((0.095, bottom + 0.18 / height, 0.385, size))
    right = figure.add_axes((0.595, bottom + 0.18 / height, 0.385, size))
    _draw_times(left, shown, ticks)
    _draw_rates(right, shown, ticks)
    for axes in (left, right):
        axes.set_xlabel(clean(axis.parameter or "", 40), fontsize=9)
    if is_tall:
        lower = figure.add_axes((0.095, footer, 0.885, 2.75 / height))
        draw_roofline(lower, [(curve.points, curve.style) for curve in shown], sweep.roofs)
    _write_around(figure, sweep, shown, height)
    return figure


def _style(index: int, *, connect: bool) -> dict[str, Any]:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)] if connect else "",
        "linewidth": 1.5,
        "markersize": 5.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def _draw_times(axes: Axes, shown: Sequence[PlottedCurve], ticks: Sequence[str]) -> None:
    """Median step times with their intervals; of a single curve also its fit, dashed, and its knee."""
    axes.set_title("step time", fontsize=10, loc="left")
    values = []
    for curve in shown:
        timings = [point.step_us for point in curve.points if point.step_us is not None]
        medians = [timing.median for timing in timings]
        spread = ([each.median - each.low for each in timings], [each.high - each.median for each in timings])
        axes.errorbar(curve.x, medians, yerr=spread, elinewidth=0.9, capsize=2, zorder=3, **curve.style)
        values += [value for timing in timings for value in (max(timing.low, timing.median / 10), timing.high)]
    _scale(axes, shown, values, ticks)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain_us(value)))
    if len(shown) == 1 and shown[0].fit is not None and not ticks:
        _draw_fit(axes, shown[0].fit)


def _draw_fit(axes: Axes, fit: Fit) -> None:
    across, up = fit_line(fit, is_log=axes.get_xscale() == "log")
    if not across:
        return
    axes.plot(across, up, color="0.35", linewidth=1.0, ls="--", zorder=2)
    left, right = axes.get_xlim()
    if fit.knee is not None and left < fit.knee < right:
        axes.axvline(fit.knee, color="0.35", linewidth=0.8, ls=":", zorder=1)
        axes.annotate(
            f"knee {fit.knee:.3g}",
            (fit.knee, 0.97),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            va="top",
            rotation=90,
            fontsize=8,
            color="0.25",
        )


def _draw_rates(axes: Axes, shown: Sequence[PlottedCurve], ticks: Sequence[str]) -> None:
    """The rate that is known of the points."""
    points = [point for curve in shown for point in curve.points]
    name = rate_name(points)
    axes.set_title(name, fontsize=10, loc="left")
    for curve in shown:
        axes.plot(curve.x, [rate_of(point, name) for point in curve.points], zorder=3, **curve.style)
    _scale(axes, shown, [rate_of(point, name) for point in points], ticks)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain_si(value)))


def _scale(axes: Axes, shown: Sequence[PlottedCurve], values: Sequence[float], ticks: Sequence[str]) -> None:
    """Powers on an axis whose ends lie far apart; every value of the parameter has its tick where there is room."""
    across = sorted({x for curve in shown for x in curve.x})
    if ticks:
        axes.set_xticks(
            range(len(ticks)), ticks, fontsize=8, rotation=30 if max(map(len, ticks)) > 8 else 0, ha="right"
        )
        axes.set_xlim(-0.5, len(ticks) - 0.5)
    elif across:
        _scale_across(axes, across)
    good = [value for value in values if math.isfinite(value) and value > 0]
    if good and max(good) > LOG_FROM * min(good):
        axes.set_yscale("log")
        axes.set_ylim(min(good) / 1.6, max(good) * 1.6)
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0,) if max(good) > 100 * min(good) else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif good:
        axes.set_ylim(0.0, max(good) * 1.15)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5, length=3)
    axes.spines[["top", "right"]].set_visible(False)


def _scale_across(axes: Axes, across: Sequence[float]) -> None:
    if across[0] > 0 and across[-1] > LOG_FROM * across[0]:
        axes.set_xscale("log")
        room = (across[-1] / across[0]) ** 0.05
        axes.set_xlim(across[0] / room, across[-1] * room)
    elif across[-1] > across[0]:
        room = 0.05 * (across[-1] - across[0])
        axes.set_xlim(across[0] - room, across[-1] + room)
    step = math.ceil(len(across) / 9)
    marked = across[::step]
    axes.set_xticks(marked, [f"{x:g}" for x in marked])
    axes.xaxis.set_minor_locator(NullLocator())


def _plain_us(value: float) -> str:
    return format_us(value).replace(".00", "").replace(".0 ", " ")


def _plain_si(value: float) -> str:
    return format_si(value, "").replace(".00", "").replace(".0 ", " ").strip()


def _legend_inches(shown: Sequence[PlottedCurve]) -> float:
    return 0.0 if len(shown) < 2 else 0.12 + 0.19 * math.ceil(len(shown) / _LEGEND_COLUMNS)


def _write_around(figure: Figure, sweep: Sweep, shown: Sequence[PlottedCurve], height: float) -> None:
    """Title, what the sweep comes to, and the legend."""
    program = clean(" ".join(sweep.program), 60)
    title = f"{program}: {' x '.join(sweep.parameters) or 'how it is run'}"
    figure.text(0.02, 1 - 0.1 / height, clean(title, 80), fontsize=13, fontweight="bold", va="top")
    subtitle = textwrap.fill(clean(sentence(sweep), 240), 120)
    figure.text(0.02, 1 - 0.36 / height, subtitle, fontsize=8.5, color="0.3", va="top", linespacing=1.2)
    if len(shown) > 1:
        handles = [Line2D([], [], label=curve.label, **curve.style) for curve in shown]
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.01, 1 - 0.68 / height),
            ncols=_LEGEND_COLUMNS,
            fontsize=8.5,
            frameon=False,
            borderpad=0,
        )
