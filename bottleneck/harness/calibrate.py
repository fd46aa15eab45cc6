"""The ceilings of this CPU, measured once and kept: what a CPU recording is judged against."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bottleneck.devices.peaks import device_from_json, device_to_json, ridges
from bottleneck.harness.cpu import CpuFacts, allowance, busy_processors, cpu_facts, torch_version
from bottleneck.harness.probes import Effort, Readings, descending, measure
from bottleneck.records import Caveat, Device

_FORMAT = "bottleneck/calibration/3"
_LARGEST_STREAM_BYTES = 384 * 2**20
_MEMORY_SHARE = 16  # of physical memory at most one part in so many
_QUIET_LOAD = 0.5  # processors kept busy by others, on average over the last minute


@dataclass(frozen=True)
class Calibration:
    """Measured ceilings, what they hold for, and what is doubtful about them.

    ``is_default`` tells whether ``threads`` is what torch chooses here by itself under ``allowance``. The plain
    dispatch cost is kept for people; the device has no place for it.
    """

    device: Device
    identity: str
    torch: str
    threads: int
    is_default: bool
    allowance: str
    created: str
    dispatch_us: float
    caveats: tuple[Caveat, ...] = ()


def calibrate_cpu(threads: int | None = None) -> Device:
    """The ceilings of this CPU at a number of threads (null: torch's choice), measured now and kept for later.

    Takes up to ten seconds on two cores. Random data, since zeros need less power. Results that do not settle within
    3 %, or that other programs disturbed, are kept with a caveat, and the next calibration can only improve on them.
    """
    calibration = measure_cpu(threads, Effort())
    before = read_calibration(calibration.threads)
    if before is not None and before.caveats:
        calibration = replace(calibration, device=better(before.device, calibration.device))
    write_calibration(calibration)
    return calibration.device


def load_calibration(threads: int | None = None) -> Device | None:
    """The kept ceilings of this CPU, torch version and number of threads (null: torch's choice); null if none fit.

    Does not import torch.
    """
    known = read_calibration(threads)
    return None if known is None else known.device


def read_calibration(threads: int | None = None) -> Calibration | None:
    """The whole calibration behind ``load_calibration``; a file that cannot be read counts as absent."""
    identity, version, limits = cpu_facts().identity, torch_version(), allowance()
    for path in sorted(_folder().glob("cpu-*.json")):
        known = _read(path)
        if known is None or (known.identity, known.torch) != (identity, version):
            continue
        if known.threads == threads or (threads is None and known.is_default and known.allowance == limits):
            return known
    return None


def measure_cpu(threads: int | None, effort: Effort) -> Calibration:
    """A calibration made now; torch's own number of threads is put back afterwards."""
    import torch

    load = busy_processors()
    facts, usual = cpu_facts(), torch.get_num_threads()
    chosen = threads or usual
    torch.set_num_threads(chosen)
    try:
        readings = measure(torch, working_sets(facts, chosen), facts.l1_bytes, effort)
    finally:
        torch.set_num_threads(usual)
    return Calibration(
        device=as_device(facts, readings),
        identity=facts.identity,
        torch=torch_version(),
        threads=chosen,
        is_default=chosen == usual,
        allowance=allowance(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dispatch_us=readings.tiny_us,
        caveats=_caveats(readings, load),
    )


def working_sets(facts: CpuFacts, threads: int) -> dict[str, int]:
    """Bytes to stream over, by the memory that should hold them: half of the caches, twice the last, and far beyond.

    Each thread has its own second-level cache.
    """
    last = facts.last_level_bytes
    room = (facts.memory_bytes or 2**33) // _MEMORY_SHARE
    return {
        "L2": min(facts.l2_bytes * threads, last) // 2,
        "LLC": last // 2,
        "2 x LLC": min(2 * last, room),
        "DRAM": min(max(8 * last, 2**27), _LARGEST_STREAM_BYTES, room),
    }


def as_device(facts: CpuFacts, readings: Readings) -> Device:
    """The readings as a device.

    Pointwise work is held against multiplications outside of products: these fuse a multiplication with an addition,
    which neither torch's ops nor its compiler do, and so reach up to twice as much. Where there is no compiler the rate
    of products stands for both, an upper bound. The launch floor is a tiny op's time as the profiler shows it, which is
    what an op's self time in a trace is compared with.
    """
    products = {f"{name}_tensor": rate for name, rate in readings.flops_per_s.items()}
    plain = {name: rate for name, rate in readings.flops_per_s.items() if name in {"fp32", "fp64"}}
    vectors = {f"{name}_vector": rate for name, rate in (plain | dict(readings.vector_flops_per_s)).items()}
    bandwidth = readings.bandwidth_by_bytes[-1][1]
    return Device(
        name=facts.model,
        vendor=facts.vendor,
        kind="cpu",
        count=1,
        peaks_flops_per_s=products | vectors,
        bandwidth_bytes_per_s=bandwidth,
        launch_floor_us=readings.profiled_us,
        source="measured",
        ridge_flops_per_byte=ridges(products | vectors, bandwidth),
        memory_bytes=facts.memory_bytes,
        cache_bytes=float(facts.last_level_bytes),
        bandwidth_by_bytes=readings.bandwidth_by_bytes,
        fresh_bytes_per_s=readings.fresh_bytes_per_s,
    )


def better(before: Device, now: Device) -> Device:
    """The faster of two measurements of the same CPU, ceiling by ceiling: disturbance only ever slows it down."""
    peaks = {name: max(rate, before.peaks_flops_per_s.get(name, 0.0)) for name, rate in now.peaks_flops_per_s.items()}
    earlier = dict(before.bandwidth_by_bytes)
    streams = descending([(size, max(rate, earlier.get(size, 0.0))) for size, rate in now.bandwidth_by_bytes])
    floors = [floor for floor in (before.launch_floor_us, now.launch_floor_us) if floor is not None]
    bandwidth = streams[-1][1]
    return replace(
        now,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        bandwidth_by_bytes=streams,
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        launch_floor_us=min(floors, default=None),
    )


def _caveats(readings: Readings, busy: float) -> tuple[Caveat, ...]:
    signs = [f"{label} did not settle within 3 %" for label in readings.unstable]
    if busy > _QUIET_LOAD:
        signs.insert(0, f"other programs kept {busy:.1f} processors busy")
    if not signs:
        return ()
    message = f"the ceilings of this CPU may be too low: {', '.join(signs)}; a later run measures them again"
    return (Caveat("noisy-calibration", message),)


def write_calibration(calibration: Calibration) -> Path:
    """The file in the user's cache that now holds the calibration; a reader never sees it half written."""
    key = f"{calibration.identity}\n{calibration.torch}\n{calibration.threads}"
    path = _folder() / f"cpu-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    data = asdict(calibration) | {"device": device_to_json(calibration.device), "format": _FORMAT}
    partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def _read(path: Path) -> Calibration | None:
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format") != _FORMAT:
            return None
        rest = {name: value for name, value in data.items() if name not in {"format", "device", "caveats"}}
        caveats = tuple(Caveat(**caveat) for caveat in data["caveats"])
        return Calibration(device=device_from_json(data["device"]), caveats=caveats, **rest)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "bottleneck"
