"""Draws the ledger as one bar, or those of several analyses or ranks side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bottleneck.errors import UsageError
from bottleneck.report.kernel_names import cut_middle
from bottleneck.report.plots import COLOURS, HATCHES, save_figure, trace_name
from bottleneck.report.text import clean, scale_of
from bottleneck.schema.accounts import label_of
from bottleneck.schema.analysis import GROUPS, Analysis, LedgerEntry
from bottleneck.schema.comparison import Comparison
from bottleneck.units import format_share, format_us

_WIDTH, _BAR, _AROUND = 8.0, 0.5, 1.75
# A part of the longest bar below this has no room for its name.
_NAMED = 0.09
_MOST_BARS = 32
_NAME_LETTERS = 22


@dataclass(frozen=True)
class LedgerBar:
    """A bar: its name, the entries of its ledger and their sum."""

    name: str
    entries: tuple[LedgerEntry, ...]
    us: float


def save_ledger(analyses: Sequence[Analysis], path: Path) -> None:
    """Draws the ledgers into a file; UsageError where none of them holds any time."""
    save_figure(lambda: ledger_figure(analyses), path)


def save_both_ledgers(comparison: Comparison, path: Path) -> None:
    """Draws the ledgers of both sides of a comparison; UsageError where a side has no times."""
    save_figure(lambda: both_ledgers_figure(comparison), path)


def ledger_figure(analyses: Sequence[Analysis]) -> Figure:
    """A bar for each analysis, or for each rank of a single one."""
    name = trace_name(analyses[0], 100) if len(analyses) == 1 else f"{len(analyses)} analyses"
    return _figure(_bars(analyses), "Where does the step go?", name)


def both_ledgers_figure(comparison: Comparison) -> Figure:
    """The bar of the side before, and beneath it that of the side after."""
    bars = comparison.bars if comparison.change_us is not None else ()
    sides = (
        (comparison.before, [(bar, bar.before_us) for bar in bars]),
        (comparison.after, [(bar, bar.after_us) for bar in bars]),
    )
    ledgers, named = [], []
    for side, times in sides:
        name = clean(PurePath(side.label).name or side.label)
        whole_us = sum(us for _, us in times) or 1.0
        entries = [LedgerEntry(bar.account, bar.group, us, us / whole_us) for bar, us in times]
        ledgers.append(_bar(cut_middle(name, _NAME_LETTERS), entries))
        named.append(f"{cut_middle(name, 40)}: {format_us(side.step_us or 0.0)}")
    return _figure(ledgers, "Where did the step go, and where does it go now?", "; ".join(named))


def _figure(bars: Sequence[LedgerBar], question: str, subtitle: str) -> Figure:
    """The bars, of which the longest fills the width."""
    longest_us = max((bar.us for bar in bars), default=0.0)
    if not longest_us > 0:
        raise UsageError("there is no time to draw", why="the step has no length", fix="leave --ledger out")
    scale, height = scale_of(longest_us), _AROUND + _BAR * len(bars)
    figure = Figure(figsize=(_WIDTH, height))
    labels = 0.04 if len(bars) == 1 else 0.23
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
    figure.text(0.03, 1.0 - 0.32 / height, question, fontsize=12, fontweight="bold")
    figure.text(0.03, 1.0 - 0.56 / height, subtitle, fontsize=9, color="0.3")
    return figure


def _bars(analyses: Sequence[Analysis]) -> list[LedgerBar]:
    """Entries in the order of groups, the longest first in each."""
    ranks = analyses[0].ranks if len(analyses) == 1 else ()
    named = [(f"rank {rank.rank}", rank.ledger) for rank in ranks]
    if len(named) < 2:
        named = [(trace_name(analysis, _NAME_LETTERS), analysis.ledger) for analysis in analyses]
    return [_bar(clean(name, 40), ledger) for name, ledger in named[:_MOST_BARS]]


def _bar(name: str, ledger: Sequence[LedgerEntry]) -> LedgerBar:
    entries = sorted((one for one in ledger if one.us > 0), key=lambda one: (GROUPS.index(one.group), -one.us))
    return LedgerBar(name, tuple(entries), sum(one.us for one in entries))


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
