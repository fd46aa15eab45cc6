"""Rule of functions that loop in Python over what they read out of tensors."""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.hot_lines import HotLine
from bottleneck.advice.line_patterns import adds_to_item
from bottleneck.advice.loop_lines import LOOP_OF, loop_claims
from bottleneck.advice.quantities import event_spans, format_count, format_per_step, ops_in_window, outermost_spans
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.op_names import (
    LOADER_FETCH,
    OPTIMIZER_STEP,
    PYTHON_FRAME,
    at_source,
    function_source,
    line_source,
)
from bottleneck.schema.source_text import LIBRARY_FOLDER
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_us

_READS = re.compile(r"^aten::(?:item|is_nonzero)$")
# What is no loop over data: layers, training, a library, the interpreter's own calls.
_FOREIGN_FRAME = re.compile(r"^nn\.Module: |(?:^|> )run_backward$|^<built-in method run_backward")
_LIBRARY_FRAME = re.compile(rf"^<(?!ipython)|^nn\.Module: |{LIBRARY_FOLDER}")
# Ops that usually take longer compute; the part of its time that a loop of small ones spends in them at most.
_SMALL_US, _MOST_LONG = 50.0, 0.2
_LEAST_SHARE = 0.1
# Of such a function's time what arrays of NumPy save at least: 64 % for a greedy suppression of boxes (1.7 times as
# fast as a whole, 2.8 without it; torch 2.13, EPYC, one thread).
_LEAST = 0.6
_BOXES = re.compile(r"nms|iou|suppress|overlap|box", re.IGNORECASE)


class LoopedFunction(Struct, frozen=True):
    """Function of the program that reads a number in each round of a loop.

    ``sources`` are its own source and those of functions that run inside of it alone, ``lines`` those of the ops inside
    of it. Times and counts are per step, with all that it calls.
    """

    source: str
    sources: frozenset[str]
    lines: frozenset[str]
    us: float
    calls: float
    ops: float
    reads: float


@remembered
def looped_function(evidence: Evidence) -> LoopedFunction | None:
    """Finds the function with most time in calls that read in each round.

    No module, backward pass or optimizer runs in it, long ops take a fifth of it at most, and a call lies in one step.
    Null without Python calls in the trace.
    """
    if not evidence.is_host_only:
        return None
    events, ops = evidence.linked.trace.events, evidence.linked.ops
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    low, high = evidence.linked.window.host_us
    is_frame = (events["category"] == "python").to_numpy() & (start >= low) & (start < high)
    is_program = text_matches(events["name"], PYTHON_FRAME.match) & ~text_matches(events["name"], _LIBRARY_FRAME.search)
    rows = np.flatnonzero(is_frame & is_program)
    rows = rows[~outermost_spans(evidence, LOADER_FETCH).hold(start[rows])]
    foreign = is_frame & text_matches(events["name"], _FOREIGN_FRAME.search)
    foreign |= text_matches(events["name"], OPTIMIZER_STEP.search)
    outer = np.flatnonzero(ops_in_window(evidence) & (ops["depth"] == 0).to_numpy())
    outer = outer[np.argsort(ops["ts_us"].to_numpy()[outer], kind="stable")]
    at_us, dur_us = (ops[name].to_numpy()[outer] for name in ("ts_us", "dur_us"))
    is_read = text_matches(ops["name"], _READS.search)[outer]
    others = np.sort(np.concatenate([start[foreign], at_us[ops["is_autograd"].to_numpy()[outer]]]))
    spans = start[rows], np.minimum(end[rows], high)
    first, last = (np.searchsorted(at_us, bound) for bound in spans)
    reads_in, ops_in = _sums(is_read.astype(np.float64), first, last), last - first
    usual_us = ops.iloc[outer].groupby("name", observed=True)["dur_us"].transform("median").to_numpy()
    long_us = _sums(np.where(usual_us > _SMALL_US, dur_us, 0.0), first, last)
    step = np.append(as_integers(ops["step"])[outer], -1)
    other_in = np.searchsorted(others, spans[1]) - np.searchsorted(others, spans[0])
    other_in += step[first] != step[np.maximum(last - 1, first)]
    codes = events["name"].cat.codes.to_numpy()[rows]
    span_us, reads, other, long, calls = (
        np.bincount(codes, amounts)
        for amounts in (spans[1] - spans[0], reads_in, other_in, long_us, np.ones(rows.size))
    )
    is_loop = (reads >= LOOP_OF * np.maximum(calls, 1)) & (other == 0) & (long <= _MOST_LONG * span_us)
    outermost = _outermost(*spans, np.flatnonzero(is_loop[codes]))
    if not outermost.size:
        return None
    time_us = np.bincount(codes[outermost], (spans[1] - spans[0])[outermost])
    mine = outermost[codes[outermost] == time_us.argmax()]
    held = event_spans(evidence, rows[mine])
    scale = evidence.host_scale / evidence.steps
    return LoopedFunction(
        source=_source(evidence, int(rows[mine[0]])),
        sources=frozenset(_source(evidence, int(row)) for row in _only_inside(evidence, rows, held.hold(start[rows]))),
        lines=frozenset(map(str, ops["source"].iloc[outer[held.hold(at_us)]].dropna().unique())),
        us=held.total() * scale,
        calls=mine.size / evidence.steps,
        ops=float(ops_in[mine].sum()) / evidence.steps,
        reads=float(reads_in[mine].sum()) / evidence.steps,
    )


def _sums(amounts: Floats, first: Integers, last: Integers) -> Floats:
    """Sums the amounts between each pair of places."""
    sums = np.concatenate(([0.0], np.cumsum(amounts)))
    return np.asarray(sums[last] - sums[first])


def _outermost(start: Floats, end: Floats, rows: Integers) -> Integers:
    """Returns those of the rows whose spans lie in no other's."""
    order = rows[np.lexsort((-end[rows], start[rows]))]
    reach = np.concatenate(([-np.inf], np.maximum.accumulate(end[order])))[: order.size]
    return order[start[order] >= reach]


def _only_inside(evidence: Evidence, rows: Integers, is_inside: Flags) -> Integers:
    """Returns a row of each function whose calls are all inside."""
    codes = evidence.linked.trace.events["name"].cat.codes.to_numpy()[rows]
    inner = np.setdiff1d(codes[is_inside], codes[~is_inside])
    return rows[np.isin(codes, inner)][np.unique(codes[np.isin(codes, inner)], return_index=True)[1]]


def _source(evidence: Evidence, row: int) -> str:
    """The function of a frame by its name and the line of its definition."""
    name = str(evidence.linked.trace.events["name"].iloc[row])
    frame = PYTHON_FRAME.match(name)
    assert frame is not None, "only rows that match are looked at"
    return function_source(name[frame.end() :], line_source(frame["path"], frame["line"]))


def read_in_rounds(evidence: Evidence) -> Draft | None:
    """Finds a function that reads a number out of a tensor in each round.

    A loop goes by it, and calls small ops for a row at a time. Gain: the time of the function with all that it calls,
    less one round, from 60 % of it.
    """
    loop = looped_function(evidence)
    if loop is None or evidence.share_of_step(loop.us) < _LEAST_SHARE:
        return None
    high_us = loop.us * (1 - loop.calls / loop.reads)
    is_of_boxes = any(_BOXES.search(source.partition("(")[0]) for source in loop.sources)
    counting = _counting_line(evidence, loop)
    of_boxes = " Boxes have torchvision.ops.batched_nms, for all classes and images at once." if is_of_boxes else ""
    return Draft(
        slug="read-in-rounds",
        title="A Python loop reads a number out of a tensor in each round",
        evidence=(
            f"{loop.source} is called {counted(format_count(loop.calls), 'time')} per step and reads "
            f"{counted(format_count(loop.reads / loop.calls), 'number')} each time",
            f"it takes {format_per_step(evidence, loop.us)} with all that it calls: "
            f"{counted(format_count(loop.ops), 'op')}, one in {format_us(loop.us / loop.ops)}",
        ),
        advice=f"Replace the loop {at_source(loop.source)} by calls for all rows at once: a matrix of all pairs, a "
        f"mask, a sort.{of_boxes} Where a round needs the result of the one before, run it on lists or NumPy arrays, "
        "taken from the tensors once."
        if counting is None
        else f"Add up all rows at once in place of the loop {at_source(loop.source)}, which counts "
        f"{at_source(counting)}: torch.bincount (of row * columns + column for pairs), or index_put_(accumulate=True).",
        places=(loop.source, counting),
        code=_BINCOUNT
        if counting is not None
        else "keep = torchvision.ops.batched_nms(boxes, scores, labels, 0.5)  # in place of a loop with item()"
        if is_of_boxes
        else "rows = x.tolist()  # or x.numpy(): one read, in place of x[i].item() in each round",
        gain_us=Interval(_LEAST * high_us, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
    )


_BINCOUNT = "matrix += torch.bincount(target * n + predicted, minlength=n * n).view(n, n)  # all pairs at once"


def _counting_line(evidence: Evidence, loop: LoopedFunction) -> str | None:
    """Returns the line of the loop that adds to one item of a table.

    Null where none does.
    """
    texts = evidence.source_texts
    return next(
        (source for source in sorted(loop.lines) if adds_to_item(HotLine(source, (), 0.0, texts.get(source, "")))), None
    )


RULES = (read_in_rounds,)
