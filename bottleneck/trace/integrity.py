"""Checks the completeness of a linked trace for the doctor: launches, device work, clocks, ids and overlaps."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.schema.analysis import APPLE_UNRECORDED, HALF_RECORDED, LISTED_ALONE, SAMPLED
from bottleneck.schema.checks import Check, Status
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.linked_trace import Linked, Trace
from bottleneck.schema.tables import as_integers
from bottleneck.trace.damage import CONSEQUENCES
from bottleneck.trace.joins import ends_ns, starts_ns, threads
from bottleneck.trace.link import TOLERATED_SHARE, kernel_launches, sampled_caveats
from bottleneck.trace.vendors import ONE_PER_CALL, has_trait
from bottleneck.units import counted, format_share, format_us

# Ends are rounded, and programmatic dependent launch lets a kernel begin just before the last one ends.
_ROUNDING_NS = 1_000


class Launches(Struct, frozen=True):
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


def _bare_steps(linked: Linked, at_ns: Integers, lost: Flags) -> tuple[str, ...]:
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


_FILE, _DEVICE, _HOST = "the file", "device work", "host work"

# Clock skew above this part of the kernels makes queueing times worthless.
_SKEWED_SHARE = 0.05
_LOG = "the profiler wrote this into the trace while it recorded"
_BOTH_SIDES = "record the host too: ProfilerActivity.CPU and ProfilerActivity.CUDA"
_SYNCHRONIZE_FIRST = "synchronize the device before it starts (torch.cuda.synchronize())"
_SHORTER = "record fewer steps at a time: schedule(wait=1, warmup=2, active=3)"


def check_file(trace: Trace) -> list[Check]:
    """A row on the events of the file, and a row for each kind of damage that the reader tolerated."""
    events = f"{counted(len(trace.events), 'event')} of {trace.flavour.upper() if trace.flavour != 'cpu' else 'a CPU'}"
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
    launches = count_launches(linked)
    return [
        _launches(launches, trace.flavour),
        *_graph_kernels(linked),
        _cut_off(launches),
        _orphans(linked),
        _clocks(linked.kernels),
        *_losses(linked),
        _ids(linked),
        _streams(trace),
    ]


def check_host_work(linked: Linked) -> list[Check]:
    """A row on ops that outlast the op around them, and one on ops that are missing, where some are."""
    ops = linked.ops
    over_us = linked.trace.events["dur_us"].to_numpy()[ops["event"].to_numpy()] - ops["dur_us"].to_numpy()
    over_us = over_us[over_us > _ROUNDING_NS / 1e3]
    sampled = [
        Check(SAMPLED, _HOST, "ops", "limited", each.message, "", "record again, and keep the whole file", decides=True)
        for each in sampled_caveats(linked.trace)
    ]
    check = partial(Check, "ops-overlap", _HOST, "ops nest")
    if not over_us.size:
        return [check("ok", f"{counted(len(ops), 'op')}, each inside or beside the others"), *sampled]
    overlap = check(
        "limited",
        f"{over_us.size:,} of {len(ops):,} outlast the op around them, by up to {format_us(float(over_us.max()))}",
        "they are cut where that ends, so that no time counts twice",
        "record without with_stack, which is known to stretch ops (pytorch#174555)",
        share=over_us.size / len(ops),
        decides=True,
    )
    return [*sampled, overlap]


def _no_device_work(trace: Trace) -> Check:
    check = partial(Check, "no-device-events", _DEVICE, "device")
    missing = partial(check, "missing", share=1.0, decides=True)
    caveats = {caveat.slug: caveat for caveat in trace.caveats}
    if HALF_RECORDED in caveats:
        fact = "ops ran on a device, but the trace holds none of its work"
        remedy = "record the device too: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        return missing(fact, caveats[HALF_RECORDED].message, remedy)
    if APPLE_UNRECORDED in caveats:
        fact = "ops ran on a GPU of Apple, of whose work the trace holds nothing"
        return missing(fact, caveats[APPLE_UNRECORDED].message, "record its side in Instruments: torch.mps.profiler")
    without_work = caveats.get("no-device-events")
    if without_work is None and LISTED_ALONE in caveats:
        remedy = "if the program uses it, record it: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        return check("limited", "the trace holds no work of a device", caveats[LISTED_ALONE].message, remedy)
    if without_work is None:
        return check("ok", "a CPU trace: no kernel was launched")
    fact = "kernels were launched, but the trace holds none of them"
    why = without_work.cause or without_work.message
    return missing(fact, why, "see what the machine says", "bottleneck doctor")


def _launches(found: Launches, flavour: str) -> Check:
    check = partial(Check, "kernels-missing", _DEVICE, "launches")
    if not found.total:
        return check("unknown", "the trace holds no launches to compare with")
    share = found.lost / found.total
    captured = f"; {counted(found.captured, 'other')} captured into a graph, to run later" if found.captured else ""
    if not found.lost:
        return check("ok", f"of {found.total - found.captured:,}, none lacks its kernel{captured}")
    places = ((found.lead, "before the first"), (found.between, "between"), (found.tail, "after the last"))
    where = ", ".join(f"{count:,} {place}" for count, place in places if count)
    remedy = "synchronize the device before the profiler stops (torch.cuda.synchronize()), or record fewer steps"
    if found.lead > max(found.between, found.tail):
        remedy = "let the profiler warm up: schedule(wait=1, warmup=2, active=3); an idle GPU loses its first kernels"
    if flavour == "xpu" and found.lost == found.total - found.captured:
        remedy = "use a newer intel-pti: 0.17 records copies, but no kernels, on Arc B GPUs (torch-xpu-ops#3985)"
    bare = f"; none at all in {_some(found.bare_steps)}" if found.bare_steps else ""
    return check(
        _status(share),
        f"{found.lost:,} of {found.total:,} ({format_share(share)}) have no kernel{bare}{captured}",
        f"{where} of those that have one; the profiler dropped them or stopped before they ran",
        remedy,
        share=share,
        decides=True,
    )


# Replays that are compared with one another; more of them say the same.
_MOST_REPLAYS, _FEWEST_REPLAYS = 500, 4
# Replays that lost some kernels by chance differ from each other; those of several graphs come again and again.
_DIFFERENT = 0.5
_HIP_7_2 = ("702", "7.2.0", "7.2.1")
# Of vLLM's decoding, 65 % of the kernels were left on ROCm 7.2 (rocm-systems#4361); fixed in 7.2.2 (ROCm#6102).
_LOSES_OF_GRAPHS = "ROCm 7.2.0 and 7.2.1 lose records of kernels that hipGraphLaunch issues (ROCm#6102)"
_NEWER_ROCM = "record with ROCm 7.2.2 or newer; wheels of torch bring these libraries along"


def _graph_kernels(linked: Linked) -> list[Check]:
    """A row on graph replays of ROCm that hold fewer kernels than others of the same graph; none without replays."""
    trace, kernels = linked.trace, linked.kernels
    replayed = (kernels["replayed"] & kernels["launch"].notna() & (kernels["kind"] == "compute")).to_numpy(bool)
    if trace.flavour != "rocm" or not replayed.any():
        return []
    check = partial(Check, "graph-kernels", _DEVICE, "graph replays")
    names = kernels["name"].cat.codes.to_numpy()[replayed].tolist()
    launches = as_integers(kernels["launch"])[replayed].tolist()
    contents: dict[int, Counter[int]] = {}
    for launch, name in zip(launches, names, strict=True):
        if launch in contents or len(contents) < _MOST_REPLAYS:
            contents.setdefault(launch, Counter())[name] += 1
    lost, whole, short = _lost_of_graphs([*contents.values()])
    share = lost / whole if whole else 0.0
    if lost:
        fact = (
            f"{short:,} of {len(contents):,} lack {counted(lost, 'kernel')} that others of the same graph have, "
            f"{format_share(share)} of {whole:,}"
        )
        return [check(_status(share), fact, _LOSES_OF_GRAPHS, _NEWER_ROCM, share=share, decides=True)]
    if str(trace.facts.get("hip_runtime_version", "")).startswith(_HIP_7_2):
        fact = "replays of one graph hold the same kernels; whether all of them cannot be told"
        return [check("unknown", fact, _LOSES_OF_GRAPHS, _NEWER_ROCM)]
    return [check("ok", f"{counted(len(contents), 'replay')}, those of one graph with the same kernels")]


def _lost_of_graphs(replays: Sequence[Counter[int]]) -> tuple[int, int, int]:
    """Kernels missing from replays, those that there should be, and replays that lack some.

    A replay is of the graph of the largest one that holds all of its kernels.
    """
    graphs: list[list[Counter[int]]] = []
    for replay in sorted(replays, key=lambda each: -each.total()):
        for graph in graphs:
            if replay <= graph[0]:
                graph.append(replay)
                break
        else:
            graphs.append([replay])
    lost = whole = short = 0
    for graph in graphs:
        size = graph[0].total()
        whole += size * len(graph)
        different = len({tuple(sorted(replay.items())) for replay in graph})
        if len(graph) >= _FEWEST_REPLAYS and different >= max(3, _DIFFERENT * len(graph)):
            missing = [size - replay.total() for replay in graph]
            lost += sum(missing)
            short += sum(count > 0 for count in missing)
    return lost, whole, short


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {counted(len(names) - 3, 'more step')}"


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
        f" {counted(found.total, 'launch', 'launches')} after it",
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
    where = "inside one replay or beside launches without kernel"
    rests = f"{counted(holes, 'time')} the device rests with work queued, {where}"
    filled = f"only the fill of a workspace is left of {counted(products, 'matrix product')}"
    rows = (
        (holes, "holes", "queues", rests, "the profiler lost what ran there"),
        (products, "lost-products", "products", filled, "they ran, but the profiler lost their kernels"),
    )
    return [
        Check(slug, _DEVICE, title, "limited", fact, why, _SHORTER, decides=True)
        for count, slug, title, fact, why in rows
        if count
    ]


def _orphans(linked: Linked) -> Check:
    """Device work that neither a launch nor an op of the trace issued."""
    check, kernels = partial(Check, "orphans", _DEVICE, "kernels"), linked.kernels
    orphan = (kernels["launch"].isna() & kernels["op"].isna()).to_numpy()
    if not orphan.any():
        return check("ok", f"of {counted(len(kernels), 'piece')} of work, none lacks its launch or op")
    start_us, dur_us = kernels["ts_us"].to_numpy(), kernels["dur_us"].to_numpy()
    share = float(dur_us[orphan].sum() / dur_us.sum()) if dur_us.any() else 0.0
    if linked.trace.launch_args.empty:
        why, remedy = "launches were not recorded", _BOTH_SIDES
    elif not orphan.all() and start_us[orphan].max() < start_us[~orphan].min():
        why, remedy = "they were launched before the recording began", _SYNCHRONIZE_FIRST
    else:
        why, remedy = "the profiler dropped their launches", _SHORTER
    fact = f"{orphan.sum():,} of {len(kernels):,}, {format_share(share)} of the busy time, have no launch"
    status = _status(share)
    return check(status, fact, why, remedy if status == "limited" else "", share=share, decides=True)


def _clocks(kernels: pd.DataFrame) -> Check:
    """Device work that seems to run before it was launched."""
    check = partial(Check, "clock-skew", _DEVICE, "clocks")
    early_us = (kernels["launch_ts_us"] - kernels["ts_us"]).dropna()
    if early_us.empty:
        return check("unknown", "no work has its launch, so clocks cannot be compared")
    share, early_us = float((early_us > 0).mean()), early_us[early_us > 0]
    if early_us.empty:
        return check("ok", "no kernel starts before its launch")
    total = kernels["launch_ts_us"].notna().sum()
    return check(
        _status(share, _SKEWED_SHARE),
        f"{len(early_us):,} of {total:,} ({format_share(share)}) start before their launch: by"
        f" {format_us(float(early_us.median()))} in the median, {format_us(float(early_us.max()))} at most",
        "the clocks of host and device disagree by at least as much; durations are not affected, delays are",
        share=share,
        decides=True,
    )


def _ids(linked: Linked) -> Check:
    """Ids that an op, a kernel launch or a piece of device work shares with an earlier one.

    Kernels that a graph replays share the id of one launch by nature and do not count.
    """
    check, trace = partial(Check, "repeated-ids", _DEVICE, "ids"), linked.trace
    launched, _, _ = kernel_launches(trace, None)
    replayed = trace.device_args["event"].isin(linked.kernels["event"][linked.kernels["replayed"]]).to_numpy(bool)
    launches = _repeats(as_integers(trace.launch_args["correlation"])[launched])
    work = (
        _repeats(as_integers(trace.device_args["correlation"])[~replayed])
        if has_trait(trace.flavour, ONE_PER_CALL)
        else 0
    )
    ops = _repeats(as_integers(trace.op_args["external_id"]))
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


def _repeats(ids: Integers) -> int:
    known = ids[ids > 0]
    return len(known) - len(np.unique(known))


def _streams(trace: Trace) -> Check:
    """Device work that overlaps its successor on the same stream, which a queue in order does not allow."""
    check = partial(Check, "streams-overlap", _DEVICE, "streams")
    event = trace.device_args["event"].to_numpy()
    event = event[np.lexsort((starts_ns(trace, event), threads(trace, event)))]
    track, start_ns, end_ns = threads(trace, event), starts_ns(trace, event), ends_ns(trace, event)
    over_ns = np.where(track[1:] == track[:-1], end_ns[:-1] - start_ns[1:], 0)
    over_ns = over_ns[over_ns > _ROUNDING_NS]
    if not over_ns.size:
        return check("ok", "work on one stream never overlaps")
    share, most_us = over_ns.size / len(event), float(over_ns.max()) / 1e3
    return check(
        _status(share),
        f"{over_ns.size:,} of {len(event):,} overlap the next on their stream, by up to {format_us(most_us)}",
        "busy time is the union, so no time counts twice",
        share=share,
        decides=True,
    )


def _status(share: float, tolerated: float = TOLERATED_SHARE) -> Status:
    return "ok" if share <= tolerated else "limited"
