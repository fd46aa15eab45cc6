"""Measures a block of a program (`with bottleneck.record(...)`) in its process.

Nothing may stay behind there.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable

from bottleneck.errors import UsageError
from bottleneck.harness import marks
from bottleneck.harness.boundaries import Boundaries
from bottleneck.harness.inductor import Inductor
from bottleneck.harness.messages import Plan
from bottleneck.harness.script import Script
from bottleneck.harness.session import Session, Setting
from bottleneck.harness.torch_private import COMPILER, DYNAMO, is_profiling
from bottleneck.harness.torch_state import is_pytorch
from bottleneck.harness.window import GUARD, Detail
from bottleneck.schema.recording import StepSource

# One for all blocks: what is compiled in one may run in the next.
_INDUCTOR = Inductor()

_HINT = "bottleneck.step() at the end of each turn of its loop marks the steps"


def setting_of_block(place: tuple[int, int]) -> Setting:
    """Gives the setting of a block in this thread.

    ``place`` is its rank and the number of ranks.
    """
    return Setting(
        what="the block",
        hint=_HINT,
        takes_signals=False,
        is_bounded=True,
        # The first step may import, and torch 2.13 reads names of imported modules' frames from freed memory.
        opening=Detail(stacks=False),
        thread=threading.get_ident(),
        place=place,
    )


class BlockMeasurement:
    """Measurement of one block.

    It lasts from ``start`` to ``finish``, both in the thread that makes it. ``kind`` is what finds its steps.
    """

    def __init__(self, plan: Plan, setting: Setting, kind: type[Boundaries] = Boundaries) -> None:
        self._session = Session(plan, setting)
        self._session.inductor = _INDUCTOR
        self._script = Script(self._session, kind)
        self._hook = self._script.hook()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the measurement."""
        return self._session.notes.warnings

    @property
    def is_measured(self) -> bool:
        """True once nothing more will be measured."""
        return self._session.notes.is_measured

    def start(self) -> None:
        """Begins to watch torch.

        At once if the program has imported it, else as soon as it does.
        """
        torch = sys.modules.get("torch")
        self._hook.install()
        _INDUCTOR.resume()
        if torch is not None:
            # What the program profiled earlier is over; of what it profiles now we were not told.
            GUARD.yielded = is_pytorch(torch) and is_profiling()
            self._script.on_torch(torch)
            if COMPILER in sys.modules:
                self._script.watch_compiled()
            elif DYNAMO in sys.modules:
                self._script.on_compiler()

    def tell_step(self, source: StepSource, name: str) -> None:
        """Ends a step that something else has found."""
        self._script.tell_step(source, name)

    def end_soon(self) -> None:
        """Has the measurement end with the step that runs, from any thread."""
        self._script.end_soon()

    def finish(self) -> None:
        """Ends it, and leaves what was measured on disk."""
        self._hook.remove()
        _INDUCTOR.rest()
        self._script.finish()
        self._session.save()
        self._script.give_heap_back()

    def leave(self) -> None:
        """Ends it without keeping anything: in a fork, which must not go on measuring."""
        self._hook.remove()
        _INDUCTOR.rest()
        self._script.leave()


class Turn:
    """Turn to measure.

    One block at a time has it in a process, and none in its forks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leave: Callable[[], None] | None = None

    def take(self, leave: Callable[[], None]) -> None:
        """Takes the turn for a block.

        Raises UsageError if another has it. ``leave`` is called in a fork, which must not go on with its parent's work.
        """
        with self._lock:
            if self._leave is not None:
                raise UsageError(
                    "another block of this program is being recorded",
                    why="the profiler runs once in a process",
                    fix="end that block first, or leave this one out",
                )
            self._leave = leave

    @property
    def is_taken(self) -> bool:
        """True while a block is being recorded."""
        return self._leave is not None

    def give_back(self) -> None:
        """The next block may have it."""
        self._leave = None

    def renew(self) -> None:
        """Called in a fork: its own blocks may have the turn."""
        leave, self._leave, self._lock = self._leave, None, threading.Lock()
        if leave is not None:
            leave()
        if GUARD.used and marks.supervisor is None:
            _leave_quietly()


TURN = Turn()
os.register_at_fork(after_in_child=TURN.renew)


def _leave_quietly() -> None:
    """Lets a fork of a process that used the profiler end at once.

    It would hang otherwise: in a destructor, after Python. All callbacks of the program have run by then. What is
    registered last is called first; `on_exit` of glibc hands the status on. Elsewhere there is none, and a fork that
    ends by `sys.exit` hangs as after any use of the profiler.
    """
    libc = ctypes.CDLL(None)
    register = getattr(libc, "on_exit", None)
    if register is not None:
        for call in (libc._exit, libc.fcloseall):
            register(call, None)
