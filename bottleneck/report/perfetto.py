"""Makes tracks for trace viewers out of an analysis.

They are events in the Chrome format, on the clock of the trace. The tracks are added to a copy of the trace
(``trace.extend``) that ui.perfetto.dev and chrome://tracing open: one process for the steps, the queue and the sensors,
and one per device with the ledger and the bound of each kernel.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bottleneck.report.text import account_name, attribute_path, clean
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.evidence import Annotations
from bottleneck.schema.intervals import Integers
from bottleneck.schema.kernel_names import essential_name
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.telemetry import readings

LEDGER, BOUND, STEP, COUNTER = (f"bottleneck.{kind}" for kind in ("ledger", "bound", "step", "counter"))
"""Categories of the events that are added, by which a reader tells them from those of the trace."""

# Above the ids of processes and threads on every system that traces come from; readers keep ids in 32 bits.
_FIRST_ID = 2_000_000_000
_ROWS_PER_BLOCK = 4096
_LONGEST_NAME = 200
_ROOFLINE_NUMBERS = ("explained", "compute_us", "memory_us", "launch_us", "flops", "bytes_low", "bytes_high")


@dataclass(frozen=True)
class _ViewerThread:
    """A thread of ours in the viewer.

    It has its ids, and the category of its events.
    """

    pid: int
    tid: int
    category: str


class _ViewerIds:
    """A source of ids that the trace does not use.

    It also has the metadata events that name what they stand for.
    """

    def __init__(self, threads: Iterable[str]) -> None:
        used = {part for thread in threads for part in str(thread).split("/")}
        self._ids = (number for number in itertools.count(_FIRST_ID) if str(number) not in used)
        self._order = itertools.count()

    def process(self, name: str) -> tuple[int, bytes]:
        """Id of a new process, and its name as events."""
        pid = next(self._ids)
        return pid, _named("process", pid, 0, name, next(self._order) - 1000)

    def thread(self, pid: int, name: str, category: str) -> tuple[_ViewerThread, bytes]:
        """A new thread of a process, and its name as events."""
        track = _ViewerThread(pid, next(self._ids), category)
        return track, _named("thread", pid, track.tid, name, next(self._order))


def _named(kind: str, pid: int, tid: int, name: str, place: int) -> bytes:
    """Gives the metadata events that name a process or thread.

    They also state its place among the others.
    """
    events = []
    for what, values in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": place})):
        event = {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": values}
        events.append(json.dumps(event).encode())
    return b",\n".join(events)


def track_events(annotations: Annotations) -> Iterator[bytes]:
    """Blocks of JSON events, separated by commas: all our tracks."""
    linked = annotations.evidence.linked
    tracks = _ViewerIds(linked.trace.events["thread"].cat.categories)
    pid, named = tracks.process("bottleneck")
    yield named
    yield from _step_tracks(annotations, tracks, pid)
    yield from _counters(annotations, pid)
    for device, stretches in annotations.timeline.groupby("device", observed=True):
        where = "the host" if linked.is_host_only else f"device {device}"
        pid, named = tracks.process(f"bottleneck: {where}")
        yield named
        yield from _ledger_track(stretches, linked, *tracks.thread(pid, f"ledger of {where}", LEDGER))
        yield from _bound_tracks(annotations, int(str(device)), tracks, pid)


def _step_tracks(annotations: Annotations, tracks: _ViewerIds, pid: int) -> Iterator[bytes]:
    """The window with its ledger, and the steps, those that were left out included."""
    evidence = annotations.evidence
    window, linked = evidence.linked.window, evidence.linked
    ledger = {entry.account: entry.us for entry in evidence.analysis.ledger}
    values = {"steps": len(window.steps), "wall_us": evidence.analysis.steps.wall_us, **ledger}
    track, named = tracks.thread(pid, "window that is explained (times per step)", STEP)
    yield named
    yield _slice(linked, track, "explained window", window.start_us, window.end_us, values)
    track, named = tracks.thread(pid, "steps", STEP)
    yield named
    reasons = {step.start_us: reason for step, reason in window.set_aside}
    steps = sorted((*window.steps, *(step for step, _ in window.set_aside)), key=lambda step: step.start_us)
    for step in steps:
        reason = reasons.get(step.start_us)
        more = {} if reason is None else {"left out": reason.words}
        yield _slice(linked, track, clean(step.name), step.start_us, step.end_us, {"step_us": step.us, **more})


def _slice(
    linked: Linked, track: _ViewerThread, name: str, start_us: float, end_us: float, values: Mapping[str, object]
) -> bytes:
    start, end = (linked.trace.origin_ns + round(at_us * 1e3) for at_us in (start_us, end_us))
    return _complete(track, json.dumps(name), start, end - start, json.dumps(values)).encode()


def _complete(track: _ViewerThread, name: str, at_ns: int, dur_ns: int, values: str) -> str:
    """A complete event; ``name`` and ``values`` are JSON."""
    return (
        f'{{"ph":"X","cat":"{track.category}","name":{name},"pid":{track.pid},"tid":{track.tid},'
        f'"ts":{_us(at_ns)},"dur":{_us(dur_ns)},"args":{values}}}'
    )


def _us(ns: int) -> str:
    """Microseconds with three decimals, exact for epoch times too, which no float holds."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


def _module_name(linked: Linked) -> Callable[[str], str]:
    return lambda module: clean(attribute_path(module, linked.trace.module_paths))


def _ledger_track(stretches: pd.DataFrame, linked: Linked, track: _ViewerThread, named: bytes) -> Iterator[bytes]:
    """The window as slices named by their accounts; they add up to the ledger."""
    yield named
    names = _encoded(stretches["account"], lambda account: account_name(account, ACCOUNTS[account].group))
    accounts = _encoded(stretches["account"])
    start, end = (_at_ns(linked, stretches[name]) for name in ("start_us", "end_us"))
    per_step = stretches["us"].to_numpy().tolist()
    texts = {key: _encoded(stretches[key], clean) for key in ("source", "detail")}
    texts["module"] = _encoded(stretches["module"], _module_name(linked))

    def event(row: int) -> str:
        fields = "".join(f',"{key}":{text}' for key, column in texts.items() if (text := column[row]))
        values = f'{{"account":{accounts[row]},"ledger_us":{_number(per_step[row])}{fields}}}'
        return _complete(track, names[row], start[row], end[row] - start[row], values)

    yield from _in_blocks(event, [row for row in range(len(stretches)) if end[row] > start[row]])


def _bound_tracks(annotations: Annotations, device: int, tracks: _ViewerIds, pid: int) -> Iterator[bytes]:
    """Yields the work of each stream of a device, named by bound.

    Of the host it is the work of each thread.
    """
    linked = annotations.evidence.linked
    kernels = linked.kernels
    mine = np.flatnonzero(kernels["device"].to_numpy() == device)
    streams = kernels["stream"].cat
    codes = streams.codes.to_numpy()[mine]
    what = "thread" if linked.is_host_only else "stream"
    for code in np.unique(codes).tolist():
        track, named = tracks.thread(pid, f"bounds of {what} {clean(str(streams.categories[code]))}", BOUND)
        yield named
        yield from _bounds(annotations, mine[codes == code], track)


def _bounds(annotations: Annotations, rows: Integers, track: _ViewerThread) -> Iterator[bytes]:
    evidence = annotations.evidence
    linked, roofline = evidence.linked, evidence.roofline
    times = linked.ops if linked.is_host_only else linked.kernels
    start = _at_ns(linked, times["ts_us"].iloc[rows])
    end = _at_ns(linked, (times["ts_us"] + times["dur_us"]).iloc[rows])
    bounds = _encoded(roofline["bound"].iloc[rows])
    texts = {
        "name": _encoded(linked.kernels["name"].iloc[rows], lambda name: clean(essential_name(name), _LONGEST_NAME)),
        "regime": _encoded(roofline["regime"].iloc[rows]),
        "confidence": _encoded(roofline["confidence"].iloc[rows]),
        "reason": _encoded(roofline["reason"].iloc[rows], lambda reason: clean(reason.words)),
        "source": _encoded(linked.kernels["source"].iloc[rows], clean),
        "module": _encoded(linked.kernels["module"].iloc[rows], _module_name(linked)),
    }
    numbers = {name: roofline[name].to_numpy()[rows].tolist() for name in _ROOFLINE_NUMBERS}
    if evidence.kernel_time is not None:
        texts["account"] = _encoded(evidence.kernel_time["account"].iloc[rows])
        numbers["ledger_us"] = evidence.kernel_time["us"].to_numpy()[rows].tolist()

    def event(row: int) -> str:
        fields = [f'"{key}":{text}' for key, column in texts.items() if (text := column[row])]
        fields += [
            f'"{key}":{_number(value)}' for key, column in numbers.items() if math.isfinite(value := column[row])
        ]
        return _complete(track, bounds[row], start[row], max(end[row] - start[row], 0), f"{{{','.join(fields)}}}")

    yield from _in_blocks(event, range(rows.size))


def _in_blocks(event: Callable[[int], str], rows: Sequence[int]) -> Iterator[bytes]:
    for first in range(0, len(rows), _ROWS_PER_BLOCK):
        yield ",\n".join(map(event, rows[first : first + _ROWS_PER_BLOCK])).encode()


def _at_ns(linked: Linked, at_us: "pd.Series[float]") -> list[int]:
    """Instants on the clock of the trace's own time stamps."""
    whole = np.rint(at_us.to_numpy(dtype=np.float64) * 1e3).astype(np.int64)
    return [linked.trace.origin_ns + ns for ns in whole.tolist()]


def _encoded(column: "pd.Series[str]", shown: Callable[[Any], str] = str) -> list[str]:
    """Encodes the texts of a category column as JSON, '' for null.

    Each distinct text is encoded once.
    """
    labels = [json.dumps(shown(label)) for label in column.cat.categories]
    return [*map([*labels, ""].__getitem__, column.cat.codes.to_numpy().tolist())]


def _number(value: float) -> str:
    return f"{value:.9g}"


def _counters(annotations: Annotations, pid: int) -> Iterator[bytes]:
    """Curves: launches in the queue, memory of the allocator, readings of the sensors."""
    linked, queue = annotations.evidence.linked, annotations.evidence.analysis.queue
    origin, start_us = linked.trace.origin_ns, linked.window.start_us
    points = [] if queue is None else [(origin + round((start_us + at) * 1e3), depth) for at, depth in queue.curve]
    yield from _curve(pid, "queue depth", "launches", points)
    memory = linked.trace.memory
    for on_device, rows in memory.groupby("on_device"):
        for name in ("total_allocated", "total_reserved"):
            known_rows = rows[rows[name].notna()]
            if not (known_rows[name] > 0).any():
                continue
            at = _at_ns(linked, known_rows["ts_us"])
            values = known_rows[name].to_numpy(dtype=np.float64).tolist()
            what = f"{name.removeprefix('total_')} memory of the {'device' if on_device else 'host'}"
            yield from _curve(pid, what, "bytes", list(zip(at, values, strict=True)))
    if linked.trace.start_unix_ns is None:
        return
    shift = origin - linked.trace.start_unix_ns
    for (sensor, column), points in readings(annotations.evidence.samples).items():
        yield from _curve(pid, f"{sensor}: {column}", column, [(at + shift, value) for at, value in points])


def _curve(pid: int, name: str, unit: str, points: Sequence[tuple[int, float]]) -> Iterator[bytes]:
    """Counter events; nothing without points."""
    head = f'{{"ph":"C","cat":"{COUNTER}","name":{json.dumps(name)},"pid":{pid},"tid":0,"ts":'

    def event(row: int) -> str:
        at_ns, value = points[row]
        return f'{head}{_us(at_ns)},"args":{{{json.dumps(unit)}:{_number(value)}}}}}'

    yield from _in_blocks(event, range(len(points)))
