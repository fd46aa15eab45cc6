"""Recorded shapes are foreign data: for any of them the result is a cost or a reason."""

import json

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.cost import FORMULAS, compute_costs
from bottleneck.schema.tables import COSTS

pytestmark = pytest.mark.statistics

sizes = st.one_of(st.integers(0, 9), st.integers(0, 2**63), st.sampled_from([0, 1, 2**31]))
shapes = st.lists(sizes, max_size=5)
dims = st.one_of(shapes, st.lists(shapes, max_size=3))
types = st.sampled_from(
    ["float", "c10::Half", "long int", "bool", "c10::complex<float>", "Scalar", "TensorList", "", "?"]
)
scalars = st.one_of(
    st.sampled_from(["", "True", "False", "0", "1", "-1", "[]", "[0]", "[-1, 0]", "[3, 3]", "1e400", "nan", "[1e9]"]),
    st.integers(-(2**70), 2**70).map(str),
    st.lists(st.integers(-9, 9), max_size=4).map(str),
)
arguments = st.lists(st.tuples(dims, types, dims, scalars), max_size=10)


@settings(max_examples=settings.default.max_examples * 2, deadline=None)
@given(name=st.sampled_from(sorted(FORMULAS)), made=arguments)
def test_every_formula_survives_every_signature(name, made):
    columns = [json.dumps(list(column)) for column in zip(*made, strict=True)] or ["[]"] * 4
    frame = pd.DataFrame([[name, *columns]], columns=["name", "dims", "types", "strides", "concrete"])
    costs = COSTS.check(compute_costs(frame))
    row = costs.iloc[0]
    if row["reason"] is None:
        assert 0 <= row["bytes_low"] <= row["bytes_high"], (name, made)
        assert min(row["matrix_flops"], row["vector_flops"], row["special_ops"]) >= 0
    else:
        assert pd.isna(row["bytes_low"])
