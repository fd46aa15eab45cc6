"""Where each convolution op keeps its arguments: backends order stride, padding and the rest as they please.

cudnn_convolution takes padding before stride, aten::convolution after it; reading one by the other's order gives a
plausible and wrong price. Positions follow the schemas of torch 1.8 to 2.13.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Layout:
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


@dataclass(frozen=True)
class BackwardLayout:
    """Positions of the arguments of a backward op, and the gradients that it always makes (null: a mask, last, says).

    An op without an ``inputs`` (``weight``) tensor takes its size as a list of integers at the same position.
    """

    grad: int
    inputs: int
    weight: int
    makes: tuple[bool, bool, bool] | None = None
    transposed_at: int | None = None
    always_transposed: bool = False


_PLAIN = Layout(bias=2, stride=3, padding=4, dilation=5, groups=6)
_GENERAL = Layout(bias=2, stride=3, padding=4, dilation=5, transposed_at=6, output_padding=7, groups=8)
_CUDNN = Layout(padding=2, stride=3, dilation=4, groups=5)
_MIOPEN = Layout(bias=2, padding=3, stride=4, dilation=5, groups=6)
BINARY = Layout(addend=1, weight=2, bias=3, padding=4, stride=5, dilation=6, groups=7)
_BINARY_IN_PLACE = Layout(addend=0, inputs=1, weight=2, bias=3, padding=4, stride=5, dilation=6, groups=7)
_FUSED_ADD = Layout(addend=2, bias=4, stride=5, padding=6, dilation=7, groups=8)
_NNPACK = Layout(bias=2, padding=3, stride=4)
_KERNEL_SIZE = Layout(bias=3, stride=4, padding=5)
_KERNEL_SIZE_DILATED = Layout(bias=3, stride=4, padding=5, dilation=6)
_TRANSPOSE = Layout(bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, always_transposed=True)
_CUDNN_TRANSPOSE = Layout(padding=2, output_padding=3, stride=4, dilation=5, groups=6, always_transposed=True)
_MIOPEN_TRANSPOSE = Layout(bias=2, padding=3, output_padding=4, stride=5, dilation=6, groups=7, always_transposed=True)
_SLOW_TRANSPOSE = Layout(bias=3, stride=4, padding=5, output_padding=6, dilation=7, always_transposed=True)

_GRAD_FIRST = BackwardLayout(grad=0, inputs=1, weight=2)
_INPUT_FIRST = BackwardLayout(inputs=0, grad=1, weight=2)
_FOR_INPUT = BackwardLayout(inputs=0, grad=1, weight=2, makes=(True, False, False))
_FOR_WEIGHT = BackwardLayout(weight=0, grad=1, inputs=2, makes=(False, True, False))
_TRANSPOSE_BACKWARD = replace(_INPUT_FIRST, always_transposed=True)
_TRANSPOSE_FOR_WEIGHT = replace(_FOR_WEIGHT, always_transposed=True)

FORWARD = {
    "aten::conv1d": _PLAIN,
    "aten::conv2d": _PLAIN,
    "aten::conv3d": _PLAIN,
    "aten::conv_transpose1d": _TRANSPOSE,
    "aten::conv_transpose2d": _TRANSPOSE,
    "aten::conv_transpose3d": _TRANSPOSE,
    "aten::convolution": _GENERAL,
    "aten::_convolution": _GENERAL,
    "aten::convolution_overrideable": _GENERAL,
    "aten::cudnn_convolution": _CUDNN,
    "aten::cudnn_convolution_relu": _PLAIN,
    "aten::cudnn_convolution_add_relu": _FUSED_ADD,
    "aten::cudnn_convolution_transpose": _CUDNN_TRANSPOSE,
    "aten::cudnn_convolution_transpose_backward_input": _CUDNN,
    "aten::miopen_convolution": _MIOPEN,
    "aten::miopen_convolution_relu": _PLAIN,
    "aten::miopen_convolution_add_relu": _FUSED_ADD,
    "aten::miopen_depthwise_convolution": _MIOPEN,
    "aten::miopen_convolution_transpose": _MIOPEN_TRANSPOSE,
    "aten::mkldnn_convolution": _MIOPEN,
    "aten::_nnpack_spatial_convolution": _NNPACK,
    "aten::_conv_depthwise2d": _KERNEL_SIZE_DILATED,
    "aten::conv_depthwise3d": _KERNEL_SIZE_DILATED,
    "aten::slow_conv_transpose2d": _SLOW_TRANSPOSE,
    "aten::slow_conv_transpose3d": _SLOW_TRANSPOSE,
    "mkldnn::_convolution_pointwise": _MIOPEN,
    "mkldnn::_convolution_pointwise_": _BINARY_IN_PLACE,
    "mkldnn::_convolution_transpose_pointwise": _MIOPEN_TRANSPOSE,
}
# Ops that write every window as a column of a matrix first (im2col).
UNFOLDED = {
    "aten::thnn_conv2d": _KERNEL_SIZE,
    "aten::_slow_conv2d_forward": _KERNEL_SIZE,
    "aten::slow_conv3d": _KERNEL_SIZE,
    "aten::slow_conv3d_forward": _KERNEL_SIZE,
    "aten::slow_conv_dilated2d": _KERNEL_SIZE_DILATED,
    "aten::slow_conv_dilated3d": _KERNEL_SIZE_DILATED,
}
BACKWARD = {
    "aten::convolution_backward": BackwardLayout(grad=0, inputs=1, weight=2, transposed_at=7),
    "aten::convolution_backward_overrideable": BackwardLayout(grad=0, inputs=1, weight=2, transposed_at=6),
    "aten::_slow_conv2d_backward": _GRAD_FIRST,
    "aten::thnn_conv2d_backward": _GRAD_FIRST,
    "aten::slow_conv_dilated2d_backward": _GRAD_FIRST,
    "aten::slow_conv_dilated3d_backward": _GRAD_FIRST,
    "aten::cudnn_convolution_backward": _INPUT_FIRST,
    "aten::cudnn_convolution_backward_input": _FOR_INPUT,
    "aten::cudnn_convolution_backward_weight": _FOR_WEIGHT,
    "aten::cudnn_convolution_transpose_backward": _TRANSPOSE_BACKWARD,
    "aten::cudnn_convolution_transpose_backward_weight": _TRANSPOSE_FOR_WEIGHT,
    "aten::miopen_convolution_backward": _INPUT_FIRST,
    "aten::miopen_convolution_backward_input": _FOR_INPUT,
    "aten::miopen_convolution_backward_weight": _FOR_WEIGHT,
    "aten::miopen_convolution_transpose_backward": _TRANSPOSE_BACKWARD,
    "aten::miopen_convolution_transpose_backward_weight": _TRANSPOSE_FOR_WEIGHT,
    "aten::miopen_depthwise_convolution_backward": _INPUT_FIRST,
    "aten::miopen_depthwise_convolution_backward_input": _FOR_INPUT,
    "aten::miopen_depthwise_convolution_backward_weight": _FOR_WEIGHT,
    "aten::mkldnn_convolution_backward": _INPUT_FIRST,
    "aten::mkldnn_convolution_backward_input": _FOR_INPUT,
    "aten::mkldnn_convolution_backward_weights": _FOR_WEIGHT,
}
