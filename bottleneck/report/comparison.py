"""Builds the document of a comparison.

It has conditions, sentence, counters, and rows that add up to the step's change.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

from bottleneck.report import render_document
from bottleneck.report.analysis_document import verdict_lines
from bottleneck.report.ci.phrases import amount, amounts
from bottleneck.report.document import (
    Document,
    LabelledLine,
    ListSection,
    Section,
    TableRow,
    TableSection,
    Waterfall,
    WaterfallBar,
    columns,
)
from bottleneck.report.json_text import encode
from bottleneck.report.kernel_names import recording_names
from bottleneck.report.terminal import PLAIN, TerminalStyle
from bottleneck.report.text import Scale, account_name, calls_number, describe_shapes, scale_of
from bottleneck.schema.accounts import label_of
from bottleneck.schema.comparison import Bar, ChangeRow, CompareSide, Comparison, Condition, CounterStep
from bottleneck.schema.counters import COUNTERS
from bottleneck.schema.device import without_signs
from bottleneck.schema.records import replace
from bottleneck.units import apportion, format_share, format_us

_NUMBERS = re.compile(r"(\d+)")
_ANY = "*"


@dataclass(frozen=True)
class RowGroup:
    """Rows of one op that changed alike, added up.

    ``modules`` is in how many modules they lie. The numbers by which the paths of the modules differ are '*' in that of
    ``row``.
    """

    row: ChangeRow
    modules: int = 1


def fold_alike(rows: Iterable[ChangeRow], *, by_op: bool = True) -> list[RowGroup]:
    """Folds rows that differ only in numbers in the module's path.

    Most change comes first. ``by_op`` keeps ops, shapes and lines apart; rows that are modules have none.
    """
    folds: dict[object, list[ChangeRow]] = {}
    for row in rows:
        place = _NUMBERS.sub(_ANY, row.module or "")
        key = (row.name, row.shapes, row.source, row.matched_by) if by_op else ()
        folds.setdefault((place, row.kind, key), []).append(row)
    return sorted(map(_folded, folds.values()), key=lambda alike: -abs(alike.row.change_us))


_SUMS = ("calls_before", "calls_after", "before_us", "after_us", "count_us", "mean_us")


def added(rows: Sequence[ChangeRow]) -> ChangeRow:
    """The first row with the calls and times of all."""
    return replace(rows[0], **{name: math.fsum(getattr(row, name) for row in rows) for name in _SUMS})


def _folded(rows: Sequence[ChangeRow]) -> RowGroup:
    """Folds the rows into one.

    Its module is the path that all share, with '*' for the numbers that differ.
    """
    if len(rows) == 1:
        return RowGroup(rows[0])
    paths = list(dict.fromkeys(row.module or "" for row in rows))
    parts = zip_longest(*(_NUMBERS.split(path) for path in paths), fillvalue="")
    common = "".join(column[0] if len(set(column)) == 1 else _ANY for column in parts)
    return RowGroup(replace(added(rows), module=common or None), len(paths))


_KINDS: Mapping[str, str] = {
    "new": "only after",
    "gone": "only before",
    "more": "more calls",
    "fewer": "fewer calls",
    "same": "as before",
}
# The kind of the match is shown only where the match is less than certain.
_MATCHES: Mapping[str, str] = {"op": "matched by its name alone", "kernel family": "matched by kernel family"}
# From here on a factor reads better than percent.
_TIMES_FROM = 3.0


def _labels(comparison: Comparison) -> list[str]:
    """Gives short names of both sides, which stay different."""
    return recording_names([comparison.before.label, comparison.after.label], _NAME_CELLS)


_NAME_CELLS = 33  # so that both stand in a line of a terminal


def title(comparison: Comparison) -> str:
    """'main → HEAD'."""
    return " → ".join(_labels(comparison))


def describe_condition(condition: Condition) -> str:
    """'device: H100 → MI300X; times say nothing of the code'."""
    phrase = condition.what
    if condition.before or condition.after:
        phrase += f": {condition.before or 'none'} → {condition.after or 'none'}"
    return f"{phrase}; {condition.message}" if condition.message else phrase


def sentence(comparison: Comparison) -> str:
    """The comparison's own sentence, or what the step took and takes."""
    if comparison.sentence:
        return comparison.sentence
    before, after = comparison.before.step_us, comparison.after.step_us
    if before is None or after is None:
        both = [counter for counter in comparison.counters if counter.before is not None and counter.after is not None]
        number = sum(counter.before != counter.after for counter in both)
        differing = f"{number or 'none'} of {len(both)} differ{'s' if number < 2 else ''}"
        return f"Only counters can be compared, for a side has no times: {differing}."
    if before == after:
        return f"The step takes {format_us(after)} on both sides."
    return f"The step takes {format_us(after)} instead of {format_us(before)}{percent(before, after)}."


def percent(before: float, after: float) -> str:
    """Formats a change: ' (+12.3 %)', ' (4.0 times as long)'.

    Empty where there is nothing to be a share of.
    """
    if not before or before == after:
        return ""
    if after > _TIMES_FROM * before:
        return f" ({after / before:,.{0 if after > 100 * before else 1}f} times as long)"
    share = after / before - 1
    return f" ({'-' if share < 0 else '+'}{format_share(abs(share))})"


def describe_side(side: CompareSide, name: str) -> str:
    """'mlp, AMD EPYC: Your program waits for Python: 674 of 826 us per step'."""
    path = side.path if not side.path.endswith(side.label) and not side.label.startswith(side.path) else ""
    step = "counters only" if side.step_us is None else f"{format_us(side.step_us)} per step"
    verdict = step if side.verdict is None else verdict_lines(side.verdict)[0].text.rstrip(".")
    return f"{', '.join(filter(None, (name, path, without_signs(side.device))))}: {verdict}"


def describe_call_change(row: ChangeRow) -> str:
    """'12 → 24'; one number where both are the same."""
    before, after = calls_number(row.calls_before), calls_number(row.calls_after)
    return before if before == after else f"{before} → {after}"


def row_details(row: ChangeRow, modules: int = 1) -> tuple[str, ...]:
    """Kind, module, shapes, source line and how it was matched, those that are known."""
    parts = (
        _KINDS.get(row.kind, row.kind),
        f"in {modules} modules" if modules > 1 else "",
        row.module or "",
        _input_words(row.shapes or ""),
        *source_details(row.source, is_touched=row.is_touched),
        _MATCHES.get(row.matched_by, ""),
    )
    return tuple(filter(None, parts))


def _input_words(shapes: str) -> str:
    """Words the shapes of the inputs; those of both sides where they differ."""
    words = " → ".join(filter(None, map(_shapes, shapes.split("->"))))
    return f"inputs {words}" if words else ""


def _shapes(text: str) -> str:
    """Shapes as everywhere; of a list that was cut off those that are whole."""
    if text.endswith("…") and text.startswith("[[") and "]" in text:
        text = text[: text.rindex("]") + 1] + "]"
    return describe_shapes(text)


def source_details(source: str | None, *, is_touched: bool | None) -> tuple[str, ...]:
    """Gives the line, marked where the diff between refs touches it.

    Nothing where it is not known.
    """
    return (f"{source} (changed here)" if is_touched else source,) if source else ()


_MOST_DECIMALS = 3
_IN_WORDS = 3  # accounts that the answer names


class RoundedAccount(NamedTuple):
    """One account of the ledger with its numbers and their difference.

    They are in steps of the last decimal shown.
    """

    bar: Bar
    before: int
    after: int
    change: int


class RoundedChange(NamedTuple):
    """The accounts of a comparison, rounded, and the change of the step.

    They are rounded so that what is on screen adds up. Most change comes first. All numbers are in steps of the last
    decimal.
    """

    scale: Scale
    accounts: tuple[RoundedAccount, ...]
    change: int

    def groups(self, side: Literal["before_us", "after_us"]) -> tuple[tuple[str, float], ...]:
        """Gives the time of a side by group of the ledger.

        Both sides have one order, so that their bars can be compared: most time of the two first.
        """
        us: dict[str, float] = {}
        both_us: dict[str, float] = {}
        for account in self.accounts:
            group = account.bar.group
            us[group] = us.get(group, 0.0) + getattr(account.bar, side)
            both_us[group] = both_us.get(group, 0.0) + account.bar.before_us + account.bar.after_us
        return tuple((group, us[group]) for group in sorted(us, key=lambda group: -both_us[group]))


def rounded(comparison: Comparison) -> RoundedChange:
    """The accounts of a comparison that has times."""
    bars = sorted(comparison.bars, key=lambda bar: -abs(bar.change_us))
    before, after = [bar.before_us for bar in bars], [bar.after_us for bar in bars]
    scale = change_scale(math.fsum(before), math.fsum(after))
    # The largest changes stand in sentences too, with three digits.
    is_off = any(_is_off(scale, one, other) for one, other in zip(before[:_IN_WORDS], after[:_IN_WORDS], strict=True))
    scale = _finer(scale) if is_off else scale
    old, new = (apportion([scale.quanta(value) for value in values]) for values in (before, after))
    accounts = [RoundedAccount(bar, one, other, other - one) for bar, one, other in zip(bars, old, new, strict=True)]
    return RoundedChange(scale, tuple(accounts), sum(new) - sum(old))


def change_scale(before_us: float, after_us: float) -> Scale:
    """Gives the scale of a table that holds both and their difference.

    The difference has two digits if they may be had. The scale has a decimal more where the difference of the rounded
    ends is not the difference in three digits, as sentences show it.
    """
    scale = scale_of(max(before_us, after_us))
    change = after_us - before_us
    digits = 1 - math.floor(math.log10(abs(change) / scale.size)) if change else 0
    scale = replace(scale, decimals=max(scale.decimals, min(digits, _MOST_DECIMALS)))
    is_in_three_digits = 100 <= abs(round(scale.quanta(change))) < 1000
    return _finer(scale) if is_in_three_digits and _is_off(scale, before_us, after_us) else scale


def _is_off(scale: Scale, before_us: float, after_us: float) -> bool:
    """True where the rounded ends lie otherwise apart than the difference rounds to."""
    ends = round(scale.quanta(after_us)) - round(scale.quanta(before_us))
    return round(scale.quanta(after_us - before_us)) != ends


def _finer(scale: Scale) -> Scale:
    """The scale with a decimal more where there is room for one."""
    return replace(scale, decimals=min(scale.decimals + 1, max(scale.decimals, _MOST_DECIMALS)))


def signed(scale: Scale, quanta: int, value: float) -> str:
    """Formats a change with its sign.

    One that is not nothing but rounds to nothing reads '<+0.1' or '>-0.1'.
    """
    if quanta == 0 and value:
        least = f"{10**-scale.decimals:.{scale.decimals}f}"
        return f"<+{least}" if value > 0 else f">-{least}"
    return f"{quanta / 10**scale.decimals:{'+' if quanta else ''},.{scale.decimals}f}"


def settled(scale: Scale, values: Sequence[float], total: int, least: int | None = None) -> list[int]:
    """Rounds the values so that they add up to a given total.

    They are in steps of the last decimal; the total was rounded elsewhere. What is missing goes to the largest values,
    where it shows least; none falls below ``least``.
    """
    parts = apportion([scale.quanta(value) for value in values])
    for index in sorted(range(len(values)), key=lambda index: -abs(values[index])):
        part = parts[index] + total - sum(parts)
        parts[index] = part if least is None else max(part, least)
    return parts


WATERFALL_TITLE = "Where the change comes from"
_MOST_ACCOUNTS = 14
# Where all bars end this far from zero, in units of what they move, they begin at another number.
_FAR = 2.0
_UNMODELLED = "unmodelled"


def waterfall(numbers: RoundedChange) -> Waterfall:
    """The waterfall, most change first; as printed, its lines add up."""
    scale, accounts = numbers.scale, numbers.accounts
    first = _step("before", [account.before for account in accounts], numbers.groups("before_us"), scale)
    bars, at = [first], first.end_us
    for members in _grouped(accounts):
        bars.append(_account_bar(members, scale, at))
        at = bars[-1].end_us
    last = _step("after", [account.after for account in accounts], numbers.groups("after_us"), scale)
    bars.append(replace(last, change=signed(scale, numbers.change, last.end_us - first.end_us)))
    return Waterfall(WATERFALL_TITLE, scale.unit, tuple(bars), *_axis(bars))


def account_label(account: str, group: str) -> str:
    """'overhead: python'; the group alone where the account is all of it."""
    return f"{_UNMODELLED} work" if account == "unknown" else account_name(account, group)


def _grouped(accounts: Sequence[RoundedAccount]) -> list[tuple[RoundedAccount, ...]]:
    """Groups the accounts by the line that they have.

    Most have one each. Last come those that share one: the least, and those that stayed the same.
    """
    held = [account for account in accounts if account.bar.before_us or account.bar.after_us]
    moving = [account for account in held if account.change]
    alone = moving[:_MOST_ACCOUNTS] if len(moving) > _MOST_ACCOUNTS else moving
    others = tuple(account for account in held if account not in alone)
    if len(others) == 1:
        alone, others = [*alone, *others], ()
    return [*((account,) for account in alone), *([others] if others else [])]


def _account_bar(members: Sequence[RoundedAccount], scale: Scale, at: float) -> WaterfallBar:
    before = math.fsum(account.bar.before_us for account in members)
    after = math.fsum(account.bar.after_us for account in members)
    change = signed(scale, sum(account.change for account in members), after - before)
    label, short, group = f"{len(members)} others", f"{len(members)} others", ""
    if len(members) == 1:
        bar = members[0].bar
        short = _UNMODELLED if bar.account == "unknown" else label_of(bar.account)
        label, group = account_label(bar.account, bar.group), bar.group
    return WaterfallBar(
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


def _step(label: str, quanta: Sequence[int], groups: tuple[tuple[str, float], ...], scale: Scale) -> WaterfallBar:
    whole = math.fsum(us for _, us in groups)
    shown = scale.show(sum(quanta), whole)
    before, after = (shown, "") if label == "before" else ("", shown)
    return WaterfallBar(label, label, "", before, after, "", shown, 0.0, whole, groups)


def _axis(bars: Sequence[WaterfallBar]) -> tuple[float, float]:
    """Gives the range of the axis.

    It does not begin at zero where the change would then be too small to see.
    """
    ends = [bar.end_us for bar in bars]
    low, high = min(ends), max(ends)
    span = high - low
    start = low - span / 4 if span > 0 and low > _FAR * span else 0.0
    return start, high if high > start else start + 1.0


_ROWS_NOTE = (
    "more calls: time of the calls that a step makes more or fewer; slower calls: time that each call takes more or "
    "less. Both make the change, and all lines together that of the step."
)
_MODULES_NOTE = "Work alone: waiting belongs to the step as a whole."


def rows(comparison: Comparison, numbers: RoundedChange, top: int) -> TableSection | None:
    """Builds the table of the ops whose time changed most.

    The others are folded. Idle time by cause follows; together they make the change of the step.
    """
    idle, idle_quanta = _idle(comparison.idle, numbers)
    every = fold_alike(comparison.rows)
    shown, rest, count = _split(every, top, numbers)
    listed = [alike.row for alike in shown] + rest
    quanta = settled(numbers.scale, [row.change_us for row in listed], numbers.change - idle_quanta)
    lines = []
    for alike, change in zip(shown, quanta, strict=False):
        cells = (alike.row.name, describe_call_change(alike.row), *_parts(alike.row, change, numbers))
        lines.append(TableRow(cells, details=row_details(alike.row, alike.modules)))
    more = f"{len(every) - len(shown)} more"
    lines += [TableRow((more, "", *_parts(row, quanta[-1], numbers)), "rest") for row in rest]
    if not shown and not idle and not numbers.change:
        return None
    whole = signed(numbers.scale, numbers.change, comparison.change_us or 0.0)
    return TableSection(
        f"What changed, in {numbers.scale.unit}{count}",
        columns("name", "op") + columns("number", "calls", "more calls", "slower calls", "change"),
        (*lines, *idle, TableRow(("the step", "", "", "", whole), "total")),
        (_ROWS_NOTE,),
        menu="What changed",
    )


def modules(comparison: Comparison, numbers: RoundedChange, top: int) -> TableSection | None:
    """Builds the table of the modules whose work changed most.

    They add up to all ops of the table above.
    """
    if len(comparison.modules) < 2:
        return None
    every = fold_alike(comparison.modules, by_op=False)
    shown, rest, count = _split(every, top, numbers)
    if not shown:
        return None
    listed = [alike.row for alike in shown] + rest
    names = [*_module_names(shown), f"{len(every) - len(shown)} more"]
    scale, busy = numbers.scale, numbers.change - _idle(comparison.idle, numbers)[1]
    before = math.fsum(row.before_us for row in listed)
    # Where the last decimal of the waterfall takes more away than there was here, there was that much.
    lows = settled(scale, [row.before_us for row in listed], max(round(scale.quanta(before)), -busy), 0)
    highs = settled(scale, [row.after_us for row in listed], sum(lows) + busy, 0)
    lines: list[TableRow] = []
    for name, row, low, high in zip(names, listed, lows, highs, strict=False):
        times = scale.show(low, row.before_us), scale.show(high, row.after_us)
        cells = (name, *times, signed(scale, high - low, row.change_us))
        lines.append(TableRow(cells, "rest" if len(lines) == len(shown) else "plain"))
    whole = (scale.show(sum(lows), 1.0), scale.show(sum(highs), 1.0), signed(scale, busy, float(busy)))
    return TableSection(
        f"By module, in {scale.unit}{count}",
        columns("place", "module") + columns("number", "before", "after", "change"),
        (*lines, TableRow(("all modules", *whole), "total")),
        (_MODULES_NOTE,),
        menu="By module",
    )


def _split(
    every: Sequence[RowGroup], top: int, numbers: RoundedChange
) -> tuple[Sequence[RowGroup], list[ChangeRow], str]:
    """Gives the groups that have a line each.

    Also gives the sum of the others if there are any, and a word on how many are shown. A change that rounds to nothing
    has no line; one that would be the only other always has.
    """
    shown = sum(abs(numbers.scale.quanta(alike.row.change_us)) >= 0.5 for alike in every[:top])
    if shown >= len(every) - 1:
        return every, [], ""
    return every[:shown], [added([alike.row for alike in every[shown:]])], f" ({shown} of {len(every)})"


def _parts(row: ChangeRow, quanta: int, numbers: RoundedChange) -> tuple[str, str, str]:
    """Formats the change by count, by time, and in all.

    The part by time is what the part by count leaves of it.
    """
    scale = numbers.scale
    count = round(scale.quanta(row.count_us)) if row.mean_us else quanta
    by_count, by_time = signed(scale, count, row.count_us), signed(scale, quanta - count, row.mean_us)
    return by_count, by_time, signed(scale, quanta, row.change_us)


def _idle(bars: Sequence[Bar], numbers: RoundedChange) -> tuple[list[TableRow], int]:
    """Builds a line for each cause of idle time that changed.

    Its number is the one that the waterfall shows. Also gives their sum.
    """
    shown_changes = {account.bar: account.change for account in numbers.accounts}
    changes = [shown_changes.get(bar, round(numbers.scale.quanta(bar.change_us))) for bar in bars]
    ranked = sorted(zip(bars, changes, strict=True), key=lambda item: -abs(item[0].change_us))
    lines: list[TableRow] = []
    for bar, change in ranked:
        if change:
            shown = signed(numbers.scale, change, bar.change_us)
            details = source_details(bar.source, is_touched=bar.is_touched)
            lines.append(TableRow((account_label(bar.account, bar.group), "", "", "", shown), details=details))
    return lines, sum(changes)


def _module_names(shown: Sequence[RowGroup]) -> list[str]:
    """Names modules; groups of one path that changed unlike each other say how."""
    paths = [alike.row.module or alike.row.name or "(no module)" for alike in shown]
    several = Counter(paths)
    names = []
    for path, alike in zip(paths, shown, strict=True):
        how = _KINDS.get(alike.row.kind, alike.row.kind) if several[path] > 1 else ""
        count = f"{alike.modules} of them" if alike.modules > 1 else ""
        facts = ", ".join(filter(None, (count, how)))
        names.append(f"{path} ({facts})" if facts else path)
    return names


TOP = 10
_MOST_MODULES = 8
_FACT_WIDTH = 8
_SIDES = ("before", "after")
_VOID = "Not only the code differs, so that these times do not compare the code:"
_BESIDES, _ALSO = "Not only the code differs:", "Also:"


def build(comparison: Comparison, top: int = TOP) -> Document:
    """The document of a comparison, with at most ``top`` ops."""
    sections: list[Section | None] = []
    if comparison.change_us is not None and comparison.bars:
        numbers = rounded(comparison)
        sections += [
            waterfall(numbers),
            rows(comparison, numbers, top),
            modules(comparison, numbers, min(top, _MOST_MODULES)),
        ]
    sections.append(_counters(comparison))
    sides, labels = (comparison.before, comparison.after), _labels(comparison)
    notes = (*comparison.notes, *_whole_names(comparison, labels))
    if notes:
        sections.append(ListSection("Notes", tuple((note,) for note in notes)))
    return Document(
        headline="compare",
        subject=title(comparison),
        conditions=_conditions(comparison),
        sentence=sentence(comparison),
        lines=_lines(comparison),
        tone=_tone(comparison),
        facts=tuple(zip(_SIDES, map(describe_side, sides, labels), strict=True)),
        fact_width=_FACT_WIDTH,
        sections=tuple(section for section in sections if section is not None),
    )


def _whole_names(comparison: Comparison, labels: Sequence[str]) -> list[str]:
    """Gives the names that were shortened, whole."""
    sides = zip(_SIDES, (comparison.before, comparison.after), labels, strict=True)
    return [f"{when}: {side.label}" for when, side, label in sides if side.label != label]


def _tone(comparison: Comparison) -> str:
    """'bad' where the step became slower beyond the noise, 'good' where it became faster."""
    floor, change = comparison.time_floor, comparison.change_us
    is_void = any(condition.weight == "breaks" for condition in comparison.conditions)
    if floor is None or not change or floor.is_within or is_void:
        return ""
    return "bad" if change > 0 else "good"


def _lines(comparison: Comparison) -> tuple[LabelledLine, ...]:
    """Gives the change in a few words, then what to do and why.

    There is nothing where a side has no times.
    """
    if not comparison.headline:
        return ()
    return LabelledLine("", comparison.headline), *(LabelledLine(line.label, line.text) for line in comparison.answer)


def _conditions(comparison: Comparison) -> tuple[ListSection, ...]:
    """The differences besides the code, those first that make a comparison of times void."""
    void = [describe_condition(entry) for entry in comparison.conditions if entry.weight == "breaks"]
    others = [describe_condition(entry) for entry in comparison.conditions if entry.weight != "breaks"]
    headings = ((_VOID, void), (_ALSO if void else _BESIDES, others))
    return tuple(ListSection(heading, tuple((entry,) for entry in texts)) for heading, texts in headings if texts)


def _counters(comparison: Comparison) -> TableSection | None:
    """Builds the table of the counters that differ.

    A note has those that are the same or known on one side only.
    """
    both = [counter for counter in comparison.counters if counter.before is not None and counter.after is not None]
    if not comparison.counters:
        return None
    rows = [
        TableRow((_label(counter), *amounts(counter.name, counter.before, counter.after)))
        for counter in both
        if counter.before != counter.after
    ]
    same = ", ".join(
        f"{_label(counter)} {amount(counter.name, counter.before)}"
        for counter in both
        if counter.before == counter.after
    )
    notes = [f"The same on both sides: {same}."] if same else []
    heads = columns("words", "counter") + columns("number", "before", "after", "change")
    title = "Counters that differ, per step" if rows else "Counters: none that both sides know differs"
    title = title if both else "Counters: none that both sides know"
    return TableSection(title, heads, tuple(rows), (*notes, *_not_compared(comparison)), is_cards=True, menu="Counters")


def _label(step: CounterStep) -> str:
    name = COUNTERS[step.name].many if step.name in COUNTERS else step.name
    return f"{name} (at least)" if step.is_lower_bound else name


def _not_compared(comparison: Comparison) -> list[str]:
    """Describes the counters that a side does not know.

    Those with the same reason stand in one sentence.
    """
    reasons: dict[str, list[str]] = {}
    for counter in comparison.counters:
        sides = (("before", counter.before, comparison.before), ("after", counter.after, comparison.after))
        missing = [f"{name}: {_why(counter.name, side)}" for name, value, side in sides if value is None]
        if missing:
            reasons.setdefault("; ".join(missing), []).append(_label(counter))
    return [f"Not compared: {', '.join(names)}; not known {why}." for why, names in reasons.items()]


def _why(name: str, side: CompareSide) -> str:
    counts = side.counts
    if counts is None:
        return "it has no counters"
    return counts.unknown.get(name) or counts.unstable.get(name) or "no reason given"


def render(comparison: Comparison, form: str, style: TerminalStyle = PLAIN, *, top: int = TOP) -> str:
    """Renders the comparison for a terminal, as markdown, JSON or a page.

    The markdown is for a comment on a pull request; in it the waterfall is as narrow as a phone.
    """
    return encode(comparison) if form == "json" else render_document(build(comparison, top), form, style)
