"""Draws the queue depth of the device over the step."""

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bottleneck.errors import UsageError
from bottleneck.report.analysis_tables import queue_caption
from bottleneck.report.plots import save_figure, trace_name
from bottleneck.report.text import clean, scale_of
from bottleneck.schema.analysis import Analysis

SIZE_INCHES = (8.0, 3.6)
_DPI = 150
_WAITING, _EMPTY = "#0072B2", "#E69F00"  # distinct for colour-blind readers, and by their height


def save_queue(analysis: Analysis, path: Path) -> None:
    """Draws the queue depth into a .png or .svg file; UsageError where the trace does not record it."""
    save_figure(lambda: queue_figure(analysis), path)


def queue_figure(analysis: Analysis) -> Figure:
    """Depth by time from the start of the window; stretches without anything queued are shaded."""
    queue = analysis.queue
    if queue is None or len(queue.curve) < 2:
        raise UsageError(
            "there is no queue depth to draw",
            why="the trace does not tie device work to the calls that launched it, or has no device work",
            fix="record with CPU and device activity, or leave --queue out",
        )
    at_us, depth = (np.array(column, dtype=np.float64) for column in zip(*queue.curve, strict=True))
    scale = scale_of(float(at_us[-1] - at_us[0]))
    at = at_us / scale.size
    figure = Figure(figsize=SIZE_INCHES, dpi=_DPI)
    axes = figure.add_axes((0.08, 0.16, 0.89, 0.56))
    axes.fill_between(at, depth, step="post", color=_WAITING, alpha=0.35, linewidth=0)
    axes.step(at, depth, where="post", color=_WAITING, linewidth=0.9)
    empty = [(start, end - start) for start, end, queued in zip(at[:-1], at[1:], depth[:-1], strict=True) if not queued]
    axes.broken_barh(empty, (0, 1), transform=axes.get_xaxis_transform(), color=_EMPTY, alpha=0.15, linewidth=0)
    axes.set_xlim(at[0], at[-1])
    axes.set_ylim(0, max(queue.highest_depth, 1) * 1.05)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel(f"time from the start of the window, {scale.unit} (shaded: nothing was queued)", fontsize=9.5)
    axes.set_ylabel("launches not yet done", fontsize=9.5)
    axes.tick_params(labelsize=9, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.03, 0.91, "Queue depth of the device", fontsize=13, fontweight="bold")
    subtitle = (
        f"{trace_name(analysis, 40)}; {clean(analysis.device.name, 50) or 'device not named'}; {queue_caption(queue)}"
    )
    figure.text(0.03, 0.875, textwrap.fill(subtitle, 110), fontsize=9, color="0.3", va="top", linespacing=1.3)
    return figure
