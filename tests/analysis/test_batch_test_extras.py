from dataclasses import replace

import pytest

from bottleneck.analysis.batch_test import add_measurements, find_disturbance, find_page_faults
from bottleneck.schema.analysis import DISTURBED
from bottleneck.schema.measurements import (
    BatchTest,
    Extras,
    OptionCost,
    OptionCosts,
    PageFaults,
    PeakMemory,
    Ratio,
    Timing,
)
from tests.report.samples import cpu, gpu_overhead

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
