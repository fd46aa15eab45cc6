"""Parses the parameters and series of a sweep from the command line into the configurations to measure."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bottleneck.errors import UsageError
from bottleneck.experiment.interventions import CHANGES

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
    """One curve: the changes applied to the step, torch's device and number of threads; null for the usual ones."""

    name: str
    changes: tuple[str, ...] = ()
    device: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Configuration:
    """One point to measure: a value of each parameter, in one series."""

    values: Mapping[str, Value]
    series: Series

    def settings(self, shared: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """The texts of all settings: those that all points share, and the values of this one."""
        return tuple({**dict(shared), **{name: str(value) for name, value in self.values.items()}}.items())


def parse_parameter(text: str) -> Parameter:
    """The parameter that `NAME=VALUES` spells; values are separated by commas, and ranges include their last value."""
    name, equals, listed = text.partition("=")
    if not equals or not name.isidentifier() or not listed:
        raise UsageError(f"--param {text} is not NAME=VALUES", fix=_WRITTEN)
    values = [value for part in listed.split(",") for value in _parse_part(part.strip(), text)]
    return Parameter(name, tuple(dict.fromkeys(values)))


def configurations_of(parameters: Sequence[Parameter], series: Sequence[Series]) -> tuple[Configuration, ...]:
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
    return tuple(Configuration(dict(zip(names, values, strict=True)), each) for each in series for values in products)


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


EAGER = "eager"

# What people call the ways of compiling a program, and the change that does it.
BACKENDS: Mapping[str, tuple[str, ...]] = {
    EAGER: (),
    "inductor": ("compile",),
    "openvino": ("backend-openvino",),
    "onnxruntime": ("backend-onnxrt",),
    "cudagraphs": ("backend-cudagraphs",),
}
_MOST_THREADS = 4096


def make_series(backends: str | None, devices: str | None, threads: str | None) -> tuple[Series, ...]:
    """Every combination of backends, devices and threads, each a comma-separated list or null for the usual one.

    A name states what differs between the curves, or else what was requested; 'eager' where nothing was.
    """
    ways = [(text, _changes(text)) for text in _listed("--backends", backends)] or [(EAGER, ())]
    places: list[str | None] = [*_listed("--device", devices)]
    counts: list[int | None] = [_count(text) for text in _listed("--threads", threads)]
    lengths = [len(ways), len(places), len(counts)]
    is_named = [length > 1 for length in lengths]
    is_named = is_named if any(is_named) else [ways[0][0] != EAGER, bool(places), bool(counts)]
    found = []
    for (way, changes), device, count in itertools.product(ways, places or [None], counts or [None]):
        words = zip((way, device or "", _threads_words(count)), is_named, strict=True)
        found.append(Series(", ".join(word for word, is_part in words if is_part) or EAGER, changes, device, count))
    return tuple(found)


def shared_words(series: Sequence[Series]) -> str:
    """The device and the number of threads that several curves share, and that their names leave out.

    Empty where none was requested.
    """
    devices, counts = {each.device for each in series}, {each.threads for each in series}
    words = [*(devices if len(devices) == 1 else ()), *(map(_threads_words, counts) if len(counts) == 1 else ())]
    return ", ".join(word for word in words if word) if len(series) > 1 else ""


def _threads_words(count: int | None) -> str:
    return "" if count is None else f"{count} thread{'s' * (count != 1)}"


def _listed(option: str, text: str | None) -> list[str]:
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} {text} names nothing between two commas", fix=f"write {option} with one list: a,b")
    return list(dict.fromkeys(words))


def _changes(text: str) -> tuple[str, ...]:
    """The changes that a backend stands for; several are joined by '+'."""
    return tuple(change for name in text.split("+") for change in _change(name.strip()))


def _change(name: str) -> tuple[str, ...]:
    changes = BACKENDS.get(name, (name,))
    if any(change not in CHANGES for change in changes):
        known = [each for each, parts in BACKENDS.items() if all(part in CHANGES for part in parts)]
        raise UsageError(
            f"--backends {name}: there is no such backend or change",
            why=f"backends are {', '.join(known)}; every change of `bottleneck verify` is one too",
            fix=f"changes are: {', '.join(CHANGES)}; join several with +",
        )
    for change in changes:
        if CHANGES[change].settings is not None:
            raise UsageError(
                f"--backends {name}: this change sets parameters of the workload",
                why="a sweep sets them itself, and two values for one would say nothing",
                fix="name the parameter and its values with --param, or try the change with bottleneck verify",
            )
    return changes


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_THREADS:
        raise UsageError(f"--threads {text} is no number of threads", fix="write --threads 1,2,4")
    return int(text)
