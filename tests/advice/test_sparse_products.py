"""Rule of products with sparse matrices that cost more than dense ones, or than other layouts."""

from dataclasses import replace
from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.sparse_products import edge_messages, sparse_product
from tests.advice.cases import program_line, two_steps
from tests.advice.programs import Call, on_gpu
from tests.builders import Event, op

MODEL = [program_line(14, 700, 250), op("aten::mm", 710, 200, dims=[[64, 64], [64, 64]])]


def product(size: int, marks: tuple[str, ...] = ("_nnz", "_indices", "_values"), dur: float = 500) -> list[Event]:
    """A product of a square matrix and 64 columns at train.py:22, which reads the parts of a sparse one."""
    dims = [[size, size], [size, 64]]
    return [
        program_line(22, 100, dur + 20),
        op("aten::matmul", 110, dur, dims=dims),
        op("aten::mm", 111, dur - 2, dims=dims),
        op("aten::addmm", 112, dur - 4, dims=[[size, 64], *dims, [], []]),
        *(op(f"aten::{name}", 113 + at, 0.5, dims=dims[:1]) for at, name in enumerate(marks)),
    ]


def test_a_sparse_product_that_a_dense_one_beats_is_to_be_dense(tmp_path: Path) -> None:
    evidence = two_steps(tmp_path, [*product(128), *MODEL])
    draft = sparse_product(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "Keep the sparse (COO) matrix dense that is multiplied at train.py:22" in draft.advice
    assert "1 product per step" in draft.evidence[0] and "128x128 by 128x64" in draft.evidence[0]
    assert 0 < draft.gain_us.low < draft.gain_us.high < 520
    assert advise(evidence)[0].slug == "sparse-product"


def test_coordinates_of_a_large_matrix_are_to_be_compressed(tmp_path: Path) -> None:
    draft = sparse_product(two_steps(tmp_path / "coo", [*product(4096), *MODEL]))
    assert draft is not None and draft.gain_us is not None and "compressed rows" in draft.advice
    assert "dense" not in draft.title and draft.gain_us.high == pytest.approx(0.86 * 500, rel=0.05)
    # In compressed rows there is nothing better for it.
    compressed = product(4096, ("_nnz", "crow_indices", "col_indices"))
    assert sparse_product(two_steps(tmp_path / "csr", [*compressed, *MODEL])) is None


def test_dense_and_short_products_are_left_alone(tmp_path: Path) -> None:
    assert sparse_product(two_steps(tmp_path / "dense", [*product(128, ()), *MODEL])) is None
    assert sparse_product(two_steps(tmp_path / "short", [*product(128, dur=30), *MODEL])) is None
    # Parts of a sparse tensor that are read outside of a product.
    read = [program_line(22, 100, 520), op("aten::_indices", 110, 500, dims=[[128, 128]])]
    assert sparse_product(two_steps(tmp_path / "read", [*read, *MODEL])) is None


NODES, EDGES, WIDTH = 10_000, 100_000, 64


def message(edges: int = EDGES, *, weighted: bool = True, sizes: bool = True) -> list[Call]:
    """Features of senders, times the weights of edges, summed at receivers; what takes 1 ms is the rest of a layer."""
    x, rows = [NODES, WIDTH], [edges, WIDTH]
    calls = [
        Call("aten::mm", 1000, [x, [WIDTH, WIDTH]], "sgemm"),
        Call("aten::index_select", 400, [x, [], [edges]], "gather_kernel"),
        Call("aten::mul", 600, [[edges, 1], rows], "mul_kernel"),
        Call("aten::new_zeros", 20, [rows, []], "fill_kernel"),
        Call("aten::scatter_add_", 700, [x, [], rows, rows], "scatter_kernel"),
    ]
    calls = [call for call in calls if weighted or call.name != "aten::mul"]
    return calls if sizes else [replace(call, dims=None) for call in calls]


@pytest.mark.parametrize("sizes", [True, False])
def test_messages_along_edges_are_one_sparse_product(tmp_path: Path, sizes: bool) -> None:
    """A graph network spent 77 % of its step so, and was advised to record sizes."""
    draft = edge_messages(on_gpu(tmp_path, message(sizes=sizes) * 3))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.low == pytest.approx(3 * (600 + 700 - 400), rel=0.01)
    assert draft.gain_us.high == pytest.approx(3 * (600 + 700 + 200), rel=0.01)
    assert draft.evidence[0].startswith("3 times per step") and "torch.sparse.mm" in (draft.code or "")
    assert draft.confidence == ("medium" if sizes else "low")


def test_other_lookups_and_sums_are_no_messages(tmp_path: Path) -> None:
    assert edge_messages(on_gpu(tmp_path / "once", message())) is None
    assert edge_messages(on_gpu(tmp_path / "unweighted", message(weighted=False) * 3)) is None
    assert edge_messages(on_gpu(tmp_path / "few edges", message(edges=NODES) * 3)) is None
    apart = [call for three in zip(*[message()] * 3, strict=True) for call in three]
    assert edge_messages(on_gpu(tmp_path / "other order", apart)) is None
