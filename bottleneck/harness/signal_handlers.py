"""Saves what was recorded when the program is told to end while the profiler runs."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

DEADLY = (signal.SIGTERM, signal.SIGHUP)


class Farewell:
    """Handlers for the signals that end a program by default; only where the program has none of its own."""

    def __init__(self, save: Callable[[], None], signals: Sequence[signal.Signals] = DEADLY) -> None:
        self._save, self._signals = save, signals
        self._installed: list[signal.Signals] = []
        self._is_saving = False

    def install(self) -> None:
        """From now on a deadly signal saves first. Python allows handlers in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._signals:
            if signal.getsignal(number) == signal.SIG_DFL and number not in self._installed:
                signal.signal(number, self._die)
                self._installed.append(number)

    def remove(self) -> None:
        """Restores the default, unless the program has put a handler of its own there meanwhile, or is dying."""
        if self._is_saving or threading.current_thread() is not threading.main_thread():
            return
        while self._installed:
            number = self._installed.pop()
            if signal.getsignal(number) == self._die:
                signal.signal(number, signal.SIG_DFL)

    def _die(self, number: int, _frame: FrameType | None) -> None:
        if self._is_saving:  # told again, or by two; the first decides what the program dies of
            return
        self._is_saving = True
        try:
            self._save()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
