"""Sparse gradients of tables that are small beside what is looked up."""

from pathlib import Path

import pytest

from bottleneck.advice.sparse_gradients import sparse_gradients
from bottleneck.schema.device import Device
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of
from tests.analysis.frames import CPU
from tests.builders import complete, op, step


def case(folder: Path, table: int, looked_up: int, optimizer_us: float, device: Device | None = CPU) -> Evidence:
    """Two steps of 10 ms: a lookup, its gradient of as many rows, and an optimizer that sorts them."""
    events = []
    for number in range(2):
        at = 10_000.0 * number
        inner = at + 5100
        events += [
            step(number, at, 9_990),
            op("aten::embedding", at + 10, 500, dims=[[table, 64], [looked_up], [], [], []]),
            op("aten::embedding_sparse_backward", at + 600, 100, dims=[[looked_up, 64], [looked_up], []]),
            op("aten::cat", at + 800, 1000, dims=[[looked_up, 64]]),
            complete("Optimizer.step#SparseAdam.step", "user_annotation", inner - 50, optimizer_us + 100),
            op("aten::_coalesce", inner, optimizer_us / 2, dims=[[table, 64]]),
            op("aten::mul", inner + optimizer_us / 2 + 5, optimizer_us / 3, dims=[[table, 64], []]),
        ]
    return case_of(folder, events, device=device, unprofiled_us=10_000.0)


def test_a_small_table_is_cheaper_to_go_through_than_its_rows_are_to_sort(tmp_path: Path) -> None:
    """node2vec and word2vec with SparseAdam: dense gradients and Adam made them 1.53 and 1.27 to 1.48 times as fast."""
    draft = sparse_gradients(case(tmp_path, table=3000, looked_up=50_000, optimizer_us=4000))
    assert draft is not None and draft.gain_us is not None and draft.changes_results
    assert draft.evidence[0] == (
        "gradients of 50,000 rows are sorted per step; the largest table has 3,000 rows of 64 numbers"
    )
    bandwidth = CPU.bandwidth_bytes_per_s
    assert bandwidth is not None
    dense_us = (32 * 3000 * 64 + 12 * 50_000 * 64) / bandwidth * 1e6
    assert draft.gain_us.low == pytest.approx(4100 - dense_us / 0.7, abs=60)
    assert draft.gain_us.high == pytest.approx(4100 + 1000 - dense_us / 2, abs=60)


def test_a_large_table_is_left_sparse(tmp_path: Path) -> None:
    assert sparse_gradients(case(tmp_path, table=3_000_000, looked_up=5000, optimizer_us=4000)) is None


def test_an_optimizer_that_takes_little_is_left_alone(tmp_path: Path) -> None:
    assert sparse_gradients(case(tmp_path, table=3000, looked_up=5000, optimizer_us=100)) is None
