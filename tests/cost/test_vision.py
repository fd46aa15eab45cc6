"""Regions, boxes and windows: sizes by hand."""

import pytest

from bottleneck.cost.call import Cost, OpCall, Scalar, Tensor
from bottleneck.cost.vision import FORMULAS
from tests.cost.calls import BF16, moved, tensor


def cost_of(name: str, *arguments: Tensor | str | None) -> Cost:
    return FORMULAS[name](OpCall(name, tuple(Scalar(each) if isinstance(each, str) else each for each in arguments)))


@pytest.mark.parametrize("count", [0, 1, 100, 200])
def test_every_pair_of_boxes_is_compared_once(count):
    cost = cost_of("torchvision::nms", tensor(count, 4), tensor(count), "0.7")
    assert (cost.vector_flops, cost.bytes_low) == (10 * count * (count - 1) / 2, count * 16)
    assert cost.bytes_high == count * 16 + 2 * count * -(-count // 64) * 8 + 8 * count


@pytest.mark.parametrize(
    ("name", "sampling", "samples"), [("roi_align", "2", 4), ("roi_align", "-1", 1), ("roi_pool", "2", 1)]
)
def test_regions_sample_their_input_anywhere(name, sampling, samples):
    cost = cost_of(f"torchvision::{name}", tensor(1, 8, 64, 64), tensor(10, 5), "0.25", "7", "7", sampling)
    result = 10 * 8 * 49
    assert cost.vector_flops == 8 * result * samples
    assert moved(cost) == (200 + 4 * result, 200 + 4 * result + max(4 * 8 * 4096, 4 * result * samples * 32))


def test_deformed_windows_are_sampled_and_then_multiplied():
    offset = tensor(2, 18, 30, 30)
    cost = cost_of(
        "torchvision::deform_conv2d", tensor(2, 8, 32, 32), tensor(16, 8, 3, 3), offset, tensor(2, 9, 30, 30)
    )
    assert cost.matrix_flops == 2 * 2 * 900 * 16 * 8 * 9


def test_segment_anything_attends_to_every_position():
    query = tensor(1, 16, 4096, 128, dtype=BF16)
    cost = cost_of("customflash::custom_flash_aligned", query, query, query, query, "0.11")
    assert cost.matrix_flops == 4 * 16 * 4096**2 * 128
    assert moved(cost) == (5 * 16 * 4096 * 128 * 2,) * 2
