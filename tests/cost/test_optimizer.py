"""Costs of optimisers over lists of tensors, whose dtype traces do not give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.optimizer import FORMULAS
from tests.cost.calls import cost_of, moved, tensor, tensors

SHAPES = ((100, 10), (7,), ())
N = 1008
LIST = tensors(*SHAPES)


def passes(count: int) -> tuple[int, int]:
    """Bytes of so many passes: halves at least, floats at most."""
    return 2 * count * N, 4 * count * N


@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        ("_foreach_add_", (LIST, "1."), 2),
        ("_foreach_add_", (LIST, LIST, "1."), 3),
        ("_foreach_add", (LIST, tensor(), "1"), 2),
        ("_foreach_mul_", (LIST, "0.9"), 2),
        ("_foreach_sqrt", (LIST,), 2),
        ("_foreach_lerp_", (LIST, LIST, "0.1"), 3),
        ("_foreach_addcdiv_", (LIST, LIST, LIST, "-0.001"), 4),
        ("_foreach_copy_", (LIST, LIST, "False"), 2),
        ("_foreach_zero_", (LIST,), 1),
        ("_foreach_norm", (LIST, "2", ""), 1),
        ("_amp_foreach_non_finite_check_and_unscale_", (LIST, tensor(), tensor()), 2),
        ("_fused_adam_", (LIST, LIST, LIST, LIST, tensors(), tensors((), ()), "0.001"), 7),
        ("_fused_adamw_", (LIST, LIST, LIST, LIST, LIST, tensors((), ()), "0.001"), 9),
        ("_fused_sgd_", (LIST, LIST, tensors(), "0."), 3),
        ("_fused_sgd_", (LIST, LIST, LIST, "0."), 5),
        ("_fused_adagrad_", (LIST, LIST, LIST, tensors((), ()), "0.1"), 5),
    ],
)
def test_every_pass_moves_every_element(name, arguments, count):
    assert moved(cost_of(FORMULAS, name, *arguments)) == passes(count)


def test_a_fused_adam_step_in_fp32_moves_28_bytes_per_parameter():
    cost = cost_of(FORMULAS, "_fused_adam_", LIST, LIST, LIST, LIST, tensors(), tensors((), ()), "0.001")
    assert cost.bytes_high == 28 * N
    assert (cost.vector_flops, cost.special_ops) == (13 * N, 2 * N)


def test_the_square_of_a_gradient_reads_the_gradient_once_at_least():
    squared = cost_of(FORMULAS, "_foreach_addcmul_", LIST, LIST, LIST, "0.001")
    assert moved(squared) == (2 * 3 * N, 4 * 4 * N)


def test_a_gradient_scaler_has_the_gradients_written_back_at_most():
    lists = (LIST, LIST, LIST, LIST, tensors(), tensors((), ()))
    scaled = cost_of(FORMULAS, "_fused_adam_", *lists, "0.001", tensor(), tensor())
    assert moved(scaled) == (2 * 7 * N, 4 * 8 * N)


def test_updating_the_loss_scale_moves_a_few_numbers():
    assert cost_of(FORMULAS, "_amp_update_scale_", tensor(), tensor(dtype="int"), tensor(), "2.").bytes_low == 12


@pytest.mark.parametrize("name", ["_foreach_add_", "_fused_adam_", "_foreach_norm"])
def test_lists_whose_sizes_were_not_recorded_are_unmodelled(name):
    with pytest.raises(Unmodelled, match="sizes of the tensor list"):
        cost_of(FORMULAS, name, tensors(), tensors(), "1.")


@given(st.lists(st.lists(st.integers(1, 20), max_size=3).map(tuple), min_size=1, max_size=8))
def test_twice_the_tensors_cost_twice_as_much(shapes):
    once = cost_of(FORMULAS, "_foreach_lerp_", tensors(*shapes), tensors(*shapes), "0.5")
    twice = cost_of(FORMULAS, "_foreach_lerp_", tensors(*shapes, *shapes), tensors(*shapes, *shapes), "0.5")
    assert moved(twice) == (2 * once.bytes_low, 2 * once.bytes_high)
    assert twice.vector_flops == 2 * once.vector_flops
    assert once.bytes_low <= once.bytes_high
