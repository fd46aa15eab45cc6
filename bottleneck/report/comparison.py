"""Builds the document of a comparison: conditions, sentence, and rows that add up to the change of the step."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

from bottleneck.report.analysis_document import headline
from bottleneck.report.document import Column, Notes, Row, Table
from bottleneck.report.kernel_names import cut_end
from bottleneck.report.terminal import Look
from bottleneck.report.text import Scale, apportion, scale_of
from bottleneck.report.wording import ACCOUNT_LABELS, calls_number, shapes_words
from bottleneck.schema.comparison import Bar, ChangeRow, CompareSide, Comparison, Condition, CounterStep
from bottleneck.schema.counters import COUNTERS
from bottleneck.units import format_share, format_us

_NUMBERS = re.compile(r"(\d+)")
_ANY = "*"


@dataclass(frozen=True)
class Alike:
    """Rows of one op that changed alike, added up, and in how many modules they lie.

    The numbers by which the paths of the modules differ are '*' in that of ``row``.
    """

    row: ChangeRow
    modules: int = 1


def fold_alike(rows: Iterable[ChangeRow], *, by_op: bool = True) -> list[Alike]:
    """The rows, those alike but for numbers in the module's path together; most change first.

    ``by_op`` keeps ops, shapes and lines apart; rows that are modules have none.
    """
    folds: dict[object, list[ChangeRow]] = {}
    for row in rows:
        place = _NUMBERS.sub(_ANY, row.module or "")
        key = (row.name, row.shapes, row.source, row.matched_by) if by_op else ()
        folds.setdefault((place, row.kind, key), []).append(row)
    return sorted(map(_folded, folds.values()), key=lambda alike: -abs(alike.row.change_us))


def added(rows: Sequence[ChangeRow]) -> ChangeRow:
    """The first row with the calls and times of all."""
    return replace(
        rows[0],
        calls_before=math.fsum(row.calls_before for row in rows),
        calls_after=math.fsum(row.calls_after for row in rows),
        before_us=math.fsum(row.before_us for row in rows),
        after_us=math.fsum(row.after_us for row in rows),
        count_us=math.fsum(row.count_us for row in rows),
        mean_us=math.fsum(row.mean_us for row in rows),
    )


def _folded(rows: Sequence[ChangeRow]) -> Alike:
    if len(rows) == 1:
        return Alike(rows[0])
    paths = list(dict.fromkeys(row.module or "" for row in rows))
    return Alike(replace(added(rows), module=_common(paths) or None), len(paths))


def _common(paths: Sequence[str]) -> str:
    """The path that all share, with '*' for the numbers that differ."""
    parts = zip_longest(*(_NUMBERS.split(path) for path in paths), fillvalue="")
    return "".join(column[0] if len(set(column)) == 1 else _ANY for column in parts)


_KINDS: Mapping[str, str] = {"more": "more calls", "fewer": "fewer calls", "same": "as before"}
# How a partner was found is told only where it is less than certain.
_MATCHES: Mapping[str, str] = {"op": "matched by its name alone", "kernel family": "matched by kernel family"}
# From here on a factor reads better than percent.
_TIMES_FROM = 3.0
CHANGED_HERE = "changed here"


def title(comparison: Comparison) -> str:
    """'main → HEAD'."""
    return f"{comparison.before.label} → {comparison.after.label}"


def condition_words(condition: Condition) -> str:
    """'device: H100 → MI300X; times say nothing of the code'."""
    told = condition.what
    if condition.before or condition.after:
        told += f": {condition.before or 'none'} → {condition.after or 'none'}"
    return f"{told}; {condition.message}" if condition.message else told


def sentence(comparison: Comparison) -> str:
    """The comparison's own sentence, or what the step took and takes."""
    if comparison.sentence:
        return comparison.sentence
    before, after = comparison.before.step_us, comparison.after.step_us
    if before is None or after is None:
        return f"Only counters can be compared, for a side has no times: {_count_differing(comparison)}."
    if before == after:
        return f"The step takes {format_us(after)} on both sides."
    return f"The step takes {format_us(after)} instead of {format_us(before)}{percent(before, after)}."


def _count_differing(comparison: Comparison) -> str:
    """'2 of 14 differ'."""
    both = [each for each in comparison.counters if each.before is not None and each.after is not None]
    differing = sum(each.before != each.after for each in both)
    return f"{differing or 'none'} of {len(both)} differ{'s' if differing < 2 else ''}"


def percent(before: float, after: float) -> str:
    """' (+12.3 %)', ' (4.0 times as long)'; empty where there is nothing to be a share of."""
    if not before or before == after:
        return ""
    if after > _TIMES_FROM * before:
        return f" ({after / before:,.{0 if after > 100 * before else 1}f} times as long)"
    share = after / before - 1
    return f" ({'-' if share < 0 else '+'}{format_share(abs(share))})"


def side_words(side: CompareSide) -> str:
    """'mlp, 826 us per step, overhead-bound (82.1 %), AMD EPYC, sample_traces/mlp'."""
    parts = [
        "counters only" if side.step_us is None else f"{format_us(side.step_us)} per step",
        "" if side.verdict is None else f"{headline(side.verdict)} ({format_share(side.verdict.share)})",
        side.device,
        side.path if not side.path.endswith(side.label) and not side.label.startswith(side.path) else "",
    ]
    return ", ".join(part for part in (side.label, *parts) if part)


def calls_words(row: ChangeRow) -> str:
    """'12 → 24'; one number where both are the same."""
    before, after = calls_number(row.calls_before), calls_number(row.calls_after)
    if row.calls_before == 0 or row.calls_after == 0:
        before, after = (
            "0" if not calls else text for calls, text in ((row.calls_before, before), (row.calls_after, after))
        )
    return before if before == after else f"{before} → {after}"


def row_details(row: ChangeRow, modules: int = 1) -> tuple[str, ...]:
    """Kind, module, shapes, source line and how it was matched, those that are known."""
    parts = (
        _KINDS.get(row.kind, row.kind),
        f"in {modules} modules" if modules > 1 else "",
        row.module or "",
        # Shapes of both sides stand beside one another where they differ.
        " → ".join(map(_shapes, row.shapes.split("->"))) if row.shapes else "",
        *source_details(row.source, is_touched=row.is_touched),
        _MATCHES.get(row.matched_by, ""),
    )
    return tuple(part for part in parts if part)


def _shapes(text: str) -> str:
    """Shapes as everywhere; of a list that was cut off those that are whole."""
    if text.endswith("…") and text.startswith("[[") and "]" in text:
        text = text[: text.rindex("]") + 1] + "]"
    return shapes_words(text)


def source_details(source: str | None, *, is_touched: bool | None) -> tuple[str, ...]:
    """The line, marked where the diff between the refs touches it; nothing where it is not known."""
    return (f"{source} ({CHANGED_HERE})" if is_touched else source,) if source else ()


_MOST_DECIMALS = 3


@dataclass(frozen=True)
class Account:
    """One account of the ledger with its numbers in steps of the last decimal shown."""

    bar: Bar
    before: int
    after: int

    @property
    def change(self) -> int:
        """What it takes more, as its two numbers on screen say."""
        return self.after - self.before


@dataclass(frozen=True)
class Rounded:
    """The accounts of a comparison, rounded so that what is on screen adds up: most change first."""

    scale: Scale
    accounts: tuple[Account, ...]

    @property
    def change(self) -> int:
        """What the step takes more, in steps of the last decimal."""
        return sum(account.change for account in self.accounts)


def rounded(comparison: Comparison) -> Rounded:
    """The accounts of a comparison that has times."""
    bars = sorted(comparison.bars, key=lambda bar: -abs(bar.change_us))
    before, after = [bar.before_us for bar in bars], [bar.after_us for bar in bars]
    scale = change_scale(math.fsum(before), math.fsum(after))
    columns = (apportion([scale.quanta(value) for value in values]) for values in (before, after))
    return Rounded(scale, tuple(map(Account, bars, *columns)))


def change_scale(before_us: float, after_us: float) -> Scale:
    """The scale of a table that holds both and their difference, with two digits of that one if they may be had.

    It has a decimal more where the difference of the rounded ends is not the difference in three digits, as sentences
    tell it.
    """
    scale = scale_of(max(before_us, after_us))
    change = after_us - before_us
    digits = 1 - math.floor(math.log10(abs(change) / scale.size)) if change else 0
    scale = replace(scale, decimals=max(scale.decimals, min(digits, _MOST_DECIMALS)))
    told, ends = round(scale.quanta(change)), round(scale.quanta(after_us)) - round(scale.quanta(before_us))
    is_off = told != ends and 100 <= abs(told) < 1000 and scale.decimals < _MOST_DECIMALS
    return replace(scale, decimals=scale.decimals + 1) if is_off else scale


def signed(scale: Scale, quanta: int, value: float) -> str:
    """A change; one that is not nothing but rounds to nothing reads '<+0.1' or '>-0.1'."""
    if quanta == 0 and value:
        least = f"{10**-scale.decimals:.{scale.decimals}f}"
        return f"<+{least}" if value > 0 else f">-{least}"
    return f"{quanta / 10**scale.decimals:{'+' if quanta else ''}.{scale.decimals}f}"


def settled(scale: Scale, values: Sequence[float], total: int, least: int | None = None) -> list[int]:
    """The values in steps of the last decimal, made to add up to a total that was rounded elsewhere.

    What is missing goes to the largest values, where it shows least; none falls below ``least``.
    """
    parts = apportion([scale.quanta(value) for value in values])
    for index in sorted(range(len(values)), key=lambda index: -abs(values[index])):
        part = parts[index] + total - sum(parts)
        parts[index] = part if least is None else max(part, least)
    return parts


_MOST_ACCOUNTS = 14
# Where all bars end this far from zero, in units of what they move, they begin at another number.
_FAR = 2.0
_WIDE = 64
_LEAST_BAR, _MOST_BAR = 8, 40
_WIDEST_LABEL, _NARROW_LABEL = 24, 15
_GAP = "  "
_NO_PRICE = "without a price"
# The bar of the step itself: neither of them is the mark of a group.
_STEP_MARK, _STEP_MARK_ASCII = "▒", "o"


@dataclass(frozen=True)
class Fall:
    """A line: its label in full and short, its numbers as shown, and where its bar begins and ends.

    ``group`` is empty for the step itself and for accounts folded together; ``amount`` is the one number of a narrow
    screen: the change, or the time of the step.
    """

    label: str
    short: str
    group: str
    before: str
    after: str
    change: str
    amount: str
    start_us: float
    end_us: float
    is_step: bool = False


@dataclass(frozen=True)
class Waterfall:
    """All lines, the first and the last of them the step, and where the axis of the bars begins and ends."""

    unit: str
    falls: tuple[Fall, ...]
    low_us: float
    high_us: float
    note: str = ""


def waterfall(numbers: Rounded) -> Waterfall:
    """The waterfall, most change first; as printed, its lines add up."""
    scale, accounts = numbers.scale, numbers.accounts
    first = _step("before", [account.before for account in accounts], [a.bar.before_us for a in accounts], scale)
    falls, at = [first], first.end_us
    for members in _grouped(accounts):
        falls.append(_fall(members, scale, at))
        at = falls[-1].end_us
    last = _step("after", [account.after for account in accounts], [a.bar.after_us for a in accounts], scale)
    falls.append(replace(last, change=signed(scale, numbers.change, last.end_us - first.end_us)))
    low, high = _axis(falls)
    note = f"The bars begin at {low / scale.size:.{scale.decimals}f} {scale.unit}, not at 0." if low else ""
    return Waterfall(scale.unit, tuple(falls), low, high, note)


def account_label(account: str, group: str) -> str:
    """'overhead: python'; the group alone where the account is all of it."""
    short = short_label(account)
    if account == "unknown":
        return f"work {_NO_PRICE}"
    return group if short == group else f"{group}: {short}"


def short_label(account: str) -> str:
    """'python' of 'overhead.python'."""
    if account == "unknown":
        return _NO_PRICE
    return ACCOUNT_LABELS.get(account, account.partition(".")[2] or account)


def waterfall_lines(drawn: Waterfall, look: Look) -> list[Text]:
    """The waterfall in this width: all numbers and bars where it is wide, else one number and, if they fit, bars."""
    is_wide = look.width >= _WIDE
    rows = [_cells(fall, look, is_wide=is_wide) for fall in drawn.falls]
    titles = (f"in {drawn.unit}", *(("before", "after", "change") if is_wide else ("",)))
    widths = [max(cell_len(row[index]) for row in (titles, *rows)) for index in range(len(titles))]
    numbers = sum(width + len(_GAP) for width in widths[1:])
    widths[0] = max(min(widths[0], look.width - numbers - 2), 4)
    room = min(look.width - 2 - widths[0] - numbers - len(_GAP), _MOST_BAR)
    lines = [Text(("  " + _set(titles, widths, look)).rstrip(), "dim")]
    for fall, row in zip(drawn.falls, rows, strict=True):
        lines.append(Text.assemble(f"{_mark(fall, look)} ", (_set(row, widths, look), "bold" if fall.is_step else "")))
        if room >= _LEAST_BAR:
            lines[-1].append_text(_bar(fall, drawn, room, look))
        lines[-1].rstrip()
    return lines


def _grouped(accounts: Sequence[Account]) -> list[tuple[Account, ...]]:
    """The accounts that have a line each, and last those that share one: the least, and those that stayed the same."""
    held = [account for account in accounts if account.bar.before_us or account.bar.after_us]
    moving = [account for account in held if account.change]
    alone = moving[:_MOST_ACCOUNTS] if len(moving) > _MOST_ACCOUNTS else moving
    others = tuple(account for account in held if account not in alone)
    if len(others) == 1:
        alone, others = [*alone, *others], ()
    return [*((account,) for account in alone), *([others] if others else [])]


def _fall(members: Sequence[Account], scale: Scale, at: float) -> Fall:
    before, after = (
        math.fsum(side) for side in zip(*((a.bar.before_us, a.bar.after_us) for a in members), strict=True)
    )
    change = signed(scale, sum(account.change for account in members), after - before)
    bar = members[0].bar
    label, short, group = f"{len(members)} others", f"{len(members)} others", ""
    if len(members) == 1:
        label, short, group = account_label(bar.account, bar.group), short_label(bar.account), bar.group
    return Fall(
        label=label,
        short=short,
        group=group,
        before=scale.show(sum(account.before for account in members), before),
        after=scale.show(sum(account.after for account in members), after),
        change=change,
        amount=change,
        start_us=at,
        end_us=at + after - before,
    )


def _step(label: str, quanta: Sequence[int], us: Sequence[float], scale: Scale) -> Fall:
    whole = math.fsum(us)
    shown = scale.show(sum(quanta), whole)
    before, after = (shown, "") if label == "before" else ("", shown)
    return Fall(label, label, "", before, after, "", shown, 0.0, whole, is_step=True)


def _axis(falls: Sequence[Fall]) -> tuple[float, float]:
    """Where the bars begin and end: not at zero where the change would then be too small to see."""
    ends = [fall.end_us for fall in falls]
    low, high = min(ends), max(ends)
    span = high - low
    start = low - span / 4 if span > 0 and low > _FAR * span else 0.0
    return start, high if high > start else start + 1.0


def _cells(fall: Fall, look: Look, *, is_wide: bool) -> tuple[str, ...]:
    if is_wide:
        return (
            cut_end(look.text(fall.label), _WIDEST_LABEL, look.glyphs.ellipsis),
            fall.before,
            fall.after,
            fall.change,
        )
    return cut_end(look.text(fall.short), _NARROW_LABEL, look.glyphs.ellipsis), fall.amount


def _set(cells: Sequence[str], widths: Sequence[int], look: Look) -> str:
    label = cut_end(cells[0], widths[0], look.glyphs.ellipsis)
    numbers = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return _GAP.join([label + " " * (widths[0] - cell_len(label)), *numbers])


def _mark(fall: Fall, look: Look) -> str:
    return look.glyphs.bars.get(fall.group, " ")


def _bar(fall: Fall, drawn: Waterfall, room: int, look: Look) -> Text:
    """The bar of a line in so many cells; what is not nothing has at least one."""
    cells = [
        round((min(max(at, drawn.low_us), drawn.high_us) - drawn.low_us) / (drawn.high_us - drawn.low_us) * room)
        for at in (fall.start_us, fall.end_us)
    ]
    left, right = min(cells), max(cells)
    if left == right and fall.start_us != fall.end_us:
        left, right = (left, left + 1) if left < room else (left - 1, left)
    if fall.is_step:
        glyph = _STEP_MARK if look.encoding.lower().startswith("utf") else _STEP_MARK_ASCII
    else:
        glyph = look.glyphs.bars.get(fall.group, look.glyphs.bars["unknown"])
    style = "dim" if fall.is_step else "red" if fall.end_us > fall.start_us else "green"
    return Text.assemble(_GAP, " " * left, (glyph * (right - left), style))


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


TOP = 10
_MOST_MODULES = 8
WATERFALL_TITLE = "Where the change comes from"


@dataclass(frozen=True)
class ComparisonDocument:
    """The parts in reading order; all text is uncleaned. ``breaks`` are conditions that void a difference of times."""

    title: str
    breaks: tuple[str, ...]
    colours: tuple[str, ...]
    sentence: str
    facts: tuple[tuple[str, str], ...]
    waterfall: Waterfall | None
    parts: tuple[Table | Notes, ...]


def build(comparison: Comparison, top: int = TOP) -> ComparisonDocument:
    """The document of a comparison, with at most ``top`` ops."""
    parts: list[Table | Notes | None] = []
    drawn = None
    if comparison.change_us is not None and comparison.bars:
        numbers = rounded(comparison)
        drawn = waterfall(numbers)
        parts += [
            rows(comparison, numbers, top),
            modules(comparison, numbers, min(top, _MOST_MODULES)),
        ]
    parts += [_counters(comparison), _notes(comparison)]
    return ComparisonDocument(
        title=title(comparison),
        breaks=tuple(condition_words(each) for each in comparison.conditions if each.weight == "breaks"),
        colours=tuple(condition_words(each) for each in comparison.conditions if each.weight != "breaks"),
        sentence=sentence(comparison),
        facts=(("before", side_words(comparison.before)), ("after", side_words(comparison.after))),
        waterfall=drawn,
        parts=tuple(part for part in parts if part is not None),
    )


def _counters(comparison: Comparison) -> Table | None:
    """The counters that differ, and in a note those that are the same or known on one side only."""
    known = [(_label(each), each.before, each.after) for each in comparison.counters]
    both = [(name, before, after) for name, before, after in known if before is not None and after is not None]
    if not known:
        return None
    rows = [
        Row((name, f"{before:,}", f"{after:,}", f"{after - before:+,}"))
        for name, before, after in both
        if before != after
    ]
    same = ", ".join(f"{name} {before:,}" for name, before, after in both if before == after)
    notes = [f"The same on both sides: {same}."] if same else []
    columns = (Column("counter", "words"), *(Column(name, "number") for name in ("before", "after", "change")))
    title = "Counters that differ, per step" if rows else "Counters: none that both sides know differs"
    title = title if both else "Counters: none that both sides know"
    return Table(title, columns, tuple(rows), (*notes, *_not_compared(comparison)))


def _label(step: CounterStep) -> str:
    return COUNTERS[step.name].many if step.name in COUNTERS else step.name


def _not_compared(comparison: Comparison) -> list[str]:
    """The counters that a side does not know, those with the same reason in one sentence."""
    reasons: dict[str, list[str]] = {}
    for each in comparison.counters:
        sides = (("before", each.before, comparison.before), ("after", each.after, comparison.after))
        missing = [f"{name}: {_why(each.name, side)}" for name, value, side in sides if value is None]
        if missing:
            reasons.setdefault("; ".join(missing), []).append(_label(each))
    return [f"Not compared: {', '.join(names)}; not known {why}." for why, names in reasons.items()]


def _why(name: str, side: CompareSide) -> str:
    counts = side.counts
    if counts is None:
        return "it has no counters"
    return counts.unknown.get(name) or counts.unstable.get(name) or "no reason given"


def _notes(comparison: Comparison) -> Notes | None:
    return Notes("Notes", tuple((note,) for note in comparison.notes)) if comparison.notes else None
