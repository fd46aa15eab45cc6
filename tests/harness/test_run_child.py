import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bottleneck.harness import run_child
from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.harness.session import Session
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


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The measurement of a program, which nothing was recorded of."""
    return Session(Plan(str(tmp_path), Program("train.py", form="script"), RecordOptions()))


def test_a_failure_at_the_end_is_a_warning_and_not_the_programs(session: Session) -> None:
    def fail() -> None:
        raise ValueError("another torch")

    run_child._unless_interrupted(session, fail)
    assert session.notes.warnings == ("the measurement failed at the end: ValueError: another torch",)


def test_an_interrupt_waits_until_the_profiler_has_stopped_and_skips_what_is_left(
    window: Stopping, session: Session
) -> None:
    saved: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    run_child._unless_interrupted(session, lambda: saved.append("saved"))
    assert window.has_stopped and not saved
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interrupt_that_the_program_ignores_skips_nothing(window: Stopping, session: Session) -> None:
    saved: list[str] = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_child._unless_interrupted(session, lambda: saved.append("saved"))
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert window.has_stopped and saved == ["saved"]


def test_an_interrupt_reaches_a_handler_of_the_program_once(window: Stopping, session: Session) -> None:
    seen: list[tuple[int, bool]] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append((number, window.has_stopped)))
    try:
        run_child._unless_interrupted(session, lambda: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [(signal.SIGINT, True)]
