"""FBGEMM's lookups and ragged features: intervals that hold whatever the indices are."""

import json

import pytest

from bottleneck.cost.call import Cost, OpCall, Scalar, Tensor, Unmodelled
from bottleneck.cost.recommendation import CLASSIC, FORMULAS
from tests.builders import op
from tests.cost.calls import LONG, moved, tensor
from tests.cost.test_shape_inference import call_of, completed

ADAGRAD = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
NODE = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"


def lookup(*, tables: int = 4, batch: int = 8, count: int = 1000, rows: int = 100, width: int = 16, total: str = ""):
    """The arguments of a pooled lookup in tables of equal width, as FBGEMM 0.1 records them."""
    arguments: list[Tensor | Scalar | None] = [Scalar()] * 29
    places = {
        0: tensor(0),
        1: tensor(rows * width),
        2: tensor(0),
        3: tensor(0, 0),
        CLASSIC.d_offsets: tensor(tables + 1, dtype="int"),
        CLASSIC.total_width: Scalar(total),
        CLASSIC.indices: tensor(count, dtype=LONG),
        CLASSIC.offsets: tensor(batch * tables + 1, dtype=LONG),
        20: tensor(rows),
    }
    for position, argument in places.items():
        arguments[position] = argument
    return arguments


def cost_of(name: str, *arguments: Tensor | Scalar | str | None) -> Cost:
    parsed = tuple(Scalar(each) if isinstance(each, str) else each for each in arguments)
    return FORMULAS[name](OpCall(name, parsed))


def test_a_lookup_reads_its_indices_and_writes_a_row_per_bag_at_least():
    fixed = 1000 * 8 + 33 * 8
    assert cost_of(ADAGRAD, *lookup(total="64")).bytes_low == fixed + 32 * 16 * 4
    assert cost_of(ADAGRAD, *lookup(total="64")).bytes_high == fixed + 32 * 64 + 1000 * (64 + 8)


def test_without_its_total_width_a_lookup_takes_the_mean_row_and_trusts_the_narrowest():
    cost = cost_of(ADAGRAD, *lookup())
    assert cost.bytes_low == 1000 * 8 + 33 * 8 + 32 * 4 * 4
    assert cost.bytes_high == cost_of(ADAGRAD, *lookup(total="64")).bytes_high


def test_a_lookup_of_unknown_width_is_unmodelled():
    arguments = lookup()
    arguments[20] = None
    with pytest.raises(Unmodelled, match="widths"):
        cost_of(ADAGRAD, *arguments)


@pytest.mark.parametrize("factor", [2, 5])
def test_a_lookup_scales_with_its_indices(factor):
    one, many = (cost_of(ADAGRAD, *lookup(total="64", count=count)) for count in (1000, factor * 1000))
    assert many.bytes_high - one.bytes_high == (factor - 1) * 1000 * (8 + 64 + 8)
    assert many.bytes_low - one.bytes_low == (factor - 1) * 8000


def test_the_gradient_of_a_lookup_needs_the_forward_call():
    with pytest.raises(Unmodelled, match="indices"):
        cost_of(NODE, tensor(8, 64))
    cost = cost_of(NODE, tensor(8, 64), *lookup())
    assert cost.bytes_low == 8000 + 16 * 4
    sorting, gradients, rows = 1000 * 4 * 2 * 12, 1000 * 64, 4 * 100 * 16 * 4
    assert cost.bytes_high == cost.bytes_low + 8 * 64 * 4 + sorting + gradients + rows + 33 * 8


@pytest.mark.parametrize("name", ["fbgemm::permute_pooled_embs_auto_grad", "fbgemm::recat_embedding_grad_output"])
def test_reordered_columns_are_read_and_written_once(name):
    assert moved(cost_of(name, tensor(16, 64), tensor(4, dtype=LONG))) == (2 * 4096 + 32, 2 * 4096 + 32)


def test_bounds_are_read_and_written_at_worst():
    cost = cost_of(
        "fbgemm::bounds_check_indices", tensor(4, dtype=LONG), tensor(100, dtype=LONG), tensor(9, dtype=LONG)
    )
    assert moved(cost) == (8 * 113, 8 * 113 + 8 * 109)


def test_features_may_be_chosen_more_than_once():
    def permuted(chosen: int) -> Cost:
        arguments = (tensor(chosen, dtype="int"), tensor(10, 8, dtype="int"), tensor(500, dtype="int"))
        return cost_of("fbgemm::permute_sparse_features", *arguments)

    once, twice = permuted(10), permuted(20)
    assert once.bytes_low == 10 * 4 + 80 * 4
    assert once.bytes_high == once.bytes_low + 80 * 4 + 2 * 8 * (80 + 80) + 2 * 2000
    assert twice.bytes_high - twice.bytes_low - 2 * 8 * 80 == once.bytes_high - once.bytes_low + 2000


def test_running_sums_are_one_longer_than_their_terms():
    assert moved(cost_of("fbgemm::asynchronous_complete_cumsum", tensor(99, dtype="int"))) == (199 * 4, 199 * 4)


def test_segments_are_summed_once():
    cost = cost_of("fbgemm::segment_sum_csr", "1", tensor(5, dtype=LONG), tensor(100))
    assert moved(cost) == (5 * 8 + 400 + 4 * 4, 5 * 8 + 400 + 4 * 4)


class TestForwardCalls:
    """The latest fitting lookup before a gradient tells what it looked up."""

    @staticmethod
    def events(gradient: list[int], start: float = 1000.0):
        arguments = lookup(), lookup(tables=5, count=70, width=4)
        dims = [[list(each.shape) if isinstance(each, Tensor) else [] for each in call] for call in arguments]
        types = [[each.dtype if isinstance(each, Tensor) else "Scalar" for each in call] for call in arguments]
        forward = [op(ADAGRAD, 20.0 * at, 10, dims=dims[at], types=types[at], concrete=[]) for at in (0, 1)]
        return [*forward, op(NODE, start, 10, dims=[gradient])]

    @pytest.mark.parametrize(("gradient", "count"), [([8, 64], 70), ([8, 17], 1000), ([8, 5000], 70)])
    def test_tables_must_add_up_to_the_width(self, tmp_path, gradient, count):
        linked = completed(tmp_path, *self.events(gradient))
        call = call_of(linked, NODE)
        assert json.loads(call["dims"])[1 + CLASSIC.indices] == [count]
        assert call["evidence"] == ("sizes from its forward op",)

    @pytest.mark.parametrize(
        ("gradient", "start"), [([9, 64], 1000.0), ([8, 15], 1000.0), ([8, 64], -50.0), ([8], 1000.0)]
    )
    def test_another_batch_a_narrower_result_or_a_later_call_is_no_forward(self, tmp_path, gradient, start):
        assert call_of(completed(tmp_path, *self.events(gradient, start)), NODE)["evidence"] is None
