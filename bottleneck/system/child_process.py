"""Starts processes and ends them with all that they started.

They are the user's program, workers, and commands that run quietly.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOOK_S, _GONE_S = 0.02, 2.0


@dataclass(frozen=True)
class End:
    """End of a process.

    It holds the status that the system gave, and the most memory that one of its processes held.
    """

    wait_status: int
    peak_memory_bytes: int

    @property
    def signal(self) -> int | None:
        """The signal that ended it; null where it ended by itself."""
        return os.WTERMSIG(self.wait_status) if os.WIFSIGNALED(self.wait_status) else None

    @property
    def signal_name(self) -> str:
        """The name of that signal, such as SIGSEGV."""
        try:
            return signal.Signals(self.signal or 0).name
        except ValueError:
            return "real-time signal"

    @property
    def status(self) -> int:
        """The exit status as a shell shows it (128 + N for signal N)."""
        return 128 + self.signal if self.signal is not None else os.WEXITSTATUS(self.wait_status)


def work_in_fork(work: Callable[[Callable[[str], None]], object]) -> Callable[[], str]:
    """Begins work in a fork, and returns what waits for its end.

    ``work`` gets a function that takes lines; the wait gives all of them, or raises RuntimeError where the work failed.
    Call it while no other thread holds a lock that the work may need: the fork has the locks and not the threads.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            with os.fdopen(writing, "w", encoding="utf-8") as texts:
                try:
                    work(partial(print, file=texts))
                    status = 0
                except BaseException:  # all that is left of it are its words and the status
                    texts.write(traceback.format_exc())
        finally:
            os._exit(status)
    os.close(writing)

    def wait() -> str:
        with os.fdopen(reading, encoding="utf-8") as texts:
            text = texts.read()
        _, status = os.waitpid(process, 0)
        if status:
            raise RuntimeError(f"a fork of this process ended with wait status {status}: {text}")
        return text

    return wait


@contextlib.contextmanager
def _deferred_signals() -> Iterator[None]:
    """Lets the handlers of Python wait until the block is through.

    What they raise while a process forks is lost: Python calls functions of its library then, whose exceptions it
    prints and drops.
    """
    taken: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    own = {number: handler for number, handler in handlers.items() if callable(handler)}
    is_main = threading.current_thread() is threading.main_thread()  # the only one in which handlers run
    for handled in own if is_main else ():
        signal.signal(handled, lambda number, _frame: taken.append(number))
    try:
        yield
    finally:
        for number, handler in own.items() if is_main else ():
            signal.signal(number, handler)
        for late in taken:
            signal.raise_signal(late)


class Child:
    """Process in a group of its own.

    The system ends it when this one dies. The process leads the group, unless ``process_group`` names another. On Linux
    it is ended by the signal ``at_our_death``: by default one that lets it save what was recorded; null where it sees
    our end by itself, and a thread may start it. ``prepare`` is called in the new process before it becomes the
    command. ``settings`` are those of ``subprocess.Popen``. Whoever sends it a signal can be sure that its number is
    not another's by now.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        at_our_death: signal.Signals | None = signal.SIGTERM,
        prepare: Callable[[], None] = lambda: None,
        **settings: Any,
    ) -> None:
        # Found before the fork, after which little is safe.
        ours, prctl = os.getpid(), ctypes.CDLL(None).prctl if sys.platform == "linux" else None

        def become() -> None:
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, at_our_death, 0, 0, 0)
                if os.getppid() != ours:  # it died before the system was asked
                    os._exit(128 + signal.SIGTERM)
            prepare()

        # Python code between fork and exec is safe only where no other thread runs.
        settings["preexec_fn"] = None if at_our_death is None else become
        started: subprocess.Popen[bytes] | None = None
        try:
            with _deferred_signals():
                started = subprocess.Popen(command, **settings)  # noqa: S603 - commands of ours, or the user's own
        except KeyboardInterrupt:
            if started is not None:  # else it came before the first moment of the process
                started.kill()
                started.wait()
            raise
        self._popen = started
        self.process = self._popen.pid
        self.group: int = settings.get("process_group") or self.process
        self.end: End | None = None
        self._lock = threading.Lock()

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its standard input and output, where ``settings`` made pipes of them."""
        return cast("IO[bytes]", self._popen.stdin), cast("IO[bytes]", self._popen.stdout)

    @property
    def has_ended(self) -> bool:
        """True if it has ended, even if nobody has waited for it yet."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self.end is not None or os.waitid(os.P_PID, self.process, flags) is not None

    def send(self, number: int, *, to_group: bool) -> None:
        """Sends a signal, unless the process was waited for."""
        with self._lock:
            if self.end is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended by itself
                    if to_group:
                        os.killpg(self.group, number)
                    else:
                        os.kill(self.process, number)

    def change(self) -> int | None:
        """The wait status if it has stopped or ended since the last call."""
        with self._lock:
            if self.end is not None:
                return None
            changed, status, usage = os.wait4(self.process, os.WNOHANG | os.WUNTRACED)
            if changed and not os.WIFSTOPPED(status):
                # Linux counts in kilobytes, macOS in bytes.
                self.end = End(status, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
                self._popen.returncode = self.end.status
        return status if changed else None

    def wait(self) -> End:
        """Its end, which is waited for."""
        while self.end is None:
            with contextlib.suppress(ChildProcessError):  # another thread waited for it
                os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOWAIT)
            self.change()
        return self.end

    def end_tree(self, patience_s: float, ask: Callable[[], object] = lambda: None) -> bool:
        """Ends it and all that it started.

        True if it ended by itself in this time. ``ask`` asks it to end. It is given time for that, and then its group
        is killed with every descendant that left the group. These are looked for before: once it has ended, they cannot
        be found from it any more.
        """
        if self.end is not None:
            return True
        started = _descendants(self.process)
        try:
            ask()
            until_s = time.monotonic() + patience_s
            while not self.has_ended and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
            return self.has_ended
        finally:
            started |= _descendants(self.process)
            self.send(signal.SIGKILL, to_group=True)
            self.send(signal.SIGKILL, to_group=False)  # it may have left the group
            _kill(started)
            self.wait()


def _descendants(process: int) -> "set[psutil.Process]":
    """Returns the processes that it started, and those that they started.

    They are those that can still be found from it.
    """
    try:
        import psutil  # noqa: PLC0415 - the user's process imports this module, and needs none of it
    except ImportError:  # `bottleneck doctor` says so
        return set()
    try:
        return set(psutil.Process(process).children(recursive=True))
    except psutil.Error:
        return set()


def _kill(processes: "set[psutil.Process]") -> None:
    """Kills processes, and waits until they are gone."""
    if not processes:
        return
    import psutil  # noqa: PLC0415 - as above

    for process in processes:
        # psutil does not confuse one that left the group with a later process of its number.
        with contextlib.suppress(psutil.Error):
            process.kill()
    # A killed process is there until the system has taken it apart.
    psutil.wait_procs(processes, timeout=_GONE_S)
