"""Quantities of the evidence that several advice rules use.

They are ledger amounts, counts and times per step, source lines. "Per step" means per step of the window. Times of the
analysis are already scaled to the unprofiled step; host times of the tables are scaled here by how much the profiler
stretched the step (``host_scale``).
"""

import math
import re
import shlex
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from bottleneck.advice.ranking import SourcedLine
from bottleneck.schema.analysis import Confidence, IdleCause, Interval
from bottleneck.schema.evidence import Evidence, OpSum, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers, Spans, union
from bottleneck.schema.kernel_names import between
from bottleneck.schema.linked_trace import LONGEST_ISSUE_US
from bottleneck.schema.loading import LOADER
from bottleneck.schema.measurements import SettingName
from bottleneck.schema.op_names import BACKWARD_NODE, OPTIMIZER_STEP, is_backward, is_line, place_of
from bottleneck.schema.tables import after_backward, text_matches
from bottleneck.units import format_share, format_us

# Accounts of the host between launches (GPU) or between leaf ops (CPU): fewer calls make them smaller.
ISSUE_ACCOUNTS = ("overhead.dispatch", "overhead.python", "overhead.launch")
_COMPILED = re.compile(
    r"^Torch-Compiled Region|^## Call CompiledFxGraph|^CompiledFunction|^triton_|^graph_\d+_|^_compile.compile_inner"
)
_OPTIMIZER = re.compile(r"^Optimizer\.step#(?P<name>\w+)\.step")


def claims_of(evidence: Evidence, *accounts: str, most_us: float = math.inf) -> dict[str, float]:
    """Claims these accounts, in this order, up to so much together.

    Empty accounts are left out.
    """
    claims: dict[str, float] = {}
    for account in accounts:
        claim = float(min(evidence.account_us(account), most_us - math.fsum(claims.values())))
        if claim > 0:
            claims[account] = claim
    return claims


def add_claims(evidence: Evidence, claims: Mapping[str, float], us: float, accounts: Iterable[str]) -> dict[str, float]:
    """Adds so much of these accounts, in this order, to claims.

    No account gives more than what is left of it.
    """
    more, left_us = dict(claims), us
    for account in accounts:
        claim_us = min(left_us, max(evidence.account_us(account) - more.get(account, 0.0), 0.0))
        if claim_us > 0:
            more[account], left_us = more.get(account, 0.0) + claim_us, left_us - claim_us
    return more


def record_again(evidence: Evidence, option: str) -> str:
    """Gives the command that records the program with an option.

    It ends with the option where the recording does not name the program.
    """
    recording = evidence.recording
    words = () if recording is None else (*recording.options, *recording.command)
    return shlex.join(("bottleneck", "run", option, *words))


def format_per_step(evidence: Evidence, us: float) -> str:
    """Words a time per step with its share: '1.2 ms per step (12 %)'."""
    return f"{format_us(us)} per step ({format_share(evidence.share_of_step(us))})"


def issue_us(evidence: Evidence) -> float:
    """Returns issue time in microseconds per step.

    It is spent in dispatching, Python and launching, and fewer calls would shorten it. A stretch far longer than
    issuing an op takes is something else (loading data, starting a device, sleeping), and does not count.
    """
    rows = (row for row in evidence.analysis.idle if f"overhead.{row.cause}" in ISSUE_ACCOUNTS)
    beyond_us = math.fsum(row.us - issue_part_us(row) for row in rows)
    return max(evidence.account_us(*ISSUE_ACCOUNTS) - beyond_us, 0.0)


def issue_part_us(row: IdleCause) -> float:
    """Returns the part of a wait between ops that issuing ops can explain.

    At most 0.5 ms per occasion.
    """
    return min(row.us, LONGEST_ISSUE_US * row.calls)


# Of what page faults take as calibrated: what a process saves that keeps its memory. In the 40 programs of
# benchmarks/corpus/pairs.jsonl the median was 1.6 times; attention on 63 MB tensors saved 1.7 times. Pages are given
# back, too, and push others out of the caches.
_SAVED_BY_KEEPING = 1.7
_MOST_SAVED = 0.9


def kept_pages_gain(evidence: Evidence, counted_us: float) -> Interval:
    """Returns the gain of a process that keeps its memory.

    It is from half of the time that its page faults take as calibrated, to what programs that kept theirs saved.
    """
    most_us = min(_SAVED_BY_KEEPING * counted_us, max(counted_us, _MOST_SAVED * evidence.step_us))
    return Interval(counted_us / 2, most_us)


def timing_confidence(evidence: Evidence) -> Confidence:
    """Returns the confidence of a wait.

    It is low if the step was never timed without the profiler, whose cost is then in every wait.
    """
    return "medium" if evidence.analysis.steps.unprofiled_us is not None else "low"


def idle_rows(evidence: Evidence, *causes: str) -> tuple[IdleCause, ...]:
    """Waits for these causes by line, module and detail, longest first."""
    return tuple(sorted((row for row in evidence.analysis.idle if row.cause in causes), key=lambda row: -row.us))


def idle_place(row: IdleCause) -> str:
    """Describes a wait by its line, time, and surroundings."""
    what = f" in {row.detail}" if row.detail else ""
    around = between(row.before, row.after, is_waited_for=row.cause == "sync")
    return f"{row.source or 'at no known line'}: {format_us(row.us)}{what}{around}"


def idle_lines(evidence: Evidence, *causes: str, most: int = 3) -> tuple[str, ...]:
    """Descriptions of the lines at which the device waited for these causes, longest first.

    Of a line whose place is known, with the kernel that is waited for and the op that comes next.
    """
    folded: dict[tuple[str | None, str | None], list[IdleCause]] = {}
    for row in idle_rows(evidence, *causes):
        folded.setdefault((row.source, row.detail), []).append(row)
    ranked = sorted(folded.items(), key=lambda item: -math.fsum(row.us for row in item[1]))[:most]
    return tuple(
        SourcedLine(
            f"{source or 'at no known line'}: {format_us(math.fsum(row.us for row in rows))} per step"
            f"{f' in {detail}' if detail else ''}, {format_gaps(math.fsum(row.calls for row in rows))}"
            f"{between(rows[0].before, rows[0].after, is_waited_for=rows[0].cause == 'sync')}",
            source,
        )
        for (source, detail), rows in ranked
    )


def format_count(count: float) -> str:
    """A count per step: whole where it is one, else with two digits."""
    return f"{count:.0f}" if count >= 10 or float(count).is_integer() else f"{count:.2g}"


def format_range(counts: Integers) -> str:
    """Words the smallest and the largest of some counts.

    As '2 to 7', or '8' where they are equal.
    """
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else f"{low} to {high}"


def format_times(count: float) -> str:
    """A frequency per step in words: 'once', '3 times'."""
    return "once" if count == 1 else f"{format_count(count)} times"


def format_gaps(count: float) -> str:
    """Words stretches of idle time per step.

    A function that runs in them was not called so often.
    """
    return f"in {format_count(count)} idle gap{'' if count == 1 else 's'}"


def ops_in_window(evidence: Evidence) -> Flags:
    """Marks the rows of OPS that start in a step of the window.

    In the window, if it has no steps.
    """
    return _inside(evidence, evidence.linked.ops["ts_us"].to_numpy())


def _inside(evidence: Evidence, at_us: Floats) -> Flags:
    low, high = evidence.linked.window.host_us
    return np.asarray((at_us >= low) & (at_us < high))


def events_in_window(evidence: Evidence, category: str) -> Flags:
    """Mask of the trace's events of this category that begin in the window."""
    events = evidence.linked.trace.events
    return _inside(evidence, events["ts_us"].to_numpy()) & (events["category"] == category).to_numpy()


@remembered
def _lines_and_frames(evidence: Evidence) -> tuple[Flags, Flags]:
    return events_in_window(evidence, "line"), events_in_window(evidence, "python")


def events_of_source(evidence: Evidence, source: str) -> Flags:
    """Mask of a line's events, or a function's frames, in the window."""
    events, place = evidence.linked.trace.events, place_of(source)
    if place is None or is_backward(source):
        return np.zeros(len(events), dtype=bool)
    lines, frames = _lines_and_frames(evidence)
    ending = re.compile(rf"(?:^|[/\\]){re.escape(place.file)}\({place.line}\): ")
    return (frames if place.is_function else lines) & text_matches(events["name"], ending.search)


def work_in_window(evidence: Evidence) -> Flags:
    """Marks the rows of KERNELS in the window that compute.

    No copy, fill, collective or mere call does.
    """
    computes = (evidence.linked.kernels["kind"] == "compute").to_numpy() & ~evidence.attribution[
        "dispatches"
    ].to_numpy()
    return np.asarray(computes & evidence.kernels_in_window)


def host_us_per_launch(evidence: Evidence) -> float | None:
    """Returns the host's median time from one launch to the next.

    Where it does nothing else; null below ten launches. Over launches of one thread. Waiting calls make single
    distances long, but not the median.
    """
    kernels = evidence.linked.kernels
    rows = np.flatnonzero(evidence.kernels_in_window & kernels["launch"].notna().to_numpy())
    if rows.size < 10:
        return None
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)[rows]
    at_us = kernels["launch_ts_us"].to_numpy()[rows]
    thread = evidence.linked.trace.events["thread"].cat.codes.to_numpy()[launch]
    order = np.lexsort((at_us, thread))
    distance, same = np.diff(at_us[order]), np.diff(thread[order]) == 0
    distance = distance[same & (distance > 0)]
    return float(np.median(distance)) * evidence.host_scale if distance.size else None


# What the smallest op takes on the machine that rules were measured on (torch 2.13, EPYC, one thread), for those where
# it is not known.
SMALLEST_OP_US = 0.54


def smallest_op_us(evidence: Evidence) -> float:
    """The time of the machine's smallest op, for rules that count in it."""
    return evidence.analysis.device.launch_floor_us or SMALLEST_OP_US


def overhead_us_per_op(evidence: Evidence) -> float | None:
    """Returns the overhead that a CPU's step pays per op.

    In dispatching and in Python; null without ops.
    """
    ops = evidence.analysis.totals.op_count
    return (issue_us(evidence) + evidence.account_us("overhead.launch_floor")) / ops if ops else None


def op_sum(evidence: Evidence, names: Iterable[str]) -> OpSum:
    """Returns calls, self time and full time of these ops per step.

    Host times are scaled to the unprofiled step. The full time counts twice what is nested: ``outermost_us`` does not.
    """
    sums = [evidence.op_sums[name] for name in names if name in evidence.op_sums]
    scale = evidence.host_scale
    return OpSum(
        calls=math.fsum(one.calls for one in sums),
        us=math.fsum(one.us for one in sums) * scale,
        self_us=math.fsum(one.self_us for one in sums) * scale,
    )


def op_calls_per_step(evidence: Evidence, *names: str) -> float:
    """Calls of these ops per step."""
    return op_sum(evidence, names).calls


def rows_of_ops(evidence: Evidence, names: Iterable[str]) -> Integers:
    """Rows of OPS in the window with one of these names."""
    wanted = frozenset(names)
    return np.flatnonzero(text_matches(evidence.linked.ops["name"], wanted.__contains__) & ops_in_window(evidence))


def rows_of_events(evidence: Evidence, pattern: "re.Pattern[str]") -> Integers:
    """Returns rows of EVENTS in the window whose name the pattern finds.

    They start in the window and come in order; each name is tried once.
    """
    events = evidence.linked.trace.events
    rows = np.flatnonzero(text_matches(events["name"], pattern.search))
    return rows[_inside(evidence, events["ts_us"].to_numpy()[rows])]


def outermost(evidence: Evidence, rows: Integers) -> Integers:
    """Returns those among these rows of OPS that lie inside none of the others."""
    ops = evidence.linked.ops.iloc[rows]
    end = ops["ts_us"] + ops["dur_us"]
    reach = end.groupby(ops["thread"], observed=True).transform(lambda ends: ends.cummax().shift(fill_value=-np.inf))
    return rows[(ops["ts_us"] >= reach).to_numpy()]


_READS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
# Reads of numbers per step that make a loop: a CRF that reads one for each tag of each word took 16.9 ms compiled, and
# 15 as it is (torch 2.13, EPYC).
MANY_READS = 16


# An iterator over a loader reads its seed where it is made, which is outside of the marks of its batches.
_LOADER_CODE = re.compile(r"torch[/\\]utils[/\\]data[/\\]\w+\.py\(\d+\): ")


def own_reads(evidence: Evidence) -> Integers:
    """Returns the rows of OPS in which the program reads numbers.

    Torch reads its own step counts in optimizers, and indices in loaders.
    """
    rows, at_us = outermost(evidence, rows_of_ops(evidence, _READS)), evidence.linked.ops["ts_us"].to_numpy()
    loaders = (outermost_spans(evidence, LOADER), outermost_frames(evidence, _LOADER_CODE))
    for others in (outermost_spans(evidence, OPTIMIZER_STEP), *loaders):
        rows = rows[~others.hold(at_us[rows])]
    return rows


def outermost_us(evidence: Evidence, *names: str) -> float:
    """Returns full time of these ops per step, nested calls counted once.

    Scaled to the unprofiled step. On a GPU this is the host's time, not the device's.
    """
    rows = outermost(evidence, rows_of_ops(evidence, names))
    start, end = _clipped(evidence, evidence.linked.ops, rows)
    return union(start, end).total() / evidence.steps * evidence.host_scale


def event_spans(evidence: Evidence, rows: Integers) -> Spans:
    """Unites these rows of EVENTS, each up to the end of the window."""
    return union(*_clipped(evidence, evidence.linked.trace.events, rows))


def _clipped(evidence: Evidence, table: pd.DataFrame, rows: Integers) -> tuple[Floats, Floats]:
    """Returns starts and ends of these rows, cut at the end of the window.

    They are of EVENTS or OPS. What is still open when the profiler stops reaches to the end of the trace: an
    optimizer's step whose hook ends the recording appeared to take twenty times its time.
    """
    start, dur = (table[name].to_numpy()[rows] for name in ("ts_us", "dur_us"))
    return start, np.minimum(start + dur, np.maximum(evidence.linked.window.host_us[1], start))


def outermost_spans(evidence: Evidence, pattern: "re.Pattern[str]") -> Spans:
    """Returns spans of the outermost marks and ops of the window.

    The patterns find their names. The step of an optimizer begins after the last backward node in it.
    """
    return _outermost_of(evidence, pattern, ("annotation", "op"))


def outermost_ops(evidence: Evidence, pattern: "re.Pattern[str]") -> Spans:
    """Spans of the outermost ops of the window whose names the pattern finds."""
    return _outermost_of(evidence, pattern, ("op",))


def outermost_frames(evidence: Evidence, pattern: "re.Pattern[str]") -> Spans:
    """Spans of the outermost Python frames of the window whose names the pattern finds."""
    return _outermost_of(evidence, pattern, ("python",))


def _outermost_of(evidence: Evidence, pattern: "re.Pattern[str]", categories: tuple[str, ...]) -> Spans:
    rows = rows_of_events(evidence, pattern)
    is_wanted = evidence.linked.trace.events["category"].isin(categories).to_numpy()
    starts, ends = mark_spans(evidence, rows[is_wanted[rows]])
    outer = np.flatnonzero(starts >= np.concatenate(([-np.inf], np.maximum.accumulate(ends)))[: ends.size])
    return Spans(starts[outer], ends[outer], outer)


def mark_spans(evidence: Evidence, rows: Integers) -> tuple[Floats, Floats]:
    """Returns starts and ends of these rows of EVENTS, outer ones first.

    Up to the end of the window. The step of an optimizer is taken without backward nodes in it.
    """
    events = evidence.linked.trace.events
    start, end = _clipped(evidence, events, rows)
    is_step = text_matches(events["name"], OPTIMIZER_STEP.search)[rows]
    start = np.where(is_step, after_backward(events, start, end), start)
    order = np.lexsort((-end, start))
    return start[order], end[order]


def sources_of(evidence: Evidence, rows: Integers, most: int = 3) -> tuple[str, ...]:
    """Returns the lines, 'file.py:57', that most of these rows come from.

    The rows are of OPS.
    """
    column = evidence.linked.ops["source"].cat
    codes = column.codes.to_numpy()[rows]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.categories))
    ranked = np.argsort(-counts, kind="stable")[:most]
    return tuple(str(column.categories[code]) for code in ranked.tolist() if counts[code])


@remembered
def model_calls(evidence: Evidence) -> dict[str, tuple[float, float]]:
    """Returns microseconds and calls per step of modules by calling line.

    Lines of the program, 'generate.py:45', call them outside of any.
    """
    calls: dict[str, tuple[float, float]] = {}
    runs = model_runs(evidence)
    for source, us in zip(runs["source"].astype(object), (runs["us"] / evidence.steps).tolist(), strict=True):
        if isinstance(source, str) and is_line(source):
            before = calls.get(source, (0.0, 0.0))
            calls[source] = (before[0] + us, before[1] + 1 / evidence.steps)
    return calls


@remembered
def model_runs(evidence: Evidence) -> pd.DataFrame:
    """Returns the stretches in which modules run that are called from outside of any.

    Columns are the source of the call (a line, or a function where lines are not known), the outermost module, its
    start and the time in microseconds.
    """
    places = evidence.linked.places
    if places is None or places.empty:
        return pd.DataFrame({"source": [], "module": [], "ts_us": [], "us": []})
    module, thread = (places[name].cat.codes.to_numpy() for name in ("module", "thread"))
    outside = np.concatenate(([True], (module[:-1] < 0) | np.diff(thread).astype(bool)))
    begins = np.flatnonzero((module >= 0) & outside)
    begins = begins[_inside(evidence, places["ts_us"].to_numpy()[begins])]
    # Until the next stretch outside of modules.
    ends = np.append(np.flatnonzero(module < 0), module.size)
    until = ends[np.searchsorted(ends, begins)] - 1
    outermost_module = [str(name).partition(".")[0] for name in places["module"].iloc[begins]]
    starts_us = places["ts_us"].to_numpy()[begins]
    us = places["end_us"].to_numpy()[until] - starts_us
    sources = places["source"].iloc[begins].to_numpy()
    return pd.DataFrame({"source": sources, "module": outermost_module, "ts_us": starts_us, "us": us})


def model_call(evidence: Evidence) -> str | None:
    """Returns the line that calls a module for most of the time.

    From outside of all modules; null where none is known.
    """
    calls = model_calls(evidence)
    return max(calls, key=lambda source: calls[source], default=None)


def line_at(evidence: Evidence, at_us: float) -> str | None:
    """Returns the line that the thread of the first place there was at.

    Null where none is known.
    """
    places = evidence.linked.places
    if places is None or places.empty:
        return None
    open_ = (places["ts_us"].to_numpy() <= at_us) & (places["end_us"].to_numpy() > at_us)
    sources = places["source"][open_ & places["source"].notna().to_numpy()]
    return None if sources.empty else str(sources.iloc[0])


def has_backward_marks(evidence: Evidence) -> bool:
    """True if autograd's marks show a backward pass in the step."""
    return any(name.startswith(BACKWARD_NODE) for name in evidence.op_sums)


def optimizer_names(evidence: Evidence) -> tuple[str, ...]:
    """Returns class names of the optimizers that step in the window.

    As far as the trace marks them.
    """
    matches = (_OPTIMIZER.match(name) for name in evidence.mark_sums)
    return tuple(dict.fromkeys(match["name"] for match in matches if match))


_RELEASE = re.compile(r"(?<![\d.])(\d{1,3})\.(\d{1,3})\b")
# Up to 1.11 the profiler wrote ops under this category.
_OLD_OPS, _OLD_RELEASE = "Operator", (1, 11)


def setting_line(evidence: Evidence, name: SettingName) -> str | None:
    """Returns the line of the program that chooses a setting, such as 'train.py:5'.

    Null where none is known, or where several lines do.
    """
    lines = () if evidence.recording is None else evidence.recording.setting_lines.get(name, ())
    return lines[0] if len(lines) == 1 else None


def is_torch_before(evidence: Evidence, release: tuple[int, int]) -> bool:
    """True if the trace is known to be of an older torch."""
    recording = evidence.analysis.recording
    match = _RELEASE.search(recording.framework or "")
    if match is not None:
        return (int(match[1]), int(match[2])) < release
    return _OLD_OPS in evidence.linked.trace.counts and release > _OLD_RELEASE


_OF_BACKWARD = re.compile(r"(?:Backward|Double)Backward\d{0,4}$")


# Sparse tensors in coordinates, which Dynamo does not trace (torch 2.13: an error in a GIN with batches of graphs).
_IN_COORDINATES = re.compile(
    r"^aten::_?(?:sparse_coo_tensor|coalesce|sparse_(?:addmm|mm|mask|sum|softmax)|nnz|indices)"
)


def refuses_compiling(evidence: Evidence) -> bool:
    """True where torch.compile is known to fail on the step."""
    return differentiates_twice(evidence) or any(map(_IN_COORDINATES.match, evidence.op_sums))


@remembered
def differentiates_twice(evidence: Evidence) -> bool:
    """True if gradients are differentiated themselves.

    Code that torch.compile makes of a forward pass raises an error then (torch 2.13).
    """
    return any(_OF_BACKWARD.search(name) for name in evidence.op_sums)


def is_compiled(evidence: Evidence) -> bool:
    """True if torch.compile made a part of the step.

    Its marks, ops or kernels are in the window.
    """
    kernels = evidence.linked.kernels["name"].cat.categories
    return any(_COMPILED.search(name) for name in (*evidence.op_sums, *evidence.mark_sums)) or any(
        str(name).startswith("triton_") for name in kernels
    )
