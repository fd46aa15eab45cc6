"""One side of a comparison: its name, and as much as is known of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bottleneck.schema.analysis import Analysis
from bottleneck.schema.case import Case
from bottleneck.schema.comparison import CompareSide
from bottleneck.schema.counters import Counts

# File -> the lines that the diff between the refs touches.
Touched = Mapping[str, frozenset[int]]

# A step of thirty years is no time: what a file says beyond that is damage.
_LONGEST_US = 1e15
# What an analysis calls a device that its trace does not name.
_NO_NAMES = frozenset({"", "CPU", "unknown device"})


@dataclass(frozen=True)
class Compared:
    """A side: a case (all that is known), a finished analysis (what it folded), or the counts of a lock-file alone."""

    label: str
    path: str
    case: Case | None = None
    analysis: Analysis | None = None
    counts: Counts | None = None

    @property
    def told(self) -> Analysis | None:
        """The analysis, whichever way it came; null where only counts are known."""
        return self.case.analysis if self.analysis is None and self.case is not None else self.analysis

    @property
    def accounts(self) -> Mapping[str, float]:
        """Microseconds per step by account of the ledger; empty where no time is known."""
        told = self.told
        sums: dict[str, float] = {}
        for entry in () if told is None else told.ledger:
            sums[entry.account] = sums.get(entry.account, 0.0) + clean_us(entry.us)
        return sums

    @property
    def is_full(self) -> bool:
        """Whether exact modules and calls of ops are known, and not only what an analysis folds."""
        return self.case is not None and self.case.charged is not None

    @property
    def device_name(self) -> str | None:
        """The device that it ran on; null where the trace does not name it."""
        name = "" if self.told is None else self.told.device.name
        return None if name in _NO_NAMES else name

    @property
    def step_us(self) -> float | None:
        """What the ledger adds up to; null where there is none."""
        accounts = self.accounts
        return math.fsum(accounts.values()) if accounts else None


def clean_us(us: float) -> float:
    """A time as files tell it; 0 for what is none (negative, endless, not a number)."""
    return us if 0.0 <= us <= _LONGEST_US else 0.0


def tell_side(side: Compared) -> CompareSide:
    """The side as the comparison shows it."""
    told = side.told
    return CompareSide(
        label=side.label,
        path=side.path,
        device="" if told is None else told.device.name,
        step_us=side.step_us,
        verdict=None if told is None else told.verdict,
        counts=side.counts,
    )


@dataclass(frozen=True)
class Diff:
    """The lines that a diff touches, by file; ``touched`` is null where there is no diff."""

    touched: Touched | None = None

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[tuple[str, frozenset[int]]]]:
        found: dict[str, list[tuple[str, frozenset[int]]]] = {}
        for path, lines in (self.touched or {}).items():
            found.setdefault(path.rpartition("/")[2], []).append((path, lines))
        return found

    def touches(self, source: str | None) -> bool | None:
        """Whether it touches 'file.py:57'; null without a diff or a line.

        Traces name files by the end of their paths, a diff from the root of the repository: one ends with the other.
        """
        if source is None or self.touched is None:
            return None
        file, _, line = source.replace("\\", "/").rpartition(":")
        if not line.isdecimal() or len(line) > 9:
            return False
        files = self._by_name.get(file.rpartition("/")[2], ())
        return any(int(line) in lines and _is_end(file, path) for path, lines in files)


def _is_end(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long == short or long.endswith(f"/{short}")
