"""Costs of convolutions, forward and backward, for every backend's argument order.

cudnn_convolution takes padding before stride, aten::convolution after it; reading one by the other's order gives a
plausible and wrong cost. Positions follow the schemas of torch 1.8 to 2.13.

A convolution takes 2·∏(weight) FLOPs at each position of its output, a transposed one at each position of its input;
groups are already in the weight's shape. Each gradient, of the input and of the weight, takes exactly as many again.
"""

import math
from functools import partial

from msgspec import Struct

from bottleneck.cost.call import Cost, Formula, OpCall, Scalar, Tensor, Unmodelled, recorded
from bottleneck.cost.traffic import math_dtype, named
from bottleneck.schema.records import replace


class ForwardLayout(Struct, frozen=True):
    """Positions of the arguments of a forward op; null where its schema has none."""

    stride: int
    padding: int
    inputs: int = 0
    weight: int = 1
    dilation: int | None = None
    groups: int | None = None
    bias: int | None = None
    addend: int | None = None
    transposed_at: int | None = None
    output_padding: int | None = None
    always_transposed: bool = False


class BackwardLayout(Struct, frozen=True):
    """Argument positions of a backward op, and the gradients it makes.

    Where ``makes`` is null, the last argument is the mask of the gradients.

    An op without an ``inputs`` (``weight``) tensor takes its size as a list of integers at the same position.
    """

    grad: int
    inputs: int
    weight: int
    makes: tuple[bool, bool, bool] | None = None
    transposed_at: int | None = None
    always_transposed: bool = False


_PLAIN = ForwardLayout(bias=2, stride=3, padding=4, dilation=5, groups=6)
_GENERAL = ForwardLayout(bias=2, stride=3, padding=4, dilation=5, transposed_at=6, output_padding=7, groups=8)
_CUDNN = ForwardLayout(padding=2, stride=3, dilation=4, groups=5)
_MIOPEN = ForwardLayout(bias=2, padding=3, stride=4, dilation=5, groups=6)
BINARY = ForwardLayout(addend=1, weight=2, bias=3, padding=4, stride=5, dilation=6, groups=7)
_BINARY_IN_PLACE = ForwardLayout(addend=0, inputs=1, weight=2, bias=3, padding=4, stride=5, dilation=6, groups=7)
_FUSED_ADD = ForwardLayout(addend=2, bias=4, stride=5, padding=6, dilation=7, groups=8)
_NNPACK = ForwardLayout(bias=2, padding=3, stride=4)
_KERNEL_SIZE = ForwardLayout(bias=3, stride=4, padding=5)
_KERNEL_SIZE_DILATED = ForwardLayout(bias=3, stride=4, padding=5, dilation=6)
_TRANSPOSE = ForwardLayout(bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, always_transposed=True)
_CUDNN_TRANSPOSE = ForwardLayout(padding=2, output_padding=3, stride=4, dilation=5, groups=6, always_transposed=True)
_MIOPEN_TRANSPOSE = ForwardLayout(
    bias=2, padding=3, output_padding=4, stride=5, dilation=6, groups=7, always_transposed=True
)
_SLOW_TRANSPOSE = ForwardLayout(bias=3, stride=4, padding=5, output_padding=6, dilation=7, always_transposed=True)

_GRAD_FIRST = BackwardLayout(grad=0, inputs=1, weight=2)
_INPUT_FIRST = BackwardLayout(inputs=0, grad=1, weight=2)
_FOR_INPUT = BackwardLayout(inputs=0, grad=1, weight=2, makes=(True, False, False))
_FOR_WEIGHT = BackwardLayout(weight=0, grad=1, inputs=2, makes=(False, True, False))
_TRANSPOSE_BACKWARD = replace(_INPUT_FIRST, always_transposed=True)
_TRANSPOSE_FOR_WEIGHT = replace(_FOR_WEIGHT, always_transposed=True)

FORWARD = {
    **named(
        {
            "conv1d conv2d conv3d cudnn_convolution_relu miopen_convolution_relu": _PLAIN,
            "conv_transpose1d conv_transpose2d conv_transpose3d": _TRANSPOSE,
            "convolution _convolution convolution_overrideable": _GENERAL,
            "cudnn_convolution cudnn_convolution_transpose_backward_input": _CUDNN,
            "cudnn_convolution_add_relu miopen_convolution_add_relu": _FUSED_ADD,
            "cudnn_convolution_transpose": _CUDNN_TRANSPOSE,
            "miopen_convolution miopen_depthwise_convolution mkldnn_convolution": _MIOPEN,
            "miopen_convolution_transpose": _MIOPEN_TRANSPOSE,
            "_nnpack_spatial_convolution": _NNPACK,
            "_conv_depthwise2d conv_depthwise3d": _KERNEL_SIZE_DILATED,
            "slow_conv_transpose2d slow_conv_transpose3d": _SLOW_TRANSPOSE,
        }
    ),
    "mkldnn::_convolution_pointwise": _MIOPEN,
    "mkldnn::_convolution_pointwise_": _BINARY_IN_PLACE,
    "mkldnn::_convolution_transpose_pointwise": _MIOPEN_TRANSPOSE,
}
# Ops that write every window as a column of a matrix first (im2col).
UNFOLDED = named(
    {
        "thnn_conv2d _slow_conv2d_forward slow_conv3d slow_conv3d_forward": _KERNEL_SIZE,
        "slow_conv_dilated2d slow_conv_dilated3d": _KERNEL_SIZE_DILATED,
    }
)
_LIBRARIES = ("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution")
BACKWARD = named(
    {
        "convolution_backward": replace(_GRAD_FIRST, transposed_at=7),
        "convolution_backward_overrideable": replace(_GRAD_FIRST, transposed_at=6),
        "_slow_conv2d_backward thnn_conv2d_backward": _GRAD_FIRST,
        "slow_conv_dilated2d_backward slow_conv_dilated3d_backward": _GRAD_FIRST,
        " ".join(f"{library}_backward" for library in _LIBRARIES): _INPUT_FIRST,
        " ".join(f"{library}_backward_input" for library in _LIBRARIES): _FOR_INPUT,
        " ".join(f"{library}_backward_weight" for library in _LIBRARIES[:-1]): _FOR_WEIGHT,
        "mkldnn_convolution_backward_weights": _FOR_WEIGHT,
        "cudnn_convolution_transpose_backward miopen_convolution_transpose_backward": _TRANSPOSE_BACKWARD,
        "cudnn_convolution_transpose_backward_weight": _TRANSPOSE_FOR_WEIGHT,
        "miopen_convolution_transpose_backward_weight": _TRANSPOSE_FOR_WEIGHT,
    }
)


FAMILY = "convolution"

# Ops that only call others.
COMPOSITES = frozenset({"aten::_convolution_mode", "aten::conv_tbc"})


class Convolution(Struct, frozen=True):
    """One convolution: its input, weight and output shape.

    The output is [N, channels, sizes …].
    """

    inputs: Tensor
    weight: Tensor
    out_shape: tuple[int, ...]
    transposed: bool

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass, and of each gradient."""
        batch, _, *positions = self.inputs.shape if self.transposed else self.out_shape
        return 2.0 * batch * math.prod(positions) * self.weight.numel

    @property
    def out_numel(self) -> int:
        """Elements of the output."""
        return math.prod(self.out_shape)

    @property
    def out_bytes(self) -> float:
        """Bytes of the output."""
        return self.out_numel * self.inputs.item_bytes

    @property
    def depthwise(self) -> bool:
        """One input channel per group: too thin for the tiles of a matrix engine."""
        channels = self.inputs.shape[1]
        thin = self.out_shape[1] == channels * self.weight.shape[1] if self.transposed else self.weight.shape[1] == 1
        return thin and channels > 1

    def arithmetic(self, passes: int = 1) -> Cost:
        """The FLOPs of so many passes on the engine that computes them."""
        if self.depthwise:
            return Cost(FAMILY, vector_flops=passes * self.flops, math_dtype=math_dtype(self.inputs))
        return Cost(FAMILY, matrix_flops=passes * self.flops, math_dtype=self.inputs.short_dtype)

    def product(self) -> Cost:
        """Gives the FLOPs of the forward pass.

        They come with the sizes of the product that it is: positions by output channels.
        """
        if self.transposed:
            return self.arithmetic()
        groups = max(self.inputs.shape[1] // max(self.weight.shape[1], 1), 1)
        batch, channels, *positions = self.out_shape
        return replace(
            self.arithmetic(),
            m=batch * math.prod(positions),
            n=channels // groups,
            k=math.prod(self.weight.shape[1:]),
            batch=groups,
        )


def _batched(tensor: Tensor, weight: Tensor) -> Tensor:
    """Gives the tensor as [N, channels, sizes …].

    A module may have taken an example without a batch.
    """
    if len(weight.shape) < 3 or len(tensor.shape) not in {len(weight.shape), len(weight.shape) - 1}:
        raise Unmodelled("unequal_dimensions")
    missing = len(weight.shape) - len(tensor.shape)
    strides = tensor.strides if tensor.strides is None else (1,) * missing + tensor.strides
    return Tensor((1,) * missing + tensor.shape, tensor.dtype, strides)


def _per_dimension(call: OpCall, position: int | None, dimensions: int, default: int) -> tuple[int, ...]:
    """Gives stride, padding or dilation per spatial dimension.

    ``default`` counts where the op has no such argument.
    """
    if position is None:
        return (default,) * dimensions
    values = call.integers(position)
    if values is None or len(values) not in {1, dimensions} or min(values) < 0:
        raise Unmodelled("no_strides")
    return values * dimensions if len(values) == 1 else values


def _is_transposed(call: OpCall, layout: ForwardLayout | BackwardLayout) -> bool | None:
    if layout.transposed_at is None:
        return layout.always_transposed
    return call.flag(layout.transposed_at)


def _out_shape(call: OpCall, layout: ForwardLayout, inputs: Tensor, weight: Tensor) -> tuple[int, ...]:
    """Gives the shape of the output.

    It follows the rules of torch.nn.ConvNd and ConvTransposeNd, or was inferred from other ops.
    """
    if call.result is not None and len(call.result) == len(weight.shape):
        return call.result
    dimensions = len(weight.shape) - 2
    stride = _per_dimension(call, layout.stride, dimensions, 1)
    padding = _per_dimension(call, layout.padding, dimensions, 0)
    dilation = _per_dimension(call, layout.dilation, dimensions, 1)
    reach = [d * (size - 1) for d, size in zip(dilation, weight.shape[2:], strict=True)]
    padded = [size + 2 * p for size, p in zip(inputs.shape[2:], padding, strict=True)]
    if not _is_transposed(call, layout):
        sizes = [(size - r - 1) // st + 1 for size, r, st in zip(padded, reach, stride, strict=True)]
        return (inputs.shape[0], weight.shape[0], *sizes)
    groups = 1 if layout.groups is None else call.integer(layout.groups)
    groups = recorded(groups, "no_groups")
    extra = _per_dimension(call, layout.output_padding, dimensions, 0)
    spread = [(size - 1) * st - 2 * p for size, st, p in zip(inputs.shape[2:], stride, padding, strict=True)]
    sizes = [wide + r + more + 1 for wide, r, more in zip(spread, reach, extra, strict=True)]
    return (inputs.shape[0], weight.shape[1] * groups, *sizes)


def in_general_order(call: OpCall) -> OpCall:
    """Returns a convolution with the arguments and the result of `aten::convolution`.

    A library's op has them in another order. Other calls are returned as they are. Raises Unmodelled where sizes were
    not recorded.
    """
    layout = FORWARD.get(call.name)
    if layout is None or (call.result is not None and layout is _GENERAL):
        return call
    weight = call.tensor(layout.weight)
    inputs = _batched(call.tensor(layout.inputs), weight)
    dimensions, is_transposed = len(weight.shape) - 2, bool(_is_transposed(call, layout))
    stride, padding, dilation, output_padding = (
        list(_per_dimension(call, position, dimensions, default))
        for position, default in (
            (layout.stride, 1),
            (layout.padding, 0),
            (layout.dilation, 1),
            (layout.output_padding if is_transposed else None, 0),
        )
    )
    groups = 1 if layout.groups is None else recorded(call.integer(layout.groups), "no_groups")
    bias = None if layout.bias is None else call.optional_tensor(layout.bias)
    texts = stride, padding, dilation, is_transposed, output_padding, groups
    arguments = inputs, weight, bias, *(Scalar(str(value)) for value in texts)
    return OpCall("aten::convolution", arguments, _out_shape(call, layout, inputs, weight))


def _convolution(layout: ForwardLayout, call: OpCall) -> Convolution:
    """Gives the sizes of a forward op's convolution.

    Raises Unmodelled when the window does not fit the input.
    """
    weight = call.tensor(layout.weight)
    inputs = _batched(call.tensor(layout.inputs), weight)
    out_shape = _out_shape(call, layout, inputs, weight)
    if min(out_shape[2:]) <= 0:
        raise Unmodelled("large_window")
    return Convolution(inputs, weight, out_shape, transposed=bool(_is_transposed(call, layout)))


def _forward(layout: ForwardLayout, call: OpCall) -> Cost:
    """Prices a forward op.

    Input, weight and bias are read, the output is written.
    """
    conv = _convolution(layout, call)
    moved = conv.inputs.bytes + conv.weight.bytes + conv.out_bytes
    cost = conv.product() + Cost(FAMILY, bytes_low=moved, bytes_high=moved)
    for position in (layout.bias, layout.addend):
        added = None if position is None else call.optional_tensor(position)
        if added is not None:
            cost += Cost(FAMILY, vector_flops=float(conv.out_numel), bytes_low=added.bytes, bytes_high=added.bytes)
    return cost


def _unfolded(layout: ForwardLayout, call: OpCall) -> Cost:
    """Prices an op that unfolds its windows first (im2col).

    It writes every window as a column of a matrix, and multiplies that.
    """
    conv = _convolution(layout, call)
    column_bytes = conv.out_bytes / conv.weight.shape[0] * math.prod(conv.weight.shape[1:])
    return _forward(layout, call) + Cost(FAMILY, bytes_high=2 * column_bytes)


def _pointwise(unary: ForwardLayout, call: OpCall) -> Cost:
    """Prices a fused op with an epilogue.

    The epilogue may read another operand, recorded between input and weight.
    """
    third = call.optional_tensor(BINARY.weight)
    return _forward(unary if third is None or len(third.shape) < 3 else BINARY, call)


def _backward(layout: BackwardLayout, call: OpCall) -> Cost:
    """The cost of the gradients that the call makes.

    The output's gradient counts once at the low end, once for each gradient at the high end.
    """
    flags = layout.makes or call.flags(len(call.arguments) - 1)
    makes = recorded(flags, "no_gradients")
    grad, inputs, weight = _operands(layout, call)
    conv = Convolution(inputs, weight, grad.shape, transposed=_transposed_backward(call, layout, inputs, grad, weight))
    for_input, for_weight, for_bias = (*makes, False)[:3]
    operands = (for_input + for_weight) * (inputs.bytes + weight.bytes)
    bias_bytes = for_bias * conv.out_shape[1] * grad.item_bytes
    return conv.arithmetic(for_input + for_weight) + Cost(
        FAMILY,
        vector_flops=float(for_bias * grad.numel),
        bytes_low=grad.bytes + operands + bias_bytes,
        bytes_high=grad.bytes * sum(makes) + operands + bias_bytes,
    )


def backward_operands(call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    """Gives the output's gradient, the input and the weight of a backward op."""
    return _operands(BACKWARD[call.name], call)


def _operands(layout: BackwardLayout, call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    grad = call.tensor(layout.grad)
    weight = _tensor_or_size(call, layout.weight, grad)
    return _batched(grad, weight), _batched(_tensor_or_size(call, layout.inputs, grad), weight), weight


def _tensor_or_size(call: OpCall, position: int, like: Tensor) -> Tensor:
    recorded = position < len(call.arguments) and isinstance(call.arguments[position], Tensor)
    size = call.integers(position) if recorded or call.result is None else call.result
    if size is not None and min(size, default=0) < 0:
        raise Unmodelled("no_sizes")
    return call.tensor(position) if size is None else Tensor(size, like.dtype)


def _transposed_backward(call: OpCall, layout: BackwardLayout, inputs: Tensor, grad: Tensor, weight: Tensor) -> bool:
    """Tells whether a backward op is of a transposed convolution.

    Without the flag, the first size of its weight decides. Where input and output have as many positions, both take
    the same FLOPs.
    """
    flag = _is_transposed(call, layout)
    if flag is not None or math.prod(inputs.shape[2:]) == math.prod(grad.shape[2:]):
        return bool(flag)
    sides = (grad.shape[1] == weight.shape[0], inputs.shape[1] == weight.shape[0])
    if sides[0] == sides[1]:
        raise Unmodelled("no_transposed")
    return sides[1]


FORMULAS: dict[str, Formula] = {
    **{name: partial(_forward, layout) for name, layout in FORWARD.items()},
    **{name: partial(_unfolded, layout) for name, layout in UNFOLDED.items()},
    **{name: partial(_backward, layout) for name, layout in BACKWARD.items()},
    "mkldnn::_convolution_pointwise": partial(_pointwise, FORWARD["mkldnn::_convolution_pointwise"]),
}
