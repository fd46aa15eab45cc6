"""Holds the prices of ``bottleneck.predict`` against timed programs that their rates were not learned from."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
from bottleneck.predict.host_pace import host_time_units
from bottleneck.predict.interval import COVERAGE, stratum_of
from bottleneck.predict.price import step_floor_us
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.step_calls import StepCalls

COMPILED = ("compile", "cudagraphs", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Programs are held out in this many groups, so that no group is learned from when it is predicted.
FOLDS = 25
# A change of less than this is within what the machines of the timings differ by from day to day.
CHANGE = 0.05
# What the errors of other strata weigh beside those of a stratum's own programs.
PRIOR_PROGRAMS = 2.0
# A stratum of fewer programs takes the factor of its backend: their largest error would be its factor.
LEAST_PROGRAMS = 4
# A floor this far above the measured time is an error of ours.
BEYOND = 1.03

Scored = tuple[tuple[str, int], float]
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
    stratum: str

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


def judge(eager: Sample, compiled: Sample, learned: Learned) -> list[Judged]:
    """Every timing, predicted by rates learned from the programs of the other groups."""
    programs = sorted({timing.program for timing in (*eager.timings, *compiled.timings)})
    found: list[Judged] = []
    for fold in range(FOLDS):
        held = set(programs[fold::FOLDS])
        first, second = _of(eager, held), _of(compiled, held)
        rates, paces, _ = fit(eager.some(~first), start=learned.start)
        rates, others, _ = fit(compiled.some(~second), COMPILED_PRIORS, learned.compiled_start, (rates, paces))
        found += _judged(eager.some(first), rates, paces) + _judged(compiled.some(second), rates, others)
    return found


def without_device(eager: Sample, learned: Learned, hardware: str) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """The eager timings of one kind of device, by rates from the others: with three paces of its host.

    The pace is that of a host, which has nothing to do with the device. It is its own, that of the other hosts in the
    same cloud (of all others where there is none), or that of all other hosts.
    """
    held = np.array([hardware in timing.hardware for timing in eager.timings])
    kept = eager.some(~held)
    rates, paces, _ = fit(kept, start=learned.start)
    others = sorted(set(kept.machine))
    machines = zip(eager.machine, eager.timings, strict=True)
    clouds = {number: timing.machine.partition("_")[2].lower() for number, timing in machines}
    of_cloud, of_all = paces.copy(), paces.copy()
    for machine in set(eager.machine) - set(others):
        near = [each for each in others if clouds[each] == clouds[machine]] or others
        of_cloud[machine], of_all[machine] = (np.exp(np.log(paces[some]).mean()) for some in (near, others))
    own, cloud, unknown = (_judged(eager.some(held), rates, each) for each in (learned.paces, of_cloud, of_all))
    return own, cloud, unknown


def _of(sample: Sample, programs: set[tuple[str, int]]) -> Flags:
    return np.array([timing.program in programs for timing in sample.timings], dtype=bool)


def _judged(sample: Sample, rates: Mapping[str, float], paces: Floats) -> list[Judged]:
    us = predict(sample, rates, paces)
    found, busy_us = device_times(sample, rates)
    host_us = np.asarray(host_time_units(sample.counts, rates)[1]) * paces[sample.machine]
    rows = np.searchsorted(sample.row, np.arange(len(sample.timings) + 1))
    judged = []
    for row, timing in enumerate(sample.timings):
        work, times = sample.slice(found, rows[row], rows[row + 1])
        stratum = stratum_of(work, times, bool(busy_us[row] < host_us[row]), timing.backend)
        judged.append(Judged(timing, float(us[row]), stratum))
    return judged


def factors(judged: Sequence[Judged], without: tuple[str, int] | None = None) -> dict[str, tuple[float, int]]:
    """The factor of each stratum with its number of timings; those of one program may be left out."""
    kept = [each for each in judged if each.timing.program != without]
    runs = {each.stratum.split(":", maxsplit=1)[0] for each in kept}
    result = {"*": (factor_of(_scores(kept), []), len(kept))}
    for run in sorted(runs):
        of_run = [each for each in kept if each.stratum.startswith(f"{run}:")]
        result[f"{run}: *"] = (factor_of(_scores(of_run), []), len(of_run))
        for stratum in sorted({each.stratum for each in of_run}):
            own = [each for each in of_run if each.stratum == stratum]
            if len({each.timing.program for each in own}) < LEAST_PROGRAMS:
                continue
            others = [each.score for each in of_run if each.stratum != stratum]
            result[stratum] = (factor_of(_scores(own), others), len(own))
    return result


def _scores(judged: Sequence[Judged]) -> list[Scored]:
    return [(each.timing.program, each.score) for each in judged]


def factor_of(own: Sequence[Scored], others: Sequence[float]) -> float:
    """The factor that covers the share COVERAGE of all weight, that of the program which comes next included.

    Each program weighs 1, however many of its times are in the stratum. The scores of other strata weigh as much as
    PRIOR_PROGRAMS together.
    """
    times = Counter(program for program, _ in own)
    weighed = sorted(
        [
            *((score, 1.0 / times[program]) for program, score in own),
            *((s, PRIOR_PROGRAMS / len(others)) for s in others),
        ]
    )
    wanted, reached = COVERAGE * (math.fsum(weight for _, weight in weighed) + 1.0), 0.0
    for score, weight in weighed:
        reached += weight
        if reached >= wanted - 1e-9:
            return math.exp(score)
    return math.exp(weighed[-1][0])


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
    table = {program: factors(judged, program) for program in {each.timing.program for each in judged}}
    held = []
    for each in judged:
        own = table[each.timing.program]
        run = each.stratum.split(":", maxsplit=1)[0]
        held.append(Held(each, (own.get(each.stratum) or own.get(f"{run}: *") or own["*"])[0]))
    return held


@dataclass(frozen=True)
class Speedup:
    """Eager over compiled, predicted and measured."""

    timing: Timing
    predicted: float
    measured: float
    stratum: str

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
    pairs = [
        (each, eager[each.timing.key, each.timing.machine])
        for each in judged
        if each.timing.backend != "eager" and (each.timing.key, each.timing.machine) in eager
    ]
    return [
        Speedup(after.timing, before.us / after.us, before.timing.us / after.timing.us, after.stratum)
        for after, before in pairs
    ]


def speedups_inside(found: Sequence[Speedup]) -> list[bool]:
    """For each speedup, True where it lies in its interval, whose factor comes from other programs."""
    scores = [abs(math.log(each.predicted / each.measured)) for each in found]
    inside = []
    for each, score in zip(found, scores, strict=True):
        others = [(o, s) for o, s in zip(found, scores, strict=True) if o.timing.program != each.timing.program]
        own = [(o.timing.program, s) for o, s in others if o.stratum == each.stratum]
        rest = [s for o, s in others if o.stratum != each.stratum]
        inside.append(score <= math.log(factor_of(own, rest)))
    return inside


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
