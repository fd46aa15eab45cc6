"""Pointwise costs: numbers by hand, laws, and the bytes of tensors that torch really made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Tensor, Unmodelled
from bottleneck.cost.pointwise import FORMULAS
from tests.cost.calls import BF16, BOOL, HALF, LONG, cost_of, moved, tensor

N = 1000


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("add", (tensor(N), tensor(N), "1"), 12 * N),
        ("add", (tensor(N, dtype=BF16), tensor(N, dtype=BF16), "1"), 6 * N),
        ("add", (tensor(N, dtype=BF16), tensor(N), "1"), 10 * N),
        ("add", (tensor(N, dtype=BF16), tensor(N, dtype=HALF), "1"), 8 * N),
        ("add", (tensor(N, dtype=LONG), tensor(N, dtype=BF16), "1"), 12 * N),
        ("sub", (tensor(10, 1, 8), tensor(4, 8), "1"), 4 * (80 + 32 + 320)),
        ("add_", (tensor(N), tensor(N), "1"), 12 * N),
        ("add_", (tensor(N), tensor(), "1"), 8 * N + 4),
        ("div", (tensor(N, dtype=LONG), tensor(N, dtype=LONG)), 20 * N),
        ("lt", (tensor(N), tensor(N)), 9 * N),
        ("lt_", (tensor(N), tensor(N)), 12 * N),
        ("exp", (tensor(N),), 8 * N),
        ("isnan", (tensor(N, dtype=HALF),), 3 * N),
        ("clamp", (tensor(N), "0", ""), 8 * N),
        ("clamp", (tensor(N), tensor(N), tensor(N)), 16 * N),
        ("addcdiv_", (tensor(N), tensor(N), tensor(N), "1"), 16 * N),
        ("lerp", (tensor(N), tensor(N), "0.5"), 12 * N),
        ("threshold_backward", (tensor(N), tensor(N), "0"), 12 * N),
        ("gelu_backward", (tensor(N, dtype=BF16), tensor(N, dtype=BF16), "none"), 6 * N),
        ("native_dropout", (tensor(N, dtype=HALF), "0.1", "True"), 5 * N),
        ("native_dropout_backward", (tensor(N), tensor(N, dtype=BOOL), "1.1"), 9 * N),
        ("glu", (tensor(4, 2 * N), "-1"), 4 * (8 * N + 4 * N)),
        ("glu_backward", (tensor(4, N), tensor(4, 2 * N), "-1"), 4 * (4 * N + 2 * 8 * N)),
        ("prelu", (tensor(2, 3, N), tensor(3)), 4 * (12 * N + 3)),
        ("abs", (tensor(N, dtype="c10::complex<float>"),), 12 * N),
        ("pow", (tensor(N), "2"), 8 * N),
        ("pow", ("2", tensor(N)), 8 * N),
    ],
)
def test_contiguous_operands_are_read_once_and_the_result_is_written_once(name, arguments, expected):
    assert moved(cost_of(FORMULAS, name, *arguments)) == (expected, expected)


def test_a_plain_number_recorded_as_a_tensor_moves_nothing_and_promotes_nothing():
    cost = cost_of(FORMULAS, "add", tensor(N, dtype=BF16), tensor(dtype="double"), "1")
    assert moved(cost) == (4 * N, 4 * N)
    assert cost.math_dtype == "fp32"


def test_a_plain_fraction_lifts_integers_to_float():
    assert moved(cost_of(FORMULAS, "mul", tensor(N, dtype=LONG), tensor(dtype="double"))) == (12 * N, 12 * N)


def test_an_out_tensor_is_written_and_not_read():
    out = tensor(N, dtype=HALF)
    assert moved(cost_of(FORMULAS, "sub", tensor(N), tensor(N), "1", out)) == (10 * N, 10 * N)


def test_an_out_tensor_that_the_call_resizes_still_gives_the_dtype():
    assert cost_of(FORMULAS, "sub", tensor(N), tensor(N), "1", tensor(0, dtype=HALF)).bytes_low == 10 * N


def test_an_expanded_operand_counts_once():
    expanded = tensor(50, N, strides=(0, 1))
    cost = cost_of(FORMULAS, "sub", tensor(50, N), expanded, "1")
    assert moved(cost) == (4 * 101 * N, 4 * 101 * N)


def test_a_strided_operand_costs_a_sector_per_element_at_most():
    cost = cost_of(FORMULAS, "exp", tensor(N, 4, strides=(64, 16)))
    assert moved(cost) == (32 * N, (4 * 32 + 16) * N)


def test_a_stride_of_two_costs_twice_the_bytes_at_most():
    assert moved(cost_of(FORMULAS, "exp", tensor(N, dtype=HALF, strides=(2,)))) == (4 * N, 6 * N)


def test_operands_that_may_be_one_tensor_are_read_once_at_least():
    assert moved(cost_of(FORMULAS, "mul", tensor(N), tensor(N))) == (8 * N, 12 * N)
    assert moved(cost_of(FORMULAS, "mul", tensor(N), tensor(N, dtype=HALF))) == (10 * N, 10 * N)
    assert moved(cost_of(FORMULAS, "ne", tensor(N), tensor(N))) == (5 * N, 9 * N)
    assert moved(cost_of(FORMULAS, "addcmul_", tensor(N), tensor(N), tensor(N), "1")) == (12 * N, 16 * N)


def test_where_needs_one_branch_at_least_and_reads_both_at_most():
    assert moved(cost_of(FORMULAS, "where", tensor(N, dtype=BOOL), tensor(N), tensor(N))) == (9 * N, 13 * N)


def test_masked_fill_in_place_moves_only_the_mask_at_least():
    assert moved(cost_of(FORMULAS, "masked_fill_", tensor(N), tensor(N, dtype=BOOL), "0")) == (N, 9 * N)
    assert moved(cost_of(FORMULAS, "masked_fill", tensor(N), tensor(N, dtype=BOOL), "0")) == (5 * N, 9 * N)


def test_arithmetic_is_counted_per_element_of_the_broadcast_result():
    cost = cost_of(FORMULAS, "addcmul", tensor(10, 1), tensor(1, 20), tensor(10, 20), "1")
    assert cost.vector_flops == 3 * 200
    sigmoid = cost_of(FORMULAS, "sigmoid", tensor(N))
    assert (sigmoid.vector_flops, sigmoid.special_ops) == (4 * N, N)


def test_a_square_is_cheaper_than_a_general_power():
    assert cost_of(FORMULAS, "pow", tensor(N), "2").vector_flops == 2 * N
    assert cost_of(FORMULAS, "pow", tensor(N), "2.7").vector_flops == 20 * N


@pytest.mark.parametrize(("dtype", "expected"), [(HALF, "fp32"), ("double", "fp64"), (LONG, "fp32")])
def test_half_precision_is_computed_in_fp32_and_double_in_fp64(dtype, expected):
    assert cost_of(FORMULAS, "add", tensor(N, dtype=dtype), tensor(N, dtype=dtype), "1").math_dtype == expected


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("add", (tensor(3), tensor(4), "1")),
        ("add", (None, None, "1")),
        ("exp", (tensor(3, dtype="mystery"),)),
        ("where", (tensor(3, dtype=BOOL),)),
    ],
)
def test_calls_that_make_no_sense_are_unmodelled(name, arguments):
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, name, *arguments)


shapes = st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple)
binary = st.sampled_from(["add", "sub", "mul", "div", "lt", "maximum", "where"])


def _call(name: str, one: Tensor, two: Tensor):
    condition = (Tensor(one.shape, BOOL),) if name == "where" else ()
    return cost_of(FORMULAS, name, *condition, one, two)


@given(name=binary, shape=shapes, strides=st.lists(st.integers(0, 100), min_size=4, max_size=4))
def test_low_bytes_never_exceed_high_bytes(name, shape, strides):
    one = Tensor(shape, "float", tuple(strides[: len(shape)]))
    cost = _call(name, one, Tensor(shape, "float"))
    assert 0 <= cost.bytes_low <= cost.bytes_high


@given(name=binary, shape=shapes)
def test_doubling_a_dimension_doubles_the_cost(name, shape):
    doubled = (2 * shape[0], *shape[1:])
    small = _call(name, Tensor(shape, "float"), Tensor(shape, "float"))
    large = _call(name, Tensor(doubled, "float"), Tensor(doubled, "float"))
    assert moved(large) == (2 * small.bytes_low, 2 * small.bytes_high)
    assert large.vector_flops == 2 * small.vector_flops


@given(name=st.sampled_from(["add", "sub", "mul", "div", "maximum"]), shape=shapes)
def test_half_the_item_size_is_half_the_bytes(name, shape):
    wide = _call(name, Tensor(shape, "float"), Tensor(shape, "float"))
    narrow = _call(name, Tensor(shape, HALF), Tensor(shape, HALF))
    assert moved(wide) == (2 * narrow.bytes_low, 2 * narrow.bytes_high)
