"""Gives a predicted time its interval.

The errors of the same prices on timed programs that were held out tell it. The error of a step adds up from those of
its kinds of work, which are independent of one another: each counts with its share of the step, and with the spread
that it has shown. Small kernels, the host's start and its issuing have a spread each, which matters only where they
decide, and so has whatever differs from one run to the next. The spreads are fitted to the logarithms of measured over
predicted time, each predicted from rates that were learned without the program. The factors on them, by the way to run
a step and its number of calls, are split-conformal (Lei et al. 2018, J. Am. Stat. Assoc. 113), and each program weighs
the same. Two more spreads are those between machines: of the paces of hosts, where the pace is not known, and of the
times of boards, where no program was timed on one. They are learned by leaving out whole machines.

`python -m benchmarks.kernelbench FOLDER --ship` writes intervals.csv, `benchmarks.kernelbench.machines` its last two
rows.
"""

import csv
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from bottleneck.predict.rates import CONVOLUTIONS, DEPTHWISE, KINDS, KernelColumns, PredictedTimes
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.predicted_step import Backend

TABLE = Path(__file__).with_name("intervals.csv")
COVERAGE = 0.8

# Which kernel cuDNN takes for an unusual convolution changes its time severalfold.
_USUAL = {"convolution", "pointwise convolution", "convolution backward"}
_FAMILY_OF = {
    **dict.fromkeys(KINDS, "reductions"),
    **dict.fromkeys(("pointwise", "copy", "normalize", "fused pointwise", "layout", "result layout"), "streams"),
    **dict.fromkeys(("product", "attention"), "products"),
    **dict.fromkeys((*_USUAL, "convolution channels last"), "convolutions"),
    **dict.fromkeys((*(CONVOLUTIONS - _USUAL), *DEPTHWISE), "unusual convolutions"),
    **dict.fromkeys(("lstm", "gru", "rnn"), "recurrent layers"),
}
_FAMILIES = ("streams", "reductions", "products", "convolutions", "unusual convolutions", "recurrent layers")
# Rows of the factors on the spread of a speedup, by the way to run the changed step.
# Rows of half the interval of a host's pace, and of a device's time, where nothing was learned from that host or board.
ANOTHER_HOST, ANOTHER_BOARD = "another host", "another board"
GAIN = "gain: "
SPREADS = (*_FAMILIES, "small kernels", "start", "host", "step")
_NUMBER = np.array([_FAMILIES.index(_FAMILY_OF[kind]) for kind in KINDS])
# A kernel of this time is twice as uncertain by what is the same for all kernels, its start and its end.
_SMALL_US = 20.0
# Steps by the number of their calls: these are the most of all but the last.
CALLS = ("one or two", "several", "many")
_MOST_CALLS = (2, 15)
_RUNS: Mapping[Backend, str] = {
    "eager": "eager",
    "compile": "compiled",
    "max-autotune-no-cudagraphs": "compiled",
    "cudagraphs": "cudagraphs",
    "captured": "cudagraphs",
}


def run_of(backend: Backend) -> str:
    """Returns the way in which a backend runs a step.

    It is 'eager', 'compiled', 'cudagraphs', or 'graph' (compiled, in a graph).
    """
    return _RUNS.get(backend, "graph")


def calls_of(work: KernelColumns) -> str:
    """Returns one of CALLS.

    The factor on the spread is that of steps of as many calls.
    """
    return CALLS[int(np.searchsorted(_MOST_CALLS, np.unique(work.call).size))]


def spread_parts(
    work: KernelColumns, found: PredictedTimes, is_tensor: Flags, sensitivity: Floats, part: Floats | float = 1.0
) -> Floats:
    """Returns the weight of the square of each of SPREADS.

    It is the weight in the square of the step's spread. ``sensitivity`` is by how much the step grows, relatively, with
    the times of the device, of the host's start and of its issuing. Only this ``part`` of each kernel has errors.
    """
    busy = found.us * work.count
    _, first, call = np.unique(work.call, return_index=True, return_inverse=True)
    of_call = np.bincount(call, busy * part)
    share = of_call / max(float(busy.sum()), 1e-9)
    small = float((share**2 * _SMALL_US / (_SMALL_US + of_call)).sum())
    # The first kernel is what a call is for. On lanes cuDNN chooses among more kinds of convolutions.
    on_lanes = work.are(*CONVOLUTIONS)[first] & ~is_tensor[first]
    family = np.where(on_lanes, _FAMILIES.index("unusual convolutions"), _NUMBER[work.kind[first]])
    device, start, host = sensitivity
    of_family = np.bincount(family, share, len(_FAMILIES))
    return np.array([*(device * of_family) ** 2, device**2 * small, start**2, host**2, 1.0])


def interval_factor(parts: Floats, run: str, calls: str) -> float:
    """Returns the factors by which an interval reaches above and below.

    They are on the prediction of a step.
    """
    table = read_spreads()
    spread = math.sqrt(float(parts @ np.square([table[f"{run}: {name}"] for name in SPREADS])))
    return math.exp(table[f"{run}: {calls} calls"] * spread)


def pace_factor() -> float:
    """Returns the factor between the usual pace and that of an unknown host.

    It is that at the ends of the interval.
    """
    return math.exp(read_spreads()[ANOTHER_HOST])


@lru_cache(maxsize=1)
def read_spreads(path: Path = TABLE) -> Mapping[str, float]:
    """Reads the spread of each kind of error by way to run a step.

    As a logarithm, with the factors on the spread.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        return {row["name"]: float(row["value"]) for row in csv.DictReader(lines)}
