"""The roofs of a device on a roofline plot: bandwidth as slopes, peaks as flats, each with its name and figure."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from bottleneck.records import Device
from bottleneck.report.labels import line_boxes, place_first_free
from bottleneck.report.points import Roof
from bottleneck.units import format_si

Line = tuple[tuple[float, float], ...]
Places = tuple[list[Bbox], list[Bbox]]


def draw_roofs(axes: Axes, device: Device, used: tuple[Roof, ...], taken: Sequence[Bbox]) -> Places:
    """Draws the roofs with labels clear of ``taken``, and gives back what the lines and what the labels cover."""
    bandwidth = device.bandwidth_bytes_per_s
    highest = max((roof.flops_per_s for roof in used), default=axes.get_ylim()[1])
    cached = max((rate for _, rate in device.bandwidth_by_bytes), default=0.0)
    flats = [_flat_roof(axes, roof, bandwidth) for roof in used]
    slopes = [_slope(axes, bandwidth, highest, ("memory", "-"))] if bandwidth else []
    slopes += [_slope(axes, cached, highest, ("fastest cache", ":"))] if bandwidth and cached > 1.2 * bandwidth else []
    drawn = [box for line, _ in (*flats, *slopes) for box in line_boxes(axes, line)]
    labels: list[Bbox] = []
    # A label along a slope lies on its own line, so only labels of flats keep clear of lines.
    for roofs, lines in ((slopes, []), (flats, drawn)):
        for _, candidates in roofs:
            labels += place_first_free(candidates, [*taken, *lines, *labels])
    return drawn, labels


def _flat_roof(axes: Axes, roof: Roof, bandwidth: float | None) -> tuple[Line, list[Text]]:
    """A compute roof from its ridge on, and the places where its label may stand."""
    left, right = axes.get_xlim()
    height, ridge = roof.flops_per_s, roof.flops_per_s / bandwidth if bandwidth else None
    start = max(ridge or left, left)
    axes.plot((start, right), (height, height), color="0.15", linewidth=1.4, zorder=2)
    short = f"{roof.key.replace('_', ' ')} {format_si(height, 'FLOP/s')}"
    long = short if ridge is None else f"{short}, ridge {_three(ridge)} FLOP/B"
    above, below = (2.0, "bottom"), (-3.0, "top")
    places = ((right, "right", above), (start, "left", above), (start, "right", above), (right, "right", below))
    labels = [
        _write_on(axes, (at, height), (words, lift), {"ha": side, "va": sits})
        for words in (long, short)
        for at, side, (lift, sits) in places
    ]
    return ((start, height), (right, height)), labels


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _slope(axes: Axes, bandwidth: float, highest: float, named: tuple[str, str]) -> tuple[Line, list[Text]]:
    """A bandwidth roof up to the highest compute roof, and the places along it where its label may stand."""
    name, style = named
    left, right = axes.get_xlim()
    start, end = max(left, axes.get_ylim()[0] / bandwidth), min(right, highest / bandwidth)
    if not start < end:
        return (), []
    line = ((start, start * bandwidth), (end, end * bandwidth))
    axes.plot(*zip(*line, strict=True), color="0.15", linewidth=1.4, ls=style, zorder=2)
    (x0, y0), (x1, y1) = axes.transData.transform(line)
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    how: dict[str, Any] = {"ha": "center", "va": "bottom", "rotation_mode": "anchor", "rotation": angle}
    places = [start * (end / start) ** part for part in (0.5, 0.65, 0.35, 0.8, 0.2, 0.9, 0.1)]
    words = f"{name} {format_si(bandwidth, 'B/s')}"
    return line, [_write_on(axes, (at, at * bandwidth), (words, 2.0), how) for at in places]


def _write_on(axes: Axes, at: tuple[float, float], words: tuple[str, float], how: dict[str, Any]) -> Text:
    text, lift = words
    return axes.annotate(
        text, at, xytext=(0, lift), textcoords="offset points", fontsize=8, color="0.15", zorder=4, **how
    )
