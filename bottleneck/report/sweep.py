"""Builds the document of a sweep.

It has its points, the roofs, the fit of each curve, and the charts of its page.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from bottleneck.report import render_document
from bottleneck.report.document import Document, LabelledLine, ListSection, TableRow, TableSection, columns
from bottleneck.report.json_text import encode
from bottleneck.report.line_chart import ChartCurve, ChartPoint, LineChart
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import UNKNOWN, clean
from bottleneck.schema.device import peak_name, without_signs
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.records import replace
from bottleneck.schema.trials import EAGER, Fit, Point, Roof, SeriesResults, Sweep
from bottleneck.units import US_PER_S, counted, format_ratio, format_share, format_si, format_us, format_us_range

# More curves than this do not fit side by side into 80 columns.
_SIDE_BY_SIDE = 5
# The extra time of the first step is shown from here on: compilers take seconds.
_SETUP_S = 0.5
# Where the ends of an interval are so many times apart, nothing is chosen by it.
_SCATTERED = 1.5
_FASTEST = "clearly the fastest"
_SETUP_NOTE = ("set-up: what the first two steps took, compiling included, beyond usual ones",)
_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))


def build(sweep: Sweep) -> Document:
    """The document of a sweep."""
    tables = _ways(sweep) if _is_one_place(sweep) else _curves(sweep)
    shown: set[str] = set()
    for at, table in enumerate(tables):  # each note stands beneath the first table that has it
        tables[at] = replace(table, notes=tuple(note for note in table.notes if note not in shown))
        shown.update(table.notes)
    lists = [
        *_left_out(sweep),
        _results(sweep),
        _fits(sweep),
        ListSection("Caveats", tuple((warning,) for warning in sweep.warnings)),
    ]
    measured = sum(point.step_us is not None for point in sweep.points)
    total = counted(len(sweep.points), "point")
    count = total if measured == len(sweep.points) else f"{measured} of {total}"
    return Document(
        headline="sweep",
        subject=f"{' x '.join(sweep.parameters) or 'how it is run'}, {count}",
        sentence=sentence(sweep),
        lines=_lines(sweep),
        facts=_facts(sweep),
        sections=(*tables, *(section for section in lists if section.items)),
        closing=_next_step(sweep),
    )


def _is_one_place(sweep: Sweep) -> bool:
    """Tells whether several series have one point each, at the same values."""
    names = names_of_series(sweep)
    return 1 < len(names) == len(sweep.points) and len({describe_place(point.values) for point in sweep.points}) == 1


def _ways(sweep: Sweep) -> list[TableSection]:
    """Builds the tables of one place.

    They have a row for each way to run it, the fastest first.
    """
    measured = sorted((point for point in sweep.points if point.step_us is not None), key=_us)
    if not measured:
        return []
    eager = next((point for point in measured if point.series == EAGER), None)
    has_setup = any((point.setup_s or 0.0) >= _SETUP_S for point in measured)
    rows = []
    for point in measured:
        speedup = UNKNOWN if eager is None or not _us(point) else f"{format_ratio(_us(eager) / _us(point))}x"
        cells = [point.series, *_step_cells(point), *([speedup] if eager is not None else [])]
        cells += [_setup_cell(point)] if has_setup else []
        rows.append(TableRow((*cells, _memory_cell(point), point.bound or UNKNOWN), group=point.bound))
    titles = ("step", "95 % interval", *(["as fast"] * (eager is not None)), *(["set-up"] * has_setup), "memory")
    heads = columns("name", "how") + columns("number", *titles) + columns("words", "bound")
    notes = (*(("as fast: how many times as fast as eager",) if eager is not None else ()), *_SETUP_NOTE[:has_setup])
    table = TableSection("Ways to run the step", heads, tuple(rows), notes, is_cards=True, menu="Points")
    return [table, *_work(measured, sweep.roofs, "Work against the roofs", with_series=True)]


def _left_out(sweep: Sweep) -> list[ListSection]:
    """Lists the ways that were not measured, each reason once."""
    if not _is_one_place(sweep):
        return []
    names: dict[str, list[str]] = {}
    for point in sweep.points:
        if point.step_us is None:
            names.setdefault(point.reason or "no reason is known", []).append(point.series)
    items = tuple((f"{', '.join(series)}: {reason}",) for reason, series in names.items())
    return [ListSection("Not measured", items)]


def _curves(sweep: Sweep) -> list[TableSection]:
    """Builds the tables of curves.

    All stand side by side where they are few, then each by itself.
    """
    series = names_of_series(sweep)
    tables = [_side_by_side(sweep)] if 1 < len(series) <= _SIDE_BY_SIDE else []
    for name in series:
        points = [point for point in sweep.points if point.series == name]
        among = f": {name}" if len(series) > 1 else ""
        tables += [_points(points, f"Points{among}"), *_work(points, sweep.roofs, f"Work against the roofs{among}")]
    return tables


def _lines(sweep: Sweep) -> tuple[LabelledLine, ...]:
    """Gives the conclusion, and the value to take or the cost to know."""
    said = (("First", _advice(sweep)), ("Floor", _floor(sweep)))
    return LabelledLine("", sentence(sweep).rstrip(".")), *(LabelledLine(name, text) for name, text in said if text)


# Series that run the whole step or network in one call, without operators of torch in between.
_ONE_CALL = ("aot-package", "executorch", "whole-step")


def _floor(sweep: Sweep) -> str:
    """Says what one compiled call takes, and the arithmetic alone.

    At the first place where both were measured. Empty where none has both.
    """
    roofs = {(roof.series, roof.peak): roof for roof in sweep.roofs}
    for eager in sweep.points:
        calls = [
            point
            for point in sweep.points
            if point.series in _ONE_CALL and point.values == eager.values and point.step_us is not None
        ]
        if eager.series != EAGER or eager.step_us is None or not calls:
            continue
        best = min(calls, key=_us)
        place = f" at {describe_place(eager.values)}" if eager.values else ""
        alone = floor_us(eager, roofs.get((eager.series, eager.peak)))
        words = f"eager {format_us(_us(eager))}, one compiled call {format_us(_us(best))} ({best.series})"
        return words + ("" if alone is None else f", the arithmetic alone {format_us(alone)}") + place
    return ""


def _advice(sweep: Sweep) -> str:
    """Names the point with most samples per second.

    It stands beside the next that is measurably less. Without rates it says where the step is mostly fixed. Empty where
    several series are compared, and where neither is known.
    """
    if len(names_of_series(sweep)) > 1 or len(sweep.parameters) != 1:
        return ""
    rates = sorted(filter(None, map(_rate, sweep.points)), key=lambda rate: -rate[0].median)
    if len(rates) > 1:
        most, best = rates[0]
        less = next(((rate, point) for rate, point in rates if rate.high < most.low), None)
        if less is None or any(rate.high > _SCATTERED * rate.low for rate, _ in rates):
            return "Measure again on a quiet machine: the times scatter too much to choose by them"
        more = f"{format_ratio(most.median / less[0].median)} times as many as with {describe_place(less[1].values)}"
        return f"Take {describe_place(best.values)}: {format_si(most.median, '').strip()} samples per second, {more}"
    knee = next((fit for fit in sweep.fits if fit.knee), None)
    if knee is None:
        return ""
    return (
        f"Below {knee.parameter} = {three(knee.knee or 0.0)} the step is mostly fixed: more work there is nearly free"
    )


def _rate(point: Point) -> tuple[Ratio, Point] | None:
    """The samples per second of a point.

    Their interval follows from that of its step time.
    """
    rate, step = point.samples_per_s, point.step_us
    if not rate or step is None or not step.low > 0:
        return None
    return Ratio(rate, rate * step.median / step.high, rate * step.median / step.low, step.n), point


def names_of_series(sweep: Sweep) -> tuple[str, ...]:
    """The series in the requested order."""
    return tuple(dict.fromkeys(point.series for point in sweep.points))


def describe_place(values: Mapping[str, object]) -> str:
    """'batch_size=4, hidden=64'."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def sentence(sweep: Sweep) -> str:
    """Gives the conclusion of a sweep.

    It is the fastest series, or the bounds that a single curve passes through.
    """
    measured = [point for point in sweep.points if point.step_us is not None]
    if not measured:
        return "Nothing was measured; the reasons stand in the table."
    if len(names_of_series(sweep)) > 1:
        return _fastest(measured)
    if len(sweep.parameters) == 1:
        return _bounds_along(measured, sweep.parameters[0])
    counts = Counter(point.bound for point in measured)
    phrases = [f"{count} {bound or 'without verdict'}" for bound, count in counts.most_common()]
    return f"Of {counted(len(measured), 'point')}: {', '.join(phrases)}."


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
    if len(places) == 1 and "" not in winners:
        return f"{next(iter(winners))} is {_FASTEST}{_beside_eager(measured)}."
    if len(winners) == 1:
        where = " at every place" if len(places) > 1 else ""
        return f"{next(iter(winners)) or 'No series'} is {_FASTEST}{where}."
    phrases = []
    for name, at in winners.items():
        where = ", ".join(at) if len(at) <= 3 else f"{len(at)} places, {at[0]} to {at[-1]}"
        phrases.append(f"{name or 'none'} is {_FASTEST} at {where}")
    return f"{'; '.join(phrases)}."


def _beside_eager(points: Sequence[Point]) -> str:
    """Compares the fastest point with eager.

    Empty where one of them is missing, or both are one.
    """
    eager, best = next((point for point in points if point.series == EAGER), None), min(points, key=_us)
    if eager is None or best is eager or not _us(best):
        return ""
    return f", {format_ratio(_us(eager) / _us(best))} times as fast as eager"


def _winner(points: Sequence[Point]) -> str:
    """The series whose whole interval lies below all others; empty where none does."""
    first, *others = sorted(points, key=_us)
    assert first.step_us is not None
    is_clear = all(other.step_us is not None and first.step_us.high < other.step_us.low for other in others)
    return first.series if is_clear else ""


def _bounds_along(measured: Sequence[Point], parameter: str) -> str:
    """'The step is overhead-bound from batch_size=1 to 64, compute-bound at 128'."""
    phrases: list[str] = []
    for bound, run in groupby(measured, key=lambda point: point.bound):
        values = [point.values[parameter] for point in run]
        first, last = values[0] if phrases else f"{parameter}={values[0]}", values[-1]
        words = _BOUNDS.get(bound or "", f"{bound}-bound")
        phrases.append(f"{words} {f'at {first}' if len(values) == 1 else f'from {first} to {last}'}")
    return f"The step is {', '.join(phrases)}."


_BOUNDS = {"": "without a verdict", "inconclusive": "without a verdict", "mixed": "held back by several bounds"}


def _facts(sweep: Sweep) -> tuple[tuple[str, str], ...]:
    settings = f" with {describe_place(sweep.settings)}" if sweep.settings else ""
    how = f"; {sweep.how}" if sweep.how else ""
    facts = [("program", f"{' '.join(sweep.program)}{settings}{how}")]
    for device in dict.fromkeys(roof.device for roof in sweep.roofs):
        mine = [roof for roof in sweep.roofs if roof.device == device]
        facts.append(
            (
                "device",
                f"{without_signs(device) or 'not named'}; {', '.join(_roof_words(mine)) or 'no roofs are known'}",
            )
        )
    return tuple(facts)


def _roof_words(roofs: Sequence[Roof]) -> list[str]:
    peaks = {peak_name(roof.peak, roof.kind): roof.flops_per_s for roof in roofs if roof.peak and roof.flops_per_s}
    phrases = [f"{name} {format_si(rate, 'FLOP/s')}" for name, rate in peaks.items()]
    rates = {roof.bytes_per_s for roof in roofs if roof.bytes_per_s}
    return phrases + [f"memory {format_si(rate, 'B/s')}" for rate in sorted(rates)]


def _side_by_side(sweep: Sweep) -> TableSection:
    """Step times, one column for each series."""
    series = names_of_series(sweep)
    by_place: dict[str, dict[str, Point]] = {}
    for point in sweep.points:
        by_place.setdefault(describe_place(point.values), {})[point.series] = point
    size, unit = _time_unit([_us(point) for point in sweep.points if point.step_us is not None])
    rows = []
    for place, of in by_place.items():
        times = (three(_us(of[name]) / size) if name in of else UNKNOWN for name in series)
        rows.append(TableRow((place or "as it is", *times)))
    return TableSection(f"Step time in {unit}", columns("name", "") + columns("number", *series), tuple(rows))


def _points(points: Sequence[Point], title: str) -> TableSection:
    has_rate = any(point.samples_per_s is not None for point in points)
    has_setup = any((point.setup_s or 0.0) >= _SETUP_S for point in points)
    titles = [
        *points[0].values,
        "step",
        "95 % interval",
        *(["samples/s"] * has_rate),
        *(["set-up"] * has_setup),
        "memory",
    ]
    rows = []
    for point in points:
        cells = [*map(str, point.values.values()), *_step_cells(point)]
        rate = point.samples_per_s
        cells += [UNKNOWN if rate is None else format_si(rate, "").strip()] if has_rate else []
        cells += [_setup_cell(point)] if has_setup else []
        cells += [_memory_cell(point)]
        cells += [point.bound or UNKNOWN, format_share(point.bound_share) if point.bound_share is not None else UNKNOWN]
        rows.append(TableRow(tuple(cells), group=point.bound, details=(point.reason,) if point.reason else ()))
    heads = columns("number", *titles) + columns("words", "bound") + columns("number", "share")
    notes = ("share: of the step, held back by its bound", *_SETUP_NOTE[:has_setup])
    return TableSection(title, heads, tuple(rows), notes, is_cards=True, menu="Points")


def _setup_cell(point: Point) -> str:
    return UNKNOWN if point.setup_s is None else format_us(point.setup_s * US_PER_S)


def _memory_cell(point: Point) -> str:
    return format_si(point.peak_memory_bytes, "B") if point.peak_memory_bytes else UNKNOWN


def _work(
    points: Sequence[Point], roofs: Sequence[Roof], title: str, *, with_series: bool = False
) -> list[TableSection]:
    """Builds a table of achieved rates and their share of the ceilings.

    No table where no point has any. ``with_series`` names each row by its series, in place of its values. Then all do
    the same work: one that shows no arithmetic where others do hides it in a call of its engine, and is left out.
    """
    rated = [point for point in points if point.flops_per_s is not None or point.bytes_per_s is not None]
    if with_series and any(point.flops for point in rated):
        rated = [point for point in rated if point.flops]
    if not rated:
        return []
    by_peak = {(roof.series, roof.peak): roof for roof in roofs}
    titles = ("needs", "FLOP/B", "FLOP/s", "of peak", "B/s", "of memory")
    rows = [
        TableRow(
            (
                *([point.series] if with_series else map(str, point.values.values())),
                *_rates(point, by_peak.get((point.series, point.peak))),
            )
        )
        for point in rated
    ]
    heads = columns("name", "how") if with_series else columns("number", *points[0].values)
    note = (
        "needs: what the roofs allow for this work, the rest of the step goes elsewhere; B/s counts what has to move "
        "at least; what comes from a cache is not held against the memory"
    )
    return [TableSection(title, heads + columns("number", *titles), tuple(rows), (note,), is_cards=True, menu="Work")]


def floor_us(point: Point, roof: Roof | None) -> float | None:
    """Gives the time that the roofs allow for a step's work.

    It is that of its arithmetic or of its traffic, whichever is longer. Null where neither is known, and where the step
    took less: then its bytes came from a cache.
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
    ceilings = (None, None) if roof is None else (roof.flops_per_s, roof.bytes_per_s)
    rates = ((point.flops_per_s, ceilings[0], "FLOP/s"), (moved, ceilings[1], "B/s"))
    cells = [UNKNOWN if needed is None else format_us(needed), _number(intensity)]
    for rate, ceiling, unit in rates:
        # A rate beyond its ceiling is held against another, a cache's perhaps.
        share = UNKNOWN if rate is None or not ceiling or rate > ceiling else format_share(rate / ceiling)
        cells += [UNKNOWN if rate is None else format_si(rate, unit), share]
    return tuple(cells)


def _fits(sweep: Sweep) -> ListSection:
    items = []
    for fit in sweep.fits:
        if fit.points:
            name = ", ".join(filter(None, (fit.series, describe_place(fit.others))))
            items.append((*([name] if len(sweep.fits) > 1 else []), *fit_sentences(fit)))
    return ListSection("Fixed and growing part of the step", tuple(items))


def _results(sweep: Sweep) -> ListSection:
    """Lists how far the results of each changed series lie from the program's own."""
    return ListSection("Results beside those without a change", tuple((_results_words(one),) for one in sweep.results))


def _results_words(one: SeriesResults) -> str:
    compared = [item for item in one.differences if item.relative is not None]
    if not compared:
        reasons = [one.reason, *(item.reason for item in one.differences)]
        return f"{one.series}: not compared, {next(filter(None, reasons), 'it gave none')}"
    parts = [
        f"{item.what} within {item.relative:.0e} of the largest value ({item.allowed or 0.0:.0e} allowed)"
        if item.relative
        else f"{item.what} the same"
        for item in compared
    ]
    return f"{one.series}: {'WRONG, ' if one.is_wrong else ''}{', '.join(parts)}"


def fit_sentences(fit: Fit) -> tuple[str, ...]:
    """The line, how well it holds, the knee, and the largest value that fits."""
    if fit.fixed_us is None or fit.each_us is None:
        reason = fit.reason or "no fit"
        return (f"{reason[:1].upper()}{reason[1:]}.",)
    assert fit.fixed_mid_us is not None and fit.each_mid_us is not None
    fixed, law = format_us(fit.fixed_mid_us), f"{format_us(fit.each_mid_us)} x {fit.parameter}"
    if fit.model == "max":
        law = f"max({fixed}, {law})"
    elif fit.fixed_mid_us:
        law = f"{fixed} + {law}"
    over = f" from {fit.over.low:g} to {fit.over.high:g}" if fit.over is not None else ""
    within = f", within {format_share(fit.residual_share)}" if fit.residual_share is not None else ""
    within += f" but for {fit.parameter}={fit.apart:g}, which lies apart" if fit.apart is not None else ""
    ranges = (
        f"95 %: fixed {format_us(fit.fixed_us.low)} to {format_us(fit.fixed_us.high)}, "
        f"each {format_us(fit.each_us.low)} to {format_us(fit.each_us.high)}"
    )
    sentences = [f"t = {law}{over}{within} ({ranges}).", _knee_sentence(fit)]
    if fit.largest is not None:
        why = f"; {fit.largest_reason}" if fit.largest_reason else ", by a line through the peaks"
        sentences.append(f"Largest {fit.parameter} that fits the memory: {fit.largest:,.0f}{why}.")
    elif fit.largest_reason:
        sentences.append(f"Largest {fit.parameter} not known: {fit.largest_reason}.")
    return tuple(sentences)


def _knee_sentence(fit: Fit) -> str:
    if fit.knee is None:
        return f"No turning point: {fit.knee_reason}."
    if fit.knee == 0:
        return "No turning point: the step has no fixed part that shows."
    verb = "overlap and are" if fit.model == "max" else "are"
    return f"Both parts {verb} equal at {fit.parameter} = {three(fit.knee)}: below it the step is mostly fixed."


def _next_step(sweep: Sweep) -> str:
    measured = [point for point in sweep.points if point.step_us is not None]
    values = {**sweep.settings, **(measured[-1].values if measured else {})}
    options = "".join(f"--set {name}={value} " for name, value in values.items())
    return f"One point in detail: bottleneck run {options}{' '.join(sweep.program)}"


def _us(point: Point) -> float:
    return point.step_us.median if point.step_us is not None else math.nan


def _step_cells(point: Point) -> tuple[str, str]:
    """The median step and its interval."""
    timing = point.step_us
    if timing is None or not timing.median > 0:
        return UNKNOWN, UNKNOWN
    return format_us(timing.median), format_us_range(timing.low, timing.high, "-")


def _time_unit(times_us: Sequence[float]) -> tuple[float, str]:
    """Gives the unit in which all of these times read best.

    It leaves two digits of the smallest, and of the largest two before the point.
    """
    least, most = min(times_us, default=1.0), max(times_us, default=1.0)
    return next(((size, unit) for size, unit in _UNITS if least >= size / 10 and most >= 10 * size), _UNITS[-1])


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else three(value)


def three(value: float) -> str:
    """Three significant digits without an exponent, or all that stand before the point."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else UNKNOWN
    decimals = max(0, min(6, 2 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{decimals}f}"


@dataclass(frozen=True)
class SweepCurve:
    """The measured points of one series on one curve.

    A curve is one combination of the parameters that the axis does not show.
    """

    label: str
    x: tuple[float, ...]
    points: tuple[Point, ...]
    fit: Fit | None = None


def curves_of(sweep: Sweep) -> tuple[list[SweepCurve], str | None, tuple[str, ...]]:
    """Gives the curves, and the parameter or places of their axis.

    Points go from left to right. The places are named. The parameter is that of the fits, else the first that is a
    number; null where there is none.
    """
    numeric = [
        name for name in sweep.parameters if all(not isinstance(point.values[name], str) for point in sweep.points)
    ]
    parameter = next((fit.parameter for fit in sweep.fits), next(iter(numeric), None))
    places = [] if parameter else list(dict.fromkeys(_place(point) for point in sweep.points))
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in sweep.points:
        others = {name: value for name, value in point.values.items() if parameter and name != parameter}
        groups.setdefault((point.series, describe_place(others)), []).append(point)
    several_series = len({series for series, _ in groups}) > 1
    fits = {(fit.series, describe_place(fit.others)): fit for fit in sweep.fits}
    curves = []
    for key, members in groups.items():
        timed = [point for point in members if point.step_us is not None and point.step_us.median > 0]
        at = [float(point.values[parameter]) if parameter else float(places.index(_place(point))) for point in timed]
        order = sorted(range(len(timed)), key=at.__getitem__)
        label = ", ".join(word for word in (key[0] if several_series or not key[1] else "", key[1]) if word)
        label = label if timed else f"{label} (not measured)"
        points, x = tuple(timed[index] for index in order), tuple(at[index] for index in order)
        curves.append(SweepCurve(clean(label, 60), x, points, fits.get(key)))
    return curves, parameter, tuple(clean(place, 24) for place in places)


def _place(point: Point) -> str:
    return describe_place(point.values) or point.series


def rate_name(points: Sequence[Point]) -> str:
    """Names the rate that the points have.

    It is samples per second where the batch size is a parameter; else FLOP/s where they are known; else steps.
    """
    if points and all(point.samples_per_s is not None for point in points):
        return "samples per second"
    if points and all(point.flops_per_s is not None for point in points):
        return "achieved FLOP/s"
    return "steps per second"


def rate_of(point: Point, name: str) -> float:
    """The rate of this name; not a number where it is not known."""
    if name == "samples per second":
        return point.samples_per_s or math.nan
    if name == "achieved FLOP/s":
        return point.flops_per_s or math.nan
    return US_PER_S / point.step_us.median if point.step_us is not None else math.nan


def fit_line(fit: Fit, *, is_log: bool) -> tuple[list[float], list[float]]:
    """Gives the fit as a line of 101 points.

    It spans the values that the fit was made from. No points where there is no fit.
    """
    if fit.over is None or fit.step_us(fit.over.low) is None:
        return [], []
    low, high = fit.over.low, fit.over.high
    parts = [index / 100 for index in range(101)]
    across = [low * (high / low) ** part if is_log else low + (high - low) * part for part in parts]
    return across, [fit.step_us(x) or math.nan for x in across]


def charts(sweep: Sweep) -> tuple[LineChart, ...]:
    """Builds the charts of step time and rate along the parameter.

    Of a single curve the time has its fit and its knee. Empty if unknown.
    """
    curves, parameter, places = curves_of(sweep)
    points = [point for curve in curves for point in curve.points]
    if not points:
        return ()
    x_title, rate = parameter or "", rate_name(points)
    times = LineChart("Step time", x_title, tuple(map(_times, curves)), format_us, places)
    fit = curves[0].fit if len(curves) == 1 and not places else None
    if fit is not None:
        across, up = fit_line(fit, is_log=times.x_scale.is_log)
        line = ChartCurve("fit", tuple(map(ChartPoint, across, up)), is_guide=True)
        mark = None if fit.knee is None else (fit.knee, f"mostly fixed below {fit.knee:.3g}")
        times = LineChart("Step time", x_title, (*times.curves, *([line] if up else [])), format_us, (), mark)
    rates = []
    for curve in curves:
        values = [rate_of(point, rate) for point in curve.points]
        rates.append(ChartCurve(curve.label, tuple(map(ChartPoint, curve.x, values))))
    title = rate[:1].upper() + rate[1:]
    return times, LineChart(title, x_title, tuple(rates), lambda value: format_si(value, "").strip(), places)


def _times(curve: SweepCurve) -> ChartCurve:
    timings = [point.step_us for point in curve.points if point.step_us is not None]
    points = [ChartPoint(x, one.median, one.low, one.high) for x, one in zip(curve.x, timings, strict=True)]
    return ChartCurve(curve.label, tuple(points))


def render(sweep: Sweep, form: str, style: TerminalStyle = PLAIN) -> str:
    """Renders the sweep for a terminal, as markdown, JSON or a page.

    The markdown is for a comment on a pull request. The page has the sweep's charts.
    """
    if form == "json":
        return encode(sweep)
    return render_document(build(sweep), form, style, charts(sweep) if form == "html" else ())
