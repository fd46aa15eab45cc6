"""Lays out one step over time for a chart.

The tracks are work of the device, idle gaps by cause, marked ranges, and host threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.analysis.frame_tree import frame_tree
from bottleneck.analysis.host import Host, read_host
from bottleneck.analysis.idle import Gaps, Pieces, explain, split_gaps
from bottleneck.analysis.ledger import accounts_of, devices_used, host_timeline, read_device
from bottleneck.analysis.queue import marked_rows
from bottleneck.schema.accounts import ACCOUNTS, IDLE_CAUSES, label_of
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import Linked, Step
from bottleneck.schema.step_tracks import Curve, Lane, StepTracks
from bottleneck.schema.tables import as_integers
from bottleneck.schema.telemetry import BUSY_SHARE, HOST, PROGRAM_PROCESSORS, readings

MOST_EVENTS = 50_000
_OVERHEAD = GROUPS.index("overhead")
_MOST_LANES = 24  # of host threads: those with the most events


Span = tuple[float, float]


@dataclass(frozen=True)
class _Track:
    """The events of one lane.

    They have start, end, name, group, row and module. ``nests`` where they may lie inside one another.
    """

    title: str
    kind: str
    events: pd.DataFrame
    nests: bool = False


def lay_out(evidence: Evidence) -> StepTracks | None:
    """The step of median length; null where nothing of it was recorded."""
    step, low, high = _median_step(evidence.linked)
    span, host = (low, high), read_host(evidence.linked)
    tracks = [*_device_tracks(evidence, span), *_idle_tracks(evidence, host, span), *_host_tracks(evidence, host, span)]
    inside = [track for track in tracks if len(track.events)]
    return _packed(inside, step, span, evidence) if inside and high > low else None


def _median_step(linked: Linked) -> tuple[str, float, float]:
    """Gives name, start and end of the median step.

    It lasts from its first host event to the end of its device work.
    """
    window = linked.window
    steps = sorted(window.steps, key=lambda step: step.us)
    if not steps:
        return "the window", window.start_us, window.end_us
    step: Step = steps[(len(steps) - 1) // 2]
    mine = as_integers(linked.kernels["step"]) == window.steps.index(step)
    ends = (linked.kernels["ts_us"] + linked.kernels["dur_us"]).to_numpy()[mine]
    return step.name, step.start_us, max(step.end_us, float(ends.max(initial=step.end_us)))


def _events(span: Span, start: Floats, end: Floats, **columns: object) -> pd.DataFrame:
    """The events that overlap a span of time, with their positions as index."""
    return pd.DataFrame({"start": start, "end": end, **columns})[(start < span[1]) & (end > span[0])]


def _device_tracks(evidence: Evidence, span: Span) -> list[_Track]:
    """A track for each stream of each device."""
    linked = evidence.linked
    if linked.is_host_only:
        return []
    kernels, several = linked.kernels, len(set(linked.kernels["device"].tolist())) > 1
    start = kernels["ts_us"].to_numpy()
    end = start + kernels["dur_us"].to_numpy()
    events = _events(span, start, end, name=kernels["name"].array, **_places(evidence))
    stream = kernels["stream"].cat
    tracks = []
    for code, mine in events.groupby(stream.codes.to_numpy()[events.index.to_numpy()]):
        title = f"stream {str(stream.categories[code]).rpartition('/')[2]}"
        device = kernels["device"].iloc[mine.index[0]]
        tracks.append(_Track(f"device {device}, {title}" if several else title, "device", mine))
    return sorted(tracks, key=lambda track: -float(np.sum((track.events["end"] - track.events["start"]).to_numpy())))


def _places(evidence: Evidence) -> dict[str, Integers]:
    """Gives group, row and module of each row of KERNELS.

    The group is that of the ledger, row and module are those of the analysis. -1 for none.
    """
    modules = {fold.name: at for at, fold in enumerate(evidence.analysis.modules)}
    module = evidence.linked.kernels["module"].cat
    of_code = np.array([*(modules.get(str(name), -1) for name in module.categories), -1], dtype=np.int64)
    charged = evidence.kernel_time
    if charged is None:
        group = row = np.full(len(evidence.linked.kernels), -1, dtype=np.int64)
    else:
        groups = [GROUPS.index(ACCOUNTS[name].group) for name in charged["account"].cat.categories]
        group = np.array([*groups, -1], dtype=np.int64)[charged["account"].cat.codes.to_numpy()]
        row = as_integers(charged["row"])
    return {"group": group, "row": row, "module": of_code[module.codes.to_numpy()]}


def _idle_tracks(evidence: Evidence, host: Host, span: Span) -> list[_Track]:
    """Gives a track of idle gaps by cause for each device.

    For a CPU it is that of the step's threads.
    """
    linked = evidence.linked
    if linked.is_host_only:
        timeline = host_timeline(linked, host)
        return [_Track("idle: why", "idle", _idle_events(timeline.pieces, timeline.idle, evidence, host, span))]
    tracks = []
    devices, account = devices_used(linked), accounts_of(linked, evidence.roofline, host)
    for device in devices:
        idle = read_device(linked, device, account).idle
        title = f"idle: why (device {device})" if len(devices) > 1 else "idle: why"
        tracks.append(_Track(title, "idle", _idle_events(split_gaps(idle, linked, host), idle, evidence, host, span)))
    return tracks


def _idle_events(pieces: Pieces, idle: Gaps, evidence: Evidence, host: Host, span: Span) -> pd.DataFrame:
    waits = explain(pieces, idle, evidence.linked, host)
    listed = evidence.analysis.idle
    rows = {(wait.cause, wait.source, wait.module, wait.detail): at for at, wait in enumerate(listed)}
    causes = [IDLE_CAUSES[code] for code in waits.cause.tolist()]
    texts = zip(causes, waits.source.texts(), waits.module.texts(), waits.detail.texts(), strict=True)
    row = np.array([rows.get(key, -1) for key in texts], dtype=np.int64)
    names = pd.Series([label_of(f"overhead.{cause}") for cause in causes], dtype=object)
    return _events(span, pieces.start, pieces.end, name=names, group=_OVERHEAD, row=row, module=-1)


def _host_tracks(evidence: Evidence, host: Host, span: Span) -> list[_Track]:
    """Gives the tracks of the host.

    The ranges that the program marked come first, then ops and calls of each host thread, the main thread first.
    """
    linked = evidence.linked
    events = linked.trace.events
    threads, start = events["thread"].cat, events["ts_us"].to_numpy()
    thread = threads.codes.to_numpy().astype(np.int64)
    places = {name: np.full(len(events), -1, dtype=np.int64) for name in ("group", "row", "module")}
    if linked.is_host_only:
        for name, codes in _places(evidence).items():
            places[name][linked.ops["event"].to_numpy()] = codes
    shown = _events(span, start, start + events["dur_us"].to_numpy(), name=events["name"].array, **places)

    def track(title: str, kind: str, chosen: Flags) -> _Track:
        return _Track(title, kind, shown[chosen[shown.index.to_numpy()]], nests=True)

    is_main, is_call = thread == host.main_thread, events["category"].isin(("op", "runtime")).to_numpy()
    counts = np.bincount(thread[is_call], minlength=len(threads.categories))
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda code: (code != host.main_thread, -counts[code]))
    tracks = [track("marked ranges", "ranges", (events["category"] == "annotation").to_numpy() & is_main)]
    for code in order[:_MOST_LANES]:
        label = str(threads.categories[code]).rpartition("/")[2]
        title = "main thread" if code == host.main_thread else f"thread {label}"
        tracks.append(track(title, "host", is_call & (thread == code)))
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


def _packed(tracks: Sequence[_Track], step: str, span: Span, evidence: Evidence) -> StepTracks:
    """Packs all tracks as arrays, cut at the span's ends.

    Where there are too many events, only the longest ones are kept.
    """
    low, high = span
    frame = pd.concat([track.events.astype({"name": object}).assign(lane=lane) for lane, track in enumerate(tracks)])
    start = frame["start"].clip(lower=low)
    frame = frame.assign(start=start - low, dur=frame["end"].clip(upper=high) - start).reset_index(drop=True)
    left_out = max(len(frame) - MOST_EVENTS, 0)
    if left_out:
        frame = frame.iloc[np.argsort(-frame["dur"].to_numpy(), kind="stable")[:MOST_EVENTS]]
    frame = frame.sort_values(["lane", "start", "dur"], ascending=[True, True, False], ignore_index=True)
    nests = np.array([track.nests for track in tracks])[frame["lane"].to_numpy()]
    frame["depth"] = np.where(nests, _depths(frame), 0)
    deepest = frame.groupby("lane")["depth"].max()
    name, names = pd.factorize(frame["name"])
    frame["name"] = name
    frame = frame.sort_values(["lane", "depth", "start"], ignore_index=True, kind="stable")
    lanes = tuple(
        Lane(track.title, track.kind, int(deepest.get(lane, 0)) + 1)  # type: ignore[arg-type]
        for lane, track in enumerate(tracks)
    )
    columns = {key: frame[key].to_numpy(dtype=np.int64) for key in ("lane", "depth", "name", "group", "row", "module")}
    return StepTracks(
        step=step,
        start_us=low - evidence.linked.window.start_us,
        length_us=high - low,
        lanes=lanes,
        names=tuple(map(str, names)),
        event_start_us=frame["start"].to_numpy(dtype=np.float64),
        event_dur_us=frame["dur"].to_numpy(dtype=np.float64),
        left_out=left_out,
        curves=_curves(evidence, low, high),
        tree=frame_tree(evidence),
        **columns,
    )


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
