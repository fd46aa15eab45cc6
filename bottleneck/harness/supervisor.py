"""Starts the user's program in a process group of its own, passes signals on, and waits for its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bottleneck.harness.notes import Plan
from bottleneck.harness.telemetry import Monitor

_CHILD = Path(__file__).with_name("child.py")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WATCHED = frozenset({*_FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD})
# Changing the terminal's foreground group from outside it stops the caller, unless this is blocked.
_BLOCKED = _WATCHED | {signal.SIGTTOU}


def supervise(plan: Plan, arguments: Sequence[str], monitor: Monitor | None = None) -> int:
    """The exit status of the program as a shell shows it (128 + N for signal N).

    Signals are taken one by one from a blocked set: each reaches the program exactly once, whether it came from the
    terminal, to this process or to its group. The monitor samples beside the program from its start to its end.
    """
    command = [
        sys.executable,
        *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]  # what multiprocessing uses
        str(_CHILD),
        plan.to_json(),
        *arguments,
    ]
    terminal = _Terminal()
    sys.stdout.flush()
    sys.stderr.flush()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        child = os.fork()
        if child == 0:
            _become(command, terminal, previous)
        _join_own_group(child)
        if monitor is not None:
            # After the fork, which takes no threads along; they inherit the blocked signals.
            monitor.start(child)
        status = _watch(child, terminal)
        terminal.take_back_from(child)
        return _exit_status(status)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _become(command: list[str], terminal: "_Terminal", mask: set[int]) -> NoReturn:
    """Turns the fork into the program; never returns into the supervisor's stack."""
    try:
        os.setpgid(0, 0)
        terminal.give_to(os.getpid())
        # Python ignores these two for itself; a program starts with the defaults.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(command[0], command)  # noqa: S606 - the user's program is what we are here to start
    except BaseException as exc:
        os.write(2, f"error: cannot start {command[0]}: {exc}\n".encode())
    finally:
        os._exit(126)


def _join_own_group(child: int) -> None:
    # Both sides set the group, so that neither has to wait for the other; one comes second and may be refused.
    try:
        os.setpgid(child, child)
    except OSError:
        return


def _watch(child: int, terminal: "_Terminal") -> int:
    """The wait status with which the child ended."""
    while True:
        info = signal.sigwaitinfo(_WATCHED)
        if info.si_signo == signal.SIGCHLD:
            status = _ended(child, terminal)
            if status is not None:
                return status
        elif info.si_signo == signal.SIGCONT:
            terminal.give_to(child)
            _send(child, signal.SIGCONT, to_group=True)
        else:
            # The terminal signals a whole group, `kill` one process.
            _send(child, info.si_signo, to_group=info.si_pid == 0)


def _ended(child: int, terminal: "_Terminal") -> int | None:
    """The wait status if the child has ended. If it was only stopped, this process stops too until it is resumed."""
    while True:
        found, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if found == 0:
            return None
        if not os.WIFSTOPPED(status):
            return status
        terminal.take_back_from(child)
        os.kill(os.getpid(), signal.SIGSTOP)


def _send(child: int, number: int, *, to_group: bool) -> None:
    try:
        (os.killpg if to_group else os.kill)(child, number)
    except ProcessLookupError:
        return


def _exit_status(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class _Terminal:
    """The terminal on stdin, lent to the program while it runs, if this process is in its foreground."""

    def __init__(self) -> None:
        self._own_group = os.getpgrp()

    def give_to(self, child: int) -> None:
        """Puts the program in the foreground if this process is there."""
        self._hand_over(self._own_group, child)

    def take_back_from(self, child: int) -> None:
        """Puts this process back in the foreground if the program is there."""
        self._hand_over(child, self._own_group)

    @staticmethod
    def _hand_over(giver: int, taker: int) -> None:
        try:
            if os.tcgetpgrp(0) == giver:
                os.tcsetpgrp(0, taker)
        except OSError:  # stdin is no terminal, or not ours
            return
