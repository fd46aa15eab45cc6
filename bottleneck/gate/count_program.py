"""Counts the steps of a program that it records in processes.

The counters of several runs are merged.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bottleneck.errors import UndecidedError, WorkloadError
from bottleneck.experiment.record_once import LOG_FILE, ProgramFailed, Recorder
from bottleneck.experiment.side import Side
from bottleneck.gate.count import count, spread
from bottleneck.gate.numerics import merge_numerics, with_precision
from bottleneck.harness.messages import Program, RecordOptions
from bottleneck.pipeline import Options, examine, finish
from bottleneck.schema.counters import Counts, Site
from bottleneck.schema.evidence import Explanation
from bottleneck.schema.numerics import Numerics
from bottleneck.schema.sources import find_traces

# Optimizers make their state in the first step, autotuners choose in the second; a step like the others must follow.
_OPTIONS = RecordOptions(steps=3, warmup=3, memory=True, batch_test=False, option_costs=False, counting=True)

# What torch compiled in an earlier process it only loads, and counts otherwise. One thread, since with two torch puts
# batches together by other ops (345 of them became 348 in examples/slow_loader.py): machines would differ.
_ENVIRONMENT = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "OMP_NUM_THREADS": "1"}
_NO_STEPS = ("whole program", "time window", "none")


@dataclass(frozen=True)
class Counted:
    """The counts of all runs, their folders, and the last case."""

    counts: Counts
    recordings: tuple[Path, ...]
    case: Explanation


def count_program(
    program: Program,
    folder: Path,
    side: Side,
    runs: int = 1,
    tell: Callable[[str], None] = lambda _: None,
    *,
    numerics: bool = False,
) -> Counted:
    """Counts a program's step in so many processes, one after another.

    The program is a workload, a bare model or a script.

    Each starts in the side's folder, from which the target is named, with the program's seed and, unless the side's
    environment says otherwise, one thread; it leaves its recording in ``folder``. With ``numerics`` the outputs of its
    first steps are digested. WorkloadError where the program fails, UndecidedError where it has no steps or runs cannot
    be merged.
    """
    counted: list[Counted] = []
    for number in range(runs):
        tell(f"counting {program.target} in {side.label}" + (f", run {number + 1}" if runs > 1 else ""))
        counted.append(_count_once(program, (folder / f"run{number + 1}").resolve(), side, numerics=numerics))
    counts = merge_counts([counted_run.counts for counted_run in counted])
    return Counted(counts, tuple(path for counted_run in counted for path in counted_run.recordings), counted[-1].case)


def _count_once(program: Program, folder: Path, side: Side, *, numerics: bool) -> Counted:
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {**_ENVIRONMENT, **side.variables}
    # Torch uses as many threads as MKL, which reads this variable before the other.
    environment = {**os.environ, "MKL_NUM_THREADS": chosen["OMP_NUM_THREADS"], **chosen}
    try:
        options = replace(_OPTIONS, numerics=numerics)
        recording, notes = Recorder(environment, side.folder).record(program, folder, options)
    except ProgramFailed as failed:
        fix = f"see all that it said in {folder / LOG_FILE}"
        raise WorkloadError(f"{program.target} failed in {side.label}", why=failed.reason, fix=fix) from None
    if not recording.traces or recording.step_source in _NO_STEPS:
        raise UndecidedError(
            f"{program.target} made no steps to count",
            why="; ".join(recording.warnings[:2]) or "no step boundary was found",
            fix="have it make a few more steps, or define workload() in it",
        )
    # Every step, those too that took their time: a step that does something else is what is looked for.
    case = finish(examine(find_traces(folder)[0], Options(steps=slice(None))))
    counts = count(case, side.folder)
    if numerics:
        counts = replace(counts, numerics=_numerics(notes.numerics or _NO_OUTPUTS, case, counts))
    return Counted(counts, (folder,), case)


_NO_OUTPUTS = Numerics(reason="what a script computes is not known; of workload() and of a bare model it is")


def _numerics(numerics: Numerics, case: Explanation, counts: Counts) -> Numerics:
    """The digests with what their tolerance follows from."""
    dtypes = [row.dtype for row in case.analysis.kernels if row.flops]
    return with_precision(numerics, dtypes, counts.ops)


RUNS_DIFFER = "runs differ"
_NOT_ALWAYS = "known in some runs only"


def merge_counts(runs: Sequence[Counts]) -> Counts:
    """Merges the counts of runs of one program on one machine.

    What differs is in ``unstable``, as ``count`` names it, and nowhere else; modules and lines keep only what all runs
    record alike. UndecidedError where the runs were made under different circumstances.
    """
    first = runs[0]
    _check_circumstances(runs)
    unstable = {name: text for run in runs for name, text in run.unstable.items()}
    unknown = {name: text for run in runs for name, text in run.unknown.items()}
    for name in {name for run in runs for name in run.values} & unknown.keys():
        unstable[name] = f"{unknown.pop(name)}: {_NOT_ALWAYS}"
    values = _shared([run.values for run in runs], "", unstable)
    counted = [{**run.lowest, **run.values} for run in runs]
    lowest = {name: min(run[name] for run in counted) for name in unstable if all(name in run for run in counted)}
    modules = {name: _equal([run.modules.get(name, {}) for run in runs]) for name in first.modules}
    return replace(
        first,
        values={name: value for name, value in values.items() if name not in unknown},
        unknown=unknown,
        ops=_shared([run.ops for run in runs], "ops:", unstable),
        kernels=_shared([run.kernels for run in runs], "kernels:", unstable),
        modules={name: counts for name, counts in modules.items() if counts},
        sites=_shared_sites([run.sites for run in runs]),
        unstable=dict(sorted(unstable.items())),
        lowest=dict(sorted(lowest.items())),
        steps=min(run.steps for run in runs),
        runs=sum(run.runs for run in runs),
        numerics=merge_numerics([run.numerics for run in runs]),
    )


def _check_circumstances(runs: Sequence[Counts]) -> None:
    first = runs[0]
    for other in runs[1:]:
        for tier in ("portable", "backend"):
            one, two = getattr(first.fingerprint, tier), getattr(other.fingerprint, tier)
            if one != two:
                names = ", ".join(sorted(name for name in {*one, *two} if one.get(name) != two.get(name)))
                raise UndecidedError(
                    "two runs of the same program were made under different circumstances",
                    why=f"they differ in: {names}",
                    fix="run them on one machine, with the same environment",
                )
        if other.input_sha != first.input_sha:
            raise UndecidedError(
                "two runs that should be alike were given different settings or arguments",
                fix="count the same command line in all runs",
            )


def _shared(runs: Sequence[Mapping[str, int]], prefix: str, unstable: dict[str, str]) -> dict[str, int]:
    """Keeps the counts that all runs agree on.

    The rest is added to ``unstable``, whose names are skipped.
    """
    names = dict.fromkeys(name for run in runs for name in run)
    agreed = {}
    for name in names:
        seen = [run.get(name, 0) for run in runs]
        if f"{prefix}{name}" in unstable:
            continue
        if min(seen) == max(seen):
            agreed[name] = seen[0]
        else:
            unstable[f"{prefix}{name}"] = spread(min(seen), max(seen), RUNS_DIFFER)
    return agreed


def _shared_sites(runs: Sequence[Sequence[Site]]) -> tuple[Site, ...]:
    by_place = [{site.place: site for site in run} for run in runs]
    sites = []
    for site in runs[0]:
        same = [run[site.place] for run in by_place if site.place in run]
        if len(same) == len(runs):
            counts, ops = _equal([other.counts for other in same]), _equal([other.ops for other in same])
            sites.append(replace(site, counts=counts, ops=ops))
    return tuple(site for site in sites if site.counts or site.ops)


def _equal(runs: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: value for name, value in runs[0].items() if all(run.get(name) == value for run in runs)}
