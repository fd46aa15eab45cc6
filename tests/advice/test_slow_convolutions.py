"""Rule of convolutions that torch runs without oneDNN."""

from pathlib import Path

import pytest

from bottleneck.advice.slow_convolutions import slow_convolution
from tests.advice.programs import Call, on_cpu, on_gpu

WEIGHT = [64, 64, 3, 3]


def convolution(image: list[int] | None, kernel: list[int] = WEIGHT, name: str = "aten::_slow_conv2d_forward") -> Call:
    return Call(name, 1000.0, None if image is None else [image, kernel, [], []])


@pytest.mark.parametrize(
    ("image", "kernel", "is_single"),
    [
        ([1, 64, 14, 14], WEIGHT, True),
        ([64, 14, 14], WEIGHT, True),
        ([2, 64, 14, 14], WEIGHT, False),
        ([1, 64, 56, 56], WEIGHT, False),  # 200,704 numbers
        ([1, 64, 14, 14], [64, 64, 5, 5], False),
        ([1, 64, 1, 256], [64, 64, 1, 7], True),  # of a sound
    ],
)
def test_one_small_image_per_call_gains_from_company_and_else_the_library_is_asked_for(
    tmp_path: Path, image: list[int], kernel: list[int], is_single: bool
) -> None:
    draft = slow_convolution(on_cpu(tmp_path, [convolution(image, kernel)]))
    assert draft is not None
    assert (draft.gain_us is not None) == is_single
    if draft.gain_us is not None:
        assert draft.per == "sample" and "Collect two images" in draft.advice
        assert draft.gain_us.low == pytest.approx(0.45 * 1000, rel=0.01)
        assert draft.gain_us.high == pytest.approx(0.67 * 1000, rel=0.01)
    else:
        assert draft.gain_reason is not None and "mkldnn.is_available" in draft.advice


@pytest.mark.parametrize(
    "sizes", [[[8, 24, 1, 4096], [48, 24, 1, 1]], [[8, 48, 1, 4096], [8, 24, 1, 4096], [48, 24, 1, 1]]]
)
def test_kernels_of_one_by_one_are_products_in_one_thread_and_need_no_library(
    sizes: list[list[int]], tmp_path: Path
) -> None:
    """A Fourier operator with oneDNN was told to take a build with it, for its backward pass over 1 x 1 kernels."""
    name = "aten::_slow_conv2d_forward" if len(sizes) == 2 else "aten::_slow_conv2d_backward"
    calls = [Call(name, 1000.0, [*sizes, [], []])]
    assert slow_convolution(on_cpu(tmp_path / "one", calls, threads=1)) is None
    assert slow_convolution(on_cpu(tmp_path / "two", calls, threads=2)) is not None


def test_without_sizes_both_are_said(tmp_path: Path) -> None:
    draft = slow_convolution(on_cpu(tmp_path, [convolution(None)]))
    assert draft is not None and draft.gain_us is None
    assert "Collect two images" in draft.advice and "mkldnn.is_available" in draft.advice


def test_convolutions_of_onednn_small_shares_and_devices_are_left_alone(tmp_path: Path) -> None:
    image = [1, 64, 14, 14]
    assert slow_convolution(on_cpu(tmp_path / "own", [convolution(image, name="aten::mkldnn_convolution")])) is None
    few = [convolution(image), Call("aten::mm", 20_000.0, [[512, 512], [512, 512]])]
    assert slow_convolution(on_cpu(tmp_path / "few", few)) is None
    assert slow_convolution(on_gpu(tmp_path / "gpu", [Call("aten::_slow_conv2d_forward", 1000.0, [image])])) is None


@pytest.mark.parametrize(("threads", "is_told"), [(1, False), (2, True)])
def test_products_of_one_thread_are_the_choice_of_torch(tmp_path: Path, threads: int, is_told: bool) -> None:
    calls = [convolution([8, 64, 14, 14], [64, 64, 1, 1])]
    assert (slow_convolution(on_cpu(tmp_path, calls, threads=threads)) is not None) == is_told
