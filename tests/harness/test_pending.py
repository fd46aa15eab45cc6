"""Work that the main thread does for another, wherever it is."""

import queue
import threading
from collections.abc import Callable

import pytest

from bottleneck.harness.pending import hand_over, is_between_ops


def handed_over(main: int) -> list[int]:
    """The threads in which work was done that this thread hands over."""
    done_in: list[int] = []
    hand_over(main, lambda: done_in.append(threading.get_ident()), 30.0)
    return done_in


def compute(thread: threading.Thread, _: "queue.Queue[int]") -> None:
    while thread.is_alive():
        sum(range(100))


WAITS: dict[str, Callable[[threading.Thread, "queue.Queue[int]"], object]] = {
    "joins a thread": lambda thread, _: thread.join(),
    "waits for a queue": lambda _, items: items.get(),
    "computes": compute,
}


@pytest.mark.parametrize("what", WAITS)
def test_the_main_thread_does_the_work_whatever_it_waits_for(what: str) -> None:
    main, found, items = threading.get_ident(), [], queue.Queue()  # type: ignore[var-annotated]

    def work() -> None:
        found.extend(handed_over(main))
        items.put(1)

    thread = threading.Thread(target=work)
    thread.start()
    WAITS[what](thread, items)
    thread.join()
    assert found == [main]


def test_a_thread_that_waits_in_the_standard_library_is_between_ops() -> None:
    gate, began = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        gate.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    while not is_between_ops(thread.ident or 0):
        pass
    gate.set()
    thread.join()
    assert is_between_ops(thread.ident or 0), "one that has ended is too"
    assert not is_between_ops(threading.get_ident())
