"""Costs of autograd functions that extensions write in Python, whose kernels no op launches.

Such a function is recorded under the name of its class with its tensor arguments alone, None left out, and its backward
node as that name and 'Backward' with the gradients; where the trace ties both, the arguments of the function stand
behind the gradients. Functions of Megatron-LM, Apex, TransformerEngine, Liger, Mamba and causal-conv1d.
"""

from functools import partial

from bottleneck.cost.attention import visible_pairs
from bottleneck.cost.call import Cost, Formula, OpCall, Tensor, Unmodelled
from bottleneck.cost.traffic import named, stream
from bottleneck.schema.records import replace

BACKWARD = "Backward"

# The rounds of states that a selective scan keeps for its backward pass: one per so many positions.
_SCAN_CHUNK = 2048
# A step of the recurrence: delta * A, exp, delta * B * u, the state, and C times it (state-spaces/mamba issue 110).
_SCAN_FLOPS = 9.0


def _seen(x: Tensor, masked: bool) -> float:
    """Gives the part of the scores [.., queries, keys] that is seen.

    Masked, these are the scores on and below the diagonal that ends in the last corner; else all are seen.
    """
    if not masked:
        return 1.0
    if len(x.shape) < 2:
        raise Unmodelled("unfit_attention")
    queries, keys = x.shape[-2:]
    return visible_pairs(queries, keys, last=keys - queries) / max(queries * keys, 1)


def _softmax(masked: bool, call: OpCall) -> Cost:
    """Prices a scaled softmax(scores, mask).

    Scores are read where they are seen, and all probabilities are written.

    Above the diagonal kernels write zeros without reading; at the high end they read too.
    """
    x, *masks = call.tensors()
    seen = _seen(x, masked)
    cost = stream("softmax", x, Tensor(x.shape, x.dtype), *masks, vector_flops=5.0 * seen * x.numel)
    return replace(cost, special_ops=seen * x.numel, bytes_low=cost.bytes_low - (1.0 - seen) * x.bytes)


def _softmax_backward(masked: bool, call: OpCall) -> Cost:
    """Prices the backward pass of a scaled softmax.

    Gradient and probabilities are read where they are seen, and all of dx is written.
    """
    dy = call.tensor(0)
    seen, like = _seen(dy, masked), Tensor(dy.shape, dy.dtype)
    cost = stream("softmax", dy, like, like, vector_flops=4.0 * seen * dy.numel)
    return replace(cost, bytes_low=cost.bytes_low - 2.0 * (1.0 - seen) * dy.bytes)


def _norm(statistics: int, flops: float, call: OpCall) -> Cost:
    """Prices a layer or RMS norm (x, weight, bias).

    Rows are as wide as the weight, else as the last dimension.
    """
    x, *weights = call.tensors()
    width = weights[0].numel if weights else (x.shape[-1] if x.shape else 1)
    rows = Tensor((x.numel // max(width, 1),), "float")
    moved = (x, Tensor(x.shape, x.dtype), *weights, *[rows] * statistics)
    return stream("normalization", *moved, vector_flops=flops * x.numel)


def _norm_backward(flops: float, call: OpCall) -> Cost:
    """Prices the backward pass of a layer or RMS norm.

    dy and x are read, dx is written. The gradient of the weight reads both again.
    """
    dy = call.tensor(0)
    like = Tensor(dy.shape, dy.dtype)
    cost = stream("normalization", dy, like, like, vector_flops=flops * dy.numel)
    return replace(cost, bytes_high=cost.bytes_high + 2 * dy.bytes)


def _passes(family: str, more: int, flops: float, special_ops: float, call: OpCall) -> Cost:
    """Prices moving every argument once.

    The first one or its like moves ``more`` times beyond that.
    """
    tensors = call.tensors()
    if not tensors:
        raise Unmodelled("no_tensor")
    first = tensors[0]
    likes = [Tensor(first.shape, first.dtype)] * more
    work = {"vector_flops": flops * first.numel, "special_ops": special_ops * first.numel}
    return stream(family, *tensors, *likes, **work)


def _rotary(call: OpCall) -> Cost:
    """Prices a rotary embedding in place, or its gradients.

    Query and key are read and written, sines and cosines read.
    """
    turned, tables = call.tensors()[:2], call.tensors()[2:4]
    return stream("pointwise", *turned, *turned, *tables, vector_flops=3.0 * sum(tensor.numel for tensor in turned))


def _cross_entropy(call: OpCall) -> Cost:
    """Prices a loss (logits, targets) that overwrites the logits.

    It puts the gradient in their place. They are read twice at worst.
    """
    logits, targets = call.tensor(0), call.tensor(1)
    work = {"vector_flops": 8.0 * logits.numel, "special_ops": 2.0 * logits.numel}
    cost = stream("loss", logits, logits, targets, **work)
    return replace(cost, bytes_high=cost.bytes_high + logits.bytes)


def _scan(passes: float, first: int, call: OpCall) -> Cost:
    """Prices ``passes`` of a selective scan, behind its gradients.

    The scan has the arguments (u [b, d, l], delta, A [d, n], B, C, …).

    Every tensor moves once forward and once more as its gradient. The states that the kernel keeps for the backward
    pass count at the high end. The backward pass scans again: its FLOPs are a lower end.
    """
    u, a = call.tensor(first), call.tensor(first + 2)
    if len(u.shape) != 3 or len(a.shape) != 2 or a.shape[0] != u.shape[1]:
        raise Unmodelled("unfit_shapes", call.name)
    steps = float(u.numel * a.shape[1])
    states = u.shape[0] * a.numel * 2.0 * -(-u.shape[2] // _SCAN_CHUNK) * 4.0
    operands = call.tensors()[first:]
    moved = [*call.tensors()[:first], *operands, *(operands if passes > 1 else (Tensor(u.shape, u.dtype),))]
    cost = stream("scan", *moved, vector_flops=passes * _SCAN_FLOPS * steps, special_ops=passes * steps)
    return replace(cost, bytes_high=cost.bytes_high + states)


def _short_convolution(call: OpCall) -> Cost:
    """Prices a causal convolution along each row.

    Its arguments are x [b, d, l], weight [d, width] and bias.
    """
    x, weight = call.tensor(0), call.tensor(1)
    flops = 2.0 * weight.shape[-1] * x.numel
    return stream("convolution", *call.tensors(), Tensor(x.shape, x.dtype), vector_flops=flops)


_DIAGONAL = "ScaledUpperTriangMaskedSoftmax ScaledAlignedCausalMaskedSoftmax"
_WHOLE = "ScaledMaskedSoftmax ScaledSoftmax GenericScaledMaskedSoftmax"
_LAYER_NORMS = (
    "FusedLayerNormAffineFunction FusedLayerNormFunction FusedLayerNormAffineMixedDtypesFunction FastLayerNormFN "
    "LigerLayerNormFunction"
)
_RMS_NORMS = (
    "FusedRMSNormAffineFunction FusedRMSNormFunction FusedRMSNormAffineMixedDtypesFunction LigerRMSNormFunction "
    "Fast_RMS_Layernorm"
)
_GATES = "LigerSiLUMulFunction LigerGELUMulFunction"

_FORWARD: dict[str, dict[str, Formula]] = {
    "normalization": {
        _DIAGONAL: partial(_softmax, True),
        _WHOLE: partial(_softmax, False),
        _LAYER_NORMS: partial(_norm, 2, 8.0),
        _RMS_NORMS: partial(_norm, 1, 4.0),
    },
    "pointwise": {_GATES: partial(_passes, "pointwise", 1, 6.0, 1.0), "LigerRopeFunction": _rotary},
    "loss": {"LigerCrossEntropyFunction": _cross_entropy},
    "passes": {"SelectiveScanFn": partial(_scan, 1.0, 0)},
    "convolution": {"CausalConv1dFn": _short_convolution},
}
_BACKWARD: dict[str, dict[str, Formula]] = {
    "normalization": {
        _DIAGONAL: partial(_softmax_backward, True),
        _WHOLE: partial(_softmax_backward, False),
        _LAYER_NORMS: partial(_norm_backward, 14.0),
        _RMS_NORMS: partial(_norm_backward, 10.0),
    },
    "pointwise": {_GATES: partial(_passes, "pointwise", 4, 10.0, 1.0), "LigerRopeFunction": _rotary},
    "passes": {"SelectiveScanFn": partial(_scan, 2.0, 1)},
    "convolution": {"CausalConv1dFn": partial(_passes, "convolution", 2, 16.0, 0.0)},
}

# Formulas by the family of the op, as OP_FAMILIES has them.
FORMULAS: dict[str, dict[str, Formula]] = {
    family: {
        **named(table, prefix=""),
        **named(_BACKWARD.get(family, {}), (BACKWARD,), prefix=""),
    }
    for family, table in _FORWARD.items()
}

# Backward nodes whose cost needs the arguments of the function itself.
NEED_OPERANDS = frozenset(f"{name}{BACKWARD}" for name in ("SelectiveScanFn", "FlashAttnFunc", "FlashAttnVarlenFunc"))
