"""Cost of normalisation and softmax.

Rows or channels are reduced to a few numbers, then these are applied to every element.
"""

import math
from functools import partial

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor
from bottleneck.cost.traffic import Streams, dtype_argument, named, op_names, stream
from bottleneck.schema.records import replace

NORMALIZATION, SOFTMAX = "normalization", "softmax"

# Mean and reciprocal deviation are kept in fp32 for the backward pass.
_STATISTIC = "float"
# A row of softmax stays on the chip up to the shared memory that every GPU gives a block; a longer one is read again,
# once for the sum and once for the result.
_ROW_BYTES = 48 * 1024


def _norm(tensors: tuple[Tensor, ...], again: tuple[Tensor, ...], flops: float) -> Cost:
    """Prices moving ``tensors`` once, and ``again`` in second passes.

    Only some kernels make a second pass.
    """
    cost = stream(NORMALIZATION, *tensors, vector_flops=flops, special_ops=0.0)
    return replace(cost, bytes_high=cost.bytes_high + sum(tensor.bytes for tensor in again))


def _like(tensor: Tensor) -> Tensor:
    """A dense tensor of the same shape and dtype."""
    return Tensor(tensor.shape, tensor.dtype)


def _parameters(call: OpCall, *positions: int) -> tuple[Tensor, ...]:
    """The tensors among optional arguments."""
    tensors = (call.optional_tensor(position) for position in positions)
    return tuple(tensor for tensor in tensors if tensor is not None)


def _row_norm(statistics: int, parameters: tuple[int, ...], flops: float, call: OpCall) -> Cost:
    """The cost of native_layer_norm(x, shape, weight, bias, eps) and _fused_rms_norm(x, shape, weight, eps).

    x is read, the result and so many statistics per row are written. Elements that share one mean are given by the
    shape, else by the weight, else they are one row of the last dimension.
    """
    x, weights = call.tensor(0), _parameters(call, *parameters)
    shape = call.integers(1) or (weights[0].shape if weights else x.shape[-1:])
    rows = Tensor((x.numel // max(1, math.prod(shape)),), _STATISTIC)
    return _norm((x, _like(x), *weights, *[rows] * statistics), (), flops * x.numel)


def _row_norm_backward(statistics: tuple[int, ...], parameters: tuple[int, ...], flops: float, call: OpCall) -> Cost:
    """Prices the backward pass of layer and RMS norm.

    It is called with (dy, x, shape, statistics, parameters, mask).

    The kernel of the weight's gradient reads dy and x again.
    """
    dy, x = call.tensor(0), call.tensor(1)
    weights = _parameters(call, *parameters)
    mask = call.flags(parameters[-1] + 1) or (True, True, True)
    gradients = [_like(tensor) for tensor, wanted in zip((x, *weights), mask, strict=False) if wanted]
    again = (dy, x) if weights and mask[0] and any(mask[1:]) else ()
    moved = (dy, x, *_parameters(call, *statistics), *weights[:1], *gradients)
    return _norm(moved, again, flops * x.numel)


def _batch_norm(training_position: int | None, call: OpCall, *, otherwise: bool = True) -> Cost:
    """Prices a batch norm in training or evaluation.

    Its training flag is at a position, or is ``otherwise`` by the op's name.

    Training reads x for the statistics and again for the result. A flag that was not recorded leaves both possible.
    """
    x = call.tensor(0)
    training = otherwise if training_position is None else call.flag(training_position)
    moved = (x, _like(x), *_parameters(call, 1, 2, 3, 4))
    return _norm(moved, (x,) if training is not False else (), (8.0 if training else 2.0) * x.numel)


def _softmax(call: OpCall) -> Cost:
    """Prices a softmax (x, dim, half_to_float), with a logarithm or without.

    There are four FLOPs and one exp per element.
    """
    x = call.tensor(0)
    result = Tensor(x.shape, "float" if call.flag(2) else x.dtype)
    cost = stream(SOFTMAX, x, result, vector_flops=4.0 * x.numel, special_ops=x.numel)
    return replace(cost, bytes_high=cost.bytes_high + _spilled_bytes(call, x))


def _spilled_bytes(call: OpCall, x: Tensor) -> float:
    """Gives bytes read again because a row exceeds the chip.

    A row of unknown length may be as long as any.
    """
    dim = call.integer(1)
    try:
        row = max(x.shape) if dim is None else x.shape[dim]
    except (IndexError, ValueError):
        row = 1
    return 2 * x.bytes if row * x.item_bytes > _ROW_BYTES else 0.0


def _softmax_backward(special_ops: float, call: OpCall) -> Cost:
    """Prices _softmax_backward_data(dy, y, dim, dtype).

    dy and y are read, dx is written in the dtype of the input.

    Before 1.11 the last argument was the input itself, which is not read.
    """
    dy, y = call.tensor(0), call.tensor(1)
    given = call.optional_tensor(3)
    dtype = dtype_argument(call, 3, dy.dtype) if given is None else given.dtype
    dx = Tensor(y.shape, dtype)
    return stream(SOFTMAX, dy, y, dx, vector_flops=4.0 * y.numel, special_ops=special_ops * y.numel)


# Ops that only choose an implementation and call it.
COMPOSITES = op_names("""
    layer_norm rms_norm group_norm instance_norm batch_norm _batch_norm_impl_index _batch_norm_impl_index_backward
    softmax log_softmax _safe_softmax _weight_norm
""")

# Statistics come first, then what they were taken of is read again. Arguments: (dy, x, mean, rstd, weight, …); cuDNN's
# (x, dy, …); (v, g, dim) and (dw, v, g, norms, dim) of weight norm.
_GROUP_BACKWARD = Streams(NORMALIZATION, 2, (1,), 14.0, per=1, optional=(2, 3, 4), again=(0, 1))
_BATCH_BACKWARD = Streams(NORMALIZATION, 2, (0,), 12.0, optional=(2,), again=(0, 1))

FORMULAS: Formulas = named(
    {
        "native_layer_norm": partial(_row_norm, 2, (2, 3), 8.0),
        "native_layer_norm_backward": partial(_row_norm_backward, (3, 4), (5, 6), 14.0),
        "_fused_rms_norm": partial(_row_norm, 1, (2,), 4.0),
        "_fused_rms_norm_backward": partial(_row_norm_backward, (3,), (4,), 10.0),
        "native_group_norm": Streams(NORMALIZATION, 1, flops=8.0, optional=(1, 2), again=(0,)),
        "native_group_norm_backward": _GROUP_BACKWARD,
        "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit": partial(_batch_norm, 5),
        "_batch_norm_with_update": partial(_batch_norm, None),
        "_batch_norm_no_update _native_batch_norm_legit_no_training": partial(_batch_norm, None, otherwise=False),
        "native_batch_norm_backward cudnn_batch_norm_backward": _BATCH_BACKWARD,
        "miopen_batch_norm_backward batch_norm_backward": _BATCH_BACKWARD,
        "batch_norm_stats batch_norm_update_stats": Streams(NORMALIZATION, 1, (), 4.0),
        "batch_norm_elemt": Streams(NORMALIZATION, 1, (0,), 2.0),
        "batch_norm_backward_reduce": Streams(NORMALIZATION, 2, (), 6.0),
        "batch_norm_backward_elemt": Streams(NORMALIZATION, 2, (0,), 6.0),
        "_weight_norm_interface": Streams(NORMALIZATION, 2, (0, 1), 4.0, again=(0,)),
        "_weight_norm_interface_backward": Streams(NORMALIZATION, 4, (1, 2), 8.0, per=1, again=(0, 1)),
        "_softmax _log_softmax": _softmax,
        "_softmax_backward_data": partial(_softmax_backward, 0.0),
        "_log_softmax_backward_data": partial(_softmax_backward, 1.0),
        "_masked_softmax": Streams(SOFTMAX, 2, flops=5.0, special_ops=1.0),
    }
)
