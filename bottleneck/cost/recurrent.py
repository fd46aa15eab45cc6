"""Cost of recurrent layers.

They make a matrix product per step, with weights that every step needs again.
"""

import math
from functools import partial

from msgspec import Struct

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, TensorList, Unmodelled
from bottleneck.cost.pointwise import FAMILY as POINTWISE
from bottleneck.cost.traffic import named, stream
from bottleneck.schema.records import replace

FAMILY = "recurrent"

# Values that the usual kernels keep per result for the backward pass: four gates, written and read.
_GATE_PASSES = 8


class RecurrentLayout(Struct, frozen=True):
    """Positions of a layer's arguments.

    They are its weights (as a list, or one by one), their flat buffer and its first state.
    """

    weights: tuple[int, ...]
    buffer: int | None
    state: int


def _layer(layout: RecurrentLayout, products: float, call: OpCall) -> Cost:
    """Prices a layer(x, weights, …, state, …).

    ``products`` is 1 forward and 2 backward.

    Every weight meets every position of every sequence once. The weights are read once at least and once per step at
    most. Where only their flat buffer was recorded, its biases count as weights, a few per cent too many.
    """
    x, state = call.tensor(0), call.tensor(layout.state)
    matrices = _matrices(call, layout)
    elements = sum(math.prod(shape) for shape in matrices)
    positions = x.numel // max(1, x.shape[-1])
    steps = max(x.shape[:-1], default=1)
    weights = Tensor((elements,), x.dtype)
    result = Tensor((positions, state.shape[-1]), x.dtype)
    cost = stream(FAMILY, x, weights, result)
    again = (steps - 1) * weights.bytes + _GATE_PASSES * max(1, len(matrices) // 2) * result.bytes
    return replace(
        cost,
        matrix_flops=products * 2.0 * positions * elements,
        bytes_low=products * cost.bytes_low,
        bytes_high=products * (cost.bytes_high + again),
        math_dtype=x.short_dtype,
    )


def _matrices(call: OpCall, layout: RecurrentLayout) -> list[tuple[int, ...]]:
    """Shapes of the weight matrices, biases left out."""
    arguments = [call.arguments[position] for position in layout.weights]
    shapes = [argument.shape for argument in arguments if isinstance(argument, Tensor)]
    shapes += [shape for argument in arguments if isinstance(argument, TensorList) for shape in argument.shapes]
    matrices: list[tuple[int, ...]] = [shape for shape in shapes if len(shape) == 2]
    if matrices:
        return matrices
    buffer = call.optional_tensor(layout.buffer) if layout.buffer is not None else None
    if buffer is None or not buffer.numel:
        raise Unmodelled("no_weight_sizes")
    return [buffer.shape]


def _cell(flops: float, special_ops: float, call: OpCall) -> Cost:
    """Prices a fused cell(input gates, hidden gates, state, biases …).

    Gates are read, the state is written.
    """
    state = call.tensor(2)
    results = (Tensor(state.shape, state.dtype), Tensor(call.tensor(0).shape, state.dtype))
    return stream(
        POINTWISE,
        *call.tensors(),
        *results,
        vector_flops=flops * state.numel,
        special_ops=special_ops * state.numel,
    )


FORMULAS: Formulas = named(
    {
        "_cudnn_rnn": partial(_layer, RecurrentLayout((1,), 3, 4), 1.0),
        "_cudnn_rnn_backward": partial(_layer, RecurrentLayout((1,), 3, 4), 2.0),
        "miopen_rnn": partial(_layer, RecurrentLayout((1,), None, 3), 1.0),
        "miopen_rnn_backward": partial(_layer, RecurrentLayout((1,), 3, 4), 2.0),
        "mkldnn_rnn_layer": partial(_layer, RecurrentLayout((1, 2, 3, 4), None, 5), 1.0),
        "mkldnn_rnn_layer_backward": partial(_layer, RecurrentLayout((1, 2, 3, 4), None, 5), 2.0),
        "_thnn_fused_lstm_cell": partial(_cell, 20.0, 5.0),
        "_thnn_fused_gru_cell": partial(_cell, 15.0, 3.0),
    }
)
