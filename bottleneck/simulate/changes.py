"""Reads the changes that a step can be replayed with.

They are words: 'remove sync@model.py:57', 'fuse module:RMSNorm'. A change is a verb and a target. A target is a kind of
work, and may narrow it by a pattern of names (``*`` and ``?``) and by a line of the program: ``kernel:softmax*``,
``sync@model.py:57``.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import reduce
from operator import and_

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.errors import UsageError
from bottleneck.schema.accounts import HOST_STATES
from bottleneck.schema.evidence import Evidence, ShorterKernels, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.linked_trace import LONGEST_ISSUE_US
from bottleneck.schema.op_names import place_of
from bottleneck.schema.records import replace
from bottleneck.schema.tables import COPIES, SYNCHRONISES, are_calls, as_integers, nearest_ancestor, text_matches
from bottleneck.simulate.graph import Texts, graph_of, ops_of_points, sources_of_host, sources_of_points
from bottleneck.simulate.replay import NO_CHANGE, GraphChange

_CHANGE = re.compile(
    r"(?P<verb>set|remove|fuse|overlap|graph)(?: (?P<kind>[a-z]+)(?::(?P<glob>[^@]*?))?(?:@(?P<line>.*?))?)?"
    r"(?:=(?P<to>floor|\d+(?:\.\d+)?(?:x|us|ms)))?"
)
_DEVICE_KINDS = {"kernel": (), "copy": ("copy", "fill"), "collective": ("collective",)}
_OP_KINDS = ("op", "module", "line")
_STATE_KINDS = ("input", "gc", "allocator")
KINDS = (*_DEVICE_KINDS, *_OP_KINDS, "sync", "host", *_STATE_KINDS, "batch")
EXAMPLES = "set kernel:softmax*=0.5x, remove sync@model.py:57, fuse module:RMSNorm, overlap collective, graph"
_NUMBERED = re.compile(r"_\d+$")
_SYNC, _INPUT, _LAUNCH = (HOST_STATES.index(state) for state in ("sync", "input", "launch"))
# States of the host in which it issues work.
_ISSUES = [HOST_STATES.index(state) for state in ("dispatch", "launch", "python")]
# What is left of work that takes no time: it is launched all the same.
_LEAST_LEFT = 1e-9


class Target(Struct, frozen=True):
    """Masks of device work, host stretches and points that a change is about."""

    device: Flags
    host: Flags
    points: Flags

    @property
    def is_empty(self) -> bool:
        """True where nothing is chosen."""
        return not (self.device.any() or self.host.any() or self.points.any())


def change_of(texts: tuple[str, ...], evidence: Evidence) -> GraphChange:
    """Returns the changes of some texts together.

    Raises UsageError for a text that is none, or that nothing in the trace fits.
    """
    return reduce(and_, (_parsed(text.strip(), evidence) for text in texts), NO_CHANGE)


def _parsed(text: str, evidence: Evidence) -> GraphChange:
    match = _CHANGE.fullmatch(text)
    if match is None or (match["verb"] == "graph") is not (match["kind"] is None):
        raise UsageError(f"{text!r} is no change to a step", fix=f"write it as one of: {EXAMPLES}")
    verb, kind, to = match["verb"], match["kind"], match["to"]
    if (verb == "set") is not (to is not None):
        why = "a value is missing" if verb == "set" else "only set takes a value"
        raise UsageError(
            f"{text!r} is no change to a step", why=why, fix="write set kernel:softmax*=0.5x, =40us or =floor"
        )
    if verb == "graph":
        return _as_one_graph(evidence)
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(KINDS)}"
        raise UsageError(f"{text!r}: {kind} is no kind of work", fix=fix)
    if kind == "batch":
        return _batch(text, to, evidence)
    target = find_target(kind, match["glob"] or "", match["line"] or "", evidence)
    if target.is_empty:
        raise _nothing_fits(text, kind, match["glob"] or "", match["line"] or "", evidence)
    return _VERBS[verb](text, target, to, evidence)


def _nothing_fits(text: str, kind: str, glob: str, line: str, evidence: Evidence) -> UsageError:
    """Returns the error for a target that the steps do not have.

    It names what is near to it.
    """
    names = sorted(_names(kind, evidence))
    if line and not find_target(kind, glob, "", evidence).is_empty:
        sources = sorted(
            {str(source) for source in (*sources_of_host(evidence), *sources_of_points(evidence)) if source}
        )
        return UsageError(f"{text!r}: nothing of this kind is at {line}", fix=_near(line, sources))
    return UsageError(f"{text!r}: nothing in the steps of this trace fits", fix=_near(glob, names))


def _near(wanted: str, known: list[str]) -> str:
    """Advice that names what is nearest to a word among the known ones."""
    if not known:
        return "this trace has nothing of this kind"
    by_lower = {name.lower(): name for name in known}
    bare = wanted.strip("*").lower()
    near = [by_lower[other] for other in by_lower if bare and bare in other][:3]
    near = near or [by_lower[other] for other in get_close_matches(bare, by_lower, n=3, cutoff=0.5)] or known[:3]
    return "there is " + ", ".join(name if len(name) <= 60 else f"{name[:57]}…" for name in near)


def _names(kind: str, evidence: Evidence) -> set[str]:
    """The names that a pattern of this kind is held against."""
    graph, linked = graph_of(evidence), evidence.linked
    if kind in _DEVICE_KINDS:
        return set(linked.kernels["name"].iloc[graph.device.row[_of_kind(kind, evidence)]].astype(str))
    if kind == "sync":
        return set(linked.trace.events["name"].iloc[graph.call[_syncs(evidence)]].astype(str))
    if kind == "module":
        paths = (str(path) for path in linked.ops["module"].cat.categories)
        return {_NUMBERED.sub("", part) for path in paths for part in path.split(".")}
    if kind == "op":
        return set(map(str, linked.ops["name"].cat.categories))
    if kind == "line":
        return set(map(str, linked.ops["source"].cat.categories))
    return set(HOST_STATES) if kind == "host" else set()


def find_target(kind: str, glob: str, line: str, evidence: Evidence) -> Target:
    """Returns what a kind, a pattern and a line choose; empty texts choose all."""
    graph, linked = graph_of(evidence), evidence.linked
    kernels = linked.kernels.iloc[graph.device.row]
    device, host = np.zeros(graph.device.row.size, dtype=bool), np.zeros(graph.host.us.size, dtype=bool)
    points = np.zeros(graph.awaited.size, dtype=bool)
    if kind in _DEVICE_KINDS:
        device = _of_kind(kind, evidence) & _fits(kernels["name"], glob)
        if kind == "copy":
            points = _copy_calls(evidence) & graph.waits & np.append(device, False)[graph.awaited.clip(-1)]
    elif kind in _OP_KINDS:
        ops = np.append(_ops_chosen(kind, glob, evidence), False)
        device, host = ops[as_integers(kernels["op"])], ops[graph.host.op]
        points = ops[ops_of_points(graph)] & _syncs(evidence)
    elif kind == "sync":
        points = _syncs(evidence) & _fits(_calls(evidence), glob)
        host = (graph.host.state == _SYNC) & ~graph.host.held & np.isin(graph.host.event, graph.call[points])
    else:
        states = [state for state in HOST_STATES if fnmatchcase(state, glob or "*")] if kind == "host" else [kind]
        host = np.isin(graph.host.state, [HOST_STATES.index(state) for state in states])
        points = graph.ready_us > 0 if kind == "input" else points
    if line:
        device = device & text_matches(kernels["source"], lambda source: is_at(source, line))
        host, points = host & _at(sources_of_host(evidence), line), points & _at(sources_of_points(evidence), line)
    return Target(device, host, points)


def is_at(source: str, line: str) -> bool:
    """True if a source is this line, or says more about it.

    Such as 'backward of model.py:57', 'train() (model.py:57)'.
    """
    return line in {source, line_of(source)} or fnmatchcase(source, line)


def line_of(source: str) -> str:
    """The line that a source names, 'model.py:57'; the source where it names none."""
    place = place_of(source)
    return source if place is None else f"{place.file}:{place.line}"


def _at(sources: Texts, line: str) -> Flags:
    """Mask of the sources at a line; each distinct one is tried once."""
    codes, labels = pd.factorize(sources)
    return np.append([is_at(str(label), line) for label in labels], False).astype(bool)[codes]


def _of_kind(kind: str, evidence: Evidence) -> Flags:
    """Mask of the device work of a kind; of all for 'kernel'."""
    kinds = _DEVICE_KINDS[kind]
    rows = evidence.linked.kernels["kind"].iloc[graph_of(evidence).device.row]
    return rows.isin(kinds).to_numpy() if kinds else np.ones(len(rows), dtype=bool)


@remembered
def _syncs(evidence: Evidence) -> Flags:
    """Marks points at which the program's own calls wait, copies to the device apart.

    The allocator and launches with a full queue wait too, but nobody asked them to.
    """
    graph = graph_of(evidence)
    is_sync = are_calls(evidence.linked.trace, *SYNCHRONISES)[graph.call]
    reads = (evidence.linked.kernels["copy_way"] == "to_host").to_numpy()[graph.device.row]
    return np.asarray(
        graph.waits & (is_sync | (_copy_calls(evidence) & np.append(reads, False)[graph.awaited.clip(-1)]))
    )


def _calls(evidence: Evidence) -> "pd.Series[str]":
    """The name of the call at each point."""
    return evidence.linked.trace.events["name"].iloc[graph_of(evidence).call]


def _copy_calls(evidence: Evidence) -> Flags:
    return are_calls(evidence.linked.trace, *COPIES)[graph_of(evidence).call]


def _fits(names: "pd.Series[str]", glob: str) -> Flags:
    """Mask of the names of which a part fits a pattern."""
    return text_matches(names, lambda name: fnmatchcase(name, f"*{glob}*"))


def _ops_chosen(kind: str, glob: str, evidence: Evidence) -> Flags:
    """Mask over OPS of the ops that fit, with all inside them."""
    ops = evidence.linked.ops
    if kind == "op":
        chosen = text_matches(ops["name"], lambda name: fnmatchcase(name, glob or "*"))
        return nearest_ancestor(as_integers(ops["parent"]), chosen) >= 0
    if kind == "line":
        return text_matches(ops["source"], lambda source: fnmatchcase(source, glob or "*"))

    def is_module(path: str) -> bool:
        """True if the path fits, or one of its modules does.

        A module fits by its class or its name.
        """
        modules = path.split(".")
        names = (path, *modules, *(_NUMBERED.sub("", module) for module in modules))
        return any(fnmatchcase(name, glob or "*") for name in names)

    return text_matches(ops["module"], is_module)


def _remove(_text: str, target: Target, _to: str | None, evidence: Evidence) -> GraphChange:
    host = target.host | _only_for(target.device, evidence)
    return GraphChange(
        host=np.where(host, 0.0, 1.0),
        device=np.where(target.device, 0.0, 1.0),
        arrival=np.where(target.points, 0.0, 1.0),
        no_wait=target.points,
    )


def _only_for(device: Flags, evidence: Evidence) -> Flags:
    """Mask of the host stretches in ops that issue work, and none but this."""
    graph = graph_of(evidence)
    op = as_integers(evidence.linked.kernels["op"])[graph.device.row]
    size = len(evidence.linked.ops) + 1
    chosen, others = (np.bincount(op[mask & (op >= 0)], minlength=size) > 0 for mask in (device, ~device))
    return np.asarray((chosen & ~others)[graph.host.op])


def _set(text: str, target: Target, to: str | None, evidence: Evidence) -> GraphChange:
    assert to is not None
    device_us = graph_of(evidence).device.us
    if to.endswith("x"):
        factor = float(to[:-1])
        return GraphChange(
            host=np.where(target.host, factor, 1.0),
            device=np.where(target.device, factor, 1.0),
            arrival=np.where(target.points, factor, 1.0),
        )
    if not target.device.any():
        raise UsageError(
            f"{text!r}: ={to} is a time of kernels, and the target has none", fix="give a factor, such as =0.5x"
        )
    if to == "floor":
        floors_us = floors_of(evidence)
        factors = np.fmin(np.divide(floors_us, device_us, out=np.ones(device_us.size), where=device_us > 0), 1.0)
        return GraphChange(device=np.where(target.device, np.nan_to_num(factors, nan=1.0), 1.0))
    each_us = float(to[:-2]) * (1e3 if to.endswith("ms") else 1.0)
    factors = np.divide(each_us, device_us, out=np.ones(device_us.size), where=device_us > 0)
    return GraphChange(device=np.where(target.device, factors, 1.0))


def floors_of(evidence: Evidence) -> Floats:
    """The largest floor of the graph's device work; null where it is not modelled."""
    rows = evidence.roofline.iloc[graph_of(evidence).device.row]
    floors = np.fmax(rows["compute_us"].to_numpy(np.float64), rows["memory_us"].to_numpy(np.float64))
    return np.asarray(np.where(np.isnan(floors), np.nan, np.fmax(floors, rows["launch_us"].to_numpy(np.float64))))


def _fuse(_text: str, target: Target, _to: str | None, evidence: Evidence) -> GraphChange:
    """Joins kernels of one compiled loop, which takes as long as the longest.

    A pass over the data that does all of the work cannot be shorter than one that does a part.
    """
    us, loop = graph_of(evidence).device.us, loops_of(evidence)
    rows = np.flatnonzero(target.device & (loop >= 0))
    _, first, number = np.unique(loop[rows], return_index=True, return_inverse=True)
    longest_us = np.zeros(first.size)
    np.maximum.at(longest_us, number, us[rows])
    factor = np.ones(us.size)
    factor[rows] = 0.0
    factor[rows[first]] = longest_us / np.maximum(us[rows[first]], 1e-9)
    left = float((target.device & (factor > 0)).sum()) / max(float(target.device.sum()), 1.0)
    return GraphChange(host=np.where(target.host, left, 1.0), device=factor)


def loops_of(evidence: Evidence) -> Integers:
    """Returns the compiled loop of each piece of device work, -1 for none."""
    return np.asarray(evidence.loops["loop"].to_numpy()[graph_of(evidence).device.row])


def _overlap(text: str, target: Target, _to: str | None, evidence: Evidence) -> GraphChange:
    """Returns device work that nothing waits for any more.

    Or data that one process loads beside the step.
    """
    graph = graph_of(evidence)
    if target.device.any() and not target.host.any():
        return GraphChange(detached=target.device, no_wait=target.points)
    is_input = target.host & (graph.host.state == _INPUT)
    if not (is_input.any() or target.points.any()):
        raise UsageError(
            f"{text!r}: there is nothing that could overlap", fix="write overlap collective, copy or input"
        )
    waits_us = float(graph.host.us[is_input].sum())
    return replace(_remove(text, replace(target, host=is_input), None, evidence), least_us=waits_us)


def _as_one_graph(evidence: Evidence) -> GraphChange:
    """All work issued at once, as the replay of a graph does."""
    return GraphChange(host=_without_issuing(evidence, np.ones(graph_of(evidence).host.us.size, dtype=bool)))


def shorten(evidence: Evidence, work: ShorterKernels) -> GraphChange:
    """Returns the change to shorter kernels.

    What the host does from one launch to a spared one falls away; of an op that launches other kernels too, only its
    calls that launch do. A spared kernel without any time left is not there.
    """
    graph = graph_of(evidence)
    us, row = graph.device.us, graph.device.row
    left = np.divide(us - work.less_us[row], us, out=np.ones(us.size), where=us > 0)
    left = np.maximum(left, _LEAST_LEFT)
    if work.spared is None:
        return GraphChange(device=left)
    change = GraphChange(device=np.where(work.spared[row] & (left <= _LEAST_LEFT), 0.0, left))
    point, is_issued = graph.device.point, graph.device.point >= 0
    chosen = (is_issued, is_issued & work.spared[row], is_issued & _in_kept_ops(evidence, work.spared)[row])
    issued, spared, in_kept = (np.bincount(point[rows], minlength=graph.awaited.size + 1) for rows in chosen)
    falls_away = (issued == spared) & (issued > 0)
    goes = falls_away[graph.host.point] & ((in_kept == 0)[graph.host.point] | (graph.host.state == _LAUNCH))
    return replace(change, host=_without_issuing(evidence, goes))


def _in_kept_ops(evidence: Evidence, spared: Flags) -> Flags:
    """Masks the kernels whose op launches others that are not spared."""
    op = as_integers(evidence.linked.kernels["op"])
    launches = np.bincount(op[~spared & (op >= 0)], minlength=len(evidence.linked.ops) + 1) > 0
    return np.asarray(launches[op] & (op >= 0))


def _without_issuing(evidence: Evidence, chosen: Flags) -> Floats:
    """Returns host factors without issuing in the chosen stretches, long ones apart."""
    host = graph_of(evidence).host
    beyond_us = np.maximum(host.us - LONGEST_ISSUE_US, 0.0)
    stays = np.divide(beyond_us, host.us, out=np.zeros(beyond_us.size), where=host.us > 0)
    return np.where(chosen & np.isin(host.state, _ISSUES), stays, 1.0)


def _batch(text: str, to: str | None, evidence: Evidence) -> GraphChange:
    """Multiplies device work beyond its launch, and loading, as more samples would."""
    if to is None or not to.endswith("x"):
        raise UsageError(f"{text!r}: a batch is set to a multiple", fix="write set batch=2x")
    graph, factor = graph_of(evidence), float(to[:-1])
    floor = np.nan_to_num(evidence.roofline["launch_us"].to_numpy(np.float64)[graph.device.row], nan=0.0)
    us = graph.device.us
    fixed = np.divide(np.minimum(floor, us), us, out=np.ones(floor.size), where=us > 0)
    host = np.where(graph.host.state == _INPUT, factor, 1.0)
    return GraphChange(
        device=fixed + (1 - fixed) * factor, host=host, arrival=np.where(graph.ready_us > 0, factor, 1.0)
    )


_VERBS: Mapping[str, Callable[[str, Target, str | None, Evidence], GraphChange]] = {
    "set": _set,
    "remove": _remove,
    "fuse": _fuse,
    "overlap": _overlap,
}
