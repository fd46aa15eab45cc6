"""Findings about input: whether the step waits for its data, and what removing that wait is worth."""

import re
from dataclasses import dataclass

import numpy as np

from bottleneck.advice.draft import Draft
from bottleneck.advice.measures import (
    account_us,
    claims_of,
    events_like,
    host_scale,
    idle_lines,
    runs_on_host,
    share_of_step,
)
from bottleneck.case import Case
from bottleneck.records import Interval
from bottleneck.units import format_share, format_us

INPUT = "overhead.input"

# What the input pipeline analysis of XProf calls moderately and highly input-bound (advice_rules).
MODERATE, _SEVERE = 0.05, 0.2

LOADER = re.compile(r"^enumerate\(DataLoader\)#(?P<kind>\w+)\.__next__")
ONE_PROCESS = "_SingleProcessDataLoaderIter"
SEVERAL_PROCESSES = "_MultiProcessingDataLoaderIter"
_STARTS_WORKERS = re.compile(r"multiprocessing[/\\]process\.py\(\d+\): start$")
_ENDS_WORKERS = re.compile(r"dataloader\.py\(\d+\): _shutdown_workers$")

# The profiler stretches a loader written in Python more than the work around it: what is left of a wait at least.
_LEAST_REMOVED = 0.85
# Work that follows a loader of its own process finds the caches emptied: what it wins without one, as a share of itself
# and of the wait, whichever is less. (ours; examples/slow_loader.py: 2.4 ms beside its loader, 1.2 ms without)
_WARMER, _DISPLACED = 0.5, 0.1


def input_wait(case: Case) -> Draft | None:
    """Rule 38: the bound of any change to the loader, which the replay of one cached batch shows."""
    wait_us = account_us(case, INPUT)
    share = share_of_step(case, wait_us)
    if share < MODERATE:
        return None
    warm_us = _warming_us(case)
    around = (entry.account for entry in case.analysis.ledger if entry.account != INPUT)
    several, first_us = SEVERAL_PROCESSES in loader_kinds(case), start_up(case).first_us
    return Draft(
        slug="input-wait",
        title="The step waits for its data",
        evidence=(
            f"waiting for data takes {format_us(wait_us)} of the {format_us(case.step_us)} step "
            f"({format_share(share)}): {'severe' if share >= _SEVERE else 'moderate'}",
            *((_of_workers(first_us, wait_us),) if several else ()),
            *idle_lines(case, "input", most=2),
        ),
        advice=(
            "Give the loader more workers, let them read further ahead, or make a sample cheaper to load."
            if several
            else "Load the next batches while the step computes, or make a sample cheaper to load."
        ),
        code="loader = DataLoader(dataset, num_workers=8, prefetch_factor=4, persistent_workers=True)"
        if several
        else "batch = next(iter(loader))  # replay this one batch: the step without its loader",
        gain_us=Interval(_LEAST_REMOVED * wait_us, wait_us + warm_us),
        claims={**claims_of(case, INPUT), **claims_of(case, *around, most_us=warm_us)},
        tries=("replay-batch",) if loader_kinds(case) else (),
        confidence="high" if share >= _SEVERE else "medium",
    )


def _of_workers(first_us: float, wait_us: float) -> str:
    """What to say of a loader with workers: they are just starting, or too slow."""
    if first_us > wait_us / 2:
        return f"{format_us(first_us)} of it is the wait for the first batch of workers that had just been started"
    return "the loader has worker processes, and they do not keep up"


def _warming_us(case: Case) -> float:
    """What the rest of a step on the host gains at most when no loader empties its caches: to fill them again."""
    if not runs_on_host(case) or ONE_PROCESS not in loader_kinds(case):
        return 0.0
    wait_us = account_us(case, INPUT)
    return max(0.0, min(_WARMER * (case.step_us - wait_us), _DISPLACED * wait_us))


def loader_kinds(case: Case) -> frozenset[str]:
    """Class names of the loaders' iterators whose marks are in the window."""
    matches = (LOADER.match(name) for name in (*case.mark_sums, *case.op_sums))
    return frozenset(match["kind"] for match in matches if match)


@dataclass(frozen=True)
class StartUp:
    """Worker processes that were started in the window, and what that took, in microseconds per unprofiled step.

    ``own_us`` is what the training process spent on starting and ending them, ``first_us`` its wait for their first
    batch.
    """

    processes: int
    own_us: float
    first_us: float


def start_up(case: Case) -> StartUp:
    """What starting workers took in the window; nothing where the trace has no Python frames."""
    events = case.linked.trace.events
    starts, ends = events_like(case, _STARTS_WORKERS), events_like(case, _ENDS_WORKERS)
    at_us, dur_us = events["ts_us"].to_numpy(), events["dur_us"].to_numpy()
    loads = events_like(case, LOADER)
    follows = np.unique(np.searchsorted(at_us[loads], at_us[starts]))
    first = loads[follows[follows < loads.size]]
    scale = host_scale(case) / case.steps
    own_us = float(dur_us[starts].sum() + dur_us[ends].sum()) * scale
    return StartUp(starts.size, own_us, float(dur_us[first].sum()) * scale)


RULES = (input_wait,)
