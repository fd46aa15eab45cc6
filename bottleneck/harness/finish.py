"""Finishes a recording after the program's end.

It checks the trace and adds versions, ceilings and status.
"""

import dataclasses
import gzip
import json
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from bottleneck import __version__
from bottleneck.errors import TraceError
from bottleneck.harness.folder import NOTES_FILES, RankFiles
from bottleneck.harness.machine import cpu_facts, usable_processors
from bottleneck.harness.messages import Notes, Plan
from bottleneck.harness.nvml import match_sensors
from bottleneck.harness.rank_coordination import WINDOW_FILES, ranks_present
from bottleneck.harness.sensors import Monitor, SensorLog, Telemetry, make_samplers
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.device import Device
from bottleneck.schema.recording import (
    RECORDING_FILE,
    Measured,
    RankTrace,
    Recording,
    Sampling,
    kept_command,
    kept_environment,
    read_recording,
    write_recording,
)
from bottleneck.schema.records import unsound_fields
from bottleneck.schema.start_up import StartLedger
from bottleneck.schema.telemetry import HOST, other_processors, write_samples
from bottleneck.system.child_process import Child
from bottleneck.units import counted

# More than any job has; the number comes from a file.
_MOST_RANKS = 2**16
# Processors that others keep busy, below which nothing is said: so many, and on large machines this part of them.
_QUIET_LOAD, _QUIET_SHARE = 0.5, 0.1


def _versions() -> Mapping[str, str]:
    return {
        "bottleneck": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": cpu_facts().identity,
    }


@dataclass(frozen=True)
class Ending:
    """Circumstances of the run.

    Exit status, and how many processors others kept busy as it began. ``status`` is null while the program goes on, and
    where nobody saw its end. ``telemetry`` is what the sensors said meanwhile; null where they were not asked.
    ``remarks`` are told with the warnings of the measurement. ``versions`` and ``processors`` are those of the machine
    of the run, which need not be this one.
    """

    status: int | None
    busy_processors: float
    telemetry: Telemetry | None = None
    remarks: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: kept_environment(os.environ))
    versions: Mapping[str, str] = field(default_factory=_versions)
    processors: int = field(default_factory=usable_processors)


class MeasuredCeilings(Protocol):
    """Ceilings of the device that a program ran on.

    And what is doubtful about them; a calibration is one.
    """

    @property
    def device(self) -> Device:
        """The device with its ceilings."""

    @property
    def caveats(self) -> Sequence[Caveat]:
        """Doubts about them."""


class _Skeleton(msgspec.Struct):
    """As much of a trace as has to be there.

    The events are only checked for syntax.
    """

    traceEvents: list[msgspec.Raw]  # noqa: N815 - the key of the file


def read_notes(files: RankFiles) -> Notes:
    """Reads the notes that the child of a rank left.

    They are empty with a warning when it ended without leaving any.
    """
    try:
        notes = msgspec.json.decode(files.notes.read_bytes(), type=Notes)
    except FileNotFoundError:
        return Notes(warnings=("the program ended before anything was measured",))
    except (OSError, msgspec.MsgspecError) as exc:
        return Notes(warnings=(f"the notes of the measurement cannot be read: {exc}",))
    notes = _without_unsound(notes)
    if notes.is_complete or notes.is_measured:
        return notes
    return dataclasses.replace(
        notes, warnings=(*notes.warnings, "the program ended abruptly: only what was already on disk is shown")
    )


def _without_unsound(notes: Notes) -> Notes:
    """Returns the notes without measurements that cannot be.

    One of them must not cost the recording.
    """
    unsound = unsound_fields(notes)
    defaults = Notes()
    return dataclasses.replace(
        notes,
        **{name: getattr(defaults, name) for name in unsound if name != "warnings"},
        warnings=(*notes.warnings, *(f"a measurement was left out: {why}" for why in unsound.values())),
    )


def read_all_notes(folder: Path) -> Mapping[int, Notes]:
    """Reads the notes of every rank that records here, by rank.

    They are of those that left some, and of those that are missing.
    """
    notes_by_rank = {rank: read_notes(RankFiles(folder, rank)) for rank in _ranks_in(folder)}
    ranks = min(max((notes.ranks for notes in notes_by_rank.values()), default=1), _MOST_RANKS)
    expected = ranks_present(folder) or range(ranks)
    return {
        rank: notes_by_rank.get(rank) or read_notes(RankFiles(folder, rank))
        for rank in sorted({*notes_by_rank, *expected})
    }


def _ranks_in(folder: Path) -> list[int]:
    matches = (re.fullmatch(r"\.notes\.rank(\d{1,9})\.json", path.name) for path in folder.glob(NOTES_FILES))
    return sorted(int(match[1]) for match in matches if match)


def _notes_here(folder: Path) -> list[Notes]:
    """The notes of the ranks that have left some."""
    return [read_notes(RankFiles(folder, rank)) for rank in _ranks_in(folder)]


def measured_spans(folder: Path) -> tuple[tuple[float, float], ...]:
    """Returns the stretches in which steps were measured so far.

    They are on the wall clock, in ns, by the notes of all ranks.
    """
    spans: list[tuple[float, float]] = []
    for notes in _notes_here(folder):
        marks_ns = notes.step_marks_ns
        spans += [(marks_ns[0], marks_ns[-1])] if marks_ns else []
        spans += [notes.timed_ns] if notes.timed_ns is not None else []
    return tuple(spans)


# The fields of a recording that are those of the first rank's notes, as they stand.
_CARRIED = {"step_source", "framework", *(field.name for field in dataclasses.fields(Measured))} - {
    "profiled",
    "warnings",
}


def finish_recording(
    plan: Plan, notes: Mapping[int, Notes], ending: Ending, ceilings: MeasuredCeilings | None
) -> Recording:
    """Writes the recording of these ranks to its folder, and returns it.

    Each trace gets its final name if it is whole.
    """
    folder = Path(plan.folder)
    files = {rank: RankFiles(folder, rank) for rank in notes}
    defects = {rank: _settle(one.partial, one.trace) for rank, one in files.items()}
    traces = tuple(_rank_trace(files[rank], notes[rank]) for rank, why in defects.items() if why is None)
    first = notes[traces[0].rank if traces else min(notes)]
    sampling, complaints = _keep_telemetry(folder, first, ending.telemetry)
    crowded = _load_warning(ending) if traces else ()
    doubts = tuple(caveat.message for caveat in ceilings.caveats) if ceilings is not None else ()
    carried = {name: getattr(first, name) for name in _CARRIED}
    if first.start_up is not None and first.start_up.is_sampled:
        carried["start_up"] = _beside_earlier(first.start_up, folder, kept_command(plan.program.command))
    recording = Recording(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=kept_command(plan.program.command),
        form=plan.program.form,
        steps_seen=first.steps_seen if first.step_name is not None else None,
        program_status=ending.status,
        versions=ending.versions,
        environment=ending.environment,
        traces=traces,
        profiled=first.profiled if traces else None,
        perturbation=_perturbation(first),
        processors=ending.processors,
        device=ceilings.device if ceilings is not None else None,
        options=kept_command(plan.program.options),
        sampling=sampling,
        warnings=(*ending.remarks, *_rank_warnings(notes, defects), *complaints, *crowded, *doubts),
        **carried,
    )
    write_recording(folder, recording)
    if ending.status is not None:
        remove_notes(folder)
    return recording


# Recordings beside the new one that are looked at, newest first.
_MOST_EARLIER = 20


def _beside_earlier(start: StartLedger, folder: Path, command: Sequence[str]) -> StartLedger:
    """Adds the start of the same command's newest recording beside this one."""
    try:
        files = [path for path in folder.parent.glob(f"*/{RECORDING_FILE}") if path.parent != folder]
        newest = sorted(files, key=lambda path: -path.stat().st_mtime)[:_MOST_EARLIER]
    except OSError:
        return start
    for path in newest:
        try:
            earlier = read_recording(path.parent)
        except TraceError:
            continue
        if earlier.command == command and earlier.start_up is not None and earlier.start_up.is_sampled:
            before = earlier.start_up
            return dataclasses.replace(start, earlier_s=before.total_s, earlier=before.parts)
    return start


def close_recording(folder: Path, ending: Ending) -> None:
    """Adds how the program ended to a recording that was made before."""
    before, notes = read_recording(folder), read_all_notes(folder)
    warnings = (*ending.remarks, *before.warnings)
    rank = before.traces[0].rank if before.traces else min(notes, default=0)
    # What it tells of the whole run, which had not ended then.
    run = notes[rank].run if rank in notes else before.run
    write_recording(folder, dataclasses.replace(before, program_status=ending.status, warnings=warnings, run=run))
    remove_notes(folder)


def steps_before_the_end(folder: Path) -> int | None:
    """Counts the steps that were seen of a program that has ended.

    Null if there were none, or their count ended before.
    """
    notes = _notes_here(folder)
    if not notes or any(rank_notes.is_measured for rank_notes in notes):
        return None
    return max(rank_notes.steps_seen for rank_notes in notes) or None


def is_whole(folder: Path) -> bool:
    """True if every process that was recorded had done its work in order.

    Whatever ended it then does not matter.
    """
    notes = _notes_here(folder)
    return bool(notes) and all(rank_notes.exit_status == 0 and rank_notes.step_source != "none" for rank_notes in notes)


def remove_notes(folder: Path) -> None:
    """Takes away what only the making of a recording needs."""
    for pattern in (f"{NOTES_FILES}*", WINDOW_FILES, ".fresh.*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def _rank_trace(files: RankFiles, notes: Notes) -> RankTrace:
    has_light = notes.light is not None and _settle(files.partial_light, files.light) is None
    return RankTrace(
        rank=files.rank,
        file=files.trace.name,
        step_marks_ns=notes.step_marks_ns,
        first_step=notes.first_step,
        unprofiled=notes.unprofiled,
        profiled=notes.profiled,
        timed_ns=notes.timed_ns,
        light=notes.light if has_light else None,
    )


_NO_TRACE = "no trace was taken"


def _rank_warnings(notes: Mapping[int, Notes], defects: Mapping[int, str | None]) -> tuple[str, ...]:
    """Returns the warnings of all ranks, each once.

    With the ranks that it is of, unless it is of all. That there is no trace is said only where nothing else explains
    it.
    """
    ranks_by_warning: dict[str, list[int]] = {}
    for rank, of_rank in notes.items():
        defect = defects[rank]
        is_explained = defect == _NO_TRACE and of_rank.warnings
        for warning in (*of_rank.warnings, *([defect] if defect and not is_explained else [])):
            ranks_by_warning.setdefault(warning, []).append(rank)
    return tuple(
        warning if len(ranks) == len(notes) else f"{_name_ranks(ranks)}: {warning}"
        for warning, ranks in ranks_by_warning.items()
    )


def _name_ranks(ranks: Sequence[int]) -> str:
    """'rank 3', 'ranks 0, 1 and 3'; beyond eight the count of the rest."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown, rest = (ranks[:6], f"{len(ranks) - 6} more") if len(ranks) > 8 else (ranks[:-1], str(ranks[-1]))
    return f"ranks {', '.join(map(str, shown))} and {rest}"


def _settle(partial: Path, final: Path) -> str | None:
    """Gives a trace its final name, or says why there is none."""
    if not partial.exists():
        # A run that was killed may have given it its final name already.
        return None if final.exists() else _NO_TRACE
    try:
        content = gzip.decompress(partial.read_bytes())
        try:
            msgspec.json.decode(content, type=_Skeleton)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Only the name of a path that is no UTF-8 may be wrong, which the reader of traces leaves out.
            json.loads(content.decode("utf-8", "replace"))
    except (OSError, EOFError, ValueError) as exc:
        return f"the trace is not whole and was left as {partial.name}: {exc}"
    partial.replace(final)
    return None


def _keep_telemetry(folder: Path, notes: Notes, telemetry: Telemetry | None) -> tuple[Sampling | None, tuple[str, ...]]:
    """Writes the log of the sensors to the folder.

    Returns the way they were read, and warnings about it.
    """
    if telemetry is None or not telemetry.samples:
        return None, () if telemetry is None else telemetry.notes
    try:
        write_samples(folder, telemetry.samples)
    except OSError as exc:
        return None, (*telemetry.notes, f"the log of the sensors could not be written: {exc.strerror}")
    devices = sorted({sample.sensor for sample in telemetry.samples} - {HOST})
    sampling = Sampling(
        period_ms=1e3 * telemetry.period_s,
        samples=len(telemetry.samples),
        cpu_share=telemetry.cpu_share,
        missed_share=telemetry.missed_share,
        sensors=match_sensors(notes.device_facts, os.environ, devices),
    )
    return sampling, telemetry.notes


def _load_warning(ending: Ending) -> tuple[str, ...]:
    """Warns of other programs that ran beside this one.

    Where the sensors did not see the run, the load of the minute before it stands for them.
    """
    others = other_processors(() if ending.telemetry is None else ending.telemetry.samples)
    if others is not None:  # counted on the processors that the program may use
        processors = ending.processors
        said = f"other programs kept {others:.1f} of {counted(processors, 'processor')} busy during the run"
    else:
        others, processors = ending.busy_processors, os.cpu_count() or 1
        said = (
            f"other programs had work for {others:.1f} processors in the minute before, and this machine has "
            f"{processors}"
        )
    least = max(_QUIET_LOAD, _QUIET_SHARE * processors)
    return (f"{said}: step times may be too long",) if others > least else ()


def _perturbation(notes: Notes) -> float | None:
    if notes.profiled is None or notes.unprofiled is None or not notes.unprofiled.median:
        return None
    return notes.profiled.median / notes.unprofiled.median


class SensorReading:
    """Reads the sensors beside a program.

    Every ``period_s`` until ``stop`` collects the readings; never if it is 0.
    """

    def __init__(self, folder: Path, period_s: float) -> None:
        log = SensorLog(lambda: measured_spans(folder))
        self._monitor = Monitor(make_samplers(), period_s, log) if period_s else None
        self._readings: Telemetry | None = None

    def start(self, process: int) -> None:
        """Begins to read beside this process.

        Call it with the signals blocked that the threads must not take.
        """
        if self._monitor is not None:
            self._monitor.start(process)

    def stop(self) -> Telemetry | None:
        """Their readings; from now on they cost nothing."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            self._readings = monitor.stop()
        return self._readings


# A look costs some microseconds.
_PERIOD_S = 0.2
# What a program that was told to stop may take for each of: its own end, its end by SIGTERM.
_GRACE_S = 10.0

Wait = Callable[[threading.Event, float], bool]


class Follower:
    """Calls ``when_measured`` once, in its own thread.

    It sees to it that a program that was told to stop ends. The event that the call gets is set when the program has
    ended. ``wait`` waits for it; tests give their own.
    """

    def __init__(
        self, folder: Path, when_measured: Callable[[threading.Event], None], wait: Wait = threading.Event.wait
    ) -> None:
        self._folder, self._when_measured, self._wait = folder, when_measured, wait
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: set[tuple[int, int]] = set()
        self.is_forced = False

    def start(self, child: Child) -> None:
        """Begins to follow.

        Call it with the signals blocked that the thread must not take.
        """
        self._thread = threading.Thread(target=self._follow, args=(child,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tells that the program has ended, and waits until what was begun is done."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, child: Child) -> None:
        is_measured = False
        while not self._wait(self._ended, _PERIOD_S):
            if not self._has_changed():
                continue
            notes = read_all_notes(self._folder).values()
            if any(rank_notes.stopped for rank_notes in notes):
                self._end(child)
                return
            if not is_measured and notes and all(rank_notes.is_measured for rank_notes in notes):
                is_measured = True
                self._when_measured(self._ended)

    def _has_changed(self) -> bool:
        """True if there are new notes since the last look."""
        try:
            states = [path.stat() for path in self._folder.glob(NOTES_FILES)]
        except OSError:  # replaced or removed at this moment
            return False
        # New notes are a new file.
        seen, self._seen = self._seen, {(state.st_ino, state.st_mtime_ns) for state in states}
        return self._seen != seen

    def _end(self, child: Child) -> None:
        """Ends the program if it does not do so itself.

        Some threads and hooks hold it back.
        """
        for number, to_group in ((signal.SIGTERM, False), (signal.SIGKILL, True)):
            if self._wait(self._ended, _GRACE_S):
                return
            self.is_forced = True
            child.send(number, to_group=to_group)
