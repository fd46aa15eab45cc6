"""Calls in the main thread between two of its bytecodes, as for a signal but without one."""

import _thread
import contextlib
import ctypes
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from typing import Any

_STDLIB = sysconfig.get_path("stdlib") + os.sep


def call_in_main_thread_after(seconds: float, callback: Callable[[], None]) -> None:
    """Lets the main thread call back once the time is over and it runs Python code.

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


def is_between_ops(thread: int) -> bool:
    """Whether a thread has ended, or waits in a function of the standard library: no op of torch's is under way there.

    False tells nothing: the thread may be anywhere.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return True
    file = frame.f_code.co_filename
    return file.startswith(_STDLIB) and "-packages" not in file


def hand_over(thread: int, work: Callable[[], None], seconds: float) -> None:
    """Has the work done by the main thread, if that is the thread; it may come to it later than in these seconds."""
    if thread != threading.main_thread().ident:
        return
    done = threading.Event()

    def work_once() -> None:
        work()
        done.set()

    call_in_main_thread_after(0.0, work_once)
    # A thread that runs Python code takes less.
    if not done.wait(0.05) and is_between_ops(thread):
        _wake(thread)
    done.wait(seconds)


def _wake(thread: int) -> None:
    """Interrupts the wait of a thread, which looks for pending calls then and waits on.

    By a signal that nobody sees: it is ignored by default, and its handler, a function of the C library that does
    nothing, is there for this moment only.
    """
    if signal.getsignal(signal.SIGURG) != signal.SIG_DFL:
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    before = libc.signal(signal.SIGURG, ctypes.cast(libc.abs, ctypes.c_void_p))
    libc.siginterrupt(signal.SIGURG, 1)
    try:
        signal.pthread_kill(thread, signal.SIGURG)
        time.sleep(0.01)
    finally:
        libc.signal(signal.SIGURG, before)
