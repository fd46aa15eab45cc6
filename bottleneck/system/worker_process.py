"""Starts, asks and ends processes of our own code.

They exchange messages with this one over pipes. A fork of a process with threads can hang, and ``multiprocessing`` runs
the user's main script again. So each is a new interpreter with the import paths of this one.
"""

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from bottleneck.system.child_process import Child

# What reading a message raises where the process has ended, or something else wrote to its pipe.
LOST = (EOFError, OSError, pickle.UnpicklingError)


class WorkerProcess:
    """Process that calls a function of ours.

    The function serves the messages of this process until there are no more. ``call`` is the call as it is written, of
    a function of ``module``; ``inherited`` are the open files that it gets. What the process writes to standard error
    is dropped where it ``is_silent``.
    """

    def __init__(self, module: str, call: str, *, inherited: Sequence[int] = (), is_silent: bool = False) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; import {module}; {module}.{call}"
        # It ends with the messages of this process, which starts it beside other threads.
        self._child = Child(
            [sys.executable, "-c", code],
            at_our_death=None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_silent else None,
            pass_fds=inherited,
        )
        self.process = self._child.process
        self._messages, self._replies = self._child.streams

    def send(self, message: object) -> None:
        """Gives it a message; OSError where it has ended."""
        send_message(message, self._messages)

    def has_replied(self, patience_ms: float | None) -> bool:
        """True if a reply, or its end, can be read.

        Waits for one so long, for ever without a limit.
        """
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        return bool(poll.poll(patience_ms))

    def receive(self) -> Any:
        """Its next reply, for which this waits; one of ``LOST`` where it has ended."""
        return receive_message(self._replies)

    def kill(self) -> None:
        """Has the system end it; ``end`` waits for that."""
        self._child.send(signal.SIGKILL, to_group=False)

    def end(self) -> None:
        """Kills it, and waits until it is gone."""
        self.kill()
        self._child.wait()
        for stream in (self._messages, self._replies):
            with suppress(OSError):  # a message that it did not take
                stream.close()


def serving_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Returns the streams of messages and of replies of such a process.

    What the code prints goes to standard error.
    """
    # The one who sends the messages is interrupted too, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, replies


def send_message(message: object, stream: IO[bytes]) -> None:
    """Writes a message to a stream at once."""
    stream.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    stream.flush()


def receive_message(stream: IO[bytes]) -> Any:
    """Waits for the next message of a stream.

    Returns one of ``LOST`` where there is none.
    """
    return pickle.load(stream)  # noqa: S301 - from a process that we started, or from the one that started this
