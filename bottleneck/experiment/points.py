"""Measures one point of a sweep: records the step in a process of its own, without a word, and analyses it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bottleneck.errors import BottleneckError
from bottleneck.experiment.grid import Place
from bottleneck.harness.calibrate import Calibration
from bottleneck.harness.ceilings import cpu_calibration, gpu_calibration
from bottleneck.harness.changes import CHANGES
from bottleneck.harness.cpu import busy_processors
from bottleneck.harness.deaths import MemoryKills, count_memory_kills, describe_end
from bottleneck.harness.finish import Ending, finish_recording, read_all_notes
from bottleneck.harness.memory import available_bytes
from bottleneck.harness.notes import Notes, Plan, RankFiles
from bottleneck.harness.quiet import Heard, run_quietly
from bottleneck.harness.supervisor import child_command
from bottleneck.harness.trial_program import environment_of as of_changes
from bottleneck.pipeline import analyse
from bottleneck.recording import Recording
from bottleneck.records import Analysis, Device, Interval
from bottleneck.trials import Point, Roof
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
