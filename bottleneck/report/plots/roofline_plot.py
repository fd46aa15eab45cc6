"""Draws the roofline of an analysis.

It has a point per kernel with a cost, and the roofs of the device.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import Bbox

from bottleneck.report.analysis_document import PEAK_SOURCES, headline
from bottleneck.report.kernel_names import cut_end, short_names
from bottleneck.report.plots import trace_name
from bottleneck.report.plots.labels import Occupied, PlotLabel, line_boxes, place_first_free, place_labels
from bottleneck.report.roofline_points import (
    ACROSS,
    GUIDES_NOTE,
    HOLLOW_WORDS,
    OWN_ROOF_WORDS,
    UP,
    FlatLine,
    RooflinePlane,
    RooflinePoint,
    RooflineRoof,
    SlopedLine,
    absences,
    plane_of,
    points,
    roofs,
    whole_step,
)
from bottleneck.report.text import clean
from bottleneck.schema.analysis import Analysis, Verdict
from bottleneck.schema.device import Device
from bottleneck.units import format_share, format_si, trimmed

Line = tuple[tuple[float, float], ...]
Places = tuple[list[Bbox], list[Bbox]]
_DASHED: dict[str, Any] = {"color": "0.6", "linewidth": 0.8, "linestyle": (0, (4, 4))}
Ceilings = tuple[Device, tuple[RooflineRoof, ...]]


def draw_roofs(axes: Axes, plane: RooflinePlane, taken: Sequence[Bbox]) -> Places:
    """Draws the lines of the plane, labelled clear of ``taken``.

    Gives what lines and what labels cover.
    """
    highest = max((flat.flops_per_s for flat in plane.flats), default=axes.get_ylim()[1])
    flats = [_flat_roof(axes, flat) for flat in plane.flats]
    slopes = [_slope(axes, slope, highest) for slope in plane.slopes]
    for share in plane.guides:
        _guide(axes, plane, highest, share)
    drawn = [box for line, _ in (*flats, *slopes) for box in line_boxes(axes, line)]
    labels: list[Bbox] = []
    # A label along a slope lies on its own line, so only labels of flats keep clear of lines.
    for drawn_roofs, lines in ((slopes, []), (flats, drawn)):
        for _, candidates in drawn_roofs:
            labels += place_first_free(candidates, [*taken, *lines, *labels])
    return drawn, labels


def _flat_roof(axes: Axes, flat: FlatLine) -> tuple[Line, list[Text]]:
    """Draws a compute roof from its ridge on.

    Gives its line and the labels at the places where one may stand.
    """
    left, right = axes.get_xlim()
    height, start = flat.flops_per_s, max(flat.ridge or left, left)
    axes.plot((start, right), (height, height), color="0.15", linewidth=1.4, zorder=2)
    above, below = (2.0, "bottom"), (-3.0, "top")
    places = ((right, "right", above), (start, "left", above), (start, "right", above), (right, "right", below))
    labels = [
        _write_on(axes, (at, height), (words, lift), {"ha": side, "va": sits})
        for words in (flat.label, flat.short_label)
        for at, side, (lift, sits) in places
    ]
    return ((start, height), (right, height)), labels


def _slope(axes: Axes, slope: SlopedLine, highest: float) -> tuple[Line, list[Text]]:
    """Draws a bandwidth roof up to the highest compute roof.

    Gives its line and the labels at the places along it where one may stand.
    """
    rate, (left, right) = slope.bytes_per_s, axes.get_xlim()
    start, end = max(left, axes.get_ylim()[0] / rate), min(right, highest / rate)
    if not start < end:
        return (), []
    line = ((start, start * rate), (end, end * rate))
    axes.plot(*zip(*line, strict=True), color="0.15", linewidth=1.4, ls=":" if slope.is_cache else "-", zorder=2)
    (x0, y0), (x1, y1) = axes.transData.transform(line)
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    how: dict[str, Any] = {"ha": "center", "va": "bottom", "rotation_mode": "anchor", "rotation": angle}
    places = [start * (end / start) ** part for part in (0.5, 0.65, 0.35, 0.8, 0.2, 0.9, 0.1)]
    return line, [_write_on(axes, (at, at * rate), (slope.label, 2.0), how) for at in places]


def _guide(axes: Axes, plane: RooflinePlane, highest: float, share: float) -> None:
    """Draws a dashed line at this part of the highest roof.

    It also follows the memory's slope, up to that line.
    """
    left, right = axes.get_xlim()
    rate = next((slope.bytes_per_s for slope in plane.slopes if not slope.is_cache), None)
    ridge = left if rate is None else max(highest / rate, left)
    start = highest if rate is None else min(left * rate, highest)
    across, up = (left, ridge, right), (share * start, share * highest, share * highest)
    axes.plot(across, up, zorder=1.5, scalex=False, scaley=False, **_DASHED)


def _write_on(axes: Axes, at: tuple[float, float], words: tuple[str, float], how: dict[str, Any]) -> Text:
    text, lift = words
    return axes.annotate(
        text, at, xytext=(0, lift), textcoords="offset points", fontsize=8, color="0.15", zorder=4, **how
    )


DPI = 150  # labels are laid out in pixels
_LABELLED = 5
_LABEL_WIDTH = 28
# Labels stand at the right of their points: the axis runs on, in decades, by this factor.
_ROOM_AT_THE_RIGHT = 1.2
_OWN_ROOF = 1.3  # half the width of the line above a kernel that exceeds the roofs drawn, as a factor
_LARGEST_AREA = 1100.0
_SMALLEST_AREA = 18.0

# Colours that differ for colour-blind readers too; the markers carry the same meaning without any colour.
_MARKS = {
    "compute": ("#009E73", "o", "compute-bound"),
    "memory": ("#0072B2", "s", "memory-bound"),
    "overhead": ("#E69F00", "^", "overhead-bound"),
    "unknown": ("#777777", "X", "no verdict"),
}


def roofline(analysis: Analysis) -> Figure:
    """Draws the roofs of the device with the kernels under them.

    There is a bubble per kernel and a star for the whole step.
    """
    figure = Figure(figsize=(8.0, 5.5), dpi=DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.1, 0.245, 0.86, 0.615))
    shown, step = points(analysis), whole_step(analysis)
    ceilings = (analysis.device, roofs(analysis))
    scale_axes(axes, shown, step, ceilings)
    draw_work(axes, shown, step, ceilings)
    _write_around(figure, analysis, shown)
    return figure


def draw_work(axes: Axes, shown: tuple[RooflinePoint, ...], step: tuple[float, float] | None, under: Ceilings) -> None:
    """Draws the work and the roofs above it.

    There is a bubble per point and a star for the whole step. All have labels clear of one another.
    """
    draw_points(axes, shown)
    marks = [square(axes, (point.intensity, point.flops_per_s), area_of(point, shown)) for point in shown]
    if step is not None:
        axes.plot(*step, marker="*", markersize=17, color="black", markeredgecolor="white", zorder=5, linestyle="")
        marks.append(square(axes, step, 17.0**2))
    lines, texts = draw_roofs(axes, plane_of(*under), marks)
    label_points(axes, shown, Occupied(marks, texts, lines))


def scale_axes(axes: Axes, shown: tuple[RooflinePoint, ...], step: tuple[float, float] | None, under: Ceilings) -> None:
    """Limits that hold every point and every ridge with some room."""
    device, used = under
    bandwidth = device.bandwidth_bytes_per_s
    ridges = [roof.flops_per_s / bandwidth for roof in used] if bandwidth else []
    across = [point.intensity_low for point in shown] + [point.intensity_high for point in shown] + ridges
    across += [point.intensity for point in shown]
    up = [point.own_roof_flops_per_s or point.flops_per_s for point in shown] + [roof.flops_per_s for roof in used]
    if step is not None:
        across, up = [*across, step[0]], [*up, step[1]]
    log_axes(axes)
    left, right = _limits(across or [0.1, 100.0])
    axes.set_xlim(left, left * (right / left) ** _ROOM_AT_THE_RIGHT)
    axes.set_ylim(*_limits(up or [1e9, 1e13]))
    axes.set_ylabel(UP)


def log_axes(axes: Axes) -> None:
    """Both axes in powers, with a few ticks in words such as '10 G'."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, numticks=9))
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if 1e-3 <= value < 1e6 else f"{value:.0e}")
    axes.yaxis.set_major_formatter(lambda value, _: short_si(value))
    axes.grid(linewidth=0.6)
    axes.tick_params(length=3)
    axes.set_xlabel(ACROSS)


def _limits(values: list[float]) -> tuple[float, float]:
    """Limits around the values with room at both ends, three decades apart at least."""
    low, high = min(values) / 5, max(values) * 4
    widen = max(math.sqrt(1e3 / (high / low)), 1.0)
    return low / widen, high * widen


def short_si(value: float) -> str:
    """A number with a prefix and without decimals that are 0: '10 G'."""
    return trimmed(format_si(value, ""))


def draw_points(axes: Axes, shown: tuple[RooflinePoint, ...]) -> None:
    """Draws a bubble per kernel, the largest behind.

    It is hollow where the kernel is far below its roof. A kernel above the roof that is drawn for it has a short line
    of its own above it.
    """
    for order, point in enumerate(shown):
        colour, marker, _ = _MARKS.get(point.bound, _MARKS["unknown"])
        hollow = point.regime == "far_below_roof"
        span = (point.intensity_low, max(point.intensity_high, point.intensity))
        if point.own_roof_flops_per_s is not None:
            ends = (point.intensity / _OWN_ROOF, point.intensity * _OWN_ROOF)
            axes.plot(ends, (point.own_roof_flops_per_s,) * 2, color="black", linewidth=1.8, zorder=4.5)
        if span[1] > 1.05 * span[0]:
            axes.plot(span, (point.flops_per_s,) * 2, color=colour, linewidth=0.8, alpha=0.7, zorder=3)
        axes.scatter(
            point.intensity,
            point.flops_per_s,
            s=area_of(point, shown),
            marker=marker,
            facecolor="white" if hollow else colour,
            edgecolor=colour if hollow else "black",
            linewidth=1.4 if hollow else 0.6,
            alpha=0.8,
            zorder=3 + order / (len(shown) + 1),
        )


def _write_around(figure: Figure, analysis: Analysis, shown: tuple[RooflinePoint, ...]) -> None:
    """Title, subtitle, legend and the notes beneath."""
    handles = legend_handles(shown) + ([step_handle()] if whole_step(analysis) is not None else [])
    handles += [guide_handle()] if plane_of(analysis.device, roofs(analysis)).guides else []
    verdict, device = analysis.verdict, analysis.device
    figure.text(0.03, 0.945, _title(verdict), fontsize=14, fontweight="bold")
    named = f"{trace_name(analysis, 36)}: {clean(device.name, 40) or 'device not named'}"
    figure.text(0.03, 0.9, cut_end(f"{named}; {_remarks(device, shown)}", 110), fontsize=9.5, color="0.3")
    columns = 4 if len(handles) <= 4 else 3
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.03, 0.15), ncols=columns, **LEGEND_STYLE)
    reading = "area of a mark: its time; bar: least to usual traffic" if shown else ""
    is_cached = any(point.intensity > 1.05 * point.intensity_high for point in shown)
    cached = "a mark beyond its bar: data from a cache" if is_cached else ""
    notes = "; ".join(part for part in (reading, cached, absences(analysis)) if part)
    figure.text(0.03, 0.012, textwrap.fill(notes, 125), fontsize=8, color="0.3", va="bottom", linespacing=1.3)


def _remarks(device: Device, shown: tuple[RooflinePoint, ...]) -> str:
    """The source of the roofs, and why there are none or no points."""
    has_roofs = bool(device.peaks_flops_per_s) or device.bandwidth_bytes_per_s is not None
    source = PEAK_SOURCES.get(device.source or "", "of unknown origin")
    roofs_from = f"roofs {source}" if has_roofs else "no roofs are known"
    return roofs_from if shown else f"{roofs_from}; no kernel has both FLOPs and bytes"


def _title(verdict: Verdict) -> str:
    words = headline(verdict)
    if verdict.bound not in {"mixed", "inconclusive"}:
        words = f"{words}: {verdict.share_words} of the step"
    return clean(words[0].upper() + words[1:], 80)


def legend_handles(shown: tuple[RooflinePoint, ...]) -> list[Line2D]:
    """The entries of a legend for the bounds and regimes that are shown."""
    present = {point.bound if point.bound in _MARKS else "unknown" for point in shown}
    handles = [_handle(marker, colour, words) for bound, (colour, marker, words) in _MARKS.items() if bound in present]
    if any(point.regime == "far_below_roof" for point in shown):
        handles.append(_handle("o", "white", HOLLOW_WORDS))
    if any(point.own_roof_flops_per_s is not None for point in shown):
        handles.append(_handle("_", "black", OWN_ROOF_WORDS, size=11))
    return handles


def step_handle() -> Line2D:
    """The entry of a legend for the mark of the whole step."""
    return _handle("*", "black", "the whole step, waiting included", size=11)


def guide_handle() -> Line2D:
    """The entry of a legend for the dashed guides."""
    return Line2D([], [], label=GUIDES_NOTE, **_DASHED)


LEGEND_STYLE: dict[str, Any] = {"fontsize": 8.5, "handletextpad": 0.4, "columnspacing": 1.6, "borderpad": 0}


def _handle(marker: str, colour: str, words: str, *, size: float = 7.5) -> Line2D:
    return Line2D(
        [], [], marker=marker, color="none", markerfacecolor=colour, markeredgecolor="black", markeredgewidth=0.7,
        markersize=size, label=words,
    )  # fmt: skip


def label_points(axes: Axes, shown: tuple[RooflinePoint, ...], occupied: Occupied) -> None:
    """Names at the kernels that take the most time."""
    largest = {point.name: point for point in reversed(shown)}
    named = sorted(largest.values(), key=lambda point: -point.us)[:_LABELLED]
    names = short_names([clean(point.name, 2000) for point in named], _LABEL_WIDTH)
    labels = []
    for name, point in zip(names, named, strict=True):
        at, radius_pt = (point.intensity, point.flops_per_s), math.sqrt(area_of(point, shown)) / 2
        labels.append(PlotLabel(f"{name} ({format_share(point.share)})", at, radius_pt))
    place_labels(axes, labels, occupied)


def area_of(point: RooflinePoint, shown: tuple[RooflinePoint, ...]) -> float:
    """Gives the area of a bubble in square points.

    It is its part of the longest time, and large enough to be seen.
    """
    return max(_LARGEST_AREA * point.us / shown[0].us, _SMALLEST_AREA)


def square(axes: Axes, at: tuple[float, float], area: float) -> Bbox:
    """The square in pixels around a mark of this area."""
    x, y = axes.transData.transform(at)
    half = math.sqrt(area) / 2 * axes.figure.dpi / 72
    return Bbox.from_extents(x - half, y - half, x + half, y + half)
