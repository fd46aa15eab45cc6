"""Costs of loss functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.losses import FORMULAS
from tests.cost.calls import HALF, LONG, cost_of, moved, tensor

N = 1000


def test_a_loss_per_element_is_written_and_a_reduced_one_need_not_be():
    assert moved(cost_of(FORMULAS, "mse_loss", tensor(N), tensor(N), "0")) == (12 * N, 12 * N)
    assert moved(cost_of(FORMULAS, "mse_loss", tensor(N), tensor(N), "1")) == (8 * N, 12 * N)


@pytest.mark.parametrize("name", ["mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward"])
def test_the_gradient_of_a_reduced_loss_reads_one_number_of_dy(name):
    assert moved(cost_of(FORMULAS, name, tensor(), tensor(N), tensor(N), "1", "1.")) == (12 * N + 4, 12 * N + 4)


def test_a_weight_of_cross_entropy_is_read_too():
    bare = cost_of(FORMULAS, "binary_cross_entropy", tensor(N), tensor(N), None, "1")
    weighted = cost_of(FORMULAS, "binary_cross_entropy", tensor(N), tensor(N), tensor(N), "1")
    assert weighted.bytes_low == bare.bytes_low + 4 * N
    assert bare.special_ops == 2 * N


def test_nll_picks_one_element_per_target():
    cost = cost_of(FORMULAS, "nll_loss_forward", tensor(N, 50000), tensor(N, dtype=LONG), None, "1", "-100")
    assert moved(cost) == (12 * N, 44 * N)


def test_the_rest_of_the_nll_gradient_is_cleared_by_another_op():
    target = tensor(8, 64, dtype=LONG)
    x = tensor(8, 1000, 64, dtype=HALF)
    cost = cost_of(FORMULAS, "nll_loss2d_backward", tensor(), x, target, None, "1", "-100", tensor())
    assert moved(cost) == (512 * 10, 512 * 42 + 4)


@given(n=st.integers(1, 5000), reduction=st.sampled_from("012"))
def test_low_bytes_never_exceed_high_bytes(n, reduction):
    for name in ("mse_loss", "smooth_l1_loss", "soft_margin_loss"):
        cost = cost_of(FORMULAS, name, tensor(n), tensor(n), reduction)
        assert 0 < cost.bytes_low <= cost.bytes_high
