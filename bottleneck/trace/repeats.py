"""Finds the steps of a trace without step marks from repeated work.

The work is that of the host; the span of each step is found on every device. A host that runs ahead ends its step while
the device still works on an earlier one, so its marks alone do not bound the work of the device. MI300X, resnet with
checkpointing: the host takes 16.2 ms per step, the device 18.8 ms, and is 30 ms behind when the first step begins.

The main thread is seen as a sequence of ops, annotations, calls of modules and launches. In a loop that sequence has a
period. A single pass through equal layers must not look like a loop: nothing may be left over.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from bottleneck.schema.intervals import Flags, Floats, Integers, longest_first, some_rows
from bottleneck.schema.linked_trace import Step, Trace
from bottleneck.schema.op_names import LOADER_FETCH, MODULE_PREFIX, PROFILER_STEP
from bottleneck.schema.reasons import Reason
from bottleneck.schema.tables import as_integers, main_thread
from bottleneck.trace.joins import (
    are_named,
    events_of,
    find_launches,
    is_any_of,
    match_latest,
    names,
    starts_ns,
    threads,
)
from bottleneck.trace.joins import ends_ns as ends_of


def period_of(codes: Integers) -> int:
    """Finds the least distance at which the whole sequence repeats itself.

    Its length where it does not repeat. By the borders of its beginnings (Knuth, Morris and Pratt 1977): the time grows
    as the length does. The last repeat need not be complete.
    """
    return len(codes) - int(_borders(codes)[-1]) if len(codes) else 0


def _borders(codes: Integers) -> Integers:
    """The longest beginning of each beginning that is its end too, by length."""
    sequence: list[int] = codes.tolist()
    borders = [0] * len(sequence)
    length = 0
    for row in range(1, len(sequence)):
        code = sequence[row]
        while length and code != sequence[length]:
            length = borders[length - 1]
        length += code == sequence[length]
        borders[row] = length
    return np.array(borders, dtype=np.int64)


def repeating_end(codes: Integers, fewest: int) -> tuple[int, int]:
    """Finds begin and period of the longest end that repeats itself.

    It does so ``fewest`` times and more. The last repeat need not be complete; the end begins with a whole one. Both
    are 0 where none does.
    """
    borders = _borders(codes[::-1])
    length = np.arange(1, len(codes) + 1)
    period = length - borders
    fits = np.flatnonzero((borders > 0) & (length >= fewest * period))
    if not fits.size:
        return 0, 0
    return len(codes) - int(length[fits[-1]]), int(period[fits[-1]])


class _RepeatedWork(Struct, frozen=True):
    """Device work: launch time (-inf: before the trace began) and end of each piece."""

    called_us: Floats
    end_us: Floats

    def ended_of(self, before_us: Floats) -> Floats:
        """End of all work launched before each instant; -inf where there was none."""
        order = np.argsort(self.called_us, kind="stable")
        ended_us = np.maximum.accumulate(np.append(-np.inf, self.end_us[order]))
        return np.asarray(ended_us[np.searchsorted(self.called_us[order], before_us, side="left")])


def wall_spans(trace: Trace, steps: Sequence[Step]) -> tuple[Floats, Floats]:
    """Gives begin and end of each step.

    They are when the host reached the step and the device had ended all work launched until then. So both ends of any
    stretch of steps lie in the same phase, and with a steady device its length is the number of steps times their true
    period, and holds the work of exactly these steps, however far the host runs ahead. Where the device keeps up, these
    are the host's own bounds. If work of one step outlasts the whole next one (a kernel that waits for another
    process), only the last end is that of the device.
    """
    start_us = np.array([step.start_us for step in steps])
    end_us = np.array([step.end_us for step in steps])
    work = _device_work(trace, float(start_us[0]))
    began_us = np.maximum(start_us, work.ended_of(start_us))
    done_us = np.maximum(end_us, work.ended_of(end_us))
    if (done_us > began_us).all():
        return began_us, done_us
    mine = (work.called_us >= start_us[0]) & (work.called_us < end_us[-1])
    end_us[-1] = work.end_us[mine].max(initial=end_us[-1])
    return start_us, end_us


def called_us(trace: Trace) -> Floats:
    """Gives the launch time of each piece of device work.

    Row for row as DEVICE_ARGS, NaN where it is unknown. Taken from its launch, else from the op whose id it carries.
    """
    event, launch = trace.device_args["event"].to_numpy(), find_launches(trace)
    ops = trace.op_args["event"].to_numpy()
    issuers = match_latest(
        as_integers(trace.op_args["external_id"]),
        starts_ns(trace, ops),
        as_integers(trace.device_args["external_id"]),
        starts_ns(trace, event),
    ).nearest
    calls = np.append(trace.launch_args["event"].to_numpy(), -1)[launch]
    calls = np.where(launch >= 0, calls, np.append(ops, -1)[issuers])
    at_us: Floats = np.append(trace.events["ts_us"].to_numpy(), np.nan)[calls]
    return at_us


def _device_work(trace: Trace, first_us: float) -> _RepeatedWork:
    """Gives the work of known call time.

    Also counts work that ran before any of it that was called from ``first_us`` on.
    """
    event = trace.device_args["event"].to_numpy()
    start_us = trace.events["ts_us"].to_numpy()[event]
    end_us = start_us + trace.events["dur_us"].to_numpy()[event]
    at_us = called_us(trace)
    first_work_us = start_us[at_us >= first_us].min(initial=np.inf)
    if np.isfinite(first_work_us):
        at_us[np.isnan(at_us) & (start_us < first_work_us)] = -np.inf
    has_call = ~np.isnan(at_us)
    return _RepeatedWork(at_us[has_call], end_us[has_call])


_DIFFERENT, _APART = Reason("other_ops"), Reason("cut_by_others")

_FEWEST_REPEATS = 3
# A loop with more turns than this within one recording is shorter than a training or inference step.
_MOST_REPEATS = 10_000
# A lone op that a program calls a few times in a row is no loop; marks and modules are set by the program itself.
_FEWEST_ITEMS = 8
_COVERED = 0.5
# Of ops alone after others: more than a network has layers.
_FEWEST_BARE = 20
# Annotations around the whole loop, one in the other; more of them are no one's program.
_DEEPEST = 8

_MODULE = re.compile("^" + re.escape(MODULE_PREFIX))
_OPTIMIZER = re.compile(r"^Optimizer\.")


# Steps in order, each with the reason why it does not count, null for those that do, which lie next to one another.
StepReasons = tuple[tuple[Step, Reason | None], ...]


class _Items(Struct, frozen=True):
    """Items of the main thread, by start, then longer first.

    They are rows of EVENTS, and equal codes for equal items. ``marks`` are items that the program itself delimits:
    calls of modules, and fetches from a data loader.
    """

    event: Integers
    start_ns: Integers
    end_ns: Integers
    code: Integers
    annotation: Flags
    marks: Flags


def find_repeats(trace: Trace) -> StepReasons:
    """Finds the repeats of a loop, in order.

    Each has the reason why it does not count, if any. None where no loop is seen. At least three repeats, one after the
    other, over most of the time, of equal items and, where recorded, equal shapes. Most of them hold equal ops inside
    the items too; others (a prefill, a compilation) do not count. No op of any thread may run across a bound. Where no
    such loop is seen, the program's own marks may come in the same order.
    """
    thread = main_thread(trace.events)
    if thread < 0:
        return ()
    items = _inside_of_wrappers(trace, _items(trace, thread))
    for low, high in _stretches(items, _fewest_bare(trace)):
        bounds_ns = _bounds(items, low, high)
        if not _FEWEST_REPEATS < len(bounds_ns) <= _MOST_REPEATS + 1 or not _holds_device_work(trace, bounds_ns):
            continue
        if bounds_ns[-1] >= items.end_ns[-1]:
            # A backward pass, on a thread of its own, outlasts its record on the main thread.
            bounds_ns[-1] = max(bounds_ns[-1], ends_of(trace, events_of(trace, "op")).max(initial=0))
        if _cuts_an_op(trace, bounds_ns):
            continue
        return _steps(bounds_ns, _judge(_contents(trace, thread, bounds_ns)))
    bounds_ns = _bounds_of_marks(trace, items)
    if not len(bounds_ns) or not _holds_device_work(trace, bounds_ns) or _cuts_an_op(trace, bounds_ns):
        return ()
    return _steps(bounds_ns, [None] * (len(bounds_ns) - 1))


def _steps(bounds_ns: Integers, reasons: Sequence[Reason | None]) -> StepReasons:
    edges = (bounds_ns / 1e3).tolist()
    return tuple((Step(f"step {row}", edges[row], edges[row + 1]), why) for row, why in enumerate(reasons))


def _items(trace: Trace, thread: int) -> _Items:
    """Gives the items on a thread, by start, then longer first.

    They are ops, annotations, modules and calls that issue device work.
    """
    mine = trace.events["thread"].cat.codes.to_numpy() == thread
    marks = (is_any_of(trace, ("python",)) & are_named(trace, _MODULE)) | are_named(trace, LOADER_FETCH)
    annotation = is_any_of(trace, ("annotation",)) & ~are_named(trace, PROFILER_STEP)
    issuing = np.zeros(len(mine), dtype=np.bool_)
    launch = find_launches(trace)
    issuing[trace.launch_args["event"].to_numpy()[launch[launch >= 0]]] = True
    event = np.flatnonzero(mine & (marks | annotation | issuing | is_any_of(trace, ("op",))))
    start_ns, end_ns = starts_ns(trace, event), ends_of(trace, event)
    order = longest_first(start_ns, end_ns)
    event = event[order]
    code = _codes(trace, event)
    return _Items(event, start_ns[order], end_ns[order], code, annotation[event], marks[event])


def _codes(trace: Trace, event: Integers) -> Integers:
    """Gives equal codes for events of one name.

    Ops also need equal shapes and dtypes.
    """
    number: dict[tuple[str | None, str | None], int] = {}
    pairs = zip(trace.signatures["dims"].to_list(), trace.signatures["types"].to_list(), strict=True)
    shapes = np.array([number.setdefault(pair, len(number)) for pair in pairs], dtype=np.int64)
    signature = np.full(len(trace.events), -1, dtype=np.int64)
    signature[trace.op_args["event"].to_numpy()] = as_integers(trace.op_args["signature"])
    shape = np.append(shapes, -1)[signature[event]]
    code: Integers = names(trace, event) * (len(shapes) + 1) + shape + 1
    return code


def _inside_of_wrappers(trace: Trace, items: _Items) -> _Items:
    """The outermost items; of a lone annotation around all the rest, those inside it.

    Not those of an optimizer: what repeats in its step are its parameters.
    """
    optimizers = are_named(trace, _OPTIMIZER)
    for _ in range(_DEEPEST):
        outermost = _outermost(items)
        if len(outermost) != 1 or not items.annotation[outermost[0]] or optimizers[items.event[outermost[0]]]:
            break
        items = some_rows(items, np.flatnonzero(np.arange(len(items.event)) > outermost[0]))
    return some_rows(items, _outermost(items))


def _outermost(items: _Items) -> Integers:
    """Rows that begin when all before them have ended."""
    ended_ns = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, items.end_ns))[:-1]
    rows: Integers = np.flatnonzero(items.start_ns >= ended_ns)
    return rows


def _stretches(items: _Items, fewest_bare: int) -> list[tuple[int, int]]:
    """Gives first row and end of each stretch that may be a loop.

    One is that of all items, another that between marks that come often: around them a program may prepare. So may one
    of ops alone, on a CPU.
    """
    if not len(items.code):
        return []
    _, group, count = np.unique(items.code, return_inverse=True, return_counts=True)
    often = np.flatnonzero(items.marks & (count[group] >= _FEWEST_REPEATS)).tolist()
    is_bare = fewest_bare > 0 and not (items.marks.any() or items.annotation.any())
    bare = _bare_loop(items, fewest_bare) if is_bare else []
    return [(0, len(items.code)), *([(often[0], often[-1] + 1)] if often else []), *bare]


def _fewest_bare(trace: Trace) -> int:
    """Counts the repeats of ops alone that make a loop; 0 where none do.

    Other ops may come before them. A pass through equal layers ends with another one, and has fewer than that. Where
    the trace has Python calls, and none of a module, there are no layers.
    """
    if len(trace.device_args):
        return 0
    return (
        _FEWEST_REPEATS if is_any_of(trace, ("python",)).any() and not are_named(trace, _MODULE).any() else _FEWEST_BARE
    )


def _bare_loop(items: _Items, fewest: int) -> list[tuple[int, int]]:
    """Gives the whole repeats at the end of a program of ops alone.

    An example is a simulation, which prepares first.
    """
    begin, period = repeating_end(items.code, fewest)
    repeats = (len(items.code) - begin) // period if period else 0
    return [(begin, begin + repeats * period)] if period >= _FEWEST_ITEMS else []


def _bounds(items: _Items, low: int, high: int) -> Integers:
    """Gives the starts of the repeats of a stretch.

    The last value is the end of the last one. Empty where the stretch is no loop.
    """
    period = period_of(items.code[low:high])
    delimited = (items.marks | items.annotation)[low : low + period].any()
    # Linear, relu, linear, relu, linear is one pass: of bare ops nothing may be left over, not even part of a repeat.
    bare = high - low >= _FEWEST_ITEMS and (high - low) % period == 0
    if (high - low) // period < _FEWEST_REPEATS - 1 or not (delimited or bare):
        return items.start_ns[:0]
    # The items after the last mark belong to its repeat as far as they are those of the repeat before.
    ahead = items.code[high : high + period - 1]
    differs = np.flatnonzero(ahead != items.code[high - period : high - period + len(ahead)])
    high += int(differs[0]) if len(differs) else len(ahead)
    begun = np.arange(low, high - period + 1, period)
    end = begun[-1] + period
    end_ns = items.start_ns[end] if end < high else items.end_ns[end - 1]
    covered = (end_ns - items.start_ns[low]) / max(items.end_ns.max() - items.start_ns[0], 1)
    return np.append(items.start_ns[begun], end_ns) if covered >= _COVERED else items.start_ns[:0]


# Parameters that a program writes into the names of its marks: 'replay[tokens=2901]'.
_PARAMETERS = re.compile(r"\s*[\[({].*$")
_FEWEST_MARKS = 2


def _bounds_of_marks(trace: Trace, items: _Items) -> Integers:
    """Gives the starts of the repeats of the program's own marks.

    The last value is the end of the last one. Empty where they are no loop. Batches of different sizes run different
    ops between the same marks ("load", "copy", "replay"), which come in the same order each time, with nothing left
    over. A single mark may be that of a layer.
    """
    row = np.flatnonzero(items.annotation)
    labels = trace.events["name"].iloc[items.event[row]].astype(object)
    marks = [_PARAMETERS.sub("", label) for label in labels]
    code = np.unique(marks, return_inverse=True)[1].astype(np.int64) if marks else np.zeros(0, np.int64)
    period = period_of(code)
    repeats = len(code) // max(period, 1)
    is_loop = repeats >= _FEWEST_REPEATS and len(code) == repeats * period and len(set(marks)) >= _FEWEST_MARKS
    if not is_loop or repeats > _MOST_REPEATS:
        return items.start_ns[:0]
    bounds = np.append(items.start_ns[row[::period]], items.end_ns[row[-1]])
    covered = (bounds[-1] - bounds[0]) / max(items.end_ns.max() - items.start_ns[0], 1)
    return bounds if covered >= _COVERED else items.start_ns[:0]


def _holds_device_work(trace: Trace, bounds_ns: Integers) -> bool:
    """Returns True where most device work is launched between the bounds.

    Also where there is no such work. Work whose launch is unknown lies outside.
    """
    at_us = called_us(trace)
    inside = (at_us >= bounds_ns[0] / 1e3) & (at_us < bounds_ns[-1] / 1e3)
    return bool(inside.sum() >= _COVERED * len(at_us))


def _cuts_an_op(trace: Trace, bounds_ns: Integers) -> bool:
    """True where an op of any thread runs at one of the bounds."""
    event = events_of(trace, "op")
    after = np.searchsorted(bounds_ns, starts_ns(trace, event), side="right")
    before = np.searchsorted(bounds_ns, ends_of(trace, event), side="left")
    return bool((after < before).any())


def _contents(trace: Trace, thread: int, bounds_ns: Integers) -> list[bytes]:
    """Gives the ops of one thread in each repeat as comparable bytes.

    These are equal where the ops are, by name and number. Not by their order: in traces of whole microseconds, that of
    ops which begin in the same one is lost.
    """
    event = events_of(trace, "op")
    event = event[threads(trace, event) == thread]
    repeat = np.searchsorted(bounds_ns, starts_ns(trace, event), side="right")
    name = names(trace, event)
    order = np.lexsort((name, repeat))
    split = np.searchsorted(repeat[order], np.arange(1, len(bounds_ns) + 1))
    return [name[order[low:high]].tobytes() for low, high in pairwise(split.tolist())]


def _judge(contents: list[bytes]) -> list[Reason | None]:
    """Gives the reason why each repeat does not count.

    Null for those that do. Empty where too few equal ones are adjacent.
    """
    usual, _ = Counter(contents).most_common(1)[0]
    ends = [row for row, content in enumerate(contents) if content != usual]
    low, high = max(pairwise([-1, *ends, len(contents)]), key=lambda run: (run[1] - run[0], run[0]))
    if high - low - 1 < max(_FEWEST_REPEATS, len(contents) / 2):
        return []
    reasons: list[Reason | None] = [_APART if content == usual else _DIFFERENT for content in contents]
    reasons[low + 1 : high] = [None] * (high - low - 1)
    return reasons
