"""Rules of products and attention: shapes, waves, many small ones, near and far from the roof."""

from pathlib import Path

import pytest

from bottleneck.advice.matrix_products import (
    many_small_products,
    misaligned_products,
    near_roof,
    slow_attention,
    slow_cpu_products,
    slow_products,
    unfilled_waves,
)
from bottleneck.pipeline import examine
from bottleneck.schema.analysis import CONTENDED, Caveat
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from tests.advice.cases import with_analysis
from tests.advice.programs import Call, halves, on_cpu, on_gpu

ALIGNED, ODD = (f"cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x3_nn_align{n}" for n in (8, 1))


def product(m: int, k: int, n: int, us: float, kernel: str = ALIGNED, grid: int = 1000) -> Call:
    return Call("aten::mm", us, [[m, k], [k, n]], kernel, grid, more=halves(2))


def test_odd_sizes_on_matrix_units_are_worth_padding(tmp_path: Path) -> None:
    draft = misaligned_products(on_gpu(tmp_path, [product(8192, 1024, 50257, 3000, ODD)]))
    assert draft is not None
    assert draft.advice.startswith("Pad 50257 first")
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(3000 - 843.7e9 / 989e12 * 1e6 / 0.7, rel=0.02)
    assert draft.tries == ("pad", "pad-vocabulary")
    assert "no multiple of 8: n = 50257" in draft.evidence[1]


def test_even_sizes_and_quick_kernels_need_no_padding(tmp_path: Path) -> None:
    assert misaligned_products(on_gpu(tmp_path, [product(8192, 1024, 50304, 3000)])) is None
    assert misaligned_products(on_gpu(tmp_path / "quick", [product(8192, 1024, 50257, 1000)])) is None
    assert misaligned_products(on_cpu(tmp_path / "cpu", [product(8192, 1024, 50257, 9e6)])) is None


def test_tiles_that_begin_another_wave_leave_most_of_it_empty(tmp_path: Path) -> None:
    tiled = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cluster1x1x1"
    half_full = product(128 * 10, 1024, 128 * 14, 30, tiled, grid=140)  # 140 tiles for 132 multiprocessors
    draft = unfilled_waves(on_gpu(tmp_path, [half_full] * 4))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(120 * (1 - 140 / 264), rel=0.03)
    assert any(line.startswith("wave quantisation: 140 tiles") for line in draft.evidence)
    full = product(128 * 11, 1024, 128 * 24, 30, tiled, grid=264)
    assert unfilled_waves(on_gpu(tmp_path / "full", [full] * 4)) is None


def heads(count: int, us: float = 15) -> list[Call]:
    return [product(128, 768, 768, us, grid=36)] * count


def tiled(folder: Path, m: int) -> Evidence:
    """A product in tiles of 256 x 128, its sum shared out twice, on a device that the trace does not name."""
    name = "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN_GSU2_GSUAMB_ISA942"
    case = on_gpu(folder, [Call("aten::mm", 1000, [[m, 131072], [131072, 512]], name, more=halves(2))])
    return with_analysis(case, device=replace(case.analysis.device, sm_count=None, kind="rocm"))


def test_tiles_that_are_too_few_for_any_device_need_other_tiles(tmp_path: Path) -> None:
    draft = unfilled_waves(tiled(tmp_path / "few", 256))
    assert draft is not None and draft.gain_us is not None
    assert "at most 8 tiles" in draft.evidence[1] and "TUNABLEOP" in draft.advice
    assert draft.gain_us.high == pytest.approx(0.75 * 1000, rel=0.01)
    assert unfilled_waves(tiled(tmp_path / "many", 4096)) is None


def test_three_small_products_of_one_shape_could_be_one(tmp_path: Path) -> None:
    relu = Call("aten::relu", 5, [[128, 768]], more=halves(1))
    draft = many_small_products(on_gpu(tmp_path, [*heads(3), relu, *heads(3)]))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(60, rel=0.02)  # two of three, twice
    assert draft.evidence[0] == "2 runs per step of 3 products of one shape, in trace order"


def test_two_or_large_products_or_such_with_work_between_stay_apart(tmp_path: Path) -> None:
    relu = Call("aten::relu", 5, [[128, 768]], more=halves(1))
    assert many_small_products(on_gpu(tmp_path / "two", heads(2))) is None
    assert many_small_products(on_gpu(tmp_path / "apart", [*heads(1), relu] * 3)) is None
    assert many_small_products(on_gpu(tmp_path / "large", heads(3, us=400))) is None
    assert many_small_products(on_gpu(tmp_path / "one a step", heads(1), steps=5)) is None


def square(us: float) -> list[Call]:
    return [Call("aten::mm", us, [[1000, 1000], [1000, 1000]])]  # 20 ms at the peak of the CPU of these tests


def test_products_near_the_peak_leave_nothing_to_tune(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, square(22_000))
    draft = near_roof(case)
    assert draft is not None
    assert draft.gain_us is None
    assert draft.gain_reason is not None
    assert draft.gain_reason.startswith("none: these products run at 90.9 % of the peak")
    assert slow_cpu_products(case) is None


def test_products_far_above_the_peak_have_another_one(tmp_path: Path) -> None:
    """Convolutions at 2.4 times the rate of the calibrated products ran "at 99.8 % of the peak"."""
    assert near_roof(on_cpu(tmp_path / "far", square(10_000))) is None
    assert near_roof(on_cpu(tmp_path / "a little", square(18_500))) is not None


def test_products_far_below_the_peak_of_a_cpu(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, square(100_000))
    assert near_roof(case) is None
    draft = slow_cpu_products(case)
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(80_000, rel=0.01)
    # No convolution, and no backward pass: weights may be packed ahead, and there is no order of channels.
    assert draft.title.startswith("Matmuls") and "(frozen weights)" in draft.advice


def test_products_of_a_training_step_have_no_weights_to_freeze(tmp_path: Path) -> None:
    backward = Call("aten::add_", 80, [[8], [8], []], inside="autograd::engine::evaluate_function: AddmmBackward0")
    draft = slow_cpu_products(on_cpu(tmp_path, [*square(100_000), backward]))
    assert draft is not None and draft.advice.startswith("Look at threads")


@pytest.mark.parametrize(("dims", "layout"), [(2, "channels_last"), (3, "channels_last_3d")])
def test_slow_convolutions_of_volumes_are_laid_out_as_volumes(dims: int, layout: str, tmp_path: Path) -> None:
    """A network of volumes cannot be laid out in `channels_last`, which takes tensors of four dimensions."""
    sizes: list[object] = [[8, 128, *[32] * dims], [128, 128, *[3] * dims], [], *[[]] * 9]
    ones, none = f"[{', '.join('1' * dims)}]", f"[{', '.join('0' * dims)}]"
    concrete = ["", "", "", ones, ones, ones, "False", none, "1", "False", "False", "True"]
    call = Call("aten::_convolution", 5e6, sizes, more={"concrete": concrete})
    draft = slow_cpu_products(on_cpu(tmp_path, [call]))
    assert draft is not None and draft.code == f"model = model.to(memory_format=torch.{layout})"


def test_time_that_other_programs_took_is_no_fault_of_the_products(tmp_path: Path) -> None:
    case = on_cpu(tmp_path, square(100_000))
    assert slow_cpu_products(case) is not None
    assert slow_cpu_products(with_analysis(case, caveats=(Caveat(CONTENDED, "others ran too", 0.9),))) is None


def test_small_products_cannot_reach_the_peak_of_large_ones(tmp_path: Path) -> None:
    assert slow_cpu_products(on_cpu(tmp_path, [Call("aten::mm", 400, [[64, 64], [64, 64]])] * 9)) is None


FLASH_2 = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64>>(Flash_fwd_params)"
FLASH_3 = "void flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>(Params)"


def attention(us: float, kernel: str = FLASH_2, tokens: int = 8192) -> Call:
    """Attention of 16 heads of 128 numbers: 0.55 TFLOP over 8192 tokens, 0.56 ms at the peak."""
    more = {"types": ["c10::BFloat16"] * 3 + ["Scalar"] * 2, "concrete": ["", "", "", "0.", "False"]}
    dims: list[object] = [*[[1, 16, tokens, 128]] * 3, [], []]
    return Call("aten::_scaled_dot_product_flash_attention", us, dims, kernel, more=more)


def test_attention_in_a_kernel_of_the_generation_before_the_device(tmp_path: Path) -> None:
    draft = slow_attention(on_gpu(tmp_path, [attention(1600)]))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(1600 - 4 * 16 * 8192**2 * 128 / 989.4e12 * 1e6 / 0.6, rel=0.01)
    assert "FlashAttention-3" in draft.advice


def test_attention_that_is_quick_or_in_a_kernel_for_this_device_or_short(tmp_path: Path) -> None:
    assert slow_attention(on_gpu(tmp_path / "quick", [attention(800)])) is None
    assert slow_attention(on_gpu(tmp_path / "own", [attention(1600, FLASH_3)])) is None
    assert slow_attention(on_gpu(tmp_path / "short", [attention(5, tokens=128)])) is None


@pytest.mark.corpus
def test_a_triton_kernel_for_any_device_on_mi300(traces: Path) -> None:
    (path,) = traces.glob("*sdpa_01_long_seq_low_eff*")
    draft = slow_attention(examine(find_traces(path)[0]))
    assert draft is not None and "AITER" in draft.advice
    assert "24.1 % of the peak" in draft.evidence[0]


def test_products_far_slower_than_others_of_their_size(tmp_path: Path) -> None:
    quick, slow = product(4096, 4096, 4096, 200), product(4096, 5120, 4096, 600)
    draft = slow_products(on_gpu(tmp_path, [quick, slow] * 4))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(4 * (600 - 200 * 5 / 4), rel=0.01)
    assert "4096x5120" in draft.evidence[1]


def test_products_of_other_sizes_or_about_as_quick_or_slow_only_once(tmp_path: Path) -> None:
    quick = product(4096, 4096, 4096, 200)
    assert slow_products(on_gpu(tmp_path / "size", [quick, product(4096, 256, 4096, 30)] * 4)) is None
    assert slow_products(on_gpu(tmp_path / "alike", [quick, product(4096, 5120, 4096, 450)] * 4)) is None
    others = [product(4096, 5120, 4096, 250)] * 9
    assert slow_products(on_gpu(tmp_path / "once", [quick, product(4096, 5120, 4096, 900), *others])) is None
