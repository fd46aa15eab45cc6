"""Kernels with their costs, as the rules read them."""

from pathlib import Path

import numpy as np
import pytest

from bottleneck.advice.kernel_work import work_of
from bottleneck.schema.analysis import Interval
from tests.advice.programs import Call, on_cpu


def test_on_a_cpu_every_microsecond_counts(tmp_path: Path) -> None:
    work = work_of(on_cpu(tmp_path, [Call("aten::relu", 50.0, [[64, 64]])] * 4, steps=1))
    assert work.gain(np.full(4, 1.0), np.full(4, 2.0)) == Interval(pytest.approx(4), pytest.approx(8))


def test_rules_that_compare_calls_with_each_other_look_at_a_thousand(tmp_path: Path) -> None:
    calls = [Call("aten::relu", 2 + number % 3, [[64, 64 + number]]) for number in range(1200)]
    work = work_of(on_cpu(tmp_path, calls, steps=1))
    rows = np.ones(work.row.size, dtype=bool)
    chosen = work.largest_calls(rows)
    assert np.unique(work.signature[chosen]).size == 1000
    assert work.us[chosen].min() >= work.us[~chosen].max()
    few = np.arange(work.row.size) < 10
    assert (work.largest_calls(few & chosen) == (few & chosen)).all()


def test_a_type_that_is_a_list_is_no_number(tmp_path: Path) -> None:
    call = Call("aten::linear", 50.0, [[8, 16], [16, 16], []], more={"types": ["float", "float", [-1, 0]]})
    work = work_of(on_cpu(tmp_path, [call]))
    assert work.tensors_of(int(work.evidence.linked.ops["signature"].iloc[0])) == [(8, 16), (16, 16), ()]
