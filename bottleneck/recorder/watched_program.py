"""Watches the rest of a program from its own code: ``bottleneck.watch()``.

It times what `bottleneck watch` times. The program's process is the only one: no sensor is read beside it.
"""

import atexit
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from bottleneck.errors import BottleneckError, UsageError
from bottleneck.recorder.recorded_block import in_code, make_place

if TYPE_CHECKING:
    from bottleneck.harness.folder import RecordingFolder
    from bottleneck.harness.step_watch import StepWatch
    from bottleneck.harness.watched_windows import WindowWishes
    from bottleneck.schema.watch_log import RecordedWindow
    from bottleneck.schema.watched import WatchedRun

_open: "WatchedProgram | None" = None


def watch(  # noqa: PLR0913 - each is a choice of its own
    folder: "str | os.PathLike[str] | None" = None,
    *,
    step: str | None = None,
    rank: tuple[int, int] | None = None,
    windows: int = 3,
    every_s: float | None = None,
    force: bool = False,
    quiet: bool = False,
) -> "WatchedProgram":
    """Times every step from now on, until ``stop`` or the program's end.

    `bottleneck watch FOLDER` reports on it, also while the program runs. Without a folder it is one of its own in
    bottleneck-runs/.

    Steps end where the loop calls ``bottleneck.step()``, else at each step of the optimizer, call of the outermost
    module or batch of the loader; ``step`` names one of these, or a class. ``rank`` is that of this process and their
    number where no launcher tells them. The profiler records some steps behind a slow one, so many ``windows`` at most
    and none in the first minute, and some whenever ``every_s`` seconds have passed. ``force`` replaces what an earlier
    run left in the folder; else a number is added to the name of one that is not empty. ``quiet`` writes nothing to
    stderr.

    Under `bottleneck watch` and `bottleneck run` it does nothing, since those measure the process. UsageError where the
    folder cannot be made, or the program is being watched already.
    """
    from bottleneck.harness.messages import Program, rank_of
    from bottleneck.harness.watched_windows import WindowWishes

    target, *arguments = sys.argv or [""]
    wishes = WindowWishes(Program(target, tuple(arguments), "script", seed=None), windows, every_s)
    place = None if folder is None else Path(folder)
    watched = WatchedProgram(place, step, rank or rank_of(os.environ), quiet=quiet)
    try:
        watched._begin(wishes, force=force)
    except UsageError as error:
        raise in_code(error) from error.__cause__
    return watched


class WatchedProgram:
    """Watches a program from its own code; as a context, the block.

    ``folder`` has the log.
    """

    def __init__(self, folder: Path | None, step: str | None, rank: tuple[int, int], *, quiet: bool) -> None:
        self.folder = folder
        self._step, self._rank, self._quiet = step, rank, quiet
        self._watch: StepWatch | None = None
        self._place: RecordingFolder | None = None

    def stop(self) -> None:
        """Ends the watching, and says where the log is."""
        global _open  # noqa: PLW0603 - one for the process, which has one interpreter to hook
        watch, self._watch = self._watch, None
        if watch is None or _open is not self:
            return
        _open = None
        atexit.unregister(self.stop)
        watch.finish(1 if sys.exc_info()[0] or getattr(sys, "last_type", None) else 0)
        if self._place is not None:
            self._finish_windows(self._place.folder, watch.header.windows)
            self._place.release()
        if not self._quiet:
            from bottleneck.report.output import write_note
            from bottleneck.units import counted

            shown = shlex.quote(str(self.folder))
            steps = counted(f"{watch.header.steps:,}", "step")
            write_note(f"watched {steps} in {shown}; see: bottleneck watch {shown}")

    def _finish_windows(self, folder: Path, windows: "Sequence[RecordedWindow]") -> None:
        if not windows:
            return
        from bottleneck.recorder.finish_run import finish_windows
        from bottleneck.report.output import write_note

        try:
            finish_windows(folder)
        except (OSError, BottleneckError) as error:
            if not self._quiet:
                write_note(f"a recorded window could not be finished: {error}")

    def run(self) -> "WatchedRun":
        """Sums up what was watched so far. TraceError where no step has ended."""
        from bottleneck.watched.summary import summarise

        assert self.folder is not None, "a watched program has a folder"
        return summarise(self.folder)

    def report(self) -> str:
        """Returns the report of `bottleneck watch` on the folder, as text."""
        from bottleneck.report.watched import render

        return render(self.run(), "terminal")

    def __enter__(self) -> "WatchedProgram":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self, wishes: "WindowWishes", *, force: bool) -> None:
        from bottleneck.harness import marks

        global _open  # noqa: PLW0603 - as above
        if marks.supervisor is not None:
            marks.supervisor()
            return
        if _open is not None:
            raise UsageError("this program is being watched already", fix="stop() the other one first")
        from bottleneck.harness.folder import RUNS_FOLDER
        from bottleneck.harness.step_log import StepLog
        from bottleneck.harness.step_watch import StepWatch
        from bottleneck.harness.watched_windows import WatchedWindows

        wanted = self.folder or Path(RUNS_FOLDER) / (Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else "watched")
        self.folder, self._place = make_place(wanted, self._rank, force=force)
        rank, ranks = self._rank
        has_windows = wishes.are_any and rank == 0  # one rank under the profiler holds up all
        windows = WatchedWindows(self._place.folder, wishes, time.perf_counter_ns) if has_windows else None
        log, command = StepLog(self._place.folder, rank), wishes.program.command
        self._watch = StepWatch(log, self._step, rank, ranks, windows=windows, command=command)
        self._watch.start()
        _open = self
        atexit.register(self.stop)
