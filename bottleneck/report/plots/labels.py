"""Places labels on a plot so that they do not overlap."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

_DIRECTIONS = 24
_DISTANCES_PT = (4, 9, 16, 26, 38, 52, 70, 90, 115, 145)
_PADDING_PX = 3.0
_LINE_STEP_PX = 6.0


@dataclass(frozen=True)
class PlotLabel:
    """Words for a point in data coordinates, whose mark has this radius in points."""

    words: str
    at: tuple[float, float]
    radius_pt: float


@dataclass(frozen=True)
class Occupied:
    """The areas of a plot in use, in pixels.

    Marks and texts may be covered by nothing; lines are better left clear.
    """

    marks: Sequence[Bbox]
    texts: Sequence[Bbox]
    lines: Sequence[Bbox]


def place_labels(axes: Axes, labels: Sequence[PlotLabel], occupied: Occupied) -> list[Annotation]:
    """Adds each label with a thin line to its point.

    It is clear of the border and of what is there, at best of lines too. A label for which no place is free is left
    out: a reader is better served by none than by an unreadable one.
    """
    marks, texts = list(occupied.marks), list(occupied.texts)
    placed: list[Annotation] = []
    for label in labels:
        for lines in (occupied.lines, ()):
            position = _free_position(axes, label, Occupied(marks, texts, lines))
            if position is not None:
                offset, box, leader = position
                marks += leader
                texts.append(box)
                placed.append(_annotate(axes, label, offset))
                break
    return placed


def _free_position(
    axes: Axes, label: PlotLabel, occupied: Occupied
) -> tuple[tuple[float, float], Bbox, list[Bbox]] | None:
    """Finds a free offset of the label from its point.

    Also gives the label's box, and those of the line between them. Null where no place is free.
    """
    probe = axes.text(0.5, 0.5, label.words, fontsize=8, transform=axes.transAxes, parse_math=False)
    area = extent(probe)
    probe.remove()
    used = [*occupied.marks, *occupied.texts, *occupied.lines]
    for offset in _offsets(label.radius_pt):
        box = _box_at(axes, label, offset, (area.width, area.height))
        if not _is_inside(box, axes.bbox) or any(box.overlaps(other) for other in used):
            continue
        leader = _leader(axes, label, offset)
        if not any(part.overlaps(other) for part in leader for other in occupied.texts):
            return offset, box, leader
    return None


def place_first_free(candidates: Sequence[Text], taken: Sequence[Bbox]) -> list[Bbox]:
    """Keeps the first text that fits, and removes the others.

    It fits where it covers nothing taken and stays in the frame. Gives the boxes that it covers.
    """
    covered: list[Bbox] = []
    for text in candidates:
        axes, boxes = text.axes, covered_by(text)
        assert isinstance(axes, Axes)
        inside = all(_is_inside(box, axes.bbox) for box in boxes)
        if not covered and inside and not any(box.overlaps(other) for box in boxes for other in taken):
            covered = boxes
        else:
            text.remove()
    return covered


def covered_by(text: Text) -> list[Bbox]:
    """Gives the area of a text, in pixels.

    It is one box, or small ones along it where it is turned.
    """
    angle = math.radians(text.get_rotation())
    if not angle:
        return [extent(text)]
    turned = extent(text)
    text.set_rotation(0)
    level = extent(text)
    text.set_rotation(math.degrees(angle))
    x, y = (turned.x0 + turned.x1) / 2, (turned.y0 + turned.y1) / 2
    along = (math.cos(angle) * level.width / 2, math.sin(angle) * level.width / 2)
    return _cover([(x - along[0], y - along[1]), (x + along[0], y + along[1])], level.height / 2)


def line_boxes(axes: Axes, line: Iterable[tuple[float, float]]) -> list[Bbox]:
    """Small boxes in pixels that cover a line given in data coordinates."""
    return _cover([tuple(corner) for corner in axes.transData.transform(list(line))])


def _cover(corners: Sequence[tuple[float, float]], half: float = 1.0) -> list[Bbox]:
    """Boxes in pixels, twice ``half`` wide and high, along a line."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        steps = max(int(math.hypot(x1 - x0, y1 - y0) / _LINE_STEP_PX), 1)
        for step in range(steps + 1):
            x, y = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
            boxes.append(Bbox.from_extents(x - half, y - half, x + half, y + half))
    return boxes


def extent(text: Text) -> Bbox:
    """Gives the box of a text, in pixels.

    The line that an annotation may have is left out.
    """
    figure = text.figure
    assert figure is not None
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # plots always sit on an Agg canvas
    if isinstance(text, Annotation):
        text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)


def _offsets(radius_pt: float) -> Iterator[tuple[float, float]]:
    """Yields positions around a point, nearest first.

    They begin at the right, where one reads on.
    """
    for distance in _DISTANCES_PT:
        for step in range(_DIRECTIONS):
            side = (step + 1) // 2 * (-1 if step % 2 else 1)
            angle = 2 * math.pi * side / _DIRECTIONS
            yield (radius_pt + distance) * math.cos(angle), (radius_pt + distance) * math.sin(angle)


def _box_at(axes: Axes, label: PlotLabel, offset: tuple[float, float], size: tuple[float, float]) -> Bbox:
    scale = axes.figure.dpi / 72
    x, y = axes.transData.transform(label.at)
    x, y = x + offset[0] * scale, y + offset[1] * scale
    left = x if offset[0] >= 0 else x - size[0]
    return Bbox.from_bounds(left, y - size[1] / 2, *size).padded(_PADDING_PX)


def _leader(axes: Axes, label: PlotLabel, offset: tuple[float, float]) -> list[Bbox]:
    """The area of the line from the label to the edge of its mark."""
    scale, distance = axes.figure.dpi / 72, math.hypot(*offset)
    x, y = axes.transData.transform(label.at)
    edge = label.radius_pt / distance
    return _cover([(x + offset[0] * scale * part, y + offset[1] * scale * part) for part in (edge, 1.0)])


def _annotate(axes: Axes, label: PlotLabel, offset: tuple[float, float]) -> Annotation:
    right = offset[0] >= 0
    line: dict[str, Any] = {"arrowstyle": "-", "color": "0.35", "linewidth": 0.7, "shrinkA": 0}
    return axes.annotate(
        label.words,
        label.at,
        xytext=offset,
        textcoords="offset points",
        fontsize=8,
        ha="left" if right else "right",
        va="center",
        parse_math=False,
        zorder=6,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        arrowprops={**line, "shrinkB": label.radius_pt, "relpos": (0.0 if right else 1.0, 0.5)},
    )


def _is_inside(box: Bbox, frame: Bbox) -> bool:
    return bool(box.x0 >= frame.x0 and box.x1 <= frame.x1 and box.y0 >= frame.y0 and box.y1 <= frame.y1)
