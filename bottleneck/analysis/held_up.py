"""Finds calls of the host that are held up: the process did not run.

The system gave its processor to others, fetched a page from disk, or it waited for a lock. A few calls of an op then
take milliseconds, where all others of that op take microseconds.
"""

import re

import numpy as np
import pandas as pd

from bottleneck.schema.intervals import Codes, Floats, Integers, numbered, union
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.tables import as_integers, text_matches

# So many times as long as usual and so much longer at least (a scheduler gives other processes some milliseconds at a
# time), of so many alike calls at least, and of these at most.
_STALLS = ((50.0, 1e3), (10.0, 4e3))
_PLANNED = re.compile("conv|mkldnn|mm|linear|fft|lstm|gru|rnn|attention")
_STALLED_RUNS, _STALLED_RUNS_ALIKE, _MOST_STALLED = 8, 3, 0.1
# Calls and ops that show it.
_FEW_CALLS, _DIFFERENT_OPS = 3, 3


def held_up_calls(linked: Linked) -> pd.DataFrame:
    """Finds calls that are held up far beyond the usual time of their op.

    They are in the window. Columns are op (its row in OPS), name, dur_us, usual_us of such calls, and beyond_us. None
    unless they are several, of different ops: one op alone may have a reason of its own.
    """
    ops, events = linked.ops, linked.trace.events
    own_us, start_us = ops["self_us"].to_numpy(), ops["ts_us"].to_numpy()
    names = ops["name"].cat.codes.to_numpy(dtype=np.int64)
    # On a CPU an op works: only calls of the same sizes take alike.
    sizes = _like_sizes(ops, names) if linked.is_host_only else np.zeros(len(ops), dtype=np.int64)
    call, _ = numbered(names, sizes)
    # Without any call that long there is none to look at.
    candidates = np.isin(call, np.unique(call[own_us >= min(us for _, us in _STALLS)]))
    usual = np.full(len(ops), np.inf)
    usual[candidates] = ops["self_us"][candidates].groupby(call[candidates]).transform("median").to_numpy()
    runs = np.bincount(call)[call]
    # A library plans products and the like anew for each size.
    is_planned = text_matches(ops["name"], _PLANNED.search)
    is_first = ~pd.Series(np.where(is_planned, call, -1 - names)).duplicated().to_numpy()
    is_long = np.any([(own_us >= times * usual) & (own_us - usual >= us) for times, us in _STALLS], axis=0)
    is_long &= ~is_first & (sizes >= 0)
    is_rare = np.bincount(call, weights=is_long)[call] <= np.maximum(1, _MOST_STALLED * runs)
    least_runs = _STALLED_RUNS_ALIKE if linked.is_host_only else _STALLED_RUNS
    chosen = np.flatnonzero(is_long & is_rare & (runs >= least_runs) & ops["step"].notna().to_numpy())
    runtime = np.flatnonzero((events["category"] == "runtime").to_numpy()) if chosen.size else chosen
    begin = events["ts_us"].to_numpy()[runtime]
    called = union(begin, begin + events["dur_us"].to_numpy()[runtime])
    inside_us = called.covered_between(start_us[chosen], start_us[chosen] + ops["dur_us"].to_numpy()[chosen])
    calls = pd.DataFrame(
        {
            "op": chosen,
            "name": ops["name"].iloc[chosen].to_numpy(),
            "dur_us": own_us[chosen],
            "usual_us": usual[chosen],
            "beyond_us": own_us[chosen] - usual[chosen] - inside_us,
        }
    )
    calls = calls[calls["beyond_us"] >= _STALLS[0][1]]
    return calls if len(calls) >= _FEW_CALLS and calls["name"].nunique() >= _DIFFERENT_OPS else calls[:0]


# Times the usual time of calls alike, and beyond it: what one call takes so far beyond is no work of the usual step.
_FAR, _FAR_BEYOND_US, _LEAST_ALIKE = 3.0, 300.0, 3


def beyond_usual_us(linked: Linked) -> Floats:
    """Gives the time of each op far beyond that of calls alike, in us.

    One entry per row of OPS; 0 where a call is not far beyond, or fewer than three are alike.
    """
    own_us, names = linked.ops["self_us"].to_numpy(), linked.ops["name"].cat.codes.to_numpy(dtype=np.int64)
    sizes = _like_sizes(linked.ops, names)
    call, _ = numbered(names, sizes)
    beyond_us = own_us - linked.ops["self_us"].groupby(call).transform("median").to_numpy()
    is_far = (beyond_us >= _FAR_BEYOND_US) & (own_us >= _FAR * (own_us - beyond_us))
    is_far &= (sizes >= 0) & (np.bincount(call)[call] >= _LEAST_ALIKE)
    return np.where(is_far, beyond_us, 0.0)


def _like_sizes(ops: pd.DataFrame, names: Codes) -> Integers:
    """Numbers calls of an op that have the same sizes.

    -1 where they are not known. Without shapes these are the n-th calls of the op in steps that call it equally often.
    """
    sizes = as_integers(ops["signature"])
    step = as_integers(ops["step"])
    unknown = (sizes < 0) & (step >= 0)
    if not unknown.any():
        return sizes
    place, _ = numbered(names, step)
    order = pd.Series(place).groupby(place).cumcount().to_numpy(dtype=np.int64)
    calls = pd.Series(np.bincount(place)[place])
    fewest, most = (calls[unknown].groupby(names[unknown]).transform(how) for how in ("min", "max"))
    is_regular = unknown.copy()
    is_regular[unknown] = (fewest == most).to_numpy()
    return np.where(is_regular, sizes.max(initial=-1) + 1 + order, sizes)
