"""Cost of pointwise ops.

Each operand is read once, each result written once, with a few FLOPs per element.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, Unmodelled
from bottleneck.cost.traffic import (
    Streams,
    as_complex,
    as_float,
    as_real,
    broadcast,
    named,
    out_argument,
    promote,
    stream,
    without_numbers,
)
from bottleneck.schema.records import replace

FAMILY = "pointwise"


def _bool(_: list[Tensor]) -> str:
    return "bool"


def _first(operands: list[Tensor]) -> str:
    return operands[0].dtype


def _float(operands: list[Tensor]) -> str:
    return as_float(promote(operands))


def _real(operands: list[Tensor]) -> str:
    return as_real(promote(operands))


def _complex(operands: list[Tensor]) -> str:
    return as_complex(promote(operands))


class PointwiseRule(Struct, frozen=True):
    """Cost of one pointwise op per element.

    ``operands`` is the number of leading arguments that may be tensors; a tensor behind them is the ``out=`` tensor.
    ``vector_flops`` and ``special_ops`` count per element of the result. ``result_dtype`` gives the dtype of the result
    from the operands. ``often_same`` are positions for which programs often pass the same tensor (x * x): the trace has
    no pointers, so operands that look the same are read once at least and twice at most.
    """

    operands: int
    vector_flops: float = 1.0
    special_ops: float = 0.0
    result_dtype: Callable[[list[Tensor]], str] = promote
    often_same: tuple[int, int] | None = None


_UNARY, _BINARY = PointwiseRule(1), PointwiseRule(2)
_SPECIAL = PointwiseRule(1, 0.0, 1.0, _float)
_TRIGONOMETRIC, _POLYNOMIAL = PointwiseRule(1, 4.0, 1.0, _float), PointwiseRule(1, 10.0, 1.0, _float)

# The tanh approximation; erf costs a polynomial of about 25, but traces do not record which of the two it was.
_GELU_FLOPS = 12.0

# FLOPs per element follow the usual CUDA kernels. Where these branch on values (sin, pow, lgamma …) the figure is that
# of the cheapest path, so that the compute floor stays below the truth.
WITH_IN_PLACE: dict[str, PointwiseRule] = {
    "neg ceil floor round trunc frac sgn sign relu bitwise_not conj_physical nan_to_num threshold": _UNARY,
    "abs": PointwiseRule(1, result_dtype=_real),
    "add sub clamp_min clamp_max fmod remainder floor_divide gcd lcm heaviside": _BINARY,
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift": _BINARY,
    "mul": PointwiseRule(2, often_same=(0, 1)),
    "div copysign": PointwiseRule(2, result_dtype=_float),
    "eq ne": PointwiseRule(2, result_dtype=_bool, often_same=(0, 1)),  # isnan(x) is ne(x, x)
    "lt le gt ge logical_and logical_or logical_xor": PointwiseRule(2, result_dtype=_bool),
    "logical_not": PointwiseRule(1, result_dtype=_bool),
    "clamp": PointwiseRule(3, 2.0),
    "addcmul": PointwiseRule(3, 3.0, often_same=(1, 2)),
    "addcdiv lerp": PointwiseRule(3, 3.0),
    "reciprocal sqrt rsqrt exp exp2 log log2 log10 log1p expm1": _SPECIAL,
    "sin cos tan asin acos atan sinh cosh asinh acosh atanh": _TRIGONOMETRIC,
    "erf erfc erfinv lgamma digamma i0 sinc logit": _POLYNOMIAL,
    "atan2 hypot xlogy igamma igammac": PointwiseRule(2, 10.0, 2.0, _float),
    "sigmoid": PointwiseRule(1, 4.0, 1.0, _float),
    "tanh": PointwiseRule(1, 6.0, 1.0, _float),
    "silu": PointwiseRule(1, 5.0, 1.0, _float),
    "gelu": PointwiseRule(1, _GELU_FLOPS, 1.0, _float),
    "mish": PointwiseRule(1, 9.0, 2.0, _float),
    "elu": PointwiseRule(1, 4.0, 1.0, _float),
    "hardtanh leaky_relu": PointwiseRule(1, 2.0),
    "hardsigmoid hardswish": PointwiseRule(1, 4.0),
}

FUNCTIONAL: dict[str, PointwiseRule] = {
    "maximum minimum fmax fmin nextafter rsub _add_relu _add_relu_ __lshift__ __rshift__": _BINARY,
    "isnan isinf isfinite isposinf isneginf signbit": PointwiseRule(1, result_dtype=_bool),
    "ldexp": PointwiseRule(2, 1.0, 1.0, _float),
    "angle": PointwiseRule(1, 10.0, 1.0, _real),
    "complex polar": PointwiseRule(2, 1.0, result_dtype=_complex),
    "polygamma": PointwiseRule(2, 10.0, 1.0, _float),
    "special_entr special_erfcx special_i0e special_i1 special_i1e special_ndtri special_log_ndtr": _POLYNOMIAL,
    "special_xlog1py special_zeta": PointwiseRule(2, 10.0, 2.0, _float),
    "logaddexp logaddexp2": PointwiseRule(2, 4.0, 2.0, _float),
    "softplus log_sigmoid_forward": PointwiseRule(1, 3.0, 2.0, _float),
    "softplus_backward": PointwiseRule(2, 4.0, 1.0),
    "softshrink hardshrink _conj_physical": _UNARY,
    "threshold_backward hardtanh_backward hardshrink_backward softshrink_backward": _BINARY,
    "sigmoid_backward tanh_backward": PointwiseRule(2, 3.0),
    "silu_backward": PointwiseRule(2, 8.0, 1.0),
    "gelu_backward": PointwiseRule(2, _GELU_FLOPS, 1.0),
    "mish_backward": PointwiseRule(2, 12.0, 2.0),
    "elu_backward": PointwiseRule(6, 3.0, 1.0, _first),
    "leaky_relu_backward hardswish_backward hardsigmoid_backward logit_backward": PointwiseRule(2, 3.0),
    "_prelu_kernel": PointwiseRule(2, 2.0),
    "native_dropout_backward _masked_scale": PointwiseRule(2, 2.0, result_dtype=_first),
}

# Philox gives four random numbers for about 40 integer operations; comparing and scaling adds two.
_DROPOUT_FLOPS = 12.0
_POWER_FLOPS, _SMALL_POWER_FLOPS = 20.0, 2.0
_SMALL_POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)


def rule_cost(call: OpCall, rule: PointwiseRule) -> Cost:
    """Prices one pointwise call by its rule.

    An op whose name ends in '_' writes its first argument.
    """
    operands = _operands(call, rule.operands)
    result = _result(call, rule, operands)
    cost = stream(
        FAMILY,
        *without_numbers(operands),
        result,
        vector_flops=rule.vector_flops * result.numel,
        special_ops=rule.special_ops * result.numel,
    )
    return replace(cost, bytes_low=cost.bytes_low - _shared_bytes(call, rule.often_same))


def _operands(call: OpCall, count: int) -> list[Tensor]:
    """The tensors among the first ``count`` arguments; raises Unmodelled when there are none."""
    operands = [argument for argument in call.arguments[:count] if isinstance(argument, Tensor)]
    if not operands:
        raise Unmodelled("no_dtype_of_op", call.name)
    return operands


def _result(call: OpCall, rule: PointwiseRule, operands: list[Tensor]) -> Tensor:
    if call.name.endswith("_") and not call.name.endswith("__"):
        return call.tensor(0)
    shape = broadcast([operand.shape for operand in operands])
    return out_argument(call, rule.operands, Tensor(shape, rule.result_dtype(operands)))


def _shared_bytes(call: OpCall, often_same: tuple[int, int] | None) -> float:
    """Bytes counted twice if the two operands, which look the same, are the same."""
    if often_same is None:
        return 0.0
    first, second = (call.optional_tensor(position) for position in often_same)
    return second.bytes if second is not None and first == second else 0.0


def _pow(call: OpCall) -> Cost:
    """pow(base, exponent): a small constant exponent is a multiplication or a root."""
    try:
        is_small = float(call.text(1)) in _SMALL_POWERS
    except ValueError:
        is_small = False
    return rule_cost(call, PointwiseRule(2, _SMALL_POWER_FLOPS) if is_small else PointwiseRule(2, _POWER_FLOPS, 2.0))


def _where(call: OpCall) -> Cost:
    """Prices where(condition, a, b).

    The result needs one branch per element, the eager kernel reads both.

    where(condition) is nonzero, whose cost its child op has.
    """
    branches = _operands(OpCall(call.name, call.arguments[1:3]), 2)
    condition = call.tensor(0)
    shape = broadcast([condition.shape, *(branch.shape for branch in branches)])
    result = out_argument(call, 3, Tensor(shape, promote(branches)))
    read = without_numbers(branches)
    cost = stream(FAMILY, condition, *read, result, vector_flops=result.numel)
    return replace(cost, bytes_low=cost.bytes_low - max(branch.bytes for branch in read))


def _masked_fill(call: OpCall) -> Cost:
    """Prices masked_fill(x, mask, value).

    In place, elements outside the mask need not move. The eager kernel moves all.
    """
    operands, mask = call.tensor(0), call.tensor(1)
    shape = broadcast([operands.shape, mask.shape])
    result = operands if call.name.endswith("_") else Tensor(shape, operands.dtype)
    cost = stream(FAMILY, operands, mask, result, vector_flops=result.numel)
    compulsory = mask.bytes if call.name.endswith("_") else mask.bytes + result.bytes
    return replace(cost, bytes_low=compulsory)


def _glu(call: OpCall) -> Cost:
    """glu(x, dim): one half gates the other, so the result has half the elements."""
    x = call.tensor(0)
    half = Tensor((x.numel // 2,), x.dtype)
    return stream(FAMILY, x, half, vector_flops=5.0 * half.numel, special_ops=half.numel)


FORMULAS: Formulas = {
    **named({names: partial(rule_cost, rule=rule) for names, rule in WITH_IN_PLACE.items()}, ("", "_")),
    **named({names: partial(rule_cost, rule=rule) for names, rule in FUNCTIONAL.items()}),
    **named(
        {
            "pow pow_": _pow,
            "where": _where,
            "masked_fill masked_fill_": _masked_fill,
            # The result, and a mask of one byte per element.
            "native_dropout _fused_dropout": Streams(FAMILY, 1, (0, (0, "bool")), _DROPOUT_FLOPS),
            "glu": _glu,
            "glu_backward": Streams(FAMILY, 2, (1,), 8.0, 1.0),
            # (dy, x, buffer): the buffer holds an element per element of x on a CPU, none on a GPU.
            "log_sigmoid_backward": Streams(FAMILY, 3, (1,), 4.0, 1.0, per=1),
            # The weight holds a slope, or one per channel; its gradient has the shape of x, and the caller reduces it.
            "prelu": Streams(FAMILY, 2, flops=2.0),
            "_prelu_kernel_backward": Streams(FAMILY, 3, (0, 0), 3.0),
            # Queries, keys and values separated and biased, the queries scaled: (qkv, bias, heads).
            "_transform_bias_rescale_qkv": Streams(FAMILY, 2, flops=4.0 / 3.0),
        }
    ),
}
