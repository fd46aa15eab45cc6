"""Rules of steps that are too small: more samples per step, small networks."""

import math

import numpy as np

from bottleneck.advice.data_loading import code_for_twice_the_batch
from bottleneck.advice.dispatch import graph_name
from bottleneck.advice.host import other_threads
from bottleneck.advice.kernel_work import has_backward_pass, work_of
from bottleneck.advice.loop_lines import LOOP_OF, layer_lines
from bottleneck.advice.loop_remedies import FEW_ROWS, rows_of_call
from bottleneck.advice.optimizers import loops_over_parameters
from bottleneck.advice.parameter_loops import logged_parameters, tensor_by_tensor
from bottleneck.advice.python_loops import goes_in_order, looped_op, op_loop
from bottleneck.advice.quantities import (
    ISSUE_ACCOUNTS,
    claims_of,
    format_count,
    format_per_step,
    has_backward_marks,
    issue_us,
    model_call,
    overhead_us_per_op,
    timing_confidence,
)
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_passes
from bottleneck.advice.slow_lines import python_line
from bottleneck.schema.accounts import UNMODELLED_ACCOUNTS
from bottleneck.schema.analysis import Confidence, Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Floats
from bottleneck.schema.op_names import at_source
from bottleneck.units import counted, format_ratio, format_ratio_range, format_share, format_si, format_us

# Rule 3: a step that grows by less than this when its batch doubles is mostly fixed cost.
_MOSTLY_FIXED = 1.2
# Without a batch test: the part of the step that overhead must take before more samples are advised.
_MOST_OVERHEAD = 0.5
# The loader is in the way from this part of the step on; an optimizer that takes so much of it runs alone.
_MOST_INPUT, _ONLY_OPTIMIZER = 0.2, 0.9
_FIXED = (*ISSUE_ACCOUNTS, "overhead.launch_floor")
# Threads that a multiprocessor runs at once: data-centre parts of NVIDIA since Volta; 32 waves of 64 on CDNA.
_SLOTS = {"cuda": 2048.0, "rocm": 2048.0}
_TILED = ("matmul", "convolution", "attention")
# A step of fewer kernels is a benchmark of them, whose size is its own.
_FEW_KERNELS = 4
# Rule 5: a step whose arithmetic and bytes need less than this of it.
_SMALL_NETWORK = 0.05
# Without sizes: a step whose ops work for less than this of it, dispatching within them included.
_SMALL_WORK = 0.1
# Below this, what was modelled is not the network, unless it multiplies matrices.
_LEAST_NEEDED_US = 1.0


_EACH_GRADIENT = (
    " Where the gradient of each sample is needed (to clip it, for privacy), take torch.func.vmap over torch.func.grad."
)
_RAISED = "Double the batch size, and again while samples per second still rise"


def larger_batch(evidence: Evidence) -> Draft | None:
    """Finds a step that hardly grows with its batch (rule 3).

    Twice the samples take little more time. The gain is that per sample: a step of 2B samples replaces two of B, so
    t(B) - t(2B) / 2. Where the batch test measured t(2B) / t(B), from its interval, below 1 too (a product of twice as
    many rows can be the quicker one); else from the ledger: between 1, if all that works has room left, and 1 + the
    part of the step that is no overhead (nor input, which grows with the samples). Where overhead is no reason, kernels
    that leave a part of the device empty are: twice the blocks run beside one another as far as there is room. Nothing
    is said without a batch test where a part of the overhead is known to grow with the batch, or has nothing to do with
    it.
    """
    proof = evidence.analysis.batch_test
    is_measured = proof is not None and proof.ratio is not None
    if other_threads(evidence) is not None:
        return None  # that thread holds up a larger step too
    if evidence.is_broken and not is_measured:
        return None  # steps of both batch sizes take turns, so that other programs disturb them alike; a ledger is one
    if proof is not None and proof.ratio is not None:
        low, high, seen = proof.ratio.low, proof.ratio.high, "doubling the batch was tried: the step takes"
        if proof.ratio.median >= _MOSTLY_FIXED:
            return None
        longer = f"{format_ratio(proof.ratio.median)} times as long"
        words = f"{seen} {longer} (95 % interval {format_ratio_range(low, high)})"
    else:
        # Where each sample has a pass of its own, more samples are more passes.
        if _grows_with_batch(evidence) or backward_passes(evidence) >= LOOP_OF:
            return None
        grown = _growth_of_fixed_cost(evidence) or _growth_of_few_rows(evidence) or _growth_of_small_grids(evidence)
        if grown is None or evidence.kernels_per_step < _FEW_KERNELS:
            return None
        low, high, words = grown
    collected = _few_rows(evidence)
    has_own_gradients = bool(collected) and has_backward_pass(evidence)
    gain = Interval(evidence.step_us * max(1 - high / 2, 0.0), evidence.step_us * (1 - max(low, 0.0) / 2))
    claims = claims_of(evidence, *_FIXED, "memory", "compute", *UNMODELLED_ACCOUNTS, most_us=gain.high)
    return Draft(
        slug="larger-batch",
        title=f"Twice the samples {'take' if is_measured else 'would take'} nearly the same time",
        evidence=(
            words,
            f"{counted(format_count(evidence.kernels_per_step), 'kernel')} per step, whatever the batch size",
        ),
        advice=(f"{collected}, until a call grows with them" if collected else _RAISED)
        + (" (and the learning rate with it)." if has_backward_pass(evidence) else ".")
        + (_EACH_GRADIENT if has_own_gradients else ""),
        brief=(collected or _RAISED)
        + ("; where each needs its own gradient, take torch.func.vmap" if has_own_gradients else ""),
        places=(model_call(evidence),),
        code=code_for_twice_the_batch(evidence),
        gain_us=gain,
        claims=claims,
        tries=("batch-x2",),
        confidence=_confidence(evidence, is_measured=is_measured),
        basis="timed" if is_measured else "formula",
        changes_results=True,
        per="sample",
    )


def _few_rows(evidence: Evidence) -> str:
    """Words a line that calls a module for a few rows.

    Empty where it gets a batch, calls the layers of one network, or none is known.
    """
    line = model_call(evidence)
    rows = None if line is None or line in layer_lines(evidence) else rows_of_call(evidence, line)
    if rows is None or rows > FEW_ROWS:
        return ""
    return f"Collect what the model is called for {at_source(line)}, {counted(rows, 'row')} each time, into one call"


def _grows_with_batch(evidence: Evidence) -> bool:
    """True where a part of the step grows with the batch.

    That is Python of the program, loops over tensors, logging or the loader; also where no model runs. Loops over rows
    and lines of Python take twice as long for twice the samples: a loss of nested loops was promised 1.32 to 2.10 times
    as many samples per second, and gave 0.58. Rounds that need one another are as many for any batch.
    """
    loop = op_loop(evidence)
    loops = () if loop is not None and goes_in_order(evidence, loop) else (looped_op,)
    drafts = (rule(evidence) for rule in (python_line, tensor_by_tensor, *loops, logged_parameters))
    if any(draft is not None for draft in drafts):
        return True
    phases = {phase.name: phase.share for phase in evidence.analysis.phases}
    waits = evidence.share_of_step(evidence.account_us("overhead.input"))
    return waits >= _MOST_INPUT or phases.get("optimizer", 0.0) >= _ONLY_OPTIMIZER


def _confidence(evidence: Evidence, *, is_measured: bool) -> Confidence:
    if not is_measured:
        return timing_confidence(evidence)
    return "medium" if evidence.is_broken else "high"


# Of the cost that is the same for any batch, for twice the samples: a neural ODE of 20 states of two numbers took 1.02
# times as long for 40, all of it Python and dispatching (torch 2.13, one thread of an EPYC).
_GROWS_AT_WORST = 0.05


def _growth_of_fixed_cost(evidence: Evidence) -> tuple[float, float, str] | None:
    """Returns t(2B) / t(B) at least and at most where overhead is most.

    With the reason; else null.
    """
    fixed_us = issue_us(evidence)
    if evidence.share_of_step(fixed_us) < _MOST_OVERHEAD:
        return None
    words = (
        f"{format_per_step(evidence, fixed_us)} is Python, dispatching and launching, which cost the same for any batch"
    )
    return 1.0, 2.0 - (1.0 - _GROWS_AT_WORST) * evidence.share_of_step(fixed_us), words


def _growth_of_few_rows(evidence: Evidence) -> tuple[float, float, str] | None:
    """Returns the same where a model without a backward pass gets few rows.

    It reads all its weights for each; else null.
    """
    line = model_call(evidence)
    rows = None if line is None else rows_of_call(evidence, line)
    if rows is None or rows > FEW_ROWS or has_backward_marks(evidence):
        return None
    work = work_of(evidence)
    # What moves the numbers of a sample, as enlarging its images does, takes twice as long for two.
    products = work.family("matmul", "recurrent")
    others = work.bound("memory") & ~products
    part = 1 - work.us_of(others) / max(work.us_of(products | others), 1e-9)
    fixed_us = sum(evidence.account_us(name) for name in _FIXED) + part * evidence.account_us("memory")
    if evidence.share_of_step(fixed_us) < _MOST_OVERHEAD:
        return None
    words = (
        f"{format_per_step(evidence, fixed_us)} is overhead, and reading the weights for {counted(rows, 'row')}, which "
        "take as long for more rows"
    )
    return 1.0, 2.0 - evidence.share_of_step(fixed_us), words


def _growth_of_small_grids(evidence: Evidence) -> tuple[float, float, str] | None:
    """Returns the same where most of the step are small kernels.

    They have fewer blocks than the device runs at once; else null. Twice the blocks take as long while they fit, and
    two rounds at most. All else takes twice as long.
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
    """Finds a model that needs far less than the framework takes (rule 5).

    The framework takes many times what the arithmetic and the bytes of the model need. No gain is predicted: which
    remedy wins for a tiny network changes with its size (whole-program compilation, a script without Python, one
    thread, a graph, another device), so they are measured against one another. Where sizes are not known, the time of
    the ops that work on a CPU is the most that they need.
    """
    needed_us = sum(max(row.compute_us or 0.0, row.memory_us or 0.0) for row in evidence.analysis.kernels)
    overhead_us = issue_us(evidence) + evidence.account_us("overhead.launch_floor")
    modelled = evidence.analysis.coverage.modelled_share
    is_unknown, on_host = modelled is None or modelled < 1 - 0.2, evidence.is_host_only
    if is_unknown and on_host:
        needed_us = math.fsum(evidence.group_us(group) for group in ("compute", "memory", "unknown"))
    multiplies = bool((work_of(evidence).cost("matrix_flops") > 0).any())
    if needed_us < _LEAST_NEEDED_US and not multiplies:
        return None
    if evidence.is_broken or loops_over_parameters(evidence):
        return None
    if is_unknown and not on_host:
        return None
    most = _SMALL_WORK if is_unknown else _SMALL_NETWORK
    if evidence.share_of_step(needed_us) >= most or evidence.share_of_step(overhead_us) < _MOST_OVERHEAD:
        return None
    each_us = overhead_us_per_op(evidence) if on_host else None
    per_op = f", {format_us(each_us)} per op" if each_us is not None else ""
    flops = evidence.analysis.totals.flops
    return Draft(
        slug="small-network",
        title="The network is too small for the framework that runs it",
        evidence=(
            f"its ops work for {format_us(needed_us)} of the {format_us(evidence.step_us)} step at most"
            if is_unknown
            else f"its arithmetic and bytes need {format_us(needed_us)} per step at this device's ceilings; the step "
            f"takes {format_us(evidence.step_us)}, {evidence.step_us / max(needed_us, 1e-9):.0f} times as long",
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
            else "Run it where launching costs less: on the processor, as one "
            f"{graph_name(evidence) or 'graph'}, or many samples per call."
        ),
        code="model = torch.jit.trace(model.eval(), inputs)  # for inference",
        gain_reason="which remedy wins depends on sizes that only a trial knows: see `bottleneck sweep --backends`",
        tries=("whole-step" if has_backward_pass(evidence) else "aot-package", "torchscript", "compile", "threads-1")
        if on_host
        else ("cuda-graph", "compile-reduce-overhead"),
    )


RULES = (larger_batch, small_network)
