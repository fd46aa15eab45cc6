"""Records a program once in a process of its own, and explains, counts or measures the result."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bottleneck.calibrate.cached import cpu_calibration, gpu_calibration
from bottleneck.calibrate.calibration import Calibration
from bottleneck.errors import BottleneckError, WorkloadError
from bottleneck.experiment.interventions import CHANGES
from bottleneck.experiment.program import Program
from bottleneck.experiment.program import environment_of as of_changes
from bottleneck.experiment.side import Stand
from bottleneck.experiment.sweep_points import Place
from bottleneck.harness.finish import Ending, finish_recording, read_all_notes
from bottleneck.harness.machine import available_bytes, busy_processors
from bottleneck.harness.messages import Notes, Plan, RankFiles
from bottleneck.harness.supervise import (
    Heard,
    MemoryKills,
    child_command,
    count_memory_kills,
    describe_end,
    run_quietly,
)
from bottleneck.pipeline import analyse, explain
from bottleneck.schema.analysis import Analysis, Device, Interval
from bottleneck.schema.case import Case
from bottleneck.schema.recording import Recording, kept_environment
from bottleneck.schema.trials import Point, Roof
from bottleneck.units import US_PER_S

BATCH = "batch_size"
LOG_FILE = "stderr.txt"

_REASON = 200
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Measured:
    """A point, the ceilings that it was held against (null without figures), and what the recording warns of."""

    point: Point
    roof: Roof | None = None
    warnings: tuple[str, ...] = ()


class Ceilings:
    """This machine as the sweep began, and its ceilings, measured once for all points: a curve must not mix them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._known: dict[int | None, Calibration | None] = {}
        # Later on it would be ours: the load of a minute ago is that of the point before.
        self.busy_processors = busy_processors()
        self.free_bytes = available_bytes()

    def of(self, notes: Notes) -> Calibration | None:
        """Those for what these notes were measured on."""
        if notes.device_facts:
            return gpu_calibration(notes.device_facts)
        if notes.threads not in self._known:
            self._known[notes.threads] = cpu_calibration(notes.threads, self._tell)
        return self._known[notes.threads]


def measure_point(plan: Plan, place: Place, ceilings: Ceilings) -> Measured:
    """The point that this plan makes; one that fails has the reason instead of figures."""
    folder = Path(plan.folder)
    kills = MemoryKills(count_memory_kills())
    heard = run_quietly(child_command(plan, ()), folder / LOG_FILE, environment_of(place))
    notes = read_all_notes(folder)
    nothing = Point(place.values, place.series.name)
    if heard.end.status != 0 or notes[0].unprofiled is None:
        return Measured(replace(nothing, reason=why_it_failed(heard, kills.since())))
    try:
        return _explain(plan, place, ceilings, notes)
    except BottleneckError as error:
        return Measured(replace(nothing, reason=error.what))
    except OSError as error:
        return Measured(replace(nothing, reason=f"the recording could not be written: {error.strerror or error}"))


def _explain(plan: Plan, place: Place, ceilings: Ceilings, notes: Mapping[int, Notes]) -> Measured:
    """The point that a finished program's notes and trace make."""
    folder = Path(plan.folder)
    calibration = ceilings.of(notes[0]) if RankFiles(folder, 0).partial.exists() else None
    recording = finish_recording(plan, notes, Ending((plan.target,), 0, ceilings.busy_processors), calibration)
    (folder / LOG_FILE).unlink(missing_ok=True)
    point = Point(
        values=place.values,
        series=place.series.name,
        step_us=recording.unprofiled,
        peak_memory_bytes=recording.peak_memory.bytes if recording.peak_memory is not None else None,
        samples_per_s=_samples_per_s(place, recording),
        setup_s=notes[0].setup_s,
        repeats=1,
    )
    if not recording.traces:
        return Measured(point, None, recording.warnings)
    analysis = analyse([folder])
    return Measured(_with_analysis(point, analysis), _roof(point.series, analysis, ceilings), recording.warnings)


def environment_of(place: Place) -> dict[str, str]:
    """The variables of the process that measures a point."""
    threads = place.series.threads
    chosen = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**os.environ, **of_changes([CHANGES[name] for name in place.series.changes]), **chosen}


def _samples_per_s(place: Place, recording: Recording) -> float | None:
    batch, timing = place.values.get(BATCH), recording.unprofiled
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


def why_it_failed(heard: Heard, memory_kills: int | None) -> str:
    """Why there are no figures, in one line: what the program raised, else how it ended."""
    if heard.end.signal is not None:
        return describe_end(heard.end, None, memory_kills)
    said = _last_words(heard.stderr)
    if not said:
        return describe_end(heard.end, None, memory_kills) + ", and nothing was measured"
    return said if len(said) <= _REASON else said[: _REASON - 1] + "…"


def _last_words(stderr: str) -> str:
    """What the last traceback ends in: its first line that is not indented; else the last line of all."""
    before, traceback, after = stderr.rpartition(_TRACEBACK)
    lines = [line.rstrip() for line in (after if traceback else before + after).splitlines() if line.strip()]
    if traceback:
        return next((line for line in lines if not line[0].isspace()), lines[-1].strip() if lines else "")
    return lines[-1].strip() if lines else ""


@dataclass(frozen=True)
class Outcome:
    """How a run ended; ``why`` is what the program said last, or how it died."""

    failed: bool
    why: str


def plan_of(program: Program, folder: Path, steps: int | None = None, warmup: int | None = None, **chosen: Any) -> Plan:
    """How to record the program's steps in this folder: a script ends with them, and nothing else is tried."""
    return Plan(
        folder=str(folder),
        form=program.form,
        target=program.target,
        module=False,
        settings=program.settings,
        train=program.train,
        steps=steps,
        warmup=warmup,
        stop=program.form == "script",
        batch_test=False,
        option_costs=False,
        seed=program.seed,
        **chosen,
    )


def run_at(stand: Stand, program: Program, plan: Plan, environment: Mapping[str, str]) -> Outcome:
    """Runs the program in the stand's folder; what it prints goes into the log beside its recording."""
    kills = MemoryKills(count_memory_kills())
    log = Path(plan.folder) / LOG_FILE
    heard = run_quietly(child_command(plan, program.arguments), log, dict(environment), stand.folder)
    return Outcome(heard.end.status != 0, why_it_failed(heard, kills.since()))


def ending_of(program: Program, environment: Mapping[str, str], busy_processors: float = 0.0) -> Ending:
    """What the recording is to say of a run that ended well."""
    command = (program.target, *program.arguments)
    return Ending(command, 0, busy_processors, environment=kept_environment(environment))


def record_program(program: Program, folder: Path, stand: Stand, ceilings: Ceilings) -> Case:
    """The case of a program that runs in the stand's folder, from which its target is named.

    Its steps are timed without the profiler first, and judged by the ceilings, which all sides share. WorkloadError,
    with what it said last, where it fails or makes no trace.
    """
    plan = plan_of(program, folder, shapes=True, stacks=True)
    environment = {**os.environ, **stand.variables}
    outcome = run_at(stand, program, plan, environment)
    if outcome.failed or not RankFiles(folder, 0).partial.exists():
        raise WorkloadError(
            f"{program.target} could not be recorded at {stand.label}",
            why=outcome.why,
            fix=f"see that it runs there: bottleneck run {program.target}",
        )
    notes = read_all_notes(folder)
    ending = ending_of(program, environment, ceilings.busy_processors)
    finish_recording(plan, notes, ending, ceilings.of(notes[0]))
    return explain([folder])
