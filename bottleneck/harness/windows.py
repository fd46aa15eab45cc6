"""The windows of a script: opened where that is safe, looked after while a step goes on, closed in time."""

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any, Literal

from bottleneck.harness.bounds import Bounds
from bottleneck.harness.capture import GUARD, Detail, Window, detail_of
from bottleneck.harness.farewell import Farewell
from bottleneck.harness.heap import StepFaults
from bottleneck.harness.pending import call_in_main_thread_after, hand_over
from bottleneck.harness.session import Session

DETAIL = Detail()

# A window that the program cuts short (by forking its data loader's workers) or that another program disturbed is
# opened again, but not for ever.
ATTEMPTS = 4
# How often a window is looked after while a step goes on, and how long the main thread may take to start one.
WATCH_SECONDS, PRIMING_SECONDS = 1.0, 1.0

# Whether a window is open now, may be at a later boundary, or never again.
Outcome = Literal["open", "not yet", "never"]


class Windows:
    """Opens one window after another; ``on_overflow`` is called in the main thread when one has grown too big."""

    def __init__(self, session: Session, farewell: Farewell, on_overflow: Callable[[], None]) -> None:
        self.current: Window | None = None
        self._session = session
        self._farewell = farewell
        self._on_overflow = weakref.WeakMethod(on_overflow)
        self._detail = detail_of(session.plan, DETAIL)
        self._attempts = 0
        self._bounds: Bounds | None = None

    def open(self, torch: Any) -> Outcome:
        """Opens a window, unless a scope of the last one is still open, or there have been too many."""
        if not GUARD.is_clear():
            return "not yet"
        window = Window(torch, self._detail)
        self._attempts += 1
        if self._attempts > ATTEMPTS:
            self._session.warn_of_disturbance()
        if self._attempts > ATTEMPTS or not window.open():
            return "never"
        self.current, self._bounds = window, Bounds()
        self._farewell.install()
        self._look_after(window)
        return "open"

    def stop(self) -> Window:
        """The window, stopped."""
        window, self.current = self.current, None
        assert window is not None, "no window is open in this phase"
        window.stop()
        self._farewell.remove()
        return window

    def make_room(self, steps: int, faults: StepFaults) -> None:
        """Puts memory at hand for the steps that follow the first one of the window."""
        if self.current is not None:
            self.current.make_room(steps, faults)

    def passed(self) -> str | None:
        """The bound that the window has reached, in words."""
        return self._bounds.passed() if self._bounds is not None else None

    def prepare_thread(self, torch: Any) -> bool:
        """Whether windows can be opened in this thread; in one besides the main one it takes a window of another kind.

        One that the main thread can close at the end. And the profiler has to have run before in the thread that
        imported torch, the main one as a rule, or it writes a line of its own to stderr.
        """
        main = threading.main_thread()
        if threading.current_thread() is main:
            return True
        if self._detail.memory or main.ident is None:
            return False
        if not GUARD.used:
            hand_over(main.ident, lambda: prime(torch), PRIMING_SECONDS)
        self._detail = dataclasses.replace(self._detail, all_threads=True)
        return GUARD.used and GUARD.window is None

    def _look_after(self, window: Window) -> None:
        """Has the main thread look, from time to time, whether a step in the window takes too much memory."""
        windows, watched = weakref.ref(self), weakref.ref(window)

        def look() -> None:
            these, that = windows(), watched()
            if these is not None and that is not None and these.current is that:
                these._cut_off(that)

        call_in_main_thread_after(WATCH_SECONDS, look)

    def _cut_off(self, window: Window) -> None:
        on_overflow = self._on_overflow()
        if self._bounds is None or not self._bounds.is_memory_passed():
            self._look_after(window)
        elif on_overflow is not None and window.is_mine:
            on_overflow()


def prime(torch: Any) -> None:
    """Starts and stops the profiler, for the first time, in the thread that imported torch."""
    window = Window(torch, Detail(shapes=False, stacks=False))
    if window.open():
        window.stop()
