"""Records a program where one side of a comparison runs, as `bottleneck run` does, and explains it."""

import os
from pathlib import Path

from bottleneck.case import Case
from bottleneck.errors import WorkloadError
from bottleneck.experiment.points import Ceilings
from bottleneck.experiment.recordings import ending_of, plan_of, run_at
from bottleneck.experiment.stand import Stand
from bottleneck.harness.finish import finish_recording, read_all_notes
from bottleneck.harness.notes import RankFiles
from bottleneck.harness.trial_program import Program
from bottleneck.pipeline import explain


def record_program(program: Program, folder: Path, stand: Stand, ceilings: Ceilings) -> Case:
    """The case of a program that runs in the stand's folder, from which its target is named.

    Its steps are timed without the profiler first, and judged by the ceilings, which all sides share. WorkloadError,
    with what it said last, where it fails or makes no trace.
    """
    plan = plan_of(program, folder, shapes=True, stacks=True)
    environment = {**os.environ, **stand.variables}
    outcome = run_at(stand, program, plan, environment)
    if outcome.failed or not RankFiles(folder, 0).partial.exists():
        raise WorkloadError(
            f"{program.target} could not be recorded at {stand.label}",
            why=outcome.why,
            fix=f"see that it runs there: bottleneck run {program.target}",
        )
    notes = read_all_notes(folder)
    ending = ending_of(program, environment, ceilings.busy_processors)
    finish_recording(plan, notes, ending, ceilings.of(notes[0]))
    return explain([folder])
