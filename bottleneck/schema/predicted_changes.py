"""Frozen records of `verify --device`: gains of changes on other devices.

The devices are not here, so the gains are predicted.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from bottleneck.schema.analysis import Interval
from bottleneck.schema.predicted_step import PredictedStep
from bottleneck.schema.prediction import PredictedWork
from bottleneck.schema.records import Doc

PREDICTED_CHANGES_SCHEMA = "bottleneck/predicted-changes/1"

# 'helps' and 'hurts' lie beyond the error of the prediction, 'nothing' is within a hundredth of the step's time.
PredictedVerdict = Literal["helps", "nothing", "hurts", "open"]


@dataclass(frozen=True)
class PredictedChange:
    """Gain expected of a change on one device, alone or after others.

    ``speedup`` is per sample where the changed step works on several times as many. ``step`` is that of the changed
    program. ``peak_bytes`` is the memory that its step holds at its peak.
    """

    change: Annotated[str, Doc("name of the change")]
    verdict: Annotated[PredictedVerdict, Doc("which side of 1 the interval lies on")]
    speedup: Annotated[float, Doc("times as fast as the step before the change")]
    interval: Annotated[Interval, Doc("interval of the speedup, made to hold 80 % of cases")]
    step: Annotated[PredictedStep, Doc("the changed step, without its kernels")]
    peak_bytes: Annotated[int | None, Doc("memory at the peak of the step", "B")] = None


@dataclass(frozen=True)
class RefusedChange:
    """A change that has no price, with the reason."""

    change: Annotated[str, Doc("name of the change")]
    reason: Annotated[str, Doc("what it needs, or what went wrong")]
    has_failed: Annotated[bool, Doc("the changed program failed")] = False


@dataclass(frozen=True)
class DeviceChanges:
    """All changes on one device, each alone and in the best order.

    ``order`` begins with the change that brings most; the figures of each are those after the ones before it, and
    ``total`` is that of all together. It ends where no change is left that brings more than its own error.
    """

    device: Annotated[str, Doc("name of the device")]
    step: Annotated[PredictedStep, Doc("the step as it is, without its kernels")]
    peak_bytes: Annotated[int | None, Doc("memory at the peak of the step as it is", "B")]
    alone: Annotated[tuple[PredictedChange, ...], Doc("each change by itself, most gained first")]
    order: Annotated[tuple[PredictedChange, ...], Doc("changes made one after another")] = ()
    total: Annotated[PredictedChange | None, Doc("all changes of the order together")] = None
    refused: Annotated[tuple[RefusedChange, ...], Doc("changes that this device cannot make use of")] = ()
    memory_bytes: Annotated[int | None, Doc("size of the device's memory; null where unknown", "B")] = None
    fits: Annotated[bool | None, Doc("whether the step as it is fits into it; null where unknown")] = None
    work: Annotated[tuple[PredictedWork, ...], Doc("kernels of the step as it is by kind, longest first")] = ()


@dataclass(frozen=True)
class PredictedChanges:
    """The answer of `verify --device`."""

    program: Annotated[str, Doc("the program as it was named")]
    batch_size: Annotated[int | None, Doc("samples in a step; null where unknown")]
    op_calls: Annotated[int, Doc("op calls of the step as it is")]
    training: Annotated[bool | None, Doc("the step has a backward pass")]
    devices: Annotated[tuple[DeviceChanges, ...], Doc("by device, in the order in which they were named")]
    refused: Annotated[tuple[RefusedChange, ...], Doc("changes without a price")] = ()
    notes: Annotated[tuple[str, ...], Doc("what is not known, and what was assumed")] = ()
    schema: Annotated[str, Doc("format of this document; other values are other formats")] = PREDICTED_CHANGES_SCHEMA
    version: Annotated[str, Doc("version of bottleneck that predicted")] = ""
