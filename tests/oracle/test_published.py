"""Costs against published numbers: what papers, vendors and benchmarks printed comes out of our formulas.

Each test names its source and its row of benchmarks/results/published_numbers.md. Sizes are the published model's;
FLOPs and bytes are ours; times are theirs.
"""

import math
from functools import reduce
from operator import add

import pytest

from bottleneck.cost import FORMULAS
from bottleneck.cost.call import Cost, Tensor
from bottleneck.devices.match import device_by_name
from tests.cost.calls import BF16, HALF, cost_of, tensor

A100_40, A100_80 = device_by_name("NVIDIA A100-SXM4-40GB"), device_by_name("NVIDIA A100-SXM4-80GB")
V100, H100 = device_by_name("Tesla V100-SXM2-16GB"), device_by_name("NVIDIA H100 80GB HBM3")


def cost(name: str, *arguments: Tensor | str | None) -> Cost:
    return cost_of(FORMULAS, name, *arguments)


def total(*costs: Cost) -> Cost:
    return reduce(add, costs)


def flops(one: Cost) -> float:
    """FLOPs and special operations on any engine, as publications count them."""
    return one.matrix_flops + one.vector_flops + one.special_ops


def linear(rows: int, inputs: int, outputs: int, dtype: str = HALF) -> Cost:
    return cost("linear", tensor(rows, inputs, dtype=dtype), tensor(outputs, inputs, dtype=dtype), None)


def bmm(batch: int, m: int, k: int, n: int) -> Cost:
    return cost("bmm", tensor(batch, m, k, dtype=HALF), tensor(batch, k, n, dtype=HALF))


def intensity(one: Cost) -> float:
    return flops(one) / one.bytes_low


# Row 1. Ivanov et al., "Data Movement Is All You Need", table 1 and figure 2: one encoder layer of BERT-large.
BATCH, LENGTH, WIDTH, HEADS, HIDDEN = 8, 512, 1024, 16, 4096
ROWS = BATCH * LENGTH
SCORES = (BATCH * HEADS, LENGTH, LENGTH)
BERT_PRODUCTS = {
    "query, key, value": (linear(ROWS, WIDTH, 3 * WIDTH), 25.77),
    "scores": (bmm(BATCH * HEADS, LENGTH, WIDTH // HEADS, LENGTH), 4.29),
    "values": (bmm(BATCH * HEADS, LENGTH, LENGTH, WIDTH // HEADS), 4.29),
    "out": (linear(ROWS, WIDTH, WIDTH), 8.59),
    "first linear": (linear(ROWS, WIDTH, HIDDEN), 34.36),
    "second linear": (linear(ROWS, HIDDEN, WIDTH), 34.36),
}


@pytest.mark.parametrize("part", BERT_PRODUCTS)
def test_products_of_a_bert_encoder_take_the_published_gflop(part):
    ours, published_gflop = BERT_PRODUCTS[part]
    assert flops(ours) / 1e9 == pytest.approx(published_gflop, abs=0.005)


def bert_normalisation() -> Cost:
    x, rows = tensor(BATCH, LENGTH, WIDTH), tensor(BATCH, LENGTH, 1)
    weight, scores = tensor(WIDTH), tensor(*SCORES)
    forward = cost("native_layer_norm", x, "[1024]", weight, weight, "1e-12")
    mask = "[True, True, True]"
    backward = cost("native_layer_norm_backward", x, x, "[1024]", rows, rows, weight, weight, mask)
    softmax = (cost("_softmax", scores, "-1", "False"), cost("_softmax_backward_data", scores, scores, "-1", "6"))
    return total(forward, forward, backward, backward, *softmax)


def bert_elementwise() -> Cost:
    """Biases, relu, residuals, and dropout as the multiplication that the paper counts; each forward and back."""
    x, wide, scores = tensor(ROWS, WIDTH), tensor(ROWS, HIDDEN), tensor(*SCORES)
    added = [cost("add", t, tensor(t.shape[-1]), "1") for t in (x, x, x, x, wide, x)]
    gradients = [cost("sum", t, "[0]", "False", "") for t in (x, x, x, x, wide, x)]
    residuals = [cost("add", x, x, "1")] * 4
    dropped = [cost("mul", t, t) for t in (scores, x, wide, x)] * 2
    activation = [cost("relu", wide), cost("threshold_backward", wide, wide, "0")]
    return total(*added, *gradients, *residuals, *dropped, *activation)


def test_a_bert_encoder_spends_the_published_shares_of_its_flops_in_products_normalisation_and_the_rest():
    forward = total(*(ours for ours, _ in BERT_PRODUCTS.values()))
    parts = [3 * flops(forward), flops(bert_normalisation()), flops(bert_elementwise())]
    assert parts[0] / 1e9 == pytest.approx(335.0, abs=0.05)
    shares = [100 * part / sum(parts) for part in parts]
    assert shares == pytest.approx([99.80, 0.17, 0.03], abs=0.05)


# Row 2. NVIDIA, "GPU Performance Background" (half precision), table 1.
def test_arithmetic_intensities_of_nvidias_performance_guide():
    x = tensor(64, 32, 56, 56, dtype=HALF)
    assert intensity(linear(512, 1024, 4096)) == pytest.approx(315, abs=0.5)
    assert intensity(linear(1, 1024, 4096)) == pytest.approx(1, abs=0.005)
    # Pooling without indices, for which torch has the average: 9 operations per output of 2 bytes in and 2 out.
    assert intensity(cost("avg_pool2d", x, "[3, 3]", "[1, 1]", "[1, 1]", "False", "True", "")) == 2.25
    assert intensity(cost("relu", x)) == 0.25
    norm = cost("native_layer_norm", tensor(64, 1024, dtype=HALF), "[1024]", None, None, "1e-5")
    assert intensity(norm) < 10


# Row 3. NVIDIA, "Matrix Multiplication Background", on a V100.
def test_arithmetic_intensities_of_nvidias_matmul_guide_lie_on_both_sides_of_a_v100s_ridge():
    thin = cost("mm", tensor(8192, 128, dtype=HALF), tensor(128, 8192, dtype=HALF))
    square = cost("mm", tensor(8192, 8192, dtype=HALF), tensor(8192, 8192, dtype=HALF))
    ridge = V100.ridge_flops_per_byte["fp16_tensor"]
    assert intensity(thin) == pytest.approx(124.1, abs=0.05)
    assert intensity(square) == pytest.approx(2730, abs=1)
    assert ridge == pytest.approx(138.9, abs=0.05)
    assert intensity(thin) < ridge < intensity(square)


# Row 4. Horace He, "Making Deep Learning Go Brrrr From First Principles": repeated multiplications in one kernel on
# an A100.
def test_a_fused_kernel_on_an_a100_gets_compute_bound_at_64_multiplications():
    multiply = cost("mul", tensor(2**24), tensor(dtype="double"))
    without_fma = A100_40.peaks_flops_per_s["fp32_vector"] / 2
    assert without_fma == 9.75e12
    memory_s = multiply.bytes_low / A100_40.bandwidth_bytes_per_s
    knee = memory_s / (multiply.vector_flops / without_fma)
    assert knee == pytest.approx(50.2, abs=0.1)
    assert 2 ** math.ceil(math.log2(knee)) == 64


def test_an_a100_computes_the_published_9_75_million_flops_while_python_does_one():
    python_adds_per_s = 32e6
    assert A100_40.peaks_flops_per_s["fp16_tensor"] / python_adds_per_s == 9.75e6


# Row 5. Chowdhery et al., "PaLM", table 3 and appendix B: 540B parameters on 6144 TPU v4 chips of 275 TFLOP/s each.
def test_palm_reaches_the_published_utilisation():
    layers, width, heads, head_width, hidden, vocabulary = 118, 18432, 48, 256, 4 * 18432, 256_000
    length = 2048
    query_key_value = linear(length, width, (heads + 2) * head_width)
    mlp = (linear(length, width, hidden), linear(length, width, hidden), linear(length, hidden, width))
    layer = total(query_key_value, linear(length, heads * head_width, width), *mlp)
    q, kv = tensor(1, heads, length, head_width), tensor(1, 1, length, head_width)
    attention = cost("_scaled_dot_product_flash_attention", q, kv, kv, "0.", "False", "False", "")
    dense = layers * layer.matrix_flops + linear(length, width, vocabulary).matrix_flops
    passes, peak_flops_per_s = 3, 6144 * 275e12
    per_token = passes * dense / length
    with_attention = per_token + passes * layers * attention.matrix_flops / length
    assert dense / length / 2 == pytest.approx(540.35e9, rel=1e-4)
    assert 100 * 238.3e3 * with_attention / peak_flops_per_s == pytest.approx(46.2, abs=0.05)
    assert 100 * 238.3e3 * per_token / peak_flops_per_s == pytest.approx(45.7, abs=0.05)


# Row 6. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", table 5, on A100s.
@pytest.mark.parametrize(
    ("sizes", "run", "percent"),
    [
        ((6144, 64, 48), (4, 8, 1.10), (41.5, 43.7)),
        ((12288, 96, 96), (64, 64, 13.75), (51.4, 52.8)),
        ((20480, 128, 105), (280, 280, 37.83), (56.0, 57.0)),
        ((25600, 160, 128), (512, 512, 71.49), (56.3, 57.0)),
    ],
)
def test_megatron_reaches_the_published_utilisation_of_model_and_hardware(sizes, run, percent):
    (width, heads, layers), (batch, devices, seconds) = sizes, run
    length, vocabulary = 2048, 51200
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    layer = total(*(linear(batch * length, k, n) for k, n in shapes)).matrix_flops
    head_width = width // heads
    scores = bmm(batch * heads, length, head_width, length), bmm(batch * heads, length, length, head_width)
    attention = total(*scores).matrix_flops
    logits = linear(batch * length, width, vocabulary).matrix_flops
    available = devices * seconds * A100_80.peaks_flops_per_s["bf16_tensor"]
    model = 3 * (layers * (layer + attention) + logits)
    # The paper counts the recomputed attention as much again, forward and backward.
    assert 100 * model / available == pytest.approx(percent[0], abs=0.2)
    assert 100 * (model + 3 * layers * attention) / available == pytest.approx(percent[1], abs=0.2)


# Row 8. Dao et al., "FlashAttention", figure 2 left: forward and backward on an A100 (its FLOP row does not reproduce).
def test_flash_attention_is_compute_bound_where_the_published_standard_attention_is_memory_bound():
    q = tensor(64, 16, 1024, 64, dtype=HALF)
    statistics = (tensor(64, 16, 1024), "", "", "1024", "1024", "0.", "False", "", "", "")
    forward = cost("_scaled_dot_product_flash_attention", q, q, q, "0.", "False", "False", "")
    backward = cost("_scaled_dot_product_flash_attention_backward", q, q, q, q, q, *statistics)
    both = forward + backward
    assert both.bytes_low / 1e9 == pytest.approx(1.61, rel=0.01)
    assert both.bytes_high / 1e9 < 4.4
    at_peak_s = both.matrix_flops / A100_40.peaks_flops_per_s["fp16_tensor"]
    in_memory_s = 4.4e9 / A100_40.bandwidth_bytes_per_s
    assert at_peak_s / 7.3e-3 == pytest.approx(0.42, abs=0.005)
    assert at_peak_s > in_memory_s
    scores = tensor(64, 16, 1024, 1024, dtype=HALF)
    assert 40.3e9 / scores.bytes == pytest.approx(18.8, abs=0.05)
    assert 40.3e9 / 41.7e-3 / A100_40.bandwidth_bytes_per_s == pytest.approx(0.62, abs=0.005)


def decoder_bytes(name: str, shapes: list[tuple[int, int]]) -> float:
    """Bytes that one token moves through linear layers of [outputs, inputs]."""
    weight_only = name == "_weight_int8pack_mm"
    return sum(
        cost(
            name,
            tensor(1, inputs, dtype=BF16),
            tensor(outputs, inputs, dtype="signed char" if weight_only else BF16),
            tensor(outputs, dtype=BF16) if weight_only else None,
        ).bytes_low
        for outputs, inputs in shapes
    )


def llama(width: int, hidden: int, layers: int, kv_width: int) -> list[tuple[int, int]]:
    layer = [(width + 2 * kv_width, width), (width, width), (hidden, width), (hidden, width), (width, hidden)]
    return [*(layers * layer), (32000, width)]


LLAMA_7B, LLAMA_70B = llama(4096, 11008, 32, 4096), llama(8192, 28672, 80, 1024)


# Row 9. gpt-fast, README: decoding one sequence on one A100-80GB; each published rate pair gives bytes per token.
@pytest.mark.parametrize(
    ("name", "shapes", "gigabytes_per_s", "tokens_per_s", "above"),
    [
        ("linear", LLAMA_7B, 1397.31, 104.9, 0.01),
        ("_weight_int8pack_mm", LLAMA_7B, 1069.20, 155.58, 0.045),
        ("_weight_int8pack_mm", LLAMA_70B, 1322.58, 19.13, 0.01),
    ],
)
def test_decoding_moves_the_published_bytes_per_token_but_for_caches_and_scales(
    name, shapes, gigabytes_per_s, tokens_per_s, above
):
    published = gigabytes_per_s * 1e9 / tokens_per_s
    assert 0 <= published / decoder_bytes(name, shapes) - 1 < above


def test_decoding_reaches_the_published_share_of_an_a100s_bandwidth():
    moved = decoder_bytes("linear", LLAMA_7B)
    assert 1397.31e9 / A100_80.bandwidth_bytes_per_s == pytest.approx(0.685, abs=0.0005)
    assert moved * 104.9 / A100_80.bandwidth_bytes_per_s == pytest.approx(0.685, rel=0.01)


# Row 10. Llama Team, "The Llama 3 Herd of Models", table 4: 405B, per GPU.
@pytest.mark.parametrize(("tflop_per_s", "percent"), [(430, 43), (400, 41), (380, 38)])
def test_llama_3_reaches_the_published_utilisation_of_an_h100(tflop_per_s, percent):
    ours = 100 * tflop_per_s * 1e12 / H100.peaks_flops_per_s["bf16_tensor"]
    assert ours == pytest.approx(percent, abs=0.6)


# Row 11. A public log of a cuBLAS burn-in: 67.1 TFLOP/s, impossible against the 125 that some tables give for an A10G's
# tensor cores and that hide its half rate with fp32 accumulation.
def test_an_a10g_under_a_burn_in_comes_close_to_its_peak_and_never_passes_it():
    share = 67.1e12 / device_by_name("NVIDIA A10G").peaks_flops_per_s["bf16_tensor"]
    assert share == pytest.approx(0.959, abs=0.001)


# Rows 13 and 14. TraceLens, golden report of owlv2 on an H100: times measured there, in microseconds.
def test_the_owlv2_golden_report_of_tracelens_comes_out_to_four_digits():
    scores = cost("bmm", tensor(16, 5185, 64, dtype=BF16), tensor(16, 64, 5185, dtype=BF16))
    assert scores.matrix_flops / 1e9 == pytest.approx(55.0589, abs=5e-5)
    assert scores.bytes_low / 2**20 == pytest.approx(840.695, abs=5e-4)
    assert scores.matrix_flops / 1083.46e-6 / 1e12 == pytest.approx(50.818, abs=1e-3)
    bias = tensor(4096, dtype=BF16)
    out = cost("addmm", bias, tensor(5185, 1024, dtype=BF16), tensor(1024, 4096, dtype=BF16), "1", "1")
    assert flops(out) / 58.339e-6 / 1e12 == pytest.approx(745.95, rel=1e-4)
    assert out.matrix_flops / 58.339e-6 / 1e12 == pytest.approx(745.56, rel=1e-4)
    x = tensor(5185, 4096, dtype=BF16)
    # The high end: two operands of one shape may be one tensor, but these are two.
    assert cost("mul", x, x).bytes_high / 43.531e-6 / 1e12 == pytest.approx(2.927, abs=5e-4)
    softmax = cost("_softmax", tensor(16, 5185, 5185, dtype=BF16), "-1", "False")
    assert softmax.bytes_low / 2186.85e-6 / 1e9 == pytest.approx(786.8, abs=0.05)
