"""Attribution of kernels to ops that work, not to ops that only delegate; every cost is attributed exactly once."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.attribution import attribute
from bottleneck.schema.reasons import Reason
from bottleneck.schema.tables import ATTRIBUTION

FAMILIES = ("matmul", "copy", "view", "attention", "pointwise", "softmax", "nothing")
FREE = ("view", "nothing")


def costs_table() -> pd.DataFrame:
    """One signature per family; views and 'nothing' have zero cost, the last row is unmodelled."""
    amount = [0.0 if family in FREE else 1.0 for family in FAMILIES]
    columns = {name: [*amount, np.nan] for name in ("matrix_flops", "vector_flops", "special_ops")}
    sizes = {name: [*amount, np.nan] for name in ("bytes_low", "bytes_high")}
    reasons = [*[None] * len(FAMILIES), Reason("no_shapes")]
    family = pd.Categorical([*FAMILIES, None])
    return pd.DataFrame({**columns, **sizes, "family": family, "reason": pd.Series(reasons, dtype="object")})


def ops_table(*ops: tuple[int | None, str | None]) -> pd.DataFrame:
    """Ops as (parent, family); a family of null is an unmodelled op."""
    signatures = [len(FAMILIES) if family is None else FAMILIES.index(family) for _, family in ops]
    return pd.DataFrame(
        {
            "parent": pd.array([parent for parent, _ in ops], dtype="Int32"),
            "signature": pd.array(signatures, dtype="Int32"),
            "name": pd.Categorical([str(family) for _, family in ops]),
            "self_us": np.ones(len(ops)),
            "dur_us": np.ones(len(ops)) * 3.0,
        }
    )


def kernels_table(ops: Sequence[int | None], **columns: Sequence[object]) -> pd.DataFrame:
    """One compute kernel of 1 us for each op, unless ``columns`` has other values."""
    count = len(ops)
    table = {
        "op": pd.array(list(ops), dtype="Int32"),
        "kind": ["compute"] * count,
        "family": ["gemm"] * count,
        "dur_us": [1.0] * count,
        "auxiliary": [False] * count,
        "replayed": [False] * count,
        **columns,
    }
    frame = pd.DataFrame(table)
    flags = dict.fromkeys(("auxiliary", "replayed"), "bool")
    return frame.astype({"kind": "category", "family": "category", "dur_us": "float64", **flags})


def attributed_ops(ops: pd.DataFrame, kernels: pd.DataFrame) -> list[int | None]:
    attribution = ATTRIBUTION.check(attribute(ops, kernels, costs_table()))
    return [None if pd.isna(op) else int(op) for op in attribution["op"]]


LINEAR = ops_table((None, "matmul"), (0, "view"), (0, "matmul"), (2, "copy"))


def test_a_kernel_is_attributed_to_the_op_that_launched_it_and_not_by_the_wrapper_around_it():
    assert attributed_ops(LINEAR, kernels_table([2])) == [2]


def test_a_kernel_of_an_unmodelled_op_is_attributed_to_the_nearest_worker_above():
    ops = ops_table((None, "pointwise"), (0, None), (1, None))
    assert attributed_ops(ops, kernels_table([2])) == [0]


def test_a_copy_inside_a_product_has_its_own_kernel():
    assert attributed_ops(LINEAR, kernels_table([3, 2])) == [3, 2]


def test_a_product_that_copies_its_bias_first_is_still_a_worker():
    ops = ops_table((None, "matmul"), (0, "copy"))
    assert attributed_ops(ops, kernels_table([0, 1])) == [0, 1]


@pytest.mark.parametrize("free", [None, *FREE])
def test_an_op_around_nothing_but_free_ops_keeps_its_work(free):
    ops = ops_table((None, "matmul"), (0, free))
    assert attributed_ops(ops, kernels_table([1])) == [0]


@pytest.mark.parametrize(
    ("outer", "inner", "delegates"),
    [
        ("copy", "copy", True),
        ("attention", "matmul", True),
        ("attention", "softmax", True),
        ("matmul", "attention", False),
        ("attention", "copy", False),
        ("pointwise", "copy", False),
    ],
)
def test_work_is_handed_down_within_a_family_and_along_declared_pairs(outer, inner, delegates):
    ops = ops_table((None, outer), (0, None), (1, inner))
    assert attributed_ops(ops, kernels_table([0])) == [None if delegates else 0]


def test_a_chain_of_wrappers_is_attributed_to_the_innermost_only():
    ops = ops_table((None, "copy"), (0, "copy"), (1, "copy"))
    assert attributed_ops(ops, kernels_table([2])) == [2]
    assert attributed_ops(ops, kernels_table([0, 1, 2], family=["host"] * 3)) == [None, None, 2]


def test_a_name_may_hand_its_work_down_where_its_family_does_not():
    ops = ops_table((None, "copy"), (0, "pointwise"))
    renamed = ops.assign(name=pd.Categorical(["aten::_fused_rms_norm", "aten::mul"]))
    assert attributed_ops(ops, kernels_table([0])) == [0]
    assert attributed_ops(renamed, kernels_table([0])) == [None]


def test_a_neighbour_is_not_a_wrapper():
    ops = ops_table((None, "copy"), (None, "copy"))
    assert attributed_ops(ops, kernels_table([0, 1])) == [0, 1]


@pytest.mark.parametrize("kind", ["copy", "fill", "collective"])
def test_transfers_and_collectives_are_judged_by_their_own_bytes(kind):
    ops = ops_table((None, "copy"))
    assert attributed_ops(ops, kernels_table([0], kind=[kind])) == [None]


def test_a_replayed_kernel_owes_nothing_to_the_op_that_launched_its_graph():
    assert attributed_ops(ops_table((None, "matmul")), kernels_table([0], replayed=[True])) == [None]


def test_a_kernel_without_an_op_is_attributed_to_none():
    assert attributed_ops(ops_table((None, "matmul")), kernels_table([None])) == [None]


def test_on_a_cpu_an_op_without_work_of_its_own_has_no_kernel():
    ops = ops_table((None, "pointwise"), (0, None), (0, "view"))
    assert attributed_ops(ops, kernels_table([0, 1, 2], family=["host"] * 3)) == [0, None, None]


def test_kernels_of_one_op_share_its_cost_by_duration_and_auxiliary_ones_take_none():
    kernels = kernels_table([0, 0, 0], dur_us=[3.0, 1.0, 4.0], auxiliary=[False, False, True])
    attribution = attribute(ops_table((None, "matmul")), kernels, costs_table())
    assert attribution["share"].tolist() == [0.75, 0.25, 0.0]
    assert attribution["group"].nunique() == 1


def test_auxiliary_kernels_carry_the_cost_when_an_op_has_no_others():
    kernels = kernels_table([0, 0], dur_us=[3.0, 1.0], auxiliary=[True, True])
    assert attribute(ops_table((None, "matmul")), kernels, costs_table())["share"].tolist() == [0.75, 0.25]


def test_kernels_too_short_to_measure_share_equally():
    kernels = kernels_table([0, 0], dur_us=[0.0, 0.0])
    assert attribute(ops_table((None, "matmul")), kernels, costs_table())["share"].tolist() == [0.5, 0.5]


def test_every_unattributed_kernel_is_a_group_of_its_own():
    attribution = attribute(ops_table((None, None), (None, "copy")), kernels_table([0, None, 1, 1]), costs_table())
    assert attribution["share"].isna().tolist() == [True, True, False, False]
    assert attribution["group"].nunique() == 3
    assert attribution["group"].tolist()[2:] == [1, 1]


def dispatching(
    *ops: tuple[int | None, str | None], names: Sequence[str] = (), **columns: Sequence[float]
) -> list[bool]:
    table = ops_table(*ops).assign(**columns)
    table = table.assign(name=pd.Categorical(names)) if names else table
    kernels = kernels_table(list(range(len(ops))), family=["host"] * len(ops))
    return attribute(table, kernels, costs_table())["dispatches"].tolist()


def test_views_and_wrappers_dispatch_and_workers_do_not():
    assert dispatching((None, "matmul"), (0, "view"), (0, "matmul")) == [True, True, False]


def test_without_shapes_a_wrapper_is_known_by_a_nested_op_of_its_family():
    names = ["aten::linear", "aten::addmm", "aten::expand"]
    assert dispatching((None, None), (0, None), (1, None), names=names) == [True, False, True]


def test_without_shapes_a_convolution_that_only_allocates_works_itself():
    names = ["aten::mkldnn_convolution", "aten::empty"]
    assert dispatching((None, None), (0, None), names=names) == [False, True]


@pytest.mark.parametrize(("self_us", "expected"), [(1.0, True), (2.5, False)])
def test_an_unknown_op_dispatches_if_others_take_half_of_its_time(self_us, expected):
    names = ["mine::layer", "aten::mm"]
    flags = dispatching((None, None), (0, None), names=names, self_us=[self_us, 1.0], dur_us=[3.0, 1.0])
    assert flags == [expected, False]


def test_an_unknown_op_that_calls_nothing_known_does_not_dispatch():
    assert dispatching((None, None), (0, None), names=["mine::layer", "mine::inner"]) == [False, False]


def test_a_kernel_on_a_device_never_dispatches():
    attribution = attribute(ops_table((None, "view")), kernels_table([0]), costs_table())
    assert attribution["dispatches"].tolist() == [False]


@pytest.mark.parametrize(("name", "family"), [("aten::cudnn_convolution", "convolution"), ("aten::mm", "matmul")])
def test_a_product_kernel_of_a_convolution_is_a_convolution(name, family):
    ops = ops_table((None, None)).assign(name=pd.Categorical([name]))
    kernels = kernels_table([0, 0, None], family=["matmul", "elementwise", "matmul"])
    assert attribute(ops, kernels, costs_table())["family"].tolist() == [family, "elementwise", "matmul"]


def test_nothing_to_attribute_is_an_empty_table():
    assert len(attribute(ops_table(), kernels_table([]), costs_table())) == 0
    assert attributed_ops(ops_table(), kernels_table([None])) == [None]


def slow_attribution(parents: list[int | None], families: list[str | None], ops: list[int]) -> list[int | None]:
    """The rule of the contract, op by op."""
    pairs = {("attention", "matmul"), ("attention", "softmax")}
    works = [family is not None and family not in FREE for family in families]

    def below(row: int) -> list[int]:
        return [other for other in range(len(parents)) if row in ancestors(other)]

    def ancestors(row: int) -> list[int]:
        parent = parents[row]
        return [] if parent is None else [parent, *ancestors(parent)]

    def worker(row: int) -> bool:
        same = any(
            works[other] and (families[row] == families[other] or (families[row], families[other]) in pairs)
            for other in below(row)
        )
        return works[row] and not same

    return [next((row for row in [op, *ancestors(op)] if worker(row)), None) for op in ops]


@given(st.data())
def test_charging_whole_tables_agrees_with_the_rule_applied_op_by_op(data):
    count = data.draw(st.integers(1, 12))
    parents = [data.draw(st.none() | st.integers(0, row - 1)) if row else None for row in range(count)]
    families = [data.draw(st.sampled_from([None, *FAMILIES])) for _ in range(count)]
    kernels = kernels_table(list(range(count)), dur_us=[float(1 + row) for row in range(count)])
    ops = ops_table(*zip(parents, families, strict=True))
    expected = slow_attribution(parents, families, list(range(count)))
    assert attributed_ops(ops, kernels) == expected
    shares = attribute(ops, kernels, costs_table()).groupby("op")["share"].sum()
    assert shares.tolist() == pytest.approx([1.0] * len(shares))
