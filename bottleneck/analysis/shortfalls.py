"""What a reason for falling short is: where it holds and its words, and the rules that all kinds of device share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bottleneck.analysis.floors import Floors
from bottleneck.analysis.groups import Flags, Floats, Labelled, Work
from bottleneck.units import format_si

UNEXPLAINED = "unexplained"

# Families of prices whose usual kernels read their data again: statistics first, then the result; a digit at a time.
_PASSES = ("normalization", "loss", "pooling", "reduction", "scan", "sort")


@dataclass(frozen=True)
class Shortfall:
    """A rule: the groups that it holds for, and its words for the numbers of one of them.

    The numbers hang on shapes and names, or are rounded, so that calls of one kind get one text.
    """

    holds: Flags
    words: Callable[..., str]
    numbers: tuple[Floats, ...]


def first_that_holds(rules: Sequence[Shortfall], asked: Flags) -> Labelled:
    """The words of the first rule that holds, per row that is asked for; 'unexplained' where none does."""
    codes, labels, open_ = np.full(asked.size, -1, dtype=np.int64), [UNEXPLAINED], asked.copy()
    for rule in rules:
        rows = np.flatnonzero(open_ & rule.holds)
        open_[rows] = False
        if rows.size:
            numbers = (
                np.stack([each[rows] for each in rule.numbers], axis=1) if rule.numbers else np.zeros((rows.size, 0))
            )
            distinct, place = np.unique(np.nan_to_num(numbers, nan=-1.0), axis=0, return_inverse=True)
            codes[rows] = len(labels) + place.ravel()
            labels += [rule.words(*values) for values in distinct.tolist()]
    codes[open_] = 0
    return Labelled(codes, tuple(labels))


def more_bytes(work: Work, floors: Floors) -> tuple[Shortfall, Shortfall]:
    """Bytes at the upper end of the interval that fill the time where the compulsory ones do not.

    The usual kernels of some families pass over their data more than once; elsewhere the trace leaves the bytes open.
    """
    low, high = work.cost("bytes_low"), work.cost("bytes_high")
    fills = (floors.compute_us < floors.cold_us) & (high > low)
    fills &= floors.eager_cold_us >= work.limits.memory_share * work.groups.time_us
    passes = np.append(work.costs["family"].isin(_PASSES).to_numpy(), False)[work.groups.signature]
    return (
        Shortfall(
            fills & passes,
            lambda less, more: (
                f"repeated passes over its data: up to {format_si(more, 'B')} for {format_si(less, 'B')}"
            ),
            (low, high),
        ),
        Shortfall(
            fills & ~passes,
            lambda less, more: f"the trace leaves its bytes open: {format_si(less, 'B')} to {format_si(more, 'B')}",
            (low, high),
        ),
    )


def throttled(work: Work) -> Shortfall:
    """Clocks that were held back while the trace was recorded."""
    return Shortfall(
        np.full(work.groups.kernels.shape, bool(work.conditions.throttle)),
        lambda: f"clocks: the device was throttled ({', '.join(work.conditions.throttle)})",
        (),
    )


def two_digits(values: Floats) -> Floats:
    """Rounded to two digits, so that calls of one kind get one text."""
    scale = 10.0 ** (np.floor(np.log10(np.maximum(np.nan_to_num(values), 1e-30))) - 1)
    return np.asarray(np.round(values / scale) * scale)
