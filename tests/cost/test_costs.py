"""COSTS of whole tables: a cost or a reason for every signature, whatever the trace holds."""

import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost import COMPOSITES, FORMULAS, compute_costs, merge_formulas
from bottleneck.schema.tables import COSTS, SIGNATURES

MM = ("aten::mm", "[[64, 32], [32, 16]]", '["float", "float"]', None, '["", ""]')


def costs_of(*rows: tuple[str, str | None, str | None, str | None, str | None]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows), columns=list(SIGNATURES.columns), dtype=object)
    return COSTS.check(compute_costs(SIGNATURES.check(frame)))


def test_a_signature_with_a_formula_has_a_cost_and_no_reason():
    row = costs_of(MM).iloc[0]
    assert (row["family"], row["matrix_flops"], row["math_dtype"]) == ("matmul", 2 * 64 * 32 * 16, "fp32")
    assert row["reason"] is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("my::op", "[[2]]", '["float"]', None, None), "no formula for my::op"),
        (("aten::matmul", "[[2]]", '["float"]', None, None), "aten::matmul only calls other ops"),
        (("aten::mm", None, None, None, None), "shapes were not recorded"),
        (("aten::mm", "[[2, 2], [2, 2]]", "[]", None, None), "dtypes were not recorded"),
        (("aten::mm", "[[2, 2], [2, 2]]", None, None, None), "dtypes were not recorded"),
        (("aten::mm", "[[2, 3], [4, 5]]", '["float", "float"]', None, None), "inner sizes of the product differ"),
    ],
)
def test_an_unmodelled_signature_has_a_reason(row, reason):
    result = costs_of(row).iloc[0]
    assert result["reason"].words == reason
    assert result.drop("reason").isna().all()


def test_rows_stay_in_the_order_of_the_signatures():
    frame = costs_of(("my::op", None, None, None, None), MM, ("aten::mm", None, None, None, None), MM)
    assert frame["reason"].isna().tolist() == [False, True, False, True]


def test_no_signatures_give_an_empty_table():
    assert len(costs_of()) == 0


def test_no_op_has_a_formula_and_is_a_composite():
    assert not FORMULAS.keys() & COMPOSITES


def test_two_formulas_for_one_op_are_refused():
    with pytest.raises(AssertionError, match="aten::mm"):
        merge_formulas([{"aten::mm": FORMULAS["aten::mm"]}, {"aten::mm": FORMULAS["aten::bmm"]}])


HOSTILE_SHAPES = [
    "[[-1, 4], [4, 4]]",
    "[[1e308, 4], [4, 4]]",
    "[[9223372036854775807, 9223372036854775807], [9223372036854775807, 9223372036854775807]]",
    f"[[1{'0' * 4000}, 4], [4, 4]]",
    f"[{json.dumps([9223372036854775807] * 40)}, {json.dumps([9223372036854775807] * 40)}]",
    "[[true, 4], [4, 4]]",
    "[[null, 4], [4, 4]]",
    '[["4", 4], [4, 4]]',
    "[[[[[[4]]]], 4], [4, 4]]",
    "[[], []]",
    "[]",
    "{}",
    "3",
    "null",
    '"[[4, 4]]"',
    "[[4, 4], [4, 4]",
    "[" * 3000 + "]" * 3000,
    "[[0, 0], [0, 0], [0, 0], [0, 0]]",
    "[[NaN, 4], [4, 4]]",
]


@pytest.mark.parametrize("dims", HOSTILE_SHAPES)
def test_hostile_shapes_give_every_op_a_cost_or_a_reason(dims):
    types = '["float", "float", "float", {"a": 1}, ["float"], null, "TensorList", "c10::Half"]'
    frame = costs_of(*((name, dims, types, dims, dims) for name in FORMULAS))
    amounts = frame[["matrix_flops", "vector_flops", "special_ops", "bytes_low", "bytes_high"]]
    without = frame["reason"].notna()
    assert amounts[without].isna().all(axis=None)
    assert (amounts[~without] >= 0).all(axis=None) and (amounts[~without] < float("inf")).all(axis=None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
texts = json_values.map(json.dumps) | st.text(max_size=20)


@given(name=st.sampled_from(sorted(FORMULAS)), dims=texts, types=texts, strides=texts, concrete=texts)
def test_junk_never_raises(name, dims, types, strides, concrete):
    row = costs_of((name, dims, types, strides, concrete)).iloc[0]
    assert (row["reason"] is None) == pd.notna(row["family"])


shapes = st.lists(st.lists(st.integers(0, 64), max_size=5), min_size=1, max_size=9)


@given(name=st.sampled_from(sorted(FORMULAS)), dims=shapes, flag=st.sampled_from(["True", "[1, 1]", "2", ""]))
def test_the_low_end_of_the_bytes_never_passes_the_high_end(name, dims, flag):
    types = json.dumps(["float" if shape else "Scalar" for shape in dims])
    concrete = json.dumps(["" if shape else flag for shape in dims])
    row = costs_of((name, json.dumps(dims), types, None, concrete)).iloc[0]
    assert row["reason"] is not None or row["bytes_low"] <= row["bytes_high"]
