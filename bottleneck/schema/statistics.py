"""Statistics of step times: medians with intervals, and paired tests.

The tests are those of `verify` and the gate.

Sign convention, for the whole package: a pair gives ratio = changed time / original time (for the gate candidate /
base), so that a ratio above 1, and a positive logarithm, means slower. Only what a person reads as a speedup is the
inverse, formed where it is recorded.

Each value of a paired test is the logarithm of one such ratio, of two neighbours in time whose order was drawn at
random. Without an effect a value is then as likely to be positive as negative, whatever the shape of the noise; the
exact Wilcoxon signed-rank test and its Hodges-Lehmann interval assume nothing else.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from bottleneck.schema.measurements import Ratio, Timing
from bottleneck.units import counted, format_share

if TYPE_CHECKING:
    from bottleneck.schema.gate_result import TimeResult, TimeVerdict

# Up to this many pairs the exact distribution is used; the normal limit beyond is within 0.002 of it, and conservative
# in its tails.
_EXACT_UP_TO = 60

# Up to this count the median's interval comes from the binomial sum, which would underflow beyond.
_EXACT_MEDIAN_UP_TO = 1000

# Numbers of pairs at which a verdict may be reached. With fewer than seven no one-sided test at 1 % can be significant:
# 2**-7 = 0.008.
LOOKS = (7, 10, 14, 20, 28, 40, 57, 80, 113, 160)
# Those of the gate, whose pairs are pairs of fresh processes, which take longer.
GATE_LOOKS = LOOKS[:4]

# The chance on each side to lie outside the interval that the gate shows; seven pairs have one of 1/128.
_SHOWN_TAIL = 0.01

Effect = Literal["faster", "slower", "no effect", "open"]
PairsShow = Literal["faster", "slower", "fine", "open"]
Verdict = Literal["faster", "slower", "no effect", "inconclusive"]


@dataclass(frozen=True)
class EffectRule:
    """Thresholds of a verdict on an effect in either direction.

    ``budget`` is the smallest change that counts, as a logarithm (0.02 is two percent). ``error`` is the chance that
    one look at pairs without an effect reports one in a given direction, ``coverage`` that of the interval. ``power``
    is the chance to detect a change of the size that is called visible.
    """

    budget: float = 0.02
    error: float = 0.01
    coverage: float = 0.95
    power: float = 0.8


@dataclass(frozen=True)
class Estimate:
    """Hodges-Lehmann estimate of the typical value, with its interval.

    The interval is infinite where there are too few pairs.
    """

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
    """Verdict on all pairs so far.

    ``smallest_visible`` is the smallest change that they would have shown.
    """

    verdict: Verdict
    estimate: Estimate
    smallest_visible: float
    is_confirmed: bool = False


def summarise_durations(durations_us: Sequence[float]) -> Timing | None:
    """Returns the median of durations with its 95 % interval.

    The interval is by order statistics, and the whole range below 6 values. Null without values.

    The interval takes the ranks between which a binomial variable with p = 1/2 lies with at least 95 % probability,
    and so assumes nothing about the shape of the distribution.
    """
    if not durations_us:
        return None
    ordered = sorted(durations_us)
    count = len(ordered)
    outside = ranks_outside_interval(count)
    return Timing(median=statistics.median(ordered), low=ordered[outside], high=ordered[count - 1 - outside], n=count)


def ranks_outside_interval(count: int) -> int:
    """Counts order statistics outside the median's interval at either end.

    The interval is the 95 % interval.
    """
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
    """Returns the chance of at most this total of positive ranks.

    They are ranks of n values without an effect.
    """
    if total < 0:
        return 0.0
    if n > _EXACT_UP_TO:
        mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return statistics.NormalDist().cdf((total + 0.5 - mean) / deviation)
    if total >= n * (n + 1) // 2:
        return 1.0
    from scipy.stats import wilcoxon  # noqa: PLC0415 - takes a second to import, and help needs none of it

    return float(wilcoxon(_with_rank_sum(total, n), alternative="less", method="exact").pvalue)


@lru_cache(maxsize=1024)
def critical_rank(n: int, tail: float) -> int:
    """Returns the rank of the Walsh average that bounds the true value.

    It is a lower bound at error ``tail``, and rank 1 is the smallest. 0 where no Walsh average is one.
    """
    low, high = 0, n * (n + 1) // 2
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if signed_rank_at_most(middle - 1, n) <= tail else (low, middle - 1)
    return low


def estimate(values: Sequence[float], coverage: float = 0.95) -> Estimate:
    """Returns the median of the Walsh averages, with its interval.

    The interval holds the values that the signed-rank test does not reject.
    """
    if not values:
        return Estimate(0.0, -math.inf, math.inf, 0)
    # The Walsh averages: the mean of every two values and of each with itself.
    averages = sorted((first + second) / 2 for place, first in enumerate(values) for second in values[: place + 1])
    rank = critical_rank(len(values), (1 - coverage) / 2)
    low, high = (averages[rank - 1], averages[-rank]) if rank else (-math.inf, math.inf)
    return Estimate(statistics.median(averages), low, high, len(values))


def estimate_shift(before: Sequence[float], after: Sequence[float], coverage: float = 0.95) -> Estimate:
    """Estimates by how much the values of one list lie above those of another.

    It is the Hodges-Lehmann estimate for two independent samples: the median of all differences, with the interval that
    the Mann-Whitney test does not reject, by its normal limit.
    """
    count = min(len(before), len(after))
    if not count:
        return Estimate(0.0, -math.inf, math.inf, 0)
    differences = sorted(late - early for early in before for late in after)
    both, product = len(before) + len(after), len(before) * len(after)
    deviation = math.sqrt(product * (both + 1) / 12)
    tail = statistics.NormalDist().inv_cdf((1 + coverage) / 2)
    rank = math.floor(product / 2 - tail * deviation)
    low, high = (differences[rank - 1], differences[-rank]) if rank > 0 else (-math.inf, math.inf)
    return Estimate(statistics.median(differences), low, high, count)


def smallest_visible(values: Sequence[float], rule: EffectRule) -> float:
    """Returns the smallest effect that the test would show.

    The test is at ``rule.error`` with ``rule.power``, and the effect comes from the interval's width: (z_error +
    z_power) standard errors, where the interval is 2 z_coverage of them wide.
    """
    normal = statistics.NormalDist()
    estimated = estimate(values, rule.coverage)
    standard_error = estimated.half_width / normal.inv_cdf((1 + rule.coverage) / 2)
    return (normal.inv_cdf(1 - rule.error) + normal.inv_cdf(rule.power)) * standard_error


def look_for_effect(values: Sequence[float], rule: EffectRule) -> Effect:
    """The effect that these pairs alone show.

    An effect where the one-sided interval lies on its side of zero and the estimate is at least the budget; none where
    the two-sided interval lies within the budget on both sides, and pairs like these would have shown one.
    """
    if not values:
        return "open"
    return _direction(values, rule.error, rule.budget) or ("no effect" if _shows_none(values, rule) else "open")


def judge_effect(first: Sequence[float], confirming: Sequence[float], rule: EffectRule) -> Judgement:
    """Judges a first batch of pairs and a fresh one.

    The fresh batch alone has to show the same effect again. Without a fresh batch no effect is reported, only the lack
    of one.
    """
    pooled = [*first, *confirming]
    estimated, visible = estimate(pooled, rule.coverage), smallest_visible(pooled, rule)
    claimed, again = look_for_effect(first, rule), look_for_effect(confirming, rule)
    if claimed == again and (claimed == "faster" or claimed == "slower"):  # noqa: PLR1714 - mypy narrows this one
        return Judgement(claimed, estimated, visible, is_confirmed=True)
    verdict: Verdict = "no effect" if _shows_none(pooled, rule) else "inconclusive"
    return Judgement(verdict, estimated, visible)


def next_look(n: int) -> int | None:
    """The number of pairs at which to look next; null after the last look."""
    return next((wanted for wanted in LOOKS if wanted > n), None)


@dataclass(frozen=True)
class ProcessPair:
    """Two fresh processes, one per side, with their time ratio.

    It holds the median over turns of log(candidate / base), and their typical steps.
    """

    log_ratio: float
    base_us: float
    candidate_us: float


@dataclass(frozen=True)
class SlowdownRule:
    """Thresholds of the gate's verdict.

    ``budget`` is the growth that is allowed, as a share. A growth below ``floor_us`` never counts. ``error`` is the
    chance that one look at an unchanged step calls it slower, ``pass_error`` that of one look to pass a slowdown as
    large as the budget, ``power`` the chance to detect what is called visible.
    """

    budget: float = 0.03
    floor_us: float = 0.0
    error: float = 0.01
    pass_error: float = 0.05
    power: float = 0.8

    @property
    def confirmed(self) -> frozenset[PairsShow]:
        """Directions that a fresh batch has to show again."""
        return frozenset({"slower"})

    def allowed(self, base_us: float) -> float:
        """Returns the growth allowed of a step of this length.

        It is a logarithm, the larger of budget and floor.
        """
        return math.log1p(max(self.budget, self.floor_us / base_us))

    def look(self, pairs: Sequence[ProcessPair]) -> PairsShow:
        """Returns the result that these pairs alone show."""
        return look_for_slowdown(pairs, self)


@dataclass(frozen=True)
class ChangeRule:
    """Thresholds of a verdict on a change in either direction.

    ``budget`` is the smallest change that has to be seen, as a share: an effect counts from half of it, so that one of
    just this size is seen; without an effect the interval has to lie within it. ``error`` is the chance that one look
    at an unchanged step shows an effect in a given direction, which a fresh batch has to show again. ``pass_error`` is
    that of one look to pass over a change as large as the budget, on either side; ``power`` the chance to detect what
    is called visible.
    """

    budget: float = 0.01
    error: float = 0.01
    pass_error: float = 0.01
    power: float = 0.8
    floor_us: float = 0.0

    @property
    def confirmed(self) -> frozenset[PairsShow]:
        """Directions that a fresh batch has to show again."""
        return frozenset({"slower", "faster"})

    def allowed(self, base_us: float) -> float:  # noqa: ARG002 - as every rule of pairs
        """Returns the change that has to be seen, as a logarithm."""
        return math.log1p(self.budget)

    def look(self, pairs: Sequence[ProcessPair]) -> PairsShow:
        """Returns the result that these pairs alone show."""
        return look_for_change(pairs, self)

    def refutes(self, batches: "Batches") -> bool:
        """True where the fresh batch shows no change, and neither do all pairs together."""
        return self.look(batches.confirming) == "fine" == self.look(batches.pairs)


PairRule = SlowdownRule | ChangeRule


@dataclass
class Batches:
    """Pairs taken first, and fresh ones to confirm what they show.

    ``is_confirming`` turns true once the first pairs have shown what needs it.
    """

    first: list[ProcessPair] = field(default_factory=list)
    confirming: list[ProcessPair] = field(default_factory=list)
    is_confirming: bool = False

    @property
    def pairs(self) -> list[ProcessPair]:
        """All of them, the confirming ones last."""
        return [*self.first, *self.confirming]


def look_for_slowdown(pairs: Sequence[ProcessPair], rule: SlowdownRule) -> PairsShow:
    """Returns the result that these pairs alone show.

    It is "open" with fewer than seven (gate statistics, section 3.3).

    Slower: the lower bound is above zero and the estimate at what is allowed or beyond. Fine: the upper bound is below
    that, and pairs like these would have shown a slowdown of as much. Faster: the upper bound at the same error as for
    slower is below zero, and the gain as large as the budget.
    """
    if len(pairs) < LOOKS[0]:
        return "open"
    logs, allowed = _logs(pairs), _allowed(pairs, rule)
    direction = _direction(logs, rule.error, allowed)
    if direction is not None:
        return direction
    is_below = _one_sided(logs, rule.pass_error).high < allowed
    return "fine" if is_below and _visible_change(logs, rule) <= allowed else "open"


def look_for_change(pairs: Sequence[ProcessPair], rule: ChangeRule) -> PairsShow:
    """Returns the change that these pairs alone show, in either direction.

    It is "open" with fewer than seven. Faster or slower: the one-sided interval excludes zero, and the estimate is at
    least half of what has to be seen. Fine: the interval lies within that on both sides, and pairs like these would
    have shown a change of as much.
    """
    if len(pairs) < LOOKS[0]:
        return "open"
    logs, allowed = _logs(pairs), rule.allowed(0.0)
    direction = _direction(logs, rule.error, allowed / 2)
    if direction is not None:
        return direction
    within = _one_sided(logs, rule.pass_error)
    is_within = -allowed < within.low and within.high < allowed
    return "fine" if is_within and _visible_change(logs, rule) <= allowed else "open"


def take_batches(
    batches: Batches, take: Callable[[], ProcessPair | None], rule: PairRule, looks: Sequence[int] = GATE_LOOKS
) -> None:
    """Takes pairs from look to look until they decide.

    A fresh batch follows where they show what the rule wants confirmed.

    ``take`` gives null where there is no time for another pair: then the pairs so far are looked at. Pairs that were
    taken stay in ``batches`` where it raises.
    """
    batches.is_confirming = _take_until_decided(batches.first, take, rule, looks) in rule.confirmed
    if batches.is_confirming:
        _take_until_decided(batches.confirming, take, rule, looks)


def judge_pairs(batches: Batches, rule: PairRule) -> "TimeResult":
    """Judges these pairs, with bounds and the smallest visible change."""
    from bottleneck.schema.gate_result import TimeResult  # noqa: PLC0415 - the profiled process imports this module too

    logs = _logs(batches.pairs)
    first = rule.look(batches.first)
    is_again = first in rule.confirmed and rule.look(batches.confirming) == first
    is_decided = first != "open" and (is_again or first not in rule.confirmed)
    verdict: TimeVerdict = first if first != "open" and is_decided else "undecided"
    if isinstance(rule, ChangeRule) and first in rule.confirmed and rule.refutes(batches):
        verdict = "fine"
    return TimeResult(
        verdict=verdict,
        reason=_undecided_reason(batches, rule) if verdict == "undecided" else None,
        ratio=_ratio(logs),
        low_bound=_finite(_one_sided(logs, rule.error).low),
        high_bound=_finite(_one_sided(logs, rule.pass_error).high),
        budget=rule.budget,
        floor_us=rule.floor_us,
        smallest_visible=_share(_visible_change(logs, rule)),
        pairs=tuple(logs),
        confirming=len(batches.confirming),
        is_confirmed=is_again,
    )


def _undecided_reason(batches: Batches, rule: PairRule) -> str:
    """The reason why these pairs do not decide, in words."""
    count, shown = len(batches.first), rule.look(batches.first)
    if count < LOOKS[0]:
        return f"{counted(count, 'pair')} of processes, and it takes {LOOKS[0]}"
    if shown in rule.confirmed:
        what = {"slower": "a slowdown", "faster": "a speedup"}[shown]
        fresh = counted(len(batches.confirming), "fresh pair")
        if len(batches.confirming) < LOOKS[0]:
            return f"{counted(count, 'pair')} showed {what}; {fresh} followed, and it takes {LOOKS[0]} to confirm it"
        return f"{counted(count, 'pair')} showed {what}, which {fresh} did not confirm"
    allowed, visible = _share(_allowed(batches.first, rule)), _share(_visible_change(_logs(batches.first), rule))
    if visible is None or allowed is None or visible > allowed:
        seen = "" if visible is None else f", and would have shown no less than {format_share(visible)}"
        return f"{counted(count, 'pair')} scatter too much{seen}"
    what = "slowdown" if isinstance(rule, SlowdownRule) else "change"
    return f"a {what} of {format_share(allowed)} is neither proved nor ruled out by {counted(count, 'pair')}"


def _take_until_decided(
    pairs: list[ProcessPair], take: Callable[[], ProcessPair | None], rule: PairRule, looks: Sequence[int]
) -> PairsShow:
    for wanted in looks:
        while len(pairs) < wanted:
            pair = take()
            if pair is None:
                return rule.look(pairs)
            pairs.append(pair)
        seen = rule.look(pairs)
        if seen != "open":
            return seen
    return "open"


def _direction(logs: Sequence[float], error: float, budget: float) -> Literal["faster", "slower"] | None:
    """Returns the direction of an effect of at least the budget.

    Its one-sided interval excludes zero. Null for none.
    """
    estimated = _one_sided(logs, error)
    if estimated.low > 0 and estimated.middle >= budget:
        return "slower"
    if estimated.high < 0 and estimated.middle <= -budget:
        return "faster"
    return None


def _one_sided(logs: Sequence[float], error: float) -> Estimate:
    """The estimate between two bounds, each at this error."""
    return estimate(logs, 1 - 2 * error)


def _shows_none(values: Sequence[float], rule: EffectRule) -> bool:
    estimated = estimate(values, rule.coverage)
    is_within = -rule.budget < estimated.low and estimated.high < rule.budget
    return is_within and smallest_visible(values, rule) <= rule.budget


def _logs(pairs: Sequence[ProcessPair]) -> list[float]:
    return [pair.log_ratio for pair in pairs]


def _allowed(pairs: Sequence[ProcessPair], rule: PairRule) -> float:
    return rule.allowed(statistics.median(pair.base_us for pair in pairs))


def _visible_change(logs: Sequence[float], rule: PairRule) -> float:
    return smallest_visible(logs, EffectRule(error=rule.error, power=rule.power))


def _ratio(logs: Sequence[float]) -> Ratio | None:
    estimated = _one_sided(logs, _SHOWN_TAIL)
    low, high = _finite(estimated.low), _finite(estimated.high)
    return None if low is None or high is None else Ratio(math.exp(estimated.middle), low, high, estimated.n)


def _finite(bound: float) -> float | None:
    """Turns a bound of the logarithm into one of the ratio.

    Null where it is infinite.
    """
    return math.exp(bound) if math.isfinite(bound) else None


def _share(growth: float) -> float | None:
    return math.expm1(growth) if math.isfinite(growth) else None


def _with_rank_sum(total: int, n: int) -> list[int]:
    """Makes ranks 1 to n, signed so that positive ones total this."""
    values = []
    for rank in range(n, 0, -1):
        is_in = rank <= total
        values.append(rank if is_in else -rank)
        total -= rank if is_in else 0
    return values
