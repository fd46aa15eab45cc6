"""Finds the process that `bottleneck attach` names, and talks to it.

Where it cannot, it says why.
"""

import contextlib
import os
import re
import select
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from bottleneck import __version__
from bottleneck.errors import UsageError
from bottleneck.harness.attachable import VARIABLE, address, number
from bottleneck.harness.attachment import peer, receive, send
from bottleneck.harness.messages import Plan, Program

_PYTHON = re.compile(rb"python(\d)\.(\d+)")
_REMOTE_SINCE = (3, 14)
# What the process may take for an answer: its main thread comes back to Python between two calls.
_ANSWER_S, _ENDING_S, _LOOK_S = 15.0, 30.0, 0.05
# Runs in the process itself (PEP 768), in its main thread between two bytecodes.
_INJECTED = """\
import sys
sys.path.insert(0, {root!r})
try:
    from bottleneck.harness.attachable import answer_from_start
finally:
    sys.path.remove({root!r})
answer_from_start()
"""


class Attached(Protocol):
    """Process that is attached to: its program, its environment and one window."""

    program: Program
    environment: Mapping[str, str]

    def begin(self, plan: Plan, seconds: float, /) -> None:
        """Has it record a window of so many seconds at most."""

    def wait(self, seconds: float, /) -> bool:
        """Waits for the window's end.

        False where the process has ended itself.
        """

    def stop(self) -> None:
        """Has the window end now, if it can."""

    def close(self) -> None:
        """Leaves the process alone."""


class RunningProcess:
    """A process that answers us."""

    def __init__(self, process: int, connection: socket.socket) -> None:
        self._process, self._connection = process, connection
        hello = self._answer(_ANSWER_S)
        if hello.get("version") != __version__:
            raise refusal(process, f"it has another version of bottleneck, {hello.get('version')}", "use that one")
        target, *arguments = hello["arguments"] or [""]
        self.program = Program(target, tuple(arguments), "script", seed=None)
        self.environment: Mapping[str, str] = hello["environment"]

    def begin(self, plan: Plan, seconds: float) -> None:
        """Has it record a window of so many seconds at most."""
        send(self._connection, plan=plan.to_json(), seconds=seconds)
        self._answer(seconds + _ANSWER_S)

    def wait(self, seconds: float) -> bool:
        """Waits for the window's end.

        True where the process tells of it, false where it has ended itself.
        """
        try:
            return bool(self._answer(seconds + _ENDING_S).get("ended"))
        except EOFError:
            return False

    def stop(self) -> None:
        """Has the window end now."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leaves the process alone; a window that is open ends."""
        self._connection.close()

    def _answer(self, seconds: float) -> Mapping[str, Any]:
        """Gives its next message.

        EOFError where the process has ended, UsageError where it refuses or says nothing in time.
        """
        poll = select.poll()
        process = os.pidfd_open(self._process)
        try:
            poll.register(self._connection, select.POLLIN)
            poll.register(process, select.POLLIN)
            ready = [descriptor for descriptor, _ in poll.poll(seconds * 1e3)]
        finally:
            os.close(process)
        if not ready:
            raise refusal(
                self._process,
                "its main thread does not come back to Python: it waits in one long call",
                "try again, or attach to the process that computes",
            )
        if self._connection.fileno() not in ready:
            raise EOFError
        answer = receive(self._connection, _LOOK_S)
        if "refused" in answer:
            raise refusal(self._process, answer["refused"], "wait for its end, then attach again")
        return answer


def connect(process: int) -> Attached:
    """Connects to a process of this user that is attachable.

    UsageError where it cannot be attached to, with the reason.
    """
    _refuse(process)
    connection = _reach(process)
    if connection is None and _can_inject(process):
        connection = _inject(process)
    if connection is None:
        from bottleneck.harness.kineto_daemon import DaemonProcess, uses_daemon

        if uses_daemon(process):
            return DaemonProcess(process)
        raise _not_attachable(process)
    try:
        if peer(connection) != (process, os.geteuid()):
            raise refusal(process, "another process answers in its name", "attach to the process itself")
        if not _handles(process):
            raise refusal(
                process, "its program has taken our signal handler away", "record a block: bottleneck.record()"
            )
        os.kill(process, number() or 0)
        return RunningProcess(process, connection)
    except EOFError:
        connection.close()
        raise refusal(
            process, "it ended, or its Python cannot import bottleneck", "install bottleneck where the program runs"
        ) from None
    except BaseException:
        connection.close()
        raise


def refusal(process: int, why: str, fix: str) -> UsageError:
    """Makes the error of a process that cannot be attached to."""
    return UsageError(f"cannot attach to process {process}", why=why, fix=fix)


def _refuse(process: int) -> None:
    """Raises UsageError for a process that can never be attached to."""
    if number() is None:
        raise refusal(process, "this system has none of what it takes", "attach on Linux, or use bottleneck.record()")
    try:
        user = os.stat(f"/proc/{process}").st_uid  # noqa: PTH116
        state = _status(process).get("State", "?")[0]
    except OSError:
        raise refusal(process, "there is no such process", "ps -ef | grep python") from None
    if process == os.getpid():
        raise refusal(process, "that is this command itself", "name the process of the program")
    if user != os.geteuid():
        raise refusal(process, "it belongs to another user", "run bottleneck as the user of the program")
    if state in "ZX":
        raise refusal(process, "it has ended", "ps -ef | grep python")
    if state in "Tt":
        raise refusal(process, "it is stopped, by Ctrl-Z or by a debugger", f"let it go on: kill -CONT {process}")
    if _python(process) is None:
        raise refusal(process, "it is no Python program", "attach to the Python process that it started")


def _not_attachable(process: int) -> UsageError:
    parent = int(_status(process).get("PPid", "0"))
    if parent and _is_reached(parent):
        return refusal(
            process,
            f"it is a fork of process {parent}, and a fork does not answer",
            f"bottleneck attach {parent}, or call bottleneck.attachable() in the fork",
        )
    version = _python(process) or (0, 0)
    is_new = version >= _REMOTE_SINCE
    return refusal(
        process,
        "it was not started to be attached to" + (", and this Python is older than its own" if is_new else ""),
        f"start it with {VARIABLE}=1, or call bottleneck.attachable() in it"
        + (f"; or run bottleneck with Python {version[0]}.{version[1]}" if is_new else "; Python 3.14 needs neither"),
    )


def _status(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _handles(process: int) -> bool:
    """True if the process catches our signal, which else would end it."""
    return bool(int(_status(process).get("SigCgt", "0"), 16) >> ((number() or 1) - 1) & 1)


def _python(process: int) -> tuple[int, int] | None:
    """Gives the version of Python in the process; null for another program."""
    try:
        files = os.fsencode(os.readlink(f"/proc/{process}/exe"))  # noqa: PTH115 - it may have been replaced
        match = _PYTHON.search(files) or _PYTHON.search(Path(f"/proc/{process}/maps").read_bytes())
    except OSError:
        return None
    return None if match is None else (int(match[1]), int(match[2]))


def _reach(process: int) -> socket.socket | None:
    """Gives a connection to the socket of the process; null where it has none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        connection.connect(address(process))
    except BlockingIOError:
        connection.close()
        raise refusal(process, "others wait to attach to it already", "wait for their end") from None
    except OSError:
        connection.close()
        return None
    return connection


def _is_reached(process: int) -> bool:
    try:
        connection = _reach(process)
    except UsageError:
        return True
    if connection is not None:
        connection.close()
    return connection is not None


def _can_inject(process: int) -> bool:
    version = _python(process)
    return hasattr(sys, "remote_exec") and version is not None and version == sys.version_info[:2]


def _inject(process: int) -> socket.socket | None:
    """Makes the process attachable by `sys.remote_exec`, from Python 3.14 on (PEP 768).

    Null where it does not answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="bottleneck-attach-") as folder:
        script = Path(folder, "attach.py")
        script.write_text(injected_code(), encoding="utf-8")
        try:
            sys.remote_exec(process, str(script))  # type: ignore[attr-defined]
        except (OSError, RuntimeError) as error:
            raise refusal(process, str(error), f"start it with {VARIABLE}=1") from error
        give_up_s = time.monotonic() + _ANSWER_S
        while time.monotonic() < give_up_s:
            connection = _reach(process)
            if connection is not None:
                return connection
            time.sleep(_LOOK_S)
    return None


def injected_code() -> str:
    """Gives the script that makes a process attachable, wherever its modules come from."""
    return _INJECTED.format(root=str(Path(__file__).resolve().parents[2]))
