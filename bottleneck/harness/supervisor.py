"""Starts the user's program in a process group of its own, passes signals on, and waits for its end."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bottleneck.harness.notes import Plan

CHILD = Path(__file__).with_name("child.py")
_FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
_WATCHED = frozenset({*_FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD})
# Changing the terminal's foreground group from outside it stops the caller, unless this is blocked.
_BLOCKED = _WATCHED | {signal.SIGTTOU}
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class End:
    """How the program ended: the status that the system gave, and the most memory that one of its processes held."""

    wait_status: int
    peak_memory_bytes: int

    @property
    def signal(self) -> int | None:
        """The signal that ended it; null where it ended by itself."""
        return os.WTERMSIG(self.wait_status) if os.WIFSIGNALED(self.wait_status) else None

    @property
    def status(self) -> int:
        """The exit status as a shell shows it (128 + N for signal N)."""
        return 128 + self.signal if self.signal is not None else os.WEXITSTATUS(self.wait_status)


class Child:
    """The program's process; whoever sends it a signal can be sure that its number is not another's by now."""

    def __init__(self, process: int) -> None:
        self.process = process
        self._lock = threading.Lock()
        self._is_there = True

    def send(self, number: int, *, to_group: bool) -> None:
        """Sends a signal, unless the program has ended."""
        with self._lock:
            if not self._is_there:
                return
            try:
                (os.killpg if to_group else os.kill)(self.process, number)
            except ProcessLookupError:
                return

    def change(self) -> tuple[int, int] | None:
        """The wait status and the peak memory in bytes if it has stopped or ended since the last call."""
        with self._lock:
            found, status, usage = os.wait4(self.process, os.WNOHANG | os.WUNTRACED)
            if found == 0:
                return None
            self._is_there = os.WIFSTOPPED(status)
            # Linux counts in kilobytes, macOS in bytes.
            return status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def child_command(plan: Plan, arguments: Sequence[str]) -> list[str]:
    """The command line of the process that is the user's program."""
    return [
        sys.executable,
        *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]  # what multiprocessing uses
        str(CHILD),
        plan.to_json(),
        *arguments,
    ]


def supervise(command: list[str], started: Callable[[Child], None]) -> End:
    """The end of the program; ``started`` is told as soon as it runs, and must return at once.

    Signals are taken one by one from a blocked set: each reaches the program exactly once, whether it came from the
    terminal, to this process or to its group. Threads that ``started`` makes take none: they inherit the blocked set,
    and being made after the fork they are not lost in it.
    """
    terminal, prctl = _Terminal(), find_prctl()
    sys.stdout.flush()
    sys.stderr.flush()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        ours = os.getpid()
        process = os.fork()
        if process == 0:
            _become(command, terminal, previous, lambda: die_with(ours, prctl))
        _join_own_group(process)
        child = Child(process)
        started(child)
        end = _watch(child, terminal)
        terminal.take_back_from(process)
        _forget_pending()
        return end
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _become(command: list[str], terminal: "_Terminal", mask: set[int], bind: Callable[[], None]) -> NoReturn:
    """Turns the fork into the program; never returns into the supervisor's stack."""
    try:
        os.setpgid(0, 0)
        terminal.give_to(os.getpid())
        # Python ignores these two for itself; a program starts with the defaults.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        # What comes from now on is for the program, and must not run our handlers on the way to it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        bind()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(command[0], command)  # noqa: S606 - the user's program is what we are here to start
    except BaseException as exc:
        os.write(2, f"error: cannot start {command[0]}: {exc}\n".encode())
    finally:
        os._exit(126)


def find_prctl() -> Callable[..., Any] | None:
    """Linux's call of this name, found before the fork, after which little is safe; null elsewhere."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def die_with(supervisor: int, prctl: Callable[..., Any] | None) -> None:
    """Has the system terminate this process when the supervisor dies, so that no orphan stays that nobody waits for.

    By a signal that lets it save what was recorded. It may have died before the system was asked.
    """
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(128 + signal.SIGTERM)


def _join_own_group(child: int) -> None:
    # Both sides set the group, so that neither has to wait for the other; one comes second and may be refused.
    try:
        os.setpgid(child, child)
    except OSError:
        return


def _watch(child: Child, terminal: "_Terminal") -> End:
    """How the child ended."""
    while True:
        info = signal.sigwaitinfo(_WATCHED)
        if info.si_signo == signal.SIGCHLD:
            end = _ended(child, terminal)
            if end is not None:
                return end
        elif info.si_signo == signal.SIGCONT:
            terminal.give_to(child.process)
            child.send(signal.SIGCONT, to_group=True)
        else:
            # The terminal signals a whole group, `kill` one process.
            child.send(info.si_signo, to_group=info.si_pid == 0)


def _ended(child: Child, terminal: "_Terminal") -> End | None:
    """The end of the child. If it was only stopped, this process stops too until it is resumed."""
    while (change := child.change()) is not None:
        if not os.WIFSTOPPED(change[0]):
            return End(*change)
        terminal.take_back_from(child.process)
        os.kill(os.getpid(), signal.SIGSTOP)
    return None


def _forget_pending() -> None:
    """Takes the signals that came for the program after it had ended: it would not have seen them either."""
    while signal.sigtimedwait(_FORWARDED, 0) is not None:
        pass


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
