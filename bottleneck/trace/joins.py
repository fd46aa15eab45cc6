"""Joins of event tables on ids that may repeat: the latest row with an id before an instant; used by ``link``."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from bottleneck.trace.nesting import Ints

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Match:
    """Rows with the id asked for, -1 where there is none: the latest at or before the instant, and the first of all."""

    before: Ints
    first: Ints

    @property
    def nearest(self) -> Ints:
        """The latest row before the instant, or the first one where all come after it."""
        return np.where(self.before >= 0, self.before, self.first)


def whole(column: "pd.Series[int]") -> Ints:
    """A nullable column of whole numbers as plain integers, -1 for null."""
    return np.asarray(column.to_numpy(dtype=np.int64, na_value=-1), dtype=np.int64)


def match_latest(key: Ints, at_ns: Ints, asked_key: Ints, asked_ns: Ints) -> Match:
    """The rows (``key``, ``at_ns``) that answer each question (``asked_key``, ``asked_ns``); keys below 0 are null."""
    rows = np.lexsort((at_ns, key))
    rows = rows[np.searchsorted(key[rows], 0) :]
    low = np.searchsorted(key[rows], asked_key, side="left")
    end = np.where(asked_key < 0, low, np.searchsorted(key[rows], asked_key, side="right"))
    first, high = low.copy(), end.copy()
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        earlier = at_ns[rows[middle]] <= asked_ns[open_]
        low[open_[earlier]] = middle[earlier] + 1
        high[open_[~earlier]] = middle[~earlier]
    rows = np.append(rows, -1).astype(np.int64)
    none = len(rows) - 1
    return Match(rows[np.where(low > first, low - 1, none)], rows[np.where(end > first, first, none)])
