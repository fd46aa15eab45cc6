"""Rules of steps that are too small: more samples per step, small networks, Python loops over tiny ops."""

import re

import numpy as np
import pandas as pd

from bottleneck.advice.kernel_work import work_of
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    format_per_step,
    host_us_per_launch,
    idle_rows,
    issue_part_us,
    issue_us,
    ops_in_window,
    outermost_spans,
    overhead_us_per_op,
    rows_of_ops,
    timing_confidence,
)
from bottleneck.advice.ranking import Draft
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Confidence, Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Floats, Integers
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import text_matches
from bottleneck.units import counted, format_share, format_si, format_us

# Rule 3: a step that grows by less than this when its batch doubles is mostly fixed cost.
_MOSTLY_FIXED = 1.2
# Without a batch test: the part of the step that overhead must take before more samples are advised.
_MOST_OVERHEAD = 0.5
_FIXED = (*ISSUE_ACCOUNTS, "overhead.launch_floor")
# Threads that a multiprocessor runs at once: data-centre parts of NVIDIA since Volta; 32 waves of 64 on CDNA.
_SLOTS = {"cuda": 2048.0, "rocm": 2048.0}
_TILED = ("matmul", "convolution", "attention")
# A step of fewer kernels is a benchmark of them, whose size is its own.
_FEW_KERNELS = 4
# Rule 5: a step whose arithmetic and bytes need less than this of it.
_SMALL_NETWORK = 0.05
# Below this, what was modelled is not the network.
_LEAST_NEEDED_US = 1.0
# Rule 8: an op that picks one row, again and again from one line; its third argument is where.
_PICKS = ("aten::select", "aten::narrow", "aten::slice")
_INDEX = re.compile(r'^\["[^"]*", ?"[^"]*", ?"(-?\d{1,18})"')
_WHOLE = re.compile(r"^-?\d{1,3}$")
_LOOP_OF = 16
_LIBRARY_FRAME = re.compile(r"^<|^nn\.Module: |(?:^|[/\\])torch[/\\]")
_LOADER = re.compile(r"^enumerate\(DataLoader\)|DataLoader\w*\.__next__|dataloader_next")
_LEAST_SHARE = 0.02


def larger_batch(evidence: Evidence) -> Draft | None:
    """Rule 3: the step hardly grows with its batch, so twice the samples take little more time.

    The gain is that per sample: a step of 2B samples replaces two of B, so t(B) - t(2B) / 2. Where the batch test
    measured t(2B) / t(B), from its interval, below 1 too (a product of twice as many rows can be the quicker one);
    else from the ledger: between 1, if all that works has room left, and 1 + the part of the step that is no overhead
    (nor input, which grows with the samples). Where overhead is no reason, kernels that leave a part of the device
    empty are: twice the blocks run beside one another as far as there is room.
    """
    proof = evidence.analysis.batch_test
    is_measured = proof is not None and proof.ratio is not None
    if evidence.is_broken and not is_measured:
        return None  # steps of both batch sizes take turns, so that other programs disturb them alike; a ledger is one
    if proof is not None and proof.ratio is not None:
        low, high, seen = proof.ratio.low, proof.ratio.high, "doubling the batch was tried: the step takes"
        if proof.ratio.median >= _MOSTLY_FIXED:
            return None
        words = f"{seen} {proof.ratio.median:.2f} times as long (95 % interval {low:.2f} to {high:.2f})"
    else:
        grown = _growth_of_fixed_cost(evidence) or _growth_of_small_grids(evidence)
        if grown is None or evidence.kernels_per_step < _FEW_KERNELS:
            return None
        low, high, words = grown
    gain = Interval(evidence.step_us * max(1 - high / 2, 0.0), evidence.step_us * (1 - max(low, 0.0) / 2))
    claims = claims_of(evidence, *_FIXED, "memory", "compute", *UNMODELLED_ACCOUNTS, most_us=gain.high)
    return Draft(
        slug="larger-batch",
        title=f"The step {'costs' if is_measured else 'would cost'} nearly the same with twice the samples",
        evidence=(
            words,
            f"{counted(format_count(evidence.kernels_per_step), 'kernel')} per step, whatever the batch size",
        ),
        advice="Raise the batch size until the step grows with it (and the learning rate with it, when training).",
        code="loader = DataLoader(dataset, batch_size=2 * batch_size)",
        gain_us=gain,
        claims=claims,
        tries=("batch-x2",),
        confidence=_confidence(evidence, is_measured=is_measured),
        changes_results=True,
        per="sample",
    )


def _confidence(evidence: Evidence, *, is_measured: bool) -> Confidence:
    if not is_measured:
        return timing_confidence(evidence)
    return "medium" if evidence.is_broken else "high"


def _growth_of_fixed_cost(evidence: Evidence) -> tuple[float, float, str] | None:
    """t(2B) / t(B) at least and at most, and why, where overhead is most of the step; else null."""
    fixed_us = issue_us(evidence)
    if evidence.share_of_step(fixed_us) < _MOST_OVERHEAD:
        return None
    words = (
        f"{format_per_step(evidence, fixed_us)} is Python, dispatching and launching, which cost the same for any batch"
    )
    return 1.0, 2.0 - evidence.share_of_step(fixed_us), words


def _growth_of_small_grids(evidence: Evidence) -> tuple[float, float, str] | None:
    """The same where most of the step are kernels with fewer blocks than the device runs at once; else null.

    Twice the blocks take as long while they fit, and two rounds at most. All else takes twice as long.
    """
    slots_per_sm, sm_count = _SLOTS.get(evidence.analysis.device.kind), evidence.analysis.device.sm_count
    charged, kernels = evidence.kernel_time, evidence.linked.kernels
    if slots_per_sm is None or not sm_count or charged is None:
        return None
    # Tiles of products fill the registers and the shared memory of their multiprocessor.
    threads = kernels["threads"].to_numpy(dtype=np.float64, na_value=np.nan)
    beside = np.where(kernels["family"].isin(_TILED).to_numpy(), 1.0, np.maximum(slots_per_sm // threads, 1.0))
    fill = kernels["blocks"].to_numpy(dtype=np.float64, na_value=np.nan) / (beside * sm_count)
    # Collectives take few blocks on purpose.
    fill = np.where((kernels["kind"] == "compute").to_numpy() & (fill < 1), fill, 1.0)
    us = np.where(fill < 1, charged["us"].to_numpy(), 0.0)
    small_us = float(us.sum())
    if evidence.share_of_step(small_us) < _MOST_OVERHEAD:
        return None
    least_us, most_us = (float((us * part).sum()) for part in (np.clip(2 * fill, 1, 2), np.where(fill <= 0.5, 1, 2)))
    rest_us = 2 * (evidence.step_us - small_us)
    words = (
        f"{format_per_step(evidence, small_us)} runs in kernels with fewer blocks than the {sm_count} multiprocessors "
        f"take at once; half of that time fills {format_share(_median_fill(fill, us))} of them or less"
    )
    return (least_us + rest_us) / evidence.step_us, (most_us + rest_us) / evidence.step_us, words


def _median_fill(fill: Floats, us: Floats) -> float:
    """The part of the device that a kernel fills, in the median over time."""
    order = np.argsort(np.where(us > 0, fill, np.inf))
    return float(fill[order][np.searchsorted(np.cumsum(us[order]), us.sum() / 2)])


def small_network(evidence: Evidence) -> Draft | None:
    """Rule 5: the framework takes many times what the arithmetic and the bytes of the model need.

    No gain is predicted: which remedy wins for a tiny network changes with its size (whole-program compilation, a
    script without Python, one thread, a graph, another device), so they are measured against one another.
    """
    needed_us = sum(max(row.compute_us or 0.0, row.memory_us or 0.0) for row in evidence.analysis.kernels)
    overhead_us = issue_us(evidence) + evidence.account_us("overhead.launch_floor")
    modelled = evidence.analysis.coverage.modelled_share
    if needed_us < _LEAST_NEEDED_US or evidence.is_broken or modelled is None or modelled < 1 - 0.2:
        return None
    if evidence.share_of_step(needed_us) >= _SMALL_NETWORK or evidence.share_of_step(overhead_us) < _MOST_OVERHEAD:
        return None
    on_host = evidence.is_host_only
    each_us = overhead_us_per_op(evidence) if on_host else None
    per_op = f", {format_us(each_us)} per op" if each_us is not None else ""
    flops = evidence.analysis.totals.flops
    return Draft(
        slug="small-network",
        title="The network is too small for the framework that runs it",
        evidence=(
            f"its arithmetic and bytes need {format_us(needed_us)} per step at this device's ceilings; the step takes "
            f"{format_us(evidence.step_us)}, {evidence.step_us / needed_us:.0f} times as long",
            f"{format_us(overhead_us)} is Python, dispatching and launching{per_op}",
            *(
                (f"{format_si(flops, 'FLOP')} in {counted(format_count(evidence.kernels_per_step), 'kernel')} a step",)
                if flops
                else ()
            ),
        ),
        advice=(
            "Take the framework out of the step: a compiled program without Python, one thread, more samples per call."
            if on_host
            else "Run it where launching costs less: on the processor, as one CUDA graph, or many samples per call."
        ),
        code="model = torch.jit.trace(model.eval(), inputs)  # for inference",
        gain_reason="which remedy wins depends on sizes that only a trial knows: see `bottleneck sweep --backends`",
        tries=("torchscript", "compile", "threads-1") if on_host else ("cuda-graph", "compile-reduce-overhead"),
    )


def looped_op(evidence: Evidence) -> Draft | None:
    """Rule 8: one line picks row after row out of a tensor, or unbinds it, and works on each of them alone.

    The gain is N - 1 passes at the cost of a launch (CPU: of three ops, the pick, the work and its result), and no
    more than the overhead at that line. Loops of data loaders are another rule's.
    """
    found = _most_picked(evidence) or _most_unbound(evidence)
    if found is None:
        return None
    source, name, count = found
    each_us = (
        (3 * (overhead_us_per_op(evidence) or 0.0)) if evidence.is_host_only else (host_us_per_launch(evidence) or 0.0)
    )
    lost_us = sum(
        issue_part_us(row) for row in idle_rows(evidence, "dispatch", "python", "launch") if row.source == source
    )
    if evidence.is_host_only:
        lost_us += sum(row.us for row in evidence.analysis.kernels if row.source == source and row.bound == "dispatch")
    high_us = min(lost_us, (count - 1) * each_us)
    if evidence.share_of_step(high_us) < _LEAST_SHARE:
        return None
    return Draft(
        slug="looped-op",
        title="A Python loop works on a tensor row by row",
        evidence=(
            f"{source} calls {name} {counted(format_count(count), 'time')} per step",
            f"{format_us(lost_us)} of the step is spent between the ops of that line",
        ),
        advice=f"Do {at_source(source)} for the whole tensor at once what the loop does row by row.",
        code="out = torch.bmm(batch, weights)  # or torch.vmap(function)(batch), or an op along a dimension",
        gain_us=Interval(high_us / 2, high_us),
        claims=claims_of(evidence, *ISSUE_ACCOUNTS, most_us=high_us),
    )


def _outermost_ops(evidence: Evidence, rows: Integers) -> pd.DataFrame:
    """Those of these rows of OPS that no other op and no loader calls, at a known line."""
    ops = evidence.linked.ops
    rows = rows[(ops["depth"].to_numpy()[rows] == 0) & ops["source"].notna().to_numpy()[rows]]
    rows = rows[~outermost_spans(evidence, _LOADER).hold(ops["ts_us"].to_numpy()[rows])]
    columns = ["source", "name", "module", "thread", "step", "signature", "ts_us"]
    return ops.iloc[rows][columns].reset_index(drop=True)


def _most_unbound(evidence: Evidence) -> tuple[str, str, float] | None:
    """Line, op and calls per step of the op that a loop runs on each row of a tensor: ``for row in x`` unbinds it.

    The op comes after the unbinding, takes a tensor of the row's sizes, and runs as often as there are rows, in one
    module or one call. Layers that get one row each are different modules. Null where there is none.
    """
    unbound = _outermost_ops(evidence, rows_of_ops(evidence, ("aten::unbind",))).dropna(subset=["signature"])
    work, loops = work_of(evidence), dict[tuple[int, ...], tuple[int, float]]()
    for at_us, signature in zip(unbound["ts_us"].tolist(), unbound["signature"].tolist(), strict=True):
        sizes, dim = next(iter(work.sizes_of(signature)), ()), work.text_column("concrete", signature)[1:2]
        at = int(str(dim[0])) if dim and _WHOLE.match(str(dim[0])) else 0
        row = (*sizes[:at], *sizes[at:][1:])
        if row and -len(sizes) <= at < len(sizes) and sizes[at] >= _LOOP_OF:
            loops.setdefault(row, (sizes[at], at_us))
    if not loops:
        return None
    ops = _outermost_ops(evidence, np.flatnonzero(ops_in_window(evidence))).dropna(subset=["signature"])
    taken = {each: work.sizes_of(each) for each in ops["signature"].unique().tolist()}
    for row, (count, from_us) in loops.items():
        on_row = ops["signature"].isin([each for each, sizes in taken.items() if row in sizes])
        body = ops[on_row & (ops["ts_us"] > from_us)]
        same = ["source", "name", "module", "thread", "step"]
        for _, group in body.groupby(same, observed=True, dropna=False, sort=False):
            in_one = group["module"].notna().all() or _runs_in_one_call(evidence, group)
            if len(group) >= count and in_one:
                return str(group["source"].iloc[0]), str(group["name"].iloc[0]), float(len(group))
    return None


def _most_picked(evidence: Evidence) -> tuple[str, str, float] | None:
    """Line, op and calls per step of the op that picks most rows of one tensor from one line, outside other ops.

    Null where none picks enough. A loop runs in one call of one function, and its index changes. That the tensor is
    the same follows from its sizes and strides: a trace has no addresses. Layers that one line calls one after the
    other are other modules and other calls.
    """
    picks = _outermost_ops(evidence, rows_of_ops(evidence, _PICKS))
    if len(picks) < _LOOP_OF:
        return None
    calls = evidence.linked.trace.signatures.reset_index(drop=True)[["dims", "strides", "concrete"]]
    picks = picks.merge(calls.astype(object), left_on="signature", right_index=True)
    picks["index"] = picks["concrete"].astype(str).str.extract(_INDEX, expand=False)
    same = ["source", "name", "module", "thread", "step", "dims", "strides"]
    picks = picks.dropna(subset=["index"])
    groups = picks.groupby(same, observed=True, dropna=False, sort=False)
    number, indices = groups.ngroup(), groups["index"].nunique().to_numpy()
    for loop in sorted(np.flatnonzero(indices >= _LOOP_OF).tolist(), key=lambda each: -int(indices[each])):
        group = picks[number == loop]
        if _runs_in_one_call(evidence, group):
            first = group.iloc[0]
            return str(first["source"]), str(first["name"]), float(len(group))
    return None


def _runs_in_one_call(evidence: Evidence, picks: pd.DataFrame) -> bool:
    """True if the innermost frame of the program around the picks is the same call; also where no frames are known."""
    events = evidence.linked.trace.events
    frames = (events["category"] == "python").to_numpy() & (events["thread"] == picks["thread"].iloc[0]).to_numpy()
    frames &= ~text_matches(events["name"], _LIBRARY_FRAME.search)
    start = events["ts_us"].to_numpy()[frames]
    end = start + events["dur_us"].to_numpy()[frames]
    first, last = picks["ts_us"].min(), picks["ts_us"].max()
    around = np.flatnonzero((start <= last) & (end > first))
    start, end = start[around], end[around]
    innermost = {
        int(np.flatnonzero((start <= at) & (end > at))[-1:].sum()) for at in picks["ts_us"].tolist() if start.size
    }
    return len(innermost) <= 1


RULES = (larger_batch, looped_op, small_network)
