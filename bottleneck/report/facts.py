"""The sentences of a report: headline, facts about the measurement, coverage, caveats, what to do next."""

import shlex

from bottleneck.measured import StepTimes, Timing
from bottleneck.records import Analysis, Caveat, Device, TelemetrySummary, Verdict
from bottleneck.report import extras, steps
from bottleneck.report.layout import Notes
from bottleneck.report.names import short_names
from bottleneck.report.points import roofs
from bottleneck.units import format_share, format_si, format_us

PEAK_SOURCES = {
    "measured": "measured on this machine",
    "datasheet": "from the vendor's datasheet",
    "derived": "derived from the device's properties",
    "user": "given by the user",
}

_LONGEST_NAME = 80
_PRICED_ENOUGH = 0.95  # with less, FLOPs and bytes are missing from the totals

Facts = tuple[tuple[str, str], ...]


def headline(verdict: Verdict) -> str:
    """The verdict in at most two words."""
    if verdict.bound in {"mixed", "inconclusive"}:
        return verdict.bound
    return f"{verdict.bound}-bound" + (f", {verdict.regime}" if verdict.regime else "")


def facts(analysis: Analysis) -> Facts:
    """Label and text of each fact about how the numbers came about."""
    rows = (
        ("step", _step(analysis.steps)),
        ("window", steps.window(analysis.steps)),
        ("varies", steps.variation(analysis.steps)),
        ("left out", steps.left_out(analysis.steps)),
        ("kept", steps.windows(analysis.steps)),
        ("profiler", extras.option_costs(analysis.option_costs)),
        ("device", _device(analysis.device)),
        ("peaks", _peaks(analysis)),
        ("reached", _reached(analysis)),
        ("memory", extras.peak_memory(analysis.totals, analysis.device)),
        ("sensors", _sensors(analysis.telemetry)),
        ("host", _host(analysis.telemetry)),
        ("input", _input(analysis)),
    )
    return tuple((label, text) for label, text in rows if text)


def _timing(timing: Timing) -> str:
    spread = f", {format_us(timing.low)} to {format_us(timing.high)}" if timing.n > 1 else ""
    return f"{format_us(timing.median)} (median of {timing.n}{spread})"


def _step(times: StepTimes) -> str:
    if times.unprofiled_us is None:
        known = f"{_timing(times.profiled_us)} while profiled; " if times.profiled_us else ""
        return f"{known}not timed without the profiler"
    unsettled = ", not settled when they were taken" if times.settled is False else ""
    parts = [f"{_timing(times.unprofiled_us)} without the profiler{unsettled}"]
    if times.profiled_us:
        parts.append(f"{_timing(times.profiled_us)} with it")
    if times.perturbation is not None:
        parts.append(f"that is {times.perturbation:.2f} times as long")
    return "; ".join(parts)


def _device(device: Device) -> str:
    count = f"{device.count} x " if device.count > 1 else ""
    return f"{count}{device.name or 'not named by the trace'}"


def _peaks(analysis: Analysis) -> str:
    device = analysis.device
    figures = [f"{roof.key.replace('_', ' ')} {format_si(roof.flops_per_s, 'FLOP/s')}" for roof in roofs(analysis)]
    if device.bandwidth_bytes_per_s is not None:
        figures.append(f"memory {format_si(device.bandwidth_bytes_per_s, 'B/s')}")
    if device.launch_floor_us is not None:
        figures.append(f"launch {format_us(device.launch_floor_us)}")
    if not figures:
        return "not known for this device, so no floors can be computed"
    return f"{', '.join(figures)}; {PEAK_SOURCES.get(device.source or '', 'of unknown origin')}"


def _reached(analysis: Analysis) -> str:
    totals, parts = analysis.totals, []
    if totals.model_flops_utilization is not None:
        parts.append(f"{format_share(totals.model_flops_utilization)} of the {_peak_name(totals.peak)} peak")
    if totals.bandwidth_utilization is not None:
        parts.append(f"{format_share(totals.bandwidth_utilization)} of the memory bandwidth")
    priced = analysis.coverage.priced_share
    least = "at least " if priced is not None and priced < _PRICED_ENOUGH else ""
    return f"{least}{' and '.join(parts)}, over the whole step" if parts else ""


def _peak_name(key: str | None) -> str:
    return "arithmetic" if key is None else key.replace("_", " ")


def _sensors(telemetry: TelemetrySummary | None) -> str:
    if telemetry is None:
        return ""
    clock, power, used = telemetry.sm_clock_mhz, telemetry.power_w, telemetry.utilization
    parts = [
        "" if clock is None else f"{clock:.0f} MHz",
        "" if telemetry.temperature_c is None else f"{telemetry.temperature_c:.0f} C",
        "" if power is None else f"{power:.0f} W",
        _energy(telemetry),
        "" if used is None else f"busy {format_share(used)} by its own counter",
        _activity(telemetry),
        f"throttled: {', '.join(telemetry.throttle)}" if telemetry.throttle else "",
    ]
    return ", ".join(part for part in parts if part)


def _energy(telemetry: TelemetrySummary) -> str:
    energy, error = telemetry.energy_j, telemetry.energy_error_j
    return "" if energy is None or error is None else f"{energy:.3g} J per step (give or take {error:.1g} J)"


def _activity(telemetry: TelemetrySummary) -> str:
    """What the device's own counters say that the trace cannot: use of its parts while kernels ran or not."""
    units = (
        ("SMs", telemetry.sm_activity),
        ("tensor cores", telemetry.tensor_activity),
        ("DRAM", telemetry.dram_activity),
    )
    told = [f"{unit} {format_share(share)}" for unit, share in units if share is not None]
    return f"active: {', '.join(told)}" if told else ""


def _host(telemetry: TelemetrySummary | None) -> str:
    if telemetry is None:
        return ""
    own, all_busy, clock = telemetry.process_processors, telemetry.host_utilization, telemetry.cpu_clock_mhz
    resident = telemetry.process_memory_bytes
    parts = [
        "" if own is None else f"the program kept {own:.2f} processors busy",
        "" if all_busy is None else f"the machine's were {format_share(all_busy)} busy in all",
        "" if clock is None else f"{clock:.0f} MHz",
        "" if resident is None else f"{format_si(resident, 'B')} resident",
    ]
    return ", ".join(part for part in parts if part)


def _input(analysis: Analysis) -> str:
    recording = analysis.recording
    ranks = f"{recording.world_size} ranks" if (recording.world_size or 1) > 1 else ""
    extra = ", ".join(part for part in (recording.framework, recording.created, ranks) if part)
    return f"{recording.path} ({extra})" if extra else recording.path


def coverage(analysis: Analysis) -> Notes:
    """How much of the busy time is understood, and what is not."""
    known = analysis.coverage
    shares = (("tied to an op", known.linked_share), ("priced", known.priced_share))
    parts = [f"{format_share(share)} {word}" for word, share in shares if share is not None]
    lead = (
        f"Of the busy time: {', '.join(parts)}." if parts else "How much of the busy time is understood is not known."
    )
    worst = sorted(known.unknown, key=lambda work: -work.us)
    lines = [f"{format_us(work.us)} {_readable(work.name)}: {work.reason}" for work in worst[:3]]
    more = [f"{len(worst) - 3} more without a price"] if len(worst) > 3 else []
    return Notes("Coverage", ((lead, *lines, *more),))


def _readable(name: str) -> str:
    """The name as it is, unless it is a kernel's with all its template arguments."""
    return name if len(name) <= _LONGEST_NAME else short_names([name], _LONGEST_NAME)[0]


def caveats(analysis: Analysis) -> Notes | None:
    """The limits of this analysis, the one that touches most of the step first."""
    ordered = sorted(analysis.caveats, key=lambda caveat: -(caveat.share or 0.0))
    return Notes("Caveats", tuple((_caveat(caveat),) for caveat in ordered)) if ordered else None


def _caveat(caveat: Caveat) -> str:
    touched = "" if caveat.share is None else f" (touches {format_share(caveat.share)} of the step)"
    return f"{caveat.message[:1].upper()}{caveat.message[1:]}{touched} [{caveat.slug}]"


def next_step(analysis: Analysis) -> str:
    """The command that tells more."""
    return f"details: bottleneck report {shlex.quote(analysis.recording.path)} --format json (or markdown)"
