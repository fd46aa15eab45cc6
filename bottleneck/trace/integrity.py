"""Measures what is missing or odd in a trace.

That is launches and their kernels, lost work, ids and overlaps. It judges nothing.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.linked_trace import (
    KERNEL_GAP_US,
    GraphReplays,
    Integrity,
    LaunchCounts,
    Losses,
    Trace,
    Window,
)
from bottleneck.schema.records import replace
from bottleneck.schema.tables import as_integers, nearest_ancestor, text_matches
from bottleneck.trace.joins import ends_ns, is_any_of, starts_ns, threads
from bottleneck.trace.vendors import LOSES_OF_REPLAYS, ONE_PER_CALL, RECORDS_WAITS, has_trait

# Ends are rounded, and programmatic dependent launch lets a kernel begin just before the last one ends.
_ROUNDING_NS = 1_000


def measure_integrity(
    trace: Trace, window: Window, ops: pd.DataFrame, kernels: pd.DataFrame, captured: pd.DataFrame
) -> Integrity:
    """Counts what is missing or odd in a trace.

    ``ops`` and ``kernels`` are the tables made from the trace.
    """
    over_us = trace.events["dur_us"].to_numpy()[ops["event"].to_numpy()] - ops["dur_us"].to_numpy()
    over_us = over_us[over_us > _ROUNDING_NS / 1e3]
    of_host = Integrity(
        id_density=id_density(trace), outlasting=over_us.size, outlasting_us=float(over_us.max(initial=0.0))
    )
    if trace.device_args.empty:
        return of_host
    rows, entered, lost = kernel_launches(trace, captured)
    replayed = trace.device_args["event"].isin(kernels["event"][kernels["replayed"]]).to_numpy(bool)
    is_one_per_call = has_trait(trace.flavour, ONE_PER_CALL)
    overlaps_ns = _overlaps_ns(trace)
    return replace(
        of_host,
        launches=_count_launches(trace, window, rows, entered, lost),
        repeated_launches=_repeats(as_integers(trace.launch_args["correlation"])[rows]),
        repeated_work=_repeats(as_integers(trace.device_args["correlation"])[~replayed]) if is_one_per_call else 0,
        overlaps=int(overlaps_ns.size),
        overlap_us=float(overlaps_ns.max(initial=0)) / 1e3,
        replays=_compare_replays(trace, kernels),
        waits=int(is_any_of(trace, ("sync",)).sum()) if has_trait(trace.flavour, RECORDS_WAITS) else None,
    )


def launches_of_kind(trace: Trace, kind: str) -> Flags:
    """Marks the rows of LAUNCH_ARGS that are calls of a kind."""
    return (trace.launch_args["call_kind"] == kind).to_numpy()


def have_run(trace: Trace, rows: Integers) -> Flags:
    """True for the rows of LAUNCH_ARGS whose device work the trace holds."""
    called = as_integers(trace.launch_args["correlation"])[rows]
    # By hashing: the ids of an excerpt lie so far apart that NumPy would sort them.
    return np.asarray(pd.Index(called).isin(as_integers(trace.device_args["correlation"])), dtype=np.bool_)


def kernel_launches(trace: Trace, captured: pd.DataFrame) -> tuple[Integers, Flags, Flags]:
    """Finds rows in LAUNCH_ARGS of the calls that each launch a kernel.

    Marks which of them entered a graph, and which lost their kernel.
    """
    rows = np.flatnonzero(launches_of_kind(trace, "launch"))
    missing = ~have_run(trace, rows)
    entered = missing & trace.launch_args["event"].iloc[rows].isin(captured["event"]).to_numpy(bool)
    return rows, entered, missing & ~entered


def _count_launches(trace: Trace, window: Window, rows: Integers, entered: Flags, lost: Flags) -> LaunchCounts:
    """Counts launches without kernels by position.

    All counts are 0 in a trace without launches.
    """
    at_ns = starts_ns(trace, trace.launch_args["event"].to_numpy()[rows])
    served_ns = at_ns[~(entered | lost)]
    first_ns, last_ns = (served_ns.min(), served_ns.max()) if len(served_ns) else (np.iinfo(np.int64).max,) * 2
    ended_ns = ends_ns(trace, trace.device_args["event"].to_numpy()).max()
    lead, after = lost & (at_ns < first_ns), lost & (at_ns > last_ns)
    # While the device still works on what came before them, they wait in its queue. A step lacks what it queued.
    is_whole = window.source == "whole"
    if after.any() and _ends_in_queue(trace, at_ns, after):
        queued = after & (is_whole | (at_ns >= window.host_us[1] * 1e3))
    else:
        queued = after & (at_ns < ended_ns) & is_whole
    tail = after & ~queued
    behind_ns = at_ns.max() - ended_ns if len(at_ns) else 0
    return LaunchCounts(
        total=len(rows),
        captured=int(entered.sum()),
        lead=int(lead.sum()),
        between=int((lost & ~lead & ~after).sum()),
        tail=int(tail.sum()),
        queued=int(queued.sum()),
        tail_us=max(float(behind_ns), 0.0) / 1e3,
        bare_steps=_bare_steps(window, at_ns, lost),
    )


def queued_at_end(trace: Trace) -> Integers:
    """Gives rows in EVENTS of launches that were still queued when the recording ended."""
    rows = np.flatnonzero(launches_of_kind(trace, "launch"))
    event = trace.launch_args["event"].to_numpy()[rows]
    at_ns, ran = starts_ns(trace, event), have_run(trace, rows)
    after = ~ran & (at_ns > at_ns[ran].max(initial=np.iinfo(np.int64).min))
    return event[after] if ran.any() and _ends_in_queue(trace, at_ns, after) else event[:0]


def _ends_in_queue(trace: Trace, at_ns: Integers, after: Flags) -> bool:
    """True if the recording ended while the device still worked on what was queued.

    ``after`` marks launches without a kernel behind the last one that has one. What the device worked on when the
    recording ended is not in it, and may have lasted as long as the longest piece that is.
    """
    work = trace.device_args["event"].to_numpy()
    start_ns, end_ns = starts_ns(trace, work), ends_ns(trace, work)
    until_ns = end_ns.max() + (end_ns - start_ns).max()
    return bool((after & (at_ns < end_ns.max())).any() and at_ns.max() <= until_ns)


def _bare_steps(window: Window, at_ns: Integers, lost: Flags) -> tuple[str, ...]:
    """Names of the steps that have launches, none of which has its kernel."""
    steps = sorted([*window.steps, *(step for step, _ in window.set_aside)], key=lambda step: step.start_us)
    bounds_ns = [(int(step.start_us * 1e3), int(step.end_us * 1e3)) for step in steps]
    order = np.argsort(at_ns, kind="stable")
    at_ns, gone = at_ns[order], np.append(0, np.cumsum(lost[order]))
    bare = []
    for step, (start_ns, end_ns) in zip(steps, bounds_ns, strict=True):
        low, high = np.searchsorted(at_ns, (start_ns, end_ns))
        if high > low and gone[high] - gone[low] == high - low:
            bare.append(step.name)
    return tuple(bare)


def _repeats(ids: Integers) -> int:
    """Counts ids that an earlier row has too.

    Those of kernels of one graph replay are equal by nature.
    """
    stated = ids[ids > 0]
    return len(stated) - len(np.unique(stated))


def _overlaps_ns(trace: Trace) -> Integers:
    """Gives overlaps of device work with the next on its stream.

    A queue in order does not allow them.
    """
    event = trace.device_args["event"].to_numpy()
    event = event[np.lexsort((starts_ns(trace, event), threads(trace, event)))]
    track, start_ns, end_ns = threads(trace, event), starts_ns(trace, event), ends_ns(trace, event)
    over_ns = np.where(track[1:] == track[:-1], end_ns[:-1] - start_ns[1:], 0)
    return over_ns[over_ns > _ROUNDING_NS]


# Replays that are compared with one another; more of them say the same.
_MOST_REPLAYS, _FEWEST_REPLAYS = 500, 4
# Replays that lost some kernels by chance differ from each other; those of several graphs come again and again.
_DIFFERENT = 0.5


def _compare_replays(trace: Trace, kernels: pd.DataFrame) -> GraphReplays | None:
    """Counts graph replays that hold fewer kernels than others of their graph.

    Null where a profiler keeps all kernels, or the trace has no replays.
    """
    if not has_trait(trace.flavour, LOSES_OF_REPLAYS):
        return None
    replayed = (kernels["replayed"] & kernels["launch"].notna() & (kernels["kind"] == "compute")).to_numpy(bool)
    names = kernels["name"].cat.codes.to_numpy()[replayed].tolist()
    launches = as_integers(kernels["launch"])[replayed].tolist()
    contents: dict[int, Counter[int]] = {}
    for launch, name in zip(launches, names, strict=True):
        if launch in contents or len(contents) < _MOST_REPLAYS:
            contents.setdefault(launch, Counter())[name] += 1
    return _lost_of_graphs([*contents.values()]) if contents else None


def _lost_of_graphs(replays: Sequence[Counter[int]]) -> GraphReplays:
    """Counts the kernels that are missing from graph replays.

    Each replay is of the graph of the largest replay that holds all of it.
    """
    graphs: list[list[Counter[int]]] = []
    for replay in sorted(replays, key=lambda replay: -replay.total()):
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
    return GraphReplays(count=len(replays), short=short, lost=lost, whole=whole)


# The profiler numbers its ops from one to the next. Of 86 public traces, 85 hold the successor of most ops that they
# hold; one, an excerpt, holds one op in a hundred. Fewer ids than this show nothing.
_FEWEST_IDS = 4


def id_density(trace: Trace) -> float | None:
    """Gives the density of ids: 1 where ops follow one another.

    It is one over the median distance between neighbouring ids: External ids or autograd's sequence numbers, whichever
    is closer. Null where there are too few ids.
    """
    densities = []
    for column in ("external_id", "sequence"):
        ids = as_integers(trace.op_args[column])
        distances = np.diff(np.sort(ids[ids >= 0], kind="stable"))
        distances = distances[distances > 0]
        if len(distances) + 1 >= _FEWEST_IDS:
            # Most are equal, which a stable sort passes over at once and np.median takes longest for.
            distances.sort(kind="stable")
            middle = float(distances[(len(distances) - 1) // 2]) + float(distances[len(distances) // 2])
            densities.append(2.0 / middle)
    return max(densities, default=None)


_PRODUCT = re.compile(r"^aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_scaled_grouped_mm|_grouped_mm|mv|addmv|dot|_int_mm)$")


def find_losses(trace: Trace, ops: pd.DataFrame, kernels: pd.DataFrame, captured: pd.DataFrame) -> Losses:
    """Device work that must have run but is not in the trace; see ``_holes``.

    A product that fills its workspace runs a kernel after that.
    """
    multiplies = text_matches(ops["name"], _PRODUCT.search)
    product = np.append(nearest_ancestor(as_integers(ops["parent"]), multiplies), -1)[as_integers(kernels["op"])]
    fills = (kernels["kind"] == "fill").to_numpy()
    only_filled = np.setdiff1d(product[fills], product[~fills])
    return Losses(_holes(trace, kernels, captured), only_filled[only_filled >= 0])


def _holes(trace: Trace, kernels: pd.DataFrame, captured: pd.DataFrame) -> Flags:
    """Marks rows of KERNELS before which work of the queue is missing.

    The device was idle there. A device starts the next piece of a queue at once. So where it was idle although that was
    queued, and both pieces belong to one graph replay, or launches between theirs have no kernel, the missing work ran
    meanwhile.
    """
    called, _, lost = kernel_launches(trace, captured)
    lost_us = np.sort(trace.events["ts_us"].to_numpy()[trace.launch_args["event"].to_numpy()[called[lost]]])
    stream, device = kernels["stream"].cat.codes.to_numpy(), kernels["device"].to_numpy()
    start_us, launch_us, returned_us = (kernels[name].to_numpy() for name in ("ts_us", "launch_ts_us", "launch_end_us"))
    launch, end_us = kernels["launch"].to_numpy(np.int64, na_value=-1), start_us + kernels["dur_us"].to_numpy()
    holes = np.zeros(len(kernels), dtype=bool)
    for one in np.unique(device):
        rows = np.flatnonzero(device == one)
        done_us, after = np.maximum.accumulate(end_us[rows])[:-1], rows[1:]
        # The work that ended last, of all that started before.
        before = rows[np.maximum.accumulate(np.where(end_us[rows][:-1] >= done_us, np.arange(len(rows) - 1), 0))]
        waited = (stream[after] == stream[before]) & (start_us[after] - done_us > KERNEL_GAP_US)
        queued = returned_us[after] <= done_us
        is_replay = (launch[after] == launch[before]) & kernels["replayed"].to_numpy()[after]
        passed = np.searchsorted(lost_us, launch_us[after]) > np.searchsorted(lost_us, launch_us[before])
        holes[after] = waited & queued & (is_replay | passed)
    return holes
