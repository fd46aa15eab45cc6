"""Measures a step at all points of a sweep in random order, and sums up the repeats.

A machine that others use is slower now and faster a minute later. Points that are measured one after the other take
that for a difference between them; of turns that follow each other within seconds it is common to all, and comes out.
"""

import math
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottleneck import __version__
from bottleneck.experiment.curve_fit import fit_series
from bottleneck.experiment.program import Program
from bottleneck.experiment.record_once import Ceilings, Measured, environment_of, measure_point
from bottleneck.experiment.sweep_points import Parameter, Place, shared_words
from bottleneck.experiment.turns import Side, timing_of
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.messages import Plan
from bottleneck.schema.measurements import Timing
from bottleneck.schema.trials import Point, Roof, Sweep
from bottleneck.units import format_si, format_us

_STEP = "step"
# Medians of rows and columns in turns: they stay as they are after a few.
_SWEEPS = 10
_ROUNDS_SEED = 21


@dataclass(frozen=True)
class Turns:
    """What turns gave: the step of each place, by its index, and why others have none; ``reason`` why nobody has."""

    timings: Mapping[int, Timing] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    reason: str | None = None


def take_turns(
    plan: Plan, places: Mapping[int, Place], rounds: int, folder: Path, tell: Callable[[str], None]
) -> Turns:
    """The steps of these places, each timed once a round, in an order that is drawn for every round."""
    draw = random.Random(_ROUNDS_SEED)  # noqa: S311 - an order, not a secret
    sides: dict[int, Side] = {}
    reasons: dict[int, str] = {}
    with ExitStack() as stack:
        for index, place in places.items():
            try:
                worker = stack.enter_context(Worker(_program(plan, place), folder / "turns.txt", environment_of(place)))
                built = worker.build(_STEP, place.series.changes)
            except Refused as refused:
                reasons[index] = refused.reason
                continue
            except OSError as error:
                reasons[index] = f"no process could be started: {error}"
                continue
            sides[index] = Side(worker, _STEP, built.step_us, built.prefetched)
            tell(f"bottleneck: {len(sides)} of {len(places)} ready to take turns")
        taken: dict[int, list[float]] = {index: [] for index in sides}
        for number in range(rounds):
            for index in draw.sample(list(taken), len(taken)):
                try:
                    taken[index].append(sides[index].turn_us())
                except Refused as refused:
                    reasons[index] = refused.reason
                    del taken[index]
            if (number + 1) % 10 == 0 or number + 1 == rounds:
                tell(f"bottleneck: round {number + 1} of {rounds}")
    return Turns(level(taken), reasons)


def level(taken: Mapping[int, Sequence[float]]) -> dict[int, Timing]:
    """The typical step of each place in microseconds, once what whole rounds have in common is taken out.

    The times of a round are those of its places times what the machine was slower then: of their logarithms, medians
    over places and over rounds are taken off in turns until nothing is left of either (Tukey's median polish). Rounds
    are slower or faster than the typical one, so that the steps are those of the machine as it usually was.
    """
    if not taken:
        return {}
    logs = np.log(np.array([list(times) for times in taken.values()], dtype=np.float64))
    slower = rounds_slower(logs)
    timings = (timing_of([math.exp(value) for value in row]) for row in logs - slower)
    return {index: timing for index, timing in zip(taken, timings, strict=True) if timing is not None}


def rounds_slower(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much each round was slower than the typical one, as a logarithm; of places (rows) by rounds (columns)."""
    slower = np.zeros(logs.shape[1])
    for _ in range(_SWEEPS):
        usual = np.median(logs - slower, axis=1, keepdims=True)
        slower = np.median(logs - usual, axis=0)
        slower -= np.median(slower)
    return slower


def _program(plan: Plan, place: Place) -> Program:
    settings = place.settings(plan.settings)
    return Program(plan.target, form=plan.form, settings=settings, train=plan.train, seed=plan.seed or 0)


# The order is random, so that drift of the machine makes no trend, and the same every time.
_SEED = 20
# What the processes of all points may take of the memory that is free, when they are to take turns.
_FREE_SHARE = 0.8


@dataclass(frozen=True)
class Asked:
    """What a sweep was asked for. ``plan`` is that of every point but for what the point itself sets.

    ``turns`` is how many rounds of turns time the points once they are recorded; with 0 they keep the recorded times.
    """

    plan: Plan
    parameters: tuple[Parameter, ...]
    places: tuple[Place, ...]
    repeats: int = 1
    turns: int = 0


@dataclass
class Progress:
    """What was measured so far, by place in the order of asking; it can be summed up at any time."""

    asked: Asked
    measured: dict[int, list[Measured]] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)

    def sum_up(self, reason: str = "not measured") -> Sweep:
        """The sweep as far as it is measured; ``reason`` is that of points that never were."""
        asked = self.asked
        all_of = [self.measured.get(index, []) for index in range(len(asked.places))]
        points = tuple(
            retimed(combine([each.point for each in of_one]), self.turns.timings.get(index))
            if of_one
            else Point(place.values, place.series.name, reason=reason)
            for index, (place, of_one) in enumerate(zip(asked.places, all_of, strict=True))
        )
        every = [each for of_one in all_of for each in of_one]
        series = dict.fromkeys(place.series for place in asked.places)
        roofs = distinct_roofs([each.roof for each in every if each.roof is not None])
        return Sweep(
            program=(asked.plan.target,),
            parameters=tuple(each.name for each in asked.parameters),
            points=points,
            fits=fit_series(points, [each.name for each in asked.parameters], roofs),
            roofs=roofs,
            settings=dict(asked.plan.settings),
            how=", ".join(filter(None, (shared_words(tuple(series)), self._rounds()))),
            warnings=tuple(dict.fromkeys((*self._untimed(), *(words for each in every for words in each.warnings)))),
            version=__version__,
        )

    def _rounds(self) -> str:
        return f"{self.asked.turns} rounds of turns" if self.turns.timings else ""

    def _untimed(self) -> list[str]:
        """The points that took no turns though they were to, and why."""
        places = self.asked.places
        told = [f"{describe(places[index])} took no turns: {why}" for index, why in self.turns.reasons.items()]
        return [*told, *filter(None, [self.turns.reason])]


def run_sweep(progress: Progress, make_folder: Callable[[str], Path], tell: Callable[[str], None]) -> None:
    """Adds one point after the other; ``make_folder`` makes the folder of the recording of this name.

    Everything is measured once before anything is measured again.
    """
    asked, ceilings = progress.asked, Ceilings(tell)
    order = random.Random(_SEED)  # noqa: S311 - no secret
    total = len(asked.places) * asked.repeats
    for turn in range(asked.repeats):
        for index in order.sample(range(len(asked.places)), len(asked.places)):
            place = asked.places[index]
            folder = make_folder(_folder_name(index, place, turn if asked.repeats > 1 else None))
            done = measure_point(_plan_of(asked.plan, place, folder), place, ceilings)
            progress.measured.setdefault(index, []).append(done)
            number = sum(map(len, progress.measured.values()))
            tell(f"bottleneck: {number} of {total}: {describe(place)}: {_result(done.point)}")
    if asked.turns:
        progress.turns = _take_turns(progress, ceilings.free_bytes, make_folder("turns"), tell)


def _take_turns(progress: Progress, free_bytes: int | None, folder: Path, tell: Callable[[str], None]) -> Turns:
    """Turns of all points that have figures, unless their processes together would not fit into memory."""
    asked = progress.asked
    points = {index: combine([each.point for each in of_one]) for index, of_one in sorted(progress.measured.items())}
    good = {index: point for index, point in points.items() if point.step_us is not None}
    needed = sum(point.peak_memory_bytes or 0 for point in good.values())
    if free_bytes is not None and needed > _FREE_SHARE * free_bytes:
        return Turns(
            reason=f"no turns were taken: the processes of all points together need {format_si(needed, 'B')}, "
            f"and {format_si(free_bytes, 'B')} are free; the times are those of each point alone"
        )
    return take_turns(asked.plan, {index: asked.places[index] for index in good}, asked.turns, folder, tell)


def retimed(point: Point, timing: Timing | None) -> Point:
    """The point with another time of its step (null: its own), and the rates that follow from it."""
    if timing is None or not timing.median > 0:
        return point
    factor, moved = _median_us(point) / timing.median, point.bytes_per_s
    return replace(
        point,
        step_us=timing,
        samples_per_s=_times(point.samples_per_s, factor),
        flops_per_s=_times(point.flops_per_s, factor),
        bytes_per_s=None if moved is None else replace(moved, low=moved.low * factor, high=moved.high * factor),
    )


def describe(place: Place) -> str:
    """The point in words: 'batch_size=4, inductor'."""
    values = [f"{name}={value}" for name, value in place.values.items()]
    return ", ".join([*values, place.series.name])


def combine(points: Sequence[Point]) -> Point:
    """One point of several measurements of it: the median of their step times, and the rest of the one in the middle.

    The interval reaches from the lowest to the highest median and holds that of the one in the middle: what differs
    between processes is often more than what differs between the steps of one. One that failed counts only if all did.
    """
    good = sorted((each for each in points if each.step_us is not None), key=_median_us)
    if not good:
        return points[-1]
    middle = good[(len(good) - 1) // 2]
    assert middle.step_us is not None
    medians = [_median_us(each) for each in good]
    median = statistics.median(medians)
    all_of_them = Timing(
        median=median,
        low=min(medians[0], middle.step_us.low),
        high=max(medians[-1], middle.step_us.high),
        n=sum(each.step_us.n for each in good if each.step_us is not None),
    )
    return replace(retimed(middle, all_of_them), repeats=len(good))


def distinct_roofs(roofs: Sequence[Roof]) -> tuple[Roof, ...]:
    """One roof for each series and peak."""
    return tuple({(roof.series, roof.peak): roof for roof in roofs}.values())


def _times(rate: float | None, factor: float) -> float | None:
    return None if rate is None else rate * factor


def _median_us(point: Point) -> float:
    assert point.step_us is not None
    return point.step_us.median


def _plan_of(plan: Plan, place: Place, folder: Path) -> Plan:
    return replace(
        plan,
        folder=str(folder),
        settings=place.settings(plan.settings),
        changes=place.series.changes,
        device=place.series.device,
        threads=place.series.threads,
    )


def _folder_name(index: int, place: Place, turn: int | None) -> str:
    """A name that sorts as the points were asked for, and says which one it is."""
    words = re.sub(r"[^\w.=-]+", "-", "-".join([*(f"{name}={value}" for name, value in place.values.items())]))
    name = "-".join(part for part in (f"{index:03d}", words[:80], re.sub(r"[^\w.=-]+", "-", place.series.name)) if part)
    return name if turn is None else f"{name}-turn{turn + 1}"


def _result(point: Point) -> str:
    if point.step_us is None:
        return point.reason or "no figures"
    return f"{format_us(point.step_us.median)}, {point.bound or 'no verdict'}"
