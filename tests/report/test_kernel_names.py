"""Short names of kernels: they fit, they stay apart, they say what matters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bottleneck.report.kernel_names import cut_end, cut_middle, cut_place, cut_start, recording_names, short_names
from bottleneck.schema.kernel_names import essential_name, plain_name, terse_name
from tests.report.samples import ADAM, ADD, GELU, GEMM, HOSTILE_NAMES

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SUM = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, "
    "float>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>>)"
)
CUTLASS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>"
    "(cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2::Params)"
)
TENSILE = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x96x128_MI16x16x1_SN_LDSB1_AFC1_WS64_WG16_8_2"
MANGLED = "_ZN2ck16tensor_operation6device12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3INS_28GridwiseE"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (GELU, "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl(float), array<char*, 2ul>>"),
        (ADD, "vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16>, array<char*, 3ul>>"),
        (NCCL, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("std::enable_if<true, void>::type internal::gemvx::kernel<int, float>(int)", "gemvx::kernel<int, float>"),
    ],
)
def test_a_plain_name_has_no_namespaces_and_no_argument_list(name: str, plain: str) -> None:
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    ("name", "essential", "terse"),
    [
        (GELU, "vectorized_elementwise_kernel<GeluCUDAKernelImpl(float)>", "elementwise<Gelu(float)>"),
        (ADAM, "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>", "multi_tensor_apply<FusedAdamMath<float>>"),
        (SUM, "reduce_kernel<MeanOps<float>>", "reduce<Mean<float>>"),
        (CUTLASS, CUTLASS[22:85], "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn"),
        (TENSILE, "Cijk_Alik_Bljk_BBS_MT128x96x128", "Cijk_Alik_Bljk_BBS_MT128x96x128"),
        (MANGLED, "kernel_grouped_conv_fwd_xdl_cshuffle_v3", "kernel_grouped_conv_fwd_xdl_cshuffle_v3"),
        (GEMM, GEMM, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_128x128x64"),
        ("triton_poi_fused_add_gelu_0", "triton_poi_fused_add_gelu_0", "triton_poi_fused_add_gelu_0"),
        ("aten::addmm", "addmm", "addmm"),
    ],
)
def test_functors_and_tiles_outlive_the_words_that_every_kernel_has(name: str, essential: str, terse: str) -> None:
    assert (essential_name(name), terse_name(name)) == (essential, terse)


def test_names_that_fit_stay_as_they_are() -> None:
    assert short_names(["aten::addmm", "tiny_kernel"], 20) == ["aten::addmm", "tiny_kernel"]


def test_two_kernels_that_differ_only_in_plain_arguments_stay_apart() -> None:
    names = [f"void softmax_warp_forward<float, float, float, {depth}, false>(int)" for depth in (9, 10)]
    assert short_names(names, 60) == [f"softmax_warp_forward<float, float, float, {depth}, false>" for depth in (9, 10)]
    first, second = short_names(names, 24)
    assert first != second and second.endswith(" #2")


def test_the_same_kernel_twice_keeps_one_name() -> None:
    first, other, again = short_names([GELU, ADD, GELU], 26)
    assert first == again != other


@given(
    st.lists(st.sampled_from([*HOSTILE_NAMES, GELU, ADD, ADAM, GEMM, SUM]) | st.text(max_size=80)), st.integers(1, 60)
)
def test_every_name_fits_and_distinct_ones_stay_distinct(names: list[str], width: int) -> None:
    shown = [name.encode("utf-8", "backslashreplace").decode() for name in names]
    short = short_names(shown, width)
    assert all(cell_len(text) <= width for text in short)
    if width >= 12:
        assert len(set(short)) == len(set(shown))


def test_cutting_keeps_the_part_that_tells() -> None:
    assert cut_end("abcdefghij", 6) == "abcde…"
    assert cut_start("/very/long/train.py:57", 12) == "…train.py:57"
    assert cut_middle("gemm_128x256_tn_align8", 13) == "gemm_1…align8"
    assert cut_end("abcdef", 4, "...") == "a..."
    assert [cut_middle("abcdef", width) for width in (0, 1, 2)] == ["", "a", "ab"]


def test_a_long_module_path_keeps_its_first_and_its_last_parts() -> None:
    path = "encoder.layer.0.attention.self.query"
    assert cut_place(path, 40) == path
    assert cut_place(path, 30) == "encoder.….attention.self.query"
    assert cut_place(path, 20) == "encoder.….self.query"
    assert cut_place(path, 16) == "encoder.….query"
    assert cut_place(path, 13) == "….self.query"  # no room for the first part: the last ones say more than half a name
    assert cut_place("Model > Block x 24 > Attention > Linear", 30) == "Model > … > Attention > Linear"


def test_without_room_a_source_keeps_its_end_and_a_module_path_both_ends() -> None:
    assert cut_place("long_name_of_a_file.py:57", 12) == "…_file.py:57"
    assert cut_place("encoder.layer.0.attention", 9) == "enco…tion"
    assert cut_place("encoder.attention", 9) == "enco…tion"


def test_names_of_recordings_are_short_and_stay_different() -> None:
    assert recording_names(["runs/a/trace.json.gz", "main (1a2b3c4)"]) == ["runs/a/trace.json.gz", "main (1a2b3c4)"]
    assert recording_names(["/data/of/last/week/run_with_a_long_name_0.json.gz"]) == ["run_with_a_lon…ame_0.json.gz"]
    many = [f"/data/{folder}/with_a_long_path/trace_of_rank.json.gz" for folder in ("old", "new")]
    assert recording_names(many) == ["…data/old/with_a_long_path/…", "…data/new/with_a_long_path/…"]
