"""Counts what the steps of a recording did.

One whole number per counter, with its breakdown and what it depends on.

The rows of the evidence's tables that belong to the steps are selected first, with the source line and module of each.
A thread that reads ahead (a data loader's) does its work in one step or the next, as timing has it, and what the main
thread does to take over its results goes with it: neither is counted. Nor is what a loader does once per epoch.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from bottleneck.analysis.host import places_of
from bottleneck.gate.source_files import SourceFiles
from bottleneck.schema.counters import MODULE_COUNTERS, Counts, Fingerprint, Site, Value
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import NOTHING, Flags, Floats, Integers, grouped, hold_on_tracks
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.op_names import AUTOGRAD_PREFIX
from bottleneck.schema.recording import Recording
from bottleneck.schema.tables import LAUNCHES, SYNCHRONISES, are_calls, main_thread, text_matches

# A loader whose workers are processes: batches arrive in any order, so that one call may take over none or two.
_TAKES_OVER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter"
# Draws the order of an epoch's samples and the seed of its workers: in one step of many.
_BEGINS_EPOCH = re.compile(r"torch/utils/data/(dataloader|sampler)\.py\(\d+\): (__iter__|_get_iterator)$")


class StepScope:
    """The steps of a window, and the rows that belong to them.

    Without steps the window is one.
    """

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.events = linked.trace.events
        steps = linked.window.steps
        bounds = [(step.start_us, step.end_us) for step in steps] or [linked.window.host_us]
        self._start_ns, self._end_ns = (np.rint(np.array(side) * 1e3) for side in zip(*bounds, strict=True))

    @property
    def steps(self) -> int:
        """The number of steps, at least one."""
        return len(self._start_ns)

    def step_at(self, thread: Integers, at_us: Floats) -> Integers:
        """Finds the step of each instant of a thread, else -1.

        ``thread`` is a code of ``events.thread``.
        """
        at_ns = np.rint(at_us * 1e3)
        step = np.searchsorted(self._start_ns, at_ns, side="right") - 1
        inside = (step >= 0) & (at_ns < self._end_ns[step])
        rows = np.flatnonzero(inside)
        rows = rows[self._works[thread[rows]]]
        rows = rows[~hold_on_tracks(*self._of_loaders, thread[rows], at_us[rows])]
        step_of = np.full(len(at_us), -1, dtype=np.int64)
        step_of[rows] = step[rows]
        return step_of

    def of_events(self, rows: Integers) -> Integers:
        """The step of each of these rows of EVENTS."""
        return self.step_at(self.thread[rows], self.events["ts_us"].to_numpy()[rows])

    def rows_named(self, category: str, test: Callable[[str], bool]) -> Integers:
        """Selects rows of EVENTS of a category whose names pass.

        Each distinct name is tested once.
        """
        rows = np.flatnonzero((self.events["category"] == category).to_numpy())
        return rows[text_matches(self.events["name"].iloc[rows].cat.remove_unused_categories(), test)]

    @cached_property
    def thread(self) -> Integers:
        """Thread of each row of EVENTS, as a code."""
        return self.events["thread"].cat.codes.to_numpy().astype(np.int64)

    @cached_property
    def op_thread(self) -> Integers:
        """Thread of each row of OPS, as a code of ``events.thread``."""
        return self.recode(self.linked.ops["thread"])

    @cached_property
    def op_step(self) -> Integers:
        """Finds the step of each op, -1 for those not counted."""
        return self.step_at(self.op_thread, self.linked.ops["ts_us"].to_numpy())

    def recode(self, column: "pd.Series[str]") -> Integers:
        """Codes threads of a table as ``events.thread``, else -1."""
        codes = self.events["thread"].cat.categories.get_indexer(column.cat.categories)
        return np.append(codes, -1).astype(np.int64)[column.cat.codes.to_numpy()]

    def ops_named(self, test: Callable[[str], bool]) -> Flags:
        """Tests the name of each row of OPS.

        Each distinct name is tested once.
        """
        return text_matches(self.linked.ops["name"], test)

    @property
    def autograd_nodes(self) -> Flags:
        """Marks rows of OPS that are nodes of autograd's engine."""
        return self.linked.ops["is_autograd"].to_numpy()

    @cached_property
    def _works(self) -> Flags:
        """Marks the threads that are the main one or autograd's."""
        size = len(self.events["thread"].cat.categories) + 1
        if self.linked.ops.empty:
            return np.ones(size, dtype=bool)
        works = np.bincount(self.op_thread[self.autograd_nodes], minlength=size) > 0
        works[main_thread(self.events)] = True
        return works

    @cached_property
    def _of_loaders(self) -> tuple[Integers, Floats, Floats]:
        """Finds where a loader begins an epoch or hands over a batch.

        Gives threads, starts and ends.
        """
        taking_over = self.rows_named("annotation", lambda name: name.startswith(_TAKES_OVER))
        beginning = self.rows_named("python", lambda name: _BEGINS_EPOCH.search(name) is not None)
        rows = np.concatenate([taking_over, beginning])
        start_us = self.events["ts_us"].to_numpy()[rows]
        return self.thread[rows], start_us, start_us + self.events["dur_us"].to_numpy()[rows]


LABELS = ("source", "module")


@dataclass(frozen=True)
class StepRows:
    """Rows with their steps and places.

    A step is -1 where there is none; places are codes (-1: unknown) into labels, by column.
    """

    step: Integers
    places: Mapping[str, tuple[Integers, list[str]]]

    def only(self, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]] | Integers") -> "StepRows":
        """Some of them."""
        return StepRows(
            self.step[chosen], {name: (code[chosen], labels) for name, (code, labels) in self.places.items()}
        )


def op_rows(scope: StepScope) -> StepRows:
    """All of OPS, row for row."""
    return StepRows(scope.op_step, _places(scope.linked.ops))


def kernel_rows(scope: StepScope) -> StepRows:
    """Finds the step in which each kernel was launched."""
    kernels = scope.linked.kernels
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
    step = np.full(len(kernels), -1, dtype=np.int64)
    with_launch = np.flatnonzero(launch >= 0)
    step[with_launch] = scope.of_events(launch[with_launch])
    return StepRows(step, _places(kernels))


def event_rows(scope: StepScope, rows: Integers) -> StepRows:
    """These rows of EVENTS, at the places where their threads are then."""
    places = scope.linked.places
    if places is None or not len(rows):
        nowhere = np.full(len(rows), -1, dtype=np.int64)
        return StepRows(scope.of_events(rows), {name: (nowhere, []) for name in LABELS})
    at_us = scope.events["ts_us"].to_numpy()[rows]
    of_thread, place = places_of(scope.linked), np.full(len(rows), -1, dtype=np.int64)
    for code, mine in grouped(scope.thread[rows]):
        place[mine] = of_thread.get(code, NOTHING).at(at_us[mine])
    return StepRows(
        scope.of_events(rows),
        {name: (np.append(code, -1)[place], labels) for name, (code, labels) in _places(places).items()},
    )


def _places(table: pd.DataFrame) -> dict[str, tuple[Integers, list[str]]]:
    return {
        name: (table[name].cat.codes.to_numpy().astype(np.int64), list(table[name].cat.categories)) for name in LABELS
    }


_MINOR = re.compile(r"(\d+\.\d+)")
_DIGEST_LENGTH = 8
_OF_CPU = ("isa", "mkl")
_OF_GPU = ("cuda", "cudnn", "hip")
# With and without oneDNN a CPU's convolutions are other ops (gate statistics, section 4).
_DECIDES_OPS_OF_CPU = ("onednn",)


def fingerprint_of(evidence: Evidence) -> Fingerprint:
    """Collects the facts that the recording or the trace states.

    Unknown facts are left out.
    """
    recording = evidence.recording
    if recording is None:
        trace = evidence.linked.trace
        return Fingerprint({"backend": trace.flavour, **_known(world_size=trace.world_size)}, _of_device(evidence))
    is_host_only = _is_host_only(evidence)
    return Fingerprint(
        portable={
            **_known(torch=_minor(recording.framework or ""), python=_minor(recording.versions.get("python", ""))),
            "backend": evidence.linked.trace.flavour,
            **_known(compiled=None if recording.compilation is None else recording.compilation.graphs > 0),
            "world_size": len(recording.traces) or 1,
            **_recorded(recording, _DECIDES_OPS_OF_CPU if is_host_only else ()),
        },
        backend={
            **_of_device(evidence),
            **_known(threads=recording.threads),
            **_recorded(recording, _OF_CPU if is_host_only else (*_OF_GPU, *_OF_CPU, *_DECIDES_OPS_OF_CPU)),
        },
        # Not its release: that changes with every update of the system, and lock-files with it.
        host=_known(cpu=recording.versions.get("cpu"), system=recording.versions.get("platform", "").partition("-")[0]),
    )


def input_digest(evidence: Evidence) -> str:
    """Digests what the program is given; empty for a bare trace.

    That is its form, options and arguments.

    It leaves out shapes: in a trace the first call of the program itself cannot be identified, so that an op added to
    the model would look like another input. Whatever else the settings leave open changes the counters themselves.
    """
    recording = evidence.recording
    if recording is None:
        return ""
    words = recording.command[2:] if recording.command[:1] == ("-m",) else recording.command[1:]
    text = json.dumps([recording.form, list(recording.options), list(words)])
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _known(**facts: Value | None) -> dict[str, Value]:
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _minor(version: str) -> str | None:
    match = _MINOR.search(version)
    return match[1] if match else None


def _of_device(evidence: Evidence) -> dict[str, Value]:
    """Names the device of the trace; nothing of a CPU.

    A CPU's instructions are among its libraries.
    """
    devices = evidence.linked.trace.devices
    if _is_host_only(evidence) or not devices:
        return {}
    return _known(device=devices[0].name, sm_count=devices[0].sm_count)


def _recorded(recording: Recording, names: Sequence[str]) -> Mapping[str, Value]:
    return {name: recording.libraries[name] for name in names if name in recording.libraries}


def _is_host_only(evidence: Evidence) -> bool:
    return evidence.linked.trace.device_args.empty


_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_LAST_NUMBER = re.compile(r"_\d+$")
_NODE_NUMBER = re.compile(r"(?<=Backward)\d+$")
# What Inductor generates: 'triton_poi_fused_add_relu_3', 'cpp_fused_add_0'. Another Triton kernel: 'kernel_0d1d2de'.
_GENERATED = re.compile(r"^(triton|cpp)_(\w+?)_\d+$")
_SPECIALISED = re.compile(r"_(?:\d+[dc]e?)+$")

_OTHER_NAMES = (AUTOGRAD_PREFIX, "torch::autograd::")


def is_op(name: str) -> bool:
    """Tells dispatcher calls ('aten::add') from nodes of autograd and annotations."""
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
    """Takes the numbers off: 'Net.Linear' of 'Net_0.Linear_3'.

    The profiler numbers the modules of a class as it meets them.
    """
    return ".".join(_LAST_NUMBER.sub("", part) for part in _ADDRESS.sub("0x…", path).split("."))


DIFFER = "steps differ (data-dependent)"


@dataclass(frozen=True)
class Tally:
    """A number that steps agree on, or the lowest and highest."""

    low: int
    high: int

    @property
    def is_stable(self) -> bool:
        """True if all steps agree."""
        return self.low == self.high


def spread(low: int, high: int, why: str) -> str:
    """'8..10: runs differ'."""
    return f"{low}..{high}: {why}"


def total(step: Integers, steps: int, amount: Floats | None = None) -> Tally:
    """Counts rows, or adds up their amounts, in each step.

    Rows of step -1 do not count.
    """
    inside = step >= 0
    sums = np.bincount(step[inside], None if amount is None else amount[inside], minlength=steps)
    return Tally(round(float(sums.min())), round(float(sums.max())))


def by_label(step: Integers, code: Integers, labels: Sequence[str], steps: int) -> Mapping[str, Tally]:
    """Counts rows per step for each label.

    Rows of step -1 and those without a code (-1) do not count.
    """
    rows = np.flatnonzero((step >= 0) & (code >= 0))
    keys, counts = np.unique(code[rows] * steps + step[rows], return_counts=True)
    if not len(keys):
        return {}
    codes = keys // steps
    first = np.flatnonzero(np.concatenate(([True], np.diff(codes) != 0)))
    present = np.diff(np.append(first, len(codes)))
    low = np.where(present == steps, np.minimum.reduceat(counts, first), 0)
    high = np.maximum.reduceat(counts, first)
    tallies = zip(codes[first].tolist(), low.tolist(), high.tolist(), strict=True)
    return {labels[position]: Tally(least, most) for position, least, most in tallies}


def relabel(codes: Integers, labels: Sequence[str]) -> tuple[Integers, list[str]]:
    """Renumbers codes where labels have become the same."""
    distinct = list(dict.fromkeys(labels))
    position = {label: code for code, label in enumerate(distinct)}
    return np.array([*(position[label] for label in labels), -1], dtype=np.int64)[codes], distinct


_READS = "aten::_local_scalar_dense"

_HOST_ONLY = "a CPU runs no kernels that are launched"
_NO_LAUNCHES = "the trace does not record which calls launched its kernels"
_NO_SHAPES = "recorded without shapes"
_NO_STACKS = "recorded without Python calls"
_NO_MEMORY = "recorded without memory events"
_NOT_SEEN = "the trace has no work of a device, which may have been there"
_NO_COMPILER = "only a recording made by bottleneck run has counters of torch.compile"
_OLDER = "this recording was made by a bottleneck that did not count this yet: record again"
_TOO_LARGE = "sizes in the trace make no number"


@dataclass(frozen=True)
class UnknownCount:
    """The reason that a counter is unknown for this recording."""

    reason: str


Found = Tally | UnknownCount


class StepCounter:
    """Counts one recording.

    ``parts`` are the rows behind each counter that is broken down by line and module.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.linked = evidence, evidence.linked
        self.scope = StepScope(evidence.linked)
        self.steps = self.scope.steps
        self.is_host_only = evidence.linked.trace.flavour == "cpu" and evidence.linked.trace.device_args.empty

    def count(self) -> Mapping[str, Found]:
        """Each counter by name."""
        return {name: self._guarded(counter) for name, counter in _COUNTERS.items()}

    def _guarded(self, counter: "Callable[[StepCounter], Found]") -> Found:
        try:
            return counter(self)
        except (OverflowError, ValueError):  # infinite or absent sizes of a hostile file
            return UnknownCount(_TOO_LARGE)

    @cached_property
    def is_call(self) -> Flags:
        """Marks rows of OPS that are calls of the dispatcher."""
        return self.scope.ops_named(is_op)

    @cached_property
    def parts(self) -> Mapping[str, StepRows]:
        """Collects the rows of counters broken down by line and module."""
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
    def _waits(self) -> Integers:
        """Selects the calls of the runtime that wait.

        Those by which an op reads a value are left out: the op counts already.
        """
        scope, ops = self.scope, self.linked.ops
        rows = np.flatnonzero(are_calls(self.linked.trace, *SYNCHRONISES))
        start_us, dur_us = (ops[name].to_numpy()[self._reads] for name in ("ts_us", "dur_us"))
        reading = scope.op_thread[self._reads], start_us, start_us + dur_us
        return rows[~hold_on_tracks(*reading, scope.thread[rows], scope.events["ts_us"].to_numpy()[rows])]

    @cached_property
    def _launched(self) -> StepRows:
        """Selects one row per launching call, at its first kernel."""
        kernels = self.linked.kernels
        is_kernel = kernels["kind"].isin(("compute", "collective")).to_numpy()
        launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=-1)
        launch = np.where(is_kernel, launch, -1)
        _, first = np.unique(launch, return_index=True)
        return kernel_rows(self.scope).only(first[launch[first] >= 0])

    @cached_property
    def _float64(self) -> Flags:
        """Selects ops that take a float64 tensor with a dimension.

        Those without are numbers that torch has wrapped.
        """
        types = self.linked.trace.signatures
        flags = np.array([_takes_float64(*row) for row in zip(types["dims"], types["types"], strict=True)] or [False])
        signature = self.linked.ops["signature"].to_numpy(dtype=np.int64, na_value=-1)
        return np.asarray(np.append(flags, False)[signature] & self.is_call)

    def launches(self) -> Found:
        """Selects the calls that launch kernels.

        Those of the trace itself where it has any, which needs no kernel to be seen.
        """
        if self.is_host_only:
            return UnknownCount(_HOST_ONLY)
        rows = np.flatnonzero(are_calls(self.linked.trace, *LAUNCHES))
        if len(rows):
            return total(self.scope.of_events(rows), self.steps)
        return self.of_part("launches") if len(self._launched.step) else UnknownCount(_NO_LAUNCHES)

    def flops(self) -> Found:
        """Adds up the FLOPs of ops with kernels, each op once.

        Unmodelled ops are left out.
        """
        signature = self.linked.ops["signature"].to_numpy(dtype=np.int64, na_value=-1)
        if not (signature >= 0).any():
            return UnknownCount(_NO_SHAPES)
        amounts = self.evidence.costs[["matrix_flops", "vector_flops"]].fillna(0.0).to_numpy().sum(axis=1)
        amounts = np.append(np.rint(amounts), 0.0)
        attribution = self.evidence.attribution
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
        """Ops that take a float64 tensor; known if the trace records dtypes."""
        has_types = self.linked.trace.signatures["types"].notna().any()
        return self.of_part("float64_ops") if has_types else UnknownCount(_NO_SHAPES)

    def copies_along(self, way: str, *, in_bytes: bool) -> Found:
        """Copies between host and device that the steps issued, or their size."""
        if self.is_host_only:
            recording = self.evidence.recording
            is_known = recording is not None and recording.framework is not None and not recording.device_facts
            return Tally(0, 0) if is_known else UnknownCount(_NOT_SEEN)
        kernels = self.linked.kernels
        mine = np.flatnonzero((kernels["copy_way"] == way).to_numpy())
        if len(mine) and kernels["launch"].iloc[mine].isna().all():
            return UnknownCount(_NO_LAUNCHES)
        step = kernel_rows(self.scope).step[mine]
        if not in_bytes:
            return total(step, self.steps)
        return total(step, self.steps, kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)[mine])

    def autograd_nodes(self) -> Found:
        """Nodes that autograd's engine evaluated."""
        return total(self.scope.op_step[self.scope.autograd_nodes], self.steps)

    def module_calls(self) -> Found:
        """Calls of nn.Modules that Python made; a compiled graph makes none."""
        if self.linked.places is None:
            return UnknownCount(_NO_STACKS)
        rows = self.scope.rows_named("python", lambda name: name.startswith("nn.Module: "))
        return total(self.scope.of_events(rows), self.steps)

    @cached_property
    def _memory(self) -> "tuple[pd.DataFrame, Integers]":
        memory = self.linked.trace.memory
        return memory, self.scope.step_at(self.scope.recode(memory["thread"]), memory["ts_us"].to_numpy())

    def allocations(self) -> Found:
        """Blocks that the steps requested from the allocators of host and device."""
        memory, step = self._memory
        is_new = (memory["bytes"] > 0).to_numpy()
        return total(step[is_new], self.steps) if len(memory) else UnknownCount(_NO_MEMORY)

    def allocated_bytes(self) -> Found:
        """Their size."""
        memory, step = self._memory
        size = memory["bytes"].to_numpy().astype(np.float64)
        return total(step[size > 0], self.steps, size[size > 0]) if len(memory) else UnknownCount(_NO_MEMORY)

    def peak_bytes(self) -> Found:
        """Finds the most memory in use at once.

        On a CPU that is beyond what was in use as the step began.
        """
        memory, step = self._memory
        of_device = memory["on_device"].to_numpy() == (not self.is_host_only)
        inside = np.flatnonzero(of_device & (step >= 0))
        if not len(inside):
            return UnknownCount(_NO_MEMORY)
        totals = memory["total_allocated"].to_numpy(dtype=np.float64, na_value=np.nan)[inside]
        if self.is_host_only or np.isnan(totals).any():
            totals = _running(memory["bytes"].to_numpy()[inside].astype(np.float64), step[inside])
        peaks = np.zeros(self.steps)
        np.maximum.at(peaks, step[inside], totals)
        return Tally(round(float(peaks.min())), round(float(peaks.max())))

    def kernel_names(self) -> Found:
        """Distinct kernels, by their names without running numbers."""
        kernels = self.kernels()
        if isinstance(kernels, UnknownCount):
            return kernels
        return Tally(sum(tally.low > 0 for tally in kernels.values()), len(kernels))

    def kernels(self) -> Mapping[str, Tally] | UnknownCount:
        """Kernels per step by name."""
        if self.is_host_only:
            return UnknownCount(_HOST_ONLY)
        table = self.linked.kernels
        is_kernel = table["kind"].isin(("compute", "collective")).to_numpy()
        step = np.where(is_kernel, kernel_rows(self.scope).step, -1)
        names = table["name"].cat
        code, labels = relabel(
            names.codes.to_numpy().astype(np.int64), [plain_kernel(name) for name in names.categories]
        )
        by_kernel = by_label(step, code, labels, self.steps)
        return by_kernel or UnknownCount(_NO_LAUNCHES)

    def compiled(self, name: str) -> Found:
        """Reads a total of torch.compile from the recording.

        It counts until the end of the window.
        """
        recording = self.evidence.recording
        report = None if recording is None else recording.compilation
        value = None if report is None else getattr(report, name)
        if value is None:
            return UnknownCount(_NO_COMPILER if recording is None else _OLDER)
        number = int(value)
        return Tally(number, number)


_COUNTERS: Mapping[str, Callable[[StepCounter], Found]] = {
    "ops": lambda work: work.of_part("ops"),
    "launches": StepCounter.launches,
    "syncs": lambda work: work.of_part("syncs"),
    "copies": lambda work: work.of_part("copies"),
    "h2d_copies": lambda work: work.copies_along("to_device", in_bytes=False),
    "h2d_bytes": lambda work: work.copies_along("to_device", in_bytes=True),
    "d2h_copies": lambda work: work.copies_along("to_host", in_bytes=False),
    "d2h_bytes": lambda work: work.copies_along("to_host", in_bytes=True),
    "flops": StepCounter.flops,
    "float64_ops": StepCounter.float64_ops,
    "graphs": lambda work: work.compiled("graphs"),
    "graph_breaks": lambda work: work.compiled("graph_breaks"),
    "recompiles": lambda work: work.compiled("recompiles"),
    "cudagraph_skips": lambda work: work.compiled("cudagraph_skips"),
    "autograd_nodes": StepCounter.autograd_nodes,
    "module_calls": StepCounter.module_calls,
    "allocations": StepCounter.allocations,
    "allocated_bytes": StepCounter.allocated_bytes,
    "peak_bytes": StepCounter.peak_bytes,
    "kernel_names": StepCounter.kernel_names,
}


def _running(size: Floats, step: Integers) -> Floats:
    """Sums up each step on its own, row by row.

    Rows are in order of time, so those of a step are adjacent.
    """
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


def _joined(one: StepRows, other: StepRows) -> StepRows:
    """The rows of both."""
    places = {}
    for name, (code, labels) in one.places.items():
        theirs, more = other.places[name]
        both, distinct = relabel(
            np.concatenate([code, np.where(theirs >= 0, theirs + len(labels), -1)]), [*labels, *more]
        )
        places[name] = (both, distinct)
    return StepRows(np.concatenate([one.step, other.step]), places)


def ops_by_name(work: StepCounter) -> Mapping[str, Tally]:
    """Calls of each op."""
    names = work.linked.ops["name"].cat
    code, labels = relabel(names.codes.to_numpy().astype(np.int64), [plain_op(name) for name in names.categories])
    return by_label(np.where(work.is_call, work.scope.op_step, -1), code, labels, work.steps)


def by_module(work: StepCounter) -> Mapping[str, Mapping[str, int]]:
    """Counts by module path what all steps agree on.

    What happens in a module inside is that module's.
    """
    counts_by_module: dict[str, dict[str, int]] = {}
    for counter in MODULE_COUNTERS:
        if counter in work.parts:
            rows = work.parts[counter]
            code, labels = rows.places["module"]
            plain = relabel(code, [plain_module(label) for label in labels])
            for path, tally in by_label(rows.step, *plain, work.steps).items():
                if tally.is_stable:
                    counts_by_module.setdefault(path, {})[counter] = tally.low
    return dict(sorted(counts_by_module.items()))


def by_line(work: StepCounter, sources: SourceFiles) -> tuple[Site, ...]:
    """Counts by source line, with the ops called from each.

    Only what all steps agree on.
    """
    counts: dict[str, dict[str, int]] = {}
    for counter, rows in work.parts.items():
        for source, tally in by_label(rows.step, *rows.places["source"], work.steps).items():
            if tally.is_stable:
                counts.setdefault(source, {})[counter] = tally.low
    ops = _ops_by_source(work)
    sites = []
    for source, counted in counts.items():
        file, line = sources.locate(source)
        sites.append(Site(file, line, sources.text(file, line), counted, dict(sorted(ops.get(source, {}).items()))))
    return merged_sites((*sites, *_breaks(work, sources)))


def merged_sites(sites: tuple[Site, ...]) -> tuple[Site, ...]:
    """Merges the sites of each line, sorted.

    Forward ops, their backward ops and breaks of a graph at a line are added up.
    """
    by_line: dict[tuple[str, int], Site] = {}
    for site in sites:
        one = by_line.get((site.file, site.line), replace(site, counts={}, ops={}))
        counts, ops = (
            {name: first.get(name, 0) + second.get(name, 0) for name in {**second, **first}}
            for first, second in ((one.counts, site.counts), (one.ops, site.ops))
        )
        by_line[site.file, site.line] = replace(one, counts=counts, ops=ops)
    return tuple(by_line[key] for key in sorted(by_line))


def _ops_by_source(work: StepCounter) -> Mapping[str, Mapping[str, int]]:
    """Calls of each op by line."""
    rows = work.parts["ops"]
    source, sources = rows.places["source"]
    names = work.linked.ops["name"].cat
    codes = names.codes.to_numpy().astype(np.int64)[work.is_call]
    op, labels = relabel(codes, [plain_op(name) for name in names.categories])
    pair = np.where(source >= 0, source * len(labels) + op, -1)
    keys, code = np.unique(pair, return_inverse=True)
    tallies = by_label(rows.step, np.where(pair >= 0, code, -1), list(map(str, range(len(keys)))), work.steps)
    by_source: dict[str, dict[str, int]] = {}
    for key, tally in tallies.items():
        of_source, of_op = divmod(int(keys[int(key)]), len(labels))
        if tally.is_stable:
            by_source.setdefault(sources[of_source], {})[labels[of_op]] = tally.low
    return by_source


def _breaks(work: StepCounter, sources: SourceFiles) -> Iterator[Site]:
    """The lines at which torch.compile broke a graph, from the recording."""
    recording = work.evidence.recording
    report = None if recording is None else recording.compilation
    for graph_break in () if report is None else report.breaks:
        file = sources.relative(graph_break.file)
        yield Site(file, graph_break.line, sources.text(file, graph_break.line), {"graph_breaks": graph_break.count})


def count(evidence: Evidence, root: Path | None = None) -> Counts:
    """Counts what all steps of the window agree on.

    Without steps these are of the whole window.

    Only what the step's own thread and autograd's do counts. Names of files are made relative to ``root``, and lines
    are read from files inside it; without it nothing is opened. ``unstable`` holds counters whose steps disagree, and
    ops that do under "ops:NAME"; kernels under "kernels:NAME".
    """
    work = StepCounter(evidence)
    results = work.count()
    ops, kernels = ops_by_name(work), work.kernels()
    kernels = {} if isinstance(kernels, UnknownCount) else kernels
    tallies = {name: outcome for name, outcome in results.items() if isinstance(outcome, Tally)}
    named = {**_prefixed("ops", ops), **_prefixed("kernels", kernels)}
    return Counts(
        values=_agreed(tallies),
        fingerprint=fingerprint_of(evidence),
        unknown={name: outcome.reason for name, outcome in results.items() if isinstance(outcome, UnknownCount)},
        unstable={
            name: spread(outcome.low, outcome.high, DIFFER)
            for name, outcome in {**tallies, **named}.items()
            if not outcome.is_stable
        },
        lowest={name: tally.low for name, tally in tallies.items() if not tally.is_stable},
        ops=dict(sorted(_agreed(ops).items())),
        modules=by_module(work),
        kernels=dict(sorted(_agreed(kernels).items())),
        sites=by_line(work, SourceFiles(evidence, root)),
        input_sha=input_digest(evidence),
        steps=len(evidence.linked.window.steps),
    )


def _agreed(tallies: Mapping[str, Tally]) -> dict[str, int]:
    return {name: tally.low for name, tally in tallies.items() if tally.is_stable}


def _prefixed(kind: str, tallies: Mapping[str, Tally]) -> dict[str, Tally]:
    return {f"{kind}:{name}": tally for name, tally in tallies.items()}
