import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.experiment import sweep as rounds
from bottleneck.experiment.sweep import level, take_turns
from bottleneck.experiment.sweep_points import Place, Series
from bottleneck.harness.messages import Plan

USUAL_US = {0: 600.0, 1: 640.0, 2: 1200.0, 3: 9000.0, 4: 20_000.0}


def rounds_of(seed: int, rounds: int = 40) -> dict[int, list[float]]:
    """Turns on a machine that is up to twice as slow for whole rounds, with 2 % of scatter for each turn."""
    draw = random.Random(seed)
    slower = [draw.choice((1.0, 1.3, 2.0)) for _ in range(rounds)]
    return {index: [us * each * draw.gauss(1, 0.02) for each in slower] for index, us in USUAL_US.items()}


@given(st.integers(0, 10_000))
def test_what_slows_a_whole_round_makes_no_difference_between_places(seed: int) -> None:
    found = level(rounds_of(seed))
    for index, us in USUAL_US.items():
        assert found[index].median / found[0].median == pytest.approx(us / USUAL_US[0], rel=0.03)


@given(st.integers(0, 10_000), st.floats(0.1, 10.0))
def test_a_slower_machine_scales_all_places(seed: int, factor: float) -> None:
    taken = rounds_of(seed)
    usual, slow = level(taken), level({index: [factor * us for us in times] for index, times in taken.items()})
    for index in taken:
        assert slow[index].median == pytest.approx(factor * usual[index].median)


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_order_of_rounds_and_places_changes_nothing(seed: int, luck: random.Random) -> None:
    taken = rounds_of(seed)
    order, places = list(range(40)), list(taken)
    luck.shuffle(order)
    luck.shuffle(places)
    other = level({index: [taken[index][number] for number in order] for index in places})
    for index, timing in level(taken).items():
        assert other[index].median == pytest.approx(timing.median, rel=1e-9)


def test_one_disturbed_turn_is_not_taken_for_a_slow_round() -> None:
    taken = {index: [us] * 9 for index, us in USUAL_US.items()}
    taken[2][4] *= 50
    found = level(taken)
    assert {index: timing.median for index, timing in found.items()} == pytest.approx(USUAL_US)
    assert all(math.isclose(timing.low, timing.high) for index, timing in found.items() if index != 2)


def test_a_process_that_cannot_be_started_leaves_the_recorded_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(rounds, "Worker", refuse)
    plan = Plan(
        folder=".", form="workload", target="step.py", module=False, settings=(), train=False, steps=1, warmup=0
    )
    found = take_turns(plan, {3: Place({"n": 1}, Series("eager"))}, 4, tmp_path, lambda text: None)
    assert found.timings == {}
    assert found.reasons == {3: "no process could be started: [Errno 11] Resource temporarily unavailable"}


def test_without_places_there_is_nothing_to_level() -> None:
    assert level({}) == {}
