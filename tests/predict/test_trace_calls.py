"""The calls of a recorded step, from the sample traces and from public ones."""

import json
from dataclasses import replace as replace_record
from pathlib import Path

import pytest

from bottleneck.pipeline import explain
from bottleneck.predict.trace_calls import calls_of_trace
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module")
def transformer() -> StepCalls:
    return calls_of_trace(explain([SAMPLES / "transformer"]))


def test_calls_of_one_step_stand_in_the_order_of_the_host(transformer: StepCalls) -> None:
    names = [call.name for call in transformer.calls]
    assert names[:3] == ["aten::index_select", "aten::copy_", "aten::mm"]
    assert names.index("aten::_log_softmax") < names.index("aten::_log_softmax_backward_data")
    assert names.count("aten::index_select") == names.count("aten::nll_loss_backward") == 1


def test_calls_have_their_phase_and_no_views(transformer: StepCalls) -> None:
    phase = {call.name: call.phase for call in transformer.calls}
    assert phase["aten::addmm"] == "forward"
    assert phase["aten::native_layer_norm_backward"] == "backward"
    assert phase["aten::addcdiv_"] == "optimizer"  # AdamW on single tensors, in the mark of its step
    assert not {"aten::view", "aten::t", "aten::expand", "aten::linear"} & phase.keys()
    assert transformer.settings.training


def test_sizes_are_those_that_the_trace_recorded(transformer: StepCalls) -> None:
    product = next(call for call in transformer.calls if call.name == "aten::mm")
    assert json.loads(product.dims) == [[8 * 64, 256], [256, 3 * 256]]
    assert json.loads(product.types) == ["float", "float"]


def test_what_a_trace_does_not_tell_is_not_known(transformer: StepCalls) -> None:
    assert transformer.origin == "trace"
    assert transformer.batch_size is None
    assert transformer.storages == ()
    assert transformer.settings.autocast is None
    assert "the trace is of a CPU: a GPU may run other ops" in transformer.notes


def test_measured_time_comes_with_its_device(transformer: StepCalls) -> None:
    case = explain([SAMPLES / "transformer"])
    assert transformer.measured_us == case.analysis.steps.wall_us
    assert transformer.measured_on == (case.analysis.device.name or None)


def test_host_dispatches_more_ops_than_launch_work(transformer: StepCalls) -> None:
    assert transformer.host_ops > len(transformer.calls) > 50
    assert sum(call.host_ops for call in transformer.calls) == transformer.host_ops


def test_trace_of_a_cpu_has_no_time_of_kernels_and_prices_its_calls(transformer: StepCalls) -> None:
    assert transformer.measured_device_us is None
    assert 0 <= transformer.unpriced_share < 0.25
    assert transformer.settings.compiled is None


@pytest.mark.parametrize(("dtype", "engine", "allowed"), [("tf32", "matrix", True), ("fp32", "vector", False)])
def test_kernels_of_products_tell_whether_tf32_was_allowed(dtype: str, engine: str, allowed: bool) -> None:
    evidence = explain([SAMPLES / "transformer"])
    first, *_ = evidence.analysis.kernels
    rows = (replace(first, family="matmul", dtype=dtype, engine=engine),)
    seen = replace_record(evidence, analysis=replace(evidence.analysis, kernels=rows))
    assert calls_of_trace(seen).settings.matmul_allow_tf32 is allowed


def test_work_that_is_no_call_of_the_step_is_named_with_its_time(transformer: StepCalls) -> None:
    assert transformer.left_out == ""
    assert transformer.copied_bytes is None
    evidence = explain([SAMPLES / "transformer"])
    first, *others = evidence.analysis.ledger
    ledger = (replace(first, group="communication", us=2100.0), *(replace(row, us=0.0) for row in others))
    totals = replace(evidence.analysis.totals, h2d_bytes=4096.0)
    seen = replace_record(evidence, analysis=replace(evidence.analysis, ledger=ledger, totals=totals))
    assert calls_of_trace(seen).left_out == "collectives (2.10 ms per step in the trace)"
    assert calls_of_trace(seen).copied_bytes == 4096.0
