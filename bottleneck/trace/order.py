"""Which events stay and in what order: by start, longer first, and the same whatever their order in the file."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bottleneck.trace.damage import Damage
from bottleneck.trace.decode import ABSENT

Array = npt.NDArray[Any]

# Traces last seconds to minutes. An event days away has a broken clock, and would cost all others their precision.
_LONGEST_US = 7 * 86_400e6


@dataclass(frozen=True)
class Events:
    """Columns of all complete events in file order; ``identifier`` is the correlation or External id, or ABSENT."""

    ts_ns: Array
    dur_us: Array
    category: Array
    name: Array
    track: Array
    identifier: Array


def event_order(events: Events, nameless: Array, damage: Damage) -> Array:
    """Positions of the events that stay, in the order of EVENTS; counts the others by the reason.

    ``nameless`` says per code of ``events.name`` whether it is no name.
    """
    timed = (events.ts_ns != ABSENT) & ~np.isnan(events.dur_us)
    named = ~nameless[events.name]
    damage["no-time"] += int(np.count_nonzero(~timed))
    damage["no-name"] += int(np.count_nonzero(timed & ~named))
    rows = np.flatnonzero(timed & named)
    # Nearly sorted runs are what this sort is fastest at: each kind of event comes in time order.
    rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
    return _break_ties(events, _near(events, rows, damage))


def _near(events: Events, rows: Array, damage: Damage) -> Array:
    """The rows within a week of the middle event that last less than a week."""
    if not rows.size:
        return rows
    middle = int(events.ts_ns[rows[rows.size // 2]])
    away_us = np.abs(events.ts_ns[rows] / 1000 - middle / 1000)
    near = (away_us < _LONGEST_US) & (events.dur_us[rows] < _LONGEST_US)
    damage["far-time"] += int(np.count_nonzero(~near))
    return rows[near]


def _break_ties(events: Events, rows: Array) -> Array:
    ts_ns = events.ts_ns[rows]
    same = ts_ns[1:] == ts_ns[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    some = rows[tied]
    # Of equal intervals the one that encloses comes first: annotation, op, launch as CATEGORIES has them not, but
    # ids grow inwards; names only make the order total.
    keys = (events.name, events.track, events.identifier, _RANK[events.category], -events.dur_us, events.ts_ns)
    result = rows.copy()
    result[tied] = some[np.lexsort(tuple(key[some] for key in keys))]
    return result


# Outer kinds first: a frame calls an op, an op calls the runtime. By code of CATEGORIES.
_RANK = np.array([2, 1, 0, 3, 4, 5, 6, 7, 8, 9, 10], np.int8)
