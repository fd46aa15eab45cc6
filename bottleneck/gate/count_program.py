"""Counts what the steps of a program do: records it in processes of their own and merges their counters."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bottleneck.errors import UndecidedError, WorkloadError
from bottleneck.experiment.program import Program
from bottleneck.experiment.record_once import LOG_FILE, ending_of, plan_of, run_at
from bottleneck.experiment.side import Stand
from bottleneck.gate.counting import count, merge
from bottleneck.harness.finish import finish_recording, read_all_notes
from bottleneck.harness.messages import Plan
from bottleneck.pipeline import Options, examine, locate
from bottleneck.schema.case import Case
from bottleneck.schema.counters import Counts
from bottleneck.schema.recording import Recording

# Optimizers make their state in the first step, autotuners choose in the second; a step like the others must follow.
WARMUP, STEPS = 3, 3

# What torch compiled in an earlier process it only loads, and counts otherwise. One thread, since with two torch puts
# batches together by other ops (345 of them became 348 in examples/slow_loader.py): machines would differ.
_ENVIRONMENT = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "OMP_NUM_THREADS": "1"}
_NO_STEPS = ("whole program", "time window", "none")


@dataclass(frozen=True)
class Counted:
    """What all runs agree on, the folder of each run's recording, and the case of the last."""

    counts: Counts
    recordings: tuple[Path, ...]
    case: Case


def count_program(
    program: Program, folder: Path, stand: Stand, runs: int = 1, tell: Callable[[str], None] = lambda _: None
) -> Counted:
    """The counters of a step of a workload, a bare model or a script, from so many processes one after the other.

    Each starts in the stand's folder, from which the target is named, with the program's seed and, unless the stand's
    environment says otherwise, one thread; it leaves its recording in ``folder``. WorkloadError where the program
    fails, UndecidedError where it has no steps or runs cannot be merged.
    """
    counted: list[Counted] = []
    for number in range(runs):
        tell(f"counting {program.target} in {stand.label}" + (f", run {number + 1}" if runs > 1 else ""))
        counted.append(_count_once(program, (folder / f"run{number + 1}").resolve(), stand))
    counts = merge([each.counts for each in counted])
    return Counted(counts, tuple(path for each in counted for path in each.recordings), counted[-1].case)


def _count_once(program: Program, folder: Path, stand: Stand) -> Counted:
    folder.mkdir(parents=True, exist_ok=True)
    plan = plan_of(program, folder, steps=STEPS, warmup=WARMUP, memory=True, counting=True)
    recording = _record(plan, program, stand)
    if not recording.traces or recording.step_source in _NO_STEPS:
        raise UndecidedError(
            f"{program.target} made no steps to count",
            why="; ".join(recording.warnings[:2]) or "no step boundary was found",
            fix="have it make a few more steps, or define workload() in it",
        )
    # Every step, those too that took their time: a step that does something else is what is looked for.
    case = examine(locate(folder)[0], Options(steps=slice(None)))
    return Counted(count(case, stand.folder), (folder,), case)


def _environment(stand: Stand) -> dict[str, str]:
    chosen = {**_ENVIRONMENT, **stand.variables}
    # Torch takes as many threads as MKL, which this variable tells before the other does.
    return {**os.environ, "MKL_NUM_THREADS": chosen["OMP_NUM_THREADS"], **chosen}


def _record(plan: Plan, program: Program, stand: Stand) -> Recording:
    """The recording, written to the plan's folder; WorkloadError with the program's last words where it fails."""
    folder = Path(plan.folder)
    environment = _environment(stand)
    outcome = run_at(stand, program, plan, environment)
    if outcome.failed:
        raise WorkloadError(
            f"{program.target} failed in {stand.label}",
            why=outcome.why,
            fix=f"see all that it said in {folder / LOG_FILE}",
        )
    return finish_recording(plan, read_all_notes(folder), ending_of(program, environment), None)
