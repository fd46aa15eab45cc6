"""Workers of a Dask cluster, behind the seam of ``workers``; ``distributed`` is an optional extra.

Chosen by measuring: where one worker of two is killed, Dask repeats that worker's tasks only.
"""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from bottleneck.errors import TraceError, UsageError, WorkloadError
from bottleneck.mapping.workers import LocalWorkers

_LOCAL = re.compile(r"local:([1-9]\d{0,3})")
_REMOTE = re.compile(r"(tcp|tls|ucx|ws|wss)://.+")
# A scheduler that starts workers anew, or waits for a batch system, needs some seconds.
_PATIENCE_S = 20.0
_LEAST_AT_ONCE = 64
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

    @property
    def at_once(self) -> int:
        """Two for each thread of the workers."""
        return max(_LEAST_AT_ONCE, 2 * sum(self._threads().values()))

    @contextmanager
    def opened(self, tasks: int, size_bytes: int) -> Iterator[Executor]:  # noqa: ARG002 - as of all workers
        """The executor of a client of the cluster."""
        with ExitStack() as stack:
            address = self._address
            if self._count is not None:
                address = stack.enter_context(
                    self._dask.LocalCluster(n_workers=self._count, threads_per_worker=1, dashboard_address=None)
                )
            try:
                self._client = stack.enter_context(self._dask.Client(address, set_as_default=False))
            except OSError as exc:
                raise WorkloadError(
                    f"cannot reach the Dask scheduler at {self._address}",
                    why=str(exc),
                    fix="start it: dask scheduler, and on each machine: dask worker tcp://HOST:8786",
                ) from exc
            # Tasks that are not pure have names of their own: a second report would get the results of the first.
            executor = self._client.get_executor(pure=False)
            # As a context it would wait for tasks that no worker is left to do.
            stack.callback(executor.shutdown, wait=False)
            yield executor

    def check(self) -> None:
        """Raises WorkloadError where the cluster has had no worker for a while, or its scheduler is gone."""
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
        """The failure itself, or that each worker that took the item was killed; WorkloadError for a lost scheduler."""
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


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError as exc:
        raise UsageError(
            "--cluster needs Dask, which is not installed here",
            fix="install it: pip install 'torch-bottleneck[cluster]'",
        ) from exc
