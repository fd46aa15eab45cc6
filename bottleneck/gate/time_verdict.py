"""Judges how much slower a step became from pairs of fresh processes that took turns.

The method is that of the gate statistics, section 3.3: the Hodges-Lehmann estimate of the log ratios, its exact
signed-rank bounds, looks at growing numbers of pairs, and a fresh batch that has to show a slowdown again.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bottleneck.schema.gate_result import TimeResult, TimeVerdict
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.statistics import Estimate, Rule, estimate, smallest_visible

LOOKS = (7, 10, 14, 20)

# The chance on each side to lie outside the interval that is shown; seven pairs have one of 1/128.
_TAIL = 0.01

Seen = Literal["slower", "faster", "fine", "open"]


@dataclass(frozen=True)
class Pair:
    """Two fresh processes, one per side: the median over turns of log(candidate / base), and their typical steps."""

    log_ratio: float
    base_us: float
    candidate_us: float


@dataclass(frozen=True)
class SlowdownRule:
    """What a verdict needs: ``budget`` is the growth that is allowed, as a share, ``floor_us`` one that never counts.

    ``error`` is the chance that one look at an unchanged step calls it slower, ``pass_error`` that of one look to pass
    a slowdown as large as the budget, ``power`` the chance to see what is called visible.
    """

    budget: float = 0.03
    floor_us: float = 0.0
    error: float = 0.01
    pass_error: float = 0.05
    power: float = 0.8

    def allowed(self, base_us: float) -> float:
        """What is allowed of a step of this length, as a logarithm: the budget, or the floor where that is more."""
        return math.log1p(max(self.budget, self.floor_us / base_us))


@dataclass
class Batches:
    """The pairs that were taken first, and the fresh ones that were to confirm what those claimed.

    ``is_confirming`` tells that the first have claimed a slowdown.
    """

    first: list[Pair] = field(default_factory=list)
    confirming: list[Pair] = field(default_factory=list)
    is_confirming: bool = False

    @property
    def pairs(self) -> list[Pair]:
        """All of them, the confirming ones last."""
        return [*self.first, *self.confirming]


def look(pairs: Sequence[Pair], rule: SlowdownRule) -> Seen:
    """What these pairs alone say; with fewer than seven nothing.

    Slower: the lower bound is above zero and the estimate at what is allowed or beyond. Fine: the upper bound is below
    that, and pairs like these would have shown a slowdown of as much. Faster: the upper bound at the same error as for
    slower is below zero, and the gain as large as the budget.
    """
    if len(pairs) < LOOKS[0]:
        return "open"
    logs, allowed = _logs(pairs), _allowed(pairs, rule)
    strict = _one_sided(logs, rule.error)
    if strict.low > 0 and strict.middle >= allowed:
        return "slower"
    if strict.high < 0 and strict.middle <= -allowed:
        return "faster"
    is_below = _one_sided(logs, rule.pass_error).high < allowed
    return "fine" if is_below and _visible(logs, rule) <= allowed else "open"


def take_batches(
    batches: Batches, take: Callable[[], Pair | None], rule: SlowdownRule, looks: Sequence[int] = LOOKS
) -> None:
    """Takes pairs from look to look until they decide; then, of what seems slower, a fresh batch.

    ``take`` gives null where there is no time for another pair: then what there is is looked at. What was taken stays
    in ``batches`` where it raises.
    """
    batches.is_confirming = _take_until_seen(batches.first, take, rule, looks) == "slower"
    if batches.is_confirming:
        _take_until_seen(batches.confirming, take, rule, looks)


def judge_slowdown(batches: Batches, rule: SlowdownRule) -> TimeResult:
    """The verdict on these pairs, with its bounds and the smallest slowdown that they would have shown."""
    logs = _logs(batches.pairs)
    verdict = _verdict(batches, rule)
    return TimeResult(
        verdict=verdict,
        reason=tell_undecided(batches, rule) if verdict == "undecided" else None,
        ratio=_ratio(logs),
        low_bound=_finite(_one_sided(logs, rule.error).low),
        high_bound=_finite(_one_sided(logs, rule.pass_error).high),
        budget=rule.budget,
        floor_us=rule.floor_us,
        smallest_visible=_share(_visible(logs, rule)),
        pairs=tuple(logs),
        confirming=len(batches.confirming),
        is_confirmed=verdict == "slower",
    )


def tell_undecided(batches: Batches, rule: SlowdownRule) -> str:
    """Why these pairs do not decide, in words."""
    count = len(batches.first)
    if count < LOOKS[0]:
        return f"{count} {'pair' if count == 1 else 'pairs'} of processes are too few: it takes {LOOKS[0]}"
    if look(batches.first, rule) == "slower":
        return f"{count} pairs showed a slowdown, which {len(batches.confirming)} fresh pairs did not confirm"
    allowed, visible = _share(_allowed(batches.first, rule)), _share(_visible(_logs(batches.first), rule))
    if visible is None or allowed is None or visible > allowed:
        seen = "" if visible is None else f", and would have shown no less than {visible:.1%}"
        return f"{count} pairs scatter too much{seen}"
    return f"{count} pairs neither prove a slowdown of {allowed:.1%} nor rule it out"


def _verdict(batches: Batches, rule: SlowdownRule) -> TimeVerdict:
    first = look(batches.first, rule)
    if first == "slower":
        return "slower" if look(batches.confirming, rule) == "slower" else "undecided"
    return "undecided" if first == "open" else first


def _take_until_seen(
    pairs: list[Pair], take: Callable[[], Pair | None], rule: SlowdownRule, looks: Sequence[int]
) -> Seen:
    for wanted in looks:
        while len(pairs) < wanted:
            pair = take()
            if pair is None:
                return look(pairs, rule)
            pairs.append(pair)
        seen = look(pairs, rule)
        if seen != "open":
            return seen
    return "open"


def _logs(pairs: Sequence[Pair]) -> list[float]:
    return [pair.log_ratio for pair in pairs]


def _allowed(pairs: Sequence[Pair], rule: SlowdownRule) -> float:
    return rule.allowed(statistics.median(pair.base_us for pair in pairs))


def _one_sided(logs: Sequence[float], error: float) -> Estimate:
    """The estimate between two bounds, each but for this error."""
    return estimate(logs, 1 - 2 * error)


def _visible(logs: Sequence[float], rule: SlowdownRule) -> float:
    return smallest_visible(logs, Rule(error=rule.error, power=rule.power))


def _ratio(logs: Sequence[float]) -> Ratio | None:
    found = _one_sided(logs, _TAIL)
    low, high = _finite(found.low), _finite(found.high)
    return None if low is None or high is None else Ratio(math.exp(found.middle), low, high, found.n)


def _finite(bound: float) -> float | None:
    """A bound of the logarithm as one of the ratio; null where there is none."""
    return math.exp(bound) if math.isfinite(bound) else None


def _share(growth: float) -> float | None:
    return math.expm1(growth) if math.isfinite(growth) else None
