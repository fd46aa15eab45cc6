"""Costs of matrix products in floating point: plain, batched, biased and linear layers.

A product of [m, k] and [k, n] takes 2·m·n·k FLOPs, and moves both operands and the result once. With m or n of 1 it is
a matrix-vector product, which kernels compute on the vector units: no tile of a matrix engine would be full.
"""

from msgspec import Struct

from bottleneck.cost.call import Cost, Formula, OpCall, Tensor, Unmodelled
from bottleneck.cost.traffic import dtype_argument, math_dtype, named, op_names
from bottleneck.schema.records import replace

FAMILY = "matmul"

# Ops that only call others: reshapes, copies and a product that has a cost of its own.
COMPOSITES = op_names("bilinear chain_matmul einsum inner linalg_multi_dot linalg_vecdot matmul outer tensordot")

# FLOPs per element of the activation fused behind _addmm_activation: relu, or the tanh form of gelu.
_ACTIVATION_FLOPS = {False: 1.0, True: 12.0}


class Product(Struct, frozen=True):
    """The sizes of a batch of matrix products."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> float:
        """FLOPs, a fused multiply-add being 2."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def numel(self) -> int:
        """Elements of the result."""
        return self.batch * self.m * self.n


def product_cost(product: Product, left: Tensor, right_bytes: float, out_bytes: float) -> Cost:
    """The cost of a product; ``left`` (the activations) decides the dtype of the arithmetic.

    A complex multiply-add is four real ones.
    """
    flops = product.flops * (4.0 if "complex" in left.dtype else 1.0)
    moved = left.bytes + right_bytes + out_bytes
    traffic = Cost(
        FAMILY, bytes_low=moved, bytes_high=moved, m=product.m, n=product.n, k=product.k, batch=product.batch
    )
    if product.m == 1 or product.n == 1:
        return replace(traffic, vector_flops=flops, math_dtype=math_dtype(left))
    return replace(traffic, matrix_flops=flops, math_dtype=left.short_dtype)


def matrix_sizes(left: Tensor, right: Tensor) -> Product:
    """Gives the sizes of [.., m, k] times [.., k, n].

    Raises Unmodelled when they do not fit.
    """
    if not 2 <= len(left.shape) == len(right.shape) <= 3 or left.shape[:-2] != right.shape[:-2]:
        raise Unmodelled("no_batch")
    if left.shape[-1] != right.shape[-2]:
        raise Unmodelled("inner_sizes")
    batch = left.shape[0] if len(left.shape) == 3 else 1
    return Product(m=left.shape[-2], n=right.shape[-1], k=left.shape[-1], batch=batch)


def item_bytes(dtype: str) -> float:
    """Gives the bytes per element of a dtype.

    Raises Unmodelled for an unknown one.
    """
    return Tensor((), dtype).item_bytes


def extra_bytes(low: float, high: float | None = None) -> Cost:
    """Traffic beside that of the product itself: a bias, scales."""
    return Cost(FAMILY, bytes_low=low, bytes_high=low if high is None else high)


def linear_cost(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Cost:
    """Prices inputs [.., k] times weight [n, k] transposed, plus a bias."""
    if len(weight.shape) not in {1, 2} or not inputs.shape or inputs.shape[-1] != weight.shape[-1]:
        raise Unmodelled("unfit_weight")
    n, k = (weight.shape[0] if len(weight.shape) == 2 else 1), inputs.shape[-1]
    rows = Tensor(inputs.shape[:-1], inputs.dtype).numel
    cost = product_cost(Product(m=rows, n=n, k=k), inputs, weight.bytes, rows * n * inputs.item_bytes)
    if bias is None:
        return cost
    return cost + extra_bytes(bias.bytes) + Cost(FAMILY, vector_flops=float(rows * n))


def _result_item_bytes(call: OpCall, operands: int, dtype: str) -> float:
    """Gives the bytes per element of the result.

    They are those of the ``out=`` tensor behind the operands, or of ``dtype``.
    """
    given = [argument for argument in call.arguments[operands:] if isinstance(argument, Tensor)]
    return given[-1].item_bytes if given else item_bytes(dtype)


def _mm(call: OpCall) -> Cost:
    """The cost of mm and bmm: A, B, [out_dtype], [out]."""
    left, right = call.tensor(0), call.tensor(1)
    product = matrix_sizes(left, right)
    out_item_bytes = _result_item_bytes(call, 2, dtype_argument(call, 2, left.dtype))
    return product_cost(product, left, right.bytes, product.numel * out_item_bytes)


def _addmm(call: OpCall) -> Cost:
    """The cost of addmm and baddbmm: C, A, B, [out_dtype], beta, alpha, [out]."""
    scalars = [argument for argument in call.arguments[3:] if not isinstance(argument, Tensor)]
    return _biased(call, matrix_sizes(call.tensor(1), call.tensor(2)), beta_at=4 if len(scalars) == 3 else 3)


def _addbmm(call: OpCall) -> Cost:
    """Prices addbmm (C, A, B, beta, alpha, [out]).

    The products of the batch add up to one.
    """
    sizes = matrix_sizes(call.tensor(1), call.tensor(2))
    return _biased(call, Product(m=sizes.m, n=sizes.n, k=sizes.k * sizes.batch))


def _addmm_activation(call: OpCall) -> Cost:
    """The cost of _addmm_activation: C, A, B, beta, alpha, use_gelu, [out]."""
    product = matrix_sizes(call.tensor(1), call.tensor(2))
    epilogue = Cost(FAMILY, vector_flops=product.numel * _ACTIVATION_FLOPS[call.flag(5) or False])
    return _biased(call, product) + epilogue


def _addmv(call: OpCall) -> Cost:
    """The cost of addmv: y, A, x, beta, alpha, [out]."""
    return _biased(call, _vector_sizes(call.tensor(1), call.tensor(2)))


def _biased(call: OpCall, product: Product, beta_at: int = 3) -> Cost:
    """Prices a product added to beta times the first argument.

    The first argument may broadcast. An out_dtype may precede beta.

    With beta 0 the first argument is not read. Where beta was not recorded, only the upper end counts it.
    """
    addend, left, right = call.tensor(0), call.tensor(1), call.tensor(2)
    dtype = left.dtype if beta_at == 3 else dtype_argument(call, 3, left.dtype)
    cost = product_cost(product, left, right.bytes, product.numel * _result_item_bytes(call, 3, dtype))
    beta = call.number(beta_at)
    if beta == 0:
        return cost
    read = extra_bytes(0.0 if beta is None else addend.bytes, addend.bytes)
    return cost + read + Cost(FAMILY, vector_flops=float(product.numel))


def _mv(call: OpCall) -> Cost:
    """The cost of mv: A, x, [out]."""
    matrix, vector = call.tensor(0), call.tensor(1)
    product = _vector_sizes(matrix, vector)
    return product_cost(product, matrix, vector.bytes, product.numel * matrix.item_bytes)


def _vector_sizes(matrix: Tensor, vector: Tensor) -> Product:
    if len(matrix.shape) != 2 or matrix.shape[1:] != vector.shape:
        raise Unmodelled("unfit_vector")
    return Product(m=matrix.shape[0], n=1, k=matrix.shape[1])


def _dot(call: OpCall) -> Cost:
    """The cost of dot and vdot: x, y, [out]."""
    left, right = call.tensor(0), call.tensor(1)
    if len(left.shape) != 1 or left.shape != right.shape:
        raise Unmodelled("unequal_vectors")
    return product_cost(Product(m=1, n=1, k=left.shape[0]), left, right.bytes, left.item_bytes)


def _addr(call: OpCall) -> Cost:
    """Prices addr (C, u, v, beta, alpha).

    It works element by element, so it is pointwise work.
    """
    addend, left, right = call.tensor(0), call.tensor(1), call.tensor(2)
    numel = left.numel * right.numel
    read = 0.0 if call.number(3) == 0 else addend.bytes
    moved = read + left.bytes + right.bytes + numel * left.item_bytes
    return Cost("pointwise", vector_flops=3.0 * numel, bytes_low=moved, bytes_high=moved, math_dtype=math_dtype(left))


def _linear(call: OpCall) -> Cost:
    """Prices linear (x, w, b).

    Vendors' kernels with the same arguments have the same cost.
    """
    return linear_cost(call.tensor(0), call.tensor(1), call.optional_tensor(2))


def _mkl_linear(call: OpCall) -> Cost:
    """The cost of _mkl_linear: x, packed w, w, b, batch_size."""
    return linear_cost(call.tensor(0), call.tensor(2), call.optional_tensor(3))


def _linear_backward(call: OpCall) -> Cost:
    """Prices linear_backward (x, dy, w, mask).

    There is one product each for the gradients of x and of w.
    """
    x, dy, weight = (call.tensor(position) for position in range(3))
    for_input, for_weight, for_bias = (call.flags(3) or (True, True, True))[:3]
    rows = Tensor(x.shape[:-1], x.dtype).numel
    one = Product(m=rows, n=weight.shape[0], k=weight.shape[-1]).flops
    products = for_input + for_weight
    moved = dy.bytes + products * (x.bytes + weight.bytes) + for_bias * dy.shape[-1] * dy.item_bytes
    return Cost(
        FAMILY,
        matrix_flops=products * one,
        vector_flops=float(for_bias * dy.numel),
        bytes_low=moved,
        bytes_high=moved + max(products + for_bias - 1, 0) * dy.bytes,
        math_dtype=x.short_dtype,
    )


def _linear_input_gradient(call: OpCall) -> Cost:
    """The cost of mkldnn_linear_backward_input: sizes of x, dy [.., n], w [n, k]."""
    dy, weight = call.tensor(1), call.tensor(2)
    return linear_cost(dy, Tensor(weight.shape[::-1], weight.dtype), None)


def _linear_weight_gradient(call: OpCall) -> Cost:
    """Prices mkldnn_linear_backward_weights.

    Its arguments are dy [.., n], x [.., k], w and a flag for the bias.
    """
    dy, x, weight = (call.tensor(position) for position in range(3))
    rows = Tensor(x.shape[:-1], x.dtype).numel
    product = Product(m=weight.shape[0], n=weight.shape[-1], k=rows)
    bias = extra_bytes(dy.shape[-1] * dy.item_bytes if call.flag(3) else 0.0)
    return product_cost(product, dy, x.bytes, weight.numel * weight.item_bytes) + bias


def _linear_pointwise(call: OpCall) -> Cost:
    """Prices _linear_pointwise.

    Its arguments are x, w, b, .. or, where the epilogue reads another operand, x, other, w, b, ..
    """
    third = call.optional_tensor(2)
    if third is None or len(third.shape) < 2:
        return _linear(call)
    other = call.tensor(1)
    cost = linear_cost(call.tensor(0), third, call.optional_tensor(3))
    return cost + extra_bytes(other.bytes) + Cost(FAMILY, vector_flops=float(other.numel))


FORMULAS: dict[str, Formula] = {
    **named(
        {
            "mm bmm": _mm,
            "addmm addmm_ baddbmm baddbmm_": _addmm,
            "addbmm addbmm_": _addbmm,
            "_addmm_activation": _addmm_activation,
            "mv": _mv,
            "addmv addmv_": _addmv,
            "dot vdot": _dot,
            "addr addr_": _addr,
            "linear mkldnn_linear": _linear,
            "linear_backward mkldnn_linear_backward": _linear_backward,
            "mkldnn_linear_backward_input": _linear_input_gradient,
            "mkldnn_linear_backward_weights": _linear_weight_gradient,
        }
    ),
    "mkl::_mkl_linear": _mkl_linear,
    "mkldnn::_linear_pointwise": _linear_pointwise,
    "aiter::gemm_a16w16": _linear,
    "vllm::rocm_unquantized_gemm": _linear,
}
