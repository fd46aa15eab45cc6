"""Frozen records of a gate: limits, changes, times and verdicts.

The changes are of counters, and each workload has a verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.comparison import Comparison, IsTouched
from bottleneck.schema.counters import Counts, Site
from bottleneck.schema.measurements import Ratio, Timing
from bottleneck.schema.numerics import NumericsResult
from bottleneck.schema.records import Doc

GATE_SCHEMA = "bottleneck/gate/3"

# Lines (from 1) that the diff to the base touches, by file relative to the repository.
Touched = Mapping[str, frozenset[int]]

Policy = Literal["pass", "warn", "fail"]

# "broken": beyond its budget. "gone": it was counted and is no more, an error of the measurement. "new": no baseline.
# "removed": somebody took its baseline out of the lock-file.
CounterVerdict = Literal[
    "same", "improved", "within budget", "broken", "gone", "removed", "new", "unstable", "not compared", "accepted"
]
COMPARED: frozenset[CounterVerdict] = frozenset({"same", "improved", "within budget", "broken", "accepted"})

# "not run" has its reason; "advisory" is the time of two recordings that did not take turns.
TimeVerdict = Literal["slower", "fine", "faster", "undecided", "not run", "advisory"]

# "nothing measured": no steps, no counter in common, or one that vanished. "failed": the workload itself.
GateVerdict = Literal["pass", "fail", "undecided", "nothing measured", "failed"]

# Design section 8.
EXIT_CODES: Mapping[GateVerdict, int] = {"pass": 0, "fail": 1, "failed": 4, "undecided": 5, "nothing measured": 5}


@dataclass(frozen=True)
class Limit:
    """Allowed growth of a metric: a share ('+3%') or an amount ('+2').

    Below the floor nothing counts.

    ``metric`` is a counter, ``step_us``, or a counter of modules ("module:decoder.*.launches"). ``relative`` is a share
    (0.03), ``absolute`` an amount in the metric's unit; a metric is within its limit where it is within either that is
    given. ``floor`` is in the metric's unit. ``text`` is what stands in pyproject.toml.
    """

    metric: Annotated[str, Doc("a counter, 'step_us', or a counter of modules")]
    relative: Annotated[float | None, Doc("of the baseline that it may grow by", "share")] = None
    absolute: Annotated[float | None, Doc("amount that it may grow by, in the metric's unit")] = None
    floor: Annotated[float, Doc("growth below which nothing counts, in the metric's unit")] = 0.0
    text: Annotated[str, Doc("the limit as written in pyproject.toml: '+0', '+3%'")] = "+0"

    def allows(self, before: float, after: float) -> bool:
        """True if this growth is within the limit; a fall always is."""
        growth = after - before
        if growth <= max(self.floor, 0.0):
            return True
        within_absolute = self.absolute is not None and growth <= self.absolute
        return within_absolute or (self.relative is not None and growth <= self.relative * before)


@dataclass(frozen=True)
class GateSettings:
    """`[tool.bottleneck.gate]` of pyproject.toml; ``budgets`` and ``creep`` are limits by metric.

    ``workloads`` are command lines as `bottleneck run` takes them. ``against`` is "merge-base", a git ref or a folder.
    ``alpha`` is the chance, over all workloads together, to call an unchanged step slower. Without ``on_new`` a
    workload that has no lock-file yet passes if its time was measured. With ``numerics`` outputs are held against the
    lock-file too.
    """

    workloads: tuple[str, ...] = ()
    against: str = "merge-base"
    lock: str = ".bottleneck/{workload}.lock.toml"
    alpha: float = 0.01
    on_undecided: Policy = "warn"
    on_new: Policy | None = None
    time_limit_s: float = 300.0
    setup: str = ""
    seed: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, Limit] = field(default_factory=dict)
    creep: Mapping[str, Limit] = field(default_factory=dict)
    numerics: bool = False


@dataclass(frozen=True)
class Culprit:
    """Cause of a counter's change: an op, kernel or module.

    It has its change per step and, where known, its source line.
    """

    what: Annotated[str, Doc("op, kernel or module")]
    change: Annotated[int, Doc("how many more (negative: fewer) per step")]
    module: Annotated[str | None, Doc("path of the module that it is in; null where not known")] = None
    site: Annotated[Site | None, Doc("source line; null where not known")] = None
    is_touched: IsTouched = None


@dataclass(frozen=True)
class CounterChange:
    """One counter compared with its baseline.

    Values are null where a side lacks the counter, and ``reason`` says why.
    """

    metric: Annotated[str, Doc("a counter, or one of modules: 'module:decoder.*.launches'")]
    before: Annotated[
        int | None, Doc("per step of the baseline, exact, in the counter's own unit; null where that side lacks it")
    ]
    after: Annotated[
        int | None, Doc("per step of the candidate, exact, in the counter's own unit; null where that side lacks it")
    ]
    verdict: Annotated[
        CounterVerdict,
        Doc("'gone': counted before and no more; 'removed': taken out of the lock-file by hand; 'new': no baseline"),
    ]
    limit: Annotated[Limit | None, Doc("limit that was applied; null where there is none")] = None
    reason: Annotated[str | None, Doc("why there is no value or no comparison; null where there are both")] = None
    culprits: Annotated[tuple[Culprit, ...], Doc("causes of the change, the most important first")] = ()
    is_creep: Annotated[bool, Doc("whether the baseline is the anchor (the last release), not the lock-file")] = False


@dataclass(frozen=True)
class TimeResult:
    """The step times of candidate and base, compared in interleaved pairs of processes.

    ``ratio`` is candidate / base step time over n pairs of processes, between two bounds each of which holds at 99 %.
    ``low_bound`` (at 1 - alpha, by how many workloads there are) and ``high_bound`` (at 95 %) are the ratios that
    "slower" and "fine" rest on; null where there are too few pairs. ``smallest_visible`` is the smallest slowdown, as a
    share, that these pairs would have shown. ``pairs`` are the log ratios as measured, the confirming ones last
    (``confirming`` of them). ``budget`` is the allowed growth as a share, ``floor_us`` what is allowed at least.
    """

    verdict: Annotated[
        TimeVerdict, Doc("'not run' has its reason; 'advisory': two separate recordings, not interleaved")
    ]
    reason: Annotated[str | None, Doc("why it was not run or not decided; null where it was decided")] = None
    ratio: Annotated[
        Ratio | None,
        Doc(
            "candidate / base: Hodges-Lehmann estimate over pairs of processes with its 98 % interval; null: not known"
        ),
    ] = None
    low_bound: Annotated[float | None, Doc("one-sided lower bound that 'slower' rests on", "log ratio")] = None
    high_bound: Annotated[float | None, Doc("one-sided upper bound that 'fine' rests on", "log ratio")] = None
    base_us: Annotated[Timing | None, Doc("the base's median step", "us")] = None
    candidate_us: Annotated[Timing | None, Doc("the candidate's median step", "us")] = None
    budget: Annotated[float | None, Doc("growth that is allowed", "share")] = None
    floor_us: Annotated[float, Doc("growth below which nothing counts", "us")] = 0.0
    smallest_visible: Annotated[
        float | None, Doc("the smallest slowdown that these pairs would have shown", "share")
    ] = None
    pairs: Annotated[
        tuple[float, ...],
        Doc("candidate / base of each pair of processes as measured, the confirming ones last", "log ratio"),
    ] = ()
    confirming: Annotated[int, Doc("number of those pairs that were measured anew to confirm a slowdown")] = 0
    is_confirmed: Annotated[bool, Doc("whether the confirming pairs show the slowdown too")] = False
    seconds: Annotated[float, Doc("duration of the timing", "s")] = 0.0
    seed: Annotated[int, Doc("random seed of the order of turns")] = 0


@dataclass(frozen=True)
class Cause:
    """Cause of a verdict, as a sentence and a line of code."""

    sentence: Annotated[str, Doc("what did it, with its place")]
    code: Annotated[str, Doc("line of code at that place; empty where it is not known")] = ""

    @property
    def text(self) -> str:
        """Sentence and code in one line."""
        return f"{self.sentence}: {self.code}" if self.code else self.sentence


@dataclass(frozen=True)
class Fix:
    """Way to mend or accept what failed, with its command.

    It is a sentence that ends in the command.
    """

    sentence: Annotated[str, Doc("what to do; empty for a pass")] = ""
    command: Annotated[str, Doc("command that does it, to be copied whole; empty where there is none")] = ""

    @property
    def text(self) -> str:
        """Sentence and command in one line."""
        return f"{self.sentence} {self.command}".strip()


@dataclass(frozen=True)
class WorkloadResult:
    """Verdict on one workload, with the figures and messages behind it.

    The figures are counters and times.

    ``what``, ``why`` and ``fix`` are the three lines of a failure; ``base`` names the baseline ("merge-base
    1a2b3c4", "the lock-file").
    """

    name: Annotated[str, Doc("name of the workload")]
    program: Annotated[tuple[str, ...], Doc("program and arguments, as on a command line")]
    verdict: Annotated[
        GateVerdict,
        Doc("'nothing measured': no counter in common and no time, or a counter vanished; 'failed': the workload"),
    ]
    what: Annotated[str, Doc("what happened, in one line; empty for a pass")]
    why: Annotated[tuple[Cause, ...], Doc("causes, the most important first")] = ()
    fix: Annotated[Fix, Doc("how to fix it, or the command that accepts it")] = Fix()
    base: Annotated[str, Doc("baseline of the comparison")] = ""
    lock: Annotated[str, Doc("lock-file of the workload")] = ""
    counters: Annotated[tuple[CounterChange, ...], Doc("one entry per counter and limit")] = ()
    time: Annotated[TimeResult | None, Doc("comparison of step times; null where it was not reached")] = None
    counts: Annotated[Counts | None, Doc("counters of the candidate; null where they were not counted")] = None
    comparison: Annotated[
        Comparison | None, Doc("where the change of the step comes from; null where there is nothing to explain")
    ] = None
    numerics: Annotated[
        NumericsResult | None, Doc("the step's outputs held against the lock-file; null where not asked for")
    ] = None
    seconds: Annotated[float, Doc("duration", "s")] = 0.0
    warnings: Annotated[tuple[str, ...], Doc("other messages")] = ()
    is_new: Annotated[bool, Doc("whether it has no lock-file yet")] = False


@dataclass(frozen=True)
class Gate:
    """All workloads, and the exit code that their verdicts and the policies make."""

    results: Annotated[tuple[WorkloadResult, ...], Doc("one entry per workload")]
    exit_code: Annotated[
        int, Doc("exit code of the process: 0 pass, 1 fail, 4 a workload failed, 5 undecided or not measured")
    ]
    sentence: Annotated[str, Doc("all verdicts in one sentence")]
    base: Annotated[str, Doc("baseline of the comparison")] = ""
    candidate: Annotated[str, Doc("what was compared with the baseline")] = ""
    seconds: Annotated[float, Doc("duration of the gate", "s")] = 0.0
    warnings: Annotated[tuple[str, ...], Doc("other messages")] = ()
    schema: Annotated[str, Doc("format of this file; other values are other formats")] = GATE_SCHEMA
    version: Annotated[str, Doc("version of bottleneck that gated")] = ""
