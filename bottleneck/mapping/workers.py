"""The processes that tasks are mapped to, each kind behind the same seam: ``concurrent.futures.Executor``."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import IO, Any, ParamSpec, Protocol, TypeVar, cast

from bottleneck.errors import TraceError

P = ParamSpec("P")
R = TypeVar("R")

# Processes take as long to start as one process takes to read this much JSON.
_WORTH_PROCESSES_BYTES = 32 * 2**20
# A task whose process was killed is tried again, but not for ever: one that needs too much memory ends each.
_TRIALS = 3


class Workers(Protocol):
    """The processes or the cluster in which tasks run."""

    @property
    def at_once(self) -> int:
        """The number of tasks to submit at once: enough that no worker waits for one."""
        ...

    @property
    def repeated(self) -> int:
        """Tasks that were done again because a worker was lost."""
        ...

    def opened(self, tasks: int, size_bytes: int) -> AbstractContextManager[Executor]:
        """An executor for so many tasks that read so many bytes in all; leaving the block ends what still runs."""
        ...

    def check(self) -> None:
        """Raises an error where no worker is left to wait for; called while nothing is done."""
        ...

    def item_error(self, failure: Exception) -> TraceError | None:
        """The error of one item, where that is what the failure of its task means."""
        ...


class InProcess(Executor):
    """Runs each task in this process when it is submitted."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """The finished task."""
        future: Future[R] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as failure:
            future.set_exception(failure)
        return future


@dataclass
class LocalWorkers:
    """Up to so many processes of this machine; this one alone where more are not worth their start."""

    jobs: int = 1
    repeated: int = field(default=0, init=False)

    @property
    def at_once(self) -> int:
        """Two for each process."""
        return 2 * self.jobs

    @contextmanager
    def opened(self, tasks: int, size_bytes: int) -> Iterator[Executor]:
        """A pool of processes, or this process."""
        jobs = min(self.jobs, tasks)
        if jobs < 2 or size_bytes < _WORTH_PROCESSES_BYTES:
            yield InProcess()
            return
        pool = ProcessPool(jobs)
        try:
            yield pool
        finally:
            pool.kill()
            pool.shutdown(cancel_futures=True)
            self.repeated += pool.repeated

    def check(self) -> None:
        """Nothing: a process that is lost is replaced."""

    def item_error(self, failure: Exception) -> TraceError | None:
        """The failure itself, where it is the item's own."""
        return failure if isinstance(failure, TraceError) else None


class ProcessPool(Executor):
    """Runs tasks in processes of its own; one that is killed costs its own task only, which is tried again.

    The pool of the standard library is broken as a whole by one process that is killed, and runs the user's main script
    again in each; a fork of a process with threads can hang.
    """

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs)
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._all: list[_Process] = []
        self._is_killed = False
        self.repeated = 0

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """The task, once a process is free; TraceError where each process that took it was killed."""
        return self._threads.submit(self._run, fn, args, kwargs)

    def _run(self, function: Callable[..., R], args: Any, kwargs: Any) -> R:
        for trial in range(_TRIALS):
            self.repeated += 1 if trial else 0
            process = self._free()
            try:
                is_result, result = process.answer((function, args, kwargs))
            except (EOFError, OSError, pickle.UnpicklingError):
                process.end()
                if self._is_killed:
                    break
                continue
            self._idle.put(process)
            if is_result:
                return cast("R", result)
            raise result
        raise TraceError(
            f"each process that read it was ended, {_TRIALS} in a row",
            why="they were killed; a machine that runs out of memory does that",
            fix="-j 1 needs the least memory; --resume keeps what is done",
        )

    def _free(self) -> "_Process":
        try:
            return self._idle.get_nowait()
        except Empty:
            process = _Process()
            self._all.append(process)
            if self._is_killed:
                process.end()
            return process

    def kill(self) -> None:
        """Ends all processes at once, and with them the tasks that run."""
        self._is_killed = True
        for process in [*self._all]:
            process.end()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As of every executor."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


class _Process:
    """A process that serves tasks one by one."""

    def __init__(self) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from bottleneck.mapping.workers import serve; serve()"
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def answer(self, task: object) -> tuple[bool, Any]:
        """True and the result of the task, or false and the error that it raised; EOFError where the process ended."""
        tasks, answers = self._process.stdin, self._process.stdout
        assert tasks is not None and answers is not None
        _send(task, tasks)
        return cast("tuple[bool, Any]", pickle.load(answers))  # noqa: S301 - from a process that we started

    def end(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def serve() -> None:
    """The program of a process: answers the tasks on standard input until that ends."""
    # The one who gives the tasks is interrupted too, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(EOFError, BrokenPipeError):
        while True:
            function, args, kwargs = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
            try:
                answer = (True, function(*args, **kwargs))
            except Exception as failure:
                answer = (False, failure)
            _send(answer, answers)


def _send(message: object, stream: IO[bytes]) -> None:
    stream.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    stream.flush()
