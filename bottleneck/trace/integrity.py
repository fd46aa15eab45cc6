"""Checks the completeness of a linked trace for the doctor: launches, device work, clocks, ids and overlaps."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from bottleneck.schema.analysis import HALF_RECORDED, SAMPLED
from bottleneck.schema.checks import Check, Status
from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.schema.tables import as_integers
from bottleneck.trace.damage import CONSEQUENCES
from bottleneck.trace.joins import ends_ns, starts_ns, threads
from bottleneck.trace.link import TOLERATED_SHARE, kernel_launches, sampled_caveats
from bottleneck.trace.nesting import Flags, Ints
from bottleneck.units import format_share, format_us

# Ends are rounded, and programmatic dependent launch lets a kernel begin just before the last one ends.
_ROUNDING_NS = 1_000

# Profilers that give each piece of work outside graphs an id of its own; MTIA gives one to all that a call issues.
_ONE_EACH = {"cuda", "rocm"}


@dataclass(frozen=True)
class Launches:
    """Counts of calls that launch a kernel, and of those without one by position.

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
    """Device work without a launch: count, total, and share of the device's busy time.

    ``is_earlier`` is True where all of it ran before the first work that has a launch.
    """

    count: int
    total: int
    share: float
    is_earlier: bool


@dataclass(frozen=True)
class Skew:
    """Device work that starts before its launch: count, total with a launch, and by how much (us)."""

    count: int
    total: int
    median_us: float
    most_us: float


@dataclass(frozen=True)
class Crossing:
    """Neighbours on a track that overlap by more than rounding: count, total, and the largest overlap (us)."""

    count: int
    total: int
    most_us: float


def count_launches(linked: Linked) -> Launches:
    """Counts of launches without kernels by position; all are 0 in a trace without launches."""
    trace = linked.trace
    rows, captured, lost = kernel_launches(trace, linked.captured)
    at_ns = starts_ns(trace, trace.launch_args["event"].to_numpy()[rows])
    served_ns = at_ns[~(captured | lost)]
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


def count_orphans(kernels: pd.DataFrame) -> Orphans:
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


def count_clocks(kernels: pd.DataFrame) -> Skew:
    """Device work that seems to run before it was launched."""
    early_us = (kernels["launch_ts_us"] - kernels["ts_us"]).dropna().to_numpy()
    early = early_us[early_us > 0]
    return Skew(
        count=len(early),
        total=len(early_us),
        median_us=float(np.median(early)) if len(early) else 0.0,
        most_us=float(early.max()) if len(early) else 0.0,
    )


def count_streams(trace: Trace) -> Crossing:
    """Device work that overlaps its successor on the same stream, which a queue in order does not allow."""
    event = trace.device_args["event"].to_numpy()
    return _crossings(threads(trace, event), starts_ns(trace, event), ends_ns(trace, event))


def count_ops(linked: Linked) -> Crossing:
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
    """Counts of ops, kernel launches, and pieces of device work that share their id with an earlier one.

    Kernels that a graph replays share the id of one launch by nature and do not count.
    """
    trace = linked.trace
    launches, _, _ = kernel_launches(trace, None)
    work = as_integers(trace.device_args["correlation"])
    replayed = trace.device_args["event"].isin(linked.kernels["event"][linked.kernels["replayed"]]).to_numpy(bool)
    return (
        _repeats(as_integers(trace.op_args["external_id"])),
        _repeats(as_integers(trace.launch_args["correlation"])[launches]),
        _repeats(work[~replayed]) if trace.flavour in _ONE_EACH else 0,
    )


def _repeats(ids: Ints) -> int:
    known = ids[ids > 0]
    return len(known) - len(np.unique(known))


_FILE, _DEVICE, _HOST = "the file", "device work", "host work"

# Clock skew above this part of the kernels makes queueing times worthless.
_SKEWED_SHARE = 0.05
_LOG = "the profiler wrote this into the trace while it recorded"
_SHORTER = "record fewer steps at a time: schedule(wait=1, warmup=2, active=3)"


def check_file(trace: Trace) -> list[Check]:
    """A row on the events of the file, and a row for each kind of damage that the reader tolerated."""
    events = f"{len(trace.events):,} events of {trace.flavour.upper() if trace.flavour != 'cpu' else 'a CPU'}"
    span_us = float((trace.events["ts_us"] + trace.events["dur_us"]).max())
    rows = [Check("file", _FILE, "events", "ok", f"{events} over {format_us(span_us)}")]
    for caveat in trace.caveats:
        if caveat.slug in CONSEQUENCES:
            title, why, remedy = CONSEQUENCES[caveat.slug]
            rows.append(Check(caveat.slug, _FILE, title, "limited", caveat.message, why, remedy, decides=True))
    return [*rows, *_profiler_log(trace)]


def _profiler_log(trace: Trace) -> list[Check]:
    """Errors and warnings that the profiler itself wrote while it recorded."""
    status: Status = "limited" if "ERROR" in trace.facts else "ok"
    lines = [f"{level.lower()}: {trace.facts[level]}" for level in ("ERROR", "WARNING") if level in trace.facts]
    return [Check("profiler-log", _FILE, "profiler log", status, "; ".join(lines), _LOG)] if lines else []


def check_device_work(linked: Linked) -> list[Check]:
    """Rows on launches, device work, clocks, ids and streams; for a CPU trace, one row on missing device work."""
    trace = linked.trace
    if trace.flavour == "cpu":
        return [_no_device_work(trace)]
    launches, kernels = count_launches(linked), linked.kernels
    return [
        _launches(launches),
        _cut_off(launches),
        _orphans(count_orphans(kernels), has_launches=bool(len(trace.launch_args))),
        _clocks(count_clocks(kernels)),
        *_losses(linked),
        _ids(linked),
        _streams(count_streams(trace)),
    ]


def check_host_work(linked: Linked) -> list[Check]:
    """A row on ops that outlast the op around them, and one on ops that are missing, where some are."""
    found = count_ops(linked)
    sampled = [
        Check(SAMPLED, _HOST, "ops", "limited", each.message, "", "record again, and keep the whole file", decides=True)
        for each in sampled_caveats(linked.trace)
    ]
    if not found.count:
        nested = Check("ops-overlap", _HOST, "ops nest", "ok", f"{found.total:,} ops, each inside or beside the others")
        return [nested, *sampled]
    return [
        *sampled,
        Check(
            "ops-overlap",
            _HOST,
            "ops nest",
            "limited",
            f"{found.count:,} of {found.total:,} outlast the op around them, by up to {format_us(found.most_us)}",
            "they are cut where that ends, so that no time counts twice",
            "record without with_stack, which is known to stretch ops (pytorch#174555)",
            share=found.count / found.total,
            decides=True,
        ),
    ]


def _no_device_work(trace: Trace) -> Check:
    messages = {caveat.slug: caveat.message for caveat in trace.caveats}
    message = messages.get("no-device-events")
    if HALF_RECORDED in messages:
        return Check(
            "no-device-events",
            _DEVICE,
            "device",
            "missing",
            "ops ran on a device, but the trace holds none of its work",
            messages[HALF_RECORDED],
            "record the device too: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            share=1.0,
            decides=True,
        )
    if message is None:
        return Check("no-device-events", _DEVICE, "device", "ok", "a CPU trace: no kernel was launched")
    return Check(
        "no-device-events",
        _DEVICE,
        "device",
        "missing",
        "kernels were launched, but the trace holds none of them",
        message.partition("; ")[2] or message,
        "see what the machine says",
        "bottleneck doctor",
        share=1.0,
        decides=True,
    )


def _launches(found: Launches) -> Check:
    check = partial(Check, "kernels-missing", _DEVICE, "launches")
    if not found.total:
        return check("unknown", "the trace holds no launches to compare with")
    share = found.lost / found.total
    captured = f"; {found.captured:,} others were captured into a graph, where they run later" if found.captured else ""
    if not found.lost:
        return check("ok", f"of {found.total - found.captured:,}, none lacks its kernel{captured}")
    places = ((found.lead, "before the first"), (found.between, "between"), (found.tail, "after the last"))
    where = ", ".join(f"{count:,} {place}" for count, place in places if count)
    bare = f"; none at all in {_some(found.bare_steps)}" if found.bare_steps else ""
    return check(
        _status(share),
        f"{found.lost:,} of {found.total:,} ({format_share(share)}) have no kernel{bare}{captured}",
        f"{where} of those that have one; the profiler dropped them or stopped before they ran",
        _remedy_of(found),
        share=share,
        decides=True,
    )


def _remedy_of(found: Launches) -> str:
    if found.lead > max(found.between, found.tail):
        return "let the profiler warm up: schedule(wait=1, warmup=2, active=3); an idle GPU loses its first kernels"
    return "synchronize the device before the profiler stops (torch.cuda.synchronize()), or record fewer steps"


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more steps"


def _cut_off(found: Launches) -> Check:
    check = partial(Check, "cut-off", _DEVICE, "end")
    if not found.total or found.total == found.captured:
        return check("unknown", "without launches of its own the end cannot be checked")
    share = found.tail / found.total
    if share <= TOLERATED_SHARE:
        return check("ok", "the device's work goes on as long as the host launches some")
    return check(
        "limited",
        f"the device's work ends {format_us(found.tail_us)} before the host's last launch, {found.tail:,} of"
        f" {found.total:,} launches come after it",
        "the profiler ran out of room (128 MB of buffers) or was stopped before the device was done",
        _SHORTER,
        share=share,
        decides=True,
    )


def _losses(linked: Linked) -> list[Check]:
    """Rows on device work that must have run but is not in the trace; none where nothing is lost."""
    if linked.losses is None:
        return []
    holes, products = int(linked.losses.holes.sum()), len(linked.losses.products)
    row = partial(Check, group=_DEVICE, status="limited", remedy=_SHORTER, decides=True)
    found = []
    if holes:
        fact = f"{holes:,} times the device rests with work queued, inside one replay or beside launches without kernel"
        found.append(row("holes", title="queues", fact=fact, why="the profiler lost what ran there"))
    if products:
        fact = f"{products:,} matrix products fill their workspace, but have no kernel"
        why = "they ran, but the profiler lost their kernels"
        found.append(row("lost-products", title="products", fact=fact, why=why))
    return found


def _orphans(found: Orphans, *, has_launches: bool) -> Check:
    check = partial(Check, "orphans", _DEVICE, "kernels")
    if not found.count:
        return check("ok", f"of {found.total:,} pieces of work, none lacks its launch or op")
    fact = f"{found.count:,} of {found.total:,}, {format_share(found.share)} of the busy time, have no launch"
    if not has_launches:
        why, remedy = (
            "launches were not recorded",
            "record the host too: ProfilerActivity.CPU and ProfilerActivity.CUDA",
        )
    elif found.is_earlier:
        why, remedy = (
            "they were launched before the recording began",
            "synchronize the device before it starts (torch.cuda.synchronize())",
        )
    else:
        why, remedy = "the profiler dropped their launches", _SHORTER
    status = _status(found.share)
    advice = remedy if status == "limited" else ""
    return check(status, fact, why, advice, share=found.share, decides=True)


def _clocks(found: Skew) -> Check:
    check = partial(Check, "clock-skew", _DEVICE, "clocks")
    if not found.total:
        return check("unknown", "no work has its launch, so clocks cannot be compared")
    if not found.count:
        return check("ok", "no kernel starts before its launch")
    share = found.count / found.total
    return check(
        _status(share, _SKEWED_SHARE),
        f"{found.count:,} of {found.total:,} ({format_share(share)}) start before their launch: by"
        f" {format_us(found.median_us)} in the median, {format_us(found.most_us)} at most",
        "the clocks of host and device disagree by at least as much; durations are not affected, delays are",
        share=share,
        decides=True,
    )


def _ids(linked: Linked) -> Check:
    check = partial(Check, "repeated-ids", _DEVICE, "ids")
    ops, launches, work = repeated_ids(linked)
    counts = ((launches, "launches"), (work, "device work"), (ops, "ops"))
    doubled = [f"{what} {count:,}" for count, what in counts if count]
    if not doubled:
        return check("ok", "no id is used twice")
    return check(
        "limited" if launches or work else "ok",
        f"used more than once: {', '.join(doubled)}",
        "each is tied to the nearest in time",
        decides=True,
    )


def _streams(found: Crossing) -> Check:
    check = partial(Check, "streams-overlap", _DEVICE, "streams")
    if not found.count:
        return check("ok", "work on one stream never overlaps")
    share = found.count / found.total
    return check(
        _status(share),
        f"{found.count:,} of {found.total:,} overlap the next on their stream, by up to {format_us(found.most_us)}",
        "busy time is the union, so no time counts twice",
        share=share,
        decides=True,
    )


def _status(share: float, tolerated: float = TOLERATED_SHARE) -> Status:
    return "ok" if share <= tolerated else "limited"
