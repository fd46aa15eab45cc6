"""Costs of copies, casts, concatenation and padding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Tensor, Unmodelled
from bottleneck.cost.movement import FORMULAS
from tests.cost.calls import BF16, HALF, cost_of, moved, tensor, tensors

N = 1000
DENSE = tensor(N, strides=(1,))


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("copy_", (tensor(N), DENSE, "False"), 8 * N),
        ("copy_", (tensor(N, dtype=BF16), DENSE, "False"), 6 * N),
        ("copy_", (tensor(40, N), tensor(N), "False"), 4 * 41 * N),
        ("copy_", (tensor(40, N), tensor(40, N, strides=(0, 1)), "False"), 4 * 41 * N),
        ("clone", (tensor(40, N, strides=(0, 1)), ""), 4 * 41 * N),
        ("_to_copy", (DENSE, "15", "", "", "", "False", ""), 6 * N),
        ("_to_copy", (tensor(N, dtype=HALF, strides=(1,)), "", "", "", "", "False", ""), 4 * N),
        ("cat", (tensors((N,), (N,)), "0", tensor(2 * N, dtype=HALF)), 8 * N),
        ("repeat", (tensor(10, N), "[3, 2]"), 4 * 7 * 10 * N),
        ("repeat_interleave", (tensor(N), "4", "", ""), 20 * N),
        ("constant_pad_nd", (tensor(2, 3, N), "[1, 2, 3, 4]", "0."), 4 * 2 * (3 * N + 10 * (N + 3))),
        ("constant_pad_nd", (tensor(2, N), "[-1, -2]", "0."), 4 * 2 * (N + N - 3)),
        ("reflection_pad1d", (tensor(2, 3, N), "[1, 1]"), 4 * 6 * (2 * N + 2)),
        ("split_with_sizes_copy", (DENSE, "[400, 600]", "0"), 8 * N),
    ],
)
def test_what_is_copied_is_read_once_and_written_once(name, arguments, expected):
    assert moved(cost_of(FORMULAS, name, *arguments)) == (expected, expected)


def test_concatenated_items_are_halves_at_least_and_floats_at_most():
    assert moved(cost_of(FORMULAS, "cat", tensors((3, N), (4, N)), "0")) == (2 * 2 * 7 * N, 2 * 4 * 7 * N)


def test_an_empty_out_tensor_does_not_affect_a_concatenation():
    assert cost_of(FORMULAS, "cat", tensors((N,)), "0", tensor(0)).bytes_high == 8 * N


def test_a_source_without_recorded_strides_may_be_an_expanded_one():
    assert moved(cost_of(FORMULAS, "copy_", tensor(N), tensor(N), "False")) == (4 * N + 4, 8 * N)


def test_a_copy_out_of_a_column_reads_whole_sectors_at_most():
    column = tensor(N, strides=(64,))
    assert moved(cost_of(FORMULAS, "copy_", tensor(N), column, "False")) == (8 * N, 36 * N)


def test_a_transposed_operand_has_a_dimension_of_stride_one_and_is_not_blamed():
    assert moved(cost_of(FORMULAS, "clone", tensor(N, 30, strides=(1, N)), "")) == (240 * N, 240 * N)


def test_a_triangle_need_not_read_what_it_clears():
    assert moved(cost_of(FORMULAS, "tril", tensor(30, 30), "0")) == (3600, 7200)
    assert moved(cost_of(FORMULAS, "tril_", tensor(30, 30), "0")) == (0, 7200)


def test_the_gradient_of_a_slice_is_as_large_as_what_was_sliced():
    cost = cost_of(FORMULAS, "slice_backward", tensor(10, 5), "[10, 50]", "1", "0", "5", "1")
    assert moved(cost) == (4 * (50 + 500), 4 * (50 + 500 + 50))


def test_copies_compute_nothing():
    cost = cost_of(FORMULAS, "copy_", tensor(N), tensor(N), "False")
    assert (cost.vector_flops, cost.special_ops, cost.matrix_flops) == (0, 0, 0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cat", (tensors(), "0")),
        ("repeat", (tensor(N), "")),
        ("repeat_interleave", (tensor(N), tensor(N, dtype="long int"), "0", "")),
        ("constant_pad_nd", (tensor(N), "", "0.")),
        ("constant_pad_nd", (tensor(N), "[1, 1, 1, 1]", "0.")),
        ("_to_copy", (tensor(N), "99", "", "", "", "False", "")),
    ],
)
def test_arguments_that_were_not_recorded_are_unmodelled(name, arguments):
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, name, *arguments)


@given(shape=st.lists(st.integers(1, 30), min_size=2, max_size=2), strides=st.lists(st.integers(0, 99), min_size=2))
def test_low_bytes_of_a_copy_never_exceed_its_high_bytes(shape, strides):
    source = Tensor(tuple(shape), "float", tuple(strides[:2]))
    cost = cost_of(FORMULAS, "copy_", Tensor(tuple(shape), HALF), source, "False")
    assert 0 < cost.bytes_low <= cost.bytes_high
