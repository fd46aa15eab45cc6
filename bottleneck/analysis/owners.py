"""Which op owns each host thread at any time: on a CPU these segments are the timeline that the ledger charges."""

import numpy as np
import pandas as pd

from bottleneck.analysis.timeline import Floats, Integers


def owned_segments(ops: pd.DataFrame) -> tuple[Floats, Floats, Integers]:
    """Starts, ends and rows in OPS of the stretches in which an op is the innermost one on its thread."""
    start, end = ops["ts_us"].to_numpy(), _nested_end(ops)
    parent = ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    thread, depth = ops["thread"].cat.codes.to_numpy(), ops["depth"].to_numpy(dtype=np.int64)
    rows = np.flatnonzero(end > start)
    time = np.concatenate((start[rows], end[rows]))
    owner = np.concatenate((rows, parent[rows]))
    # At one instant inner ends come before outer ends, ends before starts, outer starts before inner starts.
    rank = np.concatenate((depth[rows], -1 - depth[rows]))
    track = np.concatenate((thread[rows], thread[rows]))
    order = np.lexsort((rank, time, track))
    time, owner, track = time[order], owner[order], track[order]
    held = np.flatnonzero((track[:-1] == track[1:]) & (owner[:-1] >= 0) & (time[1:] > time[:-1]))
    return time[held], time[held + 1], owner[held]


def innermost_op(ops: pd.DataFrame, thread: str, times: Floats) -> Integers:
    """Row in OPS of the innermost op that is open on a thread at each time; -1 where none is."""
    mine = np.flatnonzero((ops["thread"] == thread).to_numpy())
    start, end = ops["ts_us"].to_numpy(), (ops["ts_us"] + ops["dur_us"]).to_numpy()
    parent = ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    row = np.concatenate(([-1], mine))[np.searchsorted(start[mine], times, side="right")]
    row[np.isnan(times)] = -1
    while (closed := (row >= 0) & (np.append(end, np.inf)[row] <= times)).any():
        row = np.where(closed, np.append(parent, -1)[row], row)
    return row


def _nested_end(ops: pd.DataFrame) -> Floats:
    """Ends of ops, cut so that siblings do not overlap and no op outlives its parent.

    Whole-microsecond traces round starts and durations apart, so that neighbours overlap by 1 us.
    """
    start = ops["ts_us"].to_numpy()
    end: Floats = start + ops["dur_us"].to_numpy()
    parent = ops["parent"].to_numpy(dtype=np.int64, na_value=-1)
    family = np.where(parent < 0, -1 - ops["thread"].cat.codes.to_numpy().astype(np.int64), parent)
    order = np.argsort(family, kind="stable")
    siblings = np.flatnonzero(family[order[:-1]] == family[order[1:]])
    end[order[siblings]] = np.minimum(end[order[siblings]], start[order[siblings + 1]])
    depth = ops["depth"].to_numpy()
    by_depth = np.argsort(depth, kind="stable")
    for level in np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)[1:]:
        end[level] = np.minimum(end[level], np.where(parent[level] < 0, np.inf, end[parent[level]]))
    return end
