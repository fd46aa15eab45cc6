"""Other Python threads while steps are timed: what they computed, where they were, and who is left out."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from bottleneck.harness.other_threads import ThreadLook, read_task_ns, threads_between
from bottleneck.schema.measurements import OtherThreads

MS = 1_000_000


@contextmanager
def running(wait: threading.Event, *, of_library: bool = False) -> Iterator[int]:
    """A thread that stands at a known line until the event is set, or only in the standard library: its system id."""
    stands = threading.Event()

    def poll() -> None:
        stands.set()
        wait.wait()

    thread = threading.Thread(target=wait.wait if of_library else poll)
    thread.start()
    if not of_library:
        stands.wait()
    assert thread.native_id is not None
    try:
        yield thread.native_id
    finally:
        wait.set()
        thread.join()


def between(times: Mapping[int, tuple[int, int]], other: int) -> OtherThreads | None:
    """100 ms in which this thread and the other one ran and waited for a processor so long."""
    own = threading.get_native_id()
    before = ThreadLook({own: (5, 5), other: (7, 0)}.get, lambda: 0)
    after = ThreadLook({task: (5 + ran, 5 + queued) for task, (ran, queued) in times.items()}.get, lambda: 100 * MS)
    return threads_between(before, after, lambda _: None)


def test_a_thread_that_computes_is_named_by_function_and_line_with_its_share() -> None:
    with running(threading.Event()) as other:
        found = between({threading.get_native_id(): (30 * MS, 10 * MS), other: (60 * MS + 2, 0)}, other)
    assert found is not None
    (thread,) = found.threads
    assert thread.function == "poll"
    assert thread.source.startswith("test_other_threads.py:")
    assert thread.cpu_share == pytest.approx(0.6)
    assert (found.cpu_share, found.queued_share) == (pytest.approx(0.3), pytest.approx(0.1))
    assert found.waiting_share == pytest.approx(0.6)


def test_a_share_a_tick_above_the_whole_is_the_whole() -> None:
    with running(threading.Event()) as other:
        found = between({threading.get_native_id(): (101 * MS, 102 * MS), other: (103 * MS, 0)}, other)
    assert found is not None
    assert (found.cpu_share, found.queued_share, found.threads[0].cpu_share) == (1.0, 1.0, 1.0)


def test_an_idle_thread_and_one_of_a_library_are_not_named() -> None:
    own = threading.get_native_id()
    with running(threading.Event()) as other:
        idle = between({own: (90 * MS, 0), other: (1 * MS, 0)}, other)
    with running(threading.Event(), of_library=True) as other:
        library = between({own: (30 * MS, 0), other: (60 * MS, 0)}, other)
    assert idle is not None and library is not None
    assert idle.threads == library.threads == ()


def test_nothing_is_known_of_a_lone_thread_or_where_the_system_does_not_tell() -> None:
    own = threading.get_native_id()
    looks = [ThreadLook({own: (0, 0)}.get, lambda at=at: at * MS) for at in (0, 100)]  # type: ignore[misc]
    assert threads_between(*looks) is None
    assert threads_between(*(ThreadLook(lambda _: None, lambda: 5) for _ in range(2))) is None
    assert read_task_ns(2**30) is None
