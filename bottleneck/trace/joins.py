"""Joins event tables, and gives views of EVENTS.

The joins are by ids that may repeat, and by correlation of launches and device work.
"""

import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.linked_trace import Trace
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.trace.nesting import to_ns


class Match(Struct, frozen=True):
    """Rows with the requested id, -1 where there is none.

    They are the latest at or before the instant, and the first of all.
    """

    before: Integers
    first: Integers

    @property
    def nearest(self) -> Integers:
        """The latest row before the instant.

        The first one where all come after it.
        """
        return np.where(self.before >= 0, self.before, self.first)


def match_latest(key: Integers, at_ns: Integers, query_key: Integers, query_ns: Integers) -> Match:
    """Finds the matching rows for each query.

    A query is (``query_key``, ``query_ns``), a row is (``key``, ``at_ns``). Keys below 0 are null.
    """
    rows = np.lexsort((at_ns, key))
    rows = rows[np.searchsorted(key[rows], 0) :]
    low = np.searchsorted(key[rows], query_key, side="left")
    end = np.where(query_key < 0, low, np.searchsorted(key[rows], query_key, side="right"))
    first, high = low.copy(), end.copy()
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        earlier = at_ns[rows[middle]] <= query_ns[open_]
        low[open_[earlier]] = middle[earlier] + 1
        high[open_[~earlier]] = middle[~earlier]
    rows = np.append(rows, -1).astype(np.int64)
    none = len(rows) - 1
    return Match(rows[np.where(low > first, low - 1, none)], rows[np.where(end > first, first, none)])


def starts_ns(trace: Trace, rows: Integers) -> Integers:
    """Start of some events."""
    return to_ns(trace.events["ts_us"].to_numpy()[rows])


def ends_ns(trace: Trace, rows: Integers) -> Integers:
    """End of some events."""
    return starts_ns(trace, rows) + to_ns(trace.events["dur_us"].to_numpy()[rows])


def threads(trace: Trace, rows: Integers) -> Integers:
    """Code of the track of some events."""
    return trace.events["thread"].cat.codes.to_numpy()[rows].astype(np.int64)


def names(trace: Trace, rows: Integers) -> Integers:
    """Code of the name of some events."""
    return trace.events["name"].cat.codes.to_numpy()[rows].astype(np.int64)


def are_named(trace: Trace, pattern: re.Pattern[str], rows: Integers | slice = slice(None)) -> Flags:
    """True for the events in ``rows`` (default: all) whose name matches."""
    return text_matches(trace.events["name"], pattern.search, rows=rows)


def is_any_of(trace: Trace, categories: Sequence[str], rows: Integers | slice = slice(None)) -> Flags:
    """True for the events in ``rows`` (default: all) of one of the categories."""
    column = trace.events["category"].cat
    wanted = np.isin(np.asarray(column.categories, dtype=object), categories)
    return np.append(wanted, False)[column.codes.to_numpy()[rows]]


def events_of(trace: Trace, category: str) -> Integers:
    """Rows of the events of one category."""
    return np.flatnonzero(is_any_of(trace, (category,)))


def find_launches(trace: Trace) -> Integers:
    """Finds the call that issued each row of DEVICE_ARGS.

    It is a row in LAUNCH_ARGS, -1 where the trace does not hold it. Of several calls with the same correlation the
    latest before the work counts, or the first when all of them come after it: the clocks of host and device differ by
    up to 200 us, so order in time alone proves nothing.
    """
    called, issued = trace.launch_args, trace.device_args
    return match_latest(
        as_integers(called["correlation"]),
        starts_ns(trace, called["event"].to_numpy()),
        as_integers(issued["correlation"]),
        starts_ns(trace, issued["event"].to_numpy()),
    ).nearest
