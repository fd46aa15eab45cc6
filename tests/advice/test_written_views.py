"""Ops in place on views: the copies of whole gradients that their backward nodes make."""

from pathlib import Path

import pytest

from bottleneck.advice.written_views import picked_parts, written_views
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import two_steps
from tests.advice.programs import Call, on_gpu
from tests.builders import Event, op

SIZES = [[4000, 4000]] * 2


def training(folder: Path, node: str) -> Evidence:
    """A backward pass that copies for 400 us in a node, and computes for 600 us in another."""
    copy = Call("aten::copy_", 400, [*SIZES, []], "direct_copy_kernel_cuda", inside=node)
    return on_gpu(folder, [copy, Call("aten::mul", 600, SIZES, inside="MulBackward0")])


@pytest.mark.parametrize("node", ["torch::autograd::CopySlices", "CopySlices"])
def test_copies_of_gradients_for_ops_in_place_on_views_are_told(tmp_path: Path, node: str) -> None:
    draft = written_views(training(tmp_path, node))
    assert draft is not None and draft.gain_us is not None
    assert 0 < draft.gain_us.low < 0.7 * draft.gain_us.high
    assert draft.gain_us.high == pytest.approx(400, rel=0.1)


def test_copies_of_other_nodes_are_left_alone(tmp_path: Path) -> None:
    assert written_views(training(tmp_path, "CloneBackward0")) is None


WHOLE, PART = [16, 128, 64], [16, 64]


def picking(parts: int, name: str = "aten::select_backward", part: list[int] = PART) -> list[Event]:
    """A backward pass that makes a gradient of the whole tensor for each part, and 400 us of other work."""
    events = [op("aten::mm", 10, 400, dims=[[512, 512], [512, 512]])]
    for number in range(parts):
        at = 420.0 + 20 * number
        events += [
            op("autograd::engine::evaluate_function: SelectBackward0", at, 19, dims=[]),
            op(name, at + 1, 9, dims=[part, [], [], []]),
            op("aten::fill_", at + 2, 7, dims=[WHOLE, []]),
            op("aten::add_", at + 11, 7, dims=[WHOLE, WHOLE, []]),
        ]
    return events


@pytest.mark.parametrize("name", ["aten::select_backward", "aten::slice_backward"])
def test_parts_picked_one_by_one_are_told_with_what_their_gradients_take(tmp_path: Path, name: str) -> None:
    draft = picked_parts(two_steps(tmp_path, picking(20, name)))
    assert draft is not None and draft.gain_us is not None
    assert 0 < draft.gain_us.low < draft.gain_us.high and 0.6 * 20 * 14 < draft.gain_us.high <= 20 * 20
    assert "16x64 of 16x128x64" in draft.evidence[0] and draft.evidence[0].startswith("20 parts per step")


def test_few_parts_and_large_ones_are_left_alone(tmp_path: Path) -> None:
    assert picked_parts(two_steps(tmp_path / "few", picking(7))) is None
    assert picked_parts(two_steps(tmp_path / "large", picking(20, part=[16, 64, 64]))) is None


@pytest.mark.parametrize(("parts", "is_told"), [(25, True), (9, False)])
def test_without_sizes_the_time_of_the_nodes_tells(tmp_path: Path, parts: int, is_told: bool) -> None:
    events = [
        {**event, "args": {key: text for key, text in event["args"].items() if key not in {"Input Dims", "Input type"}}}
        for event in picking(parts)
    ]
    draft = picked_parts(two_steps(tmp_path, events))
    assert (draft is not None) == is_told
    if draft is not None:
        assert draft.evidence[0].startswith("25 parts per step") and "such as" not in draft.evidence[0]
