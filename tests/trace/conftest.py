"""Readers in more than one process, and threads that stand in for the processes."""

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Trace
from bottleneck.system.worker_process import WorkerProcess
from bottleneck.trace import parallel
from bottleneck.trace.read import read_trace
from tests.trace.read_files import assert_same


class ThreadWorker(WorkerProcess):
    """A worker of this process, which starts sooner than one of its own."""

    def __init__(self, memory: int) -> None:
        tasks, given = os.pipe()
        taken, replies = os.pipe()
        self._messages, self._replies = os.fdopen(given, "wb"), os.fdopen(taken, "rb")
        streams = (os.fdopen(tasks, "rb"), os.fdopen(replies, "wb"))
        self._thread = threading.Thread(target=self._serve, args=(mmap.mmap(memory, 0), *streams))
        self._thread.start()

    @staticmethod
    def _serve(memory: mmap.mmap, tasks: object, replies: object) -> None:
        with tasks, replies:  # type: ignore[attr-defined]
            parallel.serve(memory, tasks, replies)  # type: ignore[arg-type]

    def kill(self) -> None:
        """Lets it end."""
        self._messages.close()
        self._replies.read()

    def end(self) -> None:
        """Waits for its end."""
        self._thread.join()
        self._replies.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size are decoded by workers, from their second block on."""
    monkeypatch.setattr(parallel, "LOOK_AFTER_BYTES", 0)
    monkeypatch.setattr(parallel, "WORTH_WORKERS_BYTES", -1)
    monkeypatch.setattr(parallel, "PATIENCE_MS", None)


@pytest.fixture
def in_threads(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size are decoded by threads in place of processes."""
    monkeypatch.setattr(parallel, "_start", ThreadWorker)


def outcome(path: Path, jobs: int) -> Trace | list[str]:
    """The trace, or the lines of the refusal."""
    try:
        return read_trace(path, jobs)
    except TraceError as error:
        return error.lines()


def assert_equal(together: Trace | list[str], alone: Trace | list[str]) -> None:
    """Fails unless two outcomes are the same."""
    if isinstance(together, Trace) and isinstance(alone, Trace):
        assert_same(together, alone)
        assert list(together.counts) == list(alone.counts)
    else:
        assert together == alone


@pytest.fixture
def assert_workers_agree(in_threads: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Fails unless two and three workers read a file as one process does, in blocks of two sizes."""

    def check(path: Path) -> None:
        size = path.stat().st_size
        for jobs, blocks in ((2, 4), (3, 12)):
            with monkeypatch.context() as patch:
                patch.setattr("bottleneck.trace.inflate.BLOCK_BYTES", max(200, size // blocks))
                patch.setattr("bottleneck.trace.inflate._TEXT_BYTES", max(200, size // blocks))
                assert_equal(outcome(path, jobs), outcome(path, 1))

    return check


@pytest.fixture
def read_with_workers_too(
    request: pytest.FixtureRequest, assert_workers_agree: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file that a test reads has to read the same in workers."""

    def read(path: Path) -> Trace:
        if path.is_file():
            assert_workers_agree(path)
        return read_trace(path)

    monkeypatch.setattr("tests.trace.read_files.read_trace", read)
    monkeypatch.setattr(request.module, "read_trace", read)
