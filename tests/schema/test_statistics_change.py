"""The judgement of a change in either direction: what each verdict needs, and how often noise alone shows one."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from bottleneck.schema.statistics import (
    LOOKS,
    Batches,
    ChangeRule,
    ProcessPair,
    judge_pairs,
    look_for_change,
    take_batches,
)

RULE = ChangeRule(0.01)
SMALL = (0.001, -0.001, 0.002, -0.002, 0.0005, -0.0005, 0.0)


def pairs(logs: Sequence[float]) -> list[ProcessPair]:
    """Pairs of these log ratios."""
    return [ProcessPair(log, 1000.0, 1000.0 * math.exp(log)) for log in logs]


def changed_by(share: float) -> list[ProcessPair]:
    """Seven calm pairs of a step that takes longer by this share."""
    return pairs([math.log1p(share) + small for small in SMALL])


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.1, "slower"), (0.01, "slower"), (0.006, "slower"), (0.0, "fine"), (-0.01, "faster"), (-0.2, "faster")],
)
def test_calm_pairs_show_a_change_in_either_direction(share: float, shown: str) -> None:
    assert look_for_change(changed_by(share), RULE) == shown
    assert look_for_change(changed_by(share)[:6], RULE) == "open"


def test_a_speedup_needs_a_fresh_batch_as_a_slowdown_does() -> None:
    for share, verdict in ((-0.1, "faster"), (0.1, "slower")):
        assert judge_pairs(Batches(changed_by(share)), RULE).verdict == "undecided"
        assert judge_pairs(Batches(changed_by(share), changed_by(share)), RULE).verdict == verdict
        refuted = judge_pairs(Batches(changed_by(share), changed_by(0.0)), RULE)
        assert refuted.verdict == "undecided" and not refuted.is_confirmed
    assert "7 pairs showed a speedup, which 7 fresh pairs did not confirm" in str(
        judge_pairs(Batches(changed_by(-0.1), changed_by(0.0)), RULE).reason
    )


def test_a_little_change_that_fresh_pairs_refute_is_none_where_all_pairs_together_show_none() -> None:
    first, fresh = changed_by(0.006), changed_by(0.0)
    assert look_for_change(first, RULE) == "slower"
    refuted = judge_pairs(Batches(first, [*fresh, *fresh]), RULE)
    assert (refuted.verdict, refuted.reason, refuted.is_confirmed) == ("fine", None, False)
    assert refuted.ratio is not None and refuted.ratio.low > 0.99 and refuted.ratio.high < 1.01
    # As few fresh pairs as first ones: together they show a change of 1 % neither way, or they stay open.
    assert judge_pairs(Batches(first, fresh[:6]), RULE).verdict == "undecided"
    assert judge_pairs(Batches(first, changed_by(-0.006)), RULE).verdict == "undecided"


def test_pairs_that_scatter_leave_it_undecided_with_what_they_could_show() -> None:
    judged = judge_pairs(Batches(pairs([0.05, -0.06, 0.01, -0.05, 0.06, -0.02, -0.04])), RULE)
    assert judged.verdict == "undecided"
    assert "7 pairs scatter too much, and would have shown no less than" in str(judged.reason)


def verdicts(change: float, scatter: float, seeds: int) -> tuple[Counter[str], int]:
    """How often each verdict is reached, and how many pairs all of them took."""
    reached: Counter[str] = Counter()
    taken = 0
    for seed in range(seeds):
        batches = Batches()
        take_batches(batches, noisy(random.Random(seed), change, scatter), RULE, LOOKS[:7])
        reached[judge_pairs(batches, RULE).verdict] += 1
        taken += len(batches.pairs)
    return reached, taken


def noisy(draw: random.Random, change: float, scatter: float) -> Callable[[], ProcessPair]:
    """Pairs of this change; one in ten scatters four times as much, as beside another program."""

    def take() -> ProcessPair:
        wide = 4 if draw.random() < 0.1 else 1
        log = math.log1p(change) + draw.gauss(0.0, scatter * wide)
        return ProcessPair(log, 1000.0, 1000.0 * math.exp(log))

    return take


def test_noise_alone_is_called_a_change_in_less_than_one_of_a_hundred() -> None:
    reached, _ = verdicts(0.0, 0.01, 300)
    assert reached["faster"] + reached["slower"] <= 3


def test_a_change_of_one_percent_is_seen_where_pairs_scatter_by_half_of_it() -> None:
    reached, taken = verdicts(0.01, 0.005, 100)
    assert reached["slower"] >= 90 and taken / 100 < 25
    assert verdicts(-0.02, 0.005, 100)[0]["faster"] >= 98
