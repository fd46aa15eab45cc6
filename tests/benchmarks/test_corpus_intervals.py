"""What pairs teach about the intervals of each rule, without the workload that is judged."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.corpus.intervals import (
    PAGE,
    SILENCE,
    Statement,
    factor_of,
    learn,
    leave_one_out,
    render,
    rounded,
    score,
    statements_of,
)
from benchmarks.corpus.pairs import Claim, Pair, read_pairs
from bottleneck.advice.widening import ON_CPU, Widening, widen
from bottleneck.schema.analysis import Interval


def pair(file: str, measured: float, *claims: Claim, half_width: float = 0.02) -> Pair:
    ends = (measured, measured * math.exp(-half_width), measured * math.exp(half_width))
    return Pair(file, file, "dense", {}, "compile", claims, ends, machine="here")


CHAIN = Claim("chain", 1.1, 1.3)
PAIRS = [pair(f"file{number}", 1.2 + 0.03 * number, CHAIN) for number in range(10)]


def test_a_workload_teaches_nothing_about_itself() -> None:
    odd = pair("odd", 5.0, CHAIN)
    outcomes = leave_one_out(statements_of([*PAIRS, odd]))
    without = learn(statements_of(PAIRS))["formula"].factor
    judged = next(each for each in outcomes if each.statement.file == "odd")
    assert judged.widened.high == pytest.approx(1.3 * without)
    assert not judged.is_inside and learn(statements_of([*PAIRS, odd]))["formula"].factor > without


def test_noisy_pairs_and_refused_ones_teach_nothing() -> None:
    refused = Pair("file", "file", "dense", {}, "compile", (CHAIN,), None, refused="missing: a package")
    assert statements_of([pair("file", 9.0, CHAIN, half_width=0.3), refused]) == []


def test_silence_and_words_state_that_nothing_is_gained_but_no_interval() -> None:
    words = Claim("compile-does-not-pay")
    said = statements_of([pair("one", 1.2), pair("two", 0.8, words), pair("three", 1.5, Claim("only-a-trial-tells"))])
    assert [(each.slug, each.predicted, each.is_right) for each in said] == [
        (SILENCE, None, False),
        ("compile-does-not-pay", None, True),
    ]
    assert learn(said) == {}


def test_nothing_is_said_of_a_lesser_way_where_the_better_one_is_named() -> None:
    foreach, fused = (replace(pair("one", 1.2), change=f"{name}-optimizer") for name in ("foreach", "fused"))
    assert [each.slug for each in statements_of([foreach, fused])] == [SILENCE, SILENCE]
    assert [each.slug for each in statements_of([foreach, replace(fused, claims=(CHAIN,))])] == ["chain"]
    elsewhere = replace(fused, claims=(CHAIN,), case="other")
    assert [each.slug for each in statements_of([foreach, elsewhere])] == [SILENCE, "chain"]
    assert "0 are named by no finding, 1 are a lesser way" in render([foreach, replace(fused, claims=(CHAIN,))])


@pytest.mark.parametrize(("predicted", "measured", "right"), [((1.1, 1.3), 1.01, True), ((1.1, 1.3), 0.99, False)])
def test_a_promised_gain_has_the_right_direction_if_the_step_is_faster_at_all(
    predicted: tuple[float, float], measured: float, right: bool
) -> None:
    assert (
        Statement("chain", "file", "a CPU", Interval(*predicted), measured, 0.01, measured, measured).is_right is right
    )


def test_a_promised_loss_has_the_right_direction_if_the_step_is_slower() -> None:
    assert Statement("chain", "file", "a CPU", Interval(0.8, 0.9), 0.95, 0.01, 0.94, 0.96).is_right
    assert not Statement("chain", "file", "a CPU", Interval(0.8, 0.9), 1.05, 0.01, 1.04, 1.06).is_right


@pytest.mark.parametrize(
    ("predicted", "measured", "right"),
    [
        ((1.1, 1.3), (1.2, 1.1, 1.3), True),
        ((1.1, 1.3), (0.8, 0.7, 0.9), False),
        ((1.1, 1.3), (1.01, 0.9, 1.1), False),  # a gain beyond noise was promised, and none is shown
        ((1.0, 1.06), (0.98, 0.9, 1.1), True),  # hardly any was promised, and none is shown
        ((1.0, 1.06), (0.9, 0.88, 0.92), False),
        (None, (1.2, 0.95, 1.4), True),  # the measurement leaves open whether anything is gained
        (None, (1.2, 1.1, 1.3), False),
        (None, (0.8, 0.7, 0.9), True),
    ],
)
def test_beyond_noise_only_an_effect_that_was_shown_counts_as_one(
    predicted: tuple[float, float] | None, measured: tuple[float, float, float], right: bool
) -> None:
    middle, low, high = measured
    interval = None if predicted is None else Interval(*predicted)
    assert Statement("chain", "file", "a CPU", interval, middle, 0.01, low, high).is_right_beyond_noise is right


def test_each_kind_of_evidence_counts_its_pairs_and_workloads() -> None:
    twice = pair("batch", 1.4, Claim("larger-batch", 1.3, 1.5))
    learned = learn(statements_of([*PAIRS, pair("file0", 0.9, CHAIN), twice]))
    assert {basis: (one.pairs, one.workloads) for basis, one in learned.items()} == {
        "timed": (1, 1),
        "formula": (11, 10),
    }


SCORES = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30)


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
        widened = widen(interval, Widening(factor_of([score(*each) for each in known]), 0.0, 40, 40))
        inside += widened.low <= measured <= widened.high
    assert 0.78 <= inside / 2000 <= 0.85


def test_what_is_stated_too_widely_gets_a_narrower_interval_and_too_narrowly_a_wider_one() -> None:
    draw = random.Random(2)
    wide = [score(*predicted_and_measured(draw, 0.6, 0.1)) for _ in range(100)]
    narrow = [score(*predicted_and_measured(draw, 0.02, 0.2)) for _ in range(100)]
    assert factor_of(wide) < 0.75 and factor_of(narrow) > 1.2


@given(SCORES, st.floats(0.1, 0.9), st.floats(0.0, 0.09))
def test_more_coverage_is_never_a_smaller_factor(scores: list[float], coverage: float, more: float) -> None:
    assert factor_of(scores, coverage) <= factor_of(scores, coverage + more)


@given(SCORES, st.floats(0.0, 1.0))
def test_worse_predictions_are_never_a_smaller_factor(scores: list[float], worse: float) -> None:
    assert factor_of(scores) <= factor_of([each + worse for each in scores]) + 1e-9


@given(SCORES, st.randoms(use_true_random=False))
def test_the_order_of_pairs_changes_nothing(scores: list[float], draw: random.Random) -> None:
    assert factor_of(draw.sample(scores, len(scores))) == factor_of(scores)


def test_the_table_counts_what_is_left_out_and_shows_each_rule() -> None:
    text = render([*PAIRS, pair("noisy", 1.0, CHAIN, half_width=0.2), pair("silent", 1.0)])
    assert text.startswith("12 changes measured on 12 cases of 12 workloads (here, 1 thread). 1 was too noisy")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[2].startswith("| `chain` | 10 | 10 | 40.0 % | 80.0 % | 100.0 % |")
    assert rows[3].startswith(f"| {SILENCE} | 1 | 1 | - | - | 100.0 % | 100.0 % | - |")
    assert rows[4].startswith("| **by formula** | 10 | 10 | 40.0 % | 80.0 % | 100.0 % | 100.0 % | 1.1")
    assert rows[5].startswith("| all that findings say | 10 | 10 | 40.0 % |")
    assert rows[6].startswith("| **all** | 11 | 11 |")


def test_pairs_of_several_machines_are_told_apart() -> None:
    there = replace(pair("slower", 0.8, CHAIN), machine="there, 2 processors")
    text = render([*PAIRS, there])
    assert "11 workloads (here, 1 thread; there, 2 processors, 1 thread)" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[4].startswith("| all rules, here | 10 | 10 | 40.0 % | ")
    assert rows[5].startswith("| all rules, there | 1 | 1 | 0.0 % | ")
    assert rows[6].startswith("| **all** | 11 | 11 |")
    assert "here: 0 changes made the step slower although a finding promised a gain: none." in text
    assert (
        "there: 1 change made the step slower although a finding promised a gain: `compile` on slower (0.80x)." in text
    )


def test_gains_that_nobody_advised_and_promises_that_cost_time_are_listed() -> None:
    text = render([*PAIRS, pair("silent", 1.5), pair("near", 1.06), pair("slower", 0.8, CHAIN)])
    assert "1 change gained beyond 5 % although no finding names them: `compile` on silent (1.50x)." in text
    assert "1 change made the step slower although a finding promised a gain: `compile` on slower (0.80x)." in text


def test_the_widenings_and_the_page_are_those_of_the_pairs_that_are_kept() -> None:
    pairs = read_pairs()
    learned = {basis: rounded(widening) for basis, widening in learn(statements_of(pairs)).items()}
    assert learned == ON_CPU, "python -m benchmarks.corpus.intervals prints them"
    assert render(pairs) in PAGE.read_text(), "python -m benchmarks.corpus.intervals --write"
