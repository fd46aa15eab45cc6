"""Rules of convolutions: batch norms that could be folded, algorithms that nobody measured, images by planes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.convolutions import (
    channels_first,
    evaluation_mode,
    late_upsampling,
    long_convolution,
    recurring_search,
    unfolded_batch_norm,
    untuned_convolutions,
    written_convolution,
)
from bottleneck.advice.ranking import Draft
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.learned_rates import channels_last_times
from bottleneck.schema.records import replace
from tests.advice.cases import case_of
from tests.advice.programs import Call, halves, on_cpu, on_gpu
from tests.analysis.frames import CPU
from tests.builders import Event, complete, frame, kernel, launch, op, step

IMAGES, WEIGHTS = [32, 64, 56, 56], [64, 64, 3, 3]
PLANES, PIXELS = [64 * 56 * 56, 56 * 56, 56, 1], [64 * 56 * 56, 1, 56 * 64, 64]
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"


def convolution(us: float, *, benchmark: str = "False", strides: list[int] | None = None) -> Call:
    arguments = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", benchmark, "False", "True", "True"]
    dims: list[object] = [IMAGES, WEIGHTS, *[[]] * 11]
    types = ["float", "float", *["Scalar"] * 11]
    more: dict[str, object] = {"concrete": arguments, "types": types}
    if strides is not None:
        more["strides"] = [strides, [576, 9, 3, 1], *[[]] * 11]
    return Call("aten::_convolution", us, dims, CONVOLUTION, more=more)


def norm(us: float) -> Call:
    dims = [IMAGES, [64], [64], [64], [64], [], [], []]
    concrete = [*[""] * 5, "False", "0.1", "1e-05"]
    return Call(
        "aten::native_batch_norm", us, dims, "void batch_norm_transform_input<float>(int)", more={"concrete": concrete}
    )


RELU = Call("aten::relu", 300, [IMAGES])
BACKWARD = Call("autograd::engine::evaluate_function: NativeBatchNormBackward0", 10, [])


def test_a_batch_norm_behind_a_convolution_can_be_folded(tmp_path: Path) -> None:
    draft = unfolded_batch_norm(on_cpu(tmp_path, [convolution(9000), norm(1000), RELU] * 2))
    assert draft is not None
    assert draft.gain_us is not None
    assert draft.tries == ("fold-batchnorm",)
    assert draft.gain_us.low == pytest.approx(1200, rel=0.01)
    assert draft.gain_us.high == pytest.approx(2500, rel=0.05)
    assert draft.evidence[0].startswith("2 batch normalizations per step directly after a convolution")


def test_a_batch_norm_behind_a_convolution_of_torchs_own_loops_can_be_folded_too(tmp_path: Path) -> None:
    own = Call("aten::mm", 9000, [[64, 576], [576, 3136]], inside="aten::_slow_conv2d_forward")
    other = replace(own, inside="aten::matmul")
    assert unfolded_batch_norm(on_cpu(tmp_path / "own", [own, norm(1000), RELU])) is not None
    assert unfolded_batch_norm(on_cpu(tmp_path / "product", [other, norm(1000), RELU])) is None


def test_a_batch_norm_that_takes_next_to_nothing_stays(tmp_path: Path) -> None:
    assert unfolded_batch_norm(on_cpu(tmp_path, [convolution(90_000), norm(100), RELU])) is None


@pytest.mark.parametrize(
    "calls",
    [
        [convolution(9000), norm(1000), BACKWARD],
        [convolution(9000), RELU, norm(1000)],
        [norm(1000), convolution(9000)],
    ],
    ids=["in training", "behind an activation", "before it"],
)
def test_other_batch_norms_stay(tmp_path: Path, calls: list[Call]) -> None:
    assert unfolded_batch_norm(on_cpu(tmp_path, calls)) is None


COUNT = Call("aten::add_", 10, [[], [], []])
DROPOUT = Call("aten::native_dropout", 200, [IMAGES])


def trained_norm(us: float, training: str = "") -> Call:
    return replace(norm(us), inside="aten::batch_norm", more={"concrete": [*[""] * 5, training, "0.1", "1e-05"]})


@pytest.mark.parametrize("build", [on_cpu, on_gpu])
def test_a_batch_norm_that_counts_batches_where_nothing_is_trained_is_not_in_evaluation_mode(
    tmp_path: Path, build: Callable[..., Evidence]
) -> None:
    draft = evaluation_mode(build(tmp_path, [convolution(9000), COUNT, trained_norm(900), DROPOUT]))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.low == pytest.approx(900 / 3 + 200, rel=0.02)
    assert draft.gain_us.high == pytest.approx(900 + 200, rel=0.02)
    assert draft.corrects_results and not draft.changes_results


def dropped(train: str, us: float = 900) -> list[Call]:
    """A call of dropout, and the op that does its work."""
    call = Call("aten::dropout", 1, [IMAGES, [], []], more={"concrete": ["", "0.5", train]})
    return [call, Call("aten::native_dropout", us, [IMAGES])]


def test_dropout_that_drops_where_nothing_is_trained_makes_random_results(tmp_path: Path) -> None:
    draft = evaluation_mode(on_cpu(tmp_path, [convolution(9000), *dropped("True")]))
    assert draft is not None and draft.gain_us is not None and draft.changes_results
    assert draft.gain_us.high == pytest.approx(900, rel=0.02) and "Monte Carlo" in draft.advice
    assert evaluation_mode(on_cpu(tmp_path / "off", [convolution(9000), *dropped("False")])) is None
    assert evaluation_mode(on_cpu(tmp_path / "trains", [convolution(9000), *dropped("True"), BACKWARD])) is None
    assert evaluation_mode(on_cpu(tmp_path / "little", [convolution(9000), *dropped("True", 20)])) is None


def test_batches_were_counted_by_a_sum_until_pytorch_1_11(tmp_path: Path) -> None:
    counted = Call("aten::add", 10, [[], [], []], more={"types": ["long int", "long int", "Int"]})
    assert evaluation_mode(on_cpu(tmp_path, [convolution(9000), counted, trained_norm(900)])) is not None
    residual = Call("aten::add", 10, [IMAGES, IMAGES, []], more={"types": ["float", "float", "Int"]})
    assert evaluation_mode(on_cpu(tmp_path / "sum", [convolution(9000), residual, trained_norm(900)])) is None


@pytest.mark.parametrize(
    "calls",
    [
        [convolution(9000), trained_norm(900)],
        [convolution(9000), RELU, trained_norm(900)],
        [convolution(9000), COUNT, RELU, trained_norm(900)],
        [convolution(9000), COUNT, trained_norm(900), BACKWARD],
        [convolution(9000), COUNT, trained_norm(900), Call("Optimizer.step#SGD.step", 10, [])],
        [convolution(9000), COUNT, RELU],
    ],
    ids=["evaluation", "activation", "other addition", "backward pass", "optimizer", "no batch norm"],
)
def test_evaluation_and_training_are_left_alone(tmp_path: Path, calls: list[Call]) -> None:
    assert evaluation_mode(on_cpu(tmp_path, calls)) is None


def test_convolutions_recorded_without_benchmark_are_worth_measuring(tmp_path: Path) -> None:
    draft = untuned_convolutions(on_gpu(tmp_path, [convolution(500)] * 3))
    assert draft is not None
    assert draft.gain_us is None
    assert draft.tries == ("cudnn-benchmark",)


@pytest.mark.parametrize(("flavour", "library"), [("cuda", "cuDNN"), ("rocm", "MIOpen"), ("xpu", None)])
def test_the_library_of_the_vendor_is_named(tmp_path: Path, flavour: str, library: str | None) -> None:
    """A job on AMD's devices was told to let cuDNN measure its algorithms."""
    case = on_gpu(tmp_path, [convolution(500)] * 3)
    case = replace(case, linked=replace(case.linked, trace=replace(case.linked.trace, flavour=flavour)))
    draft = untuned_convolutions(case)
    assert (draft is None) == (library is None)
    assert draft is None or (library is not None and library in draft.title and library in draft.advice)


def test_measured_algorithms_and_those_of_a_cpu_are_left_alone(tmp_path: Path) -> None:
    assert untuned_convolutions(on_gpu(tmp_path, [convolution(500, benchmark="True")] * 3)) is None
    assert untuned_convolutions(on_cpu(tmp_path / "cpu", [convolution(500)] * 3)) is None


def steps_that_search(trials: Sequence[int]) -> list[Event]:
    """Steps of one convolution each, which tries so many engines for 2 ms each before it runs for 1 ms."""
    events: list[Event] = []
    at, correlation = 0.0, 0
    for number, count in enumerate(trials):
        length = 2000 * count + 1100
        events.append(step(number, at, length))
        events.append(op("aten::cudnn_convolution", at + 10, length - 20, dims=[[1, 80, 200 + number], [80, 80, 7]]))
        for trial in range(count + 1):
            correlation += 1
            begin, us = at + 20 + 2000 * trial, 1900 if trial < count else 900
            events += [launch(correlation, begin, 10), kernel(correlation, begin + 20, us, CONVOLUTION)]
            if trial < count:
                events.append(launch(10_000 + correlation, begin + 15, 1910, "cudaEventSynchronize"))
        events.append(launch(20_000 + correlation, begin + 15, 910, "cudaStreamSynchronize"))
        at += length
    return [frame("serve.py(12): serve", 0, at), *events]


def test_engines_that_are_searched_for_with_each_new_size_are_the_programs_own_work(tmp_path: Path) -> None:
    draft = recurring_search(case_of(tmp_path, steps_that_search([5, 5, 5, 0])))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(3 * 10_000 / 4, rel=0.01)
    assert draft.gain_us.low == pytest.approx(0.8 * draft.gain_us.high)
    assert "in 3 of 4 steps" in draft.evidence[0] and "1x80x200, 1x80x201, 1x80x202" in draft.evidence[0]
    always = recurring_search(case_of(tmp_path / "always", steps_that_search([5, 5, 5, 5])))
    assert always is not None and always.gain_us is not None and always.confidence == "low"


def test_a_search_at_the_start_alone_is_a_start(tmp_path: Path) -> None:
    draft = recurring_search(case_of(tmp_path, steps_that_search([5])))
    assert draft is not None and draft.gain_us is None and draft.advice.startswith("Record later steps")
    assert recurring_search(case_of(tmp_path / "usual", steps_that_search([0, 0, 0, 0]))) is None
    assert recurring_search(case_of(tmp_path / "one wait", steps_that_search([1, 1, 1, 1]))) is None


def test_kernels_that_turn_images_round_would_go(tmp_path: Path) -> None:
    name = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(int)"
    turns = Call("aten::_convolution", 200, [IMAGES, WEIGHTS], name, more=halves(2))
    draft = channels_first(on_gpu(tmp_path, [turns, convolution(500)]))
    assert draft is not None
    assert draft.gain_us is not None
    # The next kernel is launched at 7 us, begins 6 us after that at the earliest, and began at 210.
    assert draft.gain_us.high == pytest.approx(210 - 13)
    assert draft.tries == ("channels-last",)
    assert channels_first(on_gpu(tmp_path / "none", [convolution(500)])) is None


@pytest.mark.parametrize(
    ("kernel_name", "is_told"),
    [
        ("void conv_depthwise2d_forward_kernel_generic<c10::BFloat16, int>(int)", True),
        ("void conv_depthwise2d_grad_weight_kernel<c10::Half, int>(int)", True),
        ("void conv_depthwise2d_forward_kernel_generic<float, int>(int)", False),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<__half, __half>(int)", False),
    ],
)
def test_depthwise_convolutions_of_torchs_own_kernels_are_for_cudnn_in_channels_last(
    tmp_path: Path, kernel_name: str, is_told: bool
) -> None:
    """ConvNeXt on an A100 spent 36 % of its step in such kernels, and no advice named them."""
    slow = Call("aten::_conv_depthwise2d", 900, [IMAGES, [64, 1, 7, 7]], kernel_name, more=halves(2))
    draft = channels_first(on_gpu(tmp_path, [convolution(500), slow]))
    assert (draft is not None) is is_told
    if draft is not None and draft.gain_us is not None:
        learned = channels_last_times("depthwise convolution", 1)
        assert learned is not None and learned[0] < 1
        part = 0.5 if "grad" in kernel_name else 1.0
        assert draft.gain_us.low == pytest.approx(part * 900 * (1 - learned[0] * learned[1]), rel=0.03)
        assert draft.gain_us.high == pytest.approx(900 * (1 - learned[0] / learned[1]), rel=0.03)
        assert draft.tries == ("channels-last",)


TURN = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)"


def turning_convolution(folder: Path, weights: list[int], name: str = "aten::cudnn_convolution") -> Evidence:
    """A step whose convolution turns its images in 300 us, and computes in 500 us."""
    sizes: list[object] = [IMAGES, weights, *[[]] * 7]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", str(IMAGES[1] // weights[1]), "False", "False", "True"]
    types = ["float", "float", *["ScalarList"] * 3, *["Scalar"] * 4]
    events = [
        step(0, 0, 1000),
        op(name, 2, 8, dims=sizes, external_id=1, concrete=concrete, types=types),
        launch(1, 3, 1),
        launch(2, 6, 1),
        kernel(1, 20, 300, TURN, grid=[4000, 1, 1]),
        kernel(2, 320, 500, CONVOLUTION, grid=[4000, 1, 1]),
        launch(9, 12, 900, "cudaDeviceSynchronize"),
    ]
    return case_of(folder, events)


@pytest.mark.parametrize("weights", [WEIGHTS, [64, 1, 3, 3]])
def test_a_convolution_that_turns_its_images_keeps_its_kernel(tmp_path: Path, weights: list[int]) -> None:
    draft = channels_first(turning_convolution(tmp_path, weights))
    assert draft is not None and draft.gain_us is not None
    learned = channels_last_times("convolution" if weights == WEIGHTS else "depthwise convolution", weights[1])
    assert learned is not None
    _, spread = learned
    assert draft.gain_us.low == pytest.approx(300 + 500 * (1 - spread), rel=0.05)
    assert draft.gain_us.high == pytest.approx(300 + 500 * (1 - 1 / spread), rel=0.05)
    assert not any("nothing is learned" in line for line in draft.evidence)


def test_a_convolution_beside_takes_the_learned_time(tmp_path: Path) -> None:
    turns = Call("aten::_convolution", 200, [IMAGES, WEIGHTS], TURN)
    by_planes, by_pixels = (
        channels_first(on_gpu(tmp_path / name, [turns, convolution(500, strides=strides)]))
        for name, strides in (("planes", PLANES), ("pixels", PIXELS))
    )
    learned = channels_last_times("convolution", 64)
    assert by_planes is not None and by_planes.gain_us is not None and learned is not None
    assert by_pixels is not None and by_pixels.gain_us is not None
    time, spread = learned
    more = by_planes.gain_us.high - by_pixels.gain_us.high
    assert more == pytest.approx(500 * (1 - time / spread), rel=0.1)
    assert channels_last_times("transposed convolution", 64) is None


@pytest.mark.parametrize(
    ("weights", "name"),
    [([64, 16, 3, 3], "aten::cudnn_convolution"), (WEIGHTS, "aten::cudnn_convolution_backward_input")],
)
def test_where_no_rate_is_learned_half_of_the_turning_may_stay(tmp_path: Path, weights: list[int], name: str) -> None:
    draft = channels_first(turning_convolution(tmp_path, weights, name))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.low == pytest.approx(150, rel=0.05)
    assert draft.gain_us.high == pytest.approx(300, rel=0.05)
    assert any("nothing is learned of the convolutions behind 100" in line for line in draft.evidence)


@pytest.mark.parametrize(
    ("size", "layout"), [((2, 8, 64, 64), "channels_last"), ((2, 8, 16, 64, 64), "channels_last_3d")]
)
def test_the_layout_of_volumes_has_a_name_of_its_own(tmp_path: Path, size: tuple[int, ...], layout: str) -> None:
    sizes: list[object] = [list(size), [8, 8, *[3] * (len(size) - 2)]]
    turns = Call("aten::cudnn_convolution", 200, sizes, "void cudnn::ops::nchwToNhwcKernel<float, float>(int)")
    draft = channels_first(on_gpu(tmp_path, [turns, convolution(500)]))
    assert draft is not None and draft.code is not None
    assert all(line.endswith(f"torch.{layout})") for line in draft.code.splitlines())


def test_rounding_to_tf32_is_no_change_of_layout(tmp_path: Path) -> None:
    kernel = (
        "void cudnn::engines_precompiled::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(float)"
    )
    assert (
        channels_first(on_gpu(tmp_path, [Call("aten::_convolution", 200, [IMAGES], kernel), convolution(500)])) is None
    )


def test_a_cpu_hides_what_planes_cost(tmp_path: Path) -> None:
    floor_us = 2 * 32 * 64 * 56 * 56 * 64 * 9 / CPU.peaks_flops_per_s["fp32_tensor"] * 1e6
    draft = channels_first(on_cpu(tmp_path, [convolution(3 * floor_us, strides=PLANES)]))
    assert draft is not None
    assert draft.gain_us is not None
    turned_us = 4 * 4 * 32 * 64 * 56 * 56 / (CPU.bandwidth_bytes_per_s or 1.0) * 1e6  # read and written, twice
    assert draft.gain_us.low == 0
    # What turning may take, or the 30 % by which convolutions of a measured network were quicker by pixels.
    turning_us = min(3 * turned_us, 2 * floor_us)
    assert draft.gain_us.high == pytest.approx(max(turning_us, 0.35 * 3 * floor_us), rel=1e-3)
    assert draft.tries == ("channels-last",)
    own = replace(convolution(3 * floor_us, strides=PLANES), name="aten::_slow_conv2d_forward")
    assert channels_first(on_cpu(tmp_path / "own", [own])) is None
    assert channels_first(on_cpu(tmp_path / "pixels", [convolution(3 * floor_us, strides=PIXELS)])) is None


def test_a_convolution_over_one_dimension_has_no_channels_last(tmp_path: Path) -> None:
    floor_us = 2 * 32 * 64 * 56 * 56 * 64 * 9 / CPU.peaks_flops_per_s["fp32_tensor"] * 1e6
    image = convolution(3 * floor_us, strides=PLANES)
    assert channels_first(on_cpu(tmp_path / "image", [image])) is not None
    series = [[32, 64, 1, 56 * 56], [64, 64, 1, 9], *[[]] * 11]
    strides = [[64 * 56 * 56, 56 * 56, 56 * 56, 1], [576, 9, 9, 1], *[[]] * 11]
    call = replace(image, dims=series, more={**image.more, "strides": strides})
    assert channels_first(on_cpu(tmp_path / "series", [call])) is None


def test_planes_far_beyond_their_floors_are_a_question_where_turning_is_little(tmp_path: Path) -> None:
    def finding(name: str, us: float) -> Draft | None:
        dims = [[1, 512, 7, 7], [512, 512, 3, 3]]
        strides = [[512 * 49, 49, 7, 1], [512 * 9, 9, 3, 1]]
        call = Call("aten::mkldnn_convolution", us, dims, more={"strides": strides})
        return channels_first(on_cpu(tmp_path / name, [call]))

    floor_us = 2 * 49 * 512 * 512 * 9 / CPU.peaks_flops_per_s["fp32_tensor"] * 1e6
    asked = finding("far", 20 * floor_us)
    assert asked is not None and asked.only_measured
    assert finding("near", 1.05 * floor_us) is None


@pytest.mark.parametrize(("us", "is_told"), [(9000, True), (20, False)])
def test_on_an_unknown_cpu_only_a_trial_tells_what_another_layout_gains(
    tmp_path: Path, us: float, is_told: bool
) -> None:
    unknown = replace(CPU, bandwidth_bytes_per_s=None, peaks_flops_per_s={})
    calls = [convolution(us, strides=PLANES), Call("aten::mm", 1000, [[512, 512], [512, 512]])]
    draft = channels_first(on_cpu(tmp_path, calls, device=unknown))
    assert (draft is not None) == is_told
    if draft is not None:
        assert draft.gain_us is None and "only a trial shows it" in (draft.gain_reason or "")


def test_a_convolution_at_its_floor_has_no_layout_to_win_by(tmp_path: Path) -> None:
    assert channels_first(on_cpu(tmp_path, [convolution(9000, strides=PLANES)])) is None


# A convolution with a long kernel: 2 ms steps, most of it one call at train.py:26.
def long_case(folder: Path, sizes: Sequence[list[int]], dur: float, *, trains: bool = False) -> Evidence:
    events = [frame("train.py(1): <module>", 0, 40_000)]
    for number in range(2):
        at = 20_000.0 * number
        dims = [*sizes, [], [], [], [], []]
        concrete = ["", "", "", "[1]", "[0]", "[1]", "1"]
        made = {"Sequence number": 10 * number + 1, "Fwd thread id": 0}
        call = op("aten::conv1d", at + 20, dur, dims=dims, concrete=concrete)
        inner = op("aten::mkldnn_convolution", at + 21, dur - 2, dims=dims[:7], concrete=concrete)
        after = op("aten::mul", at + dur + 30, 50, dims=[[64, 64], [64, 64]])
        call["args"] |= made
        after["args"] |= made | {"Sequence number": 10 * number + 2}
        mark = complete("train.py(26): <module>", "python_line", at + 10, dur + 100)
        events += [step(number, at, 19_999), mark, call, inner, after]
        if trains:
            node = op("autograd::engine::evaluate_function: ConvolutionBackward0", at + dur + 200, dur)
            node["args"] |= made | {"Fwd thread id": 1}
            back = op("aten::convolution_backward", at + dur + 201, dur - 2, dims=[sizes[0], *sizes])
            events += [node, back]
    return case_of(folder, events, unprofiled_us=20_000.0)


AUDIO, RESPONSE = [12, 1, 17599], [1, 1, 1600]


def test_a_convolution_with_a_long_kernel_is_better_done_by_transforms(tmp_path: Path) -> None:
    evidence = long_case(tmp_path / "data", (AUDIO, RESPONSE), 15_000)
    draft = long_convolution(evidence)
    assert draft is not None and draft.gain_us is not None and draft.removes
    assert "Convolve by FFT at train.py:26" in draft.advice and "1600 numbers with 1 channel" in draft.evidence[0]
    assert 7_000 < draft.gain_us.low < draft.gain_us.high < 15_000
    assert advise(evidence)[0].slug == "long-convolution"


def test_a_blur_of_each_channel_may_go_by_columns_and_rows(tmp_path: Path) -> None:
    """Of 31 x 31 products per result 62 are left, at half of the rate."""
    draft = long_convolution(long_case(tmp_path / "blur", ([8, 3, 96, 96], [3, 1, 31, 31]), 15_000))
    assert draft is not None and draft.gain_us is not None
    assert (
        "by columns, then by rows" in (draft.brief or "") and "62 products per result in place of 961" in draft.advice
    )
    assert draft.gain_us.high == pytest.approx(15_000 * (1 - 2 * 62 / 961), rel=0.02)
    learned = long_convolution(long_case(tmp_path / "learned", ([4, 3, 64, 64], [3, 1, 31, 31]), 8_000, trains=True))
    assert learned is not None and (learned.brief or "").startswith("Convolve by FFT")


def test_the_backward_pass_of_a_long_convolution_counts_with_its_transforms(tmp_path: Path) -> None:
    forward = long_convolution(long_case(tmp_path / "forward", ([4, 1, 17599], RESPONSE), 8_000))
    both = long_convolution(long_case(tmp_path / "both", ([4, 1, 17599], RESPONSE), 8_000, trains=True))
    assert forward is not None and forward.gain_us is not None and both is not None and both.gain_us is not None
    assert forward.gain_us.high < both.gain_us.high < 2 * forward.gain_us.high


@pytest.mark.parametrize(
    ("sizes", "dur"),
    [
        ((AUDIO, [1, 1, 100]), 15_000),  # a short kernel
        ((AUDIO, RESPONSE), 1_000),  # quicker than transforms
        (([64, 1, 17599], [256, 1, 1600]), 15_000),  # as many transforms as there are results
    ],
)
def test_other_convolutions_are_no_case_for_transforms(
    tmp_path: Path, sizes: tuple[list[int], list[int]], dur: float
) -> None:
    assert long_convolution(long_case(tmp_path, sizes, dur)) is None


def enlarged_case(folder: Path, weight: list[int], small: list[int] | None = None) -> Evidence:
    """Steps of 20 ms: 10 ms of upsampling to 192x192 at train.py:26, and 5 ms of a convolution."""
    small, large = small or [2, 128, 24, 24], [2, 128, 192, 192]
    events = [frame("train.py(1): <module>", 0, 40_000)]
    for number in range(2):
        at = 20_000.0 * number
        events += [step(number, at, 19_999), complete("train.py(26): <module>", "python_line", at + 10, 15_500)]
        events += [op("aten::upsample_bilinear2d", at + 20, 10_000, dims=[small, [], [], []])]
        events += [op("aten::conv2d", at + 10_100, 5_000, dims=[large, weight, [], [], [], [], []])]
    return case_of(folder, events, unprofiled_us=20_000.0)


def test_features_are_reduced_before_they_are_enlarged(tmp_path: Path) -> None:
    evidence = enlarged_case(tmp_path, [8, 128, 1, 1])
    draft = late_upsampling(evidence)
    assert draft is not None and draft.gain_us is not None
    assert "before the upsampling at train.py:26" in draft.advice
    # All but the 8 of 128 channels of the 15 ms.
    assert 0.8 * 15_000 < draft.gain_us.low < draft.gain_us.high < 15_000 * (1 - 8 / 128) * 1.4
    assert advise(evidence)[0].slug == "late-upsampling"


@pytest.mark.parametrize(
    ("weight", "small"),
    [
        ([8, 128, 3, 3], None),  # looks at neighbours: the order matters
        ([128, 128, 1, 1], None),  # as many channels
        ([8, 128, 1, 1], [2, 128, 192, 192]),  # nothing is enlarged
        ([8, 64, 1, 1], None),  # a convolution in groups
    ],
)
def test_where_the_order_matters_or_saves_nothing_it_stays(
    tmp_path: Path, weight: list[int], small: list[int] | None
) -> None:
    assert late_upsampling(enlarged_case(tmp_path, weight, small)) is None


def unfolded(channels: int = 32, side: int = 288) -> list[Call]:
    """A convolution of 3x3 on 32 channels as unfold and a product, with the copy of the windows between them."""
    images, windows = [16, channels, 32, 32], [16, 1024, side]
    return [
        Call("aten::im2col", 10_000, [images, [], [], [], []]),
        Call("aten::copy_", 14_000, [windows, windows, []]),
        Call("aten::mm", 9_000, [[16_384, side], [side, 32]]),
        Call("aten::add", 500, [[16, 32, 1024], [32, 1], []]),
    ]


def test_an_unfold_and_the_product_of_its_windows_are_a_convolution(tmp_path: Path) -> None:
    draft = written_convolution(on_cpu(tmp_path, unfolded()))
    assert draft is not None and draft.gain_us is not None and "F.conv2d" in (draft.code or "")
    # The windows are not written and copied; the product stays, at its arithmetic at most.
    assert draft.gain_us.low == pytest.approx(12_000, rel=0.01)
    assert 24_000 < draft.gain_us.high < 33_000
    assert draft.gain_us.high <= sum(draft.claims.values()) + 1e-6


def test_other_products_behind_an_unfold_are_no_convolution(tmp_path: Path) -> None:
    """Patches that something else reads: no side of the product is a number of windows."""
    assert written_convolution(on_cpu(tmp_path / "other", unfolded(side=100))) is None
    assert written_convolution(on_cpu(tmp_path / "none", unfolded()[1:])) is None
