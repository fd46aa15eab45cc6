"""Cost of optimisers.

They pass a few times over lists of parameters, gradients and state.

Traces give the shapes of a list of tensors (some versions not even these) but never its dtype. Where no kernel's name
gives the size of its items, bytes are an interval: 2 per item at least (half precision) and 4 at most (fp32).
"""

from functools import partial

from msgspec import Struct

from bottleneck.cost.call import Cost, Formulas, OpCall, TensorList
from bottleneck.cost.traffic import item_bytes_of_lists, list_elements, listed, named
from bottleneck.schema.records import replace

FAMILY = "optimizer"


class OptimizerRule(Struct, frozen=True):
    """Cost of one op over lists, per element.

    It has FLOPs and special ops per element, and the passes that the op makes.

    Every list argument is one pass of reading unless ``reads_first`` is false; ``writes`` counts passes of writing.
    ``may_square`` marks ops whose last two lists are often the same (the square of the gradient).
    """

    vector_flops: float = 1.0
    special_ops: float = 0.0
    writes: int = 1
    reads_first: bool = True
    may_square: bool = False


_ONE, _SPECIAL = OptimizerRule(), OptimizerRule(0.0, 1.0)

_FOREACH: dict[str, OptimizerRule] = {
    "add sub mul div maximum minimum clamp_max clamp_min neg abs sign ceil floor round trunc frac": _ONE,
    "sqrt rsqrt reciprocal exp log log2 log10 log1p expm1": _SPECIAL,
    "sin cos tan asin acos atan sinh cosh": OptimizerRule(4.0, 1.0),
    "sigmoid tanh erf erfc lgamma": OptimizerRule(4.0, 1.0),
    "pow": OptimizerRule(2.0, 0.0),
    "lerp addcdiv": OptimizerRule(3.0),
    "addcmul": OptimizerRule(3.0, may_square=True),
    "copy": OptimizerRule(0.0, reads_first=False),
    "zero": OptimizerRule(0.0, reads_first=False),
}


def rule_cost(call: OpCall, rule: OptimizerRule) -> Cost:
    """Prices one op over lists by its rule.

    Every list has the sizes of the first one that was recorded.
    """
    lists = call.lists()
    elements = list_elements(call, call.arguments.index(lists[0])) if lists else list_elements(call, 0)
    reads = len(lists) - (0 if rule.reads_first else 1)
    cost = listed(
        call,
        FAMILY,
        float((reads + rule.writes) * elements),
        vector_flops=rule.vector_flops * elements,
        special_ops=rule.special_ops * elements,
    )
    squares = rule.may_square and len(lists) == 3 and lists[1] == lists[2]
    return replace(cost, bytes_low=cost.bytes_low - item_bytes_of_lists(call)[0] * elements) if squares else cost


def _fused(reads: int, writes: int, optional_list: int, flops: tuple[float, float], call: OpCall) -> Cost:
    """Prices a fused step(parameters, gradients, state …).

    It makes so many passes of reading and of writing.

    The list at ``optional_list`` is read and written too when it is there: the maxima of amsgrad, or the momentum of
    SGD. A gradient scaler has the gradients written back, unscaled: that is in the high end only.
    """
    elements = list_elements(call, 0)
    extra = call.arguments[optional_list] if optional_list < len(call.arguments) else None
    passes = reads + writes + (2 if isinstance(extra, TensorList) and extra.numel else 0)
    cost = listed(
        call, FAMILY, float(passes * elements), vector_flops=flops[0] * elements, special_ops=flops[1] * elements
    )
    is_scaled = bool(call.tensors())
    return replace(cost, bytes_high=cost.bytes_high + item_bytes_of_lists(call)[1] * elements) if is_scaled else cost


def _read_only(call: OpCall) -> Cost:
    """_foreach_norm(tensors, order): one pass of reading; one number per tensor comes back."""
    elements = list_elements(call, 0)
    return listed(call, FAMILY, float(elements), vector_flops=2.0 * elements)


def _update_scale(call: OpCall) -> Cost:
    """_amp_update_scale_(scale, tracker, found_inf, …): three numbers."""
    numbers = sum(tensor.bytes for tensor in call.tensors())
    return Cost(FAMILY, vector_flops=3.0, bytes_low=numbers, bytes_high=2 * numbers, math_dtype="fp32")


_NEVER = 99

FORMULAS: Formulas = {
    **named({names: partial(rule_cost, rule=rule) for names, rule in _FOREACH.items()}, ("", "_"), "aten::_foreach_"),
    **named(
        {
            "_foreach_norm _foreach_max _foreach_powsum": _read_only,
            "_foreach_clone": partial(rule_cost, rule=OptimizerRule(0.0)),
            "_amp_foreach_non_finite_check_and_unscale_": partial(rule_cost, rule=OptimizerRule(2.0)),
            "_amp_update_scale_": _update_scale,
            "_fused_adam _fused_adam_ _fused_adamw _fused_adamw_": partial(_fused, 4, 3, 4, (13.0, 2.0)),
            "_fused_sgd _fused_sgd_": partial(_fused, 2, 1, 2, (4.0, 0.0)),
            "_fused_adagrad _fused_adagrad_": partial(_fused, 3, 2, _NEVER, (6.0, 2.0)),
        }
    ),
}
