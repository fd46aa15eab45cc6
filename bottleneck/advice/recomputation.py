"""Finds activations that a checkpoint computes again in the backward pass (rule 35)."""

import re

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, requires_gain, work_of
from bottleneck.advice.memory_capacity import follows_forward
from bottleneck.advice.quantities import ISSUE_ACCOUNTS, claims_of, issue_us, outermost_frames
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import main_source, sequence_numbers
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats, Integers, Spans, numbered, union
from bottleneck.schema.op_names import BACKWARD_NODE, at_known, forward_of
from bottleneck.schema.tables import text_matches
from bottleneck.units import format_share, format_us

_LEAST_SHARE = 0.02

_RECOMPUTES = re.compile(r"^CheckpointFunctionBackward$|evaluate_function: CheckpointFunctionBackward")
# The other kind of checkpoint runs the forward pass again where the backward pass unpacks what was not kept. Where no
# calls of Python were recorded, it is known by so many ops of a node that autograd records, in the forward's order.
_LEAST_REPEATED = 8
_UNPACKS = re.compile(r"torch[/\\]utils[/\\]checkpoint\.py\(\d+\): unpack_hook$")
_MOST_USED = 0.7
# Kernels of which no more is left out are those of the repeated pass alone.
_WHOLE = 0.9
# Of the time of the repeated pass on a CPU: a GPT of 27 million parameters with LoRA took 0.97 to 1.17 times that less
# without checkpoints (torch 2.13, two threads of an EPYC).
_CERTAIN_ON_HOST = 0.7
# Of a CPU's step: from here on what is computed twice is the first thing to say, whatever the noise.
_FIRST_FROM = 0.1


@requires_gain
def recomputation(evidence: Evidence) -> Draft | None:
    """Finds activations that the backward pass computes again (rule 35).

    Memory has space for them. The work of a checkpoint's backward op before the nested backward pass begins is the
    repeated forward pass. Gain: that, on a device from half of it, on a host from 70 % and with its part of Python and
    dispatching at most. The memory of a host is not known, nor that of a device
    whose allocations were not recorded: there the advice says so, and on a device the gain begins at nothing.
    """
    work = work_of(evidence)
    peak, capacity = evidence.analysis.totals.peak_memory_bytes, evidence.analysis.device.memory_bytes
    less = _recomputed_us(work)
    rows, repeated_us = less > 0, float(less.sum())
    has_room = bool(peak and capacity and peak <= _MOST_USED * capacity)
    is_unknown = not (has_room or evidence.is_host_only)
    share = evidence.share_of_step(repeated_us)
    if share < _LEAST_SHARE or not (has_room or not peak):
        return None
    line = _checkpoint_line(evidence, work, rows)
    passes = work.gain(0 * less if is_unknown else (_CERTAIN_ON_HOST if evidence.is_host_only else 0.5) * less, less)
    issued_us = _part_of_calls(work, less) * issue_us(evidence) if evidence.is_host_only else 0.0
    return Draft(
        slug="recomputation",
        title="Activations are worked out twice although memory has room"
        if has_room
        else "Activations are worked out twice (checkpointing)",
        evidence=(
            f"{format_us(repeated_us)} per step ({format_share(share)}) repeat the forward pass" + at_known(line),
            *((f"peak memory is {format_share(peak / capacity)} of the device's",) if peak and capacity else ()),
            *work.describe(less > _WHOLE * work.us),
        ),
        advice=f"Checkpoint fewer layers{at_known(line)}, or use the room for a larger batch."
        if has_room
        else f"Leave torch.utils.checkpoint out{at_known(line)}, or checkpoint fewer layers, where memory holds "
        "the activations: with it the backward pass runs the forward pass of these layers again.",
        brief=f"Leave torch.utils.checkpoint out{at_known(line)}, or checkpoint fewer layers",
        gain_us=Interval(passes.low, passes.high + issued_us),
        claims={**work.claims(less), **claims_of(evidence, *ISSUE_ACCOUNTS, most_us=issued_us)},
        removes=True,
        comes_first=evidence.is_host_only and share >= _FIRST_FROM,
        confidence="low" if is_unknown else "medium",
        places=(line,),
        code="x = layer(x) if keep_activations else checkpoint(layer, x, use_reentrant=False)",
    )


def _recomputed_us(work: KernelWork) -> Floats:
    """Gives the time of each row that repeats the forward pass, 0 for others.

    Calls of an op with the same sizes take no longer together than those of the forward pass: a trace without the marks
    of the nested backward pass has that pass in the same place.
    """
    ops, is_recomputed = work.evidence.linked.ops, _recomputed(work)
    if not is_recomputed.any():
        return np.zeros(work.us.size)
    is_forward = ~is_recomputed & ~np.append(follows_forward(work.evidence), True)[work.op]
    names = np.append(ops["name"].cat.codes.to_numpy(), -1)[work.op].astype(np.int64)
    call, _ = numbered(names, work.signature)
    recomputed_us, forward_us = (np.where(rows, work.us, 0.0) for rows in (is_recomputed, is_forward))
    again_us, once_us = (np.bincount(call, weights=us) for us in (recomputed_us, forward_us))
    part = np.minimum(np.divide(once_us, again_us, out=np.zeros_like(once_us), where=again_us > 0), 1.0)
    return np.asarray(recomputed_us * part[call])


def _recomputed(work: KernelWork) -> Flags:
    """Masks the rows that a checkpoint recomputes in the backward pass.

    They are issued in its backward op before the first one nested in it, or where it unpacks what it kept.
    """
    ops = work.evidence.linked.ops
    at_us = np.append(ops["ts_us"].to_numpy(), np.nan)[work.op]
    unpacked = outermost_frames(work.evidence, _UNPACKS).hold(at_us) | _unpacked_spans(work.evidence).hold(at_us)
    recomputes = text_matches(ops["name"], _RECOMPUTES.search, 200)
    start, dur = ops["ts_us"].to_numpy(), ops["dur_us"].to_numpy()
    opens = np.flatnonzero(recomputes)
    if not opens.size:
        return np.asarray(unpacked)
    nested = np.sort(start[ops["is_autograd"].to_numpy() & ~recomputes])
    following = np.append(nested, np.inf)[np.searchsorted(nested, start[opens], side="right")]
    order = np.argsort(start[opens], kind="stable")
    begins, ends = start[opens][order], np.minimum(start[opens] + dur[opens], following)[order]
    before = np.searchsorted(begins, at_us, side="right") - 1
    return np.asarray(unpacked | ((before >= 0) & (at_us < ends[np.maximum(before, 0)])))


def _unpacked_spans(evidence: Evidence) -> Spans:
    """Gives the time in which backward nodes repeat ops of the forward pass.

    It is known by autograd's numbers alone.

    A node's own ops have no number, unless its graph is kept for a second derivative: these have other names than the
    forward pass has in its order.
    """
    ops, number = evidence.linked.ops, sequence_numbers(evidence)
    depth, start = ops["depth"].to_numpy(), ops["ts_us"].to_numpy()
    name: Integers = ops["name"].cat.codes.to_numpy().astype(np.int64)
    node = np.maximum.accumulate(np.where(depth == 0, np.arange(len(ops)), 0))
    is_node = ops["is_autograd"].to_numpy()
    kinds = {kind for name in ops["name"].cat.categories for kind in name.split(f"{BACKWARD_NODE}: ")[1:]}
    recorded = np.flatnonzero((number >= 0) & ~is_node & ~text_matches(ops["name"], kinds.__contains__))
    is_nested = is_node[node[recorded]]
    forward, nested = recorded[~is_nested], recorded[is_nested]
    first = np.flatnonzero(np.diff(node[nested], prepend=-1))
    count = np.diff(np.append(first, nested.size))
    is_long = count >= _LEAST_REPEATED
    first, count = first[is_long], count[is_long]
    if not first.size:
        return union(np.zeros(0), np.zeros(0))
    names, begun = name[forward], name[nested][first[:, None] + np.arange(_LEAST_REPEATED)]
    windows = max(names.size - _LEAST_REPEATED + 1, 0)
    columns = (np.append(names[at : at + windows], begun[:, at]) for at in range(_LEAST_REPEATED))
    run, _ = numbered(*columns)
    again = np.isin(run[windows:], run[:windows])
    begins, ends = nested[first[again]], nested[(first + count - 1)[again]]
    return union(start[begins], start[ends] + ops["dur_us"].to_numpy()[ends])


def _part_of_calls(work: KernelWork, less: Floats) -> float:
    """Gives the part of all calls that repeat the forward pass."""
    part = np.divide(less, work.us, out=np.zeros_like(less), where=work.us > 0)
    return float(part.mean()) if part.size else 0.0


def _checkpoint_line(evidence: Evidence, work: KernelWork, rows: Flags) -> str | None:
    """The line whose layers are computed again: that of the most time."""
    source = main_source(evidence, np.unique(work.op[rows & (work.op >= 0)]).tolist())
    return None if source is None else forward_of(source)


RULES = (recomputation,)
