"""Draws what each finding would save as a waterfall, from the step of today to the step with all of them applied."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bottleneck.errors import UsageError
from bottleneck.report.plots import save_figure, trace_name
from bottleneck.report.text import Scale, clean, scale_of
from bottleneck.schema.analysis import Analysis, Finding, Interval
from bottleneck.units import format_share, format_us

_WIDTH, _ROW, _AROUND, _LABELS = 8.0, 0.36, 1.35, 0.24
_MOST_ROWS = 8
_STEP, _SURE, _POSSIBLE = "#7F7F7F", "#009E73", "#A9DCCB"


def save_savings(analysis: Analysis, path: Path) -> None:
    """Draws the gains into a file; UsageError where no finding predicts one."""
    save_figure(lambda: savings_figure(analysis), path)


def savings_figure(analysis: Analysis) -> Figure:
    """The step, a bar for each finding that predicts a gain, and the step that is left.

    A bar is as long as the finding adds to those above it: filled up to the lower end of the prediction, hatched up to
    the upper end. Unmodelled work is in no bar: what it could save is not known.
    """
    gains = _gains(analysis)
    if not gains:
        raise UsageError(
            "there is no gain to draw", why="no finding predicts one in time per step", fix="leave --savings out"
        )
    wall_us, scale = analysis.steps.wall_us, scale_of(analysis.steps.wall_us)
    height = _AROUND + _ROW * (len(gains) + 2)
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((_LABELS, 0.6 / height, 0.96 - _LABELS, 1.0 - _AROUND / height))
    left_us = _draw(axes, gains, wall_us, scale)
    names = ["step today", *(clean(finding.slug, 40) for finding, _ in gains), "step with all of them"]
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.45, -0.6)
    axes.set_xlim(0, wall_us / scale.size * 1.3)  # room for the numbers beside the bars
    axes.set_xlabel(f"{scale.unit} per step; filled: at least, hatched: at most")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    unknown = sum(entry.share for entry in analysis.ledger if entry.group == "unknown")
    note = f"; {format_share(unknown)} of the step is unmodelled work, of which no gain is known" if unknown else ""
    figure.text(0.03, 1.0 - 0.32 / height, "What would each finding save?", fontsize=12, fontweight="bold")
    subtitle = f"{trace_name(analysis)}: {format_us(wall_us)}, at best {format_us(left_us)}{note}"
    figure.text(0.03, 1.0 - 0.56 / height, subtitle, fontsize=8.5, color="0.3")
    return figure


def _gains(analysis: Analysis) -> list[tuple[Finding, Interval]]:
    """The findings whose gain is per step and adds to those above."""
    told = [
        (finding, finding.added_gain_us)
        for finding in analysis.findings
        if finding.added_gain_us is not None and finding.per == "step" and not finding.on_request
    ]
    return [(finding, gain) for finding, gain in told if gain.high > 0][:_MOST_ROWS]


def _draw(axes: Axes, gains: list[tuple[Finding, Interval]], wall_us: float, scale: Scale) -> float:
    """The bars; returns what is left of the step if each saves the most that is predicted."""
    at_us, size = wall_us, scale.size
    axes.barh(0, wall_us / size, height=0.66, color=_STEP)
    axes.text(wall_us / size * 1.01, 0, format_us(wall_us), va="center", fontsize=8.5)
    for row, (_, gain) in enumerate(gains, 1):
        low_us, high_us = min(gain.low, at_us), min(gain.high, at_us)
        axes.barh(row, low_us / size, left=(at_us - low_us) / size, height=0.66, color=_SURE)
        axes.barh(
            row,
            (high_us - low_us) / size,
            left=(at_us - high_us) / size,
            height=0.66,
            facecolor=_POSSIBLE,
            hatch="////",
            edgecolor="white",
            linewidth=0.0,
        )
        words = f"up to {format_us(high_us)}" if low_us <= 0 else f"{format_us(low_us)} to {format_us(high_us)}"
        axes.text(at_us / size + wall_us / size * 0.01, row, words, va="center", fontsize=8.5)
        axes.plot((at_us / size,) * 2, (row - 1.33, row + 0.33), color="0.4", linewidth=0.6, zorder=1)
        at_us -= high_us
    axes.barh(len(gains) + 1, at_us / size, height=0.66, color=_STEP)
    beside = (at_us + 0.01 * wall_us) / size
    axes.text(beside, len(gains) + 1, f"at best {format_us(at_us)}", va="center", fontsize=8.5)
    return at_us
