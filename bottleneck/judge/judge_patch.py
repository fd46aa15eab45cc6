"""Judges a patch by its workloads.

Counts both sides and compares their results, times them in turns, and explains the change.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bottleneck import __version__
from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.errors import BottleneckError, UndecidedError, WorkloadError
from bottleneck.experiment.record_once import Ceilings, record_as_timed
from bottleneck.experiment.side import relative_to_root
from bottleneck.experiment.turns import TimingEffort, time_in_pairs
from bottleneck.gate.count_program import Counted, count_program
from bottleneck.gate.culprits import find_culprits, moved_lines
from bottleneck.gate.numerics import compare_numerics
from bottleneck.gate.settings import workload_name
from bottleneck.gate.source_files import read_below
from bottleneck.harness.messages import Program
from bottleneck.judge.sides import PatchSides, share_program
from bottleneck.report.judgement import describe_risk, exit_code_of, sentence_of, sentence_of_all
from bottleneck.schema.comparison import Comparison
from bottleneck.schema.counters import COSTLIEST, COUNTERS, Counts
from bottleneck.schema.gate_result import TimeResult, TimeVerdict, Touched
from bottleneck.schema.judgement import (
    CountChange,
    JudgeVerdict,
    MovedCount,
    PatchJudgement,
    PatchRisk,
    WorkloadJudgement,
)
from bottleneck.schema.measurements import Ratio
from bottleneck.schema.numerics import Numerics, NumericsResult
from bottleneck.schema.statistics import LOOKS, ChangeRule

# Runs of each side that are counted: what two runs of the same sources disagree on is no effect of the patch.
_RUNS = 2
# Recording both sides to say why takes about as long as counting them did.
_LEAST_TIMING_S = 20.0
_MOST_PAIRS = LOOKS[6]
_VERDICTS: Mapping[TimeVerdict, JudgeVerdict] = {"faster": "faster", "slower": "slower", "fine": "no difference"}
# Less than this much more memory is what allocators round to.
_MEMORY_SHARE, _MEMORY_BYTES = 0.05, 1_000_000
# Counters whose work belongs to a line that may move.
_MOVING = ("syncs", "copies")
_PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


@dataclass(frozen=True)
class JudgeEffort:
    """Duration of a judgement, and the change that it has to see.

    ``budget_s`` is for each workload, counting and recording included. ``resolve`` is the smallest change of the time
    that has to be seen, as a share. ``precision`` is the format whose rounding results may differ by; that of the base
    where it is empty.
    """

    budget_s: float = 300.0
    resolve: float = 0.01
    seed: int = 0
    precision: str = ""


@dataclass(frozen=True)
class JudgeRun:
    """Options and sides that all workloads of a judgement share.

    ``here`` is the folder that workloads are named from, ``scratch`` takes recordings.
    """

    sides: PatchSides
    here: Path
    scratch: Path
    effort: JudgeEffort = JudgeEffort()
    ceilings: Ceilings | None = None
    say: Callable[[str], None] = field(default=lambda _: None)


def judge_patch(run: JudgeRun, programs: Sequence[Program]) -> PatchJudgement:
    """Judges a patch by each program; one that fails stops no other.

    UsageError, before anything runs, where a side lacks one of them.
    """
    started = time.monotonic()
    for warning in run.sides.warnings:
        run.say(warning)
    lacking = [share_program(run.sides, program.target, run.here) for program in programs]
    results = tuple(
        _judge_program(run, program, (warning,) if warning else ())
        for program, warning in zip(programs, lacking, strict=True)
    )
    touched = _differing(run.sides)
    return PatchJudgement(
        results,
        exit_code_of(results),
        sentence_of_all(results),
        base=run.sides.base.label,
        changed=run.sides.changed.label,
        touched={name: tuple(sorted(lines)) for name, lines in sorted(touched.items())},
        seconds=time.monotonic() - started,
        warnings=run.sides.warnings,
        version=__version__,
    )


def _differing(sides: PatchSides) -> Touched:
    """The lines of the patch.

    Without a workload that was copied to the side that lacked it.
    """
    touched = sides.touched or {}
    files = {name: (sides.base.folder / name, sides.changed.folder / name) for name in touched}
    pairs = {name: pair for name, pair in files.items() if all(path.is_file() for path in pair)}
    same = {name for name, (old, new) in pairs.items() if old.read_bytes() == new.read_bytes()}
    return {name: lines for name, lines in touched.items() if name not in same}


def _judge_program(run: JudgeRun, program: Program, warnings: tuple[str, ...]) -> WorkloadJudgement:
    started = time.monotonic()
    result = WorkloadJudgement(workload_name(program.words), program.words, "failed", warnings=warnings)
    try:
        result = _Judging(run, program, started).judge(result)
    except WorkloadError as error:
        result = replace(result, verdict="failed", reason=f"{error.what}: {error.why}")
    result = replace(result, seconds=time.monotonic() - started)
    return replace(result, sentence=sentence_of(result))


@dataclass(frozen=True)
class _Judging:
    """The judgement of one workload under way."""

    run: JudgeRun
    program: Program
    started_s: float

    def judge(self, result: WorkloadJudgement) -> WorkloadJudgement:
        """Counts, times and explains; WorkloadError where a side does not run."""
        before, after, unknown = self._count_both()
        if unknown:
            result = replace(result, warnings=(*result.warnings, unknown))
        if before is not None and after is not None:
            result = self._with_counts(result, before.counts, after.counts)
        result = self._with_time(result)
        if result.verdict in {"faster", "slower"} and before is not None and after is not None:
            result = replace(result, comparison=self._explain(result, before.counts, after.counts))
        return result

    def _count_both(self) -> tuple[Counted | None, Counted | None, str | None]:
        """Counts both sides.

        Nothing where one has no steps to count, with the reason.
        """
        counted = []
        for name, side in (("base", self.run.sides.base), ("changed", self.run.sides.changed)):
            folder = self.run.scratch / f"count-{workload_name(self.program.words)}-{name}"
            try:
                counted.append(count_program(self.program, folder, side, _RUNS, self.run.say, numerics=True))
            except UndecidedError as error:
                return None, None, f"nothing is counted: {error.what}; {error.why}"
        return counted[0], counted[1], None

    def _with_counts(self, result: WorkloadJudgement, before: Counts, after: Counts) -> WorkloadJudgement:
        sides = self.run.sides
        numerics = _compared_numerics(before.numerics, after.numerics, self.run.effort.precision)
        is_same = {"same": True, "differs": False}.get(numerics.verdict)
        return replace(
            result,
            numerics=numerics,
            is_same=is_same,
            counts=count_changes(before, after, sides),
            moved=moved_counts(before, after, sides.touched),
            risks=find_risks(before, after),
        )

    def _with_time(self, result: WorkloadJudgement) -> WorkloadJudgement:
        # Counting, and as long again for the recordings that say why.
        besides_s = 2 * (time.monotonic() - self.started_s)
        budget_s = self.run.effort.budget_s
        limit_s = max(_LEAST_TIMING_S, budget_s - besides_s)
        self.run.say(f"timing both sides in turns, for at most {limit_s:.0f} s")
        effort = TimingEffort(
            time_limit_s=limit_s,
            seed=self.run.effort.seed,
            pairs_at_most=_MOST_PAIRS,
            change=ChangeRule(self.run.effort.resolve),
            limit_origin=f" (what counting left of --budget {budget_s:.0f}, {_LEAST_TIMING_S:.0f} s at least)",
        )
        timed = time_in_pairs(self.program, self.run.sides.base, self.run.sides.changed, effort, tell=self.run.say)
        more_s = _timing_to_decide_s(timed, self.run.effort)
        return replace(
            result,
            verdict=_VERDICTS.get(timed.verdict, "undecided"),
            time=timed,
            speedup=_inverse(timed.ratio),
            bound=_bound(timed.ratio) if timed.verdict == "fine" else None,
            smallest_visible=timed.smallest_visible,
            reason=timed.reason,
            budget_to_decide=None if more_s is None else more_s + besides_s,
        )

    def _explain(self, result: WorkloadJudgement, before: Counts, after: Counts) -> Comparison | None:
        """Records both sides, and compares the recordings.

        Their ledgers add up to the steps that were timed.
        """
        timed, sides = result.time, (self.run.sides.base, self.run.sides.changed)
        if timed is None:
            return None
        self.run.say("recording both sides, to say why")
        folder = self.run.scratch / f"why-{workload_name(self.program.words)}"
        program = relative_to_root(self.program, sides[1].folder)
        try:
            cases = record_as_timed(program, folder, sides, timed, self.run.ceilings)
        except BottleneckError:  # a script that ends before it can be profiled was counted all the same
            return None
        if cases is None:
            return None
        old, new = (
            ComparedSide(side.label, str(side.folder), case=case, counts=counts)
            for side, case, counts in zip(sides, cases, (before, after), strict=True)
        )
        return compare(old, new, self.run.sides.touched, timed)


def _compared_numerics(before: Numerics | None, after: Numerics | None, precision: str) -> NumericsResult:
    """Compares results by the rounding of the base's formats.

    ``precision`` is a coarser format whose rounding is allowed.
    """
    if before is None or after is None or before.reason or after.reason:
        reasons = (numerics.reason for numerics in (before, after) if numerics is not None)
        return NumericsResult("not compared", reason=next(filter(None, reasons), "the outputs are not known"))
    allowed = _coarser(before.precision, precision)
    return compare_numerics(replace(before, precision=allowed), replace(after, precision=allowed))


def _coarser(one: str, other: str) -> str:
    return max((one, other), key=lambda name: _PRECISIONS.index(name) if name in _PRECISIONS else -1)


def count_changes(before: Counts, after: Counts, sides: PatchSides) -> tuple[CountChange, ...]:
    """Finds the counters that differ, the costliest first.

    With the lines, kernels or ops that count more on the side that does.
    """
    changes = []
    for name in COUNTERS:
        old, new = before.values.get(name), after.values.get(name)
        if old is None or new is None or old == new:
            continue
        if new > old:
            culprits = find_culprits(name, before, after, sides.touched, read_below(sides.changed.folder))
        else:
            culprits = find_culprits(name, after, before, None, read_below(sides.base.folder))
        changes.append(CountChange(name, old, new, culprits))
    order = {name: place for place, name in enumerate(COSTLIEST)}
    return tuple(sorted(changes, key=lambda change: order.get(change.metric, len(order))))


def moved_counts(before: Counts, after: Counts, touched: Touched | None) -> tuple[MovedCount, ...]:
    """The work that another line does, of counters that did not change."""
    return tuple(
        MovedCount(name, new.counts[name], old.place, new.place)
        for name in _MOVING
        if before.values.get(name) == after.values.get(name)
        for old, new in moved_lines(name, before, after, touched)
    )


def find_risks(before: Counts, after: Counts) -> tuple[PatchRisk, ...]:
    """Finds costs that the time does not show."""
    risks = []
    old, new = before.values.get("peak_bytes"), after.values.get("peak_bytes")
    if old is not None and new is not None and new - old > max(_MEMORY_BYTES, _MEMORY_SHARE * old):
        risks.append(PatchRisk("memory", describe_risk("memory", old, new)))
    recompiles = (before.values.get("recompiles", 0), after.values.get("recompiles", 0))
    if recompiles[1] > recompiles[0]:
        risks.append(PatchRisk("recompilation", describe_risk("recompilation", *recompiles)))
    unstable = [{*side.unstable, *(side.numerics.unstable if side.numerics else ())} for side in (before, after)]
    fresh = sorted(unstable[1] - unstable[0])
    if fresh:
        risks.append(PatchRisk("determinism", describe_risk("determinism", 0, len(fresh), fresh[0])))
    if before.numerics and after.numerics and before.numerics.precision != after.numerics.precision:
        formats = (before.numerics.precision, after.numerics.precision)
        if all(formats) and _PRECISIONS.index(formats[1]) > _PRECISIONS.index(formats[0]):
            risks.append(PatchRisk("precision", describe_risk("precision", 0, 1, " to ".join(formats))))
    return tuple(risks)


def _inverse(ratio: Ratio | None) -> Ratio | None:
    """The speedup, of a ratio of times."""
    return None if ratio is None else Ratio(1 / ratio.median, 1 / ratio.high, 1 / ratio.low, ratio.n)


def _bound(ratio: Ratio | None) -> float | None:
    """The largest change that an interval leaves possible, as a share."""
    return None if ratio is None else max(ratio.high - 1.0, 1.0 - ratio.low)


def _timing_to_decide_s(timed: TimeResult, effort: JudgeEffort) -> float | None:
    """Estimates the seconds of timing that would decide.

    What they show shrinks with the square root of their number. Where the first of them show a change, as many fresh
    ones have to show it again.
    """
    visible, ratio, pairs = (
        timed.smallest_visible,
        timed.ratio,
        len(timed.pairs) or (0 if timed.ratio is None else timed.ratio.n),
    )
    if timed.verdict != "undecided" or not timed.seconds or not pairs:
        return None
    if visible is None or ratio is None:
        return timed.seconds / pairs * 2 * LOOKS[0]
    if timed.confirming:
        return timed.seconds * max(1.5, 2.0 * (pairs - timed.confirming) / pairs)
    return timed.seconds * max(2.0, (visible / max(effort.resolve, abs(1.0 - ratio.median))) ** 2)
