"""Stretches of a run that are far slower than its others, each of them counted by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.schema.watch_log import SlowStep, WatchHeader
from bottleneck.watched.pace import SlowStretches, find_slow_stretches
from bottleneck.watched.read_log import _DTYPE, WatchedRank


def watched(us: Any, *slow: SlowStep, cpu_us: Any = 500.0, switches: Any = 0) -> WatchedRank:
    us = np.asarray(us, dtype=np.float64)
    records = np.zeros(us.size, dtype=_DTYPE)
    records["count"], records["us"], records["cpu_us"], records["switches"] = 1, us, cpu_us, switches
    records["first"], records["end_s"] = np.arange(1, us.size + 1), us.cumsum() / 1e6
    records["data_us"], records["forward_us"] = 100.0, us - 100.0
    return WatchedRank(WatchHeader(0, 1, 0, "optimizer", "optimizer.step of SGD"), records, slow)


def found(*args: Any, **fields: Any) -> SlowStretches:
    stretches = find_slow_stretches(watched(*args, **fields))
    assert stretches is not None
    return stretches


def steps_of(count: int, *slow: tuple[int, int]) -> Any:
    """True for the steps of these stretches, the first step is 1."""
    numbers = np.arange(1, count + 1)
    return np.any([(numbers >= first) & (numbers <= last) for first, last in slow], axis=0)


def test_a_run_that_is_slow_from_its_start_is_told_with_its_steps_and_what_they_lost() -> None:
    us = np.where(steps_of(200, (1, 77)), 250_000.0, 1_000.0)
    stretches = found(us)
    assert stretches.stretches == ((1, 77),) and (stretches.steps, stretches.other_steps) == (77, 123)
    assert (stretches.step_us, stretches.other_us) == (250_000.0, 1_000.0)
    assert stretches.beyond_us == pytest.approx(77 * 249_000.0)
    assert stretches.phase == "forward" and not stretches.is_most
    assert (stretches.start_s, stretches.end_s) == pytest.approx((0.0, 77 * 0.25))


def test_few_quick_stretches_leave_most_steps_slow() -> None:
    slow = (1, 81), (92, 109), (121, 191)
    stretches = found(np.where(steps_of(191, *slow), 184_000.0, 2_000.0))
    assert stretches.stretches == slow and stretches.is_most


def test_the_system_took_the_processor_only_where_the_steps_neither_computed_nor_slept() -> None:
    slow = steps_of(200, (1, 77))
    us = np.where(slow, 180_100.0, 1_100.0)
    starved = found(us, cpu_us=np.where(slow, 45_000.0, 500.0), switches=np.where(slow, 16, 0))
    assert starved.is_starved and starved.computed_share == pytest.approx(0.25)
    # It computed itself, however often it lost the processor; and it slept, waiting for a device or a file.
    assert not found(us, cpu_us=np.where(slow, 120_000.0, 500.0), switches=np.where(slow, 16, 0)).is_starved
    assert not found(us, cpu_us=np.where(slow, 45_000.0, 500.0), switches=np.where(slow, 1, 0)).is_starved


def noted(step: int, us: float) -> SlowStep:
    phases = (100.0, us - 100.0, 0.0, 0.0, 0.0)
    return SlowStep(step, 0.0, us, 1_000.0, phases, (100.0, 900.0, 0.0, 0.0, 0.0), 0.0, us, 1e3, 0, 0.0, 0, 1, 1.0)


def test_a_stretch_whose_steps_were_noted_as_slow_is_told_by_their_causes() -> None:
    us = np.where(steps_of(200, (100, 150)), 50_000.0, 1_000.0)
    assert found(us, *(noted(step, 50_000.0) for step in range(100, 120))).stretches == ((100, 150),)
    assert find_slow_stretches(watched(us, *(noted(step, 50_000.0) for step in range(100, 130)))) is None


def test_scattered_steps_are_told_where_they_lacked_a_processor() -> None:
    is_slow = np.isin(np.arange(200) % 10, (0, 3, 4))
    us = np.where(is_slow, 50_000.0, 1_000.0)
    starved = {"cpu_us": np.where(is_slow, 9_000.0, 500.0), "switches": np.where(is_slow, 3, 0)}
    stretches = found(us, noted(1, 50_000.0), **starved)
    assert stretches.is_scattered and stretches.stretches == ((4, 195),)
    assert (stretches.steps, stretches.other_steps) == (59, 141)
    assert find_slow_stretches(watched(us, cpu_us=us)) is None


NUMBERS = np.arange(2_000)


@pytest.mark.parametrize(
    "us",
    [
        np.full(2_000, 1_000.0),
        np.linspace(1_000.0, 10_000.0, 2_000),
        np.geomspace(1_000.0, 10_000.0, 2_000),
        np.where(NUMBERS % 2 == 0, 1_000.0, 9_000.0),
        np.where(NUMBERS % 50 == 0, 90_000.0, 1_000.0),
        np.where(NUMBERS < 1_000, 1_000.0, 1_800.0),
        np.where(NUMBERS < 4, 9_000.0, 1_000.0),
        np.random.default_rng(0).lognormal(7.0, 1.0, 2_000),
    ],
    ids=["steady", "growing", "growing by factors", "in turns", "single", "not far", "first steps", "scattered"],
)
def test_other_courses_have_no_slow_stretch(us: Any) -> None:
    assert find_slow_stretches(watched(us)) is None


@given(st.integers(20, 3_000), st.floats(0.15, 0.85), st.floats(2.5, 500.0), st.integers(0, 10**6))
def test_a_jump_is_found_at_its_step_in_runs_of_any_length(count: int, share: float, times: float, seed: int) -> None:
    begins = min(max(round(share * count), 8), count - 8)
    noise = np.random.default_rng(seed).uniform(1.0, 1.2, count)
    us = 1_000.0 * noise * np.where(np.arange(count) < begins, 1.0, times)
    stretches = found(us)
    assert stretches.stretches == ((begins + 1, count),)
    assert stretches.steps + stretches.other_steps == count
    assert 0.0 < stretches.beyond_us <= us.sum()
