"""Maps one function over many items through workers that may be lost.

They are processes of this machine, or a cluster.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from bottleneck.errors import TraceError, UsageError, WorkloadError
from bottleneck.system.worker_process import LOST, WorkerProcess, receive_message, send_message, serving_streams
from bottleneck.units import counted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Processes take as long to start as one process takes to read this much JSON.
_WORTH_PROCESSES_BYTES = 32 * 2**20
# A task whose process was killed is tried again, but not for ever: one that needs too much memory ends each.
_TRIALS = 3
# Executors that are tried in turn: one that is broken loses what it has not done.
_EXECUTORS = 3
_LOOK_S = 1.0


class Workers(Protocol):
    """The processes or the cluster in which tasks run."""

    @property
    def at_once(self) -> int:
        """Returns how many tasks to submit at once.

        So many that no worker waits for one.
        """
        ...

    @property
    def repeated(self) -> int:
        """Tasks that were done again because a worker was lost."""
        ...

    def opened(self, tasks: int, size_bytes: int) -> AbstractContextManager[Executor]:
        """Opens an executor for so many tasks of so many bytes in all.

        Leaving the block ends what still runs.
        """
        ...

    def check(self) -> None:
        """Raises an error where no worker is left to wait for.

        It is called while nothing is done.
        """
        ...

    def item_error(self, failure: Exception) -> TraceError | None:
        """Returns the error of one item.

        Null where the failure of its task means something else.
        """
        ...


def map_tasks(
    function: Callable[[T], R], items: Mapping[int, T], workers: Workers, size_bytes: int
) -> Generator[tuple[int, R | TraceError | UsageError], None, None]:
    """Yields the result for each item by its key.

    They come in the order in which they get done; an error of the item is a result. Close this generator to end what
    still runs. Raises WorkloadError where workers were lost again and again.
    """
    undone = dict(items)
    for tried in range(_EXECUTORS):
        try:
            with workers.opened(len(undone), size_bytes) as executor:
                for key, result in _completed(function, undone, executor, workers):
                    del undone[key]
                    yield key, result
            return
        except BrokenExecutor as exc:
            if tried == _EXECUTORS - 1:
                raise WorkloadError(
                    f"worker processes were lost with {counted(len(undone), 'trace')} still to read",
                    why=str(exc) or "they were killed; a machine that runs out of memory does that",
                    fix="the same command with --resume reads only these; -j 1 needs the least memory",
                ) from exc


def _completed(
    function: Callable[[T], R], items: Mapping[int, T], executor: Executor, workers: Workers
) -> Generator[tuple[int, R | TraceError | UsageError], None, None]:
    waiting = iter(list(items.items()))
    running: dict[Future[R], int] = {}
    while True:
        at_once = workers.at_once
        while len(running) < at_once and (task := next(waiting, None)) is not None:
            future = executor.submit(function, task[1])
            running[future] = task[0]
            if future.done():
                break
        if not running:
            return
        done, _ = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        if not done:
            workers.check()
        for future in done:
            key = running.pop(future)
            try:
                result: R | TraceError | UsageError = future.result()
            except UsageError as error:
                result = error
            except Exception as failure:
                error_of_item = workers.item_error(failure)
                if error_of_item is None:
                    raise
                result = error_of_item
            yield key, result


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
    """Up to so many processes of this machine.

    It is this one alone where more are not worth their start.
    """

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
    """Runs tasks in processes of its own.

    One that is killed costs its own task only, which is tried again. The pool of the standard library is broken as a
    whole by one process that is killed.
    """

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs)
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._all: list[WorkerProcess] = []
        self._is_killed = False
        self.repeated = 0

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Runs the task once a process is free.

        Raises TraceError where each process that took it was killed.
        """
        return self._threads.submit(self._run, fn, args, kwargs)

    def _run(self, function: Callable[..., R], args: Any, kwargs: Any) -> R:
        for trial in range(_TRIALS):
            self.repeated += 1 if trial else 0
            process = self._free()
            try:
                process.send((function, args, kwargs))
                is_result, result = process.receive()
            except LOST:
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

    def _free(self) -> WorkerProcess:
        try:
            return self._idle.get_nowait()
        except Empty:
            process = WorkerProcess(__name__, "serve()")
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


def serve() -> None:
    """Answers the tasks that it gets, until there are no more.

    It is the program of such a process.
    """
    tasks, answers = serving_streams()
    with suppress(EOFError, BrokenPipeError):
        while True:
            function, args, kwargs = receive_message(tasks)
            try:
                answer = (True, function(*args, **kwargs))
            except Exception as failure:
                answer = (False, failure)
            send_message(answer, answers)
