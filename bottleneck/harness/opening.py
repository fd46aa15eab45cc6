"""The start of a script under the profiler, in case the program has but one step, or none that can be seen."""

import _thread
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from bottleneck.harness.capture import Detail, Window

CHUNK_SECONDS = 2.0

# Without stacks: a library that the script imports next would be recorded call by call.
DETAIL = Detail(stacks=False)


class Opening:
    """Windows of at most CHUNK_SECONDS, one after another, until one is not empty or the first step ends.

    A program that is still loading its libraries makes no events. The time bounds the memory that a window can take.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._window: Window | None = None
        self._on_gpu = False
        self._is_over = False
        self.kept: Window | None = None

    def start(self) -> None:
        """Opens the first window, in the main thread only: elsewhere it could not be closed in time."""
        if threading.current_thread() is not threading.main_thread():
            self._is_over = True
            return
        os.register_at_fork(before=self._close_chunk, after_in_parent=self._open_chunk)
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
        window = Window(self._torch, DETAIL)
        if not window.open():
            self._is_over = True
            return
        self._window, self._on_gpu = window, _uses_gpu(self._torch)
        _call_in_main_thread_after(CHUNK_SECONDS, lambda: self._expire(window))

    def _expire(self, window: Window) -> None:
        if window is self._window:
            self._close_chunk()
            self._open_chunk()

    def _close_chunk(self) -> None:
        window, self._window = self._window, None
        if window is None or not window.is_mine:
            return
        window.stop()
        # A window that opened before the GPU was first used has recorded nothing of it.
        is_blind = _uses_gpu(self._torch) and not self._on_gpu
        is_empty = window.event_count() == 0
        self.kept = None if is_blind or is_empty else window
        self._is_over = not (is_blind or is_empty)


def _uses_gpu(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())


def _call_in_main_thread_after(seconds: float, callback: Callable[[], None]) -> None:
    """Lets the main thread call back between two bytecodes, as for a signal but without one.

    By a bare thread: the program does not find it among its own.
    """

    def pending(_: object) -> int:
        with contextlib.suppress(Exception):  # it would surface in the middle of the program
            callback()
        return 0

    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(pending)
    _alive.append(call)

    def wait() -> None:
        time.sleep(seconds)
        ctypes.pythonapi.Py_AddPendingCall(call, None)

    _thread.start_new_thread(wait, ())


# Callbacks that the interpreter may still call must not be collected.
_alive: list[Any] = []
