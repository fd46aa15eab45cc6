"""Clocks below nominal lower the compute roof, and nothing else."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.analysis.ledger import LedgerResult
from bottleneck.analysis.telemetry import (
    Conditions,
    TimeSpan,
    find_conditions,
    find_contention,
    find_contention_of_short_steps,
    summarise_samples,
    tell_profiler_from_load,
)
from bottleneck.devices.match import device_by_name
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import (
    BROKEN_TRACE_SLUGS,
    CONTENDED,
    SHARED_PROCESSOR,
    Caveat,
    Ledger,
    LedgerEntry,
    TelemetrySummary,
)
from bottleneck.schema.intervals import Floats
from bottleneck.schema.records import replace
from bottleneck.schema.telemetry import Sample
from tests.analysis.frames import CPU, H100, judge, matmul, stream

NONE_TOLD = TelemetrySummary(9, None, None, None, None, None, ())
ALL = ("bf16_tensor", "fp32_vector", "tf32_tensor")


def at(mhz: float | None, *throttle: str) -> TelemetrySummary:
    return replace(NONE_TOLD, sm_clock_mhz=mhz, throttle=throttle)


def slowed_to(share: float) -> Conditions:
    return Conditions(clock_shares=dict.fromkeys(ALL, share))


class TestConditions:
    def test_tensor_peaks_hold_at_a_clock_of_their_own(self) -> None:
        conditions, _ = find_conditions(H100, at(1647.0))
        assert conditions.clock_shares["bf16_tensor"] == pytest.approx(0.9)  # of 1830 MHz
        assert conditions.clock_shares["fp32_vector"] == pytest.approx(1647 / 1980)

    def test_a_clock_as_high_as_the_peaks_changes_nothing(self) -> None:
        for mhz in (1980.0, 2100.0):
            assert find_conditions(H100, at(mhz)) == (Conditions(), ())

    def test_a_clock_hardly_lower_changes_nothing(self) -> None:
        assert find_conditions(H100, at(1950.0))[0].clock_shares == {}

    def test_without_a_sensor_nothing_is_claimed(self) -> None:
        for telemetry in (None, NONE_TOLD, at(0.0)):
            assert find_conditions(H100, telemetry) == (Conditions(), ())

    def test_a_device_whose_clock_is_not_known_keeps_its_peaks(self) -> None:
        assert find_conditions(replace(H100, peak_clocks_mhz={}), at(300.0)) == (Conditions(), ())

    def test_a_caveat_says_what_was_lowered_and_why(self) -> None:
        _, (caveat,) = find_conditions(H100, at(1464.0, "power cap"))
        assert caveat.slug == "low-clocks"
        assert caveat.message == (
            "the device ran at 1464 MHz (power cap), below the 1830 and 1980 MHz at which its peaks hold: arithmetic "
            "is judged against 73.9 % to 80.0 % of them, bytes against the whole bandwidth"
        )

    def test_only_arithmetic_slows_down(self) -> None:
        slow = slowed_to(0.5).slowed(H100)
        assert slow.bandwidth_bytes_per_s == H100.bandwidth_bytes_per_s
        assert slow.peaks_flops_per_s["bf16_tensor"] == H100.peaks_flops_per_s["bf16_tensor"] / 2
        assert slow.special_ops_per_s == pytest.approx((H100.special_ops_per_s or 0.0) / 2)


class TestProcessors:
    """A CPU's clock counts only where the calibration saw the sensor move, and while all processors work."""

    KNOWN = replace(CPU, peak_clocks_mhz=dict.fromkeys(CPU.peaks_flops_per_s, 3000.0))

    def test_all_of_them_at_a_lower_clock_lower_the_peaks(self) -> None:
        told = replace(NONE_TOLD, cpu_clock_mhz=1500.0, host_utilization=0.97)
        assert find_conditions(self.KNOWN, told)[0].clock_shares == dict.fromkeys(CPU.peaks_flops_per_s, 0.5)

    @pytest.mark.parametrize("used", [None, 0.5])
    def test_a_mean_over_processors_that_rest_says_nothing(self, used: float | None) -> None:
        told = replace(NONE_TOLD, cpu_clock_mhz=1500.0, host_utilization=used)
        assert find_conditions(self.KNOWN, told) == (Conditions(), ())

    def test_a_sensor_that_never_moved_says_nothing(self) -> None:
        told = replace(NONE_TOLD, cpu_clock_mhz=1500.0, host_utilization=0.97)
        assert find_conditions(CPU, told) == (Conditions(), ())


PEAK = H100.peaks_flops_per_s["bf16_tensor"]


class TestRoof:
    def test_a_product_at_the_limit_of_its_clock_is_explained_by_it(self) -> None:
        product = matmul(2000.0, PEAK * 1000e-6)
        plain, slow = judge(product), judge(product, conditions=slowed_to(0.625))
        assert (plain.compute_us[0], plain.explained[0]) == pytest.approx((1000.0, 0.5))
        assert (slow.compute_us[0], slow.explained[0]) == pytest.approx((1600.0, 0.8))

    def test_a_product_that_falls_short_may_have_been_held_by_the_clock_alone(self) -> None:
        product = matmul(3000.0, PEAK * 1000e-6)
        assert judge(product).regime[0] == "far_below_roof"
        assert judge(product, conditions=slowed_to(0.5)).regime[0] == "below_roof"

    def test_a_stream_is_held_against_the_whole_bandwidth(self) -> None:
        copy = stream(1000.0, 0.8 * 1000e-6 * (H100.bandwidth_bytes_per_s or 0.0))
        plain, slow = judge(copy), judge(copy, conditions=slowed_to(0.5))
        assert (plain.memory_us[0], plain.explained[0]) == (slow.memory_us[0], slow.explained[0])
        assert slow.bound[0] == "memory"

    @settings(deadline=None)
    @given(
        share=st.floats(0.05, 1.0),
        time_us=st.floats(1.0, 1e5),
        floor_us=st.floats(0.01, 1e5),
    )
    def test_no_clock_explains_more_than_the_time_or_raises_the_roof(
        self, share: float, time_us: float, floor_us: float
    ) -> None:
        case = matmul(time_us, floor_us / 1e6 * PEAK)
        plain, slow = judge(case).iloc[0], judge(case, conditions=slowed_to(share)).iloc[0]
        assert slow.explained <= 1.0
        assert slow.compute_us >= plain.compute_us * (1 - 1e-12)
        assert slow.compute_us <= max(plain.compute_us, time_us) * (1 + 1e-12)
        assert (plain.compute_us > 1.03 * time_us) == (slow.compute_us > 1.03 * time_us)  # too fast in either


def test_every_listed_peak_has_its_clock() -> None:
    for name in ("NVIDIA H100 80GB HBM3", "MI300X", "NVIDIA A100 80GB PCIe"):
        device = device_by_name(name)
        assert device.peak_clocks_mhz.keys() == device.peaks_flops_per_s.keys()
        assert all(np.isfinite(clock) and clock > 0 for clock in device.peak_clocks_mhz.values())


FULL = replace(TelemetrySummary(9, None, None, None, None, None, ()), host_utilization=0.99, process_processors=1.3)


def result(accounts: tuple[str, ...], us: tuple[float, ...], *, host_only: bool = True) -> LedgerResult:
    codes = np.array([tuple(ACCOUNTS).index(name) for name in accounts])
    ledger = Ledger(1.0, (LedgerEntry("compute", "compute", 1.0, 1.0),))
    return LedgerResult(ledger, np.array(us), codes, pd.DataFrame(), 0.0, (), host_only, None, 0, pd.DataFrame())


def contention(telemetry: TelemetrySummary | None, worked: LedgerResult, explained: Floats) -> tuple[Caveat, ...]:
    return find_contention(telemetry, 2, worked, explained, worked.ledger)


UNEXPLAINED = result(("compute", "memory"), (60.0, 40.0)), np.array([0.1, np.nan])


def test_ops_that_no_floor_explains_on_full_processors_are_not_judged() -> None:
    (caveat,) = contention(FULL, *UNEXPLAINED)
    assert (caveat.slug, caveat.share) == (CONTENDED, pytest.approx(0.94))
    assert "got 1.30 for its 2 threads" in caveat.message
    assert "at least is 6.0 % of the time that they took" in caveat.message


@pytest.mark.parametrize(
    "telemetry",
    [
        None,
        replace(FULL, host_utilization=0.7),  # a processor was free
        replace(FULL, process_processors=1.95),  # the program had them all
        replace(FULL, process_processors=None),
    ],
)
def test_a_program_that_had_its_processors_is_judged(telemetry: TelemetrySummary | None) -> None:
    assert contention(telemetry, *UNEXPLAINED) == ()


def test_a_single_thread_that_shares_its_processor_is_judged_by_the_time_it_had_one() -> None:
    half = replace(FULL, process_processors=0.5)
    worked = result(("compute", "memory"), (60.0, 40.0))
    (told,) = find_contention(
        half, 1, worked, np.array([0.2, 0.1]), worked.ledger
    )  # 16 % of the time, 32 % of that on a processor
    assert told.slug == SHARED_PROCESSOR and told.slug not in BROKEN_TRACE_SLUGS
    assert "got 0.50 for its thread" in told.message
    (broken,) = find_contention(half, 1, worked, np.array([0.1, 0.1]), worked.ledger)  # 20 % of the time on a processor
    assert broken.slug == CONTENDED
    most = replace(half, process_processors=0.81)
    (slow,) = find_contention(most, 1, worked, np.array([0.1, 0.01]), worked.ledger)  # slow with a processor too
    assert slow.slug == told.slug and "got 0.81" in slow.message
    (two,) = find_contention(half, 2, worked, np.array([0.2, 0.1]), worked.ledger)  # two threads wait for one another
    assert two.slug == CONTENDED


@pytest.mark.parametrize(("others", "explained", "caveats"), [(1.8, 0.001, 1), (1.8, 0.05, 0), (1.0, 0.001, 0)])
def test_short_steps_are_held_against_what_others_used_over_the_recording(
    others: float, explained: float, caveats: int
) -> None:
    """A product of 64 x 64 took 16 ms beside other programs, and was called bound by memory."""
    short = replace(FULL, host_utilization=None, process_processors=None, other_processors=others)
    outcome = find_contention_of_short_steps(short, 2, result(("memory",), (100.0,)), np.array([explained]))
    counts = replace(short, host_utilization=0.5, process_processors=1.9)
    assert len(outcome) == caveats
    assert find_contention_of_short_steps(counts, 2, result(("memory",), (100.0,)), np.array([explained])) == ()
    assert all("kept 1.8 of 2 processors busy" in caveat.message for caveat in outcome)


def test_work_that_its_floors_explain_is_judged() -> None:
    explained = result(("compute", "overhead.launch_floor"), (60.0, 40.0)), np.array([0.5, 0.1])
    assert contention(FULL, *explained) == ()


def test_time_that_is_no_work_does_not_count() -> None:
    waits = result(("compute", "overhead.dispatch", "overhead.input"), (10.0, 500.0, 500.0)), np.array([0.9, 0.0, 0.0])
    assert contention(FULL, *waits) == ()
    assert contention(FULL, result(("overhead.dispatch",), (1.0,)), np.zeros(1)) == ()


@pytest.mark.parametrize(("work", "caveats"), [(0.2, 0), (0.3, 1)])
def test_ops_that_take_a_small_part_of_the_step_cannot_change_its_verdict(work: float, caveats: int) -> None:
    entries = (
        LedgerEntry("overhead.python", "overhead", 1.0 - work, 1.0 - work),
        LedgerEntry("compute", "compute", work, work),
    )
    worked, explained = UNEXPLAINED
    assert len(contention(FULL, replace(worked, ledger=Ledger(1.0, entries)), explained)) == caveats


@pytest.mark.parametrize(("idle", "caveats"), [(0.4, 0), (0.9, 1)])
def test_a_step_that_mostly_idles_without_a_cause_on_full_processors_is_not_judged(idle: float, caveats: int) -> None:
    """A step of 1.3 ms took 893 ms beside twelve other programs, and was called bound by overhead."""
    entries = (
        LedgerEntry("overhead.unknown", "overhead", idle, idle),
        LedgerEntry("overhead.python", "overhead", 1.0 - idle, 1.0 - idle),
    )
    worked = replace(UNEXPLAINED[0], ledger=Ledger(1.0, (LedgerEntry("overhead.python", "overhead", 1.0, 1.0),)))
    judged = Ledger(1.0, entries)
    found = find_contention(FULL, 2, worked, UNEXPLAINED[1], judged)
    assert [caveat.share for caveat in found] == [idle] * caveats
    assert all("90.0 % of the step is idle time without a recorded cause" in caveat.message for caveat in found)
    assert find_contention(replace(FULL, host_utilization=0.5), 2, worked, UNEXPLAINED[1], judged) == ()


def test_a_device_of_its_own_does_not_wait_for_processors() -> None:
    on_gpu = result(("compute", "memory"), (60.0, 40.0), host_only=False), np.zeros(2)
    assert contention(FULL, *on_gpu) == ()


STRETCHED_BY_WHOM = (Caveat("disturbed-profile", "other programs", 0.4), Caveat("perturbation", "scaled", 0.4))


@pytest.mark.parametrize(
    ("others", "threads", "slug"),
    [
        (0.3, 1, "stretched-profile"),  # one of two processors was free
        (1.1, 1, "stretched-profile"),
        (1.6, 1, "disturbed-profile"),
        (0.9, 2, "disturbed-profile"),
        (None, 1, "disturbed-profile"),
    ],
)
def test_the_profiler_and_not_other_programs_stretched_steps_beside_free_processors(
    others: float | None, threads: int, slug: str
) -> None:
    telemetry = replace(FULL, other_processors=others)
    told = tell_profiler_from_load(STRETCHED_BY_WHOM, telemetry, threads, 2)
    assert [caveat.slug for caveat in told] == [slug, "perturbation"]
    assert ("other programs kept only" in told[0].message) == (slug == "stretched-profile")


def test_load_of_others_is_what_the_machine_did_beside_the_program() -> None:
    samples = [
        Sample(at * 10**9, float(at), "host", {"busy_cpu_s": 100 + 1.5 * at, "process_cpu_s": 1.0 * at})
        for at in (0, 2, 4)
    ]
    told = summarise_samples(samples, [TimeSpan(0.0, 4e9, 4)], [])
    assert told is not None and told.other_processors == pytest.approx(0.5)
    short = summarise_samples(samples[:1], [TimeSpan(0.0, 4e9, 4)], [])
    assert short is not None and short.other_processors is None
