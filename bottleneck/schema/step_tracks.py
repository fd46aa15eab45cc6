"""Records of steps over time, as lanes and their events.

The lanes are of the device and of host threads, and the events are arrays.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bottleneck.schema.time_tree import TimeTree


@dataclass(frozen=True)
class Lane:
    """Track: its title, and what its events are.

    ``depth`` is the number of levels on which the events nest. Lanes of one host thread have its number as ``thread``.
    """

    title: str
    kind: Literal["device", "idle", "ranges", "frames", "host"]
    depth: int = 1
    thread: int = -1


class OpInputs(NamedTuple):
    """Shapes of an op's inputs as an analysis spells them, and its dtype.

    Null where not known.
    """

    shapes: str | None
    dtype: str | None


@dataclass(frozen=True)
class Curve:
    """Readings of a sensor: pairs of time and value.

    The time is since the step's beginning in us, the value is in this unit.

    The first and the last may lie outside the step. ``unit`` is "" for a share or a count.
    """

    title: str
    unit: str
    points: tuple[tuple[float, float], ...]
    is_share: bool = False


@dataclass(frozen=True, eq=False)
class StepTracks:
    """One step under the profiler, from ``start_us`` after the window's beginning, ``length_us`` long.

    The arrays have one element per event, sorted by lane, depth and start. ``start_us`` and ``dur_us`` of the events
    count from the step's beginning; ``group`` is the index in GROUPS, ``account`` that in ACCOUNTS, -1 for none;
    ``row`` the position in the analysis' kernels, in an idle lane that in its causes of idle time, -1 for none;
    ``module`` that in its modules.
    ``launch`` is the position of the host event that issued device work, ``call`` that of an op's shapes and dtype in
    ``calls``. ``role`` is why this step is shown. ``left_out`` counts the shortest events beyond the limit.
    """

    step: str
    start_us: float
    length_us: float
    lanes: tuple[Lane, ...]
    names: tuple[str, ...]
    lane: npt.NDArray[np.int64]
    depth: npt.NDArray[np.int64]
    name: npt.NDArray[np.int64]
    event_start_us: npt.NDArray[np.float64]
    event_dur_us: npt.NDArray[np.float64]
    group: npt.NDArray[np.int64]
    account: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    module: npt.NDArray[np.int64]
    launch: npt.NDArray[np.int64]
    call: npt.NDArray[np.int64]
    role: Literal["median", "quickest", "slowest"] = "median"
    calls: tuple[OpInputs, ...] = ()
    left_out: int = 0
    curves: tuple[Curve, ...] = ()


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """Steps of one rank over time.

    That of median length comes first, then the quickest and the slowest that fit. ``rank`` is null for a trace that
    names none. ``tree`` is the time of a step by Python frame, null without frames. ``others`` are some of the other
    ranks, each with the first step.
    """

    steps: tuple[StepTracks, ...]
    rank: int | None = None
    tree: TimeTree | None = None
    others: "tuple[StepTimeline, ...]" = ()

    @property
    def count(self) -> int:
        """Events of all steps and ranks."""
        return sum(len(tracks.lane) for tracks in self.steps) + sum(other.count for other in self.others)
