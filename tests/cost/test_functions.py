"""Functions of extensions: what each moves, by hand, and what a trace records of them."""

import json

import pytest

from bottleneck.cost import compute_cost, op_family
from bottleneck.cost.call import Cost, OpCall, Tensor, Unmodelled
from bottleneck.cost.functions import FORMULAS, NEED_OPERANDS
from bottleneck.schema.reasons import Reason
from tests.cost.calls import BF16, LONG, moved, tensor

ROWS, WIDTH = 32, 128
FLAT = {name: formula for table in FORMULAS.values() for name, formula in table.items()}


def half(*shape: int) -> Tensor:
    return tensor(*shape, dtype=BF16)


def cost_of(name: str, *arguments: Tensor) -> Cost:
    return FLAT[name](OpCall(name, arguments))


X = half(ROWS, WIDTH)
SIZE = ROWS * WIDTH * 2


@pytest.mark.parametrize(
    ("name", "arguments", "low", "high"),
    [
        ("ScaledSoftmax", (half(2, 4, 8, 8),), 2 * 1024, 2 * 1024),
        ("ScaledMaskedSoftmax", (half(2, 4, 8, 8), tensor(2, 1, 8, 8, dtype="bool")), 2 * 1024 + 128, 2 * 1024 + 128),
        # 36 of 64 scores lie on and below the diagonal.
        ("ScaledUpperTriangMaskedSoftmax", (half(8, 8, 8),), 1024 * (1 + 36 / 64), 2 * 1024),
        ("ScaledUpperTriangMaskedSoftmaxBackward", (half(8, 8, 8),), 1024 * (1 + 2 * 36 / 64), 3 * 1024),
        ("ScaledMaskedSoftmaxBackward", (half(8, 8, 8),), 3 * 1024, 3 * 1024),
        ("FusedLayerNormAffineFunction", (X, half(WIDTH), half(WIDTH)), *[2 * SIZE + 4 * WIDTH + 8 * ROWS] * 2),
        ("LigerRMSNormFunction", (X, half(WIDTH)), *[2 * SIZE + 2 * WIDTH + 4 * ROWS] * 2),
        ("LigerRMSNormFunctionBackward", (X,), 3 * SIZE, 5 * SIZE),
        ("LigerSiLUMulFunction", (X, X), 3 * SIZE, 3 * SIZE),
        ("LigerSiLUMulFunctionBackward", (X,), 5 * SIZE, 5 * SIZE),
        ("LigerCrossEntropyFunction", (X, tensor(ROWS, dtype=LONG)), 2 * SIZE + 8 * ROWS, 3 * SIZE + 8 * ROWS),
        ("LigerRopeFunction", (X, X, half(4, 8), half(4, 8)), *[4 * SIZE + 2 * 64] * 2),
        ("CausalConv1dFn", (half(2, 16, 128), half(16, 4), half(16)), *[2 * 8192 + 128 + 32] * 2),
    ],
)
def test_what_a_function_moves(name, arguments, low, high):
    assert moved(cost_of(name, *arguments)) == (low, high)


def test_a_softmax_below_the_diagonal_computes_what_it_sees():
    cost = cost_of("ScaledUpperTriangMaskedSoftmax", half(8, 8, 8))
    assert (cost.vector_flops, cost.special_ops) == (5 * 8 * 36, 8 * 36)
    # Aligned to the last key: 2 queries of 8 keys see 7 and 8.
    assert cost_of("ScaledAlignedCausalMaskedSoftmax", half(3, 2, 8)).special_ops == 3 * 15


def scan(with_gate: bool) -> tuple[Tensor, ...]:
    """u, delta [2, 16, 100], A [16, 4], B and C [2, 1, 4, 100], D [16], and the gate."""
    wide, state = tensor(2, 16, 100), tensor(2, 1, 4, 100)
    return (wide, wide, tensor(16, 4), state, state, tensor(16), *([wide] if with_gate else []))


def test_a_selective_scan_takes_nine_flops_per_state():
    cost = cost_of("SelectiveScanFn", *scan(False))
    assert (cost.vector_flops, cost.special_ops) == (9 * 3200 * 4, 3200 * 4)
    assert cost.bytes_low == 4 * (3 * 3200 + 64 + 2 * 800 + 16)
    assert cost.bytes_high - cost.bytes_low == 2 * 64 * 2 * 4
    assert cost_of("SelectiveScanFn", *scan(True)).bytes_low - cost.bytes_low == 4 * 3200


def test_its_backward_pass_needs_the_operands_of_the_forward_one():
    dy = tensor(2, 16, 100)
    cost = cost_of("SelectiveScanFnBackward", dy, *scan(False))
    assert cost.vector_flops == 18 * 3200 * 4
    assert cost.bytes_low == 4 * (3200 + 2 * (2 * 3200 + 64 + 2 * 800 + 16))
    with pytest.raises(Unmodelled, match="argument 1"):
        cost_of("SelectiveScanFnBackward", dy)
    assert "SelectiveScanFnBackward" in NEED_OPERANDS


def test_sizes_that_do_not_fit_are_a_reason():
    with pytest.raises(Unmodelled, match="do not fit"):
        cost_of("SelectiveScanFn", tensor(2, 16), tensor(2, 16), tensor(16, 4))
    with pytest.raises(Unmodelled, match="fit"):
        cost_of("ScaledUpperTriangMaskedSoftmax", tensor(4))


@pytest.mark.parametrize("name", sorted(FLAT))
def test_a_function_is_known_by_the_name_of_its_class(name):
    assert op_family(name) in FORMULAS
    x = json.dumps([[2, 4, 8, 8]])
    assert compute_cost(f"my.{name}", x, json.dumps([BF16]), None, None) == Reason("no_formula", (f"my.{name}",))
