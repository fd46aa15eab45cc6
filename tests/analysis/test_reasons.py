"""Why a kernel falls short of its floor: each rule fires once and stays silent once, with the numbers that prove it."""

import numpy as np
import pandas as pd
import pytest

from bottleneck.analysis.roofline import classify
from bottleneck.analysis.telemetry import Conditions
from bottleneck.devices.match import device_by_name
from bottleneck.schema.intervals import shared_us
from bottleneck.schema.records import replace
from tests.analysis.frames import (
    A100_40,
    CPU,
    H100,
    Kernel,
    Modelled,
    frames,
    host,
    judge,
    matmul,
    only,
    stream,
    worded,
)

SLOW = 0.1 * 100e-6 * 989.4e12  # a tenth of what an H100 computes in bf16 in 100 us
B200 = replace(device_by_name("NVIDIA B200"), launch_floor_us=1.5)
XMMA = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{}x64_warpgroupsize1x1x1"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<32, 128, 64, 4, false, false, cutlass::half_t> >(Params)"


def product(m: int, n: int, k: int = 4096, batch: int = 1, **kernel: object) -> Modelled:
    """A slow product of known sizes."""
    return replace(matmul(100.0, SLOW, **kernel), m=m, n=n, k=k, batch=batch)


def slow_stream(share: float = 0.2, **kernel: object) -> Modelled:
    """A memory kernel of 100 us that reaches this share of an H100's bandwidth."""
    return stream(100.0, share * 100e-6 * 3.352e12, **{"blocks": 5000} | kernel)


class TestAuxiliary:
    def reasons(self, main_us: float, auxiliary_us: float) -> set[str]:
        main, auxiliary = matmul(main_us, 1).kernels[0], Kernel(auxiliary_us, name="nchwToNhwc", auxiliary=True)
        return set(judge(replace(matmul(1, SLOW), kernels=(main, auxiliary))).reason)

    def test_layout_kernels_of_two_fifths_of_the_time_are_the_reason_for_all(self) -> None:
        assert self.reasons(60.0, 40.0) == {"auxiliary layout kernels: about 40 % of the time"}

    def test_a_few_microseconds_of_them_are_not(self) -> None:
        assert self.reasons(90.0, 10.0) == {"unexplained"}


class TestGrid:
    def test_fewer_blocks_than_multiprocessors(self) -> None:
        assert only(matmul(100.0, SLOW, blocks=16)).reason == "too few blocks: 16 blocks for 132 multiprocessors"

    def test_as_many_blocks_as_multiprocessors_are_a_persistent_kernel(self) -> None:
        assert only(matmul(100.0, SLOW, blocks=132)).reason == "unexplained"
        assert only(matmul(100.0, SLOW, blocks=128)).reason == "unexplained"

    def test_a_short_kernel_of_one_block_is_ramp_up_rather_than_work(self) -> None:
        row = only(stream(5.0, 6e6, blocks=1))
        assert (row.bound, row.reason) == ("overhead", "ramp-up: 1 block for 132 multiprocessors")

    def test_overhead_that_launching_explains_needs_no_reason(self) -> None:
        row = only(stream(2.0, 1000.0, blocks=1))
        assert row.bound == "overhead" and pd.isna(row.reason)

    def test_overhead_of_a_full_grid_has_no_reason_from_the_grid(self) -> None:
        assert "ramp-up" not in str(only(stream(4.0, 1e5)).reason)


class TestWaves:
    """Published: m = 5185 on an H100 in tiles of 128x128."""

    def test_three_waves_for_two_and_a_half(self) -> None:
        row = only(product(5185, 1024, blocks=328, name=XMMA.format("128x128")))
        assert row.reason == (
            "wave quantisation: 328 tiles of 128x128 fill 2.48 waves of 132 multiprocessors, 83 % of the slots of 3"
        )

    def test_ten_full_waves_are_no_reason(self) -> None:
        assert only(product(5185, 4096, blocks=1312, name=XMMA.format("128x128"))).reason == "unexplained"

    def test_the_library_may_swap_rows_and_columns(self) -> None:
        row = only(product(1024, 5248, blocks=41 * 4, name=XMMA.format("128x256")))
        assert row.reason.startswith("wave quantisation: 164 tiles of 128x256 fill 1.24 waves")

    @pytest.mark.parametrize("blocks", [656, 132, 500])
    def test_a_grid_of_another_size_is_split_k_or_persistent(self, blocks: int) -> None:
        assert only(product(5185, 1024, blocks=blocks, name=XMMA.format("128x128"))).reason == "unexplained"

    def test_one_block_more_than_a_wave_is_enough_where_sizes_are_unknown(self) -> None:
        assert only(matmul(100.0, SLOW, blocks=133, name=XMMA.format("128x128"))).reason == (
            "wave quantisation: 133 tiles of 128x128 fill 1.01 waves of 132 multiprocessors, 50 % of the slots of 2"
        )

    @pytest.mark.parametrize(
        "name", ["sm90_streamk_gemm_128x128x64_", "splitKgemm_128x128x64_", "gemm_persistent_128x128x"]
    )
    def test_another_schedule_by_name_proves_nothing_without_sizes(self, name: str) -> None:
        assert only(matmul(100.0, SLOW, blocks=133, name=name)).reason == "unexplained"

    def test_small_tiles_share_a_multiprocessor(self) -> None:
        assert only(matmul(100.0, SLOW, blocks=133, name=XMMA.format("64x64"))).reason == "unexplained"

    def test_a_few_empty_slots_yield_to_what_a_name_proves_and_many_do_not(self) -> None:
        name = "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_nn_align8"
        assert only(product(5185, 1024, blocks=328, name=name)).reason.startswith("legacy")
        assert only(product(8, 16384, batch=4, blocks=512, name=name)).reason.startswith("tile")


class TestTiles:
    def test_a_thin_result_fills_few_of_its_tiles(self) -> None:
        row = only(product(8, 16384, batch=4, blocks=512, name=XMMA.format("128x128")))
        assert row.reason == "tile quantisation: results of 8 x 16384 fill 6 % of 512 tiles of 128x128"

    def test_a_result_of_whole_tiles_fills_them(self) -> None:
        assert only(product(1280, 16896, blocks=1320, name=XMMA.format("128x128"))).reason == "unexplained"

    def test_attention_over_seven_keys_fills_a_tenth_of_a_tile(self) -> None:
        case = replace(
            matmul(100.0, SLOW, name=FLASH, family="attention", blocks=32 * 512), m=4096, n=7, k=16, batch=512
        )
        reason = "tile quantisation: results of 4096 x 7 fill 11 % of 16384 tiles of 128x64"
        assert only(case).reason == reason
        full = replace(case, n=4096)
        assert "tile" not in only(full).reason


class TestOperands:
    @pytest.mark.parametrize(
        ("name", "sizes", "reason"),
        [
            ("cutlass_90_gemm_align1", (64, 64, 5185), "misaligned: align1, k = 5185 is odd"),
            ("cutlass_90_gemm_align1", (64, 5185, 64), "misaligned: align1, n = 5185 is odd"),
            ("cutlass_90_gemm_align1", (64, 64, 64), "misaligned: align1"),
            ("cutlass_90_gemm_align2>", (64, 66, 64), "misaligned: align2, n = 66 is no multiple of 8"),
            ("cutlass_90_gemm_align16", (64, 64, 64), "unexplained"),
            ("cutlass_90_gemm_align8", (64, 64, 5185), "unexplained"),
            ("Cijk_Ailk_Bljk_BBS_MT256x256x32", (64, 3137, 64), "misaligned: n = 3137 is odd"),
            ("Cijk_Ailk_Bljk_BBS_MT256x256x32", (3137, 64, 64), "unexplained"),
            ("nvjet_tst_128x64_64x16", (64, 3137, 64), "unexplained"),
        ],
    )
    def test_the_name_or_an_odd_size_tells_of_narrow_loads(
        self, name: str, sizes: tuple[int, ...], reason: str
    ) -> None:
        assert only(product(*sizes, name=name)).reason == reason

    def test_odd_sizes_are_no_matter_for_numbers_of_four_bytes(self) -> None:
        case = replace(product(64, 3137, 64, name="Cijk_Ailk_Bljk_SB", math_dtype="tf32"), math_dtype="fp32")
        assert only(case).reason == "unexplained"

    def test_old_instructions_on_a_newer_gpu(self) -> None:
        case = matmul(100.0, SLOW, name="cutlass_80_tensorop_bf16_s16816gemm_align8")
        said = "legacy instructions: mma.sync (cutlass_80) on a GPU that needs {} for more than about 63 % of its peak"
        assert only(case).reason == said.format("wgmma")
        assert only(case, device=B200).reason == said.format("tcgen05")

    def test_they_are_native_on_an_a100(self) -> None:
        case = matmul(100.0, 0.1 * 100e-6 * 312e12, name="cutlass_80_tensorop_bf16_s16816gemm_align8")
        assert only(case, device=A100_40).reason == "unexplained"

    def test_plain_units_have_no_matrix_instructions(self) -> None:
        case = matmul(100.0, 0.1 * 100e-6 * 66.9e12, name="ampere_sgemm_128x64_nn", engine="vector", math_dtype="fp32")
        assert only(replace(case, bytes_low=1e8)).reason == "unexplained"


class TestMemory:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("void at::native::elementwise_kernel<128, 4, at::native::add>", "elementwise_kernel<128, 4>"),
            ("void elementwise_kernel_manual_unroll<128, 8, add>", "elementwise_kernel_manual_unroll<128, 8>"),
            ("CatArrayBatchedCopy<bool, unsigned int, 2>", "CatArrayBatchedCopy"),
        ],
    )
    def test_kernels_that_move_single_elements_are_strided(self, name: str, reason: str) -> None:
        assert only(slow_stream(name=name)).reason == f"strided access: {reason} moves single elements, not vectors"

    @pytest.mark.parametrize(
        "name", ["vectorized_elementwise_kernel<4, add>", "CatArrayBatchedCopy_aligned16_contig<int>"]
    )
    def test_those_that_move_vectors_are_not(self, name: str) -> None:
        assert only(slow_stream(name=name)).reason == "unexplained"

    def test_eager_traffic_that_fills_the_time_is_named_with_its_bytes(self) -> None:
        case = replace(slow_stream(), bytes_high=0.9 * 100e-6 * 3.352e12, family="sort")
        assert only(case).reason == "repeated passes over its data: up to 302 MB for 67.0 MB"

    def test_bytes_that_hang_on_values_are_not_called_passes(self) -> None:
        case = replace(slow_stream(), bytes_high=0.9 * 100e-6 * 3.352e12, family="lookup")
        assert only(case).reason == "the trace leaves its bytes open: 67.0 MB to 302 MB"

    def test_a_few_bytes_per_thread_are_gone_before_a_block_has_started(self) -> None:
        case = slow_stream(blocks=65536, threads=128)
        assert only(case).reason == "little work per block: 65536 blocks of 128 threads move 1.02 kB each"
        assert only(slow_stream(blocks=16384, threads=128)).reason == "unexplained"

    def test_too_few_threads_to_hide_latency(self) -> None:
        case = slow_stream(blocks=264, threads=64)
        assert (
            only(case).reason == "too few threads: 264 blocks of 64 for 132 multiprocessors, which need about 512 each"
        )
        assert only(slow_stream(blocks=264, threads=512)).reason == "unexplained"

    def test_registers_limit_the_threads(self) -> None:
        case = slow_stream(blocks=5000, threads=256, registers=255)
        assert only(case).reason == "too few threads: 255 registers each leave room for 256 per multiprocessor"
        assert only(slow_stream(blocks=5000, threads=256, registers=64)).reason == "unexplained"

    def test_small_tensors_are_over_before_the_launch_is_paid_for(self) -> None:
        row = only(stream(9.0, 1.2e7, blocks=5000), device=replace(H100, launch_floor_us=4.0))
        assert row.reason == "small tensors: 12.0 MB take 3.58 us, beside a launch floor of 4.00 us"
        assert "small" not in only(slow_stream()).reason


class TestUnits:
    def test_exponentials_have_a_peak_of_their_own(self) -> None:
        case = Modelled((Kernel(100.0),), special_ops=0.3 * 100e-6 * H100.special_ops_per_s, bytes_low=1e6)
        assert only(replace(case, bytes_low=2e7)).reason.startswith("special functions: 125 M")
        assert only(replace(case, special_ops=1e6, bytes_low=2e7)).reason == "unexplained"

    def test_plain_additions_reach_half_of_the_peak(self) -> None:
        case = Modelled((Kernel(100.0),), vector_flops=0.3 * 100e-6 * 66.9e12, bytes_low=2e7, math_dtype="fp32")
        assert only(case).reason == "no fused multiply-adds: 2.01 GFLOP at half of the peak at most"
        assert only(replace(case, vector_flops=1e6)).reason == "unexplained"

    def test_a_throttled_clock_is_the_last_reason(self) -> None:
        case = matmul(100.0, SLOW)
        held = Conditions(("power cap",))
        assert set(judge(case, conditions=held).reason) == {"clocks: the device was throttled (power cap)"}
        few = matmul(100.0, SLOW, blocks=16)
        assert judge(few, conditions=held).reason[0].startswith("too few blocks")

    def test_a_kernel_near_the_roof_needs_no_reason(self) -> None:
        assert pd.isna(only(matmul(100.0, 9 * SLOW, blocks=64)).reason)


class TestOverlap:
    def together(self, offset_us: float) -> "pd.Series[object]":
        made = frames(slow_stream(), Modelled((Kernel(100.0, name="nccl", kind="collective"),), pays=False))
        kernels = made.kernels.assign(ts_us=[0.0, offset_us])
        return worded(classify(kernels, made.ops, made.costs, made.attribution, H100)).iloc[0]

    def test_a_kernel_beside_another_has_only_a_part_of_the_device(self) -> None:
        assert self.together(20.0).reason == "shares the device: other work runs for about 80 % of its time"

    def test_a_touch_is_no_reason(self) -> None:
        assert self.together(80.0).reason == "unexplained"

    def test_shared_time_is_reported_per_device(self) -> None:
        kernels = pd.DataFrame(
            {"ts_us": [0.0, 5.0, 8.0, 20.0], "dur_us": [10.0, 10.0, 10.0, 1.0], "device": [0, 0, 1, 0]}
        )
        assert shared_us(kernels).tolist() == [5.0, 5.0, 0.0, 0.0]
        assert shared_us(kernels.assign(device=0)).tolist() == [5.0, 10.0, 7.0, 0.0]

    def test_kernels_that_touch_do_not_overlap(self) -> None:
        kernels = pd.DataFrame({"ts_us": [0.0, 10.0, 20.0], "dur_us": [10.0, 10.0, 0.0], "device": 0})
        assert not np.any(shared_us(kernels))
        assert shared_us(kernels.iloc[:0]).size == 0


class TestHost:
    def reason(self, name: str = "aten::op", **cost: object) -> object:
        case = host(5000.0, **{"bytes_low": 1e7} | cost)
        return only(replace(case, kernels=(replace(case.kernels[0], name=name),)), device=CPU).reason

    def test_random_numbers_come_from_one_thread(self) -> None:
        serial = "one thread: random numbers come from one generator, one after the other"
        assert self.reason("aten::bernoulli_") == self.reason("aten::randn") == serial
        assert self.reason("aten::add") == self.reason("aten::normalise") == "unexplained"

    def test_a_loop_below_the_grain_stays_on_one_thread(self) -> None:
        small = "too small for 2 threads: 100 kB, and loops split from 32,768 elements"
        assert only(host(50.0, bytes_low=1e5), device=CPU).reason == small
        assert self.reason() == "unexplained"

    def test_a_thin_product_says_how_thin(self) -> None:
        thin = {"matrix_flops": 5e7, "m": 1000.0, "n": 1000.0, "k": 25.0}
        assert self.reason(**thin) == "small product: m = 1000, n = 1000, k = 25"
        assert self.reason(**thin | {"k": 1000.0}) == "unexplained"

    def test_data_between_two_levels_is_partly_cold(self) -> None:
        case = host(4e6 / 1e10 * 1e6 * 0.5, bytes_low=4e6)
        said = "partly cold data: about 20.0 GB/s, between memory's 10.0 GB/s and the cache's 100 GB/s"
        assert only(case, device=CPU).reason == said
        assert "cold" not in str(only(host(4e6 / 1e10 * 1e6 * 3, bytes_low=4e6), device=CPU).reason)

    def test_pages_of_fresh_results_are_named_where_they_account_for_the_time(self) -> None:
        device = replace(CPU, fresh_bytes_per_s=2e9)
        said = "fresh memory: pages for up to 10.0 MB come at 2.00 GB/s"

        def reason(dur_us: float, name: str = "aten::mul") -> object:
            case = host(dur_us, bytes_low=2e7)
            return only(replace(case, kernels=(replace(case.kernels[0], name=name),)), device=device).reason

        assert reason(6900.0) == said
        assert reason(7500.0) == "unexplained"
        assert reason(6900.0, "aten::mul_") == "unexplained"

    def test_nothing_is_known_of_caches_smaller_than_those_measured(self) -> None:
        assert "faster" not in str(only(host(10.0, bytes_low=2e6), device=CPU).reason)
        assert "faster" in str(only(host(1000.0, bytes_low=2e8), device=CPU).reason)

    def test_in_place_an_op_may_move_a_third_more_than_was_measured(self) -> None:
        at_rate = 8e8 / 1e10 * 1e6
        quick = only(host(at_rate * 0.76, bytes_low=8e8), device=CPU)
        assert (quick.explained, quick.memory_us) == (1.0, pytest.approx(at_rate * 0.76))
        assert "faster than its floor" not in str(quick.reason)
        assert "faster than its floor" in str(only(host(at_rate * 0.7, bytes_low=8e8), device=CPU).reason)

    def test_dispatch_was_taken_off_by_an_estimate(self) -> None:
        assert "faster" not in str(only(host(0.6, matrix_flops=1.1e5, bytes_low=100.0), device=CPU).reason)
        assert "faster" in str(only(host(60.0, matrix_flops=1.1e7, bytes_low=100.0), device=CPU).reason)
