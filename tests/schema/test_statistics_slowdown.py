"""The judgement of a slowdown: what each verdict needs, laws, and how often noise alone turns a gate red."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.schema.statistics import (
    GATE_LOOKS,
    Batches,
    ProcessPair,
    SlowdownRule,
    judge_pairs,
    look_for_slowdown,
    take_batches,
)

RULE = SlowdownRule()
SMALL = (0.001, -0.001, 0.002, -0.002, 0.0005, -0.0005, 0.0)
LOGS = st.lists(st.floats(-0.3, 0.3).filter(lambda value: value == 0 or abs(value) > 1e-6), min_size=7, max_size=20)


def pairs(logs: Sequence[float], base_us: float = 1000.0) -> list[ProcessPair]:
    """Pairs of these log ratios."""
    return [ProcessPair(log, base_us, base_us * math.exp(log)) for log in logs]


def slower_by(share: float) -> list[ProcessPair]:
    """Seven calm pairs of a step that is slower by this share."""
    return pairs([math.log1p(share) + each for each in SMALL])


def test_seven_pairs_are_the_fewest_that_can_speak() -> None:
    assert look_for_slowdown(slower_by(0.5)[:6], RULE) == "open"
    assert look_for_slowdown(slower_by(0.5), RULE) == "slower"
    assert GATE_LOOKS[0] == 7


@pytest.mark.parametrize(
    ("share", "seen"), [(0.10, "slower"), (0.031, "slower"), (0.02, "fine"), (0.0, "fine"), (-0.1, "faster")]
)
def test_what_calm_pairs_say(share: float, seen: str) -> None:
    assert look_for_slowdown(slower_by(share), RULE) == seen


def test_a_slowdown_below_the_budget_is_fine_however_sure_it_is() -> None:
    found = judge_pairs(Batches(slower_by(0.02)), RULE)
    assert found.verdict == "fine"
    assert found.low_bound is not None and found.low_bound > 1


def test_pairs_that_scatter_too_much_to_show_the_budget_are_never_passed() -> None:
    scattered = pairs([0.05, -0.06, 0.01, -0.05, 0.06, -0.02, -0.04])
    found = judge_pairs(Batches(scattered), RULE)
    assert found.verdict == "undecided"
    assert found.smallest_visible is not None and found.smallest_visible > RULE.budget
    assert found.reason is not None and "7 pairs scatter too much, and would have shown no less than" in found.reason


def test_a_slowdown_that_never_counts_does_not_fail() -> None:
    tenth = slower_by(0.10)
    assert look_for_slowdown(tenth, replace(RULE, floor_us=200.0)) == "fine"
    assert look_for_slowdown(tenth, replace(RULE, floor_us=50.0)) == "slower"
    long = pairs([pair.log_ratio for pair in tenth], base_us=100_000.0)
    assert look_for_slowdown(long, replace(RULE, floor_us=200.0)) == "slower"


def test_a_smaller_error_needs_more_pairs() -> None:
    tenth = slower_by(0.10)
    strict = replace(RULE, error=RULE.error / 3)
    assert look_for_slowdown(tenth, strict) == "open"
    assert look_for_slowdown([*tenth, *tenth[:3]], strict) == "slower"


def test_red_needs_a_fresh_batch_that_shows_it_again() -> None:
    clear, calm = slower_by(0.10), slower_by(0.0)
    assert judge_pairs(Batches(clear), RULE).verdict == "undecided"
    refuted = judge_pairs(Batches(clear, calm), RULE)
    assert refuted.verdict == "undecided" and not refuted.is_confirmed
    assert refuted.reason == "7 pairs showed a slowdown, which 7 fresh pairs did not confirm"
    confirmed = judge_pairs(Batches(clear, clear), RULE)
    assert confirmed.verdict == "slower" and confirmed.is_confirmed
    assert confirmed.confirming == 7 and len(confirmed.pairs) == 14
    assert confirmed.ratio is not None and confirmed.ratio.median == pytest.approx(1.10, abs=1e-3)


def test_every_verdict_says_what_it_could_have_seen() -> None:
    for share in (-0.1, 0.0, 0.1):
        seen = judge_pairs(Batches(slower_by(share)), RULE).smallest_visible
        assert seen is not None and 0 < seen < RULE.budget
    assert judge_pairs(Batches(slower_by(0.0)[:3]), RULE).smallest_visible is None


def test_too_few_pairs_are_undecided_and_say_so() -> None:
    found = judge_pairs(Batches(slower_by(0.1)[:3]), RULE)
    assert (found.verdict, found.ratio, found.low_bound) == ("undecided", None, None)
    assert found.reason == "3 pairs of processes, and it takes 7"


def test_a_doubt_about_a_slowdown_of_the_budget_itself_is_reported() -> None:
    logs = [0.0285 + each for each in (0.004, -0.004, 0.003, -0.003, 0.005, -0.005, 0.0)]
    found = judge_pairs(Batches(pairs(logs)), RULE)
    assert found.verdict == "undecided"
    assert found.reason == "a slowdown of 3.0 % is neither proved nor ruled out by 7 pairs"


@given(LOGS, st.randoms())
def test_the_order_of_the_pairs_means_nothing(logs: list[float], shuffled: random.Random) -> None:
    other = list(logs)
    shuffled.shuffle(other)
    assert look_for_slowdown(pairs(other), RULE) == look_for_slowdown(pairs(logs), RULE)


@given(LOGS)
def test_swapping_the_sides_makes_slower_faster(logs: list[float]) -> None:
    seen, back = look_for_slowdown(pairs(logs), RULE), look_for_slowdown(pairs([-log for log in logs]), RULE)
    assert (seen == "slower") == (back == "faster")


@given(LOGS, st.floats(0, 0.5))
def test_more_of_a_slowdown_never_turns_red_into_green(logs: list[float], more: float) -> None:
    if look_for_slowdown(pairs(logs), RULE) == "slower":
        assert look_for_slowdown(pairs([log + more for log in logs]), RULE) == "slower"


def test_pairs_are_taken_from_look_to_look_and_a_claim_once_more() -> None:
    taken = iter([*slower_by(0.1), *slower_by(0.1)])
    batches = Batches()
    take_batches(batches, lambda: next(taken), RULE)
    assert (len(batches.first), len(batches.confirming)) == (7, 7)
    calm = Batches()
    take_batches(calm, lambda: ProcessPair(0.0, 1.0, 1.0), RULE)
    assert (len(calm.first), len(calm.confirming)) == (7, 0)


def test_what_stays_open_ends_at_the_last_look() -> None:
    wide = iter(pairs([0.3, -0.3] * 20))
    batches = Batches()
    take_batches(batches, lambda: next(wide), RULE)
    assert (len(batches.first), len(batches.confirming)) == (GATE_LOOKS[-1], 0)


def test_when_the_time_is_over_what_there_is_is_judged() -> None:
    few: Iterator[ProcessPair | None] = iter([*pairs([0.06, -0.03, 0.05, -0.04, 0.03, -0.02, 0.01, 0.02]), None])
    batches = Batches()
    take_batches(batches, lambda: next(few), RULE)
    assert len(batches.first) == 8
    assert judge_pairs(batches, RULE).verdict == "undecided"


Noise = Callable[[random.Random, float], Iterator[ProcessPair]]


def turns(
    draw: random.Random, effect: float, offset: float, jitter: float, burst: float, drift: float
) -> Iterator[ProcessPair]:
    """Pairs of processes that take turns on a machine whose speed drifts and which other programs disturb.

    The laws of the gate statistics, section 3.1: a drift that remembers, an offset of each process, jitter of each turn
    with a heavy tail, and bursts that last for some turns.
    """
    pace, left = 0.0, 0
    while True:
        sides = [draw.gauss(0, offset), draw.gauss(0, offset) + effect]
        ratios = []
        for _ in range(16):
            times = [0.0, 0.0]
            for side in draw.sample((0, 1), 2):
                pace = 0.99 * pace + draw.gauss(0, drift * 0.14)
                left = left - 1 if left else draw.randint(5, 40) if draw.random() < burst else 0
                times[side] = (
                    sides[side] + pace + draw.gauss(0, jitter) + draw.expovariate(1 / jitter) + 0.4 * bool(left)
                )
            ratios.append(times[1] - times[0])
        yield ProcessPair(sorted(ratios)[8] / 2 + sorted(ratios)[7] / 2, 1000.0, 1000.0 * math.exp(effect))


def quiet(draw: random.Random, effect: float) -> Iterator[ProcessPair]:
    """A machine of its own."""
    return turns(draw, effect, 0.003, 0.008, 0.0, 0.004)


def shared(draw: random.Random, effect: float) -> Iterator[ProcessPair]:
    """A virtual machine of a CI service."""
    return turns(draw, effect, 0.01, 0.02, 0.004, 0.02)


def nasty(draw: random.Random, effect: float) -> Iterator[ProcessPair]:
    """One that others keep busy."""
    return turns(draw, effect, 0.025, 0.05, 0.02, 0.06)


def unlucky(draw: random.Random, effect: float) -> Iterator[ProcessPair]:
    """Processes one in ten of which is a tenth off for as long as it lives, as measured on a shared machine."""
    while True:
        sides = [draw.gauss(0, 0.01) + (draw.uniform(0.06, 0.16) if draw.random() < 0.1 else 0.0) for _ in range(2)]
        yield ProcessPair(sides[1] - sides[0] + effect, 1000.0, 1000.0 * math.exp(effect))


def verdicts(noise: Noise, effect: float, runs: int, seed: int) -> Counter[str]:
    """The verdicts of so many gates on steps that are slower by so much."""
    draw = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(runs):
        batches, taken = Batches(), noise(draw, math.log1p(effect))
        take_batches(batches, lambda taken=taken: next(taken), RULE)
        found[judge_pairs(batches, RULE).verdict] += 1
    return found


@pytest.mark.parametrize("noise", [quiet, shared, nasty, unlucky])
def test_an_unchanged_step_is_red_less_than_once_in_a_hundred(noise: Noise) -> None:
    found = verdicts(noise, 0.0, 300, seed=3)
    assert found["slower"] <= 3
    if noise in {quiet, shared}:
        assert found["fine"] >= 295


@pytest.mark.parametrize("noise", [quiet, shared, nasty, unlucky])
def test_a_tenth_more_is_red_nearly_always(noise: Noise) -> None:
    assert verdicts(noise, 0.10, 100, seed=5)["slower"] >= 95


@pytest.mark.parametrize("noise", [quiet, shared, nasty])
def test_a_twentieth_more_is_never_passed_and_mostly_red(noise: Noise) -> None:
    found = verdicts(noise, 0.05, 100, seed=7)
    assert found["slower"] >= 0.95 * (100 - found["undecided"])
    assert found["undecided"] <= 25
