"""Measured ceilings of a device, the conditions they were measured under, and their file in the user's cache."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from bottleneck.calibrate.probes import Effort, Measured, Outcome, Step, agree, descending
from bottleneck.devices.peaks import device_from_json, device_to_json, ridges
from bottleneck.harness.machine import allowance, busy_processors, cpu_facts, torch_version
from bottleneck.harness.nvml import find_devices, match_sensors
from bottleneck.schema.analysis import Caveat, Device

# A sensor that moves by less is no sensor: virtual machines tell one figure for all times.
_MOVES = 0.005


@dataclass(frozen=True)
class ClockStamp:
    """The clock in MHz before, during (median) and after the measurement; null where it cannot be read.

    ``is_sensed`` tells whether the figure ever moved: many virtual machines show the same one for all times.
    ``memory_mhz`` is the memory's clock, where the device tells it.
    """

    before_mhz: float | None = None
    during_mhz: float | None = None
    after_mhz: float | None = None
    is_sensed: bool = False
    memory_mhz: float | None = None


def stamp(before: float | None, seen: tuple[float, ...], after: float | None, memory: float | None) -> ClockStamp:
    """The stamp from what was seen."""
    every = [value for value in (before, *seen, after) if value]
    ordered = sorted(seen)
    return ClockStamp(
        before_mhz=before,
        during_mhz=ordered[len(ordered) // 2] if ordered else None,
        after_mhz=after,
        is_sensed=bool(every) and max(every) > min(every) * (1 + _MOVES),
        memory_mhz=memory,
    )


def cpu_clock_mhz() -> float | None:
    """The mean clock of the processors as the system tells it; null where it does not."""
    psutil = _psutil()
    try:
        frequency = None if psutil is None else psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError, RuntimeError):
        return None
    return None if frequency is None else frequency.current or None


class Company:
    """How many processors others keep busy from now on: what the machine did, less what this process did.

    Time that the hypervisor gave to others counts, for it is lost alike.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = self._now()

    def busy_processors(self) -> float:
        """The mean so far; without psutil the load of the last minute, which counts our own work too."""
        now = self._now()
        if now is None or self._start is None:
            return busy_processors()
        seconds, machine, own = (later - earlier for later, earlier in zip(now, self._start, strict=True))
        return max(0.0, machine - own) / seconds if seconds > 0 else 0.0

    def _now(self) -> tuple[float, float, float] | None:
        psutil = _psutil()
        if psutil is None:
            return None
        times = psutil.cpu_times()._asdict()
        idle = sum(times.get(name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        return self._clock(), sum(times.values()) - idle, sum(os.times()[:4])


class Sensors:
    """The clocks of one NVIDIA device through NVML; everything is null where it cannot be asked."""

    def __init__(self, facts: Mapping[str, object]) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self.driver = ""
        with suppress(ImportError):
            import pynvml

            with suppress(pynvml.NVMLError, AttributeError, UnicodeDecodeError):
                pynvml.nvmlInit()
                self._nvml = pynvml
                with suppress(pynvml.NVMLError):
                    self.driver = str(pynvml.nvmlSystemGetDriverVersion())
                devices = {device.sensor: device for device in find_devices(pynvml)[0]}
                names = match_sensors([facts], {}, list(devices))
                self._handle = next((devices[name].card for name in names.values()), None)

    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors now."""
        return None if self._nvml is None else self._clock("NVML_CLOCK_SM")

    def memory_mhz(self) -> float | None:
        """The clock of the memory now."""
        return None if self._nvml is None else self._clock("NVML_CLOCK_MEM")

    def used_share(self) -> float | None:
        """The share of the last second in which any kernel ran."""
        if self._handle is None:
            return None
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100
        return None

    def _clock(self, domain: str) -> float | None:
        if self._handle is None:
            return None
        with suppress(self._nvml.NVMLError):
            return float(self._nvml.nvmlDeviceGetClockInfo(self._handle, getattr(self._nvml, domain)))
        return None

    def close(self) -> None:
        """Lets go of the library."""
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()


def driver_version() -> str:
    """The version of the NVIDIA driver; empty where there is none to ask."""
    sensors = Sensors({})
    sensors.close()
    return sensors.driver


def _psutil() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil


_FORMAT = "bottleneck/calibration/4"
_MOST_NAMED = 3

Group = Literal["matrix", "vector", "memory", "link", "time"]
Unit = Literal["FLOP/s", "B/s", "us"]
Tell = Callable[[Step], None]


def silent(step: Step) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Ceiling:
    """One measured ceiling: ``value`` in ``unit``, and what to think of it.

    ``how`` is the way that reached it. ``spread`` is by how much the second best round fell behind, ``stable`` whether
    that is within 3 %. ``clock_mhz`` is the median clock of the device meanwhile, ``working_set_bytes`` what a stream
    went over. ``nominal`` is the figure of the data sheet, null where none is known.
    """

    name: str
    group: Group
    value: float
    unit: Unit
    how: str
    spread: float | None
    stable: bool
    clock_mhz: float | None = None
    working_set_bytes: float | None = None
    nominal: float | None = None

    @property
    def share(self) -> float | None:
        """The measured part of the data sheet's figure."""
        return self.value / self.nominal if self.nominal else None

    def is_beaten_by(self, other: "Ceiling") -> bool:
        """Whether another measurement of the same ceiling came out faster."""
        return other.value < self.value if self.unit == "us" else other.value > self.value


@dataclass(frozen=True)
class Calibration:
    """Measured ceilings, what they hold for, and what is doubtful about them.

    ``is_default`` tells whether ``threads`` is what torch chooses here by itself under ``allowance``; a GPU has none
    of them. ``dispatch_us`` is what calling a tiny op costs the host, for people; the device has no place for it.
    ``missing`` says why a ceiling could not be measured.
    """

    device: Device
    identity: str
    torch: str
    threads: int
    is_default: bool
    allowance: str
    created: str
    dispatch_us: float | None
    caveats: tuple[Caveat, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    clock: ClockStamp = field(default_factory=ClockStamp)
    driver: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


def calibrate_cpu(
    threads: int | None = None, tell: Tell = silent, effort: Effort | None = None, *, fresh: bool = False
) -> Calibration:
    """The ceilings of this CPU at a number of threads (null: torch's choice), measured now and kept for later.

    Takes half a minute on two cores. Random data, since zeros need less power. Results that do not settle within
    3 %, or that other programs disturbed, are kept with a caveat, and the next calibration can only improve on them,
    unless it is ``fresh``.
    """
    from bottleneck.calibrate.cpu import measure_cpu

    now = measure_cpu(threads, effort or Effort(), tell)
    return keep(None if fresh else read_calibration(now.threads), now)


def keep(before: Calibration | None, now: Calibration) -> Calibration:
    """The calibration that is kept from now on: the new one, or the better of both where either was disturbed.

    Where the user's cache cannot be written it has a caveat that says so.
    """
    kept = now if before is None or not (before.caveats or now.caveats) else best_of_both(before, now)
    try:
        write_calibration(kept)
    except OSError as exc:
        message = f"the ceilings could not be kept in {cache_folder()} and are forgotten again: {exc.strerror or exc}"
        return replace(kept, caveats=(*kept.caveats, Caveat("calibration-not-kept", message)))
    return kept


def best_of_both(before: Calibration, now: Calibration) -> Calibration:
    """The faster of two calibrations, ceiling by ceiling. Two that agree have settled, whatever either said alone."""
    earlier = {ceiling.name: ceiling for ceiling in before.ceilings}
    return replace(
        now,
        device=better(before.device, now.device),
        ceilings=tuple(_faster(earlier.get(ceiling.name), ceiling) for ceiling in now.ceilings),
        dispatch_us=min((each.dispatch_us for each in (before, now) if each.dispatch_us is not None), default=None),
        caveats=now.caveats if before.caveats else (),
    )


def _faster(before: Ceiling | None, now: Ceiling) -> Ceiling:
    if before is None:
        return now
    first, second = (now, before) if before.is_beaten_by(now) else (before, now)
    gap = max(first.value, second.value) / min(first.value, second.value) - 1
    return replace(
        first,
        spread=gap if first.spread is None else min(gap, first.spread),
        stable=first.stable or agree([1.0, 1.0 + gap], Effort().tolerance),
    )


def better(before: Device, now: Device) -> Device:
    """The faster of two measurements of the same device, ceiling by ceiling: disturbance only ever slows it down."""
    peaks = {name: max(rate, before.peaks_flops_per_s.get(name, 0.0)) for name, rate in now.peaks_flops_per_s.items()}
    own = {name for name, rate in peaks.items() if rate == now.peaks_flops_per_s[name]}
    clocks = {name: (now if name in own else before).peak_clocks_mhz.get(name) for name in peaks}
    earlier = dict(before.bandwidth_by_bytes)
    streams = descending([(size, max(rate, earlier.get(size, 0.0))) for size, rate in now.bandwidth_by_bytes])
    floors = [floor for floor in (before.launch_floor_us, now.launch_floor_us) if floor is not None]
    bandwidth = max(before.bandwidth_bytes_per_s or 0.0, now.bandwidth_bytes_per_s or 0.0) or None
    return replace(
        now,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=streams[-1][1] if streams else bandwidth,
        bandwidth_by_bytes=streams,
        ridge_flops_per_byte=ridges(peaks, streams[-1][1] if streams else bandwidth),
        launch_floor_us=min(floors, default=None),
        link_bytes_per_s=max(before.link_bytes_per_s or 0.0, now.link_bytes_per_s or 0.0) or None,
        peak_clocks_mhz={name: clock for name, clock in clocks.items() if clock is not None},
    )


def doubts(ceilings: Sequence[Ceiling], device: str, company: str, options: str) -> tuple[Caveat, ...]:
    """What disturbed a measurement: the company that it was in, empty for none, or ceilings that did not settle.

    ``options`` are those with which the command measures this device again.
    """
    signs = [company] if company else []
    restless = [ceiling.name for ceiling in ceilings if not ceiling.stable]
    named = ", ".join(restless[:_MOST_NAMED]) + (" …" if len(restless) > _MOST_NAMED else "")
    signs += [f"{len(restless)} of {len(ceilings)} did not settle within 3 % ({named})"] if restless else []
    if not signs:
        return ()
    again = f"measure them again on a quiet machine: bottleneck calibrate {options}"
    message = f"the ceilings of {device} may be too low: {'; '.join(signs)}; {again}"
    return (Caveat("noisy-calibration", message),)


def load_calibration(threads: int | None = None) -> Device | None:
    """The kept ceilings of this CPU, torch version and number of threads (null: torch's choice); null if none fit.

    Does not import torch.
    """
    known = read_calibration(threads)
    return None if known is None else known.device


def read_calibration(threads: int | None = None) -> Calibration | None:
    """The whole calibration behind ``load_calibration``; a file that cannot be read counts as absent."""
    identity, limits = cpu_facts().identity, allowance()
    for known in kept_calibrations("cpu"):
        if known.identity != identity:
            continue
        if known.threads == threads or (threads is None and known.is_default and known.allowance == limits):
            return known
    return None


def kept_calibrations(kind: str) -> list[Calibration]:
    """Those of a kind of device that were made with this version of torch."""
    version = torch_version()
    found = [_read(path) for path in sorted(cache_folder().glob(f"{kind}-*.json"))]
    return [known for known in found if known is not None and known.torch == version]


def calibration_file(calibration: Calibration) -> Path:
    """Where a calibration is kept: one file for each device, driver, torch and number of threads."""
    key = "\n".join((calibration.identity, calibration.torch, str(calibration.threads), calibration.driver))
    return cache_folder() / f"{calibration.device.kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def write_calibration(calibration: Calibration) -> Path:
    """The file in the user's cache that now holds the calibration; a reader never sees it half written."""
    path = calibration_file(calibration)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(to_plain(calibration), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def to_plain(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain dicts, lists and numbers."""
    return {"format": _FORMAT} | asdict(calibration) | {"device": device_to_json(calibration.device)}


def _read(path: Path) -> Calibration | None:
    import msgspec

    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if data.pop("format") != _FORMAT or data.keys() != {each.name for each in fields(Calibration)}:
            return None
        device = device_from_json(data["device"])
        return replace(msgspec.convert(data, Calibration), device=device)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.MsgspecError):
        return None


def cache_folder() -> Path:
    """The folder of ours in the user's cache; a temporary one for a user without a home, as in some containers."""
    base, home = os.environ.get("XDG_CACHE_HOME"), Path("~/.cache")
    if base:
        return Path(base) / "bottleneck"
    try:
        return home.expanduser() / "bottleneck"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"bottleneck-{os.getuid()}"


def ceiling_of(outcome: Outcome, name: str, group: Group, unit: Unit) -> Ceiling | None:
    """A ceiling of a measurement, null where it was not measured; microseconds are those of one call."""
    found: Measured | None = outcome.measured.get(name)
    if found is None:
        return None
    value = 1e6 / found.rate if unit == "us" else found.rate
    return Ceiling(name, group, value, unit, found.how, found.spread, found.stable, found.clock_mhz)
