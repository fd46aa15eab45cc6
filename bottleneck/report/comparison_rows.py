"""The tables of a comparison that add up to the change of the step: ops with idle time beside them, and modules."""

import math
from collections.abc import Sequence

from bottleneck.compared import Bar, ChangeRow, Comparison
from bottleneck.report.comparison_alike import Alike, added, fold_alike
from bottleneck.report.comparison_numbers import Rounded, settled, signed
from bottleneck.report.comparison_waterfall import account_label
from bottleneck.report.comparison_words import calls_words, row_details, source_details
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
    every = fold_alike(comparison.rows)
    shown, rest = _split(every, top, numbers)
    told = [*(alike.row for alike in shown), *([added([alike.row for alike in rest])] if rest else [])]
    quanta = settled(numbers.scale, [row.change_us for row in told], numbers.change - idle_quanta)
    lines = [_row(alike, change, numbers) for alike, change in zip(shown, quanta, strict=False)]
    lines += [Row((f"{len(rest)} more", "", *_parts(told[-1], quanta[-1], numbers)), "rest")] if rest else []
    if not shown and not idle and not numbers.change:
        return None
    whole = signed(numbers.scale, numbers.change, comparison.change_us or 0.0)
    titles = ("calls", "by count", "by time", "change")
    return Table(
        f"What changed, in {numbers.scale.unit}{_count(shown, rest)}",
        (Column("op", "name"), *(Column(name, "number") for name in titles)),
        (*lines, *idle, Row(("the step", "", "", "", whole), "total")),
        (_ROWS_NOTE,),
    )


def modules(comparison: Comparison, numbers: Rounded, top: int) -> Table | None:
    """The modules whose work changed most; they add up to all ops of the table above."""
    if len(comparison.modules) < 2:
        return None
    shown, rest = _split(fold_alike(comparison.modules, by_op=False), top, numbers)
    if not shown:
        return None
    told = [*(alike.row for alike in shown), *([added([alike.row for alike in rest])] if rest else [])]
    names = [*map(_module_name, shown), *([f"{len(rest)} more"] if rest else [])]
    scale, busy = numbers.scale, numbers.change - _idle(comparison.idle, numbers)[1]
    before = math.fsum(row.before_us for row in told)
    # Where the last decimal of the waterfall takes more away than there was here, there was that much.
    lows = settled(scale, [row.before_us for row in told], max(round(scale.quanta(before)), -busy), 0)
    highs = settled(scale, [row.after_us for row in told], sum(lows) + busy, 0)
    lines = [
        Row(
            (name, scale.show(low, row.before_us), scale.show(high, row.after_us), _signed(row, high - low, numbers)),
            "rest" if rest and row is told[-1] else "plain",
        )
        for name, row, low, high in zip(names, told, lows, highs, strict=True)
    ]
    whole = (scale.show(sum(lows), 1.0), scale.show(sum(highs), 1.0), signed(scale, busy, float(busy)))
    titles = ("before", "after", "change")
    return Table(
        f"By module, in {scale.unit}{_count(shown, rest)}",
        (Column("module", "place"), *(Column(name, "number") for name in titles)),
        (*lines, Row(("all modules", *whole), "total")),
        (_MODULES_NOTE,),
    )


def _split(every: Sequence[Alike], top: int, numbers: Rounded) -> tuple[Sequence[Alike], Sequence[Alike]]:
    """Those that have a line each, and the others; a change that rounds to nothing has none, one alone always has."""
    shown = sum(abs(numbers.scale.quanta(alike.row.change_us)) >= 0.5 for alike in every[:top])
    if shown == len(every) - 1:
        shown += 1
    return every[:shown], every[shown:]


def _count(shown: Sequence[Alike], rest: Sequence[Alike]) -> str:
    return f" ({len(shown)} of {len(shown) + len(rest)})" if rest else ""


def _row(alike: Alike, quanta: int, numbers: Rounded) -> Row:
    row = alike.row
    return Row((row.name, calls_words(row), *_parts(row, quanta, numbers)), details=row_details(row, alike.modules))


def _parts(row: ChangeRow, quanta: int, numbers: Rounded) -> tuple[str, str, str]:
    """The change by count, by time, and in all; the part by time is what the part by count leaves of it."""
    scale = numbers.scale
    count = round(scale.quanta(row.count_us)) if row.mean_us else quanta
    by_count, by_time = signed(scale, count, row.count_us), signed(scale, quanta - count, row.mean_us)
    return by_count, by_time, _signed(row, quanta, numbers)


def _signed(row: ChangeRow, quanta: int, numbers: Rounded) -> str:
    return signed(numbers.scale, quanta, row.change_us)


def _idle(bars: Sequence[Bar], numbers: Rounded) -> tuple[list[Row], int]:
    """A line for each cause of idle time that changed, with the number that the waterfall shows; and their sum."""
    known = {account.bar: account.change for account in numbers.accounts}
    changes = [known.get(bar, round(numbers.scale.quanta(bar.change_us))) for bar in bars]
    ranked = sorted(zip(bars, changes, strict=True), key=lambda item: -abs(item[0].change_us))
    lines = [
        Row(
            (account_label(bar.account, bar.group), "", "", "", signed(numbers.scale, change, bar.change_us)),
            details=source_details(bar.source, is_touched=bar.is_touched),
        )
        for bar, change in ranked
        if change
    ]
    return lines, sum(changes)


def _module_name(alike: Alike) -> str:
    name = alike.row.module or alike.row.name or _NO_MODULE
    return f"{name} ({alike.modules} of them)" if alike.modules > 1 else name
