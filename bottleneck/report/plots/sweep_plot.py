"""Draws a sweep: step time, throughput and the roofline along a parameter."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from bottleneck.report.line_chart import LOG_FROM
from bottleneck.report.plots.roofline_plot import DPI, draw_roofs, log_axes, short_si, square
from bottleneck.report.roofline_points import RooflineRoof, plane_of
from bottleneck.report.sweep import SweepCurve, curves_of, fit_line, rate_name, rate_of, sentence
from bottleneck.report.text import clean
from bottleneck.schema.device import Device
from bottleneck.schema.trials import Fit, Point, Roof, Sweep
from bottleneck.units import format_us, trimmed

_MARK_POINTS = 6.0
Drawn = Sequence[tuple[SweepCurve, dict[str, Any]]]  # curves, and how each is drawn


def draw_roofline(axes: Axes, shown: Drawn, roofs: Sequence[Roof]) -> None:
    """Draws the points of each curve and the highest ceilings of all series."""
    placed = [(_placed(curve.points), style) for curve, style in shown]
    device, flats = _device(roofs)
    bandwidth = device.bandwidth_bytes_per_s or 1.0
    every = [place for places, _ in placed for place in places]
    log_axes(axes)
    across = [x for x, _ in every] + [flat.flops_per_s / bandwidth for flat in flats]
    up = [y for _, y in every] + [flat.flops_per_s for flat in flats]
    axes.set_xlim(min(across) / 12, max(across) * 6)
    axes.set_ylim(min(up) / 12, max(up) * 4)
    for places, style in placed:
        if places:
            axes.plot(*zip(*places, strict=True), zorder=3, **style)
    draw_roofs(axes, plane_of(device, flats), [square(axes, place, _MARK_POINTS**2) for place in every])
    axes.set_title("against the roofs", fontsize=10)
    axes.set_ylabel("achieved FLOP/s")


def _placed(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Gives FLOP per byte and FLOP/s of the points that have both.

    The bytes are those that have to move.
    """
    return [
        (point.flops / point.bytes_low, point.flops_per_s)
        for point in points
        if point.flops and point.bytes_low and point.flops_per_s
    ]


def _device(roofs: Sequence[Roof]) -> tuple[Device, tuple[RooflineRoof, ...]]:
    """Gives the ceilings of all series as those of one device.

    They are the highest of each name.
    """
    flats: dict[str, float] = {}
    for roof in roofs:
        if roof.peak is not None and roof.flops_per_s:
            flats[roof.peak] = max(roof.flops_per_s, flats.get(roof.peak, 0.0))
    bandwidth = max((roof.bytes_per_s for roof in roofs if roof.bytes_per_s), default=None)
    kinds = {roof.kind for roof in roofs}
    device = Device("", None, kinds.pop() if len(kinds) == 1 else "other", 1, flats, bandwidth, None, None, {})
    return device, tuple(RooflineRoof(key, rate) for key, rate in sorted(flats.items(), key=lambda item: -item[1]))


_WIDTH, _TALL, _LOW = 8.0, 8.2, 4.6
# Okabe and Ito's colours, which differ for colour-blind readers too; markers and dashes say the same in grey.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_LEGEND_COLUMNS = 3


def sweep_figure(sweep: Sweep) -> Figure:
    """Draws step time and throughput, and a roofline beneath.

    The roofline is left out where FLOPs and bytes are not known.
    """
    curves, parameter, ticks = curves_of(sweep)
    shown = [(curve, _style(index, connect=not ticks)) for index, curve in enumerate(curves)]
    is_placed = len(_placed([point for curve in curves for point in curve.points])) > 1
    is_tall = is_placed and any(roof.flops_per_s and roof.bytes_per_s for roof in sweep.roofs)
    height = _TALL if is_tall else _LOW
    figure = Figure(figsize=(_WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    legend_inches = 0.0 if len(shown) < 2 else 0.12 + 0.19 * math.ceil(len(shown) / _LEGEND_COLUMNS)
    header, legend, footer = 0.75 / height, legend_inches / height, 0.55 / height
    bottom = footer + (3.45 / height if is_tall else 0.0)
    size = 1.0 - header - legend - bottom - 0.35 / height
    left = figure.add_axes((0.095, bottom + 0.18 / height, 0.385, size))
    right = figure.add_axes((0.595, bottom + 0.18 / height, 0.385, size))
    _draw_times(left, shown, ticks)
    _draw_rates(right, shown, ticks)
    for axes in (left, right):
        axes.set_xlabel(clean(parameter or "", 40), fontsize=9)
    if is_tall:
        lower = figure.add_axes((0.095, footer, 0.885, 2.75 / height))
        draw_roofline(lower, shown, sweep.roofs)
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


def _draw_times(axes: Axes, shown: Drawn, ticks: Sequence[str]) -> None:
    """Draws median step times with their intervals.

    Of a single curve also its fit, dashed, and its knee.
    """
    axes.set_title("step time", fontsize=10)
    values = []
    for curve, style in shown:
        timings = [point.step_us for point in curve.points if point.step_us is not None]
        medians = [timing.median for timing in timings]
        spread = (
            [step_time.median - step_time.low for step_time in timings],
            [step_time.high - step_time.median for step_time in timings],
        )
        axes.errorbar(curve.x, medians, yerr=spread, elinewidth=0.9, capsize=2, zorder=3, **style)
        values += [value for timing in timings for value in (max(timing.low, timing.median / 10), timing.high)]
    _scale(axes, shown, values, ticks)
    axes.yaxis.set_major_formatter(lambda value, _: trimmed(format_us(value)))
    fit = shown[0][0].fit
    if len(shown) == 1 and fit is not None and not ticks:
        _draw_fit(axes, fit)


def _draw_fit(axes: Axes, fit: Fit) -> None:
    across, up = fit_line(fit, is_log=axes.get_xscale() == "log")
    if not across:
        return
    axes.plot(across, up, color="0.35", linewidth=1.0, ls="--", zorder=2)
    left, right = axes.get_xlim()
    if fit.knee is not None and left < fit.knee < right:
        axes.axvline(fit.knee, color="0.35", linewidth=0.8, ls=":", zorder=1)
        axes.annotate(
            f"mostly fixed below {fit.knee:.3g}",
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


def _draw_rates(axes: Axes, shown: Drawn, ticks: Sequence[str]) -> None:
    """The rate that is known of the points."""
    points = [point for curve, _ in shown for point in curve.points]
    name = rate_name(points)
    axes.set_title(name, fontsize=10)
    for curve, style in shown:
        axes.plot(curve.x, [rate_of(point, name) for point in curve.points], zorder=3, **style)
    _scale(axes, shown, [rate_of(point, name) for point in points], ticks)
    axes.yaxis.set_major_formatter(lambda value, _: short_si(value))


def _scale(axes: Axes, shown: Drawn, values: Sequence[float], ticks: Sequence[str]) -> None:
    """Sets the scales and ticks of the axes.

    An axis whose ends lie far apart has powers. Every value of the parameter has its tick where there is room.
    """
    across = sorted({x for curve, _ in shown for x in curve.x})
    if ticks:
        turn = 30 if max(map(len, ticks)) > 8 else 0
        axes.set_xticks(range(len(ticks)), ticks, fontsize=8, rotation=turn, ha="right")
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
    axes.grid(linewidth=0.6)
    axes.tick_params(labelsize=8.5, length=3)


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


def _write_around(figure: Figure, sweep: Sweep, shown: Drawn, height: float) -> None:
    """Title, what the sweep comes to, and the legend."""
    program = clean(" ".join(sweep.program), 60)
    title = f"{program}: {' x '.join(sweep.parameters) or 'how it is run'}"
    figure.text(0.02, 1 - 0.1 / height, clean(title, 80), fontsize=13, fontweight="bold", va="top")
    subtitle = textwrap.fill(clean(sentence(sweep), 240), 120)
    figure.text(0.02, 1 - 0.36 / height, subtitle, fontsize=8.5, color="0.3", va="top", linespacing=1.2)
    if len(shown) > 1:
        handles = [Line2D([], [], label=curve.label, **style) for curve, style in shown]
        place = (0.01, 1 - 0.68 / height)
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=place, ncols=_LEGEND_COLUMNS, fontsize=8.5, borderpad=0
        )
