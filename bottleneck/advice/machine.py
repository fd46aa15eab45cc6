"""Remarks on the machine and on the measurement.

They concern clocks, a shared or unproductive device, and what to trust less. None but that on a shared device predicts
a gain: they say how to read the other findings.
"""

import math

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, requires_gain, work_of
from bottleneck.advice.quantities import claims_of, format_count, format_per_step, record_again
from bottleneck.advice.ranking import Draft, up_to
from bottleneck.schema.analysis import BROKEN_TRACE_SLUGS
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Floats, Integers, grouped, numbered
from bottleneck.units import counted, format_share, format_si, format_us

# Advice_rules 50 to 53.
_FULL_CLOCK = 0.95
_BUSY, _LITTLE = 0.9, 0.1
_DISTORTED = 1.3
_COMPLETE = 0.98
# A clock of all processors says something only while all of them work.
_ALL_BUSY = 0.9
# Below this much modelled work, how little the device gets done is not known.
_LEAST_MODELLED = 0.9

# Reasons for low clocks that somebody chose, and that cooling or power would not change.
_CHOSEN = frozenset({"application clocks", "sync boost", "display clock"})
# Caveats after which the times are not those of the program, or the work is not all there.
_PROFILER_OPTIONS = {
    "shapes": "--no-shapes",
    "stacks": "--no-stacks",
    "memory": "--no-memory",
}


def low_clocks(evidence: Evidence) -> Draft | None:
    """Finds a device clock below that of its peaks (rule 50).

    It may also have been held back for a reason.
    """
    telemetry = evidence.analysis.telemetry
    if telemetry is None:
        return None
    device = evidence.analysis.device
    on_host = device.kind == "cpu"
    clock_mhz = telemetry.cpu_clock_mhz if on_host else telemetry.sm_clock_mhz
    nominal_mhz = max(device.peak_clocks_mhz.values(), default=0.0)
    rests = on_host and (telemetry.host_utilization or 0.0) < _ALL_BUSY
    share = clock_mhz / nominal_mhz if clock_mhz and nominal_mhz > 0 and not rests else None
    held = tuple(reason for reason in telemetry.throttle if reason not in _CHOSEN)
    if (share is None or share >= _FULL_CLOCK) and not held:
        return None
    slowed_us = evidence.account_us("compute") * max(0.0, 1 - share) if share is not None else 0.0
    observed = [f"its clocks were held back: {', '.join(telemetry.throttle)}"] if telemetry.throttle else []
    if share is not None and clock_mhz is not None:
        observed.append(
            f"it ran at {clock_mhz:.0f} MHz, {format_share(share)} of the {nominal_mhz:.0f} MHz at which its peaks hold"
        )
    if telemetry.temperature_c is not None and held:
        observed.append(f"it was {telemetry.temperature_c:.0f} degrees Celsius warm")
    return Draft(
        slug="low-clocks",
        title="The device runs below its clock",
        evidence=tuple(observed),
        advice="Check cooling and power limit, and compare with other runs only at the same clock.",
        code=None if on_host else "# diagnosis: nvidia-smi -q -d CLOCK,PERFORMANCE,POWER",
        gain_reason=f"no change of the program would change it; at full clock at most {format_us(slowed_us)} of "
        f"arithmetic per step would go"
        if slowed_us > 0
        else "no change of the program would change it",
    )


def busy_not_productive(evidence: Evidence) -> Draft | None:
    """Finds a busy device that does little useful work (rule 51).

    It always runs a kernel and may still do next to nothing of what it could. Its counter of utilisation shows only
    that some kernel ran. Where that was not read, the trace shows the same.
    """
    modelled = evidence.analysis.coverage.modelled_share
    if (
        evidence.is_host_only
        or evidence.analysis.device.source is None
        or modelled is None
        or modelled < _LEAST_MODELLED
    ):
        return None
    telemetry = evidence.analysis.telemetry
    counted = None if telemetry is None else telemetry.utilization
    share = counted if counted is not None else evidence.share_of_step(evidence.analysis.totals.busy_us)
    floors = [max(row.compute_us or 0.0, row.memory_us or 0.0) for row in evidence.analysis.kernels]
    needed = evidence.share_of_step(math.fsum(floors))
    if device_held_back(evidence) is not None:
        return None
    if share <= _BUSY or needed >= _LITTLE or evidence.share_of_step(evidence.account_us("communication")) > _BUSY / 2:
        return None
    seen = "by its own counter" if counted is not None else "of the step by the trace"
    return Draft(
        slug="busy-not-productive",
        title="The device is busy, but not productive",
        evidence=(
            f"a kernel runs {format_share(share)} of the time {seen}",
            f"the arithmetic and the bytes of all kernels need {format_share(needed)} of the step at its ceilings",
        ),
        advice="Do not read utilisation as success: see which kernels stay far below their floors.",
        gain_reason="utilisation is no cause: the findings about kernels say what their time is worth",
    )


# Kernels of so many microseconds are long enough to reach their rate. Below this part of any floor, and below this many
# bytes per second where no ceiling is known, no device that works as it should runs nearly all of them.
_LONG_US, _HELD_BACK, _LEAST_BYTES_PER_S, _NEARLY_ALL = 200.0, 0.05, 20e9, 0.8


_DEVICE_STATE = {
    "cuda": "# diagnosis: nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,MEMORY\n"
    "# diagnosis, who else is on it: nvidia-smi pmon -c 1",
    "rocm": "# diagnosis: rocm-smi --showperflevel --showclocks --showpower --showmeminfo vram --showpids",
}


def device_held_back(evidence: Evidence) -> Draft | None:
    """Finds long kernels of all kinds far below usual rates.

    The device is slow then, not the program. No gain is predicted: what it would do at its usual pace is not in the
    trace.
    """
    if evidence.is_host_only or evidence.is_broken:
        return None
    work = work_of(evidence)
    dur_us = evidence.linked.kernels["dur_us"].to_numpy()[work.row]
    rate = work.roof("bytes_low") / np.maximum(dur_us, 1e-9) * 1e6
    explained, is_copying = work.roof("explained"), work.bound("transfer", "communication", "copy")
    is_slow = np.where(
        np.isfinite(explained), explained < _HELD_BACK, (rate < _LEAST_BYTES_PER_S) & work.bound("memory")
    )
    is_long = (dur_us >= _LONG_US) & ~is_copying
    slow = is_long & is_slow
    if not slow.any() or work.us_of(slow) < _NEARLY_ALL * evidence.analysis.totals.busy_us or (is_long & ~slow).any():
        return None
    fastest = float(np.nanmax(rate[slow], initial=0.0))
    peak = evidence.analysis.device.bandwidth_bytes_per_s
    of_peak = f" of {format_si(peak, 'B/s')}" if peak else ", where any such device moves far more than 20 GB/s"
    return Draft(
        slug="device-held-back",
        title="All long kernels run far below what the device gives",
        evidence=(
            f"{counted(int(slow.sum()), 'kernel')} of {format_us(_LONG_US)} and longer take "
            f"{format_share(work.share(slow))} of the step; the fastest moves {format_si(fastest, 'B/s')}{of_peak}",
            *work.describe(slow),
        ),
        advice="Look at the device before the program: its clocks and power state, memory that was moved out to the "
        "host, another process on it.",
        brief="Look at the device first: clocks, power state, memory moved out to the host, other processes",
        code=_DEVICE_STATE.get(evidence.linked.trace.flavour),
        gain_reason="what the device would do at its usual pace is not in the trace",
        comes_first=True,
    )


def profiler_distorts(evidence: Evidence) -> Draft | None:
    """Finds steps that take much longer under the profiler (rule 52)."""
    times = evidence.analysis.steps
    if times.perturbation is None or times.perturbation <= _DISTORTED or times.unprofiled_us is None:
        return None
    costs = evidence.analysis.option_costs
    recorded_costs = [] if costs is None else [cost for cost in costs.costs if cost.option in _PROFILER_OPTIONS]
    costliest = max(
        (cost for cost in recorded_costs if cost.ratio.median > 1.0), key=lambda cost: cost.ratio.median, default=None
    )
    profiled_us = times.perturbation * times.unprofiled_us.median
    return Draft(
        slug="profiler-distorts",
        title="The profiler changes what it measures",
        evidence=(
            f"a step takes {format_us(profiled_us)} under the profiler and {format_us(times.unprofiled_us.median)} "
            f"without it: {times.perturbation:.2f} times as long",
            *(
                (f"most of that comes from recording {costliest.option}: {costliest.ratio.median:.2f} times",)
                if costliest
                else ()
            ),
            "host times are scaled to the step without it, but how they relate to one another is less sure",
        ),
        advice="Trust small host-side shares less, or record again with less detail.",
        code=record_again(evidence, _PROFILER_OPTIONS[costliest.option]) if costliest else None,
        gain_reason="the program does not pay this: only the recording does",
    )


def incomplete_trace(evidence: Evidence) -> Draft | None:
    """Finds a trace that lacks too much to be believed (rule 53).

    So much is missing, or disturbed, that no finding should be believed before it is recorded again.
    """
    broken = [caveat.message for caveat in evidence.analysis.caveats if caveat.slug in BROKEN_TRACE_SLUGS]
    orphans = [
        caveat.message
        for caveat in evidence.analysis.caveats
        if caveat.slug == "orphans" and (caveat.share or 0.0) > 1 - _COMPLETE
    ]
    if not broken and not orphans:
        return None
    return Draft(
        slug="incomplete-trace",
        title="The trace does not hold all that ran, or not as it would run"
        if broken
        else "A part of the device's work is in the trace without its launch",
        evidence=(*broken, *orphans),
        advice="Record again before acting on any finding: a few warmed-up steps, on a machine of their own."
        if broken
        else "Start the recording before the step begins: the trace does not show which ops launched these kernels.",
        gain_reason="none in time; it makes the other findings reliable",
    )


# A device gives each process some milliseconds in turn (the default slice of NVIDIA's driver is 2 ms).
_SLICE_US = (500.0, 20_000.0)
# Runs of one call that agree otherwise: the shorter ones are within so much of their median.
_AGREE, _FEW_RUNS = 0.1, 4
# Interruptions strike whatever runs, at the pace of the other process: so many, of so many different calls, of which
# half follow one another at distances this near to the usual one.
_INTERRUPTIONS, _DIFFERENT, _REGULAR = 6, 3, 0.2
_LEAST_TAKEN = 0.01


@requires_gain
def shared_device(evidence: Evidence) -> Draft | None:
    """Finds kernels delayed at a regular pace on a shared device.

    Kernels of the same call now and then take some milliseconds longer, whichever runs.
    """
    if evidence.is_host_only:
        return None
    work = work_of(evidence)
    beyond, call = _beyond_usual_us(work)
    hit = (beyond >= _SLICE_US[0]) & (beyond <= _SLICE_US[1])
    at_us = np.sort(evidence.linked.kernels["ts_us"].to_numpy()[work.row[hit]])
    if at_us.size < _INTERRUPTIONS or np.unique(call[hit]).size < _DIFFERENT:
        return None
    distance = np.diff(at_us)
    usual_us = float(np.median(distance))
    if np.count_nonzero(abs(distance - usual_us) <= _REGULAR * usual_us) < distance.size / 2:
        return None
    less = np.where(hit, beyond * work.scale / evidence.steps, 0.0)
    if evidence.share_of_step(float(less.sum())) < _LEAST_TAKEN:
        return None
    return Draft(
        slug="shared-device",
        title="Another process takes turns on the device",
        evidence=(
            f"{counted(format_count(at_us.size / evidence.steps), 'kernel')} per step, of "
            f"{counted(np.unique(call[hit]).size, 'different call')}, take "
            f"{format_us(float(np.median(beyond[hit])))} longer than such calls usually do",
            f"that happens every {format_us(usual_us)}, whichever kernel runs: "
            f"{format_per_step(evidence, float(less.sum()))}",
            *work.describe(hit),
        ),
        advice="Give this process a device of its own, or let both run at the same time (MPS, MIG).",
        gain_us=work.gain(less / 2, less),
        claims=work.claims(less),
        code="nvidia-cuda-mps-control -d  # lets both run at once\n# diagnosis, the processes: nvidia-smi pmon -c 1",
        confidence="low",
    )


# Of the step in calls that are held up: less is no finding.
_LEAST_STALLED = 0.05


def host_stalls(evidence: Evidence) -> Draft | None:
    """Finds calls of milliseconds among many of microseconds, of different ops.

    The process is kept from its processor. Calls of the device's runtime inside them do not count, nor the first call
    of each op. Gain: what the device waits for them, at most, from half of it; on a CPU their time.
    """
    stalls, us = evidence.held_up, evidence.account_us("overhead.stall")
    if not len(stalls) or evidence.share_of_step(us) < _LEAST_STALLED:
        return None
    names = stalls["name"].astype(object).unique()
    count = format_count(len(stalls) / evidence.steps)
    return Draft(
        slug="host-stalls",
        title="The process does not get its processor now and then",
        evidence=(
            f"{counted(count, 'call')} per step of {', '.join(sorted(names)[:4])} take "
            f"{format_us(float(stalls['dur_us'].median()))}, where such calls take "
            f"{format_us(float(stalls['usual_us'].median()))}: {format_per_step(evidence, us)}",
            "nothing that was recorded runs inside them, and they strike different ops alike",
        ),
        advice="Find what keeps the process from running: other busy processes, a limit of its container on "
        "processors, memory that is swapped out.",
        brief="Find what keeps the process from running: other processes, a limit on processors, swapping",
        code="# diagnosis: cat /sys/fs/cgroup/cpu.stat; throttled_usec grows where the limit is too low\n"
        "# vmstat 1: si and so are swapping; pidstat -w 1: nvcswch/s are involuntary switches",
        gain_us=up_to(us),
        claims=claims_of(evidence, "overhead.stall"),
    )


def _beyond_usual_us(work: KernelWork) -> tuple[Floats, Integers]:
    """Gives each kernel's time beyond the usual run of its call.

    It is in microseconds. The second array has the number of its call. A call is a kernel with its grid and the sizes
    of its op. Nothing is beyond where sizes are unknown, the runs are few or differ anyway, or another kernel runs
    beside it.
    """
    kernels = work.evidence.linked.kernels
    dur_us, start_us = kernels["dur_us"].to_numpy()[work.row], kernels["ts_us"].to_numpy()[work.row]
    names = kernels["name"].cat.codes.to_numpy()[work.row]
    blocks = kernels["blocks"].to_numpy(dtype=np.int64, na_value=-1)[work.row]
    call, _ = numbered(names.astype(np.int64), blocks, work.signature)
    usual, spread = np.zeros((2, work.row.size))
    runs = np.bincount(call)[call]
    # Calls with as many runs are the rows of one matrix.
    for count, several in grouped(runs):
        if count >= _FEW_RUNS:
            mine = several[np.argsort(call[several], kind="stable")].reshape(-1, count)
            low, middle = np.percentile(dur_us[mine], (10, 50), axis=1)[..., None]
            usual[mine], spread[mine] = middle, middle - low
    order = np.argsort(start_us, kind="stable")
    end_us = np.maximum.accumulate((start_us + dur_us)[order])
    alone = np.ones(order.size, dtype=bool)
    alone[order[1:]] = start_us[order[1:]] >= end_us[:-1]
    alone[order[:-1]] &= start_us[order[1:]] >= end_us[:-1]
    steady = alone & (runs >= _FEW_RUNS) & (spread <= _AGREE * usual) & (work.signature >= 0)
    return np.where(steady, dur_us - usual, 0.0), call


RULES = (
    incomplete_trace,
    profiler_distorts,
    device_held_back,
    host_stalls,
    shared_device,
    low_clocks,
    busy_not_productive,
)
