"""Widened intervals: what they cover, and what they must never do."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.advice.widening import ON_CPU, Widening, describe, widen
from bottleneck.schema.analysis import Interval

INTERVALS = st.tuples(st.floats(0.2, 5.0), st.floats(1.0, 3.0)).map(lambda ends: Interval(ends[0], ends[0] * ends[1]))


def widening(factor: float, noise: float = 0.0) -> Widening:
    return Widening(factor, noise, 10, 5)


@given(INTERVALS, st.floats(0.05, 5.0), st.floats(0.0, 0.5))
def test_no_interval_is_narrower_than_the_noise_of_what_was_measured(
    interval: Interval, factor: float, noise: float
) -> None:
    widened = widen(interval, widening(factor, noise))
    assert math.log(widened.high / widened.low) / 2 >= noise - 1e-9


@given(INTERVALS, st.floats(0.2, 3.0), st.floats(1.0, 2.0))
def test_a_larger_factor_contains_the_interval_of_a_smaller_one(
    interval: Interval, factor: float, times: float
) -> None:
    inner, outer = widen(interval, widening(factor)), widen(interval, widening(factor * times))
    assert outer.low <= inner.low * (1 + 1e-9) and inner.high <= outer.high * (1 + 1e-9)


def test_each_end_is_moved_out_by_the_factor() -> None:
    assert widen(Interval(1.0, 2.0), widening(1.1)) == Interval(pytest.approx(1 / 1.1), pytest.approx(2.2))


def test_times_measured_here_promise_more_closely_than_formulas_do() -> None:
    assert 1.0 < ON_CPU["timed"].factor < ON_CPU["formula"].factor


def test_evidence_names_the_trials_behind_a_width() -> None:
    assert describe("formula", widening(1.25)) == (
        "interval from 10 trials of formulas on CPUs: 4 of 5 measurements lay within those that were stated with each "
        "end moved out 1.25 times"
    )
    assert "10 trials of gains timed here" in describe("timed", widening(1.25))
