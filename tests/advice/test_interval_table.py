"""Factors of intervals: what they cover, and what they must never do."""

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.advice.interval_table import (
    ANY_RULE,
    Record,
    factor_of,
    keeps_figure,
    read_table,
    score,
    widen,
    write_table,
)
from bottleneck.schema.analysis import Interval

SCORES = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30)
INTERVALS = st.tuples(st.floats(0.2, 5.0), st.floats(1.0, 3.0)).map(lambda ends: Interval(ends[0], ends[0] * ends[1]))


def record(factor: float, noise: float = 0.0, slug: str = "rule") -> Record:
    return Record(slug, factor, noise, 10, 5, 0.5, 0.9)


def predicted_and_measured(draw: random.Random, spread: float, scatter: float) -> tuple[Interval, float]:
    """An interval of this half width around a true speedup, and a measurement that scatters by so much."""
    truth = draw.uniform(-0.3, 0.7)
    interval = Interval(math.exp(truth - spread), math.exp(truth + spread))
    return interval, math.exp(truth + draw.gauss(0.0, scatter))


@pytest.mark.parametrize(("spread", "scatter"), [(0.02, 0.2), (0.2, 0.2), (0.6, 0.1)])
def test_intervals_cover_what_they_promise_whether_stated_too_narrow_or_too_wide(spread: float, scatter: float) -> None:
    draw, inside = random.Random(1), 0
    for _ in range(2000):
        *known, (interval, measured) = (predicted_and_measured(draw, spread, scatter) for _ in range(41))
        table = {"rule": record(factor_of([score(*each) for each in known], []))}
        widened = widen("rule", interval, table)
        inside += widened.low <= measured <= widened.high
    assert 0.78 <= inside / 2000 <= 0.85


def test_a_rule_that_states_too_much_gets_a_narrower_interval_and_one_that_states_too_little_a_wider_one() -> None:
    draw = random.Random(2)
    wide = [score(*predicted_and_measured(draw, 0.6, 0.1)) for _ in range(100)]
    narrow = [score(*predicted_and_measured(draw, 0.02, 0.2)) for _ in range(100)]
    assert factor_of(wide, []) < 0.75 and factor_of(narrow, []) > 1.2


@given(INTERVALS, st.floats(0.05, 5.0), st.floats(0.0, 0.5))
def test_no_interval_is_narrower_than_the_noise_of_what_was_measured(
    interval: Interval, factor: float, noise: float
) -> None:
    widened = widen("rule", interval, {"rule": record(factor, noise)})
    assert math.log(widened.high / widened.low) / 2 >= noise - 1e-9


@given(SCORES, SCORES, st.floats(0.1, 0.9), st.floats(0.0, 0.09))
def test_more_coverage_is_never_a_smaller_factor(
    own: list[float], others: list[float], coverage: float, more: float
) -> None:
    assert factor_of(own, others, coverage) <= factor_of(own, others, coverage + more)


@given(SCORES, SCORES, st.floats(0.0, 1.0))
def test_worse_predictions_are_never_a_smaller_factor(own: list[float], others: list[float], worse: float) -> None:
    assert factor_of(own, others) <= factor_of([each + worse for each in own], others) + 1e-9


@given(INTERVALS, st.floats(0.2, 3.0), st.floats(1.0, 2.0))
def test_a_larger_factor_contains_the_interval_of_a_smaller_one(
    interval: Interval, factor: float, times: float
) -> None:
    inner = widen("rule", interval, {"rule": record(factor)})
    outer = widen("rule", interval, {"rule": record(factor * times)})
    assert outer.low <= inner.low * (1 + 1e-9) and inner.high <= outer.high * (1 + 1e-9)


@given(SCORES, SCORES, st.randoms(use_true_random=False))
def test_the_order_of_pairs_changes_nothing(own: list[float], others: list[float], draw: random.Random) -> None:
    mixed, rest = draw.sample(own, len(own)), draw.sample(others, len(others))
    assert factor_of(mixed, rest) == factor_of(own, others)


def test_a_rule_with_few_pairs_behaves_like_the_others_and_one_with_many_like_itself() -> None:
    good, bad = [0.01 * number for number in range(10)], [0.5 + 0.01 * number for number in range(40)]
    assert factor_of([], bad) > 1.6
    assert factor_of(good[:1], bad) > 1.6
    assert factor_of(good * 10, bad) < 1.11


def test_a_rule_without_pairs_gets_the_factor_of_any_rule() -> None:
    interval = Interval(1.0, 2.0)
    table = {"rule": record(1.1), ANY_RULE: record(2.0, slug=ANY_RULE)}
    assert widen("rule", interval, table) == Interval(pytest.approx(1 / 1.1), pytest.approx(2.2))
    assert widen("new", interval, table) == Interval(pytest.approx(0.5), pytest.approx(4.0))


def test_a_rule_loses_its_figure_only_where_many_pairs_had_the_wrong_direction() -> None:
    table = {
        "right": Record("right", 1.0, 0.0, 10, 5, 0.5, 0.7),
        "wrong": Record("wrong", 1.0, 0.0, 10, 5, 0.5, 0.6),
        "few": Record("few", 1.0, 0.0, 9, 5, 0.5, 0.0),
        ANY_RULE: Record(ANY_RULE, 1.0, 0.0, 30, 9, 0.5, 0.1),
    }
    assert [keeps_figure(slug, table) for slug in ("right", "wrong", "few", "new")] == [True, False, True, True]


def test_without_a_table_an_interval_stays_as_it_is() -> None:
    assert widen("rule", Interval(1.0, 2.0), {}) == Interval(1.0, 2.0)
    assert factor_of([], []) == 1.0


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    records = [record(1.25), Record(ANY_RULE, 2.0, 0.05, 0, 0, None, None)]
    write_table(tmp_path / "table.csv", records)
    assert list(read_table(tmp_path / "table.csv").values()) == records


def test_a_table_that_is_absent_holds_nothing(tmp_path: Path) -> None:
    assert read_table(tmp_path / "none.csv") == {}
