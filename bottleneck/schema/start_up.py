"""Records of a program's start, from the process to its first steady step.

The profiled process fills them; recording and analysis keep them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.records import Doc
from bottleneck.units import format_us

StartKind = Literal[
    "interpreter",
    "import",
    "cuda",
    "weights",
    "data",
    "compile",
    "autotune",
    "capture",
    "program",
    "warm-up",
    "steps",
]

# Each kind as a report names it.
START_KINDS: Mapping[StartKind, str] = {
    "interpreter": "interpreter",
    "import": "imports",
    "cuda": "CUDA context",
    "weights": "weights",
    "data": "data loading",
    "compile": "compiling",
    "autotune": "autotuning",
    "capture": "graph capture",
    "program": "its own Python",
    "warm-up": "warm-up",
    "steps": "steps themselves",
}

# Findings on the start of a program.
START_FINDINGS = frozenset({"compiles-at-start", "heavy-import", "own-code-at-start", "slow-weights", "tunes-at-start"})


@dataclass(frozen=True)
class StartPart:
    """One part of a program's start.

    Parts do not overlap: an import inside of another, or of a compilation, counts for itself alone.
    """

    kind: Annotated[StartKind, Doc("kind of work")]
    name: Annotated[str, Doc("module, function or line; empty where the kind says all")]
    seconds: Annotated[float, Doc("time that it took", "s")]
    source: Annotated[str | None, Doc("line of the program that it came from; null where unknown")] = None
    bytes: Annotated[int | None, Doc("size of the files that were read; null where unknown", "B")] = None
    is_cold: Annotated[
        bool | None, Doc("true where no cache had it, false where one had; null where nothing tells")
    ] = None
    stages: Annotated[
        Mapping[str, float],
        Doc("seconds of its stages by the compiler's own clock, with imports that count for themselves here", "s"),
    ] = field(default_factory=dict)

    @property
    def bytes_per_s(self) -> float | None:
        """The rate at which files were read; null where their size is unknown."""
        return None if self.bytes is None or self.seconds <= 0 else self.bytes / self.seconds


@dataclass(frozen=True)
class StartLedger:
    """The time from the start of the process to its first steady step.

    ``parts`` add up to ``total_s``. What bottleneck itself took meanwhile is in neither. A step is steady from the
    first on that takes at most half again as long as the median of the unprofiled steps. Without samples only what
    torch and the interpreter tell is told apart: the rest is the program's own Python.
    """

    total_s: Annotated[float, Doc("time of the program until then", "s")]
    own_s: Annotated[float, Doc("time that bottleneck took meanwhile, which is set aside", "s")]
    parts: Annotated[tuple[StartPart, ...], Doc("what it was spent on, most time first")]
    steps: Annotated[int | None, Doc("steps before the first steady one; null where no steady step was seen")] = None
    is_sampled: Annotated[bool, Doc("whether the stack was sampled meanwhile (--startup)")] = False
    storage_bytes: Annotated[
        int | None, Doc("bytes that came from storage and not from memory; null where the system does not tell", "B")
    ] = None
    earlier_s: Annotated[
        float | None, Doc("the same of the recording of this program before; null where there is none", "s")
    ] = None
    earlier: Annotated[tuple[StartPart, ...], Doc("parts of the recording before")] = ()

    def seconds(self, kind: StartKind) -> float:
        """The time of all parts of a kind."""
        return math.fsum(part.seconds for part in self.parts if part.kind == kind)

    def of_kind(self, kind: StartKind) -> tuple[StartPart, ...]:
        """The parts of a kind, most time first."""
        return tuple(part for part in self.parts if part.kind == kind)

    @property
    def end_words(self) -> str:
        """Names the end of the start, as it follows a time."""
        return "until the end of what was measured" if self.steps is None else "until the first steady step"


_LEAST_SHARE, _MOST_KINDS = 0.02, 4


def tell_start_up(start: StartLedger) -> str:
    """Says how long the start took, with its largest kinds of work."""
    kinds: list[StartKind] = sorted(START_KINDS, key=lambda kind: -start.seconds(kind))
    large = [kind for kind in kinds if start.seconds(kind) >= _LEAST_SHARE * start.total_s][:_MOST_KINDS]
    words = ", ".join(_tell_kind(start, kind) for kind in large if start.seconds(kind) > 0)
    return f"start-up: {_seconds(start.total_s)} {start.end_words}{f': {words}' if words else ''}"


def _tell_kind(start: StartLedger, kind: StartKind) -> str:
    parts = start.of_kind(kind)
    named = f" ({parts[0].name} {_seconds(parts[0].seconds)})" if kind == "import" and parts[0].name else ""
    return f"{START_KINDS[kind]} {_seconds(start.seconds(kind))}{named}"


def _seconds(seconds: float) -> str:
    return format_us(seconds * 1e6)
