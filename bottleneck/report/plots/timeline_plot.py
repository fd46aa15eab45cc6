"""Draws a step over time.

It has work, idle gaps by cause, ranges and calls of host threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bottleneck.errors import UsageError
from bottleneck.report.kernel_names import cut_middle
from bottleneck.report.plots import COLOURS, HATCHES, trace_name
from bottleneck.report.text import clean, scale_of
from bottleneck.schema.analysis import GROUPS, Analysis
from bottleneck.schema.intervals import Floats, Integers
from bottleneck.schema.step_tracks import Lane, StepTimeline, StepTracks
from bottleneck.units import format_us

_WIDTH, _LABELS, _ROW, _LANE_GAP, _TOP, _BOTTOM = 10.0, 0.14, 0.21, 0.12, 0.75, 0.55
_LEGEND_ROW, _LEGEND_COLUMNS = 0.22, 5
_MOST_LEVELS, _MOST_THREADS, _MOST_CAUSES = 5, 4, 5
# Events nearer than this to one another, in shares of the step, are drawn as one: they would share a pixel.
_NEAR = 1 / 2500
_LETTER_IN = 0.052  # the width of a letter of a label, about
_PLAIN = "#D9D9D9"
# Causes of idle time, most first: pale or brown, unlike work, with dark hatches that say the same in grey.
_CAUSES = (("#F7DFA5", "..."), ("#F0E442", "///"), ("#C9834B", "xxx"), ("#FFFFFF", "\\\\\\"), ("#E8E0D0", "---"))
_OTHER_CAUSES = ("#FFFFFF", "...")


@dataclass(frozen=True)
class _Look:
    """The look of an event.

    It has its words in the legend, if any, its colour, its hatch and the colour of that.
    """

    words: str
    colour: str
    hatch: str
    lines: str = "white"


def timeline_figure(analysis: Analysis, timeline: StepTimeline | None) -> Figure:
    """Draws a row for each stream, for idle time, and per level.

    Levels are those of nesting of ranges and of the busiest host threads. Raises UsageError where there are no events
    of a step.
    """
    if timeline is None:
        raise UsageError(
            "there is no step over time to draw",
            why="a finished analysis holds sums only, and a trace without events of a step holds nothing to draw",
            fix="name the trace or the recording, or leave the picture out",
        )
    tracks = timeline.steps[0]
    hosts = [at for at, lane in enumerate(tracks.lanes) if lane.kind == "host"]
    lanes = [at for at, lane in enumerate(tracks.lanes) if lane.kind != "frames" and at not in hosts[_MOST_THREADS:]]
    levels = [min(tracks.lanes[lane].depth, _MOST_LEVELS) for lane in lanes]
    looks = _looks(tracks, lanes)
    legend = sorted({look for look in looks.values() if look.words}, key=list(looks.values()).index)
    rows = -(-len(legend) // _LEGEND_COLUMNS)
    body, around = _ROW * sum(levels) + _LANE_GAP * len(lanes), _TOP + _BOTTOM + _LEGEND_ROW * rows
    figure = Figure(figsize=(_WIDTH, body + around))
    height, bottom = body + around, _BOTTOM + _LEGEND_ROW * rows
    axes = figure.add_axes((_LABELS, bottom / height, 0.98 - _LABELS, body / height))
    scale, at, middles = scale_of(tracks.length_us), 0.0, []
    for lane, count in zip(lanes, levels, strict=True):
        for level in range(count):
            _draw_level(axes, tracks, looks, (lane, level), at + _ROW * level, scale.size)
        middles.append(at + _ROW * count / 2)
        at += _ROW * count + _LANE_GAP
    axes.set_xlim(0, tracks.length_us / scale.size)
    axes.set_ylim(at - _LANE_GAP / 2, -_LANE_GAP / 2)
    axes.set_yticks(middles, [cut_middle(clean(tracks.lanes[lane].title), 18) for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{scale.unit} since the step began")
    axes.grid(axis="x")
    marks = [Patch(facecolor=one.colour, hatch=one.hatch, edgecolor=one.lines, label=one.words) for one in legend]
    figure.legend(handles=marks, loc="lower left", bbox_to_anchor=(0.02, 0.0), ncols=_LEGEND_COLUMNS, fontsize=9)
    figure.text(0.02, 1.0 - 0.3 / height, "What happens when in one step?", fontsize=12, fontweight="bold")
    figure.text(0.02, 1.0 - 0.54 / height, _subtitle(analysis, tracks, lanes), fontsize=9, color="0.3")
    return figure


def _subtitle(analysis: Analysis, tracks: StepTracks, lanes: Sequence[int]) -> str:
    threads = sum(lane.kind != "frames" for lane in tracks.lanes) - len(lanes)
    is_cut = any(tracks.lanes[lane].depth > _MOST_LEVELS for lane in lanes)
    hidden = [f"{threads} more host threads"] if threads else []
    hidden += ["calls nested more deeply"] if is_cut else []
    words = f"{trace_name(analysis)}: {clean(tracks.step, 40)}, {format_us(tracks.length_us)} under the profiler"
    return f"{words}; not shown: {' and '.join(hidden)}" if hidden else words


def _looks(tracks: StepTracks, lanes: Sequence[int]) -> dict[tuple[str, int], _Look]:
    """Chooses the look of each group of work.

    Also that of each name in the lanes of idle time. They are in the order of the legend.
    """
    looks: dict[tuple[str, int], _Look] = {}
    kinds = np.array([lane.kind for lane in tracks.lanes])[tracks.lane]
    is_shown = np.isin(tracks.lane, lanes)
    for group in sorted(set(tracks.group[(kinds != "idle") & is_shown].tolist())):
        name = GROUPS[group] if group >= 0 else ""
        looks["group", group] = _Look(name, COLOURS.get(name, _PLAIN), HATCHES.get(name, ""))
    idle = kinds == "idle"
    spent = np.bincount(tracks.name[idle], weights=tracks.event_dur_us[idle], minlength=len(tracks.names))
    for place, name in enumerate(np.argsort(-spent, kind="stable")[: np.count_nonzero(spent)].tolist()):
        is_named = place < _MOST_CAUSES
        colour, hatch = _CAUSES[place] if is_named else _OTHER_CAUSES
        words = clean(tracks.names[name], 30) if is_named else "other causes"
        looks["idle", name] = _Look(f"idle: {words}", colour, hatch, "0.35")
    return looks


def _draw_level(
    axes: Axes,
    tracks: StepTracks,
    looks: dict[tuple[str, int], _Look],
    place: tuple[int, int],
    top: float,
    size: float,
) -> None:
    """Draws one row.

    Events of one look that share a pixel are one bar. Names stand where they have room.
    """
    rows = np.flatnonzero((tracks.lane == place[0]) & (tracks.depth == place[1]))
    lane: Lane = tracks.lanes[place[0]]
    keys, by = ("idle", tracks.name[rows]) if lane.kind == "idle" else ("group", tracks.group[rows])
    start, dur = tracks.event_start_us[rows], tracks.event_dur_us[rows]
    for key in np.unique(by).tolist():
        look, mine = looks[keys, key], by == key
        bars = _merged(start[mine], dur[mine], tracks.length_us * _NEAR) / size
        axes.broken_barh(
            bars.tolist(),
            (top, _ROW * 0.9),
            facecolor=look.colour,
            hatch=look.hatch,
            edgecolor=look.lines,
            linewidth=0.4 if lane.kind in {"ranges", "host"} and len(bars) < 400 else 0.0,
            rasterized=len(bars) > 4000,
        )
    if lane.kind in {"ranges", "host"}:
        _name(axes, tracks, rows, top, size)


def _merged(start: Floats, dur: Floats, near: float) -> Floats:
    """Gives beginning and length of the bars, in order.

    What lies nearer than ``near`` is one bar, and none is shorter.
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate((start + np.maximum(dur, near))[order])
    first = np.flatnonzero(np.concatenate(([True], start[1:] - end[:-1] > near)))
    last = np.concatenate((first[1:], [start.size])) - 1
    return np.column_stack((start[first], end[last] - start[first]))


def _name(axes: Axes, tracks: StepTracks, rows: Integers, top: float, size: float) -> None:
    """The names of events that have room for nine letters and more."""
    us_per_letter = tracks.length_us / (_WIDTH * (0.98 - _LABELS) / _LETTER_IN)
    for row in rows[tracks.event_dur_us[rows] > 10 * us_per_letter].tolist():
        letters = int(tracks.event_dur_us[row] / us_per_letter) - 1
        words = cut_middle(clean(tracks.names[tracks.name[row]]), letters)
        at = tracks.event_start_us[row] + us_per_letter / 2
        is_on_colour = tracks.group[row] >= 0
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85} if is_on_colour else None
        axes.text(at / size, top + _ROW * 0.47, words, fontsize=6.5, va="center", bbox=box, clip_on=True)
