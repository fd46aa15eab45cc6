"""Ops in place on views: the copies of whole gradients that their backward nodes make."""

from pathlib import Path

import pytest

from bottleneck.advice.written_views import written_views
from bottleneck.schema.evidence import Evidence
from tests.advice.programs import Call, on_gpu

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
