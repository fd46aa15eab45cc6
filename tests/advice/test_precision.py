"""Rules of precision: what narrower numbers are worth on units that are faster on them, and only there."""

from pathlib import Path

import pytest

from bottleneck.advice.precision import (
    double_precision,
    eight_bit_products,
    fp32_products,
    half_precision,
    half_precision_does_not_pay,
    half_precision_not_known,
    slower_half_precision,
    unpacked_weights,
    weights_for_few_rows,
)
from bottleneck.devices.match import device_by_name
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import AtAnyPace, Evidence
from bottleneck.schema.measurements import PageFaults
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, program_line, two_steps, with_analysis
from tests.advice.programs import Call, halves, on_cpu, on_gpu
from tests.analysis.frames import CPU
from tests.builders import Event, frame, kernel, launch, op, step

SIMT, TENSOR = "ampere_sgemm_128x64_nn", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
LARGE = [[4096, 4096], [4096, 4096]]  # 137 GFLOP


# A step with it is one of training, whose weights stay in fp32.
TRAINS = Call("aten::threshold_backward", 1.0, None)


def product(us: float, kernel: str = SIMT, **more: object) -> Call:
    return Call("aten::mm", us, LARGE, kernel, more=dict(more))


def on_cpu_with(tmp_path: Path, bf16_flops_per_s: float | None) -> Evidence:
    peaks = {"fp32_tensor": 1e11, "fp32_vector": 1e11}
    peaks |= {} if bf16_flops_per_s is None else {"bf16_tensor": bf16_flops_per_s}
    calls = [Call("aten::mm", 25_000, [[1024, 1024], [1024, 1024]])]
    return on_cpu(tmp_path, calls, device=replace(CPU, peaks_flops_per_s=peaks))


def test_a_cpu_whose_bf16_products_are_faster(tmp_path: Path) -> None:
    draft = half_precision(on_cpu_with(tmp_path, 4e11))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.tries == ("bf16-autocast",)
    assert 15_000 < draft.gain_us.high < 25_000 * 0.77  # a quarter of the arithmetic at least is left
    assert 10_000 < draft.gain_us.low < 0.75 * 21_475  # of the arithmetic alone, less casts
    assert "4.0 times" in draft.evidence[1]
    assert draft.evidence[2].startswith("casts and the longer calls of 1 product cost ")


@pytest.mark.parametrize(("quicker_us", "gain"), [(1000.0, (0.0, 1000.0)), (100.0, None)])
def test_faster_products_behind_a_profiled_host_gain_as_far_as_it_may_be_quicker(
    tmp_path: Path, quicker_us: float, gain: tuple[float, float] | None
) -> None:
    """ResNet-50 in fp32 has 43 % of its step in convolutions, and the profiled host launches them more slowly."""
    case = replace(
        on_gpu(tmp_path, [TRAINS, product(4000.0)]),
        predict=lambda _evidence, change: quicker_us if isinstance(change, AtAnyPace) else 0.0,
    )
    draft = half_precision(case)
    assert (None if draft is None or draft.gain_us is None else (draft.gain_us.low, draft.gain_us.high)) == gain
    assert draft is None or (draft.confidence == "low" and any("sets the pace" in line for line in draft.evidence))


def test_work_bound_by_its_bytes_takes_half_of_its_time_at_most(tmp_path: Path) -> None:
    calls = [product(4000.0), Call("aten::add", 600.0, [[4096, 4096], [4096, 4096], []])]
    alone, both = (half_precision(on_gpu(tmp_path / str(count), [TRAINS, *calls[:count]])) for count in (1, 2))
    assert alone is not None and alone.gain_us is not None and both is not None and both.gain_us is not None
    # Its 200 MB need 60 us at this device's bandwidth: it is far below, and stays so.
    assert both.gain_us.high - alone.gain_us.high == pytest.approx(300, rel=0.05)
    assert both.gain_us.low - alone.gain_us.low == pytest.approx(0, abs=5)


def test_small_products_on_a_cpu_pay_more_for_casts_and_calls_than_bf16_saves(tmp_path: Path) -> None:
    peaks = {"fp32_tensor": 1e11, "fp32_vector": 1e11, "bf16_tensor": 4e11}
    device = replace(CPU, peaks_flops_per_s=peaks)
    small = [Call("aten::mm", 20, [[16, 64], [64, 64]])] * 50
    case = on_cpu(tmp_path / "small", small, device=device)
    assert half_precision(case) is None
    draft = half_precision_does_not_pay(case)
    assert draft is not None
    assert draft.gain_us is None
    assert draft.tries == ("bf16-autocast",)
    other = [Call("aten::add", 10_000, [[1 << 20], [1 << 20], []])]
    assert half_precision_does_not_pay(on_cpu(tmp_path / "few", [*small, *other], device=device)) is None


def test_a_product_with_a_vector_casts_more_bytes_of_its_matrix_than_it_then_reads_less(tmp_path: Path) -> None:
    peaks = {"fp32_tensor": 1e11, "fp32_vector": 1e11, "bf16_tensor": 4e11}
    call = Call("aten::mv", 10_000, [[16_384, 1024], [1024]])
    case = on_cpu(tmp_path, [call], device=replace(CPU, peaks_flops_per_s=peaks))
    assert half_precision(case) is None
    assert half_precision_does_not_pay(case) is not None


def test_nobody_is_told_that_bf16_loses_where_it_gains_or_where_it_is_not_fast(tmp_path: Path) -> None:
    assert half_precision_does_not_pay(on_cpu_with(tmp_path / "gains", 4e11)) is None
    assert half_precision_does_not_pay(on_cpu_with(tmp_path / "slow", 1.2e11)) is None
    assert half_precision_does_not_pay(on_gpu(tmp_path / "gpu", [product(2000)])) is None


def test_convolutions_on_a_cpu_gain_less_for_sure_than_products(tmp_path: Path) -> None:
    peaks = {"fp32_tensor": 1e11, "fp32_vector": 1e11, "bf16_tensor": 4e11}
    device = replace(CPU, peaks_flops_per_s=peaks)
    dims = [[8, 64, 112, 112], [64, 64, 3, 3], [], [], [], [], [], [], []]
    concrete = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    flops = 2 * 8 * 64 * 64 * 9 * 112 * 112
    convolution = Call("aten::mkldnn_convolution", flops / 1e11 * 1e6, dims, more={"concrete": concrete})
    draft = half_precision(on_cpu(tmp_path, [convolution], device=device))
    assert draft is not None and draft.gain_us is not None
    assert 0.5 * convolution.us < draft.gain_us.low < (1 - 1 / 2.6) * convolution.us
    assert 0.6 * convolution.us < draft.gain_us.high <= (1 - 1 / 3.2) * convolution.us


def gain_beside_attention(folder: Path, name: str, heads: list[int], us: float, bf16: float) -> tuple[float, float]:
    """What attention adds, at least and at most, to the gain of a large product in bf16."""
    peaks = {"fp32_tensor": 1.14e11, "fp32_vector": 1.33e11, "bf16_tensor": bf16}
    device = replace(CPU, peaks_flops_per_s=peaks, launch_floor_us=0.42)
    large = Call("aten::mm", 180_000, [[2048, 2048], [2048, 2048]])
    dims = [*[heads] * 5, heads[:3]] if name else [heads] * 3
    options = {"concrete": [*[""] * len(dims), "0.", "False", "", ""]}
    attends = Call(
        f"aten::_scaled_dot_product_flash_attention_for_cpu{name}", us, [*dims, [], [], [], []], more=options
    )
    alone, both = (
        half_precision(on_cpu(folder / str(len(calls)), calls, device=device, threads=1))
        for calls in ([TRAINS, large], [TRAINS, large, attends])
    )
    assert alone is not None and alone.gain_us is not None and both is not None and both.gain_us is not None
    return both.gain_us.low - alone.gain_us.low, both.gain_us.high - alone.gain_us.high


@pytest.mark.parametrize(
    ("name", "heads", "us", "lost_us"),
    [
        ("_backward", [8, 8, 32, 32], 329, 2586),
        ("_backward", [12, 8, 64, 32], 1849, 7556),
        ("_backward", [6, 8, 128, 64], 7486, 4613),
        ("_backward", [2, 8, 512, 64], 31_461, -7830),
        ("_backward", [2, 8, 1024, 64], 116_814, -46_005),
        ("", [8, 8, 32, 32], 170, 72),
        ("", [2, 8, 1024, 64], 46_353, 1815),
    ],
    ids=str,
)
def test_small_attention_of_a_cpu_takes_longer_in_bf16(
    tmp_path: Path, name: str, heads: list[int], us: float, lost_us: float
) -> None:
    """Measured with torch 2.13 on an EPYC with AVX512-BF16, one thread: 504 for 114 GFLOP/s."""
    low, high = gain_beside_attention(tmp_path, name, heads, us, 5.04e11)
    assert low <= -lost_us <= high


def test_attention_of_a_cpu_gains_forward_only_by_matrix_units(tmp_path: Path) -> None:
    heads = [2, 8, 1024, 64]
    _, by_vectors = gain_beside_attention(tmp_path / "vectors", "", heads, 46_353, 2.9e11)
    _, by_matrices = gain_beside_attention(tmp_path / "matrices", "", heads, 46_353, 8e11)
    assert by_vectors <= 0
    assert by_matrices > 10_000


def test_a_depthwise_convolution_has_no_product_for_matrix_units(tmp_path: Path) -> None:
    peaks = {"fp32_tensor": 1e11, "fp32_vector": 1e11, "bf16_tensor": 4e11}
    device = replace(CPU, peaks_flops_per_s=peaks)

    def convolution(groups: int) -> Call:
        dims = [[8, 64, 112, 112], [64, 64 // groups, 3, 3], [], [], [], [], [], [], []]
        concrete = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", str(groups)]
        return Call("aten::mkldnn_convolution", 200_000, dims, more={"concrete": concrete})

    assert half_precision(on_cpu(tmp_path / "dense", [convolution(1)], device=device)) is not None
    # How quick the library's loops over planes are in bf16 is a question that only measuring answers.
    asked = half_precision(on_cpu(tmp_path / "depthwise", [convolution(64)], device=device))
    assert asked is not None and asked.only_measured
    little = [convolution(64), Call("aten::mul", 4_000_000, [[25_000_000], []])]
    assert half_precision(on_cpu(tmp_path / "little", little, device=device)) is None


@pytest.mark.parametrize("bf16", [None, 1.2e11, 1.3e9], ids=["not measured", "hardly faster", "emulated"])
def test_a_cpu_without_units_for_bf16_stays_in_fp32(tmp_path: Path, bf16: float | None) -> None:
    assert half_precision(on_cpu_with(tmp_path, bf16)) is None


@pytest.mark.parametrize(("kernel", "has_gain"), [("volta_sgemm_64x64_nt", True), ("volta_fp16_s884gemm_nt", False)])
def test_products_without_shapes_are_known_by_the_names_of_their_kernels(
    tmp_path: Path, kernel: str, has_gain: bool
) -> None:
    evidence = on_gpu(tmp_path, [Call("aten::mm", 30_000, None, kernel)])
    draft = half_precision(with_analysis(evidence, device=device_by_name("Tesla V100-SXM2-16GB")))
    assert (draft is not None) == has_gain
    if draft is not None:
        assert draft.confidence == "low" and draft.gain_us is not None
        assert (draft.gain_us.low, draft.gain_us.high) == (pytest.approx(10_000), pytest.approx(20_000))


@pytest.mark.parametrize(
    ("name", "dtype", "tries"),
    [
        ("Tesla V100-SXM2-16GB", "float16", ()),
        ("Tesla T4", "float16", ()),
        ("NVIDIA H100 80GB HBM3", "bfloat16", ("bf16-autocast",)),
    ],
)
def test_gpus_without_bf16_units_take_fp16_with_a_gradient_scaler(
    tmp_path: Path, name: str, dtype: str, tries: tuple[str, ...]
) -> None:
    evidence = with_analysis(on_gpu(tmp_path, [TRAINS, product(30_000)]), device=device_by_name(name))
    draft = half_precision(evidence)
    assert draft is not None and draft.code is not None and draft.gain_us is not None
    assert f"torch.{dtype}" in draft.code and draft.tries == tries
    assert ("GradScaler" in draft.code) == (dtype == "float16")
    assert draft.changes_results and draft.gain_us.high > 0


def test_inference_on_a_gpu_may_hold_weights_in_16_bits_and_casts_nothing(tmp_path: Path) -> None:
    calls = [product(3000.0), Call("aten::native_layer_norm", 600.0, [[8192, 4096], [4096], [4096]])]
    trains, infers = (half_precision(on_gpu(tmp_path / str(len(more)), [*calls, *more])) for more in ([TRAINS], []))
    assert trains is not None and trains.gain_us is not None and trains.code is not None
    assert infers is not None and infers.gain_us is not None and infers.code is not None
    assert "autocast" in trains.code and "model.to(torch.bfloat16)" in infers.code
    # The norm halves too: a quarter of what its 268 MB need at 3.35 TB/s is certain; and no operand is cast.
    assert infers.gain_us.low - trains.gain_us.low > 20
    assert infers.gain_us.high == pytest.approx(trains.gain_us.high, rel=0.01)


def test_a_gpu_without_any_matrix_units_stays_in_fp32(tmp_path: Path) -> None:
    plain = replace(device_by_name("Tesla T4"), peaks_flops_per_s={"fp32_vector": 8e12})
    assert half_precision(with_analysis(on_gpu(tmp_path, [product(30_000)]), device=plain)) is None


@pytest.mark.parametrize(
    ("kernel", "more", "flavour", "is_told"),
    [
        (SIMT, {}, "cuda", True),
        (TENSOR, halves(2), "cuda", False),
        (SIMT, {}, "rocm", False),
    ],
    ids=["fp32", "bf16", "another vendor"],
)
def test_fp32_products_of_a_gpu_without_a_name_are_told_without_a_gain(
    tmp_path: Path, kernel: str, more: dict[str, object], flavour: str, is_told: bool
) -> None:
    """A training in fp32 on a Volta that its trace does not name was told of its loader alone."""
    named = on_gpu(tmp_path, [TRAINS, product(4000.0, kernel, **more)])
    linked = replace(named.linked, trace=replace(named.linked.trace, flavour=flavour))
    case = replace(with_analysis(named, device=replace(named.analysis.device, peaks_flops_per_s={})), linked=linked)
    draft = half_precision_not_known(case)
    assert (draft is not None) == is_told
    assert draft is None or (draft.gain_us is None and not draft.on_request and "fp16" in draft.advice)
    assert half_precision_not_known(named) is None


@pytest.mark.parametrize(
    ("sizes", "is_shown"), [([[1024, 1024], [1024, 1024]], True), ([[2, 1024], [1024, 1024]], False)]
)
def test_a_cpu_without_a_name_is_asked_for_bf16_where_large_products_are_most_of_the_step(
    tmp_path: Path, sizes: list[list[int]], is_shown: bool
) -> None:
    device = replace(CPU, peaks_flops_per_s={}, bandwidth_bytes_per_s=None)
    draft = half_precision_not_known(on_cpu(tmp_path, [Call("aten::mm", 25_000, sizes)], device=device))
    assert draft is not None and draft.gain_us is None
    assert "amx_bf16" in (draft.brief or "")
    assert draft.on_request is not is_shown


@pytest.mark.parametrize(
    ("casts", "inside", "is_told"),
    [(0, True, True), (4, True, False), (1, True, False), (4, False, True)],
    ids=["fp32 probably", "autocast", "autocast of layers in a row", "casts of the data"],
)
def test_products_whose_dtypes_are_not_known_are_asked_for_bf16_unless_they_are_cast(
    tmp_path: Path, casts: int, inside: bool, is_told: bool
) -> None:
    """A training with LoRA in fp32, recorded without shapes, was told to be recorded again.

    So was RAFT, whose grids of coordinates are cast as often as it multiplies.
    """
    events = [step(0, 0, 1000)]
    for number in range(4):
        at = 10 + 240.0 * number
        if number < casts:
            into = at + 2 if inside else at - 8
            events += [op("aten::to", into, 6), op("aten::_to_copy", into + 1, 4)]
        events += [op("aten::linear", at, 215), op("aten::addmm", at + 12, 200)]
    case = case_of(tmp_path, events)
    unnamed = replace(case.analysis.device, peaks_flops_per_s={}, bandwidth_bytes_per_s=None)
    draft = half_precision_not_known(with_analysis(case, device=unnamed))
    assert (draft is not None) == is_told
    assert draft is None or "if the model is in fp32" in (draft.brief or "")


@pytest.mark.parametrize("solve_us", [5, 200])
def test_a_program_that_factorizes_matrices_is_not_asked_for_bf16(tmp_path: Path, solve_us: int) -> None:
    """A Gaussian process in fp64, recorded without shapes, was to try bf16."""
    events = [step(0, 0, 1000), op("aten::mm", 10, 500), op("aten::linalg_solve_triangular", 520, solve_us)]
    case = case_of(tmp_path, events)
    unnamed = replace(case.analysis.device, peaks_flops_per_s={}, bandwidth_bytes_per_s=None)
    draft = half_precision_not_known(with_analysis(case, device=unnamed))
    assert (draft is None) is (solve_us > 100)


@pytest.mark.parametrize(("name", "is_told"), [("quantized::linear_dynamic", False), ("aten::addmm", True)])
def test_quantized_products_are_not_asked_for_bf16(tmp_path: Path, name: str, is_told: bool) -> None:
    case = case_of(tmp_path, [step(0, 0, 1000), op(name, 10, 900)])
    unnamed = replace(case.analysis.device, peaks_flops_per_s={}, bandwidth_bytes_per_s=None)
    assert (half_precision_not_known(with_analysis(case, device=unnamed)) is not None) == is_told


def test_bf16_products_have_nothing_to_halve(tmp_path: Path) -> None:
    assert half_precision(on_gpu(tmp_path, [product(300, TENSOR, **halves(2))])) is None


def of_two_dtypes(folder: Path, *narrow_then_wide: bool, source: bool) -> Evidence:
    """Products one after the other, in bf16 or in fp32, with or without Python frames."""
    events: list[Event] = [step(1, 0, 2000 * len(narrow_then_wide) + 50)]
    if source:
        events.append(frame("vae.py(12): decode", 0, 2000 * len(narrow_then_wide)))
    for number, is_narrow in enumerate(narrow_then_wide):
        at, starts_us = 30 * number, 30 + 2000 * number
        size, more = 4096 + 128 * number, halves(2) if is_narrow else {}
        events.append(op("aten::mm", at + 1, 20, dims=[[size, 4096], [4096, 4096]], external_id=number + 1, **more))
        events.append(launch(number + 1, at + 2, 5))
        events.append(kernel(number + 1, starts_us, 1995, TENSOR if is_narrow else SIMT, grid=[4000, 1, 1]))
    events.append(launch(10**7, 200, 2000 * len(narrow_then_wide) - 180, "cudaDeviceSynchronize"))
    return case_of(folder, events)


def test_a_model_of_two_dtypes_is_told_which_part_is_in_fp32(tmp_path: Path) -> None:
    late = half_precision(of_two_dtypes(tmp_path / "late", True, True, False, False, source=False))
    assert late is not None and late.title == "A part of the model works in fp32 beside bf16"
    assert late.evidence[0].startswith("50.0 % of the products' time is in fp32")
    assert "from 4.00 ms into the step on: aten::mm on 4352x4096, 4096x4096 to aten::mm on 4480x4096" in late.advice
    turns = half_precision(of_two_dtypes(tmp_path / "turns", False, True, False, source=False))
    assert turns is not None and "(aten::mm on 4096x4096, 4096x4096 to aten::mm on 4352x4096" in turns.advice
    lines = half_precision(of_two_dtypes(tmp_path / "lines", True, False, source=True))
    assert lines is not None and "most of it in decode() (vae.py:12)" in lines.advice and len(lines.places) == 1
    alone = half_precision(of_two_dtypes(tmp_path / "alone", False, False, source=False))
    assert alone is not None and alone.title == "The model works in fp32 where bf16 would do"


def test_half_types_that_plain_units_sum_up_in_fp32_are_no_products_in_fp32(tmp_path: Path) -> None:
    name = "void precomputed_convolve_sgemm<{}, 1024, 5, 5, 4, 3, 3, 1, false>(int)"
    drafts = {
        kind: fp32_products(on_gpu(tmp_path / kind, [Call("mine::conv", 900, None, name.format(kind))]))
        for kind in ("float", "__nv_bfloat16")
    }
    assert drafts["float"] is not None and drafts["__nv_bfloat16"] is None


def test_without_products_autocast_changes_nothing(tmp_path: Path) -> None:
    assert half_precision(on_gpu(tmp_path, [Call("aten::add", 100, [[4096, 4096], [4096, 4096], []])])) is None


def test_pointwise_work_beside_products_halves_too(tmp_path: Path) -> None:
    add = Call("aten::add", 100, [[8192, 4096], [8192, 4096], []])
    alone, beside = (half_precision(on_gpu(tmp_path / str(n), [TRAINS, product(3000), *[add] * n])) for n in (0, 4))
    assert alone is not None
    assert beside is not None
    assert alone.gain_us is not None
    assert beside.gain_us is not None
    assert beside.gain_us.high - alone.gain_us.high == pytest.approx(200, rel=0.2)
    assert beside.gain_us.low == pytest.approx(alone.gain_us.low, rel=0.01)


BATCH_NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<{0}, float, int, 128, true, 1, true>(cudnnTensorStruct)"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{0}, float, false>(int, float)"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<{0}, {0}, {0}, threshold>>(int)"
CONVOLUTION = "volta_scudnn_128x64_relu_medium_nn_v1"


@pytest.mark.parametrize(
    ("product_kernel", "kernel", "dtype", "least_us", "most_us"),
    [
        (CONVOLUTION, BATCH_NORM, "float", 2500, 5000),
        (CONVOLUTION, RELU, "float", 2500, 5000),
        (CONVOLUTION, RELU, "__half", 0, 0),
        (CONVOLUTION, LAYER_NORM, "float", 0, 5000),
        ("volta_sgemm_64x64_nt", RELU, "float", 0, 5000),
    ],
)
def test_the_bytes_of_other_work_halve_where_names_alone_tell_its_dtype(
    tmp_path: Path, product_kernel: str, kernel: str, dtype: str, least_us: float, most_us: float
) -> None:
    def gain(name: str) -> Interval:
        calls = [TRAINS, Call("mine::product", 30_000, None, product_kernel), Call("mine::work", 10_000, None, name)]
        evidence = on_gpu(tmp_path / name.split("<", maxsplit=1)[0][-9:], calls)
        draft = half_precision(with_analysis(evidence, device=device_by_name("Tesla V100-SXM2-16GB")))
        assert draft is not None and draft.gain_us is not None
        return draft.gain_us

    more, of_product = gain(kernel.format(dtype)), gain("void of_no_known_dtype<int>(int)")
    assert more.low - of_product.low == pytest.approx(least_us, abs=1)
    assert more.high - of_product.high == pytest.approx(most_us, abs=1)


def test_fp32_products_on_plain_units_gain_from_tf32(tmp_path: Path) -> None:
    draft = fp32_products(on_gpu(tmp_path, [product(3000)]))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.tries == ("tf32",)
    assert draft.gain_us.high == pytest.approx(3000 - 2051 * 67 / 495, rel=0.01)  # no more than its floor in TF32
    assert draft.gain_us.low == pytest.approx(3000 - 137.4e9 / (0.46 * 495e12) * 1e6, rel=0.02)  # at 46 % of the peak


def test_a_product_of_known_sizes_saves_what_the_rates_of_the_other_type_leave(tmp_path: Path) -> None:
    thin = Call("aten::mm", 3000.0, [[262144, 256], [256, 128]], SIMT)  # 17 GFLOP, 403 MB in fp32
    large, thin_gain = (
        half_precision(on_gpu(tmp_path / str(at), [call])) for at, call in enumerate([product(3000), thin])
    )
    assert large is not None and large.gain_us is not None and thin_gain is not None and thin_gain.gain_us is not None
    assert large.gain_us.low > 3000 - 137.4e9 / (0.4 * 989e12) * 1e6  # more than 40 % of the peak
    assert thin_gain.gain_us.high < 3000 - (201e6 - 50e6) / 3.35e12 * 1e6  # of its bytes 50 MB fit into the cache
    # It takes ten times as long as the rates explain: half of its time may stay.
    assert thin_gain.gain_us.low == pytest.approx(3000 * 0.25, rel=0.01)


@pytest.mark.parametrize("name", ["cutlass_80_tensorop_s1688gemm_256x128_32x3_nn_align1", TENSOR])
def test_products_on_tensor_cores_are_left_alone(tmp_path: Path, name: str) -> None:
    assert fp32_products(on_gpu(tmp_path, [product(600, name)])) is None


def test_16_bit_products_at_their_peak_gain_from_8_bits(tmp_path: Path) -> None:
    case = on_gpu(tmp_path, [product(170, TENSOR, **halves(2))])
    draft = eight_bit_products(case)
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(85, rel=0.05)
    peaks = {name: peak for name, peak in case.analysis.device.peaks_flops_per_s.items() if name != "fp8_tensor"}
    assert draft.code is not None and "Float8DynamicActivationFloat8WeightConfig" in draft.code  # no backward pass
    backward = Call("autograd::engine::evaluate_function: MmBackward0", 10, [[8]])
    trained = on_gpu(tmp_path / "trained", [product(170, TENSOR, **halves(2)), backward])
    draft = eight_bit_products(trained)
    assert draft is not None and draft.code is not None and "convert_to_float8_training" in draft.code
    older = with_analysis(case, device=replace(case.analysis.device, peaks_flops_per_s=peaks))
    assert eight_bit_products(older) is None


def test_16_bit_products_far_from_their_peak_have_other_worries(tmp_path: Path) -> None:
    assert eight_bit_products(on_gpu(tmp_path, [product(400, TENSOR, **halves(2))])) is None


def decoding(us: float, rows: int = 1, op: str = "aten::mm") -> Call:
    """A product of some rows with a matrix of 134 MB: 40 us at the bandwidth of an H100."""
    return Call(op, us, [[rows, 8192], [8192, 8192]], "nvjet_hsh_64x8_64x16_4x1_v_bz_TNN", more=halves(2))


def test_weights_that_are_read_for_few_rows_gain_from_fewer_bits(tmp_path: Path) -> None:
    draft = weights_for_few_rows(on_gpu(tmp_path, [decoding(50)]))
    assert draft is not None and draft.gain_us is not None and draft.changes_results
    assert draft.gain_us.low == pytest.approx(0.3 * 50) and draft.gain_us.high == pytest.approx(0.5 * 50)
    assert "134 MB" in draft.evidence[0]


def test_weights_of_a_cpu_in_fp32_that_are_read_for_few_rows_are_told_without_a_gain(tmp_path: Path) -> None:
    few = Call("aten::addmm", 20_000, [[8192], [4, 8192], [8192, 8192]])
    draft = weights_for_few_rows(on_cpu(tmp_path / "few", [few]))
    assert draft is not None and draft.gain_us is None and draft.gain_reason is not None
    assert "read 268 MB of weights, at 13.4 GB/s" in draft.evidence[0]
    many = Call("aten::addmm", 20_000, [[8192], [512, 8192], [8192, 8192]])
    assert weights_for_few_rows(on_cpu(tmp_path / "many", [many])) is None


def test_weights_for_many_rows_of_a_batch_or_in_training_are_not_told_to_shrink(tmp_path: Path) -> None:
    assert weights_for_few_rows(on_gpu(tmp_path / "many", [decoding(2000, rows=8192)])) is None
    batch = Call("aten::bmm", 50, [[64, 1, 128], [64, 128, 8192]], "gemv2N_kernel", more=halves(2))
    assert weights_for_few_rows(on_gpu(tmp_path / "keys", [batch])) is None
    backward = Call("autograd::engine::evaluate_function: MmBackward0", 50, [[1, 8192]], "a_kernel")
    assert weights_for_few_rows(on_gpu(tmp_path / "training", [decoding(50), backward])) is None


def doubles(count: int) -> dict[str, object]:
    return {"types": ["double"] * count}


@pytest.mark.parametrize(
    ("kernel", "is_told"),
    [
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*)", True),
        ("void kQuantizeBlockwise<__nv_bfloat16, 4096, 4, 0, 0>(float*, unsigned char*)", False),
        ("dequant_gemm_4bit_kernel", False),
    ],
)
def test_weights_that_are_unpacked_for_each_product_take_more_rows(tmp_path: Path, kernel: str, is_told: bool) -> None:
    unpack = Call("bitsandbytes::dequantize_4bit", 300, None, kernel)
    draft = unpacked_weights(on_gpu(tmp_path, [unpack, product(700, TENSOR, **halves(2))] * 4))
    assert (draft is not None) == is_told
    if draft is not None:
        assert draft.per == "sample" and draft.gain_us is not None
        assert draft.gain_us.low == pytest.approx(600, rel=0.02) and draft.gain_us.high == pytest.approx(900, rel=0.02)


@pytest.mark.parametrize(("types", "is_told"), [({}, False), (doubles(2), True)], ids=["fp32", "fp64"])
def test_products_in_fp64_on_a_cpu_gain_from_fp32(tmp_path: Path, types: dict[str, object], is_told: bool) -> None:
    device = replace(CPU, peaks_flops_per_s={"fp32_tensor": 1e11, "fp32_vector": 1e11, "fp64_tensor": 4e10})
    calls = [Call("aten::mm", 60_000, [[1024, 1024], [1024, 1024]], more=types)]
    draft = double_precision(on_cpu(tmp_path, calls, device=device))
    assert (draft is not None) == is_told
    if draft is not None:
        assert draft.gain_us is not None and draft.changes_results
        assert draft.gain_us.high == pytest.approx(60_000 * 0.66, rel=0.01)
        assert draft.gain_us.low == pytest.approx(60_000 * 0.6 * 0.75, rel=0.01)
        assert "in fp64 (" in draft.evidence[0]


@pytest.mark.parametrize(
    ("name", "was_us", "is_us"),
    [
        ("aten::mm", 5146, 2492),
        ("aten::bmm", 138, 48),
        ("aten::add", 37.5, 15.5),
        ("aten::tanh", 488, 265),
        ("aten::_log_softmax", 281, 83),
        ("aten::sqrt", 1762, 419),
        ("aten::gelu", 2897, 29),
        ("aten::gelu_backward", 716, 28),
        ("aten::native_layer_norm", 855, 803),
        ("aten::sum", 89, 44),
        ("aten::where", 751, 746),
        ("aten::sort", 5316, 5280),
    ],
)
def test_fp32_on_a_cpu_saves_what_was_measured_of_each_kind_of_op(
    tmp_path: Path, name: str, was_us: float, is_us: float
) -> None:
    """With torch 2.13 on an EPYC, one thread; a network for the Burgers equation was 2.2 to 2.9 times as fast."""
    device = replace(CPU, peaks_flops_per_s={"fp32_tensor": 1.14e11, "fp32_vector": 1.3e11, "fp64_tensor": 6.5e10})
    sizes: list[object] = [[64, 32, 32], [64, 32, 32]] if name == "aten::bmm" else [[512, 512], [512, 512]]
    draft = double_precision(on_cpu(tmp_path, [Call(name, 100 * was_us, sizes, more=doubles(2))], device=device))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.low <= 100 * (was_us - is_us) <= draft.gain_us.high


def test_new_pages_of_doubles_go_with_half_of_the_bytes(tmp_path: Path) -> None:
    add = Call("aten::add", 10_000, [[1024, 1024], [1024, 1024], []], more={"types": ["double", "double", "Scalar"]})
    device = replace(CPU, fresh_bytes_per_s=4e9)
    faults = PageFaults(4096, profiled=1000.0, unprofiled=1000.0)
    without, beside = (
        double_precision(on_cpu(tmp_path / str(number), [add], device=device, page_faults=counts))
        for number, counts in enumerate((None, faults))
    )
    assert without is not None and without.gain_us is not None and beside is not None and beside.gain_us is not None
    assert beside.gain_us.high - without.gain_us.high == pytest.approx(1024, rel=0.1)
    assert beside.gain_us.low == without.gain_us.low


def test_convolutions_in_fp64_that_go_sample_by_sample_gain_their_dispatching_too(tmp_path: Path) -> None:
    """Of 1,000 us the products take 600; the rest of the convolution are calls for each of its samples."""
    sizes = [[8, 16, 168], [16, 16, 3], [], [], [], [], []]

    inner = {"dims": [[16], [16, 48], [48, 168]], "types": ["double"] * 3}

    def gained(name: str) -> float:
        calls = [op(name, 100, 900, dims=sizes, types=["double", "double"])]
        for sample in range(8):
            at = 102 + 110.0 * sample
            calls += [op("aten::select", at, 2), op("aten::addmm", at + 10, 75, **inner)]
        draft = double_precision(two_steps(tmp_path / name[6:], [program_line(21, 90, 915), *calls]))
        return 0.0 if draft is None or draft.gain_us is None else draft.gain_us.high

    assert gained("aten::conv1d") > gained("aten::linear") + 100


BF16 = {"types": ["c10::BFloat16", "c10::BFloat16"]}


@pytest.mark.parametrize(("narrow", "is_told"), [(4e10, True), (1e11, False), (None, False)])
def test_bf16_on_a_cpu_whose_units_are_faster_in_fp32_is_told(
    tmp_path: Path, narrow: float | None, is_told: bool
) -> None:
    peaks = {"fp32_tensor": 1e11, "fp32_vector": 1e11} | ({} if narrow is None else {"bf16_tensor": narrow})
    device = replace(CPU, peaks_flops_per_s=peaks)
    calls = [Call("aten::mm", 60_000, [[1024, 1024], [1024, 1024]], more=BF16)]
    draft = slower_half_precision(on_cpu(tmp_path, calls, device=device))
    assert (draft is not None) == is_told
    if draft is not None:
        assert draft.gain_us is not None and draft.changes_results
        assert draft.gain_us.high == pytest.approx(60_000 * 0.6, rel=0.01)
        assert draft.gain_us.low == pytest.approx(draft.gain_us.high / 2)
        assert "40.0 GFLOP/s in bf16 and 100 GFLOP/s in fp32" in draft.evidence[0]


@pytest.mark.parametrize(("us", "is_told"), [(2_000_000.0, True), (60_000.0, False)])
def test_a_dtype_without_a_measured_peak_is_judged_by_its_products(tmp_path: Path, us: float, is_told: bool) -> None:
    """A short calibration measures no fp16, whose products reached 4 GFLOP/s where fp32 has 224."""
    device = replace(CPU, peaks_flops_per_s={"fp32_tensor": 1e11, "fp32_vector": 1e11, "bf16_tensor": 3e11})
    half = {"types": ["c10::Half", "c10::Half"]}
    calls = [Call("aten::mm", us, [[1024, 1024], [1024, 1024]], more=half)]
    said = {"setting_lines": {"narrow": ("net.py:33",)}, "source_texts": {"net.py:33": "net = Net().half()"}}
    draft = slower_half_precision(on_cpu(tmp_path, calls, device=device, **said))
    assert (draft is not None) == is_told
    if draft is not None:
        assert "1.07 GFLOP/s in fp16 and 100 GFLOP/s in fp32 here, the first in this step" in draft.evidence[0]
        assert "leave out .half() at net.py:33" in draft.advice


def test_fp32_beside_slow_bf16_and_a_gpu_are_left_alone(tmp_path: Path) -> None:
    device = replace(CPU, peaks_flops_per_s={"fp32_tensor": 1e11, "bf16_tensor": 4e10})
    product = Call("aten::mm", 60_000, [[1024, 1024], [1024, 1024]])
    assert slower_half_precision(on_cpu(tmp_path / "fp32", [product], device=device)) is None
    narrow = Call("aten::mm", 60_000, [[1024, 1024], [1024, 1024]], TENSOR, more=BF16)
    assert slower_half_precision(on_gpu(tmp_path / "gpu", [narrow])) is None


@pytest.mark.parametrize("name", ["aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::mm"])
def test_a_convolution_in_fp64_on_a_cpu_gains_another_kernel(tmp_path: Path, name: str) -> None:
    sizes: list[object] = [[2, 32, 64, 64], [32, 32, 3, 3], [], [], [], []]
    texts = {"concrete": ["", "", "[3, 3]", "", "[1, 1]", "[1, 1]"], "types": ["double", "double", "", "", "", ""]}
    call = Call(name, 60_000, sizes, more=texts)
    draft = double_precision(on_cpu(tmp_path, [product(60_000, **doubles(2)) if name == "aten::mm" else call]))
    assert draft is not None and draft.gain_us is not None
    is_replaced = name != "aten::mm"
    assert (draft.gain_us.high > 0.8 * 60_000) is is_replaced
    assert (draft.gain_us.low > 0.5 * 60_000) is is_replaced
    assert ("another, faster kernel" in " ".join(draft.evidence)) is is_replaced


def test_the_line_at_which_fp64_enters_is_named(tmp_path: Path) -> None:
    device = replace(CPU, peaks_flops_per_s={"fp32_tensor": 1e11, "fp32_vector": 1e11, "fp64_tensor": 4e10})
    sizes: list[object] = [[1024, 1024], [1024, 1024]]
    # A number of Python's, wrapped as a tensor without dimensions, makes nothing fp64.
    scaled = Call("aten::mul", 50, [[1024, 1024], []], more={"types": ["float", "double"]})
    joined = Call("aten::mul", 100, sizes, more={"types": ["float", "double"]})
    product = Call("aten::mm", 60_000, sizes, more=doubles(2))
    draft = double_precision(on_cpu(tmp_path, [scaled, joined, product], device=device))
    assert draft is not None and "where it enters, in train() (train.py:12), unless" in draft.advice
    assert "the first op of a step with fp64 is aten::mul in train()" in draft.evidence[0]


def test_where_layers_compute_in_fp64_their_weights_are_to_be_fp32_too(tmp_path: Path) -> None:
    call = Call("aten::addmm", 60_000, [[1024], [1024, 1024], [1024, 1024]], more=doubles(3))
    draft = double_precision(on_cpu(tmp_path, [call]))
    assert draft is not None and draft.advice.startswith("Make the weights fp32 (model.float(), or no torch.set_def")


def test_pointwise_work_in_fp64_on_a_gpu_gains_half_of_its_bytes(tmp_path: Path) -> None:
    add = Call("aten::add", 200, [[4096, 4096], [4096, 4096], []], more={"types": ["double", "double", "Scalar"]})
    draft = double_precision(on_gpu(tmp_path, [add] * 4))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(400, rel=0.05)


def test_a_small_part_in_fp64_is_left_alone(tmp_path: Path) -> None:
    add = Call("aten::add", 10, [[512, 512], [512, 512], []], more={"types": ["double", "double", "Scalar"]})
    assert double_precision(on_gpu(tmp_path, [product(3000), add])) is None


def test_numbers_of_python_beside_tensors_of_fp32_are_no_work_in_fp64(tmp_path: Path) -> None:
    """Their type is double wherever a tensor is multiplied by 0.5."""
    size = [[4096, 4096], []]
    scaled = Call("aten::mul_", 10_000, size, more={"types": ["float", "double"]})
    assert double_precision(on_cpu(tmp_path / "scaled", [scaled], device=CPU)) is None
    gathered = Call("aten::index", 10_000, [[4096, 4096], [4096]], more={"types": ["double", "long int"]})
    draft = double_precision(on_cpu(tmp_path / "gathered", [gathered], device=CPU))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high > 4000


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("c10::BFloat16", None),
        ("double", None),
        ("float", "in fp32 take much of the step"),
        ("", "where they are in fp32"),
    ],
)
def test_convolutions_of_no_known_cost_are_asked_for_bf16_by_their_recorded_types(
    tmp_path: Path, dtype: str, said: str | None
) -> None:
    """A model in bf16 was told to try bf16: its convolutions have no formula, but their types were recorded."""
    sizes = [[8, 64, 1, 2048], [96, 64, 1, 7], [96], [], [], [], []]
    types = {"types": [dtype] * 3 + ["ScalarList"] * 3 + ["Scalar"]} if dtype else {}
    events = [step(0, 0, 1000), op("aten::mkldnn_convolution", 10, 800, dims=sizes if dtype else None, **types)]
    case = case_of(tmp_path, events)
    unnamed = replace(case.analysis.device, peaks_flops_per_s={}, bandwidth_bytes_per_s=None)
    draft = half_precision_not_known(with_analysis(case, device=unnamed))
    assert (draft is None) == (said is None) and (draft is None or said in draft.title)
