"""Starts the user's program in a process group of its own, passes signals on, and waits for its end.

Under `--nproc-per-node` one supervisor has all ranks as children of torchrun. Under a launcher of the user's each rank
has a supervisor of its own.
"""

import contextlib
import ctypes
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bottleneck.errors import UsageError
from bottleneck.harness.machine import count_memory_kills
from bottleneck.harness.messages import Plan, rank_of
from bottleneck.schema.recording import Form

if TYPE_CHECKING:
    import psutil

# The file that starts a process of ours, and the function that it calls there to run the user's program.
CHILD = str(Path(__file__).with_name("child.py"))
_RUN_CHILD = "bottleneck.harness.run_child:run_child"
_FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
_WATCHED = frozenset({*_FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD})
# Changing the terminal's foreground group from outside it stops the caller, unless this is blocked.
_BLOCKED = _WATCHED | {signal.SIGTTOU}
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class End:
    """The end of the program: the status that the system gave, and the most memory that one of its processes held."""

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


def child_command(plan: Plan, arguments: Sequence[str], entry: str = _RUN_CHILD) -> list[str]:
    """The command line of the process that is the user's program; ``entry`` is the function that runs it."""
    return [
        sys.executable,
        *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]  # what multiprocessing uses
        CHILD,
        entry,
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
    """The end of the child."""
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


_MEANINGS = {
    signal.SIGHUP: "its terminal or session ended",
    signal.SIGINT: "it was interrupted",
    signal.SIGQUIT: "it was told to quit",
    signal.SIGILL: "native code used an instruction that this processor lacks",
    signal.SIGABRT: "native code gave up, after a failed check or a corrupted heap",
    signal.SIGBUS: "native code read memory that could not be had: often /dev/shm is too small for a data loader",
    signal.SIGFPE: "native code divided by zero",
    signal.SIGSEGV: "native code crashed",
    signal.SIGPIPE: "the reader of its output went away",
    signal.SIGTERM: "it was told to end, as batch systems and containers do",
    signal.SIGXCPU: "its limit of CPU time was reached",
}


@dataclass(frozen=True)
class MemoryKills:
    """The kills for lack of memory that the program's control group counted before it began; null where unknown."""

    before: int | None

    def since(self) -> int | None:
        """The kills since then."""
        now = count_memory_kills()
        return None if now is None or self.before is None else now - self.before


def describe_end(end: End, steps: int | None, memory_kills: int | None) -> str:
    """One sentence without a full stop; ``steps`` are those that were seen, null where they were not counted."""
    after = f" after {steps} step{'s' * (steps != 1)}" if steps is not None else ""
    if end.signal is None:
        return f"the program ended with status {end.status}{after}"
    told = f"the program ended by signal {end.signal} ({_name(end.signal)}){after}"
    if end.signal == signal.SIGKILL:
        return f"{told}: {_killed(end, memory_kills)}"
    meaning = _MEANINGS.get(signal.Signals(end.signal)) if end.signal in _numbers() else None
    return f"{told}: {meaning}" if meaning else told


def _killed(end: End, memory_kills: int | None) -> str:
    held = f"one of its processes held {end.peak_memory_bytes / 1e9:.2g} GB of memory"
    if memory_kills:
        return f"the system killed it for lack of memory; {held}"
    if memory_kills == 0:
        return f"it was killed; not for lack of memory, by what its control group counts, though {held}"
    return f"it was killed, perhaps by the system for lack of memory; {held}"


def _numbers() -> frozenset[int]:
    return frozenset(signal.Signals)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in _numbers() else "real-time"


_PATIENCE_S = 3.0
_GONE_S = 2.0
_LOOK_S = 0.02
_TAIL_BYTES = 20_000


@dataclass(frozen=True)
class QuietRun:
    """The end of a program whose output goes into a log, and the last that it wrote to stderr."""

    end: End
    stderr: str


def run_quietly(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    folder: Path | None = None,
    started: Callable[[int], None] | None = None,
) -> QuietRun:
    """The end of the command; what it writes to stderr goes into ``log``, the rest nowhere.

    It starts in ``folder``, or where we are. ``started`` is called with the number of its process, with all signals
    blocked: threads that it makes take none, so that they still interrupt the wait of the main thread.

    It leads a process group of its own, so that Ctrl-C reaches us alone. Whatever exception ends the wait, it and
    all that it started are told to end and killed if they do not, before the exception goes on. It is told to end, too,
    when we die.
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
        if started is not None:
            previous = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                started(process.pid)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        end = _end_of(process)
    except BaseException:
        if process.returncode is None:
            try:
                end_tree(process.pid, _PATIENCE_S, signal.SIGTERM)
            finally:
                _end_of(process)
        raise
    return QuietRun(end, _tail(log))


def _end_of(process: "subprocess.Popen[bytes]") -> End:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux counts in kilobytes, macOS in bytes.
    return End(status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def end_tree(leader: int, patience_s: float, request: signal.Signals | None = None) -> bool:
    """Ends a process that leads a group, and all that it started; true if it ended by itself in this time.

    Its group is sent ``request`` first, then given time, then killed with every descendant that left the group. The
    caller has to wait for the leader afterwards: until then its number cannot be another process's.
    """
    import psutil  # the user's process imports this module for the names of its ranks, and needs none of it

    started = _descendants(leader)
    try:
        if request is not None:
            _signal(leader, request)
        until_s = time.monotonic() + patience_s
        while not has_ended(leader) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return has_ended(leader)
    finally:
        started |= _descendants(leader)
        _signal(leader, signal.SIGKILL)
        for each in started:
            # psutil does not confuse one that left the group with a later process of its number.
            with contextlib.suppress(psutil.Error):
                each.kill()
        # A killed process is there until the system has taken it apart.
        psutil.wait_procs(started, timeout=_GONE_S)


def _descendants(process: int) -> "set[psutil.Process]":
    """The processes that it started and that those started, as long as they can be found from it."""
    import psutil

    try:
        return set(psutil.Process(process).children(recursive=True))
    except psutil.Error:
        return set()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended by itself
        os.killpg(group, number)


def has_ended(process: int) -> bool:
    """True if a child of this process has ended and was not waited for yet."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


_LAUNCHER = Path(__file__).with_name("launcher.py")
# A number, or a word for which torchrun counts devices: gpu, cpu, auto, xpu or that of another backend.
_RANKS = re.compile(r"[1-9][0-9]{0,5}|[a-z]\w*")


def program_command(plan: Plan, arguments: Sequence[str]) -> list[str]:
    """The command line of the process that is the user's program, or of torchrun with it as each rank."""
    if plan.nproc_per_node is None:
        return child_command(plan, arguments)
    kind = "module" if plan.module else "script"
    return [
        sys.executable,
        str(_LAUNCHER),
        plan.nproc_per_node,
        kind,
        CHILD,
        _RUN_CHILD,
        plan.to_json(),
        plan.target,
        *arguments,
    ]


def check_ranks(wanted: str | None, form: Form, target: str, environment: Mapping[str, str]) -> None:
    """UsageError where the ranks that are asked for cannot be started, or the program cannot be run by several."""
    if wanted is not None and not _RANKS.fullmatch(wanted):
        raise UsageError(
            f"--nproc-per-node {wanted} is no number of ranks", fix="write --nproc-per-node 2, or auto, gpu or cpu"
        )
    if wanted is not None and importlib.util.find_spec("torch") is None:
        raise UsageError(
            "--nproc-per-node needs torch, which is not installed here",
            why="torchrun, which is part of it, starts the ranks",
            fix="pip install torch, or leave --nproc-per-node out",
        )
    if form != "script" and (wanted is not None or job_of(environment) is not None):
        raise UsageError(
            f"{target} is a {form}, which runs in one process",
            why="each rank would repeat its step as often as it sees fit, and the collectives would wait for ever",
            fix="run a script that makes its own process group and steps through its loop",
        )


@dataclass(frozen=True)
class Job:
    """One rank among those that a launcher of the user's started: its number, how many there are, and what names them.

    ``name`` is the same for all ranks of the job and, as far as the launcher tells, for no other.
    """

    rank: int
    ranks: int
    name: str


# Variables that together name the job, of torchrun and of Slurm.
_NAMES = (("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"), ("SLURM_JOB_ID", "SLURM_STEP_ID"))


def job_of(environment: Mapping[str, str]) -> Job | None:
    """The job that this process is a rank of; null where it is on its own."""
    rank, ranks = rank_of(environment)
    if not rank < ranks or ranks < 2:
        return None
    names = _NAMES[0 if environment.get("RANK", "").isdecimal() else 1]
    told = [environment[name] for name in names if environment.get(name)]
    return Job(rank, ranks, "-".join(re.sub(r"\W+", "-", each) for each in told))
