"""Costs of normalisation and softmax."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.normalization import FORMULAS
from tests.cost.calls import BF16, HALF, cost_of, moved, tensor

ROWS, C = 64, 768
N = ROWS * C
TRUE3 = "[True, True, True]"


def test_layer_norm_writes_two_statistics_per_row():
    cost = cost_of(FORMULAS, "native_layer_norm", tensor(ROWS, C), "[768]", tensor(C), tensor(C), "1e-05")
    assert moved(cost) == (8 * N + 8 * C + 8 * ROWS,) * 2
    assert cost.vector_flops == 8 * N


def test_layer_norm_without_recorded_shape_takes_its_rows_from_the_weight():
    cost = cost_of(FORMULAS, "native_layer_norm", tensor(ROWS, C, dtype=HALF), None, tensor(C), None, "")
    assert cost.bytes_low == 4 * N + 4 * C + 8 * ROWS


def test_layer_norm_backward_reads_twice_for_the_gradients_of_its_parameters():
    statistics = tensor(ROWS, 1)
    arguments = (tensor(ROWS, C), tensor(ROWS, C), "[768]", statistics, statistics, tensor(C), tensor(C))
    low = 12 * N + 8 * ROWS + 3 * 4 * C
    assert moved(cost_of(FORMULAS, "native_layer_norm_backward", *arguments, TRUE3)) == (low, low + 8 * N)
    only_input = cost_of(FORMULAS, "native_layer_norm_backward", *arguments, "[True, False, False]")
    assert moved(only_input) == (low - 8 * C, low - 8 * C)


def test_rms_norm_has_one_statistic_per_row():
    cost = cost_of(FORMULAS, "_fused_rms_norm", tensor(ROWS, C, dtype=BF16), "[768]", tensor(C, dtype=BF16), "1e-06")
    assert moved(cost) == (4 * N + 2 * C + 4 * ROWS,) * 2
    backward = cost_of(
        FORMULAS,
        "_fused_rms_norm_backward",
        *(tensor(ROWS, C), tensor(ROWS, C), "[768]", tensor(ROWS, 1), tensor(C), "[True, True]"),
    )
    assert moved(backward) == (12 * N + 4 * ROWS + 8 * C, 20 * N + 4 * ROWS + 8 * C)
    assert backward.vector_flops == 10 * N


def batch_norm(name: str, training: str, dtype: str = "float"):
    statistics = (tensor(16), tensor(16), tensor(16), tensor(16))
    return cost_of(FORMULAS, name, tensor(8, 16, 10, 10, dtype=dtype), *statistics, training, "0.1", "1e-05")


@pytest.mark.parametrize("name", ["native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"])
def test_batch_norm_reads_again_in_training_only(name):
    n, parameters = 8 * 16 * 100, 4 * 16 * 4
    assert moved(batch_norm(name, "True")) == (8 * n + parameters, 12 * n + parameters)
    assert moved(batch_norm(name, "False")) == (8 * n + parameters, 8 * n + parameters)
    assert (batch_norm(name, "True").vector_flops, batch_norm(name, "False").vector_flops) == (8 * n, 2 * n)


def test_a_batch_norm_whose_flag_was_not_recorded_may_be_either():
    unknown = batch_norm("native_batch_norm", "")
    assert unknown.vector_flops == batch_norm("native_batch_norm", "False").vector_flops
    assert unknown.bytes_high == batch_norm("native_batch_norm", "True").bytes_high


def test_cudnn_and_native_backward_cost_the_same_though_their_arguments_differ():
    x, channels = tensor(8, 16, 10, 10), (tensor(16),) * 5
    native = cost_of(FORMULAS, "native_batch_norm_backward", x, x, *channels, "True", "1e-05", TRUE3)
    cudnn = cost_of(FORMULAS, "cudnn_batch_norm_backward", x, x, *channels, "1e-05", tensor(0, dtype="unsigned char"))
    assert moved(native) == moved(cudnn) == (12 * 12800 + 64, 20 * 12800 + 64)


def test_group_norm_reads_its_input_once_at_least_and_twice_at_most():
    cost = cost_of(
        FORMULAS, "native_group_norm", tensor(8, 16, 100), tensor(16), tensor(16), "8", "16", "100", "4", "0"
    )
    assert moved(cost) == (8 * 12800 + 128, 12 * 12800 + 128)


def test_softmax_writes_float_where_half_is_lifted():
    assert moved(cost_of(FORMULAS, "_softmax", tensor(ROWS, C, dtype=HALF), "-1", "False")) == (4 * N, 4 * N)
    assert moved(cost_of(FORMULAS, "_softmax", tensor(ROWS, C, dtype=HALF), "-1", "True")) == (6 * N, 6 * N)


def test_a_softmax_row_that_does_not_fit_on_the_chip_is_read_again():
    long_row = cost_of(FORMULAS, "_log_softmax", tensor(4, 50257), "-1", "False")
    assert moved(long_row) == (8 * 4 * 50257, 16 * 4 * 50257)


def test_softmax_counts_one_exp_per_element():
    cost = cost_of(FORMULAS, "_softmax", tensor(ROWS, C), "-1", "False")
    assert (cost.special_ops, cost.vector_flops) == (N, 4 * N)


def test_softmax_backward_does_not_read_the_input_that_old_traces_record():
    new = cost_of(FORMULAS, "_softmax_backward_data", tensor(ROWS, C), tensor(ROWS, C), "-1", "6")
    old = cost_of(FORMULAS, "_softmax_backward_data", tensor(ROWS, C), tensor(ROWS, C), "-1", tensor(ROWS, C))
    half = cost_of(FORMULAS, "_softmax_backward_data", tensor(ROWS, C), tensor(ROWS, C), "-1", "5")
    assert moved(new) == moved(old) == (12 * N, 12 * N)
    assert moved(half) == (10 * N, 10 * N)


def test_a_call_without_input_is_unmodelled():
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, "native_layer_norm", None, "[768]", None, None, "")


@given(rows=st.integers(1, 300), width=st.integers(1, 3000))
def test_costs_grow_with_the_rows_and_keep_their_order(rows, width):
    for name, arguments in {
        "native_layer_norm": (f"[{width}]", None, None, "1e-05"),
        "_softmax": ("-1", "False"),
        "native_batch_norm": (None, None, None, None, "True", "0.1", "1e-05"),
    }.items():
        small = cost_of(FORMULAS, name, tensor(rows, width), *arguments)
        large = cost_of(FORMULAS, name, tensor(2 * rows, width), *arguments)
        assert small.bytes_low <= small.bytes_high
        assert moved(large) == (2 * small.bytes_low, 2 * small.bytes_high)
        assert large.vector_flops == 2 * small.vector_flops
