"""Rules for the optimizer's step and its fused form.

They compare what it takes with what one fused call would take.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, loop_times, requires_gain, work_of
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    is_torch_before,
    issue_us,
    op_calls_per_step,
    optimizer_names,
    outermost_spans,
    work_in_window,
)
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Spans
from bottleneck.schema.op_names import BACKWARD_NODE, IN_PLACE, OPTIMIZER_MARK, OPTIMIZER_STEP
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted, format_share, format_us

_ALREADY = re.compile(
    r"^aten::_fused_|^aten::_foreach_|multi_tensor_apply|FusedAdam|FusedSGD|fused_adam", re.IGNORECASE
)
# Visual C++ writes "struct" before the names of types.
_ACCUMULATES = ("torch::autograd::AccumulateGrad", "struct torch::autograd::AccumulateGrad")
# Rule 6 requires more than four kernels per parameter; SGD with momentum has four, and fusing it pays too.
_PER_PARAMETER = 3.0
# Part of the optimizer's own bytes that a fused step still moves: Adam passes 19 tensors in single ops (lerp_ 3,
# mul_ 2, addcmul_ 4, sqrt 2, div 2, add_ 2, addcdiv_ 4) and 7 fused; SGD with momentum 8 and 5. Measured for 8 tensors
# of 300000 numbers: Adam 7.46 to 2.55 ms, AdamW 8.25 to 2.58 ms, SGD with momentum 2.95 to 1.78 ms.
_FUSED_BYTES = {"SGD": 5 / 8}
_FUSED_BYTES_ELSE = 7 / 19
# Part of the optimizer's overhead that is gone: 47 % (SGD with momentum, 8 small parameters) to 80 % (AdamW, 48) of
# its whole step (torch 2.13, EPYC, one thread, fused=True against foreach=False).
_LESS_OVERHEAD = (0.4, 0.85)
# Part of an update's launches on a device that lists of tensors spare: kernels take them in chunks of some dozens, and
# each list is built anew.
_FEWER_LAUNCHES, _TURNS = (0.4, 0.9), 10
# Optimizers with a fused step on a device; Adagrad has one on a CPU only.
FUSABLE = frozenset({"SGD", "Adam", "AdamW"})
# The release of torch that brought fused=True (docs of torch.optim in 2.0, 2.3 and 2.5).
_FUSED_SINCE = {"Adam": (2, 0), "AdamW": (2, 0), "SGD": (2, 3), "Adagrad": (2, 5)}
# Those of torch, which take lists of tensors on a device of themselves.
_OF_TORCH = FUSABLE | {"Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "LBFGS", "Muon"}
_OF_TORCH |= {"Adafactor", "SparseAdam"}
_LISTS = (
    "Have this optimizer update lists of tensors (torch._foreach_*), or compile its step; where it computes what one "
    "of torch.optim does, take that with fused=True."
)
# The docs of torch.optim: foreach is the default on a device since 2.0.
_NEWER_TORCH = (
    "Update torch: on a device its optimizers take lists of tensors by themselves since 2.0, and with fused=True they "
    "do all in one call (Adam and AdamW since 2.0, SGD since 2.3)."
)
_NEARLY_ALL = 0.9
# Of the time of bytes that a fused pass spares, this part is certain where no floor of the bytes is known.
_LEAST_OF_PASSES = 0.6
_LEAST_SHARE = 0.01
# What a step takes beside its ops, fused or not, in times of one op of it (torch 2.13, EPYC, one thread): of Adam over
# 1, 2, 8 and 64 parameters 15, 40, 199 and 1253 us were gone, and 22, 51, 244 and 1540 are by this at most; of SGD with
# momentum over 1, 2 and 8 3, 10 and 140 us, and 3, 10 and 112.
_FIXED_OPS = 12.0


class OptimizerShare(Struct, frozen=True):
    """The optimizer's part of the step.

    It has its part of the step's overhead (0-1), working ops per step, and the time of these (profiled).
    """

    overhead: float
    ops: float
    work_us: float


@remembered
def optimizer_share(evidence: Evidence) -> OptimizerShare:
    """Gives the time and ops inside the optimizer's marks on a CPU.

    Zeroing of gradients is included. Zeros without marks.
    """
    marks = outermost_spans(evidence, OPTIMIZER_MARK)
    if not marks.start.size:
        return OptimizerShare(0.0, 0.0, 0.0)
    kernels = evidence.linked.kernels
    works = work_in_window(evidence)
    own_us = np.where(works, kernels["dur_us"].to_numpy(), 0.0)
    inside = works & marks.hold(kernels["ts_us"].to_numpy())
    work_us = float(own_us[inside].sum())
    wall_us = evidence.linked.window.wall_us - float(own_us.sum())
    overhead_us = marks.total() - work_us
    share = overhead_us / wall_us if wall_us > 0 else 0.0
    steps = evidence.steps
    return OptimizerShare(min(max(share, 0.0), 1.0), float(np.count_nonzero(inside)) / steps, work_us / steps)


def _parameters(evidence: Evidence) -> float:
    """Parameters with a gradient, per step: what autograd accumulates into."""
    names = (*_ACCUMULATES, *(f"{BACKWARD_NODE}: {name}" for name in _ACCUMULATES))
    return max(op_calls_per_step(evidence, name) for name in names)


def _repeats_within(evidence: Evidence, marks: Spans) -> float:
    """Counts how often per step the same ops repeat inside these marks.

    Ops are the same by their names. There is one turn for each parameter.
    """
    ops = evidence.linked.ops
    inside = marks.hold(ops["ts_us"].to_numpy()) & ops["parent"].isna().to_numpy()
    counts = ops["name"][inside].value_counts()
    return math.gcd(*counts[counts > 0].tolist()) / evidence.steps if inside.any() else 0.0


def holds_only_optimizer(evidence: Evidence) -> bool:
    """True for a device window that belongs to optimizers.

    Nearly all of its kernels belong to the steps of optimizers.
    """
    marks = outermost_spans(evidence, OPTIMIZER_STEP)
    if evidence.is_host_only or not marks.start.size:
        return False
    ours, all_of_them = issued_within(evidence, marks), evidence.kernels_in_window
    return bool(ours.sum() >= _NEARLY_ALL * all_of_them.sum() > 0)


def loops_over_parameters(evidence: Evidence) -> bool:
    """True for a window of an optimizer that loops over parameters.

    It holds the optimizer alone, which goes through the parameters one by one.
    """
    return holds_only_optimizer(evidence) and unfused_optimizer(evidence) is not None


def unfused_optimizer(evidence: Evidence) -> Draft | None:
    """Finds an optimizer that goes through parameters one by one (rule 6).

    It has several kernels for each.
    """
    marks = outermost_spans(evidence, OPTIMIZER_STEP)
    names = optimizer_names(evidence)
    # A window without a backward pass tells of parameters by what repeats alone.
    parameters = _parameters(evidence) or (_repeats_within(evidence, marks) if holds_only_optimizer(evidence) else 0)
    if not marks.start.size or not parameters or _takes_lists(evidence, marks):
        return None
    fusable = FUSABLE | {"Adagrad"} if evidence.is_host_only else FUSABLE
    # On a CPU a disturbance stretches the optimizer and the rest alike, and its share of the step stays.
    is_unknown = evidence.is_incomplete if evidence.is_host_only else evidence.is_broken
    is_own = not evidence.is_host_only and bool(names) and not any(name in _OF_TORCH for name in names)
    lacks_fused = _lacks_fused(evidence, names)
    if is_unknown or not (is_own or all(name in fusable for name in names)) or (lacks_fused and evidence.is_host_only):
        return None
    rows = np.flatnonzero(issued_within(evidence, marks))
    durations_us = evidence.linked.kernels["dur_us"].to_numpy()
    count = rows.size / evidence.steps
    if count / parameters < _PER_PARAMETER:
        return None
    host_only = evidence.is_host_only
    gain = (_host_gain if host_only else _device_gain)(evidence, names, marks, count)
    is_written_out = host_only and bool(parameters) and count / parameters >= _WRITTEN_OUT
    if is_written_out:
        gain = Interval(*(part * _spent_us(evidence, marks) for part in _OF_WRITTEN_OUT))
    if evidence.share_of_step(gain.high) < _LEAST_SHARE:
        return None
    passes_us = _spared_passes_us(evidence, names) + _new_results_us(evidence) if host_only else 0.0
    # The ops themselves are work or, where they are small, launch floor; what surrounds them is issuing.
    of_ops = ("memory", "unknown.pointwise", "overhead.launch_floor")
    claims = claims_of(evidence, *of_ops, most_us=passes_us)
    around = ISSUE_ACCOUNTS if host_only else (*ISSUE_ACCOUNTS, "overhead.launch_floor", "memory")
    claims |= claims_of(evidence, *around, most_us=gain.high - math.fsum(claims.values()))
    cls = names[0] if names else "AdamW"
    return Draft(
        slug="unfused-optimizer",
        title="The optimizer updates its parameters one by one",
        evidence=(
            f"{counted(format_count(count), 'kernel')} per step for "
            f"{counted(format_count(parameters), 'parameter')} in {cls}.step, {count / parameters:.1f} for each",
            f"they take {format_us(float(np.median(durations_us[rows])))} each in the median",
        ),
        advice=_LISTS
        if is_own
        else _NEWER_TORCH
        if lacks_fused
        else "Let the optimizer update all parameters in one fused call.",
        brief=None
        if is_own
        else "Update torch, whose optimizers take lists of tensors since 2.0"
        if lacks_fused
        else "Let the optimizer update all parameters in one fused call (fused=True)",
        code="torch._foreach_mul_(averages, beta)  # one call for a list of tensors, in place of a loop over parameters"
        if is_own
        else f"optimizer = torch.optim.{cls}(model.parameters(), lr=lr{'' if lacks_fused else ', fused=True'})",
        gain_us=gain,
        claims=claims,
        tries=()
        if is_own or lacks_fused
        else ("fused-optimizer",)
        if host_only
        else ("fused-optimizer", "foreach-optimizer"),
        phase="optimizer" if host_only else None,
        cannot_lose=is_written_out,
    )


def _spent_us(evidence: Evidence, marks: Spans) -> float:
    """Gives the CPU time per step that these updates take in all."""
    share = optimizer_share(evidence)
    step_part = marks.total() / max(outermost_spans(evidence, OPTIMIZER_MARK).total(), 1e-9)
    overhead_us = evidence.account_us(*ISSUE_ACCOUNTS, "overhead.launch_floor") * share.overhead
    return min((overhead_us + share.work_us) * step_part, evidence.step_us)


def _lacks_fused(evidence: Evidence, names: Sequence[str]) -> bool:
    """True if this torch lacks the fused step of one of these."""
    return any(is_torch_before(evidence, _FUSED_SINCE[name]) for name in names if name in _FUSED_SINCE)


def _takes_lists(evidence: Evidence, marks: Spans) -> bool:
    """True if the optimizer updates lists of tensors already.

    Such ops outside of its marks are others', as those that clip gradients.
    """
    ops = evidence.linked.ops
    lists = text_matches(ops["name"], _ALREADY.search)
    return bool((lists & marks.hold(ops["ts_us"].to_numpy())).any())


def issued_within(evidence: Evidence, marks: Spans) -> Flags:
    """Masks the kernels of the window issued in these host spans.

    On a CPU they ran in them.
    """
    kernels = evidence.linked.kernels
    if evidence.is_host_only:
        return work_in_window(evidence) & marks.hold(kernels["ts_us"].to_numpy())
    at_us = np.nan_to_num(kernels["launch_ts_us"].to_numpy(), nan=-1.0)
    return np.asarray(evidence.kernels_in_window & (at_us >= 0) & marks.hold(at_us))


def fused_bytes(names: tuple[str, ...]) -> float:
    """Gives the part (0-1) of an update's bytes that fusing still moves.

    The update is by single ops of these optimizers.
    """
    return max((_FUSED_BYTES.get(name, _FUSED_BYTES_ELSE) for name in names), default=_FUSED_BYTES_ELSE)


# Of the time that only new memory takes: a fused update makes no such results. From so many bytes on, and where they
# take so many times as long as ops in place do for theirs.
_CERTAIN_OF_NEW, _LARGE_BYTES, _SLOW_RESULT = 0.9, 2.0**20, 2.0


# Kernels for each parameter of an update that a program writes out itself, with a new tensor for each; torch's own take
# 10 to 14. Of its time one fused call spares so much: of an AdamW with 25 for each, 25 % of the step, it spared 19 to
# 27 % of the step (torch 2.13, EPYC, two threads).
_WRITTEN_OUT, _OF_WRITTEN_OUT = 18.0, (0.6, 0.95)


def _host_gain(evidence: Evidence, names: tuple[str, ...], marks: Spans, count: float) -> Interval:
    """Gives the gain on a CPU of a fused update.

    It is part of the overhead of the ops that are gone, and of the bytes that they move more than once. One call of the
    ``count`` ops of a step stays, and what a step takes beside its ops. How much the bytes are worth depends on what
    the caches hold of them.
    """
    calls = marks.start.size / evidence.steps
    gone = max(count - calls, 0.0) / (count + _FIXED_OPS * calls)
    share = optimizer_share(evidence)
    step_part = marks.total() / max(outermost_spans(evidence, OPTIMIZER_MARK).total(), 1e-9)
    per_call = evidence.account_us(*ISSUE_ACCOUNTS, "overhead.launch_floor") * share.overhead * step_part * gone
    low, high = _LESS_OVERHEAD
    memory_us, new_us = _spared_passes_us(evidence, names), _new_results_us(evidence)
    # Beside the bytes that count anyway, all of the other time of results that one call does not make.
    passes_us = memory_us + new_us * fused_bytes(names)
    least_us = max(low * (per_call + memory_us), _CERTAIN_OF_NEW * new_us)
    return Interval(least_us, min(high * per_call + passes_us, evidence.step_us))


def _new_results_us(evidence: Evidence) -> float:
    """Gives the CPU time that new memory takes in an update.

    Such as that of the roots of Adam's second moments: the system hands out their pages anew each time. It is what they
    take beyond their bytes at the rate of the update's ops in place.
    """
    work = work_of(evidence)
    rows = issued_within(evidence, outermost_spans(evidence, OPTIMIZER_STEP))[work.row]
    moved = np.nan_to_num(work.roof("bytes_low"))
    rows &= (moved >= _LARGE_BYTES) & (work.us > 0)
    in_place = rows & work.op_like(IN_PLACE)
    if not in_place.any():
        return 0.0
    expected_us = moved * float(np.median(work.us[in_place] / moved[in_place]))
    new = rows & ~in_place & (work.us >= _SLOW_RESULT * expected_us)
    return float((work.us - expected_us)[new].sum())


def _spared_passes_us(evidence: Evidence, names: tuple[str, ...]) -> float:
    """Gives the CPU time of bytes that single ops of an update move repeatedly."""
    work_us = min(optimizer_share(evidence).work_us, evidence.analysis.totals.busy_us)
    return work_us * (1 - fused_bytes(names))


def _device_gain(evidence: Evidence, names: tuple[str, ...], marks: Spans, count: float) -> Interval:
    """Gives the gain on a device of a fused update.

    Its kernels take what one pass over their bytes takes. Of its launches 40 to 90 % are gone in a replay: kernels
    take the tensors in chunks of some dozens.
    """
    work = work_of(evidence)
    rows = issued_within(evidence, marks)[work.row]
    low_us, high_us = _fused_pass_less(work, rows, names)
    passes = work.gain(low_us, high_us)
    if evidence.predict is None:
        waits = _late_launches(evidence, count)
        return Interval(waits / 2, min(waits, evidence.group_us("overhead")))
    # The first launch of a step stays: before it the host does other things too.
    place = np.arange(rows.size)
    since_first = place - np.maximum.accumulate(np.where(rows, 0, place + 1))
    spared = [rows & (since_first % _TURNS >= (1 - part) * _TURNS) for part in _FEWER_LAUNCHES]
    least, most = (work.gain(low_us, high_us, launches) for launches in spared)
    return Interval(max(least.low, passes.low), max(most.high, passes.high))


def _late_launches(evidence: Evidence, count: float) -> float:
    """Gives the wait for launches that a fused update spares.

    Where no replay tells it.
    """
    gone = _FEWER_LAUNCHES[1] * count
    floor_us = min(
        gone * (evidence.analysis.device.launch_floor_us or 0.0), evidence.account_us("overhead.launch_floor")
    )
    launches = max(evidence.analysis.totals.launch_count, 1.0)
    return floor_us + issue_us(evidence) * min(gone / launches, 1.0)


def _fused_pass_less(work: KernelWork, rows: Flags, names: tuple[str, ...]) -> tuple[Floats, Floats]:
    """Gives how much less each row takes in one fused pass.

    At least, and at most. The pass moves a part of their bytes, at the rates of fused loops. Where bytes have no floor,
    time goes by bytes.
    """
    part = fused_bytes(names)
    bytes_us = part * work.memory_us()
    fastest, slowest = loop_times(work.evidence, np.zeros(rows.size, dtype=bool))
    by_bytes = work.us * (1.0 - part)
    low, high = (np.clip(work.us - times * bytes_us, 0.0, None) for times in (slowest, fastest))
    is_known = bytes_us > 0
    low, high = np.where(is_known, low, _LEAST_OF_PASSES * by_bytes), np.where(is_known, high, by_bytes)
    return np.where(rows, low, 0.0), np.where(rows, high, 0.0)


_FOREACH, _FUSED_STEP = re.compile(r"^aten::_foreach_"), re.compile(r"^aten::_fused_")
_LEAST_PASSES = 0.03


@requires_gain
def foreach_optimizer(evidence: Evidence) -> Draft | None:
    """Finds an optimizer on a device whose step is one pass for each op.

    It takes lists of tensors, as torch does by itself. Gain: what one fused pass over a part of their bytes leaves of
    their time.
    """
    names, work = optimizer_names(evidence), work_of(evidence)
    if evidence.is_host_only or evidence.is_broken or not names or not all(name in FUSABLE for name in names):
        return None
    if any(_FUSED_STEP.search(name) for name in evidence.op_sums) or _lacks_fused(evidence, names):
        return None
    rows = work.op_like(_FOREACH) & work.inside(OPTIMIZER_STEP)
    if work.share(rows) < _LEAST_PASSES:
        return None
    least, less = _fused_pass_less(work, rows, names)
    cls = names[0]
    return Draft(
        slug="foreach-optimizer",
        title="The optimizer passes over all parameters once for each of its ops",
        evidence=(
            f"{format_us(work.us_of(rows))} per step ({format_share(work.share(rows))}) in "
            f"{counted(format_count(np.count_nonzero(rows) / evidence.steps), 'kernel')} of {cls}.step; one fused pass "
            f"moves {format_share(fused_bytes(names))} of their bytes",
            *work.describe(rows),
            *work.critical_path_note(less),
        ),
        advice=f"Let {cls} update all parameters in one fused call (fused=True; it unscales for a GradScaler too).",
        code=f"optimizer = torch.optim.{cls}(model.parameters(), lr=lr, fused=True)",
        gain_us=work.gain(least, less),
        claims=work.claims(less),
        tries=("fused-optimizer",),
    )


RULES = (unfused_optimizer, foreach_optimizer)
