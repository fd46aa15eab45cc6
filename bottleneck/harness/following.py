"""Follows the notes that the program leaves while it runs, in a thread beside the supervisor."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path

from bottleneck.harness.finish import read_all_notes
from bottleneck.harness.notes import NOTES_FILES
from bottleneck.harness.supervisor import Child

# A look costs some microseconds.
_PERIOD_S = 0.2
# What a program that was told to stop may take for each of: its own end, its end by SIGTERM.
_GRACE_S = 10.0

Wait = Callable[[threading.Event, float], bool]


class Follower:
    """Calls ``when_measured`` once, in its own thread, and sees to it that a program that was told to stop ends.

    The event that the call gets is set when the program has ended. ``wait`` waits for it; tests give their own.
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
        """Begins to follow. Call it with the signals blocked that the thread must not take."""
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
            if any(each.stopped for each in notes):
                self._end(child)
                return
            if not is_measured and notes and all(each.is_measured for each in notes):
                is_measured = True
                self._when_measured(self._ended)

    def _has_changed(self) -> bool:
        """Whether there are new notes since the last look."""
        try:
            states = [path.stat() for path in self._folder.glob(NOTES_FILES)]
        except OSError:  # replaced or removed at this moment
            return False
        # New notes are a new file.
        seen, self._seen = self._seen, {(state.st_ino, state.st_mtime_ns) for state in states}
        return self._seen != seen

    def _end(self, child: Child) -> None:
        """Ends the program if it does not do so itself: some threads and hooks hold it back."""
        for number, to_group in ((signal.SIGTERM, False), (signal.SIGKILL, True)):
            if self._wait(self._ended, _GRACE_S):
                return
            self.is_forced = True
            child.send(number, to_group=to_group)
