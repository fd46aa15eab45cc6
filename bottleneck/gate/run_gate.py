"""Gates workloads one after the other: counts, judges the counts against the lock-file, times against the base."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bottleneck import __version__
from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.errors import BottleneckError, UndecidedError, WorkloadError
from bottleneck.experiment.paired_processes import TimingEffort, time_in_pairs
from bottleneck.experiment.program import Program
from bottleneck.experiment.side import Side
from bottleneck.experiment.worktree import Base, lacks
from bottleneck.gate.acceptance import last_path, write_last
from bottleneck.gate.count_program import Counted, count_program
from bottleneck.gate.judge import exit_code, judge_counts, sentence_of, verdict_of, with_accepted
from bottleneck.gate.lockfile import read_lock, read_lock_at, write_lock
from bottleneck.gate.result_summary import tell_stand
from bottleneck.gate.settings import lock_path, workload_name
from bottleneck.gate.source_files import read_below
from bottleneck.report.ci.phrases import tell_change
from bottleneck.schema.counters import Lock
from bottleneck.schema.gate_result import CounterChange, Gate, GateSettings, Limit, TimeResult, Touched, WorkloadResult

STEP = "step_us"

Part = Literal["counters", "time"]

_ONE_BY_ONE = (
    "both sides were recorded under the profiler, one after the other: what they count is exact, but how much slower "
    "the step is tell only the turns of the verdict"
)


@dataclass(frozen=True)
class Job:
    """What all workloads of one run of the gate share.

    ``root`` is the folder that lock-files and workloads are named from, ``scratch`` takes recordings. ``base`` is what
    the time is held against. ``pairs`` is how many pairs of processes there may be at most; null for the usual number.
    """

    root: Path
    settings: GateSettings
    scratch: Path
    base: Base
    touched: Touched | None = None
    only: Part | None = None
    pairs: int | None = None
    is_strict: bool = False
    tell: Callable[[str], None] = field(default=lambda _: None)

    @property
    def candidate(self) -> Side:
        """The sources as they are now."""
        return Side("this folder", self.root, self.settings.environment)

    @property
    def base_side(self) -> Side | None:
        """The base's sources, in the same environment; null where there are none."""
        side = self.base.side
        return side and replace(side, environment={**self.settings.environment, **side.environment})

    def lock_file(self, name: str) -> Path:
        """Where the lock-file of a workload lies."""
        return lock_path(self.settings, self.root, name)


def gate_programs(job: Job, programs: Sequence[Program], label: str) -> Gate:
    """The verdict on every program; one that fails does not keep the others from theirs."""
    started = time.monotonic()
    results = tuple(gate_program(job, program, len(programs)) for program in programs)
    return conclude(results, job, label, time.monotonic() - started)


def conclude(results: tuple[WorkloadResult, ...], job: Job, label: str, seconds: float) -> Gate:
    """All results with what the process ends with."""
    code = exit_code(results, job.settings, is_strict=job.is_strict)
    return Gate(
        results=results,
        exit_code=code,
        sentence=sentence_of(results, code),
        base=job.base.label,
        candidate=label,
        seconds=seconds,
        warnings=job.base.warnings,
        version=__version__,
    )


def gate_program(job: Job, program: Program, workloads: int = 1) -> WorkloadResult:
    """The verdict on one program; what it raises itself is a result too.

    ``workloads`` is how many are gated together: the chance of a false alarm is that of all of them.
    """
    name, started = workload_name(program.words), time.monotonic()
    lock = os.path.relpath(job.lock_file(name), job.root)
    result = WorkloadResult(name, program.words, "failed", "", lock=lock, base=job.base.label)
    try:
        result = _gate(job, program, result, workloads)
    except WorkloadError as error:
        result = replace(result, verdict="failed", what=error.what, why=_lines(error), fix=error.fix)
    except UndecidedError as error:
        result = replace(result, verdict="nothing measured", what=error.what, why=_lines(error), fix=error.fix)
    return replace(result, seconds=time.monotonic() - started)


def update_lock(job: Job, program: Program, runs: int = 2) -> tuple[Lock | None, Path, Lock]:
    """The lock before, the file, and the lock that it holds now: what the program counts in two processes.

    Its anchor and acceptances are kept.
    """
    name = workload_name(program.words)
    path = job.lock_file(name)
    before = _lock(path)
    counted = count_program(program, job.scratch / f"update-{name}", job.candidate, runs, tell=job.tell)
    lock = Lock(
        name,
        program.words,
        counted.counts,
        anchor=None if before is None else before.anchor,
        accepted=() if before is None else before.accepted,
    )
    write_lock(path, lock)
    return before, path, lock


def _gate(job: Job, program: Program, result: WorkloadResult, workloads: int) -> WorkloadResult:
    file = job.lock_file(result.name)
    lock = _lock(file)
    if lock is None and job.only != "time":
        result = replace(result, is_new=True, warnings=(*result.warnings, _no_lock(result.name)))
    counted: Counted | None = None
    changes: tuple[CounterChange, ...] = ()
    if job.only != "time":
        counted = count_program(program, job.scratch / f"count-{result.name}", job.candidate, tell=job.tell)
        write_last(last_path(job.root, result.name), counted.counts)
        changes = judge_counts(lock, counted.counts, job.settings, job.touched, read_below(job.root))
        if lock is not None:
            changes = with_accepted(changes, lock, read_lock_at(job.base.commit, file))
    timed = None if job.only == "counters" else _time(job, program, workloads)
    counts = None if counted is None else counted.counts
    verdict = verdict_of(changes, timed)
    result = replace(result, verdict=verdict, counters=changes, time=timed, counts=counts)
    if verdict == "fail":
        result = _explain(job, program, result, counted)
    return tell_stand(result)


def _lock(path: Path) -> Lock | None:
    return read_lock(path) if path.exists() else None


def _no_lock(name: str) -> str:
    return f"{name} has no lock-file yet: bottleneck gate --update, and commit it"


def _time(job: Job, program: Program, workloads: int) -> TimeResult:
    if job.base_side is None:
        return TimeResult("not run", job.base.reason)
    if (reason := lacks(job.base, program.target)) is not None:
        return TimeResult("not run", reason)
    job.tell("timing in turns with the base")
    return time_in_pairs(program, job.base_side, job.candidate, effort_of(job, workloads), tell=job.tell)


def effort_of(job: Job, workloads: int = 1) -> TimingEffort:
    """What a verdict on the time of each of so many workloads takes."""
    return TimingEffort(
        limit=job.settings.budgets.get(STEP, Limit(STEP, relative=0.03, text="+3%")),
        alpha=job.settings.alpha / max(1, workloads),
        time_limit_s=job.settings.time_limit_s,
        seed=job.settings.seed,
        **({} if job.pairs is None else {"pairs_at_most": job.pairs}),
    )


def _explain(job: Job, program: Program, result: WorkloadResult, counted: Counted | None) -> WorkloadResult:
    """The result with the recordings of both sides compared, where the base can be recorded."""
    if job.base_side is None or lacks(job.base, program.target) is not None:
        return result
    folder = job.scratch
    try:
        job.tell("recording both sides, to say why")
        after = counted or count_program(program, folder / f"count-{result.name}", job.candidate, tell=job.tell)
        before = count_program(program, folder / f"base-{result.name}", job.base_side, tell=job.tell)
    except BottleneckError as error:
        return replace(result, warnings=(*result.warnings, f"the base could not be recorded: {error.what}"))
    comparison = compare(
        ComparedSide(job.base.label, str(job.base_side.folder), case=before.case, counts=before.counts),
        ComparedSide("this", str(job.root), case=after.case, counts=after.counts),
        job.touched,
    )
    return replace(result, comparison=replace(comparison, notes=(_ONE_BY_ONE, *comparison.notes)))


def _lines(error: BottleneckError) -> tuple[str, ...]:
    return tuple(line for line in error.why.splitlines() if line.strip())


def tell_update(path: str, before: Lock | None, after: Lock) -> str:
    """The lines on a lock-file that was just written; ``before`` is what it was, null where it is new."""
    counts = after.counts
    head = f"{path}: {len(counts.values)} counters that {counts.runs} runs of {counts.steps} steps agree on"
    lines = [head, *_changes(before, after)]
    lines += [f"  not locked: {name} ({why})" for name, why in sorted(counts.unstable.items()) if ":" not in name]
    lines += [f"  unknown here: {name} ({why})" for name, why in sorted(counts.unknown.items())]
    return "\n".join(lines) + "\n"


def _changes(before: Lock | None, after: Lock) -> list[str]:
    if before is None:
        return ["  it is new: commit it"]
    old, new = before.counts.values, after.counts.values
    changed = [
        f"  {tell_change(CounterChange(name, old.get(name), new.get(name), 'same'))}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    return changed or ["  nothing changed"]
