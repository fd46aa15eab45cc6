"""Records a program once in a process of its own.

It is the one way by which verify, sweep, compare and the gate record.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bottleneck.errors import WorkloadError
from bottleneck.experiment.side import Side
from bottleneck.harness.finish import Ending, SensorReading, finish_recording, read_all_notes
from bottleneck.harness.folder import RankFiles
from bottleneck.harness.machine import available_bytes, busy_processors, count_memory_kills
from bottleneck.harness.messages import TIMED_SECONDS, Notes, Plan, Program, RecordOptions
from bottleneck.harness.supervise import MemoryKills, QuietRun, child_command, describe_end, run_quietly
from bottleneck.pipeline import examine, explain, finish
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.gate_result import TimeResult
from bottleneck.schema.measurements import Timing
from bottleneck.schema.recording import Recording, kept_environment
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces

LOG_FILE = "stderr.txt"
_RECORD_CHANGED = "bottleneck.experiment.child_entry:record_changed"

# The period of the sensors where they are read, as for `bottleneck run`.
TELEMETRY_S = 0.02

_LONGEST_REASON = 200
_TRACEBACK = "Traceback (most recent call last):"


class ProgramFailed(Exception):  # noqa: N818 - an outcome that each caller describes in its own words
    """A program that failed or did not leave what was required.

    ``stderr`` is the last that it wrote there.
    """

    def __init__(self, reason: str, status: int, stderr: str) -> None:
        super().__init__(reason)
        self.reason, self.status, self.stderr = reason, status, stderr


class Ceilings:
    """State of this machine before anything ran, and its ceilings.

    All recordings of one command share the ceilings.

    ``calibrate`` gives the calibration for the device of these notes; null where there is none. One per number of
    threads is kept, so that a curve does not mix two measurements.
    """

    def __init__(self, calibrate: Callable[[Notes], Any]) -> None:
        self._calibrate = calibrate
        self._known: dict[int | None, Any] = {}
        # Read once: the load of a minute ago would later be that of our own recordings.
        self.busy_processors = busy_processors()
        self.free_bytes = available_bytes()

    def of(self, notes: Notes) -> Any:
        """The calibration for what these notes were measured on."""
        if notes.device_facts:
            return self._calibrate(notes)
        if notes.threads not in self._known:
            self._known[notes.threads] = self._calibrate(notes)
        return self._known[notes.threads]


@dataclass(frozen=True)
class Recorder:
    """Recorder of programs with a folder and environment of their own.

    They start in ``directory`` (null: where we are) with the variables of ``environment``.

    Without ``ceilings`` recordings have none. ``telemetry_s`` is the period of the sensors; 0 for none.
    """

    environment: Mapping[str, str]
    directory: Path | None = None
    ceilings: Ceilings | None = None
    telemetry_s: float = 0.0

    def record(
        self,
        program: Program,
        folder: Path,
        options: RecordOptions,
        requires: Literal["end", "times", "trace"] = "end",
    ) -> tuple[Recording, Notes]:
        """Records a program in ``folder``, and returns its first notes too.

        The notes are those of the first rank. A script ends once it is measured.

        ProgramFailed where the program fails, or leaves no unprofiled step times or no trace although one is required.
        What it prints goes into a log beside its recording.
        """
        plan = Plan(str(folder), program, replace(options, stop=program.form == "script"))
        kills = MemoryKills(count_memory_kills())
        entry = (_RECORD_CHANGED,) if options.changes else ()
        sampling = SensorReading(folder, self.telemetry_s)
        try:
            command = child_command(plan, *entry)
            ran = run_quietly(command, folder / LOG_FILE, self.environment, self.directory, sampling.start)
        finally:
            telemetry = sampling.stop()
        notes, has_trace = read_all_notes(folder), RankFiles(folder, 0).partial.exists()
        is_missing = {"end": False, "times": notes[0].unprofiled is None, "trace": not has_trace}[requires]
        if ran.end.status or is_missing:
            raise ProgramFailed(why_it_failed(ran, kills.since()), ran.end.status, ran.stderr)
        ending = Ending(
            0,
            0.0 if self.ceilings is None else self.ceilings.busy_processors,
            telemetry,
            environment=kept_environment(self.environment),
        )
        calibration = self.ceilings.of(notes[0]) if self.ceilings is not None and has_trace else None
        return finish_recording(plan, notes, ending, calibration), notes[0]


def record_side(
    program: Program, folder: Path, side: Side, ceilings: Ceilings | None = None, unprofiled: Timing | None = None
) -> Explanation:
    """Records and explains a program that runs in the side's folder.

    Its target is named from that folder. Its steps are timed without the profiler first, and judged by the ceilings,
    which all sides share (null for none). With ``unprofiled`` the ledger adds up to that step instead, which was timed
    more carefully. WorkloadError, with what it wrote last, where it fails or makes no trace.
    """
    seconds = TIMED_SECONDS if unprofiled is None else TIMED_SECONDS / 4
    options = RecordOptions(shapes=True, stacks=True, batch_test=False, option_costs=False, timed_s=seconds)
    recorder = Recorder({**os.environ, **side.variables}, side.folder, ceilings)
    try:
        recorder.record(program, folder, options, "trace")
    except ProgramFailed as failed:
        raise WorkloadError(
            f"{program.target} could not be recorded at {side.label}",
            why=failed.reason,
            fix=f"see that it runs there: bottleneck run {program.target}",
        ) from None
    if unprofiled is None:
        return explain([folder])
    return finish(examine(replace(find_traces(folder)[0], unprofiled=unprofiled)))


def record_as_timed(
    program: Program,
    folder: Path,
    sides: tuple[Side, Side],
    timed: TimeResult,
    ceilings: Ceilings | None = None,
) -> tuple[Explanation, Explanation] | None:
    """Records both sides, whose steps were timed in turns.

    Their ledgers add up to those steps.

    Null where none were timed. WorkloadError where a side fails or makes no trace.
    """
    steps = (timed.base_us, timed.candidate_us)
    cases = []
    for name, side, step in zip(("base", "changed"), sides, steps, strict=True):
        if step is None:
            return None
        inner = folder / name
        inner.mkdir(parents=True, exist_ok=True)
        cases.append(record_side(program, inner.resolve(), side, ceilings, step))
    return cases[0], cases[1]


def why_it_failed(ran: QuietRun, memory_kills: int | None) -> str:
    """Gives the reason in one line why there are no figures.

    It is what the program raised, else how it ended.
    """
    if ran.end.signal is not None:
        return describe_end(ran.end, None, memory_kills)
    line = _last_line(ran.stderr)
    if not line:
        return describe_end(ran.end, None, memory_kills) + ", and nothing was measured"
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


def _last_line(stderr: str) -> str:
    """Returns the first line of the last traceback that is not indented.

    Without a traceback it is the last line of all.
    """
    before, traceback, after = stderr.rpartition(_TRACEBACK)
    lines = [line.rstrip() for line in (after if traceback else before + after).splitlines() if line.strip()]
    if traceback:
        return next((line for line in lines if not line[0].isspace()), lines[-1].strip() if lines else "")
    return lines[-1].strip() if lines else ""
