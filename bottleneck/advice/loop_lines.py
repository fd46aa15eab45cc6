"""Lines of the program that run the same op again and again.

What rules of Python loops share: the ops of the program's own lines, loops among them with their time, and what a
line's own Python takes.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    events_in_window,
    events_of_source,
    idle_rows,
    model_runs,
    ops_in_window,
    outermost_frames,
    outermost_spans,
)
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Fold
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Spans, union
from bottleneck.schema.loading import NOT_THE_PROGRAMS
from bottleneck.schema.op_names import AUTOGRAD_PREFIX, RUNS_BACKWARD, backward_of, is_backward, is_line, place_of
from bottleneck.schema.tables import text_matches

# A loop repeats an op on the same sizes at least so often in a step, in the same module or in none.
LOOP_OF = 16
# Loops with less of the step are not worth a change.
LEAST_SHARE = 0.05
# A line with fewer of the runs of all loops of a step is no part of them.
_LEAST_RUNS = 0.05
# The part of a loop's time that its ops do not compute: below, the loop is not what holds it back.
MOSTLY_OVERHEAD = 0.5
BACKWARD_CALL = re.compile(r"^<built-in method run_backward|autograd[/\\]__init__\.py\(\d+\): backward$")
# What makes the text of a tensor.
FORMATS_TENSORS = re.compile(r"torch[/\\]_tensor_str\.py\(\d+\): _str$")


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
    frames = (outermost_frames(evidence, pattern) for pattern in (BACKWARD_CALL, FORMATS_TENSORS))
    for spans in (outermost_spans(evidence, NOT_THE_PROGRAMS), *frames):
        rows = rows[~spans.hold(ops["ts_us"].to_numpy()[rows])]
    return ops.iloc[rows][["source", "name", "module", "signature", "thread", "step", "dur_us"]].reset_index(drop=True)


@remembered
def layer_lines(evidence: Evidence) -> set[str]:
    """Returns the lines of functions that call one module after the other.

    They do so from outside of any module, and are the layers of a network whose forward pass is a method of another
    name.
    """
    runs = model_runs(evidence)
    kinds = runs.groupby("source", observed=True)["module"].agg(["nunique", "size"])
    layered = kinds[(kinds["nunique"] >= LOOP_OF) & (kinds["size"] < 2 * kinds["nunique"] * evidence.steps)].index
    function_of = functions_of_lines(evidence)
    lines = set(map(str, layered))
    # Of a script's own lines only these: the others may do anything.
    functions = {function_of[line] for line in lines if line in function_of and "<module>" not in function_of[line]}
    return lines | {line for line, function in function_of.items() if function in functions}


def loops_by_source(counts: "pd.Series[int]", steps: int) -> dict[str, tuple[float, float]]:
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


def line_number(source: str) -> int:
    """The number of a line; 0 where it is not known."""
    place = place_of(source)
    return 0 if place is None else place.line


def has_backward_fold(evidence: Evidence, source: str) -> bool:
    """True where a backward pass belongs to ops of this line."""
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
    in_lines = [source for source in often if is_line(source)]
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


def loop_claims(evidence: Evidence, high_us: float) -> dict[str, float]:
    """Returns the accounts that the time of a loop's lines comes from.

    Up to so much.
    """
    accounts = (*ISSUE_ACCOUNTS, "overhead.launch_floor", "memory", "compute", *UNMODELLED_ACCOUNTS)
    return claims_of(evidence, *accounts, most_us=high_us)


def with_backward_us(evidence: Evidence, us: float) -> float:
    """Adds to a time of the forward pass its part of the backward pass."""
    phase_us = {phase.name: phase.us for phase in evidence.analysis.phases}
    forward_us, backward_us = phase_us.get("forward", 0.0), phase_us.get("backward", 0.0)
    return us + (min(us / forward_us, 1.0) * backward_us if forward_us > 0 else 0.0)


LINE_NAME = re.compile(r"(?:^|[/\\])(?P<file>[^/\\]+)\((?P<line>\d+)\): (?P<function>.*)$")


@remembered
def functions_of_lines(evidence: Evidence) -> dict[str, str]:
    """Returns 'train.py: log' of each source.

    It is the function that a line is in by its events, or of which a source is.
    """
    events = evidence.linked.trace.events
    names = events["name"][(events["category"] == "line").to_numpy()].unique().tolist()
    of_lines = {f"{match['file']}:{match['line']}": match for name in names if (match := LINE_NAME.search(str(name)))}
    functions = {line: f"{match['file']}: {match['function']}" for line, match in of_lines.items()}
    for fold in evidence.analysis.lines:
        place = place_of(fold.name)
        if place is not None and place.is_function and not is_backward(fold.name):
            functions[fold.name] = f"{place.file}: {fold.name.partition(' (')[0].removesuffix('()')}"
    return functions


# Of the calls of a function: so many are looked at, and so many have to be inside of one frame that calls several.
_CALLS_LOOKED_AT, _MOSTLY_IN = 50, 0.8


def library_of_loop(evidence: Evidence, source: str, rounds: float) -> str | None:
    """Names the library's function whose loop calls a line's function.

    It is the one that the program calls: 'odeint() of torchdiffeq'. Null where a file of the program loops, where torch
    does, and where the recording does not know the program's own files.
    """
    own = own_files(evidence)
    file, _, function = functions_of_lines(evidence).get(source, "").partition(": ")
    called = re.compile(rf"(?:^|[/\\]){re.escape(file)}\(\d+\): {re.escape(function)}$")
    events, is_frame = evidence.linked.trace.events, events_in_window(evidence, "python")
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    calls = np.flatnonzero(is_frame & text_matches(events["name"], called.search)) if file in own else np.zeros(0, int)
    if len(calls) < max(_MOSTLY_IN * rounds, LOOP_OF) * evidence.steps:
        return None
    frames = np.flatnonzero(is_frame & text_matches(events["name"], LINE_NAME.search))
    looked_at = calls[:: max(len(calls) // _CALLS_LOOKED_AT, 1)]
    entries: Counter[str] = Counter()
    for call in looked_at.tolist():
        around = frames[(start[frames] < start[call]) & (end[frames] >= end[call])]
        around = around[np.argsort(end[around] - start[around])]
        inside = [np.count_nonzero((start[calls] >= start[at]) & (end[calls] <= end[at])) for at in around.tolist()]
        names = [str(name) for name in events["name"].iloc[around]]
        innermost = next((name for name, count in zip(names, inside, strict=True) if count > 1), "")
        package, has_folder, _ = innermost.partition("/")
        if has_folder and package != "torch" and (place := LINE_NAME.search(innermost)) and place["file"] not in own:
            entries[next(name for name in reversed(names) if name.startswith(f"{package}/"))] += 1
    name, count = entries.most_common(1)[0] if entries else ("", 0)
    place = LINE_NAME.search(name)
    if place is None or count < _MOSTLY_IN * len(looked_at):
        return None
    return f"{place['function']}() of {name.partition('/')[0]}"


def own_files(evidence: Evidence) -> frozenset[str]:
    """Names the files whose lines were recorded: those of the program."""
    events = evidence.linked.trace.events
    names = events["name"][(events["category"] == "line").to_numpy()].unique().tolist()
    return frozenset(match["file"] for name in names if (match := LINE_NAME.search(str(name))))


_FOREIGN_FRAME = re.compile(r"(?:^|[/\\])torch[/\\]|^nn\.Module: ")
_STEP_FRAME = re.compile(r"^nn\.Module: |(?:^|> )run_backward$|^<built-in method run_backward")


def spans_without_torch(evidence: Evidence, sources: Sequence[str], *, with_ops: bool = False) -> dict[str, Spans]:
    """Returns the spans in the window of sources in which torch runs nothing.

    But ops ``with_ops``.
    """
    events = evidence.linked.trace.events
    low, high = evidence.linked.window.host_us
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    marks = events["category"].isin(("annotation",) if with_ops else ("op", "annotation")).to_numpy()
    marks = marks & (start >= low) & (start < high)
    foreign = _STEP_FRAME if with_ops else _FOREIGN_FRAME
    marks |= events_in_window(evidence, "python") & text_matches(events["name"], foreign.search)
    at_us = np.sort(start[marks])
    by_source = {}
    for source in sources:
        rows = events_of_source(evidence, source)
        spans = union(start[rows], np.minimum(end[rows], high))
        begun = np.searchsorted(at_us, spans.start), np.searchsorted(at_us, spans.end)
        if spans.start.size and not np.any(begun[1] > begun[0]):
            by_source[source] = spans
    return by_source
