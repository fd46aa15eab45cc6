"""Records one block of a program: ``with bottleneck.record(folder):``.

It records what `bottleneck run` does. The program's process is the only one: no sensor is read beside the block, since
a thread that reads them would take the interpreter from the program, and ceilings are not measured, since that takes
seconds.
"""

import os
import shlex
import sys
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from bottleneck.errors import BottleneckError, UsageError
from bottleneck.harness.main_thread import make_wakeable

if TYPE_CHECKING:
    from bottleneck.harness.block import BlockMeasurement
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.folder import RecordingFolder
    from bottleneck.harness.messages import Plan, RecordOptions
    from bottleneck.schema.analysis import Analysis
    from bottleneck.schema.recording import Recording

# A block may run in a thread for which the main thread waits. Python allows handlers in the main thread only, where
# this module is imported as a rule, so the handler that interrupts such a wait is installed now.
make_wakeable()


def record(  # noqa: PLR0913 - each is a choice of its own
    folder: "str | os.PathLike[str]",
    *,
    steps: int | None = None,
    warmup: int | None = None,
    step: str | None = None,
    rank: tuple[int, int] | None = None,
    force: bool = False,
    quiet: bool = False,
) -> "RecordedBlock":
    """Records the loop inside a block into a folder.

    `bottleneck report FOLDER` explains it.

    Steps end where the loop calls ``bottleneck.step()``, else at each step of the optimizer, call of the outermost
    module or batch of the loader; ``step`` names one of these, or a class. Steps pass until their times settle, or
    ``warmup`` of them; some are timed, then ``steps`` (5) are profiled: 30 to 80 in all. A shorter loop gives what
    there is, down to one step, a longer one goes on at full speed.

    ``rank`` is that of this process and their number, as in (0, 2), where no launcher tells them; all of them record
    then. With (0, 1) this process records alone.

    Where the folder holds something, the recording goes to the next of FOLDER-2, FOLDER-3, … that does not, and a line
    at the end says so; ``force`` replaces an earlier recording instead. ``quiet`` writes nothing to stderr. UsageError
    if the arguments make no sense, the folder cannot be made, or another block is being recorded. What fails later is
    said at the end, and stands in ``warnings``.
    """
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise in_code(
                UsageError(f"{name}={value!r} is no number of steps", fix=f"pass a whole number from {least}")
            )
    from bottleneck.harness.messages import RecordOptions, rank_of

    options = RecordOptions(steps=steps, warmup=warmup, step=step)
    return RecordedBlock(Path(folder), options, rank or rank_of(os.environ), force=force, quiet=quiet)


@dataclass(frozen=True)
class _OpenBlock:
    """The objects that are held while the block runs."""

    folder: "RecordingFolder"
    plan: "Plan"
    block: "BlockMeasurement"


class RecordedBlock:
    """Context of a block.

    It has its ``folder`` from its beginning on, and after it the ``warnings`` of the recording.
    """

    def __init__(
        self, folder: Path, options: "RecordOptions", rank: tuple[int, int], *, force: bool, quiet: bool
    ) -> None:
        self.folder = self._wanted = folder
        self.warnings: tuple[str, ...] = ()
        self._options, self._rank, self._force, self._quiet = options, rank, force, quiet
        self._work: _OpenBlock | None = None

    @property
    def is_measured(self) -> bool:
        """True once nothing more will be measured: the block may end."""
        return self._work is not None and self._work.block.is_measured

    def report(self) -> str:
        """Returns the report of `bottleneck report` on the folder, as text.

        It is there to print in a notebook, once the block has ended.
        """
        from bottleneck.report import render_report

        return render_report(self.analysis(), "terminal")

    def analysis(self) -> "Analysis":
        """The analysis of the folder, once the block has ended."""
        from bottleneck.pipeline import analyse

        return analyse([self.folder])

    def _repr_html_(self) -> str | None:
        """Returns the first screen of the page, as notebooks show a cell's value.

        Null while there is no result.
        """
        from bottleneck.report.page import first_screen

        try:
            return None if self._work is not None else first_screen(self.analysis())
        except BottleneckError:
            return None

    def __enter__(self) -> "RecordedBlock":
        from bottleneck.harness import marks

        if marks.supervisor is not None:
            marks.supervisor()
            return self
        from bottleneck.harness.block import TURN

        try:
            TURN.take(self._leave)
            try:
                self._work = self._begin()
            except BaseException:
                TURN.give_back()
                raise
        except UsageError as error:
            raise in_code(error) from error.__cause__
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from bottleneck.harness.block import TURN

        work, self._work = self._work, None
        if work is None:  # left to `bottleneck run`, or this is a fork
            return
        try:
            self._finish(work, error)
        except Exception as exc:  # ours; what the block did or raised matters more
            self._admit(exc)
        finally:
            work.folder.release(is_finished=False)
            TURN.give_back()

    def _begin(self) -> _OpenBlock:
        from bottleneck.harness.block import BlockMeasurement, setting_of_block
        from bottleneck.harness.folder import RunState
        from bottleneck.harness.messages import Plan, Program

        self.folder, place = make_place(self._wanted, self._rank, force=self._force)
        target, *arguments = sys.argv or [""]
        program = Program(target, tuple(arguments), "script", seed=None)
        plan = Plan(str(place.folder), program, self._options)
        try:
            work = _OpenBlock(place, plan, BlockMeasurement(plan, setting_of_block(self._rank)))
            ending = _ending(())
            state = RunState(plan, ending.environment, ending.busy_processors, os.getpid())
            place.note(replace(state, versions=ending.versions, processors=ending.processors))
            work.block.start()
        except BaseException:
            place.discard()
            raise
        return work

    def _finish(self, work: _OpenBlock, error: BaseException | None) -> None:
        from bottleneck.harness.finish import remove_notes

        work.block.finish()
        self.warnings = work.block.warnings
        recording = _complete(work, error, is_alone=self._rank[1] == 1)
        if recording is None:  # other ranks are still at work; the last of them finishes it
            return
        self.warnings = recording.warnings
        remove_notes(Path(work.plan.folder))
        work.folder.release()
        self._say(_summary(self._wanted, self.folder, recording))

    def _leave(self) -> None:
        """In a fork: the block goes on there, unmeasured."""
        work, self._work = self._work, None
        if work is not None:
            work.block.leave()
            work.folder.abandon()

    def _admit(self, exc: Exception) -> None:
        """States that we failed, and what helps.

        The folder keeps what there is, and the mark that it is unfinished.
        """
        what = exc.what if isinstance(exc, BottleneckError) else f"{type(exc).__name__}: {exc}"
        problem = f"the recording in {self.folder} could not be finished: {what}"
        self.warnings = (*self.warnings, problem)
        again = f"bottleneck report --repair {shlex.quote(str(self.folder))}"
        self._say(f"{problem}\nto try again: {again}")

    def _say(self, text: str) -> None:
        from bottleneck.report.output import write_note

        if not self._quiet:
            write_note(text)


def in_code(error: UsageError) -> UsageError:
    """Returns the same error with a remedy that can be written in code.

    Its traceback shows the reason and that remedy.
    """
    in_code = UsageError(error.what, why=error.why, fix=error.fix_in_code)
    for label, text in (("why", in_code.why), ("fix", in_code.fix)):
        if text:
            in_code.add_note(f"  {label}: {text}")
    return in_code


def make_place(wanted: Path, place_in_job: tuple[int, int], *, force: bool) -> "tuple[Path, RecordingFolder]":
    """Makes the folder for this process or all ranks of its job.

    It is the one wanted, or the next of its name with a number that is free.
    """
    from bottleneck.harness.folder import BlockFolder, FolderTakenError, RecordingFolder

    rank, ranks = place_in_job
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        place = RecordingFolder(folder, "", force=force) if ranks == 1 else BlockFolder(folder, rank, force=force)
        try:
            place.make()
            break
        except FolderTakenError:
            if wanted.name in {"", ".."}:  # the working folder or a root: no name to number
                raise
    return folder, place


def _ending(remarks: tuple[str, ...]) -> "Ending":
    """Returns the end of the block.

    What kept the machine busy in the minute before may have been this very program.
    """
    from bottleneck.harness.finish import Ending

    return Ending(None, busy_processors=0.0, remarks=remarks)


def _complete(work: _OpenBlock, error: BaseException | None, *, is_alone: bool) -> "Recording | None":
    """Finishes the recording of all ranks.

    The last of them that ends its block does so; null for the others.
    """
    from bottleneck.calibrate.cache import read_calibration
    from bottleneck.harness.finish import read_all_notes
    from bottleneck.harness.folder import exclusive
    from bottleneck.recorder.finish_run import ReportSettings, finish
    from bottleneck.schema.recording import is_recording

    folder = Path(work.plan.folder)
    remarks = () if error is None else (f"the block was left by an exception: {type(error).__name__}",)
    with exclusive(folder):
        notes = read_all_notes(folder)
        # Of two ranks that end at one time the other may have written the recording and taken the notes away.
        is_of_others = is_recording(folder) or not all(rank_notes.is_complete for rank_notes in notes.values())
        if is_of_others and not is_alone:
            return None
        return finish(work.plan, _ending(remarks), ReportSettings(lambda _: None, read_calibration))


def _summary(wanted: Path, folder: Path, recording: "Recording") -> str:
    from bottleneck.harness.folder import RUNS_FOLDER
    from bottleneck.recorder.finish_run import describe_steps

    shown = shlex.quote(str(folder))
    if recording.traces:
        lines = [f"recorded {describe_steps(recording)} in {shown}; see: bottleneck report {shown}"]
    else:
        lines = [f"recorded nothing that can be explained in {shown}"]
    if folder != wanted and wanted.parent.name != RUNS_FOLDER:  # there all folders have numbers
        lines.append(f"{shlex.quote(str(wanted))} was not empty, so this recording has a folder of its own")
    lines += recording.warnings
    if recording.lacks_ceilings:
        lines.append(f"the ceilings of this CPU are not known yet: `bottleneck report --repair {shown}` measures them")
    return "\n".join(lines)
