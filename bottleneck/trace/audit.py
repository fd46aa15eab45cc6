"""What a linked trace holds and lacks of its device work, counted: launches, work, clocks, ids, overlaps."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bottleneck.trace.events import ends_ns, starts_ns, threads
from bottleneck.trace.joins import Flags, whole
from bottleneck.trace.limits import kernel_launches
from bottleneck.trace.nesting import Ints
from bottleneck.tracing import Linked, Trace

# Ends are rounded, and programmatic dependent launch lets a kernel begin just before the last one ends.
_ROUNDING_NS = 1_000

# Profilers that give each piece of work outside graphs an id of its own; MTIA gives one to all that a call issues.
_ONE_EACH = {"cuda", "rocm"}


@dataclass(frozen=True)
class Launches:
    """Calls that launch a kernel, and where those without one lie.

    ``captured`` entered a graph and ran only in its replays. Of the others ``lead`` come before the first launch with a
    kernel, ``tail`` after the last one, ``between`` elsewhere. ``tail_us`` is the time from the end of the device's
    last work to the host's last launch. ``bare_steps`` are those whose launches all lack their kernel.
    """

    total: int
    captured: int
    lead: int
    between: int
    tail: int
    tail_us: float
    bare_steps: tuple[str, ...]

    @property
    def lost(self) -> int:
        """Launches whose kernel should be there."""
        return self.lead + self.between + self.tail


@dataclass(frozen=True)
class Orphans:
    """Device work without a launch: how many pieces of how many, their share of the device's busy time.

    ``is_earlier`` tells whether all of it ran before the first work that has a launch.
    """

    count: int
    total: int
    share: float
    is_earlier: bool


@dataclass(frozen=True)
class Skew:
    """Device work that starts before its launch: how many of how many that have one, and by how much (us)."""

    count: int
    total: int
    median_us: float
    most_us: float


@dataclass(frozen=True)
class Crossing:
    """Neighbours on a track that overlap by more than rounding: how many of how many, and by how much at most (us)."""

    count: int
    total: int
    most_us: float


def audit_launches(linked: Linked) -> Launches:
    """Where launches without kernels lie; all counts are 0 in a trace without launches."""
    trace = linked.trace
    rows, missing = kernel_launches(trace)
    event = trace.launch_args["event"].to_numpy()[rows]
    at_ns = starts_ns(trace, event)
    captured = missing & np.isin(event, _captured_events(linked))
    lost = missing & ~captured
    served_ns = at_ns[~missing]
    first_ns, last_ns = (served_ns.min(), served_ns.max()) if len(served_ns) else (np.iinfo(np.int64).max,) * 2
    lead, tail = lost & (at_ns < first_ns), lost & (at_ns > last_ns)
    work = trace.device_args["event"].to_numpy()
    ended_ns = ends_ns(trace, work).max() if len(work) else None
    behind_ns = at_ns.max() - ended_ns if len(at_ns) and ended_ns is not None else 0
    return Launches(
        total=len(rows),
        captured=int(captured.sum()),
        lead=int(lead.sum()),
        between=int((lost & ~lead & ~tail).sum()),
        tail=int(tail.sum()),
        tail_us=max(float(behind_ns), 0.0) / 1e3,
        bare_steps=_bare_steps(linked, at_ns, lost),
    )


def _captured_events(linked: Linked) -> Ints:
    return np.empty(0, np.int64) if linked.captured is None else linked.captured["event"].to_numpy()


def _bare_steps(linked: Linked, at_ns: Ints, lost: Flags) -> tuple[str, ...]:
    """Names of the steps that have launches, none of which has its kernel."""
    steps = sorted(
        [*linked.window.steps, *(step for step, _ in linked.window.set_aside)], key=lambda step: step.start_us
    )
    bounds_ns = [(int(step.start_us * 1e3), int(step.end_us * 1e3)) for step in steps]
    order = np.argsort(at_ns, kind="stable")
    at_ns, gone = at_ns[order], np.append(0, np.cumsum(lost[order]))
    found = []
    for step, (start_ns, end_ns) in zip(steps, bounds_ns, strict=True):
        low, high = np.searchsorted(at_ns, (start_ns, end_ns))
        if high > low and gone[high] - gone[low] == high - low:
            found.append(step.name)
    return tuple(found)


def audit_orphans(kernels: pd.DataFrame) -> Orphans:
    """Device work that neither a launch nor an op of the trace issued."""
    orphan = (kernels["launch"].isna() & kernels["op"].isna()).to_numpy()
    start_us, dur_us = kernels["ts_us"].to_numpy(), kernels["dur_us"].to_numpy()
    first_us = start_us[~orphan].min() if (~orphan).any() else -np.inf
    total_us = dur_us.sum()
    return Orphans(
        count=int(orphan.sum()),
        total=len(kernels),
        share=float(dur_us[orphan].sum() / total_us) if total_us > 0 else 0.0,
        is_earlier=bool((start_us[orphan] < first_us).all()),
    )


def audit_clocks(kernels: pd.DataFrame) -> Skew:
    """Device work that seems to run before it was launched."""
    early_us = (kernels["launch_ts_us"] - kernels["ts_us"]).dropna().to_numpy()
    early = early_us[early_us > 0]
    return Skew(
        count=len(early),
        total=len(early_us),
        median_us=float(np.median(early)) if len(early) else 0.0,
        most_us=float(early.max()) if len(early) else 0.0,
    )


def audit_streams(trace: Trace) -> Crossing:
    """Device work that overlaps its successor on the same stream, which a queue in order does not allow."""
    event = trace.device_args["event"].to_numpy()
    return _crossings(threads(trace, event), starts_ns(trace, event), ends_ns(trace, event))


def audit_ops(linked: Linked) -> Crossing:
    """Ops that run on past the end of the op that encloses them on its thread."""
    ops = linked.ops
    event = ops["event"].to_numpy()
    over_us = linked.trace.events["dur_us"].to_numpy()[event] - ops["dur_us"].to_numpy()
    over = over_us > _ROUNDING_NS / 1e3
    return Crossing(int(over.sum()), len(ops), float(over_us[over].max()) if over.any() else 0.0)


def _crossings(track: Ints, start_ns: Ints, end_ns: Ints) -> Crossing:
    order = np.lexsort((start_ns, track))
    track, start_ns, end_ns = track[order], start_ns[order], end_ns[order]
    over_ns = np.where(track[1:] == track[:-1], end_ns[:-1] - start_ns[1:], 0)
    over = over_ns > _ROUNDING_NS
    return Crossing(int(over.sum()), len(order), float(over_ns[over].max()) / 1e3 if over.any() else 0.0)


def repeated_ids(linked: Linked) -> tuple[int, int, int]:
    """How many ops, kernel launches, and pieces of device work share their id with an earlier one.

    Kernels that a graph replays share the id of one launch by nature and do not count.
    """
    trace = linked.trace
    launches, _ = kernel_launches(trace)
    work = whole(trace.device_args["correlation"])
    replayed = trace.device_args["event"].isin(linked.kernels["event"][linked.kernels["replayed"]]).to_numpy(bool)
    return (
        _repeats(whole(trace.op_args["external_id"])),
        _repeats(whole(trace.launch_args["correlation"])[launches]),
        _repeats(work[~replayed]) if trace.flavour in _ONE_EACH else 0,
    )


def _repeats(ids: Ints) -> int:
    known = ids[ids > 0]
    return len(known) - len(np.unique(known))
