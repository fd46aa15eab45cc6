"""Bounds of kernels: every rule fires once and stays silent once, and published figures come out."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.analysis.roofline import classify, launch_floor_us
from bottleneck.cost import compute_costs
from bottleneck.cost.attribution import attribute
from bottleneck.cost.graph_replay import CostedTrace, assign_replayed_costs
from bottleneck.cost.shape_inference import infer_shapes
from bottleneck.devices.match import device_by_name, match_device, unknown_device
from bottleneck.schema.device import Device
from bottleneck.schema.linked_trace import DeviceProperties
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps
from tests.analysis.frames import (
    A100_40,
    BARE,
    CPU,
    H100,
    MIB,
    Frames,
    Kernel,
    Modelled,
    frames,
    host,
    judge,
    matmul,
    only,
    stream,
    unmodelled,
    worded,
)


class TestPublishedFigures:
    """Traces and articles whose numbers are public; see docs on the method."""

    def test_batched_product_of_an_odd_size_on_an_h100_is_far_from_both_roofs(self) -> None:
        name = "cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn_align1"
        row = only(matmul(1083.46, 55.0589e9, 840.695 * MIB, name=name))
        assert row.flops / 1083.46e-6 / 1e12 == pytest.approx(50.818, rel=1e-4)
        assert row.explained < 0.25
        # 62 FLOP per byte is left of the ridge (295): memory is the larger floor, and far from explaining the time.
        assert (row.bound, row.regime, row.reason) == ("memory", "far_below_roof", "misaligned: align1")

    def test_linear_layer_on_an_h100_is_bound_by_arithmetic(self) -> None:
        m, n, k = 5185, 1024, 4096
        row = only(matmul(58.339, 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)))
        assert row.flops / 58.339e-6 / 1e12 == pytest.approx(745.56, rel=1e-4)
        assert (row.bound, row.regime, row.confidence) == ("compute", "near_roof", "high")

    def test_product_of_8192_on_an_h200_reaches_four_fifths_of_the_peak(self) -> None:
        flops = 2.0 * 8192**3
        row = only(matmul(flops / 788e12 * 1e6, flops, 3 * 2.0 * 8192**2), device=device_by_name("h200"))
        assert row.compute_us / (flops / 788e12 * 1e6) == pytest.approx(0.796, abs=5e-4)
        assert (row.bound, row.regime) == ("compute", "near_roof")

    def test_copy_inside_an_h200_reaches_nine_tenths_of_its_bandwidth(self) -> None:
        copy = Kernel(2000.0, name="Memcpy DtoD (Device -> Device)", kind="copy", bytes=int(4.3e9))
        row = only(Modelled((copy,), pays=False), device=replace(device_by_name("h200"), cache_bytes=None))
        assert row.explained == pytest.approx(0.896, abs=5e-4)

    def test_multiplication_on_an_h100_is_bound_by_memory(self) -> None:
        row = only(stream(43.531, 3 * 2.0 * 5185 * 4096))
        assert row.bytes_low / 43.531e-6 / 1e12 == pytest.approx(2.927, rel=1e-3)
        assert (row.bound, row.regime) == ("memory", "near_roof")

    def test_softmax_on_an_h100_is_far_below_the_roof_of_memory(self) -> None:
        traffic = 2 * 2.0 * 16 * 5185**2
        row = only(stream(2186.85, traffic, name="cunn_SoftMaxForward"))
        assert traffic / 2186.85e-6 / 1e9 == pytest.approx(786.8, abs=0.1)
        assert (row.bound, row.regime) == ("memory", "far_below_roof")
        assert row.explained == pytest.approx(0.235, abs=1e-3)

    def test_multiplication_out_of_the_cache_of_an_a100_is_not_above_its_bandwidth(self) -> None:
        traffic = 3 * 4.0 * 1024 * 2560
        row = only(stream(9.0, traffic), device=A100_40)
        assert traffic / 9e-6 > 2 * A100_40.bandwidth_bytes_per_s
        assert (row.bound, row.reason, row.explained) == ("memory", "served from cache", 1.0)
        assert row.memory_us == pytest.approx(9.0)


class TestOverhead:
    def test_a_tiny_kernel_is_overhead(self) -> None:
        assert only(stream(2.0, 1000.0)).bound == "overhead"

    def test_many_small_launches_of_one_op_are_overhead_together(self) -> None:
        kernels = tuple(Kernel(2.5, name=f"part{index}") for index in range(8))
        assert set(judge(Modelled(kernels, bytes_low=1e4)).bound) == {"overhead"}

    def test_a_kernel_with_idle_multiprocessors_shorter_than_four_floors_is_overhead(self) -> None:
        assert only(stream(5.0, 6e6, blocks=16)).bound == "overhead"

    def test_one_longer_than_four_floors_is_not(self) -> None:
        assert only(stream(7.0, 9e6, blocks=16)).bound != "overhead"

    def test_one_that_fills_the_device_is_not(self) -> None:
        assert only(stream(5.0, 7e6, blocks=1000)).bound == "memory"

    def test_a_short_kernel_explained_by_its_bytes_is_not(self) -> None:
        assert only(stream(2.9, 0.55 * 2.9e-6 * 3.352e12)).bound == "memory"

    def test_where_the_launch_floor_is_the_largest_of_three_but_explains_little_it_is_still_the_bound(self) -> None:
        row = only(stream(4.0, 1e5))
        assert (row.bound, row.regime) == ("overhead", "far_below_roof")

    def test_a_kernel_of_many_launch_floors_is_not_bound_by_its_launch_however_few_its_bytes(self) -> None:
        row = only(stream(40.0, 1e5))
        assert (row.bound, row.regime) == ("memory", "far_below_roof")


class TestComputeAndMemory:
    @pytest.mark.parametrize(
        ("reached", "regime", "reason"),
        [
            (0.71, "near_roof", None),
            (0.69, "below_roof", None),
            (0.51, "below_roof", None),
            (0.49, "far_below_roof", "unexplained"),
            (0.41, "far_below_roof", "unexplained"),
            (0.1, "far_below_roof", "unexplained"),
        ],
    )
    def test_the_share_of_the_peak_decides_how_close_arithmetic_is_to_its_roof(
        self, reached: float, regime: str, reason: str | None
    ) -> None:
        row = only(matmul(100.0, reached * 100e-6 * 989.4e12))
        assert (row.bound, row.regime) == ("compute", regime) and row.explained == pytest.approx(reached)
        assert row.reason == reason if reason else pd.isna(row.reason)

    def test_the_share_of_the_bandwidth_does_the_same_for_bytes_against_any_kind_of_ceiling(self) -> None:
        for device in (H100, replace(H100, source="measured")):
            rows = judge(*(stream(100.0, part * 100e-6 * 3.352e12) for part in (0.72, 0.68, 0.48)), device=device)
            assert list(rows.regime) == ["near_roof", "below_roof", "far_below_roof"]

    def test_a_provable_reason_is_given_below_the_roof_and_not_near_it(self) -> None:
        rows = judge(*(matmul(100.0, part * 100e-6 * 989.4e12, name="gemm_align1") for part in (0.6, 0.8)))
        assert rows.reason[0] == "misaligned: align1" and pd.isna(rows.reason[1])

    def test_the_larger_floor_is_the_bound(self) -> None:
        row = only(matmul(100.0, 0.5 * 100e-6 * 989.4e12, 0.9 * 100e-6 * 3.352e12))
        assert row.bound == "memory"

    def test_traffic_that_fits_the_cache_does_not_outweigh_arithmetic(self) -> None:
        row = only(matmul(15.0, 0.5 * 15e-6 * 989.4e12, 0.6 * 15e-6 * 3.352e12))
        assert row.bound == "compute"

    def test_special_functions_can_be_the_floor(self) -> None:
        row = only(Modelled((Kernel(100.0),), special_ops=0.8 * 100e-6 * H100.special_ops_per_s, bytes_low=1e6))
        assert (row.bound, row.regime) == ("compute", "near_roof")

    def test_a_floor_above_the_time_is_reported_as_our_error(self) -> None:
        row = only(matmul(100.0, 1.2 * 100e-6 * 989.4e12))
        assert (row.explained, row.confidence) == (1.0, "low")
        assert row.reason == "faster than its floor: its cost is taken too high, or the peak too low"

    def test_three_percent_above_is_no_error(self) -> None:
        row = only(matmul(100.0, 1.02 * 100e-6 * 989.4e12))
        assert row.explained == 1.0 and pd.isna(row.reason)


class TestPeaks:
    def test_the_kernel_decides_between_tf32_and_plain_lanes(self) -> None:
        flops = 1e-4 * 19.5e12
        plain = replace(matmul(100.0, flops, engine="vector", math_dtype="fp32"), math_dtype="fp32")
        tensor = replace(matmul(100.0, flops, engine="matrix", math_dtype="tf32"), math_dtype="fp32")
        table = judge(plain, tensor, device=A100_40)
        assert table.compute_us.tolist() == pytest.approx([100.0, 12.5])

    def test_an_unnamed_product_in_half_precision_is_held_against_tensor_cores_with_less_confidence(self) -> None:
        case = matmul(100.0, 0.6 * 100e-6 * 989.4e12, engine=None, math_dtype=None)
        row = only(case)
        assert (row.bound, row.confidence) == ("compute", "medium")
        assert only(matmul(100.0, 0.6 * 100e-6 * 989.4e12)).confidence == "high"

    def test_an_unnamed_product_in_fp32_keeps_both_ends(self) -> None:
        case = replace(matmul(100.0, 0.5 * 100e-6 * 494.7e12, engine=None, math_dtype=None), math_dtype="fp32")
        row = only(case)
        assert row.compute_us == pytest.approx(50.0)
        assert row.confidence != "high"

    def test_a_long_pointwise_kernel_does_not_move_a_product_off_the_tensor_cores(self) -> None:
        product = matmul(50.0, 0.5 * 50e-6 * 989.4e12).kernels[0]
        case = replace(matmul(1, 0.5 * 50e-6 * 989.4e12), kernels=(product, Kernel(60.0, engine="vector")))
        assert judge(case).explained.iloc[0] == pytest.approx(25 / 110)

    def test_bf16_on_a_v100_runs_on_its_fp32_lanes(self) -> None:
        row = only(matmul(100.0, 1e-4 * 15.7e12, engine=None), device=device_by_name("Tesla V100-SXM2-16GB"))
        assert row.compute_us == pytest.approx(100.0)

    def test_winograd_counts_the_multiplications_that_it_saves(self) -> None:
        case = replace(
            matmul(100.0, 2.25e-4 * 66.9e12, name="winograd_fwd", family="convolution", engine="vector"),
            math_dtype="fp32",
        )
        case = replace(case, kernels=(replace(case.kernels[0], math_dtype="fp32"),))
        assert only(case).compute_us == pytest.approx(100.0)

    def test_winograd_around_a_plain_product_is_known_by_its_transforms(self) -> None:
        plain = replace(matmul(90.0, 4e-4 * 66.9e12, name="volta_sgemm_64x64_nn", engine="vector"), math_dtype="fp32")
        product = replace(plain.kernels[0], math_dtype="fp32")
        transform = Kernel(10.0, name="void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>")
        assert judge(replace(plain, kernels=(product, transform))).compute_us.sum() == pytest.approx(100.0)
        assert judge(replace(plain, kernels=(product, Kernel(10.0)))).compute_us.sum() == pytest.approx(400.0)

    def test_a_dtype_without_a_peak_is_unknown_rather_than_wrong(self) -> None:
        row = only(matmul(100.0, 1e9, 1e6, math_dtype="int3"), device=H100)
        assert (row.bound, row.reason) == ("unknown", "no peak known for its dtype")
        assert only(matmul(100.0, 1e9, 0.7 * 100e-6 * 3.352e12, math_dtype="int3")).bound == "memory"


class TestCompletedPrices:
    def test_a_cost_that_rests_on_evidence_is_never_sure(self) -> None:
        whole = stream(100.0, 0.9 * 100e-6 * 3.352e12)
        assert only(whole).confidence == "high"
        assert only(replace(whole, evidence=("dtype from kernel names",))).confidence == "medium"

    def test_a_launch_is_a_launch_whatever_its_cost_rests_on(self) -> None:
        assert only(replace(stream(2.0, 1000.0), evidence=("dtype from kernel names",))).confidence == "high"


class TestUnknown:
    def test_an_op_without_a_cost_says_why(self) -> None:
        row = only(unmodelled(Kernel(100.0), reason=Reason("no_formula", ("aten::odd",))))
        assert (row.bound, row.reason, row.confidence) == ("unknown", "no formula for aten::odd", "low")
        assert pd.isna(row.explained) and pd.isna(row.flops)

    def test_a_kernel_without_an_op_says_why(self) -> None:
        assert only(unmodelled(Kernel(100.0, unlinked="launched_before"))).reason == "launched before the window"

    def test_a_replayed_kernel_says_so(self) -> None:
        assert "what a graph replays" in only(unmodelled(Kernel(100.0, replayed=True))).reason

    def test_missing_shapes_are_named(self) -> None:
        assert only(unmodelled(Kernel(100.0), has_signature=False)).reason == "shapes were not recorded"

    def test_an_unmodelled_kernel_as_short_as_a_launch_is_overhead_all_the_same(self) -> None:
        row = only(unmodelled(Kernel(1.6)))
        assert (row.bound, row.confidence) == ("overhead", "medium")
        assert only(unmodelled(Kernel(2.9))).bound == "unknown"

    def test_a_device_without_peaks_leaves_kernels_unknown(self) -> None:
        row = only(matmul(100.0, 1e10), device=BARE)
        assert (row.bound, row.reason) == ("unknown", "no peaks known for this device")

    def test_what_is_clearly_bound_by_launching_needs_no_peaks(self) -> None:
        assert only(matmul(1.7, 1e3), device=BARE).bound == "overhead"
        assert only(matmul(4.0, 1e3, blocks=8), device=BARE).bound == "overhead"

    def test_without_a_bandwidth_only_arithmetic_can_be_shown(self) -> None:
        device = replace(H100, bandwidth_bytes_per_s=None)
        proven = only(matmul(100.0, 0.6 * 100e-6 * 989.4e12), device=device)
        assert (proven.bound, proven.confidence) == ("compute", "low")
        assert only(stream(100.0, 1e8), device=device).reason == "no bandwidth known for this device"


cases = st.lists(
    st.one_of(
        st.builds(
            matmul,
            st.floats(0.5, 1e4),
            st.floats(0, 1e12),
            st.floats(0, 1e10),
            blocks=st.sampled_from([1, 100, 10_000, None]),
            engine=st.sampled_from(["matrix", "vector", None]),
            math_dtype=st.sampled_from(["bf16", "fp32", "tf32", None]),
        ),
        st.builds(stream, st.floats(0.5, 1e4), st.floats(0, 1e10)),
        st.builds(lambda dur: unmodelled(Kernel(dur)), st.floats(0.5, 1e4)),
    ),
    min_size=1,
    max_size=6,
)


class TestLaws:
    # A busy machine is slow, not wrong.
    quick = settings(max_examples=settings.default.max_examples // 2, deadline=None)

    @quick
    @given(cases)
    def test_explained_lies_between_nothing_and_everything(self, several: list[Modelled]) -> None:
        table = judge(*several)
        known = table.explained.dropna()
        assert ((known >= 0) & (known <= 1)).all()
        assert (table.bound != "unknown").eq(table.explained.notna()).all()

    @quick
    @given(cases)
    def test_what_is_unknown_or_far_below_the_roof_has_a_reason(self, several: list[Modelled]) -> None:
        table = judge(*several)
        asking = (table.bound == "unknown") | (table.regime == "far_below_roof")
        assert table.reason[asking].notna().all()

    @pytest.mark.statistics
    @quick
    @given(cases, st.randoms(use_true_random=False))
    def test_the_order_of_rows_changes_nothing(self, several: list[Modelled], chance: random.Random) -> None:
        made = frames(*several)
        order = list(range(len(made.kernels)))
        chance.shuffle(order)
        moved = Frames(
            made.kernels.iloc[order].reset_index(drop=True),
            made.ops,
            made.costs,
            made.attribution.iloc[order].reset_index(drop=True),
        )
        plain, shuffled = (classify(f.kernels, f.ops, f.costs, f.attribution, H100) for f in (made, moved))
        for name in plain.columns:
            left, right = plain[name].iloc[order].astype(object).tolist(), shuffled[name].astype(object).tolist()
            assert all(a == b or (pd.isna(a) and pd.isna(b)) for a, b in zip(left, right, strict=True)), name

    @pytest.mark.statistics
    @quick
    @given(cases, st.floats(-1e6, 1e6))
    def test_a_shift_in_time_changes_nothing(self, several: list[Modelled], shift_us: float) -> None:
        made = frames(*several)
        moved = made.kernels.assign(ts_us=made.kernels.ts_us + shift_us)
        pd.testing.assert_frame_equal(
            classify(made.kernels, made.ops, made.costs, made.attribution, H100),
            classify(moved, made.ops, made.costs, made.attribution, H100),
        )

    def test_empty_tables_give_an_empty_roofline(self) -> None:
        assert len(judge()) == 0

    def test_a_device_twice_as_fast_halves_every_floor(self) -> None:
        case = matmul(100.0, 1e10, 1e9)
        twice = replace(
            H100,
            peaks_flops_per_s={name: 2 * peak for name, peak in H100.peaks_flops_per_s.items()},
            bandwidth_bytes_per_s=2 * H100.bandwidth_bytes_per_s,
        )
        one, two = only(case), only(case, device=twice)
        assert (two.compute_us, two.memory_us) == pytest.approx((one.compute_us / 2, one.memory_us / 2))

    def test_floors_of_the_kernels_of_an_op_add_up_to_those_of_the_op(self) -> None:
        kernels = tuple(Kernel(dur, name=f"k{dur}") for dur in (10.0, 30.0, 60.0))
        split, whole = judge(Modelled(kernels, bytes_low=1e8)), judge(stream(100.0, 1e8))
        assert split.memory_us.sum() == pytest.approx(whole.memory_us.sum())


TRACELENS = "AMD-AGI+TraceLens__tests__traces__"
HTA = "facebookresearch+HolisticTraceAnalysis__tests__data__"

# Eager traces with shapes, by device. Their kernels took 1.5 us to 20 ms; the older two count whole microseconds.
EAGER = {
    "H100 image classifier": f"{TRACELENS}h100__Falconsai_nsfw_image_detection__1016002.json.gz",
    "H100 video transformer": f"{TRACELENS}h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "H100 language model": f"{TRACELENS}h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "MI300X image classifier": f"{TRACELENS}mi300__Falconsai_nsfw_image_detection__1016002.json.gz",
    "MI300X video transformer": f"{TRACELENS}mi300__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "MI300X language model": f"{TRACELENS}mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    "A100 training": f"{HTA}trace_diff__control__control.json.gz",
    "V100 training": f"{HTA}trace_diff__test__test.json.gz",
}


# Traces of replayed graphs and of generated kernels, and the captures that cost what they replay.
INFERENCE = f"{TRACELENS}inference__"
REPLAYED = {
    "MI300X sglang": (
        f"{INFERENCE}sglang_decode__sglang_Qwen3-8B_decode.json.gz",
        f"{INFERENCE}sglang_decode__capture_traces__bs_32_rank0.json.gz",
    ),
    "MI300X vLLM": (
        f"{INFERENCE}vllm_decode_full__graph_execution.json.gz",
        f"{INFERENCE}vllm_decode_full__capture_traces__graph_capture_rank_0.1773709742341309550.pt.trace.json.gz",
    ),
    "MI300X Flux with its capture": (
        f"{INFERENCE}xdit_flux.1_aiter_sage__capture_traces__capture_trace_rank_0.json.gz",
    ),
    "MI300X Flux": (
        f"{INFERENCE}xdit_flux.1_aiter_sage__profile_trace_rank_0.json.gz",
        f"{INFERENCE}xdit_flux.1_aiter_sage__capture_traces__capture_trace_rank_0.json.gz",
    ),
    "A100 captured without names": ("pytorch+ao__tutorials__quantize_vit__bfloat16_at_41da88f.json.gz",),
    "MI300X before the window": (f"{TRACELENS}mi300__resnet_act_checkpoint.json.gz",),
    "MI300X generated kernels": (f"{TRACELENS}torch_compile_triton__trace.json.gz",),
}


def modelled(path: Path, *captures: Path) -> CostedTrace:
    """A trace with its costs, those of twins included."""
    trace = read_trace(path)
    linked = infer_shapes(link(trace, find_steps(trace)))
    costs = compute_costs(linked.trace.signatures)
    alone = CostedTrace(linked, costs, attribute(linked.ops, linked.kernels, costs))
    return assign_replayed_costs(alone, [modelled(capture) for capture in captures])[0]


def judged(path: Path, *captures: Path) -> tuple[pd.DataFrame, Device]:
    """ROOFLINE with the name and duration of each kernel, and the device of a trace."""
    found = modelled(path, *captures)
    linked, costs, attribution = found.linked, found.costs, found.attribution
    trace = linked.trace
    used = [int(index) for index in trace.device_args["device"].dropna().unique()]
    device, _ = match_device(trace.devices, used, trace.flavour)
    roofline = worded(classify(linked.kernels, linked.ops, costs, attribution, device))
    return roofline.assign(
        name=linked.kernels["name"], kind=linked.kernels["kind"], us=linked.kernels["dur_us"]
    ), device


@pytest.mark.parametrize("file", EAGER.values(), ids=EAGER)
def test_no_kernel_is_faster_than_its_floor(traces: Path, file: str) -> None:
    table, device = judged(traces / file)
    assert device.source == "datasheet"
    too_fast = table[table["reason"].astype(str).str.startswith("faster than its floor")]
    assert too_fast.empty, too_fast[["name", "us", "compute_us", "memory_us"]].to_string()
    assert table["explained"].dropna().between(0, 1).all()


@pytest.mark.parametrize("files", REPLAYED.values(), ids=REPLAYED)
def test_no_kernel_is_faster_than_the_floor_of_its_twin(traces: Path, files: tuple[str, ...]) -> None:
    table, _ = judged(*(traces / file for file in files))
    too_fast = table[table["reason"].astype(str).str.startswith("faster than its floor")]
    assert too_fast.empty, too_fast[["name", "us", "compute_us", "memory_us"]].to_string()
    assert table["explained"].dropna().between(0, 1).all()


def test_every_replay_of_a_graph_has_the_flops_of_its_capture(traces: Path) -> None:
    """Flux: four replays in one recording, one in that of the capture, which holds the captured launches too.

    Their kernels differ in time, not in work.
    """
    execution, capture = (traces / file for file in REPLAYED["MI300X Flux"])
    totals = []
    for found in (modelled(execution, capture), modelled(capture)):
        kernels, attribution = found.linked.kernels, found.attribution
        flops = (found.costs["matrix_flops"] + found.costs["vector_flops"]).to_numpy()
        paid = (kernels["replayed"] & attribution["share"].notna()).to_numpy()
        amount = flops[attribution["signature"][paid].astype("int64")] * attribution["share"][paid]
        totals += amount.groupby(kernels["launch"][paid].astype("int64")).sum().tolist()
    assert len(totals) == 5
    assert totals == pytest.approx([totals[0]] * 5, rel=1e-9)
    assert totals[0] > 1e12


def test_an_operand_in_the_cache_is_reported_as_such(traces: Path) -> None:
    """The A100 multiplies 2.6 M fp32 numbers at 3.5 TB/s, more than twice the bandwidth of its DRAM.

    (At two thirds of that if both factors were the same tensor, which a trace cannot tell.)
    """
    table, device = judged(traces / EAGER["A100 training"])
    cached = table[table["reason"].astype(str) == "served from cache"]
    rate = cached["bytes_high"] / cached["us"] * 1e6
    assert rate.max() > 2 * (device.bandwidth_bytes_per_s or 0)
    assert (cached["explained"] <= 1).all()


def test_attention_of_a_video_transformer_is_far_below_the_roof_of_memory(traces: Path) -> None:
    """Shares of kernel time by the prototype of the method: 79.5 %, 14.3 %, 5.5 %."""
    table, _ = judged(traces / EAGER["H100 video transformer"])
    kernels = table[table["kind"] == "compute"]
    is_held = kernels["explained"] >= 0.4  # the prototype's threshold
    share = kernels.groupby(["bound", is_held], observed=True)["us"].sum() / kernels["us"].sum()
    assert share["memory", False] == pytest.approx(0.795, abs=0.01)
    assert share["memory", True] == pytest.approx(0.143, abs=0.01)
    assert share["compute", True] == pytest.approx(0.055, abs=0.01)
    far = (kernels["bound"] == "memory") & (kernels["regime"] == "far_below_roof")
    assert kernels["us"][far].sum() / kernels["us"].sum() == pytest.approx(0.814, abs=0.01)


def test_no_kernel_of_a_tiny_model_is_near_its_roof(traces: Path) -> None:
    table, _ = judged(traces / EAGER["H100 language model"])
    kernels = table[table["kind"] == "compute"]
    assert not (kernels["regime"] == "near_roof").any()
    assert kernels["us"][kernels["bound"] == "overhead"].sum() > 0.5 * kernels["us"].sum()


def test_a_trace_without_device_work_is_not_held_against_the_gpus_of_its_machine(traces: Path) -> None:
    table, device = judged(traces / f"{HTA}distributed_info_unavailable__distributed_info_not_found.json.gz")
    assert device.kind == "cpu" and device.source is None
    by_balance = table[table["bound"].isin(["compute", "memory"])]
    assert by_balance["explained"].isna().all() and by_balance["reason"].str.startswith("by machine balance").all()


class TestMachineBalance:
    """Work on a device without ceilings: decided where all devices that it may be agree, and open between."""

    nameless = unknown_device(DeviceProperties(), "cuda")[0]
    cpu = unknown_device(DeviceProperties(), "cpu")[0]

    @pytest.mark.parametrize(
        ("flops_per_byte", "bound"), [(0.3, "memory"), (1.9, "memory"), (10.0, "unknown"), (141.0, "compute")]
    )
    def test_a_cpu_op_is_decided_beyond_the_ridges_of_all_cpus(self, flops_per_byte: float, bound: str) -> None:
        row = only(host(1e5, matrix_flops=flops_per_byte * 1e8, bytes_low=1e8, bytes_high=1e8), device=self.cpu)
        assert row["bound"] == bound
        assert pd.isna(row["regime"]) and np.isnan(row["explained"])
        assert (str(row["reason"]).startswith("by machine balance")) == (bound != "unknown")
        assert (row["confidence"] == "low") == (bound == "unknown")

    def test_both_ends_of_the_bytes_have_to_agree(self) -> None:
        row = only(host(1e5, matrix_flops=6e9, bytes_low=1e8, bytes_high=3e8), device=self.cpu)
        assert row["bound"] == "unknown"

    def test_exponentials_count_as_arithmetic(self) -> None:
        few, many = (host(1e5, vector_flops=1e7, special_ops=n, bytes_low=1e8, bytes_high=1e8) for n in (0.0, 3e7))
        assert [row["bound"] for _, row in judge(few, many, device=self.cpu).iterrows()] == ["memory", "unknown"]

    def test_a_nameless_gpu_is_held_against_those_of_the_table(self) -> None:
        low, high = self.nameless.plausible_ridges["fp32_vector"]
        assert 5 < low < high < 200
        rows = judge(matmul(900.0, 2e12, 1e9), stream(900.0, 1e8), device=self.nameless)
        assert list(rows["bound"]) == ["compute", "memory"]

    def test_known_ceilings_decide_alone(self) -> None:
        assert H100.plausible_ridges == {} and only(stream(900.0, 1e8))["regime"] == "far_below_roof"


class TestCopiesAndCollectives:
    def copy(self, dur_us: float, nbytes: int, name: str, kind: str = "copy") -> "pd.Series[object]":
        return only(Modelled((Kernel(dur_us, name=name, kind=kind, bytes=nbytes, blocks=None),), pays=False))

    def test_a_copy_to_the_device_is_held_against_the_link(self) -> None:
        row = self.copy(100.0, int(52e9 * 50e-6), "Memcpy HtoD (Pinned -> Device)")
        assert (row.bound, row.memory_us) == ("transfer", pytest.approx(50.0))
        assert pd.isna(row.reason)

    def test_pageable_memory_is_named_with_its_pace(self) -> None:
        assert self.copy(100.0, 1000, "Memcpy DtoH (Device -> Pageable)").reason == "pageable host memory"
        row = self.copy(1000.0, 7_712_345, "Memcpy HtoD (Pageable -> Device)")
        assert row.reason == "pageable host memory: about 7.70 GB/s of the link's 52.0 GB/s"

    def test_a_link_far_below_its_rate_is_named_with_both(self) -> None:
        row = self.copy(1000.0, 9_000_000, "Memcpy HtoD (Pinned -> Device)")
        assert row.reason == "slow link: about 9.00 GB/s of the link's 52.0 GB/s"
        assert pd.isna(self.copy(1000.0, 30_000_000, "Memcpy HtoD (Pinned -> Device)").reason)

    def test_a_small_copy_is_a_round_trip(self) -> None:
        assert self.copy(10.0, 4, "Memcpy DtoH (Device -> Pinned)").reason == "small copy: 4.00 B"
        assert self.copy(10.0, 4, "Memcpy DtoD (Device -> Device)").reason == "small copy: 4.00 B"

    def test_a_slow_copy_inside_the_device_is_held_against_its_memory(self) -> None:
        row = self.copy(1000.0, 150_000_000, "Memcpy DtoD (Device -> Device)")
        assert row.reason == "slow copy: reads and writes about 300 GB/s of the DRAM's 3.35 TB/s"

    def test_bytes_that_the_trace_leaves_out_come_from_the_copying_op(self) -> None:
        def row(family: str) -> "pd.Series[object]":
            made = frames(Modelled((Kernel(100.0, name="CopyHostToDevice", kind="copy"),), bytes_low=5.2e6, pays=False))
            costs = made.costs.assign(family=pd.Categorical([family]))
            return worded(classify(made.kernels, made.ops, costs, made.attribution, H100)).iloc[0]

        assert row("copy").memory_us == pytest.approx(50.0)
        assert pd.isna(row("pointwise").memory_us) and row("pointwise").reason == "no bytes in the trace"

    def test_a_copy_inside_the_device_reads_and_writes(self) -> None:
        traffic = 3.352e12 * 200e-6
        row = self.copy(400.0, int((traffic + H100.cache_bytes) / 2), "Memcpy DtoD (Device -> Device)")
        assert row.memory_us == pytest.approx(200.0)

    def test_a_fill_only_writes(self) -> None:
        row = self.copy(400.0, int(3.352e12 * 100e-6 + H100.cache_bytes), "Memset (Device)", "fill")
        assert (row.bound, row.memory_us) == ("copy", pytest.approx(100.0))

    def test_a_copy_between_devices_has_no_floor(self) -> None:
        row = self.copy(100.0, 10**6, "Memcpy PtoP (Device -> Device)")
        assert row.bound == "transfer" and pd.isna(row.memory_us) and pd.isna(row.explained)

    def test_a_collective_is_communication_without_a_roofline(self) -> None:
        row = only(Modelled((Kernel(100.0, name="ncclDevKernel", kind="collective"),), pays=False))
        assert (row.bound, row.confidence) == ("communication", "high")
        assert pd.isna(row.compute_us) and pd.isna(row.explained)


class TestHost:
    def test_a_product_on_a_cpu_is_held_against_products(self) -> None:
        row = only(host(1000.0, matrix_flops=0.7e8, bytes_low=1e6), device=CPU)
        assert (row.bound, row.regime) == ("compute", "near_roof")

    def test_bandwidth_follows_the_working_set(self) -> None:
        small, large = (
            only(host(size / rate * 1e6, bytes_low=size), device=CPU) for size, rate in ((4e6, 1e11), (8e8, 1e10))
        )
        for row in (small, large):
            assert (row.bound, row.regime) == ("memory", "near_roof")
            assert row.explained == pytest.approx(1.0)

    def test_data_as_slow_as_dram_counts_as_cold(self) -> None:
        row = only(host(4e6 / 1e10 * 1e6 * 1.1, bytes_low=4e6), device=CPU)
        assert (row.bound, row.regime) == ("memory", "near_roof")
        assert row.confidence != "high"

    def test_data_faster_than_dram_but_far_from_its_cache_is_far_below_the_roof(self) -> None:
        row = only(host(4e6 / 1e10 * 1e6 * 0.5, bytes_low=4e6), device=CPU)
        assert (row.bound, row.regime) == ("memory", "far_below_roof")

    def test_self_time_below_three_dispatch_floors_is_overhead(self) -> None:
        assert only(host(2.9, bytes_low=100.0), device=CPU).bound == "overhead"
        assert only(host(40.0, bytes_low=3e6), device=CPU).bound == "memory"

    def test_an_op_that_the_cost_stage_calls_a_dispatcher_only_dispatches(self) -> None:
        row = only(host(5.0, pays=False, dispatches=True), device=CPU)
        assert (row.bound, row.confidence) == ("dispatch", "high")

    def test_an_unmodelled_dispatcher_needs_no_reason(self) -> None:
        row = only(unmodelled(Kernel(50.0, family="host", blocks=None), dispatches=True), device=CPU)
        assert row.bound == "dispatch" and pd.isna(row.reason)

    def test_an_unmodelled_op_with_time_of_its_own_is_unknown_even_if_it_calls_others(self) -> None:
        row = only(unmodelled(Kernel(50.0, family="host", blocks=None), children=2), device=CPU)
        assert (row.bound, row.reason) == ("unknown", "no formula for aten::odd")

    def test_a_compiled_region_says_that_it_records_no_shapes(self) -> None:
        host_time, name = Kernel(50.0, family="host", blocks=None), "Torch-Compiled Region: 0/0"
        region = unmodelled(host_time, op_name=name, has_signature=False)
        other = unmodelled(host_time, has_signature=False)
        assert only(region, device=CPU).reason == "compiled region, whose kernels record no shapes"
        assert only(other, device=CPU).reason == "shapes were not recorded"

    def test_a_sort_far_from_its_bytes_is_held_back_by_comparisons(self) -> None:
        """8 rows of 40,000 random numbers took 19.7 ms, 1.3 % of the bandwidth, and 2.4 ms once they were in order."""

        def op_of(name: str, bytes_low: float = 5.1e6) -> Modelled:
            kernel = Kernel(2e4, name=name, family="host", blocks=None)
            return Modelled(
                (kernel,), op_name=name, vector_flops=3.2e5, bytes_low=bytes_low, bytes_high=6.1e7, math_dtype="fp32"
            )

        sort = op_of("aten::sort")
        row = only(sort, device=CPU)
        assert row["bound"] == "compute" and pd.isna(row["regime"]) and np.isnan(row["explained"])
        assert str(row["reason"]).startswith("comparisons of numbers") and row["confidence"] == "medium"
        assert only(op_of("aten::bincount"), device=CPU)["bound"] == "memory"
        # Bytes that take as long as the sort do explain it.
        assert only(op_of("aten::sort", 2e8), device=CPU)["bound"] == "memory"
        assert only(op_of("aten::topk"), device=TestMachineBalance.cpu)["bound"] == "compute"
        assert only(unmodelled(sort.kernels[0], op_name="aten::sort"), device=CPU)["bound"] == "unknown"

    def test_no_time_at_all_is_overhead_and_breaks_nothing(self) -> None:
        assert only(host(0.0, bytes_low=4.0), device=CPU).explained <= 1.0


class TestLaunchFloor:
    def kernels(self, *durations: float, blocks: int | None = 8) -> pd.DataFrame:
        return frames(Modelled(tuple(Kernel(dur, blocks=blocks) for dur in durations))).kernels

    def floor(self, *durations: float, blocks: int | None = 8, device: Device | None = None) -> float | None:
        return launch_floor_us(self.kernels(*durations, blocks=blocks), device or replace(H100, launch_floor_us=None))

    def test_it_is_the_tenth_percentile_of_small_kernels(self) -> None:
        assert self.floor(*np.linspace(1, 11, 11)) == pytest.approx(2.0)

    def test_large_grids_do_not_raise_it_where_small_ones_are(self) -> None:
        small = tuple(Kernel(2.0, blocks=8) for _ in range(5))
        large = tuple(Kernel(9.0, blocks=5000) for _ in range(500))
        device = replace(H100, launch_floor_us=None)
        assert launch_floor_us(frames(Modelled(small + large)).kernels, device) == 2.0

    def test_it_never_exceeds_what_larger_kernels_show(self) -> None:
        small = tuple(Kernel(6.0, blocks=8) for _ in range(5))
        large = tuple(Kernel(2.0, blocks=5000) for _ in range(50))
        device = replace(H100, launch_floor_us=None)
        assert launch_floor_us(frames(Modelled(small + large)).kernels, device) == 2.0

    def test_without_grids_all_short_kernels_stand_in(self) -> None:
        assert self.floor(3.0, 3.0, 3.0, 3.0, 3.0, blocks=None) == 3.0

    def test_four_kernels_say_nothing(self) -> None:
        assert self.floor(2.0, 2.0, 2.0, 2.0) is None

    def test_long_kernels_of_one_block_are_no_floor(self) -> None:
        assert self.floor(*[500.0] * 20) is None

    def test_the_devices_own_floor_goes_first(self) -> None:
        assert self.floor(*[9.0] * 20, device=H100) == 1.5

    def test_without_a_floor_nothing_is_overhead_and_the_rest_is_judged(self) -> None:
        row = only(stream(100.0, 0.9 * 100e-6 * 3.352e12), device=replace(H100, launch_floor_us=None))
        assert row.bound == "memory" and pd.isna(row.launch_us)


class TestWholeMicroseconds:
    def test_rounding_lowers_the_confidence_of_short_kernels_only(self) -> None:
        at_threshold = 0.43 * 3e-6 * 3.352e12
        assert only(stream(3.0, at_threshold), device=replace(H100, launch_floor_us=None)).confidence != "high"
        long_row = only(stream(3000.0, 0.7 * 3000e-6 * 3.352e12))
        assert long_row.confidence == "high"

    def test_a_kernel_rounded_to_nothing_is_not_infinitely_fast(self) -> None:
        row = only(stream(0.0, 0.3e-6 * 3.352e12))
        assert row.explained <= 1.0
        assert pd.isna(row.reason) or "faster than its floor" not in row.reason
