"""Published figures of single kernels, through the whole pipeline on the public traces that they were read from.

The numbers of rows are those of the table in benchmarks/results/published_numbers.md.
"""

import pytest

from bottleneck.schema.analysis import KernelSummary
from tests.trace_cache import analysed, read

TRITON = "AMD-AGI+TraceLens__tests__traces__torch_compile_triton__trace.json.gz"
TRAINING = "facebookresearch+HolisticTraceAnalysis__tests__data__trace_diff__control__control.json.gz"
TIMESFORMER = "AMD-AGI+TraceLens__tests__traces__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz"


def rates(row: KernelSummary) -> tuple[float, float]:
    """Bytes over time, in TB/s: compulsory ones and those of repeated passes."""
    return row.bytes_low / row.us / 1e6, row.bytes_high / row.us / 1e6


# Row 14 has the softmax of owlv2, whose trace is not among ours; this is the same op in the same place of timesformer.
# TraceLens leaves it without a cost: 68688.625 us, 43.355 % of all kernels and copies, says its golden report.
def test_row_14_softmax_of_an_attention_on_an_h100_is_memory_far_below_the_roof(traces):
    analysis = analysed(traces / TIMESFORMER)
    softmax = max((row for row in analysis.kernels if row.op == "aten::_softmax"), key=lambda row: row.us)
    assert softmax.us == pytest.approx(68688.625, abs=0.01)
    assert softmax.us / analysis.totals.busy_us == pytest.approx(0.43355, abs=0.0002)
    assert (softmax.bound, softmax.regime) == ("memory", "far_below_roof")
    # 12 calls move 2 x 8 x 12 x 3137 x 3137 numbers of 2 bytes each.
    rate = 12 * 2 * 8 * 12 * 3137**2 * 2 / 68688.625 / 1e6
    assert softmax.explained == pytest.approx(1e12 * rate / analysis.device.bandwidth_bytes_per_s, rel=1e-6)


# Row 15. Compiled kernels on an MI300X, modelled from their launch arguments: a buffer may be written in place or not.
def test_row_15_silu_and_product_of_triton_move_2_04_to_3_05_tb_per_s(traces):
    row = next(one for one in analysed(traces / TRITON).kernels if one.name.endswith("mul_silu_2"))
    assert row.us == pytest.approx(527.38, abs=0.01)
    assert rates(row) == pytest.approx((2.04, 3.05), abs=0.01)
    assert row.explained <= 1


def test_row_15_rmsnorm_of_triton_moves_at_least_3_48_tb_per_s(traces):
    rows = (one for one in analysed(traces / TRITON).kernels if one.name == "triton_red_fused_add_mean_mul_pow_rsqrt_0")
    row = next(rows)
    assert row.us == pytest.approx(77.07, abs=0.01)
    low, high = rates(row)
    assert low == pytest.approx(3.48, abs=0.005)
    assert low <= high <= 5.325
    assert row.bound == "memory"


# Row 16. An A100 multiplies two fp32 matrices of 1024 x 2560 in 9 us: 3.5 TB/s, where its DRAM gives 1.555.
def test_row_16_a_product_out_of_an_a100s_cache_says_so_and_never_exceeds_its_memory(traces):
    trace = read(traces / TRAINING)
    analysis = analysed(traces / TRAINING)
    shapes = "[[1024, 2560], [1024, 2560]]"
    rows = [row for row in analysis.kernels if (row.op, row.shapes) == ("aten::mul", shapes)]
    cached = [row for row in rows if row.reason == "served from cache"]
    assert len(cached) == 1 and cached[0].bound == "memory" and "vectorized" in cached[0].name
    durations = trace.events["dur_us"][(trace.events["name"] == cached[0].name).to_numpy()]
    tb_per_s = 3 * 1024 * 2560 * 4 / 9 / 1e6
    assert tb_per_s == pytest.approx(3.5, abs=0.05)
    assert (durations == 9).any()
    assert analysis.device.bandwidth_bytes_per_s == 1.555e12
    assert all(row.explained is None or row.explained <= 1 for row in analysis.kernels)
    assert analysis.totals.bandwidth_utilization <= 1
