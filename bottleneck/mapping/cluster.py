"""Workers of a Dask cluster, behind the seam of ``workers``.

``distributed`` is an optional extra. Chosen by measuring: where one worker of two is killed, Dask repeats that worker's
tasks only.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from bottleneck.errors import TraceError, UsageError, WorkloadError
from bottleneck.mapping.workers import LocalWorkers

P = ParamSpec("P")
R = TypeVar("R")

_LOCAL = re.compile(r"local:([1-9]\d{0,3})")
_REMOTE = re.compile(r"(tcp|tls|ucx|ws|wss)://.+")
# A scheduler that starts workers anew, or waits for a batch system, needs some seconds.
_PATIENCE_S = 20.0
# Dask logs each lost worker, some with tracebacks; the report tells in its own words what was lost.
_LOGGERS = ("distributed", "tornado", "asyncio")
_GO_ON = "the same command with --resume reads only the ranks that are missing"


class ClusterWorkers:
    """The workers of a Dask scheduler (tcp://HOST:PORT), or so many of this machine (local:N)."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        local = _LOCAL.fullmatch(address)
        if local is None and not _REMOTE.fullmatch(address):
            raise UsageError(
                f"--cluster {address} is no address of a Dask cluster",
                fix="name its scheduler, tcp://HOST:8786, or a number of workers here, local:8",
            )
        self._count = int(local[1]) if local else None
        self._address = address
        self._clock = clock
        self._client: Any = None
        self._empty_since_s: float | None = None
        self._dask: Any = _distributed()
        # Tasks that were done again, because the worker that did them or held their result was lost.
        self.repeated = 0

    @property
    def at_once(self) -> int:
        """Returns one for each thread of the workers.

        A worker that is lost costs no more than what it was doing.
        """
        return max(1, sum(self._threads().values()))

    @contextmanager
    def opened(self, tasks: int, size_bytes: int) -> Iterator[Executor]:  # noqa: ARG002 - as of all workers
        """The executor of a client of the cluster."""
        with ExitStack() as stack:
            stack.enter_context(_quiet())
            address = self._address if self._count is None else stack.enter_context(self._started(self._count))
            try:
                self._client = stack.enter_context(self._dask.Client(address, set_as_default=False))
            except OSError as exc:
                raise WorkloadError(
                    f"cannot reach the Dask scheduler at {self._address}",
                    why=str(exc),
                    fix="start it: dask scheduler, and on each machine: dask worker tcp://HOST:8786",
                ) from exc
            executor = _ClientExecutor(self._client)
            try:
                yield executor
            finally:
                self.repeated += self._lost(executor.keys)
                executor.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _started(self, count: int) -> Iterator[Any]:
        """Starts a cluster of so many workers of this machine.

        Raises BrokenExecutor where one is lost while it starts.
        """
        try:
            # They may use the memory of this machine as other processes of the report do.
            cluster = self._dask.LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                memory_limit=0,
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                silence_logs=logging.CRITICAL,
            )
        except RuntimeError as exc:
            raise BrokenExecutor(f"the Dask cluster did not start: {exc}") from exc
        with cluster:
            yield cluster

    def _lost(self, keys: set[str]) -> int:
        """Counts how often the scheduler gave these tasks to another worker."""
        try:
            events = self._client.get_events("all")
        except (OSError, TimeoutError, RuntimeError, ValueError):
            return 0
        lost = [event for _, event in events if isinstance(event, dict) and event.get("action") == "remove-worker"]
        kinds = ("processing-tasks", "lost-computed-tasks")
        return sum(len(keys.intersection(event.get(kind, ()))) for event in lost for kind in kinds)

    def check(self) -> None:
        """Raises WorkloadError where the cluster has no worker.

        It has had none for a while then, or its scheduler is gone.
        """
        if self._threads():
            self._empty_since_s = None
            return
        now_s = self._clock()
        self._empty_since_s = now_s if self._empty_since_s is None else self._empty_since_s
        if now_s - self._empty_since_s >= _PATIENCE_S:
            raise WorkloadError(
                f"no worker of the Dask cluster {self._address} is left", why="all were ended or lost", fix=_GO_ON
            )

    def item_error(self, failure: Exception) -> TraceError | None:
        """Returns the failure itself, or the error of the item.

        The error says that each worker that took the item was killed. Raises WorkloadError for a lost scheduler.
        """
        if isinstance(failure, self._dask.KilledWorker):
            return TraceError(
                "reading it ended each worker that took it",
                why="they were killed; a machine that runs out of memory does that",
                fix="give the workers more memory",
            )
        if type(failure).__name__ in {"CancelledError", "FutureCancelledError", "CommClosedError"}:
            raise WorkloadError(
                f"the Dask scheduler at {self._address} is gone", why=str(failure), fix=_GO_ON
            ) from failure
        return LocalWorkers().item_error(failure)

    def _threads(self) -> dict[str, int]:
        """Threads by worker; none where the scheduler does not answer."""
        try:
            return dict(self._client.nthreads())
        except (OSError, TimeoutError):
            return {}


class _ClientExecutor(Executor):
    """Runs tasks on the cluster of a client.

    Dask has an executor of its own. It takes the result of a task for an error where the worker that holds it is lost
    just after it was fetched, and does not tell the keys of its tasks.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._running: set[Any] = set()
        self.keys: set[str] = set()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submits the task under a name of its own.

        A second report does not get the results of a first.
        """
        key = f"bottleneck-{uuid.uuid4().hex}"
        self.keys.add(key)
        promise: Future[R] = Future()
        task = self._client.submit(fn, *args, key=key, pure=False, **kwargs)
        self._running.add(task)
        task.add_done_callback(partial(self._settle, promise))
        return promise

    def _settle(self, promise: Future[R], task: Any) -> None:
        try:
            result = task.result()
        except BaseException as failure:
            promise.set_exception(failure)
        else:
            promise.set_result(result)
        self._running.discard(task)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - as of executors
        """Cancels what runs; nothing waits for tasks that no worker is left to do."""
        with suppress(OSError, TimeoutError, RuntimeError):
            self._client.cancel([*self._running])


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError as exc:
        raise UsageError(
            "--cluster needs Dask, which is not installed here",
            fix="install it: pip install distributed",
        ) from exc
