"""Prices graph breaks and guards by the compiled regions of a trace.

The profiler has a region for each function that torch compiled, behind the lookup of its guards, and in it a call of
the graph. Where a graph breaks, the rest of the function is a region inside of the first. The host time from the end of
one graph to the start of the next is what the break costs.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bottleneck.schema.compile_health import BreakHealth, CompileHealth, CudagraphSkip, GraphHealth
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.records import replace
from bottleneck.schema.tables import text_matches

_REGION = re.compile(r"^Torch-Compiled Region: (?P<key>\d{1,9}/\d{1,9})")
# A graph of Inductor, and with autograd the function around it, whose own part each graph has again.
_CALL = re.compile(r"^## Call CompiledFxGraph")
_WRAPPER = re.compile(r"^CompiledFunction$")
_LOOKUP = re.compile(r"^TorchDynamo Cache Lookup")
_BACKWARD = re.compile(r"^CompiledFunctionBackward$")
_ANY = re.compile("|".join(one.pattern for one in (_REGION, _CALL, _WRAPPER, _LOOKUP, _BACKWARD)))
_OP = re.compile(r"^(?!autograd::)\w{1,60}::\w")
_LONGEST_NAME = 80
_MOST_OPS = 8


@dataclass(eq=False)
class _Region:
    """A run of a compiled function, with its last work until now."""

    key: str
    start: float
    end: float
    parent: "_Region | None"
    thread: int
    last_end: float
    entry: float | None = None
    has_inner: bool = False
    has_graph: bool = False

    def take_call(self, start: float, end: float, *, is_graph: bool) -> None:
        """Takes a call of a graph, or of the function around it.

        The function counts where the trace has no mark of the graph in it.
        """
        if is_graph and not self.has_graph:
            self.entry, self.last_end, self.has_graph = start, end, True
        elif is_graph or not self.has_graph:
            self.entry = start if self.entry is None else self.entry
            self.last_end = max(self.last_end, end)


@dataclass(frozen=True)
class _Gap:
    """Host time between two graphs; ``key`` is the graph before it that broke."""

    key: str
    thread: int
    start: float
    end: float
    enters_graph: bool


@dataclass
class _Runs:
    """Regions of a window with their sums."""

    regions: list[_Region] = field(default_factory=list)
    guards_us: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    backward_us: float = 0.0
    backward_calls: int = 0
    has_calls: bool = False


def price_compile(health: CompileHealth | None, linked: Linked, steps: int, scale: float) -> CompileHealth | None:
    """Adds to the record what the trace tells per step.

    ``scale`` makes unprofiled time of the trace's. Without a record of the program (a bare trace) the graphs are those
    that ran. Null where there is neither record nor region.
    """
    runs = _runs(linked)
    if not runs.regions:
        return None if health is None or not (health.graphs or health.breaks) else _not_entered(health)
    calls = Counter(region.key for region in runs.regions)
    graphs = () if health is None else health.graphs
    recorded = {graph.compile_id for graph in graphs}
    unrecorded = tuple(GraphHealth(key, "", None) for key in sorted(calls, key=_order) if key not in recorded)
    kernels = _kernels(linked, runs.regions)
    priced = tuple(
        replace(
            graph,
            calls=calls[graph.compile_id] / steps,
            kernels=kernels[graph.compile_id] / calls[graph.compile_id] if calls[graph.compile_id] else graph.kernels,
            guards_us=runs.guards_us.get(graph.compile_id, 0.0) * scale / steps,
        )
        for graph in (*graphs, *unrecorded)
    )
    whole = replace(health, graphs=priced) if health is not None else CompileHealth(priced)
    gaps = _gaps(runs.regions)
    return replace(
        whole,
        breaks=tuple(_priced_break(one, gaps, runs, linked, steps, scale) for one in whole.breaks),
        skips=tuple(_priced_skip(one, calls, linked) for one in whole.skips),
    )


def _order(key: str) -> tuple[int, int]:
    frame, _, again = key.partition("/")
    return int(frame), int(again)


def _not_entered(health: CompileHealth) -> CompileHealth:
    """The record of a program whose steps entered no compiled code."""
    breaks = tuple(replace(one, price_reason="not-entered") for one in health.breaks)
    return replace(health, breaks=breaks)


def _runs(linked: Linked) -> _Runs:
    """Walks the window's events of compiled code by thread and start."""
    events = linked.trace.events
    is_marked = text_matches(events["name"], _ANY.search, _LONGEST_NAME)
    is_host = events["category"].isin(("op", "annotation")).to_numpy()
    begin, end = linked.window.host_us
    start_us = events["ts_us"].to_numpy()
    rows = np.flatnonzero(is_marked & is_host & (start_us >= begin) & (start_us < end))
    threads = events["thread"].cat.codes.to_numpy()[rows]
    rows = rows[np.argsort(threads, kind="stable")]
    chosen = events.iloc[rows]
    walk = _RegionWalk()
    for name, thread, start, dur in zip(
        chosen["name"].astype(str), chosen["thread"].cat.codes, chosen["ts_us"], chosen["dur_us"], strict=True
    ):
        walk.take(name, int(thread), float(start), float(dur))
    return walk.runs


class _RegionWalk:
    """Walks events of one thread after the other, outer ones first."""

    def __init__(self) -> None:
        self.runs = _Runs()
        self._thread = -1
        self._open: list[_Region] = []
        self._lookup: tuple[float, float] | None = None
        self._backward_end = -np.inf

    def take(self, name: str, thread: int, start: float, dur: float) -> None:
        """Takes the next event."""
        if thread != self._thread:
            self._thread, self._open, self._lookup, self._backward_end = thread, [], None, -np.inf
        while self._open and self._open[-1].end <= start:
            self._open.pop()
        inside = self._open[-1] if self._open else None
        if match := _REGION.match(name):
            self._enter(_Region(match["key"], start, start + dur, inside, thread, start))
        elif _LOOKUP.match(name):
            self._lookup = (start, start + dur)
        elif _BACKWARD.match(name):
            self.runs.backward_us += dur
            self.runs.backward_calls += 1
            self._backward_end = start + dur
        elif start < self._backward_end:
            self.runs.backward_us -= dur
        elif inside is not None:
            self.runs.has_calls = True
            inside.take_call(start, start + dur, is_graph=bool(_CALL.match(name)))

    def _enter(self, region: _Region) -> None:
        parent, lookup = region.parent, self._lookup
        if lookup is not None and lookup[1] <= region.start and (parent is None or lookup[0] >= parent.last_end):
            self.runs.guards_us[region.key] += lookup[1] - lookup[0]
        if parent is not None:
            parent.has_inner = True
        self.runs.regions.append(region)
        self._open.append(region)
        self._lookup = None


def _gaps(regions: Sequence[_Region]) -> list[_Gap]:
    """Returns the time before each region that lies in another.

    It begins at the end of the work before it.

    A region without a graph of its own is time between graphs too, up to the next region in it.
    """
    gaps = []
    ends: dict[int, float] = {}
    for region in regions:
        parent = region.parent
        if parent is None:
            continue
        before = _work_before(parent, region, ends)
        after = region.entry if region.entry is not None else region.start if region.has_inner else region.end
        gaps.append(_Gap(parent.key, region.thread, before, max(after, before), region.entry is not None))
        ends[id(parent)] = region.end
    return gaps


def _work_before(parent: _Region, region: _Region, ends: dict[int, float]) -> float:
    """The end of what the parent did last: its graph, or the region before."""
    own = parent.last_end if parent.last_end <= region.start else parent.start
    return max(own, ends.get(id(parent), own))


def _kernels(linked: Linked, regions: Sequence[_Region]) -> Counter[str]:
    """Counts the kernels by the graph in whose region they were issued.

    Of nested regions the innermost has them.
    """
    ops, kernels = linked.ops, linked.kernels
    owner = np.full(len(ops) + 1, -1)
    threads, start = ops["thread"].astype(str).to_numpy(), ops["ts_us"].to_numpy()
    names = list(linked.trace.events["thread"].cat.categories.astype(str))
    rows_of = {name: np.flatnonzero(threads == name) for name in {names[region.thread] for region in regions}}
    for number, region in enumerate(regions):
        rows = rows_of[names[region.thread]]
        first, last = np.searchsorted(start[rows], (region.start, region.end))
        owner[rows[first:last]] = number
    of_kernel = owner[kernels["op"].fillna(-1).to_numpy(dtype=np.int64)]
    if linked.is_host_only:
        # On a CPU a kernel is an op; ops that only call others, and bookkeeping of the compiler, are none.
        is_work = ~text_matches(kernels["name"], _BOOKKEEPING.search, _LONGEST_NAME)
        leaf = np.append(ops["children"].to_numpy() == 0, False)[kernels["op"].fillna(-1).to_numpy(dtype=np.int64)]
        of_kernel = np.where(is_work & leaf, of_kernel, -1)
    counts: Counter[str] = Counter()
    for number, amount in zip(*np.unique(of_kernel[of_kernel >= 0], return_counts=True), strict=True):
        counts[regions[int(number)].key] += int(amount)
    return counts


_BOOKKEEPING = re.compile(
    r"^(?:Torch-Compiled Region|TorchDynamo|Pregraph bytecode|AOTDispatcher|CompiledFunction|## Call"
    r"|aten::(?:as_strided|resolve_conj|resolve_neg|empty|expand|view|t$|transpose|detach))"
)


def _eager(linked: Linked, gaps: Sequence[_Gap]) -> tuple[Counter[str], float]:
    """Counts the outermost ops that ran between graphs, and their time."""
    ops = linked.ops
    is_op = text_matches(ops["name"], _OP.search, _LONGEST_NAME)
    parent = ops["parent"].fillna(-1).to_numpy(dtype=np.int64)
    outer = is_op & ~np.append(is_op, False)[parent]
    threads, names = (
        ops["thread"].astype(str).to_numpy(),
        list(linked.trace.events["thread"].cat.categories.astype(str)),
    )
    start = ops["ts_us"].to_numpy()
    inside = np.zeros(len(ops), dtype=bool)
    for thread in {gap.thread for gap in gaps}:
        rows = np.flatnonzero(outer & (threads == names[thread]))
        for gap in gaps:
            if gap.thread == thread:
                first, last = np.searchsorted(start[rows], (gap.start, gap.end))
                inside[rows[first:last]] = True
    return Counter(ops["name"][inside].astype(str)), float(ops["dur_us"].to_numpy()[inside].sum())


def _priced_break(
    one: BreakHealth, gaps: Sequence[_Gap], runs: _Runs, linked: Linked, steps: int, scale: float
) -> BreakHealth:
    """Adds the price of one line: the gaps behind the graphs that end there."""
    own = [gap for gap in gaps if gap.key in one.compile_ids]
    if not own:
        return replace(one, price_us=None, price_reason="not-entered")
    if not runs.has_calls:
        return replace(one, price_us=None, price_reason="no-calls")
    names, eager_us = _eager(linked, own)
    between_us = sum(gap.end - gap.start for gap in own)
    entries = sum(gap.enters_graph for gap in own)
    backward_us = entries * runs.backward_us / runs.backward_calls if runs.backward_calls else 0.0
    factor = scale / steps
    low_us, high_us = max(between_us - eager_us, 0.0), between_us + max(backward_us, 0.0)
    return replace(
        one,
        price_us=(low_us * factor, high_us * factor),
        price_reason=None,
        eager_ops=tuple(name for name, _ in names.most_common(_MOST_OPS)),
        eager_calls=names.total() / steps,
    )


def _priced_skip(one: CudagraphSkip, calls: Counter[str], linked: Linked) -> CudagraphSkip:
    """Says why a skip has no price.

    Without a GPU there is nothing to capture.
    """
    if linked.is_host_only:
        return replace(one, price_reason="no-device")
    entered = not one.compile_ids or any(calls[key] for key in one.compile_ids)
    return replace(one, price_reason="no-steps" if entered else "not-entered")
