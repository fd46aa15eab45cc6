"""Rules on the values of tensors: subnormal numbers, NaN, and gradients that nobody resets."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.tensor_values import gradients_add_up, nan_parameters, subnormal_numbers
from bottleneck.schema.analysis import Caveat, KernelSummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import OddTensor, ValuesLook
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, cpu_events, with_analysis, with_recording
from tests.builders import Event, complete, frame, op, step


def test_arithmetic_far_below_its_floors_may_be_about_numbers_near_zero(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60), unprofiled_us=600.0)
    slow = replace(
        case.analysis.kernels[0], reason_code="unexplained", explained=0.02, flops=1e6, dtype="fp32", us=500.0
    )
    draft = subnormal_numbers(with_analysis(case, kernels=(slow,)))
    assert draft is not None and draft.gain_us is None and draft.tries == ("flush-denormal",)
    assert subnormal_numbers(with_analysis(case, kernels=(replace(slow, explained=0.6),))) is None
    assert subnormal_numbers(with_analysis(case, kernels=(replace(slow, us=5.0),))) is None
    contended = Caveat("contended", "other programs used the processors", 1.0)
    assert subnormal_numbers(with_analysis(case, kernels=(slow,), caveats=(contended,))) is None


TRACE = OddTensor("variable", "trace", 0.15, sizes=(256, 2048), source="train.py:34")
MASK = OddTensor("buffer", "Net.mask", 0.02, sizes=(2048, 256), source="train.py:9")


def products(case: Evidence, *rows: tuple[str, float, float]) -> Evidence:
    """The case with products of these sizes, so long per step, whose floors are such a part of that."""
    first = case.analysis.kernels[0]
    kernels: list[KernelSummary] = [
        replace(first, name="aten::mm", shapes=sizes, us=us, explained=part, flops=1e6, dtype="fp32", launch_us=1.0)
        for sizes, us, part in rows
    ]
    return with_analysis(case, kernels=tuple(kernels))


def looked_at(case: Evidence, *odd: OddTensor, **more: Any) -> Evidence:
    return with_recording(case, values=ValuesLook(1000, odd=odd, **more))


SLOW, OTHER = "[[64, 256], [256, 2048]]", "[[64, 64], [64, 64]]"


def test_slow_products_on_subnormal_numbers_come_first_with_the_tensor_and_its_line(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60), unprofiled_us=600.0)
    draft = subnormal_numbers(looked_at(products(case, (SLOW, 400.0, 0.05), (OTHER, 50.0, 0.5)), TRACE))
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert draft.gain_us.low == pytest.approx(0.7 * 400 * (1 - 0.05 / 0.2))
    assert draft.gain_us.high == pytest.approx(400 * (1 - 0.05 / 0.6) + 50 * (1 - 0.5 / 0.6))
    assert draft.evidence[0].startswith("variable trace at train.py:34: 15.0 % of its numbers (256x2048)")
    assert "where trace is made at train.py:34" in draft.advice and "denormal" in draft.advice


def test_what_the_program_keeps_is_named_before_what_it_computes(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60), unprofiled_us=600.0)
    draft = subnormal_numbers(looked_at(products(case, (SLOW, 400.0, 0.05)), TRACE, MASK))
    assert draft is not None and "Net.mask is made at train.py:9" in draft.advice


def test_values_that_were_looked_at_and_are_normal_end_the_guess(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60), unprofiled_us=600.0)
    slow = products(case, (SLOW, 400.0, 0.05))
    assert subnormal_numbers(looked_at(slow)) is None
    assert subnormal_numbers(looked_at(slow, replace(TRACE, subnormal_share=1e-5))) is None
    assert subnormal_numbers(looked_at(slow, TRACE, flushes=True)) is None


def test_subnormal_numbers_that_slow_nothing_are_left_alone(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60), unprofiled_us=600.0)
    assert subnormal_numbers(looked_at(products(case, (SLOW, 400.0, 0.4)), TRACE)) is None
    assert subnormal_numbers(looked_at(products(case, (OTHER, 400.0, 0.05)), TRACE)) is None
    # Something slows all ops alike.
    assert subnormal_numbers(looked_at(products(case, (SLOW, 400.0, 0.05), (OTHER, 50.0, 0.08)), TRACE)) is None


def test_nan_in_parameters_is_said_before_anything_else(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60), unprofiled_us=600.0)
    draft = nan_parameters(looked_at(case, OddTensor("parameter", "Net.weight", nan_share=0.5)))
    assert draft is not None and draft.corrects_results and "Net.weight: 50.0 %" in draft.evidence[0]
    assert nan_parameters(looked_at(case, OddTensor("input", "Net", nan_share=0.5))) is None
    assert nan_parameters(case) is None


def accumulating(*more: Event, kind: str = "aten::add_") -> list[Event]:
    """Two steps that put two gradients in place, and step an optimizer."""
    events: list[Event] = [frame("train.py(12): train", 0, 210), *more]
    for number in range(2):
        at = 100 * number
        events += [step(number, at, 99), complete("Optimizer.step#SGD.step", "user_annotation", at + 80, 10)]
        for start in (at + 10, at + 40):
            events += [
                op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", start, 20),
                op("torch::autograd::AccumulateGrad", start + 1, 18),
                op(kind, start + 2, 10, dims=[[8, 8], [8, 8], []]),
            ]
    return events


def test_gradients_that_nothing_sets_to_zero_add_up(tmp_path: Path) -> None:
    draft = gradients_add_up(case_of(tmp_path, accumulating(), unprofiled_us=99.0))
    assert draft is not None and draft.corrects_results and draft.evidence[0].startswith("all 2 gradients of a step")


@pytest.mark.parametrize(
    "events",
    [
        accumulating(kind="aten::detach"),
        accumulating(complete("Optimizer.zero_grad#SGD.zero_grad", "user_annotation", 2, 5)),
        accumulating(frame("torch/nn/modules/module.py(2911): zero_grad", 2, 5)),
        accumulating(op("aten::zero_", 2, 5, dims=[[8, 8]])),
        accumulating(op("aten::_foreach_zero_", 2, 5, dims=[[[8, 8]]])),
    ],
    ids=["new gradients", "a mark", "a frame", "by hand", "in one call"],
)
def test_gradients_that_are_reset_are_left_alone(tmp_path: Path, events: list[Event]) -> None:
    assert gradients_add_up(case_of(tmp_path, events, unprofiled_us=99.0)) is None
