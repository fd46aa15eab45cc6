"""Measures the time between the outermost ops of a step by its place there, to compare two windows of one program.

Stacks stretch each Python call, and by how much depends on the call: a warm loop by 0.2 us, a cold call by 2 us. The
window with the fewest options tells how long the stretch between two ops takes without them.
"""

import statistics
from collections import Counter

import numpy as np
from msgspec import Struct

from bottleneck.schema.intervals import Flags, Floats, Integers, Spans, some_rows, tally
from bottleneck.schema.linked_trace import Linked, Step, Window
from bottleneck.schema.tables import main_thread

# A step longer than this many times the median was held up by something else: another program, as a rule.
_HELD_UP = 1.5
# Part of a stretch that is left, however many records are taken off it.
_LEAST_LEFT = 0.05


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
    """Outermost ops of the main thread: row in OPS, position of the step and place in it, and the time before each."""

    row: Integers
    step: Integers
    place: Integers
    us: Floats


def measure_stretches(linked: Linked, own: Spans, per_op_us: float) -> Stretches | None:
    """The median stretches of the calm steps with the same ops as most; null where no such steps were found.

    ``own`` are the times of our hooks, which do not count; ``per_op_us`` is what recording one op adds around it.
    """
    rows, usual = _usual_rows(linked, own)
    if not usual:
        return None
    rows = some_rows(rows, _are_calm(rows, linked.window))
    us = np.maximum(rows.us - per_op_us, _LEAST_LEFT * rows.us)
    if not us.size:
        return None
    return Stretches(usual, np.array([statistics.median(us[rows.place == place]) for place in range(len(usual))]))


def parts_left(linked: Linked, own: Spans, following: Integers, light: Stretches | None) -> Floats | None:
    """Part of each stretch, by the row in OPS that ends it (-1: the window's end), that is left in the lighter window.

    Null where the two windows do not show steps of the same ops. A stretch of another step gets the mean part. Steps
    that were held up do not tell what a stretch consists of: nothing is left of them, and more of the others.
    """
    if light is None:
        return None
    rows, usual = _usual_rows(linked, own)
    if usual != light.ops:
        return None
    is_calm = _are_calm(rows, linked.window)
    count, calm = len(usual), some_rows(rows, is_calm)
    mean_us = tally(calm.place, calm.us, count) / np.maximum(np.bincount(calm.place, minlength=count), 1)
    mean_part = light.us.sum() / mean_us.sum() if mean_us.sum() > 0 else 1.0
    part = np.divide(light.us, mean_us, out=np.full(count, mean_part), where=mean_us > 0)
    by_row = np.full(len(linked.ops) + 1, mean_part)
    more = len(rows.row) / max(len(calm.row), 1)
    by_row[rows.row] = np.where(is_calm, part[rows.place] * more, 0.0)
    by_row[-1] = part[0]
    return by_row[following]


def shortened(us: Floats, part: Floats, frames: Floats, following: Integers) -> Floats:
    """Pieces of stretches (by the row that ends each), shorter so that this part of each stretch is left.

    What a stretch took longer it was recording its Python calls, ``frames`` in each piece: each took as long.
    """
    rows, stretch = np.unique(following, return_inverse=True)
    before_us, left_us, calls = (tally(stretch, amount, rows.size) for amount in (us, us * part, frames))
    longer_us = np.maximum(before_us - left_us, 0.0)
    call_us = np.divide(longer_us, calls, out=np.zeros(calls.size), where=calls > 0)
    weight = np.maximum(us - call_us[stretch] * frames, _LEAST_LEFT * us)
    whole = tally(stretch, weight, rows.size)
    return weight * np.divide(left_us, whole, out=np.zeros(whole.size), where=whole > 0)[stretch]


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
    us[0] += us[-1] if row.size else 0.0
    step = np.searchsorted([each.start_us for each in window.steps], begin, side="right") - 1
    place = np.arange(row.size) - np.searchsorted(step, step)
    return _OutermostOps(row, step, place, us[:-1])
