"""Costs of reductions: the operand read once, the results written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.reduction import FORMULAS
from tests.cost.calls import BF16, BOOL, HALF, LONG, cost_of, moved, tensor

X = tensor(10, 20, 30)
IN = 4 * 6000


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("sum", (X, ""), IN + 4),
        ("sum", (X, "[1]", "False", ""), IN + 4 * 300),
        ("sum", (X, "[0, -1]", "True", ""), IN + 4 * 20),
        ("sum", (X, "[]", "False", ""), IN + 4),
        ("sum", (tensor(10, 20, dtype=HALF), "[1]", "False", "6"), 400 + 40),
        ("sum", (tensor(10, 20, dtype=BOOL), "[1]", "False", ""), 200 + 80),
        ("sum", (X, "", "", "", tensor(10)), IN + 40),
        ("mean", (tensor(100, dtype=BF16), ""), 202),
        ("max", (X,), IN + 4),
        ("max", (X, "1", "False"), IN + 12 * 300),
        ("max", (X, X), 3 * IN),
        ("amax", (X, "[2]", "False"), IN + 4 * 200),
        ("argmax", (X, "2", "False"), IN + 8 * 200),
        ("any", (X,), IN + 1),
        ("all", (tensor(100, dtype=BOOL), "0", "False"), 101),
        ("var", (X, "True"), IN + 4),
        ("var", (X, "[2]", "1", "False"), IN + 4 * 200),
        ("var_mean", (X, "[2]", "1", "False"), IN + 8 * 200),
        ("prod", (X, "1", "False", ""), IN + 4 * 300),
        ("norm", (X, "2"), IN + 4),
        ("norm", (X, "2", "[1, 2]", "True"), IN + 40),
        ("linalg_vector_norm", (X, "2", "[2]", "False", ""), IN + 4 * 200),
        ("count_nonzero", (tensor(100), "0"), 408),
    ],
)
def test_every_element_is_read_and_every_result_written(name, arguments, expected):
    assert moved(cost_of(FORMULAS, name, *arguments)) == (expected, expected)


def test_dimensions_that_were_not_recorded_leave_the_size_of_the_result_open():
    assert moved(cost_of(FORMULAS, "sum", X, "", "", "")) == (IN + 4, 2 * IN)


def test_a_missing_list_in_a_trace_that_records_lists_means_all_dimensions():
    x = tensor(10, 20, strides=(20, 1))
    assert moved(cost_of(FORMULAS, "linalg_vector_norm", x, "2", "", "False", "")) == (804, 804)


def test_an_expanded_operand_is_read_once():
    assert cost_of(FORMULAS, "sum", tensor(50, 10, strides=(0, 1)), "").bytes_low == 44


@pytest.mark.parametrize(("name", "flops"), [("sum", 1), ("norm", 2), ("var", 4), ("amax", 1)])
def test_arithmetic_is_counted_per_element_of_the_operand(name, flops):
    arguments = {"norm": ("2",), "amax": ("[1]", "False")}.get(name, ("",))
    assert cost_of(FORMULAS, name, X, *arguments).vector_flops == flops * 6000


def test_integers_are_summed_in_64_bits():
    assert cost_of(FORMULAS, "sum", tensor(100, dtype="int"), "").bytes_low == 408
    assert cost_of(FORMULAS, "sum", tensor(100, dtype=LONG), "").bytes_low == 808


def test_equal_may_stop_at_the_first_difference():
    assert moved(cost_of(FORMULAS, "equal", X, X)) == (0, 2 * IN)


def test_a_dimension_that_the_operand_lacks_is_unmodelled():
    with pytest.raises((Unmodelled, IndexError)):
        cost_of(FORMULAS, "sum", X, "[7]", "False", "")


@given(
    shape=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    dim=st.integers(0, 3),
    name=st.sampled_from(["sum", "amax", "argmax", "max", "var"]),
)
def test_reducing_costs_the_operand_and_at_most_as_much_again_per_result(shape, dim, name):
    dim %= len(shape)
    arguments = (f"[{dim}]", "False", "") if name in {"sum", "var"} else (f"{dim}", "False")
    cost = cost_of(FORMULAS, name, tensor(*shape), *arguments)
    kept = tensor(*shape).numel / shape[dim]
    assert cost.bytes_low == cost.bytes_high
    assert 4 * tensor(*shape).numel + 4 * kept <= cost.bytes_low <= 4 * tensor(*shape).numel + 12 * kept
