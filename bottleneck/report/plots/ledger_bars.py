"""Draws the ledger as one bar, or those of several analyses or ranks side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text

from bottleneck.errors import UsageError
from bottleneck.report.plots import save_figure
from bottleneck.report.plots.groups import COLOURS, HATCHES, trace_name
from bottleneck.report.text import clean, scale_of
from bottleneck.schema.accounts import label_of
from bottleneck.schema.analysis import GROUPS, Analysis, LedgerEntry
from bottleneck.units import format_share

_WIDTH, _BAR, _AROUND = 8.0, 0.5, 1.75
# A part of the longest bar below this has no room for its name.
_NAMED = 0.09
_MOST_BARS = 32


@dataclass(frozen=True)
class LedgerBar:
    """A bar: its name, the entries of its ledger and their sum."""

    name: str
    entries: tuple[LedgerEntry, ...]
    us: float


def save_ledger(analyses: Sequence[Analysis], path: Path) -> None:
    """Draws the ledgers into a file; UsageError where none of them holds any time."""
    save_figure(lambda: ledger_figure(analyses), path)


def ledger_figure(analyses: Sequence[Analysis]) -> Figure:
    """A bar for each analysis, or for each rank of a single one; the longest fills the width."""
    bars = _bars(analyses)
    longest_us = max((bar.us for bar in bars), default=0.0)
    if not longest_us > 0:
        raise UsageError("there is no time to draw", why="the step has no length", fix="leave --ledger out")
    scale, height = scale_of(longest_us), _AROUND + _BAR * len(bars)
    figure = Figure(figsize=(_WIDTH, height))
    FigureCanvasAgg(figure)
    labels = 0.04 if len(bars) == 1 else 0.22
    axes = figure.add_axes((labels, 0.95 / height, 0.97 - labels, 1.0 - _AROUND / height))
    for row, bar in enumerate(bars):
        done_us = 0.0
        for entry in bar.entries:
            _draw_part(axes, row, entry, done_us, longest_us, scale.size)
            done_us += entry.us
    axes.set_xlim(0, longest_us / scale.size)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars] if len(bars) > 1 else [""])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{scale.unit} per step")
    used = [group for group in GROUPS if any(entry.group == group for bar in bars for entry in bar.entries)]
    shares = {each: sum(entry.share for entry in bars[0].entries if entry.group == each) for each in used}
    named = {each: f"{each} {format_share(shares[each])}" if len(bars) == 1 else each for each in used}
    marks = [Patch(facecolor=COLOURS[each], hatch=HATCHES[each], edgecolor="white", label=named[each]) for each in used]
    figure.legend(handles=marks, loc="lower left", bbox_to_anchor=(0.02, 0.0), ncols=len(marks), fontsize=9)
    figure.text(0.03, 1.0 - 0.32 / height, "Where does the step go?", fontsize=12, fontweight="bold")
    name = trace_name(analyses[0], 100) if len(analyses) == 1 else f"{len(analyses)} analyses"
    figure.text(0.03, 1.0 - 0.56 / height, name, fontsize=9, color="0.3")
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    return figure


def _bars(analyses: Sequence[Analysis]) -> list[LedgerBar]:
    """Entries in the order of groups, the longest first in each."""
    ranks = analyses[0].ranks if len(analyses) == 1 else ()
    named = [(f"rank {rank.rank}", rank.ledger) for rank in ranks]
    if len(named) < 2:
        named = [(trace_name(analysis, 26), analysis.ledger) for analysis in analyses]
    return [
        LedgerBar(
            clean(name, 40),
            tuple(sorted((one for one in ledger if one.us > 0), key=lambda one: (GROUPS.index(one.group), -one.us))),
            sum(one.us for one in ledger),
        )
        for name, ledger in named[:_MOST_BARS]
    ]


def _draw_part(axes: Axes, row: int, entry: LedgerEntry, done_us: float, longest_us: float, size: float) -> None:
    axes.barh(
        row,
        entry.us / size,
        left=done_us / size,
        height=0.72,
        color=COLOURS[entry.group],
        hatch=HATCHES[entry.group],
        edgecolor="white",
        linewidth=0.8,
    )
    words = label_of(entry.account)
    # A letter takes about 1 % of the width.
    if entry.us / longest_us >= max(_NAMED, 0.0135 * len(words)):
        axes.text(
            (done_us + entry.us / 2) / size,
            row,
            words,
            ha="center",
            va="center",
            fontsize=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9},
        )
