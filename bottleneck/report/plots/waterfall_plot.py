"""Draws the change of a step as a waterfall, account by account."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bottleneck.report.comparison import describe_condition, rounded, sentence, waterfall
from bottleneck.report.document import Waterfall, WaterfallBar
from bottleneck.report.kernel_names import cut_middle
from bottleneck.report.plots import save_figure
from bottleneck.report.text import clean
from bottleneck.schema.comparison import Comparison
from bottleneck.units import counted

_DPI = 150
_WIDTH, _ROW, _LINE, _AROUND = 8.0, 0.34, 0.16, 1.1
_LABELS = 0.25
_STEP = "#7F7F7F"
# Okabe and Ito's vermilion and bluish green; the sign at the bar says the same without colour.
_MORE, _LESS = "#D55E00", "#009E73"
_HATCHES = {"compute": "", "memory": "//", "overhead": "..", "communication": "xx", "transfer": "\\\\", "unknown": "--"}
_MOST_CONDITIONS = 2
_LONGEST_LABEL = 31


def save_waterfall(comparison: Comparison, path: Path) -> None:
    """Draws a comparison that has times into a .png or .svg file; the same comparison gives the same SVG."""
    save_figure(lambda: draw(comparison), path)


def draw(comparison: Comparison) -> Figure:
    """A figure with a horizontal bar for the step before, each account that changed, and the step after."""
    shown, subtitle = waterfall(rounded(comparison)), _subtitle(comparison)
    around = _AROUND + _LINE * len(subtitle)
    height = around + _ROW * len(shown.bars)
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    axes = figure.add_axes((_LABELS, 0.6 / height, 0.95 - _LABELS, 1.0 - around / height))
    _draw_bars(axes, shown)
    _write_around(figure, _title(comparison), subtitle, height)
    return figure


def _draw_bars(axes: Axes, shown: Waterfall) -> None:
    size = _size(shown.unit)
    span = shown.high_us - shown.low_us
    # Room at the right for the number of the longest bar.
    axes.set_xlim(shown.low_us / size, (shown.high_us + 0.16 * span) / size)
    axes.set_ylim(len(shown.bars) - 0.45, -0.6)
    for row, bar in enumerate(shown.bars):
        low, high = sorted((max(bar.start_us, shown.low_us), max(bar.end_us, shown.low_us)))
        axes.barh(
            row,
            (high - low) / size,
            left=low / size,
            height=0.66,
            color=_colour(bar),
            hatch=_HATCHES.get(bar.group, "") * 2,
            edgecolor="white",
            linewidth=0.0,
            zorder=2,
        )
        axes.text((high + 0.012 * span) / size, row, bar.amount, fontsize=8.5, va="center", zorder=3)
        if row + 1 < len(shown.bars):
            axes.plot((bar.end_us / size,) * 2, (row - 0.33, row + 1.33), color="0.4", linewidth=0.6, zorder=1)
    axes.set_yticks(range(len(shown.bars)), [clean(bar.label, 34) for bar in shown.bars], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{shown.unit} per step{'; the axis does not begin at 0' if shown.low_us else ''}", fontsize=9)
    axes.grid(axis="x", color="0.9", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _size(unit: str) -> float:
    return {"s": 1e6, "ms": 1e3}.get(unit, 1.0)


def _colour(bar: WaterfallBar) -> str:
    if bar.is_step:
        return _STEP
    return _MORE if bar.end_us > bar.start_us else _LESS


def _title(comparison: Comparison) -> str:
    """Both sides, each in as much room as there is for half of a title."""
    labels = (clean(side.label) for side in (comparison.before, comparison.after))
    return " → ".join(cut_middle(label, _LONGEST_LABEL) for label in labels)


def _subtitle(comparison: Comparison) -> list[str]:
    """The differences besides the code, and the sentence, in a few lines."""
    lines = [f"besides the code: {clean(describe_condition(each), 100)}" for each in comparison.conditions]
    if len(lines) > _MOST_CONDITIONS:
        lines = [
            *lines[: _MOST_CONDITIONS - 1],
            f"and {counted(len(lines) - _MOST_CONDITIONS + 1, 'more thing')}",
        ]
    conclusion = textwrap.shorten(clean(sentence(comparison), 300), 230, placeholder=" …")
    return [*lines, *textwrap.wrap(conclusion, 116)]


def _write_around(figure: Figure, heading: str, subtitle: Sequence[str], height: float) -> None:
    figure.text(0.03, 1.0 - 0.3 / height, heading, fontsize=12, fontweight="bold")
    figure.text(0.03, 1.0 - 0.4 / height, "\n".join(subtitle), fontsize=8.5, color="0.3", va="top", linespacing=1.35)
