"""Runs a program's child without a word of it on our own streams, and ends it with all that it started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bottleneck.harness.supervisor import End, die_with, find_prctl

_PATIENCE_S = 3.0
_LOOK_S = 0.02
_TAIL_BYTES = 20_000


@dataclass(frozen=True)
class Heard:
    """How a quiet program ended, and the last of what it wrote to stderr."""

    end: End
    stderr: str


def run_quietly(command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None) -> Heard:
    """The end of the command; what it writes to stderr goes into ``log``, the rest nowhere.

    It starts in ``folder``, or where we are.

    It leads a process group of its own, so that Ctrl-C reaches us alone. Whatever exception ends the wait, the group is
    told to end and killed if it does not, before the exception goes on. It is told to end, too, when we die.
    """
    ours, prctl = os.getpid(), find_prctl()
    with log.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - the user's program is what we are here to start
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            cwd=folder,
            process_group=0,
            preexec_fn=lambda: die_with(ours, prctl),  # noqa: PLW1509 - no thread of ours runs while a program does
        )
    try:
        end = _end_of(process)
    except BaseException:
        _stop(process)
        raise
    return Heard(end, _tail(log))


def _end_of(process: "subprocess.Popen[bytes]") -> End:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux counts in kilobytes, macOS in bytes.
    return End(status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the whole group; its leader is waited for last, until when its number cannot be another's."""
    if process.returncode is not None:
        return
    try:
        _signal(process.pid, signal.SIGTERM)
        until_s = time.monotonic() + _PATIENCE_S
        while not _has_ended(process.pid) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
    finally:
        _signal(process.pid, signal.SIGKILL)
        _end_of(process)


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:  # it has ended by itself
        return


def _has_ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
