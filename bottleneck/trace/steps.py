"""Finds the steps of a trace and the steady ones among them.

Without any, the whole trace is one step.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from bottleneck.errors import UsageError
from bottleneck.schema.intervals import Flags, Floats, hold_on_tracks, union
from bottleneck.schema.linked_trace import Step, Trace, Window
from bottleneck.schema.op_names import BACKWARD_NODE, LOADER_FETCH, OPTIMIZER_STEP, PROFILER_STEP
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.tables import LAUNCHES, are_calls, main_thread
from bottleneck.trace.integrity import queued_at_end
from bottleneck.trace.joins import are_named, find_launches, is_any_of
from bottleneck.trace.repeats import StepReasons, find_repeats, wall_spans
from bottleneck.units import counted, format_us

# Of fewer steps than this none can be called unusual; but see _COLD.
_STEPS_TO_JUDGE = 4
# A first step counts as warming up when it takes this many times the median of the later ones, and exceeds
# their scatter: 3.5 standard deviations, estimated by 1.4826 median absolute deviations (Iglewicz and Hoaglin 1993).
_WARMING_UP = 1.2
_SCATTER = 3.5 * 1.4826
# Two later steps give no scatter, so there the first must take this many times the longer of them.
_COLD = 2.0
_OUTLIER = 2.0
# More outliers than this are the program's own rhythm, such as an evaluation every few steps.
_RARE = 0.2
# So many long steps at equal distances are no coincidence.
_BEATS = 3
# First steps below this part of every later one: what they needed had been queued before (batches of a loader).
_FED = 0.5


def set_aside_reasons(us: Sequence[float]) -> list[Reason | None]:
    """Gives the reason for setting each step aside, by its duration.

    Null for steps that count, which are one stretch. First steps are set aside while they exceed the later half, or
    take less than half of what each of that takes, then steps that took twice the median of the rest, and then all
    steps outside the longest stretch without one (of equal stretches the last). Long steps at equal distances are the
    program's own rhythm: workers of a loader that deliver their batches together, an evaluation.
    """
    times = np.asarray(us, dtype=np.float64)
    if _has_rhythm(times):
        return [None] * len(times)
    cold, usual_us = _warming_up(times)
    fed = 0 if cold else _fed_from_before(times)
    if fed:
        usual_us = float(np.median(times[fed:]))
    code = "fed_before" if fed else "warming_up"
    reasons: list[Reason | None] = [Reason(code, (time / usual_us,)) for time in times[: cold + fed].tolist()]
    return reasons + _warm_reasons(times[cold + fed :])


def _has_rhythm(times: Floats) -> bool:
    """Returns True if the long steps come at equal distances.

    Each must be alone and equally long.
    """
    long = np.flatnonzero(times > _OUTLIER * np.median(times)) if len(times) else np.zeros(0, dtype=np.int64)
    apart = np.diff(long)
    if len(long) < _BEATS or apart.min() < 2 or apart.min() != apart.max():
        return False
    goes_on = len(times) - long[-1] <= apart[0]  # no other one would have followed before the end
    return bool(goes_on and times[long].max() < _OUTLIER * times[long].min())


def _warming_up(times: Floats) -> tuple[int, float]:
    """Counts the first steps that are slower than the later ones.

    Also gives the median of the later ones.
    """
    count = len(times)
    if count < _STEPS_TO_JUDGE - 1:
        return 0, np.nan
    later = times[-max(_STEPS_TO_JUDGE - 1, (count + 1) // 2) :] if count >= _STEPS_TO_JUDGE else times[1:]
    usual_us = float(np.median(later))
    if count >= _STEPS_TO_JUDGE:
        highest_us = max(_WARMING_UP * usual_us, usual_us + _SCATTER * float(np.median(np.abs(later - usual_us))))
    else:
        highest_us = _COLD * float(later.max())
    usual = times[: count - len(later)] <= highest_us
    return int(np.argmax(usual)) if usual.any() else len(usual), usual_us


def _fed_from_before(times: Floats) -> int:
    """Number of first steps that are far shorter than each of the later half."""
    count = len(times)
    if count < _STEPS_TO_JUDGE:
        return 0
    later = times[-max(_STEPS_TO_JUDGE - 1, (count + 1) // 2) :]
    short = times[: count - len(later)] < _FED * later.min()
    return len(short) if short.all() else int(np.argmin(short))


def _warm_reasons(times: Floats) -> list[Reason | None]:
    """The same for steps after the warm-up."""
    usual_us = float(np.median(times)) if len(times) else 0.0
    outliers = np.flatnonzero(times > _OUTLIER * usual_us)
    if len(times) < _STEPS_TO_JUDGE or not len(outliers) or len(outliers) > max(_RARE * len(times), 1):
        return [None] * len(times)
    bounds = pairwise([-1, *outliers.tolist(), len(times)])
    first, end = max(((low + 1, high) for low, high in bounds), key=lambda run: (run[1] - run[0], run[0]))
    reasons: list[Reason | None] = [Reason("cut_by_outlier")] * len(times)
    reasons[first:end] = [None] * (end - first)
    for row in outliers.tolist():
        reasons[row] = Reason("outlier", (float(times[row]) / usual_us,))
    return reasons


_DEVICE = ("kernel", "copy", "fill")
_PROFILER_FRAME = re.compile(
    r"^\S*torch[/\\](profiler[/\\]|autograd[/\\]profiler|_C[/\\]_profiler)|torch\._C\._autograd\._\w*profiler"
)


def whole_window(trace: Trace) -> Window:
    """Gives one step from the program's first event to its last.

    Events are ops, calls, device work, annotations and Python frames. The profiler's own activity does not count: its
    spans, its own frames, the device synchronisation with which it stops (any after the last op and the last other
    call), and the ends of outer frames that were still open when its first and last frames ran.
    """
    host = is_any_of(trace, ("op", "runtime")) & ~closing_syncs(trace) & ~_calls_of_profiler(trace)
    spans = _spans(trace, host | is_any_of(trace, ("annotation", *_DEVICE)))
    last_call_us = float(trace.events["ts_us"].to_numpy()[host].max(initial=-np.inf))
    spans += _python_span(trace, min((start for start, _ in spans), default=np.inf), last_call_us)
    start_us = min((start for start, _ in spans), default=0.0)
    end_us = max((end for _, end in spans), default=start_us)
    return Window(start_us, end_us, (Step("whole trace", start_us, end_us),), "whole")


def stretch(trace: Trace, from_us: float | None, to_us: float | None) -> Window:
    """Gives one step between two instants of the trace.

    They are in microseconds after the first event of the program. Null means its first or its last event. Raises
    UsageError when nothing of the trace lies between the two.
    """
    whole = whole_window(trace)
    start_us = whole.start_us + max(from_us or 0.0, 0.0)
    end_us = whole.end_us if to_us is None else min(whole.start_us + to_us, whole.end_us)
    if start_us >= end_us:
        raise UsageError(
            f"--window is out of range: {trace.path} lasts {format_us(whole.wall_us)}",
            why="A:B takes the time from A up to B after the first event, in us, ms or s",
            fix=f"end it after it begins, and begin it before {format_us(whole.wall_us)}",
        )
    name = f"{format_us(start_us - whole.start_us)} to {format_us(end_us - whole.start_us)} of the trace"
    return Window(start_us, end_us, (Step(name, start_us, end_us),), "time")


# A free device starts work within 0.1 ms of its launch (analysis/idle.py). What took far longer, and this part of the
# window, was held.
_HELD_US, _WORTH_CUTTING = 1000.0, 0.01
# The device had not begun with what is recorded while that took less than this part of the time.
_NOT_BEGUN = 0.01


def lead_in_end(trace: Trace, window: Window) -> float | None:
    """Finds when the device first took up work of the recording.

    Until then work from before the recording held it. Null where there was none. A device takes up queued work at once,
    unless something else holds it. Where next to nothing is recorded before the first work of a stream, which had long
    been launched, what held it is not recorded.
    """
    event, launches = trace.device_args["event"].to_numpy(), find_launches(trace)
    start_us, dur_us = (trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    call = np.append(trace.launch_args["event"].to_numpy(), 0)[launches]
    launched_us = np.where(launches >= 0, (start_us + dur_us)[call], np.nan)
    order = np.argsort(start_us[event], kind="stable")
    order = order[(start_us[event] >= window.start_us)[order]]
    event, launched_us = event[order], launched_us[order]
    at_us, took_us = start_us[event], dur_us[event]
    done_us = np.maximum.accumulate(np.append(window.start_us, at_us + took_us))[:-1]
    is_first = ~trace.events["thread"].iloc[event].duplicated().to_numpy()
    held_us = at_us - np.fmax(launched_us, done_us)
    held = is_first & (held_us > max(_HELD_US, _WORTH_CUTTING * window.wall_us)) & np.isfinite(launched_us)
    held &= np.cumsum(took_us) - took_us < _NOT_BEGUN * (at_us - window.start_us)
    return float(at_us[held].max()) if held.any() else None


def without_lead_in(trace: Trace, window: Window) -> Window:
    """Leaves out the time in which earlier work held the device.

    That work is from before the recording. Gives the window itself where there is none. Of several steps the first is
    left out, a single one begins on the device when that takes up its work.
    """
    at_us = lead_in_end(trace, window)
    if at_us is None or at_us >= window.end_us:
        return window
    first, *others = window.steps
    if others:
        done_us = float(wall_spans(trace, [first])[1][0])
        return replace(
            window,
            start_us=max(done_us, window.start_us),
            steps=tuple(others),
            set_aside=((first, Reason("held_before")), *window.set_aside),
        )
    step = replace(first, wall_us=window.end_us - at_us)
    return replace(window, start_us=at_us, steps=(step,), lead_in_us=at_us - window.start_us)


# A step counts though the device did not come to this part of its launches before the recording ended.
_FEW_QUEUED = 0.02


def _without_queued_steps(trace: Trace, window: Window) -> Window:
    """Leaves out last steps whose launches were still queued when the recording ended.

    Gives the window itself where there are none, or where no other step would be left.
    """
    if trace.device_args.empty:
        return window
    start_us = trace.events["ts_us"].to_numpy()
    queued_us, launched_us = start_us[queued_at_end(trace)], start_us[are_calls(trace, "launch")]

    def is_cut(step: Step) -> bool:
        queued, launched = (
            np.count_nonzero((at_us >= step.start_us) & (at_us < step.end_us)) for at_us in (queued_us, launched_us)
        )
        return bool(queued > _FEW_QUEUED * launched)

    whole = tuple(step for step in window.steps if not is_cut(step))
    if not whole or len(whole) == len(window.steps):
        return window
    cut = [(step, Reason("queued_at_end")) for step in window.steps if step not in whole]
    aside = tuple(sorted([*window.set_aside, *cut], key=lambda pair: pair[0].start_us))
    return replace(window, end_us=float(wall_spans(trace, whole)[1][-1]), steps=whole, set_aside=aside)


# A step may begin on the host up to this part of it before the device works on it.
_UNTIL_IT_WORKS = 0.1


def choose_side(trace: Trace, window: Window, at_us: float) -> Window | None:
    """Chooses the side of a window parted at an instant.

    That side is judged. It is the later side, which has warmed up, where it holds whole steps; else the longer one.
    Null where the window is one step with marks: it has both sides each time that it runs, so that it is judged as it
    is. The same holds for one whose one side fetches its batch.
    """
    later = tuple(step for step in window.steps if step.start_us + _UNTIL_IT_WORKS * step.us >= at_us)
    if later:
        began_us, done_us = wall_spans(trace, later)
        earlier = [(step, Reason("earlier_side")) for step in window.steps if step not in later]
        aside = tuple(sorted([*window.set_aside, *earlier], key=lambda pair: pair[0].start_us))
        return replace(window, start_us=float(began_us[0]), end_us=float(done_us[-1]), steps=later, set_aside=aside)
    if len(window.steps) == 1 and (window.source != "whole" or _fetches_on_a_side(trace, window, at_us)):
        return None
    is_later = window.end_us - at_us >= at_us - window.start_us
    start_us, end_us = (at_us, window.end_us) if is_later else (window.start_us, at_us)
    zero_us = whole_window(trace).start_us
    return stretch(trace, start_us - zero_us, end_us - zero_us)


def _fetches_on_a_side(trace: Trace, window: Window, at_us: float) -> bool:
    """Returns True where one side mostly waits for a data loader.

    The sides are those of a window that is parted at an instant.
    """
    rows = np.flatnonzero(are_named(trace, LOADER_FETCH))
    start_us = trace.events["ts_us"].to_numpy()[rows]
    fetches = union(start_us, start_us + trace.events["dur_us"].to_numpy()[rows])
    begin, end = np.array([window.start_us, at_us]), np.array([at_us, window.end_us])
    return bool((fetches.covered_between(begin, end) > (end - begin) / 2).any())


def side_options(trace: Trace, window: Window, at_us: float) -> tuple[str, str]:
    """Gives the values of ``--window`` for both sides of a window.

    The window is parted at an instant. The earlier side comes first.
    """
    whole = whole_window(trace)

    def told(instant_us: float) -> str:
        return f"{(instant_us - whole.start_us) / 1e3:.3f}ms"

    low = told(window.start_us) if window.start_us > whole.start_us else ""
    high = told(window.end_us) if window.end_us < whole.end_us else ""
    return f"{low}:{told(at_us)}", f"{told(at_us)}:{high}"


def _spans(trace: Trace, chosen: Flags) -> list[tuple[float, float]]:
    """First start and last end of the chosen events; empty when there are none."""
    start_us = trace.events["ts_us"].to_numpy()[chosen]
    end_us = start_us + trace.events["dur_us"].to_numpy()[chosen]
    return [(float(start_us.min()), float(end_us.max()))] if len(start_us) else []


def closing_syncs(trace: Trace) -> Flags:
    """Marks device synchronisations after all ops and other calls.

    They start after every op has ended and every other call has started.
    """
    start_us, dur_us = (trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    calls, ops = (is_any_of(trace, (kind,)) for kind in ("runtime", "op"))
    syncs = are_calls(trace, "synchronise_device")
    last_us = max((start_us + dur_us)[ops].max(initial=-np.inf), start_us[calls & ~syncs].max(initial=-np.inf))
    late: Flags = start_us >= last_us
    return syncs & late


def _calls_of_profiler(trace: Trace) -> Flags:
    """Marks runtime calls inside the profiler's own frames.

    When it stops, it may start the device first.
    """
    start_us, dur_us = (trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    thread = trace.events["thread"].cat.codes.to_numpy()
    calls = is_any_of(trace, ("runtime",))
    own = np.flatnonzero(is_any_of(trace, ("python",)) & are_named(trace, _PROFILER_FRAME))
    rows = np.flatnonzero(calls)
    is_inside = hold_on_tracks(thread[own], start_us[own], (start_us + dur_us)[own], thread[rows], start_us[rows])
    calls[rows] = is_inside
    return calls


def _python_span(trace: Trace, first_us: float, last_us: float) -> list[tuple[float, float]]:
    """Gives the span of the program's Python frames.

    It lies between the profiler's frames before the first and after the last event.
    """
    python = is_any_of(trace, ("python",))
    own = python & are_named(trace, _PROFILER_FRAME)
    start_us = trace.events["ts_us"].to_numpy()
    end_us = start_us + trace.events["dur_us"].to_numpy()
    opened_us = end_us[own & (end_us <= first_us)].max(initial=-np.inf)
    closing_us = start_us[own & (start_us >= last_us)].min(initial=np.inf)
    return [
        (max(start, opened_us), min(end, closing_us))
        for start, end in _spans(trace, python & ~own)
        if max(start, opened_us) < min(end, closing_us)
    ]


# Around each step of vLLM and SGLang: 'execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32…'.
SERVER_STEP = re.compile(r"^execute_(\w+_)?\d")


def find_steps(
    trace: Trace,
    marks_ns: Sequence[int] | None = None,
    requested: slice | None = None,
    set_aside: Sequence[Reason | None] | None = None,
) -> Window:
    """The steps of a trace and the window that they span.

    ``marks_ns`` are instants of the Unix clock, one more than there are steps. Without them (or where they cannot be
    laid on the trace) the profiler's own steps count, else the intervals from one end of the first optimizer's step to
    the next, else the calls of one such step's closure, else the marks of an inference server, else the repeats of a
    loop, else the whole trace is one step. Of these the ``requested`` ones are chosen, by position, else the steady
    ones; but batches of a server differ by nature, so all of them count. ``set_aside`` tells instead why each step does
    not count, null where it does. Unless steps are chosen in one of these ways, a beginning in which work from before
    the recording held the device is left out. Raises UsageError when there are no such steps.
    """
    sources: tuple[tuple[str, Callable[[], StepReasons]], ...] = (
        ("marks", lambda: _counting(_from_marks(trace, marks_ns or ()))),
        ("profiler", lambda: _counting(_from_profiler(trace))),
        ("optimizer", lambda: _counting(_from_optimizer(trace))),
        ("closure", lambda: _counting(_from_closure(trace))),
        ("server", lambda: _counting(_from_server(trace))),
        ("repeats", lambda: find_repeats(trace)),
    )
    for source, find in sources:
        steps = _of_one_window(find(), trace)
        if steps:
            window = _window(trace, steps, source, requested, set_aside)
            is_chosen = requested is not None or set_aside is not None
            return window if is_chosen else without_lead_in(trace, _without_queued_steps(trace, window))
    if requested is not None:
        raise UsageError(
            f"--steps {_spelt(requested)} requests steps, but none were found in {trace.path}",
            why="it has no step marks and its ops do not repeat, so the whole trace counts as one step",
            fix="leave out --steps, or call profiler.step() after each step when recording",
        )
    return without_lead_in(trace, whole_window(trace))


def _of_one_window(found: StepReasons, trace: Trace) -> StepReasons:
    """Lets the steps of only one window of the profiler count.

    Of several windows in one file it is the one with most steps, of equal ones the last. Steps of the others get a
    reason. A window ends where its span by the profiler does, or where steps are missing by their numbers and nothing
    ran.
    """
    spans_us = _profiler_spans(trace)
    bounds_us = np.array([(step.start_us, step.end_us) for step, _ in found]).reshape(-1, 2)
    began, ended = np.searchsorted(spans_us, bounds_us[:, 0], side="right"), np.searchsorted(spans_us, bounds_us[:, 1])
    # One that reaches from one into the next is of neither.
    windows = np.where(began == ended, began, -1)
    work_us = trace.events["ts_us"].to_numpy()[is_any_of(trace, ("op", "runtime"))]
    starts = [
        at > 0 and (windows[at] != windows[at - 1] or _is_apart(found[at - 1][0], step, work_us))
        for at, (step, _) in enumerate(found)
    ]
    window = np.cumsum(starts)
    if not len(window) or not window[-1]:
        return found
    sizes = np.bincount(window)
    chosen = len(sizes) - 1 - int(np.argmax(sizes[::-1]))
    other = Reason("other_window")
    return tuple(
        (step, reason if at == chosen else other) for (step, reason), at in zip(found, window.tolist(), strict=True)
    )


def _is_apart(step: Step, later: Step, work_us: Floats) -> bool:
    """True if steps between these two were not recorded, nor any work."""
    if step.number is None or later.number is None or later.number <= step.number + 1:
        return False
    return not bool(((work_us >= step.end_us) & (work_us < later.start_us)).any())


# The profiler's span over all that it recorded in one go.
_RECORDED = re.compile(r"^PyTorch Profiler \(\d+\)$")


def _profiler_spans(trace: Trace) -> Floats:
    """Gives the starts of the profiler's spans but for the first.

    None where the spans do not lie one after the other.
    """
    rows = np.flatnonzero(is_any_of(trace, ("profiler",)))
    rows = rows[are_named(trace, _RECORDED, rows)]
    start_us = np.sort(trace.events["ts_us"].to_numpy()[rows])
    end_us = np.sort((trace.events["ts_us"] + trace.events["dur_us"]).to_numpy()[rows])
    is_apart = len(rows) > 1 and bool((start_us[1:] >= end_us[:-1]).all())
    return start_us[1:] if is_apart else start_us[:0]


def _counting(steps: tuple[Step, ...]) -> StepReasons:
    return tuple((step, None) for step in steps)


def _window(
    trace: Trace, found: StepReasons, source: str, requested: slice | None, set_aside: Sequence[Reason | None] | None
) -> Window:
    """The window of the steps that count, which lie next to one another."""
    began_us, done_us = wall_spans(trace, [step for step, _ in found])
    walls_us = (done_us - began_us).tolist()
    timed = [replace(step, wall_us=wall_us) for (step, _), wall_us in zip(found, walls_us, strict=True)]
    reasons = [reason for _, reason in found]
    if requested is None and set_aside is not None:
        reasons = [*set_aside]
    elif requested is None and source != "server":
        equal = [row for row, reason in enumerate(reasons) if reason is None]
        reasons[equal[0] : equal[-1] + 1] = set_aside_reasons([walls_us[row] for row in equal])
    elif requested is not None:
        reasons = _outside_request(trace, len(found), requested)
    counting = [row for row, reason in enumerate(reasons) if reason is None]
    return Window(
        float(began_us[counting[0]]),
        float(done_us[counting[-1]]),
        tuple(timed[row] for row in counting),
        source,
        tuple((step, reason) for step, reason in zip(timed, reasons, strict=True) if reason is not None),
    )


def _outside_request(trace: Trace, count: int, requested: slice) -> list[Reason | None]:
    """Reason for leaving out each step, null for the requested ones."""
    first, end, _ = requested.indices(count)
    beyond = max(abs(bound) for bound in (requested.start or 0, requested.stop or 0)) > count
    if beyond or first >= end:
        raise UsageError(
            f"--steps {_spelt(requested)} is out of range: {trace.path} has {counted(count, 'step')}, numbered from 0",
            why="A:B takes the steps from A up to, not including, B, as a slice in Python does",
            fix=f"name steps between 0 and {count}: --steps 0:{count} takes all",
        )
    others = Reason("not_requested", (_spelt(requested),))
    return [None if first <= row < end else others for row in range(count)]


def _spelt(requested: slice) -> str:
    return ":".join("" if bound is None else str(bound) for bound in (requested.start, requested.stop))


def _from_marks(trace: Trace, marks_ns: Sequence[int]) -> tuple[Step, ...]:
    if trace.start_unix_ns is None:
        return ()
    at_us = [(mark - trace.start_unix_ns) / 1e3 for mark in sorted(set(marks_ns))]
    end_us = float((trace.events["ts_us"] + trace.events["dur_us"]).max()) if len(trace.events) else 0.0
    return tuple(
        Step(f"step {number}", start, end, number=number)
        for number, (start, end) in enumerate(pairwise(at_us))
        if end > 0 and start < end_us
    )


def _from_profiler(trace: Trace) -> tuple[Step, ...]:
    """Gives the profiler's steps, each name once.

    A last one that is only the rest until the profiler stopped is left out. Nothing is called in such a rest, though
    the trace holds calls: the program had ended its last step before.
    """
    marks = _apart(_annotations(trace, PROFILER_STEP).drop_duplicates("name"))
    steps = tuple(replace(step, number=_number_of(step.name)) for step in marks)
    call_us = trace.events["ts_us"].to_numpy()[is_any_of(trace, ("op", "runtime"))]
    if steps and len(call_us) and not ((call_us >= steps[-1].start_us) & (call_us < steps[-1].end_us)).any():
        return steps[:-1]
    return steps


_NUMBER = re.compile(r"#(\d{1,15})(?!\d)")


def _number_of(name: str) -> int | None:
    """The number in the name of a profiler's step; null where there is none."""
    match = _NUMBER.search(name)
    return int(match[1]) if match is not None else None


def _from_optimizer(trace: Trace) -> tuple[Step, ...]:
    """Gives steps from one end of an optimizer's step to the next.

    Of several optimizers the first one seen counts, by name, and of those with its name one that steps once in each
    turn. Where long and short intervals take turns, as where each round of collecting data is followed by some updates,
    a step is a whole round. A recording that begins with a loader's fetch holds the first step whole, if that is no
    part of a turn.
    """
    calls = _annotations(trace, OPTIMIZER_STEP)
    calls = calls[calls["name"] == calls["name"].iloc[0]] if len(calls) else calls
    updates = _without_stop(trace, _apart(calls))
    turn = _optimizers_by_turn(trace, updates)
    counting = _of_leader(turn, len(updates))
    ends_us = [step.end_us for step, counts in zip(updates, counting, strict=True) if counts]
    ends_us = ends_us[:: _updates_per_round(np.diff(ends_us))]
    holds_turn = all(counting) or not any(counting[: len(turn) - 1])
    ends_us = [*(_first_fetch(trace, ends_us) if holds_turn else []), *ends_us]
    return tuple(Step(f"step {number}", start, end) for number, (start, end) in enumerate(pairwise(ends_us)))


# How an optimizer marks that gradients are reset, as a closure begins with.
_RESET = re.compile(r"^Optimizer\.zero_grad#")
_FEWEST_CALLS = 3


def _from_closure(trace: Trace) -> tuple[Step, ...]:
    """Gives the calls of the closure in one step of an optimizer.

    Each lasts from one reset of the optimizer's gradients to the next. L-BFGS may train a whole network in one step,
    which calls its closure hundreds of times. The last call is left out: nothing marks its end.
    """
    updates, resets = _annotations(trace, OPTIMIZER_STEP), _annotations(trace, _RESET)
    if len(updates) != 1:
        return ()
    name, start_us, end_us = updates.iloc[0]
    kind = name.partition("#")[2].partition(".")[0]
    is_own = (resets["name"] == f"Optimizer.zero_grad#{kind}.zero_grad") & resets["start"].between(start_us, end_us)
    begun_us = resets["start"][is_own].tolist()
    if len(begun_us) <= _FEWEST_CALLS:
        return ()
    return tuple(Step(f"call {number}", start, end) for number, (start, end) in enumerate(pairwise(begun_us)))


def _without_stop(trace: Trace, updates: tuple[Step, ...]) -> tuple[Step, ...]:
    """Ends the last update with its ops where the profiler stopped in it.

    A hook of the optimizer stops it, and the annotation lasts until then. Nothing of the program runs after the last op
    or call in it, for longer than any other update takes.
    """
    host = is_any_of(trace, ("op", "runtime")) & ~closing_syncs(trace) & ~_calls_of_profiler(trace)
    start_us, dur_us = (trace.events[name].to_numpy()[host] for name in ("ts_us", "dur_us"))
    order = np.argsort(start_us, kind="stable")
    start_us, done_us = start_us[order], (start_us + dur_us)[order]

    def rest_us(update: Step) -> float:
        first, end = np.searchsorted(start_us, (update.start_us, update.end_us))
        return float(update.end_us - done_us[first:end].max(initial=-np.inf))

    if len(updates) < 2 or start_us.max(initial=-np.inf) >= updates[-1].end_us:
        return updates
    *others, last = updates
    usual_us = max(rest_us(update) for update in others)
    if not max(usual_us, *(update.us for update in others)) < rest_us(last) < np.inf:
        return updates
    return (*others, replace(last, end_us=last.end_us - rest_us(last) + max(usual_us, 0.0)))


def _of_leader(turn: Sequence[int], updates: int) -> list[bool]:
    """Marks the updates of the one optimizer whose ends bound steps.

    A GAN steps that of its discriminator and that of its generator by turns: one turn is a step. Of optimizers that
    step once in each turn it is the one seen most often, of equal ones the last of the turn. All updates count without
    turns.
    """
    kinds = [turn[at % len(turn)] for at in range(updates)] if turn else []
    once = [kind for kind in reversed(turn) if turn.count(kind) == 1]
    leader = max(once, key=kinds.count) if once else _steps_always(turn)
    return [leader is None or kind == leader for kind in kinds] if kinds else [True] * updates


_BACKWARD_NODE = re.compile("^" + re.escape(BACKWARD_NODE))


def _steps_always(turn: Sequence[int]) -> int | None:
    """Finds the optimizer that steps in each iteration of a turn.

    The others step in some iterations, always the same way: the critic of SAC in all, its actor in each second one.
    """
    for kind in dict.fromkeys(turn):
        others: list[tuple[int, ...]] = [()]
        first = turn.index(kind)
        for one in (*turn[first:], *turn[:first]):
            others = [*others, ()] if one == kind else [*others[:-1], (*others[-1], one)]
        if len(set(filter(None, others))) == 1:
            return kind
    return None


def _optimizers_by_turn(trace: Trace, updates: Sequence[Step]) -> list[int]:
    """Gives the optimizers of the updates of one turn, by number of ops.

    Updates begin with such a turn. Empty where they follow no pattern or their counts are equal. The first turn may
    differ: there optimizers make their state.
    """
    start_us, end_us = (np.array([getattr(step, name) for step in updates]) for name in ("start_us", "end_us"))
    is_own = is_any_of(trace, ("op",)) & (trace.events["thread"].cat.codes.to_numpy() == main_thread(trace.events))
    ops_us = np.sort(trace.events["ts_us"].to_numpy()[is_own])
    counts = np.searchsorted(ops_us, end_us) - np.searchsorted(ops_us, start_us)
    most = min(_MOST_UPDATES, len(counts) // _LEAST_ROUNDS) if len(set(counts.tolist())) > 1 else 0
    for period in range(2, most + 1):
        (differing,) = np.nonzero(counts[period:] != counts[:-period])
        first = int(differing[-1]) + 1 if differing.size else 0
        if first <= period and len(counts) - first >= _LEAST_ROUNDS * period:
            turn: list[int] = np.roll(counts[first : first + period], first).tolist()
            return turn if _have_own_passes(trace, updates[first:], counts[first:].tolist()) else []
    return []


def _have_own_passes(trace: Trace, updates: Sequence[Step], counts: Sequence[int]) -> bool:
    """True if no two optimizers come after the same backward pass.

    Optimizers are told apart by their counts of ops. One that averages its parameters now and then calls more ops after
    the same pass. Optimizers may share one pass and step right after one another. The pass before the first update may
    be cut.
    """
    rows = np.flatnonzero(is_any_of(trace, ("op",)))
    rows = rows[are_named(trace, _BACKWARD_NODE, rows)]
    rows = rows[np.argsort(trace.events["ts_us"].to_numpy()[rows], kind="stable")]
    at_us, nodes = trace.events["ts_us"].to_numpy()[rows], trace.events["name"].iloc[rows].astype(object)
    optimizers: dict[tuple[tuple[str, int], ...], set[int]] = {}
    for (earlier, update), count in zip(pairwise(updates), counts[1:], strict=True):
        first, end = np.searchsorted(at_us, (earlier.end_us, update.start_us))
        called = nodes.iloc[first:end]
        optimizers.setdefault(tuple(sorted(Counter(called).items())), set()).add(count)
    optimizers.pop((), None)
    return bool(optimizers) and all(len(counted) == 1 for counted in optimizers.values())


# Old profilers call a few ops of their own before a mark.
_BEFORE_FETCH = 0.01


def _first_fetch(trace: Trace, ends_us: Sequence[float]) -> list[float]:
    """Gives the start of the fetch that begins the first step, if any.

    Next to nothing runs before it then, and later steps begin with a fetch too: none launches anything before it.
    """
    fetches_us = np.array([step.start_us for step in _apart(_annotations(trace, LOADER_FETCH))])
    start_us = trace.events["ts_us"].to_numpy()
    begins = np.array([-np.inf, *ends_us])
    if len(ends_us) < 2 or not np.array_equal(np.searchsorted(fetches_us, begins[1:]), np.arange(1, len(ends_us) + 1)):
        return []
    fetches_us = fetches_us[: len(ends_us)]
    begun_us = min(fetches_us[0], start_us[is_any_of(trace, ("op",))].min(initial=np.inf))
    launched_us = np.sort(start_us[are_calls(trace, *LAUNCHES)])
    launched = np.searchsorted(launched_us, fetches_us) > np.searchsorted(launched_us, begins[:-1])
    is_late = fetches_us[0] - begun_us > _BEFORE_FETCH * (ends_us[0] - fetches_us[0])
    return [] if is_late or launched.any() else [float(fetches_us[0])]


# Updates of a round at most, and how often a round has to come again. Intervals of one place in it are alike, and the
# longest takes many times as long as the shortest.
_MOST_UPDATES, _LEAST_ROUNDS, _ALIKE_INTERVALS, _MUCH_LONGER = 64, 2, 2.0, 4.0


def _updates_per_round(intervals_us: Floats) -> int:
    """Gives how many intervals make a round; 1 where they do not take turns."""
    for period in range(2, min(_MOST_UPDATES, intervals_us.size // _LEAST_ROUNDS) + 1):
        places = [intervals_us[place::period] for place in range(period)]
        middles = [float(np.median(place)) for place in places]
        are_alike = all(place.max() <= _ALIKE_INTERVALS * place.min() for place in places)
        if are_alike and max(middles) >= _MUCH_LONGER * min(middles):
            return period
    return 1


def _from_server(trace: Trace) -> tuple[Step, ...]:
    """Gives steps from one mark of an inference server to the next.

    The last one goes up to its own end; a single one bounds nothing. The names hold the sizes of the batch and differ
    from step to step.
    """
    calls = _apart(_annotations(trace, SERVER_STEP))
    ends_us = [*(step.start_us for step in calls[1:]), *(step.end_us for step in calls[-1:])]
    return tuple(replace(step, end_us=end_us) for step, end_us in zip(calls, ends_us, strict=True)) if calls[1:] else ()


def _annotations(trace: Trace, pattern: re.Pattern[str]) -> pd.DataFrame:
    """Name, start and end of the host's annotations whose name matches, in order.

    Projections of the same marks on the device have a category of their own and are left out.
    """
    rows = np.flatnonzero(is_any_of(trace, ("annotation",)))
    matching = trace.events.iloc[rows[are_named(trace, pattern, rows)]]
    frame = pd.DataFrame({"name": matching["name"].astype(object), "start": matching["ts_us"]})
    frame["end"] = matching["ts_us"] + matching["dur_us"]
    return frame.sort_values(["start", "end", "name"], ignore_index=True)


def _apart(marks: pd.DataFrame) -> tuple[Step, ...]:
    """Makes steps that do not overlap.

    One that starts inside another begins where that ends, or is dropped inside it.
    """
    steps: list[Step] = []
    for name, start, end in marks.itertuples(index=False):
        begin = max(start, steps[-1].end_us) if steps else start
        if end > begin:
            steps.append(Step(name, float(begin), float(end)))
    return tuple(steps)
