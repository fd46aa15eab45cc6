"""The points that a sweep was asked for: values of parameters from the command line, multiplied out, in each series."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bottleneck.errors import UsageError

Value = int | float | str

# Each point is a process of its own that lasts ten seconds: more than this is a mistake, or a night.
MOST_POINTS = 1000
_RANGE = re.compile(r"(?P<first>[^:]+):(?P<last>[^:]+)(?::(?P<times>x?)(?P<step>[^:]+))?")
_WRITTEN = "write NAME=1,2,4 or a range: NAME=1:256:x2 doubles from 1 to 256, NAME=0:100:25 adds 25"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the workload and the values that it takes, in the order in which they were named."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Series:
    """How the step is run in one curve: changes applied to it by name, torch's device and threads; null: as it is."""

    name: str
    changes: tuple[str, ...] = ()
    device: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Place:
    """One point to measure."""

    values: Mapping[str, Value]
    series: Series

    def settings(self, shared: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """The texts of all settings here: those that all points share, and the values of this one."""
        return tuple({**dict(shared), **{name: str(value) for name, value in self.values.items()}}.items())


def parse_parameter(text: str) -> Parameter:
    """The parameter that `NAME=VALUES` spells; values are separated by commas, and ranges include their last value."""
    name, equals, listed = text.partition("=")
    if not equals or not name.isidentifier() or not listed:
        raise UsageError(f"--param {text} is not NAME=VALUES", fix=_WRITTEN)
    values = [value for part in listed.split(",") for value in _parse_part(part.strip(), text)]
    return Parameter(name, tuple(dict.fromkeys(values)))


def places_of(parameters: Sequence[Parameter], series: Sequence[Series]) -> tuple[Place, ...]:
    """Every combination of the values in every series: series by series, the first parameter changing slowest."""
    twice = next((one.name for one in parameters if sum(one.name == each.name for each in parameters) > 1), None)
    if twice is not None:
        raise UsageError(f"--param {twice} is given twice", fix=f"name all its values at once: --param {twice}=1,2,4")
    count = math.prod(len(each.values) for each in parameters) * len(series)
    if count > MOST_POINTS:
        raise UsageError(
            f"that makes {count} points, more than {MOST_POINTS}",
            why="each of them is measured in a process of its own, for about ten seconds",
            fix="name fewer values; a range in doublings is written 1:1024:x2",
        )
    names = [each.name for each in parameters]
    products = list(itertools.product(*(each.values for each in parameters)))
    return tuple(Place(dict(zip(names, values, strict=True)), each) for each in series for values in products)


def _parse_part(part: str, text: str) -> list[Value]:
    match = _RANGE.fullmatch(part)
    if match is None:
        if not part:
            raise UsageError(f"--param {text} has an empty value", fix=_WRITTEN)
        return [_parse_value(part)]
    first, last, step = (_parse_value(match[name] or "1") for name in ("first", "last", "step"))
    if isinstance(first, str) or isinstance(last, str) or isinstance(step, str):
        raise UsageError(f"--param {text}: {part} is no range of numbers", fix=_WRITTEN)
    grows = step > 1 and first > 0 if match["times"] else step > 0
    if not (grows and first <= last):
        raise UsageError(f"--param {text}: {part} never gets from {first} to {last}", fix=_WRITTEN)
    return _range(first, last, step, is_product=bool(match["times"]))


def _range(first: int | float, last: int | float, step: int | float, *, is_product: bool) -> list[Value]:
    """The values from the first to the last, at most one more than a sweep may have."""
    values: list[Value] = []
    for index in range(MOST_POINTS + 1):
        value = first * step**index if is_product else first + step * index
        # Sums of decimals end in digits that nobody wrote.
        value = round(value, 12) if isinstance(value, float) else value
        if value > last:
            break
        values.append(value)
    return values


def _parse_value(text: str) -> Value:
    """A whole number, a finite decimal one, or the word itself."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text
