"""Ops without work of their own cost nothing, whatever their record; ops with work are not among them."""

import pytest

from bottleneck.cost.movement import COMPOSITES, dispatch
from bottleneck.cost.movement import VIEWS as FORMULAS
from bottleneck.cost.pointwise import FORMULAS as POINTWISE
from tests.cost.calls import cost_of, moved, tensor


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("view", "view"),
        ("reshape", "view"),
        ("to", "view"),
        ("detach", "view"),
        ("as_strided_", "view"),
        ("empty_strided", "allocation"),
        ("resize_", "allocation"),
        ("item", "sync"),
        ("_local_scalar_dense", "sync"),
    ],
)
@pytest.mark.parametrize("arguments", [(), (tensor(1000), "[10, 100]")])
def test_ops_that_move_nothing_cost_nothing(name, family, arguments):
    cost = cost_of(FORMULAS, name, *arguments)
    assert (cost.family, moved(cost), cost.vector_flops) == (family, (0, 0), 0)


@pytest.mark.parametrize(
    "name",
    [
        "autograd::engine::evaluate_function: AddmmBackward0",
        "AddmmBackward0",
        "torch::autograd::AccumulateGrad",
        "autograd::engine::evaluate_function: torch::autograd::CopySlices",
        "Optimizer.step#AdamW.step",
    ],
)
def test_nodes_of_the_autograd_graph_only_call_ops(name):
    cost = dispatch(name)
    assert cost is not None
    assert (cost.family, moved(cost)) == ("dispatch", (0, 0))


@pytest.mark.parametrize(
    "name",
    [
        "CompiledFunctionBackward",
        "torch::autograd::CppNode<SplitLookupFunction>",
        "MyFunctionBackward",
        "aten::mul",
        "triton_poi_fused_add_0",
    ],
)
def test_nodes_of_user_code_may_launch_kernels_themselves(name):
    assert dispatch(name) is None


def test_no_op_is_a_composite_and_has_a_formula():
    assert not COMPOSITES & (FORMULAS.keys() | POINTWISE.keys())
