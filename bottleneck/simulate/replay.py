"""Replays a graph of steps, as it was recorded or with changes."""

from collections.abc import Callable
from itertools import islice
from typing import TypeVar

import numpy as np
from msgspec import Struct

from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.records import replace
from bottleneck.simulate.graph import ALL_WORK, NOTHING_AWAITED, StepGraph

# Steps that repeat are run until two runs in a row take equally long, at most so many times.
_MOST_ROUNDS, _SETTLED = 10, 1e-4
# What set the start of device work.
BY_ISSUE, BY_STREAM, BY_OTHER_STREAM = range(3)

T = TypeVar("T", Floats, Flags)


class GraphChange(Struct, frozen=True, eq=False):
    """Changed program, as factors.

    They are on stretches of the host, on device work and on the arrival of batches. The host does not stop at points
    with ``no_wait``. Device work with the factor 0 is not launched. ``detached`` work holds neither its stream nor
    anything that waits for it, but still follows other detached work of its stream. Batches whose arrival has the
    factor 0 are there when they are needed. The steps take ``least_us`` at least. Null leaves all as they are;
    ``without_delays`` takes away what the graph holds without an explanation.
    """

    host: Floats | None = None
    device: Floats | None = None
    arrival: Floats | None = None
    no_wait: Flags | None = None
    detached: Flags | None = None
    least_us: float = 0.0
    without_delays: bool = False

    def __and__(self, other: "GraphChange") -> "GraphChange":
        """Both changes at once."""
        return GraphChange(
            _both(self.host, other.host, np.multiply),
            _both(self.device, other.device, np.multiply),
            _both(self.arrival, other.arrival, np.multiply),
            _both(self.no_wait, other.no_wait, np.logical_or),
            _both(self.detached, other.detached, np.logical_or),
            max(self.least_us, other.least_us),
            self.without_delays or other.without_delays,
        )


def _both(one: T | None, other: T | None, combine: Callable[[T, T], T]) -> T | None:
    if one is None or other is None:
        return other if one is None else one
    return combine(one, other)


NO_CHANGE = GraphChange()
# The change that takes away all that the graph holds without an explanation.
WITHOUT_DELAYS = GraphChange(without_delays=True)


class StepReplay(Struct, frozen=True, eq=False):
    """Holds a replay of the steps from ``begin_us`` to ``end_us`` of the host's clock.

    ``starts_us`` and ``ends_us`` are those of device work in the order of the graph, ``by`` what set its start
    (``BY_ISSUE`` …), ``gone`` marks work that is not launched and ``lane`` counts streams, with those of detached
    work apart. ``at_us`` is when the host passed each point, behind the last one its end, and ``waited_us`` how long it
    had waited there. ``host_us`` are the lengths of the host's stretches and ``host_at_us`` their starts. Steps that
    repeat are shown in their last run, which may begin before ``begin_us``; ``first_us`` is the time of the first one.
    """

    begin_us: float
    end_us: float
    starts_us: Floats
    ends_us: Floats
    by: Integers
    gone: Flags
    lane: Integers
    at_us: Floats
    waited_us: Floats
    host_us: Floats
    host_at_us: Floats
    first_us: float

    @property
    def wall_us(self) -> float:
        """Time of all steps of the window."""
        return self.end_us - self.begin_us


class _Player:
    """Graph with a change as plain lists.

    It has the state that one run leaves to the next.
    """

    def __init__(self, graph: StepGraph, change: GraphChange) -> None:
        work, points = graph.device, graph.awaited.size
        count = work.row.size
        host_us = graph.host.us if change.host is None else graph.host.us * change.host
        if change.without_delays:
            host_us = np.where(graph.host.held, 0.0, host_us)
        factor = np.ones(count) if change.device is None else change.device
        detached = np.zeros(count, dtype=bool) if change.detached is None else change.detached
        self.graph, self.host_us = graph, host_us
        self.advance = np.bincount(graph.host.point, weights=host_us, minlength=points + 1).tolist()
        self.us, self.gone, self.loose = (work.us * factor).tolist(), (factor == 0).tolist(), detached.tolist()
        no_wait = np.zeros(points, dtype=bool) if change.no_wait is None else change.no_wait
        self.awaited = [*np.where(no_wait, NOTHING_AWAITED, graph.awaited).tolist(), NOTHING_AWAITED]
        arrival = np.ones(points) if change.arrival is None else change.arrival
        self.ready = [*np.where(arrival > 0, graph.ready_us, -np.inf).tolist(), -np.inf]
        self.arrival, self.length_us = [*arrival.tolist(), 1.0], graph.length_us
        lanes = graph.backlog_us.size
        self.lane = np.where(detached, work.stream + lanes, work.stream).tolist()
        self.held = (np.zeros(count) if change.without_delays else work.held_us).tolist()
        self.latency, self.gap, self.after, self.issues = graph.lists
        self.busy_until = [*graph.backlog_us.tolist(), *([-np.inf] * lanes)]
        self.attached = lanes
        self.start, self.end, self.by = [0.0] * count, [0.0] * count, [BY_ISSUE] * count
        self.at, self.waited = [0.0] * (points + 1), [0.0] * (points + 1)
        self.now = self.began_us = 0.0

    def run(self, turn: int) -> None:
        """Runs the steps once more, device work behind what it waits for."""
        # Tens of thousands of turns: names of this function are looked up in half the time of attributes.
        loose, start, end, by, busy_until = self.loose, self.start, self.end, self.by, self.busy_until
        at, waited = self.at, [0.0] * len(self.at)
        work = zip(self.lane, self.gone, self.latency, self.gap, self.after, self.held, self.us, strict=True)
        points = zip(self.advance, self.awaited, self.ready, self.issues, strict=True)
        number, now = 0, self.now
        self.began_us = now
        for point, (advance, wait, ready, issued) in enumerate(points):
            reached = now = now + advance
            if wait >= 0:
                if not loose[wait] and end[wait] > now:
                    now = end[wait]
                    waited[point] = now - reached
            elif wait == ALL_WORK:
                now = max((now, *busy_until[: self.attached]))
                waited[point] = now - reached
            elif ready > 0:
                now = max(now, (ready + turn * self.length_us) * self.arrival[point])
                waited[point] = now - reached
            at[point] = now
            for lane, gone, latency, gap, other, held, us in islice(work, issued):
                free = busy_until[lane]
                if gone:
                    start[number] = end[number] = free
                    by[number] = BY_STREAM
                    number += 1
                    continue
                begin, reason = now + latency, BY_ISSUE
                if free + gap > begin:
                    begin, reason = free + gap, BY_STREAM
                if other >= 0 and not loose[other] and end[other] + gap > begin:
                    begin, reason = end[other] + gap, BY_OTHER_STREAM
                start[number] = begin = begin + held
                by[number] = reason
                end[number] = busy_until[lane] = begin + us
                number += 1
        self.now, self.waited = now, waited

    @property
    def done_us(self) -> float:
        """When host and device are done with what has been run."""
        return float(max((self.now, *self.busy_until)))

    def result(self, begin_us: float, end_us: float) -> StepReplay:
        """The last run."""
        point = self.graph.host.point
        passed = np.concatenate(([self.began_us], self.at))[point]
        ran = np.cumsum(self.host_us) - self.host_us
        first = np.searchsorted(point, point)
        return StepReplay(
            begin_us=begin_us,
            end_us=end_us,
            starts_us=np.array(self.start, dtype=np.float64),
            ends_us=np.array(self.end, dtype=np.float64),
            by=np.array(self.by, dtype=np.int64),
            gone=np.array(self.gone, dtype=np.bool_),
            lane=np.array(self.lane, dtype=np.int64),
            at_us=np.array(self.at),
            waited_us=np.array(self.waited),
            host_us=self.host_us,
            host_at_us=np.asarray(passed + ran - (ran[first] if ran.size else ran)),
            first_us=end_us - begin_us,
        )


def replay_steps(graph: StepGraph, change: GraphChange = NO_CHANGE) -> StepReplay:
    """Runs the graph with a change, again until repeated steps settle."""
    return _replay(graph, change, _MOST_ROUNDS if graph.repeats else 1)


def replay_once(graph: StepGraph, change: GraphChange = NO_CHANGE) -> StepReplay:
    """Runs the graph one time from the recorded state of host and device."""
    return _replay(graph, change, 1)


def _replay(graph: StepGraph, change: GraphChange, rounds: int) -> StepReplay:
    player, done = _run(graph, change, rounds)
    last = player.result(done[-2], max(done[-1], done[-2] + change.least_us))
    return replace(last, first_us=max(done[1], done[0] + change.least_us) - done[0])


def time_steps(graph: StepGraph, change: GraphChange = NO_CHANGE) -> float:
    """Returns the time of ``replay_steps``, in microseconds.

    Without the arrays that tell when each piece of work ran.
    """
    _, done = _run(graph, change, _MOST_ROUNDS if graph.repeats else 1)
    return max(done[-1], done[-2] + change.least_us) - done[-2]


def time_once(graph: StepGraph, change: GraphChange = NO_CHANGE) -> float:
    """The time of ``replay_once`` in microseconds."""
    _, done = _run(graph, change, 1)
    return max(done[-1], done[-2] + change.least_us) - done[-2]


def _run(graph: StepGraph, change: GraphChange, rounds: int) -> tuple[_Player, list[float]]:
    """Returns the steps after their last run.

    And when each run was done, behind the beginning of the first.
    """
    player, done = _Player(graph, change), [graph.lag_us]
    for turn in range(rounds):
        player.run(turn)
        done.append(max(player.done_us, graph.lag_us))
        if turn > 0 and abs(done[-1] - 2 * done[-2] + done[-3]) <= _SETTLED * (done[-1] - done[-2]):
            break
    return player, done
