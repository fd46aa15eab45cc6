"""Rounding for people: one unit per table, and parts that re-add to the total that is printed with them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "-"


@dataclass(frozen=True)
class Scale:
    """The unit of a table: its name, its size in the unit of the data, and how many decimals it shows."""

    unit: str
    size: float
    decimals: int

    def quanta(self, value: float) -> float:
        """The value in steps of the last decimal shown."""
        return value / self.size * 10.0**self.decimals

    def show(self, quanta: int, value: float) -> str:
        """The rounded number; what is nonzero but rounds to nothing reads '<0.01'."""
        if quanta == 0 and value > 0:
            return f"<{10**-self.decimals:.{self.decimals}f}"
        return f"{quanta / 10**self.decimals:.{self.decimals}f}"

    def one(self, value: float | None) -> str:
        """A number that belongs to no sum."""
        if value is None or not math.isfinite(value):
            return UNKNOWN
        return self.show(round(self.quanta(value)), value)

    def column(self, values: Sequence[float]) -> tuple[str, ...]:
        """Numbers that belong to one sum, and after them that sum: as printed, they add up exactly."""
        parts = apportion([self.quanta(value) for value in values])
        shown = [self.show(part, value) for part, value in zip(parts, values, strict=True)]
        return (*shown, self.show(sum(parts), math.fsum(values)))


PERCENT = Scale("%", 0.01, 1)


def scale_of(us: float) -> Scale:
    """The scale in which a table that adds up to this many microseconds reads best: four digits in its total."""
    unit, size = next(((unit, size) for unit, size in (("s", 1e6), ("ms", 1e3)) if us >= 10 * size), ("us", 1.0))
    magnitude = math.floor(math.log10(us / size)) if us > 0 else 0
    return Scale(unit, size, min(max(3 - magnitude, 0), 3))


def percents(shares: Sequence[float]) -> tuple[str, ...]:
    """Shares as percentages, and after them their sum: as printed, they add up; a part never reads 100 %."""
    *parts, total = PERCENT.column(shares)
    whole = [
        ">99.9" if part == "100.0" and share < 1 - 1e-9 else part for part, share in zip(parts, shares, strict=True)
    ]
    return tuple(f"{text} %" for text in (*whole, total))


def apportion_groups(groups: Sequence[Sequence[float]]) -> list[list[int]]:
    """Whole numbers beside the values of each group; the sums of groups are rounded first, as they are told alone."""
    totals = apportion([math.fsum(group) for group in groups])
    return [apportion(group, total) for group, total in zip(groups, totals, strict=True)]


def apportion(values: Sequence[float], total: int | None = None) -> list[int]:
    """Whole numbers beside the values that add up to their rounded sum (largest remainder; earlier wins a tie).

    ``total`` is a sum that was rounded elsewhere, up or down.
    """
    floors = [math.floor(value) for value in values]
    missing = (round(math.fsum(values)) if total is None else total) - sum(floors)
    by_remainder = sorted(range(len(values)), key=lambda index: floors[index] - values[index])
    raised = set(by_remainder[:missing])
    return [floor + (index in raised) for index, floor in enumerate(floors)]
