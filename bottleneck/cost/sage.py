"""Prices of SageAttention's Triton kernels, which torch.compile launches under their own names (cost stage).

Queries and keys are rounded to 8 bits first, values to fp8; the products run on 8 bits, their sums in fp32.
"""

import math
import re

from bottleneck.cost.call import Cost, Formula, OpCall, Unpriced
from bottleneck.cost.traffic import stream

# Inductor numbers the kernels that users wrote: 'sage_fwd_1'.
_NAME = re.compile(r"sage_(fwd|quant_kernel)(?:_\d+)?")

UNMASKED = "lower end: whether the mask is causal was not recorded"


def formula(name: str) -> Formula | None:
    """What prices a kernel of this name; null for every other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else {"fwd": _forward, "quant_kernel": _round}[found[1]]


def trade(name: str) -> str | None:
    """The trade of such a kernel; null for every other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else {"fwd": "attention", "quant_kernel": "pointwise"}[found[1]]


def _forward(call: OpCall) -> Cost:
    """sage_fwd(query, key, value, …, result, …), [batch, heads, length, width]: buffers moved once each.

    Whether a mask hides later keys is a constant of the kernel, in no trace: half of all pairs are seen at least.
    """
    query, key, value = (call.tensor(position) for position in range(3))
    if min(len(tensor.shape) for tensor in (query, key, value)) != 4 or query.shape[-1] != key.shape[-1]:
        raise Unpriced("query, key and value do not fit each other")
    queries, keys = query.shape[-2], key.shape[-2]
    seen = min(queries, keys)
    pairs = math.prod(query.shape[:-2]) * seen * (seen + 1) / 2
    moved = float(sum(tensor.bytes for tensor in call.tensors()))
    return Cost(
        "attention",
        matrix_flops=2.0 * pairs * (query.shape[-1] + value.shape[-1]),
        vector_flops=4.0 * pairs,
        special_ops=pairs,
        bytes_low=moved,
        bytes_high=moved,
        math_dtype="fp8",
        note=UNMASKED,
    )


def _round(call: OpCall) -> Cost:
    """sage_quant_kernel(query, rounded query, scales, key, …): read, rounded to 8 bits by block, and written."""
    tensors = call.tensors()
    return stream("pointwise", *tensors, vector_flops=1.5 * sum(tensor.numel for tensor in tensors))
