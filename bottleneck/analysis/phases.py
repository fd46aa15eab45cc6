"""Divides the step among training phases and marked ranges.

The program marked the ranges itself.

Each microsecond of the ledger belongs to an instant of the host: work to that of its launch, or of its op; idle time to
the instant itself; idle time before work that was queued already to the launch of that work.
"""

import re
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.host import LOADER
from bottleneck.analysis.kernel_rows import KernelTimes, codes_of, summary_rows
from bottleneck.analysis.ledger import GROUP_OF_ACCOUNT, IDLE_ACCOUNTS
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import GROUPS, Phase, PhaseName, UserRange
from bottleneck.schema.intervals import (
    Codes,
    Flags,
    Floats,
    Integers,
    Spans,
    cut,
    grouped,
    innermost,
    join,
    some_rows,
    union,
)
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.op_names import AUTOGRAD_PREFIX, MARK_PREFIXES
from bottleneck.schema.records import replace
from bottleneck.schema.tables import after_backward, main_thread, text_matches

NAMES: tuple[PhaseName, ...] = get_args(PhaseName)
_DATA, _FORWARD, _BACKWARD, _OPTIMIZER, _COMMUNICATION, _OTHER = range(len(NAMES))
_UNMARKED = -1

# Names of host events by the phase that they mark; where marks of several phases are open, the later in this list
# holds. Programs often name ranges of their own after phases, with ornaments: '## forward ##'.
_MARKS = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        (_FORWARD, r"^\W*(forward|fwd)\W*$"),
        (_DATA, rf"{LOADER}|^\W*copy_batch_to_gpu\W*$|utils[/\\]data[/\\]dataloader\.py\(\d+\): __next__$"),
        (
            _OPTIMIZER,
            r"^Optimizer\.(step|zero_grad)#|^\W*(optimizer|optimizer[_ ]step|zero_grad)\W*$"
            r"|torch[/\\]optim[/\\](?!lr_sched)\w+\.py\(\d+\): (step|zero_grad)$",
        ),
        (
            _BACKWARD,
            rf"^{AUTOGRAD_PREFIX}|^\W*(backward|bwd)\W*$"
            r"|torch[/\\](_tensor|autograd[/\\]__init__)\.py\(\d+\): backward$",
        ),
    )
)
# Ranges that PyTorch itself marks; everything else called an annotation is the program's.
_OF_PYTORCH = re.compile(
    r"^(nccl|gloo|mpi|ucc):|^Torch-Compiled Region|^TorchDynamo|^## Call CompiledFxGraph|^PyTorch Profiler|^Python GC"
    r"|dynamo_timed|^Pregraph bytecode|^AOTDispatcher"
)


# Moments that are looked at together: a trace has millions of them.
_AT_ONCE = 2**18


class _Moments(Struct, frozen=True):
    """The time of the ledger per step, in pieces.

    Each has its account, its instants on the host (NaN: not known) and their thread.

    ``row`` is the position in the analysis' kernels, -1 for idle time.
    """

    us: Floats
    account: Codes
    start: Floats
    end: Floats
    thread: Codes
    is_collective: Flags
    row: Codes


def divide(rows: KernelTimes) -> tuple[tuple[Phase, ...], tuple[UserRange, ...]]:
    """Gives the phases of the step and the program's ranges.

    The phases add up to the step. There are none where nothing marks them.
    """
    moments = _moments(rows)
    return _phases(rows, moments), _ranges(rows, moments)


def _moments(rows: KernelTimes) -> _Moments:
    linked, times = rows.linked, rows.result.idle_times
    thread_of = linked.trace.events["thread"].cat.codes.to_numpy()
    launch, op = codes_of(linked.kernels["launch"]), rows.op
    op_start = np.append(linked.ops["ts_us"].to_numpy(), np.nan)[op]
    launched = linked.kernels["launch_ts_us"].to_numpy()
    at = np.where(np.isnan(launched), op_start, launched)
    event = np.where(launch >= 0, launch, np.append(linked.ops["event"].to_numpy(), -1)[op])
    work = np.flatnonzero(rows.us > 0)
    collective = (linked.kernels["kind"] == "collective").to_numpy()
    return _Moments(
        us=np.concatenate((rows.us[work], times.us)),
        account=np.concatenate((rows.account[work], IDLE_ACCOUNTS[times.cause]), dtype=np.int8),
        start=np.concatenate((at[work], times.start)),
        end=np.concatenate((at[work], times.end)),
        thread=np.concatenate((np.append(thread_of, -1)[event][work], times.thread), dtype=np.int32),
        is_collective=np.concatenate((collective[work], np.zeros(times.us.size, dtype=bool))),
        row=np.concatenate((summary_rows(rows)[work], np.full(times.us.size, -1)), dtype=np.int32),
    )


def _cut_at(moments: _Moments, edges: Floats) -> Iterator[_Moments]:
    """The same in parts, with idle time cut at these instants.

    Instants come before what lasts. All parts together would take as much memory as all that is known of the kernels.
    """
    length = moments.end - moments.start
    points, lasting = np.flatnonzero(~(length > 0)), np.flatnonzero(length > 0)
    for low in range(0, points.size, _AT_ONCE):
        yield some_rows(moments, points[low : low + _AT_ONCE])
    for low in range(0, lasting.size, _AT_ONCE):
        whole = lasting[low : low + _AT_ONCE]
        cuts = cut(moments.start[whole], moments.end[whole], [edges])
        source = whole[cuts.interval]
        part = some_rows(moments, source)
        share = (cuts.end - cuts.start) / length[source]
        yield replace(part, us=part.us * share, start=cuts.start, end=cuts.end)


def _add_by_group(sums: Floats, codes: Integers, moments: _Moments) -> None:
    """Adds their time per code and group to the sums; code -1 is none."""
    chosen = codes >= 0
    np.add.at(sums, (codes[chosen], GROUP_OF_ACCOUNT[moments.account[chosen]]), moments.us[chosen])


def _shares(row: Floats) -> dict[str, float]:
    total = float(row.sum())
    return dict(zip(GROUPS, (row / total if total > 0 else row).tolist(), strict=True))


def _phases(rows: KernelTimes, moments: _Moments) -> tuple[Phase, ...]:
    marks = find_phases(rows.linked)
    if marks is None:
        return ()
    edges, code = marks
    # Before the first edge and after the last there is no mark; so there is at an unknown instant.
    padded = np.concatenate(([_OTHER], code, [_OTHER]))
    rows_shown, count = int(moments.row.max(initial=-1)) + 1, len(NAMES)
    split, by_row, by_account = (np.zeros((count, size)) for size in (len(GROUPS), rows_shown, len(ACCOUNTS)))
    for some in _cut_at(moments, edges):
        at = (some.start + some.end) / 2
        phase = np.where(np.isnan(at), _OTHER, padded[np.searchsorted(edges, at, side="right")])
        phase = np.where(some.account == _INPUT, _DATA, phase)
        phase = np.where(some.is_collective, _COMMUNICATION, phase)
        _add_by_group(split, phase, some)
        is_row = some.row >= 0
        np.add.at(by_row, (phase[is_row], some.row[is_row]), some.us[is_row])
        np.add.at(by_account, (phase[~is_row], some.account[~is_row]), some.us[~is_row])
    us = split.sum(axis=1)
    if not us[[_DATA, _FORWARD, _BACKWARD, _OPTIMIZER]].any():
        return ()
    phases = []
    for place in np.flatnonzero(us > 0).tolist():
        row_us, phase_us = by_row[place], float(us[place])
        most_first = np.argsort(-row_us, kind="stable")
        kernels = tuple((row, float(row_us[row])) for row in most_first[row_us[most_first] > 0].tolist())
        others = {name: spent for name, spent in zip(ACCOUNTS, by_account[place].tolist(), strict=True) if spent > 0}
        phases.append(Phase(NAMES[place], phase_us, phase_us / rows.wall_us, _shares(split[place]), kernels, others))
    return tuple(phases)


_INPUT = tuple(ACCOUNTS).index("overhead.input")


def find_phases(linked: Linked) -> tuple[Floats, Integers] | None:
    """Finds the phases of the host.

    Gives the instants at which the phase changes, and between each and the next the phase (index in NAMES).

    Null without marks.
    """
    events = linked.trace.events
    main = main_thread(events)
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    thread = events["thread"].cat.codes.to_numpy()
    is_host = events["category"].isin(("annotation", "op", "python")).to_numpy()
    is_root = linked.ops["parent"].isna().to_numpy()
    roots = linked.ops["event"].to_numpy()[is_root]
    marked = _marked(events, is_host, roots[linked.ops["is_autograd"].to_numpy()[is_root]])
    mine = {phase: rows if phase == _BACKWARD else rows[thread[rows] == main] for phase, rows in marked.items()}
    spans = {phase: union(start[rows], end[rows]) for phase, rows in mine.items()}
    # Before the last node in an optimizer's mark its closure runs: what is not backward there is forward.
    steps = mine[_OPTIMIZER]
    own = after_backward(events, start[steps], end[steps])
    spans[_OPTIMIZER] = union(own, end[steps])
    spans[_FORWARD] = join(spans[_FORWARD], union(start[steps], own))
    if not any(stretches.start.size for stretches in spans.values()):
        return None
    ops = roots[(thread[roots] == main) & ~np.isin(roots, np.concatenate(list(marked.values())))]
    ops = ops[np.argsort(start[ops], kind="stable")]
    others = [start[ops], *(stretches.start for phase, stretches in spans.items() if phase != _BACKWARD)]
    spans[_BACKWARD] = _without_holes(spans[_BACKWARD], np.sort(np.concatenate(others)))
    # Forward work is between its neighbours' marks, where it is not marked; the host's ops say where it begins.
    edges = np.unique(
        np.concatenate([part for stretches in spans.values() for part in (stretches.start, stretches.end)])
    )
    edges, code = _coded(edges, spans)
    ends = np.maximum.accumulate(end[ops]) if ops.size else end[ops]
    forward = _unmarked_forward(edges, code, start[ops], ends)
    spans[_FORWARD] = join(spans[_FORWARD], forward)
    return _coded(np.unique(np.concatenate((edges, forward.start, forward.end))), spans)


def _marked(events: pd.DataFrame, is_host: Flags, nodes: Integers) -> dict[int, Integers]:
    """Gives rows of EVENTS that mark each phase.

    They are in the order of _MARKS. The backward pass has its nodes where no mark is.
    """
    rows = np.flatnonzero(is_host)
    names = events["name"].cat
    name = names.codes.to_numpy()[rows]
    labels = list(names.categories)
    used = np.flatnonzero(np.bincount(name, minlength=len(labels)))
    rows_by_phase: dict[int, Integers] = {}
    for phase, pattern in _MARKS:
        holds = np.zeros(len(labels), dtype=bool)
        holds[[code for code in used.tolist() if pattern.search(labels[code])]] = True
        rows_by_phase[phase] = rows[holds[name]]
    if not rows_by_phase[_BACKWARD].size:
        rows_by_phase[_BACKWARD] = nodes
    return rows_by_phase


def _without_holes(spans: Spans, others: Floats) -> Spans:
    """The spans, joined where nothing else of the program begins between two of them."""
    if spans.start.size < 2:
        return spans
    between = np.searchsorted(others, spans.start[1:]) - np.searchsorted(others, spans.end[:-1])
    opens, closes = np.append(True, between > 0), np.append(between > 0, True)
    return Spans(spans.start[opens], spans.end[closes], spans.first[opens])


def _coded(edges: Floats, spans: dict[int, Spans]) -> tuple[Floats, Integers]:
    """Gives the edges, and the phase between each and the next.

    It is the last one of ``spans`` that holds the time between them.
    """
    middle = (edges[:-1] + edges[1:]) / 2
    code = np.full(middle.size, _UNMARKED, dtype=np.int64)
    for phase, stretches in spans.items():
        code[stretches.hold(middle)] = phase
    return edges, np.where(code == _UNMARKED, _OTHER, code)


def _unmarked_forward(edges: Floats, code: Integers, op_start: Floats, op_end: Floats) -> Spans:
    """Gives forward work that no mark names.

    It is what runs before a backward pass, or after data where no pass follows. Many loops clear the gradients between
    the model and its loss: what runs before that is forward too, if it has as many ops as what follows or more.

    It begins with the first op of the main thread, and ends with the next mark before a backward pass, else with the
    last op. ``op_start`` and ``op_end`` are those of outermost ops, both in order.
    """
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    codes = np.concatenate(([_OTHER], code, [_OTHER]))
    before, after = np.append(_OTHER, codes[:-1]), np.append(codes[1:], _OTHER)
    first, last = (np.searchsorted(op_start, edge) for edge in (low, high))
    ops = np.append(last - first, [0, 0])
    is_passed = np.append(after == _BACKWARD, [False, False])
    clears = (after == _OPTIMIZER) & (before != _BACKWARD) & (is_passed[1:-1] | is_passed[2:])
    clears &= ops[:-2] >= np.where(is_passed[1:-1], 0, ops[2:])
    open_ = np.flatnonzero((codes == _OTHER) & ((after == _BACKWARD) | (before == _DATA) | clears))
    first, last = first[open_], last[open_]
    held = np.flatnonzero(last > first)
    open_, first, last = open_[held], first[held], last[held]
    end = np.where(after[open_] == _BACKWARD, high[open_], np.minimum(op_end[last - 1], high[open_]))
    return union(op_start[first], end)


def _ranges(rows: KernelTimes, moments: _Moments) -> tuple[UserRange, ...]:
    """The program's own ranges, most time first."""
    events = rows.linked.trace.events
    is_users = text_matches(
        events["name"], lambda name: not name.startswith(MARK_PREFIXES) and not _OF_PYTORCH.search(name)
    )
    mine = np.flatnonzero((events["category"] == "annotation").to_numpy() & is_users)
    if not mine.size:
        return ()
    open_ = _Nested(
        events["thread"].cat.codes.to_numpy()[mine].astype(np.int64),
        events["ts_us"].to_numpy()[mine],
        (events["ts_us"] + events["dur_us"]).to_numpy()[mine],
    )
    own, main = np.zeros((mine.size, len(GROUPS))), main_thread(events)
    for some in _cut_at(moments, np.unique(np.concatenate((open_.start, open_.end)))):
        at = (some.start + some.end) / 2
        holder = open_.innermost(some.thread, at)
        # A thread of the autograd engine works for the range that the main thread is in.
        alone = np.flatnonzero(holder < 0)
        holder[alone] = open_.innermost(np.full(alone.size, main), at[alone])
        _add_by_group(own, holder, some)
    total = own.copy()
    for row in range(mine.size - 1, -1, -1):
        if open_.parent[row] >= 0:
            total[open_.parent[row]] += total[row]
    name = events["name"].cat.codes.to_numpy()[mine]
    steps, (low, high) = max(len(rows.linked.window.steps), 1), rows.linked.window.host_us
    ranges = []
    for code in np.unique(name[total.sum(axis=1) > 0]).tolist():
        same = np.flatnonzero(name == code)
        outer = [row for row in same.tolist() if code not in (name[item] for item in open_.ancestors(row))]
        split = total[outer].sum(axis=0)
        us, self_us = float(split.sum()), float(own[same].sum())
        calls = float(np.count_nonzero((open_.start[same] >= low) & (open_.start[same] < high))) / steps
        label = str(events["name"].cat.categories[code])
        ranges.append(UserRange(label, calls, us, self_us, us / rows.wall_us, _shares(split)))
    return tuple(sorted(ranges, key=lambda item: -item.us))


class _Nested:
    """Ranges of threads in the order of their starts.

    Outer ones come first. Each has the range around it (-1: none).
    """

    def __init__(self, thread: Integers, start: Floats, end: Floats) -> None:
        self.thread, self.start, self.end = thread, start, end
        self.parent = np.full(start.size, -1, dtype=np.int64)
        stacks: dict[int, list[int]] = {}
        for row, code in enumerate(thread.tolist()):
            stack = stacks.setdefault(code, [])
            while stack and end[stack[-1]] <= start[row]:
                stack.pop()
            self.parent[row] = stack[-1] if stack else -1
            stack.append(row)

    def ancestors(self, row: int) -> Iterator[int]:
        """The ranges around one, from the inside out."""
        while (row := int(self.parent[row])) >= 0:
            yield row

    def innermost(self, thread: Codes, times: Floats) -> Integers:
        """Gives the innermost range open on a thread at each time.

        -1 where none is.
        """
        rows = np.full(times.size, -1, dtype=np.int64)
        for code, asked in grouped(thread):
            mine = np.flatnonzero(self.thread == code)
            rows[asked] = innermost(mine, self.start, self.end, self.parent, times[asked])
        return rows
