"""Says what the machine did to a watched run.

Clocks that fell, and processors that others had.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bottleneck.schema.telemetry import HOST, THROTTLE, Sample, other_processors
from bottleneck.units import counted, format_share
from bottleneck.watched.causes import Drift
from bottleneck.watched.read_log import WatchedRank

_Flags = npt.NDArray[np.bool_]
# A clock fell that stays below such a part of the usual one, for so many samples, while steps took so much longer.
_FELL, _LEAST_SAMPLES, _LEAST_SLOWER = 0.93, 10, 1.05
# A device that rests lowers its clock by itself.
_IN_USE = 0.05
_USUAL_CLOCK = 75
# A reason was there that so much of the samples have.
_OFTEN = 0.2
# A machine is busy that has so little to spare while others keep so many processors busy.
_FULL, _LEAST_OTHERS = 0.95, 0.5
# Counters of the system are read once a second: shorter stretches tell nothing.
_SHORTEST_S = 2.0


def find_clock_falls(rank: WatchedRank, samples: Sequence[Sample]) -> tuple[Drift, ...]:
    """Gives stretches in which a device's clock was low and steps took longer."""
    falls = []
    for sensor in sorted({sample.sensor for sample in samples} - {HOST}):
        readings = [sample for sample in samples if sample.sensor == sensor and _is_in_use(sample)]
        fall = _clock_fall(rank, readings)
        if fall is not None:
            falls.append(fall)
    return tuple(falls)


def _is_in_use(sample: Sample) -> bool:
    return "sm_clock_mhz" in sample.values and sample.values.get("utilization", 1.0) >= _IN_USE


def _clock_fall(rank: WatchedRank, readings: Sequence[Sample]) -> Drift | None:
    clocks_mhz = np.array([sample.values["sm_clock_mhz"] for sample in readings])
    if clocks_mhz.size < 2 * _LEAST_SAMPLES:
        return None
    usual_mhz = float(np.percentile(clocks_mhz, _USUAL_CLOCK))
    start, end = _longest_run(clocks_mhz < _FELL * usual_mhz)
    if end - start < _LEAST_SAMPLES:
        return None
    low, ends_s = readings[start:end], rank.records["end_s"]
    inside = (ends_s >= _seconds(rank, low[0])) & (ends_s <= _seconds(rank, low[-1]))
    if not inside.any() or inside.all():
        return None
    slower = float(np.median(rank.step_us[inside]) / np.median(rank.step_us[~inside]))
    if slower < _LEAST_SLOWER:
        return None
    first, last = (int(rank.records["first"][inside][place]) for place in (0, -1))
    is_to_the_end = end == clocks_mhz.size
    when = f"from step {first:,} on" if is_to_the_end else f"in steps {first:,} to {last:,}"
    low_mhz = float(np.median(clocks_mhz[start:end]))
    bits = _throttle_bits(low)
    why = ", ".join(name for bit, name in THROTTLE.items() if bits & bit)
    what = (
        f"the device's clock fell from {usual_mhz / 1e3:.2f} to {low_mhz / 1e3:.2f} GHz {when}"
        f"{f' ({why})' if why else ''}: steps took {format_share(slower - 1)} longer"
    )
    return Drift("clock", what, next(advice for mask, advice in _ADVICE.items() if not mask or bits & mask))


# By the bits of THROTTLE; the last stands for all others.
_ADVICE = {
    0x4 | 0x80: "raise the power limit (nvidia-smi -pl) if the machine allows it, or run on fewer devices at once",
    0x8 | 0x20 | 0x40: "see to its cooling: it is too hot for its full clock",
    0: "see what holds its clock: nvidia-smi -q -d PERFORMANCE",
}


def _longest_run(flags: _Flags) -> tuple[int, int]:
    """The longest stretch of true values: where it starts, and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    if not starts.size:
        return 0, 0
    longest = int((ends - starts).argmax())
    return int(starts[longest]), int(ends[longest])


def _seconds(rank: WatchedRank, sample: Sample) -> float:
    """When a sample was taken, in seconds since the rank's first step."""
    return (sample.unix_ns - rank.header.clock_ns) / 1e9


def _throttle_bits(samples: Sequence[Sample]) -> int:
    """Joins the reasons that often held the clock."""
    bits = [int(sample.values["throttle_bits"]) for sample in samples if "throttle_bits" in sample.values]
    return sum(bit for bit in THROTTLE if bits and sum(bool(reasons & bit) for reasons in bits) >= _OFTEN * len(bits))


def describe_busy_machine(rank: WatchedRank, samples: Sequence[Sample]) -> str | None:
    """Says that other programs used the processors; null where they left some."""
    columns = ("busy_cpu_s", "total_cpu_s", "process_cpu_s")
    end_s = float(rank.records["end_s"][-1])
    host = [
        sample
        for sample in samples
        if sample.sensor == HOST and 0.0 <= _seconds(rank, sample) <= end_s and not set(columns) - set(sample.values)
    ]
    if len(host) < 2 or (length_s := host[-1].elapsed_s - host[0].elapsed_s) < _SHORTEST_S:
        return None
    busy, total, own = ((host[-1].values[name] - host[0].values[name]) / length_s for name in columns)
    others = busy - own
    if total <= 0 or own < 0 or busy < _FULL * total or others < _LEAST_OTHERS:
        return None
    return (
        f"other programs kept {others:.1f} of {counted(round(total), 'processor')} busy while the steps ran, and the "
        f"program got {own:.2f}: step times may be too long"
    )


def others_meanwhile(rank: WatchedRank, samples: Sequence[Sample], start_s: float, end_s: float) -> float | None:
    """Counts the processors that other programs kept busy in a stretch of the run.

    The stretch is in seconds since the rank's first step. Null where it is too short, or nobody read the counters.
    """
    if end_s - start_s < _SHORTEST_S:
        return None
    margin_s = 1.0
    return other_processors(
        [sample for sample in samples if start_s - margin_s <= _seconds(rank, sample) <= end_s + margin_s]
    )
