"""Holds the prices of ``bottleneck.predict`` against timed programs that their rates were not learned from."""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from benchmarks.kernelbench.learn import (
    COMPILED_PRIORS,
    Sample,
    Timing,
    device_times,
    fit,
    make_sample,
    predict,
)
from bottleneck.devices.match import device_by_name
from bottleneck.predict.host_pace import host_time_units, sensitivities, slower_than_usual
from bottleneck.predict.interval import (
    ANOTHER_BOARD,
    ANOTHER_HOST,
    COVERAGE,
    GAIN,
    SPREADS,
    calls_of,
    run_of,
    spread_parts,
)
from bottleneck.predict.interval import TABLE as INTERVALS
from bottleneck.predict.price import step_floor_us
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.step_calls import StepCalls

COMPILED = ("compile", "cudagraphs", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Programs are held out in this many groups, so that no group is learned from when it is predicted.
FOLDS = 25
# A change of less than this is within what the machines of the timings differ by from day to day.
CHANGE = 0.05
# Factors are made to hold this much more, since kinds of work and their spreads were chosen in sight of the timings.
MARGIN = 0.02
# A spread before any program is seen, and how far off it may be, as a logarithm.
_SPREAD = (0.15, 1.0)
# Rows of the table of intervals at its end, the last ones first.
_LAST_ROWS = (ANOTHER_BOARD, ANOTHER_HOST, GAIN)
# A floor this far above the measured time is an error of ours.
BEYOND = 1.03

Program = tuple[str, int]
Scored = tuple[Program, float]
Steps = Mapping[tuple[str, str, str], StepCalls]


@dataclass(frozen=True)
class Learned:
    """Rates from all timings, and the pace of each machine."""

    rates: Mapping[str, float]
    paces: Floats
    start: Floats
    compiled_start: Floats


@dataclass(frozen=True)
class Judged:
    """One timing with its prediction by rates that were learned without its program."""

    timing: Timing
    us: float
    parts: tuple[float, ...]
    calls: str

    @property
    def run(self) -> str:
        """How its backend runs a step."""
        return run_of(self.timing.backend)

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(self.us / self.timing.us - 1.0)

    @property
    def score(self) -> float:
        """How far off, as a logarithm."""
        return abs(math.log(self.us / self.timing.us))


def learn(eager: Sample, compiled: Sample) -> Learned:
    """The rates of eager kernels, then those that only compiled code has."""
    rates, paces, start = fit(eager)
    rates, _, compiled_start = fit(compiled, COMPILED_PRIORS, known=(rates, paces))
    return Learned(rates, paces, start, compiled_start)


def samples(timings: Sequence[Timing], steps: Steps) -> tuple[Sample, Sample]:
    """The eager timings, and those of compiled code."""
    return make_sample(timings, steps), make_sample(timings, steps, COMPILED)


def folds(programs: Iterable[Program]) -> list[set[Program]]:
    """The groups in which programs are held out."""
    several = sorted(set(programs))
    return [set(several[fold::FOLDS]) for fold in range(FOLDS)]


def judge(eager: Sample, compiled: Sample, learned: Learned) -> list[Judged]:
    """Every timing, predicted by rates learned from the programs of the other groups."""
    found: list[Judged] = []
    for held in folds(timing.program for timing in (*eager.timings, *compiled.timings)):
        first, second = _of(eager, held), _of(compiled, held)
        rates, paces, _ = fit(eager.some(~first), start=learned.start)
        rates, others, _ = fit(compiled.some(~second), COMPILED_PRIORS, learned.compiled_start, (rates, paces))
        found += judged_by(eager.some(first), rates, paces) + judged_by(compiled.some(second), rates, others)
    return found


def without_device(eager: Sample, learned: Learned, hardware: str) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """The eager timings of one kind of device, by rates from the others: with three paces of its host.

    The pace is that of a host, which has nothing to do with the device but its age. It is its own, that of the other
    hosts in the same cloud (of all others where there is none), or that of all other hosts.
    """
    held = np.array([hardware in timing.hardware for timing in eager.timings])
    kept = eager.some(~held)
    rates, paces, _ = fit(kept, start=learned.start)
    others = sorted(set(kept.machine))
    machines = dict(zip(eager.machine.tolist(), eager.timings, strict=True))
    clouds = {number: timing.machine.partition("_")[2].lower() for number, timing in machines.items()}
    older = np.array([slower_than_usual(machines[number].hardware) for number in range(len(paces))])
    of_cloud, of_all = paces.copy(), paces.copy()
    for machine in set(eager.machine.tolist()) - set(others):
        near = [each for each in others if clouds[each] == clouds[machine]] or others
        of_cloud[machine], of_all[machine] = (
            np.exp(np.log(paces[some] / older[some]).mean()) * older[machine] for some in (near, others)
        )
    own, cloud, unknown = (judged_by(eager.some(held), rates, each) for each in (learned.paces, of_cloud, of_all))
    return own, cloud, unknown


def _of(sample: Sample, programs: set[tuple[str, int]]) -> Flags:
    return np.array([timing.program in programs for timing in sample.timings], dtype=bool)


def judged_by(sample: Sample, rates: Mapping[str, float], paces: Floats) -> list[Judged]:
    """The timings with their predictions by these rates and paces."""
    us = predict(sample, rates, paces)
    found, busy_us = device_times(sample, rates)
    pace = paces[sample.machine]
    lead, issue = (np.asarray(each) * pace for each in host_time_units(sample.counts, rates))
    shares = np.transpose(sensitivities(busy_us, lead, issue, rates))
    rows = np.searchsorted(sample.row, np.arange(len(sample.timings) + 1))
    judged = []
    for row, timing in enumerate(sample.timings):
        work, *others = sample.slice(found, rows[row], rows[row + 1])
        parts = tuple(spread_parts(work, *others, shares[row]))
        judged.append(Judged(timing, float(us[row]), parts, calls_of(work)))
    return judged


@dataclass(frozen=True)
class Errors:
    """For each way to run a step the spread of each kind of error, and factors on the spread by number of calls."""

    spreads: Mapping[str, Floats]
    factors: Mapping[tuple[str, str], float]

    def spread(self, judged: Judged) -> float:
        """The spread of a timing, as a logarithm."""
        return float(_spread(judged.parts, self.spreads[judged.run]))

    def factor(self, judged: Judged) -> float:
        """The factor by which the interval of a timing reaches above the prediction, and below."""
        return math.exp(self.factors[judged.run, judged.calls] * self.spread(judged))


def _spread(parts: Sequence[float] | Floats, spreads: Floats) -> Floats:
    return np.sqrt(np.asarray(parts) @ spreads**2)


def learn_errors(judged: Sequence[Judged]) -> Errors:
    """The spreads, and the factors that make intervals of them."""
    runs = {run: [each for each in judged if each.run == run] for run in sorted({each.run for each in judged})}
    errors = Errors({run: _likeliest(some) for run, some in runs.items()}, {})
    classes = sorted({(each.run, each.calls) for each in judged})
    scores = {key: [each for each in runs[key[0]] if each.calls == key[1]] for key in classes}
    factors = {
        key: covering([(each.timing.program, each.score / errors.spread(each)) for each in some])
        for key, some in scores.items()
    }
    return Errors(errors.spreads, factors)


def _likeliest(judged: Sequence[Judged]) -> Floats:
    """The spreads under which the errors are most likely (Laplace), each program weighing the same."""
    parts, scores = np.array([each.parts for each in judged]), np.array([each.score for each in judged])
    times = Counter(each.timing.program for each in judged)
    weights = np.array([1.0 / times[each.timing.program] for each in judged])
    middle, width = math.log(_SPREAD[0]), _SPREAD[1]

    def unlikely(at: Floats) -> float:
        spread = _spread(parts, np.exp(at))
        return float((weights * (np.log(spread) + scores / spread)).sum() + (((at - middle) / width) ** 2).sum() / 2)

    return np.exp(minimize(unlikely, np.full(len(SPREADS), middle), method="L-BFGS-B").x)


def covering(scores: Sequence[Scored]) -> float:
    """The score below which the share COVERAGE and MARGIN of all weight lie, the program which comes next included.

    Each program weighs 1, however many of its times there are.
    """
    times = Counter(program for program, _ in scores)
    wanted, reached = (COVERAGE + MARGIN) * (len(times) + 1.0), 0.0
    for score, weight in sorted((score, 1.0 / times[program]) for program, score in scores):
        reached += weight
        if reached >= wanted - 1e-9:
            return score
    return max(score for _, score in scores)


def write_intervals(rows: Sequence[tuple[str, str, int]], learned_elsewhere: tuple[str, ...]) -> None:
    """Writes rows into the package's table of intervals, and keeps those whose names begin with one of these texts."""
    with INTERVALS.open(encoding="utf-8", newline="") as lines:
        head, *before = list(csv.reader(lines))
    kept = [row for row in before if row[0].startswith(learned_elsewhere)]
    with INTERVALS.open("w", encoding="utf-8", newline="") as lines:
        ordered = sorted([*rows, *kept], key=lambda row: [row[0].startswith(name) for name in _LAST_ROWS])
        csv.writer(lines, lineterminator="\n").writerows([head, *ordered])


@dataclass(frozen=True)
class Held:
    """One timing with its interval, by factors learned without its program."""

    judged: Judged
    factor: float

    @property
    def is_inside(self) -> bool:
        """True where the measured time lies in the interval."""
        return self.judged.score <= math.log(self.factor)

    @property
    def width(self) -> float:
        """High end over low end."""
        return self.factor**2


def with_intervals(judged: Sequence[Judged]) -> list[Held]:
    """Every timing with its interval."""
    found = []
    for held in folds(each.timing.program for each in judged):
        errors = learn_errors([each for each in judged if each.timing.program not in held])
        found += [Held(each, errors.factor(each)) for each in judged if each.timing.program in held]
    return found


@dataclass(frozen=True)
class Speedup:
    """Eager over compiled, predicted and measured."""

    before: Judged
    after: Judged

    @property
    def predicted(self) -> float:
        """Predicted speedup."""
        return self.before.us / self.after.us

    @property
    def measured(self) -> float:
        """Measured speedup."""
        return self.before.timing.us / self.after.timing.us

    @property
    def score(self) -> float:
        """How far off, as a logarithm."""
        return abs(math.log(self.predicted / self.measured))

    @property
    def is_right(self) -> bool:
        """True where both are gains or both are losses."""
        return (self.predicted > 1.0) == (self.measured > 1.0)

    @property
    def counts(self) -> bool:
        """True where the measured change is large enough to have a sign."""
        return abs(self.measured - 1.0) > CHANGE


def speedups(judged: Sequence[Judged]) -> list[Speedup]:
    """The speedup of each compiled timing over the eager one of the same program and machine."""
    eager = {(each.timing.key, each.timing.machine): each for each in judged if each.timing.backend == "eager"}
    return [
        Speedup(eager[each.timing.key, each.timing.machine], each)
        for each in judged
        if each.timing.backend != "eager" and (each.timing.key, each.timing.machine) in eager
    ]


def speedups_inside(found: Sequence[Speedup]) -> list[bool]:
    """For each speedup, True where it lies in its interval, which comes from other programs.

    Its spread is that of both times; how much of their errors cancels is in the factor.
    """
    inside: dict[Speedup, bool] = {}
    for held in folds(each.after.timing.program for each in found):
        others = [each for each in found if each.after.timing.program not in held]
        errors = learn_errors([*{each.before for each in others}, *(each.after for each in others)])

        def relative(each: Speedup, errors: Errors = errors) -> float:
            return each.score / math.hypot(errors.spread(each.before), errors.spread(each.after))

        for run in {each.after.run for each in found}:
            widest = covering([(each.after.timing.program, relative(each)) for each in others if each.after.run == run])
            mine = (each for each in found if each.after.timing.program in held and each.after.run == run)
            inside.update({each: relative(each) <= widest for each in mine})
    return [inside[each] for each in found]


@dataclass(frozen=True)
class Floored:
    """A timing and the least time that we hold possible."""

    timing: Timing
    floor_us: float

    @property
    def is_broken(self) -> bool:
        """True where the floor lies above what was measured."""
        return self.floor_us > self.timing.us * BEYOND


def floors(timings: Sequence[Timing], steps: Steps) -> list[Floored]:
    """Every timing with its floor."""
    known: dict[tuple[tuple[str, str, str], str, str], float] = {}
    found = []
    for timing in timings:
        key = timing.key, timing.hardware, timing.backend
        if timing.key not in steps:
            continue
        if key not in known:
            known[key] = step_floor_us(steps[timing.key], device_by_name(timing.hardware), timing.backend)
        found.append(Floored(timing, known[key]))
    return found
