"""Kernels whose shapes change from step to step are told as one; all others keep rows of their own."""

from dataclasses import replace

import pytest

from bottleneck.report.analysis_tables import varying_together
from tests.report.samples import kernel

ROW = kernel("k", 30.0, 100.0, calls=0.25, shapes="[[8]]", bound="memory", memory_us=15.0, explained=0.5, flops=1e3)
LONGER = replace(ROW, us=90.0, share=0.9, shapes="[[24]]", memory_us=72.0, explained=0.8, flops=3e3)


def test_rows_that_differ_only_in_shapes_of_some_steps_are_added_up() -> None:
    (both,) = varying_together([ROW, LONGER])
    assert both.shapes == 2
    assert (both.kernel.us, both.kernel.calls, both.kernel.flops, both.kernel.memory_us) == (120.0, 0.5, 4e3, 87.0)
    assert both.kernel.shapes == "[[24]]"
    assert both.kernel.explained == pytest.approx(87.0 / 120.0)


def test_what_one_row_does_not_know_is_not_known_of_the_sum() -> None:
    (both,) = varying_together([ROW, replace(LONGER, flops=None, explained=None)])
    assert (both.kernel.flops, both.kernel.explained) == (None, None)


@pytest.mark.parametrize("change", [{"calls": 1.0}, {"bound": "compute"}, {"source": "a.py:1"}, {"dtype": "fp32"}])
def test_rows_of_every_step_and_rows_that_differ_otherwise_stay_apart(change: dict[str, object]) -> None:
    rows = [ROW, replace(LONGER, **change)]  # type: ignore[arg-type]
    assert [one.kernel for one in varying_together(rows)] == rows
