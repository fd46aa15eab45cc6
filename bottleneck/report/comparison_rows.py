"""The tables of a comparison that add up to the change of the step: ops with idle time beside them, and modules."""

import math
from collections.abc import Sequence

from bottleneck.compared import Bar, ChangeRow, Comparison
from bottleneck.report.comparison_numbers import Rounded, settled, signed
from bottleneck.report.comparison_waterfall import account_label
from bottleneck.report.comparison_words import calls_words, row_details
from bottleneck.report.layout import Column, Row, Table

_NO_MODULE = "(no module)"
_ROWS_NOTE = (
    "by count: what more or fewer calls cost at the old time of a call; by time: what the new calls take longer or "
    "shorter. Together they are the change, and all lines are that of the step."
)
_MODULES_NOTE = "Work alone: waiting belongs to the step as a whole."


def rows(comparison: Comparison, numbers: Rounded, top: int) -> Table | None:
    """The ops whose time changed most, the others folded, then idle time by cause: together the change of the step."""
    idle, idle_quanta = _idle(comparison.idle, numbers)
    groups, hidden = _folded(comparison.rows, top, numbers)
    values = [math.fsum(row.change_us for row in group) for group in groups]
    quanta = settled(numbers.scale, values, numbers.change - idle_quanta)
    lines = [_row(group, change, numbers) for group, change in zip(groups, quanta, strict=True)]
    if not lines and not idle:
        return None
    whole = signed(numbers.scale, numbers.change, comparison.change_us or 0.0)
    titles = ("calls", "by count", "by time", "change")
    count = f" ({len(comparison.rows) - hidden} of {len(comparison.rows)} ops)" if hidden else ""
    return Table(
        f"What changed, in {numbers.scale.unit}{count}",
        (Column("op", "name"), *(Column(name, "number") for name in titles)),
        (*lines, *idle, Row(("the step", "", "", "", whole), "total")),
        (_ROWS_NOTE,),
    )


def modules(comparison: Comparison, numbers: Rounded, top: int) -> Table | None:
    """The modules whose work changed most; they add up to all ops of the table above."""
    if len(comparison.modules) < 2:
        return None
    groups, _ = _folded(comparison.modules, top, numbers)
    scale, busy = numbers.scale, numbers.change - _idle(comparison.idle, numbers)[1]
    before = [math.fsum(row.before_us for row in group) for group in groups]
    after = [math.fsum(row.after_us for row in group) for group in groups]
    lows = settled(scale, before, round(scale.quanta(math.fsum(before))))
    highs = settled(scale, after, sum(lows) + busy)
    lines = [
        Row(
            (
                _module_name(group),
                scale.show(low, before[index]),
                scale.show(high, after[index]),
                signed(scale, high - low, after[index] - before[index]),
            ),
            "rest" if len(group) > 1 else "plain",
        )
        for index, (group, low, high) in enumerate(zip(groups, lows, highs, strict=True))
    ]
    whole = (scale.show(sum(lows), 1.0), scale.show(sum(highs), 1.0), signed(scale, busy, float(busy)))
    titles = ("before", "after", "change")
    return Table(
        f"By module, in {scale.unit}",
        (Column("module", "place"), *(Column(name, "number") for name in titles)),
        (*lines, Row(("all modules", *whole), "total")),
        (_MODULES_NOTE,),
    )


def _folded(changes: Sequence[ChangeRow], top: int, numbers: Rounded) -> tuple[list[list[ChangeRow]], int]:
    """The rows that changed most, each alone, and the others together; and how many those are.

    A change that rounds to nothing has no line of its own.
    """
    ranked = sorted(changes, key=lambda row: -abs(row.change_us))
    shown = sum(abs(numbers.scale.quanta(row.change_us)) >= 0.5 for row in ranked[:top])
    if shown == len(ranked) - 1:
        shown += 1
    rest = ranked[shown:]
    return [*([row] for row in ranked[:shown]), *([rest] if rest else [])], len(rest)


def _row(group: Sequence[ChangeRow], quanta: int, numbers: Rounded) -> Row:
    """One row, or those folded into one; its part by time is what its part by count leaves."""
    scale = numbers.scale
    by_count, by_time, change = (
        math.fsum(values) for values in zip(*((r.count_us, r.mean_us, r.change_us) for r in group), strict=True)
    )
    count = round(scale.quanta(by_count)) if by_time else quanta
    cells = (signed(scale, count, by_count), signed(scale, quanta - count, by_time), signed(scale, quanta, change))
    if len(group) > 1:
        return Row((f"{len(group)} more", "", *cells), "rest")
    return Row((group[0].name, calls_words(group[0]), *cells), details=row_details(group[0]))


def _idle(bars: Sequence[Bar], numbers: Rounded) -> tuple[list[Row], int]:
    """A line for each cause of idle time that changed, with the number that the waterfall shows; and their sum."""
    known = {account.bar: account.change for account in numbers.accounts}
    changes = [known.get(bar, round(numbers.scale.quanta(bar.change_us))) for bar in bars]
    ranked = sorted(zip(bars, changes, strict=True), key=lambda item: -abs(item[0].change_us))
    lines = [
        Row((account_label(bar.account, bar.group), "", "", "", signed(numbers.scale, change, bar.change_us)))
        for bar, change in ranked
        if change
    ]
    return lines, sum(changes)


def _module_name(group: Sequence[ChangeRow]) -> str:
    return f"{len(group)} more" if len(group) > 1 else group[0].module or group[0].name or _NO_MODULE
