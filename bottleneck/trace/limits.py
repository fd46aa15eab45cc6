"""Caveats of the links: what of the device's time could not be tied to an op, and where clocks disagree."""

import re

import numpy as np
import pandas as pd

from bottleneck.records import Caveat, Trace, Window
from bottleneck.trace.events import names, names_that_match
from bottleneck.trace.joins import Flags, whole
from bottleneck.units import format_share, format_us

# Calls that each issue exactly one kernel.
_LAUNCHES_A_KERNEL = re.compile(r"^(cuda|cu|hip)\w*LaunchKernel|^(cuda|cu|hip)LaunchCooperativeKernel")

# A few calls whose kernels ran after the profiler stopped are normal.
_TOLERATED_SHARE = 0.02


def linking_caveats(trace: Trace, kernels: pd.DataFrame) -> tuple[Caveat, ...]:
    """What limits the links of a trace with device work; shares are of the device's busy time."""
    found = (
        _orphans(kernels),
        _outside_ops(kernels),
        _replays(kernels),
        _skew(kernels),
        _missing_kernels(trace),
    )
    return tuple(caveat for caveat in found if caveat is not None)


def step_caveats(window: Window) -> tuple[Caveat, ...]:
    """What was left out when the steps were chosen."""
    if not window.set_aside:
        return ()
    total = window.set_aside + len(window.steps)
    message = (
        f"{len(window.steps)} of {total} recorded steps are explained: the longest run without a step that took twice"
        " the median"
    )
    return (Caveat("steps-set-aside", message),)


def _share(kernels: pd.DataFrame, chosen: Flags) -> float:
    dur_us = kernels["dur_us"].to_numpy()
    return float(dur_us[chosen].sum() / total) if (total := dur_us.sum()) > 0 else 0.0


def _orphans(kernels: pd.DataFrame) -> Caveat | None:
    orphan = (kernels["launch"].isna() & kernels["op"].isna()).to_numpy()
    if not orphan.any():
        return None
    share = _share(kernels, orphan)
    return Caveat(
        "orphans",
        f"{orphan.sum()} of {len(kernels)} pieces of device work ({format_share(share)} of the device's busy time) have"
        " no launch in the trace; they count as busy, but no op pays for them",
        share,
    )


def _outside_ops(kernels: pd.DataFrame) -> Caveat | None:
    outside = (kernels["unlinked"] == "launched outside any op").to_numpy()
    if not outside.any():
        return None
    share = _share(kernels, outside)
    return Caveat(
        "launched-outside-ops",
        f"{outside.sum()} of {len(kernels)} pieces of device work ({format_share(share)} of the device's busy time)"
        " were launched outside any recorded op",
        share,
    )


def _replays(kernels: pd.DataFrame) -> Caveat | None:
    replayed = kernels["replayed"].to_numpy()
    if not replayed.any():
        return None
    share = _share(kernels, replayed)
    return Caveat(
        "graph-replay",
        f"{replayed.sum()} kernels ({format_share(share)} of the device's busy time) were replayed from a graph; the"
        " trace does not say which ops they belong to",
        share,
    )


def _skew(kernels: pd.DataFrame) -> Caveat | None:
    early_us = (kernels["launch_ts_us"] - kernels["ts_us"]).to_numpy()
    early = early_us > 0
    if not early.any():
        return None
    return Caveat(
        "clock-skew",
        f"{early.sum()} of {len(kernels)} pieces of device work start before their launch, by up to"
        f" {format_us(float(early_us[early].max()))}: the clocks of host and device disagree by at least as much",
        _share(kernels, early),
    )


def _missing_kernels(trace: Trace) -> Caveat | None:
    """Launches without a kernel: dropped by the profiler, captured into a graph, or still queued when it stopped."""
    launches = names_that_match(trace, _LAUNCHES_A_KERNEL)
    called = trace.launch_args[launches[names(trace, trace.launch_args["event"].to_numpy())]]
    missing = ~np.isin(whole(called["correlation"]), whole(trace.device_args["correlation"]))
    if not len(called) or missing.mean() <= _TOLERATED_SHARE:
        return None
    return Caveat(
        "kernels-missing",
        f"{missing.sum()} of {len(called)} kernel launches ({format_share(float(missing.mean()))}) have no kernel in"
        " the trace: dropped by the profiler, captured into a graph, or still queued when it stopped",
    )
