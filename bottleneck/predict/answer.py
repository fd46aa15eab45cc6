"""Predicts a step on each device: its time in eager mode and with other backends, its memory and its batch sizes."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from bottleneck.predict.peak_memory import fits, largest_batch, step_memory
from bottleneck.predict.price import predict_step
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import Device
from bottleneck.schema.predicted_step import Backend, PredictedStep
from bottleneck.schema.prediction import (
    BackendGain,
    BatchPoint,
    DevicePrediction,
    PredictedWork,
    Prediction,
)
from bottleneck.schema.step_calls import StepCalls
from bottleneck.units import US_PER_S

_MILLION = 1e6
_SECONDS_PER_HOUR = 3600.0
# Twice the batch brings at least this much more samples per second below the knee.
_WORTH_DOUBLING = 1.1
TF32 = "tf32"


def answer(
    steps: Sequence[StepCalls],
    devices: Sequence[Device],
    backends: Sequence[Backend],
    prices: Mapping[str, float],
) -> Prediction:
    """The prediction for the first step; the others are the same step at other batch sizes.

    ``prices`` are per hour, by the name of the device.
    """
    asked = steps[0]
    return Prediction(
        program=asked.program,
        origin=asked.origin,
        settings=asked.settings,
        batch_size=asked.batch_size,
        op_calls=len(asked.calls),
        host_ops=asked.host_ops,
        measured_us=asked.measured_us,
        measured_on=asked.measured_on,
        measured_device_us=asked.measured_device_us,
        memory=step_memory(asked),
        devices=tuple(_on_device(steps, device, backends, prices.get(device.name)) for device in devices),
        left_out=asked.left_out,
        notes=asked.notes,
    )


def _on_device(
    steps: Sequence[StepCalls], device: Device, backends: Sequence[Backend], price: float | None
) -> DevicePrediction:
    asked = steps[0]
    first, *others = backends
    step = predict_step(asked, device, first)
    work = _work(step)
    fit, no_fit = _fits(asked, device)
    largest, no_largest = _largest(steps, device)
    points = _batches(steps, device, first)
    knee, no_knee = _knee(points)
    rate = _rate(asked.batch_size, step)
    return DevicePrediction(
        device=device,
        step=replace(step, kernels=()),
        work=work,
        bound=step.bound,
        engine=_engine(work),
        samples_per_s=rate,
        fits=fit,
        fits_reason=no_fit,
        largest_batch=largest,
        largest_batch_reason=no_largest,
        knee_batch=knee,
        knee_reason=no_knee,
        gains=tuple(_gains(asked, device, step, others)),
        batches=points,
        cost_per_million_samples=_cost(rate, price),
    )


def _work(step: PredictedStep) -> tuple[PredictedWork, ...]:
    """The kernels added up by kind, bound and engine, longest first."""
    groups = defaultdict(list)
    for kernel in step.kernels:
        groups[kernel.kind, kernel.bound, kernel.engine if kernel.bound == "compute" else None].append(kernel)
    rows = [
        PredictedWork(
            kind,
            bound,
            engine,
            launches=sum(each.launches for each in kernels),
            us=sum(each.us for each in kernels),
            floor_us=sum(each.floor_us for each in kernels),
            compute_us=sum(each.compute_us for each in kernels),
            memory_us=sum(each.memory_us for each in kernels),
        )
        for (kind, bound, engine), kernels in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.us))


def _engine(work: Sequence[PredictedWork]) -> str | None:
    """The engine of most of the time that arithmetic takes; null where none does."""
    totals: dict[str, float] = defaultdict(float)
    for row in work:
        if row.engine is not None and row.bound == "compute":
            totals[row.engine] += row.us
    return max(totals, key=lambda engine: totals[engine]) if totals else None


def _fits(calls: StepCalls, device: Device) -> tuple[bool | None, str | None]:
    memory = step_memory(calls)
    if memory is None:
        return None, "a trace does not tell how long each tensor is held"
    if device.memory_bytes is None:
        return None, "the size of its memory is not known"
    return fits(memory.peak_bytes, device.memory_bytes), None


def _largest(steps: Sequence[StepCalls], device: Device) -> tuple[int | None, str | None]:
    peaks = [
        (step.batch_size, memory.peak_bytes)
        for step in steps
        if step.batch_size is not None and (memory := step_memory(step)) is not None
    ]
    if len(peaks) < 2:
        return None, _ONE_BATCH
    if device.memory_bytes is None:
        return None, "the size of its memory is not known"
    largest = largest_batch(peaks, device.memory_bytes)
    return largest, None if largest is not None else "its memory does not grow with the batch size"


_ONE_BATCH = "the program was not run at another batch size"


def _batches(steps: Sequence[StepCalls], device: Device, backend: Backend) -> tuple[BatchPoint, ...]:
    points = []
    for calls in steps:
        if calls.batch_size is not None:
            step, memory = predict_step(calls, device, backend), step_memory(calls)
            rate = None if not step.us else calls.batch_size / step.us * US_PER_S
            points.append(BatchPoint(calls.batch_size, step.us, rate, None if memory is None else memory.peak_bytes))
    return tuple(sorted(points, key=lambda point: point.batch_size))


def _knee(points: Sequence[BatchPoint]) -> tuple[int | None, str | None]:
    """The smallest batch from which on doubling brings little; null where the tried ones do not show it."""
    if len(points) < 2:
        return None, _ONE_BATCH
    worth = None
    for small, large in pairwise(points):
        if not small.samples_per_s or not large.samples_per_s:
            return None, "the time of the step is not known at every batch size"
        doublings = math.log2(large.batch_size / small.batch_size)
        if (large.samples_per_s / small.samples_per_s) >= _WORTH_DOUBLING**doublings:
            worth = large.batch_size
    if worth == points[-1].batch_size:
        return None, f"twice the batch still brings a tenth more samples per second at {worth:,}"
    return (points[0].batch_size if worth is None else worth), None


def _gains(calls: StepCalls, device: Device, step: PredictedStep, others: Sequence[Backend]) -> list[BackendGain]:
    gains = [_gain(backend, step, predict_step(calls, device, backend)) for backend in others]
    if _may_gain_by_tf32(calls, device):
        settings = replace(
            calls.settings, matmul_allow_tf32=True, cudnn_allow_tf32=True, float32_matmul_precision="high"
        )
        gains.append(_gain(TF32, step, predict_step(replace(calls, settings=settings), device, step.backend)))
    return gains


def _gain(name: str, step: PredictedStep, other: PredictedStep) -> BackendGain:
    speedup = step.us / other.us if step.us and other.us else None
    return BackendGain(name, replace(other, kernels=()), speedup)


def _may_gain_by_tf32(calls: StepCalls, device: Device) -> bool:
    return "tf32_tensor" in device.peaks_flops_per_s and calls.settings.matmul_allow_tf32 is False


def _rate(batch_size: int | None, step: PredictedStep) -> Interval | None:
    """Samples per second at the ends of the interval of the step's time."""
    if batch_size is None or not step.low_us or not step.high_us:
        return None
    return Interval(batch_size / step.high_us * US_PER_S, batch_size / step.low_us * US_PER_S)


def _cost(rate: Interval | None, price: float | None) -> Interval | None:
    if rate is None or price is None:
        return None
    per_second = price / _SECONDS_PER_HOUR
    return Interval(_MILLION / rate.high * per_second, _MILLION / rate.low * per_second)
