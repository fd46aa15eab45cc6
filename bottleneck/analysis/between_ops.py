"""Measures the time between the outermost ops of a step by its place there, to compare two windows of one program.

Stacks stretch each Python call, and by how much depends on the call: a warm loop by 0.2 us, a cold call by 2 us. The
window with the fewest options tells how long the stretch between two ops takes without them.
"""

import statistics
from collections import Counter

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.schema.intervals import Flags, Floats, Integers, Spans, numbered, some_rows, tally
from bottleneck.schema.linked_trace import Linked, Step, Window
from bottleneck.schema.tables import main_thread

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


class Stretches(Struct, frozen=True):
    """Microseconds before each outermost op of a usual step, in order; the first begins after the last step's last op.

    ``ops`` are the names of these ops, by which two windows are known to show the same step.
    """

    ops: tuple[str, ...]
    us: Floats


class _OutermostOps(Struct, frozen=True):
    """Outermost ops of the main thread: row in OPS, position of the step and place in it, and the time before each.

    ``edges`` are how many annotations begin or end in that time.
    """

    row: Integers
    step: Integers
    place: Integers
    us: Floats
    edges: Floats


def measure_stretches(linked: Linked, own: Spans, per_op_us: float) -> Stretches | None:
    """The median stretches of the calm steps with the same ops as most; null where no such steps were found.

    ``own`` are the times of our hooks, which do not count; ``per_op_us`` is what recording one op or annotation adds
    around it.
    """
    rows, usual = _usual_rows(linked, own)
    if not usual:
        return None
    rows = some_rows(rows, _are_calm(rows, linked.window))
    us = np.maximum(rows.us - per_op_us * (1 + rows.edges / 2), _LEAST_LEFT * rows.us)
    if not us.size:
        return None
    return Stretches(usual, np.array([statistics.median(us[rows.place == place]) for place in range(len(usual))]))


class StretchPieces(Struct, frozen=True):
    """Pieces of stretches: length, Python calls in each, kind (line and function), and the row in OPS that follows.

    The row is -1 for the window's end.
    """

    us: Floats
    calls: Floats
    kind: Integers
    following: Integers


def in_lighter_window(pieces: StretchPieces, linked: Linked, own: Spans, light: Stretches | None) -> Floats | None:
    """Length of each piece in the lighter window; null where the two windows do not show steps of the same ops.

    What a stretch took longer it was recording its Python calls. Steps that were held up do not tell what a stretch
    consists of: nothing is left of their pieces, and more of the others. Of another step the mean part is left.
    """
    if light is None:
        return None
    rows, usual = _usual_rows(linked, own)
    if usual != light.ops:
        return None
    row_of_op = np.full(len(linked.ops) + 1, -1)
    row_of_op[rows.row] = np.arange(rows.row.size)
    # What follows the window's last op belongs to the stretch before its first one.
    row_of_op[-1] = 0 if rows.step[0] == 0 else -1
    row = row_of_op[pieces.following]
    is_calm = _are_calm(rows, linked.window)[row] & (row >= 0)
    _, step = np.unique(rows.step, return_inverse=True)
    calm = np.flatnonzero(is_calm)
    kind, first = numbered(rows.place[row[calm]], pieces.kind[calm])
    place, steps = rows.place[row[calm[first]]], np.unique(step[row[calm]])
    cell = kind * steps.size + np.searchsorted(steps, step[row[calm]])
    by_step = (
        tally(cell, each[calm], first.size * steps.size).reshape(first.size, steps.size)
        for each in (pieces.us, pieces.calls)
    )
    us, calls = (_typical(each, place, light.us.size) for each in by_step)
    left = _left_of_kinds(us, calls, place, light.us)
    whole = tally(kind, pieces.us[calm], first.size)
    usual_steps = np.unique(rows.step).size
    part = np.divide(left * usual_steps, whole, out=np.zeros(whole.size), where=whole > 0)
    mean_part = float(left.sum() / us.sum()) if us.sum() > 0 else 1.0
    found = np.where(row >= 0, 0.0, pieces.us * mean_part)
    found[calm] = pieces.us[calm] * part[kind]
    return found


def _typical(by_step: Floats, place: Integers, count: int) -> Floats:
    """Of each row the median over the steps, which leaves out where another program interrupted a piece.

    The stretches of the lighter window are medians too. Of a stretch whose pieces differ from step to step, the means.
    """
    if not by_step.size:
        return np.zeros(place.size)
    usual = np.median(by_step, axis=1)
    is_known = tally(place, usual, count) > 0
    return np.where(is_known[place], usual, by_step.mean(axis=1))


def _left_of_kinds(us: Floats, calls: Floats, place: Integers, light_us: Floats) -> Floats:
    """The part left of each kind of piece, as long as its stretch (``place``) is in the lighter window.

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
    each = np.where(
        is_loop,
        np.divide(of_many, many, out=np.zeros(count), where=many > 0)[place],
        np.divide(of_few, few, out=np.zeros(count), where=few > 0)[place],
    )
    weight = np.maximum(us - each * calls, _LEAST_LEFT * us)
    whole = tally(place, weight, count)
    return weight * np.divide(light_us, whole, out=np.zeros(count), where=whole > 0)[place]


def _are_calm(rows: _OutermostOps, window: Window) -> Flags:
    """Mask of the rows in steps that nothing held up."""
    starts = [step.start_us for step in calm_steps(window)]
    return np.asarray(np.isin([step.start_us for step in window.steps], starts)[rows.step])


def _usual_rows(linked: Linked, own: Spans) -> tuple[_OutermostOps, tuple[str, ...]]:
    """The ops of the steps whose ops are those of most steps, and the names of these; none where steps hold no ops."""
    rows = _outermost(linked, own)
    names = linked.ops["name"].astype(object).to_numpy()[rows.row]
    by_step = [rows.step == step for step in range(len(linked.window.steps))]
    sequences = [tuple(names[mine].tolist()) for mine in by_step]
    (usual, _), *_ = Counter(sequences).most_common(1) or [((), 0)]
    chosen = np.flatnonzero([ops == usual for ops in sequences])
    return some_rows(rows, np.isin(rows.step, chosen)), usual


def _outermost(linked: Linked, own: Spans) -> _OutermostOps:
    """The outermost ops of the main thread in the window.

    What is before the first op of the window and what is after the last one are parts of two stretches; together they
    stand for one.
    """
    ops, window, events = linked.ops, linked.window, linked.trace.events
    start_us, dur_us = (ops[name].to_numpy() for name in ("ts_us", "dur_us"))
    label = events["thread"].cat.categories[main_thread(events)] if len(ops) else ""
    is_outermost = ops["parent"].isna().to_numpy() & (ops["thread"] == label).to_numpy()
    row = np.flatnonzero(is_outermost & (start_us >= window.start_us) & (start_us < window.end_us))
    begin, end = start_us[row], np.maximum.accumulate(np.minimum(start_us[row] + dur_us[row], window.end_us))
    before = np.concatenate(([window.start_us], end))
    us = np.append(begin, window.end_us) - before - own.covered_between(before, np.append(begin, window.end_us))
    us = np.maximum(us, 0.0)
    edges = _edges_between(events, label, before, np.append(begin, window.end_us))
    if row.size:
        us[0], edges[0] = us[0] + us[-1], edges[0] + edges[-1]
    step = np.searchsorted([each.start_us for each in window.steps], begin, side="right") - 1
    place = np.arange(row.size) - np.searchsorted(step, step)
    return _OutermostOps(row, step, place, us[:-1], edges[:-1])


def _edges_between(events: pd.DataFrame, thread: str, opened: Floats, closed: Floats) -> Floats:
    """Count of the annotations of a thread that begin or end in each stretch."""
    rows = np.flatnonzero(((events["category"] == "annotation") & (events["thread"] == thread)).to_numpy())
    start = events["ts_us"].to_numpy()[rows]
    at = np.sort(np.concatenate((start, start + events["dur_us"].to_numpy()[rows])))
    count: Floats = np.maximum(np.searchsorted(at, closed) - np.searchsorted(at, opened), 0).astype(np.float64)
    return count
