"""Costs of scans, sorting and Fourier transforms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.multipass import FORMULAS
from tests.cost.calls import BOOL, cost_of, moved, tensor

N = 1000
COMPLEX = "c10::complex<float>"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("cumsum", (tensor(N), "0", ""), 8 * N),
        ("cumsum", (tensor(N, dtype=BOOL), "0", ""), 9 * N),
        ("cumsum", (tensor(N), "0", "7"), 12 * N),
        ("cumsum_", (tensor(N, dtype="int"), "0", ""), 8 * N),
        ("_cummax_helper", (tensor(N), tensor(N), tensor(N, dtype="long int"), "0"), 16 * N),
    ],
)
def test_a_scan_passes_once(name, arguments, expected):
    assert moved(cost_of(FORMULAS, name, *arguments)) == (expected, expected)


def test_a_sort_passes_once_at_least_and_eight_times_at_most():
    assert moved(cost_of(FORMULAS, "sort", tensor(N), "-1", "False")) == (16 * N, 8 * 24 * N)


def test_topk_reads_everything_and_writes_little():
    cost = cost_of(FORMULAS, "topk", tensor(10, N), "5", "-1", "True", "True")
    assert cost.bytes_low == 40 * N + 10 * 5 * 12
    assert cost.bytes_high > 8 * 40 * N


def test_the_number_of_unique_values_is_data():
    cost = cost_of(FORMULAS, "_unique2", tensor(N), "True", "False", "False")
    assert cost.bytes_low == 4 * N < cost.bytes_high


def test_a_complex_transform_costs_five_n_log_n():
    cost = cost_of(FORMULAS, "_fft_c2c", tensor(8, 1024, dtype=COMPLEX), "[1]", "0", "True")
    assert cost.vector_flops == 5 * 8 * 1024 * 10
    assert moved(cost) == (2 * 8 * 8 * 1024,) * 2


def test_a_real_transform_keeps_half_of_the_spectrum():
    forward = cost_of(FORMULAS, "_fft_r2c", tensor(8, 1024), "[1]", "0", "True")
    assert moved(forward) == (4 * 8 * 1024 + 8 * 8 * 513,) * 2
    assert forward.vector_flops == 2.5 * 8 * 1024 * 10
    inverse = cost_of(FORMULAS, "_fft_c2r", tensor(8, 513, dtype=COMPLEX), "[1]", "2", "1024")
    assert moved(inverse) == moved(forward)


def test_a_long_transform_and_each_further_dimension_take_another_pass():
    long = cost_of(FORMULAS, "_fft_c2c", tensor(2**14, dtype=COMPLEX), "[0]", "0", "True")
    assert long.bytes_high == 2 * long.bytes_low
    plane = cost_of(FORMULAS, "_fft_c2c", tensor(64, 64, dtype=COMPLEX), "[0, 1]", "0", "True")
    assert plane.bytes_high == 2 * plane.bytes_low
    assert plane.vector_flops == 5 * 4096 * math.log2(4096)


def test_a_transform_without_recorded_dimensions_is_unmodelled():
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, "_fft_c2c", tensor(8, dtype=COMPLEX), "", "0", "True")


@given(rows=st.integers(1, 50), length=st.integers(2, 300))
def test_low_bytes_never_exceed_high_bytes(rows, length):
    for name, arguments in {
        "sort": ("-1", "False"),
        "topk": ("1", "-1", "True", "True"),
        "_unique2": ("True", "False", "False"),
        "median": (),
        "histc": ("100", "0", "0"),
        "_fft_r2c": ("[1]", "0", "True"),
    }.items():
        cost = cost_of(FORMULAS, name, tensor(rows, length), *arguments)
        assert 0 < cost.bytes_low <= cost.bytes_high, name


def test_the_coordinates_of_nonzeros_are_data():
    assert moved(cost_of(FORMULAS, "nonzero", tensor(100, dtype=BOOL))) == (100, 2 * 100 + 8 * 100)
