"""Sums up predictions for an agent.

They are of a changed step, and of a step on other devices.
"""

from collections.abc import Sequence

from pydantic import Field

from bottleneck.agent.results import (
    Amount,
    AmountRange,
    AnswerSize,
    Basis,
    ResultColumn,
    ResultTable,
    ToolResult,
    TraceText,
    all_from_trace,
    amount,
    fitted,
    from_trace,
    measured,
    predicted_range,
    rounded,
)
from bottleneck.report.text import clean
from bottleneck.schema.analysis import CriticalPath, Interval
from bottleneck.schema.prediction import BackendGain, DevicePrediction, Prediction
from bottleneck.schema.whatif import ChangedStep, WhatIf


class ChangeAnswer(ToolResult):
    """The step with some changes, all taken together."""

    changes: list[TraceText] = Field(description="in words that `whatif` takes")
    step: AmountRange | None
    speedup: AmountRange | None


class WhatIfAnswer(ToolResult):
    """The step with the changes asked for, or the best single changes."""

    path: str
    step: Amount = Field(description="the step as it is")
    replay_error: Amount = Field(description="of the replayed step against the measured one")
    no_prediction: TraceText | None = Field(default=None, description="why the trace cannot tell; absent where it can")
    changed: ChangeAnswer | None = None
    best: list[ChangeAnswer] | None = Field(default=None, description="single changes, where none was asked for")
    critical_path: ResultTable = Field(description="the work that sets the time of the step, with the changes if any")
    parts_left_out: int


_SIZES = (AnswerSize(8, 100), AnswerSize(5, 80), AnswerSize(3, 60), AnswerSize(1, 40))
_ALL = AnswerSize(10_000, 400)


def answer_whatif(answer: WhatIf, path: str, *, full: bool = False) -> WhatIfAnswer:
    """The answer in brief; ``full`` holds all parts of the critical path."""
    path_shown = answer.changed_path or answer.path

    def make(size: AnswerSize) -> WhatIfAnswer:
        return WhatIfAnswer(
            path=path,
            step=measured(answer.step_us, "us"),
            replay_error=amount(answer.path.check.error, "share", "modelled"),
            no_prediction=from_trace(answer.path.check.reason),
            changed=None if answer.changed is None else _change(answer.changed),
            best=[_change(change) for change in answer.best[: size.rows]] or None,
            critical_path=_critical_path(path_shown, size, "modelled" if answer.changed_path is None else "predicted"),
            parts_left_out=max(len(path_shown.parts) - size.rows, 0),
        )

    return fitted(make, (_ALL,) if full else _SIZES)


def _change(changed: ChangedStep) -> ChangeAnswer:
    return ChangeAnswer(
        changes=all_from_trace(changed.changes, 200),
        step=predicted_range(changed.step_us, "us"),
        speedup=predicted_range(changed.speedup, "ratio"),
    )


def _critical_path(path: CriticalPath, size: AnswerSize, basis: Basis) -> ResultTable:
    return ResultTable(
        kind="critical path",
        columns=[
            ResultColumn(name="part", from_trace=True),
            ResultColumn(name="where"),
            ResultColumn(name="line", from_trace=True),
            ResultColumn(name="time", unit="us", basis=basis),
            ResultColumn(name="share", unit="share", basis=basis),
        ],
        rows=[
            [
                clean(part.name, size.characters),
                part.what,
                None if part.source is None else clean(part.source, size.characters),
                rounded(part.us),
                rounded(part.share),
            ]
            for part in path.parts[: size.rows]
        ],
    )


class RunningWay(ToolResult):
    """Another way to run the step."""

    way: str = Field(description="'compile', 'cudagraphs', 'tf32' …")
    speedup: AmountRange | Amount


class StepOnDevice(ToolResult):
    """The step on one device that is not here."""

    device: str
    step: Amount | None = None
    interval: AmountRange | None = Field(default=None, description="made to hold the time of most such steps")
    least: Amount | None = Field(default=None, description="least time that is possible on the device")
    bound: str
    fits_in_memory: bool | None = None
    largest_batch: Amount | None = None
    gains: list[RunningWay]
    not_known: list[TraceText] = Field(description="what is not known, and what was assumed")


class PredictAnswer(ToolResult):
    """One step on several devices, none of which was used."""

    path: str
    step_here: Amount | None = Field(default=None, description="the step of the trace")
    device_here: TraceText | None = None
    batch_size: Amount | None = None
    peak_memory: Amount | None = None
    devices: list[StepOnDevice]
    notes: list[TraceText]


def answer_predict(answer: Prediction, path: str, *, full: bool = False) -> PredictAnswer:
    """The prediction in brief; ``full`` holds all gains and notes."""

    def make(size: AnswerSize) -> PredictAnswer:
        return PredictAnswer(
            path=path,
            step_here=None if answer.measured_us is None else measured(answer.measured_us, "us"),
            device_here=from_trace(answer.measured_on, 80),
            batch_size=None if answer.batch_size is None else measured(answer.batch_size, "samples"),
            peak_memory=None if answer.memory is None else amount(answer.memory.peak_bytes, "B", "predicted"),
            devices=[_on_device(device, size) for device in answer.devices],
            notes=all_from_trace(answer.notes[: size.rows], 2 * size.characters),
        )

    return fitted(make, (_ALL,) if full else _SIZES)


def _on_device(prediction: DevicePrediction, size: AnswerSize) -> StepOnDevice:
    step = prediction.step
    has_interval = step.low_us is not None and step.high_us is not None
    interval = Interval(step.low_us or 0.0, step.high_us or 0.0) if has_interval else None
    largest = prediction.largest_batch
    return StepOnDevice(
        device=prediction.device.name or "",
        step=None if step.us is None else amount(step.us, "us", "predicted"),
        interval=predicted_range(interval, "us"),
        least=None if step.floor_us is None else amount(step.floor_us, "us", "modelled"),
        bound=prediction.bound,
        fits_in_memory=prediction.fits,
        largest_batch=None if largest is None else amount(largest, "samples", "predicted"),
        gains=_gains(prediction.gains)[: size.rows],
        not_known=all_from_trace(step.reasons[: size.rows], 2 * size.characters),
    )


def _gains(gains: Sequence[BackendGain]) -> list[RunningWay]:
    return [
        RunningWay(
            way=gain.name,
            speedup=predicted_range(gain.interval, "ratio") or amount(gain.speedup, "ratio", "predicted"),
        )
        for gain in gains
        if gain.speedup is not None
    ]
