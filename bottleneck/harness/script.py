"""Measures a script that runs as it is: follows its steps through the phases, then leaves it alone or ends it."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bottleneck.harness.boundaries import Boundaries
from bottleneck.harness.capture import EVENT_BUDGET, GUARD, detail_of
from bottleneck.harness.company import Company, WindowAt
from bottleneck.harness.facts import describe_torch
from bottleneck.harness.farewell import DEADLY, Farewell
from bottleneck.harness.heap import StepFaults
from bottleneck.harness.opening import Opening
from bottleneck.harness.remainder import TIMED_STEPS, WARMUP_STEPS, Remainder, keep_opening, keep_remainder
from bottleneck.harness.seeds import seeders, sow
from bottleneck.harness.session import Session
from bottleneck.harness.settling import CALM_STEPS, STEADY_STEPS, has_settled
from bottleneck.harness.stopwatch import Stopwatch
from bottleneck.harness.torchhook import TorchHook
from bottleneck.harness.weakly import weakly
from bottleneck.harness.windows import Windows, prime
from bottleneck.recording import StepSource

TIMED_SECONDS, TIMED_STEPS_AT_LEAST = 1.0, 3
WARMUP_SECONDS = 3.0
_LONG_SECONDS = 0.005

YIELDED = "the program runs a profiler of its own; ours stopped before it started"

# Imported by `torch.compile` before anything else, from torch 2.6 on.
COMPILER = "torch._inductor.compiler_bisector"


class Script:
    """The phases of a script, one method per boundary that ends them; ``_next`` is the phase that it is in.

    first step (opening) -> second -> one profiled step (pilot) -> warm-up -> timed steps -> lead-in -> profiled steps
    -> rest, or exit where nothing but the measurement is wanted. No window opens at the boundary at which another
    closed: the optimizer's own scope is still open there.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._torch: Any = None
        self._boundaries = Boundaries(self._boundary, self._start_over, session.plan.step, session.setting.thread)
        self._farewell = Farewell(self.finish, DEADLY if session.setting.takes_signals else ())
        self._windows = Windows(session, self._farewell, self._cut_off)
        self._company = Company(session.files.folder, session.files.rank, session.notes.ranks)
        self._opening: Opening | None = None
        self._stopwatch = Stopwatch(None)
        self._next: Callable[[], None] = self._first_step
        self._seen = self._allowed_steps = 0
        self._faults = StepFaults()

    def hook(self) -> TorchHook:
        """What tells when the program imports torch, and those parts of it that make steps or mind hooks."""
        after = {
            **seeders(self._session.plan),
            "torch": self._on_import,
            "torch.utils.data.dataloader": lambda _: self._boundaries.watch_loaders(),
            **self._session.inductor.watchers(),
        }
        return TorchHook(after, {COMPILER: self._boundaries.watch_compiled, "torch._dynamo": self.on_compiler})

    def _on_import(self, torch: Any) -> None:
        sow(self._session.plan, torch)
        self.on_torch(torch)
        if threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(Exception):  # then no step is profiled
                prime(torch)

    def on_torch(self, torch: Any) -> None:
        """Begins to watch; called when the program has imported torch."""
        self._torch = torch
        try:
            GUARD.watch(torch)
            self._boundaries.watch(torch)
            self._opening = Opening(torch, detail_of(self._session.plan, self._session.setting.opening))
            self._opening.start()
            os.register_at_fork(before=weakly(self._cut_short))
        except Exception as exc:  # ours, in the middle of the program's import
            self._session.warn(f"the measurement could not begin: {type(exc).__name__}: {exc}")
            self._retire()

    def on_compiler(self) -> None:
        """Called when the program imports torch's compiler, as many do that never compile anything."""
        if not _is_compiling_told(self._torch):
            self._boundaries.watch_compiled()

    @property
    def has_threads_to_wait_for(self) -> bool:
        """Whether other threads may go on with the steps, and keep the interpreter from its exit."""
        others = [each for each in threading.enumerate() if each is not threading.current_thread() and not each.daemon]
        return self._next not in (self._rest, self._exit) and bool(others)

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
        if phase not in (self._rest, self._exit):
            self._time_what_there_is(phase)
            self._keep_what_there_is(phase)
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
        if self._windows.current is not None:
            self._windows.stop()
        self._seen, self._next = 0, self._first_step

    def _first_step(self) -> None:
        if self._opening is not None:
            self._opening.finish()
        self._next = self._second_step
        self._stopwatch, self._allowed_steps = Stopwatch(self._torch), 0
        if not self._windows.prepare_thread(self._torch):
            self._session.warn("the steps run in a thread other than the main one: they were timed, not profiled")
            self._next = self._settle

    def _second_step(self) -> None:
        if self._open(then=self._pilot):
            self._faults.begin(self._seen)
            self._stopwatch.mark()

    def _pilot(self) -> None:
        """Ends the step that counts the events, which is also the trace of a program that ends too soon."""
        self._stopwatch.mark()
        self._faults.end_profiled(self._seen)
        window, wanted = self._windows.stop(), self._session.plan.wanted_steps
        events = max(1, window.event_count())
        self._allowed_steps = min(wanted, EVENT_BUDGET // events - 1)
        self._session.note(**describe_torch(self._torch))
        self._session.keep(window, self._stopwatch)
        if self._allowed_steps < wanted:
            self._session.warn(
                f"profiled {max(1, self._allowed_steps)} of {wanted} steps: one step makes about {events} events, "
                f"and the budget is {EVENT_BUDGET}"
            )
        self._stopwatch = Stopwatch(self._torch)
        self._faults.begin(self._seen)
        self._next = self._settle
        self._settle()

    def _settle(self) -> None:
        """Lets steps pass until their times settle, within bounds, or as many as the user asked for."""
        self._stopwatch.mark()
        if self._company.follows:
            self._follow()
            return
        asked = self._session.plan.warmup
        settled = _settled_steps(self._stopwatch) if asked is None else 0 if self._seen >= asked else None
        if settled is not None and self._session.plan.counting:
            self._boundaries.narrow()
            self._next = self._reopen
        elif settled is not None:
            # Those that showed that the times have settled are settled steps themselves.
            self._stopwatch.keep_last(settled)
            self._boundaries.narrow()
            self._next = self._time
            self._end_timing()

    def _follow(self) -> None:
        """Times the steps and opens the window that another rank names; by itself where none does so for long."""
        opening = self._company.opening()
        if opening is None and self._stopwatch.steps >= WARMUP_STEPS + 2 * TIMED_STEPS:
            opening = WindowAt(self._seen, TIMED_STEPS)
        if opening is not None and self._seen >= opening.step:
            self._stopwatch.keep_last(opening.timed)
            self._take_times()

    def _time(self) -> None:
        self._stopwatch.mark()
        self._end_timing()

    def _end_timing(self) -> None:
        steps = self._stopwatch.steps
        if steps < TIMED_STEPS_AT_LEAST:
            return
        is_long = steps >= TIMED_STEPS or self._stopwatch.elapsed_s >= TIMED_SECONDS
        if is_long and self._company.may_open(self._seen, steps):
            self._take_times()

    def _take_times(self) -> None:
        self._faults.end_unprofiled(self._seen)
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
        if not self._session.plan.counting:
            self._windows.make_room(self._allowed_steps, self._faults)
        self._stopwatch.mark()
        self._next = self._profile

    def _profile(self) -> None:
        self._stopwatch.mark()
        steps, passed = self._stopwatch.steps, self._windows.passed()
        if steps < self._allowed_steps and passed is None:
            return
        self._stopwatch.wait()
        is_calm = self._session.offer(self._windows.stop(), self._stopwatch)
        self._next = self._reopen
        if steps < self._allowed_steps:
            self._session.warn(f"profiled {steps} of {self._allowed_steps} steps: the window had reached {passed}")
        if not is_calm and not self._company.is_alone:
            # A second window would show other steps than those of the other ranks.
            self._session.warn_of_disturbance()
        if is_calm or passed is not None or not self._company.is_alone:
            self._end()

    def _rest(self) -> None:
        """Nothing is left to do."""

    def _exit(self) -> None:
        """Ends the program in an orderly way; where another thread than the main one steps, the supervisor has to."""
        self._leave_alone()
        if not self._session.notes.stopped:
            self._session.note(stopped=True)
            self._session.save()
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(0)

    def _end(self) -> None:
        """Nothing more will be measured: the program goes on alone, or ends here where that is wanted."""
        self._retire()
        if self._session.plan.stop:
            self._exit()

    def _retire(self) -> None:
        """Tells that nothing more will be measured: the supervisor may report."""
        phase = self._next
        self._leave_alone()
        self._note_steps()
        if GUARD.yielded:
            self._time_what_there_is(phase)
            self._keep_what_there_is(phase)
        with contextlib.suppress(Exception):  # a torch that cannot describe itself is the program's to find out
            self._session.note(**describe_torch(self._torch))
        self._session.finish_measuring()

    def _time_what_there_is(self, phase: Callable[[], None]) -> None:
        """Takes the steps so far where their timing had begun, or where they were to settle first."""
        if phase in (self._time, self._settle) and self._stopwatch.steps >= TIMED_STEPS_AT_LEAST:
            self._session.time(self._stopwatch)

    def _keep_what_there_is(self, phase: Callable[[], None]) -> None:
        window = self._windows.stop() if self._windows.current is not None else None
        if GUARD.yielded:
            self._session.warn(YIELDED)
            if not self._session.has_trace:
                keep_opening(self._session, self._opening)
            return
        if not GUARD.is_clear():
            self._session.warn("a record_function of the program stayed open: a second window was not safe")
        profiled = window if phase == self._profile else None
        keep_remainder(self._session, Remainder(self._seen, profiled, self._stopwatch, self._opening))

    def _note_steps(self) -> None:
        self._session.note(steps_seen=self._seen)
        wanted, met = self._session.plan.step, self._boundaries.met
        if wanted is not None and not self._seen:
            instead = f"what was seen: {', '.join(met)}" if met else "neither optimizer nor module nor loader was seen"
            self._session.warn(f"no step called {wanted} was seen twice; {instead}")
        elif self._boundaries.has_waited:
            self._session.warn("an optimizer was made but never stepped; --step module or loader takes calls as steps")
        if self._boundaries.problem is not None:
            self._session.warn(f"steps could not be followed any more: {self._boundaries.problem}")

    def _leave_alone(self) -> None:
        self._boundaries.forget()
        self._farewell.remove()
        self._next = self._rest

    def _open(self, then: Callable[[], None]) -> bool:
        """Whether a window is open now; ``then`` is the phase that follows. May have to wait for a later boundary."""
        # Before it opens: it may be cut off at once.
        before, self._next, self._stopwatch = self._next, then, Stopwatch(self._torch)
        outcome = self._windows.open(self._torch)
        if outcome == "not yet":
            self._next = before
        elif outcome == "never":
            self._end()
        return outcome == "open"

    def _cut_off(self) -> None:
        """In the middle of a step that fills memory: no other window may follow, since an op may be under way."""
        phase, window, stopwatch = self._next, self._windows.stop(), self._stopwatch
        if phase == self._profile and stopwatch.steps:
            self._session.offer(window, stopwatch)
        elif phase == self._pilot:
            self._session.keep(window, Stopwatch(None))
        self._session.warn("one step makes more events than memory should hold: not all of it was recorded")
        self._retire()
        if self._session.plan.stop:
            # At the next boundary: here the program may be anywhere.
            self._boundaries.watch(self._torch)
            self._next = self._exit

    def _cut_short(self) -> None:
        """Before a fork: the child would go on recording, and keep all of it in memory."""
        if self._windows.current is None or not self._windows.current.is_mine:
            return
        phase, window = self._next, self._windows.stop()
        if phase == self._profile and self._stopwatch.steps:
            self._session.offer(window, self._stopwatch)
        self._next = self._second_step if phase == self._pilot else self._reopen


def _settled_steps(stopwatch: Stopwatch) -> int | None:
    """How many of the last steps have settled; none where that was given up, null where more steps have to pass."""
    steps = stopwatch.steps
    if has_settled(stopwatch.host_durations_us()):
        # Looking takes some 20 us, which belong to none of the steps that count.
        is_long = stopwatch.elapsed_s >= _LONG_SECONDS * steps
        return (STEADY_STEPS if steps >= STEADY_STEPS else CALM_STEPS) if is_long else 0
    if stopwatch.elapsed_s >= WARMUP_SECONDS or steps >= WARMUP_STEPS:
        return 0
    return None


def _is_compiling_told(torch: Any) -> bool:
    """Whether this version of torch has the module whose import tells of a compilation; else its compiler's import."""
    return (Path(torch.__file__).parent / "_inductor" / "compiler_bisector.py").exists() if torch is not None else False
