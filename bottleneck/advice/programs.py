"""Rules of whole programs: a forward pass that is repeated, and compilers that nobody has tried."""

import re

import numpy as np

from bottleneck.advice.draft import Draft
from bottleneck.advice.measures import is_compiled, runs_on_host
from bottleneck.advice.work import (
    PRODUCTS,
    Flags,
    Work,
    claims_of_rows,
    gain_of,
    goes_backward,
    share,
    told,
    work_of,
    worth_telling,
)
from bottleneck.case import Case
from bottleneck.units import format_share, format_us

_WORTH_TELLING = 0.02
_MOST_OF_STEP = 0.3

_RECOMPUTES = re.compile(r"^CheckpointFunctionBackward$|evaluate_function: CheckpointFunctionBackward")
_NESTED = re.compile(r"^autograd::engine::evaluate_function")
_ROOM = 0.7


@worth_telling
def recomputation(case: Case) -> Draft | None:
    """Rule 35: activations that the backward pass works out again although memory has room for them.

    The work of a checkpoint's backward op before the nested backward pass begins is the repeated forward pass. Gain:
    at most that, from half of it.
    """
    work = work_of(case)
    peak, capacity = case.analysis.totals.peak_memory_bytes, case.analysis.device.memory_bytes
    rows = _recomputed(work)
    if share(work, rows) < _WORTH_TELLING or not peak or not capacity or peak > _ROOM * capacity:
        return None
    less = np.where(rows, work.us, 0.0)
    return Draft(
        slug="recomputation",
        title="Activations are worked out twice although memory has room",
        evidence=(
            f"{format_us(float(less.sum()))} per step ({format_share(share(work, rows))}) repeat the forward pass",
            f"peak memory is {format_share(peak / capacity)} of the device's",
            *told(work, rows),
        ),
        advice="Checkpoint fewer layers, or use the room for a larger batch.",
        gain_us=gain_of(work, less / 2, less),
        claims=claims_of_rows(work, less),
        code="x = layer(x) if keep_activations else checkpoint(layer, x, use_reentrant=False)",
    )


def _recomputed(work: Work) -> Flags:
    """Rows issued in a checkpoint's backward op before the first backward op nested in it."""
    ops = work.case.linked.ops
    names = ops["name"].cat

    def like(pattern: "re.Pattern[str]") -> Flags:
        found = np.array([pattern.search(str(name)[:200]) is not None for name in names.categories], dtype=bool)
        return np.asarray(np.append(found, False)[names.codes.to_numpy()])

    start, dur = ops["ts_us"].to_numpy(), ops["dur_us"].to_numpy()
    opens = np.flatnonzero(like(_RECOMPUTES))
    if not opens.size:
        return np.zeros(work.row.size, dtype=bool)
    nested = np.sort(start[like(_NESTED) & ~like(_RECOMPUTES)])
    following = np.append(nested, np.inf)[np.searchsorted(nested, start[opens], side="right")]
    order = np.argsort(start[opens], kind="stable")
    begins, ends = start[opens][order], np.minimum(start[opens] + dur[opens], following)[order]
    at_us = np.append(start, np.nan)[work.op]
    before = np.searchsorted(begins, at_us, side="right") - 1
    return np.asarray((before >= 0) & (at_us < ends[np.maximum(before, 0)]))


_BACKENDS_CPU = ("torchscript", "backend-openvino", "backend-onnxrt", "backend-tvm")
_BACKENDS_GPU = ("torchscript", "backend-onnxrt", "backend-tensorrt", "backend-tvm", "backend-openxla")


def other_backends(case: Case) -> Draft | None:
    """Rule 37: inference by eager ops, most of it in products: compilers differ, and only measuring them tells."""
    work = work_of(case)
    rows = work.family(*PRODUCTS)
    if goes_backward(case) or is_compiled(case) or share(work, rows) < _MOST_OF_STEP:
        return None
    backends = _BACKENDS_CPU if runs_on_host(case) else _BACKENDS_GPU
    return Draft(
        slug="other-backends",
        title="Other compilers may run these products faster",
        evidence=(
            f"{format_share(share(work, rows))} of the step are products of an eager forward pass",
            *told(work, rows),
        ),
        advice="Compare the whole-program compilers that are installed, over the batch sizes that you serve.",
        gain_us=None,
        gain_reason="not predicted: what a compiler makes of these shapes is only known once it has run them",
        code="bottleneck sweep model.py --param batch_size=1,4,16,64 --backends eager,inductor,torchscript",
        tries=("compile", *backends),
        confidence="low",
    )


RULES = (recomputation, other_backends)
