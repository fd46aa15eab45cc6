"""Measured ceilings of a device.

Also the merging of two measurements, caveats about them, and their table for people.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from bottleneck.calibrate.probes import ClockStamp, ProbeEffort, ProbeResults, agree, descending
from bottleneck.devices.catalogue import ridges
from bottleneck.harness.machine import torch_version
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.device import Device
from bottleneck.units import counted, format_share, format_si, format_us

_MOST_NAMED = 3

Group = Literal["matrix", "vector", "memory", "link", "time"]
Unit = Literal["FLOP/s", "B/s", "us"]


@dataclass(frozen=True)
class Ceiling:
    """One measured ceiling: ``value`` in ``unit``, with its reliability.

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


@dataclass(frozen=True)
class Calibration:
    """Measured ceilings, what they hold for, and what is doubtful about them.

    ``is_default``: ``threads`` is the number that torch chooses here by itself under ``allowance``; a GPU has none of
    them. ``dispatch_us`` is what calling a tiny op costs the host, for people; the device has no place for it.
    ``missing`` holds the reason for each ceiling that could not be measured.
    """

    device: Device
    identity: str
    torch: str = field(default_factory=torch_version)
    threads: int = 0
    is_default: bool = True
    allowance: str = ""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    dispatch_us: float | None = None
    caveats: tuple[Caveat, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    clock: ClockStamp = field(default_factory=ClockStamp)
    driver: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)


def best_of_both(before: Calibration, now: Calibration) -> Calibration:
    """Gives the faster of two calibrations, ceiling by ceiling.

    Two that agree have settled, whatever either said alone.
    """
    earlier = {ceiling.name: ceiling for ceiling in before.ceilings}
    return replace(
        now,
        device=better(before.device, now.device),
        ceilings=tuple(_faster(earlier.get(ceiling.name), ceiling) for ceiling in now.ceilings),
        dispatch_us=min(
            (calibration.dispatch_us for calibration in (before, now) if calibration.dispatch_us is not None),
            default=None,
        ),
        caveats=now.caveats if before.caveats else (),
    )


def _faster(before: Ceiling | None, now: Ceiling) -> Ceiling:
    if before is None:
        return now
    is_beaten = now.value < before.value if before.unit == "us" else now.value > before.value
    first, second = (now, before) if is_beaten else (before, now)
    gap = max(first.value, second.value) / min(first.value, second.value) - 1
    return replace(
        first,
        spread=gap if first.spread is None else min(gap, first.spread),
        stable=first.stable or agree([1.0, 1.0 + gap], ProbeEffort().tolerance),
    )


def better(before: Device, now: Device) -> Device:
    """Gives the faster of two measurements of a device, ceiling by ceiling.

    Disturbance only ever slows it down.
    """
    peaks = {name: max(rate, before.peaks_flops_per_s.get(name, 0.0)) for name, rate in now.peaks_flops_per_s.items()}
    own = {name for name, rate in peaks.items() if rate == now.peaks_flops_per_s[name]}
    clocks = {name: (now if name in own else before).peak_clocks_mhz.get(name) for name in peaks}
    earlier = dict(before.bandwidth_by_bytes)
    streams = descending([(size, max(rate, earlier.get(size, 0.0))) for size, rate in now.bandwidth_by_bytes])
    bandwidth = max(before.bandwidth_bytes_per_s or 0.0, now.bandwidth_bytes_per_s or 0.0) or None
    return replace(
        now,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=streams[-1][1] if streams else bandwidth,
        bandwidth_by_bytes=streams,
        ridge_flops_per_byte=ridges(peaks, streams[-1][1] if streams else bandwidth),
        launch_floor_us=_smaller(before.launch_floor_us, now.launch_floor_us),
        link_bytes_per_s=max(before.link_bytes_per_s or 0.0, now.link_bytes_per_s or 0.0) or None,
        peak_clocks_mhz={name: clock for name, clock in clocks.items() if clock is not None},
        compiled_call_us=_smaller(before.compiled_call_us, now.compiled_call_us),
        compiled_call_backward_us=_smaller(before.compiled_call_backward_us, now.compiled_call_backward_us),
    )


def _smaller(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


def noise_caveats(
    ceilings: Sequence[Ceiling], device: str, load: str, options: str, *, is_short: bool = False
) -> tuple[Caveat, ...]:
    """Gives caveats on load by other programs, unsettled ceilings and a short measurement.

    ``load`` is empty for none. ``options`` are those with which the command measures this device again. What did not
    settle in a short measurement is not named: nothing settles in two rounds of it but by luck.
    """
    if is_short:
        beside = f", made while {load}" if load else ""
        message = f"the ceilings of {device} come from a short measurement{beside}; the long one: bottleneck calibrate"
        text = f"{message} {options}"
        return (Caveat("noisy-calibration", text) if load else Caveat("short-calibration", text),)
    signs = [load] if load else []
    restless = [ceiling.name for ceiling in ceilings if not ceiling.stable]
    named = ", ".join(restless[:_MOST_NAMED]) + (" …" if len(restless) > _MOST_NAMED else "")
    signs += [f"{len(restless)} of {len(ceilings)} did not settle within 3 % ({named})"] if restless else []
    if not signs:
        return ()
    again = f"measure them again on a quiet machine: bottleneck calibrate {options}"
    message = f"the ceilings of {device} may be too low: {'; '.join(signs)}; {again}"
    return (Caveat("noisy-calibration", message),)


def ceilings_of(
    outcome: ProbeResults,
    groups: Sequence[tuple[Group, Unit, Iterable[str]]],
    sizes: Mapping[str, float],
    nominal: Mapping[str, float | None] = MappingProxyType({}),
) -> tuple[Ceiling, ...]:
    """Makes the ceilings of these names that were measured, in order.

    Microseconds are those of one call. ``sizes`` holds the bytes of each stream, ``nominal`` the figures of the data
    sheet.
    """
    return tuple(
        Ceiling(
            name=name,
            group=group,
            value=1e6 / result.rate if unit == "us" else result.rate,
            unit=unit,
            how=result.how,
            spread=result.spread,
            stable=result.stable,
            clock_mhz=result.clock_mhz,
            working_set_bytes=sizes.get(name),
            nominal=nominal.get(name),
        )
        for group, unit, names in groups
        for name in names
        if (result := outcome.measured.get(name)) is not None
    )


_GROUPS = {
    "matrix": "matrix products, random numbers",
    "vector": "arithmetic outside of products",
    "memory": "memory, by bytes streamed over",
    "link": "link to the host",
    "time": "least times",
}


def calibration_table(calibration: Calibration) -> str:
    """The ceilings of a device in at most 80 columns, and notes on them."""
    lines = [_title(calibration), *_rows(calibration), "", *_notes(calibration)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def value_text(ceiling: Ceiling, value: float) -> str:
    """A value in the unit of the ceiling."""
    return format_us(value) if ceiling.unit == "us" else format_si(value, ceiling.unit)


def _title(calibration: Calibration) -> str:
    device = calibration.device
    threads = f", {counted(calibration.threads, 'thread')}" if device.kind == "cpu" else ""
    driver = f", driver {calibration.driver}" if calibration.driver else ""
    return f"{device.name}{threads}{driver}, torch {calibration.torch}"


def _rows(calibration: Calibration) -> list[str]:
    """Lists each ceiling as a line under the heading of its group.

    Columns without any text are left out.
    """
    ceilings = calibration.ceilings
    shown = [(title, text) for title, text in _COLUMNS if any(text(ceiling) for ceiling in ceilings)]
    if not calibration.clock.is_sensed:
        shown = [column for column in shown if column[0] != "clock"]
    cells = {ceiling: [text(ceiling) for _, text in shown] for ceiling in ceilings}
    widths = [max([len(title), *(len(row[place]) for row in cells.values())]) for place, (title, _) in enumerate(shown)]
    lines = [_line([title for title, _ in shown], widths)]
    for group, heading in _GROUPS.items():
        rows = [_line(cells[ceiling], widths) for ceiling in ceilings if ceiling.group == group]
        lines += [heading, *rows] if rows else []
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others])


def _label(ceiling: Ceiling) -> str:
    size = ceiling.working_set_bytes
    return f"{ceiling.name}: {format_si(size, 'B')}" if size else ceiling.name


def _spread(ceiling: Ceiling) -> str:
    """By how much rounds differed; one that did not settle is marked."""
    if ceiling.spread is None:
        return "one round !"
    return f"{format_share(ceiling.spread)}{'' if ceiling.stable else ' !'}"


def _notes(calibration: Calibration) -> list[str]:
    notes = []
    if not all(ceiling.stable for ceiling in calibration.ceilings):
        notes.append("! did not settle within 3 %: the best of two rounds differ by the spread")
    notes += [_clock(calibration), *_host_pace(calibration)]
    notes += [f"not measured: {name} ({why})" for name, why in calibration.missing.items()]
    notes += [f"note: {caveat.message}" for caveat in calibration.caveats]
    return [line for note in notes for line in textwrap.wrap(note, 80, subsequent_indent="  ")]


def _host_pace(calibration: Calibration) -> list[str]:
    """Returns the pace that predictions ask for; nothing for a CPU."""
    if calibration.device.kind != "cuda" or calibration.dispatch_us is None:
        return []
    return [f"pace of the host: predictions for this machine take --host-pace {calibration.dispatch_us:.1f}"]


def _clock(calibration: Calibration) -> str:
    clock = calibration.clock
    if clock.during_mhz is None:
        return "the clock of the device could not be read: the ceilings hold at whatever it was"
    if not clock.is_sensed:
        return f"clock: {clock.during_mhz:.0f} MHz all the time, as the system states it; it may not be the true one"
    clocks = [("before", clock.before_mhz), ("while measuring", clock.during_mhz), ("after", clock.after_mhz)]
    memory = f"; memory {clock.memory_mhz:.0f} MHz" if clock.memory_mhz else ""
    return "clock: " + ", ".join(f"{mhz:.0f} MHz {when}" for when, mhz in clocks if mhz) + memory


# Heading and text of each column; the first is set flush left, one without any text is left out.
_COLUMNS: tuple[tuple[str, Callable[[Ceiling], str]], ...] = (
    ("", lambda ceiling: f"  {_label(ceiling)}"),
    ("reached", lambda ceiling: value_text(ceiling, ceiling.value)),
    ("data sheet", lambda ceiling: value_text(ceiling, ceiling.nominal) if ceiling.nominal else ""),
    ("share", lambda ceiling: format_share(ceiling.share) if ceiling.share is not None else ""),
    ("spread", _spread),
    ("clock", lambda ceiling: f"{ceiling.clock_mhz:.0f} MHz" if ceiling.clock_mhz else ""),
)
