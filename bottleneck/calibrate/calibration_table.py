"""Renders a calibration as a table for people."""

import textwrap
from collections.abc import Callable, Sequence

from bottleneck.calibrate.calibration import Calibration, Ceiling
from bottleneck.units import format_share, format_si, format_us

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
    threads = f", {calibration.threads} thread{'s' * (calibration.threads != 1)}" if device.kind == "cpu" else ""
    driver = f", driver {calibration.driver}" if calibration.driver else ""
    return f"{device.name}{threads}{driver}, torch {calibration.torch}"


def _rows(calibration: Calibration) -> list[str]:
    """One line for each ceiling under the heading of its group; columns without any text are left out."""
    ceilings = calibration.ceilings
    shown = [(title, text) for title, text in _COLUMNS if any(text(each) for each in ceilings)]
    if not calibration.clock.is_sensed:
        shown = [column for column in shown if column[0] != "clock"]
    cells = {each: [text(each) for _, text in shown] for each in ceilings}
    widths = [max([len(title), *(len(row[place]) for row in cells.values())]) for place, (title, _) in enumerate(shown)]
    lines = [_line([title for title, _ in shown], widths)]
    for group, heading in _GROUPS.items():
        rows = [_line(cells[each], widths) for each in ceilings if each.group == group]
        lines += [heading, *rows] if rows else []
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.ljust(width) if place == 0 else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *others])


def _label(ceiling: Ceiling) -> str:
    if ceiling.working_set_bytes:
        return f"{ceiling.name.removesuffix(' stream')}: {format_si(ceiling.working_set_bytes, 'B')}"
    return ceiling.name.removesuffix(" product").removesuffix(" multiply").removesuffix(" multiply-add")


def _spread(ceiling: Ceiling) -> str:
    """By how much rounds differed; one that did not settle is marked."""
    if ceiling.spread is None:
        return "one round !"
    return f"{format_share(ceiling.spread)}{'' if ceiling.stable else ' !'}"


def _notes(calibration: Calibration) -> list[str]:
    notes = []
    if not all(ceiling.stable for ceiling in calibration.ceilings):
        notes.append("! did not settle within 3 %: the best of two rounds differ by the spread")
    notes += [_clock(calibration)]
    notes += [f"not measured: {name} ({why})" for name, why in calibration.missing.items()]
    notes += [f"note: {caveat.message}" for caveat in calibration.caveats]
    return [line for note in notes for line in textwrap.wrap(note, 80, subsequent_indent="  ")]


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
    ("", lambda each: f"  {_label(each)}"),
    ("reached", lambda each: value_text(each, each.value)),
    ("data sheet", lambda each: value_text(each, each.nominal) if each.nominal else ""),
    ("share", lambda each: format_share(each.share) if each.share is not None else ""),
    ("spread", _spread),
    ("clock", lambda each: f"{each.clock_mhz:.0f} MHz" if each.clock_mhz else ""),
)
