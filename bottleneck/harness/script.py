"""Measures a script that runs as it is: follows its steps through the phases, then leaves it alone."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bottleneck.harness.boundaries import Boundaries
from bottleneck.harness.capture import EVENT_BUDGET, GUARD, Detail, Window
from bottleneck.harness.facts import describe_torch
from bottleneck.harness.farewell import DEADLY, Farewell
from bottleneck.harness.opening import Opening
from bottleneck.harness.remainder import TIMED_STEPS, Remainder, keep_remainder
from bottleneck.harness.session import Session
from bottleneck.harness.stopwatch import Stopwatch
from bottleneck.harness.torchhook import TorchHook
from bottleneck.harness.weakly import weakly
from bottleneck.recording import StepSource

TIMED_SECONDS, TIMED_STEPS_AT_LEAST = 1.0, 3
# A window that the program cuts short (by forking its data loader's workers) or that another program disturbed is
# opened again, but not for ever.
ATTEMPTS = 4

DETAIL = Detail()

YIELDED = "the program runs a profiler of its own; ours stopped before it started"


# Imported by `torch.compile` before anything else, from torch 2.6 on.
COMPILER = "torch._inductor.compiler_bisector"


class Script:
    """The phases of a script, one method per boundary that ends them; ``_next`` is the phase that it is in.

    first step (opening) -> second -> one profiled step (pilot) -> warm-up -> timed steps -> lead-in -> profiled steps
    -> rest. No window opens at the boundary at which another closed: the optimizer's own scope is still open there.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._torch: Any = None
        self._boundaries = Boundaries(self._boundary, self._start_over, self._session.plan.step, session.setting.thread)
        self._farewell = Farewell(self.finish, DEADLY if session.setting.takes_signals else ())
        self._opening: Opening | None = None
        self._window: Window | None = None
        self._stopwatch = Stopwatch(None)
        self._next: Callable[[], None] = self._first_step
        self._seen = self._attempts = self._allowed_steps = 0

    def on_torch(self, torch: Any) -> None:
        """Begins to watch; called when the program has imported torch."""
        self._torch = torch
        try:
            GUARD.watch(torch)
            self._boundaries.watch(torch)
            self._opening = Opening(torch, self._session.setting.opening)
            self._opening.start()
            os.register_at_fork(before=weakly(self._cut_short))
        except Exception as exc:  # ours, in the middle of the program's import
            self._session.warn(f"the measurement could not begin: {type(exc).__name__}: {exc}")
            self._end()

    def hook(self) -> TorchHook:
        """What tells when the program imports torch, and those parts of it that make steps or mind hooks."""
        after = {
            "torch": self.on_torch,
            "torch.utils.data.dataloader": lambda _: self._boundaries.watch_loaders(),
            **self._session.inductor.watchers(),
        }
        return TorchHook(after, {COMPILER: self._boundaries.watch_compiled, "torch._dynamo": self.on_compiler})

    def on_compiler(self) -> None:
        """Called when the program imports torch's compiler, as many do that never compile anything."""
        if not _is_compiling_told(self._torch):
            self._boundaries.watch_compiled()

    def finish(self) -> None:
        """Keeps the best of what was recorded; called when the program ends, whichever way."""
        self._session.note(is_complete=True)
        if self._torch is None:
            self._session.warn(f"{self._session.setting.what} never imported torch: there is nothing to profile")
            return
        phase = self._next
        self._leave_alone()
        self._note_steps()
        self._session.note(**describe_torch(self._torch))
        if phase == self._time and self._stopwatch.steps:
            self._session.time(self._stopwatch)
        if GUARD.yielded:
            self._session.warn(YIELDED)
        elif phase != self._rest:
            if not GUARD.is_clear():
                self._session.warn("a record_function of the program stayed open: a second window was not safe")
            window = self._stop() if self._window is not None and self._window.is_mine else None
            is_profiled = window is not None and phase == self._profile
            keep_remainder(
                self._session, Remainder(self._seen, window if is_profiled else None, self._stopwatch, self._opening)
            )
        self._session.save()

    def leave(self) -> None:
        """Ends it without keeping anything: in a fork."""
        self._leave_alone()

    def _boundary(self) -> None:
        self._seen += 1
        if GUARD.yielded:
            self._end()
            return
        try:
            self._next()
        except Exception as exc:  # ours, in the middle of the program's own call
            self._session.warn(f"the measurement failed at step {self._seen}: {type(exc).__name__}: {exc}")
            self._end()

    def _start_over(self, source: StepSource, name: str) -> None:
        self._session.note(step_source=source, step_name=name)
        if self._window is not None:
            self._stop()
        self._seen, self._next = 0, self._first_step

    def _first_step(self) -> None:
        if self._opening is not None:
            self._opening.finish()
        self._next = self._second_step
        if GUARD.window is not None:
            self._session.warn("the steps run in a thread other than the main one: they were timed, not profiled")
            self._next = self._warm_up

    def _second_step(self) -> None:
        if self._open(then=self._pilot):
            self._stopwatch.mark()

    def _pilot(self) -> None:
        """Ends the step that counts the events, which is also the trace of a program that ends too soon."""
        self._stopwatch.mark()
        window, wanted = self._stop(), self._session.plan.wanted_steps
        events = max(1, window.event_count())
        self._allowed_steps = min(wanted, EVENT_BUDGET // events - 1)
        self._session.note(**describe_torch(self._torch))
        self._session.keep(window, self._stopwatch)
        if self._allowed_steps < wanted:
            self._session.warn(
                f"profiled {max(1, self._allowed_steps)} of {wanted} steps: one step makes about {events} events, "
                f"and the budget is {EVENT_BUDGET}"
            )
        self._next = self._warm_up
        self._warm_up()

    def _warm_up(self) -> None:
        if self._seen >= self._session.plan.least_warmup:
            self._stopwatch = Stopwatch(self._torch)
            self._stopwatch.mark()
            self._next = self._time

    def _time(self) -> None:
        self._stopwatch.mark()
        steps = self._stopwatch.steps
        if steps >= TIMED_STEPS or (steps >= TIMED_STEPS_AT_LEAST and self._stopwatch.elapsed_s >= TIMED_SECONDS):
            self._session.time(self._stopwatch)
            self._next = self._reopen
            self._reopen()

    def _reopen(self) -> None:
        """Opens the window; the step that follows is not counted, the profiler itself has to warm up."""
        if self._allowed_steps < 1:
            self._end()
        else:
            self._open(then=self._lead_in)

    def _lead_in(self) -> None:
        self._stopwatch.wait()
        self._stopwatch.mark()
        self._next = self._profile

    def _profile(self) -> None:
        self._stopwatch.mark()
        if self._stopwatch.steps >= self._allowed_steps:
            self._stopwatch.wait()
            is_calm = self._session.offer(self._stop(), self._stopwatch)
            self._next = self._reopen
            if is_calm:
                self._end()

    def _rest(self) -> None:
        """Nothing is left to do."""

    def _end(self) -> None:
        """Nothing more will be measured: the program goes on alone, and the supervisor may report."""
        self._leave_alone()
        self._note_steps()
        if GUARD.yielded:
            self._session.warn(YIELDED)
        with contextlib.suppress(Exception):  # a torch that cannot describe itself is the program's to find out
            self._session.note(**describe_torch(self._torch))
        self._session.finish_measuring()

    def _note_steps(self) -> None:
        self._session.note(steps_seen=self._seen)
        wanted, met = self._session.plan.step, self._boundaries.met
        if wanted is not None and not self._seen:
            instead = f"what was seen: {', '.join(met)}" if met else "neither optimizer nor module nor loader was seen"
            self._session.warn(f"no step called {wanted} was seen twice; {instead}")
        if self._boundaries.problem is not None:
            self._session.warn(f"steps could not be followed any more: {self._boundaries.problem}")

    def _leave_alone(self) -> None:
        self._boundaries.forget()
        self._farewell.remove()
        self._next = self._rest

    def _open(self, then: Callable[[], None]) -> bool:
        """Whether a window is open now; ``then`` is the phase that follows. May have to wait for a later boundary."""
        if not GUARD.is_clear():
            return False
        window = Window(self._torch, DETAIL)
        self._attempts += 1
        if self._attempts > ATTEMPTS:
            self._session.warn_of_disturbance()
        if self._attempts > ATTEMPTS or not window.open():
            self._end()
            return False
        self._window, self._stopwatch, self._next = window, Stopwatch(self._torch), then
        self._farewell.install()
        return True

    def _stop(self) -> Window:
        window, self._window = self._window, None
        assert window is not None, "no window is open in this phase"
        window.stop()
        self._farewell.remove()
        return window

    def _cut_short(self) -> None:
        """Before a fork: the child would go on recording, and keep all of it in memory."""
        if self._window is None or not self._window.is_mine:
            return
        phase, window = self._next, self._stop()
        if phase == self._profile and self._stopwatch.steps:
            self._session.offer(window, self._stopwatch)
        self._next = self._second_step if phase == self._pilot else self._reopen


def _is_compiling_told(torch: Any) -> bool:
    """Whether this version of torch has the module whose import tells of a compilation; else its compiler's import."""
    return (Path(torch.__file__).parent / "_inductor" / "compiler_bisector.py").exists() if torch is not None else False
