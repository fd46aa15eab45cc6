"""Measures an unmodified script.

Follows its steps through the phases, then leaves it alone or ends it.
"""

import contextlib
import dataclasses
import functools
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from bottleneck.harness.boundaries import Boundaries, learns
from bottleneck.harness.machine import available_bytes, is_on_gpu, measure_child_work
from bottleneck.harness.main_thread import (
    DEADLY,
    SaveOnSignal,
    call_in_main_thread_after,
    make_unwakeable,
    make_wakeable,
    run_in_main_thread,
)
from bottleneck.harness.memory_error import begin_history
from bottleneck.harness.other_threads import place_of_frame
from bottleneck.harness.process_setup import seeders, sow
from bottleneck.harness.rank_coordination import SharedWindow, WindowAt, WindowKind
from bottleneck.harness.run_log import RunLog
from bottleneck.harness.session import Session
from bottleneck.harness.start_up import Stretch
from bottleneck.harness.stopwatch import CALM_STEPS, STEADY_STEPS, Stopwatch, has_settled
from bottleneck.harness.torch_private import (
    COMPILER,
    DYNAMO,
    EXPORT_UNLIFT,
    compilations,
    is_inside_backward,
    refuse_old,
)
from bottleneck.harness.torch_state import TorchHook, describe_torch, is_pytorch
from bottleneck.harness.window import (
    GUARD,
    MOST_GROWTH_BYTES,
    MOST_SPLIT_BYTES,
    Bounds,
    Detail,
    ProfilerWindow,
    detail_of,
    resident_bytes,
)
from bottleneck.schema.recording import StepSource
from bottleneck.system.heap import SpareHeap, UsualHeap
from bottleneck.system.process_usage import minor_page_faults
from bottleneck.units import counted

# A method that tells of a failure of ours, and when it came.
TellFailure = Callable[[str, Exception], None]


def weakly(tell_failure: TellFailure, method: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """Wraps a call of the method without keeping its objects alive.

    The call does nothing once an object in it is gone: a window may hold half a gigabyte.

    What it raises is told: the program, which may be anywhere, does not notice.
    """
    bound, others = weakref.WeakMethod(method), [weakref.ref(argument) for argument in arguments]
    weak_tell = weakref.WeakMethod(tell_failure)

    def call() -> None:
        target, alive = bound(), [reference() for reference in others]
        if target is not None and None not in alive:
            try:
                target(*alive)
            except Exception as exc:
                tell = weak_tell()
                if tell is not None:
                    tell("between two steps", exc)

    return call


CHUNK_SECONDS = 2.0
# Fewer events in a window are those of a program that prepares: it may import more, which stacks would follow.
BUSY_EVENTS = 1000
# Free memory for a second window on the start, and the new pages that tell that it is used up.
SPARE_BYTES, MOST_NEW_PAGES = 3e8, 5_000
# Until a window that cannot be closed in a backward pass is looked after again.
SOON_SECONDS = 0.02
MOST_CHUNKS = 30
# What EVENT_BUDGET events may take elsewhere; a library that the program loads takes 0.1 GB.
_MOST_GROWTH_BYTES = 500e6
# Memory that a profiled step leaves split and that is worth preventing; the part of what is left that this may take.
_LEAST_SPLIT_BYTES, _MOST_OF_AVAILABLE = 16e6, 0.25
# A hundredth of the step at 5 GB/s, about what `bottleneck calibrate` measures of new pages.
_LEAST_SPLIT_BYTES_PER_S = 50e6
# The blocks of a step do not fill the free memory without gaps. One step may split more than that before it did.
_ROOM, _SPARE_TRIES = 1.5, 2
# Times the new pages of a usual step: fewer that a profiled one takes beyond them are no reason to prevent all.
_MOST_OF_OWN = 2.0


class Opening:
    """A window on the start of the program.

    It lasts until the first step ends, the process has grown by half a gigabyte, or a minute is over.

    Looked after every CHUNK_SECONDS. One that is closed empty, or that saw nothing of a GPU, is followed by another:
    a program that is still loading its libraries makes no events. One with events is not, because an op of the
    program's may be under way, and would end under another profiler than it began with. ``stopwatch`` marks its ends.

    Where nothing that makes steps was met until then (``finds_nothing``), a second window with stacks follows for as
    long again at most: such a program calls ops alone, whose lines nothing else would tell. It has free memory to work
    in, and is kept if it holds enough.
    """

    def __init__(
        self,
        torch: Any,
        detail: Detail,
        tell_failure: TellFailure,
        finds_nothing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._torch, self._detail, self._tell_failure = torch, detail, tell_failure
        self._finds_nothing = finds_nothing
        self._first: tuple[ProfilerWindow, Stopwatch] | None = None
        self._spare, self._most_faults, self._until_s = SpareHeap(), math.inf, math.inf
        self.stopwatch = Stopwatch(None)
        self._window: ProfilerWindow | None = None
        self._on_gpu = False
        self._is_over = False
        self._chunks = 0
        self._size_bytes = 0.0
        self.kept: ProfilerWindow | None = None

    def start(self) -> None:
        """Opens the first window, in the main thread only.

        In another thread it could not be closed in time.
        """
        if threading.current_thread() is not threading.main_thread():
            self._is_over = True
            return
        tell = self._tell_failure
        os.register_at_fork(before=weakly(tell, self._close_for_fork), after_in_parent=weakly(tell, self._open_chunk))
        self._open_chunk()

    def finish(self) -> ProfilerWindow | None:
        """Gives the stopped window that tells most about the program's start.

        Null if none tells anything.
        """
        if not self._is_over:
            self._close_chunk()
            self._is_over = True
        self._end_second()
        return self.kept

    def _open_chunk(self) -> None:
        if self._is_over or self._window is not None:
            return
        window = ProfilerWindow(self._torch, self._detail)
        if not window.open():
            self._is_over = True
            return
        self._window, self._on_gpu = window, _uses_gpu(self._torch)
        self._chunks, self._size_bytes = 0, resident_bytes()
        self.stopwatch = Stopwatch(None)
        self.stopwatch.mark()
        seconds = CHUNK_SECONDS if self._first is None or not self._detail.stacks else SOON_SECONDS
        call_in_main_thread_after(seconds, weakly(self._tell_failure, self._expire, window))

    def _expire(self, window: ProfilerWindow) -> None:
        if window is not self._window:
            return
        if is_inside_backward():
            call_in_main_thread_after(SOON_SECONDS, weakly(self._tell_failure, self._expire, window))
            return
        self._chunks += 1
        if self._first is not None and self._detail.stacks:
            if minor_page_faults() >= self._most_faults or time.perf_counter() >= self._until_s:
                self._close_chunk()
                self._is_over = True
                self._end_second()
            else:
                call_in_main_thread_after(SOON_SECONDS, weakly(self._tell_failure, self._expire, window))
            return
        if (
            not (self._detail.stacks or self._on_gpu or _uses_gpu(self._torch) or _is_importing())
            and self._finds_nothing()
        ):
            self._open_next()
            return
        is_blind = _uses_gpu(self._torch) and not self._on_gpu
        is_small = resident_bytes() - self._size_bytes <= _MOST_GROWTH_BYTES
        if is_blind or not is_small or self._chunks >= MOST_CHUNKS:
            self._close_chunk()
            self._open_chunk()
        else:
            call_in_main_thread_after(CHUNK_SECONDS, weakly(self._tell_failure, self._expire, window))

    def _open_next(self) -> None:
        """Goes on in another window, with stacks where much was called.

        What was recorded before is kept until that has lasted.
        """
        self._close_chunk()
        if self.kept is not None:
            is_busy = self.kept.event_count() >= BUSY_EVENTS
            self._first, self.kept, self._is_over = (self.kept, self.stopwatch), None, False
            self._detail = dataclasses.replace(self._detail, stacks=is_busy)
            if is_busy:
                # What the profiler keeps splits the heap: without free memory each result would take new pages.
                self._spare.provide(min(SPARE_BYTES, _MOST_OF_AVAILABLE * (available_bytes() or 0.0)))
                self._most_faults = minor_page_faults() + MOST_NEW_PAGES
                self._until_s = time.perf_counter() + CHUNK_SECONDS
        self._open_chunk()

    def _end_second(self) -> None:
        """Goes back to the first window where the second one saw next to nothing."""
        is_brief = self.kept is None or self.kept.event_count() < BUSY_EVENTS
        if self._first is not None and is_brief:
            self.kept, self.stopwatch = self._first
        self._first = None
        self._spare.release()

    def _close_for_fork(self) -> None:
        if self._window is not None and self._window.is_mine:
            self._close_chunk()

    def _close_chunk(self) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        if _uses_gpu(self._torch):
            self._torch.cuda.synchronize()
        self.stopwatch.mark()
        window.stop()
        # A window that opened before the GPU was first used has recorded nothing of it.
        is_blind = _uses_gpu(self._torch) and not self._on_gpu
        is_empty = window.event_count() == 0
        self.kept = None if is_blind or is_empty else window
        self._is_over = window.is_running or not (is_blind or is_empty)


def _is_importing() -> bool:
    """True while this thread imports a module."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _uses_gpu(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())


TIMED_STEPS = 20
# When steps that do not settle are given up.
WARMUP_STEPS = 50


def keep_remainder(
    session: Session, seen: int, window: ProfilerWindow | None, stopwatch: Stopwatch, opening: Opening | None
) -> None:
    """Keeps the best window of a program that has ended.

    Profiled steps come first, then the one step that counted the events, then the start.

    ``window`` is the one that was open in the profiled steps, if one was; ``seen`` are the boundaries so far.
    """
    what, steps, complete = session.setting.what, counted(seen, "step"), stopwatch.steps
    if session.has_profiled_steps:
        session.warn_of_disturbance()
    elif window is not None and complete:
        session.offer(window, stopwatch)
        wanted = session.planned_steps
        session.warn(f"{what} ended after {complete} of {wanted} profiled steps; {_enough(session)}")
    elif session.has_trace:
        session.warn(f"{what} ended after {steps}, of which one was profiled; {_enough(session)}")
    elif not keep_start(session, opening, is_bounded=session.setting.is_bounded):
        session.warn(f"{what} ended before it did anything that could be profiled{_work_elsewhere(session)}")
    else:
        reason = f"nothing marks the steps of {what} (no optimizer, loader, or module that is called again)"
        reason, hint = (f"{what} ended after {steps}", _enough(session)) if seen else (reason, session.setting.hint)
        more = _work_elsewhere(session) or f"; {hint}"
        session.warn(f"{reason}, so its start was profiled, in which the report looks for a loop{more}")


def keep_start(session: Session, opening: Opening | None, *, is_bounded: bool) -> bool:
    """True if anything of the program's start was recorded, which is then the trace."""
    window = opening.finish() if opening is not None else None
    if opening is None or window is None:
        return False
    session.note(step_source="whole program", step_name=None)
    session.keep(window, opening.stopwatch if is_bounded else Stopwatch(None))
    return True


def _work_elsewhere(session: Session) -> str:
    """Gives a remark where the program's own processes worked longer than it.

    Ranks do, for example. Empty where they did not.
    """
    work = session.notes.child_work
    if work is None or work.children_share <= 0.5:
        return ""
    return f"; {work.describe()}: --follow-children records those that import torch"


def _enough(session: Session) -> str:
    """Names the number of steps after which the last phase has ended.

    The phases are opening, pilot, warm-up, timed, and both windows.
    """
    warmup = WARMUP_STEPS if session.options.warmup is None else session.options.warmup
    windows = 2 * (1 + session.options.wanted_steps) + 1
    count = max(warmup, 3) + TIMED_STEPS + windows
    return f"{count} steps are enough for the full measurement"


DETAIL = Detail()

# A window that the program cuts short (by forking its data loader's workers) or that another program disturbed is
# opened again, but not for ever.
ATTEMPTS = 4
# How often a window is looked after while a step goes on, and how long the main thread may take to start one.
WATCH_SECONDS, PRIMING_SECONDS = 1.0, 1.0

# Whether a window is open now, may be at a later boundary, or never again.
Outcome = Literal["open", "not yet", "never"]


class Windows:
    """Opens one window after another.

    ``on_overflow`` is called in the main thread when one has grown too big.
    """

    def __init__(self, session: Session, handlers: SaveOnSignal, on_overflow: Callable[[], None]) -> None:
        self.current: ProfilerWindow | None = None
        self._session = session
        self._handlers = handlers
        self._on_overflow = weakly(session.warn_of_failure, on_overflow)
        self.detail = detail_of(session.options, DETAIL)
        self.is_light = False
        self._attempts = 0
        self._bounds: Bounds | None = None

    def open(self, torch: Any) -> Outcome:
        """Opens a window.

        Not yet while a scope of the last one is still open. Never after too many windows.
        """
        if not GUARD.is_clear():
            return "not yet"
        window = ProfilerWindow(torch, self.detail)
        self._attempts += 1
        if self._attempts > ATTEMPTS and not self.is_light:
            self._session.warn_of_disturbance()
        if self._attempts > ATTEMPTS or not window.open():
            return "never"
        self.current, self._bounds = window, Bounds()
        self._handlers.install()
        # From time to time the main thread looks whether a step in the window takes too much memory.
        call_in_main_thread_after(WATCH_SECONDS, weakly(self._session.warn_of_failure, self._cut_off, window))
        return "open"

    def lighten(self) -> None:
        """Has all further windows record with the fewest options."""
        self.detail, self.is_light, self._attempts = self.detail.least, True, 0

    @property
    def may_repeat(self) -> bool:
        """True if another window of this kind may follow."""
        return self._attempts < ATTEMPTS

    def split_bytes(self) -> float:
        """Free memory of the heap that has come up since the window opened."""
        return 0.0 if self._bounds is None else self._bounds.split_bytes()

    def stop(self) -> ProfilerWindow:
        """The window, stopped."""
        window, self.current = self.current, None
        assert window is not None, "no window is open in this phase"
        window.stop()
        self._handlers.remove()
        return window

    def passed(self) -> str | None:
        """The bound that the window has reached, in words."""
        bound = self._bounds.passed() if self._bounds is not None else None
        return None if bound is None else f"the window had reached {bound}"

    @property
    def kind(self) -> WindowKind:
        """The kind of the windows that open from now on."""
        return "light" if self.is_light else "full"

    def prepare_thread(self, torch: Any) -> bool:
        """Tells whether windows can be opened in this thread.

        In one besides the main one it takes a window of another kind, which the main thread can close at the end. The
        profiler also has to have run before in the thread that imported torch, the main one as a rule, or it writes a
        line of its own to stderr.
        """
        if threading.current_thread() is threading.main_thread():
            return True
        if self.detail.memory:
            return False
        if not GUARD.used:
            run_in_main_thread(lambda: prime(torch), PRIMING_SECONDS)
        self.detail = dataclasses.replace(self.detail, all_threads=True)
        return GUARD.used and GUARD.window is None

    def _cut_off(self, window: ProfilerWindow) -> None:
        if window is not self.current:
            return
        is_large = self._bounds is not None and self._bounds.is_memory_passed()
        if not is_large or is_inside_backward():
            seconds = SOON_SECONDS if is_large else WATCH_SECONDS
            call_in_main_thread_after(seconds, weakly(self._session.warn_of_failure, self._cut_off, window))
        elif window.is_mine:
            self._on_overflow()


def prime(torch: Any) -> None:
    """Starts and stops the profiler for the first time.

    Call it in the thread that imported torch.
    """
    window = ProfilerWindow(torch, Detail(shapes=False, stacks=False))
    if window.open():
        window.stop()


TIMED_SECONDS, TIMED_STEPS_AT_LEAST = 1.0, 3
WARMUP_SECONDS = 3.0
_LONG_SECONDS = 0.005

_ENDED_BY_OTHERS = "another rank had closed its window, and steps beside one that writes its trace are held up"
YIELDED = "the program runs a profiler of its own; ours stopped before it started"


class Script:
    """The phases of a script, one method per boundary that ends them.

    ``_next`` is the phase that it is in.

    first step (opening) -> second -> one profiled step (pilot) -> warm-up -> timed steps -> lead-in -> profiled steps
    -> lead-in -> steps profiled with the fewest options -> rest, or exit where only the measurement is wanted.
    No window opens at the boundary at which another closed: the optimizer's own scope is still open there.
    """

    def __init__(self, session: Session, kind: type[Boundaries] = Boundaries) -> None:
        self._session = session
        self._torch: Any = None
        self._without_torch = f"{session.setting.what} never imported torch: there is nothing to profile"
        self._boundaries = kind(
            self._boundary,
            self._start_over,
            session.options.step,
            session.setting.thread,
            on_first=session.start_up.begin_steps,
        )
        self._handlers = SaveOnSignal(self.finish, DEADLY if session.setting.takes_signals else ())
        self._windows = Windows(session, self._handlers, self._cut_off)
        self._opening: Opening | None = None
        self._stopwatch = Stopwatch(None)
        self._next: Callable[[], None] = self._first_step
        self._seen = self._allowed_steps = self._budget_steps = 0
        self._looked_at, self._is_after_pilot, self._cut_by_forks = 0, False, 0
        self._spare, self._spare_bytes, self._spare_tries, self._usual_faults = SpareHeap(), 0.0, 0, 0.0
        self._heap, self._has_freed = UsualHeap(), False
        self._is_to_end = False
        self._log = RunLog(cpu_clock_ns=time.process_time_ns)

    def _finds_nothing(self) -> bool:
        """True if nothing that makes steps was met, nor may be yet.

        False where the user declined stacks.
        """
        return not self._boundaries.met and self._session.options.stacks is not False and not learns()

    @functools.cached_property
    def _shared_window(self) -> SharedWindow:
        files = self._session.files  # which also tells how many ranks there are
        return SharedWindow(files.folder, files.rank, self._session.notes.ranks)

    def hook(self) -> TorchHook:
        """Makes the hook that calls us as the program imports torch.

        It also calls us for those parts of torch that make steps or mind hooks.
        """
        after = {
            **seeders(self._session.plan.program.seed),
            "torch": self._on_import,
            "torch.utils.data.dataloader": lambda _: self._boundaries.watch_loaders(),
            EXPORT_UNLIFT: lambda _: self._boundaries.watch_exported(),
            **self._session.compiler_watchers(),
        }
        return TorchHook(after, {COMPILER: self.watch_compiled, DYNAMO: self.on_compiler})

    def _on_import(self, torch: Any) -> None:
        with self._session.start_up.setting_aside():
            self._on_torch(torch)

    def _on_torch(self, torch: Any) -> None:
        sow(self._session.plan.program.seed, torch)
        if self._session.options.memory:
            begin_history()
        self.on_torch(torch)
        if self._torch is not None and threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(Exception):  # then no step is profiled
                prime(torch)

    def on_torch(self, torch: Any) -> None:
        """Begins to watch; called when the program has imported torch."""
        if not is_pytorch(torch):
            place = getattr(torch, "__file__", None) or "a folder without __init__.py"
            self._without_torch = f"the module torch is not PyTorch ({place}): there is nothing to profile"
            return
        refusal = refuse_old(torch)
        if refusal is not None:
            self._without_torch = refusal
            return
        self._torch = torch
        try:
            GUARD.watch(torch)
            self._boundaries.watch(torch)
            if self._session.setting.takes_signals:
                make_wakeable()
            opening = self._session.setting.opening
            if opening is not None:
                self._opening = Opening(
                    torch, detail_of(self._session.options, opening), self._session.warn_of_failure, self._finds_nothing
                )
                self._opening.start()
            os.register_at_fork(before=weakly(self._session.warn_of_failure, self._cut_short))
        except Exception as exc:  # ours, in the middle of the program's import
            self._give_up("before it began", exc)

    def watch_compiled(self) -> None:
        """Called when the program compiles: the hook of all modules would be traced."""
        self._boundaries.watch_compiled()

    def on_compiler(self) -> None:
        """Called when the program imports torch's compiler, as many do that never compile anything."""
        folder = Path(self._torch.__file__).parent if self._torch is not None else Path()
        # Else this version of torch has the module whose import tells of a compilation.
        if not (folder.joinpath(*COMPILER.split(".")[1:]).with_suffix(".py")).exists():
            self._boundaries.watch_compiled()

    @property
    def has_threads_to_wait_for(self) -> bool:
        """True if other threads may go on with the steps.

        Such threads keep the interpreter from its exit.
        """
        others = [
            thread for thread in threading.enumerate() if thread is not threading.current_thread() and not thread.daemon
        ]
        return self._next not in (self._rest, self._exit) and bool(others)

    def tell_step(self, source: StepSource, name: str) -> None:
        """Ends a step that something else has found."""
        self._boundaries.tell(source, name)

    def end_soon(self) -> None:
        """Has the next boundary end the measurement with what there is."""
        self._is_to_end = True

    def give_heap_back(self) -> None:
        """Leaves the heap as it would be without us.

        Call it once all is written, and the program goes on.
        """
        self._heap.restore()
        self._heap.release()

    def finish(self) -> None:
        """Keeps the best of what was recorded; called when the program ends, whichever way."""
        self._session.note(is_complete=True, child_work=measure_child_work())
        if self._torch is None:
            self._session.warn(f"{self._without_torch}{_work_elsewhere(self._session)}")
            return
        phase = self._next
        parts: list[Callable[[], None]] = [self.leave, self._note_steps, self._note_run, self._note_torch]
        self._session.start_up.stop()
        if phase not in (self._rest, self._exit):
            parts += [
                functools.partial(self._time_what_there_is, phase),
                functools.partial(self._keep_what_there_is, phase),
            ]
        parts.append(self._note_start_up)
        if self._session.notes.values is None:  # no step ended in which there was a look
            parts.append(self._session.look_at_values)
        for part in parts:
            try:
                part()
            except Exception as exc:  # the other parts are kept all the same
                self._session.warn_of_failure("at the end", exc)
        self._session.save()

    def _boundary(self) -> None:
        stopwatch, began_ns = self._stopwatch, self._stopwatch.now_ns()
        was_open = self._windows.current is not None
        self._log.mark()
        # No call while a window is open, which would record it. What was watched may be freed one step later.
        was_watched = was_open or self._session.is_looking or self._next == self._first_step
        if self._has_freed:
            self._heap.restore()
        self._end_step()
        self._has_freed = was_watched and not (self._windows.current is not None or self._session.is_looking)
        if self._has_freed:
            self._heap.restore()
        self._log.note_own(is_profiled=self._windows.current is not None)
        if was_open:
            stopwatch.own_since(began_ns)

    def _end_step(self) -> None:
        self._seen += 1
        self._session.end_debugged_step()
        if self._is_after_pilot:
            # One step later: the events of the pilot's window are freed in the step that follows it.
            self._is_after_pilot = False
            self._session.begin_debugged_step()
            self._session.look_at_memory()
            self._session.look_at_threads()
            self._looked_at = self._seen
        if GUARD.yielded or self._is_to_end:
            self._end()
            return
        try:
            self._next()
        except Exception as exc:  # ours, in the middle of the program's own call
            self._give_up(f"at step {self._seen}", exc)
            if self._session.options.stop:
                self._exit()

    def _start_over(self, source: StepSource, name: str) -> None:
        self._session.note(step_source=source, step_name=name)
        if self._windows.current is not None:
            self._windows.stop()
        if self._windows.is_light:
            self._windows = Windows(self._session, self._handlers, self._cut_off)
        self._seen, self._next, self._is_after_pilot = 0, self._first_step, False
        self._log.restart()

    def _first_step(self) -> None:
        if self._opening is not None:
            self._opening.finish()
        self._next = self._second_step
        self._stopwatch, self._allowed_steps = Stopwatch(self._torch), 0
        if not self._windows.prepare_thread(self._torch):
            self._session.warn("the steps run in a thread other than the main one: they were timed, not profiled")
            self._next = self._settle

    def _second_step(self) -> None:
        # A look that began before another source of steps was found goes on: its ops are none of the program's.
        if not self._session.is_looking and self._open(then=self._pilot):
            self._begin_profiled_step()

    def _begin_profiled_step(self) -> None:
        self._stopwatch.mark()
        self._stopwatch.first_step = self._seen

    def _pilot(self) -> None:
        """Ends the step that counts the events.

        Its window is also the trace of a program that ends too soon.
        """
        self._stopwatch.mark()
        window = self._windows.stop()
        events = max(1, window.event_count())
        wanted = self._session.plan_steps(events)
        self._budget_steps = self._session.options.most_events // events - 1
        self._allowed_steps = min(wanted, self._budget_steps)
        self._shared_window.tell_budget(self._budget_steps)
        self._note_torch()
        self._session.keep(window, self._stopwatch)
        self._session.warn_of_budget(self._allowed_steps, wanted, events)
        self._is_after_pilot = True
        self._stopwatch = Stopwatch(self._torch)
        self._next = self._settle
        self._settle()

    def _settle(self) -> None:
        """Lets steps pass until their times settle, within bounds.

        Where the user asked for a number of steps, it waits for these.
        """
        self._stopwatch.mark()
        self._session.read_memory_again(self._seen - self._looked_at)
        if self._shared_window.follows:
            self._follow()
            return
        asked = self._session.options.warmup
        settled = _settled_steps(self._stopwatch) if asked is None else 0 if self._seen >= asked else None
        if settled is not None and self._session.options.counting:
            self._boundaries.narrow()
            self._next = self._reopen
        elif settled is not None:
            # Those that showed that the times have settled are settled steps themselves.
            self._stopwatch.keep_last(settled)
            self._boundaries.narrow()
            self._next = self._time
            self._end_timing()

    def _follow(self) -> None:
        """Times the steps and opens the window that another rank names.

        Opens it by itself where none does so for long.
        """
        opening = self._shared_window.opening()
        if opening is None and self._stopwatch.steps >= WARMUP_STEPS + 2 * TIMED_STEPS:
            opening = WindowAt(self._seen, TIMED_STEPS)
        if opening is not None and self._seen >= opening.step:
            self._stopwatch.keep_last(opening.timed)
            self._take_times()

    def _time(self) -> None:
        self._stopwatch.mark()
        self._session.read_memory_again(self._seen - self._looked_at)
        self._end_timing()

    def _end_timing(self) -> None:
        steps = self._stopwatch.steps
        if steps < TIMED_STEPS_AT_LEAST:
            return
        is_long = steps >= TIMED_STEPS or self._stopwatch.elapsed_s >= TIMED_SECONDS
        if is_long and self._shared_window.may_open(self._seen, steps):
            self._take_times()

    def _take_times(self) -> None:
        self._usual_faults = self._stopwatch.page_faults or 0.0
        self._session.time(self._stopwatch)
        self._note_start_up()
        self._session.note_other_threads()
        self._session.note_memory_growth(self._seen - self._looked_at)
        self._session.look_at_values()
        self._agree_on_steps()
        self._next = self._reopen
        self._reopen()

    def _agree_on_steps(self) -> None:
        """Has no more steps profiled than each rank can."""
        self._budget_steps = self._shared_window.least_budget(self._budget_steps)
        most = max(1, self._budget_steps)
        if most < self._allowed_steps:
            self._session.warn(
                f"profiled {most} of {counted(self._allowed_steps, 'step')}, as many as another rank can record"
            )
        self._allowed_steps = min(self._allowed_steps, self._budget_steps)

    def _reopen(self) -> None:
        """Opens the window.

        The step that follows is not counted, since the profiler itself has to warm up.
        """
        if self._allowed_steps < 1:
            self._reopen_lightly(1)
        else:
            self._spare.provide(self._spare_bytes)
            self._open(then=self._lead_in)

    def _reopen_lightly(self, most: int) -> None:
        """Lets another window follow with the fewest options, where it tells anything.

        It takes ``most`` steps at most. Short steps are more where the budget allows them: the export before has
        emptied the caches.
        """
        most = max(most, min(self._session.wanted_light_steps, self._budget_steps))
        self._allowed_steps = self._session.light_steps(self._windows.detail, most)
        if self._allowed_steps:
            self._windows.lighten()
            self._next = self._reopen
        else:
            self._end()

    def _lead_in(self) -> None:
        self._stopwatch.wait()
        split_bytes = self._windows.split_bytes()
        if split_bytes >= MOST_GROWTH_BYTES and self._may_have_spare_heap(split_bytes):
            self._windows.stop()
            self._plan_spare_heap(split_bytes)
            return
        self._begin_profiled_step()
        self._next = self._profile

    def _may_have_spare_heap(self, split_bytes: float) -> bool:
        """Tells whether another window with free memory for it may follow.

        Not after a whole one, and not where a good part of the new pages are those that the program's own steps take,
        which would find them there. With other ranks a second window would show other steps than theirs; on a device
        the profiler's own buffers are what takes new pages.
        """
        usual_bytes = self._usual_faults * os.sysconf("SC_PAGE_SIZE")
        is_own = usual_bytes >= _LEAST_SPLIT_BYTES and split_bytes < _MOST_OF_OWN * usual_bytes
        may_repeat = self._windows.may_repeat and self._shared_window.is_alone and not is_on_gpu(self._torch)
        is_first = not self._windows.is_light and not self._session.notes.windows_us
        return may_repeat and is_first and not is_own and self._spare_tries < _SPARE_TRIES

    def _plan_spare_heap(self, bytes_per_step: float) -> None:
        """Lets another window follow, with free memory for it.

        It stands for the new pages that steps take in a window; the step before the profiled ones takes as many. No
        more steps are profiled than there may be memory for.
        """
        most_bytes = min(MOST_SPLIT_BYTES, _MOST_OF_AVAILABLE * (available_bytes() or 0))
        self._allowed_steps = min(self._allowed_steps, max(1, int(most_bytes / bytes_per_step) - 1))
        self._spare_bytes = min(most_bytes, _ROOM * (self._allowed_steps + 1) * bytes_per_step)
        self._spare_tries += 1
        self._next = self._reopen

    def _profile(self) -> None:
        self._stopwatch.mark()
        split_bytes = ((self._stopwatch.page_faults or 0.0) - self._usual_faults) * os.sysconf("SC_PAGE_SIZE")
        seconds = self._stopwatch.elapsed_s / self._stopwatch.steps
        least_bytes = max(_LEAST_SPLIT_BYTES, _LEAST_SPLIT_BYTES_PER_S * seconds)
        if split_bytes >= least_bytes and self._may_have_spare_heap(split_bytes):
            self._stopwatch.wait()
            # Only until a whole window is there.
            self._session.keep(self._windows.stop(), self._stopwatch)
            self._plan_spare_heap(split_bytes)
            return
        steps, passed = self._stopwatch.steps, self._windows.passed()
        if passed is None and self._shared_window.is_closed(self._windows.kind):
            passed = _ENDED_BY_OTHERS
        if steps < self._allowed_steps and passed is None:
            return
        self._shared_window.close(self._windows.kind)
        self._stopwatch.wait()
        is_calm = self._offer(self._windows.stop(), self._stopwatch)
        if self._windows.is_light:
            self._end()
            return
        self._next = self._reopen
        if steps < self._allowed_steps:
            self._session.warn(f"profiled {steps} of {counted(self._allowed_steps, 'step')}: {passed}")
        # With other ranks a second window would show other steps than theirs.
        is_last = not (self._shared_window.is_alone and self._windows.may_repeat)
        if not is_calm and is_last:
            self._session.warn_of_disturbance()
        if is_calm or passed is not None or is_last:
            self._reopen_lightly(steps)

    def _offer(self, window: ProfilerWindow, stopwatch: Stopwatch) -> bool:
        offer = self._session.offer_light if self._windows.is_light else self._session.offer
        return offer(window, stopwatch)

    def _rest(self) -> None:
        """Nothing is left to do."""

    def _exit(self) -> None:
        """Ends the program in an orderly way.

        Where another thread than the main one steps, the supervisor has to end it.
        """
        self.leave()
        if not self._session.notes.stopped:
            self._session.note(stopped=True)
            self._session.save()
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(0)

    def _end(self) -> None:
        """Ends the measurement.

        The program goes on alone, or ends here where that is wanted.
        """
        self._retire()
        if self._session.options.stop:
            self._exit()

    def _retire(self) -> None:
        """Tells that nothing more will be measured: the supervisor may report."""
        phase = self._next
        self._spare.release()
        self._heap.release()
        self._let_go()
        self._note_steps()
        if GUARD.yielded or self._is_to_end:
            self._time_what_there_is(phase)
            self._keep_what_there_is(phase)
        with contextlib.suppress(Exception):  # a torch that cannot describe itself is the program's to find out
            self._note_torch()
        self._session.finish_measuring()

    def _give_up(self, when: str, exc: Exception) -> None:
        """Ends the measurement, which has failed, and leaves the program alone.

        What was recorded stays.
        """
        self._session.warn_of_failure(when, exc)
        for end in (self._retire, self.leave, self._session.finish_measuring):
            try:
                end()
            except Exception as further:  # what has failed once can fail again
                self._session.warn_of_failure("as it ended", further)

    def _time_what_there_is(self, phase: Callable[[], None]) -> None:
        """Takes the times of the steps so far.

        Only where their timing had begun, or where they were to settle first.
        """
        if phase in (self._time, self._settle) and self._stopwatch.steps >= TIMED_STEPS_AT_LEAST:
            self._session.time(self._stopwatch)

    def _keep_what_there_is(self, phase: Callable[[], None]) -> None:
        window = self._windows.stop() if self._windows.current is not None else None
        if GUARD.yielded:
            self._session.warn(YIELDED)
            if not self._session.has_trace and keep_start(self._session, self._opening, is_bounded=False):
                what = self._session.setting.what
                self._session.warn(f"only the start of {what} was profiled, as if it were one step")
            return
        profiled = window if phase == self._profile else None
        if self._windows.is_light:
            if profiled is not None and self._stopwatch.steps:
                self._offer(profiled, self._stopwatch)
            return
        if not GUARD.is_clear():
            self._session.warn("a record_function of the program stayed open: a second window was not safe")
        keep_remainder(self._session, self._seen, profiled, self._stopwatch, self._opening)

    def _note_torch(self) -> None:
        self._session.note_debug_modes()
        self._session.note(**describe_torch(self._torch))

    def _note_run(self) -> None:
        with contextlib.suppress(Exception):  # of a run that it is about, not of the measurement
            self._log.step_lines = self._session.step_lines
            behind_ns = time.time_ns() - self._log.clock_ns()
            self._log.compilations = [graph.shifted(behind_ns) for graph in compilations()]
            self._session.note(run=self._log.summarise())

    def _note_start_up(self) -> None:
        """Sums the program's start, with what is known of its steps by now."""
        steps, own = self._log.first_steps()
        self._session.note_start_up([Stretch(*step) for step in steps], [Stretch(*stretch) for stretch in own])

    def _note_steps(self) -> None:
        self._session.note(steps_seen=self._seen)
        wanted, met = self._session.options.step, self._boundaries.met
        if wanted is not None and not self._seen:
            instead = f"what was seen: {', '.join(met)}" if met else "neither optimizer nor module nor loader was seen"
            self._session.warn(f"no step called {wanted} was seen twice; {instead}")
        elif self._boundaries.has_waited:
            self._session.warn("an optimizer was made but never stepped; --step module or loader takes calls as steps")
        if self._boundaries.problem is not None:
            self._session.warn(f"steps could not be followed any more: {self._boundaries.problem}")

    def _let_go(self) -> None:
        """Leaves a script alone, but may go on noting its steps.

        Then ends of steps are noted and the stack is sampled between them.
        """
        is_followed = self._session.setting.takes_signals and not self._session.options.stop and not GUARD.yielded
        if not is_followed or self._session.options.counting or not self._seen:
            self.leave()
            return
        self._handlers.remove()
        make_unwakeable()
        self._next = self._rest
        if self._boundaries.only_tell(self._log.mark, self._log.stop_sampling):
            self._log.start_sampling()

    def leave(self) -> None:
        """Leaves the program alone: nothing more is watched, and nothing kept."""
        self._spare.release()
        self._log.stop_sampling()
        self._boundaries.forget()
        self._session.end_debugged_step(is_last=True)
        self._handlers.remove()
        make_unwakeable()
        self._next = self._rest

    def _open(self, then: Callable[[], None]) -> bool:
        """Opens a window and tells whether one is open now.

        ``then`` is the phase that follows. It may have to wait for a later boundary.
        """
        # Before it opens: it may be cut off at once.
        before, self._next, self._stopwatch = self._next, then, Stopwatch(self._torch)
        outcome = self._windows.open(self._torch)
        if outcome == "not yet":
            self._next = before
        elif outcome == "never":
            if not (self._session.has_trace or self._session.notes.warnings or GUARD.yielded):
                self._session.warn("no step was recorded: the profiler of torch was still running in this thread")
            self._end()
        return outcome == "open"

    def _cut_off(self) -> None:
        """Ends the window in the middle of a step that fills memory.

        No other window may follow, since an op may be under way.
        """
        try:
            self._end_window()
        except Exception as exc:
            self._give_up("in a step that filled memory", exc)
        if self._session.options.stop:
            # At the next boundary: here the program may be anywhere.
            self._boundaries.watch(self._torch)
            self._next = self._exit

    def _end_window(self) -> None:
        phase, window, stopwatch = self._next, self._windows.stop(), self._stopwatch
        if phase != self._pilot:
            self._shared_window.close(self._windows.kind)
        if phase == self._profile and stopwatch.steps:
            self._offer(window, stopwatch)
        elif phase == self._pilot:
            self._session.keep(window, Stopwatch(None))
        if not self._windows.is_light:
            grown = f"{MOST_GROWTH_BYTES / 1e9:g} GB"
            self._session.warn(f"memory grew by over {grown} as a step was recorded: not all of it was recorded")
        self._retire()

    def _cut_short(self) -> None:
        """Stops the window before a fork.

        The child would go on recording, and keep all of it in memory.
        """
        if self._windows.current is None or not self._windows.current.is_mine:
            return
        phase, window = self._next, self._windows.stop()
        has_steps = phase == self._profile and self._stopwatch.steps > 0
        if has_steps:
            self._offer(window, self._stopwatch)
        else:
            self._note_fork()
        is_enough = has_steps and self._windows.is_light
        self._next = self._second_step if phase == self._pilot else self._end if is_enough else self._reopen

    def _note_fork(self) -> None:
        """Counts the forks that cut a window, and warns once of many.

        Processes that start in each step leave no whole step to record.
        """
        self._cut_by_forks += 1
        if self._cut_by_forks == ATTEMPTS:
            place = place_of_frame(sys._getframe(2))
            where = "" if place is None else f" in {place[0]}() ({place[1]})"
            self._session.warn(
                f"the program starts processes{where} in step after step, which ends each recording before a whole "
                "step: start them once, before the loop (a pool that is kept, persistent_workers of a loader)"
            )


def _settled_steps(stopwatch: Stopwatch) -> int | None:
    """Gives the number of last steps that have settled.

    0 where settling was given up or the steps are too short for the looks at them, null where more steps have to pass.
    """
    steps = stopwatch.steps
    if has_settled(stopwatch.host_durations_us()):
        # Looking takes some 20 us, which belong to none of the steps that count.
        is_long = stopwatch.elapsed_s >= _LONG_SECONDS * steps
        return (STEADY_STEPS if steps >= STEADY_STEPS else CALM_STEPS) if is_long else 0
    if stopwatch.elapsed_s >= WARMUP_SECONDS or steps >= WARMUP_STEPS:
        return 0
    return None
