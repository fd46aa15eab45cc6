"""Measures a step at all points of a sweep in random order, and sums up the repeats.

A machine that others use is slower now and faster a minute later. Points that are measured one after the other would
show that as a difference between them; in turns that follow each other within seconds it is common to all, and is
removed.
"""

import math
import os
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
from bottleneck.errors import BottleneckError
from bottleneck.experiment.curve_fit import fit_series
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.program import environment_of as environment_of_changes
from bottleneck.experiment.record_once import LOG_FILE, Ceilings, ProgramFailed, Recorder
from bottleneck.experiment.sweep_points import Configuration, Parameter, shared_words
from bottleneck.experiment.turns import TimedStep, take_rounds
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.messages import Program, RecordOptions
from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis, Device, Interval
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import Recording
from bottleneck.schema.statistics import summarise_durations
from bottleneck.schema.trials import Point, Roof, Sweep
from bottleneck.units import US_PER_S, format_si, format_us

BATCH = "batch_size"

_STEP = "step"
# Iterations of the median polish: medians of rows and columns stay as they are after a few.
_POLISHES = 10
_ROUNDS_SEED = 21
# The order is random, so that drift of the machine makes no trend, and the same every time.
_SEED = 20
# The share of the free memory that the processes of all points may take, when they are to take turns.
_FREE_SHARE = 0.8


@dataclass(frozen=True)
class SweepPlan:
    """The points of a sweep: ``program`` and ``options`` are those of all, but for what a configuration sets.

    ``turns`` is how many rounds of turns time the points once they are recorded; with 0 they keep the recorded times.
    """

    program: Program
    options: RecordOptions
    parameters: tuple[Parameter, ...]
    configurations: tuple[Configuration, ...]
    repeats: int = 1
    turns: int = 0


@dataclass(frozen=True)
class MeasuredPoint:
    """A point, the ceilings that it is compared with (null without figures), and the warnings of its recording."""

    point: Point
    roof: Roof | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnTimings:
    """The step time of each configuration that took turns, by its index, and the reasons why others have none.

    ``reason`` is set where no turns were taken at all.
    """

    timings: Mapping[int, Timing] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    reason: str | None = None


@dataclass
class SweepProgress:
    """The points measured so far, by the index of their configuration; they can be summed up at any time."""

    plan: SweepPlan
    measured: dict[int, list[MeasuredPoint]] = field(default_factory=dict)
    turns: TurnTimings = field(default_factory=TurnTimings)

    def sum_up(self, reason: str = "not measured") -> Sweep:
        """The sweep as far as it is measured; ``reason`` is that of points that never were."""
        plan = self.plan
        all_of = [self.measured.get(index, []) for index in range(len(plan.configurations))]
        points = tuple(
            retimed(combine([each.point for each in of_one]), self.turns.timings.get(index))
            if of_one
            else Point(configuration.values, configuration.series.name, reason=reason)
            for index, (configuration, of_one) in enumerate(zip(plan.configurations, all_of, strict=True))
        )
        every = [each for of_one in all_of for each in of_one]
        series = dict.fromkeys(configuration.series for configuration in plan.configurations)
        # One for each series and peak.
        roofs = tuple({(roof.series, roof.peak): roof for each in every if (roof := each.roof) is not None}.values())
        rounds = f"{plan.turns} rounds of turns" if self.turns.timings else ""
        return Sweep(
            program=(plan.program.target,),
            parameters=tuple(each.name for each in plan.parameters),
            points=points,
            fits=fit_series(points, [each.name for each in plan.parameters], roofs),
            roofs=roofs,
            settings=dict(plan.program.settings),
            how=", ".join(filter(None, (shared_words(tuple(series)), rounds))),
            warnings=tuple(dict.fromkeys((*self._untimed(), *(words for each in every for words in each.warnings)))),
            version=__version__,
        )

    def _untimed(self) -> list[str]:
        """The points that took no turns though they were to, and why."""
        points = self.plan.configurations
        lines = [f"{describe(points[index])} took no turns: {why}" for index, why in self.turns.reasons.items()]
        return [*lines, *filter(None, [self.turns.reason])]


def run_sweep(
    progress: SweepProgress,
    ceilings: Ceilings,
    make_folder: Callable[[str], Path],
    tell: Callable[[str], None],
) -> None:
    """Adds one point after the other; ``make_folder`` makes the folder of the recording of this name.

    Everything is measured once before anything is measured again.
    """
    plan = progress.plan
    order = random.Random(_SEED)  # noqa: S311 - no secret
    total = len(plan.configurations) * plan.repeats
    for repeat in range(plan.repeats):
        for index in order.sample(range(len(plan.configurations)), len(plan.configurations)):
            configuration = plan.configurations[index]
            folder = make_folder(_folder_name(index, configuration, repeat if plan.repeats > 1 else None))
            done = measure_point(plan, configuration, folder, ceilings)
            progress.measured.setdefault(index, []).append(done)
            number = sum(map(len, progress.measured.values()))
            tell(f"bottleneck: {number} of {total}: {describe(configuration)}: {_result(done.point)}")
    if plan.turns:
        progress.turns = _take_turns(progress, ceilings.free_bytes, make_folder("turns"), tell)


def measure_point(plan: SweepPlan, configuration: Configuration, folder: Path, ceilings: Ceilings) -> MeasuredPoint:
    """The point that this configuration makes; one that fails has the reason instead of figures."""
    series, nothing = configuration.series, Point(configuration.values, configuration.series.name)
    program = replace(plan.program, settings=configuration.settings(plan.program.settings))
    options = replace(plan.options, changes=series.changes, device=series.device, threads=series.threads)
    recorder = Recorder(environment_of(configuration), ceilings=ceilings)
    try:
        recording, notes = recorder.record(program, folder, options, "times")
        (folder / LOG_FILE).unlink(missing_ok=True)
        point = Point(
            values=configuration.values,
            series=series.name,
            step_us=recording.unprofiled,
            peak_memory_bytes=recording.peak_memory.bytes if recording.peak_memory is not None else None,
            samples_per_s=_samples_per_s(configuration, recording),
            setup_s=notes.setup_s,
            repeats=1,
        )
        if not recording.traces:
            return MeasuredPoint(point, None, recording.warnings)
        analysis = analyse([folder])
        return MeasuredPoint(
            _with_analysis(point, analysis), _roof(series.name, analysis, ceilings), recording.warnings
        )
    except ProgramFailed as failed:
        return MeasuredPoint(replace(nothing, reason=failed.reason))
    except BottleneckError as error:
        return MeasuredPoint(replace(nothing, reason=error.what))
    except OSError as error:
        reason = f"the recording could not be written: {error.strerror or error}"
        return MeasuredPoint(replace(nothing, reason=reason))


def environment_of(configuration: Configuration) -> dict[str, str]:
    """The variables of the process that measures a point."""
    series = configuration.series
    threads = "" if series.threads is None else str(series.threads)
    chosen = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads} if threads else {}
    return {**os.environ, **environment_of_changes([CHANGES[name] for name in series.changes]), **chosen}


def _samples_per_s(configuration: Configuration, recording: Recording) -> float | None:
    batch, timing = configuration.values.get(BATCH), recording.unprofiled
    if isinstance(batch, str) or batch is None or timing is None or not timing.median > 0:
        return None
    return batch / timing.median * US_PER_S


def _with_analysis(point: Point, analysis: Analysis) -> Point:
    """The point with the work that the trace shows, at the rate of the unprofiled step."""
    totals, verdict = analysis.totals, analysis.verdict
    us = point.step_us.median if point.step_us is not None else 0.0
    per_s = US_PER_S / us if us > 0 else None
    low, high = totals.bytes_low, totals.bytes_high
    moved = None if low is None or high is None or per_s is None else Interval(low * per_s, high * per_s)
    return replace(
        point,
        flops=totals.flops,
        bytes_low=low,
        bytes_high=high,
        flops_per_s=None if totals.flops is None or per_s is None else totals.flops * per_s,
        bytes_per_s=moved,
        peak=totals.peak,
        bound=verdict.bound,
        bound_share=verdict.share,
        peak_memory_bytes=totals.peak_memory_bytes or point.peak_memory_bytes,
    )


def _roof(series: str, analysis: Analysis, ceilings: Ceilings) -> Roof:
    device, peak = analysis.device, analysis.totals.peak
    memory = ceilings.free_bytes if device.kind == "cpu" else device.memory_bytes
    return Roof(
        series=series,
        device=device.name,
        peak=peak,
        flops_per_s=device.peaks_flops_per_s.get(peak or ""),
        bytes_per_s=_bandwidth(device),
        memory_bytes=memory,
    )


def _bandwidth(device: Device) -> float | None:
    if device.bandwidth_bytes_per_s is None and device.bandwidth_by_bytes:
        return device.bandwidth_by_bytes[-1][1]
    return device.bandwidth_bytes_per_s


def _take_turns(
    progress: SweepProgress, free_bytes: int | None, folder: Path, tell: Callable[[str], None]
) -> TurnTimings:
    """Turns of all points that have figures, unless their processes together would not fit into memory."""
    plan = progress.plan
    points = {index: combine([each.point for each in of_one]) for index, of_one in sorted(progress.measured.items())}
    good = {index: point for index, point in points.items() if point.step_us is not None}
    needed = sum(point.peak_memory_bytes or 0 for point in good.values())
    if free_bytes is not None and needed > _FREE_SHARE * free_bytes:
        return TurnTimings(
            reason=f"no turns were taken: the processes of all points together need {format_si(needed, 'B')}, "
            f"and {format_si(free_bytes, 'B')} are free; the times are those of each point alone"
        )
    return take_turns(plan.program, {index: plan.configurations[index] for index in good}, plan.turns, folder, tell)


def take_turns(
    program: Program,
    configurations: Mapping[int, Configuration],
    rounds: int,
    folder: Path,
    tell: Callable[[str], None],
) -> TurnTimings:
    """The steps of these configurations, each timed once a round, in an order that is drawn for every round."""
    steps: dict[int, TimedStep] = {}
    reasons: dict[int, str] = {}
    with ExitStack() as stack:
        for index, configuration in configurations.items():
            own = replace(program, settings=configuration.settings(program.settings))
            try:
                worker = stack.enter_context(Worker(own, folder / "turns.txt", environment_of(configuration)))
                built = worker.build(_STEP, configuration.series.changes)
            except Refused as refused:
                reasons[index] = refused.reason
                continue
            except OSError as error:
                reasons[index] = f"no process could be started: {error}"
                continue
            steps[index] = TimedStep(worker, _STEP, built.step_us, built.prefetched)
            tell(f"bottleneck: {len(steps)} of {len(configurations)} ready to take turns")
        taken, failed = take_rounds(steps, rounds, random.Random(_ROUNDS_SEED), tell)  # noqa: S311 - no secret
    return TurnTimings(level(taken), {**reasons, **failed})


def level(taken: Mapping[int, Sequence[float]]) -> dict[int, Timing]:
    """The typical step of each point in microseconds, once what whole rounds have in common is removed.

    The times of a round are those of its points times the slowdown of the machine then: of their logarithms, medians
    over points and over rounds are taken off in turns until neither has a remainder (Tukey's median polish). Rounds
    are slower or faster than the typical one, so that the steps are those of the machine as it usually was.
    """
    if not taken:
        return {}
    logs = np.log(np.array([list(times) for times in taken.values()], dtype=np.float64))
    slower = rounds_slower(logs)
    timings = (summarise_durations([math.exp(value) for value in row]) for row in logs - slower)
    return {index: timing for index, timing in zip(taken, timings, strict=True) if timing is not None}


def rounds_slower(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much each round was slower than the typical one, as a logarithm; of points (rows) by rounds (columns)."""
    slower = np.zeros(logs.shape[1])
    for _ in range(_POLISHES):
        usual = np.median(logs - slower, axis=1, keepdims=True)
        slower = np.median(logs - usual, axis=0)
        slower -= np.median(slower)
    return slower


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


def describe(configuration: Configuration) -> str:
    """The point in words: 'batch_size=4, inductor'."""
    values = [f"{name}={value}" for name, value in configuration.values.items()]
    return ", ".join([*values, configuration.series.name])


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


def _times(rate: float | None, factor: float) -> float | None:
    return None if rate is None else rate * factor


def _median_us(point: Point) -> float:
    assert point.step_us is not None
    return point.step_us.median


def _folder_name(index: int, configuration: Configuration, repeat: int | None) -> str:
    """A name that sorts in the order of the configurations, and states the values of the one."""
    values = "-".join(f"{name}={value}" for name, value in configuration.values.items())
    words = [re.sub(r"[^\w.=-]+", "-", text) for text in (values, configuration.series.name)]
    name = "-".join(part for part in (f"{index:03d}", words[0][:80], words[1]) if part)
    return name if repeat is None else f"{name}-turn{repeat + 1}"


def _result(point: Point) -> str:
    if point.step_us is None:
        return point.reason or "no figures"
    return f"{format_us(point.step_us.median)}, {point.bound or 'no verdict'}"
