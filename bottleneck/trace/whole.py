"""The window of a trace that is taken as one step: from the first to the last event of the program."""

import re

import numpy as np

from bottleneck.trace.events import are_named, is_any_of
from bottleneck.trace.joins import Flags
from bottleneck.tracing import Step, Trace, Window

_DEVICE = ("kernel", "copy", "fill")
_DEVICE_SYNC = re.compile(r"^(cuda|hip|musa|xpu)\w*DeviceSynchronize$")
_PROFILER_FRAME = re.compile(
    r"^\S*torch[/\\](profiler[/\\]|autograd[/\\]profiler|_C[/\\]_profiler)|torch\._C\._autograd\._\w*profiler"
)


def whole_window(trace: Trace) -> Window:
    """One step from the first to the last event of the program: ops, calls, device work, annotations, Python frames.

    What the profiler does for itself does not count: its spans, its own frames, the device synchronisation with which
    it stops (any after the last op and the last other call), and the ends of outer frames that were still open when
    its first and last frames ran.
    """
    host = is_any_of(trace, ("op", "runtime")) & ~closing_syncs(trace)
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


def closing_syncs(trace: Trace) -> Flags:
    """Device synchronisations that start after every op has ended and every other call has started."""
    start_us, dur_us = (trace.events[name].to_numpy() for name in ("ts_us", "dur_us"))
    calls, ops = (is_any_of(trace, (each,)) for each in ("runtime", "op"))
    syncs = calls & are_named(trace, _DEVICE_SYNC)
    last_us = max((start_us + dur_us)[ops].max(initial=-np.inf), start_us[calls & ~syncs].max(initial=-np.inf))
    late: Flags = start_us >= last_us
    return syncs & late


def _python_span(trace: Trace, first_us: float, last_us: float) -> list[tuple[float, float]]:
    """Span of the program's Python frames, between the profiler's frames before the first and after the last event."""
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
