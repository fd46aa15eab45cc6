"""What to keep of a script that ended before its measurement was complete, and what to tell its owner."""

from dataclasses import dataclass

from bottleneck.harness.capture import Window
from bottleneck.harness.opening import Opening
from bottleneck.harness.session import Session
from bottleneck.harness.stopwatch import Stopwatch

TIMED_STEPS = 20
# When steps that do not settle are given up.
WARMUP_STEPS = 50


@dataclass(frozen=True)
class Remainder:
    """How far the script came: boundaries seen, and the window that was open in the profiled steps, if one was."""

    seen: int
    window: Window | None
    stopwatch: Stopwatch
    opening: Opening | None


def keep_remainder(session: Session, remainder: Remainder) -> None:
    """Keeps the best that there is: profiled steps, else the one step that counted the events, else the start."""
    complete, wanted = remainder.stopwatch.steps, session.plan.wanted_steps
    if session.has_profiled_steps:
        session.warn_of_disturbance()
    elif remainder.window is not None and complete:
        session.offer(remainder.window, remainder.stopwatch)
        session.warn(f"{session.setting.what} ended after {complete} of {wanted} profiled steps; {_enough(session)}")
    elif session.has_trace:
        steps = "1 step" if remainder.seen == 1 else f"{remainder.seen} steps"
        session.warn(f"{session.setting.what} ended after {steps}, of which one was profiled; {_enough(session)}")
    else:
        _keep_opening(session, remainder)


def _keep_opening(session: Session, remainder: Remainder) -> None:
    kept = remainder.opening.finish() if remainder.opening is not None else None
    if kept is None or remainder.opening is None:
        session.warn(f"{session.setting.what} ended before it did anything that could be profiled")
        return
    session.note(step_source="whole program", step_name=None)
    session.keep(kept, remainder.opening.stopwatch if session.setting.is_bounded else Stopwatch(None))
    if remainder.seen:
        steps = "1 step" if remainder.seen == 1 else f"{remainder.seen} steps"
        found, hint = f"{session.setting.what} ended after {steps}", _enough(session)
    else:
        found, hint = "no step boundary was found", session.setting.hint
    session.warn(f"{found}, so its start was profiled as if it were one step; {hint}")


def keep_opening(session: Session, opening: Opening | None) -> None:
    """Keeps the start of a program none of whose steps will be profiled, if anything of it was recorded."""
    kept = opening.finish() if opening is not None else None
    if kept is not None:
        session.note(step_source="whole program", step_name=None)
        session.keep(kept, Stopwatch(None))
        session.warn(f"only the start of {session.setting.what} was profiled, as if it were one step")


def _enough(session: Session) -> str:
    """The number of steps after which the last phase has ended: opening, pilot, warm-up, timed, lead-in, profiled."""
    warmup = WARMUP_STEPS if session.plan.warmup is None else session.plan.warmup
    count = max(warmup, 3) + TIMED_STEPS + 1 + session.plan.wanted_steps
    return f"{count} steps are enough for the full measurement"
