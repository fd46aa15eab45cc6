"""Rules on aids to debugging that were left on.

They are anomaly detection, blocking launches, tracers and gradient checks.
"""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import requires_gain, work_of
from bottleneck.advice.quantities import (
    claims_of,
    format_count,
    format_per_step,
    outermost_frames,
)
from bottleneck.advice.ranking import Draft, SourcedLine, up_to
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Floats, Integers, Spans
from bottleneck.schema.measurements import DebugMode, DebugName
from bottleneck.schema.op_names import BACKWARD_NODE, at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_share, format_us

# The engine of autograd calls these between its nodes in anomaly mode only: isnan(output), any of it, and its value.
_CHECK = re.compile(r"^aten::(?:isnan|ne|_is_any_true|any|all|item|is_nonzero)$")
_IS_NAN, _IS_ANY = re.compile(r"^aten::(?:isnan|ne)$"), re.compile(r"^aten::(?:_is_any_true|any)$")
# A node that adds up a gradient has no output to check.
_UNCHECKED_NODE = re.compile(f"^{BACKWARD_NODE}: torch::autograd::AccumulateGrad")
# A hook of a program's own that looks for NaN is on some tensors.
_LEAST_CHECKED = 0.9
_CAPTURE = re.compile(r"^(?:torch/fx/)?traceback\.py\(\d+\): format_stack$")
# What a record of the profiler costs inside the op or the function (analysis/scaling.py: 0.7 to 1.1 us were measured).
_RECORD_US = 1.1
# A stack trace of 10 to 20 frames, where neither the program nor the trace shows its time: 50 to 92 us with torch 2.13
# and Python 3.11, a third of it with fewer frames.
_CAPTURE_US = (15.0, 95.0)
# Of the time taken in a step: what is kept with each stack trace costs a little more. Of 50.2 ms, the step of a
# transformer with 185 backward ops, 36.8 were saved: 18.6 without stack traces alone, of which 17.7 are the calls that
# record them, and 18.3 without checks, which take 14 to 15 as ops (CPU, torch 2.13).
_TIMED = (1.0, 1.2)
# Of the time from the first check of a node to the last: checks also push other data out of the caches.
_CHECKED = (0.9, 1.4)
_HOST = ("overhead.dispatch", "overhead.python")
# In these the host uses no processor.
_WAITS = ("input", "sync", "wait")
_LEAST = 0.01
_FIRST = 0.1  # of the step: what makes it the first thing to do


@remembered
def _modes(evidence: Evidence) -> dict[DebugName, tuple[DebugMode, ...]]:
    """The aids that the recording names, by name."""
    recorded = () if evidence.recording is None else evidence.recording.debug_modes
    names = dict.fromkeys(mode.name for mode in recorded)
    return {name: tuple(mode for mode in recorded if mode.name == name) for name in names}


def _place(mode: DebugMode | None) -> tuple[str, ...]:
    """Gives the line that switches it on, as evidence.

    None where it is not known.
    """
    return (
        ()
        if mode is None or mode.source is None
        else (SourcedLine(f"switched on {at_source(mode.source)}", mode.source),)
    )


class _NanChecks(Struct, frozen=True):
    """The checks of anomaly detection and what they cost.

    They are backward ops per step that are checked, host time per step, and the ops. ``share`` is their part of the
    time of all ops, without the stack traces that are recorded inside ops.
    """

    nodes: float
    us: float
    share: float
    ops: Flags


@remembered
def _nan_checks(evidence: Evidence) -> _NanChecks | None:
    """Finds the NaN checks after backward ops in the window.

    Null unless nearly every backward op has one.
    """
    ops, low_high = evidence.linked.ops, evidence.linked.window.host_us
    names = ops["name"]
    is_node = ops["is_autograd"].to_numpy()
    if not is_node.any() or not text_matches(names, _IS_ANY.search).any():
        return None
    start = ops["ts_us"].to_numpy()
    inside = (start >= low_high[0]) & (start < low_high[1])
    parent = as_integers(ops["parent"])
    of_engine = np.append(is_node, False)[parent] & (parent >= 0)
    top = text_matches(names, _CHECK.search) & of_engine & inside
    is_nan, is_any = (parent[top & text_matches(names, pattern.search)] for pattern in (_IS_NAN, _IS_ANY))
    nodes = np.intersect1d(is_nan, is_any)
    wanted = is_node & ~text_matches(names, _UNCHECKED_NODE.search) & inside
    if not nodes.size or nodes.size < _LEAST_CHECKED * np.count_nonzero(wanted):
        return None
    below = _with_children(top, parent)
    dur_us = ops["dur_us"].to_numpy()
    held_up = evidence.held_up
    held_us = held_up["beyond_us"].to_numpy()
    is_check = below[held_up["op"].to_numpy()]
    spans_us = max(_spans_us(start, dur_us, parent, top) - float(held_us[is_check].sum()), 0.0)
    captures_us = outermost_frames(evidence, _CAPTURE).total()
    others_us = max(float(dur_us[inside & (parent < 0)].sum()) - captures_us - float(held_us.sum()), spans_us)
    return _NanChecks(nodes.size / evidence.steps, spans_us / evidence.steps, spans_us / others_us, below)


def _with_children(top: Flags, parent: Integers) -> Flags:
    """Mask of these ops and of all inside them."""
    below = top
    while not np.array_equal(more := top | (np.append(below, False)[parent] & (parent >= 0)), below):
        below = more
    return below


def _spans_us(start: Floats, dur: Floats, parent: Integers, top: Flags) -> float:
    """Time from the first to the last check of each node, all added up."""
    rows = np.flatnonzero(top)
    node, at = np.unique(parent[rows], return_inverse=True)
    first, last = np.full(node.size, np.inf), np.full(node.size, -np.inf)
    np.minimum.at(first, at, start[rows])
    np.maximum.at(last, at, start[rows] + dur[rows])
    return float((last - first).sum())


def _captures_us(evidence: Evidence, mode: DebugMode | None, checks: _NanChecks | None) -> tuple[Interval, str]:
    """Gives the time per step of anomaly detection's stack traces, and evidence.

    Timed by the program itself in one step, else by the frames of the trace, each of which the profiler makes longer,
    else from their number: one for each backward op.
    """
    if mode is not None and mode.share is not None:
        timed_us = mode.share * (evidence.step_us - evidence.idle_us(*_WAITS))
        words = f"stack traces of forward ops take {format_per_step(evidence, timed_us)}, timed without the profiler"
        return Interval(_TIMED[0] * timed_us, _TIMED[1] * timed_us), words
    spans = outermost_frames(evidence, _CAPTURE)
    if spans.start.size:
        whole_us = float((spans.end - spans.start).sum()) / evidence.steps
        own_us = max(whole_us - _RECORD_US * _frames_in(evidence, spans) / evidence.steps, whole_us / 5)
        words = f"{counted(format_count(spans.start.size / evidence.steps), 'stack trace')} of a forward op per step"
        return Interval(own_us * evidence.host_scale, whole_us), f"{words}: {format_us(whole_us)} under the profiler"
    nodes = 0.0 if checks is None else checks.nodes
    low, high = (once_us * nodes for once_us in _CAPTURE_US)
    return Interval(low, high), f"a stack trace of each forward op takes {_CAPTURE_US[0]:g} to {_CAPTURE_US[1]:g} us"


def _frames_in(evidence: Evidence, spans: Spans) -> int:
    """Python frames that the trace holds inside these spans."""
    events = evidence.linked.trace.events
    is_frame = (events["category"] == "python").to_numpy()
    return int(np.count_nonzero(spans.hold(events["ts_us"].to_numpy()[is_frame])))


def anomaly_detection(evidence: Evidence) -> Draft | None:
    """Finds anomaly detection left on: NaN checks and stack traces.

    Autograd looks for NaN after each backward op and records a stack trace of each forward op. Gain: the time of the
    checks, at least less what the profiler's records of them cost, and that of the stack traces. On a device each check
    also waits for it: its idle time at waits counts up to the time of the checks on the host.
    """
    modes, checks = _modes(evidence).get("anomaly-detection", ()), _nan_checks(evidence)
    if not modes and checks is None:
        return None
    mode = modes[0] if modes else None
    captures_us, capture_words = _captures_us(evidence, mode, checks)
    words = [*_place(mode)]
    check_us, claims = Interval(0.0, 0.0), dict[str, float]()
    if checks is not None:
        check_us, claims = _checks_us(evidence, checks, captures_us.low)
        words.append(
            f"NaN checks follow {counted(format_count(checks.nodes), 'backward op')} per step (isnan, any and a read "
            f"of the result): {format_per_step(evidence, check_us.high)}"
        )
    gain_us = Interval(check_us.low + captures_us.low, check_us.high + captures_us.high)
    if captures_us.high > 0:
        words.append(capture_words)
    is_known = gain_us.high > 0
    # Stack traces are recorded inside ops, whatever the ledger holds them for.
    is_timed = mode is not None and mode.share is not None
    return Draft(
        slug="anomaly-detection",
        title="Anomaly detection is on: autograd looks for NaN in every step",
        evidence=tuple(words),
        advice="Switch anomaly detection off, and on again only to find a NaN that you have seen.",
        code="torch.autograd.set_detect_anomaly(False)  # or take the `with detect_anomaly():` away",
        gain_us=gain_us if is_known else None,
        gain_reason=None if is_known else "the recorded steps neither check for NaN nor record stack traces",
        claims=_with_host(evidence, claims, gain_us.high) if is_known and not is_timed else {},
        tries=("no-anomaly",),
        confidence="high" if mode is not None else "medium",
        comes_first=evidence.share_of_step(gain_us.low) >= _FIRST,
    )


def _with_host(evidence: Evidence, claims: dict[str, float], most_us: float) -> dict[str, float]:
    """The claims with the rest of so much time from dispatching and Python."""
    rest = claims_of(evidence, *_HOST, most_us=max(most_us - sum(claims.values()), 0.0))
    return {**claims, **{name: rest.get(name, 0.0) + claims.get(name, 0.0) for name in rest}}


def _checks_us(evidence: Evidence, checks: _NanChecks, captures_us: float) -> tuple[Interval, dict[str, float]]:
    """Time per step that the checks take, and the accounts that it is in."""
    kernels, charged = evidence.linked.kernels, evidence.kernel_time
    assert charged is not None, "kernels are timed before advice is given"
    rows = np.append(checks.ops, False)[as_integers(kernels["op"])] & evidence.kernels_in_window
    own = charged[rows].groupby("account", observed=True)["us"].sum()
    own_us = float(own.sum())
    if evidence.is_host_only:
        # Not as the ledger scales them: the profiler stretches stack traces far more than these ops. So they are held
        # against the other ops of the same window without stack traces.
        held_us = float(evidence.held_up["beyond_us"].sum()) / evidence.steps * evidence.host_scale
        others_us = evidence.step_us - evidence.account_us("overhead.python") - captures_us - held_us
        spent_us = checks.share * max(others_us, 0.0)
        stretch = _CHECKED[1] * spent_us / own_us if own_us > 0 else 1.0
        claims = {str(name): min(us * stretch, evidence.account_us(str(name))) for name, us in own.items() if us > 0}
        return Interval(*(min(part * spent_us, evidence.step_us) for part in _CHECKED)), claims
    waits_us = min(evidence.idle_us("sync", "dispatch", "launch", "python"), checks.us * evidence.host_scale)
    claims = {str(name): float(us) for name, us in own.items() if us > 0}
    return Interval(own_us, own_us + waits_us), {**claims, **claims_of(evidence, "overhead.sync", most_us=waits_us)}


# Launches that end with their kernel: at least so many kernels, of this length, and so many of them.
_LONG_KERNEL_US, _LEAST_KERNELS, _LEAST_BLOCKED = 20.0, 20, 0.95


def blocking_launches(evidence: Evidence) -> Draft | None:
    """Each launch returns only when its kernel has ended, as with `CUDA_LAUNCH_BLOCKING=1`.

    Gain: host and device work one after the other, and would work side by side: the shorter of both at most.
    """
    if evidence.is_host_only:
        return None
    mode = next(iter(_modes(evidence).get("launch-blocking", ())), None)
    kernels = evidence.linked.kernels
    rows = evidence.kernels_in_window & (kernels["kind"] == "compute").to_numpy()
    rows &= kernels["launch_end_us"].notna().to_numpy() & (kernels["dur_us"].to_numpy() >= _LONG_KERNEL_US)
    end_us = (kernels["ts_us"] + kernels["dur_us"]).to_numpy()[rows]
    is_blocked = kernels["launch_end_us"].to_numpy()[rows] >= end_us
    share = float(np.mean(is_blocked)) if is_blocked.size >= _LEAST_KERNELS else 0.0
    if mode is None and share < _LEAST_BLOCKED:
        return None
    idle_us = evidence.idle_us("dispatch", "python", "launch", "sync", "kernel_gap")
    most_us = min(idle_us, evidence.analysis.totals.busy_us)
    seen = f"{format_share(share)} of {counted(is_blocked.size, 'launch', 'launches')} ended after their kernel"
    environment = ("CUDA_LAUNCH_BLOCKING is set", *_place(mode)) if mode is not None else ()
    return Draft(
        slug="blocking-launches",
        title="Each kernel launch waits until its kernel has ended",
        evidence=(*environment, *((seen,) if is_blocked.size else ())),
        advice="Unset CUDA_LAUNCH_BLOCKING: the host then issues the next kernels while the device works.",
        code="unset CUDA_LAUNCH_BLOCKING",
        gain_us=up_to(most_us),
        claims=claims_of(evidence, "overhead.launch", "overhead.dispatch", "overhead.python", "overhead.sync"),
        confidence="high" if mode is not None else "medium",
        comes_first=evidence.share_of_step(most_us / 2) >= _FIRST,
    )


_TRACERS: dict[DebugName, str] = {
    "profile-function": "a profiler of Python functions is on: {}",
    "trace-function": "a trace function is on, as of coverage or a debugger: {}",
    "memory-tracing": "tracemalloc records where each block of memory was allocated",
}
# Of the time between ops that is Python: with cProfile, a trace function and tracemalloc a step of a linear layer with
# SGD took 202, 190 and 196 us instead of 113 (Python 3.11), half of its Python.
_TRACED = (0.25, 0.6)


def traced_python(evidence: Evidence) -> Draft | None:
    """Finds a tool that follows every call of a Python function.

    It is an outer profiler, a debugger, coverage or tracemalloc.
    """
    modes = [mode for name in _TRACERS for mode in _modes(evidence).get(name, ())]
    if not modes:
        return None
    python_us = evidence.account_us("overhead.python")
    gain_us = Interval(_TRACED[0] * python_us, _TRACED[1] * python_us)
    costs = [f"a call of an empty function takes {format_us(mode.call_us)}" for mode in modes if mode.call_us]
    return Draft(
        slug="traced-python",
        title="A profiler, debugger or coverage tool follows every Python call",
        evidence=(
            *(_TRACERS[mode.name].format(mode.detail) for mode in modes),
            *(line for mode in modes for line in _place(mode)),
            *costs[:1],
            f"Python between ops: {format_per_step(evidence, python_us)}",
        ),
        advice="Run without it, and measure again: it makes Python look slower than it is.",
        gain_us=gain_us,
        claims=claims_of(evidence, "overhead.python", most_us=gain_us.high),
        comes_first=evidence.share_of_step(gain_us.low) >= _FIRST,
    )


_GRADCHECK = re.compile(r"torch/autograd/gradcheck\.py\(\d+\): (?:gradcheck|gradgradcheck)$")


def gradient_check(evidence: Evidence) -> Draft | None:
    """`gradcheck` compares gradients with differences of the function, two calls for each number."""
    spans = outermost_frames(evidence, _GRADCHECK)
    spent_us = float((spans.end - spans.start).sum()) / evidence.steps * evidence.host_scale
    if evidence.share_of_step(spent_us) < _LEAST:
        return None
    return Draft(
        slug="gradient-check",
        title="The step checks gradients by finite differences",
        evidence=(f"torch.autograd.gradcheck takes {format_per_step(evidence, spent_us)}",),
        advice="Call gradcheck in a test, not in the step.",
        gain_us=up_to(min(spent_us, evidence.step_us)),
        comes_first=evidence.share_of_step(spent_us / 2) >= _FIRST,
    )


# Ops that make a tensor of new memory; with deterministic algorithms they fill it (fill_uninitialized_memory).
_ALLOCATES = re.compile(r"^aten::(?:empty\w*|new_empty\w*|resize_\w*)$")
_FILLS = re.compile(r"^aten::(?:fill_|zero_)$")
_NO_FILLS = "torch.utils.deterministic.fill_uninitialized_memory = False  # the algorithms stay deterministic"


@requires_gain
def deterministic_fills(evidence: Evidence) -> Draft | None:
    """Finds fills of new memory that deterministic algorithms make.

    They are made before anything is written to it. Gain: these fills, from 90 %. What later kernels read of the filled
    memory they would read anyway.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    names, parent = ops["name"], as_integers(ops["parent"])
    inside = text_matches(names, _FILLS.search)
    inside &= (parent >= 0) & np.append(text_matches(names, _ALLOCATES.search), False)[parent]
    if not inside.any():
        return None
    rows = np.append(inside, False)[work.op] & (work.op >= 0)
    if work.share(rows) < _LEAST:
        return None
    less = np.where(rows, work.us, 0.0)
    return Draft(
        slug="deterministic-fills",
        title="New tensors are filled before they are written",
        evidence=(
            f"{counted(format_count(float(np.count_nonzero(rows)) / evidence.steps), 'fill')} of new memory per step: "
            f"{format_per_step(evidence, work.us_of(rows))}, as torch.use_deterministic_algorithms has it",
            *work.describe(rows),
        ),
        advice="Switch the filling off, which only shows reads of memory that was never written.",
        code=_NO_FILLS,
        gain_us=work.gain(_SURELY * less, less, rows),
        claims=work.claims(less),
        confidence="high",
        removes=True,
    )


_SURELY = 0.9

_SETTINGS: dict[DebugName, str] = {
    "deterministic-algorithms": "torch.use_deterministic_algorithms is on: slower algorithms, and new memory is filled",
    "sync-warnings": "torch.cuda.set_sync_debug_mode looks at every call that may wait for the device",
    "dispatch-mode": "{} sees every op: a Python function runs for each",
    "monitoring": "sys.monitoring has a tool: {}",
    "development-mode": "Python runs in its development mode (-X dev)",
    "debug-allocator": "Python's memory allocator checks each block ({})",
    "debug-build": "{} is a debug build",
    "sanitizer": "{} is loaded: it checks each access or block of memory",
    "injected-tool": "{} is injected into CUDA",
    "environment": "{}",
}


def debug_settings(evidence: Evidence) -> Draft | None:
    """Other settings for debugging that were on while the steps were timed."""
    modes = [mode for name in _SETTINGS for mode in _modes(evidence).get(name, ())]
    if not modes:
        return None
    lines = [f"{_SETTINGS[mode.name].format(mode.detail)}{_beside(mode)}" for mode in modes]
    return Draft(
        slug="debug-settings",
        title="Settings for debugging are on",
        evidence=tuple(lines),
        advice="Measure once without them; keep those that you need.",
        gain_reason="what they cost only a run without them shows",
    )


def _beside(mode: DebugMode) -> str:
    return "" if mode.source is None else f" ({mode.source})"


RULES = (
    anomaly_detection,
    blocking_launches,
    traced_python,
    gradient_check,
    deterministic_fills,
    debug_settings,
)
