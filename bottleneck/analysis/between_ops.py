"""Measures the time between the outermost ops of a step.

Times are kept by their place in the step, to compare two windows of one program.

Stacks stretch each Python call, and by how much depends on the call: a warm loop by 0.2 us, a cold call by 2 us. The
window with the fewest options tells how long the stretch between two ops takes without them.
"""

import math
import statistics
from collections import Counter

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from bottleneck.schema.intervals import Flags, Floats, Integers, Spans, numbered, some_rows, tally, union
from bottleneck.schema.linked_trace import Linked, Step, Window
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.tables import main_thread

Texts = npt.NDArray[np.object_]

# A step longer than this many times the median was held up by something else: another program, as a rule.
_HELD_UP = 1.5
# Part of a stretch that is left, however many records are taken off it.
_LEAST_LEFT = 0.05
# Calls per step of one function at one line that make a loop.
_MANY_CALLS = 32


def calm_steps(window: Window) -> tuple[Step, ...]:
    """The steps of a window that nothing held up."""
    if not window.steps:
        return ()
    usual_us = statistics.median_low(step.us for step in window.steps)  # of two, the one that was not held up
    return tuple(step for step in window.steps if step.us <= _HELD_UP * usual_us)


# Steps that others held up least take at most so many times as long as the quickest.
_QUICK = 1.5


def quick_part(window: Window) -> Window | None:
    """Gives the window of the longest run of steps like the quickest.

    It is for a recording beside other programs: they only make steps longer. The other steps are set aside. Null where
    all steps take about as long as the quickest.
    """
    if len(window.steps) < 2:
        return None
    limit_us = _QUICK * min(step.us for step in window.steps)
    runs: list[list[Step]] = [[]]
    for step in window.steps:
        if step.us > limit_us:
            runs.append([])
        else:
            runs[-1].append(step)
    quick = max(map(tuple, runs), key=lambda run: (len(run), -math.fsum(step.us for step in run)))
    if len(quick) == len(window.steps):
        return None
    usual_us = statistics.fmean(step.us for step in quick)
    slow = [(step, Reason("held_up", (step.us / usual_us,))) for step in window.steps if step not in quick]
    aside = tuple(sorted([*window.set_aside, *slow], key=lambda pair: pair[0].start_us))
    return replace(window, start_us=quick[0].start_us, end_us=quick[-1].end_us, steps=quick, set_aside=aside)


class Stretches(Struct, frozen=True):
    """Microseconds before each mark of a usual step, in order.

    Marks are the outermost ops, the edges of annotations between them and the step's end. ``marks`` are their names, by
    which two windows are known to show the same step. ``are_least``: times are those of the quickest step, not medians.
    """

    marks: tuple[str, ...]
    us: Floats
    are_least: bool = False


class _Marks(Struct, frozen=True):
    """Marks of the main thread in order of time.

    Each has its begin, its name, the position of its step and its place in that.

    ``us`` is the time since the mark before; ``records`` is how many records fall into that time: one half of each op
    at its ends, and as much for the edge of an annotation.
    """

    start_us: Floats
    name: Texts
    step: Integers
    place: Integers
    us: Floats
    records: Floats


def measure_stretches(linked: Linked, own: Spans, per_op_us: float, *, are_held_up: bool = False) -> Stretches | None:
    """Measures the median stretches of calm steps with the usual ops.

    These are the ops of most steps. Null where no such steps were found. Where other programs held up all steps
    (``are_held_up``), the quickest stretch of any step is taken.

    ``own`` are the times of our hooks, which do not count; ``per_op_us`` is what recording one op or annotation adds
    around it.
    """
    marks, usual = _usual_marks(_marks(linked, own), len(linked.window.steps))
    if not usual:
        return None
    if not are_held_up:
        marks = some_rows(marks, _are_calm(marks, linked.window))
    us = np.maximum(marks.us - per_op_us * marks.records, _LEAST_LEFT * marks.us)
    if not us.size:
        return None
    typical = min if are_held_up else statistics.median
    typical_us = np.array([typical(us[marks.place == place]) for place in range(len(usual))])
    return Stretches(usual, typical_us, are_held_up)


class StretchPieces(Struct, frozen=True):
    """Pieces of stretches between ops.

    Each has its length, its Python calls, its kind (line and function), and the time of its middle.
    """

    us: Floats
    calls: Floats
    kind: Integers
    middle_us: Floats


def in_lighter_window(pieces: StretchPieces, linked: Linked, own: Spans, light: Stretches | None) -> Floats | None:
    """Gives the length of each piece in the lighter window.

    Null where the two windows do not show steps of the same ops.

    What a stretch took longer it was recording its Python calls. Steps that were held up do not tell what a stretch
    consists of: nothing is left of their pieces, and more of the others. Of another step the mean part is left.
    """
    if light is None:
        return None
    every = _marks(linked, own)
    marks, usual = _usual_marks(every, len(linked.window.steps))
    if usual != light.marks:
        return None
    row_of_mark = np.full(every.start_us.size + 1, -1)
    row_of_mark[np.flatnonzero(np.isin(every.step, marks.step))] = np.arange(marks.step.size)
    row = row_of_mark[np.searchsorted(every.start_us, pieces.middle_us)]
    is_calm = _are_calm(marks, linked.window)[row] & (row >= 0)
    _, step = np.unique(marks.step, return_inverse=True)
    calm = np.flatnonzero(is_calm)
    kind, first = numbered(marks.place[row[calm]], pieces.kind[calm])
    place, steps = marks.place[row[calm[first]]], np.unique(step[row[calm]])
    cell = kind * steps.size + np.searchsorted(steps, step[row[calm]])
    by_step = (
        tally(cell, amount[calm], first.size * steps.size).reshape(first.size, steps.size)
        for amount in (pieces.us, pieces.calls)
    )
    us, calls = (_typical(amount, place, light) for amount in by_step)
    left = _left_of_kinds(us, calls, place, light.us)
    whole = tally(kind, pieces.us[calm], first.size)
    usual_steps = np.unique(marks.step).size
    part = np.divide(left * usual_steps, whole, out=np.zeros(whole.size), where=whole > 0)
    mean_part = float(left.sum() / us.sum()) if us.sum() > 0 else 1.0
    lighter_us = np.where(row >= 0, 0.0, pieces.us * mean_part)
    lighter_us[calm] = pieces.us[calm] * part[kind]
    return lighter_us


def _typical(by_step: Floats, place: Integers, light: Stretches) -> Floats:
    """Gives the median over the steps of each row, or the least.

    The median leaves out where another program interrupted a piece. Where others held up all steps, the least does.

    The stretches of the lighter window are the same. Of a stretch whose pieces differ from step to step, the means.
    """
    if not by_step.size:
        return np.zeros(place.size)
    usual = by_step.min(axis=1) if light.are_least else np.median(by_step, axis=1)
    is_known = tally(place, usual, light.us.size) > 0
    return np.where(is_known[place], usual, by_step.mean(axis=1))


def _left_of_kinds(us: Floats, calls: Floats, place: Integers, light_us: Floats) -> Floats:
    """Gives the part left of each kind of piece.

    Together the pieces of a stretch (``place``) are as long as it is in the lighter window.

    Recording a call that was made before costs less than one of code that is not in the cache. What it costs elsewhere
    is taken off calls that are few, and the rest off those that are many.
    """
    count = light_us.size
    before = tally(place, us, count)
    # Recording makes nothing quicker: where the lighter window took longer, something else held it up there.
    light_us = np.minimum(light_us, before)
    longer = np.maximum(before - light_us, 0.0)
    is_loop = calls >= _MANY_CALLS
    few, many = (tally(place, np.where(chosen, calls, 0.0), count) for chosen in (~is_loop, is_loop))
    alone = many == 0
    mean_us = longer.sum() / max(calls.sum(), 1.0)
    few_us = longer[alone].sum() / few[alone].sum() if few[alone].any() else mean_us
    of_few = np.where(alone, longer, np.minimum(longer, few * few_us))
    of_many = longer - of_few
    call_us = np.where(
        is_loop,
        np.divide(of_many, many, out=np.zeros(count), where=many > 0)[place],
        np.divide(of_few, few, out=np.zeros(count), where=few > 0)[place],
    )
    weight = np.maximum(us - call_us * calls, _LEAST_LEFT * us)
    whole = tally(place, weight, count)
    return weight * np.divide(light_us, whole, out=np.zeros(count), where=whole > 0)[place]


def _are_calm(marks: _Marks, window: Window) -> Flags:
    """Mask of the marks in steps that nothing held up."""
    starts = [step.start_us for step in calm_steps(window)]
    return np.asarray(np.isin([step.start_us for step in window.steps], starts)[marks.step])


def _usual_marks(marks: _Marks, steps: int) -> tuple[_Marks, tuple[str, ...]]:
    """Gives the marks of the usual steps, and their names.

    The marks of a usual step are those of most steps. The names are empty without ops.
    """
    ends = np.searchsorted(marks.step, np.arange(steps), side="right")
    sequences = [tuple(names.tolist()) for names in np.split(marks.name, ends[:-1])]
    (usual, _), *_ = Counter(sequences).most_common(1) or [((), 0)]
    chosen = np.flatnonzero([names == usual for names in sequences])
    has_ops = any(name.startswith(_OP) for name in usual)
    return some_rows(marks, np.isin(marks.step, chosen)), usual if has_ops else ()


_OP, _BEGINS, _ENDS, _LAST = "op ", "begins ", "ends ", "the step ends"
# Records in the time at each side of an op, of an annotation's edge, and of the end of a step.
_RECORDS = {_OP: 0.5, _BEGINS: 0.25, _ENDS: 0.25, _LAST: 0.0}


def _marks(linked: Linked, own: Spans) -> _Marks:
    """Gives the marks of the main thread in the steps.

    They are its outermost ops, the edges of annotations between them, and the steps' ends.
    """
    ops, window, events = linked.ops, linked.window, linked.trace.events
    if not window.steps:
        return _Marks(*(np.zeros(0, dtype=kind) for kind in (float, object, int, int, float, float)))
    ends_us = np.array([step.end_us for step in window.steps])
    thread = events["thread"].cat.categories[main_thread(events)] if len(ops) else ""
    begin, dur_us = (ops[name].to_numpy() for name in ("ts_us", "dur_us"))
    rows = np.flatnonzero(ops["parent"].isna().to_numpy() & (ops["thread"] == thread).to_numpy())
    rows = rows[(begin[rows] >= window.start_us) & (begin[rows] < ends_us[-1])]
    work = union(begin[rows], begin[rows] + dur_us[rows])
    edges = _edges(events, thread, window, work)
    parts = [
        (begin[rows], begin[rows] + dur_us[rows], _OP + ops["name"].astype(object).to_numpy()[rows], _OP),
        *((at, at, kind + names, kind) for kind, (at, names) in edges.items()),
        (ends_us, ends_us, np.full(ends_us.size, _LAST, dtype=object), _LAST),
    ]
    start, end, name = (np.concatenate([part[field] for part in parts]) for field in range(3))
    beside = np.concatenate([np.full(part[0].size, _RECORDS[part[3]]) for part in parts])
    order = np.argsort(start, kind="stable")
    start, end, name, beside = (column[order] for column in (start, end, name, beside))
    before = np.concatenate(([window.start_us], np.maximum.accumulate(end)[:-1]))
    us = np.maximum(start - before - own.covered_between(before, np.maximum(start, before)), 0.0)
    # A step's end is the last mark of that step.
    step = np.searchsorted(ends_us, start, side="left")
    place = np.arange(start.size) - np.searchsorted(step, step)
    return _Marks(start, name, step, place, us, beside + np.concatenate(([0.0], beside[:-1])))


def _edges(events: pd.DataFrame, thread: str, window: Window, work: Spans) -> dict[str, tuple[Floats, Texts]]:
    """Edges of the annotations of a thread outside ops, with their names.

    An annotation that is open when a step ends has no end here: the profiler began or ended inside it at the window's
    edges, so not all steps would show it.
    """
    rows = np.flatnonzero(((events["category"] == "annotation") & (events["thread"] == thread)).to_numpy())
    start = events["ts_us"].to_numpy()[rows]
    end = start + events["dur_us"].to_numpy()[rows]
    names = events["name"].astype(object).to_numpy()[rows]
    step_of_start, step_of_end = (
        np.searchsorted([step.end_us for step in window.steps], at, side="left") for at in (start, end)
    )
    last = window.steps[-1].end_us
    chosen = {_BEGINS: (start, start >= window.start_us), _ENDS: (end, step_of_start == step_of_end)}
    edges = dict[str, tuple[Floats, Texts]]()
    for kind, (at, is_inside) in chosen.items():
        shown = is_inside & (at >= window.start_us) & (at < last) & ~work.hold(at)
        edges[kind] = (at[shown], names[shown])
    return edges
