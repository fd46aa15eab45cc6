"""Rules of what the program itself does in Python.

They find loops that repeat small ops, and lines that take most of a step. Loops over tensors cost a call per row and
op; what a line of Python takes grows with the batch as they do.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.bare_loops import bare_loop, bare_update
from bottleneck.advice.kernel_work import Size, has_double, is_size, work_of
from bottleneck.advice.line_patterns import cuts_windows
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    format_per_step,
    host_us_per_launch,
    idle_rows,
    is_compiled,
    issue_part_us,
    line_at,
    model_calls,
    model_runs,
    ops_in_window,
    outermost_frames,
    outermost_spans,
    overhead_us_per_op,
    rows_of_ops,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.recurrent_cells import saved_by_sequence_us
from bottleneck.advice.removal import CERTAIN, autograd_records, backward_passes, removal_of, top_rows
from bottleneck.advice.removal import backward_of as backward_nodes
from bottleneck.advice.servers import find_server
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Fold, Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Integers, Spans, grouped, union
from bottleneck.schema.op_names import (
    AUTOGRAD_PREFIX,
    OPTIMIZER_STEP,
    RUNS_BACKWARD,
    at_source,
    backward_of,
    is_backward,
    place_of,
)
from bottleneck.schema.records import replace
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_share, format_us, listed

# A loop repeats an op on the same sizes at least so often in a step, in the same module or in none.
LOOP_OF = 16
_NOT_THE_PROGRAMS = re.compile(r"^Optimizer\.|^enumerate\(DataLoader\)|DataLoader\w*\.__next__|dataloader_next")
_LEAST_SHARE = 0.05
# A line with fewer of the runs of all loops of a step is no part of them.
_LEAST_RUNS = 0.05
# The part of a loop's time that its ops do not compute: below, the loop is not what holds it back.
_MOSTLY_OVERHEAD = 0.5
# The same where the loop steps a recurrent cell, or has so many rounds, and takes so much of the step.
_SOME_OVERHEAD, _MOST_OF_STEP, _MANY_ROUNDS = 0.15, 0.4, 64
# Of a loop's time what one op for all rows saves at least (its arithmetic stays): a speaker loss of 384 rounds took
# 52 % of its step, and next to nothing as one product (torch 2.13, EPYC, one thread).
_LEAST_OF_LOOP = 0.6
# Ops that torch has for a list of tensors, and what they save of a loop over single ones, state_dict() included: a
# moving average of 305 tensors took 27 to 32 % of its step by single ops (torch 2.13, EPYC, one thread), and next to
# nothing by _foreach_lerp_ over lists that are made once.
_IN_PLACE = re.compile(r"^aten::(?:add_|mul_|sub_|div_|lerp_|copy_|zero_|addcmul_|addcdiv_|clamp_\w*)$")
_OF_FOREACH = (0.5, 0.95)
# Traversing state_dict() detaches each tensor.
_TRAVERSES = "aten::detach"
BACKWARD_CALL = re.compile(r"^<built-in method run_backward|autograd[/\\]__init__\.py\(\d+\): backward$")
# What makes the text of a tensor.
_FORMATS = re.compile(r"torch[/\\]_tensor_str\.py\(\d+\): _str$")


# Rule 8: an op that picks one row, again and again from one line; its third argument is where.
_PICKS = ("aten::select", "aten::narrow", "aten::slice")
_INDEX = re.compile(r'^\["[^"]*", ?"[^"]*", ?"(-?\d{1,18})"')
_WHOLE = re.compile(r"^-?\d{1,3}$")
_LIBRARY_FRAME = re.compile(r"^<|^nn\.Module: |(?:^|[/\\])torch[/\\]")
_LOADER = re.compile(r"^enumerate\(DataLoader\)|DataLoader\w*\.__next__|dataloader_next")
_LEAST_PICKED = 0.02


class OpLoop(Struct, frozen=True):
    """Lines of one kind of loop.

    The one with most ops, how often it runs one, and time per step in all of them. ``lines`` are folds of the analysis,
    backward passes included. ``overhead`` is the part that computes nothing.
    """

    source: str
    lines: tuple[str, ...]
    count: float
    us: float
    overhead: float


@remembered
def program_ops(evidence: Evidence) -> pd.DataFrame:
    """Returns outermost ops of the program's own lines in the window.

    No backward pass, optimizer or loader.
    """
    ops = evidence.linked.ops
    outer = ops_in_window(evidence) & (ops["depth"] == 0).to_numpy() & ops["source"].notna().to_numpy()
    outer &= ~text_matches(ops["source"], is_backward)
    outer &= ~text_matches(ops["name"], lambda name: name.startswith(AUTOGRAD_PREFIX))
    rows = np.flatnonzero(outer & ops["signature"].notna().to_numpy())
    frames = (outermost_frames(evidence, pattern) for pattern in (BACKWARD_CALL, _FORMATS))
    for spans in (outermost_spans(evidence, _NOT_THE_PROGRAMS), *frames):
        rows = rows[~spans.hold(ops["ts_us"].to_numpy()[rows])]
    return ops.iloc[rows][["source", "name", "module", "signature", "thread", "step", "dur_us"]].reset_index(drop=True)


@remembered
def tensor_loop(evidence: Evidence) -> OpLoop | None:
    """Finds lines that change tensor after tensor in place.

    Outside of any module: parameters, gradients or averages.
    """
    work, ops = work_of(evidence), program_ops(evidence)
    ops = ops[ops["module"].isna()]
    mine = ops[text_matches(ops["name"], _IN_PLACE.search)]
    whole = {
        signature: bool(next(iter(work.sizes_of(signature)), ())) for signature in mine["signature"].unique().tolist()
    }
    mine = mine[mine["signature"].map(whole).to_numpy(dtype=bool)]
    counts = mine.groupby(["source", "name", "step"], observed=True, dropna=False).size()
    often = _per_source(counts, evidence.steps)
    # An average or a clipping has no gradient.
    often = {source: count for source, count in often.items() if not _has_backward(evidence, source)}
    if not often:
        return None
    files = {place.file for source in often if (place := place_of(source)) is not None}
    traversed = ops[text_matches(ops["name"], lambda name: name == _TRAVERSES)]
    walks = _per_source(traversed.groupby(["source", "name", "step"], observed=True).size(), evidence.steps)
    beside = [source for source in walks if (place := place_of(source)) is not None and place.file in files]
    changed = {work.sizes_of(signature)[0] for signature in mine["signature"][mine["source"].isin(often)].unique()}
    making = [source for source in _making(evidence, ops, changed, often) if source not in beside]
    return loop_of(evidence, often, (*often, *beside, *making))


def _making(evidence: Evidence, ops: pd.DataFrame, sizes: Collection[Size], lines: Collection[str]) -> Iterator[str]:
    """Finds lines of the same functions that make such tensors one by one.

    Such as new averages that are then copied into the old ones. Nothing that they make has a gradient.
    """
    work, function_of = work_of(evidence), _functions_of(evidence)
    functions = {function_of[line] for line in lines if line in function_of}
    others = ops[~ops["source"].isin(lines) & ops["source"].map(function_of).astype(object).isin(functions)]
    alike = {
        signature: next(iter(work.sizes_of(signature)), ()) in sizes
        for signature in others["signature"].unique().tolist()
    }
    made = others[others["signature"].map(alike).to_numpy(dtype=bool)]
    often = _per_source(made.groupby(["source", "name", "step"], observed=True).size(), evidence.steps)
    return (source for source in often if not _has_backward(evidence, source))


@remembered
def op_loop(evidence: Evidence) -> OpLoop | None:
    """Finds lines that run the same op on the same sizes again and again.

    In one step, in the same module or outside of any. Layers that one line calls one after the other are different
    modules, and the lines of the function that does so are no loop over rows. Loops over parameters are ``tensor_loop``
    and ``reading_loop``.
    """
    ops = program_ops(evidence)
    others = {
        line for loop in (tensor_loop(evidence), reading_loop(evidence)) if loop is not None for line in loop.lines
    }
    others |= layer_lines(evidence)
    same = ["source", "name", "module", "signature", "thread", "step"]
    often = _per_source(ops.groupby(same, observed=True, dropna=False).size(), evidence.steps)
    often = {source: count for source, count in often.items() if source not in others}
    if not any(map(_is_line, often)):
        # Where only the function is known, its lines may do the same one after the other, but not as often as a loop.
        plain = _per_source(ops[ops["module"].isna()].groupby(same, observed=True, dropna=False).size(), evidence.steps)
        often = {
            line: plain[line] for line in often if line in plain and _loops_in_a_call(evidence, line, plain[line][0])
        }
    return loop_of(evidence, often, tuple(often)) if often else None


@remembered
def layer_lines(evidence: Evidence) -> set[str]:
    """Returns the lines of functions that call one module after the other.

    They do so from outside of any module, and are the layers of a network whose forward pass is a method of another
    name.
    """
    runs = model_runs(evidence)
    kinds = runs.groupby("source", observed=True)["module"].agg(["nunique", "size"])
    layered = kinds[(kinds["nunique"] >= LOOP_OF) & (kinds["size"] < 2 * kinds["nunique"] * evidence.steps)].index
    function_of = _functions_of(evidence)
    lines = set(map(str, layered))
    # Of a script's own lines only these: the others may do anything.
    functions = {function_of[line] for line in lines if line in function_of and "<module>" not in function_of[line]}
    return lines | {line for line, function in function_of.items() if function in functions}


def _loops_in_a_call(evidence: Evidence, source: str, count: float) -> bool:
    """True for a function in which an op runs many times per call."""
    is_line, is_frame = _in_window(evidence, "line"), _in_window(evidence, "python")
    calls = int(_rows_of_source(evidence.linked.trace.events, source, is_line, is_frame).sum())
    # A function whose one call spans all steps, such as that of the training, runs each op once per step and more.
    return calls > 0 and count * evidence.steps >= _MANY_ROUNDS * max(calls, evidence.steps)


def _per_source(counts: "pd.Series[int]", steps: int) -> dict[str, tuple[float, float]]:
    """Returns the most runs of one op per step by line.

    And runs of all ops of a loop, where a line runs one often enough. Lines with few of all these runs are left out:
    they only belong to the same step.
    """
    counts = counts[counts >= LOOP_OF]
    if counts.empty:
        return {}
    by_line = counts.groupby(level="source", observed=True)
    in_step = counts.groupby(level=["source", "step"], observed=True).max().groupby(level="source", observed=True).sum()
    runs, whole = by_line.sum(), float(counts.sum())
    lines = zip(map(str, in_step.index), in_step.tolist(), runs[in_step.index].tolist(), strict=True)
    return {
        line: (most / steps, all_runs / steps)
        for line, most, all_runs in lines
        if most / steps >= LOOP_OF and all_runs >= _LEAST_RUNS * whole
    }


def _number_of(source: str) -> int:
    place = place_of(source)
    return 0 if place is None else place.line


def _is_line(source: str) -> bool:
    place = place_of(source)
    return place is not None and not place.is_function


def _has_backward(evidence: Evidence, source: str) -> bool:
    return any(fold.name == backward_of(source) for fold in evidence.analysis.lines)


def loop_of(evidence: Evidence, often: Mapping[str, tuple[float, float]], sources: Sequence[str]) -> OpLoop:
    """Returns the loop that these lines are.

    Each comes with its runs of one op and of all ops per step.
    """
    names = {name for source in sources for name in (source, backward_of(source))}
    folds = [fold for fold in evidence.analysis.lines if fold.name in names]
    part = _part_of_backward(evidence, folds)
    backward = [row for row in idle_rows(evidence, "python") if RUNS_BACKWARD.search(row.detail or "")]
    backward = [row for row in backward if row.source not in sources and part > 0]
    idle_us, busy_us = math.fsum(fold.idle_us for fold in folds), math.fsum(fold.us for fold in folds)
    idle_us += part * math.fsum(row.us for row in backward)
    overhead_us = idle_us + math.fsum(fold.us * fold.shares.get("overhead", 0.0) for fold in folds)
    # A line says more than the function that it is in.
    in_lines = [source for source in often if _is_line(source)]
    named = max(in_lines or list(often), key=lambda source: often[source][1])
    lines = (*(fold.name for fold in folds), *(row.source for row in backward if row.source is not None))
    whole_us = idle_us + busy_us
    return OpLoop(named, tuple(dict.fromkeys(lines)), often[named][0], whole_us, overhead_us / max(whole_us, 1e-9))


def _part_of_backward(evidence: Evidence, folds: Iterable[Fold]) -> float:
    """Returns the part of the calls of the backward pass that lines have.

    Its Python between ops goes with them.
    """
    backward = [fold for fold in evidence.analysis.lines if is_backward(fold.name)]
    calls = math.fsum(fold.calls for fold in backward)
    mine = math.fsum(fold.calls for fold in folds if is_backward(fold.name))
    return mine / calls if calls > 0 else 0.0


def _looped_ops(evidence: Evidence) -> Draft | None:
    """Finds lines that run the same small ops for row after row (rule 8).

    Here loops are nested, or pick nothing. Gain: the time of these lines, with their part of the backward pass, less
    one round of it; from 60 % of that, and less where they compute.
    """
    loop = op_loop(evidence)
    if loop is None or find_server(evidence) or is_compiled(evidence):
        return None  # the pieces of a compiled program, and the layers that a server calls, are no rows
    is_mostly = loop.overhead >= _MOSTLY_OVERHEAD
    if not is_mostly and not _costs_much(evidence, loop):
        return None
    high_us = loop.us * (1 - 1 / loop.count)
    if evidence.share_of_step(high_us) < _LEAST_SHARE:
        return None
    remedy, source = _remedy_of_loop(evidence, loop), _head_of_loop(evidence, loop)
    runs = source
    if remedy is _ROW_BY_ROW and source == loop.source:
        source = _calling_line(evidence, loop)
        runs = loop.source if source == loop.source else f"{loop.source}, called at {source},"
    if remedy is _SAMPLE_BY_SAMPLE and _adapts(evidence, loop):
        return None
    low_us = _LEAST_OF_LOOP * (1.0 if is_mostly else loop.overhead) * high_us
    carrying = _carrying_line(evidence, loop) if remedy is _ROW_BY_ROW else None
    if carrying is None and remedy in {_ROW_BY_ROW, _IN_FUNCTION} and goes_in_order(evidence, loop):
        remedy, (low_us, high_us) = _IN_ORDER, (part * high_us for part in _OF_SOLVED)
    elif carrying is not None:
        remedy, parts = (_SOLVED, _OF_SOLVED) if _ADDS.match(_texts(evidence)[carrying]) else (_CARRIED, _OF_CARRIED)
        source, (low_us, high_us) = carrying, (part * high_us for part in parts)
    cell = _cell_of(evidence, loop.source)
    if cell is not None and _has_doubles(evidence, loop.source):
        low_us, high_us = -LOST_OF_DOUBLES * high_us, LOST_OF_DOUBLES * high_us
    elif cell is not None and evidence.is_host_only and _remedy_by_text(evidence, loop) is None:
        low_us, high_us = saved_by_sequence_us(cell, loop.us, loop.count)
    return Draft(
        slug="looped-op",
        title=remedy.title,
        evidence=(
            f"{runs} runs the same op on the same sizes {counted(format_count(loop.count), 'time')} per step",
            f"{format_per_step(evidence, loop.us)} goes into the lines of the loop and their backward pass, "
            f"{format_share(loop.overhead)} of it calls that compute next to nothing",
        ),
        advice=remedy.advice.format(at=at_source(source)),
        brief=remedy.brief_at(at_source(source)),
        places=(source,),
        code=remedy.code,
        gain_us=Interval(low_us, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
        lines=loop.lines,
    )


def goes_in_order(evidence: Evidence, loop: OpLoop) -> bool:
    """True where each round of a loop was seen to need the one before."""
    return evidence.recording is not None and loop.source in evidence.recording.carried_lines


def _carrying_line(evidence: Evidence, loop: OpLoop) -> str | None:
    """Returns the line that hands a result of each round on to the next.

    It is a line of the loop (`h = torch.tanh(x[t] + self.h(h))`), or calls the function that is a round of it
    (`h = self.cell(x[:, t], h)`). Null where none is known.
    """
    texts = _texts(evidence)
    carrying = [source for source, text in texts.items() if _CARRIES.search(text) or _adds_to_input(source, texts)]
    inside = next((source for source in carrying if source in loop.lines), None)
    if inside is not None or not carrying:
        return inside
    events = evidence.linked.trace.events
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    is_line, is_frame = _in_window(evidence, "line"), _in_window(evidence, "python")
    file, _, function = _functions_of(evidence).get(loop.source, "").partition(": ")
    called = re.compile(rf"(?:^|[/\\]){re.escape(file)}\(\d+\): {re.escape(function)}$")
    rounds = start[is_frame & text_matches(events["name"], called.search)] if function else start[:0]
    for source in carrying:
        mine = _rows_of_source(events, source, is_line, is_frame)
        spans = union(start[mine], end[mine])
        if spans.hold(rounds).sum() >= _MOST_ROUNDS * loop.count * evidence.steps:
            return source
    return None


def _texts(evidence: Evidence) -> Mapping[str, str]:
    """Returns the text of each recorded line."""
    return {} if evidence.recording is None else evidence.recording.source_texts


def _adds_to_input(source: str, texts: Mapping[str, str]) -> bool:
    """True for a line that adds to what lines before it take.

    An example is `y = y + h * k1` after `k1 = f(t, y)`. A sum that no other line takes hands nothing on
    (`loss = loss + criterion(x[i])`).
    """
    added, place = _ADDS.match(texts[source]), place_of(source)
    if added is None or place is None or place.is_function:
        return False
    takes = re.compile(rf"^\w+\s*=[^=#]*\w\([^#]*\b{re.escape(added['state'])}\b")
    before = (f"{source.rpartition(':')[0]}:{place.line - number}" for number in range(1, _LINES_OF_ROUND))
    return any(takes.match(texts.get(line, "")) for line in before)


def _in_window(evidence: Evidence, category: str) -> Flags:
    """Mask of the trace's events of this category that begin in the window."""
    events = evidence.linked.trace.events
    low, high = evidence.linked.window.host_us
    inside = (events["ts_us"] >= low) & (events["ts_us"] < high) & (events["category"] == category)
    return np.asarray(inside.to_numpy())


def _head_of_loop(evidence: Evidence, loop: OpLoop) -> str:
    """Returns the loop's line, or the `for` in the next one.

    A comparison of tensors calls nothing that tells its own line.
    """
    texts = _texts(evidence)
    place = place_of(loop.source)
    if place is None or place.is_function or texts.get(loop.source, "").startswith(("for ", "while ")):
        return loop.source
    following = f"{place.file.rpartition('/')[2]}:{place.line + 1}"
    return following if texts.get(following, "").startswith("for ") else loop.source


def _calling_line(evidence: Evidence, loop: OpLoop) -> str:
    """Returns the line of the loop that calls the function with its ops.

    It is the outermost line of the loop that runs in each round and holds the loop's line; that line where none does.
    """
    events = evidence.linked.trace.events
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    is_line, is_frame = _in_window(evidence, "line"), _in_window(evidence, "python")
    inner = start[_rows_of_source(events, loop.source, is_line, is_frame)]
    around = {loop.source: 0.0}
    for source in loop.lines:
        rows = _rows_of_source(events, source, is_line, is_frame)
        spans = union(start[rows], end[rows])
        is_round = source != loop.source and _is_line(source) and rows.size >= LOOP_OF * evidence.steps
        if is_round and inner.size and spans.hold(inner).mean() >= _MOST_ROUNDS:
            around[source] = spans.total()
    return max(around, key=lambda source: around[source])


def _costs_much(evidence: Evidence, loop: OpLoop) -> bool:
    """True for a loop that takes most of the step with some overhead.

    It has many rounds, or is over a recurrent cell.
    """
    is_most = evidence.share_of_step(loop.us) >= _MOST_OF_STEP and loop.overhead >= _SOME_OVERHEAD
    return is_most and (loop.count >= _MANY_ROUNDS or _cell_of(evidence, loop.source) is not None)


class _LoopRemedy(Struct, frozen=True):
    """Kind of loop, and what takes its place.

    ``{at}`` in the advice stands for the line. ``brief`` is the change in a few words, where the advice is long.
    """

    title: str
    advice: str
    code: str
    brief: str | None = None

    def brief_at(self, line: str) -> str | None:
        """The change at this line in a few words."""
        return None if self.brief is None else self.brief.format(at=line)


_ROW_BY_ROW = _LoopRemedy(
    "A Python loop works on tensors row by row",
    "Do {at} for all rows at once (samples, steps, environments) what the loop does one by one.",
    "out = torch.bmm(batch, weights)  # or torch.vmap(function)(batch), or an op along a dimension",
)
_IN_FUNCTION = _LoopRemedy(
    "A Python loop runs the same small ops again and again",
    "Do what the loop {at} does for all its rounds at once (rows, samples, steps). Where a round needs the one before, "
    "do so with what does not, and compile the rest (torch.compile).",
    _ROW_BY_ROW.code,
    "Do for all rounds at once what the loop {at} does one by one, or compile a round where it needs the one before",
)
# A name that is made anew of itself: `h = self.cell(x[:, t], h)`.
_CARRIES = re.compile(r"^(?P<state>[A-Za-z_]\w*)(?:\s*,\s*\w+)*\s*=(?!=)[^#]*\([^#]*\b(?P=state)\b\s*[,)]")
_ADDS = re.compile(r"^(?P<state>[A-Za-z_]\w*)\s*(?:[+-]=|=\s*(?P=state)\s*[+-])")
# Lines of a round of such a loop, at most.
_LINES_OF_ROUND = 12
# Of the rounds of a loop: so many are calls from that line.
_MOST_ROUNDS = 0.9
# Of a loop whose rounds need one another: a cell of 96 numbers with a norm, over 50 steps, lost 28 % of its time with
# the products of its inputs ahead of the loop, and 53 % as one nn.GRU (torch 2.13, two threads of a Xeon).
_OF_CARRIED = (0.15, 0.6)
# Of the cells' time in fp64, which the module of the sequence computes by the same ops and some copies: two cells of 51
# numbers took 0.92 to 0.94 times as long as their module (torch 2.13, two threads of an EPYC).
LOST_OF_DOUBLES = 0.1
_CARRIED = _LoopRemedy(
    "A Python loop steps through a sequence, and each round needs the one before",
    "Compute ahead of the loop {at} what depends on the inputs alone, for all rounds at once, and compile the rest of "
    "a round (torch.compile). Where the cell is that of nn.GRU or nn.LSTM, call that once for the whole sequence.",
    "inputs = self.x_gates(x)  # (batch, time, gates), once; then h = self.cell(inputs[:, t], h)",
    "Compute ahead of the loop {at} what depends on the inputs alone, for all rounds at once",
)
# Of a loop of Runge and Kutta through a network of three layers, with its backward pass, torch.compile of a round took
# 15 and 27 % away with 64 numbers per layer, and added 8 % with 256 (torch 2.13, one thread of a Xeon, processor time).
_OF_SOLVED = (-0.1, 0.3)
_SOLVED = _LoopRemedy(
    "A Python loop takes step after step, and each needs the one before",
    "Take fewer and larger rounds of the loop {at}, where the accuracy allows it, or compile a round (torch.compile): "
    "none can run beside another, but its small ops become few.",
    "step = torch.compile(step)  # a function of the state: y = step(f, t, y, h)",
    "Take fewer rounds of the loop {at}, or compile one (torch.compile)",
)
_IN_ORDER = _LoopRemedy(
    _SOLVED.title,
    "Compile a round of the loop {at} (torch.compile), or let each round work on more rows (a larger batch): each "
    "needs the one before, so that none can run beside another.",
    _SOLVED.code,
    "Compile a round of the loop {at}, or give each round more rows: each needs the one before",
)
# A cell of a table that takes the ones beside it: `r[i - 1][j - 1]`, `r[i-1, j]`.
_RECURS = re.compile(r"\[\s*\w+\s*-\s*1\s*(?:\]\s*\[|,)\s*\w+(?:\s*-\s*1)?\s*\]")
_WAVE_BY_WAVE = _LoopRemedy(
    "A Python loop fills a table cell by cell, each from the cells beside it",
    "Compute {at} at once all cells that do not need one another: of such a table one antidiagonal after the other, "
    "each as one tensor.",
    "# cells (i, j) with i + j = k: previous, before = the antidiagonals k - 1 and k - 2\n"
    "new = cost[k] + softmin(torch.stack([before, previous[:, :-1], previous[:, 1:]]))",
    "Compute {at} one antidiagonal of the table at once, in place of cell by cell",
)
_CLIPS = re.compile(r"\bclip_grad_(?:norm|value)_\(")
_CLIPPED = _LoopRemedy(
    "Gradients are clipped parameter by parameter",
    "Clip {at} once for all parameters; by their norm together, which is what clipping usually means.",
    "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # once, outside of any loop",
)
# Of all parameters at once, in a loop: a sample after the other.
_CLIPS_ALL = re.compile(r"\bclip_grad_(?:norm|value)_\(\s*[^\[,]*(?:parameters\(\)|params\b)")
_SAMPLE_BY_SAMPLE = _LoopRemedy(
    "Gradients are computed for each sample by itself",
    "Compute the gradients of all samples at once, in place of one backward pass for each {at}: torch.func.vmap over "
    "torch.func.grad gives them per sample (to clip or to compare them). Where only their sum or mean is used, one "
    "backward pass of the batch's loss is the same.",
    "grads = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(params, x, y)  # per sample\n"
    "norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()  # to clip them",
    "Compute the gradients of all samples at once {at}: torch.func.vmap over torch.func.grad",
)
# A weight less its gradient by a learning rate: the next round of the loop works with the new weights.
_STEPS_BY_GRADIENT = re.compile(r"-\s*[\w.\[\]]*(?:lr|learning_rate|step_size)\b[\w.\[\]]*\s*\*")
_CELL = re.compile(r"(?:^|\.)(?P<kind>RNN|GRU|LSTM)Cell_\d{1,9}$")
_DIFFERENTIATES = re.compile(r"\b(?:jacobian|hessian)\(")
_DIFFERENTIATED = _LoopRemedy(
    "A Jacobian takes a backward pass for each output of each sample",
    "Take the derivatives {at} for each sample by itself, or of the outputs summed over the batch: across samples they "
    "are zero. torch.func.vmap over jacrev does it for all outputs at once, and so does vectorize=True.",
    "jac = torch.func.vmap(torch.func.jacrev(function))(x)  # x: (batch, n); jac: (batch, m, n)",
    "Take the derivatives {at} for each sample by itself: torch.func.vmap over jacrev",
)
_LEVEL_BY_LEVEL = _LoopRemedy(
    "A recursion works through trees node by node",
    "Work {at} through the trees level by level: all nodes of one depth, of all samples of a batch, as one tensor. "
    "Which node is at which depth depends on the data alone, and is known before the pass.",
    "for nodes, children in levels:  # deepest first; states: (all nodes of the batch, width)\n"
    "    states[nodes] = cell(x[nodes], states[children], which_parent)  # per level; index_add_ adds children",
    "Work through the trees level by level {at}: all nodes of one depth, of all samples, in one call",
)
# Of the ops of a loop that run in a function which calls itself; calls of it, at least, in each of which it does.
_MOSTLY_INSIDE, _LEAST_NESTED = 0.9, 0.2
_SPECTRAL = re.compile(r"SpectralNorm_\d{1,9}$")
_POWER_ITERATIONS = _LoopRemedy(
    "Spectral normalisation takes many power iterations for each weight",
    "Take one power iteration per step (n_power_iterations=1) for the layers {at}: the vector is kept from step to "
    "step, so that one is enough for weights that change slowly.",
    "layer = torch.nn.utils.parametrizations.spectral_norm(layer, n_power_iterations=1)",
    "Take one power iteration per step (n_power_iterations=1) for the layers {at}",
)
# Rows of a call: more are a batch, and the loop over calls another one, such as one over time.
FEW_ROWS = 4


def _remedy_by_text(evidence: Evidence, loop: OpLoop) -> _LoopRemedy | None:
    """Returns what the lines of a loop are known to do.

    Or the calls at them. Null where neither tells.
    """
    texts = _texts(evidence)
    text = texts.get(loop.source, "")
    table = (
        (_DIFFERENTIATES.search(text), _DIFFERENTIATED),
        (cuts_windows(text), _WINDOW_BY_WINDOW),
        (_recurses(evidence, loop.source), _LEVEL_BY_LEVEL),
        (_CLIPS_ALL.search(text) or _backward_calls(evidence) >= LOOP_OF, _SAMPLE_BY_SAMPLE),
        (_CLIPS.search(text), _CLIPPED),
        (_iterates(evidence, loop.source), _POWER_ITERATIONS),
        (any(_RECURS.search(texts.get(line, "")) for line in (loop.source, *loop.lines)), _WAVE_BY_WAVE),
    )
    return next((remedy for is_so, remedy in table if is_so), None)


def _recurses(evidence: Evidence, source: str) -> bool:
    """True where the ops of a line run in a function that calls itself.

    It is a function of the line's file.
    """
    events, ops, place = evidence.linked.trace.events, evidence.linked.ops, place_of(source)
    if place is None:
        return False
    own = re.compile(rf"(?:^|[/\\]){re.escape(place.file)}\(\d+\): (?!<)")
    rows = np.flatnonzero(_in_window(evidence, "python") & text_matches(events["name"], own.search))
    at_us = ops["ts_us"].to_numpy()[(ops["source"] == source).to_numpy(dtype=bool, na_value=False)]
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    for _, mine in grouped(events["name"].cat.codes.to_numpy()[rows]):
        calls = rows[mine][np.argsort(start[rows[mine]], kind="stable")]
        until_us = np.maximum.accumulate(end[calls])
        nested = np.count_nonzero(start[calls][1:] < until_us[:-1])
        inside = union(start[calls], end[calls]).hold(at_us)
        if nested >= max(_LEAST_NESTED * calls.size, LOOP_OF) and inside.sum() >= _MOSTLY_INSIDE * at_us.size > 0:
            return True
    return False


def _adapts(evidence: Evidence, loop: OpLoop) -> bool:
    """True for inner steps of meta-learning.

    Each takes the weights of the one before, so that none can be joined. With torch.func.vmap over its gradients such a
    program was 0.57 to 0.63 times as fast.
    """
    texts = _texts(evidence)
    return any(_STEPS_BY_GRADIENT.search(texts.get(line, "")) for line in (loop.source, *loop.lines))


def _remedy_of_loop(evidence: Evidence, loop: OpLoop) -> _LoopRemedy:
    """Row by row, or what the line of the loop is known to do."""
    by_text = _remedy_by_text(evidence, loop)
    if by_text is not None:
        return by_text
    kind = _cell_of(evidence, loop.source)
    if kind is not None:
        return _LoopRemedy(
            "A recurrent cell is stepped through time by a loop in Python",
            f"Call nn.{kind} once for the whole sequence in place of nn.{kind}Cell for each time step {{at}}: its loop "
            "over time is compiled, and its products with the inputs are one for all time steps. Where a step needs "
            "the output of the one before (decoding, attention), compute at least what depends on the inputs alone "
            "before the loop.",
            f"rnn = nn.{kind}(inputs, hidden, batch_first=True)  # weights: those of the cell, named weight_ih_l0 …\n"
            "out, state = rnn(x)  # x: (batch, time, inputs)",
        )
    rows, calls = rows_of_call(evidence, loop.source), model_calls(evidence).get(loop.source, (0.0, 0.0))[1]
    if rows is None or rows > FEW_ROWS or calls < LOOP_OF:
        place = place_of(loop.source)
        return _IN_FUNCTION if place is not None and place.is_function else _ROW_BY_ROW
    return _LoopRemedy(
        "The model is called again and again for few rows each",
        f"Call the model {{at}} once for the whole batch: it is called {format_count(calls)} times per step, for "
        f"{counted(rows, 'row')} each. Where a call needs the result of the one before, let several such loops "
        "(environments, sequences) run as one batch.",
        "out = model(inputs)  # inputs: (batch, …); loss = criterion(out, targets); loss.backward(), once",
    )


def _iterates(evidence: Evidence, source: str) -> bool:
    """True where most ops of a line that repeat run in spectral normalisation."""
    ops = program_ops(evidence)
    modules = [str(path) for path in ops["module"][(ops["source"] == source).to_numpy()].tolist()]
    return 2 * sum(_SPECTRAL.search(path) is not None for path in modules) > len(modules)


def _backward_calls(evidence: Evidence) -> float:
    """Backward passes per step."""
    return outermost_frames(evidence, BACKWARD_CALL).start.size / evidence.steps


def _cell_of(evidence: Evidence, source: str) -> str | None:
    """Returns RNN, GRU or LSTM where this line runs in its cell."""
    ops = program_ops(evidence)
    modules = ops["module"][(ops["source"] == source).to_numpy() & ops["module"].notna().to_numpy()].unique()
    return next((match["kind"] for path in modules.tolist() if (match := _CELL.search(str(path)))), None)


def _has_doubles(evidence: Evidence, source: str) -> bool:
    """True where ops of a line on a CPU compute in fp64."""
    ops = program_ops(evidence)
    calls = as_integers(ops["signature"])[(ops["source"] == source).to_numpy()]
    return evidence.is_host_only and any(
        has_double(work_of(evidence), call) for call in np.unique(calls[calls >= 0]).tolist()
    )


def rows_of_call(evidence: Evidence, source: str) -> int | None:
    """Returns the rows of the first input of modules at this line.

    It is that of the first op there. Null where none is known.
    """
    ops = program_ops(evidence)
    in_modules = ops["module"].notna().to_numpy()
    mine = ops["signature"][(ops["source"] == source).to_numpy() & in_modules]
    if mine.empty and source in (calls := model_calls(evidence)) and len(calls) == 1:
        mine = ops["signature"][in_modules]  # at lines of the module's own file
    sizes = next((shapes[0] for signature in mine.tolist() if (shapes := work_of(evidence).sizes_of(signature))), ())
    return None if not sizes else 1 if len(sizes) == 1 else int(sizes[0])


def loop_claims(evidence: Evidence, high_us: float) -> dict[str, float]:
    """Returns the accounts that the time of a loop's lines comes from.

    Up to so much.
    """
    accounts = (*ISSUE_ACCOUNTS, "overhead.launch_floor", "memory", "compute", *UNMODELLED_ACCOUNTS)
    return claims_of(evidence, *accounts, most_us=high_us)


def tensor_by_tensor(evidence: Evidence) -> Draft | None:
    """Finds parameters, gradients or averages changed one by one.

    One call changes a list of them. Gain: the time of these lines, from half of it.
    """
    loop = tensor_loop(evidence)
    if loop is None:
        return _tensors_without_lines(evidence)
    if loop.overhead < _MOSTLY_OVERHEAD or evidence.share_of_step(loop.us) < _LEAST_SHARE:
        return None
    return replace(
        _one_call(evidence, loop.us, f" {at_source(loop.source)}"),
        evidence=(
            f"{loop.source} changes {counted(format_count(loop.count), 'tensor')} in place per step, outside of any "
            "module and of the optimizer",
            f"{format_per_step(evidence, loop.us)} goes into the lines of the loop{_listed_lines(loop)}",
        ),
        places=(loop.source,),
        lines=loop.lines,
    )


def _tensors_without_lines(evidence: Evidence) -> Draft | None:
    """The same in a trace without lines, by ops that follow one another."""
    update = bare_update(evidence)
    us = 0.0 if update is None else update.us * evidence.host_scale
    if update is None or evidence.share_of_step(us) < _LEAST_SHARE:
        return None
    return replace(
        _one_call(evidence, us, ""),
        evidence=(
            f"{counted(format_count(update.changes), 'tensor')} of several sizes are changed in place per step, one "
            "after the other, outside of the optimizer",
            f"{format_per_step(evidence, us)} goes into that, by the first and the last of these ops",
        ),
        brief="Change all tensors in one call, such as torch._foreach_lerp_ for a moving average of the weights",
    )


def _one_call(evidence: Evidence, us: float, place: str) -> Draft:
    """The advice for a loop that takes so long per step.

    ``place`` names it, with a space ahead.
    """
    low, high = _OF_FOREACH
    return Draft(
        slug="tensor-by-tensor",
        title="A Python loop changes tensors one by one",
        evidence=(),
        advice=f"Change all tensors{place} in one call (torch._foreach_lerp_, _foreach_mul_, …), with lists of them "
        "that are made once.",
        code=_FOREACH,
        gain_us=Interval(low * us, high * us),
        claims=loop_claims(evidence, high * us),
        removes=True,
    )


_FOREACH = (
    "averages, weights = list(ema.parameters()), list(model.parameters())  # once\n"
    "torch._foreach_lerp_(averages, weights, 1 - decay)  # in each step"
)


def _listed_lines(loop: OpLoop) -> str:
    """': a.py:5 and a.py:6'; empty where one line is all of it."""
    lines = sorted(filter(_is_line, loop.lines), key=_number_of)
    return f": {listed(lines[:_NAMED_LINES])}" if len(lines) > 1 else ""


_NAMED_LINES = 4
# Ops by which the host reads numbers: the last is what `tolist` and `numpy` call.
_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::resolve_neg")
_LINE_NAME = re.compile(r"(?:^|[/\\])(?P<file>[^/\\]+)\((?P<line>\d+)\): (?P<function>.*)$")
# What takes the place of the loop: one call for all and one read, or the same every so many steps.
_SURE_OF_READING = 0.5


@remembered
def reading_loop(evidence: Evidence) -> OpLoop | None:
    """Finds lines of one function that read parameter after parameter.

    Or their gradients, outside of modules, backward pass and optimizer. The program changes none of these tensors in
    place, so that all the function makes is what the host reads. Sizes of parameters are those of the tensors that the
    optimizer's step takes.
    """
    sizes, work, ops = parameter_sizes(evidence), work_of(evidence), program_ops(evidence)
    # What has a gradient is a loss, whose sizes may be those of a parameter by chance.
    ops = ops[ops["module"].isna() & ~ops["source"].map(lambda source: _has_backward(evidence, source)).astype(bool)]
    if not sizes or ops.empty:
        return None
    on_parameter = {
        signature: bool(shapes := work.sizes_of(signature)) and shapes[0] in sizes
        for signature in ops["signature"].unique().tolist()
    }
    ops = ops.assign(
        function=ops["source"].map(_functions_of(evidence)).astype(object),
        reads=ops["name"].isin(_READS),
        works=ops["signature"].map(on_parameter).to_numpy(dtype=bool) & ~ops["name"].isin(_READS),
        changes=text_matches(ops["name"], _IN_PLACE.search) & ops["signature"].map(on_parameter).to_numpy(dtype=bool),
    )
    if ops["changes"].any():
        return None  # a clipping needs what it reads
    loops = []
    for function, mine in ops.groupby("function", observed=True, sort=False):
        often = min(int(mine["reads"].sum()), int(mine["works"].sum())) / evidence.steps
        worked = {work.sizes_of(signature)[0] for signature in mine["signature"][mine["works"]].unique().tolist()}
        if often >= LOOP_OF and _are_of_parameters(worked, sizes):
            lines = _lines_of_reading(evidence, mine)
            if lines:
                loops.append(loop_of(evidence, lines, (*lines, *_beside(evidence, str(function), tuple(lines)))))
    return max(loops, key=lambda loop: loop.us, default=None)


# Of the sizes of all parameters: what is read of each of them comes in at least so many.
_MOST_SIZES = 0.5


def _are_of_parameters(worked: Set[tuple[int, ...]], sizes: Set[tuple[int, ...]]) -> bool:
    """True where tensors of these sizes are the parameters of those.

    One size that is theirs may be that of a box by chance, and that of a bias is often the size of a batch or of a
    list of classes: a weight is among them, where there is one.
    """
    weights = {size for size in sizes if len(size) > 1}
    return len(worked & sizes) >= _MOST_SIZES * len(sizes) and (not weights or not weights.isdisjoint(worked))


@remembered
def parameter_sizes(evidence: Evidence) -> frozenset[tuple[int, ...]]:
    """Returns sizes of the tensors that an optimizer's step takes.

    One by one, or in lists.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    inside = outermost_spans(evidence, OPTIMIZER_STEP).hold(ops["ts_us"].to_numpy()) & ops["signature"].notna()
    shapes = set()
    for signature in ops["signature"][inside].unique().tolist():
        for dims in work.text_column("dims", int(signature))[:1]:
            parts = dims if isinstance(dims, list) and dims and isinstance(dims[0], list) else [dims]
            shapes |= {tuple(part) for part in parts if is_size(part) and part}
    return frozenset(shapes)


@remembered
def _functions_of(evidence: Evidence) -> dict[str, str]:
    """Returns 'train.py: log' of each source.

    It is the function that a line is in by its events, or of which a source is.
    """
    events = evidence.linked.trace.events
    names = events["name"][(events["category"] == "line").to_numpy()].unique().tolist()
    of_lines = {f"{match['file']}:{match['line']}": match for name in names if (match := _LINE_NAME.search(str(name)))}
    functions = {line: f"{match['file']}: {match['function']}" for line, match in of_lines.items()}
    for fold in evidence.analysis.lines:
        place = place_of(fold.name)
        if place is not None and place.is_function and not is_backward(fold.name):
            functions[fold.name] = f"{place.file}: {fold.name.partition(' (')[0].removesuffix('()')}"
    return functions


def _lines_of_reading(evidence: Evidence, ops: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Returns the lines that run ops for most parameters.

    With runs of the op that they run most and of all, per step.
    """
    counts = ops.groupby(["source", "name"], observed=True).size() / evidence.steps
    by_line = counts.groupby(level="source", observed=True)
    lines = zip(map(str, by_line.max().index), by_line.max().tolist(), by_line.sum().tolist(), strict=True)
    return {line: (most, runs) for line, most, runs in lines if most >= LOOP_OF and not _has_backward(evidence, line)}


def _beside(evidence: Evidence, function: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """Returns sources of the same function that run as often without an op.

    And the function itself where it is not the step's. It is the step's where a module, a backward pass or an optimizer
    runs in it.
    """
    folds = [fold for fold in evidence.analysis.lines if _functions_of(evidence).get(fold.name) == function]
    counts = evidence.linked.trace.events["name"][_in_window(evidence, "line")].value_counts()
    often = {
        f"{match['file']}:{match['line']}"
        for name, count in counts.items()
        if count >= LOOP_OF * evidence.steps and (match := _LINE_NAME.search(str(name)))
    }
    whole = [fold.name for fold in folds if not _is_line(fold.name)]
    own = _own_lines(evidence, whole, with_ops=True)
    sources = [fold.name for fold in folds if fold.name in often or fold.name in own]
    return tuple(source for source in sources if source not in lines)


@remembered
def reading_spans(evidence: Evidence) -> Spans:
    """Finds when the host reads parameter after parameter, without lines.

    That is the time of runs of outermost ops outside of modules, backward pass, optimizer and loader. All of them take
    tensors of the sizes of parameters, or single numbers; a run has 16 reads, and as many ops on parameters. Where a
    device works, it counts from the end of its first read on, which waits for work queued before. As in
    ``reading_loop``, the program changes no such tensor, and nothing goes into a loss.
    """
    ops, sizes, work = evidence.linked.ops, parameter_sizes(evidence), work_of(evidence)
    nothing = union(np.zeros(0), np.zeros(0))
    if not sizes or ops["source"].notna().any():
        return nothing
    rows = np.flatnonzero(ops_in_window(evidence) & (ops["depth"] == 0).to_numpy())
    columns = ["name", "signature", "module", "is_autograd", "step", "ts_us", "dur_us"]
    top = ops.iloc[rows][columns].assign(row=rows).sort_values("ts_us", kind="stable")
    others = top["module"].notna() | top["is_autograd"]
    others |= outermost_spans(evidence, _NOT_THE_PROGRAMS).hold(top["ts_us"].to_numpy())
    takes = {code: next(iter(work.sizes_of(code)), ()) for code in top["signature"].dropna().unique().tolist()}
    top["reads"] = top["name"].isin(_READS)
    top["works"] = (
        top["signature"].isin([code for code, size in takes.items() if size in sizes]) & ~top["reads"] & ~others
    )
    if (top["works"].to_numpy() & text_matches(top["name"], _IN_PLACE.search)).any():
        return nothing
    # Before `tolist` and `numpy` read a tensor, they resolve what is lazy in it.
    is_number = top["signature"].isin([code for code, size in takes.items() if not size])
    is_number |= top["name"] == "aten::resolve_conj"
    top["looks"] = (top["reads"] | top["works"] | is_number) & ~others
    top["run"] = (~top["looks"]).cumsum()
    begins, ends = [], []
    for _, run in top[top["looks"]].groupby(["run", "step"], sort=False):
        worked = {takes[code] for code in run["signature"][run["works"]].unique().tolist()}
        if min(run["reads"].sum(), run["works"].sum()) < LOOP_OF or not _are_of_parameters(worked, sizes):
            continue
        if backward_nodes(evidence, run["row"]):
            continue
        end = (run["ts_us"] + run["dur_us"]).to_numpy()
        begins.append(run["ts_us"].iloc[0] if evidence.is_host_only else end[int(np.argmax(run["reads"]))])
        ends.append(end[-1])
    return union(np.array(begins), np.array(ends))


def _logged_without_lines(evidence: Evidence) -> Draft | None:
    """Finds the same where no line is known.

    Gain: the time of these runs, from 90 % of it.
    """
    spans = reading_spans(evidence)
    us = spans.total() / evidence.steps * evidence.host_scale
    if evidence.share_of_step(us) < _LEAST_SHARE:
        return None
    ops = evidence.linked.ops
    inside = ops[spans.hold(ops["ts_us"].to_numpy()) & (ops["depth"] == 0).to_numpy()]
    by_op = inside.groupby("name", observed=True)["dur_us"].agg(["sum", "size"]).sort_values("sum", ascending=False)
    name, (most_us, calls) = str(by_op.index[0]), by_op.iloc[0]
    reads = int(inside["name"].isin(_READS).sum()) / evidence.steps
    return Draft(
        slug="logged-parameters",
        title="Numbers of every parameter are read out in each step",
        evidence=(
            f"ops on parameters or gradients one by one, outside of model, backward pass and optimizer, whose results "
            f"are read {counted(format_count(reads), 'time')} per step",
            f"{format_per_step(evidence, us)} goes into that, most of it {name}: "
            f"{format_us(most_us / evidence.steps * evidence.host_scale)} in "
            f"{counted(format_count(calls / evidence.steps), 'call')}",
        ),
        advice=f"Log the statistics of parameters and gradients ({name} and others) every so many steps only.",
        code="if step % 100 == 0:\n    log(model)",
        gain_us=Interval(CERTAIN * us, us),
        claims=loop_claims(evidence, us),
        removes=True,
    )


def logged_parameters(evidence: Evidence) -> Draft | None:
    """Finds norms, means or histograms of every parameter or gradient.

    They are read out in each step. Gain: the time of these lines with all that they call, from half of it. At most by
    their part of the profiled steps, where the ledger has charged less of it to them.
    """
    loop = reading_loop(evidence)
    if loop is None:
        return _logged_without_lines(evidence)
    if evidence.share_of_step(loop.us) < _LEAST_SHARE:
        return None
    inside = _own_lines(evidence, loop.lines, with_ops=True).values()
    spans = union(*(np.concatenate([getattr(part, end) for part in inside]) for end in ("start", "end")))
    low = _SURE_OF_READING * loop.us
    high = max(loop.us, spans.total() / evidence.steps * evidence.host_scale)
    calling = {fold.name for fold in evidence.analysis.lines if fold.calls > 0}
    shown = sorted((line for line in loop.lines if _is_line(line) and line in calling), key=_number_of) or [loop.source]
    return Draft(
        slug="logged-parameters",
        title="Numbers of every parameter are read out in each step",
        evidence=(
            f"{', '.join(shown[:4])}: ops on parameters or gradients one by one, whose results are read, "
            f"{counted(format_count(loop.count), 'time')} per step",
            f"{format_per_step(evidence, loop.us)} goes into these lines: their ops, dispatching, Python and reads",
        ),
        advice=f"Log what {' and '.join(dict.fromkeys((shown[0], shown[-1])))} read of each parameter every so many "
        "steps only, or with torch._foreach_norm and one read.",
        code="if step % 100 == 0:\n    log(model)\n"
        "norms = torch.stack(torch._foreach_norm(gradients)).tolist()  # one read for all",
        gain_us=Interval(low, high),
        claims=claims_of(
            evidence, "overhead.sync", *ISSUE_ACCOUNTS, "overhead.launch_floor", "memory", "compute",
            *UNMODELLED_ACCOUNTS, most_us=high,
        ),
        removes=True,
    )  # fmt: skip


# A call of a logger whose text is made before the call: by an f-string, format() or the operator %.
_LOGS_MADE_TEXT = re.compile(
    r"\blog\w*\.(?:debug|info|warn\w*|error|log|critical|trace)\("
    r".*(?:\bf[\"']|\bstr\(|\brepr\(|\.format\(|[\"'] *%|[\"'] *\+)",
    re.IGNORECASE,
)


def printed_tensor(evidence: Evidence) -> Draft | None:
    """Finds a step that makes the text of tensors.

    It does so number by number, to print or log them. Gain: the time of that, from 90 % of it.
    """
    spans = outermost_frames(evidence, _FORMATS)
    us = spans.total() / evidence.steps * evidence.host_scale
    if evidence.share_of_step(us) < _LEAST_SHARE:
        return None
    us_at: dict[str | None, float] = {}
    for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
        line = line_at(evidence, start)
        us_at[line] = us_at.get(line, 0.0) + end - start
    line = max(us_at, key=lambda place: us_at[place])
    texts = _texts(evidence)
    is_logged = _LOGS_MADE_TEXT.search(texts.get(line or "", "")) is not None
    return Draft(
        slug="printed-tensor",
        title="Tensors become text for log messages, written or not"
        if is_logged
        else "The text of whole tensors is made in each step",
        evidence=(
            f"{counted(format_count(spans.start.size / evidence.steps), 'tensor')} per step become text "
            f"{at_source(line)}: {format_per_step(evidence, us)}",
            "each number of it is formatted by Python",
        ),
        advice=f"Let logging format the tensor {at_source(line)} itself, and only if the level is on: pass it as an "
        "argument in place of an f-string, which is made before logging looks at the level. Or guard the call by "
        "logger.isEnabledFor(logging.DEBUG), or remove it."
        if is_logged
        else f"Print or log the tensor {at_source(line)} every so many steps only, or numbers that sum it up.",
        brief=f"Let logging format the tensor {at_source(line)} itself, and only if the level is on",
        places=(line,),
        code='logger.debug("output: %s", out)  # no text where DEBUG is off'
        if is_logged
        else "if step % 100 == 0:\n    print(step, out.shape, out.mean().item())  # not the tensor itself",
        gain_us=Interval(0.9 * us, us),
        claims=loop_claims(evidence, us),
        removes=True,
    )


# Lines of Python below this part of the step are not worth a change.
_LEAST_LINE = 0.1
# What Python of its own takes, from half of it: its work has to be done somewhere, or in another way.
_OF_LINE = (0.5, 1.0)
_FOREIGN_FRAME = re.compile(r"(?:^|[/\\])torch[/\\]|^nn\.Module: ")
_STEP_FRAME = re.compile(r"^nn\.Module: |(?:^|> )run_backward$|^<built-in method run_backward")
_LONGEST_TEXT = 80


class SlowLine(Struct, frozen=True):
    """Line of the program that runs Python of its own, and no torch.

    Time per step with functions that it calls.
    """

    source: str
    lines: tuple[str, ...]
    us: float


@remembered
def slow_line(evidence: Evidence) -> SlowLine | None:
    """The line with most time in Python of its own; null without recorded lines.

    Lines in which torch runs (ops, modules, optimizers) are not among them. A function whose lines were not recorded
    counts to the line that calls it.
    """
    us: dict[str, float] = {}
    for row in idle_rows(evidence, "python"):
        if row.source is not None:
            us[row.source] = us.get(row.source, 0.0) + row.us
    spans = _own_lines(evidence, [source for source in us if evidence.share_of_step(us[source]) >= _LEAST_LINE / 4])
    best = None
    for source, open_ in spans.items():
        if not _is_line(source):
            continue
        inner = [other for other, held in spans.items() if other != source and _lies_in(held, open_, other)]
        candidate = SlowLine(source, (source, *inner), us[source] + math.fsum(us[other] for other in inner))
        best = candidate if best is None or candidate.us > best.us else best
    return best


def _lies_in(inner: Spans, outer: Spans, source: str) -> bool:
    """True for a function whose calls all lie in these spans."""
    place = place_of(source)
    return place is not None and place.is_function and bool(outer.hold(inner.start).all())


def _own_lines(evidence: Evidence, sources: Sequence[str], *, with_ops: bool = False) -> dict[str, Spans]:
    """Returns the spans in the window of sources in which torch runs nothing.

    But ops ``with_ops``.
    """
    events = evidence.linked.trace.events
    low, high = evidence.linked.window.host_us
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    inside = (start >= low) & (start < high)
    is_line, is_frame = ((events["category"] == name).to_numpy() & inside for name in ("line", "python"))
    marks = events["category"].isin(("annotation",) if with_ops else ("op", "annotation")).to_numpy() & inside
    foreign = _STEP_FRAME if with_ops else _FOREIGN_FRAME
    marks |= is_frame & text_matches(events["name"], foreign.search)
    at_us = np.sort(start[marks])
    by_source = {}
    for source in sources:
        rows = _rows_of_source(events, source, is_line, is_frame)
        spans = union(start[rows], np.minimum(end[rows], high))
        begun = np.searchsorted(at_us, spans.start), np.searchsorted(at_us, spans.end)
        if spans.start.size and not np.any(begun[1] > begun[0]):
            by_source[source] = spans
    return by_source


def _rows_of_source(events: pd.DataFrame, source: str, is_line: Flags, is_frame: Flags) -> Flags:
    """Mask of the events of a line, or of the frames of a function."""
    place = place_of(source)
    if place is None or is_backward(source):
        return np.zeros(len(events), dtype=bool)
    ending = re.compile(rf"(?:^|[/\\]){re.escape(place.file)}\({place.line}\): ")
    return np.asarray((is_frame if place.is_function else is_line) & text_matches(events["name"], ending.search))


def python_line(evidence: Evidence) -> Draft | None:
    """Finds a line whose own Python takes a tenth of the step and more.

    Known patterns are `slow_call`'s. Gain: that time, from half of it.
    """
    line = slow_line(evidence)
    if line is None or evidence.share_of_step(line.us) < _LEAST_LINE:
        return None
    texts = _texts(evidence)
    text = texts.get(line.source, "")
    low, high = (part * line.us for part in _OF_LINE)
    return Draft(
        slug="python-line",
        title="Python of the program takes a part of each step",
        evidence=(
            f"{line.source} takes {format_per_step(evidence, line.us)} in Python, and runs no op"
            + (f": {text[:_LONGEST_TEXT]}" if text else ""),
        ),
        advice=f"Take the Python {at_source(line.source)} out of the step: computed once and kept, or in the loader's "
        "workers, or do it for the whole batch at once.",
        brief=f"Take the Python {at_source(line.source)} out of the step, or do it for the whole batch at once",
        places=(line.source,),
        code="values = numpy.fromiter(items, dtype=float)  # or an op for the batch, or a worker of the DataLoader",
        gain_us=Interval(low, high),
        claims=claims_of(evidence, "overhead.python", most_us=high),
        removes=True,
        lines=line.lines,
    )


_EQUALS = frozenset({"aten::eq", "aten::eq_", "aten::ne"})
# One pass over the data takes the place of all: what is saved of the loop at least; and from where it comes first.
_LEAST_OF_CLASSES, _MOST_CLASSES_FIRST = 0.6, 0.4


def class_by_class(evidence: Evidence) -> Draft | None:
    """Finds a loop that compares one tensor with number after number.

    It works on each mask: a metric, or a lookup, by class. Lines without a backward pass. Gain: the time of the lines
    that run ops of these sizes as often, less four passes.
    """
    ops, work = program_ops(evidence), work_of(evidence)
    pairs = {code: work.sizes_of(code) for code in ops["signature"].unique().tolist()}
    compared = ops[text_matches(ops["name"], _EQUALS.__contains__)]
    compared = compared[compared["signature"].map(lambda code: _with_a_number(pairs[code])).to_numpy(dtype=bool)]
    counts = Counter(
        (str(source), pairs[signature][0], step)
        for source, signature, step in compared[["source", "signature", "step"]].itertuples(index=False)
    )
    (source, size, _), count = max(counts.items(), key=lambda code: code[1], default=(("", (), 0), 0))
    if count < LOOP_OF:
        return _classes_without_lines(evidence)
    mine = ops[ops["signature"].map(lambda code: next(iter(pairs[code]), ()) == size).to_numpy(dtype=bool)]
    runs = mine.groupby(["source", "name", "step"], observed=True, dropna=False).size()
    lines = sorted({str(code[0]) for code in runs[runs >= LOOP_OF].index})
    folds = [fold for fold in evidence.analysis.lines if fold.name in lines]
    us = math.fsum(_part_in_rounds(ops, runs, fold.name) * fold.us + fold.idle_us for fold in folds)
    if evidence.share_of_step(us) < _LEAST_SHARE or any(_has_backward(evidence, line) for line in lines):
        return None
    high_us = us * (1 - min(4 / max(count, 1), 1.0))
    return replace(
        _class_draft(size, count, _comparing_line(evidence, source, us)),
        evidence=(
            f"{source} compares a tensor of {'x'.join(map(str, size))} with a number {count} times per step",
            f"{format_per_step(evidence, us)} goes into {', '.join(lines[:4])}",
        ),
        gain_us=Interval(_LEAST_OF_CLASSES * high_us, high_us),
        claims=loop_claims(evidence, high_us),
        lines=tuple(fold.name for fold in folds),
        comes_first=evidence.share_of_step(us) >= _MOST_CLASSES_FIRST,
    )


def _class_draft(size: Sequence[int], count: int, line: str | None) -> Draft:
    """The advice in place of a loop over classes, with the line that compares."""
    loop = f"the loop {at_source(line)}" if line is not None else "the loop"
    return Draft(
        slug="class-by-class",
        title="A loop goes over all data once for each class",
        evidence=(f"a tensor of {'x'.join(map(str, size))} is compared with a number {count} times per step",),
        advice=f"Compute all classes at once in place of {loop}: one torch.bincount of target * classes + prediction "
        "is the confusion matrix, whose diagonal, rows and columns hold the sums of all classes.",
        brief=f"Compute all classes at once, with torch.bincount, in place of {loop}",
        places=(line,),
        code="matrix = torch.bincount((target * classes + prediction).flatten(), minlength=classes**2)\n"
        "matrix = matrix.view(classes, classes)  # other lookups by key: sort by the key once, or scatter_add",
        removes=True,
    )


def _classes_without_lines(evidence: Evidence) -> Draft | None:
    """Finds such a loop on a CPU where the trace holds no lines.

    Its ops lie between the first and the last comparison of a step, on tensors of that size or on single numbers.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    if not evidence.is_host_only or ops["source"].notna().any():
        return None
    compares = text_matches(ops["name"], _EQUALS.__contains__)[top]
    if np.count_nonzero(compares) < LOOP_OF:
        return None
    calls, step = as_integers(ops["signature"])[top].tolist(), as_integers(ops["step"])[top]
    sizes = {call: work.sizes_of(call) for call in set(calls)}
    first = [tuple(next(iter(sizes[call]), ())) for call in calls]
    compares &= np.array([_with_a_number(sizes[call]) for call in calls], dtype=bool)
    counts = Counter((first[at], int(step[at])) for at in np.flatnonzero(compares).tolist())
    (size, _), count = max(counts.items(), key=lambda code: code[1], default=(((), 0), 0))
    if count < LOOP_OF:
        return None
    compares &= np.array([one == size for one in first], dtype=bool)
    inside = np.zeros(top.size, dtype=bool)
    for number in np.unique(step[compares]).tolist():
        places = np.flatnonzero(compares & (step == number))
        inside[places[0] : places[-1] + 1] = places.size >= LOOP_OF
    rows = top[inside & np.array([one == size or math.prod(one) == 1 for one in first], dtype=bool)].tolist()
    removal = removal_of(evidence, rows)
    if evidence.share_of_step(removal.us) < _LEAST_SHARE or autograd_records(evidence, np.array(rows)).any():
        return None
    high_us = removal.gain.high * (1 - min(4 / count, 1.0))
    draft = _class_draft(size, count, None)
    return replace(
        draft,
        evidence=(*draft.evidence, f"{format_per_step(evidence, removal.us)} goes into the ops of that loop"),
        gain_us=Interval(_LEAST_OF_CLASSES * high_us, high_us),
        claims=removal.claims,
    )


def _part_in_rounds(ops: pd.DataFrame, runs: pd.Series, source: str) -> float:
    """Returns the part of a source's time that is in rounds of a loop.

    It is in ops that run as often. Where the source is a function, ops before its loop are among its time.
    """
    mine = ops[ops["source"] == source]
    often = {code[1] for code in runs[runs >= LOOP_OF].index if code[0] == source}
    whole_us = float(mine["dur_us"].sum())
    return float(mine["dur_us"][mine["name"].isin(often)].sum()) / whole_us if whole_us > 0 else 1.0


def _with_a_number(sizes: Sequence[Sequence[int]]) -> bool:
    """True for a tensor and a number.

    Of a number a trace has no sizes, or none that say more than one.
    """
    return bool(sizes) and math.prod(sizes[0]) > 1 and all(math.prod(size) == 1 for size in sizes[1:])


def _comparing_line(evidence: Evidence, source: str, us: float) -> str:
    """Returns the sampled line of this function that compares.

    The source itself where none was sampled.
    """
    run = evidence.analysis.run
    sampled = {} if run is None else run.spread(source, us, {})
    return next((line.source for line in sampled if "==" in (line.text or "") or "!=" in (line.text or "")), source)


def looped_op(evidence: Evidence) -> Draft | None:
    """Finds a line that works on a tensor row by row (rule 8).

    The loop that takes more time, of picks or of the same small ops.
    """
    kinds = (_looped_ops(evidence), _looped_picks(evidence), _looped_order(evidence), _looped_passes(evidence))
    drafts = [draft for draft in kinds if draft is not None]
    return max(drafts, key=lambda draft: 0.0 if draft.gain_us is None else draft.gain_us.high, default=None)


_PICK_BY_PICK = _LoopRemedy(
    "A Python loop works on a tensor row by row",
    "Do {at} for the whole tensor at once what the loop does row by row. Where a row needs the result of the one "
    "before, do so with what depends on the rows alone, before the loop.",
    "out = torch.bmm(batch, weights)  # or torch.vmap(function)(batch), or an op along a dimension",
    "Do {at} for the whole tensor at once what the loop does row by row",
)
_WINDOW_BY_WINDOW = _LoopRemedy(
    "Windows of a tensor are cut one by one in a Python loop",
    "Take all windows {at} in one call in place of a slice for each: x.unfold(0, width, 1) is a view of all of them, "
    "and x[starts[:, None] + torch.arange(width)] gathers those at any starts. Where the tensor is the same in later "
    "steps, make the windows once, before the loop.",
    "windows = x.unfold(0, width, 1)  # (len(x) - width + 1, width), a view: in place of x[i:i + width] for each i",
    "Take all windows {at} in one call, x.unfold(0, width, 1), in place of a slice for each",
)


def _looped_picks(evidence: Evidence) -> Draft | None:
    """Finds a line that takes row after row of a tensor.

    It picks the rows, or unbinds the tensor. It works on each of them alone. The gain is N - 1 passes at the cost of a
    launch (CPU: of three ops, the pick, the work and its result), and no more than the overhead at that line. Where the
    trace has no lines it is the overhead of all rounds but one, and at least that of one op in each. Loops of data
    loaders are another rule's.
    """
    picked = _most_picked(evidence) or _most_unbound(evidence)
    if picked is None:
        return None
    source, name, count = picked
    lost_us = sum(
        issue_part_us(row) for row in idle_rows(evidence, "dispatch", "python", "launch") if row.source == source
    )
    if evidence.is_host_only:
        lost_us += sum(row.us for row in evidence.analysis.kernels if row.source == source and row.bound == "dispatch")
    per_op_us = 3 * (overhead_us_per_op(evidence) or 0.0) if evidence.is_host_only else host_us_per_launch(evidence)
    high_us = min(lost_us, (count - 1) * (per_op_us or 0.0))
    gain_us = Interval(high_us / 2, high_us)
    if source is None:
        ops_per_round, part = _rounds(evidence, count)
        high_us = lost_us * part * (1 - 1 / count)
        gain_us = Interval(high_us / ops_per_round, high_us)
    if evidence.share_of_step(high_us) < _LEAST_PICKED:
        return None
    text = "" if evidence.recording is None or source is None else evidence.recording.source_texts.get(source, "")
    remedy = _WINDOW_BY_WINDOW if cuts_windows(text) else _PICK_BY_PICK
    times = counted(format_count(count), "time")
    return Draft(
        slug="looped-op",
        title=remedy.title,
        evidence=(f"{name} runs {times} per step, for one row each; the trace has no source lines",)
        if source is None
        else (
            f"{source} calls {name} {times} per step",
            f"{format_us(lost_us)} of the step is spent between the ops of that line",
        ),
        advice=remedy.advice.format(at="there" if source is None else at_source(source)),
        brief=remedy.brief_at("there" if source is None else at_source(source)),
        places=(source,),
        code=remedy.code,
        gain_us=gain_us,
        claims=claims_of(evidence, *ISSUE_ACCOUNTS, most_us=high_us),
    )


# Of the time of a loop that only its order shows: one over pairs of a batch took 59 to 76 % of it less as ops on all
# pairs, or on arrays made once (torch 2.13, EPYC); the rest is the profiler's.
_OF_ORDER, _LEAST_ORDER = (0.5, 0.85), 0.1
_SHOWN = 3


def _looped_order(evidence: Evidence) -> Draft | None:
    """Finds a loop that only the order of its ops shows.

    The trace has no lines. Gain: 50 to 85 % of the loop's time, and of as much of the backward pass as it is of the
    forward pass.
    """
    loop = bare_loop(evidence)
    if loop is None or evidence.share_of_step(loop.us) < _LEAST_ORDER:
        return None
    phase_us = {phase.name: phase.us for phase in evidence.analysis.phases}
    forward_us, backward_us = phase_us.get("forward", 0.0), phase_us.get("backward", 0.0)
    whole_us = loop.us + (min(loop.us / forward_us, 1.0) * backward_us if forward_us > 0 else 0.0)
    low_us, high_us = (part * whole_us for part in _OF_ORDER)
    works = listed([name.removeprefix("aten::") for name in loop.works[:_SHOWN]])
    times = counted(format_count(loop.rounds), "time")
    at = f"in the loop that runs {works} for each row"
    return Draft(
        slug="looped-op",
        title=_PICK_BY_PICK.title,
        evidence=(
            f"the same {counted(len(loop.names), 'op')} in a row, {times} per step: {', '.join(loop.names)}",
            f"{format_per_step(evidence, whole_us)} passes in it"
            f"{' and its part of the backward pass' if whole_us > loop.us else ''}; the trace has no source lines",
        ),
        advice=_PICK_BY_PICK.advice.format(at=at),
        brief=f"Do for all rows at once what a Python loop does row by row ({works})",
        code=_PICK_BY_PICK.code,
        gain_us=Interval(low_us, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
    )


def _looped_passes(evidence: Evidence) -> Draft | None:
    """Finds many forward and backward passes in a step.

    No lines tell what they loop over. Gain: the step but for one pass, from half of what the passes lose between ops.
    """
    issue_us = evidence.account_us(*ISSUE_ACCOUNTS)
    if any(fold.name for fold in evidence.analysis.lines) or evidence.share_of_step(issue_us) < _MOSTLY_OVERHEAD:
        return None
    if (passes := backward_passes(evidence)) < LOOP_OF:
        return None
    lost_us = (1 - 1 / passes) * issue_us
    high_us = (1 - 1 / passes) * evidence.step_us
    return Draft(
        slug="looped-op",
        title="A step runs many forward and backward passes, one after the other",
        evidence=(
            f"{format_count(passes)} backward passes per step",
            f"between ops it loses {format_per_step(evidence, lost_us)}",
        ),
        advice="Put the samples of a step into one forward and backward pass: a batch of all of them; rows of unlike "
        "length padded or grouped, trees level by level. More passes per step take as much longer.",
        brief="Put the samples of a step into one forward and backward pass, in place of one pass for each",
        code="loss = criterion(model(batch), targets)  # all samples; loss.backward() once",
        gain_us=Interval(lost_us / 2, high_us),
        claims=loop_claims(evidence, high_us),
        removes=True,
    )


def _rounds(evidence: Evidence, count: float) -> tuple[float, float]:
    """Gives the ops in each round of a loop without a line.

    There are ``count`` rounds. The second result is their part of all ops of a step.
    """
    ops = _outermost_ops(evidence, np.flatnonzero(ops_in_window(evidence)), with_lines=False)
    runs = ops.groupby(["name", "signature", "module", "thread", "step"], observed=True, dropna=False).size()
    repeated = float(runs[(runs >= count) & (runs % count == 0)].sum())
    return max(repeated / (count * evidence.steps), 1.0), repeated / max(len(ops), 1)


def _outermost_ops(evidence: Evidence, rows: Integers, *, with_lines: bool = True) -> pd.DataFrame:
    """Returns those of these rows of OPS that no other op calls.

    No loader does either. They are at a known line if ``with_lines``.
    """
    ops = evidence.linked.ops
    rows = rows[(ops["depth"].to_numpy()[rows] == 0) & (ops["source"].notna().to_numpy()[rows] | (not with_lines))]
    rows = rows[~outermost_spans(evidence, _LOADER).hold(ops["ts_us"].to_numpy()[rows])]
    columns = ["source", "name", "module", "thread", "step", "signature", "ts_us"]
    return ops.iloc[rows][columns].reset_index(drop=True)


def _most_unbound(evidence: Evidence) -> tuple[str | None, str, float] | None:
    """Returns line, op and calls of an op on each row of a tensor.

    The calls are per step; ``for row in x`` unbinds the tensor. The op comes after the unbinding, takes a tensor of the
    row's sizes, and runs as often as there are rows, in one module or one call. Layers that get one row each are
    different modules. Null where there is none. The line is null in a trace without lines.
    """
    with_lines = bool(evidence.linked.ops["source"].notna().any())
    unbound = _outermost_ops(evidence, rows_of_ops(evidence, ("aten::unbind",)), with_lines=with_lines)
    unbound = unbound.dropna(subset=["signature"])
    work, loops = work_of(evidence), dict[tuple[int, ...], tuple[int, float]]()
    for at_us, signature in zip(unbound["ts_us"].tolist(), unbound["signature"].tolist(), strict=True):
        sizes, dim = next(iter(work.sizes_of(signature)), ()), work.text_column("concrete", signature)[1:2]
        at = int(str(dim[0])) if dim and _WHOLE.match(str(dim[0])) else 0
        row = (*sizes[:at], *sizes[at:][1:])
        if row and -len(sizes) <= at < len(sizes) and sizes[at] >= LOOP_OF:
            loops.setdefault(row, (sizes[at], at_us))
    if not loops:
        return None
    ops = _outermost_ops(evidence, np.flatnonzero(ops_in_window(evidence)), with_lines=with_lines)
    ops = ops.dropna(subset=["signature"])
    taken = {code: work.sizes_of(code) for code in ops["signature"].unique().tolist()}
    for row, (count, from_us) in loops.items():
        on_row = ops["signature"].isin([code for code, sizes in taken.items() if row in sizes])
        body = ops[on_row & (ops["ts_us"] > from_us)]
        same = ["source", "name", "module", "thread", "step"]
        for _, group in body.groupby(same, observed=True, dropna=False, sort=False):
            in_one = group["module"].notna().all() or _runs_in_one_call(evidence, group)
            if len(group) >= count and in_one:
                source = str(group["source"].iloc[0]) if with_lines else None
                return source, str(group["name"].iloc[0]), float(len(group))
    return None


def _most_picked(evidence: Evidence) -> tuple[str, str, float] | None:
    """Returns line, op and calls of the op that picks most rows.

    They are of one tensor from one line, outside other ops; the calls are per step. Null where none picks enough. A
    loop runs in one call of one function, and its index changes. That the tensor is the same follows from its sizes and
    strides: a trace has no addresses. Layers that one line calls one after the other are other modules and other calls.
    """
    picks = _outermost_ops(evidence, rows_of_ops(evidence, _PICKS))
    if len(picks) < LOOP_OF:
        return None
    calls = evidence.linked.trace.signatures.reset_index(drop=True)[["dims", "strides", "concrete"]]
    picks = picks.merge(calls.astype(object), left_on="signature", right_index=True)
    picks["index"] = picks["concrete"].astype(str).str.extract(_INDEX, expand=False)
    same = ["source", "name", "module", "thread", "step", "dims", "strides"]
    picks = picks.dropna(subset=["index"])
    groups = picks.groupby(same, observed=True, dropna=False, sort=False)
    number, indices = groups.ngroup(), groups["index"].nunique().to_numpy()
    for loop in sorted(np.flatnonzero(indices >= LOOP_OF).tolist(), key=lambda position: -int(indices[position])):
        group = picks[number == loop]
        if _runs_in_one_call(evidence, group):
            first = group.iloc[0]
            return str(first["source"]), str(first["name"]), float(len(group))
    return None


def _runs_in_one_call(evidence: Evidence, picks: pd.DataFrame) -> bool:
    """True if the picks are in one call of the program's function.

    It is the innermost frame of the program around them; true also where no frames are known.
    """
    events = evidence.linked.trace.events
    frames = (events["category"] == "python").to_numpy() & (events["thread"] == picks["thread"].iloc[0]).to_numpy()
    frames &= ~text_matches(events["name"], _LIBRARY_FRAME.search)
    start = events["ts_us"].to_numpy()[frames]
    end = start + events["dur_us"].to_numpy()[frames]
    first, last = picks["ts_us"].min(), picks["ts_us"].max()
    around = np.flatnonzero((start <= last) & (end > first))
    start, end = start[around], end[around]
    innermost = {
        int(np.flatnonzero((start <= at) & (end > at))[-1:].sum()) for at in picks["ts_us"].tolist() if start.size
    }
    return len(innermost) <= 1


RULES = (printed_tensor, class_by_class, looped_op, tensor_by_tensor, logged_parameters, python_line)
