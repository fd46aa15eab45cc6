"""The counters one by one: from the tables of a case to a tally of each, or to the reason why it cannot be known."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from bottleneck.case import Case
from bottleneck.counting.names import is_op, plain_kernel
from bottleneck.counting.scope import ENGINE, Flags, Floats, Ints, Scope, Spans
from bottleneck.counting.tables import Rows, event_rows, kernel_rows, op_rows
from bottleneck.counting.tally import Tally, by_label, relabel, total

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
        charges = self.case.charges
        payer = charges["payer"].to_numpy(dtype=np.int64, na_value=-1)
        payers = np.unique(payer[payer >= 0])
        step, amount = self.scope.op_step[payers], amounts[signature[payers]]
        twins = np.flatnonzero((payer < 0) & charges["signature"].notna().to_numpy())
        if len(twins):
            lent = charges["signature"].to_numpy(dtype=np.int64, na_value=-1)[twins]
            share = charges["share"].to_numpy(dtype=np.float64, na_value=0.0)[twins]
            step = np.concatenate([step, kernel_rows(self.scope).step[twins]])
            amount = np.concatenate([amount, amounts[lent] * share])
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
