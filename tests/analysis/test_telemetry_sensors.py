"""Figures of the steps from the log of the sensors."""

import pytest
from msgspec.structs import astuple

from bottleneck.analysis.telemetry import TimeSpan, summarise_samples
from bottleneck.schema.analysis import TelemetrySummary
from bottleneck.schema.telemetry import HOST, Sample

START_NS = 1_700_000_000_000_000_000
GPU, OTHER = "GPU-0", "GPU-1"


def at(seconds: float, sensor: str = GPU, **values: float) -> Sample:
    return Sample(START_NS + round(seconds * 1e9), 50.0 + seconds, sensor, values)


def stretch(start_s: float = 0.0, end_s: float = 4.0, steps: int = 10) -> TimeSpan:
    return TimeSpan(START_NS + start_s * 1e9, START_NS + end_s * 1e9, steps)


def told(samples: list[Sample], *stretches: TimeSpan, sensors: tuple[str, ...] = (GPU,)) -> TelemetrySummary:
    summary = summarise_samples(samples, stretches or (stretch(),), sensors)
    assert summary is not None
    return summary


def test_medians_are_those_of_the_samples_within_the_steps() -> None:
    clocks = [(-0.1, 100.0), (0.1, 1000.0), (0.2, 1200.0), (0.3, 5000.0), (4.1, 9000.0)]
    summary = told([at(seconds, sm_clock_mhz=mhz) for seconds, mhz in clocks])
    assert (summary.samples, summary.sm_clock_mhz) == (3, 1200.0)


def test_what_no_sensor_told_is_null() -> None:
    summary = told([at(1.0, sm_clock_mhz=1000.0)])
    assert astuple(summary) == (1, 1000.0, *[None] * 4, (), *[None] * 16)


def test_nothing_is_said_where_no_sample_fell_within_the_steps() -> None:
    assert summarise_samples([at(9.0, power_w=1.0)], (stretch(),), (GPU,)) is None
    assert summarise_samples([], (stretch(),), (GPU,)) is None


def test_devices_that_the_program_did_not_use_do_not_count() -> None:
    summary = told([at(1.0, GPU, power_w=100.0), at(1.0, OTHER, power_w=500.0)])
    assert (summary.samples, summary.power_w) == (1, 100.0)


def test_the_host_is_counted_where_there_is_no_device() -> None:
    summary = told([at(1.0, HOST, cpu_clock_mhz=2000.0, memory_used_bytes=5.0)], sensors=())
    assert (summary.samples, summary.cpu_clock_mhz, summary.host_memory_used_bytes) == (1, 2000.0, 5.0)
    assert summary.memory_used_bytes is None


def test_power_that_is_averaged_over_a_second_needs_a_second_of_steps() -> None:
    samples = [at(0.1, average_power_w=300.0, utilization=0.9)]
    long, short = told(samples), told(samples, stretch(0, 0.5))
    assert (long.power_w, long.utilization) == (300.0, 0.9)
    assert (short.power_w, short.utilization) == (None, None)


def test_power_of_the_instant_goes_before_power_averaged() -> None:
    assert told([at(0.1, power_w=250.0, average_power_w=300.0)], stretch(0, 0.5)).power_w == 250.0


def test_reasons_for_low_clocks_come_most_frequent_first_and_idle_is_none() -> None:
    bits = [0x1] * 60 + [0x4] * 30 + [0x44] * 10
    assert told([at(0.01 * row, throttle_bits=bit) for row, bit in enumerate(bits)]).throttle == (
        "power cap",
        "hardware thermal slowdown",
    )


def test_a_reason_that_hardly_ever_held_is_not_named() -> None:
    bits = [0x0] * 99 + [0x20]
    assert told([at(0.01 * row, throttle_bits=bit) for row, bit in enumerate(bits)]).throttle == ()


def energies(end_s: float, watts: float = 300.0, every_s: float = 0.1, sensor: str = GPU) -> list[Sample]:
    """A counter from half a second before the steps to half a second after them."""
    count = round((end_s + 1.0) / every_s)
    return [at(every_s * row - 0.5, sensor, energy_j=1e6 + watts * every_s * row) for row in range(count + 1)]


def test_energy_per_step_is_the_growth_of_the_counter() -> None:
    summary = told(energies(4.0), stretch(0.03, 4.03, steps=10))
    assert summary.energy_j == pytest.approx(300 * 4 / 10)
    assert summary.energy_error_j == pytest.approx(2 * 30 / 10)


def test_energy_of_several_devices_adds_up() -> None:
    both = [*energies(4.0), *energies(4.0, watts=100.0, sensor=OTHER)]
    assert told(both, sensors=(GPU, OTHER)).energy_j == pytest.approx(400 * 4 / 10)
    assert told(energies(4.0), sensors=(GPU, OTHER)).energy_j is None


def test_energy_of_less_than_two_seconds_is_not_reported() -> None:
    assert told(energies(1.99), stretch(0, 1.99)).energy_j is None
    assert told(energies(2.3), stretch(0, 2.3)).energy_j is not None


def test_energy_by_a_counter_that_moves_too_seldom_is_not_reported() -> None:
    assert told(energies(4.0, every_s=0.25)).energy_j is None


def test_energy_is_not_reported_where_samples_do_not_reach_from_end_to_end() -> None:
    lost = [sample for sample in energies(4.0) if sample.unix_ns < START_NS + 3.9e9]
    assert told(lost).energy_j is None


def test_a_counter_that_ran_backwards_is_not_trusted() -> None:
    samples = energies(4.0)
    samples[20] = at(1.5, energy_j=3.0)
    assert told(samples).energy_j is None


def test_energy_is_that_of_the_longest_stretch() -> None:
    assert told(energies(8.0), stretch(0, 1), stretch(1, 7, steps=3)).energy_j == pytest.approx(300 * 6 / 3)


def hosts(*rows: tuple[float, float, float]) -> list[Sample]:
    return [
        at(seconds, HOST, process_cpu_s=own, busy_cpu_s=busy, total_cpu_s=100 + 4 * seconds)
        for seconds, own, busy in rows
    ]


def test_processors_kept_busy_are_cpu_time_by_time() -> None:
    summary = told(hosts((-1, 0, 0), (0, 10, 0), (1, 11, 1), (2, 13, 2), (9, 99, 99)), stretch(0, 2))
    assert summary.process_processors == pytest.approx(1.5)
    assert summary.host_utilization == pytest.approx(0.25)


def test_stretches_are_weighed_by_their_length_and_what_lies_between_does_not_count() -> None:
    samples = hosts((0, 0, 0), (1, 2, 0), (2, 90, 0), (3, 90, 0), (6, 93, 0))
    assert told(samples, stretch(0, 1), stretch(2.5, 6)).process_processors == pytest.approx(5 / 4)


def test_steps_too_short_for_the_systems_clock_tell_no_rate() -> None:
    assert told(hosts((0, 0, 0), (0.1, 0.1, 0)), stretch(0, 0.1)).process_processors is None


def test_cpu_time_that_ran_backwards_tells_no_rate() -> None:
    assert told(hosts((0, 5, 0), (1, 4, 0))).process_processors is None
