"""Finds what a replayed step consists of: its critical path, and its ledger."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.ledger import ledger_of
from bottleneck.schema.accounts import ACCOUNTS, HOST_STATES
from bottleneck.schema.analysis import LedgerEntry, PathPart
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import (
    Flags,
    Floats,
    Integers,
    cut,
    gaps,
    grouped,
    numbered,
    shared_charge,
    tally,
    union,
)
from bottleneck.schema.tables import text_matches
from bottleneck.simulate.graph import ALL_WORK, StepGraph, Texts, graph_of, sources_of_host, texts_at
from bottleneck.simulate.replay import BY_ISSUE, BY_OTHER_STREAM, BY_STREAM, StepReplay

LAUNCHING = "from launch to start"
BETWEEN = "between kernels"
HELD = "delay that nothing on record explains"
EARLIER = "work from before the step"
LOADER = "workers of the data loader"
_STATES = (*HOST_STATES, "unknown")
# The account of the time that passes without work, by its name on the path.
_SYNC, _INPUT = (HOST_STATES.index(state) for state in ("sync", "input"))
# The priority of work that runs at once, as in the measured ledger.
_LAYERS = {"compute": 0, "collective": 1, "copy": 3, "fill": 3}
_TRANSFER_LAYER = 2


class PathTimes(Struct, frozen=True, eq=False):
    """Holds times on the critical path: device work, host stretches, waits by name."""

    device_us: Floats
    host_us: Floats
    waits_us: Mapping[str, float]

    @property
    def total_us(self) -> float:
        """The length of the path."""
        return math.fsum((*self.device_us.tolist(), *self.host_us.tolist(), *self.waits_us.values()))


def path_parts(evidence: Evidence, played: StepReplay, step_us: float) -> tuple[PathPart, ...]:
    """Returns the parts of the critical path, longest first; each instant is in one.

    Where the host does the work itself, its parts are ops.
    """
    graph, linked = graph_of(evidence), evidence.linked
    times = path_times(graph, played)
    scale = step_us / played.wall_us if played.wall_us > 0 else 0.0
    rows = graph.device.row
    kernels, ops = linked.kernels["name"].cat, linked.ops["name"].cat
    names = np.array([*map(str, ops.categories), *_STATES], dtype=object)
    of_op = np.append(ops.codes.to_numpy().astype(np.int64), -1)[graph.host.op if evidence.is_host_only else -1]
    of_state = len(ops.categories) + graph.host.state
    pieces = [
        *_folded(
            kernels.codes.to_numpy().astype(np.int64)[rows],
            np.array([*map(str, kernels.categories)], dtype=object),
            texts_at(linked.kernels["source"], rows),
            ("device", times.device_us),
        ),
        *_folded(np.where(of_op >= 0, of_op, of_state), names, sources_of_host(evidence), ("host", times.host_us)),
        *(("wait", name, None, us) for name, us in times.waits_us.items() if us > 0),
    ]
    parts = [
        PathPart(what, name, source, us * scale, us / played.wall_us)  # type: ignore[arg-type]
        for what, name, source, us in pieces
    ]
    return tuple(sorted(parts, key=lambda part: -part.us))


def _folded(
    name: Integers, names: Texts, sources: Texts, told: tuple[str, Floats]
) -> Iterator[tuple[str, str, str | None, float]]:
    """Times added up by name and line."""
    what, us = told
    on_path = np.flatnonzero(us > 0)
    line, _ = pd.factorize(sources[on_path])
    fold, first = numbered(name[on_path], line.astype(np.int64))
    for at, spent in zip(on_path[first].tolist(), tally(fold, us[on_path], first.size).tolist(), strict=True):
        yield what, str(names[name[at]]), str(sources[at]) or None, spent


def path_times(graph: StepGraph, played: StepReplay) -> PathTimes:
    """The critical path, from the end of the step back to its beginning.

    Device work goes back to what set its start, the host to what it waited for.
    """
    walk = _PathWalk(graph, played)
    while walk.at_us > played.begin_us:
        if walk.kernel >= 0:
            walk.pass_device_work()
        else:
            walk.pass_host_work()
    return PathTimes(np.array(walk.device_us), walk.host_us, walk.waits_us)


class _PathWalk:
    """Walks along the critical path from its end; ``kernel`` is -1 on the host.

    ``at_us`` is how far it has come; it is at the beginning once all up to there is explained.
    """

    def __init__(self, graph: StepGraph, played: StepReplay) -> None:
        self.graph, self.played, self.at_us = graph, played, played.end_us
        # One by one, numbers of a list are read in a fraction of the time of those of an array.
        before = _before_on_lane(played)
        self.work, self.before = _work_on_path(graph, played, before), before.tolist()
        self.passed_us = played.at_us.tolist()
        # The first stretch of the host at each point or behind it.
        self.first = np.searchsorted(graph.host.point, np.arange(graph.awaited.size + 2)).tolist()
        self.device_us, self.host_us = [0.0] * graph.device.us.size, np.zeros(graph.host.us.size)
        self.waits_us: dict[str, float] = defaultdict(float)
        waited = np.flatnonzero(played.waited_us > 0)
        self.waited, self.batches = (
            rows.tolist() for rows in (waited, waited[np.append(graph.ready_us, -np.inf)[waited] > 0])
        )
        start = played.host_at_us
        self.worked_us = np.maximum(start + played.host_us - np.maximum(start, played.begin_us), 0.0).clip(
            max=played.host_us
        )
        ends = np.where(played.gone, -np.inf, played.ends_us)
        last = int(np.argmax(ends)) if ends.size else -1
        self.kernel = last if last >= 0 and ends[last] > played.at_us[-1] else -1
        self.point = graph.awaited.size

    def _back_to(self, us: float) -> float:
        """Goes back to an instant of the step, and returns the time passed."""
        until, self.at_us = self.at_us, min(max(us, self.played.begin_us), self.at_us)
        return until - self.at_us

    def _wait_since(self, us: float, name: str) -> None:
        self.waits_us[name] += self._back_to(us)

    def pass_device_work(self) -> None:
        """Goes past device work and its delays to the host, or to the beginning."""
        work, waits_us, device_us = self.work, self.waits_us, self.device_us
        kernel, at_us, began_us = self.kernel, self.at_us, self.played.begin_us
        is_issued = False
        while kernel >= 0 and at_us > began_us and not is_issued:
            start, end, since, is_issued, before = work[kernel]
            # Only a change that says how fast data comes makes a step longer than its work.
            if end < at_us:
                waits_us[LOADER] += at_us - end
                at_us = end
            if start < at_us:
                device_us[kernel] += at_us - start
                at_us = start
            if since < at_us:
                waits_us[HELD] += at_us - since
                at_us = since
            if not is_issued:
                kernel = before
                end = work[kernel][1] if kernel >= 0 else began_us
                waits_us[BETWEEN if kernel >= 0 else EARLIER] += at_us - min(end, at_us)
                at_us = min(end, at_us)
        self.at_us, self.kernel = at_us, kernel
        if is_issued:
            self.kernel, self.point = -1, int(self.graph.issue_point[kernel])
            self._wait_since(self.passed_us[self.point], LAUNCHING)

    def _go_to(self, kernel: int) -> None:
        """Goes on to earlier device work.

        Or to the beginning where that is from before the step.
        """
        self.kernel = kernel
        if kernel >= 0:
            self._wait_since(self.work[kernel][1], BETWEEN)
        else:
            self._wait_since(self.played.begin_us, EARLIER)

    def pass_host_work(self) -> None:
        """Goes past the host's work to what it waited for.

        The work is that since it last waited.
        """
        graph, played = self.graph, self.played
        self._wait_since(self.passed_us[self.point], LOADER)
        since = _last_up_to(self.waited, self.point)
        first, last = self.first[since + 1], self.first[self.point + 1]
        self.host_us[first:last] += self.worked_us[first:last]
        self._back_to(float(played.host_at_us[first]) if first < last else self.at_us)
        if since < 0:
            self._wait_since(played.begin_us, EARLIER)
        elif graph.ready_us[since] > 0:
            self.point = _last_up_to(self.batches, since - 1)
            self._wait_since(played.begin_us if self.point < 0 else self.passed_us[self.point], LOADER)
        else:
            self._go_to(_awaited(graph, played, self.before, since))


def _work_on_path(
    graph: StepGraph, played: StepReplay, before: Integers
) -> list[tuple[float, float, float, bool, int]]:
    """Returns start, end and begin of delay of device work.

    They are cut at the step's beginning. Then whether the host issued it last of all that it waited for, and what it
    followed where not, -1 for nothing.
    """
    start, held_us = played.starts_us, graph.device.held_us
    times = (np.maximum(instants, played.begin_us).tolist() for instants in (start, played.ends_us, start - held_us))
    other = np.where(played.by == BY_OTHER_STREAM, graph.device.after, -1)
    is_known = (other >= 0) & ~np.append(played.gone, True)[other]
    previous = np.where(is_known, other, before[np.maximum(other, np.arange(other.size))])
    return [*zip(*times, (played.by == BY_ISSUE).tolist(), previous.tolist(), strict=True)]


def _last_up_to(points: list[int], point: int) -> int:
    """Returns the last of these points that is not behind another.

    The points are in order; -1 for none.
    """
    before = bisect_right(points, point) - 1
    return points[before] if before >= 0 else -1


def _awaited(graph: StepGraph, played: StepReplay, before: list[int], point: int) -> int:
    """Returns the device work that a point waited for; -1 before the step."""
    kernel = int(graph.awaited[point])
    if kernel != ALL_WORK:
        return before[kernel] if played.gone[kernel] else kernel
    ends = np.where((graph.issue_point < point) & ~played.gone, played.ends_us, -np.inf)
    last = int(np.argmax(ends)) if ends.size else -1
    return last if last >= 0 and ends[last] >= played.at_us[point] else -1


def _before_on_lane(played: StepReplay) -> Integers:
    """Returns the piece before each one on its lane.

    It is -1 for none; removed work is apart.
    """
    before = np.full(played.lane.size, -1, dtype=np.int64)
    for _, mine in grouped(played.lane):
        last = np.maximum.accumulate(np.where(played.gone[mine], -1, np.arange(mine.size)))
        earlier = np.append(-1, last[:-1])
        before[mine] = np.where(earlier >= 0, mine[np.maximum(earlier, 0)], -1)
    return before


def replayed_ledger(evidence: Evidence, played: StepReplay, step_us: float) -> tuple[LedgerEntry, ...]:
    """Returns the ledger of a replayed step, idle time by what the host did."""
    graph = graph_of(evidence)
    if evidence.is_host_only or not graph.device.row.size:
        parts = [_charge_host(evidence, graph, played)]
    else:
        devices = evidence.linked.kernels["device"].to_numpy()[graph.device.row].astype(np.int64)
        parts = [_charge_device(evidence, graph, played, mine) for _, mine in grouped(devices)]
    total = math.fsum(us for part in parts for us in part.values())
    scale = step_us / total if total > 0 else 0.0
    accounts: dict[str, float] = defaultdict(float)
    for part in parts:
        for key, us in part.items():
            accounts[key] += us * scale
    return ledger_of(accounts, step_us).entries


def _charge_host(evidence: Evidence, graph: StepGraph, played: StepReplay) -> dict[str, float]:
    """Time of each account where ops of the host are the work."""
    start, us = played.host_at_us, played.host_us
    inside = np.clip(start + us, played.begin_us, played.end_us) - np.clip(start, played.begin_us, played.end_us)
    accounts: dict[str, float] = defaultdict(float)
    in_op = graph.host.op >= 0
    if evidence.is_host_only and evidence.kernel_time is not None:
        account = evidence.kernel_time["account"].cat
        codes = np.append(account.codes.to_numpy().astype(np.int64), -1)[graph.host.op]
        in_op &= codes >= 0
        for key, spent in zip(
            account.categories, tally(codes[in_op], inside[in_op], len(account.categories)), strict=True
        ):
            accounts[str(key)] += float(spent)
    else:
        in_op[:] = False
    for state, spent in enumerate(tally(graph.host.state[~in_op], inside[~in_op], len(_STATES)).tolist()):
        accounts[f"overhead.{_STATES[state]}"] += spent
    accounts["overhead.input"] += played.wall_us - math.fsum(accounts.values())
    return accounts


def _charge_device(evidence: Evidence, graph: StepGraph, played: StepReplay, mine: Integers) -> dict[str, float]:
    """Time of each account on one device, whose work has these positions."""
    assert evidence.kernel_time is not None, "kernels are timed before steps are replayed"
    low, high = played.begin_us, played.end_us
    ran = mine[(played.ends_us[mine] > low) & ~played.gone[mine]]
    start, end = np.clip(played.starts_us[ran], low, high), np.clip(played.ends_us[ran], low, high)
    account = evidence.kernel_time["account"].cat
    codes = account.codes.to_numpy().astype(np.int64)[graph.device.row[ran]]
    charge = shared_charge(start, end, _layers(evidence)[graph.device.row[ran]])
    accounts: dict[str, float] = defaultdict(float)
    for key, us in zip(account.categories, tally(codes, charge, len(account.categories)).tolist(), strict=True):
        accounts[str(key)] += us
    busy = union(start, end)
    opened, closed, following = gaps(busy, low, high)
    kernel = np.append(ran[busy.first], -1)[following]
    by = np.where(kernel >= 0, played.by[kernel], BY_ISSUE) if kernel.size else np.zeros(0, dtype=np.int64)
    held = np.where(kernel >= 0, graph.device.held_us[kernel], 0.0) if kernel.size else np.zeros(0)
    held = np.minimum(held, closed - opened)
    accounts["overhead.dependency"] += float(held.sum() + (closed - opened - held)[by == BY_OTHER_STREAM].sum())
    accounts["overhead.kernel_gap"] += float((closed - opened - held)[by == BY_STREAM].sum())
    late = by == BY_ISSUE
    issue_us = np.append(played.at_us[graph.issue_point], high)[kernel[late]]
    until = np.clip(issue_us, opened[late], (closed - held)[late])
    accounts["overhead.launch"] += float(((closed - held)[late] - until).sum())
    _charge_idle(graph, played, (opened[late], until), accounts)
    return accounts


def _charge_idle(graph: StepGraph, played: StepReplay, idle: tuple[Floats, Floats], accounts: dict[str, float]) -> None:
    """Adds idle stretches to the accounts of what the host did meanwhile."""
    start, end = played.host_at_us, played.host_at_us + played.host_us
    nonempty = np.flatnonzero(end > start)
    opened, closed = idle
    some = closed > opened
    pieces = cut(opened[some], closed[some], [start[nonempty], end[nonempty]])
    middle = (pieces.start + pieces.end) / 2
    at = np.searchsorted(start[nonempty], middle, side="right") - 1
    works = (at >= 0) & (middle < np.append(end[nonempty], -np.inf)[at])
    # Where the host works at nothing it waits: for data at some points, for the device at all others.
    passed = np.searchsorted(played.at_us, middle)
    for_data = np.append(np.append(graph.ready_us, -np.inf) > 0, False)[passed]
    state = np.where(works, np.append(graph.host.state[nonempty], 0)[at], np.where(for_data, _INPUT, _SYNC))
    for code, us in enumerate(tally(state, pieces.end - pieces.start, len(_STATES)).tolist()):
        accounts[f"overhead.{_STATES[code]}"] += us


def _layers(evidence: Evidence) -> Integers:
    """The priority of each row of KERNELS among work that runs at once."""
    kernels = evidence.linked.kernels
    layer = kernels["kind"].astype(object).map(_LAYERS).to_numpy(dtype=np.int64)
    over_link: Flags = text_matches(evidence.roofline["bound"], lambda bound: bound == "transfer")
    return np.where(over_link, _TRANSFER_LAYER, layer)


assert all(f"overhead.{state}" in ACCOUNTS for state in _STATES)
