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
    RuleTrial,
    describe,
    factor_of,
    keeps_figure,
    read_table,
    refine,
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


def trials(*measured: float, slug: str = "rule") -> list[RuleTrial]:
    """Trials of a rule that stated 1.1 to 1.2."""
    return [RuleTrial(slug, Interval(1.1, 1.2), each, "here") for each in measured]


def test_a_table_without_trials_stays_and_rules_without_trials_keep_their_records() -> None:
    table = {"rule": record(1.3), "other": record(1.1, slug="other")}
    assert refine(table, []) == table
    assert refine(table, trials(1.15))["other"] == table["other"]


@given(st.lists(st.floats(0.5, 3.0), min_size=1, max_size=40), st.floats(0.8, 2.0))
def test_a_refined_factor_lies_between_that_of_the_table_and_those_of_the_trials(
    measured: list[float], factor: float
) -> None:
    found = refine({"rule": record(factor)}, trials(*measured))["rule"]
    own = [math.exp(score(Interval(1.1, 1.2), each)) for each in measured]
    assert min(*own, factor) - 1e-9 <= found.factor <= max(*own, factor) + 1e-9
    assert (found.own, found.pairs) == (len(measured), 10 + len(measured))


@given(st.lists(st.floats(0.5, 3.0), min_size=1, max_size=20), st.data())
def test_a_refined_factor_grows_with_how_far_a_trial_lay_outside(measured: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(measured) - 1))
    worse = [each if at != place else each * 2 if each >= 1.2 else each for at, each in enumerate(measured)]
    before, after = (refine({"rule": record(1.2)}, trials(*each))["rule"] for each in (measured, worse))
    assert after.factor >= before.factor - 1e-9


def test_few_trials_hardly_change_a_table_and_many_rule_it() -> None:
    table = {"rule": record(1.1)}
    assert refine(table, trials(1.15))["rule"].factor == pytest.approx(1.1)
    assert refine(table, trials(*[2.0] * 60))["rule"].factor == pytest.approx(2.0 / 1.2)


def test_gains_that_never_come_here_take_the_figure_of_a_rule() -> None:
    table = {"rule": record(1.1)}
    assert keeps_figure("rule", refine(table, trials(*[0.9] * 2)))
    assert not keeps_figure("rule", refine(table, trials(*[0.9] * 10)))
    assert not keeps_figure("new", refine({}, trials(*[0.9] * 10, slug="new")))


def test_evidence_counts_the_trials_of_the_user_apart() -> None:
    (told,) = describe("rule", refine({"rule": record(1.1)}, trials(*[1.15] * 6)))
    assert told.startswith("interval from your 6 trials of this advice here and 10 trials of this advice on CPUs: ")
    (alone,) = describe("new", refine({}, trials(1.15, slug="new")))
    assert alone.startswith("interval from your 1 trial of this advice here: ")
