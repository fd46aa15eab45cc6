"""The sensor log of a recording, ``telemetry.csv``: its samples, writer and reader."""

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bottleneck.errors import TraceError
from bottleneck.system.files import read_file, write_whole

TELEMETRY_SCHEMA = "bottleneck/telemetry/1"
TELEMETRY_FILE = "telemetry.csv"

# The sensor of the machine and the program's processes; every other sensor is a device, named by its UUID.
HOST = "host"

# Columns of the log: meaning. The unit is the end of the name; a sensor leaves empty what it did not read.
COLUMNS: Mapping[str, str] = {
    "sm_clock_mhz": "clock of the multiprocessors",
    "memory_clock_mhz": "clock of the memory",
    "power_w": "power drawn at this instant",
    "average_power_w": "power drawn: averaged over a second on most boards since 2020",
    "energy_j": "energy used, counted since the driver was loaded",
    "temperature_c": "temperature of the chip",
    "utilization": "share of the last 1/6 s to 1 s in which any kernel ran, by the device's own counter",
    "memory_used_bytes": "memory in use: of the device, or of the machine",
    "throttle_bits": "reasons that hold the clocks down now, see THROTTLE",
    "pcie_tx_bytes_per_s": "sent by the device",
    "pcie_rx_bytes_per_s": "received by the device",
    "sm_activity": "share of the multiprocessors that were busy",
    "tensor_activity": "share of the time in which tensor cores worked",
    "dram_activity": "share of the DRAM bandwidth that was used",
    "process_cpu_s": "CPU time of the program and its children, counted since they were first seen",
    "process_wait_s": "time in which threads of the program's first process were ready and had no processor, counted",
    "process_memory_bytes": "resident memory of the program and its children",
    "busy_cpu_s": "time that the processors worked which the program may use, counted since the machine started",
    "total_cpu_s": "time of these processors, counted since the machine started",
    "cpu_clock_mhz": "mean clock of the processors, as the system tells it",
}
_SHARES = frozenset({"utilization", "sm_activity", "tensor_activity", "dram_activity"})

# Bits of nvmlClocksEventReasons (nvml.h), but "idle": a clock that nothing needs is not held down.
THROTTLE: Mapping[int, str] = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clock",
    0x200: "board limit",
    0x400: "reliability",
}

# What NVML and others write where they have no value: all bits of an unsigned number.
NOT_AVAILABLE = frozenset({2**32 - 1, 2**64 - 1, 2.0**64})
_HEADER = f"# {TELEMETRY_SCHEMA}"
_FIXED = ("unix_ns", "elapsed_s", "sensor")
_SENSOR_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
# A log of ours thins itself out long before; a larger one is none of ours.
_LARGEST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Sample:
    """Readings of one sensor at one instant.

    ``unix_ns`` is the wall clock, on which traces lie too; ``elapsed_s`` a clock that never jumps, for intervals.
    """

    unix_ns: int
    elapsed_s: float
    sensor: str
    values: Mapping[str, float]


def sound(values: Mapping[str, float | None]) -> dict[str, float]:
    """Picks the values that can be true.

    They are finite, not negative (but for temperatures), no share above 1 and no sentinel. A share up to 1 % above 1 is
    a rounding of the device's and counts as 1.
    """
    sound_values = {}
    for column, value in values.items():
        if value is None or not math.isfinite(value) or value in NOT_AVAILABLE:
            continue
        if (value < 0 and column != "temperature_c") or (column in _SHARES and value > 1.01):
            continue
        sound_values[column] = min(float(value), 1.0) if column in _SHARES else float(value)
    return sound_values


def write_samples(folder: Path, samples: Iterable[Sample]) -> Path:
    """The file that now holds the samples; a reader never sees it half written."""
    path = folder / TELEMETRY_FILE
    write_whole(path, "".join([f"{_HEADER}\n{','.join((*_FIXED, *COLUMNS))}\n", *map(_line, samples)]))
    return path


def _line(sample: Sample) -> str:
    assert _SENSOR_NAME.fullmatch(sample.sensor), f"{sample.sensor!r} is no name for a sensor"
    values = (format(sample.values[name], ".15g") if name in sample.values else "" for name in COLUMNS)
    return f"{sample.unix_ns},{sample.elapsed_s:.6f},{sample.sensor},{','.join(values)}\n"


def read_samples(folder: Path, spans_ns: Sequence[tuple[float, float]] | None = None) -> list[Sample]:
    """Reads the samples of a recording within the given spans.

    The spans are of the wall clock. Without spans all samples count, and without a log there are none. Lines and values
    that make no sense are left out. Raises TraceError when the file is no log of ours.
    """
    path = folder / TELEMETRY_FILE
    try:
        content = read_file(path, _LARGEST_BYTES)
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise _unreadable(path, exc.strerror or str(exc)) from exc
    with io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="replace") as file:
        if file.readline(len(_HEADER) + 2).strip() != _HEADER:
            raise _unreadable(path, f"its first line is not {_HEADER!r}, which this version reads")
        names = file.readline(4096).strip().split(",")
        if tuple(names[: len(_FIXED)]) != _FIXED:
            raise _unreadable(path, "its columns are not ours")
        return list(_samples(file, names[len(_FIXED) :], spans_ns))


def _unreadable(path: Path, why: str) -> TraceError:
    return TraceError(f"cannot read {path}", why=why, fix="record again with `bottleneck run`")


def _samples(
    lines: Iterable[str], names: Sequence[str], spans_ns: Sequence[tuple[float, float]] | None
) -> Iterator[Sample]:
    for line in lines:
        at, elapsed, sensor, *texts = [*line.rstrip("\n").split(","), "", ""][: len(names) + len(_FIXED)]
        unix_ns, elapsed_s = _number(at), _number(elapsed)
        if unix_ns is None or elapsed_s is None or not _SENSOR_NAME.fullmatch(sensor):
            continue
        if spans_ns is not None and not any(start <= unix_ns <= end for start, end in spans_ns):
            continue
        values = {name: _number(text) for name, text in zip(names, texts, strict=False) if text and name in COLUMNS}
        yield Sample(int(unix_ns), elapsed_s, sensor, sound(values))


def _number(text: str) -> float | None:
    try:
        value = int(text) if text.isdecimal() and len(text) < 20 else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# The system counts CPU time in hundredths of a second: 5 % of this.
SHORTEST_RATE_S = 0.2


def other_processors(samples: Sequence[Sample]) -> float | None:
    """Counts the processors that other programs kept busy.

    It is from the first sample of the host to the last. Null if that is too short.
    """
    grown = _growth(samples, "busy_cpu_s", "process_cpu_s")
    if grown is None or min(grown[0]) < 0:
        return None
    (busy_s, own_s), length_s = grown
    return max(busy_s - own_s, 0.0) / length_s


def waited_share(samples: Sequence[Sample]) -> float | None:
    """Part of their time in which threads were ready and had no processor.

    It is 0-1, from the first sample of the host to the last. Null if that is too short, or nobody counts it.
    """
    grown = _growth(samples, "process_wait_s", "process_cpu_s")
    if grown is None or min(grown[0]) < 0 or not sum(grown[0]) > 0:
        return None
    waited_s, worked_s = grown[0]
    return waited_s / (waited_s + worked_s)


def _growth(samples: Sequence[Sample], *columns: str) -> tuple[list[float], float] | None:
    """Growth of these counters of the host, and the seconds that it took.

    It is from their first sample to the last. Null if that is too short.
    """
    host = [one for one in samples if one.sensor == HOST and all(name in one.values for name in columns)]
    if len(host) < 2 or (length_s := host[-1].elapsed_s - host[0].elapsed_s) < SHORTEST_RATE_S:
        return None
    return [host[-1].values[name] - host[0].values[name] for name in columns], length_s


# Counters that only grow; their rates are what a curve can show.
_GROWING = frozenset({"energy_j", "process_cpu_s", "process_wait_s", "busy_cpu_s", "total_cpu_s", "throttle_bits"})
PROGRAM_PROCESSORS, BUSY_SHARE = "processors of the program", "busy share of all processors"


def readings(samples: Iterable[Sample]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Instant and value of all readings that make a curve, by sensor and column."""
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    last: dict[str, Sample] = {}
    for sample in samples:
        values = {key: value for key, value in sample.values.items() if key not in _GROWING}
        if (before := last.get(sample.sensor)) is not None:
            values |= _rates(before, sample)
        last[sample.sensor] = sample
        for column, value in values.items():
            curves.setdefault((sample.sensor, column), []).append((sample.unix_ns, value))
    return curves


def _rates(before: Sample, now: Sample) -> dict[str, float]:
    """Computes the processors and busy share since the sample before.

    The processors are those that the program kept busy, the share is that of the machine's.
    """
    grown = {key: now.values[key] - before.values[key] for key in now.values.keys() & before.values.keys()}
    elapsed_s, total_s = now.elapsed_s - before.elapsed_s, grown.get("total_cpu_s", 0.0)
    rates = {}
    if grown.get("process_cpu_s", -1.0) >= 0 and elapsed_s > 0:
        rates[PROGRAM_PROCESSORS] = grown["process_cpu_s"] / elapsed_s
    if grown.get("busy_cpu_s", -1.0) >= 0 and total_s > 0:
        rates[BUSY_SHARE] = grown["busy_cpu_s"] / total_s
    return rates
