"""Costs of ops that go through an index: values that depend on the indices are intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.cost.call import Unmodelled
from bottleneck.cost.indexing import FORMULAS
from tests.cost.calls import BOOL, HALF, LONG, cost_of, moved, tensor

K = 100


def index(count: int = K):
    return tensor(count, dtype=LONG)


def test_embedding_reads_one_row_at_least_and_all_rows_at_most():
    cost = cost_of(FORMULAS, "embedding", tensor(5000, 64), index(), "-1", "False", "False")
    assert moved(cost) == (8 * K + 256 * K + 256, 8 * K + 256 * K + 256 * K)


def test_a_narrow_row_fills_a_sector():
    cost = cost_of(FORMULAS, "embedding", tensor(5000, 3, dtype=HALF), index(), "-1", "False", "False")
    assert cost.bytes_high == 8 * K + 6 * K + 32 * K


def test_selecting_columns_reads_scattered_elements():
    rows = cost_of(FORMULAS, "index_select", tensor(50, 64), "0", index())
    columns = cost_of(FORMULAS, "index_select", tensor(64, 50), "1", index())
    assert rows.bytes_high == 8 * K + 2 * 256 * K
    assert columns.bytes_high == 8 * K + 256 * K + 64 * 32 * K


def test_the_gradient_of_an_embedding_is_cleared_by_another_op():
    cost = cost_of(FORMULAS, "embedding_dense_backward", tensor(K, 64), index(), "5000", "-1", "False")
    assert cost.bytes_low == 256 * K + 8 * K + 256
    assert cost.bytes_high < 5000 * 256


def test_gather_writes_one_element_per_index_and_reads_a_sector_at_most():
    cost = cost_of(FORMULAS, "gather", tensor(10, 1000), "1", tensor(10, K, dtype=LONG), "False")
    assert moved(cost) == (12 * 10 * K, (12 + 32) * 10 * K)


def test_adding_at_an_index_reads_and_writes_and_storing_only_writes():
    one = cost_of(FORMULAS, "scatter_", tensor(10, 1000), "1", tensor(10, K, dtype=LONG), tensor(10, K))
    both = cost_of(FORMULAS, "scatter_add_", tensor(10, 1000), "1", tensor(10, K, dtype=LONG), tensor(10, K))
    assert moved(one) == (12 * 10 * K, (12 + 32) * 10 * K)
    assert moved(both) == (12 * 10 * K, (12 + 64) * 10 * K)


def test_a_scattered_constant_is_not_read():
    cost = cost_of(FORMULAS, "scatter_", tensor(10, 1000), "1", tensor(10, K, dtype=LONG), "1.")
    assert cost.bytes_low == 8 * 10 * K


def test_rows_added_at_an_index_are_read_and_written():
    cost = cost_of(FORMULAS, "index_add_", tensor(5000, 64), "0", index(), tensor(K, 64), "1")
    assert moved(cost) == (8 * K + 256 * K, 8 * K + 3 * 256 * K)


def test_index_put_costs_as_much_as_its_values():
    cost = cost_of(FORMULAS, "_index_put_impl_", tensor(5000), None, tensor(K), "False", "False")
    assert moved(cost) == (4 * K, 4 * K + 8 * K + 32 * K)
    summed = cost_of(FORMULAS, "_index_put_impl_", tensor(5000), None, tensor(K), "True", "False")
    assert summed.bytes_high > cost.bytes_high


def test_masks_are_read_and_the_rest_is_data():
    assert cost_of(FORMULAS, "masked_select", tensor(K), tensor(K, dtype=BOOL)).bytes_low == K


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("index", (tensor(10, 10), None)),
        ("index_put_", (tensor(10, 10), None, tensor(), "False")),
        ("index_select", (tensor(10, 10), "", index())),
        ("index_select", (tensor(10, 10), "2", index())),
        ("one_hot", (index(), "-1")),
    ],
)
def test_indices_that_were_not_recorded_are_unmodelled(name, arguments):
    with pytest.raises(Unmodelled):
        cost_of(FORMULAS, name, *arguments)


def test_a_vector_needs_no_recorded_dimension():
    assert cost_of(FORMULAS, "index_select", tensor(1000), "", index()).bytes_low == 8 * K + 4 * K + 4


@given(rows=st.integers(1, 500), width=st.integers(1, 80), count=st.integers(0, 300))
def test_low_bytes_never_exceed_high_bytes(rows, width, count):
    table, chosen, chosen_2d = tensor(rows, width), index(count), tensor(count, 1, dtype=LONG)
    calls = {
        "embedding": (table, chosen, "-1", "False", "False"),
        "index_select": (table, "0", chosen),
        "index_add_": (table, "0", chosen, tensor(count, width), "1"),
        "gather": (table, "0", chosen_2d, "False"),
        "scatter_add_": (table, "0", chosen_2d, tensor(count, 1)),
        "embedding_dense_backward": (tensor(count, width), chosen, str(rows), "-1", "False"),
        "_embedding_bag": (table, chosen, index(3), "False", "0", "False"),
    }
    for name, arguments in calls.items():
        cost = cost_of(FORMULAS, name, *arguments)
        assert 0 <= cost.bytes_low <= cost.bytes_high, name
