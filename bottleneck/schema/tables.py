"""The declared tables that stages hand to one another: columns, dtypes, units, and nullability.

A table is a pandas DataFrame with a plain range index. Row references (``event``, ``op``, ``parent`` …) hold positions
in another table; an absent reference is null (dtype ``Int32``/``Int64``), never -1. Text is ``category``: integer codes
over the distinct strings. The function that makes a table returns ``TABLE.check(frame)``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.schema.op_names import AUTOGRAD_PREFIX, BACKWARD_NODE

if TYPE_CHECKING:
    from bottleneck.schema.linked_trace import Trace
    from bottleneck.schema.reasons import Reason

# What an event is, whatever its era or vendor called it.
CATEGORIES = (
    "op",  # a framework operator on the host
    "annotation",  # record_function, step marks, optimizer marks
    "python",  # a Python or nn.Module frame
    "line",  # a stretch in which a frame of the program stays at one line; our own recordings have them
    "runtime",  # a call into the runtime or the driver of a device on the host
    "kernel",  # computation or collective on the device
    "copy",  # memcpy on the device
    "fill",  # memset on the device
    "sync",  # a wait that the profiler reports as an event
    "gpu_annotation",  # an annotation projected on the device; not work
    "counter",  # hardware counters that are written as stretches of time; read as COUNTER_SAMPLES
    "profiler",  # overhead and trace spans of the profiler itself
    "collective",  # a collective that a thread of the host carries out (gloo); its threads run nothing else
    "other",  # anything else; counted, kept, never crashed on
)

# What a call into the runtime or the driver does, whatever its vendor called it.
CALL_KINDS = (
    "launch",  # issues one kernel
    "graph_launch",  # replays a graph of kernels
    "copy",  # issues a copy, and may return before it is done
    "blocking_copy",  # returns when the copy is done
    "fill",  # issues a fill of memory
    "enqueue",  # puts something else into a queue of the device
    "synchronise",  # waits for a stream or an event
    "synchronise_device",  # waits for all work
    "allocate",  # takes memory of the device from the driver
    "free",  # gives memory of the device back to the driver
    "map",  # takes memory of the device that is mapped by itself: segments that grow
    "memory",  # manages memory otherwise: memory of the host, pools, mappings
    "load",  # brings code to the device
    "begin_capture",  # what follows on a stream enters a graph
    "end_capture",
)
LAUNCHES, COPIES = ("launch", "graph_launch"), ("copy", "blocking_copy")
SYNCHRONISES = ("synchronise", "synchronise_device")
# Calls that hold the host until the device has come so far, whatever they are given.
WAITS = (*SYNCHRONISES, "blocking_copy")
COPY_WAYS = ("to_device", "to_host", "within", "between", "on_host")
OVER_LINK = ("to_device", "to_host", "between", "on_host")
HOST_MEMORY = ("pageable", "pinned")

NARROW_ID = "Int32"


class Column(Struct, frozen=True):
    """Column: numpy or pandas dtype, meaning, unit, and whether null is allowed.

    Null is NaN or NA. Ids only join rows and nothing is calculated with them: they have ``NARROW_ID`` where all fit
    into that.
    """

    dtype: str
    doc: str
    unit: str = ""
    nullable: bool = False
    is_id: bool = False


class Table(Struct, frozen=True):
    """Named set of columns that every frame of this name has.

    They come in this order.
    """

    name: str
    columns: Mapping[str, Column]

    def check(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame itself; AssertionError names the first column that breaks the declaration."""
        missing = [name for name in self.columns if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in self.columns]
        assert not missing and not unknown, f"{self.name}: missing columns {missing}, unknown columns {unknown}"
        for name, column in self.columns.items():
            have = str(frame[name].dtype)
            assert have == column.dtype or (column.is_id and have == NARROW_ID), (
                f"{self.name}.{name} is {have}, declared {column.dtype}"
            )
            if not column.nullable:
                assert not frame[name].isna().any(), f"{self.name}.{name} holds nulls"
        return frame

    def empty(self) -> pd.DataFrame:
        """A frame of this table without rows."""
        return pd.DataFrame({name: pd.Series(dtype=column.dtype) for name, column in self.columns.items()})


EVENTS = Table(
    "EVENTS",
    {
        "ts_us": Column("float64", "start, rebased so that the earliest event of the file starts at 0", "us"),
        "dur_us": Column("float64", "duration, never negative", "us"),
        "category": Column("category", "one of CATEGORIES"),
        "name": Column("category", "as the trace spells it"),
        "thread": Column("category", "'pid/tid' of the track, host thread or device stream"),
    },
)  # one row per complete event, sorted by ts_us, longer first among equals

OP_ARGS = Table(
    "OP_ARGS",
    {
        "event": Column("int64", "row in EVENTS"),
        "external_id": Column("Int64", "the profiler's id of this op", nullable=True, is_id=True),
        "signature": Column("Int32", "row in SIGNATURES; null when the trace has no shapes for it", nullable=True),
        "sequence": Column("Int64", "autograd sequence number", nullable=True, is_id=True),
        "forward_thread": Column("Int64", "autograd id of the forward thread", nullable=True, is_id=True),
    },
)  # one row per event of category op, in the order of EVENTS

SIGNATURES = Table(
    "SIGNATURES",
    {
        "name": Column("object", "op name"),
        "dims": Column("object", "raw JSON of 'Input Dims'", nullable=True),
        "types": Column("object", "raw JSON of 'Input type'", nullable=True),
        "strides": Column("object", "raw JSON of 'Input Strides'", nullable=True),
        "concrete": Column("object", "raw JSON of 'Concrete Inputs'", nullable=True),
    },
)  # one row per distinct combination

CALLS = Table(
    "CALLS",
    {
        **SIGNATURES.columns,
        "result": Column("object", "JSON of the sizes of the result, where other ops of the trace tell them", "", True),
        "evidence": Column(
            "object", "facts that completed this call; null where all of it was recorded", nullable=True
        ),
    },
)  # SIGNATURES, each row at its place, and behind them the calls that the rest of the trace completes

LAUNCH_ARGS = Table(
    "LAUNCH_ARGS",
    {
        "event": Column("int64", "row in EVENTS"),
        "correlation": Column("Int64", "joins a host call with the device work that it issued", nullable=True),
        "external_id": Column("Int64", "id of the enclosing op, where the file's ids can be trusted", nullable=True),
        "kernel": Column("category", "name of the kernel that it launches, where it says so", nullable=True),
        "call_kind": Column("category", "one of CALL_KINDS; null for a call that does nothing of these", nullable=True),
    },
)  # one row per event of category runtime

DEVICE_ARGS = Table(
    "DEVICE_ARGS",
    {
        "event": Column("int64", "row in EVENTS"),
        "correlation": Column("Int64", "joins device work with the host call that issued it", nullable=True),
        "external_id": Column("Int64", "id of the issuing op, where the file's ids can be trusted", nullable=True),
        "device": Column("Int32", "device index", nullable=True),
        "stream": Column("Int64", "stream number", nullable=True),
        "blocks": Column("Int64", "thread blocks in the grid", nullable=True),
        "threads": Column("Int64", "threads per block", nullable=True),
        "registers": Column("Int32", "registers per thread", nullable=True),
        "shared_bytes": Column("Int64", "shared memory per block", "B", nullable=True),
        "bytes": Column("Int64", "bytes copied or filled", "B", nullable=True),
        "graph": Column("Int64", "id of the graph that replayed this work; null or 0 outside graphs", nullable=True),
        "collective": Column("category", "collective name, where the trace gives it", nullable=True),
        "input_elements": Column("Int64", "elements that the collective takes in per rank", nullable=True),
        "output_elements": Column("Int64", "elements that the collective gives out per rank", nullable=True),
        "group_size": Column("Int64", "ranks in the collective", nullable=True),
        "message_dtype": Column("category", "element type of the collective", nullable=True),
        "process_group": Column("category", "name of the collective's process group", nullable=True),
        "annotation": Column("category", "marks around it when its graph was captured, joined by '.'", nullable=True),
    },
)  # one row per event of category kernel, copy or fill

MEMORY = Table(
    "MEMORY",
    {
        "ts_us": Column("float64", "when, on the clock of EVENTS", "us"),
        "thread": Column("category", "'pid/tid' of the host thread"),
        "bytes": Column("int64", "allocated (positive) or freed (negative)", "B"),
        "on_device": Column("bool", "device memory, not host memory"),
        "device": Column("Int64", "device index; -1 or null for the host", nullable=True),
        "address": Column("Int64", "of the block; null before PyTorch 1.10", nullable=True),
        "total_allocated": Column("Int64", "allocator's total after it", "B", nullable=True),
        "total_reserved": Column("Int64", "what the allocator holds of the device then, used or not", "B", True),
    },
)  # one row per '[memory]' event, sorted by ts_us

# glibc maps blocks from this size on anew at each allocation, and gives them back when they are freed; below it the
# heap grows to hold them (M_MMAP_THRESHOLD is dynamic up to DEFAULT_MMAP_THRESHOLD_MAX, malloc/malloc.c).
FRESH_FROM_BYTES = 32 * 2**20

COUNTER_SAMPLES = Table(
    "COUNTER_SAMPLES",
    {
        "ts_us": Column("float64", "from here on the value holds, up to the next sample of its name and place", "us"),
        "place": Column("category", "process or device that was counted: 'GPU 0 Counters', '0'"),
        "name": Column("category", "as the trace spells it: 'SM Active (%)'"),
        "value": Column("float64", "in the unit that its name tells"),
    },
)  # one row per sample of a counter track, sorted by place, name, time

OPS = Table(
    "OPS",
    {
        "event": Column("int64", "row in EVENTS"),
        "name": Column("category", "op name"),
        "thread": Column("category", "'pid/tid' of the host thread"),
        "ts_us": Column("float64", "start", "us"),
        "dur_us": Column("float64", "duration", "us"),
        "self_us": Column("float64", "duration less that of the ops directly inside it", "us"),
        "parent": Column("Int32", "row in OPS of the op that encloses it on its thread", nullable=True),
        "depth": Column("int32", "number of ops that enclose it"),
        "children": Column("int32", "number of ops directly inside it"),
        "is_autograd": Column("bool", "a node that autograd's engine evaluates"),
        "signature": Column("Int32", "row in SIGNATURES, or in CALLS once completed", nullable=True),
        "step": Column("Int32", "index of the step in which it starts; null outside the window", nullable=True),
        "module": Column("category", "path of nn.Modules, outermost first, joined by '.'", nullable=True),
        "source": Column("category", "innermost line outside libraries, 'file.py:57'", nullable=True),
    },
)  # one row per event of category op, sorted by thread, then start, then longer first

KERNELS = Table(
    "KERNELS",
    {
        "event": Column("int64", "row in EVENTS"),
        "name": Column("category", "kernel name; on a CPU the op's name"),
        "kind": Column("category", "'compute', 'collective', 'copy' or 'fill'"),
        "device": Column("int32", "device index; 0 on a CPU"),
        "stream": Column("category", "'pid/tid' of the track it ran on"),
        "ts_us": Column("float64", "start", "us"),
        "dur_us": Column(
            "float64", "duration; on a CPU the op's self time, less the profiler's part where known", "us"
        ),
        "op": Column("Int32", "row in OPS of the innermost op that issued it", nullable=True),
        "launch": Column("Int64", "row in EVENTS of the host call that issued it", nullable=True),
        "launch_ts_us": Column("float64", "start of that call", "us", nullable=True),
        "launch_end_us": Column("float64", "end of that call", "us", nullable=True),
        "step": Column("Int32", "step in which it was issued; null outside the window", nullable=True),
        "module": Column("category", "path of nn.Modules that issued it, or marks of its graph", nullable=True),
        "source": Column("category", "line that issued it, 'file.py:57'", nullable=True),
        "family": Column("category", "family by kernel name; on a CPU 'host'"),
        "engine": Column("category", "'matrix', 'vector' or 'none'; null when the name does not tell", nullable=True),
        "math_dtype": Column("category", "dtype that picks the peak: bf16, fp16, tf32, fp32 …", nullable=True),
        "library": Column("category", "library that computes it, by its name: cuBLAS, BLAS …", nullable=True),
        "auxiliary": Column("bool", "layout change, split-K reduction …: carries no FLOPs of its own"),
        "blocks": Column("Int64", "thread blocks in the grid", nullable=True),
        "threads": Column("Int64", "threads per block", nullable=True),
        "registers": Column("Int32", "registers per thread", nullable=True),
        "bytes": Column("Int64", "bytes copied or filled", "B", nullable=True),
        "copy_way": Column("category", "copies: one of COPY_WAYS; null where the name does not tell", nullable=True),
        "host_memory": Column("category", "copies: one of HOST_MEMORY, where the name tells it", nullable=True),
        "replayed": Column("bool", "one of many kernels under one graph launch"),
        "unlinked": Column("category", "why it has no op: a code of REASONS, 'launched_before' …", nullable=True),
    },
)  # GPU: one row per device event. CPU: one row per op, row for row as OPS. Sorted by ts_us on a GPU

PLACES = Table(
    "PLACES",
    {
        "thread": Column("category", "'pid/tid' of the host thread"),
        "ts_us": Column("float64", "start", "us"),
        "end_us": Column("float64", "end; the next row of the thread starts there or later", "us"),
        "source": Column("category", "innermost line outside libraries, 'file.py:57'", nullable=True),
        "module": Column("category", "path of nn.Modules, outermost first, joined by '.'", nullable=True),
        "frame": Column("category", "function of that line, 'main', or 'main > sleep' in a long call", nullable=True),
    },
)  # one row per stretch in which a thread stays in one place of the program; sorted by thread, then start

CAPTURED = Table(
    "CAPTURED",
    {
        "capture": Column("int64", "number of the capture, in the order of their beginnings"),
        "event": Column("int64", "row in EVENTS of the launch"),
        "op": Column("Int32", "row in OPS of the innermost op that launched it", nullable=True),
        "name": Column("category", "kernel name, where the launch says so", nullable=True),
        "family": Column("category", "family by kernel name", nullable=True),
        "auxiliary": Column("bool", "as in KERNELS"),
    },
)  # one row per kernel launch that entered a graph instead of running, in the order of launch

COSTS = Table(
    "COSTS",
    {
        "family": Column("category", "matmul, convolution, attention, pointwise, copy, view …", nullable=True),
        "matrix_flops": Column("float64", "FLOPs for the matrix engine (a fused multiply-add is 2)", "FLOP", True),
        "vector_flops": Column("float64", "FLOPs for the vector units", "FLOP", True),
        "special_ops": Column("float64", "exp, rsqrt … for the special-function units", "op", True),
        "bytes_low": Column("float64", "compulsory DRAM traffic: each distinct byte once", "B", True),
        "bytes_high": Column("float64", "traffic of the usual eager kernels", "B", True),
        "math_dtype": Column("category", "dtype of the arithmetic", nullable=True),
        "m": Column("float64", "rows of a product's result; queries of attention", nullable=True),
        "n": Column("float64", "columns of a product's result; keys of attention", nullable=True),
        "k": Column("float64", "inner size of a product; numbers per head of attention", nullable=True),
        "batch": Column("float64", "products of one call; heads of attention over the whole batch", nullable=True),
        "reason": Column("object", "why it is unmodelled, a `Reason`; null where it is modelled", nullable=True),
        "evidence": Column(
            "object", "facts that the cost rests on beside the call's own record, or leaves open; null: none", "", True
        ),
    },
)  # row for row as SIGNATURES or CALLS

ATTRIBUTION = Table(
    "ATTRIBUTION",
    {
        "op": Column("Int32", "row in OPS that it is attributed to; null when none", nullable=True),
        "signature": Column("Int32", "row in COSTS of that cost, or of the call it replays", nullable=True),
        "share": Column(
            "float64", "part of that cost, by duration among the kernels attributed to that op", "share", True
        ),
        "group": Column("int64", "kernels with the same number are judged together"),
        "dispatches": Column("bool", "host rows: the op does no work itself, it only calls others or makes a view"),
        "family": Column("category", "kind of work by the name of the kernel, else of its op", nullable=True),
    },
)  # row for row as KERNELS

LOOPS = Table(
    "LOOPS",
    {
        "loop": Column("int64", "loop that a compiler makes of it and its neighbours, by number; -1 for none"),
        "elements": Column("float64", "numbers that it walks over; null where it is in no loop", nullable=True),
    },
)  # row for row as KERNELS

ROOFLINE = Table(
    "ROOFLINE",
    {
        "flops": Column("float64", "FLOPs charged to this kernel", "FLOP", nullable=True),
        "bytes_low": Column("float64", "compulsory bytes charged to this kernel", "B", nullable=True),
        "bytes_high": Column("float64", "eager bytes charged to this kernel", "B", nullable=True),
        "compute_us": Column("float64", "floor set by the arithmetic", "us", nullable=True),
        "memory_us": Column("float64", "floor set by the bytes, cache-aware (the upper end)", "us", nullable=True),
        "launch_us": Column("float64", "floor set by launching", "us", nullable=True),
        "bound": Column(
            "category", "'compute', 'memory', 'overhead', 'communication', 'transfer', 'copy', 'dispatch', 'unknown'"
        ),
        "regime": Column("category", "'near_roof', 'below_roof' or 'far_below_roof'", nullable=True),
        "explained": Column("float64", "largest floor / duration, at most 1", "share", nullable=True),
        "confidence": Column("category", "'high', 'medium' or 'low'"),
        "reason": Column("category", "why below the roof, overhead or unknown: a `Reason`", nullable=True),
        "family": Column("category", "kind of work by the name of the kernel, else of its op", nullable=True),
    },
)  # row for row as KERNELS; 'dispatch' is host time of an op that only calls others (CPU traces)

KERNEL_TIME = Table(
    "KERNEL_TIME",
    {
        "us": Column("float64", "time charged per step, on the ledger's scale; mean over the devices used", "us"),
        "runs": Column("float64", "runs per step: below one per run where the window ends within it"),
        "account": Column("category", "account of the ledger that the time went to"),
        "op": Column("Int32", "row in OPS it is attributed to, else that issued it", nullable=True),
        "signature": Column("Int32", "row in CALLS of the call that stands for it", nullable=True),
        "row": Column("Int32", "position in the analysis' kernels of the row that it is part of", nullable=True),
    },
)  # row for row as KERNELS; the times of an account, with those of its idle causes, add up to it

IDLE_TIME = Table(
    "IDLE_TIME",
    {
        "cause": Column("int64", "position in IDLE_CAUSES"),
        "start": Column("float64", "when the host caused it", "us", nullable=True),
        "end": Column("float64", "until when; start where it is an instant", "us", nullable=True),
        "thread": Column("int64", "code of EVENTS.thread, -1 for none"),
        "us": Column("float64", "time per step, on the ledger's scale; mean over the devices used", "us"),
    },
)  # one row per piece of idle time; with KERNEL_TIME the times add up to the ledger

TIMELINE = Table(
    "TIMELINE",
    {
        "device": Column("int32", "device index; 0 on a CPU"),
        "start_us": Column("float64", "start, on the clock of EVENTS", "us"),
        "end_us": Column("float64", "end; work of several accounts that runs at once has a part each", "us"),
        "account": Column("category", "account of the ledger that the stretch is charged to"),
        "us": Column("float64", "its part of the account, per step, on the ledger's scale", "us"),
        "source": Column("category", "idle time: line at which the host was, 'file.py:57'", nullable=True),
        "module": Column("category", "idle time: path of the nn.Module at which the host was", nullable=True),
        "detail": Column("category", "idle time: call, op or frame that the host was in", nullable=True),
    },
)  # the window of each device as disjoint stretches, sorted by device, then start


def category(
    values: "np.ndarray[tuple[int], np.dtype[np.integer]]", labels: "Sequence[str | Reason]"
) -> pd.Categorical:
    """A categorical from codes and labels; code -1 is null."""
    return pd.Categorical.from_codes(values, categories=pd.Index(cast("list[str]", labels), dtype=object))


def as_integers(column: "pd.Series[int]") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Converts a nullable column of integers to a plain array.

    Examples are row references. Null becomes -1.
    """
    return np.asarray(column.to_numpy(dtype=np.int64, na_value=-1), dtype=np.int64)


def text_matches(
    column: "pd.Series[str] | pd.Series[pd.CategoricalDtype]",
    holds: Callable[[str], object],
    limit: int | None = None,
    rows: "np.ndarray[tuple[int], np.dtype[np.int64]] | slice" = slice(None),
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Marks the rows whose category passes a test.

    ``rows`` are all by default. The test runs once per distinct text, and null gives false. With a ``limit`` only the
    beginning of each text is looked at: C++ template arguments can be megabytes long.
    """
    matches = [bool(holds(str(text)[:limit])) for text in column.cat.categories]
    codes = column.cat.codes.to_numpy()[rows]
    if not any(matches):
        return np.zeros(len(codes), dtype=bool)
    return np.append(np.array(matches, dtype=bool), False)[codes]


def are_calls(trace: "Trace", *kinds: str) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Marks the rows of EVENTS that are calls of these kinds.

    They are calls into the runtime or the driver.
    """
    is_call = np.zeros(len(trace.events), dtype=bool)
    column = trace.launch_args["call_kind"]
    is_call[trace.launch_args["event"].to_numpy()[text_matches(column, kinds.__contains__)]] = True
    return is_call


_KIND_OF_TIME = {"op": 0, "annotation": 1, "python": 1, "runtime": 2}


def main_thread(events: pd.DataFrame) -> int:
    """Finds the thread that runs the program.

    The result is its code in EVENTS.thread, -1 where the trace has no host events.

    It spends the most time in Python frames and annotations among the threads with ops: an autograd thread may spend
    more time in ops, but has next to no frames. Without frames it is the thread with the most time in ops that is none
    of the autograd engine's, and in traces without ops that with the most time in frames or in runtime calls. Of equals
    the first to appear counts.
    """
    threads, category_ = events["thread"].cat.codes.to_numpy(), events["category"].cat
    size = len(events["thread"].cat.categories)
    kinds = np.array([_KIND_OF_TIME.get(name, 3) for name in category_.categories] or [3], dtype=np.int64)
    cell = (kinds * size)[category_.codes.to_numpy()]
    cell += threads
    ops, frames, calls, _ = np.bincount(cell, events["dur_us"].to_numpy(), 4 * size).reshape(4, size)
    of_autograd = text_matches(events["name"], lambda name: name.startswith(AUTOGRAD_PREFIX))
    is_autograd = np.bincount(threads[of_autograd], minlength=size) > 0
    for score in (frames * (ops > 0), ops * ~is_autograd, ops, frames * (calls > 0), frames, calls):
        if score.any():
            best = np.flatnonzero(score == score.max())
            return int(best[0] if best.size == 1 else threads[np.isin(threads, best)][0])
    return -1


def after_backward(
    events: pd.DataFrame,
    start: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    end: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Returns the start of the optimizer's own work in its marks.

    It is the end of the last backward node that begins in the mark.

    `optimizer.step(closure)` runs forward and backward inside the mark, and Lightning always calls it so. Marks without
    a backward node, on any thread, keep their start.
    """
    nodes = np.flatnonzero(text_matches(events["name"], lambda name: name.startswith(BACKWARD_NODE)))
    node_start, node_end = (np.append(-np.inf, events[part].to_numpy()[nodes]) for part in ("ts_us", "dur_us"))
    node_end = np.maximum.accumulate(node_start + node_end)
    last = np.searchsorted(node_start, end) - 1
    return np.where(node_start[last] >= start, np.minimum(node_end[last], end), start)


def nearest_ancestor(
    parent: "np.ndarray[tuple[int], np.dtype[np.int64]]", chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Returns the nearest chosen row among each row and its ancestors.

    -1 where there is none. ``parent`` is a row, -1 at a root. Pointers are doubled, so the number of passes is the
    logarithm of the depth.
    """
    none = len(parent)
    rows = np.arange(none + 1)
    hop = np.append(np.where(chosen, rows[:-1], np.where(parent < 0, none, parent)), none)
    while not np.array_equal(further := hop[hop], hop):
        hop = further
    return np.asarray(np.where(hop[:-1] == none, -1, hop[:-1]), dtype=np.int64)
