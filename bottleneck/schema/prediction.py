"""Prediction of a step's time and limits on other devices."""

from dataclasses import dataclass
from typing import Annotated, Literal

from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import Device
from bottleneck.schema.memory_fit import MemoryFit
from bottleneck.schema.predicted_step import PredictedBound, PredictedStep
from bottleneck.schema.records import Doc
from bottleneck.schema.step_calls import EngineSettings

PREDICT_SCHEMA = "bottleneck/predict/1"


@dataclass(frozen=True)
class StepMemory:
    """Device memory of the step at its peak, by its contents.

    It comes from the lifetimes of the step's tensors.
    """

    peak_bytes: Annotated[int, Doc("most memory that tensors hold at once", "B")]
    parameter_bytes: Annotated[int, Doc("parameters and buffers", "B")]
    gradient_bytes: Annotated[int, Doc("gradients at the peak", "B")]
    optimizer_bytes: Annotated[int, Doc("state of optimizers", "B")]
    input_bytes: Annotated[int, Doc("inputs, and what else was there before the step", "B")]
    activation_bytes: Annotated[int, Doc("all that the step itself made and holds at the peak", "B")]
    phase: Annotated[str | None, Doc("part of the step in which the peak lies: forward, backward, optimizer")]


@dataclass(frozen=True)
class PredictedWork:
    """Kernels of one kind with one bound, added up over the step."""

    kind: Annotated[str, Doc("kind of work")]
    bound: Annotated[str, Doc("compute, memory, latency or overhead")]
    engine: Annotated[str | None, Doc("ceiling that its arithmetic is held against")]
    launches: Annotated[float, Doc("kernels launched")]
    us: Annotated[float, Doc("predicted time on the device", "us")]
    floor_us: Annotated[float, Doc("least time that is possible", "us")]
    compute_us: Annotated[float, Doc("floor set by the arithmetic", "us")]
    memory_us: Annotated[float, Doc("floor set by the bytes, without any cache", "us")]
    flops: Annotated[float | None, Doc("its FLOPs by the formulas of the cost model; null where they are not known")]
    bytes: Annotated[float | None, Doc("bytes that it moves at least; null where they are not known", "B")]
    op: Annotated[str | None, Doc("op with most of its time")] = None
    source: Annotated[str | None, Doc("source line with most of its time; null where not known")] = None


@dataclass(frozen=True)
class BackendGain:
    """Gain of running the step in another way or setting.

    The base is the step as it is.
    """

    name: Annotated[str, Doc("'compile', 'cudagraphs', 'tf32' …")]
    step: Annotated[PredictedStep, Doc("the step that way; without its kernels")]
    speedup: Annotated[float | None, Doc("time as it is / time that way", "ratio")]
    interval: Annotated[
        Interval | None, Doc("interval of the speedup, made to hold 80 % of cases; null where there is none", "ratio")
    ] = None


@dataclass(frozen=True)
class BatchPoint:
    """The eager step at one batch size."""

    batch_size: Annotated[int, Doc("samples per step")]
    us: Annotated[float | None, Doc("predicted time of the step", "us")]
    samples_per_s: Annotated[float | None, Doc("samples per second", "1/s")]
    peak_bytes: Annotated[int | None, Doc("most memory that tensors hold at once", "B")]


@dataclass(frozen=True)
class DevicePrediction:
    """The step on one device.

    ``step`` is that of the first backend asked for. ``fits`` compares the peak with the memory of the device less
    what torch and the driver take. ``largest_batch`` follows from the peaks at two batch sizes, ``knee_batch`` is the
    smallest tried batch size from which twice the batch brings less than a tenth more samples per second. Where no time
    can be predicted, ``step.floor_us`` may still be known, and ``floor_bound`` with it.
    """

    device: Annotated[Device, Doc("the device and its ceilings")]
    step: Annotated[PredictedStep, Doc("the step as it is; without its kernels")]
    work: Annotated[tuple[PredictedWork, ...], Doc("its kernels by kind, longest first")]
    bound: Annotated[PredictedBound, Doc("what holds the step back")]
    engine: Annotated[str | None, Doc("ceiling that most of the arithmetic's time is held against")]
    floor_bound: Annotated[
        Literal["compute", "memory"] | None, Doc("what sets most of step.floor_us, where only that is known; else null")
    ]
    copy_us: Annotated[
        float | None, Doc("time of the copies from the host over the link, beside the step; null where not known", "us")
    ]
    samples_per_s: Annotated[Interval | None, Doc("samples per second; null without a batch size", "1/s")]
    fits: Annotated[bool | None, Doc("true if the step's memory fits; null where it is not known")]
    fits_reason: Annotated[str | None, Doc("why that is not known")]
    largest_batch: Annotated[int | None, Doc("largest batch size that fits; 0 for none")]
    largest_batch_reason: Annotated[str | None, Doc("why that is not known")]
    knee_batch: Annotated[int | None, Doc("batch size from which more samples bring little")]
    knee_reason: Annotated[str | None, Doc("why that is not known")]
    gains: Annotated[tuple[BackendGain, ...], Doc("other ways to run the step, and other settings")]
    batches: Annotated[tuple[BatchPoint, ...], Doc("the step at the batch sizes that were tried, smallest first")]
    cost_per_million_samples: Annotated[
        Interval | None, Doc("price of a million samples, in the currency of --price; null without price or batch size")
    ]
    fit: Annotated[MemoryFit | None, Doc("what makes the step fit into the memory; null without --fit")] = None


@dataclass(frozen=True)
class Prediction:
    """One step of a program on several devices, none of which was used."""

    program: Annotated[str, Doc("the program's file, or the trace")]
    origin: Annotated[str, Doc("'fake step' or 'trace'")]
    settings: Annotated[EngineSettings, Doc("settings of the program that decide which engine computes")]
    batch_size: Annotated[int | None, Doc("samples per step; null where the program does not tell")]
    op_calls: Annotated[int, Doc("calls of ops that launch work")]
    host_ops: Annotated[int, Doc("ops that the host dispatches")]
    copied_bytes: Annotated[
        float | None, Doc("bytes that a step copies from the host to the device; null where none was seen", "B")
    ]
    measured_us: Annotated[float | None, Doc("time of the step in the trace; null for a program", "us")]
    measured_on: Annotated[str | None, Doc("device of the trace")]
    measured_device_us: Annotated[
        float | None, Doc("time of the step's kernels in the trace; null for a program", "us")
    ]
    memory: Annotated[StepMemory | None, Doc("memory of the step; null where it is not known")]
    devices: Annotated[tuple[DevicePrediction, ...], Doc("the step on each device, in the order asked for")]
    left_out: Annotated[str, Doc("work of the program that is not part of the predicted step; empty for none")]
    notes: Annotated[tuple[str, ...], Doc("what is not known, and what was assumed")]
    schema: Annotated[str, Doc("format of this document; other values are other formats")] = PREDICT_SCHEMA
    version: Annotated[str, Doc("version of bottleneck that answered")] = ""
