"""Predicts the time of one step on a device.

Kernels, their times, the host's, and an interval around the sum.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from bottleneck.cost.fusion import live_calls
from bottleneck.predict.host_pace import (
    EAGER_KERNELS,
    host_counts,
    host_time_units,
    own_work_units,
    replays_graph,
    sensitivities,
    slower_than_usual,
    step_us,
)
from bottleneck.predict.host_work import host_work_us
from bottleneck.predict.inductor_fusion import KernelGroup, copied_bytes, fuse, least_bytes
from bottleneck.predict.interval import (
    ANOTHER_BOARD,
    COVERAGE,
    calls_of,
    interval_factor,
    pace_factor,
    read_spreads,
    run_of,
    spread_parts,
)
from bottleneck.predict.rates import (
    KINDS,
    KernelCeilings,
    KernelColumns,
    PredictedTimes,
    as_columns,
    ceilings_of,
    floors,
    read_rates,
    times,
)
from bottleneck.predict.step_kernels import Kernel, split
from bottleneck.predict.tensor_products import is_timed
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import Device
from bottleneck.schema.device_facts import board_of
from bottleneck.schema.intervals import Floats
from bottleneck.schema.predicted_step import Backend, PredictedBound, PredictedKernels, PredictedStep
from bottleneck.schema.reasons import Reason
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings, StepCalls
from bottleneck.units import US_PER_S, counted, format_share, format_si, format_us

BOUNDS: tuple[Literal["compute"], Literal["memory"], Literal["latency"], Literal["overhead"]] = (
    "compute",
    "memory",
    "latency",
    "overhead",
)
# A step grows with the device's times by at least this part of their growth where the device sets the pace.
_MOST_BY_DEVICE = 0.5
# The time of a step of which more than this share has no predicted time would say nothing.
_MOST_UNPRICED = 0.25
# Less of a step is not worth a line.
_LEAST_HOST_WORK = 0.05


def plan(step: StepCalls, backend: Backend) -> tuple[list[KernelGroup], dict[Reason, int]]:
    """Returns the groups of kernels that a step launches with a backend.

    And how many calls have none for each reason.
    """
    if backend in EAGER_KERNELS:
        groups, unknown = _eager(step)
    else:
        groups, unknown = _compiled(step, backend)
    if replays_graph(step, backend):
        copied = copied_bytes(step, backend)
        groups.append(KernelGroup((), (Kernel("copy", bytes=2.0 * copied, launches=1.0),)))
    return groups, unknown


def _compiled(step: StepCalls, backend: Backend) -> tuple[list[KernelGroup], dict[Reason, int]]:
    """Returns the groups of a step whose modules are compiled.

    Its optimizers run op by op.
    """
    groups, unknown = fuse(step, backend)
    updates = {position for position, call in enumerate(step.calls) if call.phase == "optimizer"}
    if updates:
        groups = [group for group in groups if not updates.issuperset(group.calls)]
        groups += [group for group in _eager(step)[0] if updates.issuperset(group.calls)]
    return groups, unknown


def _eager(step: StepCalls) -> tuple[list[KernelGroup], dict[Reason, int]]:
    groups: list[KernelGroup] = []
    unknown: dict[Reason, int] = {}
    for position, call in enumerate(step.calls):
        kernels = () if call.on_host else split(call, position)
        if isinstance(kernels, Reason):
            unknown[kernels] = unknown.get(kernels, 0) + 1
        elif kernels:
            groups.append(KernelGroup((position,), kernels))
    return groups, unknown


def kernels_of(groups: Sequence[KernelGroup]) -> list[Kernel]:
    """The kernels of all groups."""
    return [kernel for group in groups for kernel in group.kernels]


class PricedKernels(Struct, frozen=True):
    """Kernels on a device with their times.

    ``work``, ``ceilings``, ``found`` and ``floor`` have an entry per kernel, ``engines`` the names of the ceilings.
    """

    work: KernelColumns
    ceilings: KernelCeilings
    engines: list[str]
    floor: tuple[Floats, Floats, Floats]
    found: PredictedTimes


def price_kernels(kernels: Sequence[Kernel], settings: EngineSettings, device: Device) -> PricedKernels:
    """Returns kernels with their times on a device, none below its floor."""
    work = as_columns(kernels)
    ceilings, engines = ceilings_of(kernels, settings, device)
    floor = floors(work, ceilings, device)
    return PricedKernels(work, ceilings, engines, floor, _above(floor[2], times(work, ceilings, read_rates())))


class PricedWork(Struct, frozen=True):
    """Work of one step on a device with its times.

    The time of its kernels (``priced_kernels``), and of the host. ``units`` is the time of the host before the first
    kernel and for issuing, in times of its ``pace``, ``own_work`` the part of it that is no launching. The true pace
    may be ``pace_factor`` times as slow or quick; 1 where it was given.
    """

    calls: StepCalls
    device: Device
    backend: Backend
    groups: list[KernelGroup]
    unknown: dict[Reason, int]
    priced_kernels: PricedKernels
    units: tuple[float, float]
    own_work: tuple[float, float]
    pace: float
    pace_factor: float

    @property
    def work(self) -> KernelColumns:
        """The kernels of the step."""
        return self.priced_kernels.work

    @property
    def found(self) -> PredictedTimes:
        """The times of the kernels."""
        return self.priced_kernels.found

    @property
    def busy_us(self) -> float:
        """Time in which the device works."""
        return float((self.found.us * self.work.count).sum())

    def us(self, times_pace: float = 1.0) -> float:
        """Time of the step, its host being so many times as slow."""
        return _step(self.busy_us, self.units, self.pace * times_pace, read_rates()) + self.returned_us

    @property
    def returned_us(self) -> float:
        """Time of the copies back to the host."""
        return returned_us(self.calls, self.device)

    def sensitivities(self) -> Floats:
        """Returns by how much the step grows, relatively, with its times.

        Those of the device, the host's start and its issuing.
        """
        lead_us, issue_us = (np.array(part * self.pace) for part in self.units)
        return sensitivities(np.array(self.busy_us), lead_us, issue_us, read_rates())

    @property
    def is_host_bound(self) -> bool:
        """True where the step grows with the host's times more than with the device's."""
        return float(self.sensitivities()[0]) < _MOST_BY_DEVICE

    @property
    def us_by_host(self) -> tuple[float, float]:
        """The time of the step with a quick and with a slow host."""
        return self.us(1 / self.pace_factor), self.us(self.pace_factor)

    @property
    def is_timed(self) -> bool:
        """True where programs were timed on such a device."""
        return self.device.name in board_of(self.device.name).timed


def price_work(
    calls: StepCalls, device: Device, backend: Backend, host_pace_us: float | None = None
) -> "PricedWork | str":
    """Returns the work of a step with its times.

    Or the reason where it cannot be priced.
    """
    rates = read_rates()
    why_not = _unpredictable(calls, device)
    groups, unknown = ([], {}) if why_not else plan(calls, backend)
    kernels = kernels_of(groups)
    if why_not or not kernels:
        return why_not or "no call of the step has a predicted time"
    own_work = own_work_units(calls, rates)
    lead, issue = host_time_units(host_counts(calls, backend, kernels), rates)
    units = lead + own_work[0], issue + own_work[1]
    pace = host_pace_us or rates["pace"] * slower_than_usual(device.name)
    factor = 1.0 if host_pace_us else pace_factor()
    return PricedWork(
        calls,
        device,
        backend,
        groups,
        unknown,
        price_kernels(kernels, calls.settings, device),
        units,
        own_work,
        pace,
        factor,
    )


def predict_step(
    calls: StepCalls, device: Device, backend: Backend = "eager", host_pace_us: float | None = None
) -> PredictedStep:
    """The time of a step on a device, with its interval.

    ``host_pace_us`` is the pace of that machine's host, as `pace_of_op` gives it. Without it the pace is the usual one
    of the device's year, and the interval holds four of five hosts. Nothing is predicted for devices whose ceilings are
    not known.
    """
    priced = price_work(calls, device, backend, host_pace_us)
    return _nothing(device, backend, priced, len(calls.calls)) if isinstance(priced, str) else step_of(priced)


def step_of(priced: PricedWork) -> PredictedStep:
    """The time of priced work, with its interval."""
    calls, device, backend = priced.calls, priced.device, priced.backend
    work, us = priced.work, priced.us()
    spreads = spread_parts(work, priced.found, priced.priced_kernels.ceilings.is_tensor, priced.sensitivities())
    own = math.log(interval_factor(spreads, run_of(backend), calls_of(work)))
    if not priced.is_timed:
        own = math.hypot(own, float(priced.sensitivities()[0]) * read_spreads()[ANOTHER_BOARD])
    by_host = [math.log(other_us / us) for other_us in priced.us_by_host]
    floor_us = step_floor_us(calls, device, backend)
    rows = _rows(priced.groups, work, priced.found, priced.priced_kernels.floor, priced.priced_kernels.engines)
    parts = _groups(us, rows, work, priced.found)
    return PredictedStep(
        device=device.name,
        backend=backend,
        us=us,
        low_us=min(max(us / math.exp(math.hypot(own, by_host[0])), floor_us), us),
        high_us=us * math.exp(math.hypot(own, by_host[1])),
        coverage=COVERAGE,
        floor_us=floor_us,
        device_us=priced.busy_us,
        host_us=sum(priced.units) * priced.pace,
        launches=float((work.launches * work.count).sum()),
        graph=replays_graph(calls, backend),
        bound=_bound(parts),
        groups=parts,
        kernels=rows,
        unknown_calls=sum(priced.unknown.values()),
        reasons=tuple(_reasons(priced)) + _no_graph(calls, backend),
        by_host=Interval(*priced.us_by_host) if priced.pace_factor > 1.0 and priced.is_host_bound else None,
    )


def returned_us(calls: StepCalls, device: Device) -> float:
    """Returns the time of copies back to the host at the link's bandwidth.

    The host waits for them, and they for the kernels before. 0 where the link is not known.
    """
    return calls.returned_bytes / device.link_bytes_per_s * US_PER_S if device.link_bytes_per_s else 0.0


def step_floor_us(calls: StepCalls, device: Device, backend: Backend) -> float:
    """Returns the least time of a step.

    The sum of its kernels' floors, or the work that remains after any fusion.
    """
    groups, _ = plan(calls, "eager")
    fuses = backend not in EAGER_KERNELS
    live = live_calls(calls) if fuses else [True] * len(calls.calls)
    kernels = [kernel for kernel in kernels_of(groups) if live[kernel.call]]
    work = as_columns(kernels)
    ceilings, _ = ceilings_of(kernels, calls.settings, device)
    compute, _, floor = floors(work, ceilings, device)
    returned = returned_us(calls, device)
    if not fuses:
        return float(np.nansum(floor * work.count)) + returned
    bandwidth = (device.bandwidth_bytes_per_s or math.inf) / US_PER_S
    moved = max(least_bytes(calls) - (device.cache_bytes or 0.0), 0.0) / bandwidth
    return max(float(np.nansum(compute * work.count)), moved) + returned


def _above(floor_us: Floats, found: PredictedTimes) -> PredictedTimes:
    """The times, none below its floor."""
    return replace(found, us=np.maximum(found.us, floor_us))


def _step(busy_us: float, units: tuple[float, float], pace: float, rates: Mapping[str, float]) -> float:
    lead_us, issue_us = (np.array(amount * pace) for amount in units)
    return float(step_us(np.array(busy_us), lead_us, issue_us, rates))


def _unpredictable(calls: StepCalls, device: Device) -> str | None:
    if device.kind != "cuda":
        return f"efficiencies were learned on NVIDIA GPUs; none are known for {device.kind} devices"
    if not device.bandwidth_bytes_per_s or "fp32_vector" not in device.peaks_flops_per_s:
        return f"the ceilings of {device.name or 'this device'} are not known"
    if calls.unpriced_share > _MOST_UNPRICED:
        share = format_share(calls.unpriced_share)
        return f"work that takes {share} of the device's time in the trace has unknown sizes, and so no predicted time"
    return None if calls.calls else "the step has no op calls"


def _nothing(device: Device, backend: Backend, reason: str, calls: int) -> PredictedStep:
    return PredictedStep(
        device=device.name,
        backend=backend,
        us=None,
        low_us=None,
        high_us=None,
        coverage=COVERAGE,
        floor_us=None,
        device_us=None,
        host_us=None,
        launches=0.0,
        graph=False,
        bound="inconclusive",
        groups={},
        kernels=(),
        unknown_calls=calls,
        reasons=(reason,),
    )


def _rows(
    groups: Sequence[KernelGroup],
    work: KernelColumns,
    found: PredictedTimes,
    floor: tuple[Floats, Floats, Floats],
    engines: Sequence[str],
) -> tuple[PredictedKernels, ...]:
    rows, first = [], 0
    for group in groups:
        at = slice(first, first + len(group.kernels))
        first = at.stop
        main = at.start + int(np.argmax(found.us[at]))
        count = work.count[at]
        parts = {
            "compute": float((np.where(found.waits[at], 0.0, found.compute_us[at]) * count).sum()),
            "latency": float((np.where(found.waits[at], found.compute_us[at], 0.0) * count).sum()),
            "memory": float((found.memory_us[at] * count).sum()),
            "overhead": float((found.launch_us[at] * count).sum()),
        }
        rows.append(
            PredictedKernels(
                calls=group.calls,
                kind=KINDS[int(work.kind[main])],
                us=float((found.us[at] * count).sum()),
                compute_us=float(np.nansum(floor[0][at] * count)),
                memory_us=float(np.nansum(floor[1][at] * count)),
                floor_us=float(np.nansum(floor[2][at] * count)),
                launches=float((work.launches[at] * count).sum()),
                engine=engines[main] if work.flops[main] > 0 else None,
                bound=max(BOUNDS, key=parts.__getitem__),
            )
        )
    return tuple(rows)


def _groups(
    us: float, rows: Sequence[PredictedKernels], work: KernelColumns, found: PredictedTimes
) -> dict[str, float]:
    """Returns the time by group.

    Busy kernels by the larger of their parts, all else is overhead.
    """
    busy = (found.us - found.launch_us) * work.count
    of_memory = found.compute_us <= found.memory_us
    assert rows, "a predicted step has kernels"
    parts = {
        "compute": float(busy[~of_memory & ~found.waits].sum()),
        "memory": float(busy[of_memory].sum()),
        "latency": float(busy[~of_memory & found.waits].sum()),
    }
    return {**parts, "overhead": us - sum(parts.values())}


def _bound(groups: Mapping[str, float]) -> PredictedBound:
    total = sum(groups.values())
    (name, most), (_, next_most), *_ = sorted(groups.items(), key=lambda item: -item[1])
    if most < 0.5 * total and most - next_most < 0.1 * total:
        return "mixed"
    return name  # type: ignore[return-value]


def _no_graph(calls: StepCalls, backend: Backend) -> tuple[str, ...]:
    if backend != "cudagraphs" or replays_graph(calls, backend):
        return ()
    return ("the backend cudagraphs makes no graph of a step that writes to a buffer, and runs it op by op",)


def _reasons(priced: PricedWork) -> list[str]:
    name = priced.device.name
    reasons = [
        f"{counted(count, 'call')} without a predicted time: {reason.words}" for reason, count in priced.unknown.items()
    ]
    if not priced.is_timed:
        reasons.append(f"no program was timed on {name}: its efficiencies are those of other NVIDIA GPUs")
    if priced.pace_factor > 1.0 and not priced.is_host_bound:
        reasons.append("the host's pace is the usual one of the device's year, since --host-pace gives none")
    is_on_tensor = any(engine.endswith("_tensor") for engine in priced.priced_kernels.engines)
    if is_on_tensor and not is_timed(priced.device.architecture):
        reasons.append("no products on tensor cores were timed on this generation: their rates are those of others")
    reasons += _host_work(priced) + _returned(priced)
    if priced.calls.origin == "trace":
        reasons.append("a trace records no results: fused bytes follow from the inputs of the calls alone")
    return reasons


def _returned(priced: PricedWork) -> list[str]:
    """Says what the copies back to the host take; nothing where there are none."""
    if not priced.calls.returned_bytes:
        return []
    size = format_si(priced.calls.returned_bytes, "B")
    if not priced.device.link_bytes_per_s:
        return [f"{size} come back to the host in each step, over a link whose bandwidth is not known"]
    return [f"{size} come back to the host in each step: {format_us(priced.returned_us)} at the link's bandwidth"]


def _host_work(priced: PricedWork) -> list[str]:
    """Says how long the host works itself, and most at which line.

    Nothing where that is a trifle of the step.
    """
    work, calls = host_work_us(priced.calls), priced.calls.calls
    us = sum(work.values()) * priced.pace / read_rates()["pace"]
    if us < _LEAST_HOST_WORK * priced.us():
        return []
    most = calls[max(work, key=work.__getitem__)]
    place = f" at {most.source}" if most.source else ""
    return [f"the host itself works about {format_us(us)} in each step, most of it in {most.name}{place}"]
