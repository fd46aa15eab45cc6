"""Draws the ranks of a job by account, those that the job names first."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bottleneck.errors import UsageError
from bottleneck.report.job_section import describe_job, shown_ranks
from bottleneck.report.plots import save_figure, trace_name
from bottleneck.report.text import clean
from bottleneck.schema.accounts import label_of
from bottleneck.schema.analysis import Analysis
from bottleneck.units import counted

_WIDTH, _ROW, _AROUND, _DPI = 8.0, 0.17, 2.3, 150
_MOST_ACCOUNTS, _LEAST_SHARE = 14, 0.005


def save_ranks(analysis: Analysis, path: Path) -> None:
    """Draws the ranks into a .png, .svg or .pdf file; UsageError where there is only one."""
    save_figure(lambda: ranks_figure(analysis), path)


def ranks_figure(analysis: Analysis) -> Figure:
    """A row per rank and a column per account, the darker, the larger its share of the slowest step."""
    if not analysis.ranks:
        raise UsageError(
            "there are no ranks to draw",
            why="the analysis is of one rank",
            fix="pass the traces of several ranks, or leave --ranks out",
        )
    ranks = [analysis.ranks[at] for at in shown_ranks(analysis)]
    most_us = max([rank.wall_us for rank in analysis.ranks], default=0.0) or 1.0
    spent = [{entry.account: entry.us / most_us for entry in rank.ledger} for rank in ranks]
    largest = {name: max(row.get(name, 0.0) for row in spent) for row in spent for name in row}
    accounts = [name for name in sorted(largest, key=lambda name: -largest[name]) if largest[name] >= _LEAST_SHARE]
    accounts = accounts[:_MOST_ACCOUNTS]
    cells = np.array([[row.get(name, 0.0) for name in accounts] for row in spent])
    height = _AROUND + _ROW * len(ranks)
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI)
    axes = figure.add_axes((0.1, 0.25 / height, 0.87, _ROW * len(ranks) / height))
    axes.imshow(cells, cmap="Blues", vmin=0.0, vmax=max(float(cells.max(initial=0.0)), 1e-9), aspect="auto")
    axes.set_yticks(range(len(ranks)), [f"rank {rank.rank}" for rank in ranks], fontsize=7)
    axes.set_xticks(range(len(accounts)), [clean(label_of(name), 24) for name in accounts], fontsize=8, rotation=45)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("left")
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=3)
    axes.spines[:].set_visible(False)
    figure.text(0.03, 1.0 - 0.32 / height, "Where does the step of each rank go?", fontsize=12, fontweight="bold")
    name = trace_name(analysis, 40)
    every = len(analysis.ranks)
    shown = f" {len(ranks)} of {counted(every, 'rank')} are shown, the slow ones first." if len(ranks) < every else ""
    told = [
        name if analysis.job is None else f"{name}: {describe_job(analysis.job)}",
        f"Darker: more of the slowest step.{shown}",
    ]
    for line, words in enumerate(told):
        figure.text(0.03, 1.0 - (0.56 + 0.16 * line) / height, words, fontsize=8, color="0.3")
    return figure
