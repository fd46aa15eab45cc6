"""Builds a graph of the recorded steps: host work, launches, streams, and waits.

The host is one chain of work: the main thread, and a thread of the autograd engine while the main thread waits for its
backward pass. Points cut the chain: at some of them work is issued to the device, at others the host waits for work of
the device or for a batch of a loader's workers. Device work starts once it is issued, the work before it on its stream
is done, and work of another stream that it depends on is done.

Nothing but durations is taken from the recording event by event. From launch to start, and from one kernel to the next,
all work of a kind has the same lag: the mean of the trace. A start that is later than any such lag explains is kept
as a delay, and ``held`` counts what those delays are worth.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.host import Host, host_of, owned_segments
from bottleneck.schema.accounts import HOST_STATES
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import (
    NOTHING,
    Flags,
    Floats,
    Integers,
    Segments,
    cut,
    gaps,
    grouped,
    joined,
    tally,
    union,
)
from bottleneck.schema.linked_trace import KERNEL_GAP_US, LAUNCH_LATENCY_US, Linked
from bottleneck.schema.loading import WORKERS_ITERATOR, were_there
from bottleneck.schema.tables import are_calls, as_integers, text_matches

Texts = npt.NDArray[np.object_]
# The clocks of host and device agree to about so much.
_CLOCKS_US = 5.0
# A launch that takes this long, with so many others not done, waits for room in the queue of the device.
_LONG_LAUNCH_US, _FULL_QUEUE = 50.0, 100
# Work that a call waited for is looked for among so many that ended before the call did.
_LOOK_BACK = 200
# Lags of a trace in which no work shows them.
_LATENCY_OTHERWISE_US, _GAP_OTHERWISE_US = 5.0, 1.0
# Of a longer window the first steps are taken: a replay of so many takes a tenth of a second.
MOST_KERNELS = 20_000
# Workers of a loader that are waited for in less than this part of the window keep up with the program.
_WORKERS_KEEP_UP = 0.02
# In ``StepGraph.awaited``: nothing, or all work issued before.
NOTHING_AWAITED, ALL_WORK = -1, -2
_SYNC = HOST_STATES.index("sync")


class HostWork(Struct, frozen=True, eq=False):
    """Holds the stretches in which the host works, in order, waits left out.

    ``point`` is the point at or before which the stretch ends, ``state`` an index in HOST_STATES, one more for unknown;
    ``op`` is a row in OPS, ``event`` a row in EVENTS, ``place`` a row in PLACES, -1 for none. ``held`` marks long waits
    of which the trace does not show what for: they stay as long as they were.
    """

    start_us: Floats
    us: Floats
    point: Integers
    state: Integers
    op: Integers
    event: Integers
    place: Integers
    held: Flags


class IssuedWork(Struct, frozen=True, eq=False):
    """Device work in the order of its launches.

    ``row`` is the row in KERNELS and ``point`` that of its launch, -1 where it is not on record. ``latency_us`` is the
    time from the launch to the start, ``gap_us`` that from the end of other work that it follows: both are those of all
    work of its kind. ``after`` is the position of work on another stream that it waits for, -1 for none. ``held_us`` is
    the delay that none of these explains.
    """

    row: Integers
    point: Integers
    stream: Integers
    us: Floats
    latency_us: Floats
    gap_us: Floats
    after: Integers
    held_us: Floats


class StepGraph(Struct, frozen=True, eq=False, dict=True):
    """Holds the steps of a window as a graph, with times over all ``steps``.

    ``wall_us`` is the measured time, which began ``lag_us`` after the host did: the device may be behind the host,
    which takes ``length_us`` for its part. ``repeats`` says that other steps like these follow them. Per point
    ``awaited`` is the position in ``device`` of the work that the host waits for, NOTHING_AWAITED or ALL_WORK, and
    ``ready_us`` when the batch that it waits for comes, -inf for none; ``call`` is the row in EVENTS of the call there.
    ``backlog_us`` is the time from the beginning until which each stream was busy with work from before, -inf where it
    was not. ``foreign_share`` is the share of launches by threads that are not part of the chain.
    """

    wall_us: float
    lag_us: float
    length_us: float
    steps: int
    repeats: bool
    awaited: Integers
    ready_us: Floats
    call: Integers
    host: HostWork
    device: IssuedWork
    backlog_us: Floats
    foreign_share: float = 0.0

    @property
    def waits(self) -> Flags:
        """Mask of the points at which the host waits for the device."""
        return np.asarray(self.awaited != NOTHING_AWAITED)

    @cached_property
    def issue_point(self) -> Integers:
        """Returns the point that issues each piece of device work, or the one before."""
        return np.asarray(np.maximum.accumulate(np.maximum(self.device.point, 0)))

    @cached_property
    def lists(self) -> tuple[list[float], list[float], list[int], list[int]]:
        """Returns latency, gap and ``after`` of device work, and pieces issued per point.

        Replays read these number by number.
        """
        work, points = self.device, np.arange(self.awaited.size + 1)
        issued = np.diff(np.searchsorted(self.issue_point, points, side="right"), prepend=0)
        return work.latency_us.tolist(), work.gap_us.tolist(), work.after.tolist(), issued.tolist()


class _HostWaits(Struct, frozen=True, eq=False):
    """Holds calls that waited: row in EVENTS, begin, end, KERNELS row or ALL_WORK.

    For a batch of a loader's workers that row is NOTHING_AWAITED.
    """

    call: Integers
    start_us: Floats
    end_us: Floats
    kernel: Integers


_NO_WAITS = _HostWaits(*(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64)))


class _Chain(Struct, frozen=True, eq=False):
    """Holds the threads that run the step in turn, and their stretch of time."""

    host: Host
    autograd: tuple[int, ...]
    low: float
    high: float

    @property
    def threads(self) -> tuple[int, ...]:
        return (self.host.main_thread, *self.autograd)

    def speaker(self, at_us: Floats) -> Integers:
        """Returns the thread that runs the step at each instant, autograd's among them."""
        speaker = np.full(at_us.size, self.host.main_thread, dtype=np.int64)
        free = self.host.ops.get(self.host.main_thread, NOTHING).at(at_us) < 0
        for thread in self.autograd:
            mine = free & (self.host.ops.get(thread, NOTHING).at(at_us) >= 0)
            speaker[mine], free = thread, free & ~mine
        return speaker


@remembered
def graph_of(evidence: Evidence) -> StepGraph:
    """Returns the graph of a window's steps.

    It is that of the first ones where kernels are very many.
    """
    linked, window = evidence.linked, evidence.linked.window
    first_us, high = window.host_us
    # What the host did while work from before the recording held the device was done in time for the window.
    low = window.start_us if window.lead_in_us > 0 else first_us
    steps, wall_us = max(1, len(window.steps)), window.wall_us
    rows = np.flatnonzero(evidence.kernels_in_window & (not evidence.is_host_only))
    if rows.size > MOST_KERNELS and steps > 1:
        few = max(1, steps * MOST_KERNELS // rows.size)
        high, wall_us, steps = window.steps[few - 1].end_us, wall_us * few / steps, few
        rows = rows[as_integers(linked.kernels["step"])[rows] < few]
    begun_us, start_us = (linked.kernels[name].to_numpy()[rows] for name in ("launch_ts_us", "ts_us"))
    rows = rows[np.lexsort((start_us, np.where(np.isnan(begun_us), start_us, begun_us)))]
    host = host_of(evidence)
    thread_of = linked.trace.events["thread"].cat.codes.to_numpy()
    nodes = linked.ops["event"].to_numpy()[linked.ops["is_autograd"].to_numpy()]
    autograd = tuple(code for code in np.unique(thread_of[nodes]).tolist() if code != host.main_thread)
    chain = _Chain(host, autograd, low, high)
    issue_us = _issue_us(linked, rows)
    launch = as_integers(linked.kernels["launch"])[rows]
    is_foreign = ~np.isin(thread_of[launch[launch >= 0]], chain.threads)
    is_issued = (launch >= 0) & (issue_us >= first_us) & (issue_us < high)
    issued, first = np.unique(launch[is_issued], return_index=True)
    batches = _batches(linked, chain)
    waits = joined([_waits(linked, chain, rows), batches])
    at_us = np.concatenate((issue_us[is_issued][first], waits.end_us))
    position = np.full(len(linked.kernels), -1, dtype=np.int64)
    position[rows] = np.arange(rows.size)
    kernel = np.where(waits.kernel >= 0, np.append(position, -1)[np.maximum(waits.kernel, 0)], waits.kernel)
    awaited = np.concatenate((np.full(issued.size, NOTHING_AWAITED), kernel))
    is_batch = np.arange(at_us.size) >= at_us.size - batches.call.size
    order = np.lexsort((awaited == NOTHING_AWAITED, at_us))
    point_of = np.empty(order.size, dtype=np.int64)
    point_of[order] = np.arange(order.size)
    point = np.full(rows.size, -1, dtype=np.int64)
    point[is_issued] = point_of[np.searchsorted(issued, launch[is_issued])]
    device, backlog_us = _device_work(linked, rows, point, issue_us, low)
    return StepGraph(
        wall_us=wall_us,
        lag_us=window.start_us - low,
        length_us=high - low,
        steps=steps,
        repeats=bool(window.steps) and window.source != "whole",
        awaited=awaited[order],
        ready_us=np.where(is_batch, at_us - low, -np.inf)[order],
        call=np.concatenate((issued, waits.call))[order],
        host=_host_work(linked, chain, waits, at_us[order]),
        device=device,
        backlog_us=backlog_us,
        foreign_share=float(np.mean(is_foreign)) if is_foreign.size else 0.0,
    )


def _issue_us(linked: Linked, rows: Integers) -> Floats:
    """Returns when work was issued.

    At its call's begin, or end where it was long. A long launch loads code, or waits for room in the queue; a long call
    for a copy may stage it.
    """
    kernels = linked.kernels
    start, begun, ended = (kernels[name].to_numpy()[rows] for name in ("ts_us", "launch_ts_us", "launch_end_us"))
    is_kernel = (kernels["kind"] == "compute").to_numpy()[rows]
    at_end = (ended - begun > LAUNCH_LATENCY_US) & (is_kernel | (start >= ended - _CLOCKS_US))
    return np.asarray(np.where(at_end, np.clip(start, begun, ended), begun))


def _waits(linked: Linked, chain: _Chain, rows: Integers) -> _HostWaits:
    """Finds the calls of the step's threads that wait for device work.

    They wait for the last to end before they did. A call that found its work done is one too: in a faster program it
    may have to wait.
    """
    events, kernels = linked.trace.events, linked.kernels
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    thread = events["thread"].cat.codes.to_numpy()
    is_call = (events["category"] == "runtime").to_numpy() & (start >= chain.low) & (start < chain.high)
    calls = np.flatnonzero(is_call & np.isin(thread, chain.threads))
    if not calls.size or not rows.size:
        return _NO_WAITS
    issued_us = np.nan_to_num(kernels["launch_ts_us"].to_numpy()[rows], nan=-np.inf)
    done_us = (kernels["ts_us"] + kernels["dur_us"]).to_numpy()[rows]
    for_room = _waits_for_room(linked, calls)
    may_wait = _may_wait(linked, chain, calls, rows, for_room)
    calls, for_room = calls[may_wait], for_room[may_wait]
    by_end = np.argsort(done_us, kind="stable")
    done, issued = np.append(done_us[by_end], -np.inf), np.append(issued_us[by_end], -np.inf)
    # The last work to end within the call that was issued before it; -1 is none.
    awaited = np.searchsorted(done[:-1], end[calls] + _CLOCKS_US, side="right") - 1
    later = np.flatnonzero(issued[awaited] > start[calls])
    for _ in range(_LOOK_BACK):
        awaited[later] -= 1
        later = later[issued[awaited[later]] > start[calls[later]]]
        if not later.size:
            break
    # A full queue may hold work from before the window alone: then it is not known which.
    shows = (awaited >= 0) & (issued[awaited] <= start[calls])
    waits = shows | for_room
    calls, awaited, for_room, shows = calls[waits], awaited[waits], for_room[waits], shows[waits]
    # Room in the queue comes some time after work ends; until then the host does nothing else.
    until = np.where(for_room, end[calls], np.clip(done[awaited], start[calls], end[calls]))
    # Of calls inside one another the outer one waits.
    apart = start[calls] >= np.maximum.accumulate(np.append(-np.inf, until))[:-1]
    calls, until = calls[apart], until[apart]
    kernel = np.where(shows[apart], rows[by_end[awaited[apart]]], NOTHING_AWAITED)
    for_all = are_calls(linked.trace, "synchronise_device")
    return _HostWaits(calls, start[calls], until, np.where(for_all[calls], ALL_WORK, kernel))


def _waits_for_room(linked: Linked, calls: Integers) -> Flags:
    """Marks the launches that take long while the queue of the device is full."""
    kernels, events = linked.kernels, linked.trace.events
    start, dur = (events[name].to_numpy()[calls] for name in ("ts_us", "dur_us"))
    issued_us = np.sort(np.nan_to_num(kernels["launch_ts_us"].to_numpy(), nan=-np.inf))
    done_us = np.sort((kernels["ts_us"] + kernels["dur_us"]).to_numpy())
    queued = np.searchsorted(issued_us, start) - np.searchsorted(done_us, start)
    issues = np.isin(calls, as_integers(kernels["launch"]))
    return np.asarray(issues & (dur > _LONG_LAUNCH_US) & (queued >= _FULL_QUEUE))


def _may_wait(linked: Linked, chain: _Chain, calls: Integers, rows: Integers, for_room: Flags) -> Flags:
    """Mask of the calls that may wait for the device.

    By their names, for room in its queue, or for so long that a copy that they issued ended in them.
    """
    events, kernels = linked.trace.events, linked.kernels
    start, dur = (events[name].to_numpy()[calls] for name in ("ts_us", "dur_us"))
    thread = events["thread"].cat.codes.to_numpy()[calls]
    middle = start + dur / 2
    done_us = (kernels["ts_us"] + kernels["dur_us"]).to_numpy()[rows]
    is_long = dur > _LONG_LAUNCH_US
    is_copy = kernels["kind"].isin(("copy", "fill")).to_numpy()[rows]
    launch = np.where(is_copy, as_integers(kernels["launch"])[rows], -1)
    ends_inside = done_us <= np.append((events["ts_us"] + events["dur_us"]).to_numpy(), -np.inf)[launch] + _CLOCKS_US
    may_wait = for_room | (is_long & np.isin(calls, launch[(launch >= 0) & ends_inside]))
    for code in chain.threads:
        for state in ("sync", "allocator"):
            segments = chain.host.states.get(code, {}).get(HOST_STATES.index(state), NOTHING)
            may_wait |= (thread == code) & (segments.at(middle) >= 0) & (is_long | (state == "sync"))
    return np.asarray(may_wait & (chain.speaker(middle) == thread))


def _batches(linked: Linked, chain: _Chain) -> _HostWaits:
    """Returns the main thread's waits for batches of a loader's workers."""
    events = linked.trace.events
    start, end = events["ts_us"].to_numpy(), (events["ts_us"] + events["dur_us"]).to_numpy()
    calls = np.flatnonzero(
        text_matches(events["name"], lambda name: WORKERS_ITERATOR in name, 200)
        & (events["thread"].cat.codes.to_numpy() == chain.host.main_thread)
        & events["category"].isin(("annotation", "op")).to_numpy()
        & (start >= chain.low)
        & (end < chain.high)
    )
    calls = calls[np.argsort(start[calls], kind="stable")]
    apart = start[calls] >= np.maximum.accumulate(np.append(-np.inf, end[calls]))[:-1]
    calls = calls[apart]
    calls = calls[~were_there((end - start)[calls])]
    if (end - start)[calls].sum() < _WORKERS_KEEP_UP * (chain.high - chain.low):
        return _NO_WAITS
    return _HostWaits(calls, start[calls], end[calls], np.full(calls.size, NOTHING_AWAITED))


def _host_work(linked: Linked, chain: _Chain, waits: _HostWaits, at_us: Floats) -> HostWork:
    """Returns the host's work between its waits.

    It is cut at the points and wherever it began something else.
    """
    host, low, high = chain.host, chain.low, chain.high
    asleep = union(np.clip(waits.start_us, low, high), np.clip(waits.end_us, low, high))
    begun, ended, _ = gaps(asleep, low, high)
    inner = _ops_by_thread(linked)
    changes = [at_us]
    for thread in chain.threads:
        mine = inner.get(thread, NOTHING)
        changes += [mine.start, mine.end, *host.changes(thread)]
    pieces = cut(begun, ended, changes)
    middle, us = (pieces.start + pieces.end) / 2, pieces.end - pieces.start
    state, event, op = (np.full(middle.size, none, dtype=np.int64) for none in (len(HOST_STATES), -1, -1))
    for thread, rows in grouped(chain.speaker(middle)):
        states = host.at(thread, middle[rows])
        state[rows], event[rows] = states.state, states.event
        op[rows] = inner.get(thread, NOTHING).at(middle[rows])
    place = host.places.get(host.main_thread, NOTHING).at(middle)
    held = (state == _SYNC) & (us > LAUNCH_LATENCY_US)
    return HostWork(pieces.start, us, np.searchsorted(at_us, middle), state, op, event, place, held)


def _ops_by_thread(linked: Linked) -> dict[int, Segments]:
    """The innermost op open on each thread, by code of EVENTS.thread."""
    start, end, owner = owned_segments(linked.ops)
    labels = linked.trace.events["thread"].cat.categories
    code = labels.get_indexer(linked.ops["thread"].cat.categories)[linked.ops["thread"].cat.codes.to_numpy()]
    return {thread: Segments(start[rows], end[rows], owner[rows]) for thread, rows in grouped(code[owner])}


def _device_work(
    linked: Linked, rows: Integers, point: Integers, issue_us: Floats, low: float
) -> tuple[IssuedWork, Floats]:
    """Returns device work with the lags of its kind, delays beyond, and backlogs."""
    kernels = linked.kernels
    start, us = kernels["ts_us"].to_numpy()[rows], kernels["dur_us"].to_numpy()[rows]
    end = start + us
    stream = pd.factorize(kernels["stream"].cat.codes.to_numpy()[rows])[0].astype(np.int64)
    kind = kernels["kind"].cat.codes.to_numpy()[rows] * 2 + kernels["replayed"].to_numpy()[rows]
    backlog_us = _backlog_us(linked, rows, stream)
    before_us = backlog_us[stream]
    for _, mine in grouped(stream):
        before_us[mine[1:]] = np.maximum.accumulate(np.maximum(end[mine], before_us[mine[0]]))[:-1]
    issue_us = np.where(point >= 0, np.maximum(issue_us, low), -np.inf)
    latency, gap = start - issue_us, start - before_us
    was_idle = (before_us <= issue_us) & (latency <= LAUNCH_LATENCY_US) & (latency >= -_CLOCKS_US)
    latency_us = _mean_lags(latency, was_idle, kind, _LATENCY_OTHERWISE_US)
    was_queued = (issue_us + latency_us <= before_us) & (gap <= KERNEL_GAP_US) & (gap >= -_CLOCKS_US)
    gap_us = _mean_lags(gap, was_queued, kind, _GAP_OTHERWISE_US)
    by_issue = issue_us + latency_us > before_us + gap_us
    ready = np.where(by_issue, issue_us + latency_us, before_us + gap_us)
    usual = np.where(by_issue, LAUNCH_LATENCY_US - latency_us, KERNEL_GAP_US - gap_us)
    held = np.where(np.isfinite(ready) & (start - ready > usual), start - ready, 0.0)
    after = _ended_before(start, end, stream, held)
    held[after >= 0] = 0.0
    return IssuedWork(
        rows, point, stream, us, np.where(point >= 0, latency_us, -np.inf), gap_us, after, held
    ), backlog_us - low


def _backlog_us(linked: Linked, rows: Integers, stream: Integers) -> Floats:
    """Returns when each stream is done with work from before the window.

    -inf for a stream without either.
    """
    kernels = linked.kernels
    code, start = kernels["stream"].cat.codes.to_numpy(), kernels["ts_us"].to_numpy()
    end = start + kernels["dur_us"].to_numpy()
    unissued = np.isnan(kernels["launch_ts_us"].to_numpy())
    earlier = np.ones(len(kernels), dtype=bool)
    earlier[rows] = False
    backlog_us = np.full(int(stream.max(initial=-1)) + 1, -np.inf)
    for number, mine in grouped(stream):
        first = rows[mine[0]]
        before = earlier & (code == code[first]) & (start < start[first])
        backlog_us[number] = end[before].max(initial=-np.inf)
        if np.isinf(backlog_us[number]) and unissued[first]:
            backlog_us[number] = start[first]
    return backlog_us


def _mean_lags(lag: Floats, shown: Flags, kind: Integers, otherwise: float) -> Floats:
    """Returns mean lags by kind of work.

    That of all where its kind shows none.
    """
    usual = float(lag[shown].mean()) if shown.any() else otherwise
    size = int(kind.max(initial=0)) + 1
    count = np.bincount(kind[shown], minlength=size)
    total = tally(kind[shown], lag[shown], size)
    return np.asarray(np.maximum(np.where(count > 0, total / np.maximum(count, 1), usual), 0.0)[kind])


def _ended_before(start: Floats, end: Floats, stream: Integers, held: Floats) -> Integers:
    """Returns work of another stream that held work waited for, -1 for none."""
    after = np.full(start.size, -1, dtype=np.int64)
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    for number in np.flatnonzero(held > 0).tolist():
        low, high = np.searchsorted(ends, (start[number] - KERNEL_GAP_US, start[number] + 1.0))
        others = by_end[low:high]
        others = others[(others < number) & (stream[others] != stream[number])]
        after[number] = others[-1] if others.size else -1
    return after


@remembered
def sources_of_host(evidence: Evidence) -> Texts:
    """Returns the program's line at each host stretch, empty where unknown."""
    graph, linked = graph_of(evidence), evidence.linked
    source = texts_at(linked.ops["source"], graph.host.op)
    if linked.places is not None:
        source = np.where(source == "", texts_at(linked.places["source"], graph.host.place), source)
    return source


@remembered
def sources_of_points(evidence: Evidence) -> Texts:
    """Returns the line of the program at each point of the graph.

    Empty text where it is not known.
    """
    graph = graph_of(evidence)
    return np.append(sources_of_host(evidence), "")[_stretch_before(graph)]


def ops_of_points(graph: StepGraph) -> Integers:
    """Returns the row in OPS of the innermost op open at each point.

    It is -1 for none.
    """
    return np.append(graph.host.op, -1)[_stretch_before(graph)]


def _stretch_before(graph: StepGraph) -> Integers:
    """Returns the last host stretch before each point, in the op of its wait."""
    return np.searchsorted(graph.host.point, np.arange(graph.awaited.size), side="right") - 1


def texts_at(column: "pd.Series[str]", rows: Integers) -> Texts:
    """Returns texts of some rows of a category column.

    Empty text for null and for row -1.
    """
    labels = np.append(column.cat.categories.to_numpy(dtype=object), "")
    return np.asarray(labels[np.append(column.cat.codes.to_numpy().astype(np.int64), -1)[rows]])
