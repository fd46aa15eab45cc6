"""Counts and times per step that rules use, on events whose sums are known."""

from pathlib import Path

import numpy as np
import pytest

from bottleneck.advice import quantities
from tests.advice.cases import case_of, cpu_events, gpu_events, idle_row, with_ledger
from tests.builders import complete, op


def test_counts_and_medians_are_per_step_of_the_window(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=3, every_us=10))
    assert not case.is_host_only
    assert case.kernels_per_step == 20
    assert quantities.host_us_per_launch(case) == pytest.approx(10)
    assert quantities.op_calls_per_step(case, "aten::add", "aten::none") == 20


def test_the_host_times_of_tables_are_scaled_to_the_unprofiled_step(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(ops=10, op_us=6, every_us=9), unprofiled_us=50.0)
    assert case.is_host_only
    assert case.host_scale == pytest.approx(0.5, rel=0.02)
    assert quantities.outermost_us(case, "aten::add") == pytest.approx(60 * case.host_scale)
    assert quantities.op_sum(case, ["aten::add"]).calls == 10


def test_nested_ops_of_the_same_names_count_once(tmp_path: Path) -> None:
    nested = [op("aten::to", 10, 50), op("aten::copy_", 20, 20), op("aten::to", 22, 5), op("aten::to", 70, 10)]
    case = case_of(tmp_path, nested)
    assert quantities.outermost_us(case, "aten::to") == pytest.approx(60)
    assert quantities.op_sum(case, ["aten::to"]).us == pytest.approx(65)


def test_a_trace_without_steps_is_one_step(tmp_path: Path) -> None:
    case = case_of(tmp_path, [op("aten::mul", 5 + 10 * at, 4) for at in range(7)])
    assert quantities.op_calls_per_step(case, "aten::mul") == 7
    assert quantities.ops_in_window(case).all()
    assert case.kernels_in_window.all()


def test_claims_stop_at_the_most_that_they_may_be(tmp_path: Path) -> None:
    case = with_ledger(
        case_of(tmp_path, cpu_events(4, 5, 10)), {"memory": 10.0, "overhead.python": 60.0, "overhead.dispatch": 30.0}
    )
    claims = quantities.claims_of(case, "overhead.python", "overhead.dispatch", "overhead.gc", most_us=70.0)
    assert claims == {"overhead.python": 60.0, "overhead.dispatch": 10.0}
    assert case.account_us("overhead.python", "memory") == 70
    assert case.share_of_step(25.0) == 0.25
    assert case.idle_us() == case.idle_us("python", "dispatch") == 90


def test_lines_of_waits_are_listed_longest_first(tmp_path: Path) -> None:
    rows = [idle_row("sync", 5.0, "a.py:1", module="one"), idle_row("sync", 20.0, "b.py:2", detail="aten::item")]
    rows.append(idle_row("sync", 4.0, "a.py:1", module="two"))
    case = with_ledger(case_of(tmp_path, cpu_events(4, 5, 10)), {"memory": 1.0, "overhead.sync": 29.0}, rows)
    assert quantities.idle_lines(case, "sync") == (
        "b.py:2: 20.0 us per step in aten::item, in 1 idle gap",
        "a.py:1: 9.00 us per step, in 2 idle gaps",
    )
    assert quantities.idle_lines(case, "gc") == ()


def test_training_optimizers_and_compiled_regions_are_known_by_their_marks(tmp_path: Path) -> None:
    plain = cpu_events(4, 5, 10, steps=1)
    marks = [
        complete("Optimizer.step#SGD.step", "user_annotation", 31, 10),
        op("autograd::engine::evaluate_function: AddBackward0", 22, 2),
        op("Torch-Compiled Region: 0/0", 42, 3),
    ]
    unmarked, marked = case_of(tmp_path / "a", plain), case_of(tmp_path / "b", [*plain, *marks])
    assert not quantities.has_backward_marks(unmarked) and quantities.has_backward_marks(marked)
    assert not quantities.is_compiled(unmarked) and quantities.is_compiled(marked)
    assert quantities.optimizer_names(unmarked) == () and quantities.optimizer_names(marked) == ("SGD",)


def test_the_lines_that_most_calls_come_from_are_named(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(4, 5, 10))
    rows = quantities.rows_of_ops(case, ["aten::add"])
    assert np.array_equal(rows, np.flatnonzero(quantities.ops_in_window(case)))
    assert quantities.sources_of(case, rows) == ("train() (train.py:12)",)
