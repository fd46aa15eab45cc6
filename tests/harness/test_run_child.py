import os
import signal
import threading
from collections.abc import Iterator

import pytest

from bottleneck.harness import run_child
from bottleneck.harness.window import GUARD


class Stopping:
    """Stands for a window that an interrupt reaches while it is being stopped."""

    def __init__(self) -> None:
        self.has_stopped = False

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        self.has_stopped = True


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopping]:
    """With a second thread at work: the system gives it the signals that the main one has masked."""
    window, is_over = Stopping(), threading.Event()
    monkeypatch.setattr(GUARD, "window", window)
    other = threading.Thread(target=is_over.wait)
    other.start()
    yield window
    is_over.set()
    other.join()


def test_an_interrupt_waits_until_the_profiler_has_stopped_and_skips_what_is_left(window: Stopping) -> None:
    saved: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    run_child._unless_interrupted(lambda: saved.append("saved"))
    assert window.has_stopped and not saved
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_that_the_program_ignores_skips_nothing(window: Stopping) -> None:
    saved: list[str] = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_child._unless_interrupted(lambda: saved.append("saved"))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert window.has_stopped and saved == ["saved"]


def test_an_interrupt_reaches_a_handler_of_the_program_once(window: Stopping) -> None:
    seen: list[tuple[int, bool]] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append((number, window.has_stopped)))
    try:
        run_child._unless_interrupted(lambda: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [(signal.SIGINT, True)]
