"""Cost of reductions.

Every element of the operand is read once, and one result per row is written.
"""

import math
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor
from bottleneck.cost.pointwise import FORMULAS as POINTWISE
from bottleneck.cost.traffic import SECTOR_BYTES, as_real, as_sum, dtype_argument, math_dtype, named, stream
from bottleneck.schema.records import replace

FAMILY = "reduction"


def _same(x: Tensor) -> str:
    return as_real(x.dtype)


def _sum(x: Tensor) -> str:
    """Integers are summed in 64 bits."""
    return as_sum(x.dtype)


def _index(_: Tensor) -> str:
    return "long int"


def _bool(_: Tensor) -> str:
    return "bool"


class ReductionRule(Struct, frozen=True):
    """Cost of one reduction per element.

    ``dim_position`` is the position of the reduced dimensions; ``least_arguments`` is the number of arguments (without
    ``out=``) that a call over dimensions has at least, since the forms over all elements are shorter. ``results`` gives
    the dtype of each result; a dtype argument at ``dtype_position`` overrules it.
    """

    vector_flops: float
    results: tuple[Callable[[Tensor], str], ...]
    dim_position: int = 1
    least_arguments: int = 2
    dtype_position: int | None = None


_RULES: dict[str, ReductionRule] = {
    "sum nansum": ReductionRule(1.0, (_sum,), least_arguments=3, dtype_position=3),
    "mean": ReductionRule(1.0, (_same,), least_arguments=3, dtype_position=3),
    "prod": ReductionRule(1.0, (_sum,), least_arguments=3, dtype_position=3),
    "max min": ReductionRule(1.0, (_same, _index)),
    "aminmax _aminmax": ReductionRule(2.0, (_same, _same)),
    "amax amin": ReductionRule(1.0, (_same,)),
    "argmax argmin count_nonzero": ReductionRule(1.0, (_index,)),
    "any all": ReductionRule(1.0, (_bool,)),
    "var std": ReductionRule(4.0, (_same,), least_arguments=3),
    "var_mean std_mean": ReductionRule(4.0, (_same, _same), least_arguments=3),
    "norm": ReductionRule(2.0, (_same,), dim_position=2, least_arguments=4, dtype_position=4),
    "linalg_vector_norm": ReductionRule(2.0, (_same,), dim_position=2, least_arguments=3, dtype_position=4),
}


def rule_cost(call: OpCall, rule: ReductionRule) -> Cost:
    """The cost of one reduction by its rule.

    Where the dimensions were not recorded, the results are one element at least and as many as the operand has at most.
    """
    x = call.tensor(0)
    given = tuple(argument for argument in call.arguments[1:] if isinstance(argument, Tensor))
    flops = rule.vector_flops * x.numel
    if given and given[-1].numel:
        return stream(FAMILY, x, *given[-len(rule.results) :], vector_flops=flops)
    dtypes = [dtype(x) for dtype in rule.results]
    if rule.dtype_position is not None:
        dtypes = [dtype_argument(call, rule.dtype_position, dtype) for dtype in dtypes]
    reads = stream(FAMILY, x, vector_flops=flops)
    low, high = (sum(Tensor((count,), dtype).bytes for dtype in dtypes) for count in _result_elements(call, rule, x))
    return replace(reads, bytes_low=reads.bytes_low + low, bytes_high=reads.bytes_high + high)


def _result_elements(call: OpCall, rule: ReductionRule, x: Tensor) -> tuple[int, int]:
    """Fewest and most elements of a result."""
    count = len([argument for argument in call.arguments if not isinstance(argument, Tensor)]) + 1
    if count < rule.least_arguments:
        return 1, 1
    dims = call.integers(rule.dim_position)
    if dims:
        results = math.prod(x.shape) // max(1, math.prod(x.shape[dim] for dim in dims))
        return results, results
    # Traces with strides also record lists, so that a missing one is an argument that was not given.
    is_whole = dims == () or x.strides is not None
    return (1, 1) if is_whole else (1, x.numel)


def _extremum(call: OpCall) -> Cost:
    """max(x, dim, …) and min; max(x, other) is pointwise, and max(x) gives no index."""
    rule = _RULES["max min"]
    if len(call.arguments) == 1:
        return rule_cost(call, replace(rule, results=rule.results[:1]))
    is_pointwise = isinstance(call.arguments[1], Tensor)
    return POINTWISE["aten::maximum"](call) if is_pointwise else rule_cost(call, rule)


def _equal(call: OpCall) -> Cost:
    """equal(x, y): may stop at the first difference."""
    cost = stream(FAMILY, call.tensor(0), call.tensor(1), vector_flops=0.0)
    return replace(cost, bytes_low=0.0)


def _trace(call: OpCall) -> Cost:
    """trace(x): the diagonal read, a sector for each of its elements at worst."""
    x = call.tensor(0)
    count = min(x.shape) if x.shape else 1
    read = count * x.item_bytes
    return Cost(
        FAMILY,
        vector_flops=float(count),
        bytes_low=read + Tensor((), _sum(x)).item_bytes,
        bytes_high=count * max(SECTOR_BYTES, x.item_bytes) + Tensor((), _sum(x)).item_bytes,
        math_dtype=math_dtype(x),
    )


FORMULAS: Formulas = {
    **named({names: partial(rule_cost, rule=rule) for names, rule in _RULES.items() if names != "max min"}),
    **named({"max min": _extremum, "equal": _equal, "trace": _trace}),
}
