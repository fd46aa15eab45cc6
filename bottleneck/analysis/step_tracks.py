"""Lays out steps over time for a chart.

The tracks are work of the device, idle gaps by cause, marked ranges, Python frames, and host threads.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from bottleneck.analysis.frame_tree import frame_tree
from bottleneck.analysis.host import Host, read_host
from bottleneck.analysis.idle import Gaps, Pieces, explain, split_gaps
from bottleneck.analysis.kernel_rows import data_dtype, shapes_text
from bottleneck.analysis.ledger import accounts_of, devices_used, host_timeline, read_device
from bottleneck.analysis.queue import marked_rows
from bottleneck.schema.accounts import ACCOUNTS, IDLE_CAUSES, label_of
from bottleneck.schema.analysis import GROUPS, IdleCause, KernelSummary, StepAnalysis
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import Linked, Step
from bottleneck.schema.records import replace
from bottleneck.schema.step_tracks import Curve, Lane, OpInputs, StepTimeline, StepTracks
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.schema.telemetry import BUSY_SHARE, HOST, PROGRAM_PROCESSORS, readings

MOST_EVENTS = 50_000
MOST_IN_ALL = 80_000  # of all steps and ranks of a page
_OVERHEAD = GROUPS.index("overhead")
_MOST_LANES = 24  # of host threads: those with the most events
_MOST_FRAMES, _DEEPEST_FRAME = 12_000, 24  # of one thread in one step: the longest
_WRAPS = 0.98  # of the step: frames around each other that hold more tell nothing but the innermost of them
_CALLS_FORWARD = re.compile(r"^torch/nn/modules/module\.py\(\d+\): _(?:wrapped_)?call_impl$")
_Role = Literal["median", "quickest", "slowest"]
_ACCOUNTS = list(ACCOUNTS)


@dataclass(frozen=True)
class _Span:
    """A step from its first host event to the end of its device work."""

    name: str
    low: float
    high: float
    role: _Role = "median"


@dataclass(frozen=True)
class _Track:
    """The events of one lane.

    They have start, end, name, group, account, row and module; ``event`` is their row in EVENTS, ``launch`` that of the
    call that issued them, ``call`` their row in CALLS. The lane ``nests`` where they may lie inside one another.
    """

    title: str
    kind: str
    events: pd.DataFrame
    nests: bool = False
    thread: int = -1


def lay_out(evidence: Evidence) -> StepTimeline | None:
    """Lays out the steps that are shown; null where nothing was recorded.

    That of median length comes first. The quickest and the slowest follow where all of their events fit.
    """
    laid_out = _laid_out(evidence, _steps(evidence.linked), evidence.analysis)
    if not laid_out:
        return None
    shown, room = laid_out[:1], MOST_IN_ALL - len(laid_out[0].lane)
    for tracks in laid_out[1:]:
        if len(tracks.lane) <= min(room, MOST_EVENTS - 1):
            shown.append(tracks)
            room -= len(tracks.lane)
    return StepTimeline(tuple(shown), evidence.linked.trace.rank, frame_tree(evidence))


def lay_out_beside(evidence: Evidence, pace: StepTimeline, listed: StepAnalysis) -> StepTimeline | None:
    """Lays out the first step of a timeline as another rank ran it.

    Rows are those of ``listed``, the analysis of the timeline's rank.
    """
    name = pace.steps[0].step
    steps = [step for step in evidence.linked.window.steps if step.name == name]
    laid_out = _laid_out(evidence, [_span_of(evidence.linked, steps[0], "median")], listed) if steps else []
    return StepTimeline(tuple(laid_out), evidence.linked.trace.rank) if laid_out else None


def _steps(linked: Linked) -> list[_Span]:
    """Gives the median, the quickest and the slowest step, as far as they differ."""
    window = linked.window
    steps = sorted(window.steps, key=lambda step: step.us)
    if not steps:
        return [_Span("the window", window.start_us, window.end_us)]
    shown: dict[int, _Role] = {len(steps) - 1: "slowest", 0: "quickest", (len(steps) - 1) // 2: "median"}
    return [_span_of(linked, steps[place], role) for place, role in reversed(shown.items())]


def _span_of(linked: Linked, step: Step, role: _Role) -> _Span:
    mine = as_integers(linked.kernels["step"]) == linked.window.steps.index(step)
    ends = (linked.kernels["ts_us"] + linked.kernels["dur_us"]).to_numpy()[mine]
    # A lead-in that is not judged is not drawn: it may be fifty times as long as the step.
    start_us = max(step.start_us, linked.window.start_us)
    return _Span(step.name, start_us, max(step.end_us, float(ends.max(initial=step.end_us))), role)


def _laid_out(evidence: Evidence, spans: Sequence[_Span], listed: StepAnalysis) -> list[StepTracks]:
    """Gives the tracks of each of these steps in which something was recorded.

    Rows are those of ``listed``.
    """
    host, places = read_host(evidence.linked), _places(evidence, listed)
    idle = _idle_tracks(evidence, host, listed.idle)
    tracks = [*_device_tracks(evidence.linked, places), *idle, *_host_tracks(evidence.linked, host, places)]
    laid_out = []
    for span in spans:
        inside = [replace(track, events=_overlapping(track.events, span)) for track in tracks]
        inside = [track for track in inside if len(track.events)]
        if inside and span.high > span.low:
            laid_out.append(_packed(inside, span, evidence))
    return laid_out


def _overlapping(events: pd.DataFrame, span: _Span) -> pd.DataFrame:
    """The events that overlap a step."""
    return events[(events["start"].to_numpy() < span.high) & (events["end"].to_numpy() > span.low)]


def _telling_frames(frames: pd.DataFrame, span: _Span) -> pd.DataFrame:
    """Leaves out frames that tell little.

    These are all around nearly all of the step but the innermost, and the shortest beyond the limit.
    """
    us = np.minimum(frames["end"].to_numpy(), span.high) - np.maximum(frames["start"].to_numpy(), span.low)
    around = np.flatnonzero(us >= _WRAPS * (span.high - span.low))
    is_shown = np.ones(len(frames), dtype=bool)
    is_shown[around[np.argsort(us[around], kind="stable")[1:]]] = False
    rows = np.flatnonzero(is_shown)
    return frames.iloc[np.sort(rows[np.argsort(-us[rows], kind="stable")[:_MOST_FRAMES]])]


def _events(start: Floats, end: Floats, **columns: object) -> pd.DataFrame:
    return pd.DataFrame({"start": start, "end": end, "event": -1, "launch": -1, "call": -1, **columns})


def _device_tracks(linked: Linked, places: Mapping[str, Integers]) -> list[_Track]:
    """A track for each stream of each device."""
    if linked.is_host_only:
        return []
    kernels, several = linked.kernels, len(set(linked.kernels["device"].tolist())) > 1
    start = kernels["ts_us"].to_numpy()
    launch = as_integers(kernels["launch"])
    events = _events(start, start + kernels["dur_us"].to_numpy(), name=kernels["name"].array, launch=launch, **places)
    stream = kernels["stream"].cat
    tracks = []
    codes = stream.codes.to_numpy()
    for code in np.unique(codes).tolist():
        mine = events[codes == code]
        title = f"stream {str(stream.categories[code]).rpartition('/')[2].removeprefix('stream ')}"
        device = kernels["device"].iloc[mine.index[0]]
        tracks.append(_Track(f"device {device}, {title}" if several else title, "device", mine))
    return sorted(tracks, key=lambda track: -float(np.sum((track.events["end"] - track.events["start"]).to_numpy())))


def _places(evidence: Evidence, listed: StepAnalysis) -> dict[str, Integers]:
    """Gives group, account, row and module of each row of KERNELS.

    Group and account are those of the ledger, row and module are those of the analysis. -1 for none.
    """
    modules = {fold.name: at for at, fold in enumerate(listed.modules)}
    module = evidence.linked.kernels["module"].cat
    of_code = np.array([*(modules.get(str(name), -1) for name in module.categories), -1], dtype=np.int64)
    charged = evidence.kernel_time
    if charged is None:
        group = account = row = np.full(len(evidence.linked.kernels), -1, dtype=np.int64)
    else:
        names, codes = charged["account"].cat.categories, charged["account"].cat.codes.to_numpy()
        group = np.array([*(GROUPS.index(ACCOUNTS[name].group) for name in names), -1], dtype=np.int64)[codes]
        account = np.array([*map(_ACCOUNTS.index, names), -1], dtype=np.int64)[codes]
        row = _rows_in(listed, evidence.analysis)[as_integers(charged["row"])]
    return {"group": group, "account": account, "row": row, "module": of_code[module.codes.to_numpy()]}


def _rows_in(listed: StepAnalysis, own: StepAnalysis) -> Integers:
    """Gives the row of ``listed`` of the same kind as each row of kernels.

    -1 stands behind them, for none.
    """
    if listed.kernels is own.kernels:
        return np.append(np.arange(len(own.kernels)), -1)
    rows = {_kind(row): at for at, row in enumerate(listed.kernels)}
    return np.array([*(rows.get(_kind(row), -1) for row in own.kernels), -1], dtype=np.int64)


def _kind(row: KernelSummary) -> tuple[object, ...]:
    return row.name, row.op, row.shapes, row.dtype, row.bound, row.account, row.source


def _idle_tracks(evidence: Evidence, host: Host, listed: Sequence[IdleCause]) -> list[_Track]:
    """Gives a track of idle gaps by cause for each device.

    For a CPU it is that of the step's threads.
    """
    linked = evidence.linked
    if linked.is_host_only:
        timeline = host_timeline(linked, host)
        return [_Track("idle: why", "idle", _idle_events(timeline.pieces, timeline.idle, evidence, host, listed))]
    tracks = []
    devices, account = devices_used(linked), accounts_of(linked, evidence.roofline, host)
    for device in devices:
        idle = read_device(linked, device, account).idle
        title = f"idle: why (device {device})" if len(devices) > 1 else "idle: why"
        tracks.append(_Track(title, "idle", _idle_events(split_gaps(idle, linked, host), idle, evidence, host, listed)))
    return tracks


def _idle_events(
    pieces: Pieces, idle: Gaps, evidence: Evidence, host: Host, listed: Sequence[IdleCause]
) -> pd.DataFrame:
    waits = explain(pieces, idle, evidence.linked, host)
    rows = {(wait.cause, wait.source, wait.module, wait.detail): at for at, wait in enumerate(listed)}
    causes = [IDLE_CAUSES[code] for code in waits.cause.tolist()]
    texts = zip(causes, waits.source.texts(), waits.module.texts(), waits.detail.texts(), strict=True)
    row = np.array([rows.get(key, -1) for key in texts], dtype=np.int64)
    names = pd.Series([label_of(f"overhead.{cause}") for cause in causes], dtype=object)
    account = np.array([_ACCOUNTS.index(f"overhead.{cause}") for cause in causes], dtype=np.int64)
    return _events(pieces.start, pieces.end, name=names, group=_OVERHEAD, account=account, row=row, module=-1)


def _host_tracks(linked: Linked, host: Host, of_kernels: Mapping[str, Integers]) -> list[_Track]:
    """Gives the tracks of the host.

    The ranges that the program marked come first, then Python frames, ops and calls of each host thread, the main
    thread first.
    """
    events, ops = linked.trace.events, linked.ops
    threads, start = events["thread"].cat, events["ts_us"].to_numpy()
    thread = threads.codes.to_numpy().astype(np.int64)
    places = {name: np.full(len(events), -1, dtype=np.int64) for name in ("group", "account", "row", "module", "call")}
    places["call"][ops["event"].to_numpy()] = as_integers(ops["signature"])
    if linked.is_host_only:
        for name, codes in of_kernels.items():
            places[name][ops["event"].to_numpy()] = codes
    row = np.arange(len(events))
    shown = _events(start, start + events["dur_us"].to_numpy(), name=events["name"].array, event=row, **places)

    def track(title: str, kind: str, chosen: Flags, thread: int = -1) -> _Track:
        return _Track(title, kind, shown[chosen], nests=True, thread=thread)

    is_main, is_call = thread == host.main_thread, events["category"].isin(("op", "runtime")).to_numpy()
    is_frame = events["category"].isin(("python", "line")).to_numpy()
    is_frame = is_frame & ~text_matches(events["name"], _CALLS_FORWARD.search)
    counts = np.bincount(thread[is_call], minlength=len(threads.categories))
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda code: (code != host.main_thread, -counts[code]))
    tracks = [track("marked ranges", "ranges", (events["category"] == "annotation").to_numpy() & is_main)]
    for code in order[:_MOST_LANES]:
        label = str(threads.categories[code]).rpartition("/")[2]
        title = "main thread" if code == host.main_thread else f"thread {label}"
        tracks.append(track(f"{title}: Python", "frames", is_frame & (thread == code), code))
        tracks.append(track(title, "host", is_call & (thread == code), code))
    return tracks


# Readings that are drawn below the step, in this order: title, unit, whether they are shares.
_DRAWN = {
    "sm_clock_mhz": ("clock", "MHz", False),
    "power_w": ("power", "W", False),
    "average_power_w": ("power, averaged over a second", "W", False),
    "utilization": ("share of time in which any kernel ran, by the device's counter", "", True),
    PROGRAM_PROCESSORS: (PROGRAM_PROCESSORS, "", False),
    BUSY_SHARE: (BUSY_SHARE, "", True),
    "cpu_clock_mhz": ("clock of the processors", "MHz", False),
}


def _curves(evidence: Evidence, low: float, high: float) -> tuple[Curve, ...]:
    """Gives the readings of the sensors in the step.

    Each curve includes the reading before and the one after the step.
    """
    start_ns, recording = evidence.linked.trace.start_unix_ns, evidence.recording
    if start_ns is None or recording is None or recording.sampling is None:
        return ()
    sensors = {} if evidence.is_host_only else recording.sampling.sensors
    used = devices_used(evidence.linked)
    titles = {HOST: "", **{sensors[device]: f"device {device}: " for device in used if device in sensors}}
    series = readings(evidence.samples)
    curves = []
    for sensor, column in sorted(series, key=lambda key: list(_DRAWN).index(key[1]) if key[1] in _DRAWN else -1):
        if sensor not in titles or column not in _DRAWN:
            continue
        at_us = np.array([(unix_ns - start_ns) / 1e3 for unix_ns, _ in series[sensor, column]]) - low
        value = np.array([reading for _, reading in series[sensor, column]])
        near = slice(max(int(np.searchsorted(at_us, 0)) - 1, 0), int(np.searchsorted(at_us, high - low)) + 1)
        at_us, value = at_us[near], value[near]
        if at_us[0] > high - low or at_us[-1] < 0:
            continue
        title, unit, is_share = _DRAWN[column]
        rows = marked_rows(value)
        points = tuple(zip(at_us[rows].tolist(), value[rows].tolist(), strict=True))
        curves.append(Curve(f"{titles[sensor]}{title}", unit, points, is_share))
    return tuple(curves)


def _packed(tracks: Sequence[_Track], span: _Span, evidence: Evidence) -> StepTracks:
    """Packs all tracks as arrays, cut at the span's ends.

    Where there are too many events, only the longest ones are kept.
    """
    low, high, count = span.low, span.high, sum(len(track.events) for track in tracks)
    shown = [_telling_frames(track.events, span) if track.kind == "frames" else track.events for track in tracks]
    frame = pd.concat([events.astype({"name": object}).assign(lane=lane) for lane, events in enumerate(shown)])
    start = frame["start"].clip(lower=low)
    frame = frame.assign(start=start - low, dur=frame["end"].clip(upper=high) - start).reset_index(drop=True)
    if len(frame) > MOST_EVENTS:
        frame = frame.iloc[np.argsort(-frame["dur"].to_numpy(), kind="stable")[:MOST_EVENTS]]
    frame = frame.sort_values(["lane", "start", "dur"], ascending=[True, True, False], ignore_index=True)
    nests = np.array([track.nests for track in tracks])[frame["lane"].to_numpy()]
    frame["depth"] = np.where(nests, _depths(frame), 0)
    is_deep = frame["depth"].to_numpy() >= _DEEPEST_FRAME
    is_deep &= np.array([track.kind == "frames" for track in tracks])[frame["lane"].to_numpy()]
    frame = frame[~is_deep]
    deepest = frame.groupby("lane")["depth"].max()
    name, names = pd.factorize(frame["name"])
    frame["name"] = name
    frame = frame.sort_values(["lane", "depth", "start"], ignore_index=True, kind="stable")
    lanes = tuple(
        Lane(track.title, track.kind, int(deepest.get(lane, 0)) + 1, track.thread)  # type: ignore[arg-type]
        for lane, track in enumerate(tracks)
    )
    frame["launch"] = _positions(frame["event"].to_numpy(), frame["launch"].to_numpy())
    frame["call"], calls = _calls(evidence.linked, frame["call"].to_numpy())
    columns = {key: frame[key].to_numpy(dtype=np.int64) for key in _WHOLE_NUMBERS}
    return StepTracks(
        step=span.name,
        start_us=low - evidence.linked.window.start_us,
        length_us=high - low,
        lanes=lanes,
        names=tuple(map(str, names)),
        event_start_us=frame["start"].to_numpy(dtype=np.float64),
        event_dur_us=frame["dur"].to_numpy(dtype=np.float64),
        role=span.role,
        calls=calls,
        left_out=count - len(frame),
        curves=_curves(evidence, low, high),
        **columns,
    )


_WHOLE_NUMBERS = ("lane", "depth", "name", "group", "account", "row", "module", "launch", "call")


def _positions(events: Integers, wanted: Integers) -> Integers:
    """Gives the position of each wanted row of EVENTS; -1 for none."""
    order = np.argsort(events, kind="stable")
    place = np.minimum(np.searchsorted(events, wanted, sorter=order), len(events) - 1)
    position = order[place]
    return np.where((wanted >= 0) & (events[position] == wanted), position, -1)


def _calls(linked: Linked, rows: Integers) -> tuple[Integers, tuple[OpInputs, ...]]:
    """Gives the number of each row's shapes and dtype, and these by number.

    -1 where neither is known.
    """
    dims, types = (linked.trace.signatures[column].to_numpy() for column in ("dims", "types"))
    calls = {row: OpInputs(shapes_text(dims[row]), data_dtype(types[row])) for row in set(rows.tolist()) - {-1}}
    numbers = {call: at for at, call in enumerate(dict.fromkeys(call for call in calls.values() if any(call)))}
    of_row = {row: numbers.get(call, -1) for row, call in calls.items()}
    return np.array([of_row.get(row, -1) for row in rows.tolist()], dtype=np.int64), tuple(numbers)


def _depths(frame: pd.DataFrame) -> Integers:
    """Counts the open events of its lane where each event begins.

    Rows are sorted by lane and start.
    """
    depth = np.zeros(len(frame), dtype=np.int64)
    open_ends: list[float] = []
    last = -1
    columns = zip(frame["lane"].tolist(), frame["start"].tolist(), frame["dur"].tolist(), strict=True)
    for at, (lane, start, dur) in enumerate(columns):
        if lane != last:
            open_ends, last = [], lane
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        depth[at] = len(open_ends)
        open_ends.append(start + dur)
    return depth
