"""Frozen records of a comparison: conditions, waterfall, rows and counters that changed."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.analysis import Verdict
from bottleneck.schema.counters import Counts
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.records import Doc

COMPARE_SCHEMA = "bottleneck/compare/2"

# "new" and "gone": only after, only before. "more" and "fewer": the number of calls explains most of the change;
# "slower" and "faster": the time of a call does. "same": within what the two recordings tell apart.
ChangeKind = Literal["new", "gone", "more", "fewer", "slower", "faster", "same"]

# How a row of one side found its partner on the other, most exact first.
MatchedBy = Literal["module and op", "op and shape", "op", "kernel family", "nothing"]


IsTouched = Annotated[bool | None, Doc("whether the diff to the base touches that line; null without a diff")]


@dataclass(frozen=True)
class CompareSide:
    """One of the two sides: its name, path and step time.

    The time is null for a lock-file.
    """

    label: Annotated[str, Doc("short name of the side")]
    path: Annotated[str, Doc("path of the side")]
    device: Annotated[str, Doc("name reported by the device")]
    step_us: Annotated[float | None, Doc("wall time of the step; null for a lock-file", "us")]
    verdict: Annotated[Verdict | None, Doc("resource that limits the step; null where not known")] = None
    counts: Annotated[Counts | None, Doc("counters; null where not counted")] = None


@dataclass(frozen=True)
class Condition:
    """Difference besides the code that makes times or counts hard to compare.

    It is reported before all else.
    """

    what: Annotated[str, Doc("what differs: the device, a dtype, a setting")]
    before: Annotated[str, Doc("value in the base")]
    after: Annotated[str, Doc("value in the candidate")]
    weight: Annotated[
        Literal["breaks", "colours"],
        Doc("'breaks' where a difference of times does not show the effect of the code, else 'colours'"),
    ]
    message: Annotated[str, Doc("the same in a sentence")] = ""


@dataclass(frozen=True)
class Bar:
    """The change of one account of the ledger, in microseconds per step."""

    account: Annotated[str, Doc("such as 'compute', 'memory.copy', 'overhead.input'")]
    group: Annotated[str, Doc("'compute', 'memory', 'overhead', 'communication', 'transfer' or 'unknown'")]
    before_us: Annotated[float, Doc("per step of the base", "us")]
    after_us: Annotated[float, Doc("per step of the candidate", "us")]
    source: Annotated[str | None, Doc("source line with most of the change; null where not known")] = None
    is_touched: IsTouched = None

    @property
    def change_us(self) -> float:
        """After less before."""
        return self.after_us - self.before_us


@dataclass(frozen=True)
class ChangeRow:
    """Work of one or both sides, with the cause of its change.

    It holds busy time and calls per step. ``count_us`` and ``mean_us`` together are the change.
    """

    name: Annotated[str, Doc("op or kernel")]
    module: Annotated[str | None, Doc("path of its module; null where not known")]
    shapes: Annotated[str | None, Doc("shapes of its inputs; null where not known")]
    family: Annotated[str | None, Doc("family of the kernel; null where not known")]
    kind: Annotated[ChangeKind, Doc("kind of change; 'same': within the noise of the recordings")]
    matched_by: Annotated[MatchedBy, Doc("how it was matched with the other side")]
    calls_before: Annotated[float, Doc("calls per step of the base")]
    calls_after: Annotated[float, Doc("calls per step of the candidate")]
    before_us: Annotated[float, Doc("busy time per step of the base", "us")]
    after_us: Annotated[float, Doc("busy time per step of the candidate", "us")]
    count_us: Annotated[float, Doc("change of the number of calls x the mean call before", "us")]
    mean_us: Annotated[float, Doc("change of the mean call x the number of calls after", "us")]
    source: Annotated[
        str | None, Doc("the line after ('file.py:57'; before, where it is gone); null where not known")
    ] = None
    is_touched: IsTouched = None

    @property
    def change_us(self) -> float:
        """After less before."""
        return self.after_us - self.before_us


@dataclass(frozen=True)
class CounterStep:
    """A counter on both sides; null where a side does not know it."""

    name: Annotated[str, Doc("name of the counter")]
    before: Annotated[int | None, Doc("value in the base; null where not known")]
    after: Annotated[int | None, Doc("value in the candidate; null where not known")]
    is_lower_bound: Annotated[bool, Doc("true where a side has work that adds to the counter, but is unmodelled")] = (
        False
    )


# Evidence for the difference between two recordings of the same code: both sides timed in turns, how far the steps of a
# recording or its windows lie apart, or what was measured of others, quiet and beside other programs.
FloorBasis = Literal["turns", "steps", "windows", "measured elsewhere", "measured elsewhere, busy"]


@dataclass(frozen=True)
class TimeFloor:
    """Step-time difference that two recordings of the same code may show.

    It says what the figure rests on.
    """

    share: Annotated[float, Doc("difference up to which times do not tell a change of the code", "share")]
    basis: Annotated[FloorBasis, Doc("evidence for it")]
    is_within: Annotated[bool, Doc("whether the change of the step is no larger")]
    turns: Annotated[Ratio | None, Doc("after / before where both were timed in turns, else null")] = None


# What a line of the answer tells: what to do, where the time changed, which counters changed, and how much is noise.
AnswerLabel = Literal["First", "Where", "Counts", "Noise"]


@dataclass(frozen=True)
class AnswerLine:
    """A line of the answer, with the word that stands before it."""

    label: Annotated[AnswerLabel, Doc("what the line tells")]
    text: Annotated[str, Doc("the line in words")]


@dataclass(frozen=True)
class Comparison:
    """Comparison of two sides: the step's change, by account and by op.

    It also holds the differences besides the code.

    Counters come before times, since they are exact. ``bars`` add up to the change of the step. So do ``rows`` with
    ``idle`` (the bars of no busy time): ``rows`` are all busy work, most change first. ``modules`` are the rows folded
    by module path. One that does not add up cannot be built (AssertionError).
    """

    schema: Annotated[str, Doc("format of this document; other values are other formats")] = field(
        default=COMPARE_SCHEMA, kw_only=True
    )
    version: Annotated[str, Doc("version of bottleneck that compared")] = field(default="", kw_only=True)
    conditions: Annotated[tuple[Condition, ...], Doc("differences besides the code")] = field(default=(), kw_only=True)
    counters: Annotated[tuple[CounterStep, ...], Doc("counters on both sides")] = field(default=(), kw_only=True)
    sentence: Annotated[str, Doc("the change in words")] = field(default="", kw_only=True)
    headline: Annotated[str, Doc("the change of the step in a few words; empty where a side has no times")] = field(
        default="", kw_only=True
    )
    answer: Annotated[
        tuple[AnswerLine, ...], Doc("what to do, and why, in short lines; empty where a side has no times")
    ] = field(default=(), kw_only=True)
    time_floor: Annotated[
        TimeFloor | None, Doc("difference of times that the same code may show; null where a side has no times")
    ] = field(default=None, kw_only=True)
    before: Annotated[CompareSide, Doc("the base")]
    after: Annotated[CompareSide, Doc("the candidate")]
    bars: Annotated[
        tuple[Bar, ...], Doc("the change by account of the ledger; they add up to the change of the step")
    ] = ()
    rows: Annotated[
        tuple[ChangeRow, ...], Doc("the change of all busy work; with idle it adds up to the change of the step")
    ] = ()
    modules: Annotated[tuple[ChangeRow, ...], Doc("the rows folded by module path")] = ()
    idle: Annotated[tuple[Bar, ...], Doc("the bars of idle time")] = ()
    notes: Annotated[tuple[str, ...], Doc("limits of this comparison")] = ()

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
        """Change of the step time (negative: faster); null where one side has no time."""
        if self.before.step_us is None or self.after.step_us is None:
            return None
        return self.after.step_us - self.before.step_us
