"""Learns the rates of ``bottleneck.predict`` from timed steps: least squares on logarithms, a prior for each rate."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from bottleneck.devices.match import device_by_name
from bottleneck.predict.host_pace import host_counts, host_time_units, step_us
from bottleneck.predict.price import plan
from bottleneck.predict.rates import KernelCeilings, KernelColumns, PredictedTimes, as_columns, ceilings_of, times
from bottleneck.schema.intervals import Flags, Floats, Integers, joined, some_rows
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.step_calls import StepCalls

# A prior value and how far off it may be, as a logarithm. The values are what data sheets, ATen's and cuDNN's code and
# published measurements suggest; the timings move them.
PRIORS: Mapping[str, tuple[float, float]] = {
    "memory": (0.9, 0.03),
    "cache": (1.3, 0.1),
    "launch": (2.0, 0.2),
    "latency": (4.0, 0.3),
    "copy:memory": (0.95, 0.3),
    "normalize:memory": (0.9, 0.3),
    "reduction:memory": (1.0, 0.3),
    "softmax:memory": (1.0, 0.3),
    "softmax across rows:memory": (0.6, 0.4),
    "layer norm:memory": (0.7, 0.4),
    "layout:memory": (0.9, 0.3),
    "result layout:memory": (1.5, 0.5),
    "scan:memory": (0.7, 0.3),
    "scan:step": (0.004, 0.5),
    "max pooling:memory": (0.8, 0.4),
    "average pooling:memory": (0.9, 0.3),
    "max pooling:operations": (20.0, 0.6),
    "average pooling:operations": (8.0, 0.6),
    "statistics:operations": (150.0, 0.4),
    "blocks": (2.0, 0.5),
    "lanes": (0.8, 0.15),
    "lanes:inner": (8.0, 0.3),
    "tensor": (0.8, 0.4),
    "tensor:inner": (64.0, 0.5),
    "tensor:columns": (32.0, 0.5),
    "convolution 3d:compute": (0.6, 0.5),
    "transposed convolution:compute": (0.6, 0.5),
    "transposed convolution 3d:compute": (0.4, 0.5),
    "grouped convolution:compute": (0.4, 0.5),
    "pointwise convolution:compute": (1.0, 0.3),
    "depthwise convolution:compute": (0.1, 0.6),
    "window": (400.0, 0.6),
    "attention:compute": (0.7, 0.3),
    "convolution:lanes": (1.0, 0.3),
    "convolution 3d:lanes": (0.7, 0.4),
    "transposed convolution:lanes": (0.8, 0.4),
    "transposed convolution 3d:lanes": (0.6, 0.4),
    "grouped convolution:lanes": (0.4, 0.5),
    "pointwise convolution:lanes": (1.0, 0.3),
    "winograd": (2.25, 0.2),
    "dilated": (0.4, 0.5),
    "dilated transposed": (0.2, 0.8),
    "lstm:step": (6.0, 0.4),
    "gru:step": (8.0, 0.4),
    "host:op": (0.7, 0.4),
    "host:reduction": (0.9, 0.4),
    "host:new op": (0.5, 0.5),
    "host:convolution": (2.0, 0.4),
    "host:depthwise": (1.0, 0.4),
    "host:product": (1.2, 0.4),
    "host:norm": (2.0, 0.4),
    "host:recurrent": (4.0, 0.4),
    "host:logsumexp": (4.0, 0.4),
    "host:view": (0.15, 0.4),
    "host:first": (0.7, 0.4),
}
COMPILED_PRIORS: Mapping[str, tuple[float, float]] = {
    "fused pointwise:memory": (0.95, 0.2),
    "fused reduction:memory": (0.85, 0.3),
    "fused statistics:memory": (0.7, 0.4),
    "convolution channels last:compute": (0.8, 0.5),
    "channels last:channels": (8.0, 0.5),
    "channels last on lanes": (0.5, 0.5),
    "depthwise convolution channels last:compute": (0.1, 0.8),
    "uneven depthwise convolution channels last:compute": (0.03, 0.8),
    "autotuned product": (1.1, 0.1),
    "autotuned convolution": (1.1, 0.2),
    "host:compiled step": (3.0, 0.4),
    "host:generated kernel": (0.5, 0.4),
    "host:library kernel": (1.0, 0.4),
    "host:graph step": (6.0, 0.4),
}
_PACE = (15.0, 0.6)
# Python, checks of guards and launches take different parts of eager and compiled steps, and not each host is equally
# slow at all of them.
_COMPILED_PACE = 0.1
_UNUSED = {name: value for name, (value, _) in COMPILED_PRIORS.items()}
_NOISE = 0.25


@dataclass(frozen=True)
class Timing:
    """One measured step."""

    version: str
    level: str
    problem: int
    name: str
    machine: str
    hardware: str
    backend: Backend
    us: float

    @property
    def key(self) -> tuple[str, str, str]:
        """Version, level and name."""
        return self.version, self.level, self.name

    @property
    def program(self) -> tuple[str, int]:
        """The same for all versions, devices and backends of a program."""
        return self.level, self.problem


@dataclass(frozen=True)
class Sample:
    """Timings with the kernels of all of them as columns; ``row`` is the timing of each kernel."""

    timings: tuple[Timing, ...]
    row: Integers
    work: KernelColumns
    ceilings: KernelCeilings
    counts: Mapping[str, Floats]
    machine: Integers
    us: Floats

    def some(self, keep: Flags) -> "Sample":
        """The sample with some of its timings."""
        kernels = keep[self.row]
        number = np.cumsum(keep) - 1
        return Sample(
            tuple(each for each, kept in zip(self.timings, keep, strict=True) if kept),
            number[self.row[kernels]],
            some_rows(self.work, kernels),
            some_rows(self.ceilings, kernels),
            {kind: count[keep] for kind, count in self.counts.items()},
            self.machine[keep],
            self.us[keep],
        )

    def slice(self, found: PredictedTimes, first: int, last: int) -> tuple[KernelColumns, PredictedTimes, Flags]:
        """Some kernels, their times, and which run on tensor cores, by position."""
        rows = slice(first, last)
        return some_rows(self.work, rows), some_rows(found, rows), self.ceilings.is_tensor[rows]


def machines(timings: Sequence[Timing]) -> list[str]:
    """The machines, in order."""
    return sorted({each.machine for each in timings})


def make_sample(
    timings: Sequence[Timing], steps: Mapping[tuple[str, str, str], StepCalls], backends: Collection[str] = ("eager",)
) -> Sample:
    """The timings with these backends, with the kernels of their programs."""
    kept = [each for each in timings if each.backend in backends and each.key in steps]
    plans = {(key, backend): plan(steps[key], backend)[0] for key, backend in {(t.key, t.backend) for t in kept}}
    kernels, rows, parts, some = [], [], [], []
    for row, timing in enumerate(kept):
        own = [kernel for group in plans[timing.key, timing.backend] for kernel in group.kernels]
        step = steps[timing.key]
        kernels += own
        rows += [row] * len(own)
        parts.append(ceilings_of(own, step.settings, device_by_name(timing.hardware))[0])
        some.append(host_counts(step, timing.backend, own))
    names = machines(timings)
    return Sample(
        tuple(kept),
        np.array(rows),
        as_columns(kernels),
        joined(parts),
        {kind: np.array([each[kind] for each in some]) for kind in some[0]},
        np.array([names.index(timing.machine) for timing in kept]),
        np.array([timing.us for timing in kept]),
    )


def device_times(sample: Sample, rates: Mapping[str, float]) -> tuple[PredictedTimes, Floats]:
    """The time of each kernel, and of each timing's kernels together."""
    found = times(sample.work, sample.ceilings, rates)
    return found, np.bincount(sample.row, found.us * sample.work.count, len(sample.timings))


def predict(sample: Sample, rates: Mapping[str, float], paces: Floats) -> Floats:
    """The predicted time of each timing in microseconds."""
    _, device_us = device_times(sample, rates)
    pace = paces[sample.machine]
    lead, issue = host_time_units(sample.counts, rates)
    return step_us(device_us, np.asarray(lead) * pace, np.asarray(issue) * pace, rates)


def fit(
    sample: Sample,
    priors: Mapping[str, tuple[float, float]] = PRIORS,
    start: Floats | None = None,
    known: tuple[Mapping[str, float], Floats] | None = None,
) -> tuple[dict[str, float], Floats, Floats]:
    """The rates, the pace of each machine, and both as logarithms to start from another time.

    With ``known`` rates only those of ``priors`` are learned, and how the paces differ from the known ones.
    """
    names = list(priors)
    count = len(known[1]) if known else int(sample.machine.max()) + 1 if start is None else len(start) - len(names)
    paces = known[1] if known else np.full(count, _PACE[0])
    middle = np.log([*(priors[name][0] for name in names), *paces])
    spread = np.array([*(priors[name][1] for name in names), *[_COMPILED_PACE if known else _PACE[1]] * count])

    def unpacked(at: Floats) -> tuple[dict[str, float], Floats]:
        learned = dict(zip(names, map(float, np.exp(at)), strict=False))
        return {**(known[0] if known else _UNUSED), **learned}, np.exp(at[len(names) :])

    def residuals(at: Floats) -> Floats:
        off = np.log(predict(sample, *unpacked(at)) / sample.us) / _NOISE
        return np.concatenate([off, (at - middle) / spread])

    best = least_squares(
        residuals, middle if start is None else start, loss="soft_l1", max_nfev=80, xtol=1e-4, ftol=1e-4, x_scale=spread
    ).x
    return *unpacked(best), best
