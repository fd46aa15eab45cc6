"""The measuring of ceilings: the best of short runs, in rounds, until two of them agree."""

from collections.abc import Callable, Iterator

import pytest

from bottleneck.calibrate.probes import (
    ClockWatch,
    Look,
    Probe,
    ProbeEffort,
    ProbeResults,
    RoundProgress,
    best_of,
    descending,
    settle,
)

THREE = ProbeEffort(fewest_runs=3)


class Script:
    """A clock that the runs themselves move: the next duration of the list per run."""

    def __init__(self, *durations: float) -> None:
        self.now, self.runs = 0.0, 0
        self._durations: Iterator[float] = iter(durations)

    def take(self) -> float:
        self.runs += 1
        seconds = next(self._durations)
        self.now += seconds
        return seconds

    def clock(self) -> float:
        return self.now


class TestBestOf:
    def test_the_first_run_only_warms_up(self) -> None:
        script = Script(0.125, 1.0, 1.0, 1.0)
        assert best_of(script.take, 100.0, THREE, script.clock) == 1.0

    def test_it_repeats_until_the_two_best_agree(self) -> None:
        script = Script(9.0, 3.0, 2.0, 1.0, 1.5, 1.015625, 7.0)
        assert best_of(script.take, 100.0, THREE, script.clock) == 1.0 and script.runs == 6

    def test_a_disturbed_run_does_not_spoil_the_result(self) -> None:
        script = Script(1.0, 1.0, 50.0, 1.0)
        assert best_of(script.take, 100.0, THREE, script.clock) == 1.0

    def test_what_never_settles_ends_with_the_time(self) -> None:
        script = Script(*(2.0**-n for n in range(60)))
        best_of(script.take, 0.9, THREE, script.clock)
        assert script.runs < 60

    def test_a_short_run_is_made_more_often(self) -> None:
        script = Script(*[0.001] * 40)
        best_of(script.take, 1.0, ProbeEffort(), script.clock)
        assert script.runs == 1 + ProbeEffort().fewest_runs > 1 + THREE.fewest_runs

    def test_one_run_that_takes_all_the_time_is_enough(self) -> None:
        script = Script(5.0, 5.0, 5.0)
        assert best_of(script.take, 1.0, THREE, script.clock) == 5.0 and script.runs == 2


def test_a_larger_working_set_is_never_faster_than_a_smaller_one() -> None:
    assert descending([(1.0, 5.0), (4.0, 7.0), (2.0, 9.0)]) == ((1.0, 9.0), (2.0, 9.0), (4.0, 7.0))


class World:
    """A machine of our own making: a clock, and rates per ceiling and round that it keeps to."""

    def __init__(self, **rates: list[float]) -> None:
        self.now, self.prepared = 0.0, []
        self._rates = rates

    def probe(self, ceiling: str, how: str = "a way", factor: float = 1.0, amount: float = 1.0) -> Probe:
        rounds = iter(self._rates[ceiling])

        def prepare() -> Callable[[Look], float]:
            self.prepared.append((ceiling, how))
            rate = factor * next(rounds)

            def take(look: Look) -> float:
                self.now += amount / rate
                look()
                return amount / rate

            return take

        return Probe(ceiling, how, amount, prepare)

    def settle(self, *probes: Probe, effort: ProbeEffort = ProbeEffort(), **more: object) -> ProbeResults:  # noqa: B008 - frozen
        return settle(probes, effort, ClockWatch(lambda: None), clock=lambda: self.now, **more)


class TestSettle:
    def test_two_rounds_that_agree_are_enough(self) -> None:
        world = World(fast=[100.0, 102.0, 500.0])
        found = world.settle(world.probe("fast")).measured["fast"]
        assert (found.rate, found.stable, found.rounds) == (102.0, True, 2)
        assert found.spread == pytest.approx(0.02)

    def test_what_has_not_settled_is_measured_again_alone(self) -> None:
        world = World(calm=[10.0, 10.0], wild=[100.0, 50.0, 99.0])
        outcome = world.settle(world.probe("calm"), world.probe("wild"))
        assert [name for name, _ in world.prepared] == ["calm", "wild", "calm", "wild", "wild"]
        assert outcome.measured["wild"].stable and outcome.measured["wild"].spread == pytest.approx(1 / 99)
        assert all(each.stable for each in outcome.measured.values())

    def test_agreement_within_one_round_proves_nothing(self) -> None:
        world = World(drifting=[10.0 * 2.0**number for number in range(9)])
        outcome = world.settle(world.probe("drifting"))
        assert [name for name, each in outcome.measured.items() if not each.stable] == ["drifting"]
        assert outcome.measured["drifting"].rounds == ProbeEffort().most_rounds

    def test_the_best_round_counts(self) -> None:
        world = World(disturbed=[10.0, 30.0, 20.0, 30.5])
        found = world.settle(world.probe("disturbed")).measured["disturbed"]
        assert (found.rate, found.stable) == (30.5, True)

    def test_the_fastest_way_is_the_ceiling_and_slow_ways_are_given_up(self) -> None:
        world = World(wide=[100.0, 200.0, 300.0, 302.0])
        outcome = world.settle(world.probe("wide", "long way", 0.5), world.probe("wide", "short way"))
        assert (outcome.measured["wide"].how, outcome.measured["wide"].rate) == ("short way", 302.0)
        assert world.prepared.count(("wide", "long way")) == 2

    def test_no_round_begins_when_the_time_is_over(self) -> None:
        world = World(slow=[1e-3, 2e-3, 4e-3, 8e-3])
        outcome = world.settle(world.probe("slow"), effort=ProbeEffort(most_seconds=1.0))
        assert outcome.measured["slow"].rounds == 2 and not outcome.measured["slow"].stable

    def test_rounds_go_on_for_as_long_as_is_wanted_though_all_has_settled(self) -> None:
        # A round takes 0.25 s: the run that is not counted, and one that fills the slice.
        world, steps = World(calm=[8.0, 8.0, 8.0, 10.0, 99.0]), []
        effort = ProbeEffort(most_seconds=0.0).lasting(0.75 + 0.1)
        outcome = world.settle(world.probe("calm"), effort=effort, on_progress=steps.append)
        assert (outcome.measured["calm"].rate, outcome.measured["calm"].rounds) == (10.0, 4)
        assert not any(step.is_rest for step in steps)

    def test_after_that_time_only_what_has_not_settled_is_measured_again(self) -> None:
        world, steps = World(calm=[8.0] * 3, wild=[8.0, 16.0, 32.0, 64.0, 128.0, 128.0]), []
        effort = ProbeEffort().lasting(1.0)
        outcome = world.settle(world.probe("calm"), world.probe("wild"), effort=effort, on_progress=steps.append)
        assert outcome.measured["wild"].stable and outcome.measured["wild"].rate == 128.0
        assert [(step.round, step.ceiling) for step in steps if step.is_rest] == [(4, "wild"), (5, "wild"), (6, "wild")]
        assert [step.seconds for step in steps if step.done == 0][:4] == [0.0, 0.5, 0.9375, 1.34375]

    def test_slow_ways_are_given_up_there_too(self) -> None:
        world = World(wide=[100.0] * 20)
        world.settle(
            world.probe("wide", "long way", 0.5), world.probe("wide", "short way"), effort=ProbeEffort().lasting(2)
        )
        assert world.prepared.count(("wide", "long way")) == 2

    def test_without_a_time_of_the_user_an_effort_stays_what_it_is(self) -> None:
        assert ProbeEffort().lasting(None) == ProbeEffort()

    def test_what_the_machine_refuses_is_missing_with_the_reason(self) -> None:
        def refuse() -> Callable[[Look], float]:
            raise RuntimeError("no such dtype\nand a long story")

        world = World(there=[1.0, 1.0])
        outcome = world.settle(Probe("gone", "a way", 1.0, refuse), world.probe("there"))
        assert outcome.missing == {"gone": "no such dtype"} and "gone" not in outcome.measured
        assert outcome.measured.keys() == {"there"}

    def test_one_way_that_is_refused_leaves_the_others(self) -> None:
        def refuse() -> Callable[[Look], float]:
            raise RuntimeError("out of memory")

        world = World(there=[1.0, 1.0])
        outcome = world.settle(Probe("there", "large", 1.0, refuse), world.probe("there", "small"))
        assert outcome.missing == {} and outcome.measured["there"].how == "small"

    def test_every_step_is_reported_with_its_place(self) -> None:
        world, steps = World(a=[1.0, 1.0], b=[1.0, 9.0, 9.0]), []
        world.settle(world.probe("a"), world.probe("b"), on_progress=steps.append)
        assert steps == [
            RoundProgress("a", 1, 0, 2),
            RoundProgress("b", 1, 1, 2),
            RoundProgress("a", 2, 0, 2),
            RoundProgress("b", 2, 1, 2),
            RoundProgress("b", 3, 0, 1, is_rest=True),
        ]


class TestWatch:
    def test_each_ceiling_has_the_median_of_what_was_seen_meanwhile(self) -> None:
        world, seen = World(a=[1.0, 1.0], b=[1.0, 1.0]), iter([100.0, 300.0, 200.0] * 9)
        watch = ClockWatch(lambda: next(seen), clock=lambda: world.now, apart_s=0.5)
        outcome = settle((world.probe("a"), world.probe("b")), ProbeEffort(), watch, clock=lambda: world.now)
        assert {each.clock_mhz for each in outcome.measured.values()} <= {100.0, 200.0, 300.0}
        assert len(watch.seen_mhz()) == len(watch.seen_mhz("a")) + len(watch.seen_mhz("b"))

    def test_it_does_not_look_too_often(self) -> None:
        now = iter([0.0, 0.0, 0.01, 0.03, 0.03])
        watch = ClockWatch(lambda: 5.0, clock=lambda: next(now), apart_s=0.02)
        for _ in range(3):
            watch.look()
        assert watch.seen_mhz() == (5.0, 5.0)

    def test_a_clock_that_cannot_be_read_is_none(self) -> None:
        world = World(a=[1.0, 1.0])
        assert world.settle(world.probe("a")).measured["a"].clock_mhz is None
