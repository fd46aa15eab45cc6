"""Predicts a step on each device.

Its time in eager mode and with other backends, its memory and its batch sizes.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import numpy as np

from bottleneck.cost.call import Cost
from bottleneck.predict.gains import predict_gain
from bottleneck.predict.host_pace import EAGER_KERNELS
from bottleneck.predict.peak_memory import fits, largest_batch, step_memory
from bottleneck.predict.price import PricedWork, kernels_of, plan, predict_step, price_work, step_floor_us
from bottleneck.predict.rates import as_columns, ceilings_of, floors
from bottleneck.predict.step_kernels import cost_of
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import Device
from bottleneck.schema.memory_fit import MemoryFit
from bottleneck.schema.predicted_step import Backend, PredictedStep
from bottleneck.schema.prediction import (
    BackendGain,
    BatchPoint,
    DevicePrediction,
    PredictedWork,
    Prediction,
)
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls
from bottleneck.units import US_PER_S

_MILLION = 1e6
_SECONDS_PER_HOUR = 3600.0
# Twice the batch brings at least this much more samples per second below the knee.
_WORTH_DOUBLING = 1.1
# Of the floors of a step, the larger kind names what sets it from this share on.
_MOST_OF_FLOOR = 0.6
# AMD's and Intel's products in fp32 may run on matrix units, which no setting of torch forbids.
_FP32_PEAKS = ("fp32_vector", "fp32_matrix", "fp32_tensor")
_FUSED = "fused "
_NO_PRICE = "samples have no price, since the batch size is not known; a file with workload(batch_size=…) tells it"
TF32 = "tf32"
_NO_PACES: Mapping[str, float] = MappingProxyType({})
_USUAL_BACKENDS: tuple[Backend, ...] = ("eager", "compile", "captured", "max-autotune")
# A trace does not tell which calls modules make, which are what is captured.
_TRACE_BACKENDS: tuple[Backend, ...] = ("eager", "compile", "cudagraphs")
_COMPILED_BACKENDS: tuple[Backend, ...] = ("compile", "eager", "reduce-overhead")


def usual_backends(calls: StepCalls) -> tuple[Backend, ...]:
    """Returns the ways to run a step where none are asked for.

    Its own comes first: a program that compiles itself is compiled.
    """
    if calls.origin == "trace":
        return _TRACE_BACKENDS
    return _COMPILED_BACKENDS if calls.settings.compiled else _USUAL_BACKENDS


def answer(
    steps: Sequence[StepCalls],
    devices: Sequence[Device],
    backends: Sequence[Backend],
    prices: Mapping[str, float],
    paces: Mapping[str, float] = _NO_PACES,
) -> Prediction:
    """Returns the prediction for the first step.

    The others are the same step at other batch sizes. ``prices`` are per hour, by the name of the device, ``paces``
    those of hosts whose pace is known, by that name too.
    """
    asked = steps[0]
    works = _group_works(asked, backends[0])
    return Prediction(
        program=asked.program,
        origin=asked.origin,
        settings=asked.settings,
        batch_size=asked.batch_size,
        op_calls=len(asked.calls),
        host_ops=asked.host_ops,
        copied_bytes=asked.copied_bytes,
        measured_us=asked.measured_us,
        measured_on=asked.measured_on,
        measured_device_us=asked.measured_device_us,
        memory=step_memory(asked),
        devices=tuple(
            _on_device(steps, device, backends, works, prices.get(device.name), paces.get(device.name))
            for device in devices
        ),
        left_out=asked.left_out,
        notes=(*asked.notes, *((_NO_PRICE,) if prices and asked.batch_size is None else ())),
    )


def with_fits(answered: Prediction, fits: Sequence[MemoryFit | None]) -> Prediction:
    """The prediction with what makes the step fit into the memory of each device."""
    devices = zip(answered.devices, fits, strict=True)
    return replace(answered, devices=tuple(replace(device, fit=fit) for device, fit in devices))


@dataclass(frozen=True)
class _GroupWork:
    """Work of a group of kernels.

    The kind of its first kernel, FLOPs of its calls, and the bytes that it moves at least; null: unknown. The first
    kernel is what a call is for: a convolution, before the copies and the bias that go with it. ``op`` is its first
    call, ``source`` the line of that call.
    """

    kind: str
    flops: float | None
    bytes: float | None
    op: str | None
    source: str | None


def _group_works(calls: StepCalls, backend: Backend) -> list[_GroupWork]:
    """The work of each group of kernels of a step, in its order.

    A fused kernel does the arithmetic of its calls, and moves what is left of their bytes.
    """
    works = []
    for group in plan(calls, backend)[0]:
        members = [calls.calls[position] for position in group.calls]
        costs = [cost_of(call) for call in members]
        priced = [(cost, call.calls) for cost, call in zip(costs, members, strict=True) if isinstance(cost, Cost)]
        is_known = len(priced) == len(members)
        moved = sum(cost.bytes_low * count for cost, count in priced)
        if not members or all(kernel.kind.startswith(_FUSED) for kernel in group.kernels):
            moved, is_moved = sum(kernel.bytes * kernel.count for kernel in group.kernels), True
        else:
            is_moved = is_known
        flops = sum((cost.matrix_flops + cost.vector_flops) * count for cost, count in priced)
        kind = group.kernels[0].kind
        op, source = (members[0].name, members[0].source) if members else (None, None)
        works.append(_GroupWork(kind, flops if is_known else None, moved if is_moved else None, op, source))
    return works


def _on_device(
    steps: Sequence[StepCalls],
    device: Device,
    backends: Sequence[Backend],
    works: Sequence[_GroupWork],
    price: float | None,
    pace: float | None,
) -> DevicePrediction:
    asked = steps[0]
    first, *others = backends
    step, floor_bound = predict_step(asked, device, first, pace), None
    if step.us is None:
        step, floor_bound = _with_floor(step, asked, device)
    work = _work(step, works)
    fit, no_fit = _fits(asked, device)
    largest, no_largest = _largest(steps, device)
    points = _batches(steps, device, first, pace)
    knee, no_knee = _knee(points)
    rate = _rate(asked.batch_size, step)
    return DevicePrediction(
        device=device,
        step=replace(step, kernels=()),
        work=work,
        bound=step.bound,
        engine=_engine(work),
        floor_bound=floor_bound,
        copy_us=_copy_us(asked, device),
        samples_per_s=rate,
        fits=fit,
        fits_reason=no_fit,
        largest_batch=largest,
        largest_batch_reason=no_largest,
        knee_batch=knee,
        knee_reason=no_knee,
        gains=tuple(_gains(asked, device, step, others, pace)),
        batches=points,
        cost_per_million_samples=_cost(rate, price),
    )


def _with_floor(
    step: PredictedStep, calls: StepCalls, device: Device
) -> tuple[PredictedStep, Literal["compute", "memory"] | None]:
    """Returns a step without a predicted time with its least time there.

    And what sets most of that time. Peaks and bandwidth bound every implementation: the arithmetic and the bytes of
    each call, and the bytes that no fusion spares. Null where the calls or the ceilings are not known.
    """
    peaks = device.peaks_flops_per_s
    if not calls.calls or not device.bandwidth_bytes_per_s or not peaks:
        return step, None
    fastest = max((peaks[name] for name in _FP32_PEAKS if name in peaks), default=None)
    if fastest is not None:
        device = replace(device, peaks_flops_per_s={**peaks, "fp32_vector": fastest})
    floor_us = step_floor_us(calls, device, "compile")
    if step.backend in EAGER_KERNELS:
        floor_us = max(floor_us, step_floor_us(calls, device, step.backend))
    kernels = kernels_of(plan(calls, "eager")[0])
    if floor_us <= 0 or not kernels:
        return step, None
    columns = as_columns(kernels)
    compute, _, floor = floors(columns, ceilings_of(kernels, calls.settings, device)[0], device)
    compute_us = float((np.nan_to_num(compute) * columns.count)[np.nan_to_num(compute) >= floor].sum())
    share = compute_us / floor_us
    bound: Literal["compute", "memory"] | None = "compute" if share >= _MOST_OF_FLOOR else None
    if share <= 1 - _MOST_OF_FLOOR:
        bound = "memory"
    return replace(step, floor_us=floor_us), bound


def _copy_us(calls: StepCalls, device: Device) -> float | None:
    """Returns the time of the copies from the host at the link's bandwidth.

    Null where bytes or link are not known.
    """
    if not calls.copied_bytes or not device.link_bytes_per_s:
        return None
    return calls.copied_bytes / device.link_bytes_per_s * US_PER_S


def work_by_kind(calls: StepCalls, step: PredictedStep) -> tuple[PredictedWork, ...]:
    """The kernels of a predicted step by kind, longest first."""
    return _work(step, _group_works(calls, step.backend))


def _work(step: PredictedStep, works: Sequence[_GroupWork]) -> tuple[PredictedWork, ...]:
    """The kernels added up by kind, bound and engine, longest first."""
    groups = defaultdict(list)
    if not step.kernels:
        return ()
    for kernel, work in zip(step.kernels, works, strict=True):
        key = work.kind, kernel.bound, kernel.engine if kernel.bound == "compute" else None
        groups[key].append((kernel, work))
    rows = [
        PredictedWork(
            kind,
            bound,
            max((one for one, _ in kernels if one.engine), key=lambda one: one.us, default=kernels[0][0]).engine,
            launches=sum(one.launches for one, _ in kernels),
            us=sum(one.us for one, _ in kernels),
            floor_us=sum(one.floor_us for one, _ in kernels),
            compute_us=sum(one.compute_us for one, _ in kernels),
            memory_us=sum(one.memory_us for one, _ in kernels),
            flops=_sum(work.flops for _, work in kernels),
            bytes=_sum(work.bytes for _, work in kernels),
            op=_longest((work.op, one.us) for one, work in kernels),
            source=_longest((work.source, one.us) for one, work in kernels),
        )
        for (kind, bound, _), kernels in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.us))


def _longest(parts: Iterable[tuple[str | None, float]]) -> str | None:
    """The name with most time; null where none has one."""
    us: dict[str, float] = defaultdict(float)
    for name, part_us in parts:
        if name is not None:
            us[name] += part_us
    return max(us, key=lambda name: us[name], default=None)


def _sum(amounts: Iterable[float | None]) -> float | None:
    """The sum; null where a part is not known."""
    all_amounts = list(amounts)
    return None if None in all_amounts else sum(amount for amount in all_amounts if amount is not None)


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


def _batches(
    steps: Sequence[StepCalls], device: Device, backend: Backend, pace: float | None
) -> tuple[BatchPoint, ...]:
    points = []
    for calls in steps:
        if calls.batch_size is not None:
            step, memory = predict_step(calls, device, backend, pace), step_memory(calls)
            rate = None if not step.us else calls.batch_size / step.us * US_PER_S
            points.append(BatchPoint(calls.batch_size, step.us, rate, None if memory is None else memory.peak_bytes))
    return tuple(sorted(points, key=lambda point: point.batch_size))


def _knee(points: Sequence[BatchPoint]) -> tuple[int | None, str | None]:
    """Returns the smallest batch from which on doubling brings little.

    Null where the tried ones do not show it.
    """
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


def _gains(
    calls: StepCalls, device: Device, step: PredictedStep, others: Sequence[Backend], pace: float | None
) -> list[BackendGain]:
    # What a compiled step's ops would take one by one is not its own time: nothing compares with it.
    ways = () if calls.origin == "trace" and calls.settings.compiled else others
    base = price_work(calls, device, step.backend, pace)
    gains = [
        _gain(backend, step, predict_step(calls, device, backend, pace), base, price_work(calls, device, backend, pace))
        for backend in ways
    ]
    if _may_gain_by_tf32(calls, device):
        settings = replace(
            calls.settings, matmul_allow_tf32=True, cudnn_allow_tf32=True, float32_matmul_precision="high"
        )
        changed = replace(calls, settings=settings)
        other = predict_step(changed, device, step.backend, pace)
        gains.append(_gain(TF32, step, other, base, price_work(changed, device, step.backend, pace)))
    return gains


def _gain(
    name: str, step: PredictedStep, other: PredictedStep, base: PricedWork | str, changed: PricedWork | str
) -> BackendGain:
    speedup = step.us / other.us if step.us and other.us else None
    interval = None if isinstance(base, str) or isinstance(changed, str) else predict_gain(base, changed).interval
    return BackendGain(name, replace(other, kernels=()), speedup, interval)


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
