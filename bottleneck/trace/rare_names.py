"""Gives rare names of a trace one common name.

Only where there are very many, and before its events are linked. Names are looked at one by one in many places (which
kernel is a product, which op has a cost formula). The public traces have at most 176 names of kernels and as many of
ops; a generator that numbers its kernels can make a million.
"""

import numpy as np
import pandas as pd

from bottleneck.schema.analysis import Caveat
from bottleneck.schema.linked_trace import Trace
from bottleneck.schema.records import replace
from bottleneck.schema.tables import category
from bottleneck.system.working_memory import returns_memory
from bottleneck.trace.joins import events_of
from bottleneck.units import format_share

MOST_NAMES = 5_000
_NOUNS = {"kernel": "kernels", "op": "ops", "copy": "copies", "fill": "fills"}


@returns_memory
def fold_rare_names(trace: Trace, most: int = MOST_NAMES) -> Trace:
    """Keeps only the ``most`` names with the most time.

    The limit holds for kernels, ops, copies and fills each. All events stay, so that no time and no count changes. A
    caveat says how much time has a name in common.
    """
    names, dur_us = trace.events["name"].cat, trace.events["dur_us"].to_numpy()
    labels = [*names.categories, *(f"other {noun}" for noun in _NOUNS.values())]
    code = names.codes.to_numpy().astype(np.int64)
    caveats = []
    for position, (kind, noun) in enumerate(_NOUNS.items(), start=len(names.categories)):
        rows = events_of(trace, kind)
        name = names.codes.to_numpy()[rows]
        used = np.flatnonzero(np.bincount(name))
        if used.size <= most:
            continue
        us = np.bincount(name, dur_us[rows])[used]
        rare = np.ones(used.size, dtype=bool)
        rare[np.argsort(-us, kind="stable")[:most]] = False
        code[rows[np.isin(name, used[rare])]] = position
        share = format_share(float(us[rare].sum() / us.sum())) if us.sum() > 0 else "none"
        message = (
            f"the trace has {used.size:,} names of {noun}; the {used.size - most:,} with the "
            f"least time, {share} of theirs, are shown as 'other {noun}'"
        )
        caveats.append(Caveat("rare-names", message))
    if not caveats:
        return trace
    codes, number = np.unique(code, return_inverse=True)
    column = category(number, [labels[label_code] for label_code in codes.tolist()])
    events = trace.events.assign(name=pd.Series(column, index=trace.events.index))
    return replace(trace, events=events, caveats=(*trace.caveats, *caveats))
