"""Costs of matrix products with low-precision or grouped operands: int8, int4, fp8, fp4, experts."""

from functools import partial

from bottleneck.cost.call import Cost, Formula, OpCall, Tensor, Unmodelled
from bottleneck.cost.matmul import Product, extra_bytes, item_bytes, linear_cost, matrix_sizes, product_cost
from bottleneck.cost.traffic import dtype_argument, named, stream
from bottleneck.schema.records import replace

_INT32_BYTES = 4.0


def _int_mm(call: OpCall) -> Cost:
    """The cost of _int_mm: int8 A and B, a result of int32."""
    left, right = call.tensor(0), call.tensor(1)
    product = matrix_sizes(left, right)
    return product_cost(product, left, right.bytes, product.numel * _INT32_BYTES)


def _int8_weight(call: OpCall) -> Cost:
    """Prices _weight_int8pack_mm (x, w [n, k], scales [n]).

    The arithmetic is that of the activations.
    """
    return linear_cost(call.tensor(0), call.tensor(1), None) + extra_bytes(call.tensor(2).bytes)


def _int4_weight(call: OpCall) -> Cost:
    """Prices _weight_int4pack_mm.

    Its arguments are x, packed w, group size, scales and zeros (one table or two, [.., n, ..]).

    The layout of the packed weight is the device's own, but its bytes are n·k / 2 in each.
    """
    inputs, weight = call.tensor(0), call.tensor(1)
    tables = [table for table in (call.tensor(3), call.optional_tensor(4)) if table is not None]
    product = Product(m=inputs.shape[0], n=tables[0].shape[1], k=inputs.shape[1])
    right_bytes = weight.bytes + sum(table.bytes for table in tables)
    return product_cost(product, inputs, right_bytes, product.numel * inputs.item_bytes)


def _packed_sizes(left: Tensor, right: Tensor) -> Product:
    """Gives the sizes of a product of packed operands.

    fp4 operands hold two values per recorded element along k.
    """
    sizes = matrix_sizes(left, right)
    return replace(sizes, k=2 * sizes.k) if left.dtype == "c10::Float4_e2m1fn_x2" else sizes


def _scaled_mm(call: OpCall) -> Cost:
    """The cost of _scaled_mm: A, B, scale_a, scale_b, bias, scale_result, out_dtype, fast_accum, [out].

    Before torch 2.5 the bias stood third and out_dtype fourth; a bias is half precision, a scale never.
    """
    left, right = call.tensor(0), call.tensor(1)
    product = _packed_sizes(left, right)
    third = call.optional_tensor(2)
    early = third is None or third.dtype in {"c10::Half", "c10::BFloat16"}
    out = call.optional_tensor(8)
    out_dtype = out.dtype if out else dtype_argument(call, 3 if early else 6, left.dtype)
    beside = [tensor.bytes for tensor in map(call.optional_tensor, range(2, 8)) if tensor]
    cost = product_cost(product, left, right.bytes, product.numel * item_bytes(out_dtype))
    return cost + extra_bytes(sum(beside))


def _scaled_mm_v2(call: OpCall) -> Cost:
    """Prices _scaled_mm_v2.

    Its arguments are A, B, three arguments on the scales of each, bias, out_dtype, ...

    The scales are lists, whose dtype the trace does not hold: one byte (block exponents) to four (fp32) each.
    """
    left, right = call.tensor(0), call.tensor(1)
    product = _packed_sizes(left, right)
    bias = call.optional_tensor(8)
    bias_bytes = bias.bytes if bias else 0.0
    scales = float(sum(scale.numel for scale in call.lists()))
    out_bytes = product.numel * item_bytes(dtype_argument(call, 9, left.dtype))
    cost = product_cost(product, left, right.bytes, out_bytes)
    return cost + extra_bytes(bias_bytes + scales, bias_bytes + 4.0 * scales)


def _grouped_mm(call: OpCall) -> Cost:
    """The cost of _grouped_mm: A, B, offsets, bias, out_dtype."""
    return _grouped(call, offsets=2, out_dtype=4)


def _scaled_grouped_mm(call: OpCall) -> Cost:
    """The cost of _scaled_grouped_mm: A, B, scale_a, scale_b, offsets, bias, scale_result, out_dtype, fast_accum."""
    scales = call.tensor(2).bytes + call.tensor(3).bytes
    return _grouped(call, offsets=4, out_dtype=7) + extra_bytes(scales)


def _grouped(call: OpCall, offsets: int, out_dtype: int) -> Cost:
    """Prices one product per group.

    Offsets, whose values no trace holds, deal rows, columns or slices of k out to groups.

    FLOPs assume that the groups use every row. A stacked operand belongs to one group each, and the part of an empty
    group is never read, so its bytes lie between those of one group and of all.
    """
    left, right = call.tensor(0), call.tensor(1)
    if left.shape[-1] != right.shape[-2]:
        raise Unmodelled("inner_sizes")
    stacked = [operand for operand in (left, right) if len(operand.shape) == 3]
    groups = stacked[0].shape[0] if stacked else call.tensor(offsets).numel
    product = Product(m=left.shape[-2], n=right.shape[-1], k=left.shape[-1], batch=groups if len(stacked) == 2 else 1)
    results = 1 if len(stacked) == 1 else groups
    out_bytes = results * product.m * product.n * item_bytes(dtype_argument(call, out_dtype, left.dtype))
    cost = product_cost(product, left, right.bytes, out_bytes)
    if len(stacked) != 1:
        return cost
    return replace(cost, bytes_low=cost.bytes_low - stacked[0].bytes * (1 - 1 / groups))


def _rounded(dtype_at: int, default: str, call: OpCall) -> Cost:
    """Prices quantize_per_tensor(x, scale, zero point, …, dtype) and similar.

    x is read, rounded x is written.
    """
    x, *tables = call.tensors()
    result = Tensor(x.shape, dtype_argument(call, dtype_at, default))
    return stream("pointwise", x, result, *tables, vector_flops=3.0 * x.numel)


def _restored(call: OpCall) -> Cost:
    """dequantize(x): integers read, floats written."""
    x, *tables = call.tensors()
    return stream("pointwise", x, Tensor(x.shape, "float"), *tables, vector_flops=2.0 * x.numel)


def _fake(call: OpCall) -> Cost:
    """fake_quantize_…_cachemask(x, …): the rounded x and a mask of one byte per element written."""
    x, *tables = call.tensors()
    written = (Tensor(x.shape, x.dtype), Tensor(x.shape, "bool"))
    return stream("pointwise", x, *written, *tables, vector_flops=4.0 * x.numel)


def _onednn_linear(call: OpCall) -> Cost:
    """Prices qlinear_pointwise.

    Its arguments are x [.., k], scale, zero point, packed w [k, n], its scales, zero points, bias …
    """
    x, weight = call.tensor(0), call.tensor(3)
    if len(weight.shape) != 2 or not x.shape or x.shape[-1] not in weight.shape:
        raise Unmodelled("unfit_weight")
    width = x.shape[-1]
    rows, columns = x.numel // max(width, 1), weight.numel // max(width, 1)
    # The result is of one byte per element, or of four.
    moved = x.bytes + weight.bytes + rows * columns
    return Cost(
        "matmul",
        matrix_flops=2.0 * rows * columns * width,
        bytes_low=moved,
        bytes_high=moved + 3.0 * rows * columns,
        math_dtype=x.short_dtype,
    )


def _packed_linear(call: OpCall) -> Cost:
    """Prices quantized::linear (x [.., k], packed w, …).

    It is a product of bytes, whose n only the result tells. The result is written in the dtype of x. That of the
    dynamic op is quantized on the way; a weight of fp16 is multiplied as the numbers of x are.
    """
    x, is_half = call.tensor(0), call.name.endswith("_fp16")
    if not call.result or not x.shape:
        raise Unmodelled("packed_weight")
    product = Product(m=x.numel // max(x.shape[-1], 1), n=call.result[-1], k=x.shape[-1])
    moved = x.bytes + product.n * product.k * (2 if is_half else 1) + product.numel * x.item_bytes
    dtype = x.short_dtype if is_half else "int8"
    return Cost("matmul", matrix_flops=product.flops, bytes_low=moved, bytes_high=moved, math_dtype=dtype)


def _packed_convolution(_: OpCall) -> Cost:
    """Refuses quantized::conv2d, whose windows are in the packed weight."""
    raise Unmodelled("packed_weight")


# Layers of torch.ao.quantization for a CPU, whose weight is an object without sizes.
PACKED_LINEAR: dict[str, Formula] = named(
    {
        "linear linear_relu linear_dynamic linear_relu_dynamic linear_dynamic_fp16 linear_relu_dynamic_fp16"
        " linear_leaky_relu linear_tanh": _packed_linear,
    },
    prefix="quantized::",
)
CONVOLUTIONS: dict[str, Formula] = named(
    {
        "conv1d conv1d_relu conv1d_dynamic conv2d conv2d_relu conv2d_add conv2d_add_relu conv2d_dynamic conv3d"
        " conv3d_relu conv3d_dynamic conv_transpose1d conv_transpose2d conv_transpose3d conv_transpose1d_dynamic"
        " conv_transpose2d_dynamic conv_transpose3d_dynamic": _packed_convolution,
    },
    prefix="quantized::",
)
FORMULAS: dict[str, Formula] = {
    **PACKED_LINEAR,
    "onednn::qlinear_pointwise": _onednn_linear,
    **named(
        {
            "quantize_per_tensor quantize_per_token": partial(_rounded, 5, "signed char"),
            "quantize_per_channel": partial(_rounded, 6, "signed char"),
            "dequantize_per_tensor dequantize_per_channel dequantize_per_token": _restored,
        },
        prefix="quantized_decomposed::",
    ),
    **named(
        {
            "quantize_per_tensor": partial(_rounded, 3, "c10::qint8"),
            "quantize_per_tensor_dynamic": partial(_rounded, 1, "c10::qint8"),
            "quantize_per_channel": partial(_rounded, 4, "c10::qint8"),
            "dequantize": _restored,
            "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask": _fake,
            "_int_mm": _int_mm,
            "_weight_int8pack_mm": _int8_weight,
            "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros": _int4_weight,
            "_scaled_mm": _scaled_mm,
            "_scaled_mm_v2": _scaled_mm_v2,
            "_grouped_mm": _grouped_mm,
            "_scaled_grouped_mm": _scaled_grouped_mm,
        }
    ),
}
