import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from bottleneck.harness.main_thread import (
    SaveOnSignal,
    is_between_ops,
    is_wakeable,
    make_unwakeable,
    make_wakeable,
    run_in_main_thread,
)


@pytest.fixture
def wakeable() -> Iterator[None]:
    before = signal.signal(signal.SIGURG, signal.SIG_DFL)
    make_wakeable()
    yield
    signal.signal(signal.SIGURG, before)


def handed_over() -> list[int]:
    """The threads in which work was done that this thread gives to the main one."""
    done_in: list[int] = []
    run_in_main_thread(lambda: done_in.append(threading.get_ident()), 30.0)
    return done_in


def compute(thread: threading.Thread, _: "queue.Queue[int]") -> None:
    while thread.is_alive():
        sum(range(100))


WAITS: dict[str, Callable[[threading.Thread, "queue.Queue[int]"], object]] = {
    "joins a thread": lambda thread, _: thread.join(),
    "waits for a queue": lambda _, items: items.get(),
    "computes": compute,
}


@pytest.mark.usefixtures("wakeable")
@pytest.mark.parametrize("what", WAITS)
def test_the_main_thread_does_the_work_whatever_it_waits_for(what: str) -> None:
    main, found, items = threading.get_ident(), [], queue.Queue()  # type: ignore[var-annotated]

    def work() -> None:
        found.extend(handed_over())
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


@pytest.mark.usefixtures("wakeable")
def test_waits_are_interrupted_only_where_the_program_leaves_the_signal_to_us() -> None:
    assert is_wakeable()
    make_unwakeable()
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL and not is_wakeable()
    signal.signal(signal.SIGURG, signal.SIG_IGN)
    make_wakeable()
    make_unwakeable()
    assert signal.getsignal(signal.SIGURG) == signal.SIG_IGN


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that this process would have died of."""
    found: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _process, number: found.append(number))
    _await_signals()  # those that whoever started the tests ignores, as nohup does, would stay ignored
    yield found
    _await_signals()


def _await_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def test_a_deadly_signal_saves_and_then_kills_as_it_would(deaths: list[int]) -> None:
    saved: list[str] = []
    SaveOnSignal(lambda: saved.append("all")).install()
    signal.raise_signal(signal.SIGHUP)
    assert (saved, deaths) == (["all"], [signal.SIGHUP])
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_signals_that_come_while_it_saves_do_not_spoil_it(deaths: list[int]) -> None:
    saved: list[str] = []

    def save() -> None:
        handlers.remove()  # as the measurement does when it leaves the program alone
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        saved.append("all")

    handlers = SaveOnSignal(save)
    handlers.install()
    signal.raise_signal(signal.SIGTERM)
    assert (saved, deaths) == (["all"], [signal.SIGTERM])


def test_a_handler_of_the_programs_own_stays(deaths: list[int]) -> None:
    own: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: own.append(number))
    handlers = SaveOnSignal(lambda: None)
    handlers.install()
    signal.raise_signal(signal.SIGTERM)
    handlers.remove()
    signal.raise_signal(signal.SIGTERM)
    assert own == [signal.SIGTERM, signal.SIGTERM]
    assert deaths == []
