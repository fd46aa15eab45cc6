"""Turns signals into exceptions while we work after the program's end.

That never happens in the middle of a file.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Not every system tells of a terminal that was closed.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """Raised where the user or the system wants us to end.

    ``number`` is the signal that said so.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


class _Answer:
    """Handler of a signal.

    It raises an exception, or remembers the signal while it is held back.
    """

    def __init__(self) -> None:
        self.holds = 0
        self.wanted: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.wanted = number
        self.give()

    def give(self) -> None:
        number = self.wanted
        if number is not None and not self.holds:
            self.wanted = None
            raise Interrupted(number)


_ANSWER = _Answer()


@contextmanager
def answered() -> Iterator[None]:
    """Makes the signals that end a process an exception in this block.

    Those that are ignored stay so.
    """
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, _ANSWER)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def says_what_is_kept(kept: str) -> Iterator[None]:
    """Adds to the line about a signal what was kept.

    The signal is the one that ends this block. The line also says how to go on.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(kept)
        raise


@contextmanager
def held_back() -> Iterator[None]:
    """Lets signals that we answer wait until the block is through.

    Not by the system's mask: it is one thread's, and a library's threads would take the signals instead.
    """
    _ANSWER.holds += 1
    try:
        yield
    finally:
        _ANSWER.holds -= 1
    _ANSWER.give()
