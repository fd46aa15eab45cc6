"""Splits op calls into the kernels that an eager GPU launches for them.

It is the first stage of a predicted time. A call is one kernel or several: a convolution changes the layout of its
input and result, adds its bias in a kernel of its own; a batch norm in training folds its input into statistics before
it normalizes it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bottleneck.cost import OP_FAMILIES, compute_cost
from bottleneck.cost.call import Cost, OpCall, Tensor, Unmodelled, parse_call
from bottleneck.cost.convolution import BACKWARD, backward_operands, in_general_order
from bottleneck.predict.tensor_products import ALIGNED_BYTES
from bottleneck.predict.vector_products import MOST_ROWS, unpacking_flops
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCall

FAMILY_OF = {name: family for family, formulas in OP_FAMILIES.items() for name in formulas}

# A row of softmax that a warp holds in its registers is read once (ATen's PersistentSoftmax.cuh), one that fits in
# shared memory once more, a longer one three times.
_SOFTMAX_IN_REGISTERS, _SOFTMAX_IN_SHARED = 1024, 12_000
# Winograd F(4x4, 3x3) needs a quarter of the multiplications; the Fourier route for a larger window needs four or more
# per element instead of one per element of the window.
# Kernels in channels last load this many channels at once; others take kernels for the usual order.
_AT_ONCE = 4
_IMAGE_DIMS = 4
GROUPED_IN_CHANNELS_LAST, _GROUPED = 1.358, "grouped convolution"
_WINOGRAD, _WINOGRAD_AREA = 4.0, 9
# Kernels of attention take as many queries at once, or twice as many: PyTorch's memory-efficient ones are named for it
# (fmha_cutlassF_bf16_aligned_64x128), and FlashAttention-2's have traits of 128.
_QUERIES_AT_ONCE = 64.0
# Bytes of an element of TF32, and the multiple at which rows in half precision begin for the quickest kernels.
_TF32_BYTES, _HALF_ALIGNED = 4.0, 8.0


@dataclass(frozen=True)
class Kernel:
    """One kernel, or several of one kind. ``kind`` is a row of learned_rates.csv.

    ``flops`` run at the peak of an engine: that for products of ``dtype`` where ``kind`` is one, else vector lanes.
    ``elements`` are folded one after the other by at most ``blocks`` independent parts. Each of the ``results`` of a
    window computes where the window lies. A product has ``rows``, ``columns``, ``inner`` and ``batch``; its
    elements of ``element_bytes`` are loaded by at most ``load_bytes`` at once, unless a compiler pads its operands,
    which copies ``padding_bytes``. A convolution has input ``channels`` per group, and is ``winograd`` where that
    algorithm applies. ``steps`` run in sequence. ``long_rows`` each take a whole block of threads. ``stored_bytes`` are
    written after the arithmetic. An ``autotuned`` kernel was chosen by timing. ``least_bytes`` and ``least_flops`` are
    the amounts that every implementation needs. ``count`` kernels are like this one.
    """

    kind: str
    call: int = 0
    bytes: float = 0.0
    least_bytes: float = 0.0
    flops: float = 0.0
    least_flops: float = 0.0
    dtype: str = "fp32"
    elements: float = 0.0
    results: float = 0.0
    blocks: float = math.inf
    rows: float = 1.0
    columns: float = 1.0
    inner: float = 1.0
    batch: float = 1.0
    channels: float = math.inf
    steps: float = 0.0
    launches: float = 1.0
    dilated: bool = False
    winograd: bool = False
    load_bytes: float = ALIGNED_BYTES
    element_bytes: float = 4.0
    padding_bytes: float = math.inf
    autotuned: bool = False
    long_rows: float = 0.0
    stored_bytes: float = 0.0
    count: float = 1.0


@dataclass(frozen=True)
class ConvolutionShape:
    """Sizes of a convolution as a product.

    Each result of a group takes ``inner`` multiply-adds.
    """

    rows: float
    columns: float
    inner: float
    groups: int
    dims: int
    area: int
    transposed: bool
    strided: bool
    dilated: bool
    depthwise: bool

    @property
    def is_pointwise(self) -> bool:
        """True for a window of one element.

        It is a plain product in the layout that the tensors have.
        """
        return self.area == 1 and not self.strided and not self.transposed and self.groups == 1

    @property
    def kind(self) -> str:
        """Its row in learned_rates.csv."""
        if self.depthwise:
            return "depthwise convolution"
        if self.groups > 1:
            return "grouped convolution"
        if self.is_pointwise:
            return "pointwise convolution"
        return f"{'transposed ' if self.transposed else ''}convolution{' 3d' if self.dims == 3 else ''}"


def cost_of(call: StepCall) -> Cost | Reason:
    """FLOPs and bytes of a call, or why they are not known."""
    return compute_cost(call.name, call.dims, call.types, call.strides, call.concrete, call.result)


def split(call: StepCall, position: int = 0) -> tuple[Kernel, ...] | Reason:
    """The kernels of a call in eager mode, or the reason for having none."""
    parsed = _parse(call)
    if isinstance(parsed, Reason):
        return parsed
    name = call.name.removeprefix("aten::")
    result_bytes = sum(use.bytes for use in call.outputs)
    try:
        if name in _BY_NAME:
            cost = cost_of(call)
            kernels = _BY_NAME[name](parsed, cost if isinstance(cost, Cost) else Cost("pointwise"), result_bytes)
        else:
            cost = cost_of(call)
            if isinstance(cost, Reason):
                return cost
            kernels = _BY_FAMILY.get(FAMILY_OF.get(call.name, cost.family), _stream)(parsed, cost, result_bytes)
    except Unmodelled as unmodelled:
        return unmodelled.reason
    except (LookupError, ValueError, ZeroDivisionError):
        return Reason("unfit_shapes", (call.name,))
    return tuple(replace(kernel, call=position, count=call.calls) for kernel in kernels)


def _parse(call: StepCall) -> OpCall | Reason:
    try:
        parsed = parse_call(call.name, call.dims, call.types, call.strides, call.concrete, call.result)
        return in_general_order(parsed)
    except Unmodelled as unmodelled:
        return unmodelled.reason


def _stream(_call: OpCall, cost: Cost, _result: float, kind: str = "pointwise") -> list[Kernel]:
    return [
        Kernel(
            kind, bytes=cost.bytes_low, least_bytes=cost.bytes_low, flops=cost.vector_flops, dtype=_vector_dtype(cost)
        )
    ]


def _vector_dtype(cost: Cost) -> str:
    return "fp64" if cost.math_dtype == "fp64" else "fp32"


def _of(kind: str) -> Callable[[OpCall, Cost, float], list[Kernel]]:
    return lambda call, cost, result: _stream(call, cost, result, kind)


def load_bytes(rows: Sequence[float], element_bytes: float) -> float:
    """Returns how many bytes a kernel of a product loads at once.

    The lengths of the rows of operands and result decide. Names of kernels in public traces end in align1 where any row
    in TF32 does not begin at a multiple of 16 bytes, and in half precision in align2 or align1 where one begins at no
    multiple of 8 or 4 bytes.
    """
    shared = math.gcd(int(ALIGNED_BYTES), *(int(row * element_bytes) for row in rows))
    if shared >= ALIGNED_BYTES or (element_bytes < _TF32_BYTES and shared >= _HALF_ALIGNED):
        return ALIGNED_BYTES
    return float(min(shared, _TF32_BYTES))


def _row_length(matrix: Tensor) -> float:
    """Returns the elements from one row of a matrix to the next.

    As its strides say or its shape.
    """
    strides = matrix.strides if matrix.strides and len(matrix.strides) == len(matrix.shape) else (*matrix.shape[-1:], 1)
    return float(max(strides[-2:]))


def _product(call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
    operands = [tensor for tensor in call.tensors() if len(tensor.shape) > 1][-2:]
    element = min((tensor.item_bytes for tensor in operands), default=_TF32_BYTES)
    rows = [length for length in (*map(_row_length, operands), cost.n or 1.0) if length > 1]
    return [
        Kernel(
            "product",
            bytes=cost.bytes_low,
            least_bytes=cost.bytes_low,
            flops=cost.matrix_flops or cost.vector_flops,
            least_flops=cost.matrix_flops,
            dtype=cost.math_dtype or "fp32",
            rows=cost.m or 1.0,
            columns=cost.n or 1.0,
            inner=cost.k or 1.0,
            batch=cost.batch or 1.0,
            load_bytes=load_bytes(rows, element),
            element_bytes=element,
            stored_bytes=_stored_bytes(cost, operands),
        )
    ]


def _stored_bytes(cost: Cost, operands: Sequence[Tensor]) -> float:
    """Returns the bytes of a product's result that no arithmetic hides.

    The arithmetic of 8-bit integers ends so soon that a block still stores its sums of 32 bits: of 35 such products
    (benchmarks/int8_products.py), those with a short inner dimension take longer by their result's time. In wider
    types stores are a part of what is learned for a tile.
    """
    if cost.math_dtype != "int8":
        return 0.0
    return max(cost.bytes_low - sum(tensor.bytes for tensor in operands), 0.0)


def _weight_product(call: OpCall, cost: Cost, result: float) -> list[Kernel]:
    """Returns the kernel of a product with packed weights.

    Few rows leave it to the bandwidth.
    """
    if (cost.m or 1.0) > MOST_ROWS:
        return _product(call, cost, result)
    weights = (cost.n or 1.0) * (cost.k or 1.0)
    width = 0.5 if "int4" in call.name else 1.0
    unpacking = unpacking_flops(weights, width)
    return [Kernel("vector product", bytes=cost.bytes_low, least_bytes=cost.bytes_low, flops=unpacking)]


def _attention(call: OpCall, cost: Cost, result: float) -> list[Kernel]:
    """Returns the kernel of fused attention, which computes whole blocks of queries."""
    product = _product(call, cost, result)[0]
    blocks = math.ceil(product.rows / _QUERIES_AT_ONCE)
    flops = product.flops * blocks * _QUERIES_AT_ONCE / product.rows
    return [replace(product, kind="attention", flops=flops, elements=cost.special_ops)]


def _recurrent(call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
    """Returns the kernels of a recurrent layer.

    Its steps wait for one another; the layers of a stack do too, as their inputs are whole sequences.
    """
    sizes, batch_first = call.tensor(0).shape, call.flag(10)
    steps = sizes[1 if batch_first else 0] * (call.integer(9) or 1) * (2 if call.flag(13) else 1)
    kind = {"2": "lstm", "3": "gru"}.get(call.text(6), "rnn")
    return [
        Kernel(
            kind,
            bytes=cost.bytes_low,
            least_bytes=cost.bytes_low,
            flops=cost.matrix_flops,
            least_flops=cost.matrix_flops,
            dtype=cost.math_dtype or "fp32",
            steps=float(steps),
        )
    ]


def convolution_shape(call: OpCall) -> ConvolutionShape:
    """The sizes of a convolution call; raises Unmodelled where its arguments were not recorded."""
    x, weight = call.tensor(0).shape, call.tensor(1).shape
    stride, dilation, groups = call.integers(3), call.integers(5), call.integer(8)
    if call.result is None or stride is None or dilation is None or groups is None or call.flag(6) is None:
        raise Unmodelled("no_convolution_arguments")
    transposed, area = bool(call.flag(6)), math.prod(weight[2:])
    result = call.result
    return ConvolutionShape(
        rows=x[0] * math.prod((x if transposed else result)[2:]),
        columns=result[1] / groups,
        inner=x[1] / groups * area,
        groups=groups,
        dims=len(weight) - 2,
        area=area,
        transposed=transposed,
        strided=any(length > 1 for length in stride),
        dilated=any(length > 1 for length in dilation),
        depthwise=groups > 1 and groups == x[1] and not transposed,
    )


def convolution_kernel(call: OpCall, cost: Cost) -> Kernel:
    """The main kernel of a convolution."""
    shape, flops = convolution_shape(call), cost.matrix_flops + cost.vector_flops
    saves = shape.area >= 9 and shape.dims > 1 and not shape.strided and not shape.dilated
    return Kernel(
        shape.kind,
        bytes=cost.bytes_low,
        least_bytes=cost.bytes_low,
        flops=flops,
        least_flops=0.0 if shape.depthwise else flops / (max(_WINOGRAD, shape.area / 4.0) if saves else 1.0),
        dtype=cost.math_dtype or "fp32",
        rows=shape.rows,
        columns=shape.columns,
        inner=shape.inner,
        batch=shape.groups,
        channels=shape.inner / shape.area,
        dilated=shape.dilated,
        winograd=saves and shape.dims == 2 and shape.area == _WINOGRAD_AREA and shape.groups == 1,
        results=float(math.prod(call.result or ())) if shape.depthwise else 0.0,
    )


def in_channels_last(main: Kernel, window: Sequence[int]) -> Kernel:
    """Returns the kernel of a two-dimensional convolution in channels last.

    ``window`` are the sizes of its weight.
    """
    if main.kind != "depthwise convolution":
        return replace(main, kind="convolution channels last")
    is_uneven = len(set(window[2:])) > 1
    return replace(main, kind=f"{'uneven ' if is_uneven else ''}depthwise convolution channels last")


def _is_channels_last(tensor: Tensor) -> bool:
    """True for images whose channels are neighbours in memory.

    And that are not in the usual order too.
    """
    shape, strides = tensor.shape, tensor.strides
    if len(shape) != _IMAGE_DIMS or strides is None or len(strides) != _IMAGE_DIMS:
        return False
    return strides[1] == 1 and shape[1] > 1 and math.prod(shape[2:]) > 1


def _convolution(call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
    """Returns the kernels of a convolution.

    Kernels of cuDNN for tensor cores want channels last: input and result of other layouts are copied. The bias is
    added by a kernel of its own (ATen's Convolution.cpp).
    """
    if call.name in BACKWARD:
        return _convolution_backward(call, cost)
    main, x = convolution_kernel(call, cost), call.tensor(0)
    kernels, result = [main], math.prod(call.result or ()) * x.item_bytes
    if _is_channels_last(x) or _is_channels_last(call.tensor(1)):
        # Several groups take longer there (torch/_inductor/graph.py, GROUPED_MULTIPLIER).
        grouped = replace(main, flops=main.flops * GROUPED_IN_CHANNELS_LAST)
        kernels = [grouped if main.kind == _GROUPED else in_channels_last(main, call.tensor(1).shape)]
    elif main.kind not in ("depthwise convolution", "pointwise convolution") and not main.channels % _AT_ONCE:
        moved = (("layout", x.bytes if x.shape[1] > 1 else 0.0), ("result layout", result))
        kernels += [Kernel(kind, bytes=2.0 * size, dtype=main.dtype) for kind, size in moved]
    if call.optional_tensor(2) is not None:
        kernels.append(Kernel("pointwise", bytes=2.0 * result))
    return kernels


def _convolution_backward(call: OpCall, cost: Cost) -> list[Kernel]:
    """Returns two products of the size of the forward one.

    By the sizes of its input and weight.
    """
    grad, x, weight = backward_operands(call)
    groups = x.shape[1] // max(weight.shape[1], 1)
    is_grouped = 1 < groups < x.shape[1]
    slower = GROUPED_IN_CHANNELS_LAST if is_grouped and _is_channels_last(x) else 1.0
    return [
        Kernel(
            _GROUPED if is_grouped else "convolution backward",
            bytes=cost.bytes_high,
            least_bytes=cost.bytes_low,
            flops=(cost.matrix_flops + cost.vector_flops) * slower,
            least_flops=cost.matrix_flops / max(_WINOGRAD, math.prod(weight.shape[2:]) / 4.0),
            dtype=cost.math_dtype or "fp32",
            rows=grad.numel / max(grad.shape[1], 1),
            columns=float(weight.shape[0]),
            inner=float(math.prod(weight.shape[1:])),
            launches=2.0,
        )
    ]


def _softmax(call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
    x = call.tensor(0)
    dim = (call.integer(1) or 0) % max(len(x.shape), 1)
    length, inner = x.shape[dim], math.prod(x.shape[dim + 1 :])
    passes = 4.0
    if inner == 1:
        passes = 2.0 if length <= _SOFTMAX_IN_SHARED else 4.0
    kind = "softmax" if inner == 1 else "softmax across rows"
    long_rows = x.numel / length if inner == 1 and length > _SOFTMAX_IN_REGISTERS else 0.0
    return [Kernel(kind, bytes=passes / 2.0 * cost.bytes_low, least_bytes=cost.bytes_low, long_rows=long_rows)]


def statistics(x_bytes: float, elements: float, blocks: float) -> Kernel:
    """The kernel that folds the input of a norm into means and variances."""
    return Kernel("statistics", bytes=x_bytes, elements=elements, blocks=blocks)


def _batch_norm(call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
    x = call.tensor(0)
    normalize = Kernel("normalize", bytes=2.0 * x.bytes, least_bytes=cost.bytes_low)
    training = call.flag(5)
    return [normalize] if training is False else [statistics(x.bytes, x.numel, x.shape[1]), normalize]


def _group_norm(call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
    x, groups = call.tensor(0), call.integer(6) or 1
    normalize = Kernel("normalize", bytes=2.0 * x.bytes, least_bytes=cost.bytes_low, launches=2.0)
    return [statistics(x.bytes, x.numel, x.shape[0] * groups), normalize]


def _pooling(kind: str) -> Callable[[OpCall, Cost, float], list[Kernel]]:
    def kernels(call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
        size = call.integers(1) or (1,)
        dims = 1 if "1d" in call.name else 3 if "3d" in call.name else 2
        area = math.prod(size) if len(size) > 1 else size[0] ** dims
        results = float(math.prod(call.result or ()))
        work = Kernel(kind, bytes=cost.bytes_low, least_bytes=cost.bytes_low, elements=results * area, results=results)
        return [work]

    return kernels


def _logsumexp(call: OpCall, _cost: Cost, result: float) -> list[Kernel]:
    """Runs as maximum, difference, exponential, sum, logarithm and sum."""
    size = call.tensor(0).bytes
    passes = [("reduction", size), ("pointwise", 2 * size), ("pointwise", 2 * size), ("reduction", size)]
    kernels = [Kernel(kind, bytes=moved) for kind, moved in passes]
    last = Kernel("pointwise", bytes=3 * result, launches=2.0)
    return [replace(kernels[0], least_bytes=size + result), *kernels[1:], last]


def _scan(call: OpCall, cost: Cost, result: float) -> list[Kernel]:
    """Returns a scan along the rows of memory.

    The parts of a row wait for one another.
    """
    kernels, sizes = _stream(call, cost, result, "scan"), call.tensor(0).shape
    is_inner = bool(sizes) and (call.integer(1) or 0) % len(sizes) == len(sizes) - 1
    return [replace(kernels[0], steps=float(sizes[-1]), rows=math.prod(sizes[:-1]))] if is_inner else kernels


def _layer_norm(_call: OpCall, cost: Cost, _result: float) -> list[Kernel]:
    return [Kernel("layer norm", bytes=cost.bytes_low, least_bytes=cost.bytes_low)]


_BY_NAME: Mapping[str, Callable[[OpCall, Cost, float], list[Kernel]]] = {
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_safe_softmax": _softmax,
    "native_batch_norm": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "avg_pool2d": _pooling("average pooling"),
    "avg_pool3d": _pooling("average pooling"),
    "max_pool2d_with_indices": _pooling("max pooling"),
    "max_pool3d_with_indices": _pooling("max pooling"),
    "logsumexp": _logsumexp,
    "_weight_int8pack_mm": _weight_product,
    "_weight_int4pack_mm": _weight_product,
    "_weight_int4pack_mm_with_scales_and_zeros": _weight_product,
    "cumsum": _scan,
    "cumprod": _scan,
}
_BY_FAMILY: Mapping[str, Callable[[OpCall, Cost, float], list[Kernel]]] = {
    "matmul": _product,
    "convolution": _convolution,
    "attention": _attention,
    "recurrent": _recurrent,
    "reduction": _of("reduction"),
    "copy": _of("copy"),
    "passes": _of("scan"),
    "sort": _of("scan"),
}
