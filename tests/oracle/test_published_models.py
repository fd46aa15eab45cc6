"""Utilisation of whole models and of one device, as published, from our FLOPs, bytes and peaks.

The numbers of rows are those of benchmarks/results/published_numbers.md; tests of single ops are in test_published.
"""

import pytest

from bottleneck.devices.match import device_by_name
from tests.cost.calls import BF16, tensor
from tests.oracle.test_published import A100_80, cost, linear, total

H200 = device_by_name("NVIDIA H200")


def transformer_flops(
    layers: int, width: int, heads: int, vocabulary: int, length: int, causal: str = "False"
) -> float:
    """Matrix FLOPs per token of one forward and backward pass over a sequence, without recomputation."""
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    layer = total(*(linear(length, k, n) for k, n in shapes)).matrix_flops
    q = tensor(1, heads, length, width // heads, dtype=BF16)
    attention = cost("_scaled_dot_product_flash_attention", q, q, q, "0.", causal, "False", "").matrix_flops
    return 3 * (layers * (layer + attention) + linear(length, width, vocabulary).matrix_flops) / length


# Row 7. Dao, "FlashAttention-2", table 1: GPT-3 models on A100-80GB. No times are given, so only the utilisation can be
# held: the best row, 225 TFLOP/s, is the paper's 72 %. Its FLOPs are 6 N s + 12 L h s^2, which counts every pair of
# tokens although the models are causal.
FLASH_ATTENTION_2 = [
    ("1.3B", (24, 2048, 16), 2048, 196),
    ("1.3B", (24, 2048, 16), 8192, 220),
    ("2.7B", (32, 2560, 32), 2048, 205),
    ("2.7B", (32, 2560, 32), 8192, 225),
]


@pytest.mark.parametrize(("name", "sizes", "length", "tflop_per_s"), FLASH_ATTENTION_2)
def test_row_7_flops_of_flash_attention_2_are_ours_where_every_pair_counts(name, sizes, length, tflop_per_s):
    layers, width, heads = sizes
    vocabulary = 50257
    parameters = 12 * layers * width**2 + vocabulary * width
    published = 6 * parameters + 12 * layers * width * length
    assert transformer_flops(layers, width, heads, vocabulary, length) == pytest.approx(published, rel=1e-6)
    assert tflop_per_s * 1e12 / A100_80.peaks_flops_per_s["bf16_tensor"] < 0.725


def test_row_7_the_best_training_speed_of_flash_attention_2_is_the_published_72_percent_of_an_a100():
    assert 225e12 / A100_80.peaks_flops_per_s["bf16_tensor"] == pytest.approx(0.72, abs=0.005)


def test_row_7_does_not_reproduce_with_the_pairs_that_a_causal_model_computes():
    """The same run computes a fifth less than the published formula counts: its hardware utilisation is lower."""
    counted, computed = (transformer_flops(32, 2560, 32, 50257, 8192, causal) for causal in ("False", "True"))
    assert computed / counted == pytest.approx(0.84, abs=0.01)
    assert 0.72 * computed / counted < 0.62


# Row 12. Measured on an H200: 8192^3 in bf16 at 788 TFLOP/s on random data and 894 on zeros (the power limit lies
# between them), and a copy of 4.3 GB, 8.6 GB moved, in 2.0 ms.
def test_row_12_an_h200_reaches_the_published_shares_of_its_peak_and_bandwidth():
    product = cost("mm", tensor(8192, 8192, dtype=BF16), tensor(8192, 8192, dtype=BF16))
    assert product.matrix_flops == 2 * 8192**3
    for tflop_per_s, share in ((788, 0.796), (894, 0.904)):
        measured_s = 2 * 8192**3 / (tflop_per_s * 1e12)
        floor_s = product.matrix_flops / H200.peaks_flops_per_s["bf16_tensor"]
        assert floor_s / measured_s == pytest.approx(share, abs=0.0005)
    source = tensor(2_150_000_000, dtype=BF16, strides=(1,))
    copied = cost("copy_", source, source, "False")
    assert copied.bytes_low == 8.6e9
    assert copied.bytes_low / 2.0e-3 / H200.bandwidth_bytes_per_s == pytest.approx(0.896, abs=0.0005)


# Row 17. nanoGPT, README: GPT-2 124M, "about 250 ms/iter to 135 ms/iter" with torch.compile. The README does not say
# the batch: 12 sequences of 1024 tokens are the repository's default, and only the ratio is published.
def test_row_17_nanogpt_computes_the_published_flops_per_token():
    per_token = transformer_flops(12, 768, 12, 50304, 1024)
    assert per_token / 1e6 == pytest.approx(854.8, abs=0.2)
    for seconds, percent in ((0.250, 13.5), (0.135, 24.9)):
        flops_per_s = 12 * 1024 * per_token / seconds
        assert 100 * flops_per_s / A100_80.peaks_flops_per_s["bf16_tensor"] == pytest.approx(percent, abs=0.05)


def test_row_17_compiling_nanogpt_raises_its_utilisation_by_the_published_ratio():
    work = 12 * 1024 * transformer_flops(12, 768, 12, 50304, 1024)
    eager, compiled = work / 0.250, work / 0.135
    assert compiled / eager == pytest.approx(1.85, abs=0.005)
