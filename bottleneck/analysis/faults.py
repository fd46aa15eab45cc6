"""Page faults of ops on a CPU: the part of their time that goes into the first touch of pages that are new."""

import numpy as np
import pandas as pd

from bottleneck.analysis.owners import innermost_op
from bottleneck.analysis.timeline import Flags, Floats, Integers, grouped, tally
from bottleneck.records import Device
from bottleneck.tracing import Linked

# glibc maps blocks from this size on anew at each allocation, and gives them back when they are freed; below it the
# heap grows to hold them (M_MMAP_THRESHOLD is dynamic up to DEFAULT_MMAP_THRESHOLD_MAX, malloc/malloc.c).
FRESH_FROM_BYTES = 32 * 2**20


def fault_us(linked: Linked, roofline: pd.DataFrame, allocates: Flags, device: Device | None) -> Floats:
    """Microseconds of each row of OPS that are page faults; zero where nothing shows them.

    The pages that an op touches first cost their bytes over the rate at which the system hands out new ones, but never
    more than what the op took beyond its largest floor: an allocator that keeps its blocks does not fault.
    ``allocates`` marks ops that only allocate; what they hand out is touched by the op that works around or after them.
    """
    rate = None if device is None else device.fresh_bytes_per_s
    fresh = _fresh_bytes(linked, roofline, allocates)
    if rate is None or not fresh.any():
        return np.zeros(len(linked.ops))
    floors = np.fmax(roofline["compute_us"].to_numpy(), roofline["memory_us"].to_numpy())
    least = np.fmax(floors, roofline["launch_us"].to_numpy())
    beyond = np.where(np.isnan(floors), 0.0, np.maximum(linked.kernels["dur_us"].to_numpy() - least, 0.0))
    return np.asarray(np.minimum(fresh / rate * 1e6, beyond))


def _fresh_bytes(linked: Linked, roofline: pd.DataFrame, allocates: Flags) -> Floats:
    """Bytes of new pages that each op touches first."""
    memory = linked.trace.memory
    large = memory[(memory["bytes"] >= FRESH_FROM_BYTES) & ~memory["on_device"]]
    works = ~((roofline["bound"] == "dispatch").to_numpy() | allocates)
    toucher = _touchers(linked.ops, _open_ops(linked.ops, large), works)
    known = np.flatnonzero(toucher >= 0)
    return tally(toucher[known], large["bytes"].to_numpy(np.float64)[known], len(linked.ops))


def _open_ops(ops: pd.DataFrame, memory: pd.DataFrame) -> Integers:
    """Row in OPS of the innermost op open at each allocation, -1 for none."""
    op = np.full(len(memory), -1, dtype=np.int64)
    threads, at = memory["thread"].cat, memory["ts_us"].to_numpy()
    for code, mine in grouped(threads.codes.to_numpy().astype(np.int64)):
        op[mine] = innermost_op(ops, str(threads.categories[code]), at[mine])
    return op


def _touchers(ops: pd.DataFrame, op: Integers, works: Flags) -> Integers:
    """The op that writes first to what an op allocated: itself, the one around it, or the next inside the same tree.

    -1 where none of these does any work, or nothing was open: whoever writes there later is not known.
    """
    if not op.size or not len(ops):
        return op
    parent = ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    around = np.where(op >= 0, parent[op], -1)
    working, roots = np.flatnonzero(works), np.append(np.flatnonzero(parent < 0), len(ops))
    following = np.append(working, len(ops))[np.searchsorted(working, op, side="right")]
    tree_end = roots[np.minimum(np.searchsorted(roots, op, side="right"), roots.size - 1)]
    inside = np.where(following < tree_end, following, -1)
    around_works = (around >= 0) & works[around]
    return np.where(op < 0, -1, np.where(works[op], op, np.where(around_works, around, inside)))
