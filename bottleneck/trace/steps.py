"""The window of a trace and the steps in it: from marks, profiler steps, optimizer steps, or the whole span."""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from bottleneck.records import Step, Trace, Window
from bottleneck.trace.events import is_any_of, names_that_match
from bottleneck.trace.joins import Flags
from bottleneck.trace.launches import find_launches

PROFILER_STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step#"

_STEPS_TO_JUDGE = 4  # of fewer steps none can be called unusual
_OUTLIER = 2.0

_DEVICE = ("kernel", "copy", "fill")
_DEVICE_SYNC = re.compile(r"^(cuda|hip|musa|xpu)\w*DeviceSynchronize$")
_PROFILER_FRAME = re.compile(
    r"^\S*torch[/\\](profiler[/\\]|autograd[/\\]profiler|_C[/\\]_profiler)|torch\._C\._autograd\._\w*profiler"
)


def find_steps(trace: Trace, marks_ns: Sequence[int] | None = None) -> Window:
    """The steps of a trace and the window that they span.

    ``marks_ns`` are instants of the Unix clock, one more than there are steps. Without them (or where they cannot be
    laid on the trace) the profiler's own steps count, else the intervals from one end of the first optimizer's step to
    the next, else the whole trace is one step. The window ends with the last device work that the steps launched, if
    that is later than the last step. Of marked steps, which one program repeats, only the longest steady run counts.
    """
    for source, found in (
        ("marks", _from_marks(trace, marks_ns or ())),
        ("profiler", _from_profiler(trace)),
        ("optimizer", _from_optimizer(trace)),
    ):
        steps = _steady(found) if source == "marks" else found
        if steps:
            end_us = max(steps[-1].end_us, _end_of_device_work(trace, steps))
            return Window(steps[0].start_us, end_us, steps, source, len(found) - len(steps))
    return whole_window(trace)


def _steady(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The longest run of steps without one that takes twice the median: a shared machine stalls a step now and then."""
    if len(steps) < _STEPS_TO_JUDGE:
        return steps
    dur_us = np.array([step.end_us - step.start_us for step in steps])
    outliers = np.flatnonzero(dur_us > _OUTLIER * np.median(dur_us)).tolist()
    bounds = pairwise([-1, *outliers, len(steps)])
    first, last = max(((low + 1, high) for low, high in bounds), key=lambda run: run[1] - run[0])
    return steps[first:last]


def _from_marks(trace: Trace, marks_ns: Sequence[int]) -> tuple[Step, ...]:
    if trace.start_unix_ns is None:
        return ()
    at_us = [(mark - trace.start_unix_ns) / 1e3 for mark in sorted(set(marks_ns))]
    end_us = float((trace.events["ts_us"] + trace.events["dur_us"]).max()) if len(trace.events) else 0.0
    return tuple(
        Step(f"step {number}", start, end)
        for number, (start, end) in enumerate(pairwise(at_us))
        if end > 0 and start < end_us
    )


def _from_profiler(trace: Trace) -> tuple[Step, ...]:
    """Profiler steps, each name once, without a last one that is what was left when the profiler stopped.

    Nothing is called in such a rest, though the trace holds calls: the program had ended its last step before.
    """
    steps = _apart(_annotations(trace, PROFILER_STEP).drop_duplicates("name"))
    call_us = trace.events["ts_us"].to_numpy()[is_any_of(trace, ("op", "runtime"))]
    if steps and len(call_us) and not ((call_us >= steps[-1].start_us) & (call_us < steps[-1].end_us)).any():
        return steps[:-1]
    return steps


def _from_optimizer(trace: Trace) -> tuple[Step, ...]:
    """From one end of an optimizer's step to the next; of several optimizers the first one seen counts."""
    calls = _annotations(trace, OPTIMIZER_STEP)
    calls = calls[calls["name"] == calls["name"].iloc[0]] if len(calls) else calls
    ends_us = [step.end_us for step in _apart(calls)]
    return tuple(Step(f"step {number}", start, end) for number, (start, end) in enumerate(pairwise(ends_us)))


def _annotations(trace: Trace, prefix: str) -> pd.DataFrame:
    """Name, start and end of the host's annotations that begin with a prefix, in order.

    Projections of the same marks on the device have a category of their own and are left out.
    """
    events = trace.events
    found = events[_named(trace, re.compile("^" + re.escape(prefix))) & is_any_of(trace, ("annotation",))]
    frame = pd.DataFrame({"name": found["name"].astype(object), "start": found["ts_us"]})
    frame["end"] = found["ts_us"] + found["dur_us"]
    return frame.sort_values(["start", "end", "name"], ignore_index=True)


def _apart(marks: pd.DataFrame) -> tuple[Step, ...]:
    """Steps that do not overlap: one that starts inside another begins where that ends, or is dropped inside it."""
    steps: list[Step] = []
    for name, start, end in marks.itertuples(index=False):
        begin = max(start, steps[-1].end_us) if steps else start
        if end > begin:
            steps.append(Step(name, float(begin), float(end)))
    return tuple(steps)


def _end_of_device_work(trace: Trace, steps: tuple[Step, ...]) -> float:
    """End of the last device work launched inside the steps, 0 where there is none."""
    launch = find_launches(trace)
    launched = np.flatnonzero(launch >= 0)
    call_us = trace.events["ts_us"].to_numpy()[trace.launch_args["event"].to_numpy()[launch[launched]]]
    inside = launched[(call_us >= steps[0].start_us) & (call_us < steps[-1].end_us)]
    work = trace.events.iloc[trace.device_args["event"].to_numpy()[inside]]
    return float((work["ts_us"] + work["dur_us"]).max()) if len(work) else 0.0


def whole_window(trace: Trace) -> Window:
    """One step from the first to the last event of the program: ops, calls, device work, annotations, Python frames.

    What the profiler does for itself does not count: its spans, its own frames, the device synchronisation with which
    it stops (any after the last op and the last other call), and the ends of outer frames that were still open when
    its first and last frames ran.
    """
    host = is_any_of(trace, ("op", "runtime")) & ~_closing_syncs(trace)
    spans = _spans(trace, host | is_any_of(trace, ("annotation", *_DEVICE)))
    last_call_us = float(trace.events["ts_us"].to_numpy()[host].max(initial=-np.inf))
    spans += _python_span(trace, min((start for start, _ in spans), default=np.inf), last_call_us)
    start_us = min((start for start, _ in spans), default=0.0)
    end_us = max((end for _, end in spans), default=start_us)
    return Window(start_us, end_us, (Step("whole trace", start_us, end_us),), "whole")


def _spans(trace: Trace, chosen: Flags) -> list[tuple[float, float]]:
    """First start and last end of the chosen events; empty when there are none."""
    start_us = trace.events["ts_us"].to_numpy()[chosen]
    end_us = start_us + trace.events["dur_us"].to_numpy()[chosen]
    return [(float(start_us.min()), float(end_us.max()))] if len(start_us) else []


def _closing_syncs(trace: Trace) -> Flags:
    """Device synchronisations that start after every op has ended and every other call has started."""
    start_us, dur_us = (trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    calls, ops = (is_any_of(trace, (each,)) for each in ("runtime", "op"))
    syncs = calls & _named(trace, _DEVICE_SYNC)
    last_us = max((start_us + dur_us)[ops].max(initial=-np.inf), start_us[calls & ~syncs].max(initial=-np.inf))
    late: Flags = start_us >= last_us
    return syncs & late


def _python_span(trace: Trace, first_us: float, last_us: float) -> list[tuple[float, float]]:
    """Span of the program's Python frames, between the profiler's frames before the first and after the last event."""
    python = is_any_of(trace, ("python",))
    own = python & _named(trace, _PROFILER_FRAME)
    start_us = trace.events["ts_us"].to_numpy()
    end_us = start_us + trace.events["dur_us"].to_numpy()
    opened_us = end_us[own & (end_us <= first_us)].max(initial=-np.inf)
    closing_us = start_us[own & (start_us >= last_us)].min(initial=np.inf)
    return [
        (max(start, opened_us), min(end, closing_us))
        for start, end in _spans(trace, python & ~own)
        if max(start, opened_us) < min(end, closing_us)
    ]


def _named(trace: Trace, pattern: re.Pattern[str]) -> Flags:
    """Whether each event's name matches."""
    return np.asarray(names_that_match(trace, pattern)[trace.events["name"].cat.codes.to_numpy()], dtype=np.bool_)
