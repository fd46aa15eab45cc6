"""``with bottleneck.record(folder):`` in a program of the user's: what `bottleneck run` records, of one block of it.

The program's process is the only one: no sensor is read beside the block, since a thread that reads them would take
the interpreter from the program, and ceilings are not measured, since that takes seconds.
"""

import fcntl
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from bottleneck.errors import BottleneckError, UsageError

if TYPE_CHECKING:
    from bottleneck.commands.folder import Place
    from bottleneck.harness.block import Block
    from bottleneck.harness.claim import Claim, Course
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.messages import Plan
    from bottleneck.schema.recording import Recording


def record(
    folder: "str | os.PathLike[str]",
    *,
    steps: int | None = None,
    warmup: int | None = None,
    step: str | None = None,
    force: bool = False,
    quiet: bool = False,
) -> "RecordedBlock":
    """A context that records the loop inside it into a folder, which `bottleneck report FOLDER` explains.

    Steps end where the loop calls ``bottleneck.step()``, else at each step of the optimizer, call of the outermost
    module or batch of the loader; ``step`` names one of these, or a class. Steps pass until their times settle, or
    ``warmup`` of them; some are timed, then ``steps`` (5) are profiled: 30 to 80 in all. A shorter loop gives what
    there is, down to one step, a longer one goes on at full speed.

    The folder must be new or empty; ``force`` replaces what an earlier recording left there. ``quiet`` writes nothing
    to stderr. UsageError if the arguments make no sense, the folder is taken, or another block is being recorded. What
    fails later is said at the end, and stands in ``warnings``.
    """
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if value is not None and (not isinstance(value, int) or value < least):
            raise _in_code(
                UsageError(f"{name}={value!r} is no number of steps", fix=f"pass a whole number from {least}")
            )
    return RecordedBlock(Path(folder), _Wish(steps, warmup, step, force, quiet))


@dataclass(frozen=True)
class _Wish:
    """What the caller asks for besides the folder."""

    steps: int | None
    warmup: int | None
    step: str | None
    force: bool
    quiet: bool


@dataclass(frozen=True)
class _Work:
    """What is held while the block runs."""

    place: "Place | SharedPlace"
    plan: "Plan"
    block: "Block"


class RecordedBlock:
    """The context of a block: its ``folder``, and after it the ``warnings`` of the recording."""

    def __init__(self, folder: Path, wish: _Wish) -> None:
        self.folder = folder
        self.warnings: tuple[str, ...] = ()
        self._wish = wish
        self._work: _Work | None = None

    def report(self) -> str:
        """What `bottleneck report` says of the folder, as text to print in a notebook; once the block has ended."""
        from bottleneck.commands.report import with_kept_ceilings
        from bottleneck.pipeline import Options, analyse
        from bottleneck.report import FORMATS

        return FORMATS["terminal"](analyse([self.folder], with_kept_ceilings([self.folder], Options())))

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
            raise _in_code(error) from error.__cause__
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
            work.place.release(is_finished=False)
            TURN.give_back()

    def _begin(self) -> _Work:
        from bottleneck.harness.block import Block
        from bottleneck.harness.messages import Plan

        wish = self._wish
        place = _place(self.folder, force=wish.force)
        plan = Plan(
            folder=str(place.make()),
            form="script",
            target=_command()[0],
            module=False,
            settings=(),
            train=False,
            steps=wish.steps,
            warmup=wish.warmup,
            step=wish.step,
        )
        try:
            work = _Work(place, plan, Block(plan))
            place.note(_course(work))
            work.block.start()
        except BaseException:
            place.discard()
            raise
        return work

    def _finish(self, work: _Work, error: BaseException | None) -> None:
        from bottleneck.harness.finish import remove_notes

        work.block.finish()
        self.warnings = work.block.warnings
        recording = _complete(work, error)
        if recording is None:  # other ranks are still at work; the last of them finishes it
            return
        self.warnings = recording.warnings
        remove_notes(Path(work.plan.folder))
        work.place.release()
        self._say(_summary(self.folder, recording))

    def _leave(self) -> None:
        """In a fork: the block goes on there, unmeasured."""
        work, self._work = self._work, None
        if work is not None:
            work.block.leave()
            work.place.release(is_finished=False)

    def _admit(self, exc: Exception) -> None:
        """Tells that we failed, and what helps: the folder keeps what there is, and the mark that it is unfinished."""
        what = exc.what if isinstance(exc, BottleneckError) else f"{type(exc).__name__}: {exc}"
        problem = f"the recording in {self.folder} could not be finished: {what}"
        self.warnings = (*self.warnings, problem)
        again = f"bottleneck report --repair {shlex.quote(str(self.folder))}"
        self._say(f"bottleneck: {problem}\nbottleneck: to try again: {again}")

    def _say(self, text: str) -> None:
        from bottleneck.commands.finish_run import say

        if not self._wish.quiet:
            say(text)


def _in_code(error: UsageError) -> UsageError:
    """The same error, whose traceback shows the reason and a remedy that can be written in code."""
    fix = (
        error.fix.replace(" with -o DIR", "")
        .replace(" with -o", "")
        .replace("-o ", "")
        .replace("--force", "force=True")
    )
    told = UsageError(error.what, why=error.why, fix=fix)
    for label, text in (("why", told.why), ("fix", told.fix)):
        if text:
            told.add_note(f"  {label}: {text}")
    return told


def _place(folder: Path, *, force: bool) -> "Place | SharedPlace":
    """The folder, for this process alone or for all ranks of its job."""
    from bottleneck.commands.folder import Place
    from bottleneck.harness.messages import rank_of

    rank, ranks = rank_of(os.environ)
    return Place(folder, "", force=force) if ranks == 1 else SharedPlace(folder, rank, force=force)


def _command() -> tuple[str, ...]:
    return tuple(sys.argv) or ("",)


def _course(work: _Work) -> "Course":
    from bottleneck.harness.claim import Course

    ending = _ending(())
    return Course(work.plan, _command(), ending.environment, ending.busy_processors, os.getpid())


def _ending(remarks: tuple[str, ...]) -> "Ending":
    """How the block ended; what kept the machine busy in the minute before may have been this very program."""
    from bottleneck.harness.finish import Ending

    return Ending(_command(), None, busy_processors=0.0, remarks=remarks)


def _complete(work: _Work, error: BaseException | None) -> "Recording | None":
    """The recording of all ranks, by the last of them that ends its block; null for the others."""
    from bottleneck.calibrate.cache import read_calibration
    from bottleneck.commands.finish_run import Voice, finish
    from bottleneck.harness.finish import read_all_notes
    from bottleneck.schema.recording import is_recording

    folder = Path(work.plan.folder)
    remarks = () if error is None else (f"the block was left by an exception: {type(error).__name__}",)
    with _alone_in(folder):
        notes = read_all_notes(folder)
        if len(notes) > 1 and (is_recording(folder) or not all(each.is_complete for each in notes.values())):
            return None
        return finish(work.plan, _ending(remarks), Voice(lambda _: None, read_calibration))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Makes other ranks wait that end their blocks at the same time."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _summary(folder: Path, recording: "Recording") -> str:
    from bottleneck.calibrate.cache import lacks_ceilings

    shown = shlex.quote(str(folder))
    if recording.traces:
        lines = [f"recorded {_what(recording)} in {shown}; see: bottleneck report {shown}"]
    else:
        lines = [f"recorded nothing that can be explained in {shown}"]
    lines += recording.warnings
    if lacks_ceilings(recording):
        lines.append("the ceilings of this CPU are not known yet: `bottleneck calibrate` measures them, once")
    return "\n".join(f"bottleneck: {line}" for line in lines)


def _what(recording: "Recording") -> str:
    steps, ranks = max(0, len(recording.traces[0].step_marks_ns) - 1), len(recording.traces)
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    return f"{steps} steps{of_ranks}" if steps != 1 else f"1 step{of_ranks}"


# What a rank writes while it measures.
_OF_RANK = re.compile(r"(?:\.notes|\.partial\.trace|\.fresh\.trace|compiled)\.rank(\d+)\..*")
# What stands in the folder once all ranks are done.
_FINISHED = ("recording.json", "analysis.json", "roofline.png", "telemetry.csv", "trace.rank*.json.gz")


class SharedPlace:
    """One rank's view of the folder, with the interface of ``Place``.

    Another rank may have been here for a while: its files are left alone, by force too. Rank 0 has the claim, and
    removes an old recording.
    """

    def __init__(self, folder: Path, rank: int, *, force: bool) -> None:
        self.folder, self._rank, self._force = folder.absolute(), rank, force
        self._claim: Claim | None = None

    def make(self) -> Path:
        """The absolute path of the folder, found fit for writing; UsageError if it is not."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._force:
                self._remove_old()
            elif any(not self._is_of_others(path) for path in self.folder.iterdir()):
                raise UsageError(
                    f"{self.folder} is not empty",
                    why="a recording never overwrites what it finds",
                    fix="name another folder, or pass --force",
                )
            if self._rank == 0:
                self._occupy()
        except OSError as exc:
            raise UsageError(
                f"cannot write to the folder {self.folder}", why=exc.strerror or str(exc), fix="name another folder"
            ) from exc
        return self.folder

    def note(self, course: "Course") -> None:
        """Leaves word of what is being done here, for whoever finds it unfinished."""
        if self._claim is not None:
            try:
                self._claim.note(course)
            except OSError:  # a full disk; the recording itself will say so
                return

    def release(self, *, is_finished: bool = True) -> None:
        """Leaves the folder; the mark of an unfinished recording goes with the last rank, whichever that is."""
        from bottleneck.harness.claim import CLAIM_FILE

        claim, self._claim = self._claim, None
        if claim is not None:
            claim.release(is_finished=is_finished)
        elif is_finished:
            (self.folder / CLAIM_FILE).unlink(missing_ok=True)

    def discard(self) -> bool:
        """Leaves the folder, which others may use."""
        self.release(is_finished=self._claim is not None)
        return False

    def _is_of_others(self, path: Path) -> bool:
        from bottleneck.harness.claim import CLAIM_FILE

        found = _OF_RANK.fullmatch(path.name)
        return path.name == CLAIM_FILE or (found is not None and int(found[1]) != self._rank)

    def _remove_old(self) -> None:
        for path in self.folder.iterdir():
            found = _OF_RANK.fullmatch(path.name)
            if found is not None and int(found[1]) == self._rank:
                path.unlink()
        if self._rank == 0:
            for pattern in _FINISHED:
                for path in self.folder.glob(pattern):
                    path.unlink()

    def _occupy(self) -> None:
        from bottleneck.harness.claim import claim

        self._claim = claim(self.folder)
        if self._claim is None:
            raise UsageError(
                f"another run is recording into {self.folder}",
                why="two recordings in one folder would spoil each other",
                fix="wait for it to end, or name another folder",
            )
