"""Summarises the sensor samples of the window.

It also says what clocks and other processes mean for the ceilings.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from bottleneck.analysis.ledger import LedgerResult
from bottleneck.errors import TraceError
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import (
    CONTENDED,
    DISTURBED,
    SHARED_PROCESSOR,
    STRETCHED,
    Caveat,
    Ledger,
    TelemetrySummary,
)
from bottleneck.schema.device import Device
from bottleneck.schema.intervals import Floats
from bottleneck.schema.linked_trace import Linked
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace
from bottleneck.schema.sources import TraceSource
from bottleneck.schema.telemetry import (
    HOST,
    SHORTEST_RATE_S,
    THROTTLE,
    Sample,
    other_processors,
    read_samples,
    waited_share,
)
from bottleneck.units import counted, format_share

# Power is sampled in a quarter of the time on many boards (arXiv 2312.02741), and its counter moves every 100 ms:
# what is shorter than this says nothing about energy.
_SHORTEST_ENERGY_S, _FEWEST_UPDATES = 2.0, 20
# Power that is averaged over a second, and a utilisation that is over up to a second, say little about less.
_SHORTEST_AVERAGE_S = 1.0
# A reason for low clocks counts if it held in so many of the samples.
_OFTEN = 0.05
# Counters are read off between samples that lie so close to either end of a span.
MARGIN_NS = 1e9


_DEVICE_READINGS = (
    *("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "memory_used_bytes", "pcie_tx_bytes_per_s"),
    *("pcie_rx_bytes_per_s", "sm_activity", "tensor_activity", "dram_activity"),
)


class TimeSpan(Struct, frozen=True):
    """A span of the wall clock in which steps ran, in ns since 1970."""

    start_ns: float
    end_ns: float
    steps: int

    @property
    def length_s(self) -> float:
        """Length of the span."""
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, sample: Sample) -> bool:
        """True for samples taken within the span."""
        return self.start_ns <= sample.unix_ns <= self.end_ns


def read_telemetry(
    source: TraceSource, linked: Linked, unprofiled: Timing | None
) -> tuple[TelemetrySummary | None, tuple[Caveat, ...]]:
    """Reads the recording's sensors during profiled and unprofiled steps.

    The profiled ones are those of the window.

    Null where the recording has none; a caveat where they cannot be read.
    """
    recording = source.recording
    if recording is None or recording.sampling is None:
        return None, ()
    spans = _step_spans(source, linked, unprofiled)
    read_ns = [(span.start_ns - MARGIN_NS, span.end_ns + MARGIN_NS) for span in spans]
    try:
        samples = read_samples(source.trace.parent, read_ns)
    except TraceError as exc:
        message = f"the log of the sensors cannot be used: {exc.why or exc.what}"
        return None, (Caveat("sensors-unreadable", message),)
    used = linked.trace.device_args["device"].dropna().unique()
    sensors = [recording.sampling.sensors[index] for index in map(int, used) if index in recording.sampling.sensors]
    return summarise_samples(samples, spans, sensors), ()


def samples_of_trace(source: TraceSource, linked: Linked) -> list[Sample]:
    """Gives all sensor samples from while the trace was recorded.

    There are none where they cannot be read.
    """
    zero_ns, events = linked.trace.start_unix_ns, linked.trace.events
    if source.recording is None or source.recording.sampling is None or zero_ns is None:
        return []
    end_us = float((events["ts_us"] + events["dur_us"]).max())
    try:
        return read_samples(source.trace.parent, [(zero_ns - MARGIN_NS, zero_ns + 1e3 * end_us + MARGIN_NS)])
    except TraceError:
        return []


def _step_spans(source: TraceSource, linked: Linked, unprofiled: Timing | None) -> tuple[TimeSpan, ...]:
    """Gives the spans of the window and the unprofiled steps.

    They are on the wall clock. The unprofiled steps ran on their own.
    """
    zero_ns, window = linked.trace.start_unix_ns, linked.window
    spans = []
    if zero_ns is not None:
        start_ns, end_ns = (zero_ns + 1e3 * at_us for at_us in (window.start_us, window.end_us))
        spans.append(TimeSpan(start_ns, end_ns, max(1, len(window.steps))))
    if source.timed_ns is not None and unprofiled is not None:
        spans.append(TimeSpan(*source.timed_ns, unprofiled.n))
    return tuple(spans)


def summarise_samples(
    samples: Sequence[Sample], spans: Sequence[TimeSpan], sensors: Sequence[str]
) -> TelemetrySummary | None:
    """Gives medians of the readings in these spans.

    The sensors are those of these devices and of the host. Null without any.

    Without devices the count of samples is the host's. Several devices are taken together: medians are those of one
    device, energy is that of all.
    """
    inside = [sample for sample in samples if any(span.holds(sample) for span in spans)]
    device = [sample for sample in inside if sample.sensor in sensors]
    host = [sample for sample in inside if sample.sensor == HOST]
    if not device and not host:
        return None
    is_long = sum(span.length_s for span in spans) >= _SHORTEST_AVERAGE_S
    energy_j, error_j = _energy(samples, spans, sensors)
    instant_w = _median(device, "power_w")
    busy = _rate(host, spans, "busy_cpu_s", lambda sample: sample.values.get("total_cpu_s"))
    return TelemetrySummary(
        samples=len(device or host),
        power_w=_median(device, "average_power_w") if instant_w is None and is_long else instant_w,
        energy_j=energy_j,
        utilization=_median(device, "utilization") if is_long else None,
        throttle=_throttle(device),
        energy_error_j=error_j,
        process_processors=_rate(host, spans, "process_cpu_s", lambda sample: sample.elapsed_s),
        process_waits=_rate(host, spans, "process_wait_s", lambda sample: sample.elapsed_s),
        host_utilization=None if busy is None else min(busy, 1.0),
        host_memory_used_bytes=_median(host, "memory_used_bytes"),
        other_processors=other_processors(samples),
        waited_share=waited_share(samples),
        **{name: _median(device, name) for name in _DEVICE_READINGS},
        **{name: _median(host, name) for name in ("cpu_clock_mhz", "process_memory_bytes")},
    )


def _median(samples: Sequence[Sample], column: str) -> float | None:
    values = [sample.values[column] for sample in samples if column in sample.values]
    return float(np.median(values)) if values else None


def _throttle(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Reasons that held the clocks down, the most frequent first."""
    measured = [int(sample.values["throttle_bits"]) for sample in samples if "throttle_bits" in sample.values]
    counts = {name: sum(bool(bits & bit) for bits in measured) for bit, name in THROTTLE.items()}
    often = [name for name, count in counts.items() if measured and count >= _OFTEN * len(measured) and count]
    return tuple(sorted(often, key=lambda name: -counts[name]))


def _rate(
    samples: Sequence[Sample], spans: Sequence[TimeSpan], column: str, against: Callable[[Sample], float | None]
) -> float | None:
    """Gives the growth of a counter over that of another.

    It is from the first to the last sample inside each span.

    Null where the spans are too short for such counters, or a counter ran backwards.
    """
    grown = against_grown = length_s = 0.0
    for span in spans:
        measured = [
            (sample.elapsed_s, sample.values[column], other)
            for sample in samples
            if span.holds(sample) and column in sample.values and (other := against(sample)) is not None
        ]
        if len(measured) >= 2:
            length_s += measured[-1][0] - measured[0][0]
            grown += measured[-1][1] - measured[0][1]
            against_grown += measured[-1][2] - measured[0][2]
    if length_s < SHORTEST_RATE_S or grown < 0 or against_grown <= 0:
        return None
    return grown / against_grown


def _energy(
    samples: Sequence[Sample], spans: Sequence[TimeSpan], sensors: Sequence[str]
) -> tuple[float | None, float | None]:
    """Gives energy per step over the longest span, and its error.

    It is that of all devices. Null if the span is too short.
    """
    span = max(spans, key=lambda item: item.length_s, default=None)
    if span is None or span.length_s < _SHORTEST_ENERGY_S or not span.steps:
        return None, None
    used = [_energy_of([sample for sample in samples if sample.sensor == sensor], span) for sensor in sensors]
    measured = [item for item in used if item is not None]
    if not measured or len(measured) < len(used):
        return None, None
    return sum(joules for joules, _ in measured) / span.steps, sum(error for _, error in measured) / span.steps


def _energy_of(samples: Sequence[Sample], span: TimeSpan) -> tuple[float, float] | None:
    """Gives the growth of one device's counter in the span.

    It is read off between samples. The second number is the size of two of the counter's updates.

    Null where samples do not reach from end to end, the counter ran backwards, or moved too seldom to be trusted.
    """
    near = [
        (float(sample.unix_ns), sample.values["energy_j"])
        for sample in samples
        if "energy_j" in sample.values and span.start_ns - MARGIN_NS <= sample.unix_ns <= span.end_ns + MARGIN_NS
    ]
    if not near or near[0][0] > span.start_ns or near[-1][0] < span.end_ns:
        return None
    at_ns, joules = (np.array(column) for column in zip(*near, strict=True))
    steps = np.diff(joules)
    inside = (at_ns[1:] > span.start_ns) & (at_ns[:-1] < span.end_ns)
    if (steps < 0).any() or np.count_nonzero(steps[inside]) < _FEWEST_UPDATES:
        return None
    start, end = np.interp([span.start_ns, span.end_ns], at_ns, joules)
    return float(end - start), float(2 * steps[inside].max())


# Ceilings settle within 3 %: a clock that is lower by less says nothing.
_AS_FAST = 0.97
# The system tells the mean clock of all processors: idle ones, which rest, must not count among those that work.
_ALL_BUSY = 0.9


class Conditions(Struct, frozen=True):
    """Clocks of the device while the steps ran, by its sensors.

    ``throttle`` lists why its clocks were held back; ``clock_shares`` is the part of each peak, keyed as the peaks,
    that the clock left, without those that it left whole.
    """

    throttle: tuple[str, ...] = ()
    clock_shares: Mapping[str, float] = field(default_factory=dict)

    def slowed(self, device: Device) -> Device:
        """The device with the arithmetic peaks of that clock; bandwidth is the memory's affair."""
        shares = self.clock_shares
        peaks = {peak: value * shares.get(peak, 1.0) for peak, value in device.peaks_flops_per_s.items()}
        special = device.special_ops_per_s
        return replace(
            device,
            peaks_flops_per_s=peaks,
            special_ops_per_s=special and special * shares.get("fp32_vector", 1.0),
        )


# Where no sensor was read.
UNKNOWN_CONDITIONS = Conditions()


def find_conditions(device: Device, telemetry: TelemetrySummary | None) -> tuple[Conditions, tuple[Caveat, ...]]:
    """Gives the conditions, and a caveat where the clock was low.

    It was then below the one at which the device's peaks hold.

    Data sheets quote peaks at the boost clock, those of tensor cores at one of their own; a calibration knows its
    clock. A clock above it does not raise a peak. Of a processor's clock only what its sensor says while all of them
    work is believed.
    """
    if telemetry is None:
        return UNKNOWN_CONDITIONS, ()
    clock_mhz = telemetry.cpu_clock_mhz if device.kind == "cpu" else telemetry.sm_clock_mhz
    rests = device.kind == "cpu" and (telemetry.host_utilization or 0.0) < _ALL_BUSY
    if not clock_mhz or rests:
        return Conditions(telemetry.throttle), ()
    measured = {peak: clock_mhz / nominal for peak, nominal in device.peak_clocks_mhz.items() if nominal > 0}
    shares = {peak: share for peak, share in measured.items() if share < _AS_FAST and peak in device.peaks_flops_per_s}
    conditions = Conditions(telemetry.throttle, shares)
    return conditions, _caveats(conditions, clock_mhz, device)


def _caveats(conditions: Conditions, clock_mhz: float, device: Device) -> tuple[Caveat, ...]:
    shares = conditions.clock_shares
    if not shares:
        return ()
    nominal = " and ".join(f"{mhz:.0f}" for mhz in sorted({device.peak_clocks_mhz[peak] for peak in shares}))
    left = " to ".join(dict.fromkeys(format_share(share) for share in (min(shares.values()), max(shares.values()))))
    why = f" ({', '.join(conditions.throttle)})" if conditions.throttle else ""
    message = (
        f"the device ran at {clock_mhz:.0f} MHz{why}, below the {nominal} MHz at which its peaks hold: arithmetic is "
        f"judged against {left} of them, bytes against the whole bandwidth"
    )
    return (Caveat("low-clocks", message),)


def _explained_share(result: LedgerResult, explained: Floats) -> float:
    """Gives the part of the ops' time that floors explain.

    All of it where ops take too little of the step to change its verdict.
    """
    work = math.fsum(entry.share for entry in result.ledger.entries if entry.account in _WORK_ACCOUNTS)
    works = np.isin(result.account, _WORK) & (result.kernel_us > 0)
    total_us = float(result.kernel_us[works].sum())
    if work < _LEAST_WORK or total_us <= 0:
        return 1.0
    return float((result.kernel_us * np.nan_to_num(explained))[works].sum()) / total_us


def find_contention_of_short_steps(
    telemetry: TelemetrySummary | None, processors: int | None, result: LedgerResult, explained: Floats
) -> tuple[Caveat, ...]:
    """Gives the same caveat where the steps are too short for the counters.

    What other programs used over the whole recording stands for them; floors must then explain next to nothing.
    """
    if telemetry is None or not processors or not result.host_only:
        return ()
    is_counted = telemetry.host_utilization is not None and telemetry.process_processors is not None
    others = telemetry.other_processors
    share = _explained_share(result, explained)
    if is_counted or others is None or others < _TAKEN * processors or share >= _HARDLY_EXPLAINED:
        return ()
    message = (
        f"other programs kept {min(others, processors):.1f} of {counted(processors, 'processor')} busy during the "
        f"recording, and what the program's ops need at least is {format_share(share)} of the time that they took"
    )
    return (Caveat(CONTENDED, message, 1.0 - share),)


# Less than a processor that others may take of those that the program leaves: sensors and the system need some.
_ROOM = 0.2


def tell_profiler_from_load(
    caveats: Sequence[Caveat], telemetry: TelemetrySummary | None, threads: int | None, processors: int | None
) -> tuple[Caveat, ...]:
    """Gives the caveats, with blame moved to the profiler.

    This is done for those that blame other programs, where these left processors enough.
    """
    others = None if telemetry is None else telemetry.other_processors
    if others is None or not threads or not processors or others > processors - threads + _ROOM:
        return tuple(caveats)
    message = (
        f"the profiler made the steps far longer than it usually does: other programs kept only {others:.1f} of "
        f"{counted(processors, 'processor')} busy, and the program has {counted(threads, 'thread')}; the amounts are "
        "scaled to the steps without it"
    )
    return tuple(
        replace(caveat, slug=STRETCHED, message=message) if caveat.slug == DISTURBED else caveat for caveat in caveats
    )


# Processors that were all at work, and of those that the program wanted, the part that it did not get.
FULL, GOT_AT_MOST = 0.95, 0.9
# With this part of its processor and more, waiting for it is little of a single thread's time, however long ops take.
_GOT_MOST = 0.75
_WORK_ACCOUNTS = ("compute", "memory", "overhead.launch_floor")
_WORK = [tuple(ACCOUNTS).index(name) for name in _WORK_ACCOUNTS]
# Of steps that are too short for the counters: the part of all processors that others kept busy over the whole
# recording, and the part of the ops' time that floors explain at most where the ops waited for a processor.
_TAKEN, _HARDLY_EXPLAINED = 0.75, 0.02
# Where floors explain this much of the ops' time, waiting for a processor cannot be most of it.
_EXPLAINED = 0.25
# Where ops take less of the step than this, the time between them decides the verdict, however long they wait.
_LEAST_WORK = 0.25
_WITHOUT_CAUSE, _MOSTLY = "overhead.unknown", 0.5


def find_contention(
    telemetry: TelemetrySummary | None, threads: int | None, result: LedgerResult, explained: Floats, judged: Ledger
) -> tuple[Caveat, ...]:
    """Gives a caveat when the program lacked processors.

    It got fewer than it has threads, for want of free ones, and little adds up.

    Threads that compute together wait for the last of them: one that has to wait for a processor makes a tiny op last
    for a whole time slice of the system, and which op that is, is chance. A single thread waits for no other: what it
    waits for a processor falls on its ops by how long they work, so that their shares hold, and floors are held against
    the time in which it had one; where it had one for most of the time, ops that floors do not explain are slow by
    themselves. ``explained`` holds, for each row of KERNELS, the part of its time that a floor
    explains (0-1, NaN unknown). Only for programs on the host, and only where the ops take enough of the step to change
    its verdict.

    So too where most of the step, in the ledger that is ``judged``, is idle without a recorded cause: waiting for a
    processor leaves no event.
    """
    if telemetry is None or not threads or not result.host_only:
        return ()
    used, got = telemetry.host_utilization, telemetry.process_processors
    if used is None or got is None or used < FULL or got > GOT_AT_MOST * threads:
        return ()
    lacks = f"the program got {got:.2f} for its {counted(threads, 'thread')}"
    idle = math.fsum(entry.share for entry in judged.entries if entry.account == _WITHOUT_CAUSE)
    if idle >= _MOSTLY:
        message = (
            f"other programs used the processors while the steps ran: {lacks}, and {format_share(idle)} of the step "
            "is idle time without a recorded cause, as waiting for a processor is"
        )
        return (Caveat(CONTENDED, message, idle),)
    share = _explained_share(result, explained)
    if share >= _EXPLAINED:
        return ()
    if threads == 1 and (share >= _EXPLAINED * got or got >= _GOT_MOST):
        message = (
            f"other programs used the processor while the steps ran: the program got {got:.2f} for its thread, so that "
            "times are longer than on a quiet machine; shares hold, since every op waited alike"
        )
        return (Caveat(SHARED_PROCESSOR, message),)
    message = (
        f"other programs used the processors while the steps ran: {lacks}, and what its ops need at least is "
        f"{format_share(share)} of the time that they took"
    )
    return (Caveat(CONTENDED, message, 1.0 - share),)
