"""Linked traces and rooflines made by hand as tables, for tests of what the analysis makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bottleneck.analysis.kernel_rows import time_kernels
from bottleneck.analysis.ledger import build_ledger
from bottleneck.analysis.scaling import own_parts, scale_to_unprofiled
from bottleneck.analysis.summary import assemble
from bottleneck.pipeline import finish
from bottleneck.schema.analysis import Analysis, RecordingInfo
from bottleneck.schema.device import Device
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.linked_trace import Linked, Step, Trace, Window
from bottleneck.schema.tables import (
    ATTRIBUTION,
    COSTS,
    DEVICE_ARGS,
    EVENTS,
    KERNELS,
    LAUNCH_ARGS,
    LOOPS,
    MEMORY,
    OP_ARGS,
    OPS,
    ROOFLINE,
    SIGNATURES,
    Table,
)
from bottleneck.trace.ops import autograd_nodes
from bottleneck.trace.vendors import call_kind, first_word

MAIN = "1/1"
_COPY_COLUMNS = {"copy_way": "copy", "host_memory": "memory"}
_UNTOLD: Mapping[str, Any] = {"start_unix_ns": None, "rank": None, "world_size": None}


@dataclass(frozen=True)
class Event:
    """A row of EVENTS."""

    category: str
    name: str
    ts: float
    dur: float
    thread: str = MAIN


@dataclass(frozen=True)
class Kernel:
    """Device work, the launch call that issued it (start and duration), its op and its bound.

    ``kernel`` and ``roofline`` hold more columns of those tables.
    """

    ts: float
    dur: float
    bound: str = "memory"
    launch: tuple[float, float] | None = None
    kind: str = "compute"
    stream: str = "0/7"
    device: int = 0
    source: str | None = None
    name: str = "some_kernel"
    thread: str = MAIN
    op: int | None = None
    kernel: Mapping[str, Any] = field(default_factory=dict)
    roofline: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Op:
    """A host op; parent is its position in the list of ops."""

    ts: float
    dur: float
    name: str = "aten::add"
    bound: str = "memory"
    parent: int | None = None
    thread: str = MAIN
    source: str | None = None
    roofline: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scene:
    """A window with device work or host ops and other host events, and the tables that a trace of it would give."""

    wall: float
    kernels: Sequence[Kernel] = ()
    ops: Sequence[Op] = ()
    events: Sequence[Event] = ()
    start: float = 0.0
    steps: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    def linked(self) -> Linked:
        """The scene as ``trace.link`` would hand it over."""
        rows = [(op.ts, op.dur, "op", op.name, op.thread) for op in self.ops]
        launches = {}
        for index, kernel in enumerate(self.kernels):
            if kernel.launch is not None:
                launches[index] = len(rows)
                rows.append((*kernel.launch, "runtime", "cudaLaunchKernel", kernel.thread))
        rows += [(event.ts, event.dur, event.category, event.name, event.thread) for event in self.events]
        first_device = len(rows)
        if self.kernels:
            rows += [(kernel.ts, kernel.dur, "kernel", kernel.name, kernel.stream) for kernel in self.kernels]
        order = sorted(range(len(rows)), key=lambda row: (rows[row][0], -rows[row][1]))
        new = {old: position for position, old in enumerate(order)}
        events = table(EVENTS, [dict(zip(EVENTS.columns, rows[row], strict=True)) for row in order])
        ops = self._ops(new)
        kernels = self._kernels(new, launches, first_device) if self.kernels else host_kernels(ops)
        steps = tuple(
            Step(f"step {n}", self.start + self.wall * n / self.steps, self.start + self.wall * (n + 1) / self.steps)
            for n in range(self.steps)
        )
        window = Window(self.start, self.start + self.wall, steps, "test")
        return Linked(self._trace(events), window, ops, kernels, linked_share=1.0)

    def roofline(self) -> pd.DataFrame:
        """Row for row as KERNELS, with the bounds given and nothing else known."""
        rows = self.kernels or self.ops
        return table(ROOFLINE, [{"bound": row.bound, "confidence": "high", **row.roofline} for row in rows])

    def _ops(self, new: dict[int, int]) -> pd.DataFrame:
        depths: list[int] = []
        for op in self.ops:
            depths.append(0 if op.parent is None else depths[op.parent] + 1)
        children = [sum(other.parent == index for other in self.ops) for index in range(len(self.ops))]
        inside = [sum(other.dur for other in self.ops if other.parent == index) for index in range(len(self.ops))]
        ops = table(
            OPS,
            [
                {
                    "event": new[index],
                    "name": op.name,
                    "thread": op.thread,
                    "ts_us": op.ts,
                    "dur_us": op.dur,
                    "self_us": max(op.dur - inside[index], 0.0),
                    "parent": op.parent,
                    "depth": depths[index],
                    "children": children[index],
                    "is_autograd": False,
                    "source": op.source,
                }
                for index, op in enumerate(self.ops)
            ],
        )
        return ops.assign(is_autograd=autograd_nodes(ops["name"], ops["depth"].to_numpy(), np.arange(len(ops))))

    def _kernels(self, new: dict[int, int], launches: dict[int, int], first: int) -> pd.DataFrame:
        return table(
            KERNELS,
            [
                {
                    "event": new[first + index],
                    "name": kernel.name,
                    "kind": kernel.kind,
                    "device": kernel.device,
                    "stream": kernel.stream,
                    "ts_us": kernel.ts,
                    "dur_us": kernel.dur,
                    "launch": new[launches[index]] if index in launches else None,
                    "launch_ts_us": kernel.launch[0] if kernel.launch else None,
                    "launch_end_us": sum(kernel.launch) if kernel.launch else None,
                    "source": kernel.source,
                    "family": "other",
                    "auxiliary": False,
                    "replayed": False,
                    "op": kernel.op,
                    **(copy_of(kernel.name) if kernel.kind == "copy" else {}),
                    **kernel.kernel,
                }
                for index, kernel in enumerate(self.kernels)
            ],
        )

    def _trace(self, events: pd.DataFrame) -> Trace:
        calls = [
            {"event": index, "call_kind": call_kind(name)}
            for index, (name, kind) in enumerate(zip(events["name"], events["category"], strict=True))
            if kind == "runtime"
        ]
        on_device = [{"event": index} for index, name in enumerate(events["category"]) if name == "kernel"]
        return Trace(
            path="hand.json",
            flavour="cuda" if self.kernels else "cpu",
            events=events,
            op_args=OP_ARGS.empty(),
            launch_args=table(LAUNCH_ARGS, calls),
            device_args=table(DEVICE_ARGS, on_device),
            devices=(),
            integer_timestamps=False,
            counts={},
            facts={},
            **{"memory": MEMORY.empty(), "signatures": SIGNATURES.empty(), **_UNTOLD, **self.more},
        )


def copy_of(name: str) -> dict[str, str | None]:
    """What the name of a copy tells: its way and the host's memory."""
    found = {column: first_word(word, name) for column, word in _COPY_COLUMNS.items()}
    return {column: None if row is None else row.value for column, row in found.items()}


def host_kernels(ops: pd.DataFrame) -> pd.DataFrame:
    """KERNELS of a CPU trace: row for row as OPS."""
    return table(
        KERNELS,
        [
            {
                "event": op.event,
                "name": op.name,
                "kind": "compute",
                "device": 0,
                "stream": op.thread,
                "ts_us": op.ts_us,
                "dur_us": op.self_us,
                "op": row,
                "source": op.source,
                "family": "host",
                "auxiliary": False,
                "replayed": False,
            }
            for row, op in enumerate(ops.itertuples())
        ],
    )


def table(declared: Table, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A checked frame of a declared table from rows; what a row leaves out is null."""
    columns = {}
    for name, column in declared.columns.items():
        values = [row.get(name) for row in rows]
        columns[name] = pd.Series(pd.array(values, dtype=column.dtype) if values else [], dtype=column.dtype)
    return declared.check(pd.DataFrame(columns))


def evidence(scene: Scene, **more: Any) -> Evidence:
    """The evidence that the stages make of a scene without costs."""
    linked, roofline = more.pop("linked", scene.linked()), scene.roofline()
    costs, unprofiled = more.pop("costs", COSTS.empty()), more.pop("unprofiled", None)
    attribution = table(ATTRIBUTION, [{"group": row, "dispatches": False} for row in range(len(linked.kernels))])
    device = Device("test device", None, "cuda" if scene.kernels else "cpu", 1, {}, None, None, None, {})
    ledger = scale_to_unprofiled(build_ledger(linked, roofline), unprofiled, own_parts(linked))
    times = time_kernels(linked, costs, attribution, roofline, ledger)
    recording = RecordingInfo("hand.json", "trace", None, None, None)
    step = assemble(times, more.pop("device", device), recording, unprofiled, **more)
    loops = table(LOOPS, [{"loop": -1}] * len(linked.kernels))
    return Evidence(
        step,
        linked,
        costs,
        attribution,
        roofline,
        loops,
        kernel_time=times.table(),
        idle_time=ledger.idle_times.table(),
        sides=ledger.sides,
        held_up=ledger.held_up,
    )


def analysis_of(scene: Scene, **more: Any) -> Analysis:
    """The finished analysis of a scene, without findings."""
    return finish(evidence(scene, **more)).analysis
