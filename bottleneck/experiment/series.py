"""The curves of a sweep, from the command line: how the step is compiled, on which device, with how many threads."""

import itertools
from collections.abc import Mapping, Sequence

from bottleneck.errors import UsageError
from bottleneck.experiment.grid import Series
from bottleneck.harness.changes import CHANGES

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

    A name tells what differs between the curves, or else what was asked for; 'eager' where nothing was.
    """
    ways = [(text, _changes(text)) for text in _listed("--backends", backends)] or [(EAGER, ())]
    places: list[str | None] = [*_listed("--device", devices)]
    counts: list[int | None] = [_count(text) for text in _listed("--threads", threads)]
    lengths = [len(ways), len(places), len(counts)]
    is_told = [length > 1 for length in lengths]
    is_told = is_told if any(is_told) else [ways[0][0] != EAGER, bool(places), bool(counts)]
    found = []
    for (way, changes), device, count in itertools.product(ways, places or [None], counts or [None]):
        words = zip((way, device or "", _threads_words(count)), is_told, strict=True)
        found.append(Series(", ".join(word for word, told in words if told) or EAGER, changes, device, count))
    return tuple(found)


def shared_words(series: Sequence[Series]) -> str:
    """What all of several curves have in common and their names do not tell: the one device, the one number of threads.

    Empty where nothing was asked for.
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
