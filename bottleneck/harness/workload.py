"""Measures a step that can be repeated: warms it up, times it undisturbed, then profiles a few steps."""

import math
import os
import sys
from collections.abc import Callable
from typing import Any

from bottleneck.harness.capture import EVENT_BUDGET, Detail, Window
from bottleneck.harness.facts import describe_torch
from bottleneck.harness.session import Session
from bottleneck.harness.stopwatch import Stopwatch

Step = Callable[[], Any]

WARMUP_SECONDS, WARMUP_STEPS = 3.0, 50
TIMED_SECONDS, TIMED_STEPS, TIMED_SECONDS_AT_MOST = 1.0, 5, 10.0

# Short steps are repeated until they fill this much time, unless that takes more of them than this.
PROFILED_US, PROFILED_STEPS_AT_MOST = 20_000.0, 20

# How often the profiled steps are repeated when another program seems to have disturbed them.
ATTEMPTS = 3

DETAIL = Detail(memory=True)


def measure(step: Step, session: Session) -> None:
    """Repeats the step through its phases; what the step raises comes through, and what was measured is kept."""
    step()
    torch: Any = sys.modules.get("torch")
    _warm_up(step, torch, session.plan.warmup)
    session.time(_time(step, torch))
    if torch is None:
        session.warn("the workload never imported torch: there is nothing to profile")
        return
    session.note(**describe_torch(torch))
    session.save()
    _use_up_first_complaint(torch)
    _profile(step, torch, session)


def _warm_up(step: Step, torch: Any, steps: int) -> None:
    """Repeats the step until its times settle, within bounds."""
    stopwatch = Stopwatch(torch)
    stopwatch.mark()
    while stopwatch.steps < steps or not _is_warm(stopwatch):
        step()
        stopwatch.mark()


def _is_warm(stopwatch: Stopwatch) -> bool:
    if stopwatch.elapsed_s >= WARMUP_SECONDS or stopwatch.steps >= WARMUP_STEPS:
        return True
    recent = stopwatch.host_durations_us()[-4:]
    return len(recent) == 4 and max(recent) <= 1.1 * min(recent)


def _time(step: Step, torch: Any) -> Stopwatch:
    stopwatch = Stopwatch(torch)
    stopwatch.mark()
    while stopwatch.elapsed_s < TIMED_SECONDS or (
        stopwatch.steps < TIMED_STEPS and stopwatch.elapsed_s < TIMED_SECONDS_AT_MOST
    ):
        step()
        stopwatch.mark()
    return stopwatch


def _profile(step: Step, torch: Any, session: Session) -> None:
    """Profiles one step to count its events, then as many as are wanted and the event budget allows."""
    pilot, stopwatch = _profile_steps(step, torch, 1)
    if pilot is None:
        session.warn("the workload runs a profiler of its own, so ours stayed off")
        return
    per_step = max(1, pilot.event_count() // 2)
    allowed, wanted = EVENT_BUDGET // per_step - 1, _wanted_steps(session)
    if allowed < wanted:
        session.warn(
            f"profiled {max(1, allowed)} of {wanted} steps: one step makes about {per_step} events, "
            f"and the budget is {EVENT_BUDGET}"
        )
    if allowed <= 1:
        session.keep(pilot, stopwatch)
        return
    for _ in range(ATTEMPTS):
        window, stopwatch = _profile_steps(step, torch, min(allowed, wanted))
        if window is None or session.offer(window, stopwatch):
            return
    session.warn_of_disturbance()


def _wanted_steps(session: Session) -> int:
    """The steps to profile; left to us, more of them where they are short, since a stall spoils more of those."""
    timing = session.notes.unprofiled
    if session.plan.steps is not None or timing is None or not timing.median > 0:
        return session.plan.wanted_steps
    return max(session.plan.wanted_steps, min(math.ceil(PROFILED_US / timing.median), PROFILED_STEPS_AT_MOST))


def _profile_steps(step: Step, torch: Any, steps: int) -> tuple[Window | None, Stopwatch]:
    """A stopped window with its marks. One step goes before the first mark: the profiler itself has to warm up."""
    window, stopwatch = Window(torch, DETAIL), Stopwatch(torch)
    if not window.open():
        return None, stopwatch
    try:
        step()
        stopwatch.wait()
        stopwatch.mark()
        for _ in range(steps):
            step()
            stopwatch.mark()
        stopwatch.wait()
    finally:
        window.stop()
    return window, stopwatch


def _use_up_first_complaint(torch: Any) -> None:
    """Provokes, unseen, a line that torch writes to stderr.

    Its CPU allocator logs the first of every thousand blocks that are freed in a window with memory events but were
    allocated before it. The program's stderr is to stay its own.
    """
    block = torch.empty(1)
    window = Window(torch, Detail(shapes=False, stacks=False, memory=True))
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        if window.open():
            del block
            window.stop()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
