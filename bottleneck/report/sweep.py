"""Builds the document of a sweep: its points, the roofs, and the fit of each curve."""

import math
from collections.abc import Mapping, Sequence

from bottleneck.report import render_document
from bottleneck.report.document import Document, ListSection, TableColumn, TableRow, TableSection, number_columns
from bottleneck.report.json_text import encode
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN
from bottleneck.schema.records import replace
from bottleneck.schema.trials import Fit, Point, Roof, Sweep
from bottleneck.units import US_PER_S, counted, format_share, format_si, format_us

# More curves than this do not fit side by side into 80 columns.
_SIDE_BY_SIDE = 5
# The extra time of the first step is shown from here on: compilers take seconds.
_SETUP_S = 0.5
_FASTEST = "clearly the fastest"
_SETUP_NOTE = ("set-up: what the first step took, compiling included, beyond a usual one",)
_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))


def build(sweep: Sweep) -> Document:
    """The document of a sweep."""
    series = names_of_series(sweep)
    sections: list[TableSection | ListSection | None] = [
        _side_by_side(sweep) if 1 < len(series) <= _SIDE_BY_SIDE else None
    ]
    for name in series:
        points = [point for point in sweep.points if point.series == name]
        among = f": {name}" if len(series) > 1 else ""
        sections += [_points(points, f"Points{among}"), _work(points, sweep.roofs, f"Work against the roofs{among}")]
    sections = _explained_once(sections)
    sections += [_fits(sweep), _warnings(sweep)]
    return Document(
        headline=f"sweep of {' x '.join(sweep.parameters) or 'how it is run'}: {_count(sweep)}",
        sentence=sentence(sweep),
        facts=_facts(sweep),
        sections=tuple(section for section in sections if section is not None),
        closing=_next_step(sweep),
    )


def _explained_once(sections: Sequence[TableSection | ListSection | None]) -> list[TableSection | ListSection | None]:
    """The sections, each note beneath the first table that has it only."""
    shown: set[str] = set()
    out: list[TableSection | ListSection | None] = []
    for section in sections:
        if not isinstance(section, TableSection):
            out.append(section)
            continue
        out.append(replace(section, notes=tuple(note for note in section.notes if note not in shown)))
        shown.update(section.notes)
    return out


def names_of_series(sweep: Sweep) -> tuple[str, ...]:
    """The series in the requested order."""
    return tuple(dict.fromkeys(point.series for point in sweep.points))


def describe_place(values: Mapping[str, object]) -> str:
    """'batch_size=4, hidden=64'."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def sentence(sweep: Sweep) -> str:
    """The conclusion of a sweep: the fastest series, or the bounds that a single curve passes through."""
    measured = [point for point in sweep.points if point.step_us is not None]
    if not measured:
        return "Nothing was measured; the reasons stand in the table."
    if len(names_of_series(sweep)) > 1:
        return _fastest(measured)
    if len(sweep.parameters) == 1:
        return _bounds_along(measured, sweep.parameters[0])
    counts = {bound: sum(point.bound == bound for point in measured) for bound in {point.bound for point in measured}}
    phrases = [
        f"{counts[bound]} {bound or 'without verdict'}" for bound in sorted(counts, key=lambda each: -counts[each])
    ]
    return f"Of {counted(len(measured), 'point')}: {', '.join(phrases)}."


def _count(sweep: Sweep) -> str:
    measured = sum(point.step_us is not None for point in sweep.points)
    total = f"{len(sweep.points)} point{'s' * (len(sweep.points) != 1)}"
    return total if measured == len(sweep.points) else f"{measured} of {total}"


def _fastest(measured: Sequence[Point]) -> str:
    """The fastest series at each place."""
    places: dict[str, list[Point]] = {}
    for point in measured:
        places.setdefault(describe_place(point.values), []).append(point)
    winners: dict[str, list[str]] = {}
    for place, points in places.items():
        if len(points) > 1:
            winners.setdefault(_winner(points), []).append(place)
    if not winners:
        return "No two series were measured at the same place."
    if len(winners) == 1:
        return f"{next(iter(winners)) or 'No series'} is {_FASTEST} at every place."
    phrases = [f"{name or 'none'} is {_FASTEST} at {_some(at)}" for name, at in winners.items()]
    return f"{'; '.join(phrases)}."


def _winner(points: Sequence[Point]) -> str:
    """The series whose whole interval lies below all others; empty where none does."""
    first, *others = sorted(points, key=_us)
    assert first.step_us is not None
    is_clear = all(other.step_us is not None and first.step_us.high < other.step_us.low for other in others)
    return first.series if is_clear else ""


def _some(places: Sequence[str]) -> str:
    """All of a few names, else the first and the last."""
    return ", ".join(places) if len(places) <= 3 else f"{len(places)} places, {places[0]} to {places[-1]}"


def _bounds_along(measured: Sequence[Point], parameter: str) -> str:
    """'overhead from batch_size=1 to 64, compute from 128 on'."""
    runs: list[tuple[str, object, object]] = []
    for point in measured:
        bound, value = point.bound or "no verdict", point.values[parameter]
        if runs and runs[-1][0] == bound:
            runs[-1] = (bound, runs[-1][1], value)
        else:
            runs.append((bound, value, value))
    phrases = [
        f"{bound} at {first}" if first == last else f"{bound} from {first} to {last}" for bound, first, last in runs
    ]
    return f"What holds the step back, along {parameter}: {', '.join(phrases)}."


def _facts(sweep: Sweep) -> tuple[tuple[str, str], ...]:
    settings = f" with {describe_place(sweep.settings)}" if sweep.settings else ""
    how = f"; {sweep.how}" if sweep.how else ""
    facts = [("program", f"{' '.join(sweep.program)}{settings}{how}")]
    for device in dict.fromkeys(roof.device for roof in sweep.roofs):
        mine = [roof for roof in sweep.roofs if roof.device == device]
        facts.append(("device", f"{device or 'not named'}; {', '.join(_roof_words(mine)) or 'no roofs are known'}"))
    return tuple(facts)


def _roof_words(roofs: Sequence[Roof]) -> list[str]:
    peaks = {roof.peak: roof.flops_per_s for roof in roofs if roof.peak is not None and roof.flops_per_s}
    phrases = [f"{name.replace('_', ' ')} {format_si(rate, 'FLOP/s')}" for name, rate in peaks.items()]
    rates = {roof.bytes_per_s for roof in roofs if roof.bytes_per_s}
    return phrases + [f"memory {format_si(rate, 'B/s')}" for rate in sorted(rates)]


def _side_by_side(sweep: Sweep) -> TableSection:
    """Step times, one column for each series."""
    series = names_of_series(sweep)
    by_place: dict[str, dict[str, Point]] = {}
    for point in sweep.points:
        by_place.setdefault(describe_place(point.values), {})[point.series] = point
    size, unit = _time_unit([_us(point) for point in sweep.points if point.step_us is not None])
    rows = [
        TableRow(
            (
                place or "as it is",
                *(three(_us(of[name]) / size) if _is_known(of.get(name)) else UNKNOWN for name in series),
            )
        )
        for place, of in by_place.items()
    ]
    columns = (TableColumn("", "name"), *number_columns(series))
    return TableSection(f"Step time in {unit}", columns, tuple(rows))


def _points(points: Sequence[Point], title: str) -> TableSection:
    size, unit = _time_unit([_us(point) for point in points if point.step_us is not None])
    has_rate = any(point.samples_per_s is not None for point in points)
    names = list(points[0].values)
    columns = [
        *number_columns(names),
        TableColumn(f"step {unit}", "number"),
        TableColumn("+-", "number"),
    ]
    columns += [TableColumn("samples/s", "number")] if has_rate else []
    has_setup = any((point.setup_s or 0.0) >= _SETUP_S for point in points)
    columns += [TableColumn("set-up", "number")] if has_setup else []
    columns += [TableColumn("memory", "number"), TableColumn("bound", "words"), TableColumn("share", "number")]
    rows = []
    for point in points:
        cells = [
            *map(str, point.values.values()),
            _number(_us(point) / size if point.step_us else None),
            _spread(point),
        ]
        cells += [_number(point.samples_per_s)] if has_rate else []
        cells += [UNKNOWN if point.setup_s is None else format_us(point.setup_s * US_PER_S)] if has_setup else []
        cells += [format_si(point.peak_memory_bytes, "B") if point.peak_memory_bytes else UNKNOWN]
        cells += [point.bound or UNKNOWN, format_share(point.bound_share) if point.bound_share is not None else UNKNOWN]
        rows.append(TableRow(tuple(cells), group=point.bound, details=(point.reason,) if point.reason else ()))
    return TableSection(
        title, tuple(columns), tuple(rows), ("+-: half of the 95 % interval of the step time", *_SETUP_NOTE[:has_setup])
    )


def _work(points: Sequence[Point], roofs: Sequence[Roof], title: str) -> TableSection | None:
    """Achieved rates and what they are of the ceilings; null where no point has any."""
    known = [point for point in points if point.flops_per_s is not None or point.bytes_per_s is not None]
    if not known:
        return None
    by_peak = {(roof.series, roof.peak): roof for roof in roofs}
    columns = [TableColumn(name, "number") for name in points[0].values]
    columns += [TableColumn(title, "number") for title in ("needs", "FLOP/B", "FLOP/s", "of peak", "B/s", "of memory")]
    rows = [
        TableRow((*map(str, point.values.values()), *_rates(point, by_peak.get((point.series, point.peak)))))
        for point in known
    ]
    note = (
        "needs: what the roofs allow for this work, the rest of the step goes elsewhere; B/s counts what has to move "
        "at least; what comes from a cache is not held against the memory"
    )
    return TableSection(title, tuple(columns), tuple(rows), (note,))


def floor_us(point: Point, roof: Roof | None) -> float | None:
    """The time that the roofs allow for the work of a step: of its arithmetic or of its traffic, whichever is longer.

    Null where neither is known, and where the step took less: then its bytes came from a cache.
    """
    if roof is None or point.step_us is None:
        return None
    parts = ((point.flops, roof.flops_per_s), (point.bytes_low, roof.bytes_per_s))
    needed = [amount / rate * US_PER_S for amount, rate in parts if amount and rate]
    longest = max(needed, default=None)
    return longest if longest is not None and longest <= point.step_us.median else None


def _rates(point: Point, roof: Roof | None) -> tuple[str, ...]:
    moved = point.bytes_per_s.low if point.bytes_per_s is not None else None
    needed = floor_us(point, roof)
    intensity = point.flops / point.bytes_low if point.flops and point.bytes_low else None
    return (
        UNKNOWN if needed is None else format_us(needed),
        _number(intensity),
        _si(point.flops_per_s, "FLOP/s"),
        share_of(point.flops_per_s, roof.flops_per_s if roof is not None else None),
        _si(moved, "B/s"),
        share_of(moved, roof.bytes_per_s if roof is not None else None),
    )


def share_of(rate: float | None, ceiling: float | None) -> str:
    """A rate as a share of its ceiling; unknown where it exceeds it, being held against another, a cache's perhaps."""
    if rate is None or not ceiling or rate > ceiling:
        return UNKNOWN
    return format_share(rate / ceiling)


def _fits(sweep: Sweep) -> ListSection | None:
    fitted = [fit for fit in sweep.fits if fit.points]
    if not fitted:
        return None
    items = [(*([_name_of(fit)] if len(sweep.fits) > 1 else []), *fit_sentences(fit)) for fit in fitted]
    return ListSection("Fixed and growing part of the step", tuple(items))


def _name_of(fit: Fit) -> str:
    return ", ".join(part for part in (fit.series, describe_place(fit.others)) if part)


def fit_sentences(fit: Fit) -> tuple[str, ...]:
    """The line, how well it holds, the knee, and the largest value that fits."""
    if fit.fixed_us is None or fit.each_us is None:
        return (f"{_capital(fit.reason or 'no fit')}.",)
    assert fit.fixed_mid_us is not None and fit.each_mid_us is not None
    fixed, each = format_us(fit.fixed_mid_us), format_us(fit.each_mid_us)
    law = f"{fixed} + {each} x {fit.parameter}" if fit.model == "sum" else f"max({fixed}, {each} x {fit.parameter})"
    law = law.removeprefix("0 us + ")
    over = f" from {fit.over.low:g} to {fit.over.high:g}" if fit.over is not None else ""
    within = f", within {format_share(fit.residual_share)}" if fit.residual_share is not None else ""
    ranges = (
        f"95 %: fixed {format_us(fit.fixed_us.low)} to {format_us(fit.fixed_us.high)}, "
        f"each {format_us(fit.each_us.low)} to {format_us(fit.each_us.high)}"
    )
    return (f"t = {law}{over}{within} ({ranges}).", _knee_sentence(fit), *_memory_sentence(fit))


def _knee_sentence(fit: Fit) -> str:
    if fit.knee is None:
        return f"No knee: {fit.knee_reason}."
    if fit.knee == 0:
        return "No knee: the step has no fixed part that shows."
    verb = "overlap and are" if fit.model == "max" else "are"
    return f"Both parts {verb} equal at {fit.parameter} = {three(fit.knee)}: below it the step is mostly fixed."


def _memory_sentence(fit: Fit) -> tuple[str, ...]:
    if fit.largest is None:
        return (f"Largest {fit.parameter} not known: {fit.largest_reason}.",) if fit.largest_reason else ()
    why = f"; {fit.largest_reason}" if fit.largest_reason else ", by a line through the peaks"
    return (f"Largest {fit.parameter} that fits the memory: {fit.largest:.0f}{why}.",)


def _warnings(sweep: Sweep) -> ListSection | None:
    return ListSection("Caveats", tuple((warning,) for warning in sweep.warnings)) if sweep.warnings else None


def _next_step(sweep: Sweep) -> str:
    measured = [point for point in sweep.points if point.step_us is not None]
    values = {**sweep.settings, **(measured[-1].values if measured else {})}
    options = "".join(f"--set {name}={value} " for name, value in values.items())
    return f"One point in detail: bottleneck run {options}{' '.join(sweep.program)}"


def _is_known(point: Point | None) -> bool:
    return point is not None and point.step_us is not None


def _us(point: Point) -> float:
    return point.step_us.median if point.step_us is not None else math.nan


def _spread(point: Point) -> str:
    timing = point.step_us
    if timing is None or not timing.median > 0:
        return UNKNOWN
    return format_share((timing.high - timing.low) / 2 / timing.median)


def _time_unit(times_us: Sequence[float]) -> tuple[float, str]:
    """The unit in which all of these read best: two digits of the smallest, and of the largest two before the point."""
    least, most = min(times_us, default=1.0), max(times_us, default=1.0)
    return next(((size, unit) for size, unit in _UNITS if least >= size / 10 and most >= 10 * size), _UNITS[-1])


def _si(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else format_si(value, unit)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else three(value)


def three(value: float) -> str:
    """Three significant digits without an exponent, or all that stand before the point."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else UNKNOWN
    decimals = max(0, min(6, 2 - math.floor(math.log10(abs(value)))))
    return f"{value:.{decimals}f}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def render(sweep: Sweep, form: str, style: TerminalStyle = PLAIN) -> str:
    """The sweep as text for a terminal, markdown for a comment on a pull request, JSON, or a page with its charts."""
    if form == "json":
        return encode(sweep)
    from bottleneck.report.sweep_curves import charts  # noqa: PLC0415 - it takes the words of this module

    return render_document(build(sweep), form, style, charts(sweep) if form == "html" else ())
