"""Sweeps a step over parameters in random order.

It parses the parameters, measures the step at all points and sums up the repeats.

A machine that others use is slower now and faster a minute later. Points that are measured one after the other would
show that as a difference between them; in turns that follow each other within seconds it is common to all, and is
removed.
"""

import itertools
import math
import os
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bottleneck import __version__
from bottleneck.errors import BottleneckError, UsageError
from bottleneck.experiment.curve_fit import fit_series
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.record_once import LOG_FILE, Ceilings, ProgramFailed, Recorder
from bottleneck.experiment.side import environment_of as environment_of_changes
from bottleneck.experiment.trial import describe_worst
from bottleneck.experiment.turns import TimedStep, take_rounds
from bottleneck.experiment.worker import Refused, Worker
from bottleneck.harness.messages import Program, RecordOptions
from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis, Interval
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import Recording
from bottleneck.schema.records import replace
from bottleneck.schema.statistics import summarise_durations
from bottleneck.schema.trials import EAGER, Point, Roof, SeriesResults, Sweep
from bottleneck.units import US_PER_S, counted, format_si, format_us

Value = int | float | str

# Each point is a process of its own that lasts ten seconds: more than this is a mistake, or a night.
MOST_POINTS = 1000
_RANGE = re.compile(r"(?P<first>[^:]+):(?P<last>[^:]+)(?::(?P<times>x?)(?P<step>[^:]+))?")
_WRITTEN = "write NAME=1,2,4 or a range: NAME=1:256:x2 doubles from 1 to 256, NAME=0:100:25 adds 25"


@dataclass(frozen=True)
class Parameter:
    """Parameter of the workload and the values that it takes.

    The values are in the order in which they were named.
    """

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Series:
    """One curve: the changes, torch's device and the number of threads.

    Null for the usual ones.
    """

    name: str
    changes: tuple[str, ...] = ()
    device: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Configuration:
    """One point to measure: a value of each parameter, in one series."""

    values: Mapping[str, Value]
    series: Series

    def settings(self, shared: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Gives the texts of all settings of this configuration.

        They are those that all points share, and the values of this one.
        """
        return tuple({**dict(shared), **{name: str(value) for name, value in self.values.items()}}.items())


def parse_parameter(text: str) -> Parameter:
    """Parses the parameter that `NAME=VALUES` spells.

    Values are separated by commas, and ranges include their last value.
    """
    name, equals, listed = text.partition("=")
    if not equals or not name.isidentifier() or not listed:
        raise UsageError(f"--param {text} is not NAME=VALUES", fix=_WRITTEN)
    values = [value for part in listed.split(",") for value in _parse_part(part.strip(), text)]
    return Parameter(name, tuple(dict.fromkeys(values)))


def configurations_of(parameters: Sequence[Parameter], series: Sequence[Series]) -> tuple[Configuration, ...]:
    """Makes every combination of the values in every series.

    The order is series by series, the first parameter changing slowest.
    """
    twice = next((one.name for one in parameters if sum(one.name == item.name for item in parameters) > 1), None)
    if twice is not None:
        raise UsageError(f"--param {twice} is given twice", fix=f"name all its values at once: --param {twice}=1,2,4")
    count = math.prod(len(item.values) for item in parameters) * len(series)
    if count > MOST_POINTS:
        raise UsageError(
            f"that makes {count} points, more than {MOST_POINTS}",
            why="each of them is measured in a process of its own, for about ten seconds",
            fix="name fewer values; a range in doublings is written 1:1024:x2",
        )
    names = [item.name for item in parameters]
    products = list(itertools.product(*(item.values for item in parameters)))
    return tuple(Configuration(dict(zip(names, values, strict=True)), item) for item in series for values in products)


def _parse_part(part: str, text: str) -> list[Value]:
    match = _RANGE.fullmatch(part)
    if match is None:
        if not part:
            raise UsageError(f"--param {text} has an empty value", fix=_WRITTEN)
        return [_parse_value(part)]
    first, last, step = (_parse_value(match[name] or "1") for name in ("first", "last", "step"))
    if isinstance(first, str) or isinstance(last, str) or isinstance(step, str):
        raise UsageError(f"--param {text}: {part} is no range of numbers", fix=_WRITTEN)
    grows = step > 1 and first > 0 if match["times"] else step > 0
    if not (grows and first <= last):
        raise UsageError(f"--param {text}: {part} never gets from {first} to {last}", fix=_WRITTEN)
    return _range(first, last, step, is_product=bool(match["times"]))


def _range(first: int | float, last: int | float, step: int | float, *, is_product: bool) -> list[Value]:
    """Gives the values from the first to the last.

    There are at most one more than a sweep may have.
    """
    values: list[Value] = []
    for index in range(MOST_POINTS + 1):
        value = first * step**index if is_product else first + step * index
        # Sums of decimals end in digits that nobody wrote.
        value = round(value, 12) if isinstance(value, float) else value
        if value > last:
            break
        values.append(value)
    return values


def _parse_value(text: str) -> Value:
    """A whole number, a finite decimal one, or the word itself."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


# What people call the ways of compiling a program, and the change that does it.
BACKENDS: Mapping[str, tuple[str, ...]] = {
    EAGER: (),
    "inductor": ("compile",),
    "openvino": ("backend-openvino",),
    "onnxruntime": ("backend-onnxrt",),
    "tvm": ("backend-tvm",),
    "tvm-tuned": ("backend-tvm-tuned",),
    "xla": ("backend-xla",),
    "torchscript": ("torchscript",),
    "aot-package": ("aot-package",),
    "executorch": ("executorch",),
    "compile-step": ("compile-step",),
    "whole-step": ("whole-step",),
    "tensorrt": ("backend-tensorrt",),
    "cudagraphs": ("backend-cudagraphs",),
}
ALL = "all"
_MOST_THREADS = 4096
# Work of a step is told where the cost of so much of its busy time is known.
_LEAST_MODELLED = 0.5


def make_series(backends: str | None, devices: str | None, threads: str | None) -> tuple[Series, ...]:
    """Makes every combination of backends, devices and threads.

    Each is a comma-separated list or null for the usual one.

    A name states what differs between the curves, or else what was requested; 'eager' where nothing was. 'all' stands
    for every backend.
    """
    listed = [name for text in _listed("--backends", backends) for name in (BACKENDS if text == ALL else [text])]
    ways = [(text, _changes(text)) for text in dict.fromkeys(listed)] or [(EAGER, ())]
    places: list[str | None] = [*_listed("--device", devices)]
    counts: list[int | None] = [_count(text) for text in _listed("--threads", threads)]
    lengths = [len(ways), len(places), len(counts)]
    is_named = [length > 1 for length in lengths]
    is_named = is_named if any(is_named) else [ways[0][0] != EAGER, bool(places), bool(counts)]
    made = []
    for (way, changes), device, count in itertools.product(ways, places or [None], counts or [None]):
        words = zip((way, device or "", _threads_words(count)), is_named, strict=True)
        made.append(Series(", ".join(word for word, is_part in words if is_part) or EAGER, changes, device, count))
    return tuple(made)


def shared_words(series: Sequence[Series]) -> str:
    """Words the device and threads that several curves share.

    The names of the curves leave them out. Empty where none was requested.
    """
    devices, counts = {curve.device for curve in series}, {curve.threads for curve in series}
    words = [*(devices if len(devices) == 1 else ()), *(map(_threads_words, counts) if len(counts) == 1 else ())]
    return ", ".join(word for word in words if word) if len(series) > 1 else ""


def _threads_words(count: int | None) -> str:
    return "" if count is None else f"{count} thread{'s' * (count != 1)}"


def _listed(option: str, text: str | None) -> list[str]:
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} {text} names nothing between two commas", fix=f"write {option} with one list: a,b")
    return list(dict.fromkeys(words))


def _changes(text: str) -> tuple[str, ...]:
    """The changes that a backend stands for; several are joined by '+'."""
    changes: tuple[str, ...] = ()
    for name in map(str.strip, text.split("+")):
        changes += BACKENDS.get(name, (name,))
        if any(change not in CHANGES for change in changes):
            usable = [backend for backend, parts in BACKENDS.items() if all(part in CHANGES for part in parts)]
            raise UsageError(
                f"--backends {name}: there is no such backend or change",
                why=f"backends are {', '.join(usable)}; every change of `bottleneck verify` is one too",
                fix=f"changes are: {', '.join(CHANGES)}; join several with +",
            )
        if any(CHANGES[change].settings is not None for change in changes):
            raise UsageError(
                f"--backends {name}: this change sets parameters of the workload",
                why="a sweep sets them itself, and two values for one would say nothing",
                fix="name the parameter and its values with --param, or try the change with bottleneck verify",
            )
    return changes


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_THREADS:
        raise UsageError(f"--threads {text} is no number of threads", fix="write --threads 1,2,4")
    return int(text)


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
    """Points of a sweep, and how they are measured.

    ``program`` and ``options`` are those of all, but for what a configuration sets.

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
    """Point with its ceilings and the warnings of its recording.

    The ceilings are those that it is compared with, null without figures.
    """

    point: Point
    roof: Roof | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TurnTimings:
    """Step times of the configurations that took turns, by index.

    It also holds the reasons why others have none.

    ``reason`` is set where no turns were taken at all.
    """

    timings: Mapping[int, Timing] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    reason: str | None = None


@dataclass
class SweepProgress:
    """Points measured so far, by the index of their configuration.

    They can be summed up at any time.
    """

    plan: SweepPlan
    measured: dict[int, list[MeasuredPoint]] = field(default_factory=dict)
    turns: TurnTimings = field(default_factory=TurnTimings)
    results: list[SeriesResults] = field(default_factory=list)

    def sum_up(self, reason: str = "not measured") -> Sweep:
        """Sums up the sweep as far as it is measured.

        ``reason`` is that of points that never were.
        """
        plan = self.plan
        all_of = [self.measured.get(index, []) for index in range(len(plan.configurations))]
        points = tuple(
            retimed(combine([item.point for item in of_one]), self.turns.timings.get(index))
            if of_one
            else Point(configuration.values, configuration.series.name, reason=reason)
            for index, (configuration, of_one) in enumerate(zip(plan.configurations, all_of, strict=True))
        )
        wrong = {item.series: describe_worst(item.differences) for item in self.results if item.is_wrong}
        points = tuple(
            Point(point.values, point.series, reason=f"wrong: {wrong[point.series]}")
            if point.series in wrong and point.step_us is not None
            else point
            for point in points
        )
        every = [item for of_one in all_of for item in of_one]
        series = dict.fromkeys(configuration.series for configuration in plan.configurations)
        # One for each series and peak.
        roofs = tuple({(roof.series, roof.peak): roof for item in every if (roof := item.roof) is not None}.values())
        rounds = f"{counted(plan.turns, 'round')} of turns" if self.turns.timings else ""
        return Sweep(
            program=(plan.program.target,),
            parameters=tuple(item.name for item in plan.parameters),
            points=points,
            fits=fit_series(points, [item.name for item in plan.parameters], roofs),
            roofs=roofs,
            settings=dict(plan.program.settings),
            how=", ".join(filter(None, (shared_words(tuple(series)), rounds))),
            results=tuple(self.results),
            warnings=tuple(dict.fromkeys((*self._untimed(), *(words for item in every for words in item.warnings)))),
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
    """Adds one point after the other to the progress.

    ``make_folder`` makes the folder of the recording of this name. Everything is measured once before anything is
    measured again.
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
            tell(f"{number} of {total}: {describe(configuration)}: {_result(done.point)}")
    _compare_results(progress, make_folder, tell)
    if plan.turns:
        progress.turns = _take_turns(progress, ceilings.free_bytes, make_folder("turns"), tell)


def _compare_results(progress: SweepProgress, make_folder: Callable[[str], Path], tell: Callable[[str], None]) -> None:
    """Compares each changed series with the unchanged program at one point.

    The tolerance is that of `verify`. A series of other work has no results to compare. The folder is made where one
    has.
    """
    points = progress.plan.configurations
    firsts: dict[str, Configuration] = {}
    for index in sorted(progress.measured):
        if any(item.point.step_us is not None for item in progress.measured[index]):
            firsts.setdefault(points[index].series.name, points[index])
    changed = {
        name: configuration
        for name, configuration in firsts.items()
        if configuration.series.changes
        and all(CHANGES[change].precision != "other work" for change in configuration.series.changes)
    }
    folder = make_folder("results") if changed else None
    for name, configuration in changed.items():
        assert folder is not None
        progress.results.append(compare_series(progress.plan.program, configuration, folder))
        tell(f"compared the results of {name}")


def compare_series(program: Program, configuration: Configuration, folder: Path) -> SeriesResults:
    """Gives the differences of the first steps' results that a series makes."""
    series, file = configuration.series, folder / "results.pt"
    own = replace(program, settings=configuration.settings(program.settings))
    try:
        with Worker(own, folder / LOG_FILE, environment_of(configuration)) as worker:
            worker.build(_STEP, series.changes, file)
            return SeriesResults(series.name, worker.compare(series.changes, file))
    except Refused as refused:
        return SeriesResults(series.name, reason=refused.reason)
    except OSError as error:
        return SeriesResults(series.name, reason=f"no process could be started: {error}")
    finally:
        file.unlink(missing_ok=True)


def measure_point(plan: SweepPlan, configuration: Configuration, folder: Path, ceilings: Ceilings) -> MeasuredPoint:
    """Measures the point that this configuration makes.

    A point that fails has the reason instead of figures.
    """
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
        return MeasuredPoint(with_work(point, analysis), _roof(series.name, analysis, ceilings), recording.warnings)
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


def with_work(point: Point, analysis: Analysis) -> Point:
    """Adds the work that the trace shows to the point.

    It is at the rate of the unprofiled step. The work is unknown where most of it has no cost: a call of another
    library hides its own.
    """
    totals, verdict = analysis.totals, analysis.verdict
    if (analysis.coverage.modelled_share or 0.0) < _LEAST_MODELLED:
        totals = replace(totals, flops=None, bytes_low=None, bytes_high=None)
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
        bytes_per_s=device.main_bandwidth_bytes_per_s,
        memory_bytes=memory,
        kind=device.kind,
    )


def _take_turns(
    progress: SweepProgress, free_bytes: int | None, folder: Path, tell: Callable[[str], None]
) -> TurnTimings:
    """Takes turns of all points that have figures.

    None are taken where their processes together would not fit into memory.
    """
    plan = progress.plan
    points = {index: combine([run.point for run in of_one]) for index, of_one in sorted(progress.measured.items())}
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
    """Times the steps of these configurations once each round.

    The order is drawn for every round.
    """
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
            tell(f"{len(steps)} of {len(configurations)} ready to take turns")
        taken, failed = take_rounds(steps, rounds, random.Random(_ROUNDS_SEED), tell)  # noqa: S311 - no secret
    return TurnTimings(level(taken), {**reasons, **failed})


def level(taken: Mapping[int, Sequence[float]]) -> dict[int, Timing]:
    """Returns the typical step of each point in microseconds.

    What whole rounds have in common is removed.

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
    """Returns by how much each round was slower than the typical one.

    It is a logarithm. The input is points (rows) by rounds (columns).
    """
    slower = np.zeros(logs.shape[1])
    for _ in range(_POLISHES):
        usual = np.median(logs - slower, axis=1, keepdims=True)
        slower = np.median(logs - usual, axis=0)
        slower -= np.median(slower)
    return slower


def retimed(point: Point, timing: Timing | None) -> Point:
    """Gives the point with another time of its step.

    Its rates follow from that time. Null keeps its own time.
    """
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
    """Combines several measurements of a point into one.

    It has the median of their step times, and the rest of the one in the middle.

    The interval reaches from the lowest to the highest median and holds that of the one in the middle: what differs
    between processes is often more than what differs between the steps of one. One that failed counts only if all did.
    """
    good = sorted((point for point in points if point.step_us is not None), key=_median_us)
    if not good:
        return points[-1]
    middle = good[(len(good) - 1) // 2]
    assert middle.step_us is not None
    medians = [_median_us(point) for point in good]
    median = statistics.median(medians)
    all_of_them = Timing(
        median=median,
        low=min(medians[0], middle.step_us.low),
        high=max(medians[-1], middle.step_us.high),
        n=sum(point.step_us.n for point in good if point.step_us is not None),
    )
    return replace(retimed(middle, all_of_them), repeats=len(good))


def _times(rate: float | None, factor: float) -> float | None:
    return None if rate is None else rate * factor


def _median_us(point: Point) -> float:
    assert point.step_us is not None
    return point.step_us.median


def _folder_name(index: int, configuration: Configuration, repeat: int | None) -> str:
    """Names a folder that sorts in the order of the configurations.

    The name states the values of the configuration.
    """
    values = "-".join(f"{name}={value}" for name, value in configuration.values.items())
    words = [re.sub(r"[^\w.=-]+", "-", text) for text in (values, configuration.series.name)]
    name = "-".join(part for part in (f"{index:03d}", words[0][:80], words[1]) if part)
    return name if repeat is None else f"{name}-turn{repeat + 1}"


def _result(point: Point) -> str:
    if point.step_us is None:
        return point.reason or "no figures"
    return f"{format_us(point.step_us.median)}, {point.bound or 'no verdict'}"
