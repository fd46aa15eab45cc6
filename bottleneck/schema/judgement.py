"""Frozen records of a judgement of a patch.

Each workload has one verdict: whether it is faster, whether it computes the same, and what it does more or less often.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bottleneck.schema.comparison import Comparison
from bottleneck.schema.gate_result import Culprit, TimeResult
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.numerics import NumericsResult
from bottleneck.schema.records import Doc

JUDGE_SCHEMA = "bottleneck/judge/1"

# "no difference": none as large as what was asked to be seen. "failed": a side does not run.
JudgeVerdict = Literal["faster", "slower", "no difference", "undecided", "failed"]

# Whether the two sides compute the same: null where that cannot be said.
SameResults = Annotated[bool | None, Doc("whether both sides compute the same; null where that is not known")]

RiskKind = Literal["memory", "recompilation", "determinism", "precision"]


@dataclass(frozen=True)
class CountChange:
    """A counter that differs between the sides, with the lines that did it.

    ``culprits`` are those of the side that counts more.
    """

    metric: Annotated[str, Doc("a counter: 'syncs', 'launches'")]
    before: Annotated[int, Doc("per step of the base, exact, in the counter's own unit")]
    after: Annotated[int, Doc("per step of the changed side, exact, in the counter's own unit")]
    culprits: Annotated[tuple[Culprit, ...], Doc("lines, kernels or ops that count more, the likeliest first")] = ()


@dataclass(frozen=True)
class MovedCount:
    """Work that another line does now, as often as before."""

    metric: Annotated[str, Doc("a counter: 'syncs', 'copies'")]
    count: Annotated[int, Doc("how many per step moved")]
    before: Annotated[str, Doc("line of the base: 'train.py:57'")]
    after: Annotated[str, Doc("line of the changed side")]


@dataclass(frozen=True)
class PatchRisk:
    """A cost of a patch that its time does not show."""

    kind: Annotated[RiskKind, Doc("what is at risk")]
    text: Annotated[str, Doc("the risk in a sentence")]


@dataclass(frozen=True)
class WorkloadJudgement:
    """Verdict on one workload, with what it rests on.

    ``speedup`` is base / changed step time with its 98 % interval, null where it was not measured.
    ``smallest_visible`` is the smallest change that these measurements would have shown, ``bound`` the largest that
    they leave possible where there is no difference.
    """

    name: Annotated[str, Doc("name of the workload")]
    program: Annotated[tuple[str, ...], Doc("program and arguments, as on a command line")]
    verdict: Annotated[JudgeVerdict, Doc("verdict on its time; 'failed' where a side does not run")]
    sentence: Annotated[str, Doc("the verdict in one line")] = ""
    speedup: Annotated[Ratio | None, Doc("base / changed step time with its 98 % interval; null: not measured")] = None
    bound: Annotated[
        float | None, Doc("largest change that is left possible by a verdict of no difference", "share")
    ] = None
    smallest_visible: Annotated[
        float | None, Doc("the smallest change that the measurement would have shown", "share")
    ] = None
    is_same: SameResults = None
    time: Annotated[TimeResult | None, Doc("step times of both sides, taken in turns; null: not measured")] = None
    numerics: Annotated[NumericsResult | None, Doc("comparison of what both sides compute; null: not made")] = None
    counts: Annotated[tuple[CountChange, ...], Doc("counters that differ, the costliest first")] = ()
    moved: Annotated[tuple[MovedCount, ...], Doc("work that other lines do now, as often as before")] = ()
    risks: Annotated[tuple[PatchRisk, ...], Doc("costs that the time does not show")] = ()
    comparison: Annotated[
        Comparison | None, Doc("where the change of the step comes from; null where none was to be explained")
    ] = None
    reason: Annotated[str | None, Doc("why it is undecided or failed; null where it is decided")] = None
    budget_to_decide: Annotated[
        float | None, Doc("budget that would probably decide it; null where it is decided, or not known", "s")
    ] = None
    seconds: Annotated[float, Doc("duration", "s")] = 0.0
    warnings: Annotated[tuple[str, ...], Doc("other messages")] = ()


@dataclass(frozen=True)
class PatchJudgement:
    """Verdicts on all workloads of a patch, and the exit code that they make."""

    results: Annotated[tuple[WorkloadJudgement, ...], Doc("one entry per workload")]
    exit_code: Annotated[
        int, Doc("exit code of the process: 0 fine, 1 slower or other results, 4 a side failed, 5 undecided")
    ]
    sentence: Annotated[str, Doc("all verdicts in one line")]
    base: Annotated[str, Doc("what the change is compared with")] = ""
    changed: Annotated[str, Doc("the changed side")] = ""
    touched: Annotated[
        Mapping[str, tuple[int, ...]], Doc("lines that the patch adds or changes, by file of the changed side")
    ] = field(default_factory=dict)
    seconds: Annotated[float, Doc("duration", "s")] = 0.0
    warnings: Annotated[tuple[str, ...], Doc("other messages")] = ()
    schema: Annotated[str, Doc("format of this file; other values are other formats")] = JUDGE_SCHEMA
    version: Annotated[str, Doc("version of bottleneck that judged")] = ""
