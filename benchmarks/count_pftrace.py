"""Counts what Perfetto traces hold by their message classes alone, beside what ``bottleneck`` reads and reports.

    python -m benchmarks.count_pftrace ../shared/pftraces/*.pftrace

Nothing of the package's reader is used for the first figure of each row: slices are matched on their tracks, kernels,
ops and copies counted by category, the busy time is the union of all device work, and the verdict follows from the part
of its span that it fills. Steps are those between ends of the first optimizer's calls.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from msgspec import Struct
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from bottleneck.schema.intervals import union
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps

_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
# The least part of its span that the device works in a step that the device limits.
_DEVICE_BOUND = 0.9


class Slice(Struct, frozen=True):
    """A slice with its begin and end in nanoseconds, and whether a graph replayed it."""

    category: str
    name: str
    start_ns: int
    end_ns: int
    graph: bool


class PerfettoCount(Struct, frozen=True):
    """Figures of one trace."""

    kernels: int
    replayed: int
    copies: int
    fills: int
    ops: int
    calls: int
    marks: int
    kernel_ns: int
    busy_ns: int
    steps: int


def slices_of(path: Path) -> list[Slice]:
    """All slices of a trace."""
    opened: dict[int, list[tuple[int, object]]] = defaultdict(list)
    found = []
    for packet in Trace.FromString(path.read_bytes()).packet:
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            opened[event.track_uuid].append((packet.timestamp, event))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            start_ns, begun = opened[event.track_uuid].pop()
            graph = any(each.name == "graph id" and each.int_value for each in begun.debug_annotations)
            found.append(Slice(begun.categories[0], begun.name, start_ns, packet.timestamp, graph))
    return found


def covered_ns(slices: Iterable[Slice]) -> int:
    """The time in which any of the slices runs."""
    total = end_ns = 0
    for each in sorted(slices, key=lambda each: each.start_ns):
        total += max(each.end_ns - max(each.start_ns, end_ns), 0)
        end_ns = max(end_ns, each.end_ns)
    return total


def count(path: Path) -> PerfettoCount:
    """The figures of a trace."""
    slices = slices_of(path)
    number = Counter(each.category for each in slices)
    optimizer = [each for each in slices if each.category == "user_annotation" and "Optimizer.step#" in each.name]
    kernels = [each for each in slices if each.category == "kernel"]
    return PerfettoCount(
        kernels=number["kernel"],
        replayed=sum(each.graph for each in kernels),
        copies=number["gpu_memcpy"],
        fills=number["gpu_memset"],
        ops=number["cpu_op"],
        calls=number["cuda_runtime"] + number["cuda_driver"],
        marks=number["user_annotation"],
        kernel_ns=sum(each.end_ns - each.start_ns for each in kernels),
        busy_ns=covered_ns(each for each in slices if each.category in _WORK),
        steps=max(len(optimizer) - 1, 0),
    )


def verdict(path: Path) -> str:
    """The verdict by the part of the time from its first to its last work in which the device works."""
    work = [each for each in slices_of(path) if each.category in _WORK]
    span_ns = max(each.end_ns for each in work) - min(each.start_ns for each in work)
    share = covered_ns(work) / span_ns
    return f"{'device' if share >= _DEVICE_BOUND else 'overhead'}-bound, the device works {share:.1%} of its span"


def reported(path: Path) -> str:
    """The bound that the package reports."""
    command = [sys.executable, "-m", "bottleneck", "report", str(path), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return f"{json.loads(done.stdout)['verdict']['bound']}-bound"


def read_count(path: Path) -> PerfettoCount:
    """The same figures from the tables of the reader."""
    trace = read_trace(path)
    number = trace.events["category"].value_counts()
    work = trace.events[trace.events["category"].isin(["kernel", "copy", "fill"])]
    kernels = trace.events[trace.events["category"] == "kernel"]
    start_us = work["ts_us"].to_numpy()
    busy_us = union(start_us, start_us + work["dur_us"].to_numpy()).total()
    graph = trace.device_args.set_index("event")["graph"].reindex(kernels.index)
    window = find_steps(trace)
    return PerfettoCount(
        kernels=int(number["kernel"]),
        replayed=int((graph.fillna(0) > 0).sum()),
        copies=int(number["copy"]),
        fills=int(number["fill"]),
        ops=int(number["op"]),
        calls=int(number["runtime"]),
        marks=int(number["annotation"]),
        kernel_ns=round(float(np.sum(kernels["dur_us"])) * 1000),
        busy_ns=round(busy_us * 1000),
        steps=len(window.steps) if window.source == "optimizer" else 0,
    )


def main() -> int:
    """Prints both figures of each file; 1 where any differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    differs = False
    for path in parser.parse_args().paths:
        own, ours = count(path), read_count(path)
        print(path.name)
        for name in PerfettoCount.__struct_fields__:
            left, right = getattr(own, name), getattr(ours, name)
            differs |= left != right
            print(f"  {name:10} {left:>12,} {right:>12,}{'' if left == right else '  DIFFERS'}")
        print(f"  verdict    {verdict(path)} | bottleneck: {reported(path)}")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
