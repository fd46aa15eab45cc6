"""Which events stay and in what order: by start, longer first, and the same whatever their order in the file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bottleneck.tables import CATEGORIES
from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import ABSENT

Array = npt.NDArray[Any]

# Traces last seconds to minutes. An event days away has a broken clock, and would cost all others their precision.
LONGEST_US = 7 * 86_400e6

# Of equal intervals the one that can enclose the other comes first.
_OUTER_FIRST = ("line", "python", "annotation", "op", "runtime")
_RANK = np.array([_OUTER_FIRST.index(name) if name in _OUTER_FIRST else 9 for name in CATEGORIES], np.int8)


@dataclass(frozen=True)
class Events:
    """Columns of all complete events in file order; category, name and track are codes among sorted labels."""

    ts_ns: Array
    dur_us: Array
    category: Array
    name: Array
    track: Array


def event_order(events: Events, nameless: Array, identifier: Array, damage: Damage) -> Array:
    """Positions of the events that stay, in the order of EVENTS; counts the others by the reason.

    ``nameless`` says per code of ``events.name`` whether it is no name; ``identifier`` holds the External id of an op,
    the Python id of a frame and the correlation of other work, or ABSENT.
    """
    # Each kind of event comes in time order; merging such runs is what this sort is fastest at.
    rows = np.argsort(events.ts_ns, kind="stable")
    rows = _without(rows, (events.ts_ns == ABSENT) | np.isnan(events.dur_us), "no-time", damage)
    rows = _without(rows, nameless[events.name], "no-name", damage)
    rows = _without(rows, events.dur_us > LONGEST_US, "far-time", damage)
    return _break_ties(events, _near_the_middle(events.ts_ns, rows, damage), identifier)


def _without(rows: Array, bad: Array, kind: str, damage: Damage) -> Array:
    if not bad.any():
        return rows
    kept = rows[~bad[rows]]
    damage[kind] += len(rows) - len(kept)
    return kept


def _near_the_middle(ts_ns: Array, rows: Array, damage: Damage) -> Array:
    """The rows, which are in order of time, within a week of the middle one."""
    if not rows.size:
        return rows
    middle, reach = int(ts_ns[rows[rows.size // 2]]), int(LONGEST_US * 1000)
    if middle - int(ts_ns[rows[0]]) <= reach and int(ts_ns[rows[-1]]) - middle <= reach:
        return rows
    near = np.abs(ts_ns[rows] / 1000 - middle / 1000) <= LONGEST_US
    damage["far-time"] += int(np.count_nonzero(~near))
    kept: Array = rows[near]
    return kept


def _break_ties(events: Events, rows: Array, identifier: Array) -> Array:
    """The rows with equal starts put in an order that does not depend on the file; changes ``rows``.

    Ids grow inwards, because ops and frames get theirs when they begin. Names and tracks only make the order total.
    """
    ts_ns = events.ts_ns[rows]
    same = np.zeros(rows.size + 1, bool)
    np.equal(ts_ns[1:], ts_ns[:-1], out=same[1:-1])
    tied = np.flatnonzero(same[1:] | same[:-1])
    if not tied.size:
        return rows
    some = rows[tied]
    keys = (
        events.name[some],
        events.track[some],
        identifier[some],
        _RANK[events.category[some]],
        -events.dur_us[some],
        ts_ns[tied],
    )
    rows[tied] = some[np.lexsort(keys)]
    return rows
