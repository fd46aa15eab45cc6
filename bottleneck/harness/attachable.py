"""Lets `bottleneck attach` record this process later.

A socket and a signal handler wait; nothing else of ours is imported, no thread runs, and torch is left alone.
"""

import _thread
import contextlib
import os
import signal
import socket
import sys
import threading  # in the main thread, which the module takes to be the one that imports it
from collections.abc import Callable
from typing import Any

# Asks processes that start to be attachable, by the line of `bottleneck_attach.pth`.
VARIABLE = "BOTTLENECK_ATTACH"
_WAITING = 4

# The listener, the process that made it, and work that waits for its main thread. A fork has what its parent had, but
# is another process: it does not answer.
_listener: socket.socket | None = None
_process = 0
_work: list[Callable[[], None]] = []


def address(process: int) -> str:
    """Gives the name of the socket on which a process waits.

    It is no file: nothing stays behind a process that was killed.
    """
    return f"\0bottleneck-attach-{process}"


def number() -> int | None:
    """Gives the signal that asks a process to look at its socket.

    It is a real-time one, since programs have handlers of their own for SIGUSR1 and SIGUSR2. Null where there is none.
    """
    first = getattr(signal, "SIGRTMIN", None)
    return None if first is None or sys.platform != "linux" else int(first) + 7


def attachable() -> None:
    """Lets `bottleneck attach` record this process from now on.

    Call it in the main thread; in a fork again, to attach to that too. UsageError where it cannot be.
    """
    global _listener, _process
    if _process == os.getpid():
        return
    asked = number()
    if asked is None:
        raise _cannot("this system has no real-time signals and no sockets without a file", "record a block instead")
    if signal.getsignal(asked) not in (signal.SIG_DFL, _answer):
        raise _cannot(f"the program handles signal {asked} itself", "leave that signal free")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.setblocking(False)
        listener.bind(address(os.getpid()))
        listener.listen(_WAITING)
        signal.signal(asked, _answer)
    except (OSError, ValueError) as error:  # ValueError: in another thread than the main one
        listener.close()
        raise _cannot(str(error), "call it in the main thread of the program") from error
    if _listener is not None:  # of the process that forked this one
        _listener.close()
    _listener, _process = listener, os.getpid()
    _work.clear()


def answer_from_start() -> None:
    """Makes this process attachable as it starts, or leaves it as it is."""
    with contextlib.suppress(Exception):
        attachable()


def _cannot(why: str, fix: str) -> Exception:
    from bottleneck.errors import UsageError

    error = UsageError("this process cannot be made attachable", why=why, fix=fix)
    error.add_note(f"  why: {why}\n  fix: {fix}")
    return error


def _answer(_number: int, _frame: Any) -> None:
    """Handles the signal.

    Does all that waits for this thread, and has another thread answer each who has connected. Python calls a handler
    once for signals that come together, and those who ended meanwhile lie before those who wait. An import would be
    unsafe here, where the program may be in the middle of one.
    """
    if os.getpid() != _process:
        return
    with contextlib.suppress(IndexError):
        while True:
            _work.pop(0)()
    with contextlib.suppress(OSError):  # nobody waits any more
        while _listener is not None:
            _thread.start_new_thread(_serve, (_listener.accept()[0],))


def _serve(connection: socket.socket) -> None:
    """Answers one who has connected; in a thread of its own."""
    with contextlib.suppress(Exception), connection:  # the program notices nothing
        from bottleneck.harness.attachment import serve

        serve(connection, _do_in_main_thread)


def _do_in_main_thread(work: Callable[[], None], seconds: float) -> bool:
    """Has the main thread do the work, between two bytecodes of whatever it does.

    False if it has not begun in this time; then it does not.
    """
    done = _thread.allocate_lock()
    done.acquire()

    def work_once() -> None:
        try:
            with contextlib.suppress(Exception):  # it would rise in the middle of the program
                work()
        finally:
            done.release()

    _work.append(work_once)
    signal.pthread_kill(threading.main_thread().ident or 0, number() or 0)
    if done.acquire(timeout=seconds):
        return True
    try:
        _work.remove(work_once)
    except ValueError:  # it is at it
        done.acquire()
        return True
    return False
