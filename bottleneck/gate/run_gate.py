"""Gates workloads by running them, and recordings by their counters."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from bottleneck import __version__
from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.errors import BottleneckError, UndecidedError, UsageError, WorkloadError
from bottleneck.experiment.git_clone import (
    find_base,
    find_commit,
    find_root,
    git_in,
    identify,
    is_merge_base,
    touched_lines,
)
from bottleneck.experiment.record_once import record_as_timed
from bottleneck.experiment.side import Side
from bottleneck.experiment.turns import TimingEffort, time_in_pairs
from bottleneck.experiment.worktree import Base, base_side, lacks
from bottleneck.gate.acceptance import last_path, write_last
from bottleneck.gate.count import count
from bottleneck.gate.count_program import Counted, count_program, merge_counts
from bottleneck.gate.judge import (
    exit_code,
    judge_counts,
    judge_outputs,
    sentence_of,
    verdict_of,
    with_accepted,
    with_summary,
)
from bottleneck.gate.lockfile import read_lock, read_lock_at, write_lock
from bottleneck.gate.settings import STEP, Project, lock_path, workload_name
from bottleneck.gate.source_files import read_below
from bottleneck.harness.messages import Program
from bottleneck.pipeline import examine, finish
from bottleneck.report.ci.phrases import format_change
from bottleneck.schema.counters import Counts, Lock
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.gate_result import (
    Cause,
    CounterChange,
    Fix,
    Gate,
    GateSettings,
    GateVerdict,
    Limit,
    TimeResult,
    Touched,
    WorkloadResult,
)
from bottleneck.schema.measurements import Timing
from bottleneck.schema.numerics import Numerics
from bottleneck.schema.recording import is_recording
from bottleneck.schema.sources import find_traces, is_trace_file
from bottleneck.schema.statistics import GATE_LOOKS
from bottleneck.units import counted

GatedPart = Literal["counters", "time"]

_ONE_BY_ONE = (
    "both sides were recorded under the profiler, one after the other: their counts are exact, but the slowdown is "
    "only known from the verdict's timing in turns"
)
_AS_TIMED = "the times of both sides are recorded one after the other, and add up to the steps that were timed in turns"


@dataclass(frozen=True)
class GateRun:
    """Options and state that all workloads of a run share.

    ``root`` is the folder that lock-files and workloads are named from, ``scratch`` takes recordings. ``base`` is what
    the time is compared with. ``pairs`` is the largest number of pairs of processes; None for the default.
    """

    root: Path
    settings: GateSettings
    scratch: Path
    base: Base
    touched: Touched | None = None
    only: GatedPart | None = None
    pairs: int | None = None
    is_strict: bool = False
    say: Callable[[str], None] = field(default=lambda _: None)

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
        """The path of a workload's lock-file."""
        return lock_path(self.settings, self.root, name)


@contextmanager
def base_of(project: Project, against: str | None, scratch: Path, *, is_timed: bool) -> Iterator[Base]:
    """Provides the base of the comparison for a block.

    It is checked out only if it is timed.
    """
    clone, name = find_root(project.root), against or project.settings.against
    _check_base_name(clone, name, project.root)
    if is_timed:
        with base_side(clone, name, project.settings.setup, scratch, project.root) as base:
            yield base
        return
    # Its commit suffices to find the lines that changed since.
    base_commit = None if clone is None else find_base(git_in(clone), name, os.environ)
    yield Base(
        None, "the lock-file", "" if base_commit is None else base_commit.commit or "", "only counters were asked for"
    )


def _check_base_name(clone: Path | None, name: str, folder: Path) -> None:
    """Refuses the name of a base that does not exist.

    Passed over, it would switch the gate off.
    """
    if clone is None or is_merge_base(name) or (folder / Path(name).expanduser()).is_dir():
        return
    git = git_in(clone)
    if find_commit(git, "HEAD") is not None and find_commit(git, name) is None:
        raise UsageError(
            f"there is no base {name!r}",
            why="git knows no commit of that name here, and there is no such folder",
            fix="name one that exists, or fetch it: git fetch origin",
        )


def touched_since(root: Path, base: Base) -> Touched | None:
    """Finds the lines that changed since the base, by file.

    None outside of a clone.
    """
    return touched_lines(root, base.commit) if find_root(root) is not None and base.commit else None


def gate_programs(run: GateRun, programs: Sequence[Program]) -> Gate:
    """Gates every program; one that fails stops no other."""
    started, clone = time.monotonic(), find_root(run.root)
    identity = None if clone is None else identify(clone)
    results = tuple(gate_program(run, program, len(programs)) for program in programs)
    code = exit_code(results, run.settings, is_strict=run.is_strict)
    return Gate(
        results=results,
        exit_code=code,
        sentence=sentence_of(results, code),
        base=run.base.label,
        candidate="this folder" if identity is None else identity.label,
        seconds=time.monotonic() - started,
        warnings=(*run.base.warnings, *([run.base.own] if run.base.own else [])),
        version=__version__,
    )


def gate_program(run: GateRun, program: Program, workloads: int = 1) -> WorkloadResult:
    """Gates one program; an error that it raises is a result.

    ``workloads`` is how many are gated together: the chance of a false alarm is that of all of them.
    """
    name, started = workload_name(program.words), time.monotonic()
    lock = os.path.relpath(run.lock_file(name), run.root)
    result = WorkloadResult(name, program.words, "failed", "", lock=lock, base=run.base.label)
    try:
        result = _gate(run, program, result, workloads)
    except WorkloadError as error:
        result = _with_error(result, "failed", error)
    except UndecidedError as error:
        result = _with_error(result, "nothing measured", error)
    return replace(result, seconds=time.monotonic() - started)


# Two runs of a workload that does one of two things at random agree every other time, these one time in eight.
UPDATE_RUNS = 4


def update_lock(run: GateRun, program: Program) -> tuple[Lock | None, Path, Lock]:
    """Counts a program anew and writes its lock-file.

    Gives the lock before, the file, and the new lock.

    Its anchor and acceptances are kept. It holds outputs where these are asked for, or were in it before.
    """
    name = workload_name(program.words)
    path = run.lock_file(name)
    before = _lock(path)
    has_outputs = before is not None and before.counts.numerics is not None
    counted = count_program(
        program,
        run.scratch / f"update-{name}",
        run.candidate,
        runs=UPDATE_RUNS,
        tell=run.say,
        numerics=run.settings.numerics or has_outputs,
    )
    lock = Lock(
        name,
        program.words,
        counted.counts,
        anchor=None if before is None else before.anchor,
        accepted=() if before is None else before.accepted,
    )
    write_lock(path, lock)
    return before, path, lock


def _gate(run: GateRun, program: Program, result: WorkloadResult, workloads: int) -> WorkloadResult:
    file = run.lock_file(result.name)
    lock = _lock(file)
    if lock is None and run.only != "time":
        missing = f"{result.name} has no lock-file yet: bottleneck gate --update, and commit it"
        result = replace(result, is_new=True, warnings=(*result.warnings, missing))
    counted: Counted | None = None
    changes: tuple[CounterChange, ...] = ()
    if run.only != "time":
        counted, changes = _count_and_judge(run, program, lock, result.name)
        write_last(last_path(run.root, result.name), counted.counts)
        if lock is not None:
            changes = with_accepted(changes, lock, read_lock_at(run.base.commit, file))
    timed = None if run.only == "counters" else _time(run, program, workloads)
    counts = None if counted is None else counted.counts
    outputs = judge_outputs(lock, counts) if counts is not None and run.settings.numerics else None
    verdict = verdict_of(changes, timed, outputs)
    result = replace(result, verdict=verdict, counters=changes, time=timed, counts=counts, numerics=outputs)
    if verdict == "fail":
        result = _explain(run, program, result, counted)
    return with_summary(result)


def _count_and_judge(
    run: GateRun, program: Program, lock: Lock | None, name: str
) -> tuple[Counted, tuple[CounterChange, ...]]:
    """Counts and judges; what is over budget is counted again.

    A step that does one of two things at random would fail now and then: what two runs disagree on is unstable.
    """
    numerics, read = run.settings.numerics, read_below(run.root)
    counted = count_program(program, run.scratch / f"count-{name}", run.candidate, tell=run.say, numerics=numerics)
    changes = judge_counts(lock, counted.counts, run.settings, run.touched, read)
    if any(change.verdict == "broken" for change in changes):
        run.say("counting again, to see whether it is so in every run")
        again = count_program(program, run.scratch / f"again-{name}", run.candidate, tell=run.say, numerics=numerics)
        counted = replace(counted, counts=merge_counts([counted.counts, again.counts]))
        changes = judge_counts(lock, counted.counts, run.settings, run.touched, read)
    return counted, changes


def _lock(path: Path) -> Lock | None:
    return read_lock(path) if path.exists() else None


def _time(run: GateRun, program: Program, workloads: int) -> TimeResult:
    if run.base_side is None:
        return TimeResult("not run", run.base.reason)
    if (reason := lacks(run.base, program.target)) is not None:
        return TimeResult("not run", reason)
    run.say("timing in turns with the base")
    return time_in_pairs(program, run.base_side, run.candidate, effort_of(run, workloads), tell=run.say)


def effort_of(run: GateRun, workloads: int = 1) -> TimingEffort:
    """The rules and limits for timing each of so many workloads."""
    return TimingEffort(
        limit=run.settings.budgets.get(STEP, Limit(STEP, relative=0.03, text="+3%")),
        alpha=run.settings.alpha / max(1, workloads),
        time_limit_s=run.settings.time_limit_s,
        seed=run.settings.seed,
        pairs_at_most=GATE_LOOKS[-1] if run.pairs is None else run.pairs,
    )


def _explain(run: GateRun, program: Program, result: WorkloadResult, counted: Counted | None) -> WorkloadResult:
    """Adds the comparison of both sides' recordings, where possible."""
    if run.base_side is None or lacks(run.base, program.target) is not None:
        return result
    folder = run.scratch
    try:
        run.say("recording both sides, to say why")
        after = counted or count_program(program, folder / f"count-{result.name}", run.candidate, tell=run.say)
        before = count_program(program, folder / f"base-{result.name}", run.base_side, tell=run.say)
    except BottleneckError as error:
        return replace(result, warnings=(*result.warnings, f"the base could not be recorded: {error.what}"))
    cases, note = _cases_as_timed(run, program, result), _AS_TIMED
    if cases is None:
        cases, note = (before.case, after.case), _ONE_BY_ONE
    comparison = compare(
        ComparedSide(run.base.label, str(run.base_side.folder), case=cases[0], counts=before.counts),
        ComparedSide("this", str(run.root), case=cases[1], counts=after.counts),
        run.touched,
    )
    return replace(result, comparison=replace(comparison, notes=(note, *comparison.notes)))


def _cases_as_timed(run: GateRun, program: Program, result: WorkloadResult) -> tuple[Explanation, Explanation] | None:
    """Records both sides so that ledgers add up to timed steps.

    Null where none were timed.

    The recordings that were counted follow every line of the program, which takes many times as long as the step.
    """
    if run.base_side is None or result.time is None:
        return None
    try:
        return record_as_timed(
            program, run.scratch / f"times-{result.name}", (run.base_side, run.candidate), result.time
        )
    except BottleneckError:  # a script that ends before it can be profiled was counted all the same
        return None


def _with_error(result: WorkloadResult, verdict: GateVerdict, error: BottleneckError) -> WorkloadResult:
    """Makes the result of a workload that an error ended.

    Each line of the reason is a cause.
    """
    why = tuple(Cause(line) for line in error.why.splitlines() if line.strip())
    return replace(result, verdict=verdict, what=error.what, why=why, fix=Fix(error.fix))


def describe_update(path: str, before: Lock | None, after: Lock) -> str:
    """Words how a written lock-file differs from the one before."""
    counts = after.counts
    runs = f"{counted(counts.runs, 'run')} of {counted(counts.steps, 'step')}"
    head = f"{path}: {counted(len(counts.values), 'counter')} on which {runs} agree"
    old = {} if before is None else before.counts.values
    changed = [
        f"  {format_change(CounterChange(name, old.get(name), counts.values.get(name), 'same'))}"
        for name in sorted({*old, *counts.values})
        if old.get(name) != counts.values.get(name)
    ]
    lines = [head, *(["  it is new: commit it"] if before is None else changed or ["  nothing changed"])]
    lines += [f"  not locked: {name} ({why})" for name, why in sorted(counts.unstable.items()) if ":" not in name]
    lines += [f"  unknown here: {name} ({why})" for name, why in sorted(counts.unknown.items())]
    lines += _outputs_lines(counts.numerics)
    return "\n".join(lines) + "\n"


def _outputs_lines(numerics: Numerics | None) -> list[str]:
    """Words how many outputs are held, and which are not."""
    if numerics is None:
        return []
    if numerics.reason:
        return [f"  no outputs: {numerics.reason}"]
    held = f"  {counted(len(numerics.tensors), 'output')} after {counted(numerics.steps, 'step')}"
    return [held, *(f"  not held: {name} ({why})" for name, why in numerics.unstable.items())]


_WHY_ADVISORY = (
    "two recordings did not take turns: what other programs did meanwhile is in their times, so that they gate nothing"
)


def is_recorded(path: Path) -> bool:
    """Tells if the path is a trace or a recording."""
    if path.is_dir():
        return is_recording(path)
    return path.is_file() and is_trace_file(path)


def gate_recordings(after: Sequence[Path], before: Path, settings: GateSettings, *, is_strict: bool = False) -> Gate:
    """Gates each recording against one of before.

    TraceError where one cannot be read.
    """
    started = time.monotonic()
    base = _case(before)
    results = tuple(_gate_recording(path, before, base, settings) for path in after)
    code = exit_code(results, settings, is_strict=is_strict)
    return Gate(
        results=results,
        exit_code=code,
        sentence=sentence_of(results, code),
        base=str(before),
        candidate=", ".join(map(str, after)),
        seconds=time.monotonic() - started,
        version=__version__,
    )


def _gate_recording(path: Path, before: Path, base: Explanation, settings: GateSettings) -> WorkloadResult:
    started = time.monotonic()
    case = _case(path)
    base_counts, counts = count(base), count(case)
    name = workload_name((path.name.removesuffix(".gz").removesuffix(".json"),))
    changes = judge_counts(Lock(name, (), _alike(base_counts, counts)), counts, settings)
    timed = TimeResult("advisory", _WHY_ADVISORY, base_us=_step(base), candidate_us=_step(case))
    result = WorkloadResult(
        name=name,
        program=(str(path),),
        verdict=verdict_of(changes, timed),
        what="",
        base=str(before),
        counters=changes,
        time=timed,
        counts=counts,
        comparison=compare(
            ComparedSide(str(before), str(before), case=base, counts=base_counts),
            ComparedSide(str(path), str(path), case=case, counts=counts),
        ),
    )
    return replace(with_summary(result), seconds=time.monotonic() - started)


def _alike(base: Counts, counts: Counts) -> Counts:
    """Drops fingerprint facts of the base that only one side states."""
    theirs, ours = base.fingerprint, counts.fingerprint
    portable = {key: value for key, value in theirs.portable.items() if key in ours.portable}
    backend = {key: value for key, value in theirs.backend.items() if key in ours.backend}
    return replace(base, fingerprint=replace(theirs, portable=portable, backend=backend))


def _case(path: Path) -> Explanation:
    sources = find_traces(path)
    if len(sources) != 1:
        raise UsageError(
            f"{path} holds {len(sources)} ranks, and one at a time is gated",
            fix="name the trace of one rank on both sides",
        )
    return finish(examine(sources[0]))


def _step(case: Explanation) -> Timing | None:
    steps = case.analysis.steps
    return steps.unprofiled_us or steps.profiled_us
