"""Fixtures shared by all tests."""

import signal
from pathlib import Path

import pytest

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces, which lies beside a development checkout and is not part of the repository."""
    if not _TRACES.is_dir():
        pytest.skip("the folder of public traces is not beside this checkout")
    return _TRACES


def pytest_configure() -> None:
    """Lets signals end what the tests start, also where the tests themselves run in the background or below nohup."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
