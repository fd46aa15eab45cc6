"""Phrases on what the gate found that its story and its formats share: counts, culprits and growth; none is escaped."""

import math

from bottleneck.counters import COUNTERS, Counter
from bottleneck.gated import CounterChange, Culprit
from bottleneck.units import format_si

UNKNOWN = "-"

_EXACT_BELOW, _EXACT_FROM = 10_000, 10**18


def counter_of(metric: str) -> Counter | None:
    """The counter that a metric counts: of the whole step ('launches'), or of modules ('module:decoder.*.launches')."""
    return COUNTERS.get(metric.rpartition(".")[2] if metric.startswith("module:") else metric)


def amounts(change: CounterChange) -> tuple[str, str, str]:
    """Before, after and the difference of a counter; both in one unit, exact where rounding would hide what differs."""
    before, after = change.before, change.after
    shown = [amount(change.metric, value) for value in (before, after)]
    if before != after and shown[0] == shown[1]:
        shown = [_exact(value) for value in (before, after)]
    return shown[0], shown[1], _difference(change)


def tell_change(change: CounterChange) -> str:
    """'syncs 0 -> 1', with units where the counter has one; 'syncs unknown -> 1'."""
    values, shown = (change.before, change.after), amounts(change)[:2]
    before, after = ("unknown" if value is None else text for value, text in zip(values, shown, strict=True))
    return f"{change.metric} {before} -> {after}"


def _difference(change: CounterChange) -> str:
    if change.before is None or change.after is None:
        return UNKNOWN
    grown = change.after - change.before
    return ("-" if grown < 0 else "+") + amount(change.metric, abs(grown)) if grown else "0"


def amount(metric: str, value: int | None) -> str:
    """A count: exact, but large numbers of bytes and FLOPs with a prefix."""
    counter = counter_of(metric)
    if value is None or counter is None or counter.unit is None:
        return _exact(value)
    if not _EXACT_BELOW <= abs(value) < _EXACT_FROM:
        return _exact(value)
    return format_si(float(value), counter.unit)


def _exact(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}".replace(",", " ")


def culprit_words(culprit: Culprit) -> str:
    """'+24 aten::copy_ in decoder.rotary at model/rope.py:88, changed here'."""
    told = f"{'-' if culprit.change < 0 else '+'}{_exact(abs(culprit.change))} {culprit.what}"
    told += f" in {culprit.module}" if culprit.module else ""
    if culprit.site is None:
        return told
    return f"{told} at {culprit.site.place}{', changed here' if culprit.is_touched else ''}"


def growth(ratio: float) -> str:
    """A ratio as growth, '+7.6 %'; one that would show as nothing is '-<0.01 %'."""
    if not math.isfinite(ratio):
        return "unknown"
    return f"{'-' if ratio < 1 else '+'}{share(abs(ratio - 1))}"


def share(value: float) -> str:
    """A share as a percentage, '2.4 %', with two decimals where one would show it as nothing."""
    if not math.isfinite(value):
        return "unknown"
    return "<0.01 %" if 0 < abs(value) < 0.00005 else f"{value * 100:.{_decimals(value)}f} %"


def _decimals(value: float) -> int:
    return 2 if 0 < abs(value) < 0.0005 else 1
