"""Links EVENTS to OPS, KERNELS and PLACES.

The op, module, line and step that issued each piece of device work are found. While a stream is captured, its launches
enter a graph and run only when that is replayed. A replay knows no ops, but the captured launches lie inside the ops
that made them.

A kernel is tied to the host call that issued it by correlation, and the call to the innermost op that was open on its
thread. The join by 'External id' is a fallback: in traces of PyTorch 1.12 to 2.2 it is a copy of the correlation, and
the naive join made thousands of wrong links (the reader nulls such ids).
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.errors import TraceError
from bottleneck.schema.intervals import Flags, Integers, union
from bottleneck.schema.linked_trace import Linked, Trace, Window
from bottleneck.schema.records import replace
from bottleneck.schema.tables import CAPTURED, KERNELS, are_calls, as_integers, category, text_matches
from bottleneck.system.working_memory import returns_memory
from bottleneck.trace.frames import Labels, Places, Stacks, find_places, locate
from bottleneck.trace.integrity import find_losses, have_run, launches_of_kind, measure_integrity
from bottleneck.trace.joins import find_launches, is_any_of, match_latest, names, starts_ns, threads
from bottleneck.trace.kernels import KernelTraits, describe_kernel, find_library
from bottleneck.trace.nesting import to_ns
from bottleneck.trace.ops import (
    OpTree,
    build_ops,
    build_trees,
    inherit_from_forward,
    inherit_from_issuers,
    labelled,
    nullable,
    step_at,
    taken,
)
from bottleneck.trace.vendors import ONE_PER_CALL, copy_columns, first_word, has_trait


def find_captured(trace: Trace, trees: OpTree) -> pd.DataFrame:
    """Builds CAPTURED: launches during a capture without device work.

    A capture lasts from its beginning to its end; the trace holds no device work of these launches. Backward passes are
    captured from the threads of autograd, so launches of every thread count.
    """
    event = trace.launch_args["event"].to_numpy()
    start_ns = starts_ns(trace, event)
    begin, end = (np.sort(start_ns[launches_of_kind(trace, kind)]) for kind in ("begin_capture", "end_capture"))
    capture = np.searchsorted(begin, start_ns, side="right") - 1
    open_ = (capture >= 0) & (np.searchsorted(end, start_ns) == np.searchsorted(end, np.append(begin, 0)[capture]))
    rows = np.flatnonzero(launches_of_kind(trace, "launch") & open_)
    rows = rows[~have_run(trace, rows)] if rows.size else rows
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    return CAPTURED.check(
        pd.DataFrame(
            {
                "capture": capture[rows].astype(np.int64),
                "event": event[rows],
                "op": nullable(trees.innermost(threads(trace, event[rows]), start_ns[rows]), np.int32),
                **_kernels(trace, rows),
            }
        )
    )


def _kernels(trace: Trace, rows: Integers) -> dict[str, object]:
    """Gives the name and traits of each launched kernel.

    A CUDA launch does not record the name.
    """
    column = trace.launch_args["kernel"].iloc[rows].cat
    traits = [describe_kernel(label) for label in column.categories]
    codes = column.codes.to_numpy()
    families = sorted({trait.family for trait in traits})
    family = np.array([*(families.index(trait.family) for trait in traits), -1], dtype=np.int64)
    return {
        "name": category(codes, list(column.categories)),
        "family": category(family[codes], families),
        "auxiliary": np.array([*(trait.auxiliary for trait in traits), False], dtype=bool)[codes],
    }


# A launch takes 3 to 10 us; loading a kernel or starting a library takes milliseconds.
_SHORTEST_START_UP_US = 1000.0
# The first call of another kind is start-up where it takes so many times what most calls of its name take.
_TIMES_USUAL = 10.0
# A call beside which the device works for most of its time is a wait for it, whatever its name.
_DEVICE_RESTS = 0.5


def _find_one_offs(trace: Trace, host_us: tuple[float, float], kernels: pd.DataFrame) -> Integers:
    """Finds calls into the driver that are paid only once.

    Gives rows in EVENTS of calls that began in this time, in the order of the trace. Each is the first launch of its
    kernel, the first call of its name and far longer than others of that, or one for memory before all work of the
    device, and takes milliseconds beside a device that rests: creation of a context, start of a library, loading of a
    kernel, memory that the allocator keeps. How long the window is does not matter, so that all ranks of a job call it
    the same.
    """
    rows = np.flatnonzero((trace.events["category"] == "runtime").to_numpy())
    start_us, dur_us = (trace.events[column].to_numpy()[rows] for column in ("ts_us", "dur_us"))
    inside = (start_us >= host_us[0]) & (start_us < host_us[1])
    name = trace.events["name"].cat.codes.to_numpy()[rows].astype(np.int64)
    long = inside & (dur_us > _SHORTEST_START_UP_US)
    if not long.any():
        return np.zeros(0, dtype=np.int64)
    usual_us = pd.Series(dur_us).groupby(name).quantile(0.5, interpolation="lower")
    launched = np.full(len(trace.events), -1, dtype=np.int64)
    issued = np.flatnonzero(kernels["launch"].notna().to_numpy())
    launched[as_integers(kernels["launch"])[issued]] = kernels["name"].cat.codes.to_numpy()[issued]
    first_of_name = np.isin(rows, rows[np.unique(name, return_index=True)[1]])
    first_of_kernel = np.isin(rows, rows[np.unique(launched[rows], return_index=True)[1]]) & (launched[rows] >= 0)
    is_launch = are_calls(trace, "launch")[rows]
    is_unusual = dur_us > _TIMES_USUAL * usual_us.reindex(name).to_numpy()
    # Before the device has done anything, memory is taken and freed to start a context.
    is_first = are_calls(trace, "allocate", "free")[rows] & (start_us + dur_us < kernels["ts_us"].min())
    long &= (first_of_name & is_unusual) | (is_launch & first_of_kernel) | is_first
    busy = union(kernels["ts_us"].to_numpy(), (kernels["ts_us"] + kernels["dur_us"]).to_numpy())
    beside_us = busy.covered_between(start_us[long], start_us[long] + dur_us[long])
    return rows[long][beside_us < _DEVICE_RESTS * dur_us[long]]


_REASONS = ["graph_replay", "outside_op", "no_launches", "launched_before", "no_correlation"]

# Device work whose traits follow from its kind, not its name; arguments may mark collectives too.
_BY_KIND = {kind: KernelTraits(kind, "none") for kind in ("copy", "fill", "collective")}


class _Issued(Struct, frozen=True):
    """Device work in the order of KERNELS.

    Rows are in DEVICE_ARGS, EVENTS, LAUNCH_ARGS and OPS (-1: none).
    """

    args: Integers
    event: Integers
    launch: Integers
    op: Integers
    replayed: Flags


# The largest machines have 72 devices in one domain. Each is explained by itself, against the whole host.
_MOST_DEVICES = 256


def _check_devices(trace: Trace) -> None:
    count = trace.device_args["device"].nunique()
    if count > _MOST_DEVICES:
        raise TraceError(
            f"the trace holds work of {count} devices",
            why=f"no process drives so many; at most {_MOST_DEVICES} are explained",
            fix="give one trace per rank",
        )


@returns_memory
def link(trace: Trace, window: Window) -> Linked:
    """Builds OPS, KERNELS and PLACES of a trace.

    Also gives the share of device time whose op is known, and what is missing or odd. A trace without device work gets
    one row of KERNELS per op, with the op's self time. Events that lie outside the window are linked too; only their
    step is null.
    """
    _check_devices(trace)
    trace = _without_host_collectives(_clip_open_spans(trace, window))
    trees = build_trees(trace)
    issued = _issue(trace, trees)
    stray = np.flatnonzero((issued.op < 0) & (issued.launch >= 0))
    call = trace.launch_args["event"].to_numpy()[issued.launch[stray]]
    thread = threads(trace, call)
    stacks = Stacks(trace)
    places = locate(
        stacks, np.concatenate([trees.thread, thread]), np.concatenate([trees.nest.start_ns, starts_ns(trace, call)])
    )
    of_ops = inherit_from_forward(trace, trees, _part(places, slice(None, len(trees.event))))
    of_strays = _part(places, slice(len(trees.event), None))
    captured = find_captured(trace, trees)
    collective = is_any_of(trace, ("collective",), trees.event)
    ops = build_ops(trace, window, trees, inherit_from_issuers(trace, trees, of_ops, collective))
    # The trees and places of a million ops take as much memory as OPS.
    del trees, places
    if not len(issued.event):
        kernels = _host_kernels(ops, collective)
        integrity = measure_integrity(trace, window, ops, kernels, captured)
        return Linked(trace, window, ops, kernels, None, find_places(stacks), captured, integrity=integrity)
    places_of_kernels = _places_of_kernels(of_ops, of_strays, issued.op, stray)
    kernels = _device_kernels(trace, window, issued, places_of_kernels, ops["name"])
    del of_ops, of_strays
    dur_us = kernels["dur_us"].to_numpy()
    linked_us = dur_us[issued.op >= 0].sum()
    return Linked(
        trace,
        window,
        ops,
        kernels,
        float(linked_us / dur_us.sum()) if dur_us.sum() > 0 else None,
        find_places(stacks),
        captured,
        losses=find_losses(trace, ops, kernels, captured),
        one_offs=tuple(_find_one_offs(trace, window.host_us, kernels).tolist()),
        one_offs_before=tuple(_find_one_offs(trace, (-np.inf, window.host_us[0]), kernels).tolist()),
        integrity=measure_integrity(trace, window, ops, kernels, captured),
    )


def _clip_open_spans(trace: Trace, window: Window) -> Trace:
    """Cuts annotations that are open at a recording's last step mark.

    The harness closes its window in a hook inside the optimizer's step. The profiler then writes that this annotation
    lasted until all was collected: up to 100 times as long as it did.
    """
    if window.source != "marks":
        return trace
    end_us, start_us = window.host_us[1], trace.events["ts_us"].to_numpy()
    dur_us = trace.events["dur_us"].to_numpy()
    is_open = is_any_of(trace, ("annotation",)) & (start_us < end_us) & (start_us + dur_us > end_us)
    if not is_open.any():
        return trace
    return replace(trace, events=trace.events.assign(dur_us=np.where(is_open, end_us - start_us, dur_us)))


def _without_host_collectives(trace: Trace) -> Trace:
    """Gives the trace without collectives of host threads.

    Only where a device works: there they are no part of the timeline.
    """
    is_collective = is_any_of(trace, ("collective",), trace.op_args["event"].to_numpy())
    if trace.device_args.empty or not is_collective.any():
        return trace
    return replace(trace, op_args=trace.op_args[~is_collective].reset_index(drop=True))


def _issue(trace: Trace, trees: OpTree) -> _Issued:
    """Gives all device work in order.

    Sorted by start, then longer first, then in the order in which it was issued.
    """
    event = trace.device_args["event"].to_numpy()
    correlation = as_integers(trace.device_args["correlation"])
    start_ns, dur_us = starts_ns(trace, event), trace.events["dur_us"].to_numpy()[event]
    launched = find_launches(trace)
    # Correlations are usually in order of issue too, but need not be: they decide only where no call does.
    args = np.lexsort((event, correlation, launched, -dur_us, start_ns)).astype(np.int64)
    launch = launched[args]
    op = _by_interval(trace, trees, launch)
    loose = np.flatnonzero(op < 0)
    op[loose] = _by_external_id(trace, trees, args[loose])
    return _Issued(args, event[args], launch, op, _replayed(trace, args, launch))


def _by_interval(trace: Trace, trees: OpTree, launch: Integers) -> Integers:
    """Finds the innermost op open at the start of each call.

    -1 where there is none. No slack is given at an op's end, not even in traces of whole microseconds: in all of the
    public ones it would make one link, and that to the wrong op.
    """
    op = np.full(len(launch), -1, dtype=np.int64)
    called = np.flatnonzero(launch >= 0)
    event = trace.launch_args["event"].to_numpy()[launch[called]]
    op[called] = trees.innermost(threads(trace, event), starts_ns(trace, event))
    return op


def _by_external_id(trace: Trace, trees: OpTree, args: Integers) -> Integers:
    """The op whose id the device work carries, -1 where it carries none."""
    ids = as_integers(trace.op_args["external_id"])[trees.args]
    ids_of_work = as_integers(trace.device_args["external_id"])[args]
    at_ns = starts_ns(trace, trace.device_args["event"].to_numpy()[args])
    return match_latest(ids, trees.nest.start_ns, ids_of_work, at_ns).nearest


def _replayed(trace: Trace, args: Integers, launch: Integers) -> Flags:
    """Marks work of a replayed graph.

    It is known by its graph id, its call's name, or many kernels under one call.
    """
    by_name = np.append(launches_of_kind(trace, "graph_launch"), False)[launch]
    by_graph = as_integers(trace.device_args["graph"])[args] > 0
    if not has_trait(trace.flavour, ONE_PER_CALL):
        return by_name | by_graph
    kernels = (launch >= 0) & is_any_of(trace, ("kernel",), trace.device_args["event"].to_numpy()[args])
    count = np.bincount(launch[kernels], minlength=len(trace.launch_args) + 1)
    return by_name | by_graph | (kernels & (count[launch] > 1))


def _part(places: Places, rows: slice) -> Places:
    return Places(
        *(Labels(labels.code[rows], labels.labels, labels.since_ns[rows]) for labels in (places.module, places.source))
    )


def _places_of_kernels(of_ops: Places, of_strays: Places, op: Integers, stray: Integers) -> Places:
    """Gives the places of the issuing ops.

    That of the call itself where it lies outside any op.
    """

    def merged(ops: Labels, strays: Labels) -> Labels:
        code = np.append(ops.code, -1)[op]
        code[stray] = strays.code
        return Labels(code, ops.labels, np.empty(0, dtype=np.int64))

    return Places(merged(of_ops.module, of_strays.module), merged(of_ops.source, of_strays.source))


def _device_kernels(
    trace: Trace, window: Window, issued: _Issued, places: Places, op_names: "pd.Series[str]"
) -> pd.DataFrame:
    events, args = trace.events, trace.device_args.iloc[issued.args]
    call = np.append(trace.launch_args["event"].to_numpy(), -1)[issued.launch]
    launched = issued.launch >= 0
    launch_us, launch_dur_us = (
        np.where(launched, np.append(events[name].to_numpy(), np.nan)[call], np.nan) for name in ("ts_us", "dur_us")
    )
    names_of = pd.Series(taken(events["name"], issued.event))
    frame = pd.DataFrame(
        {
            "event": issued.event,
            "name": names_of.array,
            "device": args["device"].fillna(0).to_numpy(np.int32),
            "stream": taken(events["thread"], issued.event),
            "ts_us": events["ts_us"].to_numpy()[issued.event],
            "dur_us": events["dur_us"].to_numpy()[issued.event],
            "op": nullable(issued.op, np.int32),
            "launch": nullable(call, np.int64),
            "launch_ts_us": launch_us,
            "launch_end_us": launch_us + launch_dur_us,
            "step": step_at(window, np.where(launched, to_ns(np.nan_to_num(launch_us)), np.iinfo(np.int64).min)),
            "module": labelled(*_modules_or_marks(places.module, args["annotation"], issued.replayed)),
            "source": labelled(places.source.code, places.source.labels),
            **_traits(trace, issued),
            **_grid(trace, args, call),
            "bytes": args["bytes"].array,
            "library": _libraries(names_of, op_names, issued.op),
            **_copies(trace, issued.event),
            "replayed": issued.replayed,
            "unlinked": category(_reasons(trace, issued), _REASONS),
        },
        copy=False,
    )
    return KERNELS.check(frame[list(KERNELS.columns)])


def _copies(trace: Trace, event: Integers) -> dict[str, object]:
    """The way and the host's memory of copies, which their names tell."""
    is_copy = is_any_of(trace, ("copy",), event)
    return {**copy_columns(np.where(is_copy, names(trace, event), -1), list(trace.events["name"].cat.categories))}


def _modules_or_marks(module: Labels, marks: pd.Series, replayed: Flags) -> tuple[Integers, Sequence[str]]:
    """Gives codes and labels of modules, or of marks.

    Marks stand for replayed work without a module; they are those set as its graph was captured.
    """
    mark = marks.cat.codes.to_numpy().astype(np.int64)
    marked = replayed & (module.code < 0) & (mark >= 0)
    if not marked.any():
        return module.code, module.labels
    labels = [*module.labels, *marks.cat.categories]
    return np.where(marked, mark + len(module.labels), module.code), labels


def _grid(trace: Trace, args: pd.DataFrame, call: Integers) -> dict[str, object]:
    """Gives blocks, threads per block and registers per thread.

    Null where the trace has a zero for want of a number. One trace of an MI300X has a grid of (0, 0, 0) for every
    kernel: no reason to call its kernels small. A call that takes a grid in threads reports it so: that of HIP which
    hipBLASLt and MIOpen use.
    """
    shape = {name: args[name].mask(args[name] == 0) for name in ("blocks", "threads", "registers")}
    in_threads = (call >= 0) & text_matches(trace.events["name"], lambda name: first_word("grid", name), rows=call)
    whole_blocks = in_threads & (shape["blocks"] % shape["threads"] == 0).fillna(value=False).to_numpy(dtype=bool)
    shape["blocks"] = shape["blocks"].mask(whole_blocks, shape["blocks"] // shape["threads"])
    return {name: values.array for name, values in shape.items()}


# Inductor names a kernel by its kind and ops only where told to ("triton_poi_fused_relu_0"): one without such words may
# be a pointwise one, a reduction or a product.
_UNNAMED = re.compile(r"^triton_[_\dcde]*$")
# Tiles of two operands of a product fill more shared memory than the partial sums of a reduction do.
_TILES_BYTES = 8192
_OF_UNKNOWN_KIND = KernelTraits("other")


def _traits(trace: Trace, issued: _Issued) -> dict[str, object]:
    """Gives the columns that name and kind of device work decide.

    Each distinct name is judged once.
    """
    labels = trace.events["name"].cat.categories
    used, row = np.unique(names(trace, issued.event), return_inverse=True)
    of_names = [describe_kernel(labels[code]) for code in used.tolist()]
    traits = [*of_names, *_BY_KIND.values()]
    kinds = list(trace.events["category"].cat.categories)
    kind = trace.events["category"].cat.codes.to_numpy()[issued.event]
    is_marked = trace.device_args["collective"].notna().to_numpy()[issued.args]
    for position, work_kind in enumerate(_BY_KIND):
        is_kind = kind == kinds.index(work_kind) if work_kind in kinds else np.zeros(len(kind), dtype=bool)
        is_each = is_kind | is_marked if work_kind == "collective" else is_kind & ~is_marked
        row = np.where(is_each, len(of_names) + position, row)
    may_multiply = np.array([bool(_UNNAMED.match(labels[code])) for code in used.tolist()] + [False] * len(_BY_KIND))
    shared_bytes = trace.device_args["shared_bytes"].to_numpy(dtype=np.float64, na_value=0.0)[issued.args]
    row = np.where(may_multiply[row] & (shared_bytes >= _TILES_BYTES), len(traits), row)
    traits.append(_OF_UNKNOWN_KIND)
    is_collective = np.array([trait.family == "collective" for trait in traits], dtype=bool)[row]
    words = ["compute" if word == "kernel" else word for word in kinds]
    return {
        "kind": _of_words([*words, "collective"], np.where(is_collective, len(words), kind)),
        "auxiliary": np.array([trait.auxiliary for trait in traits], dtype=bool)[row],
        **{
            name: _of_words([getattr(trait, name) for trait in traits], row)
            for name in ("family", "engine", "math_dtype")
        },
    }


# Ops that are named after the library that they call: it computes their kernels whose own names tell none.
_SAID_BY_OPS = frozenset({"cuDNN", "MIOpen", "oneDNN"})


def _libraries(names_of: "pd.Series[str]", op_names: "pd.Series[str]", op: Integers) -> pd.Categorical:
    """Gives the library of device work by its name, else by its op's.

    ``op`` holds rows of ``op_names``, -1 for none.
    """
    by_name, by_op = _library_by_code(names_of), _library_by_code(op_names, _SAID_BY_OPS)
    labels = sorted({library for library in (*by_name, *by_op) if library is not None})
    own, issuer = (
        np.array([-1 if library is None else labels.index(library) for library in (*libraries, None)], dtype=np.int64)
        for libraries in (by_name, by_op)
    )
    code = own[names_of.cat.codes.to_numpy()]
    return labelled(np.where(code < 0, issuer[np.append(op_names.cat.codes.to_numpy(), -1)[op]], code), labels)


def _library_by_code(column: "pd.Series[str]", accepted: frozenset[str] | None = None) -> list[str | None]:
    """The library of each label of a column, or null.

    Labels that no row has are not looked at.
    """
    labels: list[str | None] = [None] * len(column.cat.categories)
    for code in np.flatnonzero(np.bincount(column.cat.codes.to_numpy() + 1)[1:]).tolist():
        library = find_library(column.cat.categories[code])
        labels[code] = library if accepted is None or library in accepted else None
    return labels


def _of_words(words: Sequence[str | None], rows: Integers) -> pd.Categorical:
    """A text column of some of these words, which may be equal, or null."""
    labels = sorted({word for word in words if word is not None})
    code = np.array([-1 if word is None else labels.index(word) for word in words], dtype=np.int64)
    return labelled(code[rows], labels)


def _reasons(trace: Trace, issued: _Issued) -> Integers:
    """Gives the reason for which each row has no op.

    It is a code in _REASONS, -1 where the row has an op.
    """
    launched, correlated = issued.launch >= 0, as_integers(trace.device_args["correlation"])[issued.args] >= 0
    conditions = [
        issued.op >= 0,
        launched & issued.replayed,
        launched,
        correlated & (len(trace.launch_args) == 0),
        correlated,
    ]
    return np.select(conditions, [-1, 0, 1, 2, 3], default=4)


def _host_kernels(ops: pd.DataFrame, collective: Flags) -> pd.DataFrame:
    """Builds KERNELS of a trace without device work.

    It is row for row as OPS. Some rows are collectives.
    """
    rows = np.arange(len(ops))
    none = np.full(len(ops), -1)
    unknown = ("engine", "math_dtype", "copy_way", "host_memory", "unlinked")
    nowhere = {name: category(none, []) for name in unknown}
    frame = pd.DataFrame(
        {
            **{name: ops[name] for name in ("event", "name", "ts_us", "step", "module", "source")},
            "library": _libraries(ops["name"], ops["name"], none),
            "kind": _of_two(collective, "compute", "collective"),
            "device": np.zeros(len(ops), dtype=np.int32),
            "stream": ops["thread"],
            "dur_us": ops["self_us"],
            "op": nullable(rows, np.int32),
            **{name: np.full(len(ops), np.nan) for name in ("launch_ts_us", "launch_end_us")},
            "family": _of_two(collective, "host", "collective"),
            **{name: nullable(none, np.int64) for name in ("launch", "blocks", "threads", "bytes")},
            "registers": nullable(none, np.int32),
            **{name: np.zeros(len(ops), dtype=bool) for name in ("auxiliary", "replayed")},
            **nowhere,
        }
    )
    return KERNELS.check(frame[list(KERNELS.columns)])


def _of_two(flags: Flags, off: str, on: str) -> pd.Categorical:
    """One of two words per row."""
    return category(flags.astype(np.int64), [off, on] if flags.any() else [off])
