"""Rules of memory capacity.

They concern room for a larger batch, too little room, and reserved memory that is unused. Freeing memory costs time,
and each finding states that cost.
"""

import numpy as np
from msgspec import Struct

from bottleneck.advice.data_loading import code_for_twice_the_batch
from bottleneck.advice.quantities import has_backward_marks, optimizer_names, rows_of_events
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, counted_faults_us
from bottleneck.schema.intervals import Flags, union
from bottleneck.schema.op_names import TRAINING
from bottleneck.units import US_PER_S, format_ratio, format_ratio_range, format_share, format_si, format_us

# Twice the batch takes at most twice the memory (advice_rules 45).
_HALF = 0.5
# Between a step that is mostly fixed (rule 3) and one of which twice the batch gives less than 5 % more per second.
_HARDLY_GROWS, _GROWS = 1.2, 1.9
# Counted page faults take at most this part of a step: their calibrated cost is that of a busy machine or an idle one.
_MOST_FAULTS = 0.8
_NEARLY_FULL = 0.9
# Memory that the allocator holds beyond what it has handed out, of all that it holds (advice_rules 47).
_HELD_SHARE = 0.2
# Segments of 2 and 20 MiB are rounded up: of so little nobody runs out.
_LEAST_HELD_BYTES = 256e6
_SWAPPED_BYTES = 1e9
_ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def room_for_batch(evidence: Evidence) -> Draft | None:
    """Finds room for a larger batch (rule 45).

    The step grows by less than the batch, and the gain is that for the same samples. On a CPU twice the batch may also
    take new pages in each step (``_longest_twice_us``), which the batch test need not show: it runs after the profiler,
    whose records hold the heap together.
    """
    proof = evidence.analysis.batch_test
    peak_bytes, capacity_bytes = evidence.analysis.totals.peak_memory_bytes, evidence.analysis.device.memory_bytes
    if proof is None or proof.ratio is None or not peak_bytes or not capacity_bytes:
        return None
    ratio = proof.ratio
    if peak_bytes >= _HALF * capacity_bytes or not _HARDLY_GROWS <= ratio.median < _GROWS:
        return None
    high_us = evidence.step_us * (1 - max(ratio.low, 0.0) / 2)
    longest_us = _longest_twice_us(evidence, ratio.high)
    low_us = min(evidence.step_us - longest_us / 2, high_us)
    if low_us + high_us <= 0:
        return None
    pages_us = longest_us - ratio.high * evidence.step_us
    pages = (f"at worst its memory comes in new pages, {format_us(pages_us)} more per step",) if pages_us > 0 else ()
    return Draft(
        slug="room-for-batch",
        title="Twice the batch fits into memory and takes less than twice the time",
        evidence=(
            f"twice the batch takes {format_ratio(ratio.median)} times as long "
            f"({format_ratio_range(ratio.low, ratio.high)})",
            f"{_share_of(peak_bytes, capacity_bytes)} of the memory is used at most: "
            f"{format_si(peak_bytes, 'B')} of {format_si(capacity_bytes, 'B')}",
            *pages,
        ),
        advice="Raise the batch size while memory lasts"
        + (", and the learning rate with it." if has_backward_marks(evidence) else "."),
        code=code_for_twice_the_batch(evidence),
        gain_us=Interval(low_us, high_us),
        tries=("batch-x2",),
        confidence="high",
        basis="timed",
        changes_results=True,
        per="sample",
    )


def _longest_twice_us(evidence: Evidence, ratio: float) -> float:
    """Gives the longest time of a step of twice the batch.

    The batch test saw it take ``ratio`` times as long. Each sample brings the new pages that unprofiled steps were seen
    to touch. In inference nothing that stays is allocated after the results of a step, so that they lie at the end of
    the heap, and glibc gives them back to the system once they exceed a threshold (M_TRIM_THRESHOLD, which grows with
    the largest block that was freed). Steps that stay below it at one batch size may pass it at twice that: 122 page
    faults of a small vision transformer became 2016, about as many as its results have pages. Gradients and the
    optimizer's state keep the heap of a step that trains.
    """
    if not evidence.is_host_only or not (rate := evidence.analysis.device.fresh_bytes_per_s):
        return ratio * evidence.step_us
    touched_us = min(counted_faults_us(evidence), _MOST_FAULTS * evidence.step_us)
    twice_us = 2 * touched_us
    if not has_backward_marks(evidence):
        twice_us = max(twice_us, 2 * _working_bytes(evidence) / rate * US_PER_S)
    return ratio * (evidence.step_us - touched_us) + twice_us


def _working_bytes(evidence: Evidence) -> float:
    """Gives the most host memory that the window's tensors held at once.

    They are tensors made in the window. 0 without memory events.
    """
    memory, (low, high) = evidence.linked.trace.memory, evidence.linked.window.host_us
    at_us = memory["ts_us"].to_numpy()
    inside = ~memory["on_device"].to_numpy() & (at_us >= low) & (at_us < high)
    held = np.concatenate(([0], np.cumsum(memory["bytes"].to_numpy()[inside])))
    return float(held.max() - held.min())


def memory_nearly_full(evidence: Evidence) -> Draft | None:
    """Finds training near the end of memory (rule 46).

    It states what recomputing, swapping and accumulating would cost.
    """
    peak_bytes, capacity_bytes = evidence.analysis.totals.peak_memory_bytes, evidence.analysis.device.memory_bytes
    if (
        not peak_bytes
        or not capacity_bytes
        or peak_bytes <= _NEARLY_FULL * capacity_bytes
        or not has_backward_marks(evidence)
    ):
        return None
    return Draft(
        slug="memory-nearly-full",
        title="The step takes nearly all of the memory",
        evidence=(
            f"{_share_of(peak_bytes, capacity_bytes)} of the memory is used at most: "
            f"{format_si(peak_bytes, 'B')} of {format_si(capacity_bytes, 'B')}",
            *_costs_of_less_memory(evidence),
        ),
        advice="Where memory has to be freed, recompute the activations of the largest blocks.",
        code="out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        gain_reason="it frees memory and costs time: the evidence says how much",
        tries=("checkpoint",),
    )


def _costs_of_less_memory(evidence: Evidence) -> tuple[str, ...]:
    """Gives the cost per step of each known way to free memory."""
    forward = forward_work(evidence)
    lines = [
        f"recomputing all activations runs the forward pass again: {format_us(forward.us)} "
        f"({format_share(evidence.share_of_step(forward.us))} of the step){_at_rate(forward)}",
        _swapping(evidence),
        _accumulating(evidence),
    ]
    if any(name in _ADAM for name in optimizer_names(evidence)):
        lines.append("optimizer states in bf16 free 4 of the 8 bytes that Adam keeps per parameter, and cost no time")
    return tuple(line for line in lines if line is not None)


class Forward(Struct, frozen=True):
    """Kernels of the forward pass, in microseconds and FLOPs per step.

    FLOPs are null where no cost is known.
    """

    us: float
    flops: float | None


def forward_work(evidence: Evidence) -> Forward:
    """The work that neither the backward pass nor an optimizer issued."""
    kernels = evidence.linked.kernels
    op = kernels["op"].to_numpy(dtype=np.int64, na_value=-1)
    later = np.append(follows_forward(evidence), False)
    works = (kernels["kind"] == "compute").to_numpy() & evidence.kernels_in_window & (op >= 0) & ~later[op]
    works &= ~evidence.attribution["dispatches"].to_numpy()
    flops = evidence.roofline["flops"].to_numpy()[works]
    us = float(kernels["dur_us"].to_numpy()[works].sum()) / evidence.steps
    known_flops = flops[~np.isnan(flops)]
    return Forward(min(us, evidence.step_us), float(known_flops.sum()) / evidence.steps if known_flops.size else None)


def follows_forward(evidence: Evidence) -> Flags:
    """Masks the ops that run inside the backward pass or an optimizer.

    An optimizer's step counts, on the thread of either.
    """
    events = evidence.linked.trace.events
    marks = rows_of_events(evidence, TRAINING)
    ops = evidence.linked.ops
    start, thread = ops["ts_us"].to_numpy(), ops["thread"].astype(object).to_numpy()
    later = np.zeros(len(ops), dtype=bool)
    for name, mine in events.iloc[marks].groupby("thread", observed=True):
        rows = np.flatnonzero(thread == name)
        begin = mine["ts_us"].to_numpy()
        later[rows] = union(begin, begin + mine["dur_us"].to_numpy()).hold(start[rows])
    return later


def _at_rate(forward: Forward) -> str:
    if not forward.flops or forward.us <= 0:
        return ""
    rate = forward.flops / forward.us * US_PER_S
    return f", {format_si(forward.flops, 'FLOP')} at the {format_si(rate, 'FLOP/s')} that it reaches"


def _swapping(evidence: Evidence) -> str | None:
    link = evidence.analysis.device.link_bytes_per_s
    if evidence.is_host_only:
        return None
    if not link:
        return "what swapping to the host costs is not known: nor is the speed of this link"
    each_us = 2 * _SWAPPED_BYTES / link * US_PER_S
    beside_us = max(0.0, evidence.group_us("compute") + evidence.group_us("memory"))
    return (
        f"swapping to the host and back takes {format_us(each_us)} per GB over this link, which costs nothing while it "
        f"runs beside the {format_us(beside_us)} of kernels"
    )


def _accumulating(evidence: Evidence) -> str:
    proof = evidence.analysis.batch_test
    if proof is None or proof.fixed_us is None:
        return "accumulating gradients over two half batches costs the fixed part of a step twice; it was not measured"
    return (
        f"accumulating gradients over two half batches costs another {format_us(proof.fixed_us.median)} of fixed work"
    )


def unused_reserve(evidence: Evidence) -> Draft | None:
    """Finds much reserved memory beyond the peak (rule 47).

    The allocator holds much more memory than it has handed out at the peak, and others could miss it.
    """
    held = _held_at_peak(evidence)
    if held is None or evidence.is_host_only:
        return None
    used_bytes, reserved_bytes = held
    if reserved_bytes < _HALF * (evidence.analysis.device.memory_bytes or 0):
        return None
    unused_bytes = reserved_bytes - used_bytes
    if unused_bytes <= max(_HELD_SHARE * reserved_bytes, _LEAST_HELD_BYTES):
        return None
    return Draft(
        slug="unused-reserve",
        title="The allocator holds memory that it cannot hand out",
        evidence=(
            f"{format_si(used_bytes, 'B')} of {format_si(reserved_bytes, 'B')} were in use at the peak: "
            f"{format_si(unused_bytes, 'B')} ({format_share(unused_bytes / reserved_bytes)}) lay idle",
        ),
        advice="Let segments grow, so that freed memory can be joined and handed out again.",
        code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
        gain_reason=f"it frees up to {format_si(unused_bytes, 'B')} and no time",
    )


def _held_at_peak(evidence: Evidence) -> tuple[float, float] | None:
    """Gives the bytes in use and in the allocator at the peak.

    Null where that is not recorded.
    """
    measured = None if evidence.recording is None else evidence.recording.peak_memory
    if measured is not None and measured.bytes and measured.reserved_bytes:
        return float(measured.bytes), float(measured.reserved_bytes)
    memory = evidence.linked.trace.memory
    recorded = memory["on_device"] & memory["total_allocated"].notna() & memory["total_reserved"].notna()
    used = memory["total_allocated"][recorded].to_numpy(dtype=np.float64)
    reserved = memory["total_reserved"][recorded].to_numpy(dtype=np.float64)
    if not used.size or used.max() <= 0:
        return None
    peak = int(np.argmax(used))
    return float(used[peak]), float(max(reserved[peak], used[peak]))


def _share_of(part: float, whole: float) -> str:
    return format_share(part / whole)


RULES = (room_for_batch, memory_nearly_full, unused_reserve)
