"""SageAttention's kernels by their numbered names."""

import pytest

from bottleneck.cost import op_family
from bottleneck.cost.attention import UNMASKED, formula
from bottleneck.cost.call import Cost, OpCall, Tensor, Unmodelled
from tests.cost.calls import BF16, moved, tensor

FP8, INT8 = "c10::Float8_e4m3fnuz", "signed char"


def cost_of(name: str, *arguments: Tensor) -> Cost:
    found = formula(name)
    assert found is not None
    return found(OpCall(name, arguments))


def attention(length: int) -> Cost:
    sizes = (2, 24, length, 128)
    query, key, value = tensor(*sizes, dtype=INT8), tensor(*sizes, dtype=INT8), tensor(*sizes, dtype=FP8)
    return cost_of("sage_fwd_1", query, key, value, tensor(2, 24, 3), tensor(*sizes, dtype=BF16))


@pytest.mark.parametrize("length", [64, 128, 768])
def test_at_least_the_pairs_of_a_causal_mask_are_multiplied(length):
    cost, elements = attention(length), 48 * length * 128
    assert cost.matrix_flops == 48 * length * (length + 1) / 2 * 2 * 256
    assert moved(cost) == (5 * elements + 4 * 2 * 24 * 3,) * 2
    assert (cost.math_dtype, cost.note) == ("fp8", UNMASKED)


def test_rounding_moves_every_buffer_once():
    cost = cost_of("sage_quant_kernel_0", tensor(100, 128, dtype=BF16), tensor(100, 128, dtype=INT8), tensor(4))
    assert moved(cost) == (3 * 12800 + 16,) * 2


def test_operands_that_do_not_fit_have_no_price():
    with pytest.raises(Unmodelled):
        cost_of("sage_fwd", tensor(2, 3, 4), tensor(2, 3, 4), tensor(2, 3, 4))


@pytest.mark.parametrize(
    ("name", "family"),
    [("sage_fwd_1", "attention"), ("sage_quant_kernel", "pointwise"), ("sage_fwd_x", None), ("my_sage_fwd", None)],
)
def test_only_its_own_names_are_known(name, family):
    assert op_family(name) == family
    assert (formula(name) is None) == (family is None)
