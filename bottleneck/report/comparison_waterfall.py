"""The change of a step as a waterfall: before, what each account adds or takes, after; drawn in characters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text

from bottleneck.report.comparison_numbers import Account, Rounded, signed
from bottleneck.report.look import Look
from bottleneck.report.names import cut_end
from bottleneck.report.numbers import Scale
from bottleneck.report.words import ACCOUNT_LABELS

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
