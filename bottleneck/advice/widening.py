"""Widens the predicted speedup of a finding by earlier errors.

They are those of predictions that had the same kind of evidence. The figures come from the corpus of `python -m
benchmarks.corpus.intervals`, which prints them: split-conformal prediction (Lei et al. 2018, J. Am. Stat. Assoc. 113;
the score is that of Romano et al. 2019, arXiv:1905.03222) on logarithms of speedups. A test holds that they are those
of the pairs that are kept.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bottleneck.schema.analysis import Interval
from bottleneck.units import counted

# What gives a gain: times measured for it on this machine (pieces of the step, twice the batch), a replay of the
# recorded step with the change, or the formula of the rule.
Basis = Literal["timed", "replayed", "formula"]


@dataclass(frozen=True)
class Widening:
    """Widens a stated interval so that it holds four measurements of five.

    The lower end is divided by ``factor`` and the upper end multiplied; below 1 it narrows. ``noise`` is the median
    half width of the measured intervals, as a logarithm: no interval is narrower. ``pairs`` of predicted and measured
    speedups, of so many ``workloads``, showed both.
    """

    factor: float
    noise: float
    pairs: int
    workloads: int


# Of CPUs. No replay was tried on one: its ops follow one another, so that formulas add up what a replay would.
ON_CPU: Mapping[Basis, Widening] = {
    "timed": Widening(factor=1.04, noise=0.0498, pairs=85, workloads=27),
    "formula": Widening(factor=1.13, noise=0.0449, pairs=270, workloads=38),
}

_WORDS: Mapping[Basis, str] = {"timed": "gains timed here", "replayed": "replayed gains", "formula": "formulas"}


def widen(interval: Interval, widening: Widening) -> Interval:
    """Returns the interval of a speedup around the same middle.

    It is as wide as earlier measurements ask for.
    """
    low, high = math.log(interval.low), math.log(interval.high)
    half_width = max((high - low) / 2 + math.log(widening.factor), widening.noise)
    return Interval(math.exp((low + high) / 2 - half_width), math.exp((low + high) / 2 + half_width))


def describe(basis: Basis, widening: Widening) -> str:
    """Words from which trials the width of an interval comes.

    It is a line of evidence.
    """
    return (
        f"interval from {counted(widening.pairs, 'trial')} of {_WORDS[basis]} on CPUs: 4 of 5 measurements lay within "
        f"those that were stated with each end moved out {widening.factor:.2f} times"
    )
