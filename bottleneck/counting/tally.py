"""Sums per step, and whether all steps agree on them: the arithmetic of every counter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bottleneck.counting.scope import Floats, Ints

DIFFER = "steps differ (data-dependent)"


@dataclass(frozen=True)
class Tally:
    """The number that all steps agree on, or the lowest and the highest."""

    low: int
    high: int

    @property
    def is_stable(self) -> bool:
        """Whether the steps agree."""
        return self.low == self.high


def spread(low: int, high: int, why: str) -> str:
    """'8..10: runs differ'."""
    return f"{low}..{high}: {why}"


def total(step: Ints, steps: int, amount: Floats | None = None) -> Tally:
    """Rows (or the sum of their amounts) in each step; rows of step -1 do not count."""
    inside = step >= 0
    sums = np.bincount(step[inside], None if amount is None else amount[inside], minlength=steps)
    return Tally(round(float(sums.min())), round(float(sums.max())))


def by_label(step: Ints, code: Ints, labels: Sequence[str], steps: int) -> Mapping[str, Tally]:
    """Rows per step for each label; rows of step -1 and those without a code (-1) do not count."""
    rows = np.flatnonzero((step >= 0) & (code >= 0))
    keys, counts = np.unique(code[rows] * steps + step[rows], return_counts=True)
    if not len(keys):
        return {}
    codes = keys // steps
    first = np.flatnonzero(np.concatenate(([True], np.diff(codes) != 0)))
    present = np.diff(np.append(first, len(codes)))
    low = np.where(present == steps, np.minimum.reduceat(counts, first), 0)
    high = np.maximum.reduceat(counts, first)
    found = zip(codes[first].tolist(), low.tolist(), high.tolist(), strict=True)
    return {labels[each]: Tally(least, most) for each, least, most in found}


def relabel(codes: Ints, labels: Sequence[str]) -> tuple[Ints, list[str]]:
    """Codes into the distinct ones among labels, of which some have become the same."""
    distinct = list(dict.fromkeys(labels))
    position = {label: code for code, label in enumerate(distinct)}
    return np.array([*(position[label] for label in labels), -1], dtype=np.int64)[codes], distinct
