"""Runs our work in the main thread of the user's program.

That is for calls from other threads, and for saving on a deadly signal.
"""

import _thread
import contextlib
import ctypes
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

_STDLIB = sysconfig.get_path("stdlib") + os.sep


def call_in_main_thread_after(seconds: float, callback: Callable[[], None]) -> None:
    """Calls back in the main thread once the time is over.

    It does so between two of its bytecodes. The wait is a bare thread's: the program does not find it among its own.
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


def run_in_main_thread(work: Callable[[], None], seconds: float) -> None:
    """Has the main thread do the work.

    Returns after these seconds at the latest, when it may do it later.
    """
    main = threading.main_thread().ident
    done = threading.Event()

    def work_once() -> None:
        work()
        done.set()

    call_in_main_thread_after(0.0, work_once)
    # A thread that runs Python code takes less.
    if not done.wait(0.05) and main is not None and is_between_ops(main) and is_wakeable():
        signal.pthread_kill(main, signal.SIGURG)
    done.wait(seconds)


def is_between_ops(thread: int) -> bool:
    """True if a thread has ended, or waits in the standard library.

    No op of torch's is under way there. False means nothing: the thread may be anywhere.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return True
    file = frame.f_code.co_filename
    return file.startswith(_STDLIB) and "-packages" not in file


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handles SIGURG: the interrupted wait looks for pending calls and goes on."""


def is_wakeable() -> bool:
    """True if a wait of the main thread can be interrupted."""
    return signal.getsignal(signal.SIGURG) is _do_nothing


def make_wakeable() -> None:
    """Installs a handler that lets others interrupt the main thread's waits.

    It stays. SIGURG is ignored by default, and left alone where the program handles it. Without the handler a main
    thread that waits for another (``thread.join()``) does what it is given only when that wait is over.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGURG) == signal.SIG_DFL:
        signal.signal(signal.SIGURG, _do_nothing)


def make_unwakeable() -> None:
    """Restores the default, in the main thread only.

    Not where the program has a handler of its own by now.
    """
    if threading.current_thread() is threading.main_thread() and is_wakeable():
        signal.signal(signal.SIGURG, signal.SIG_DFL)


DEADLY = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class SaveOnSignal:
    """Saves what was recorded before a signal ends the program.

    Only for signals that the program does not handle.
    """

    def __init__(self, save: Callable[[], None], signals: Sequence[signal.Signals] = DEADLY) -> None:
        self._save, self._signals = save, signals
        self._installed: list[signal.Signals] = []
        self._is_saving = False

    def install(self) -> None:
        """Makes a deadly signal save first from now on.

        Python allows handlers in the main thread only.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._signals:
            if signal.getsignal(number) == signal.SIG_DFL and number not in self._installed:
                signal.signal(number, self._die)
                self._installed.append(number)

    def remove(self) -> None:
        """Restores the default.

        Not where the program has put a handler of its own there meanwhile, or is dying.
        """
        if self._is_saving or threading.current_thread() is not threading.main_thread():
            return
        while self._installed:
            number = self._installed.pop()
            if signal.getsignal(number) == self._die:
                signal.signal(number, signal.SIG_DFL)

    def _die(self, number: int, _frame: FrameType | None) -> None:
        if self._is_saving:  # the same signal again, or another one: the first decides what the program dies of
            return
        self._is_saving = True
        try:
            self._save()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
