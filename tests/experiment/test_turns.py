"""Turn-taking: how long turns are, that their order is drawn and can be drawn again, and when pairs are enough."""

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from bottleneck.experiment.turns import LONG_US, TURN_US, Pairing, TimedStep, take_rounds
from bottleneck.experiment.worker import Refused

if TYPE_CHECKING:
    from bottleneck.experiment.worker import Worker


@dataclass
class FakeWorker:
    """In the place of a process: steps of each variant take what the test says; the turns are written down."""

    times_us: dict[str, float]
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def turn(self, name: str, steps: int, lead: int, usual_us: float) -> list[float]:
        """A turn in which one step in three is disturbed."""
        self.asked.append((name, steps, lead))
        return [self.times_us[name] * (10 if place % 3 == 2 else 1) for place in range(steps)]


def pairing(worker: FakeWorker, samples: float = 1.0, seed: int = 0) -> Pairing:
    """Turns of "a" and "b"."""
    sides = [TimedStep(cast("Worker", cast("Any", worker)), name, worker.times_us[name]) for name in ("a", "b")]
    return Pairing(sides[0], sides[1], random.Random(seed), samples)


@pytest.mark.parametrize("usual_us", [0.5, 30.0, 1_000.0, 20_000.0, 100_000.0])
def test_a_turn_lasts_fifty_milliseconds_or_three_steps_of_which_the_first_does_not_count(usual_us: float) -> None:
    steps, lead = TimedStep(cast("Worker", None), "a", usual_us).steps
    assert lead == 1
    assert steps + lead >= 3
    assert (steps + lead) * usual_us >= TURN_US or steps + lead == 2_000
    assert steps + lead == 3 or (steps + lead - 1) * usual_us < TURN_US


def test_a_turn_of_long_steps_is_one_step() -> None:
    assert TimedStep(cast("Worker", None), "a", LONG_US).steps == (1, 0)


def test_batches_that_workers_made_ready_are_used_up_first_and_the_rest_is_averaged() -> None:
    worker = FakeWorker({"a": 100_000.0, "b": 100_000.0})
    side = TimedStep(cast("Worker", cast("Any", worker)), "a", 100_000.0, prefetched=4)
    assert side.steps == (8, 5)
    assert side.turn_us() == pytest.approx((6 * 100_000 + 2 * 1_000_000) / 8)


def test_the_ratio_is_that_of_median_steps_per_sample() -> None:
    worker = FakeWorker({"a": 200.0, "b": 100.0})
    plain, doubled = pairing(worker), pairing(worker, samples=2.0)
    plain.take()
    doubled.take()
    assert plain.logs == pytest.approx([-math.log(2)])
    assert doubled.logs == pytest.approx([-math.log(4)])
    assert (plain.original_us, plain.changed_us) == ([200.0], [100.0])


def test_swapping_both_mirrors_the_ratio() -> None:
    there, back = pairing(FakeWorker({"a": 200.0, "b": 100.0})), pairing(FakeWorker({"a": 100.0, "b": 200.0}))
    there.take()
    back.take()
    assert there.logs[0] == pytest.approx(-back.logs[0])


def test_who_goes_first_is_drawn_and_the_seed_draws_it_again() -> None:
    def firsts(seed: int) -> list[str]:
        worker = FakeWorker({"a": 1.0, "b": 1.0})
        each = pairing(worker, seed=seed)
        for _ in range(40):
            each.take()
        return [name for name, _, _ in worker.asked[::2]]

    assert firsts(1) == firsts(1) != firsts(2)
    assert 8 <= firsts(1).count("a") <= 32


def test_pairs_are_looked_at_only_at_the_looks() -> None:
    looks: list[int] = []
    each = pairing(FakeWorker({"a": 1.0, "b": 1.0}))

    def is_enough(logs: Any) -> bool:
        looks.append(len(logs))
        return len(logs) == 14

    each.take_until(is_enough, 100.0, clock=lambda: 0.0)
    assert looks == [7, 10, 14]
    assert len(each.logs) == 14


def test_time_that_is_over_ends_it_but_not_before_there_is_something_to_look_at() -> None:
    clock = iter(range(1000))
    each = pairing(FakeWorker({"a": 1.0, "b": 1.0}))
    each.take_until(lambda _: False, 3.0, clock=lambda: float(next(clock)))
    assert len(each.logs) == 7
    longer = pairing(FakeWorker({"a": 1.0, "b": 1.0}))
    longer.take_until(lambda _: False, 12.0, clock=lambda: float(next(clock)))
    assert 7 < len(longer.logs) < 20


def test_rounds_time_each_step_once_in_an_order_that_is_drawn_until_it_fails() -> None:
    worker = FakeWorker({"a": 100.0, "b": 200.0, "c": 300.0})

    class Failing(FakeWorker):
        def turn(self, name: str, steps: int, lead: int, usual_us: float) -> list[float]:
            raise Refused("failed", "out of memory")

    def step(holder: FakeWorker, name: str) -> TimedStep:
        return TimedStep(cast("Worker", cast("Any", holder)), name, 100.0)

    steps = {0: step(worker, "a"), 1: step(worker, "b"), 2: step(Failing({}), "c")}
    told: list[str] = []
    taken, reasons = take_rounds(steps, 12, random.Random(1), told.append)
    assert taken == {0: [100.0] * 12, 1: [200.0] * 12}
    assert reasons == {2: "out of memory"}
    assert told == ["round 10 of 12", "round 12 of 12"]
    orders = {tuple(name for name, _, _ in worker.asked[at : at + 2]) for at in range(0, 24, 2)}
    assert orders == {("a", "b"), ("b", "a")}
