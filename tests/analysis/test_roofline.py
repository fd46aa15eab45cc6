"""Bounds of kernels: every rule fires once and stays silent once, and published figures come out."""

from dataclasses import replace

import pandas as pd
import pytest

from bottleneck.devices.match import device_by_name
from tests.analysis.frames import A100_40, BARE, H100, MIB, Kernel, Priced, judge, matmul, only, stream, unpriced


class TestPublishedFigures:
    """Traces and articles whose numbers are public; see docs on the method."""

    def test_batched_product_of_an_odd_size_on_an_h100_is_far_from_both_roofs(self) -> None:
        name = "cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn_align1"
        row = only(matmul(1083.46, 55.0589e9, 840.695 * MIB, name=name))
        assert row.flops / 1083.46e-6 / 1e12 == pytest.approx(50.818, rel=1e-4)
        assert row.explained < 0.25
        # 62 FLOP per byte is left of the ridge (295): memory is the larger floor, and far from explaining the time.
        assert (row.bound, row.regime, row.reason) == ("memory", "underutilised", "misaligned: align1")

    def test_linear_layer_on_an_h100_is_bound_by_arithmetic(self) -> None:
        m, n, k = 5185, 1024, 4096
        row = only(matmul(58.339, 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)))
        assert row.flops / 58.339e-6 / 1e12 == pytest.approx(745.56, rel=1e-4)
        assert (row.bound, row.regime, row.confidence) == ("compute", "saturated", "high")

    def test_product_of_8192_on_an_h200_reaches_four_fifths_of_the_peak(self) -> None:
        flops = 2.0 * 8192**3
        row = only(matmul(flops / 788e12 * 1e6, flops, 3 * 2.0 * 8192**2), device=device_by_name("h200"))
        assert row.compute_us / (flops / 788e12 * 1e6) == pytest.approx(0.796, abs=5e-4)
        assert (row.bound, row.regime) == ("compute", "saturated")

    def test_copy_inside_an_h200_reaches_nine_tenths_of_its_bandwidth(self) -> None:
        copy = Kernel(2000.0, name="Memcpy DtoD (Device -> Device)", kind="copy", bytes=int(4.3e9))
        row = only(Priced((copy,), pays=False), device=replace(device_by_name("h200"), cache_bytes=None))
        assert row.explained == pytest.approx(0.896, abs=5e-4)

    def test_multiplication_on_an_h100_is_bound_by_memory(self) -> None:
        row = only(stream(43.531, 3 * 2.0 * 5185 * 4096))
        assert row.bytes_low / 43.531e-6 / 1e12 == pytest.approx(2.927, rel=1e-3)
        assert (row.bound, row.regime) == ("memory", "saturated")

    def test_softmax_on_an_h100_is_underutilised_memory(self) -> None:
        traffic = 2 * 2.0 * 16 * 5185**2
        row = only(stream(2186.85, traffic, name="cunn_SoftMaxForward"))
        assert traffic / 2186.85e-6 / 1e9 == pytest.approx(786.8, abs=0.1)
        assert (row.bound, row.regime) == ("memory", "underutilised")
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
        assert set(judge(Priced(kernels, bytes_low=1e4)).bound) == {"overhead"}

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
        assert (row.bound, row.regime) == ("overhead", "underutilised")


class TestComputeAndMemory:
    def test_arithmetic_at_two_fifths_of_the_peak_is_saturated(self) -> None:
        row = only(matmul(100.0, 0.41 * 100e-6 * 989.4e12))
        assert (row.bound, row.regime, row.reason) == ("compute", "saturated", None) or pd.isna(row.reason)
        assert row.explained == pytest.approx(0.41)

    def test_arithmetic_below_that_is_underutilised(self) -> None:
        row = only(matmul(100.0, 0.39 * 100e-6 * 989.4e12))
        assert (row.bound, row.regime, row.reason) == ("compute", "underutilised", "unexplained")

    def test_the_larger_floor_is_the_bound(self) -> None:
        row = only(matmul(100.0, 0.5 * 100e-6 * 989.4e12, 0.9 * 100e-6 * 3.352e12))
        assert row.bound == "memory"

    def test_traffic_that_fits_the_cache_does_not_outweigh_arithmetic(self) -> None:
        row = only(matmul(15.0, 0.5 * 15e-6 * 989.4e12, 0.6 * 15e-6 * 3.352e12))
        assert row.bound == "compute"

    def test_special_functions_can_be_the_floor(self) -> None:
        row = only(Priced((Kernel(100.0),), special_ops=0.8 * 100e-6 * H100.special_ops_per_s, bytes_low=1e6))
        assert (row.bound, row.regime) == ("compute", "saturated")

    def test_a_measured_bandwidth_asks_for_three_fifths(self) -> None:
        case = stream(100.0, 0.5 * 100e-6 * 3.352e12)
        assert only(case).regime == "saturated"
        assert only(case, device=replace(H100, source="measured")).regime == "underutilised"

    def test_a_floor_above_the_time_is_reported_as_our_error(self) -> None:
        row = only(matmul(100.0, 1.2 * 100e-6 * 989.4e12))
        assert (row.explained, row.confidence) == (1.0, "low")
        assert row.reason == "faster than its floor: cost or peak is wrong"

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
    def test_a_price_that_rests_on_evidence_is_never_sure(self) -> None:
        whole = stream(100.0, 0.9 * 100e-6 * 3.352e12)
        assert only(whole).confidence == "high"
        assert only(replace(whole, evidence="dtype from kernel names")).confidence == "medium"

    def test_a_launch_is_a_launch_whatever_its_price_rests_on(self) -> None:
        assert only(replace(stream(2.0, 1000.0), evidence="dtype from kernel names")).confidence == "high"


class TestUnknown:
    def test_an_op_without_a_price_says_why(self) -> None:
        row = only(unpriced(Kernel(100.0), reason="no formula for aten::odd"))
        assert (row.bound, row.reason, row.confidence) == ("unknown", "no formula for aten::odd", "low")
        assert pd.isna(row.explained) and pd.isna(row.flops)

    def test_a_kernel_without_an_op_says_why(self) -> None:
        assert (
            only(unpriced(Kernel(100.0, unlinked="launched before the window"))).reason == "launched before the window"
        )

    def test_a_replayed_kernel_says_so(self) -> None:
        assert "replayed by a graph launch" in only(unpriced(Kernel(100.0, replayed=True))).reason

    def test_missing_shapes_are_named(self) -> None:
        assert only(unpriced(Kernel(100.0), has_signature=False)).reason == "shapes were not recorded"

    def test_an_unpriced_kernel_as_short_as_a_launch_is_overhead_all_the_same(self) -> None:
        row = only(unpriced(Kernel(1.6)))
        assert (row.bound, row.confidence) == ("overhead", "medium")
        assert only(unpriced(Kernel(2.9))).bound == "unknown"

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
