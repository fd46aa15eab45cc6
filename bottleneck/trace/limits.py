"""Caveats of the links: what of the device's time could not be tied to an op, and where clocks disagree."""

from collections import Counter

import numpy as np
import pandas as pd

from bottleneck.records import Caveat
from bottleneck.trace.events import names, names_that_match
from bottleneck.trace.joins import Flags, whole
from bottleneck.trace.launches import LAUNCHES_A_KERNEL
from bottleneck.trace.nesting import Ints
from bottleneck.tracing import Trace, Window
from bottleneck.units import format_share, format_us

# A few calls whose kernels ran after the profiler stopped are normal.
TOLERATED_SHARE = 0.02


def linking_caveats(trace: Trace, window: Window, kernels: pd.DataFrame) -> tuple[Caveat, ...]:
    """What limits the links of a trace with device work; messages give shares of the device's busy time."""
    found = (
        _orphans(window, kernels),
        _outside_ops(window, kernels),
        _replays(window, kernels),
        _skew(window, kernels),
        _missing_kernels(trace),
    )
    return tuple(caveat for caveat in found if caveat is not None)


def step_caveats(window: Window) -> tuple[Caveat, ...]:
    """What was left out when the steps were chosen."""
    if not window.set_aside:
        return ()
    total = len(window.set_aside) + len(window.steps)
    reasons = Counter(reason.split(":")[0] for _, reason in window.set_aside)
    told = "; ".join(f"{count} {reason}" for reason, count in reasons.items())
    return (Caveat("steps-set-aside", f"{len(window.steps)} of {total} steps are explained, the others not: {told}"),)


def _of_busy_time(kernels: pd.DataFrame, chosen: Flags) -> str:
    dur_us = kernels["dur_us"].to_numpy()
    share = float(dur_us[chosen].sum() / total) if (total := dur_us.sum()) > 0 else 0.0
    return f"{format_share(share)} of the device's busy time"


def _touched(window: Window, kernels: pd.DataFrame, chosen: Flags) -> float:
    """Share of the window in which any of the chosen work runs."""
    start_us = kernels["ts_us"].to_numpy()[chosen]
    end_us = start_us + kernels["dur_us"].to_numpy()[chosen]
    order = np.argsort(start_us)
    start_us, end_us = (np.clip(at_us[order], window.start_us, window.end_us) for at_us in (start_us, end_us))
    covered_us = np.maximum.accumulate(np.append(window.start_us, end_us))
    new_us = np.maximum(end_us - np.maximum(start_us, covered_us[:-1]), 0.0)
    return min(float(new_us.sum()) / window.wall_us, 1.0) if window.wall_us > 0 else 0.0


def _orphans(window: Window, kernels: pd.DataFrame) -> Caveat | None:
    orphan = (kernels["launch"].isna() & kernels["op"].isna()).to_numpy()
    if not orphan.any():
        return None
    return Caveat(
        "orphans",
        f"{orphan.sum()} of {len(kernels)} pieces of device work ({_of_busy_time(kernels, orphan)}) have"
        " no launch in the trace; they count as busy, but no op pays for them",
        _touched(window, kernels, orphan),
    )


def _outside_ops(window: Window, kernels: pd.DataFrame) -> Caveat | None:
    outside = (kernels["unlinked"] == "launched outside any op").to_numpy()
    if not outside.any():
        return None
    return Caveat(
        "launched-outside-ops",
        f"{outside.sum()} of {len(kernels)} pieces of device work ({_of_busy_time(kernels, outside)})"
        " were launched outside any recorded op",
        _touched(window, kernels, outside),
    )


def _replays(window: Window, kernels: pd.DataFrame) -> Caveat | None:
    replayed = kernels["replayed"].to_numpy()
    if not replayed.any():
        return None
    return Caveat(
        "graph-replay",
        f"{replayed.sum()} kernels ({_of_busy_time(kernels, replayed)}) were replayed from a graph; the"
        " trace does not say which ops they belong to",
        _touched(window, kernels, replayed),
    )


def _skew(window: Window, kernels: pd.DataFrame) -> Caveat | None:
    early_us = (kernels["launch_ts_us"] - kernels["ts_us"]).to_numpy()
    early = early_us > 0
    if not early.any():
        return None
    return Caveat(
        "clock-skew",
        f"{early.sum()} of {len(kernels)} pieces of device work start before their launch, by up to"
        f" {format_us(float(early_us[early].max()))}: the clocks of host and device disagree by at least as much",
        _touched(window, kernels, early),
    )


def kernel_launches(trace: Trace) -> tuple[Ints, Flags]:
    """Rows in LAUNCH_ARGS of the calls that each launch a kernel, and which of them have no work in the trace."""
    launches = names_that_match(trace, LAUNCHES_A_KERNEL)
    rows = np.flatnonzero(launches[names(trace, trace.launch_args["event"].to_numpy())])
    correlation = whole(trace.launch_args["correlation"])[rows]
    return rows, ~np.isin(correlation, whole(trace.device_args["correlation"]))


def _missing_kernels(trace: Trace) -> Caveat | None:
    """Launches without a kernel: dropped by the profiler, captured into a graph, or still queued when it stopped."""
    called, missing = kernel_launches(trace)
    if not len(called) or missing.mean() <= TOLERATED_SHARE:
        return None
    return Caveat(
        "kernels-missing",
        f"{missing.sum()} of {len(called)} kernel launches ({format_share(float(missing.mean()))}) have no kernel in"
        " the trace: dropped by the profiler, captured into a graph, or still queued when it stopped",
    )
