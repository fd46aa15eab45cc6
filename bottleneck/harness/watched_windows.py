"""Opens windows of the profiler in a watched run.

They open after a slow step, where steps drift, and at times that were asked for. Each is a recording as `bottleneck
attach` makes it. A window at a slow step opens only once the run has gone on for a minute, and takes a fiftieth of the
run at most.
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.schema.recording import StepSource, kept_environment
from bottleneck.schema.watch_log import WINDOWS_FOLDER, RecordedWindow, WindowTrigger
from bottleneck.system.files import write_whole

if TYPE_CHECKING:
    from bottleneck.harness.block import BlockMeasurement

# How long a run goes on until a slow step may open a window, and the share of the run that such windows may take.
_PATIENCE_NS, _MOST_SHARE = 60_000_000_000, 0.02
# Steps have drifted that take so many times what they took when it was last looked at.
_DRIFT = 1.2
# With these a program may be watched for days.
_MOST_ASKED = 1_000


def _is_in_job() -> bool:
    """Tells whether other processes compute with this one, by threads of a back end."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


@dataclass(frozen=True)
class WindowWishes:
    """Wishes for windows: at slow steps and at times.

    There are ``at_slow_steps`` at most, and one more after every ``every_s`` seconds.
    """

    program: Program
    at_slow_steps: int = 0
    every_s: float | None = None

    @property
    def are_any(self) -> bool:
        """True if a window may open."""
        return self.at_slow_steps > 0 or self.every_s is not None


@dataclass(frozen=True)
class _WindowRequest:
    trigger: WindowTrigger
    times: float | None


class WatchedWindows:
    """Opens and closes the windows of one process.

    It does so in the thread that steps. ``folder`` is that of the run, which the ranks of a job share.
    """

    def __init__(self, folder: Path, wishes: WindowWishes, clock_ns: Callable[[], int], rank: int = 0) -> None:
        self._folder, self._wishes, self._clock_ns = folder, wishes, clock_ns
        self._suffix = f"-rank-{rank}" if rank else ""
        self.recorded: tuple[RecordedWindow, ...] = ()
        self.problem: str | None = None
        # Null until steps are timed.
        self._began_ns: int | None = None
        self._asked_ns = 0
        self._request: _WindowRequest | None = None
        self._usual_us: float | None = None
        self._left, self._asked = wishes.at_slow_steps, 0
        self._spent_ns = 0
        self._measurement: BlockMeasurement | None = None
        # The window that is open: where it is, what for, when it opened, after which step, and the steps since.
        self._open: tuple[Path, _WindowRequest, int, int] | None = None
        self._steps = 0

    @property
    def is_open(self) -> bool:
        """True while a window is being recorded."""
        return self._open is not None

    def tell_slow(self, times: float) -> None:
        """Asks for a window: a step took so many times the usual one."""
        self._ask("slow", times)

    def tell_usual(self, usual_us: float) -> None:
        """Asks for a window where steps have become longer for good."""
        if self._usual_us is None or usual_us < self._usual_us:
            self._usual_us = usual_us
        elif usual_us > _DRIFT * self._usual_us:
            times, self._usual_us = usual_us / self._usual_us, usual_us
            self._ask("drift", times)

    def _ask(self, trigger: WindowTrigger, times: float) -> None:
        """Notes a request, unless there were enough windows for now."""
        passed_ns = 0 if self._began_ns is None else self._clock_ns() - self._began_ns
        if self._left > 0 and passed_ns >= _PATIENCE_NS and self._spent_ns <= _MOST_SHARE * passed_ns:
            self._request = _WindowRequest(trigger, times)

    def open_if_due(self, after: int) -> bool:
        """Opens a window where one is wanted now, behind that step."""
        every_s, now_ns = self._wishes.every_s, self._clock_ns()
        if self._began_ns is None:
            self._began_ns = self._asked_ns = now_ns
        if every_s is not None and now_ns - self._asked_ns >= every_s * 1e9 and self._asked < _MOST_ASKED:
            self._asked += 1
            self._request = _WindowRequest("asked", None)
        request, self._request = self._request, None
        if request is None or self.problem is not None:
            return False
        if threading.current_thread() is not threading.main_thread():
            self.problem = "the steps run in a thread other than the main one"
            return False
        folder = self._folder / WINDOWS_FOLDER / f"step-{after}{self._suffix}"
        try:
            self._begin(folder)
        except Exception as error:  # ours, in the middle of the program
            self.problem = f"{type(error).__name__}: {error}"[:200]
            return False
        self._left -= request.trigger != "asked"
        self._open, self._steps = (folder, request, now_ns, after), 0
        return True

    def _begin(self, folder: Path) -> None:
        # Not before a window opens: a run that needs none shall not pay for it.
        from bottleneck.harness.block import TURN, BlockMeasurement
        from bottleneck.harness.boundaries import ToldBoundaries
        from bottleneck.harness.folder import CLAIM_FILE, RunState
        from bottleneck.harness.main_thread import make_unwakeable, make_wakeable
        from bottleneck.harness.session import setting_of_window

        folder.mkdir(parents=True)
        # Torch's profiler of Python frames crashes the process where a thread enters Python at that moment (a write to
        # address 0 in `_PyEval_SetProfile`, seen with gloo's). A job of days is worth more than frames.
        stacks = False if _is_in_job() else None
        options = RecordOptions(warmup=0, option_costs=False, stacks=stacks)
        plan = Plan(str(folder), self._wishes.program, options)
        state = RunState(plan, kept_environment(os.environ), busy_processors=0.0)
        write_whole(folder / CLAIM_FILE, json.dumps(asdict(state)))
        TURN.take(self.leave)
        try:
            self._measurement = BlockMeasurement(plan, setting_of_window(threading.get_ident()), ToldBoundaries)
            make_wakeable()
            self._measurement.start()
        except BaseException:
            make_unwakeable()
            TURN.give_back()
            raise

    def tell_step(self, source: StepSource, name: str) -> None:
        """Ends a step in the open window, and the window with its last one."""
        if self._measurement is None:
            return
        self._steps += 1
        self._measurement.tell_step(source, name)
        if self._measurement.is_measured:
            self.close()

    def close(self) -> None:
        """Ends the open window, and keeps what there is."""
        measurement, self._measurement = self._measurement, None
        opened, self._open = self._open, None
        if measurement is None or opened is None:
            return
        from bottleneck.harness.block import TURN
        from bottleneck.harness.main_thread import make_unwakeable

        folder, request, began_ns, after = opened
        try:
            measurement.finish()
        except Exception as error:  # ours, as above
            self.problem = f"{type(error).__name__}: {error}"[:200]
        finally:
            make_unwakeable()
            TURN.give_back()
        where = f"{WINDOWS_FOLDER}/{folder.name}"
        window = RecordedWindow(after, self._steps, request.trigger, request.times, where)
        self.recorded = (*self.recorded, window)
        now_ns = self._clock_ns()
        if request.trigger == "asked":
            self._asked_ns = now_ns  # on a slow machine windows would follow one another else
        else:
            self._spent_ns += now_ns - began_ns

    def leave(self) -> None:
        """Leaves a fork alone: it is another process."""
        measurement, self._measurement, self._open = self._measurement, None, None
        if measurement is not None:
            with contextlib.suppress(Exception):
                measurement.leave()
