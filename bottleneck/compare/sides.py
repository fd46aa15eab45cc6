"""Makes one side of a comparison.

It comes from a case, a saved analysis or a lock-file. Also holds the lines that a diff changes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bottleneck.schema.analysis import Analysis
from bottleneck.schema.comparison import CompareSide
from bottleneck.schema.counters import Counts
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.op_names import place_of

# File -> the lines that the diff between the refs touches.
Touched = Mapping[str, frozenset[int]]

# Thirty years: a longer step means a damaged file.
_LONGEST_US = 1e15
# Device names that an analysis uses where its trace names none.
_NO_NAMES = frozenset({"", "CPU", "unknown device"})


@dataclass(frozen=True)
class ComparedSide:
    """A side of a comparison.

    It is a case (the most detail), a saved analysis (work already folded), or the counts of a lock-file alone.
    """

    label: str
    path: str
    case: Explanation | None = None
    saved: Analysis | None = None
    counts: Counts | None = None

    @property
    def analysis(self) -> Analysis | None:
        """The analysis of the case, or the saved one.

        Null where only counts are known.
        """
        return self.case.analysis if self.saved is None and self.case is not None else self.saved

    @property
    def accounts(self) -> Mapping[str, float]:
        """Microseconds per step by account of the ledger; empty where no time is known."""
        analysis = self.analysis
        sums: dict[str, float] = {}
        for entry in () if analysis is None else analysis.ledger:
            sums[entry.account] = sums.get(entry.account, 0.0) + clean_us(entry.us)
        return sums

    @property
    def is_full(self) -> bool:
        """True if exact modules and op calls are known.

        Else only the folded rows of an analysis are.
        """
        return self.case is not None and self.case.kernel_time is not None

    @property
    def device_name(self) -> str | None:
        """The device that it ran on; null where the trace does not name it."""
        name = "" if self.analysis is None else self.analysis.device.name
        return None if name in _NO_NAMES else name

    @property
    def step_us(self) -> float | None:
        """The sum of the ledger; None where there is none."""
        accounts = self.accounts
        return math.fsum(accounts.values()) if accounts else None


def clean_us(us: float) -> float:
    """Cleans a time that was read from a file.

    0 for an invalid one (negative, infinite, not a number).
    """
    return us if 0.0 <= us <= _LONGEST_US else 0.0


def describe_side(side: ComparedSide) -> CompareSide:
    """The side as the record of the comparison holds it."""
    analysis = side.analysis
    return CompareSide(
        label=side.label,
        path=side.path,
        device="" if analysis is None else analysis.device.name,
        step_us=side.step_us,
        verdict=None if analysis is None else analysis.verdict,
        counts=side.counts,
    )


@dataclass(frozen=True)
class Diff:
    """The lines that a diff touches, by file.

    ``touched`` is null where there is no diff.
    """

    touched: Touched | None = None

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[tuple[str, frozenset[int]]]]:
        by_name: dict[str, list[tuple[str, frozenset[int]]]] = {}
        for path, lines in (self.touched or {}).items():
            by_name.setdefault(path.rpartition("/")[2], []).append((path, lines))
        return by_name

    def touches(self, source: str | None) -> bool | None:
        """Tells whether the diff touches a line 'file.py:57'.

        None without a diff or a line, and where a function is all that is known.

        Traces name files by the end of their paths, a diff from the root of the repository: one ends with the other.
        """
        if source is None or self.touched is None:
            return None
        place = place_of(source.replace("\\", "/"))
        if place is None:
            return False
        if place.is_function:
            return None
        files = self._by_name.get(place.file.rpartition("/")[2], ())
        return any(place.line in lines and _is_end(place.file, path) for path, lines in files)


def _is_end(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    return long == short or long.endswith(f"/{short}")
