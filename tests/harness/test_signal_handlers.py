import os
import signal
from collections.abc import Iterator

import pytest

from bottleneck.harness.signal_handlers import Farewell


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
    Farewell(lambda: saved.append("all")).install()
    signal.raise_signal(signal.SIGHUP)
    assert (saved, deaths) == (["all"], [signal.SIGHUP])
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_signals_that_come_while_it_saves_do_not_spoil_it(deaths: list[int]) -> None:
    saved: list[str] = []

    def save() -> None:
        farewell.remove()  # as the measurement does when it leaves the program alone
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        saved.append("all")

    farewell = Farewell(save)
    farewell.install()
    signal.raise_signal(signal.SIGTERM)
    assert (saved, deaths) == (["all"], [signal.SIGTERM])


def test_a_handler_of_the_programs_own_stays(deaths: list[int]) -> None:
    own: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: own.append(number))
    farewell = Farewell(lambda: None)
    farewell.install()
    signal.raise_signal(signal.SIGTERM)
    farewell.remove()
    signal.raise_signal(signal.SIGTERM)
    assert own == [signal.SIGTERM, signal.SIGTERM]
    assert deaths == []
