"""Frozen records of a comparison: conditions, waterfall, rows and counters that changed."""

import math
from dataclasses import dataclass
from typing import Literal

from bottleneck.schema.analysis import Verdict
from bottleneck.schema.counters import Counts

COMPARE_SCHEMA = "bottleneck/compare/1"

# "new" and "gone": only after, only before. "more" and "fewer": the number of calls explains most of the change;
# "slower" and "faster": the time of a call does. "same": within what the two recordings tell apart.
ChangeKind = Literal["new", "gone", "more", "fewer", "slower", "faster", "same"]

# How a row of one side found its partner on the other, most exact first.
MatchedBy = Literal["module and op", "op and shape", "op", "kernel family", "nothing"]


@dataclass(frozen=True)
class CompareSide:
    """One of the two: what it is called, where it lies, and what its step took (null for a lock-file)."""

    label: str
    path: str
    device: str
    step_us: float | None
    verdict: Verdict | None = None
    counts: Counts | None = None


@dataclass(frozen=True)
class Condition:
    """Something besides the code that differs, and makes times or counts hard to compare: said before all else.

    ``weight``: "breaks" where a difference of times says nothing of the code (another device), else "colours".
    """

    what: str
    before: str
    after: str
    weight: Literal["breaks", "colours"]
    message: str = ""


@dataclass(frozen=True)
class Bar:
    """The change of one account of the ledger, in microseconds per step.

    ``source`` is the line that most of the change of a wait comes from ('file.py:57'), null where no line does.
    """

    account: str
    group: str
    before_us: float
    after_us: float
    source: str | None = None
    is_touched: bool | None = None

    @property
    def change_us(self) -> float:
        """After less before."""
        return self.after_us - self.before_us


@dataclass(frozen=True)
class ChangeRow:
    """Work that both sides do, or one: busy time and calls per step, and why it changed.

    ``count_us`` is the change of the number of calls x the mean call before, ``mean_us`` the change of the mean call x
    the number of calls after; together they are the change. ``source`` is the line after ('file.py:57'; before, where
    it is gone). ``is_touched`` tells whether the diff between the refs touches it; null where there is no diff.
    """

    name: str
    module: str | None
    shapes: str | None
    family: str | None
    kind: ChangeKind
    matched_by: MatchedBy
    calls_before: float
    calls_after: float
    before_us: float
    after_us: float
    count_us: float
    mean_us: float
    source: str | None = None
    is_touched: bool | None = None

    @property
    def change_us(self) -> float:
        """After less before."""
        return self.after_us - self.before_us


@dataclass(frozen=True)
class CounterStep:
    """A counter on both sides; null where a side does not know it."""

    name: str
    before: int | None
    after: int | None


@dataclass(frozen=True)
class Comparison:
    """Both sides, what differs besides the code, and the change of the step, once by account and once by op.

    ``bars`` add up to the change of the step. So do ``rows`` with ``idle`` (the bars of no busy time): ``rows`` are all
    busy work, most change first. ``modules`` are the rows folded by module path. One that does not add up cannot be
    built (AssertionError).
    """

    before: CompareSide
    after: CompareSide
    conditions: tuple[Condition, ...] = ()
    bars: tuple[Bar, ...] = ()
    rows: tuple[ChangeRow, ...] = ()
    modules: tuple[ChangeRow, ...] = ()
    idle: tuple[Bar, ...] = ()
    counters: tuple[CounterStep, ...] = ()
    notes: tuple[str, ...] = ()
    sentence: str = ""
    schema: str = COMPARE_SCHEMA
    version: str = ""

    def __post_init__(self) -> None:
        if self.before.step_us is None or self.after.step_us is None:
            return
        whole = self.after.step_us - self.before.step_us
        scale = max(self.before.step_us, self.after.step_us, 1e-12)
        bars = math.fsum(bar.change_us for bar in self.bars)
        assert abs(bars - whole) <= 1e-6 * scale, f"bars hold {bars!r} us of a change of {whole!r} us"
        rows = math.fsum([*(row.change_us for row in self.rows), *(bar.change_us for bar in self.idle)])
        assert abs(rows - whole) <= 1e-6 * scale, f"rows hold {rows!r} us of a change of {whole!r} us"

    @property
    def change_us(self) -> float | None:
        """What the step takes more (negative: less); null where one side has no time."""
        if self.before.step_us is None or self.after.step_us is None:
            return None
        return self.after.step_us - self.before.step_us
