"""Finishes a recording and reports on it.

It does so after the program's end, while the program goes on, or after a run was killed.
"""

import contextlib
import importlib
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from bottleneck.errors import BottleneckError, TraceError, UsageError
from bottleneck.report.output import draw_or_warn, draw_picture, marked, write_note, write_status, write_text
from bottleneck.system.child_process import work_in_fork
from bottleneck.system.interrupts import Interrupted, held_back
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.calibrate.calibration import Calibration
    from bottleneck.harness.finish import Ending, Follower, SensorReading
    from bottleneck.harness.folder import FolderClaim, RunState
    from bottleneck.harness.messages import Notes, Plan
    from bottleneck.schema.analysis import Analysis, Finding
    from bottleneck.schema.evidence import Explanation
    from bottleneck.schema.recording import Recording
    from bottleneck.schema.start_up import StartLedger
    from bottleneck.system.child_process import End

    Render = Callable[[Analysis, TextIO], str]

# Below this much free space nothing worth mentioning can be written.
_FULL_BYTES = 2**20


@dataclass(frozen=True)
class FinishResult:
    """Success of recording and report; ``is_finished`` once the recording is written.

    ``headline`` is the verdict in a few words, null where nothing was reported.
    """

    succeeded: bool
    is_finished: bool = True
    is_worth_keeping: bool = True
    headline: str | None = None


@dataclass(frozen=True)
class ReportSettings:
    """Settings of a report: output, ceilings and form.

    ``ceilings`` gives those of this CPU for a number of threads. ``render`` is null for the terminal report on one
    screen. ``failure`` says how the program ended, if not as it should. Pieces of the step are timed alone for
    ``probe_budget_s`` at most. With ``is_early`` the verdict alone is wanted: the program goes on.
    """

    say: Callable[[str], None]
    ceilings: Callable[[int | None], "Calibration | None"]
    render: "Render | None" = None
    failure: str | None = None
    probe_budget_s: float = 0.0
    is_early: bool = False

    def note(self, *lines: str) -> None:
        """Says lines of ours, if there are any, marked as such."""
        if lines:
            self.say(marked("\n".join(lines)))


def finish_and_report(plan: "Plan", ending: "Ending", settings: ReportSettings) -> FinishResult:
    """Finishes the recording and reports.

    A failure of ours is stated and leaves the program's status alone. The last line says how the program failed, if it
    did.
    """
    result = _report_on(Path(plan.folder), ending, settings, lambda: finish(plan, ending, settings))
    if settings.failure is not None:
        if not result.is_worth_keeping and ending.telemetry is not None and ending.telemetry.notes:
            # The sensors have something to say even where the program left nothing.
            settings.note("recorded nothing", *ending.telemetry.notes)
        _say_failure(settings, result, Path(plan.folder))
    return result


def _say_failure(settings: ReportSettings, result: FinishResult, folder: Path) -> None:
    say_memory(folder, settings.note)
    if not result.is_worth_keeping:
        settings.note(f"recorded nothing: {settings.failure}")
    elif result.headline is not None:
        settings.note(f"{settings.failure}; the report is of what it did until then")
    else:
        settings.note(f"{settings.failure}; what was recorded is in {shown(folder)}")


def say_memory(folder: Path, note: Callable[[str], object]) -> None:
    """Tells of the memory of ranks that ran out of it."""
    from bottleneck.analysis.held_memory import explain_snapshot
    from bottleneck.harness.memory_error import snapshots_beside
    from bottleneck.report.held_memory import held_in_brief
    from bottleneck.trace.allocator_snapshot import read_allocator_snapshot

    for path in snapshots_beside(folder):
        try:
            held = explain_snapshot(read_allocator_snapshot(path))
        except BottleneckError as error:
            note(f"what held the memory is in {shown(path)}, which cannot be read: {error.what}")
            continue
        for sentence in held_in_brief(held):
            note(sentence)
        note(f"all that held the memory: bottleneck report {shown(path)}")


def _report_on(
    folder: Path, ending: "Ending", settings: ReportSettings, obtain: "Callable[[], Recording]"
) -> FinishResult:
    """Reports on the recording that ``obtain`` finishes or reads."""
    result = FinishResult(succeeded=False, is_finished=False)
    try:
        recording = obtain()
        # Worth keeping is a trace, if only a damaged one, or step times.
        is_worth_keeping = bool(recording.traces or recording.unprofiled or any(folder.glob(".partial.*")))
        result = FinishResult(succeeded=False, is_worth_keeping=is_worth_keeping)
        if settings.failure is not None and not result.is_worth_keeping:
            return result  # the program's own words and how it ended say all there is
        settings.note(_summary(folder, recording, result))
        notes = [warning for warning in recording.warnings if warning not in ending.remarks]
        settings.note(*notes)  # the last lines of the report are the answer, and nothing follows them
        if not recording.traces:
            _say_start_up(recording.start_up, settings, recording.source_texts)
            return result
        headline = _report(folder, settings)
        result = replace(result, headline=headline)
    except Interrupted:
        settings.note(f"interrupted; for the report: bottleneck report --repair {shown(folder)}")
    except BottleneckError as error:
        settings.say("\n".join(error.lines()))
    except FileNotFoundError as error:
        settings.say(f"error: the recording could not be finished: {error.filename} is gone")
        settings.say("  fix: name a folder that the program leaves alone with -o DIR")
    except OSError as error:
        settings.say(f"error: the recording could not be finished: {error.strerror or error}")
        settings.say(f"  why: {_cause(folder)}")
        settings.say(f"  fix: make room, then finish and explain it with: bottleneck report --repair {shown(folder)}")
    except Exception:  # the program has run; a bug of ours must not take its exit status away
        _say_that_we_failed(folder, settings)
    else:
        return replace(result, succeeded=True)
    return result


def add_ending(folder: Path, ending: "Ending") -> None:
    """Adds how the program ended to a recording that was reported on before."""
    from bottleneck.harness.finish import close_recording

    try:
        with held_back():
            close_recording(folder, ending)
    except (OSError, BottleneckError) as error:
        say(f"error: how the program ended could not be added to the recording: {error}")


def _cause(folder: Path) -> str:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return "the folder does not answer"
    if free < _FULL_BYTES:
        return "the disk is full"
    return f"the disk has {free / 1e9:.2g} GB free, so a quota or a limit stands in the way"


def _say_that_we_failed(folder: Path, settings: ReportSettings) -> None:
    """Reports the exception at hand.

    Its traceback goes to a file, or to stderr if the program removed the folder.
    """
    settings.say("error: bottleneck itself failed; what was recorded is kept")
    crash = folder / "bottleneck-crash.txt"
    try:
        crash.write_text(traceback.format_exc(), encoding="utf-8")
        settings.say(f"  fix: please report it with the file {crash}")
    except OSError:
        settings.say(traceback.format_exc())


def finish(plan: "Plan", ending: "Ending", settings: ReportSettings) -> "Recording":
    """Writes the recording to its folder and returns it.

    It has the ceilings of this CPU where they are needed.
    """
    from bottleneck.calibrate.cache import gpu_calibration
    from bottleneck.harness.finish import finish_recording, read_all_notes

    notes = read_all_notes(Path(plan.folder))
    needing = needing_ceilings(Path(plan.folder), notes)
    calibration = None
    try:
        if needing:
            calibration = settings.ceilings(needing[0].threads)
        else:  # those of the GPUs that the program saw, where `bottleneck calibrate` has measured them
            calibration = gpu_calibration(
                next((rank_notes.device_facts for rank_notes in notes.values() if rank_notes.device_facts), ())
            )
    finally:
        # Also for a user who does not wait for the ceilings.
        with held_back():
            recording = finish_recording(plan, notes, ending, calibration)
    return recording


def needing_ceilings(folder: Path, notes: "Mapping[int, Notes]") -> "Sequence[Notes]":
    """The notes of ranks that were traced on the CPU."""
    from bottleneck.harness.folder import RankFiles

    return [
        rank_notes
        for rank, rank_notes in notes.items()
        if RankFiles(folder, rank).partial.exists() and not rank_notes.device_facts
    ]


def _report(folder: Path, settings: ReportSettings) -> str:
    """Writes the report and what belongs to it, and returns the headline."""
    from bottleneck.pipeline import explain

    explained = _with_pieces(explain([from_here(folder)]), folder, settings)
    if not settings.is_early:
        _write_files(explained, folder, settings)
    return _short_verdict(explained.analysis)


def _short_verdict(analysis: "Analysis") -> str:
    from bottleneck.report.analysis_document import headline

    verdict = analysis.verdict
    is_of_none = verdict.bound in {"mixed", "inconclusive"}  # a share of no bound says nothing
    return headline(verdict).upper() + ("" if is_of_none else f" ({verdict.share_words})")


def _write_files(explained: "Explanation", folder: Path, settings: ReportSettings) -> None:
    """Writes analysis, page and picture into the folder, then says the report."""
    from bottleneck.pipeline import timeline_of
    from bottleneck.report import render_report
    from bottleneck.report.page import to_html
    from bottleneck.report.screen import report_text

    analysis = explained.analysis
    page, picture, problem = folder / "report.html", folder / "roofline.png", None
    try:
        write_text(render_report(analysis, "json"), folder / "analysis.json")
    except UsageError as error:  # a disk may be full: what the user waits for comes all the same
        again = f"bottleneck report {shown(folder)} --format json -o FILE"
        problem = UsageError(error.what, why=error.why, fix=f"the recording is whole; make room, then: {again}")
    else:
        warnings = _begin_picture(picture, analysis)
        if draw_or_warn(
            lambda: write_text(to_html(analysis, timeline_of(explained, [from_here(folder)])), page),
            page,
            settings.say,
        ):
            settings.note(f"the page for a browser: {shown(page)}")
        for warning in warnings().splitlines():
            settings.say(warning)
    _say_start_up(analysis.start_up, settings, analysis.source_texts, analysis.findings)
    settings.say((settings.render or report_text)(analysis, sys.stderr).rstrip("\n"))
    if problem is not None:
        raise problem


def _begin_picture(path: Path, analysis: "Analysis") -> Callable[[], str]:
    """Begins to draw the roofline, and returns the wait for its warnings.

    It takes as long as the page, and the user waits for both.
    """
    for name in _REPORTING:  # the thread that loads them could leave a lock in the fork
        with contextlib.suppress(Exception):  # what is missing will be a warning
            importlib.import_module(name)
    return work_in_fork(lambda say: draw_picture("roofline", path, analysis, warn=say))


def _say_start_up(
    start: "StartLedger | None", settings: ReportSettings, texts: Mapping[str, str], found: "Sequence[Finding]" = ()
) -> None:
    """Says the table of the start, where it was asked for."""
    if start is not None and start.is_sampled:
        from bottleneck.report.start_up import start_up_text

        settings.say(start_up_text(start, sys.stderr, texts, found).rstrip("\n"))


def _with_pieces(explained: "Explanation", folder: Path, settings: ReportSettings) -> "Explanation":
    """Adds the pieces of the step to the explanation.

    They are timed now, where there is time for any.
    """
    if settings.probe_budget_s <= 0 or settings.failure is not None:
        return explained
    from bottleneck.experiment.pieces.measure import PieceBudget, measure_pieces

    return measure_pieces(explained, folder, PieceBudget(settings.probe_budget_s), settings.note)


def _summary(folder: Path, recording: "Recording", result: FinishResult) -> str:
    from bottleneck.schema.measurements import tell_step
    from bottleneck.schema.start_up import tell_start_up

    where = f" in {shown(folder)}" if result.is_worth_keeping else ""
    lines = [f"recorded {describe_steps(recording)}{where}"]
    if recording.step_name is not None and recording.steps_seen is not None:
        lines.append(tell_step(recording.step_name, recording.steps_seen))
    if recording.start_up is not None:
        lines.append(tell_start_up(recording.start_up))
    return "\n".join(lines)


def shown(folder: Path) -> str:
    """The folder as seen from here, in one line."""
    from bottleneck.report.text import clean

    return clean(str(from_here(folder)))


def from_here(folder: Path) -> Path:
    """Returns the folder relative to the working folder, if it lies below.

    Else, and where that does not exist any more, as it is.
    """
    try:
        return folder.relative_to(Path.cwd())
    except (ValueError, OSError):
        return folder


def describe_steps(recording: "Recording") -> str:
    """Words the steps of a recording: '5 steps'.

    With the ranks where there are several; 'a trace' where nobody looked for steps, 'no trace' or 'nothing' where no
    step was traced.
    """
    if not recording.traces:
        return "no trace" if recording.unprofiled else "nothing"
    if recording.step_source == "none":
        return "a trace"
    count = max(0, len(recording.traces[0].step_marks_ns) - 1)
    steps, ranks = counted(count, "step"), len(recording.traces)
    return f"{steps} of {ranks} ranks" if ranks > 1 else steps


def note(text: str) -> None:
    """Writes lines of ours for the user, marked as such."""
    write_note(text)


def say(text: str) -> None:
    """Writes a line for the user, after all that the program wrote itself."""
    write_status(text)


# What a long program may wait for pieces of its step: a share of its own time, unless that is too short to start the
# process that times them.
_PROBE_SHARE, _LEAST_PROBE_S, _MOST_PROBE_S = 0.05, 3.0, 10.0


def usual_probe_budget_s(program_s: float) -> float:
    """Gives the seconds for pieces of a step where none are asked for.

    ``program_s`` are those that the program took.
    """
    budget_s = min(_PROBE_SHARE * program_s, _MOST_PROBE_S)
    return budget_s if budget_s >= _LEAST_PROBE_S else 0.0


def load_reporting() -> None:
    """Imports what the report takes while the program starts.

    It does so in a thread. That takes a second of processor time, for which the user would wait after the program's
    end; the program imports torch meanwhile, which takes as long. The thread has the priority of the others: it holds
    Python's lock and those of its imports, for which they would wait until nobody else wants the processors.
    """

    def load() -> None:
        with contextlib.suppress(Exception):  # the report will say what is missing
            for name in _REPORTING:
                importlib.import_module(name)

    threading.Thread(target=load, daemon=True).start()


# How long a program goes on after its measurement until the verdict is told before its end. That takes as long as the
# report, on processors that the program wants, and is done again at its end.
EARLY_AFTER_S = 20.0
_REPORTING = ("bottleneck.pipeline", "bottleneck.report.page", "bottleneck.report.screen", "bottleneck.report.plots")

_FORCED = "the program had to be killed: it did not end within ten seconds of being told to stop"


@dataclass
class Reporter:
    """Reports once, early if it can.

    ``result`` is null as long as there is no report. ``ending`` is what is known of the run before its end. ``early``
    is what was found out before it, and is told then. Without ``probe_budget_s`` pieces of the step are timed after a
    long program only. ``began_s`` is when the run began, by a clock that only runs forward.
    """

    plan: "Plan"
    ending: "Ending"
    sampling: "SensorReading"
    result: FinishResult | None = None
    render: "Render | None" = None
    is_quiet: bool = False
    probe_budget_s: float | None = None
    early: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def report_early(self, ended: threading.Event) -> None:
        """Finishes the recording early, from the thread that follows the program.

        It does so if the program goes on when all is measured. One line says what came of it: a report would stand
        between the program's own output, or at its prompt. Where something is missing that needs the end of the
        program, the line says when the report comes.
        """
        from bottleneck.analysis.telemetry import MARGIN_NS

        # Sensors are read for as long as the report wants to see them. A program that is to stop will do so soon, and
        # one that ends before would wait for a report that is made again then.
        if self.plan.options.stop or ended.wait(max(MARGIN_NS / 1e9, EARLY_AFTER_S)):
            return
        telemetry = self.sampling.stop()
        if not self._has_to_wait():
            settings = ReportSettings(self.early.append, known_ceilings, self.render, is_early=True)
            self.result = finish_and_report(self.plan, replace(self.ending, telemetry=telemetry), settings)
        if not self.is_quiet and not _is_taken_over():
            headline = self.result.headline if self.result is not None else None
            text = marked(f"measured{f': {headline}' if headline else ''}; full report at the program's end")
            # All at once, beginning a line where the program may have left one open.
            say(f"\n{text}" if sys.stderr.isatty() else text)

    def conclude(self, follower: "Follower", end: "End", memory_kills: int | None) -> FinishResult:
        """Says how the program ended, and all that was not said before."""
        from bottleneck.harness.finish import is_whole, steps_before_the_end
        from bottleneck.harness.supervise import describe_end

        folder = Path(self.plan.folder)
        try:
            follower.stop()
            words = _FORCED if follower.is_forced else describe_end(end, steps_before_the_end(folder), memory_kills)
            if end.status != 0 and not follower.is_forced and is_whole(folder):
                words = f"{words}; that was after its work, so the recording is whole"
            remarks = (words,) if follower.is_forced or end.signal is not None else ()
            ending = replace(
                self.ending,
                status=0 if follower.is_forced else end.status,
                telemetry=self.sampling.stop(),
                remarks=remarks,
            )
        except Interrupted:
            write_note(f"interrupted; for the report: bottleneck report --repair {shown(folder)}")
            return FinishResult(succeeded=False, is_finished=False)
        failure = words if ending.status != 0 or remarks else None
        ceilings = partial(measured_ceilings, is_quiet=self.is_quiet)
        budget_s = self.probe_budget_s
        if budget_s is None:
            budget_s = usual_probe_budget_s(time.monotonic() - self.began_s)
        settings = ReportSettings(say, ceilings, self.render, failure, budget_s)
        if self.result is None:
            return finish_and_report(self.plan, ending, settings)
        add_ending(folder, ending)
        result = self.result
        if result.succeeded:
            from bottleneck.schema.recording import read_recording

            # What the run does besides its steps is known only now.
            result = _report_on(folder, ending, settings, lambda: read_recording(folder))
        else:
            say("\n".join(self.early))
        if failure is not None:
            _say_failure(settings, result, folder)
        return result

    def _has_to_wait(self) -> bool:
        """True if this CPU's ceilings have to be measured first.

        That takes a quiet machine.
        """
        from bottleneck.harness.finish import read_all_notes

        folder = Path(self.plan.folder)
        on_cpu = needing_ceilings(folder, read_all_notes(folder))
        return bool(on_cpu) and known_ceilings(on_cpu[0].threads) is None


def known_ceilings(threads: int | None) -> "Calibration | None":
    """Returns the kept ceilings of this CPU.

    Measuring them now would disturb the program, and it them.
    """
    from bottleneck.calibrate.cache import read_calibration

    return read_calibration(threads)


def measured_ceilings(threads: int | None, *, is_quiet: bool = False) -> "Calibration | None":
    """Returns the ceilings of this CPU, measured now if need be.

    That is announced unless ``is_quiet``.
    """
    from bottleneck.calibrate.cache import cpu_calibration

    return cpu_calibration(threads, write_note, is_quiet=is_quiet)


def _is_taken_over() -> bool:
    """True if stderr is a terminal that a full-screen program draws on.

    What we write would spoil its picture.
    """
    try:
        import termios
    except ImportError:  # not on every system
        return False
    try:
        if not os.isatty(2):
            return False
        output_flags, local_flags = termios.tcgetattr(2)[1], termios.tcgetattr(2)[3]
    except termios.error:
        return False
    return not (output_flags & termios.OPOST and local_flags & termios.ICANON)


_CUT_OFF = "the run was cut off before it had finished this recording: what the sensors said is lost"
# What a program whose supervisor was killed may take to save what it recorded.
_SAVING_S, _LOOK_S = 15.0, 0.1


def repair(folder: Path, wait: Callable[[float], None] = time.sleep) -> None:
    """Finishes what a killed run left in this folder.

    There is nothing to do in any other folder, or while the run still lasts. Raises TraceError while the program is
    still being recorded, or if the folder cannot be written to.
    """
    from bottleneck.harness.folder import CLAIM_FILE, claim
    from bottleneck.schema.recording import is_recording

    if not (folder / CLAIM_FILE).is_file() or (folder / CLAIM_FILE).is_symlink():
        return
    try:
        ours = claim(folder)
        if ours is not None:
            _finish_claimed(ours, folder, wait)
    except OSError as exc:
        raise TraceError(
            f"the recording in {shown(folder)} was cut off and cannot be finished",
            why=exc.strerror or str(exc),
            fix="make the folder writable, or room on its disk, and try again",
        ) from exc
    if ours is None and not is_recording(folder):
        raise still_recorded(folder)


def finish_windows(folder: Path) -> None:
    """Finishes the recordings of windows that a watched run has closed.

    OSError where they cannot be written.
    """
    from bottleneck.harness.finish import Ending, read_all_notes, remove_notes
    from bottleneck.harness.folder import CLAIM_FILE, claim, read_run_state
    from bottleneck.schema.watch_log import WINDOWS_FOLDER

    for mark in sorted(folder.glob(f"{WINDOWS_FOLDER}/*/{CLAIM_FILE}")):
        window, is_finished = mark.parent, False
        state = read_run_state(window)
        if state is None or not all(notes.is_complete for notes in read_all_notes(window).values()):
            continue
        ours = claim(window)
        if ours is None:
            continue
        try:
            ending = Ending(None, state.busy_processors, environment=state.environment)
            finish(state.plan, ending, ReportSettings(say, known_ceilings))
            remove_notes(window)
            is_finished = True
        finally:
            ours.release(is_finished=is_finished)


def still_recorded(folder: Path) -> TraceError:
    """The error of a recording that a run is still writing."""
    return TraceError(
        f"{shown(folder)} is still being recorded",
        why="the report comes when everything is measured",
        fix="wait for it; `bottleneck run --steps 1` measures the least",
    )


def _finish_claimed(ours: "FolderClaim", folder: Path, wait: Callable[[float], None]) -> None:
    from bottleneck.harness.folder import read_run_state

    is_finished = False
    try:
        state = read_run_state(folder)
        if state is not None:
            _wait_for_end(state, folder, wait)
            _settle(state, folder, wait)
        is_finished = True
    finally:
        ours.release(is_finished=is_finished)


def _settle(state: "RunState", folder: Path, wait: Callable[[float], None]) -> None:
    from bottleneck.harness.finish import Ending, remove_notes
    from bottleneck.schema.recording import is_recording

    if not is_recording(folder):
        write_note(f"the run that recorded {shown(folder)} was cut off; finishing its recording")
        _take_left_trace(state, folder, wait)
        ending = Ending(state.status, state.busy_processors, remarks=(_CUT_OFF,), environment=state.environment)
        here = ending.versions["cpu"]
        ending = replace(
            ending, versions=state.versions or ending.versions, processors=state.processors or ending.processors
        )
        is_here = ending.versions.get("cpu", here) == here
        finish(state.plan, ending, ReportSettings(say, measured_ceilings if is_here else lambda _: None))
    remove_notes(folder)


def _take_left_trace(state: "RunState", folder: Path, wait: Callable[[float], None]) -> None:
    """Takes the trace that Kineto wrote for a killed `attach`.

    Waits a while where the process was asked and may write it yet.
    """
    from bottleneck.harness.folder import RankFiles
    from bottleneck.harness.kineto_daemon import keep_left_trace, left_traces, uses_daemon

    if RankFiles(folder, 0).notes.exists():
        return
    for _ in range(int(_SAVING_S / _LOOK_S)):
        if left_traces(folder) or state.process is None or not uses_daemon(state.process):
            break
        wait(_LOOK_S)
    keep_left_trace(state.plan)


def _wait_for_end(state: "RunState", folder: Path, wait: Callable[[float], None]) -> None:
    """Waits a while for the end of a program whose supervisor was killed.

    The system ends it then.
    """
    for _ in range(int(_SAVING_S / _LOOK_S)):
        if state.process is None or not _is_ours(state.process, folder):
            return
        wait(_LOOK_S)


def _is_ours(process: int, folder: Path) -> bool:
    """True if the process runs and has the folder in its plan.

    Its number may have become another's.
    """
    try:
        return str(folder.absolute()).encode() in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
