"""Costs of pooling, upsampling and grid sampling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.pooling import FORMULAS
from tests.cost.calls import LONG, cost_of, moved, tensor

X = tensor(2, 3, 32, 32)
IN = 4 * 6 * 1024


def test_max_pool_writes_values_and_indices():
    cost = cost_of(FORMULAS, "max_pool2d_with_indices", X, "[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "False")
    assert moved(cost) == (IN + 12 * 6 * 256,) * 2
    assert cost.vector_flops == 6 * 256 * 4


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "rounding", "size"),
    [
        ("[3, 3]", "[2, 2]", "[1, 1]", "False", 16),
        ("[3, 3]", "[]", "[0, 0]", "False", 10),
        ("[3, 3]", "[]", "[0, 0]", "True", 11),
        ("[2, 2]", "[3, 3]", "[1, 1]", "True", 11),
        ("3", "1", "1", "False", 32),
    ],
)
def test_the_window_gives_the_size_of_the_result(kernel, stride, padding, rounding, size):
    cost = cost_of(FORMULAS, "avg_pool2d", X, kernel, stride, padding, rounding, "True", "")
    assert cost.bytes_high == IN + 4 * 6 * size * size


def test_windows_that_leave_gaps_need_not_read_all():
    cost = cost_of(FORMULAS, "avg_pool2d", X, "[1, 1]", "[4, 4]", "[0, 0]", "False", "True", "")
    assert moved(cost) == (2 * 4 * 6 * 64, IN + 4 * 6 * 64)


def test_a_window_that_was_not_recorded_leaves_the_result_open():
    assert moved(cost_of(FORMULAS, "max_pool2d_with_indices", X, "", "", "", "", "")) == (IN, 4 * IN)


def test_adaptive_pooling_has_the_size_that_was_asked_for():
    cost = cost_of(FORMULAS, "_adaptive_avg_pool2d", X, "[4, 4]")
    assert moved(cost) == (IN + 4 * 6 * 16,) * 2
    assert cost.vector_flops == 6 * 1024


def test_backward_does_not_read_the_input():
    dy = tensor(2, 3, 16, 16)
    indices = tensor(2, 3, 16, 16, dtype=LONG)
    window = ("[2, 2]", "[2, 2]", "[0, 0]", "[1, 1]", "False")
    cost = cost_of(FORMULAS, "max_pool2d_with_indices_backward", dy, X, *window, indices)
    assert moved(cost) == ((4 + 8 + 4) * 6 * 256, (4 + 8) * 6 * 256 + IN)
    assert moved(cost_of(FORMULAS, "_adaptive_avg_pool2d_backward", dy, X)) == (4 * 6 * 256 + IN,) * 2


@pytest.mark.parametrize(("name", "flops"), [("upsample_nearest2d", 0), ("upsample_bilinear2d", 8)])
def test_upsampling_reads_the_small_grid_and_writes_the_large_one(name, flops):
    options = ("False", "", "") if "bilinear" in name else ("", "")
    cost = cost_of(FORMULAS, name, X, "[64, 64]", *options)
    assert moved(cost) == (5 * IN, 5 * IN)
    assert cost.vector_flops == flops * 6 * 4096
    backward = cost_of(FORMULAS, f"{name}_backward", tensor(2, 3, 64, 64), "[64, 64]", "[2, 3, 32, 32]", *options)
    assert moved(backward) == (5 * IN, 5 * IN)


def test_a_grid_says_where_to_read():
    cost = cost_of(FORMULAS, "grid_sampler_2d", X, tensor(2, 8, 8, 2), "0", "0", "False")
    assert cost.bytes_low == 4 * 2 * 64 * 2 + 4 * 2 * 3 * 64
    assert cost.bytes_high >= cost.bytes_low + IN


def test_an_upsampling_by_factors_is_modelled_in_its_child():
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, "upsample_nearest2d", X, "", "[2., 2.]")


@given(
    size=st.integers(1, 40),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 6),
    rounding=st.sampled_from(["True", "False"]),
)
def test_every_window_starts_inside_the_input_and_low_never_exceeds_high(size, kernel, stride, rounding):
    size = max(size, kernel)
    cost = cost_of(
        FORMULAS,
        "avg_pool2d",
        tensor(1, size, size),
        f"[{kernel}, {kernel}]",
        f"[{stride}]",
        "[0]",
        rounding,
        "True",
        "",
    )
    outputs = (cost.bytes_high - 4 * size * size) / 4
    assert 0 <= cost.bytes_low <= cost.bytes_high
    assert 1 <= outputs <= (1 + (size - 1) // stride) ** 2
