"""Views of EVENTS that the linking stages share: times, threads, names and categories of some rows."""

import re
from collections.abc import Sequence

import numpy as np

from bottleneck.trace.joins import Flags
from bottleneck.trace.nesting import Ints, to_ns
from bottleneck.tracing import Trace


def starts_ns(trace: Trace, rows: Ints) -> Ints:
    """Start of some events."""
    return to_ns(trace.events["ts_us"].to_numpy()[rows])


def ends_ns(trace: Trace, rows: Ints) -> Ints:
    """End of some events."""
    return starts_ns(trace, rows) + to_ns(trace.events["dur_us"].to_numpy()[rows])


def threads(trace: Trace, rows: Ints) -> Ints:
    """Code of the track of some events."""
    return trace.events["thread"].cat.codes.to_numpy()[rows].astype(np.int64)


def names(trace: Trace, rows: Ints) -> Ints:
    """Code of the name of some events."""
    return trace.events["name"].cat.codes.to_numpy()[rows].astype(np.int64)


def names_that_match(trace: Trace, pattern: re.Pattern[str]) -> Flags:
    """Whether each distinct name matches, by its code; never once per event."""
    labels = trace.events["name"].cat.categories
    return np.array([pattern.search(label) is not None for label in labels], dtype=np.bool_)


def are_named(trace: Trace, pattern: re.Pattern[str]) -> Flags:
    """Whether each event's name matches."""
    return np.asarray(names_that_match(trace, pattern)[trace.events["name"].cat.codes.to_numpy()], dtype=np.bool_)


def is_any_of(trace: Trace, categories: Sequence[str], rows: Ints | slice = slice(None)) -> Flags:
    """Whether some events (all of them unless told) are of one of the categories."""
    column = trace.events["category"].cat
    wanted = np.isin(np.asarray(column.categories, dtype=object), categories)
    return np.append(wanted, False)[column.codes.to_numpy()[rows]]


def events_of(trace: Trace, category: str) -> Ints:
    """Rows of the events of one category."""
    return np.flatnonzero(is_any_of(trace, (category,)))
