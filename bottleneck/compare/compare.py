"""Compares two sides: runs the parts of a comparison in order."""

from bottleneck import __version__
from bottleneck.compare.conditions import find_conditions
from bottleneck.compare.matching import match
from bottleneck.compare.rows import fold_modules, tell_rows
from bottleneck.compare.sides import Compared, Diff, Touched, tell_side
from bottleneck.compare.story import find_noise, find_notes, find_parts, tell, tell_counters
from bottleneck.compare.work import BUSY_ACCOUNTS, find_bars, find_work
from bottleneck.schema.comparison import Comparison, CounterStep
from bottleneck.schema.counters import COUNTERS


def compare(before: Compared, after: Compared, touched: Touched | None = None) -> Comparison:
    """What changed between two sides, adding up to the change of the step; only counters where a side has no times.

    ``touched`` are the lines that the diff between the sides touches, by file: rows that name one are marked.
    """
    if before.step_us is None or after.step_us is None:
        return _compare_counters(before, after)
    diff, noise = Diff(touched), find_noise(before, after)
    in_full = before.is_full and after.is_full
    matches = match(find_work(before, in_full), find_work(after, in_full))
    rows = tell_rows(matches, noise.row_share, diff)
    bars = find_bars(before, after, diff)
    idle = tuple(bar for bar in bars if bar.account not in BUSY_ACCOUNTS)
    conditions = find_conditions(before, after, matches)
    return Comparison(
        tell_side(before),
        tell_side(after),
        conditions=conditions,
        bars=bars,
        rows=rows,
        modules=fold_modules(rows, noise.row_share),
        idle=idle,
        counters=_counters(before, after),
        notes=find_notes(before, after, noise, rows),
        sentence=tell((before, after), find_parts(rows, idle), noise, conditions),
        version=__version__,
    )


def _compare_counters(before: Compared, after: Compared) -> Comparison:
    counters = _counters(before, after)
    return Comparison(
        tell_side(before),
        tell_side(after),
        conditions=find_conditions(before, after, ()),
        counters=counters,
        sentence=tell_counters(counters),
        version=__version__,
    )


def _counters(before: Compared, after: Compared) -> tuple[CounterStep, ...]:
    """All counters that a side knows, in the order of their declaration."""
    old = {} if before.counts is None else before.counts.values
    new = {} if after.counts is None else after.counts.values
    names = [*COUNTERS, *sorted({*old, *new} - {*COUNTERS})]
    return tuple(CounterStep(name, old.get(name), new.get(name)) for name in names if name in old or name in new)
