"""Steps of a trace without marks: the parts in which the host does the same over and over; used by ``steps``.

What the main thread does, seen from outside, is a sequence of ops, annotations, calls of modules and launches. In a
loop that sequence has a period. A single pass through equal layers must not look like one: nothing may be left over.
"""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bottleneck.trace.events import are_named, events_of, is_any_of, names, starts_ns, threads
from bottleneck.trace.events import ends_ns as ends_of
from bottleneck.trace.joins import Flags, whole
from bottleneck.trace.launches import find_launches
from bottleneck.trace.libraries import MODULE_PREFIX
from bottleneck.trace.nesting import Floats, Ints
from bottleneck.trace.periods import period_of
from bottleneck.trace.walls import called_us
from bottleneck.tracing import Step, Trace

_DIFFERENT = "made of other ops than most steps"
_APART = "cut off from the longest stretch of equal steps"

_FEWEST_REPEATS = 3
# What turns more often than this within one recording is shorter than anything that people call a step.
_MOST_REPEATS = 10_000
# A lone op that a program happens to call a few times in a row is no loop; marks and modules are told by the program.
_FEWEST_ITEMS = 8
_COVERED = 0.5
# Annotations around the whole loop, one in the other; more of them are no one's program.
_DEEPEST = 8

_MODULE = re.compile("^" + re.escape(MODULE_PREFIX))
_LOADER = re.compile(r"^enumerate\(DataLoader\)#")
_AUTOGRAD = re.compile("^autograd::engine::")
_OF_THE_PROFILER = re.compile("^ProfilerStep#")


# Steps in order, each with the reason why it does not count, null for those that do, which lie next to one another.
Found = tuple[tuple[Step, str | None], ...]


@dataclass(frozen=True)
class _Items:
    """What the main thread does, by start, then longer first: rows of EVENTS, and equal codes for equal items.

    ``marks`` are items that the program itself sets apart: calls of modules, and fetches from a data loader.
    """

    event: Ints
    start_ns: Ints
    end_ns: Ints
    code: Ints
    annotation: Flags
    marks: Flags

    def part(self, rows: Ints | slice) -> "_Items":
        """Some of them, in order."""
        return _Items(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


def find_repeats(trace: Trace) -> Found:
    """The repeats of a loop, in order, each with the reason why it does not count, if any; none where no loop is seen.

    At least three repeats, one after the other, over most of the time, of equal items and, where recorded, equal
    shapes. Most of them hold equal ops inside the items too; others (a prefill, a compilation) do not count. No op of
    any thread may run across a bound.
    """
    thread = _main_thread(trace)
    if thread < 0:
        return ()
    items = _inside_of_wrappers(_items(trace, thread))
    for low, high in _stretches(items):
        bounds_ns = _bounds(items, low, high)
        if not _FEWEST_REPEATS < len(bounds_ns) <= _MOST_REPEATS + 1 or not _holds_device_work(trace, bounds_ns):
            continue
        if bounds_ns[-1] >= items.end_ns[-1]:
            bounds_ns[-1] = max(bounds_ns[-1], _last_end(trace))
        if _cuts_an_op(trace, bounds_ns):
            continue
        reasons = _judge(_contents(trace, thread, bounds_ns))
        edges = (bounds_ns / 1e3).tolist()
        return tuple((Step(f"step {row}", edges[row], edges[row + 1]), why) for row, why in enumerate(reasons))
    return ()


def _main_thread(trace: Trace) -> int:
    """Code of the thread with ops or calls that is longest in annotations and frames, else in ops; -1 for none.

    Of threads that tell ops only, those of the autograd engine come last, though training spends most time there.
    """
    of_event = trace.events["thread"].cat.codes.to_numpy()
    dur_us = trace.events["dur_us"].to_numpy()

    def time_in(chosen: Flags) -> Floats:
        rows = np.flatnonzero(chosen)
        return np.bincount(of_event[rows], dur_us[rows], 1 + int(of_event.max(initial=-1))).astype(np.float64)

    in_ops, in_calls = time_in(is_any_of(trace, ("op",))), time_in(is_any_of(trace, ("runtime",)))
    told = time_in(is_any_of(trace, ("annotation", "python"))) * (in_ops + in_calls > 0)
    forward = in_ops * (time_in(are_named(trace, _AUTOGRAD)) == 0)
    return next((int(np.argmax(score)) for score in (told, forward, in_ops, in_calls) if score.any()), -1)


def _items(trace: Trace, thread: int) -> _Items:
    """Ops, annotations, modules and calls that issue device work on a thread, by start, then longer first."""
    mine = trace.events["thread"].cat.codes.to_numpy() == thread
    marks = (is_any_of(trace, ("python",)) & are_named(trace, _MODULE)) | are_named(trace, _LOADER)
    annotation = is_any_of(trace, ("annotation",)) & ~are_named(trace, _OF_THE_PROFILER)
    issuing = np.zeros(len(mine), dtype=np.bool_)
    launch = find_launches(trace)
    issuing[trace.launch_args["event"].to_numpy()[launch[launch >= 0]]] = True
    event = np.flatnonzero(mine & (marks | annotation | issuing | is_any_of(trace, ("op",))))
    start_ns, end_ns = starts_ns(trace, event), ends_of(trace, event)
    order = np.lexsort((-end_ns, start_ns))
    event = event[order]
    code = _codes(trace, event)
    return _Items(event, start_ns[order], end_ns[order], code, annotation[event], marks[event])


def _codes(trace: Trace, event: Ints) -> Ints:
    """Equal codes for events of one name and, of ops, with equal shapes and dtypes."""
    shapes = trace.signatures.groupby(["dims", "types"], dropna=False, sort=False).ngroup().to_numpy(np.int64)
    signature = np.full(len(trace.events), -1, dtype=np.int64)
    signature[trace.op_args["event"].to_numpy()] = whole(trace.op_args["signature"])
    shape = np.append(shapes, -1)[signature[event]]
    code: Ints = names(trace, event) * (len(shapes) + 1) + shape + 1
    return code


def _inside_of_wrappers(items: _Items) -> _Items:
    """The outermost items; of a lone annotation around all the rest, those inside it."""
    for _ in range(_DEEPEST):
        outermost = _outermost(items)
        if len(outermost) != 1 or not items.annotation[outermost[0]]:
            break
        items = items.part(np.flatnonzero(np.arange(len(items.event)) > outermost[0]))
    return items.part(_outermost(items))


def _outermost(items: _Items) -> Ints:
    """Rows that begin when all before them have ended."""
    ended_ns = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, items.end_ns))[:-1]
    rows: Ints = np.flatnonzero(items.start_ns >= ended_ns)
    return rows


def _stretches(items: _Items) -> list[tuple[int, int]]:
    """First row and end of all items, and of those between marks that come often: around them a program may prepare."""
    if not len(items.code):
        return []
    _, group, count = np.unique(items.code, return_inverse=True, return_counts=True)
    often = np.flatnonzero(items.marks & (count[group] >= _FEWEST_REPEATS)).tolist()
    return [(0, len(items.code)), *([(often[0], often[-1] + 1)] if often else [])]


def _bounds(items: _Items, low: int, high: int) -> Ints:
    """When the repeats of a stretch begin, and when the last of them ends; empty where it is no loop."""
    period = period_of(items.code[low:high])
    told = (items.marks | items.annotation)[low : low + period].any()
    # Linear, relu, linear, relu, linear is one pass: of bare ops nothing may be left over, not even part of a repeat.
    bare = high - low >= _FEWEST_ITEMS and (high - low) % period == 0
    if (high - low) // period < _FEWEST_REPEATS - 1 or not (told or bare):
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


def _holds_device_work(trace: Trace, bounds_ns: Ints) -> bool:
    """Whether most of the device's work, if there is any, is known to be launched between the bounds."""
    at_us = called_us(trace)
    inside = (at_us >= bounds_ns[0] / 1e3) & (at_us < bounds_ns[-1] / 1e3)
    return bool(inside.sum() >= _COVERED * len(at_us))


def _last_end(trace: Trace) -> int:
    """When the last op of any thread ends: a backward pass outlasts what the main thread records of it."""
    return int(ends_of(trace, events_of(trace, "op")).max(initial=0))


def _cuts_an_op(trace: Trace, bounds_ns: Ints) -> bool:
    """Whether an op of any thread runs at one of the bounds."""
    event = events_of(trace, "op")
    after = np.searchsorted(bounds_ns, starts_ns(trace, event), side="right")
    before = np.searchsorted(bounds_ns, ends_of(trace, event), side="left")
    return bool((after < before).any())


def _contents(trace: Trace, thread: int, bounds_ns: Ints) -> list[bytes]:
    """The ops of one thread in each repeat, by name and number, as something that is equal where they are.

    Not their order: in traces of whole microseconds, that of ops which begin in the same one is lost.
    """
    event = events_of(trace, "op")
    event = event[threads(trace, event) == thread]
    repeat = np.searchsorted(bounds_ns, starts_ns(trace, event), side="right")
    name = names(trace, event)
    order = np.lexsort((name, repeat))
    split = np.searchsorted(repeat[order], np.arange(1, len(bounds_ns) + 1))
    return [name[order[low:high]].tobytes() for low, high in pairwise(split.tolist())]


def _judge(contents: list[bytes]) -> list[str | None]:
    """Why each repeat does not count; all of them empty where too few that follow one another hold the same."""
    usual, _ = Counter(contents).most_common(1)[0]
    ends = [row for row, content in enumerate(contents) if content != usual]
    low, high = max(pairwise([-1, *ends, len(contents)]), key=lambda run: (run[1] - run[0], run[0]))
    if high - low - 1 < max(_FEWEST_REPEATS, len(contents) / 2):
        return []
    reasons: list[str | None] = [_APART if content == usual else _DIFFERENT for content in contents]
    reasons[low + 1 : high] = [None] * (high - low - 1)
    return reasons
