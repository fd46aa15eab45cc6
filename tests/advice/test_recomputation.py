"""The rule on activations that a checkpoint computes again."""

from pathlib import Path

import pytest

from bottleneck.advice.recomputation import recomputation
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, with_analysis
from tests.builders import complete, frame, in_graph, kernel, launch, memcpy, op, step


def checkpointed(tmp_path: Path, peak: float) -> Evidence:
    node = "autograd::engine::evaluate_function: "
    events = [
        step(0, 0, 1000),
        op("aten::mm", 10, 300, dims=[[500, 500], [500, 500]]),
        op(f"{node}CheckpointFunctionBackward", 320, 660),
        op("CheckpointFunctionBackward", 321, 658),
        op("aten::mm", 330, 300, dims=[[500, 500], [500, 500]]),
        op(f"{node}MmBackward0", 640, 330),
        op("aten::mm", 650, 310, dims=[[500, 500], [500, 500]]),
    ]
    case = case_of(tmp_path, events)
    device = replace(case.analysis.device, memory_bytes=10**9)
    return with_analysis(case, device=device, totals=replace(case.analysis.totals, peak_memory_bytes=int(peak * 1e9)))


def test_a_forward_pass_that_is_repeated_although_memory_has_room(tmp_path: Path) -> None:
    draft = recomputation(checkpointed(tmp_path, 0.4))
    assert draft is not None
    assert draft.gain_us is not None
    # A third of the ops, with as much of the 90 us of Python and dispatching.
    assert draft.gain_us.low == pytest.approx(0.7 * 300, rel=0.02)
    assert draft.gain_us.high == pytest.approx(300 + 30, rel=0.02)


def test_a_backward_pass_without_marks_of_its_own_is_no_repeated_forward_pass(tmp_path: Path) -> None:
    size = [[500, 500], [500, 500]]
    events = [
        step(0, 0, 1300),
        op("aten::mm", 10, 300, dims=size),
        op("CheckpointFunctionBackward", 321, 958),
        *(op("aten::mm", at, 300, dims=size) for at in (330, 640, 950)),
    ]
    draft = recomputation(case_of(tmp_path, events))
    assert draft is not None and draft.gain_us is not None
    # Of three ops of 300 us in the backward pass one repeats the forward pass; 100 us are Python and dispatching.
    assert draft.gain_us.high == pytest.approx(300 + 1 / 4 * 100, rel=0.02)


def test_a_trace_of_copies_alone_repeats_nothing(tmp_path: Path) -> None:
    copied = [launch(1, 2, 2, "cudaMemcpyAsync"), memcpy(1, 5, 3, 64, "HtoD (Pageable -> Device)")]
    assert recomputation(case_of(tmp_path, copied)) is None


def test_a_device_whose_memory_was_not_recorded_is_promised_nothing_for_sure(tmp_path: Path) -> None:
    node = "autograd::engine::evaluate_function: "
    events = [
        step(0, -700, 1630),
        op("aten::mm", -690, 10, dims=[[500, 500], [500, 500]], external_id=4),
        launch(4, -687, 5),
        kernel(4, -670, 600),
        op(f"{node}CheckpointFunctionBackward", 2, 60),
        op("CheckpointFunctionBackward", 3, 58),
        op("aten::mm", 5, 10, dims=[[500, 500], [500, 500]], external_id=1),
        launch(1, 8, 5),
        kernel(1, 20, 600),
        op(f"{node}MmBackward0", 30, 20),
        op("aten::mm", 32, 10, dims=[[500, 500], [500, 500]], external_id=2),
        launch(2, 34, 5),
        kernel(2, 621, 300),
        launch(3, 60, 865, "cudaDeviceSynchronize"),
    ]
    draft = recomputation(case_of(tmp_path, events))
    assert draft is not None and draft.gain_us is not None and draft.confidence == "low"
    assert draft.gain_us.low == 0 and draft.gain_us.high == pytest.approx(600, rel=0.05)
    assert "where memory holds" in draft.advice


def test_a_checkpoint_that_is_not_reentrant_is_known_by_what_it_unpacks(tmp_path: Path) -> None:
    line, size = complete("train.py(11): forward", "python_line", 5, 310), [[500, 500], [500, 500]]
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    events = [
        frame("train.py(1): <module>", 0, 1000), step(0, 0, 1000), line,
        op("aten::mm", 10, 300, dims=size),
        op(node, 320, 660),
        frame("torch/utils/checkpoint.py(1159): unpack_hook", 325, 310),
        op("aten::mm", 330, 300, dims=size),
        op("aten::mm", 650, 310, dims=size),
    ]  # fmt: skip
    draft = recomputation(case_of(tmp_path / "on", events))
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert draft.gain_us.high == pytest.approx(300 + 30, rel=0.02)
    assert "Leave torch.utils.checkpoint out" in draft.advice
    events = [event for event in events if "checkpoint" not in event["name"]]
    assert recomputation(case_of(tmp_path / "off", events)) is None


def test_recomputation_is_right_where_memory_is_short_and_told_with_reserve_where_unknown(tmp_path: Path) -> None:
    case = checkpointed(tmp_path, 0.9)
    assert recomputation(case) is None
    draft = recomputation(with_analysis(case, totals=replace(case.analysis.totals, peak_memory_bytes=None)))
    assert draft is not None and "where memory holds the activations" in draft.advice


@pytest.mark.parametrize("repeats", [True, False])
def test_a_checkpoint_is_known_by_numbers_of_autograd_in_the_order_of_the_forward_pass(
    tmp_path: Path, *, repeats: bool
) -> None:
    names = ["aten::native_layer_norm", *["aten::addmm", "aten::gelu", "aten::native_dropout"] * 3]
    forward = [in_graph(op(name, 10 + 30 * at, 28), 100 + at, 0) for at, name in enumerate(names)]
    # A gradient whose graph is kept has numbers too, and other ops.
    nested = names if repeats else ["aten::mm", "aten::t", *["aten::mul", "aten::sum"] * 4]
    again = [in_graph(op(name, 330 + 30 * at, 28), 200 + at, 0) for at, name in enumerate(nested)]
    events = [
        step(0, 0, 1000), *forward,
        in_graph(op("autograd::engine::evaluate_function: AddmmBackward0", 320, 650), 109, 1),
        in_graph(op("AddmmBackward0", 321, 648), 109, 1),
        *again,
        op("aten::mm", 650, 300),
    ]  # fmt: skip
    draft = recomputation(case_of(tmp_path, events))
    assert (draft is not None) is repeats
    if draft is not None:
        assert draft.gain_us is not None and draft.gain_us.low == pytest.approx(0.7 * 280, rel=0.02)
