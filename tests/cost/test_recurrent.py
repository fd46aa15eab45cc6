"""Costs of recurrent layers."""

import pytest

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.recurrent import FORMULAS
from tests.cost.calls import HALF, cost_of, moved, tensor, tensors

STEPS, BATCH, WIDTH, HIDDEN = 32, 8, 64, 128
MATRICES = 4 * HIDDEN * (WIDTH + HIDDEN)
X, STATE = tensor(STEPS, BATCH, WIDTH), tensor(BATCH, HIDDEN)
WEIGHTS = (tensor(4 * HIDDEN, WIDTH), tensor(4 * HIDDEN, HIDDEN), tensor(4 * HIDDEN), tensor(4 * HIDDEN))


def test_every_weight_meets_every_position_once():
    cost = cost_of(FORMULAS, "mkldnn_rnn_layer", X, *WEIGHTS, STATE, STATE, "False")
    assert cost.matrix_flops == 2 * STEPS * BATCH * MATRICES
    assert cost.bytes_low == 4 * (X.numel + MATRICES + STEPS * BATCH * HIDDEN)
    assert cost.bytes_high > cost.bytes_low + 4 * (STEPS - 1) * MATRICES


def test_backward_costs_two_products():
    forward = cost_of(FORMULAS, "mkldnn_rnn_layer", X, *WEIGHTS, STATE, STATE, "False")
    backward = cost_of(FORMULAS, "mkldnn_rnn_layer_backward", X, *WEIGHTS, STATE, STATE)
    assert backward.matrix_flops == 2 * forward.matrix_flops


def test_a_list_of_weights_and_their_buffer_cost_the_same():
    shapes = tensors((4 * HIDDEN, WIDTH), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,), (4 * HIDDEN,))
    listed = cost_of(FORMULAS, "_cudnn_rnn", X, shapes, "4", None, STATE)
    packed = cost_of(FORMULAS, "_cudnn_rnn", X, tensors(), "4", tensor(MATRICES), STATE)
    assert listed.matrix_flops == packed.matrix_flops == 2 * STEPS * BATCH * MATRICES


def test_half_precision_picks_its_own_peak():
    x, state = tensor(STEPS, BATCH, WIDTH, dtype=HALF), tensor(BATCH, HIDDEN, dtype=HALF)
    assert cost_of(FORMULAS, "_cudnn_rnn", x, tensors((4, 4)), "4", None, state).math_dtype == "fp16"


def test_a_fused_cell_reads_its_gates_and_writes_its_state():
    gates, state = tensor(BATCH, 4 * HIDDEN), tensor(BATCH, HIDDEN)
    cost = cost_of(FORMULAS, "_thnn_fused_lstm_cell", gates, gates, state, None, None)
    assert moved(cost) == (4 * BATCH * HIDDEN * (4 + 4 + 1 + 1 + 4),) * 2


def test_weights_that_were_not_recorded_are_unmodelled():
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, "_cudnn_rnn", X, tensors(), "4", None, STATE)
