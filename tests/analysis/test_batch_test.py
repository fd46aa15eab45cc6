"""Conclusions of the batch test from times made by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.analysis.batch_test import add_measurements, find_disturbance, find_page_faults, prove, time_page_faults
from bottleneck.schema.analysis import DISTURBED, LedgerEntry
from bottleneck.schema.measurements import (
    BatchProof,
    BatchTest,
    Extras,
    OptionCost,
    OptionCosts,
    PageFaults,
    PeakMemory,
    Ratio,
    Timing,
)
from bottleneck.schema.records import replace
from tests.report.samples import cpu, gpu_overhead


def ledger(**shares: float) -> tuple[LedgerEntry, ...]:
    """Accounts by name, with '__' for the dot, as shares of a step of 1000 us; the rest is compute."""
    named = {name.replace("__", "."): share for name, share in shares.items()}
    named["compute"] = 1.0 - sum(named.values())
    return tuple(
        LedgerEntry(account, account.partition(".")[0], 1000.0 * share, share) for account, share in named.items()
    )


def timed(low: float, median: float, high: float) -> BatchTest:
    once = Timing(1000.0, 990.0, 1010.0, 120)
    twice = Timing(1000.0 * median, 990.0 * median, 1010.0 * median, 120)
    return BatchTest(32, once, twice, Ratio(median, low, high, 40))


def proof(low: float, median: float, high: float, **shares: float) -> BatchProof:
    return prove(timed(low, median, high), ledger(**shares))


@pytest.mark.parametrize(
    ("interval", "growth"),
    [
        ((1.02, 1.05, 1.10), "fixed"),
        ((1.10, 1.15, 1.21), "both"),
        ((1.40, 1.50, 1.60), "both"),
        ((1.79, 1.90, 2.00), "both"),
        ((1.85, 1.97, 2.05), "proportional"),
        ((2.30, 2.50, 2.70), "proportional"),
        ((1.10, 1.50, 2.10), "undecided"),
    ],
)
def test_what_grows_is_told_by_the_whole_interval(interval: tuple[float, float, float], growth: str) -> None:
    assert proof(*interval, overhead__dispatch=0.5).growth == growth


def test_the_parts_follow_from_the_ratio() -> None:
    found = proof(1.2, 1.25, 1.3, overhead__dispatch=0.7)
    assert found.fixed_share == Ratio(0.75, pytest.approx(0.7), pytest.approx(0.8), 40)
    assert found.fixed_us is not None and found.proportional_us is not None
    assert (found.fixed_us.median, found.proportional_us.median) == (750.0, 250.0)


@given(st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3).map(sorted), st.floats(0.0, 1.0))
def test_the_parts_add_up_to_the_step_and_lie_within_it(ratios: list[float], overhead: float) -> None:
    found = proof(*ratios, overhead__dispatch=overhead)
    fixed, grows, share = found.fixed_us, found.proportional_us, found.fixed_share
    assert fixed is not None and grows is not None and share is not None
    assert fixed.median + grows.median == pytest.approx(1000.0)
    assert fixed.low + grows.high == pytest.approx(1000.0)
    assert 0.0 <= share.low <= share.median <= share.high <= 1.0
    assert found.sentence


@given(st.floats(1.0, 2.0), st.floats(0.0, 1.0))
def test_a_step_made_of_overhead_and_work_alone_agrees_with_its_ledger(batch: float, overhead: float) -> None:
    ratio = 2.0 - overhead  # t(2B) = overhead + 2 x work
    assert proof(ratio, ratio, ratio, overhead__dispatch=overhead).agrees


def test_overhead_that_does_not_stay_is_a_disagreement() -> None:
    found = proof(1.85, 1.9, 1.95, overhead__dispatch=0.6)
    assert found.agrees is False
    assert (
        "The ledger does not agree: it says 60.0 % overhead, more than the 15.0 % that stay at most." in found.sentence
    )


@pytest.mark.parametrize("account", ["overhead__input", "overhead__allocator"])
def test_overhead_that_each_sample_brings_may_grow(account: str) -> None:
    found = proof(1.85, 1.9, 1.95, **{account: 0.9})
    assert found.agrees is True
    assert "90.0 % of the step for input and page faults" in found.sentence


def test_what_stays_beyond_the_overhead_is_named() -> None:
    found = proof(1.2, 1.25, 1.3, overhead__dispatch=0.2)
    assert found.agrees is True
    assert "work that does not depend on the batch" in found.sentence
    assert "work that does not depend" not in proof(1.2, 1.25, 1.3, overhead__dispatch=0.65).sentence


def test_times_that_scatter_prove_nothing() -> None:
    found = proof(1.0, 1.5, 2.0, overhead__dispatch=0.9)
    assert found.agrees is None
    assert found.sentence == "The times scatter too much to tell whether the step grows with its batch."


def test_a_step_that_grows_faster_than_its_work_says_so() -> None:
    assert "faster than its work" in proof(2.3, 2.6, 2.9).sentence
    assert "faster than its work" not in proof(2.0, 2.1, 2.3).sentence


def test_a_test_that_was_not_run_has_its_reason_and_no_figures() -> None:
    found = prove(BatchTest(32, reason="no room"), ledger(overhead__dispatch=0.5))
    assert (found.batch_size, found.ratio, found.growth, found.reason) == (32, None, None, "no room")


TEST = BatchTest(8, Timing(1.0, 1.0, 1.0, 6), Timing(1.5, 1.5, 1.5, 6), Ratio(1.5, 1.5, 1.5, 6))


def test_the_batch_test_is_judged_beside_the_ledger_of_the_analysis() -> None:
    told = add_measurements(gpu_overhead(), None, Extras(batch_test=TEST)).batch_test
    assert told is not None and told.growth == "both"
    assert "75.5 % overhead" in told.sentence


def test_a_recording_without_extras_leaves_the_analysis_as_it_was() -> None:
    plain = replace(cpu(), batch_test=None, option_costs=None)
    assert add_measurements(plain, None, Extras()) == plain


def test_settling_windows_and_costs_are_handed_on() -> None:
    costs = OptionCosts(reason="steps are too long")
    told = add_measurements(cpu(), None, Extras(settled=False, windows_us=(3.0, 2.0), option_costs=costs))
    assert (told.steps.settled, told.steps.windows_us, told.option_costs) == (False, (3.0, 2.0), costs)


def costing(times: float) -> OptionCosts:
    return OptionCosts((OptionCost("all", Ratio(times, times, times, 9)),))


def test_a_window_far_slower_than_the_profiler_makes_it_is_disturbed() -> None:
    extras = Extras(windows_us=(9500.0, 9000.0), option_costs=costing(1.8))
    (caveat,) = find_disturbance(extras, Timing(1000.0, 990.0, 1010.0, 20))
    assert caveat.slug == DISTURBED and caveat.share == pytest.approx(0.8)
    assert "9.0 times as long as unprofiled ones, where the profiler alone makes it 1.8 times" in caveat.message


@pytest.mark.parametrize(
    "extras",
    [
        Extras(windows_us=(3500.0,), option_costs=costing(1.8)),
        Extras(windows_us=(9000.0,), option_costs=costing(4.6)),
        Extras(windows_us=(9000.0,)),
        Extras(option_costs=costing(1.8)),
        Extras(windows_us=(1900.0,), option_costs=costing(0.5)),
    ],
    ids=["within twice", "a dear profiler", "costs not known", "no window", "a lucky ratio"],
)
def test_a_window_as_slow_as_the_profiler_makes_it_is_not_disturbed(extras: Extras) -> None:
    assert find_disturbance(extras, Timing(1000.0, 990.0, 1010.0, 20)) == ()
    assert find_disturbance(replace(extras, windows_us=(9e9,)), None) == ()


def faulting(profiled: float | None, unprofiled: float | None) -> Extras:
    return Extras(windows_us=(2000.0,), page_faults=PageFaults(4096, profiled, unprofiled))


def test_page_faults_that_only_profiled_steps_have_are_stated_with_their_cost() -> None:
    (caveat,) = find_page_faults(faulting(1000.0, 0.0), 4.096e9)
    assert caveat.slug == "profiler-page-faults" and caveat.share == pytest.approx(0.5)
    assert (
        "had 1000 page faults, an unprofiled one 0" in caveat.message and "1.00 ms of a profiled step" in caveat.message
    )


def test_without_the_rate_of_new_pages_only_their_number_is_stated() -> None:
    (caveat,) = find_page_faults(faulting(1000.0, 0.0), None)
    assert caveat.share is None and "takes about" not in caveat.message


@pytest.mark.parametrize(
    "extras",
    [faulting(127.0, 0.0), faulting(1000.0, 251.0), faulting(None, 0.0), faulting(1000.0, None), Extras()],
    ids=["few", "the program's own", "none profiled", "none unprofiled", "not counted"],
)
def test_other_page_faults_are_not_mentioned(extras: Extras) -> None:
    assert find_page_faults(extras, 4.096e9) == ()


def test_the_peak_that_was_measured_takes_the_place_of_the_traces() -> None:
    peak = PeakMemory(7_000_000, "device", "steps")
    assert add_measurements(gpu_overhead(), None, Extras(peak_memory=peak)).totals.peak_memory_bytes == 7_000_000
    since = add_measurements(gpu_overhead(), None, Extras(peak_memory=replace(peak, since="start"))).totals
    assert since.peak_memory_reason == "since the program started"


def test_a_peak_that_is_not_known_has_a_reason_unless_the_trace_knows_it() -> None:
    unknown = Extras(peak_memory=PeakMemory(None, "process", "start", "not asked"))
    assert add_measurements(cpu(), None, unknown).totals.peak_memory_reason == "not asked"
    device = add_measurements(gpu_overhead(), None, unknown).totals
    assert (device.peak_memory_bytes, device.peak_memory_reason) == (12_000_000_000, None)


def test_page_faults_of_the_window_that_gives_the_amounts_are_those_that_it_shows() -> None:
    extras = Extras(windows_us=(2000.0,), page_faults=PageFaults(4096, 900.0, 1000.0, lightly=200.0))
    assert time_page_faults(extras, 4.096e9, lightly=False) == pytest.approx((1000.0, 900.0))
    assert time_page_faults(extras, 4.096e9, lightly=True) == pytest.approx((1000.0, 200.0))
    assert time_page_faults(extras, None, lightly=True) == (0.0, 0.0)
