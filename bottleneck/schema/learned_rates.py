"""Rates learned from timed programs, shared by predictions and advice.

They are efficiencies of kernels and host times of ops.

`python -m benchmarks.kernelbench FOLDER --ship` learns them; each row of the table has the number of timings and the
spread behind it. Shares of bandwidth are of the data sheet's; host times are in units of the host's pace.
"""

import csv
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from bottleneck.schema.device_facts import generation_of
from bottleneck.schema.intervals import Floats

TABLE = Path(__file__).with_name("learned_rates.csv")
# The most of a tensor peak that large products reach: 71 % (A100, TF32) to 79 % (H100, bf16) in the table of devices.
_MOST_OF_TENSOR = 0.79
_IN_CHANNELS_LAST = {
    "convolution": "convolution channels last",
    "pointwise convolution": "convolution channels last",
    "depthwise convolution": "depthwise convolution channels last",
}


@lru_cache(maxsize=1)
def learned_rates() -> Mapping[str, tuple[float, float]]:
    """Reads each rate by its name, with its spread.

    The spread is the factor by which timings lie around the rate.
    """
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return {row["name"]: (float(row["value"]), float(row["spread"])) for row in csv.DictReader(lines)}


def fused_share(kind: str) -> tuple[float, float]:
    """Returns the bandwidth share of a fused Inductor kernel, with its spread.

    The kind is 'pointwise' or 'reduction'.
    """
    rates = learned_rates()
    (of_eager, spread), (eager, _) = rates[f"fused {kind}:memory"], rates["memory"]
    return of_eager * eager, spread


def tensor_share(rates: Mapping[str, float], of_board: Floats, inner: Floats, columns: Floats) -> Floats:
    """Returns the share of the tensor cores' peak that products of these sizes reach.

    ``of_board`` is the share that a board reaches, relative to others.
    """
    short = inner / (inner + rates["tensor:inner"]) * columns / (columns + rates["tensor:columns"])
    return np.asarray(np.minimum(rates["tensor"] * of_board * short, _MOST_OF_TENSOR))


def attention_share(architecture: str | None, width: Floats, length: Floats) -> tuple[Floats, float]:
    """Returns the share of the matrix peak that fused attention reaches, with its spread.

    ``width`` is that of a head, ``length`` that of the sequence.
    """
    facts, learned = generation_of(architecture), learned_rates()
    rates = {name: learned[name][0] for name in ("tensor", "tensor:inner", "tensor:columns")}
    ratio, spread = learned["attention:compute"]
    share = ratio * tensor_share(rates, np.asarray(facts.tensor_share), width, length)
    return np.minimum(share, facts.attention_share), spread


def use_of_channels(rates: Mapping[str, float], channels: Floats) -> Floats:
    """Returns the part of the rate in channels last that so many channels keep.

    Neighbours in memory are channels then: few of them leave most of a load unused.
    """
    return np.asarray(1.0 / (1.0 + rates["channels last:channels"] / channels))


def channels_last_times(kind: str, channels: float) -> tuple[float, float] | None:
    """Returns the time of a convolution in channels last over that by planes.

    It comes with its spread, and holds on tensor cores. The kind is a row of the table; null for one that was not timed
    in channels last. ``channels`` are those of a group.
    """
    learned = learned_rates()
    if kind not in _IN_CHANNELS_LAST:
        return None
    share, spread = learned[f"{_IN_CHANNELS_LAST[kind]}:compute"]
    if kind == "depthwise convolution":
        before, other = learned[f"{kind}:compute"]
        return before / share, math.exp(math.hypot(math.log(spread), math.log(other)))
    few = use_of_channels({name: value for name, (value, _) in learned.items()}, np.asarray(channels))
    return learned.get(f"{kind}:compute", (1.0, 1.0))[0] / (share * float(few)), spread


def host_units(kind: str) -> float:
    """Returns host time for a kind, as a multiple of the pace.

    The kind is that of an op or a kernel, and the pace is the host's.
    """
    return learned_rates()[f"host:{kind}"][0]


def fastest_host_us() -> float:
    """Returns the pace of a fast host among those timed, in microseconds."""
    pace, spread = learned_rates()["pace"][0], learned_rates()["pace:spread"][0]
    return pace / spread
