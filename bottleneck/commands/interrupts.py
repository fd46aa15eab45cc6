"""How signals are answered while we work after the program's end: at once, but never in the middle of a file."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user, or the system, wants us to end."""


@contextmanager
def answered() -> Iterator[None]:
    """Makes the signals that end a process an exception in this block; those that are ignored stay so."""
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def held_back() -> Iterator[None]:
    """Lets these signals wait until the block is through."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted
