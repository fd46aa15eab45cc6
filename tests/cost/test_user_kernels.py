"""Triton kernels of users: what their names and the sizes of their launch tell, and what they do not."""

import pytest

from bottleneck.cost import op_family
from bottleneck.cost.call import Argument, Cost, OpCall, Scalar, Tensor, Unmodelled
from bottleneck.cost.user_kernels import HALF, ONCE, formula
from tests.cost.calls import BF16, LONG, moved, tensor


def half(*shape: int) -> Tensor:
    return tensor(*shape, dtype=BF16)


def cost_of(name: str, *arguments: Tensor | int) -> Cost:
    found = formula(name)
    assert found is not None
    parsed: tuple[Argument, ...] = tuple(Scalar(str(each)) if isinstance(each, int) else each for each in arguments)
    return found(OpCall(name, parsed))


A, B, C = half(64, 32), half(48, 32), half(64, 48)


def test_three_sizes_of_three_buffers_are_a_product():
    cost = cost_of("linear_relu_square_kernel_0", A, B, C, half(64, 48), 64, 48, 32, 132, 1, 1)
    assert cost.matrix_flops == 2 * 64 * 48 * 32
    assert moved(cost) == (2 * (64 * 32 + 48 * 32 + 2 * 64 * 48),) * 2
    assert (cost.math_dtype, cost.m, cost.n, cost.k) == ("bf16", 64, 48, 32)


@pytest.mark.parametrize("sizes", [(64, 48, 16), (64, 48), (64, 96, 32, 1)])
def test_sizes_that_are_not_those_of_the_buffers_are_no_product(sizes):
    with pytest.raises(Unmodelled, match="factors"):
        cost_of("linear_relu_square_kernel_0", A, B, C, *sizes)


@pytest.mark.parametrize(
    ("name", "operands", "flops"),
    [
        ("XXT_kernel_1", (half(64, 32), half(64, 64)), 64 * 64 * 32),
        ("XTX_kernel_1", (half(32, 64), half(64, 64)), 64 * 64 * 32),
        ("XXT_kernel_2", (half(3, 64, 32), half(3, 64, 64)), 3 * 64 * 64 * 32),
        ("ba_plus_cAA_kernel_0", (half(64, 64), half(64, 64)), 64 * 64 * 64),
    ],
)
def test_half_of_a_symmetric_product_is_computed_at_least(name, operands, flops):
    cost = cost_of(name, *operands, 64, 32)
    assert (cost.matrix_flops, cost.note) == (flops, HALF)


def test_a_symmetric_product_of_sizes_that_do_not_fit_is_unmodelled():
    with pytest.raises(Unmodelled, match="factors"):
        cost_of("XXT_kernel_1", half(48, 32), half(64, 64))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("fused_softcapped_entropy_fwd_kernel_0", "loss"),
        ("liger_cross_entropy_kernel_2", "loss"),
        ("_rms_norm_forward_kernel_3", "normalization"),
        ("_swiglu_forward_kernel_1", "pointwise"),
        ("my_softmax_7", "softmax"),
    ],
)
def test_a_kernel_that_streams_moves_its_buffers_once_or_twice(name, family):
    cost = cost_of(name, half(100, 1000), tensor(100), tensor(100, dtype=LONG), 1000, 1)
    once = 100 * (2000 + 4 + 8)
    assert (cost.family, moved(cost), cost.note) == (family, (once, 2 * once), ONCE)


def test_a_kernel_whose_buffers_were_not_recorded_is_unmodelled():
    with pytest.raises(Unmodelled, match="buffers"):
        cost_of("linear_relu_square_kernel_0", 64, 48, 32)


@pytest.mark.parametrize("name", ["linear_relu_kernel", "aten::softmax_0", "compute_0", "unlinear_0", "softmaxed_1"])
def test_only_numbered_names_with_such_a_word_are_known(name):
    assert formula(name) is None


def test_the_name_alone_makes_no_family():
    assert op_family("linear_relu_square_kernel_0") is None
