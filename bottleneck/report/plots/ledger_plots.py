"""Draws the ledger: as bars, rank by rank, and its change as a waterfall."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bottleneck.errors import UsageError
from bottleneck.report.comparison import describe_condition, rounded, sentence, waterfall
from bottleneck.report.document import Waterfall, WaterfallBar
from bottleneck.report.job_section import describe_job, shown_ranks
from bottleneck.report.kernel_names import cut_middle
from bottleneck.report.plots import COLOURS, HATCHES, trace_name
from bottleneck.report.text import clean, scale_of
from bottleneck.schema.accounts import label_of
from bottleneck.schema.analysis import GROUPS, Analysis, LedgerEntry
from bottleneck.schema.comparison import Comparison
from bottleneck.units import counted, format_share, format_us

_WIDTH = 8.0  # of all these pictures, in inches
_STEP = "#7F7F7F"


def _write_above(figure: Figure, question: str, lines: Sequence[str], fontsize: float) -> None:
    height = figure.get_figheight()
    figure.text(0.03, 1.0 - 0.32 / height, question, fontsize=12, fontweight="bold")
    for place, line in enumerate(lines):
        figure.text(0.03, 1.0 - (0.56 + 0.16 * place) / height, line, fontsize=fontsize, color="0.3")


_BAR, _AROUND_BARS = 0.5, 1.75
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


def ledger_figure(analysis: Analysis) -> Figure:
    """Draws the ledger as one bar, or that of each rank.

    Raises UsageError where there is no time.
    """
    ledgers = [(f"rank {rank.rank}", rank.ledger) for rank in analysis.ranks[:_MOST_BARS]]
    if len(analysis.ranks) < 2:
        ledgers = [("", analysis.ledger)]
    return _bars_figure([_bar(*entry) for entry in ledgers], "Where does the step go?", trace_name(analysis, 100))


def both_ledgers_figure(comparison: Comparison) -> Figure:
    """Draws the bars of both sides, that of the side before above.

    Raises UsageError where a side has no times.
    """
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
    return _bars_figure(ledgers, "Where did the step go, and where does it go now?", "; ".join(named))


def _bar(name: str, ledger: Sequence[LedgerEntry]) -> LedgerBar:
    """The entries in the order of groups, the longest first in each."""
    entries = sorted((one for one in ledger if one.us > 0), key=lambda one: (GROUPS.index(one.group), -one.us))
    return LedgerBar(name, tuple(entries), sum(one.us for one in entries))


def _bars_figure(bars: Sequence[LedgerBar], question: str, subtitle: str) -> Figure:
    """The bars, of which the longest fills the width."""
    longest_us = max((bar.us for bar in bars), default=0.0)
    if not longest_us > 0:
        raise UsageError("there is no time to draw", why="the step has no length", fix="leave the picture out")
    scale, height = scale_of(longest_us), _AROUND_BARS + _BAR * len(bars)
    figure = Figure(figsize=(_WIDTH, height))
    labels = 0.04 if len(bars) == 1 else 0.23
    axes = figure.add_axes((labels, 0.95 / height, 0.97 - labels, 1.0 - _AROUND_BARS / height))
    for row, bar in enumerate(bars):
        done_us = 0.0
        for entry in bar.entries:
            _draw_part(axes, row, entry, done_us, longest_us, scale.size)
            done_us += entry.us
    axes.set_xlim(0, longest_us / scale.size)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{scale.unit} per step")
    used = [group for group in GROUPS if any(entry.group == group for bar in bars for entry in bar.entries)]
    marks = []
    for group in used:
        share = format_share(sum(entry.share for entry in bars[0].entries if entry.group == group))
        words = f"{group} {share}" if len(bars) == 1 else group
        marks.append(Patch(facecolor=COLOURS[group], hatch=HATCHES[group], edgecolor="white", label=words))
    figure.legend(handles=marks, loc="lower left", bbox_to_anchor=(0.02, 0.0), ncols=len(marks), fontsize=9)
    _write_above(figure, question, [subtitle], 9)
    return figure


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
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9}
        axes.text((done_us + entry.us / 2) / size, row, words, ha="center", va="center", fontsize=8.5, bbox=box)


_RANK_ROW, _AROUND_RANKS = 0.17, 2.3
_MOST_ACCOUNTS, _LEAST_SHARE = 14, 0.005


def ranks_figure(analysis: Analysis) -> Figure:
    """Draws a row per rank and a column per account.

    A cell is the darker, the larger its share of the slowest step. The ranks that the job names come first. Raises
    UsageError where there is only one.
    """
    if not analysis.ranks:
        raise UsageError(
            "there are no ranks to draw",
            why="the analysis is of one rank",
            fix="pass the traces of several ranks, or leave the picture out",
        )
    ranks = [analysis.ranks[at] for at in shown_ranks(analysis)]
    most_us = max(rank.wall_us for rank in analysis.ranks) or 1.0
    spent = [{entry.account: entry.us / most_us for entry in rank.ledger} for rank in ranks]
    largest = {name: max(row.get(name, 0.0) for row in spent) for row in spent for name in row}
    accounts = [name for name in sorted(largest, key=lambda name: -largest[name]) if largest[name] >= _LEAST_SHARE]
    accounts = accounts[:_MOST_ACCOUNTS]
    cells = np.array([[row.get(name, 0.0) for name in accounts] for row in spent])
    height = _AROUND_RANKS + _RANK_ROW * len(ranks)
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0.1, 0.25 / height, 0.87, _RANK_ROW * len(ranks) / height))
    axes.imshow(cells, cmap="Blues", vmin=0.0, vmax=max(float(cells.max(initial=0.0)), 1e-9), aspect="auto")
    axes.set_yticks(range(len(ranks)), [f"rank {rank.rank}" for rank in ranks], fontsize=7)
    names = [clean(label_of(name), 24) for name in accounts]
    axes.set_xticks(range(len(accounts)), names, fontsize=8, rotation=45)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)
    name, every = trace_name(analysis, 40), len(analysis.ranks)
    shown = f" {len(ranks)} of {counted(every, 'rank')} are shown, the slow ones first." if len(ranks) < every else ""
    job = "" if analysis.job is None else f": {describe_job(analysis.job)}"
    lines = (f"{name}{job}", f"Darker: more of the slowest step.{shown}")
    _write_above(figure, "Where does the step of each rank go?", lines, 8)
    return figure


_CHANGE_ROW, _LINE, _AROUND_CHANGE = 0.34, 0.16, 1.1
_CHANGE_LABELS = 0.25
# Okabe and Ito's vermilion and bluish green; the sign at the bar says the same without colour.
_MORE, _LESS = "#D55E00", "#009E73"
_MOST_CONDITIONS = 2
_LONGEST_LABEL = 31  # of a side: there is room for half of a title


def waterfall_figure(comparison: Comparison) -> Figure:
    """Draws the step before, each account that changed, and the step after.

    Each has a horizontal bar. Raises UsageError where a side has no times.
    """
    if comparison.change_us is None:
        raise UsageError(
            "there is no waterfall to draw",
            why="one side has counters only, and no times",
            fix="compare two recordings or traces, or leave --plot out",
        )
    shown, subtitle = waterfall(rounded(comparison)), _conclusion(comparison)
    around = _AROUND_CHANGE + _LINE * len(subtitle)
    height = around + _CHANGE_ROW * len(shown.bars)
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((_CHANGE_LABELS, 0.6 / height, 0.95 - _CHANGE_LABELS, 1.0 - around / height))
    _draw_waterfall(axes, shown)
    labels = (clean(side.label) for side in (comparison.before, comparison.after))
    title = " → ".join(cut_middle(label, _LONGEST_LABEL) for label in labels)
    figure.text(0.03, 1.0 - 0.3 / height, title, fontsize=12, fontweight="bold")
    figure.text(0.03, 1.0 - 0.4 / height, "\n".join(subtitle), fontsize=8.5, color="0.3", va="top", linespacing=1.35)
    return figure


def _draw_waterfall(axes: Axes, shown: Waterfall) -> None:
    size = {"s": 1e6, "ms": 1e3}.get(shown.unit, 1.0)
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
            hatch=HATCHES.get(bar.group, "")[:1] * 4,
            edgecolor="white",
            linewidth=0.0,
            zorder=2,
        )
        axes.text((high + 0.012 * span) / size, row, bar.amount, fontsize=8.5, va="center", zorder=3)
        if row + 1 < len(shown.bars):
            axes.plot((bar.end_us / size,) * 2, (row - 0.33, row + 1.33), color="0.4", linewidth=0.6, zorder=1)
    axes.set_yticks(range(len(shown.bars)), [clean(bar.label, 34) for bar in shown.bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{shown.unit} per step{'; the axis does not begin at 0' if shown.low_us else ''}", fontsize=9)
    axes.grid(axis="x", zorder=0)
    axes.spines["left"].set_visible(False)


def _colour(bar: WaterfallBar) -> str:
    if bar.is_step:
        return _STEP
    return _MORE if bar.end_us > bar.start_us else _LESS


def _conclusion(comparison: Comparison) -> list[str]:
    """The differences besides the code, and the sentence, in a few lines."""
    lines = [f"besides the code: {clean(describe_condition(condition), 100)}" for condition in comparison.conditions]
    if len(lines) > _MOST_CONDITIONS:
        more = counted(len(lines) - _MOST_CONDITIONS + 1, "more thing")
        lines = [*lines[: _MOST_CONDITIONS - 1], f"and {more}"]
    conclusion = textwrap.shorten(clean(sentence(comparison), 300), 230, placeholder=" …")
    return [*lines, *textwrap.wrap(conclusion, 116)]
