"""Measures a repeatable step: warms it up, times it unprofiled, then profiles a few steps."""

import math
import sys
import time
from typing import Any

from bottleneck.harness.machine import peak_memory, reset_peak
from bottleneck.harness.session import Session, silenced
from bottleneck.harness.step_variants import Doubling, run_batch_test, run_option_costs
from bottleneck.harness.stopwatch import Step, Stopwatch, WarmUp, mark_steps, warm_up
from bottleneck.harness.torch_state import describe_torch
from bottleneck.harness.window import EVENT_BUDGET, Detail, ProfilerWindow, detail_of
from bottleneck.schema.measurements import BatchTest, OptionCosts
from bottleneck.units import counted

# Each rank would stop after its own number of steps, and wait for the others for ever.
_RANKS = "the ranks of a job take steps together"


def measure_extras(step: Step, torch: Any, session: Session, doubling: Doubling | None, kept: Detail) -> None:
    """Adds both to the notes; neither ever raises, nor changes what the program writes.

    ``kept`` is what the window recorded whose trace was kept; ``doubling`` is null where there is no batch size.
    """
    timing, profiled = session.notes.unprofiled, session.notes.profiled
    if timing is None or not timing.median > 0 or profiled is None:
        return
    if session.notes.ranks > 1:
        session.note(option_costs=OptionCosts(reason=_RANKS), batch_test=doubling and BatchTest(None, reason=_RANKS))
        session.save()
        return
    if session.options.option_costs:
        session.note(option_costs=run_option_costs(step, torch, (timing.median, profiled.median), kept))
        session.save()
    if doubling is not None and session.options.batch_test is not False:
        is_asked = session.options.batch_test is not None
        session.note(batch_test=run_batch_test(step, torch, doubling, timing.median, is_asked=is_asked))
        session.save()


# Waiting for steps that do not settle ends sooner where there were many of them.
_WARM_UP = WarmUp(seconds=3.0, many=50, seconds_for_many=0.5)
TIMED_STEPS, TIMED_SECONDS_AT_MOST = 5, 10.0

# Short steps are repeated until they fill this much time, unless that takes more of them than this.
PROFILED_US, PROFILED_STEPS_AT_MOST = 20_000.0, 20

# How often the profiled steps are repeated when another program seems to have disturbed them.
ATTEMPTS = 3

DETAIL = Detail(memory=True)

_NO_TORCH = "the workload never imported torch: there is nothing to profile"


def measure(step: Step, session: Session, doubling: Doubling | None = None, change_s: float = 0.0) -> None:
    """Repeats the step through its phases; what the step raises comes through, and what was measured is kept.

    ``doubling`` makes the step at twice its batch size; null where it has none. ``change_s`` is how long applying
    changes to the step took.
    """
    if session.options.counting:
        _count(step, session)
        return
    started = time.perf_counter()
    step()
    first_s = time.perf_counter() - started
    torch: Any = sys.modules.get("torch")
    # Until the times of the step settle, within bounds, or as often as the user requested.
    warm_up(step, torch, None if session.options.warmup is not None else _WARM_UP, session.options.least_warmup)
    was_reset = reset_peak(torch)
    session.time(_time(step, torch, session.options.timed_s))
    timing = session.notes.unprofiled
    # The start beyond a usual step.
    setup_s = None if timing is None else max(change_s + first_s - timing.median / 1e6, 0.0)
    session.note(setup_s=setup_s, peak_memory=peak_memory(torch, was_reset=was_reset))
    if torch is None:
        session.warn(_NO_TORCH)
    else:
        session.note(**describe_torch(torch))
        session.save()
        _use_up_first_complaint(torch)
        detail = detail_of(session.options, DETAIL)
        _profile(step, torch, session, detail)
        _profile_lightly(step, torch, session, detail)
        measure_extras(step, torch, session, doubling and doubling.after(first_s), detail)


def _count(step: Step, session: Session) -> None:
    """Profiles steps for what they do, not for how long it takes; none is timed without the profiler."""
    for _ in range(session.options.least_warmup):
        step()
    torch: Any = sys.modules.get("torch")
    if torch is None:
        session.warn(_NO_TORCH)
        return
    session.note(**describe_torch(torch))
    _use_up_first_complaint(torch)
    _profile(step, torch, session, detail_of(session.options, DETAIL))


def _time(step: Step, torch: Any, seconds: float) -> Stopwatch:
    stopwatch = Stopwatch(torch)
    stopwatch.mark()
    while stopwatch.elapsed_s < seconds or (
        stopwatch.steps < TIMED_STEPS and stopwatch.elapsed_s < TIMED_SECONDS_AT_MOST
    ):
        step()
        stopwatch.mark()
    return stopwatch


def _profile(step: Step, torch: Any, session: Session, detail: Detail) -> None:
    """Profiles one step to count its events, then as many as are wanted and the event budget allows."""
    pilot, stopwatch = _profile_steps(step, torch, 1, detail)
    if pilot is None:
        session.warn("the workload runs a profiler of its own, so ours stayed off")
        return
    per_step = max(1, pilot.event_count() // 2)
    allowed, wanted = EVENT_BUDGET // per_step - 1, _wanted_steps(session)
    if allowed < wanted:
        session.warn(
            f"profiled {max(1, allowed)} of {counted(wanted, 'step')}: one step makes about {per_step} events, "
            f"and the budget is {EVENT_BUDGET}"
        )
    if allowed <= 1:
        session.keep(pilot, stopwatch)
        return
    for _ in range(ATTEMPTS):
        window, stopwatch = _profile_steps(step, torch, min(allowed, wanted), detail)
        if window is None or session.offer(window, stopwatch):
            return
    session.warn_of_disturbance()


def _profile_lightly(step: Step, torch: Any, session: Session, detail: Detail) -> None:
    """Profiles steps with the fewest options, which tell how long what takes and not where it is."""
    wanted = session.light_steps(detail, _wanted_steps(session))
    # As many as the other window had are within the budget, which without frames may allow more.
    steps = min(wanted, max(1, len(session.notes.step_marks_ns) - 1))
    for _ in range(ATTEMPTS if steps else 0):
        window, stopwatch = _profile_steps(step, torch, steps, detail.least)
        if window is None or (session.offer_light(window, stopwatch) and steps >= wanted):
            return
        allowed = EVENT_BUDGET * (steps + 1) // max(1, window.event_count()) - 1
        steps = max(steps, min(wanted, allowed))


def _wanted_steps(session: Session) -> int:
    """The steps to profile; left to us, more of them where they are short, since a stall spoils more of those."""
    timing = session.notes.unprofiled
    if session.options.steps is not None or timing is None or not timing.median > 0:
        return session.options.wanted_steps
    return max(session.options.wanted_steps, min(math.ceil(PROFILED_US / timing.median), PROFILED_STEPS_AT_MOST))


def _profile_steps(step: Step, torch: Any, steps: int, detail: Detail) -> tuple[ProfilerWindow | None, Stopwatch]:
    """A stopped window with its marks. One step goes before the first mark: the profiler itself has to warm up."""
    window, stopwatch = ProfilerWindow(torch, detail), Stopwatch(torch)
    if not window.open():
        return None, stopwatch
    try:
        mark_steps(step, stopwatch, steps)
    finally:
        window.stop()
    return window, stopwatch


def _use_up_first_complaint(torch: Any) -> None:
    """Provokes, unseen, a line that torch writes to stderr.

    Its CPU allocator logs the first of every thousand blocks that are freed in a window with memory events but were
    allocated before it. The program's stderr is to stay its own.
    """
    block = torch.empty(1)
    window = ProfilerWindow(torch, Detail(shapes=False, stacks=False, memory=True))
    with silenced(2):
        if window.open():
            del block
            window.stop()
