"""Draws the rooflines of a prediction, a panel per device.

A panel has the roofs of the device, and a mark per kind of work.
"""

import math
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bottleneck.report.plots.roofline_plot import (
    DPI,
    LEGEND_STYLE,
    draw_work,
    guide_handle,
    legend_handles,
    scale_axes,
    step_handle,
)
from bottleneck.report.predict import not_drawn, short_name, step_point, work_points, work_roofs
from bottleneck.report.text import clean
from bottleneck.schema.prediction import DevicePrediction, Prediction
from bottleneck.units import format_us

_PANEL_INCHES = (5.4, 3.7)
_HEADER_INCHES, _FOOTER_INCHES = 0.75, 0.7
_MOST_COLUMNS = 3


def predicted_roofline(answer: Prediction) -> Figure:
    """Draws a panel per device, all on the same axes.

    Devices without a predicted time are named beneath.
    """
    drawn = [device for device in answer.devices if device.step.us is not None]
    columns = min(max(len(drawn), 1), 2 if len(drawn) <= 4 else _MOST_COLUMNS)
    rows = max(math.ceil(len(drawn) / columns), 1)
    width, height = _PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + _HEADER_INCHES + _FOOTER_INCHES
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    panels = []
    for place, prediction in enumerate(drawn):
        row, column = divmod(place, columns)
        left = (column * _PANEL_INCHES[0] + 0.75) / width
        bottom = (height - _HEADER_INCHES - (row + 1) * _PANEL_INCHES[1] + 0.6) / height
        size = ((_PANEL_INCHES[0] - 0.95) / width, (_PANEL_INCHES[1] - 0.95) / height)
        panels.append((figure.add_axes((left, bottom, *size)), prediction))
    _share_scale(panels)
    for axes, prediction in panels:
        _draw_panel(axes, prediction)
    _write_around(figure, answer, drawn, height)
    return figure


def _share_scale(panels: Sequence[tuple[Axes, DevicePrediction]]) -> None:
    """Gives all panels the same limits, so that devices compare by eye."""
    for axes, prediction in panels:
        ceilings = (prediction.device, work_roofs(prediction))
        scale_axes(axes, work_points(prediction), step_point(prediction), ceilings)
    if panels:
        across, up = zip(*((axes.get_xlim(), axes.get_ylim()) for axes, _ in panels), strict=True)
        for axes, _ in panels:
            axes.set_xlim(min(low for low, _ in across), max(high for _, high in across))
            axes.set_ylim(min(low for low, _ in up), max(high for _, high in up))


def _draw_panel(axes: Axes, prediction: DevicePrediction) -> None:
    ceilings = (prediction.device, work_roofs(prediction))
    draw_work(axes, work_points(prediction), step_point(prediction), ceilings)
    words = format_us(prediction.step.us or 0.0)
    if prediction.bound not in {"mixed", "inconclusive"}:
        words += f", {prediction.bound}-bound"
    axes.set_title(f"{clean(short_name(prediction), 40)}: {words}", fontsize=11)


def _write_around(figure: Figure, answer: Prediction, drawn: Sequence[DevicePrediction], height: float) -> None:
    """Title, legend, and the notes beneath."""
    figure.text(0.02, 1 - 0.12 / height, clean(answer.program, 60), fontsize=14, fontweight="bold", va="top")
    says = "predicted: no device was used; area of a mark: its part of the time of the kernels"
    figure.text(0.02, 1 - 0.42 / height, says, fontsize=9.5, color="0.3", va="top")
    every = [point for device in drawn for point in work_points(device)]
    handles = legend_handles(tuple(every))
    handles += [guide_handle()] if drawn else []
    handles += [step_handle()] if any(step_point(device) is not None for device in drawn) else []
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.015, 0.36 / height), ncols=5, **LEGEND_STYLE)
    lacking = [short_name(device) for device in answer.devices if device.step.us is None]
    notes = [not_drawn(device) for device in drawn[:1]]
    notes += [f"no time is predicted for {', '.join(lacking)}"] if lacking else []
    text = textwrap.fill("; ".join(note for note in notes if note), int(figure.get_figwidth() * 16))
    figure.text(0.02, 0.05 / height, text, fontsize=8, color="0.3", va="bottom")
