"""The answer to the question what the step would take if the program were changed."""

from dataclasses import dataclass

from bottleneck.schema.analysis import Interval, LedgerEntry
from bottleneck.schema.critical_path import CriticalPath


@dataclass(frozen=True)
class ChangedStep:
    """The step with changes: its time, and its time and speedup as intervals where the host's pace is uncertain."""

    changes: tuple[str, ...]
    step_us: Interval
    speedup: Interval


@dataclass(frozen=True)
class WhatIf:
    """The answer to a question of the form: what if the program were changed so?

    ``trace`` is the path of the trace. ``host_pace`` holds the factors on the recorded issue time of the host between
    which its pace without the profiler lies. ``ledger`` and ``path`` are those of the step as replayed,
    ``changed_ledger`` and ``changed_path`` those with the changes, at the higher of these factors. ``best`` are single
    changes that would help most, the best first; where some were asked for, there are none.
    """

    trace: str
    step_us: float
    host_pace: Interval
    path: CriticalPath
    ledger: tuple[LedgerEntry, ...]
    changed: ChangedStep | None = None
    changed_path: CriticalPath | None = None
    changed_ledger: tuple[LedgerEntry, ...] = ()
    best: tuple[ChangedStep, ...] = ()
