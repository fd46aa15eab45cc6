"""Answer to the question of the step's time after changes."""

from dataclasses import dataclass
from typing import Annotated

from bottleneck.schema.analysis import CriticalPath, Interval, LedgerEntry
from bottleneck.schema.records import Doc

WHATIF_SCHEMA = "bottleneck/whatif/1"


@dataclass(frozen=True)
class ChangedStep:
    """Step with changes, in intervals.

    Their ends are those of the host's pace.
    """

    changes: Annotated[tuple[str, ...], Doc("the changes, in words that `bottleneck whatif` takes")]
    step_us: Annotated[Interval, Doc("predicted time of the step", "us")]
    speedup: Annotated[Interval, Doc("step before / step after", "ratio")]


@dataclass(frozen=True)
class WhatIf:
    """The predicted step with some changes, or the single changes that would help most."""

    trace: Annotated[str, Doc("path of the trace or recording")]
    step_us: Annotated[float, Doc("time of the step as it is", "us")]
    host_pace: Annotated[
        Interval, Doc("factors on the recorded issue time of the host between which its time without a profiler lies")
    ]
    path: Annotated[CriticalPath, Doc("critical path of the step as it is")]
    ledger: Annotated[tuple[LedgerEntry, ...], Doc("ledger of the step as replayed; us add up to step_us")]
    changed: Annotated[
        ChangedStep | None, Doc("the step with the changes asked for; null without any, or where none can be predicted")
    ] = None
    changed_path: Annotated[
        CriticalPath | None, Doc("critical path with the changes, at the higher end of the host's pace")
    ] = None
    changed_ledger: Annotated[
        tuple[LedgerEntry, ...], Doc("ledger with the changes, at the higher end of the host's pace")
    ] = ()
    best: Annotated[
        tuple[ChangedStep, ...], Doc("single changes that would help most, the best first, where none was asked for")
    ] = ()
    schema: Annotated[str, Doc("format of this document; other values are other formats")] = WHATIF_SCHEMA
    version: Annotated[str, Doc("version of bottleneck that answered")] = ""
