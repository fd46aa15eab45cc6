"""Costs of constants, ranges and random numbers: written, not read."""

import pytest

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.creation import FORMULAS
from tests.cost.calls import HALF, cost_of, moved, tensor

N = 1000
REST = ("", "", "", "False")  # layout, device and so on, as factories record them


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("fill_", (tensor(N), "1."), 4 * N),
        ("zero_", (tensor(N, dtype=HALF),), 2 * N),
        ("zeros_like", (tensor(N), "5", *REST), 2 * N),
        ("full_like", (tensor(N), "1.", "", *REST), 4 * N),
        ("zeros", ("[10, 100]", "", *REST[1:]), 4 * N),
        ("zeros", ("[10, 100]", "5", *REST[1:]), 2 * N),
        ("zeros", ("[10, 100]", tensor(10, 100, dtype=HALF)), 2 * N),
        ("new_zeros", (tensor(3), "[10, 100]", "", *REST[1:]), 4 * N),
        ("full", ("[10, 100]", "1.5", "", *REST[1:]), 4 * N),
        ("full", ("[10, 100]", "1", "", *REST[1:]), 8 * N),
        ("arange", ("1000", "", *REST[1:]), 8 * N),
        ("arange", ("0", "2000", "2", tensor(0, dtype="long int")), 8 * N),
        ("arange", ("1.", "1001.", "", *REST[1:]), 4 * N),
        ("linspace", ("0", "1", "1000", "", *REST[1:]), 4 * N),
        ("normal_", (tensor(N), "0.", "1.", ""), 4 * N),
        ("bernoulli_", (tensor(N), tensor(N), ""), 8 * N),
        ("bernoulli", (tensor(N), ""), 8 * N),
        ("randn", ("[1000]", "", *REST[1:]), 4 * N),
        ("randperm", ("1000", "4", *REST[1:]), 8 * N),
    ],
)
def test_the_result_is_written_and_nothing_else_moves(name, arguments, expected):
    assert moved(cost_of(FORMULAS, name, *arguments)) == (expected, expected)


def test_random_numbers_cost_arithmetic_and_constants_do_not():
    assert cost_of(FORMULAS, "uniform_", tensor(N), "0.", "1.", "").vector_flops == 10 * N
    assert cost_of(FORMULAS, "fill_", tensor(N), "0.").vector_flops == 0


@pytest.mark.parametrize("name", ["zeros", "arange", "randperm", "full"])
def test_a_size_that_was_not_recorded_is_unmodelled(name):
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, name, "", "", "", "", "", "")
