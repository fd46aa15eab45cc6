"""Changes rounded for people: signed numbers of one unit that re-add to the change printed beneath them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bottleneck.compared import Bar, Comparison
from bottleneck.report.numbers import Scale, apportion, scale_of

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
