"""Bounds where no plain roofline applies: copies, collectives, host ops, whole-microsecond traces; the launch floor."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bottleneck.analysis.roofline import classify, launch_floor_us
from bottleneck.schema.analysis import Device
from tests.analysis.frames import CPU, H100, Kernel, Priced, frames, host, only, stream, unpriced


class TestCopiesAndCollectives:
    def copy(self, dur_us: float, nbytes: int, name: str, kind: str = "copy") -> "pd.Series[object]":
        return only(Priced((Kernel(dur_us, name=name, kind=kind, bytes=nbytes, blocks=None),), pays=False))

    def test_a_copy_to_the_device_is_held_against_the_link(self) -> None:
        row = self.copy(100.0, int(52e9 * 50e-6), "Memcpy HtoD (Pinned -> Device)")
        assert (row.bound, row.memory_us) == ("copy", pytest.approx(50.0))
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
            made = frames(Priced((Kernel(100.0, name="CopyHostToDevice", kind="copy"),), bytes_low=5.2e6, pays=False))
            costs = made.costs.assign(family=pd.Categorical([family]))
            return classify(made.kernels, made.ops, costs, made.attribution, H100).iloc[0]

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
        assert row.bound == "copy" and pd.isna(row.memory_us) and pd.isna(row.explained)

    def test_a_collective_is_communication_without_a_roofline(self) -> None:
        row = only(Priced((Kernel(100.0, name="ncclDevKernel", kind="collective"),), pays=False))
        assert (row.bound, row.confidence) == ("communication", "high")
        assert pd.isna(row.compute_us) and pd.isna(row.explained)


class TestHost:
    def test_a_product_on_a_cpu_is_held_against_products(self) -> None:
        row = only(host(1000.0, matrix_flops=0.7e8, bytes_low=1e6), device=CPU)
        assert (row.bound, row.regime) == ("compute", "saturated")

    def test_bandwidth_follows_the_working_set(self) -> None:
        small, large = (
            only(host(size / rate * 1e6, bytes_low=size), device=CPU) for size, rate in ((4e6, 1e11), (8e8, 1e10))
        )
        for row in (small, large):
            assert (row.bound, row.regime) == ("memory", "saturated")
            assert row.explained == pytest.approx(1.0)

    def test_data_as_slow_as_dram_counts_as_cold(self) -> None:
        row = only(host(4e6 / 1e10 * 1e6 * 1.1, bytes_low=4e6), device=CPU)
        assert (row.bound, row.regime) == ("memory", "saturated")
        assert row.confidence != "high"

    def test_data_faster_than_dram_but_far_from_its_cache_is_underutilised(self) -> None:
        row = only(host(4e6 / 1e10 * 1e6 * 0.5, bytes_low=4e6), device=CPU)
        assert (row.bound, row.regime) == ("memory", "underutilised")

    def test_self_time_below_three_dispatch_floors_is_overhead(self) -> None:
        assert only(host(2.9, bytes_low=100.0), device=CPU).bound == "overhead"
        assert only(host(40.0, bytes_low=3e6), device=CPU).bound == "memory"

    def test_an_op_that_the_cost_stage_calls_a_dispatcher_only_dispatches(self) -> None:
        row = only(host(5.0, pays=False, dispatches=True), device=CPU)
        assert (row.bound, row.confidence) == ("dispatch", "high")

    def test_an_unpriced_dispatcher_needs_no_reason(self) -> None:
        row = only(unpriced(Kernel(50.0, family="host", blocks=None), dispatches=True), device=CPU)
        assert row.bound == "dispatch" and pd.isna(row.reason)

    def test_an_unpriced_op_with_time_of_its_own_is_unknown_even_if_it_calls_others(self) -> None:
        row = only(unpriced(Kernel(50.0, family="host", blocks=None), children=2), device=CPU)
        assert (row.bound, row.reason) == ("unknown", "no formula for aten::odd")

    def test_a_compiled_region_says_that_it_records_no_shapes(self) -> None:
        host_time, name = Kernel(50.0, family="host", blocks=None), "Torch-Compiled Region: 0/0"
        region = unpriced(host_time, op_name=name, has_signature=False)
        other = unpriced(host_time, has_signature=False)
        assert only(region, device=CPU).reason == "compiled region, whose kernels record no shapes"
        assert only(other, device=CPU).reason == "shapes were not recorded"

    def test_no_time_at_all_is_overhead_and_breaks_nothing(self) -> None:
        assert only(host(0.0, bytes_low=4.0), device=CPU).explained <= 1.0


class TestLaunchFloor:
    def kernels(self, *durations: float, blocks: int | None = 8) -> pd.DataFrame:
        return frames(Priced(tuple(Kernel(dur, blocks=blocks) for dur in durations))).kernels

    def floor(self, *durations: float, blocks: int | None = 8, device: Device | None = None) -> float | None:
        return launch_floor_us(self.kernels(*durations, blocks=blocks), device or replace(H100, launch_floor_us=None))

    def test_it_is_the_tenth_percentile_of_small_kernels(self) -> None:
        assert self.floor(*np.linspace(1, 11, 11)) == pytest.approx(2.0)

    def test_large_grids_do_not_raise_it_where_small_ones_are(self) -> None:
        small = tuple(Kernel(2.0, blocks=8) for _ in range(5))
        large = tuple(Kernel(9.0, blocks=5000) for _ in range(500))
        device = replace(H100, launch_floor_us=None)
        assert launch_floor_us(frames(Priced(small + large)).kernels, device) == 2.0

    def test_it_never_exceeds_what_larger_kernels_show(self) -> None:
        small = tuple(Kernel(6.0, blocks=8) for _ in range(5))
        large = tuple(Kernel(2.0, blocks=5000) for _ in range(50))
        device = replace(H100, launch_floor_us=None)
        assert launch_floor_us(frames(Priced(small + large)).kernels, device) == 2.0

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
