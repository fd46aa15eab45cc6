"""Maps one function over many items through an executor whose workers may be lost."""

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import TypeVar

from bottleneck.errors import TraceError, UsageError, WorkloadError
from bottleneck.mapping.workers import Workers
from bottleneck.units import counted

T = TypeVar("T")
R = TypeVar("R")

# Executors that are tried in turn: one that is broken loses what it has not done.
_EXECUTORS = 3
_LOOK_S = 1.0


def map_tasks(
    function: Callable[[T], R], items: Mapping[int, T], workers: Workers, size_bytes: int
) -> Generator[tuple[int, R | TraceError | UsageError], None, None]:
    """The result for each item by its key, in the order in which they get done; an error of the item is a result.

    Close this generator to end what still runs. Raises WorkloadError where workers were lost again and again.
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
