"""The prices against the step times of KernelBench: physics, errors, intervals and signs."""

import statistics
from pathlib import Path

import pytest

from benchmarks.kernelbench.judge import (
    COMPILED,
    Judged,
    floors,
    judge,
    learn,
    samples,
    speedups,
    speedups_inside,
    with_intervals,
    without_device,
)
from benchmarks.kernelbench.learn import Timing, make_sample, predict
from benchmarks.kernelbench.programs import Key, read_steps, read_timings
from bottleneck.devices.match import device_by_name
from bottleneck.predict.price import predict_step
from bottleneck.predict.rates import read_rates
from bottleneck.schema.step_calls import StepCalls

FOLDER = Path(__file__).parents[3] / "shared/reference/kernelbench"
# Programs of every kind of work and both sizes: they run in `make test`.
SAMPLE = "*/level[123]/[1-3]_*.py"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not here: KernelBench's times and programs")


def fast(folder: Path) -> tuple[list[Timing], dict[Key, StepCalls]]:
    steps, failed = read_steps(folder, SAMPLE)
    assert not failed
    return read_timings(folder), steps


@pytest.fixture(scope="module")
def few() -> tuple[list[Timing], dict[Key, StepCalls]]:
    return fast(FOLDER)


@pytest.mark.process
@pytest.mark.sample
def test_no_floor_lies_above_the_measured_time(few: tuple[list[Timing], dict[Key, StepCalls]]) -> None:
    found = floors(*few)
    assert len(found) > 60
    assert [each for each in found if each.is_broken] == []


@pytest.mark.process
@pytest.mark.sample
def test_shipped_rates_are_within_a_third_of_most_times(few: tuple[list[Timing], dict[Key, StepCalls]]) -> None:
    timings, steps = few
    off = []
    for timing in timings:
        if timing.backend == "eager" and timing.key in steps and timing.us > 1000.0:
            us = predict_step(steps[timing.key], device_by_name(timing.hardware)).us
            assert us is not None
            off.append(abs(us / timing.us - 1.0))
    assert len(off) > 10
    assert statistics.median(off) < 0.15


@pytest.fixture(scope="module")
def everything() -> tuple[list[Timing], dict[Key, StepCalls]]:
    steps, _ = read_steps(FOLDER)
    return read_timings(FOLDER), steps


@pytest.fixture(scope="module")
def judged(everything: tuple[list[Timing], dict[Key, StepCalls]]) -> list[Judged]:
    eager, compiled = samples(*everything)
    return judge(eager, compiled, learn(eager, compiled))


def median_error(judged: list[Judged], **wanted: str) -> float:
    some = [each for each in judged if all(getattr(each.timing, name) == value for name, value in wanted.items())]
    return statistics.median(each.error for each in some)


@pytest.mark.process
def test_no_floor_of_any_program_lies_above_a_measured_time(
    everything: tuple[list[Timing], dict[Key, StepCalls]],
) -> None:
    found = floors(*everything)
    assert len(found) > 1400
    assert [each for each in found if each.is_broken] == []


@pytest.mark.statistics
def test_programs_that_were_held_out_are_predicted_within_the_goals(judged: list[Judged]) -> None:
    assert median_error(judged, backend="eager", version="2") <= 0.15
    assert median_error(judged, backend="eager", version="1") <= 0.25
    assert median_error(judged, backend="eager", level="level3") <= 0.15


@pytest.mark.statistics
def test_intervals_hold_four_of_five_times(judged: list[Judged]) -> None:
    held = with_intervals(judged)
    eager = [each for each in held if each.judged.timing.backend == "eager"]
    large, small = ([each for each in eager if each.judged.timing.version == version] for version in "21")
    for some in (
        held,
        large,
        small,
        *([each for each in eager if each.judged.timing.level == f"level{level}"] for level in (1, 2, 3)),
    ):
        assert statistics.mean(each.is_inside for each in some) >= 0.8
    assert statistics.median(each.width for each in large) <= 1.6


@pytest.mark.statistics
def test_compiling_is_predicted_with_the_right_sign_in_most_programs(judged: list[Judged]) -> None:
    found = speedups(judged)
    counted = [each for each in found if each.counts]
    inside = speedups_inside(found)
    for backend in COMPILED:
        mine = [each.is_right for each in counted if each.after.timing.backend == backend]
        assert statistics.mean(mine) >= 0.85, backend
        held = [is_in for each, is_in in zip(found, inside, strict=True) if each.after.timing.backend == backend]
        assert statistics.mean(held) >= 0.8, backend


@pytest.mark.statistics
@pytest.mark.parametrize("hardware", ["A100", "H100", "T4"])
def test_a_device_that_was_left_out_is_predicted(
    everything: tuple[list[Timing], dict[Key, StepCalls]], hardware: str
) -> None:
    eager, compiled = samples(*everything)
    for some in without_device(eager, learn(eager, compiled), hardware):
        assert statistics.median(each.error for each in some) <= 0.25


@pytest.mark.statistics
def test_the_shipped_rates_are_those_that_the_timings_give(
    everything: tuple[list[Timing], dict[Key, StepCalls]],
) -> None:
    eager = make_sample(*everything)
    learned = learn(*samples(*everything))
    shipped = {**learned.rates, **{name: value for name, value in read_rates().items() if name in learned.rates}}
    both = [predict(eager, rates, learned.paces) for rates in (shipped, learned.rates)]
    assert statistics.median(abs(both[0] / both[1] - 1.0)) < 0.03
