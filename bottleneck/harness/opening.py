"""The start of a script under the profiler, in case the program has but one step, or none that can be seen."""

import os
import threading
import weakref
from typing import Any

from bottleneck.harness.bounds import resident_bytes
from bottleneck.harness.capture import Detail, Window
from bottleneck.harness.pending import call_in_main_thread_after
from bottleneck.harness.stopwatch import Stopwatch
from bottleneck.harness.weakly import weakly

CHUNK_SECONDS = 2.0
MOST_CHUNKS = 30
# What EVENT_BUDGET events may take elsewhere; a library that the program loads takes 0.1 GB.
_MOST_GROWTH_BYTES = 500e6


class Opening:
    """A window until the first step ends, the process has grown by half a gigabyte, or a minute is over.

    Looked after every CHUNK_SECONDS. One that is closed empty, or that saw nothing of a GPU, is followed by another:
    a program that is still loading its libraries makes no events. One with events never is, because an op of the
    program's may be under way, and would end under another profiler than it began with. ``stopwatch`` marks its ends.
    """

    def __init__(self, torch: Any, detail: Detail) -> None:
        self._torch, self._detail = torch, detail
        self.stopwatch = Stopwatch(None)
        self._window: Window | None = None
        self._on_gpu = False
        self._is_over = False
        self._chunks = 0
        self._size_bytes = 0.0
        self.kept: Window | None = None

    def start(self) -> None:
        """Opens the first window, in the main thread only: elsewhere it could not be closed in time."""
        if threading.current_thread() is not threading.main_thread():
            self._is_over = True
            return
        os.register_at_fork(before=weakly(self._close_for_fork), after_in_parent=weakly(self._open_chunk))
        self._open_chunk()

    def finish(self) -> Window | None:
        """The stopped window that tells most about the start of the program; null if none tells anything."""
        if not self._is_over:
            self._close_chunk()
            self._is_over = True
        return self.kept

    def _open_chunk(self) -> None:
        if self._is_over or self._window is not None:
            return
        window = Window(self._torch, self._detail)
        if not window.open():
            self._is_over = True
            return
        self._window, self._on_gpu = window, _uses_gpu(self._torch)
        self._chunks, self._size_bytes = 0, resident_bytes()
        self.stopwatch = Stopwatch(None)
        self.stopwatch.mark()
        self._expire_later(window)

    def _expire_later(self, window: Window) -> None:
        opening, awaited = weakref.ref(self), weakref.ref(window)

        def expire() -> None:
            this, that = opening(), awaited()
            if this is not None and that is not None:
                this._expire(that)

        call_in_main_thread_after(CHUNK_SECONDS, expire)

    def _expire(self, window: Window) -> None:
        if window is not self._window:
            return
        self._chunks += 1
        is_blind = _uses_gpu(self._torch) and not self._on_gpu
        is_small = resident_bytes() - self._size_bytes <= _MOST_GROWTH_BYTES
        if is_blind or not is_small or self._chunks >= MOST_CHUNKS:
            self._close_chunk()
            self._open_chunk()
        else:
            self._expire_later(window)

    def _close_for_fork(self) -> None:
        if self._window is not None and self._window.is_mine:
            self._close_chunk()

    def _close_chunk(self) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        if _uses_gpu(self._torch):
            self._torch.cuda.synchronize()
        self.stopwatch.mark()
        window.stop()
        # A window that opened before the GPU was first used has recorded nothing of it.
        is_blind = _uses_gpu(self._torch) and not self._on_gpu
        is_empty = window.event_count() == 0
        self.kept = None if is_blind or is_empty else window
        self._is_over = window.is_running or not (is_blind or is_empty)


def _uses_gpu(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())
