"""Computes the counters one by one from the tables of a case: which rows belong to the step, and their sums.

A thread that reads ahead for the step (a loader's) does its work by luck in one step or the next, and what the main
thread does to take over its results goes with it: neither is counted. Nor is what a loader does once for an epoch.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.schema.case import Case
from bottleneck.schema.linked_trace import Linked

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ENGINE = "autograd::engine::evaluate_function: "
# A loader whose workers are processes: batches arrive in any order, so that one call may take over none or two.
_TAKES_OVER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"
# Draws the order of an epoch's samples and the seed of its workers: in one step of many.
_BEGINS_EPOCH = re.compile(r"torch/utils/data/(dataloader|sampler)\.py\(\d+\): (__iter__|_get_iterator)$")


@dataclass(frozen=True)
class Spans:
    """Stretches that threads (by their number) are in, in any order; they may enclose one another."""

    thread: Ints
    start_us: Floats
    end_us: Floats

    def cover(self, thread: Ints, at_us: Floats) -> Flags:
        """Whether each instant of a thread lies in one of them."""
        if not len(self.thread):
            return np.zeros(len(at_us), dtype=bool)
        order = np.lexsort((self.start_us, self.thread))
        # One that encloses others reaches over their ends; the offsets keep threads apart.
        ends, rank = np.unique(self.end_us[order], return_inverse=True)
        offset = self.thread[order] * len(ends)
        reach_us = ends[np.maximum.accumulate(offset + rank) - offset]
        row = latest(self.thread[order], self.start_us[order], thread, at_us)
        return np.asarray((row >= 0) & (at_us < reach_us[row]))


def latest(thread: Ints, start_us: Floats, asked: Ints, at_us: Floats) -> Ints:
    """The row that started last before, or at, each instant of the asked thread; -1 where there is none.

    Rows are sorted by thread, then start. Threads may be as many as rows.
    """
    _, rank = np.unique(np.concatenate([start_us, at_us]), return_inverse=True)
    size = len(rank) + 1
    key = thread * size + rank[: len(start_us)]
    row = np.searchsorted(key, asked * size + rank[len(start_us) :], side="right") - 1
    known = row >= 0
    known[known] = thread[row[known]] == asked[known]
    return np.where(known, row, -1)


class Scope:
    """The steps of a window, and the rows that belong to them; without steps the window is one."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.events = linked.trace.events
        steps = linked.window.steps
        bounds = [(step.start_us, step.end_us) for step in steps] or [linked.window.host_us]
        self._start_ns, self._end_ns = (np.rint(np.array(side) * 1e3) for side in zip(*bounds, strict=True))

    @property
    def steps(self) -> int:
        """How many there are, at least one."""
        return len(self._start_ns)

    def step_at(self, thread: Ints, at_us: Floats) -> Ints:
        """The step that each instant of a thread (a code of ``events.thread``) belongs to, -1 where to none."""
        at_ns = np.rint(at_us * 1e3)
        step = np.searchsorted(self._start_ns, at_ns, side="right") - 1
        inside = (step >= 0) & (at_ns < self._end_ns[step])
        rows = np.flatnonzero(inside)
        rows = rows[self._works[thread[rows]]]
        rows = rows[~self._of_loaders.cover(thread[rows], at_us[rows])]
        found = np.full(len(at_us), -1, dtype=np.int64)
        found[rows] = step[rows]
        return found

    def of_events(self, rows: Ints) -> Ints:
        """The step of each of these rows of EVENTS."""
        return self.step_at(self.thread[rows], self.events["ts_us"].to_numpy()[rows])

    def rows_named(self, category: str, test: Callable[[str], bool]) -> Ints:
        """Rows of EVENTS of a category whose name passes; each distinct name is asked once."""
        categories = list(self.events["category"].cat.categories)
        if category not in categories:
            return np.empty(0, dtype=np.int64)
        rows = np.flatnonzero(self.events["category"].cat.codes.to_numpy() == categories.index(category))
        codes = self.events["name"].cat.codes.to_numpy()[rows]
        labels = self.events["name"].cat.categories
        passes = np.zeros(len(labels) + 1, dtype=bool)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(labels))).tolist():
            passes[code] = test(labels[code])
        return rows[passes[codes]]

    @cached_property
    def thread(self) -> Ints:
        """Thread of each row of EVENTS, as a code."""
        return self.events["thread"].cat.codes.to_numpy().astype(np.int64)

    @cached_property
    def op_thread(self) -> Ints:
        """Thread of each row of OPS, as a code of ``events.thread``."""
        return self.recode(self.linked.ops["thread"])

    @cached_property
    def op_step(self) -> Ints:
        """Step of each row of OPS, -1 for those that do not count."""
        return self.step_at(self.op_thread, self.linked.ops["ts_us"].to_numpy())

    def recode(self, column: "pd.Series[str]") -> Ints:
        """Threads of another table as codes of ``events.thread``; those without events get the code after all."""
        known = {label: code for code, label in enumerate(self.events["thread"].cat.categories)}
        codes = [known.get(label, len(known)) for label in column.cat.categories]
        return np.array([*codes, len(known)], dtype=np.int64)[column.cat.codes.to_numpy()]

    def ops_named(self, test: Callable[[str], bool]) -> Flags:
        """Whether the name of each row of OPS passes; each distinct name is asked once."""
        names = self.linked.ops["name"].cat
        return np.array([*map(test, names.categories), False], dtype=bool)[names.codes.to_numpy()]

    @cached_property
    def _works(self) -> Flags:
        """By code of a thread: whether it is the step's, the one in which most ops begin, or one of autograd's."""
        ops, size = self.linked.ops, len(self.events["thread"].cat.categories) + 1
        if ops.empty:
            return np.ones(size, dtype=bool)
        is_engine = self.ops_named(lambda name: name.startswith(ENGINE))
        start_ns = ops["ts_us"].to_numpy() * 1e3
        inside = (start_ns >= self._start_ns[0]) & (start_ns < self._end_ns[-1])
        begins = inside & ~is_engine & (ops["depth"].to_numpy() == 0)
        works = np.bincount(self.op_thread[is_engine], minlength=size) > 0
        works[int(np.bincount(self.op_thread[begins], minlength=size).argmax())] = True
        return works

    @cached_property
    def _of_loaders(self) -> Spans:
        taking_over = self.rows_named("annotation", lambda name: name.startswith(_TAKES_OVER))
        beginning = self.rows_named("python", lambda name: _BEGINS_EPOCH.search(name) is not None)
        rows = np.concatenate([taking_over, beginning])
        start_us = self.events["ts_us"].to_numpy()[rows]
        return Spans(self.thread[rows], start_us, start_us + self.events["dur_us"].to_numpy()[rows])


LABELS = ("source", "module")


@dataclass(frozen=True)
class Rows:
    """Rows that count, with the step of each (-1: none) and its places: codes (-1: unknown) into labels, by column."""

    step: Ints
    places: Mapping[str, tuple[Ints, list[str]]]

    def only(self, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]] | Ints") -> "Rows":
        """Some of them."""
        return Rows(self.step[chosen], {name: (code[chosen], labels) for name, (code, labels) in self.places.items()})


def op_rows(scope: Scope) -> Rows:
    """All of OPS, row for row."""
    return Rows(scope.op_step, _places(scope.linked.ops))


def kernel_rows(scope: Scope) -> Rows:
    """All of KERNELS, row for row: the step in which each was launched."""
    kernels = scope.linked.kernels
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
    step = np.full(len(kernels), -1, dtype=np.int64)
    known = np.flatnonzero(launch >= 0)
    step[known] = scope.of_events(launch[known])
    return Rows(step, _places(kernels))


def event_rows(scope: Scope, rows: Ints) -> Rows:
    """These rows of EVENTS, at the places where their threads are then."""
    places = scope.linked.places
    if places is None or not len(rows):
        nowhere = np.full(len(rows), -1, dtype=np.int64)
        return Rows(scope.of_events(rows), {name: (nowhere, []) for name in LABELS})
    at_us = scope.events["ts_us"].to_numpy()[rows]
    found = _place_at(scope, places, scope.thread[rows], at_us)
    return Rows(
        scope.of_events(rows),
        {name: (np.append(code, -1)[found], labels) for name, (code, labels) in _places(places).items()},
    )


def _place_at(
    scope: Scope, places: pd.DataFrame, thread: Ints, at_us: "np.ndarray[tuple[int], np.dtype[np.float64]]"
) -> Ints:
    """Row of PLACES in which each thread is at each instant, -1 for none."""
    of_place = scope.recode(places["thread"])
    order = np.lexsort((places["ts_us"].to_numpy(), of_place))
    start_us, end_us = (places[name].to_numpy()[order] for name in ("ts_us", "end_us"))
    row = latest(of_place[order], start_us, thread, at_us)
    return np.where((row >= 0) & (at_us < end_us[row]), order[row], -1)


def _places(table: pd.DataFrame) -> dict[str, tuple[Ints, list[str]]]:
    return {
        name: (table[name].cat.codes.to_numpy().astype(np.int64), list(table[name].cat.categories)) for name in LABELS
    }


_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_LAST_NUMBER = re.compile(r"_\d+$")
_NODE_NUMBER = re.compile(r"(?<=Backward)\d+$")
# What Inductor generates: 'triton_poi_fused_add_relu_3', 'cpp_fused_add_0'. Another Triton kernel: 'kernel_0d1d2de'.
_GENERATED = re.compile(r"^(triton|cpp)_(\w+?)_\d+$")
_SPECIALISED = re.compile(r"_(?:\d+[dc]e?)+$")

_OTHER_NAMES = ("autograd::engine::", "torch::autograd::")


def is_op(name: str) -> bool:
    """Whether a row of OPS is a call of the dispatcher: 'aten::add', but no node of autograd and no annotation."""
    return "::" in name and not name.startswith(_OTHER_NAMES)


def plain_op(name: str) -> str:
    """An op's name without addresses and numbers of nodes."""
    return _NODE_NUMBER.sub("", _ADDRESS.sub("0x…", name))


def plain_kernel(name: str) -> str:
    """A kernel's name without the number that its generator gave it."""
    name = _ADDRESS.sub("0x…", name)
    match = _GENERATED.match(name)
    return f"{match[1]}_{match[2]}" if match else _SPECIALISED.sub("", name)


def plain_module(path: str) -> str:
    """'Net.Linear' of 'Net_0.Linear_3': the profiler numbers the modules of a class as it meets them."""
    return ".".join(_LAST_NUMBER.sub("", part) for part in _ADDRESS.sub("0x…", path).split("."))


DIFFER = "steps differ (data-dependent)"


@dataclass(frozen=True)
class Tally:
    """The number that all steps agree on, or the lowest and the highest."""

    low: int
    high: int

    @property
    def is_stable(self) -> bool:
        """Whether the steps agree."""
        return self.low == self.high


def spread(low: int, high: int, why: str) -> str:
    """'8..10: runs differ'."""
    return f"{low}..{high}: {why}"


def total(step: Ints, steps: int, amount: Floats | None = None) -> Tally:
    """Rows (or the sum of their amounts) in each step; rows of step -1 do not count."""
    inside = step >= 0
    sums = np.bincount(step[inside], None if amount is None else amount[inside], minlength=steps)
    return Tally(round(float(sums.min())), round(float(sums.max())))


def by_label(step: Ints, code: Ints, labels: Sequence[str], steps: int) -> Mapping[str, Tally]:
    """Rows per step for each label; rows of step -1 and those without a code (-1) do not count."""
    rows = np.flatnonzero((step >= 0) & (code >= 0))
    keys, counts = np.unique(code[rows] * steps + step[rows], return_counts=True)
    if not len(keys):
        return {}
    codes = keys // steps
    first = np.flatnonzero(np.concatenate(([True], np.diff(codes) != 0)))
    present = np.diff(np.append(first, len(codes)))
    low = np.where(present == steps, np.minimum.reduceat(counts, first), 0)
    high = np.maximum.reduceat(counts, first)
    found = zip(codes[first].tolist(), low.tolist(), high.tolist(), strict=True)
    return {labels[each]: Tally(least, most) for each, least, most in found}


def relabel(codes: Ints, labels: Sequence[str]) -> tuple[Ints, list[str]]:
    """Codes into the distinct ones among labels, of which some have become the same."""
    distinct = list(dict.fromkeys(labels))
    position = {label: code for code, label in enumerate(distinct)}
    return np.array([*(position[label] for label in labels), -1], dtype=np.int64)[codes], distinct


_LAUNCH = re.compile(r"LaunchKernel|LaunchCooperativeKernel|ModuleLaunch|GraphLaunch")
_WAIT = re.compile(r"(Stream|Device|Event|Ctx)Synchronize")
_TO_DEVICE = re.compile(r"HtoD|HostToDevice")
_TO_HOST = re.compile(r"DtoH|DeviceToHost")
_READS = "aten::_local_scalar_dense"

_HOST_ONLY = "a CPU runs no kernels that are launched"
_NO_LAUNCHES = "the trace does not tell which calls launched its kernels"
_NO_SHAPES = "recorded without shapes"
_NO_STACKS = "recorded without Python calls"
_NO_MEMORY = "recorded without memory events"
_NOT_SEEN = "the trace has no work of a device, which may have been there"
_NO_COMPILER = "only a recording of the program tells what torch.compile did"
_TOO_LARGE = "sizes in the trace make no number"


@dataclass(frozen=True)
class Unknown:
    """Why a counter cannot be told of this case."""

    reason: str


Found = Tally | Unknown


class Work:
    """What the steps of a case did. ``parts`` are rows that a breakdown by place counts, by counter."""

    def __init__(self, case: Case) -> None:
        self.case, self.linked = case, case.linked
        self.scope = Scope(case.linked)
        self.steps = self.scope.steps
        self.is_host_only = case.linked.trace.flavour == "cpu" and case.linked.trace.device_args.empty

    def count(self) -> Mapping[str, Found]:
        """Each counter by name."""
        return {name: self._guarded(counter) for name, counter in _COUNTERS.items()}

    def _guarded(self, counter: "Callable[[Work], Found]") -> Found:
        try:
            return counter(self)
        except (OverflowError, ValueError):  # infinite or absent sizes of a hostile file
            return Unknown(_TOO_LARGE)

    @cached_property
    def is_call(self) -> Flags:
        """Row for row as OPS: whether it is a call of the dispatcher."""
        return self.scope.ops_named(is_op)

    @cached_property
    def parts(self) -> Mapping[str, Rows]:
        """The rows behind the counters that lines and modules are told of."""
        of_ops = op_rows(self.scope)
        parts = {
            "ops": of_ops.only(self.is_call),
            "syncs": of_ops.only(self._reads),
            "copies": of_ops.only(self.scope.ops_named(lambda name: name == "aten::copy_")),
            "float64_ops": of_ops.only(self._float64),
        }
        if not self.is_host_only:
            waits = event_rows(self.scope, self._waits)
            parts["syncs"] = _joined(parts["syncs"], waits)
            parts["launches"] = self._launched
        return parts

    def of_part(self, name: str) -> Tally:
        """A counter that is the number of its rows."""
        return total(self.parts[name].step, self.steps)

    @cached_property
    def _reads(self) -> Flags:
        return self.scope.ops_named(lambda name: name == _READS)

    @cached_property
    def _waits(self) -> Ints:
        """Calls of the runtime that wait, but those by which an op reads a value: it counts already."""
        scope, ops = self.scope, self.linked.ops
        rows = scope.rows_named("runtime", lambda name: _WAIT.search(name) is not None)
        start_us, dur_us = (ops[name].to_numpy()[self._reads] for name in ("ts_us", "dur_us"))
        reading = Spans(scope.op_thread[self._reads], start_us, start_us + dur_us)
        return rows[~reading.cover(scope.thread[rows], scope.events["ts_us"].to_numpy()[rows])]

    @cached_property
    def _launched(self) -> Rows:
        """One row per call that launched kernels, at the place of the first of them."""
        kernels = self.linked.kernels
        is_kernel = kernels["kind"].isin(("compute", "collective")).to_numpy()
        launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
        launch = np.where(is_kernel, launch, -1)
        _, first = np.unique(launch, return_index=True)
        return kernel_rows(self.scope).only(first[launch[first] >= 0])

    @cached_property
    def _float64(self) -> Flags:
        """Ops that take a float64 tensor with a dimension; those without are numbers that torch has wrapped."""
        types = self.linked.trace.signatures
        flags = np.array([_takes_float64(*row) for row in zip(types["dims"], types["types"], strict=True)] or [False])
        signature = self.linked.ops["signature"].to_numpy(dtype=np.int64, na_value=-1)
        return np.asarray(np.append(flags, False)[signature] & self.is_call)

    def launches(self) -> Found:
        """Calls that launch; those of the trace itself where it has any, which needs no kernel to be seen."""
        if self.is_host_only:
            return Unknown(_HOST_ONLY)
        rows = self.scope.rows_named("runtime", lambda name: _LAUNCH.search(name) is not None)
        if len(rows):
            return total(self.scope.of_events(rows), self.steps)
        return self.of_part("launches") if len(self._launched.step) else Unknown(_NO_LAUNCHES)

    def flops(self) -> Found:
        """Arithmetic of the ops that pay for kernels, each once, in whole operations; what has no price is left out."""
        signature = self.linked.ops["signature"].to_numpy(dtype=np.int64, na_value=-1)
        if not (signature >= 0).any():
            return Unknown(_NO_SHAPES)
        amounts = self.case.costs[["matrix_flops", "vector_flops"]].fillna(0.0).to_numpy().sum(axis=1)
        amounts = np.append(np.rint(amounts), 0.0)
        attribution = self.case.attribution
        owner = attribution["op"].to_numpy(dtype=np.int64, na_value=-1)
        owners = np.unique(owner[owner >= 0])
        step, amount = self.scope.op_step[owners], amounts[signature[owners]]
        replays = np.flatnonzero((owner < 0) & attribution["signature"].notna().to_numpy())
        if len(replays):
            carried = attribution["signature"].to_numpy(dtype=np.int64, na_value=-1)[replays]
            share = attribution["share"].to_numpy(dtype=np.float64, na_value=0.0)[replays]
            step = np.concatenate([step, kernel_rows(self.scope).step[replays]])
            amount = np.concatenate([amount, amounts[carried] * share])
        return total(step, self.steps, amount)

    def float64_ops(self) -> Found:
        """Known where any op tells its dtypes."""
        has_types = self.linked.trace.signatures["types"].notna().any()
        return self.of_part("float64_ops") if has_types else Unknown(_NO_SHAPES)

    def copies_along(self, direction: "re.Pattern[str]", *, in_bytes: bool) -> Found:
        """Copies between host and device that the steps asked for, or their size."""
        if self.is_host_only:
            recording = self.case.recording
            is_known = recording is not None and recording.framework is not None and not recording.device_facts
            return Tally(0, 0) if is_known else Unknown(_NOT_SEEN)
        kernels = self.linked.kernels
        names = kernels["name"].cat
        along = np.array([direction.search(name) is not None for name in names.categories] or [False])
        mine = np.flatnonzero(along[names.codes.to_numpy()] & (kernels["kind"] == "copy").to_numpy())
        if len(mine) and kernels["launch"].iloc[mine].isna().all():
            return Unknown(_NO_LAUNCHES)
        step = kernel_rows(self.scope).step[mine]
        if not in_bytes:
            return total(step, self.steps)
        return total(step, self.steps, kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)[mine])

    def autograd_nodes(self) -> Found:
        """Nodes that autograd's engine evaluated."""
        rows = self.scope.ops_named(lambda name: name.startswith(ENGINE))
        return total(self.scope.op_step[rows], self.steps)

    def module_calls(self) -> Found:
        """Calls of nn.Modules that Python made; a compiled graph makes none."""
        if self.linked.places is None:
            return Unknown(_NO_STACKS)
        rows = self.scope.rows_named("python", lambda name: name.startswith("nn.Module: "))
        return total(self.scope.of_events(rows), self.steps)

    @cached_property
    def _memory(self) -> "tuple[pd.DataFrame, Ints]":
        memory = self.linked.trace.memory
        return memory, self.scope.step_at(self.scope.recode(memory["thread"]), memory["ts_us"].to_numpy())

    def allocations(self) -> Found:
        """Blocks that the steps asked for, of the host's allocator and the device's."""
        memory, step = self._memory
        is_new = (memory["bytes"] > 0).to_numpy()
        return total(step[is_new], self.steps) if len(memory) else Unknown(_NO_MEMORY)

    def allocated_bytes(self) -> Found:
        """Their size."""
        memory, step = self._memory
        size = memory["bytes"].to_numpy().astype(np.float64)
        return total(step[size > 0], self.steps, size[size > 0]) if len(memory) else Unknown(_NO_MEMORY)

    def peak_bytes(self) -> Found:
        """The most that the device had handed out; on a CPU the most beyond what was in use as the step began."""
        memory, step = self._memory
        of_device = memory["on_device"].to_numpy() == (not self.is_host_only)
        inside = np.flatnonzero(of_device & (step >= 0))
        if not len(inside):
            return Unknown(_NO_MEMORY)
        totals = memory["total_allocated"].to_numpy(dtype=np.float64, na_value=np.nan)[inside]
        if self.is_host_only or np.isnan(totals).any():
            totals = _running(memory["bytes"].to_numpy()[inside].astype(np.float64), step[inside])
        peaks = np.zeros(self.steps)
        np.maximum.at(peaks, step[inside], totals)
        return Tally(round(float(peaks.min())), round(float(peaks.max())))

    def kernel_names(self) -> Found:
        """Distinct kernels, by their names without running numbers."""
        kernels = self.kernels()
        if isinstance(kernels, Unknown):
            return kernels
        return Tally(sum(tally.low > 0 for tally in kernels.values()), len(kernels))

    def kernels(self) -> Mapping[str, Tally] | Unknown:
        """Kernels per step by name."""
        if self.is_host_only:
            return Unknown(_HOST_ONLY)
        table = self.linked.kernels
        is_kernel = table["kind"].isin(("compute", "collective")).to_numpy()
        step = np.where(is_kernel, kernel_rows(self.scope).step, -1)
        names = table["name"].cat
        code, labels = relabel(
            names.codes.to_numpy().astype(np.int64), [plain_kernel(name) for name in names.categories]
        )
        found = by_label(step, code, labels, self.steps)
        return found or Unknown(_NO_LAUNCHES)

    def compiled(self, name: str) -> Found:
        """What the recording tells of torch.compile: in all, until the window ended."""
        recording = self.case.recording
        report = None if recording is None else recording.compilation
        if report is None:
            return Unknown(_NO_COMPILER)
        number = int(getattr(report, name))
        return Tally(number, number)


_COUNTERS: Mapping[str, Callable[[Work], Found]] = {
    "ops": lambda work: work.of_part("ops"),
    "launches": Work.launches,
    "syncs": lambda work: work.of_part("syncs"),
    "copies": lambda work: work.of_part("copies"),
    "h2d_copies": lambda work: work.copies_along(_TO_DEVICE, in_bytes=False),
    "h2d_bytes": lambda work: work.copies_along(_TO_DEVICE, in_bytes=True),
    "d2h_copies": lambda work: work.copies_along(_TO_HOST, in_bytes=False),
    "d2h_bytes": lambda work: work.copies_along(_TO_HOST, in_bytes=True),
    "flops": Work.flops,
    "float64_ops": Work.float64_ops,
    "graphs": lambda work: work.compiled("graphs"),
    "graph_breaks": lambda work: work.compiled("graph_breaks"),
    "recompiles": lambda work: work.compiled("recompiles"),
    "autograd_nodes": Work.autograd_nodes,
    "module_calls": Work.module_calls,
    "allocations": Work.allocations,
    "allocated_bytes": Work.allocated_bytes,
    "peak_bytes": Work.peak_bytes,
    "kernel_names": Work.kernel_names,
}


def _running(size: Floats, step: Ints) -> Floats:
    """The running sum of each step on its own; rows are in the order of time: those of a step stand together."""
    sums = np.cumsum(size)
    first = np.flatnonzero(np.concatenate(([True], np.diff(step) != 0)))
    before = (sums - size)[first]
    return np.asarray(sums - np.repeat(before, np.diff(np.append(first, len(step)))))


def _takes_float64(dims: str | None, types: str | None) -> bool:
    if types is None or dims is None or '"double"' not in types:
        return False
    try:
        pairs = zip(json.loads(dims), json.loads(types), strict=False)
        return any(kind == "double" and bool(shape) for shape, kind in pairs)
    except (ValueError, TypeError, RecursionError):
        return False


def _joined(one: Rows, other: Rows) -> Rows:
    """The rows of both."""
    places = {}
    for name, (code, labels) in one.places.items():
        theirs, more = other.places[name]
        both, distinct = relabel(
            np.concatenate([code, np.where(theirs >= 0, theirs + len(labels), -1)]), [*labels, *more]
        )
        places[name] = (both, distinct)
    return Rows(np.concatenate([one.step, other.step]), places)
