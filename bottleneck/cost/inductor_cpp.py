"""Costs of the C++ kernels that torch.compile generates.

They come from the records taken while the kernels were generated.

Bytes are those of the kernel's own buffers: what it fuses stays in registers. FLOPs are those of the ops that it fuses,
by the formulas of the same ops in eager mode.
"""

import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bottleneck.cost import compute_costs, cost_table
from bottleneck.cost.call import Cost, Tensor, Unmodelled
from bottleneck.schema.compiled_kernels import Compiled, CompiledBuffer, CompiledKernel, CompiledOp
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.tables import CALLS, COSTS, as_integers

FAMILY = "compiled"

_KEY = ("name", "dims", "types", "strides", "concrete")  # determines the cost of one op

Key = tuple[str, ...]

# Ops that only fetch numbers: the graph does not record the sizes of their indices, and arithmetic they have none.
_FETCHES = frozenset({"aten::index", "aten::_unsafe_index", "aten::_unsafe_masked_index"})

# Wrappers that run a compiled graph. All of its kernels are in the trace by name, so the wrappers do no other work.
_WRAPPER = re.compile(r"Torch-Compiled Region: .*|CompiledFunction(Backward)?|## Call CompiledFxGraph .* ##")


def add_compiled_kernels(linked: Linked, costs: pd.DataFrame, compiled: Compiled) -> tuple[Linked, pd.DataFrame]:
    """Adds a call and a cost for each compiled kernel.

    Returns the trace and its COSTS.

    Existing rows keep their numbers. Where every kernel was recorded, the wrappers that run the compiled graphs get a
    zero cost: they only call others.
    """
    names = [str(name) for name in linked.ops["name"].cat.categories]
    recorded = {kernel.name: kernel for kernel in compiled.kernels}
    kernels = [recorded[name] for name in names if name in recorded]
    wrappers = [name for name in names if compiled.problem is None and _WRAPPER.fullmatch(name)]
    rows = [*map(_call, kernels), *({"name": name} for name in wrappers)]
    if not rows:
        return linked, costs
    calls = pd.concat([linked.trace.signatures, pd.DataFrame(rows, columns=list(CALLS.columns))]).astype(object)
    more = [*compute_kernel_costs(kernels), *(Cost("dispatch") for _ in wrappers)]
    joined = replace(
        linked,
        trace=replace(linked.trace, signatures=CALLS.check(calls.where(calls.notna(), None).reset_index(drop=True))),
        ops=_point(linked.ops, {row["name"]: len(costs) + at for at, row in enumerate(rows)}),
    )
    return joined, _extend(costs, more)


def compute_kernel_costs(kernels: Sequence[CompiledKernel]) -> list[Cost | Reason]:
    """Gives the cost of each kernel, or the reason for none.

    Layers repeat, so equal ops are computed once.
    """
    distinct = list(dict.fromkeys(_key(op) for kernel in kernels for op in kernel.ops))
    parts = compute_costs(pd.DataFrame(distinct, columns=list(_KEY)))
    cost_by_op = dict(zip(distinct, parts.to_dict("records"), strict=True))
    return [_kernel_cost(kernel, cost_by_op) for kernel in kernels]


def _key(op: CompiledOp) -> Key:
    return op.name, op.dims, op.types, op.strides, op.concrete


def _kernel_cost(kernel: CompiledKernel, found: Mapping[Key, Mapping[Hashable, Any]]) -> Cost | Reason:
    """The cost of one kernel from the costs and counts of its ops."""
    if kernel.reason is not None:
        return Reason("compiled_kernel", (kernel.reason,))
    parts = [(op.calls * op.share, found[_key(op)]) for op in kernel.ops if op.name not in _FETCHES]
    reason: Reason | None = next((part["reason"] for _, part in parts if part["reason"] is not None), None)
    if reason is not None:
        return replace(reason, contexts=(*reason.contexts, "fused"))
    try:
        low, high = (math.fsum(_bytes(buffer, end) for buffer in kernel.buffers) for end in (0, 1))
    except Unmodelled as unmodelled:
        return unmodelled.reason
    # Loops do no products: of a convolution's gradient they compute only the sum over its bias.
    done = [(times, part) for times, part in parts if kernel.is_template or not part["matrix_flops"]]
    return Cost(
        FAMILY,
        matrix_flops=math.fsum(times * part["matrix_flops"] for times, part in done),
        vector_flops=math.fsum(times * part["vector_flops"] for times, part in done),
        special_ops=math.fsum(times * part["special_ops"] for times, part in done),
        bytes_low=low,
        bytes_high=high,
        math_dtype=_math_dtype([part for _, part in done]),
    )


def _bytes(buffer: CompiledBuffer, end: int) -> float:
    """Gives the least (0) or most (1) bytes moved of a buffer."""
    elements = sum(pair[end] for pair in (buffer.read, buffer.written) if pair is not None)
    return elements * Tensor((), buffer.type).item_bytes


def _math_dtype(parts: Sequence[Mapping[Hashable, Any]]) -> str:
    """Gives the dtype that the kernel computes in.

    It is that of the product if there is one. Else it is fp64 if any op computes in it, since the others are widened.
    """
    products = sorted({str(part["math_dtype"]) for part in parts if part["matrix_flops"]})
    if products:
        return products[0]
    return "fp64" if any(part["vector_flops"] and part["math_dtype"] == "fp64" for part in parts) else "fp32"


def _call(kernel: CompiledKernel) -> dict[str, Any]:
    """A row of CALLS, with the kernel's buffers as arguments."""
    sources = {"dims": "dims", "types": "type", "strides": "strides"}
    texts = {
        column: json.dumps([getattr(buffer, name) for buffer in kernel.buffers]) for column, name in sources.items()
    }
    return {"name": kernel.name, **texts}


def _point(ops: pd.DataFrame, row_of: dict[str, int]) -> pd.DataFrame:
    """OPS whose rows of these names point to these rows of CALLS."""
    codes = ops["name"].cat.codes.to_numpy()
    own = np.array([row_of.get(str(name), -1) for name in ops["name"].cat.categories], dtype=np.int64)[codes]
    signature = np.where(own >= 0, own, as_integers(ops["signature"]))
    return ops.assign(signature=pd.arrays.IntegerArray(signature.astype(np.int32), signature < 0))


def _extend(costs: pd.DataFrame, results: Sequence[Cost | Reason]) -> pd.DataFrame:
    """COSTS with these costs behind its rows."""
    more = cost_table(results, [()] * len(results))
    joined = pd.concat([costs, more], ignore_index=True)
    texts = {
        name: pd.Categorical([*costs[name].astype(object), *more[name].astype(object)])
        for name in ("family", "math_dtype")
    }
    return COSTS.check(joined.assign(**texts))
