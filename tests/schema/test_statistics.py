"""The judgement of pairs: published tables of the signed-rank distribution, laws, and how often noise is believed."""

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.schema.statistics import (
    LOOKS,
    EffectRule,
    critical_rank,
    estimate,
    judge_effect,
    look_for_effect,
    next_look,
    ranks_outside_interval,
    signed_rank_at_most,
    smallest_visible,
    summarise_durations,
)

RULE = EffectRule()
VALUES = st.lists(st.floats(-1, 1).filter(lambda value: value == 0 or abs(value) > 1e-6), min_size=7, max_size=20)

# Largest rank sums that are significant, one-sided, for n = 5 … 20: Wilcoxon and Wilcox (1964), "Some rapid approximate
# statistical procedures", table 2, as reprinted in Hollander and Wolfe; "None" where no sum is.
PUBLISHED = {
    0.05: (0, 2, 3, 5, 8, 10, 13, 17, 21, 25, 30, 35, 41, 47, 53, 60),
    0.025: (None, 0, 2, 3, 5, 8, 10, 13, 17, 21, 25, 29, 34, 40, 46, 52),
    0.01: (None, None, 0, 1, 3, 5, 7, 9, 12, 15, 19, 23, 27, 32, 37, 43),
    0.005: (None, None, None, 0, 1, 3, 5, 7, 9, 12, 15, 19, 23, 27, 32, 37),
}


@pytest.mark.parametrize("tail", PUBLISHED)
def test_critical_rank_sums_are_those_of_the_published_table(tail: float) -> None:
    ours = tuple(critical_rank(n, tail) - 1 for n in range(5, 21))
    assert ours == tuple(-1 if total is None else total for total in PUBLISHED[tail])


def counts_of(n: int) -> list[int]:
    """In how many of the 2**n assignments of signs the positive ranks add up to 0, 1, …: the oracle, in integers.

    A rank is either in the sum or not, so the counts of n ranks are those of n - 1, plus the same moved by n.
    """
    counts = [1]
    for rank in range(1, n + 1):
        counts = [a + b for a, b in zip(counts + [0] * rank, [0] * rank + counts, strict=True)]
    return counts


@pytest.mark.parametrize("n", range(1, 9))
def test_counts_are_those_of_all_assignments_of_signs(n: int) -> None:
    sums = [sum(rank for rank, sign in enumerate(signs, 1) if sign) for signs in itertools.product((0, 1), repeat=n)]
    assert counts_of(n) == [sums.count(total) for total in range(n * (n + 1) // 2 + 1)]
    for total in range(-1, n * (n + 1) // 2 + 2):
        assert signed_rank_at_most(total, n) == pytest.approx(sum(each <= total for each in sums) / 2**n, abs=1e-15)


@pytest.mark.parametrize("n", [7, 14, 20, 33, 60])
def test_the_chances_are_exact_as_far_as_they_are_said_to_be(n: int) -> None:
    counts, whole = counts_of(n), 2**n
    for total in range(0, n * (n + 1) // 2 + 1, max(1, n // 4)):
        assert signed_rank_at_most(total, n) == pytest.approx(sum(counts[: total + 1]) / whole, rel=1e-11)


def test_the_normal_limit_meets_the_exact_distribution_where_it_takes_over() -> None:
    n = 61
    counts = counts_of(n)
    for total in range(0, n * (n + 1) // 2, 7):
        exact = sum(counts[: total + 1]) / 2**n
        if exact <= 0.025:  # where verdicts are made it errs towards none
            assert exact <= signed_rank_at_most(total, n)
        assert signed_rank_at_most(total, n) == pytest.approx(exact, abs=2e-3)


def test_seven_pairs_are_the_fewest_that_can_speak() -> None:
    assert look_for_effect([0.5] * 6, RULE) == "open"
    assert look_for_effect([0.5] * 7, RULE) == "slower"
    assert LOOKS[0] == 7


def test_the_chance_is_the_published_one_for_darwin_s_maize() -> None:
    # Differences in eighths of an inch, crossed less self-fertilised: Fisher, The Design of Experiments (1935), section
    # 17. The signed-rank test of R's manuals gives V = 96 and p = 0.0413.
    maize = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    ranks = {value: rank for rank, value in enumerate(sorted(maize, key=abs), 1)}
    assert sum(rank for value, rank in ranks.items() if value > 0) == 96
    assert 2 * signed_rank_at_most(120 - 96, 15) == pytest.approx(0.0413, abs=5e-5)
    found = estimate(maize)
    assert 0 < found.low < found.middle < found.high


@given(VALUES)
def test_swapping_both_mirrors_the_verdict(values: list[float]) -> None:
    mirror = {"faster": "slower", "slower": "faster"}
    seen = look_for_effect(values, RULE)
    assert look_for_effect([-value for value in values], RULE) == mirror.get(seen, seen)
    there, back = estimate(values), estimate([-value for value in values])
    assert (back.middle, back.low, back.high) == pytest.approx((-there.middle, -there.high, -there.low))


@given(VALUES, st.randoms())
def test_the_order_of_the_pairs_means_nothing(values: list[float], shuffled: random.Random) -> None:
    other = list(values)
    shuffled.shuffle(other)
    assert estimate(other).middle == pytest.approx(estimate(values).middle)
    assert look_for_effect(other, RULE) == look_for_effect(values, RULE)


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=7, max_size=15), st.sampled_from([2.0, 1024.0])
)
def test_the_unit_of_time_means_nothing(pairs: list[tuple[float, float]], scale: float) -> None:
    plain = [math.log(a / b) for a, b in pairs]
    scaled = [math.log((scale * a) / (scale * b)) for a, b in pairs]
    assert judge_effect(plain, plain, RULE) == judge_effect(scaled, scaled, RULE)


@given(VALUES, st.floats(-0.5, 0.5))
def test_an_effect_that_is_added_moves_the_estimate_by_as_much(values: list[float], effect: float) -> None:
    moved = estimate([value + effect for value in values])
    found = estimate(values)
    assert (moved.middle, moved.low, moved.high) == pytest.approx(
        (found.middle + effect, found.low + effect, found.high + effect), abs=1e-9
    )


def test_an_effect_below_the_budget_is_none_however_sure_it_is() -> None:
    values = [0.01 + 0.0001 * place for place in range(10)]
    assert estimate(values).low > 0
    assert look_for_effect(values, RULE) == "no effect"
    assert look_for_effect(values, EffectRule(budget=0.005)) == "slower"


def test_pairs_that_scatter_too_much_to_show_the_budget_are_not_called_no_effect() -> None:
    values = [0.019, -0.019, 0.015, -0.015, 0.01, -0.01, 0.0]
    assert smallest_visible(values, RULE) > RULE.budget
    assert look_for_effect(values, RULE) == "open"


def test_an_effect_needs_a_fresh_batch_that_shows_it_again() -> None:
    clear, none = [0.1] * 7, [0.001, -0.001] * 4
    assert judge_effect(clear, [], RULE).verdict == "inconclusive"
    assert judge_effect(clear, none, RULE).verdict == "inconclusive"
    assert judge_effect(clear, [-value for value in clear], RULE).verdict == "inconclusive"
    confirmed = judge_effect(clear, clear, RULE)
    assert confirmed.verdict == "slower" and confirmed.is_confirmed
    assert judge_effect(none, [], RULE).verdict == "no effect"


def test_looks_grow_until_there_have_been_enough() -> None:
    assert [next_look(n) for n in (0, 7, 8, 20, 159)] == [7, 10, 10, 28, 160]
    assert next_look(160) is None


def _gauss(draw: random.Random) -> float:
    return draw.gauss(0, 0.04)


def _bursts(draw: random.Random) -> float:
    """Calm pairs, one in eight of which another program made much longer on one side or the other."""
    return draw.gauss(0, 0.02) + (draw.choice((-1, 1)) * draw.uniform(0.1, 0.6) if draw.random() < 0.125 else 0.0)


def _two_speeds(draw: random.Random) -> float:
    return draw.choice((-0.12, 0.12)) + draw.gauss(0, 0.005)


def _verdict(draw: random.Random, noise: Callable[[random.Random], float], effect: float) -> str:
    """One verification as `verify` does it: looks at growing batches, then a fresh batch for what claims an effect."""
    first: list[float] = []
    while (wanted := next_look(len(first))) is not None and wanted <= 40:
        first += [noise(draw) + effect for _ in range(wanted - len(first))]
        seen = look_for_effect(first, RULE)
        if seen == "no effect":
            return judge_effect(first, [], RULE).verdict
        if seen != "open":
            break
    confirming: list[float] = []
    while (
        look_for_effect(first, RULE) != "open" and (wanted := next_look(len(confirming))) is not None and wanted <= 20
    ):
        confirming += [noise(draw) + effect for _ in range(wanted - len(confirming))]
        if look_for_effect(confirming, RULE) != "open":
            break
    return judge_effect(first, confirming, RULE).verdict


@pytest.mark.parametrize("noise", [_gauss, _bursts, _two_speeds])
def test_noise_alone_is_called_faster_or_slower_less_than_once_in_a_hundred(
    noise: Callable[[random.Random], float],
) -> None:
    draw = random.Random(7)
    verdicts = [_verdict(draw, noise, 0.0) for _ in range(400)]
    assert sum(verdict in {"faster", "slower"} for verdict in verdicts) <= 4


@pytest.mark.parametrize("noise", [_gauss, _bursts])
@pytest.mark.parametrize(("effect", "expected"), [(0.10, "slower"), (-0.10, "faster")])
def test_a_tenth_more_or_less_is_seen_nearly_always(
    noise: Callable[[random.Random], float], effect: float, expected: str
) -> None:
    draw = random.Random(11)
    verdicts = [_verdict(draw, noise, effect) for _ in range(100)]
    assert verdicts.count(expected) >= 95


def test_no_steps_have_no_timing() -> None:
    assert summarise_durations([]) is None


@pytest.mark.parametrize("count", range(1, 6))
def test_below_six_steps_the_interval_is_the_whole_range(count: int) -> None:
    timing = summarise_durations([float(value) for value in range(count)])
    assert timing is not None
    assert (timing.low, timing.high, timing.n) == (0, count - 1, count)


def test_the_interval_takes_the_tabulated_ranks() -> None:
    # Ranks of the 95 % interval of a median for n = 20 and n = 100, as in any table of the sign test: 6-15 and 40-61.
    for count, low, high in ((20, 6, 15), (100, 40, 61)):
        timing = summarise_durations([float(value) for value in range(1, count + 1)])
        assert timing is not None
        assert (timing.low, timing.high) == (low, high)


@pytest.mark.parametrize("count", [7, 40, 1500])
def test_the_interval_holds_the_true_median_at_least_as_often_as_it_says(count: int) -> None:
    source = random.Random(7)
    hits = 0
    for _ in range(400):
        timing = summarise_durations([source.expovariate(1.0) for _ in range(count)])
        assert timing is not None
        hits += timing.low <= 0.6931471805599453 <= timing.high
    assert hits >= 0.92 * 400


def coverage_of_median(count: int, outside: int) -> float:
    """Chance that the true median lies between the order statistics that leave so many values out at either end.

    It does unless at most ``outside`` values lie on one side of it, each with probability 1/2.
    """
    return 1 - 2 * sum(math.comb(count, below) for below in range(outside + 1)) / 2**count


def test_the_interval_of_the_median_covers_at_least_95_percent_for_every_count() -> None:
    for count in range(6, 101):
        outside = ranks_outside_interval(count)
        assert coverage_of_median(count, outside) >= 0.95, count
        assert coverage_of_median(count, outside + 1) < 0.95, f"the interval for {count} values could be narrower"


def test_the_normal_limit_would_cover_less_for_many_of_these_counts() -> None:
    short = [
        count
        for count in range(6, 101)
        if coverage_of_median(count, max(math.floor(count / 2 - 0.98 * math.sqrt(count)), 0)) < 0.95
    ]
    assert len(short) == 45
