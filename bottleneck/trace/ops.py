"""Builds OPS from EVENTS.

That is the op tree of every host thread, with backward ops tied to their forward ops.
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from msgspec import Struct
from pandas.arrays import IntegerArray

from bottleneck.schema.intervals import Codes, Flags, Integers
from bottleneck.schema.linked_trace import Trace, Window
from bottleneck.schema.op_names import BACKWARD_NODE, backward_of
from bottleneck.schema.tables import OPS, as_integers, category, nearest_ancestor, text_matches
from bottleneck.trace.frames import Labels, Places
from bottleneck.trace.joins import are_named, ends_ns, match_latest, starts_ns, threads
from bottleneck.trace.nesting import Nest, nest, to_ns


def forward_of(sequence: Integers, forward_thread: Integers, thread: Codes, start_ns: Integers) -> Integers:
    """Finds the row of the forward op of each backward op.

    -1 for other ops and where it is not in the trace. The profiler gives every op the next sequence number of its
    thread (-1: null), and a backward op that of its node together with autograd's id of the forward thread (0 or null
    on forward ops). Of the nested forward ops that share a number the one that started last made the node, as
    torch/csrc/profiler takes it for its own flow arrows. Numbers are counted per thread, but forward ops do not record
    autograd's id of theirs: it is taken to be the host thread that has most of the numbers in question.
    """
    forward_op = np.full(len(sequence), -1, dtype=np.int64)
    backward = np.flatnonzero((sequence >= 0) & (forward_thread > 0))
    forward = np.flatnonzero((sequence >= 0) & (forward_thread <= 0))
    for autograd_id in np.unique(forward_thread[backward]):
        rows = backward[forward_thread[backward] == autograd_id]
        sought = forward[np.isin(sequence[forward], sequence[rows])]
        if len(sought):
            sought = sought[thread[sought] == np.bincount(thread[sought]).argmax()]
            match = match_latest(sequence[sought], start_ns[sought], sequence[rows], start_ns[rows])
            forward_op[rows] = np.append(sought, -1)[match.before]
    return forward_op


_ISSUES_COLLECTIVE = re.compile(r"^(c10d|_?c10d_functional)::(?!wait)")


class OpTree(Struct, frozen=True):
    """The op trees, row for row as OPS.

    ``args`` is the row in OP_ARGS, ``thread`` the code of ``events.thread``. ``nest.track`` numbers the threads by
    their first op, so that no name of a thread decides the order of OPS.
    """

    nest: Nest
    args: Integers
    event: Integers
    thread: Integers
    track_of_thread: Integers

    def innermost(self, thread: Integers, at_ns: Integers) -> Integers:
        """Finds the row of the op that runs on a thread.

        It is the one at each instant, -1 where none runs.
        """
        return self.nest.innermost(self.track_of_thread[thread], at_ns)


def build_trees(trace: Trace) -> OpTree:
    """The op trees of all host threads."""
    event = trace.op_args["event"].to_numpy()
    start_ns = starts_ns(trace, event)
    thread = threads(trace, event)
    track_of_thread = _by_first_op(thread, start_ns, len(trace.events["thread"].cat.categories))
    # Ids are given out in the order in which ops begin: of two ops with the same rounded times the outer has the lower.
    trees = nest(track_of_thread[thread], start_ns, ends_ns(trace, event), as_integers(trace.op_args["external_id"]))
    return OpTree(trees, trees.order, event[trees.order], thread[trees.order], track_of_thread)


def build_ops(trace: Trace, window: Window, trees: OpTree, places: Places) -> pd.DataFrame:
    """Builds OPS.

    Durations are those of the trees: an op that outlasts the one around it by a rounding is cut.
    """
    events, tree = trace.events, trees.nest
    ts_us, dur_us = (events[name].to_numpy()[trees.event] for name in ("ts_us", "dur_us"))
    length_ns = tree.end_ns - tree.start_ns
    dur_us = np.where(to_ns(dur_us) == length_ns, dur_us, length_ns / 1e3)
    frame = pd.DataFrame(
        {
            "event": trees.event.astype(np.int64),
            "name": taken(events["name"], trees.event),
            "thread": taken(events["thread"], trees.event),
            "ts_us": ts_us,
            "dur_us": dur_us,
            "self_us": np.where(tree.children == 0, dur_us, tree.self_ns / 1e3),
            "parent": nullable(tree.parent, np.int32),
            "depth": tree.depth,
            "children": tree.children,
            "is_autograd": autograd_nodes(events["name"], tree.depth, trees.event),
            "signature": trace.op_args["signature"].array.take(trees.args),
            "step": step_at(window, tree.start_ns),
            "module": labelled(places.module.code, places.module.labels),
            "source": labelled(places.source.code, places.source.labels),
        },
        copy=False,
    )
    return OPS.check(frame)


# Names of nodes before torch 1.10, whose engine does not mark them.
_NODE = re.compile(r"^(?:torch::autograd::)?(?:\w+Backward\d*|AccumulateGrad)$")


def autograd_nodes(name: "pd.Series[str]", depth: Codes, rows: Integers) -> Flags:
    """Marks the ops that autograd's engine evaluates as nodes.

    They are known by its marks, or where there are none by their names.
    """
    marked = text_matches(name, lambda label: label.startswith(BACKWARD_NODE), rows=rows)
    return marked if marked.any() else text_matches(name, _NODE.search, rows=rows) & (depth == 0)


# Places that were inherited began elsewhere.
_UNKNOWN_SINCE = np.zeros(0, dtype=np.int64)


def inherit_from_forward(trace: Trace, trees: OpTree, places: Places) -> Places:
    """Gives backward ops, and all ops inside, their forward ops' places.

    Their source says so: 'backward of model.py:57'. A module or line that was entered inside the backward op itself is
    nearer the truth and stays: a recomputed forward pass under activation checkpointing.
    """
    sequence, forward_thread = (as_integers(trace.op_args[name])[trees.args] for name in ("sequence", "forward_thread"))
    forward = forward_of(sequence, forward_thread, trees.nest.track, trees.nest.start_ns)
    root = nearest_ancestor(trees.nest.parent, forward >= 0)
    module, _ = _inherited(places.module, trees, forward, root)
    source, is_backward = _inherited(places.source, trees, forward, root)
    code = np.where(is_backward, source.code + len(source.labels), source.code)
    labels = [*source.labels, *(backward_of(label) for label in source.labels)]
    return Places(module, Labels(code, labels, _UNKNOWN_SINCE))


def inherit_from_issuers(trace: Trace, trees: OpTree, places: Places, collective: Flags) -> Places:
    """Gives each collective of a host thread its issuer's place.

    The issuer is the op that last issued one before it began. One thread executes the collectives that others issue, in
    their order and, unless it is busy, at once.
    """
    if not collective.any():
        return places
    issues = are_named(trace, _ISSUES_COLLECTIVE, trees.event) & ~collective
    begun = np.flatnonzero(issues)[np.argsort(trees.nest.start_ns[issues], kind="stable")]
    last = np.searchsorted(trees.nest.start_ns[begun], trees.nest.start_ns[collective], side="right") - 1
    issuer = np.append(begun, -1)[last]

    def handed(labels: Labels) -> Labels:
        code = labels.code.copy()
        code[collective] = np.append(labels.code, -1)[issuer]
        return Labels(code, labels.labels, labels.since_ns)

    return Places(handed(places.module), handed(places.source))


def _inherited(labels: Labels, trees: OpTree, forward: Integers, root: Integers) -> tuple[Labels, Flags]:
    """Gives backward ops without labels those of their forward ops.

    Also marks the ops that this holds for.
    """
    if not labels.labels:
        return labels, np.zeros(len(labels.code), dtype=bool)
    began_ns = np.append(trees.nest.start_ns, 0)[root]
    inherited = np.append(labels.code, -1)[np.append(forward, -1)[root]]
    nearer = (labels.code >= 0) & (labels.since_ns >= began_ns)
    is_taken = (root >= 0) & (inherited >= 0) & ~nearer
    return Labels(np.where(is_taken, inherited, labels.code), labels.labels, _UNKNOWN_SINCE), is_taken


def taken(column: "pd.Series[str]", rows: Integers) -> pd.Categorical:
    """Some rows of a text column, with only the labels that they use."""
    return labelled(column.cat.codes.to_numpy()[rows].astype(np.int64), list(column.cat.categories))


def labelled(codes: Integers, labels: Sequence[str]) -> pd.Categorical:
    """A text column from codes (-1: null), with only the labels that are used."""
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(labels)))
    new_code = np.full(len(labels) + 1, -1, dtype=np.int32)
    new_code[used] = np.arange(len(used))
    return category(new_code[codes], [labels[label_code] for label_code in used.tolist()])


def nullable(rows: Integers, dtype: type[np.int32 | np.int64]) -> IntegerArray:
    """Row references with null for -1."""
    return IntegerArray(rows.astype(dtype), rows < 0)


def step_at(window: Window, at_ns: Integers) -> IntegerArray:
    """Index of the step that each instant lies in, null outside all of them."""
    if not window.steps:
        return nullable(np.full(len(at_ns), -1), np.int32)
    start_ns = to_ns(np.array([step.start_us for step in window.steps]))
    end_ns = to_ns(np.array([step.end_us for step in window.steps]))
    step = np.searchsorted(start_ns, at_ns, side="right") - 1
    return nullable(np.where((step >= 0) & (at_ns < end_ns[step]), step, -1), np.int32)


def _by_first_op(thread: Integers, start_ns: Integers, threads: int) -> Integers:
    """Numbers the threads in the order of their first ops.

    Threads without ops come last.
    """
    first = np.full(threads, np.iinfo(np.int64).max)
    np.minimum.at(first, thread, start_ns)
    track = np.empty(threads, dtype=np.int64)
    track[np.argsort(first, kind="stable")] = np.arange(threads)
    return track
