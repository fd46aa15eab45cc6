"""Statistics of step times: the median with its interval, and the exact Wilcoxon signed-rank test for pairs.

The values of the paired test are logarithms of ratios, one per pair of neighbours in time: log(time of A / time of B),
positive where B is faster. In each pair the order of A and B is drawn at random, so that without an effect a value is
as likely positive as negative, whatever shape the noise has; that is all that the test assumes. Ratios have no unit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

from bottleneck.schema.measurements import Timing

# Where the exact distribution gives way to its normal limit, within 0.002 of it and too careful in its tails.
_EXACT_UP_TO = 60

# Where the binomial sum gives way to its normal limit; with more values it would underflow.
_EXACT_MEDIAN_UP_TO = 1000

# With fewer pairs no test at one percent can speak: 2**-7 = 0.008.
LOOKS = (7, 10, 14, 20, 28, 40, 57, 80, 113, 160)

Effect = Literal["faster", "slower", "no effect", "open"]
Verdict = Literal["faster", "slower", "no effect", "inconclusive"]


@dataclass(frozen=True)
class Rule:
    """What a verdict needs.

    ``budget`` is the smallest change that counts, as a logarithm (0.02 is two percent). ``error`` is the chance that
    one look at pairs without an effect takes them for one in one direction, ``coverage`` that of the interval.
    ``power`` is the chance to see a change of the size that is called visible.
    """

    budget: float = 0.02
    error: float = 0.01
    coverage: float = 0.95
    power: float = 0.8


@dataclass(frozen=True)
class Estimate:
    """The Hodges-Lehmann estimate of the typical value with its interval, infinite where there are too few pairs."""

    middle: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Judgement:
    """The verdict on all pairs so far; ``smallest_visible`` is the smallest change that they would have shown."""

    verdict: Verdict
    estimate: Estimate
    smallest_visible: float
    is_confirmed: bool = False


def summarise_durations(durations_us: Sequence[float]) -> Timing | None:
    """The median with its 95 % interval by order statistics (the whole range below 6 values); null without values.

    The interval takes the ranks between which a binomial variable with p = 1/2 lies with at least 95 % probability,
    and so assumes nothing about the shape of the distribution.
    """
    if not durations_us:
        return None
    ordered = sorted(durations_us)
    count = len(ordered)
    outside = ranks_outside_interval(count)
    return Timing(median=_median(ordered), low=ordered[outside], high=ordered[count - 1 - outside], n=count)


def ranks_outside_interval(count: int) -> int:
    """Number of order statistics outside the 95 % interval of the median at either end."""
    if count > _EXACT_MEDIAN_UP_TO:
        # 1.96 / 2 standard deviations of sqrt(count).
        return math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1
    outside, tail = 0, 0.5**count
    while 2 * tail <= 0.05:
        outside += 1
        tail += math.comb(count, outside) * 0.5**count
    return max(0, outside - 1)


@lru_cache(maxsize=4096)
def signed_rank_at_most(total: int, n: int) -> float:
    """The chance that the positive ranks of n values without an effect add up to at most this total."""
    if total < 0:
        return 0.0
    if n > _EXACT_UP_TO:
        mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return NormalDist().cdf((total + 0.5 - mean) / deviation)
    if total >= n * (n + 1) // 2:
        return 1.0
    from scipy.stats import wilcoxon  # noqa: PLC0415 - takes a second to import, and help needs none of it

    return float(wilcoxon(_with_rank_sum(total, n), alternative="less", method="exact").pvalue)


@lru_cache(maxsize=1024)
def critical_rank(n: int, tail: float) -> int:
    """Which Walsh average (the smallest is 1) bounds the true value from below but for ``tail``; 0 where none does."""
    low, high = 0, n * (n + 1) // 2
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if signed_rank_at_most(middle - 1, n) <= tail else (low, middle - 1)
    return low


def walsh_averages(values: Sequence[float]) -> list[float]:
    """The mean of every two values and of each with itself, in order."""
    return sorted((first + second) / 2 for place, first in enumerate(values) for second in values[: place + 1])


def estimate(values: Sequence[float], coverage: float = 0.95) -> Estimate:
    """The median of the Walsh averages, with the interval of the values that the signed-rank test would not refuse."""
    if not values:
        return Estimate(0.0, -math.inf, math.inf, 0)
    averages = walsh_averages(values)
    low, high = _bounds(averages, len(values), (1 - coverage) / 2)
    return Estimate(_median(averages), low, high, len(values))


def smallest_visible(values: Sequence[float], rule: Rule) -> float:
    """The smallest effect that the test at ``rule.error`` would show with ``rule.power``, from the interval's width.

    (z_error + z_power) standard errors, where the interval is 2 z_coverage of them wide.
    """
    normal = NormalDist()
    found = estimate(values, rule.coverage)
    standard_error = found.half_width / normal.inv_cdf((1 + rule.coverage) / 2)
    return (normal.inv_cdf(1 - rule.error) + normal.inv_cdf(rule.power)) * standard_error


def look(values: Sequence[float], rule: Rule) -> Effect:
    """What one look at the pairs says.

    An effect where the whole one-sided interval lies on its side of zero and the estimate is at least the budget; none
    where the two-sided interval lies within the budget on both sides, and pairs like these would have shown one.
    """
    if not values:
        return "open"
    averages = walsh_averages(values)
    low, high = _bounds(averages, len(values), rule.error)
    middle = _median(averages)
    if low > 0 and middle >= rule.budget:
        return "faster"
    if high < 0 and middle <= -rule.budget:
        return "slower"
    return "no effect" if _shows_none(values, rule) else "open"


def judge(first: Sequence[float], confirming: Sequence[float], rule: Rule) -> Judgement:
    """The verdict on a first batch of pairs and on a fresh one, which alone has to show the same effect again.

    Without a fresh batch there is no effect to speak of, only the lack of one.
    """
    pooled = [*first, *confirming]
    found, visible = estimate(pooled, rule.coverage), smallest_visible(pooled, rule)
    claimed, again = look(first, rule), look(confirming, rule)
    if claimed == again and (claimed == "faster" or claimed == "slower"):  # noqa: PLR1714 - mypy narrows this one
        return Judgement(claimed, found, visible, is_confirmed=True)
    verdict: Verdict = "no effect" if _shows_none(pooled, rule) else "inconclusive"
    return Judgement(verdict, found, visible)


def next_look(n: int) -> int | None:
    """The number of pairs at which to look next; null where there have been enough."""
    return next((wanted for wanted in LOOKS if wanted > n), None)


def _with_rank_sum(total: int, n: int) -> list[int]:
    """Values of the ranks 1 to n whose positive ones add up to this total."""
    values = []
    for rank in range(n, 0, -1):
        is_in = rank <= total
        values.append(rank if is_in else -rank)
        total -= rank if is_in else 0
    return values


def _shows_none(values: Sequence[float], rule: Rule) -> bool:
    found = estimate(values, rule.coverage)
    is_within = -rule.budget < found.low and found.high < rule.budget
    return is_within and smallest_visible(values, rule) <= rule.budget


def _bounds(averages: Sequence[float], n: int, tail: float) -> tuple[float, float]:
    rank = critical_rank(n, tail)
    return (averages[rank - 1], averages[-rank]) if rank else (-math.inf, math.inf)


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
