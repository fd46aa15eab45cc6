"""Times the points of a sweep by turns: all in processes that are alive at once, round after round.

A machine that others use is slower now and faster a minute later. Points that are measured one after the other take
that for a difference between them; of turns that follow each other within seconds it is common to all, and comes out.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottleneck.experiment.grid import Place
from bottleneck.experiment.paired import Side, timing_of
from bottleneck.experiment.points import environment_of
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.notes import Plan
from bottleneck.harness.trial_program import Program
from bottleneck.measured import Timing

_STEP = "step"
# Medians of rows and columns in turns: they stay as they are after a few.
_SWEEPS = 10
_SEED = 21


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
    draw = random.Random(_SEED)  # noqa: S311 - an order, not a secret
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
