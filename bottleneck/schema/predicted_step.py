"""Predicted time of a step on a device.

``predict`` makes it of op calls, and reports show it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from bottleneck.schema.analysis import Interval
from bottleneck.schema.records import Doc

# How a program is run: op by op, or compiled. 'cudagraphs' replays the eager kernels as one graph, by torch.compile;
# 'captured' replays those of its modules, by `torch.cuda.make_graphed_callables`; 'compile' fuses them;
# 'reduce-overhead' does both; 'max-autotune' also fuses into products and chooses their kernels by timing.
Backend = Literal[
    "eager", "compile", "cudagraphs", "captured", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
]
PredictedBound = Literal["compute", "memory", "latency", "overhead", "mixed", "inconclusive"]


@dataclass(frozen=True)
class PredictedKernels:
    """Kernels of one call, with their time and their floors.

    A compiler may fuse several calls into one.

    ``floor_us`` is the larger of the floors set by arithmetic and by bytes, less what the last cache may spare; no
    device of this kind takes less. ``efficiency`` is the share of ``compute_us`` or of ``memory_us``, the larger, in
    the predicted time.
    """

    calls: Annotated[tuple[int, ...], Doc("positions of the calls in the step")]
    kind: Annotated[str, Doc("kind of work whose efficiency was used")]
    us: Annotated[float, Doc("predicted time on the device", "us")]
    compute_us: Annotated[float, Doc("floor set by the arithmetic on the engine that applies", "us")]
    memory_us: Annotated[float, Doc("floor set by the bytes, without any cache", "us")]
    floor_us: Annotated[float, Doc("least time that is possible", "us")]
    launches: Annotated[float, Doc("kernels launched")]
    engine: Annotated[str | None, Doc("ceiling that its arithmetic is held against: 'fp32_vector', 'tf32_tensor' …")]
    bound: Annotated[Literal["compute", "memory", "latency", "overhead"], Doc("largest part of the predicted time")]

    @property
    def efficiency(self) -> float:
        """Share of the larger ideal time in the predicted one."""
        return max(self.compute_us, self.memory_us) / self.us if self.us else 0.0


@dataclass(frozen=True)
class PredictedStep:
    """One step on one device with one backend.

    ``low_us`` and ``high_us`` hold the time with the probability ``coverage``, by the errors of the same prices on
    timed programs. The groups add up to ``us``. Null with ``reasons`` where nothing can be predicted.
    """

    device: Annotated[str, Doc("name of the device")]
    backend: Annotated[Backend, Doc("how the program is run")]
    us: Annotated[float | None, Doc("predicted time of the step", "us")]
    low_us: Annotated[float | None, Doc("lower end of its interval", "us")]
    high_us: Annotated[float | None, Doc("upper end of its interval", "us")]
    coverage: Annotated[float, Doc("share of steps that the interval is made to hold", "share")]
    floor_us: Annotated[float | None, Doc("least time that is possible on the device", "us")]
    device_us: Annotated[float | None, Doc("time that the device is busy", "us")]
    host_us: Annotated[float | None, Doc("time that the host needs to issue the step", "us")]
    launches: Annotated[float, Doc("kernels launched")]
    graph: Annotated[bool, Doc("the step is launched as a CUDA graph")]
    bound: Annotated[PredictedBound, Doc("what holds the step back")]
    groups: Annotated[dict[str, float], Doc("time by group: compute, memory, latency, overhead", "us")]
    kernels: Annotated[tuple[PredictedKernels, ...], Doc("the work in the order of the step")]
    unknown_calls: Annotated[int, Doc("calls whose time is not known, which the predicted time leaves out")]
    reasons: Annotated[tuple[str, ...], Doc("what is not known, and what was assumed")]
    by_host: Annotated[
        Interval | None,
        Doc(
            "time of a host-bound step by the pace of its host alone; null where the device decides, or it is given",
            "us",
        ),
    ] = None
