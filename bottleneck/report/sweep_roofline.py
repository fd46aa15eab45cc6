"""The points of a sweep on the roofline: achieved FLOP/s over arithmetic intensity, beneath the ceilings."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import Bbox

from bottleneck.records import Device
from bottleneck.report.points import Roof as Flat
from bottleneck.report.roofs import draw_roofs
from bottleneck.trials import Point, Roof
from bottleneck.units import format_si

_MARK_POINTS = 6.0


def has_roofline(points: Sequence[Point], roofs: Sequence[Roof]) -> bool:
    """Whether two points at least have a place on it, and there is a roof over them."""
    return len(_placed(points)) > 1 and any(roof.flops_per_s and roof.bytes_per_s for roof in roofs)


def draw_roofline(axes: Axes, curves: Sequence[tuple[Sequence[Point], dict[str, Any]]], roofs: Sequence[Roof]) -> None:
    """Draws the points of each curve, given with its style, and the highest ceilings of all series."""
    placed = [(_placed(points), style) for points, style in curves]
    device, flats = _device(roofs)
    bandwidth = device.bandwidth_bytes_per_s or 1.0
    every = [place for places, _ in placed for place in places]
    _scale(axes, every, [flat.flops_per_s for flat in flats], bandwidth)
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


def _device(roofs: Sequence[Roof]) -> tuple[Device, tuple[Flat, ...]]:
    """The ceilings of all series as those of one device: the highest of each name."""
    flats: dict[str, float] = {}
    for roof in roofs:
        if roof.peak is not None and roof.flops_per_s:
            flats[roof.peak] = max(roof.flops_per_s, flats.get(roof.peak, 0.0))
    bandwidth = max((roof.bytes_per_s for roof in roofs if roof.bytes_per_s), default=None)
    device = Device("", None, "other", 1, flats, bandwidth, None, None, {})
    return device, tuple(Flat(key, rate) for key, rate in sorted(flats.items(), key=lambda item: -item[1]))


def _scale(axes: Axes, places: Sequence[tuple[float, float]], flats: Sequence[float], bandwidth: float) -> None:
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
