"""Runs commands as children of this process.

The user's program gets its terminal and signals, others run quietly.

``supervise`` lends the user's program the terminal and passes signals on; ``run_quietly`` runs a command whose output
goes into a log. Every process is a ``Child`` of ``system.child_process``.

Under `--nproc-per-node` one supervisor has all ranks as children of torchrun. Under a launcher of the user's each rank
has a supervisor of its own.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottleneck.harness.machine import count_memory_kills
from bottleneck.harness.messages import Plan
from bottleneck.system.child_process import Child, End

# The file that starts a process of ours, and the function that it calls there to run the user's program.
CHILD = str(Path(__file__).with_name("child.py"))
_RUN_CHILD = "bottleneck.harness.run_child:run_child"


def _signals(*names: str) -> frozenset[signal.Signals]:
    """Those that this system has: modules that only read recordings import this one too."""
    return frozenset(getattr(signal, name) for name in names if hasattr(signal, name))


_FORWARDED = _signals("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_WATCHED = _FORWARDED | _signals("SIGTSTP", "SIGCONT", "SIGCHLD")
# Changing the terminal's foreground group from outside it stops the caller, unless this is blocked.
_BLOCKED = _WATCHED | _signals("SIGTTOU")
_CANNOT_START = 126 << 8  # the wait status of a shell's command that is found and cannot be run
_PATIENCE_S = 3.0
_TAIL_BYTES, _LONGEST_LINE = 20_000, 200


class _LeaderlessGroup:
    """A process group of which no program is the leader.

    Only a process that is not the leader can call `setsid`.

    Its leader ends as soon as the program is in the group, and is waited for at ``close``: until then the number of the
    group cannot become another's, wherever the program goes.
    """

    def __init__(self) -> None:
        until, held_open = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            os.setpgid(0, 0)
            os.close(held_open)
            os.read(until, 1)
            os._exit(0)
        with contextlib.suppress(PermissionError):  # as shells do: whichever of the two comes first
            os.setpgid(self.number, self.number)
        os.close(until)
        self._held_open: int | None = held_open

    def release_leader(self) -> None:
        """Lets the leader end, now that another process is in the group."""
        if self._held_open is not None:
            os.close(self._held_open)
            self._held_open = None

    def close(self) -> None:
        """Gives the number back."""
        self.release_leader()
        os.waitpid(self.number, 0)


def child_command(plan: Plan, entry: str = _RUN_CHILD) -> list[str]:
    """Gives the command line of the process that is the user's program.

    ``entry`` is the function that runs it.
    """
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # what multiprocessing uses
    return [sys.executable, *flags, CHILD, entry, *plan.words]


def supervise(command: list[str], started: Callable[[Child], None]) -> End:
    """Runs the program to its end, and gives that.

    ``started`` is told as soon as it runs, and must return at once.

    Signals are taken one by one from a blocked set: each reaches the program exactly once, whether it came from the
    terminal, to this process or to its group. Threads that ``started`` makes take none: they inherit the blocked set,
    and being made after the fork they are not lost in it.
    """
    terminal = _Terminal()
    sys.stdout.flush()
    sys.stderr.flush()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)

    def prepare() -> None:
        terminal.give_to(os.getpgrp())
        # What comes from now on is for the program, and must not run our handlers on the way to it.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    with contextlib.ExitStack() as at_end:
        at_end.callback(signal.pthread_sigmask, signal.SIG_SETMASK, previous)
        group = _LeaderlessGroup()
        at_end.callback(group.close)
        try:
            child = Child(command, prepare=prepare, process_group=group.number, close_fds=False)
        except OSError as error:
            if error.filename is None:  # not the command: there can be no further process
                raise
            print(f"error: cannot start {command[0]}: {error}\n  fix: see that this file runs", file=sys.stderr)
            return End(_CANNOT_START, 0)
        group.release_leader()
        started(child)
        end = _watch(child, terminal)
        terminal.take_back_from(child.group)
        _forget_pending()
        return end


def _watch(child: Child, terminal: "_Terminal") -> End:
    """The end of the child."""
    while True:
        info = signal.sigwaitinfo(_WATCHED)
        if info.si_signo == signal.SIGCHLD:
            end = _ended(child, terminal)
            if end is not None:
                return end
        elif info.si_signo == signal.SIGCONT:
            terminal.give_to(child.group)
            child.send(signal.SIGCONT, to_group=True)
        else:
            # The terminal signals a whole group, `kill` one process.
            child.send(info.si_signo, to_group=info.si_pid == 0)


def _ended(child: Child, terminal: "_Terminal") -> End | None:
    """Gives the end of the child, null while it runs.

    If it was only stopped, this process stops too until it is resumed.
    """
    while child.end is None and child.change() is not None:
        if child.end is None:
            terminal.take_back_from(child.group)
            os.kill(os.getpid(), signal.SIGSTOP)
    return child.end


def _forget_pending() -> None:
    """Takes the signals that came for the program after it had ended.

    It would not have seen them either.
    """
    while signal.sigtimedwait(_FORWARDED, 0) is not None:
        pass


class _Terminal:
    """The terminal on stdin, lent to the program while it runs.

    Only if this process is in its foreground.
    """

    def __init__(self) -> None:
        self._own_group = os.getpgrp()

    def give_to(self, group: int) -> None:
        """Puts the program's group in the foreground if this process is there."""
        self._hand_over(self._own_group, group)

    def take_back_from(self, group: int) -> None:
        """Puts this process back in the foreground if the program's group is there."""
        self._hand_over(group, self._own_group)

    @staticmethod
    def _hand_over(giver: int, taker: int) -> None:
        try:
            if os.tcgetpgrp(0) == giver:
                os.tcsetpgrp(0, taker)
        except OSError:  # stdin is no terminal, or not ours
            return


_MEANINGS_OF: Mapping[str, str] = {
    "SIGHUP": "its terminal or session ended",
    "SIGINT": "it was interrupted",
    "SIGQUIT": "it was told to quit",
    "SIGILL": "native code used an instruction that this processor lacks",
    "SIGABRT": "native code gave up, after a failed check or a corrupted heap",
    "SIGBUS": "native code read memory that could not be had: often /dev/shm is too small for a data loader",
    "SIGFPE": "native code divided by zero",
    "SIGSEGV": "native code crashed",
    "SIGPIPE": "the reader of its output went away",
    "SIGTERM": "it was told to end, as batch systems and containers do",
    "SIGXCPU": "its limit of CPU time was reached",
}
_MEANINGS: Mapping[int, str] = {
    getattr(signal, name): text for name, text in _MEANINGS_OF.items() if hasattr(signal, name)
}


@dataclass(frozen=True)
class MemoryKills:
    """Memory kills in the program's control group before it began.

    Null where the count is unknown.
    """

    before: int | None

    def since(self) -> int | None:
        """The kills since then."""
        now = count_memory_kills()
        return None if now is None or self.before is None else now - self.before


def describe_end(end: End, steps: int | None, memory_kills: int | None) -> str:
    """Describes the end of a program in one sentence.

    It has no full stop. ``steps`` are those that were seen, null where they were not counted.
    """
    after = f" after {steps} step{'s' * (steps != 1)}" if steps is not None else ""
    if end.signal is None:
        return f"the program ended with status {end.status}{after}"
    ending = f"the program ended by signal {end.signal} ({end.signal_name}){after}"
    meaning = _killed(end, memory_kills) if end.signal == signal.SIGKILL else _MEANINGS.get(end.signal)
    return f"{ending}: {meaning}" if meaning else ending


def _killed(end: End, memory_kills: int | None) -> str:
    held = f"one of its processes held {end.peak_memory_bytes / 1e9:.2g} GB of memory"
    if memory_kills:
        return f"the system killed it for lack of memory; {held}"
    if memory_kills == 0:
        return f"it was killed; not for lack of memory, by what its control group counts, though {held}"
    return f"it was killed, perhaps by the system for lack of memory; {held}"


@dataclass(frozen=True)
class QuietRun:
    """The end of a program whose output goes into a log.

    Also the last that it wrote to stderr.
    """

    end: End
    stderr: str


def run_quietly(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    folder: Path | None = None,
    started: Callable[[int], None] | None = None,
) -> QuietRun:
    """Runs a command quietly to its end, and gives that.

    What it writes to stderr goes into ``log``, the rest nowhere.

    It starts in ``folder``, or where we are, without a terminal, so that Ctrl-C reaches us alone. ``started`` is called
    with the number of its process, with all signals blocked: threads that it makes take none, so that they still
    interrupt the wait of the main thread. Whatever exception ends the wait, the process and all that it started are
    told to end and killed if they do not, before the exception goes on.
    """
    with log.open("wb") as stderr:
        child = Child(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        if started is not None:
            previous = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                started(child.process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        return QuietRun(child.wait(), read_tail(log))
    except BaseException:
        child.end_tree(_PATIENCE_S, lambda: child.send(signal.SIGTERM, to_group=True))
        raise


def read_tail(log: Path) -> str:
    """The end of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def last_line(text: str) -> str:
    """The last line of what a program wrote, cut; empty where it wrote nothing."""
    lines = text.strip().splitlines()
    return lines[-1].strip()[:_LONGEST_LINE] if lines else ""


_LAUNCH_RANKS = "bottleneck.harness.supervise:launch_ranks"


def program_command(plan: Plan) -> list[str]:
    """Gives the command line of the program's process.

    It is that of torchrun with the program as each rank, where there are ranks.
    """
    ranks, program = plan.options.nproc_per_node, plan.program
    if ranks is None:
        return child_command(plan)
    text, *arguments = plan.words
    kind = "module" if program.module else "script"
    child = [CHILD, _RUN_CHILD, text]
    return [sys.executable, CHILD, _LAUNCH_RANKS, ranks, kind, *child, program.target, *arguments]


def launch_ranks(ranks: str, kind: str, *words: str) -> None:
    """Starts the ranks by torchrun itself, in this process.

    Our child stands in place of the script that each rank runs.

    ``words`` start that child (its file, entry and plan), then name the program and its arguments. Torchrun says, sets
    and does what it would without us, and calls the program by the user's target.
    """
    from torch.distributed import run
    from torch.distributed.launcher import api

    child, program = words[:3], words[3:]
    plain = run.config_from_args

    def config_from_args(args: Any) -> Any:
        config, command, arguments = plain(args)
        # Of `-u [-m] TARGET ARGUMENTS…` the last two are replaced; `-u` is torchrun's own.
        return config, command, [arguments[0], *child, *program[1:]]

    run.config_from_args = config_from_args
    if hasattr(api, "_get_entrypoint_name"):
        api._get_entrypoint_name = lambda *_: program[0]
    # As torchrun calls itself in messages.
    sys.argv[0] = str(Path(sys.executable).with_name("torchrun"))
    run.main([f"--nproc-per-node={ranks}", *(["-m"] if kind == "module" else []), *program])
