"""What shorter kernels are worth: the critical path of the step, walked again with other durations."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bottleneck.advice.measures import kernels_in_window, runs_on_host
from bottleneck.case import Case

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# A queued kernel starts so soon after the one before it (1-3 us on NVIDIA, 0-4 us on AMD: cost_model, section 7); one
# that starts later waits for something that a shorter kernel does not bring forward.
_QUEUED_GAP_US = 10.0
# Host calls that return once the device has got so far: what the host does next moves forward with the device.
_WAITING_CALL = re.compile(r"Synchronize|cudaMemcpy|hipMemcpy|cuMemcpy")
_CLOCK_US = 1.0


@dataclass(frozen=True)
class _Track:
    """The kernels of one stream in the window, in order.

    ``gap_us`` is the pause of the queue before each, ``ready_us`` the earliest start that the host allows: a kernel
    that came late, or that waited for something else, starts when it did. ``ends`` marks kernels that the host waits
    for, and the last one: time saved up to there is saved for good.
    """

    rows: Integers
    gap_us: Floats
    dur_us: Floats
    ready_us: Floats
    end_us: Floats
    ends: Flags


def saved_us(case: Case, less_us: Floats) -> float:
    """Microseconds per step that the step gets shorter if each row of KERNELS takes so much less (in the trace's time).

    On a CPU ops run one after the other: the sum. On a device the stream is walked again with the launches where they
    were: a kernel cannot start before the host has launched it, so what is saved before a launch that came late is
    worth nothing, unless the host itself was waiting for the device. Work on other streams keeps its times.
    """
    if runs_on_host(case):
        return float(less_us.sum()) / case.steps
    return sum(_saved(track, less_us[track.rows]) for track in _tracks(case)) / case.steps


def _saved(track: _Track, less_us: Floats) -> float:
    if not less_us.any():
        return 0.0
    run_us = np.cumsum(track.gap_us + track.dur_us - less_us)
    before_us = np.concatenate(([0.0], run_us[:-1]))
    end_us = run_us + np.maximum.accumulate(track.ready_us - before_us)
    saved = np.maximum(track.end_us - end_us, 0.0)
    return float(saved[track.ends].sum())


def _tracks(case: Case) -> tuple[_Track, ...]:
    """The streams of the case; kept beside it, for many rules ask."""
    kept = vars(case)
    if "_tracks" not in kept:
        kept["_tracks"] = _find_tracks(case)
    found: tuple[_Track, ...] = kept["_tracks"]
    return found


def _find_tracks(case: Case) -> tuple[_Track, ...]:
    kernels = case.linked.kernels
    rows = np.flatnonzero(kernels_in_window(case))
    start_us = kernels["ts_us"].to_numpy()
    stream = kernels["stream"].cat.codes.to_numpy()
    rows = rows[np.lexsort((start_us[rows], stream[rows]))]
    waits = _host_waits(case)
    cuts = np.flatnonzero(np.diff(stream[rows])) + 1
    return tuple(_track(case, mine, waits) for mine in np.split(rows, cuts) if mine.size)


def _track(case: Case, rows: Integers, waits: tuple[Floats, Floats]) -> _Track:
    kernels = case.linked.kernels
    start, dur = (kernels[name].to_numpy()[rows] for name in ("ts_us", "dur_us"))
    launch = kernels["launch_ts_us"].to_numpy()[rows]
    end = np.maximum.accumulate(start + dur)
    free = np.concatenate(([-np.inf], end[:-1]))
    # No launch gets to the device sooner than the quickest; a kernel without a launch was in the queue before.
    delays = (start - launch)[launch <= start]
    arrived = np.where(np.isnan(launch), -np.inf, launch + (delays.min() if delays.size else 0.0))
    gap = start - np.maximum(free, arrived)
    fixed = (arrived > free) | (gap > _QUEUED_GAP_US)
    return _Track(
        rows=rows,
        gap_us=np.where(fixed, 0.0, gap),
        dur_us=dur,
        ready_us=np.where(fixed, start, arrived),
        end_us=end,
        ends=np.concatenate((fixed[1:] & _covers(waits, end[:-1]), [True])),
    )


def _host_waits(case: Case) -> tuple[Floats, Floats]:
    """Starts, and ends so far, of the calls in which the host may wait for the device."""
    events = case.linked.trace.events
    names = events["name"].cat
    waiting = np.array([_WAITING_CALL.search(str(name)[:200]) is not None for name in names.categories], dtype=bool)
    is_call = np.append(waiting, False)[names.codes.to_numpy()] & (events["category"] == "runtime").to_numpy()
    start = events["ts_us"].to_numpy()[is_call]
    end = start + events["dur_us"].to_numpy()[is_call]
    return start, np.maximum.accumulate(end) if end.size else end


def _covers(waits: tuple[Floats, Floats], at_us: Floats) -> Flags:
    """Whether the host was in a waiting call at each of these times."""
    start, end = waits
    if not start.size:
        return np.zeros(at_us.size, dtype=bool)
    before = np.searchsorted(start, at_us, side="right") - 1
    return np.asarray((before >= 0) & (end[np.maximum(before, 0)] >= at_us - _CLOCK_US))
