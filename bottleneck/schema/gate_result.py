"""Frozen records of a gate: limits, counter changes, time results, and the verdict on each workload."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bottleneck.schema.comparison import Comparison
from bottleneck.schema.counters import Counts, Site
from bottleneck.schema.measurements import Ratio, Timing

GATE_SCHEMA = "bottleneck/gate/1"

# Lines (from 1) that the diff to the base touches, by file relative to the repository.
Touched = Mapping[str, frozenset[int]]

Policy = Literal["pass", "warn", "fail"]

# "broken": beyond its budget. "gone": it was counted and is no more, an error of the measurement. "new": no baseline.
CounterVerdict = Literal[
    "same", "improved", "within budget", "broken", "gone", "new", "unstable", "not compared", "accepted"
]

# "not run" has its reason; "advisory" is the time of two recordings that did not take turns.
TimeVerdict = Literal["slower", "fine", "faster", "undecided", "not run", "advisory"]

# "nothing measured": no steps, no counter in common, or one that vanished. "failed": the workload itself.
GateVerdict = Literal["pass", "fail", "undecided", "nothing measured", "failed"]

# Design section 8.
EXIT_CODES: Mapping[GateVerdict, int] = {"pass": 0, "fail": 1, "failed": 4, "undecided": 5, "nothing measured": 5}


@dataclass(frozen=True)
class Limit:
    """What a metric may grow by: a share ('+3%'), an amount ('+2'), and the amount below which nothing counts.

    ``metric`` is a counter, ``step_us``, or a counter of modules ("module:decoder.*.launches"). ``relative`` is a share
    (0.03), ``absolute`` an amount in the metric's unit; a metric is within its limit where it is within either that is
    given. ``floor`` is in the metric's unit. ``text`` is what stands in pyproject.toml.
    """

    metric: str
    relative: float | None = None
    absolute: float | None = None
    floor: float = 0.0
    text: str = "+0"

    def allows(self, before: float, after: float) -> bool:
        """Whether this growth is within the limit; a fall always is."""
        growth = after - before
        if growth <= max(self.floor, 0.0):
            return True
        within_absolute = self.absolute is not None and growth <= self.absolute
        return within_absolute or (self.relative is not None and growth <= self.relative * before)


@dataclass(frozen=True)
class GateSettings:
    """`[tool.bottleneck.gate]` of pyproject.toml; ``budgets`` and ``creep`` are limits by metric.

    ``workloads`` are command lines as `bottleneck run` takes them. ``against`` is "merge-base", a git ref or a folder.
    ``alpha`` is the chance, over all workloads together, to call an unchanged step slower.
    """

    workloads: tuple[str, ...] = ()
    against: str = "merge-base"
    lock: str = ".bottleneck/{workload}.lock.toml"
    alpha: float = 0.01
    on_undecided: Policy = "warn"
    on_new: Policy = "warn"
    time_limit_s: float = 300.0
    setup: str = ""
    seed: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, Limit] = field(default_factory=dict)
    creep: Mapping[str, Limit] = field(default_factory=dict)


@dataclass(frozen=True)
class Culprit:
    """What changed a counter: an op, kernel or module, by how much per step, and the line that does it, where known.

    ``is_touched`` tells whether the diff to the base touches that line; null without a diff.
    """

    what: str
    change: int
    module: str | None = None
    site: Site | None = None
    is_touched: bool | None = None


@dataclass(frozen=True)
class CounterChange:
    """One counter held against its baseline; null values where a side lacks it, with ``reason``.

    ``limit`` is what it was held against, ``is_creep`` where that is the budget against the anchor.
    """

    metric: str
    before: int | None
    after: int | None
    verdict: CounterVerdict
    limit: Limit | None = None
    reason: str | None = None
    culprits: tuple[Culprit, ...] = ()
    is_creep: bool = False


@dataclass(frozen=True)
class TimeResult:
    """The step of the candidate held against the base's, in turns.

    ``ratio`` is candidate / base step time over n pairs of processes, between two bounds each of which holds at 99 %.
    ``low_bound`` (at 1 - alpha, by how many workloads there are) and ``high_bound`` (at 95 %) are the ratios that
    "slower" and "fine" rest on; null where there are too few pairs. ``smallest_visible`` is the smallest slowdown, as a
    share, that these pairs would have shown. ``pairs`` are the log ratios as measured, the confirming ones last
    (``confirming`` of them). ``budget`` is the allowed growth as a share, ``floor_us`` what is allowed at least.
    """

    verdict: TimeVerdict
    reason: str | None = None
    ratio: Ratio | None = None
    low_bound: float | None = None
    high_bound: float | None = None
    base_us: Timing | None = None
    candidate_us: Timing | None = None
    budget: float | None = None
    floor_us: float = 0.0
    smallest_visible: float | None = None
    pairs: tuple[float, ...] = ()
    confirming: int = 0
    is_confirmed: bool = False
    seconds: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class WorkloadResult:
    """The verdict on one workload, with all that it rests on.

    ``what``, ``why`` and ``fix`` are the three lines of a failure; ``base`` names what it was held against ("merge-base
    1a2b3c4", "the lock-file"). ``counts`` are the candidate's. ``is_new``: it has no lock-file yet.
    """

    name: str
    program: tuple[str, ...]
    verdict: GateVerdict
    what: str
    why: tuple[str, ...] = ()
    fix: str = ""
    base: str = ""
    lock: str = ""
    counters: tuple[CounterChange, ...] = ()
    time: TimeResult | None = None
    counts: Counts | None = None
    comparison: Comparison | None = None
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    is_new: bool = False


@dataclass(frozen=True)
class Gate:
    """All workloads, and the exit code that their verdicts and the policies make."""

    results: tuple[WorkloadResult, ...]
    exit_code: int
    sentence: str
    base: str = ""
    candidate: str = ""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    schema: str = GATE_SCHEMA
    version: str = ""
