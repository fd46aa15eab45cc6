"""Fixtures shared by all tests."""

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests.ceilings import keep_ceilings

_SLOW_FAMILIES = ("process", "compiler", "corpus", "statistics")

# Laws name their number of examples as a share of the profile's: `--hypothesis-profile thorough` draws twice as many.
settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile("thorough", max_examples=200, deadline=None)
settings.load_profile("quick")

_TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces, which lies beside a development checkout and is not part of the repository."""
    if not _TRACES.is_dir():
        pytest.skip("the folder of public traces is not beside this checkout")
    return _TRACES


_CACHE = "BOTTLENECK_TESTS_CACHE"


def pytest_configure(config: pytest.Config) -> None:
    """Lets signals end what the tests start, also in the background or below nohup; gives ranks a port of their own.

    All that the tests start uses a cache of the session, with ceilings of this CPU in it: half a minute of measuring
    for each number of threads, and again while the machine is busy, would tell nothing about what most tests are of.
    """
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    # torchrun takes port 29500 where none is given, so that two tests beside each other could not both start ranks.
    os.environ["PET_MASTER_PORT"] = str(_free_port())
    if _CACHE not in os.environ:  # not in a worker of xdist, which has the environment of the process that started it
        os.environ[_CACHE] = os.environ["XDG_CACHE_HOME"] = folder = tempfile.mkdtemp(prefix="bottleneck-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        keep_ceilings()


def _free_port() -> int:
    """A free port that the system gives to no outgoing connection, which could take it between two tests."""
    for port in range(20_000 + os.getpid() % 9_000, 30_000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port below 30000 is free")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the slow families as slow, apart from those in the fixed sample of each family.

    `make test` runs `-m "not slow"` and `make test-slow` runs `-m slow`, so that each test runs in exactly one of them.
    """
    for item in items:
        if any(map(item.get_closest_marker, _SLOW_FAMILIES)) and item.get_closest_marker("sample") is None:
            item.add_marker("slow")
