"""CAPTURED: kernel launches that ran nothing because they were recorded into a graph; used by ``link``.

While a stream is captured, its launches enter a graph and run only when that is replayed. A replay knows no ops, but
the captured launches lie inside the ops that made them.
"""

import re

import numpy as np
import pandas as pd

from bottleneck.tables import CAPTURED, category
from bottleneck.trace.events import names, names_that_match, starts_ns, threads
from bottleneck.trace.joins import whole
from bottleneck.trace.kernels import describe_kernel
from bottleneck.trace.launches import LAUNCHES_A_KERNEL
from bottleneck.trace.nesting import Ints
from bottleneck.trace.ops import OpTree, nullable
from bottleneck.tracing import Trace

_BEGIN = re.compile(r"StreamBeginCapture")
_END = re.compile(r"StreamEndCapture")


def find_captured(trace: Trace, trees: OpTree) -> pd.DataFrame:
    """CAPTURED: the launches between the beginning and the end of a capture of which the trace holds no device work.

    Backward passes are captured from the threads of autograd, so launches of every thread count.
    """
    event = trace.launch_args["event"].to_numpy()
    name, start_ns = names(trace, event), starts_ns(trace, event)
    begin, end = (np.sort(start_ns[names_that_match(trace, pattern)[name]]) for pattern in (_BEGIN, _END))
    capture = np.searchsorted(begin, start_ns, side="right") - 1
    open_ = (capture >= 0) & (np.searchsorted(end, start_ns) == np.searchsorted(end, np.append(begin, 0)[capture]))
    ran = np.isin(whole(trace.launch_args["correlation"]), whole(trace.device_args["correlation"]))
    rows = np.flatnonzero(names_that_match(trace, LAUNCHES_A_KERNEL)[name] & open_ & ~ran)
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    return CAPTURED.check(
        pd.DataFrame(
            {
                "capture": capture[rows].astype(np.int64),
                "event": event[rows],
                "op": nullable(trees.innermost(threads(trace, event[rows]), start_ns[rows]), np.int32),
                **_kernels(trace, rows),
            }
        )
    )


def _kernels(trace: Trace, rows: Ints) -> dict[str, object]:
    """Name of each launched kernel, and what the name tells; a CUDA launch does not say it."""
    column = trace.launch_args["kernel"].iloc[rows].cat
    traits = [describe_kernel(label) for label in column.categories]
    codes = column.codes.to_numpy()
    families = sorted({each.family for each in traits})
    family = np.array([*(families.index(each.family) for each in traits), -1], dtype=np.int64)
    return {
        "name": category(codes, list(column.categories)),
        "family": category(family[codes], families),
        "auxiliary": np.array([*(each.auxiliary for each in traits), False], dtype=bool)[codes],
    }
