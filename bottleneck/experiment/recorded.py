"""Records a program where one side of a comparison runs, as `bottleneck run` does, and explains it."""

import os
from pathlib import Path

from bottleneck.case import Case
from bottleneck.errors import WorkloadError
from bottleneck.experiment.points import LOG_FILE, Ceilings, why_it_failed
from bottleneck.experiment.stand import Stand
from bottleneck.harness.deaths import MemoryKills, count_memory_kills
from bottleneck.harness.finish import Ending, finish_recording, read_all_notes
from bottleneck.harness.notes import Plan, RankFiles
from bottleneck.harness.quiet import run_quietly
from bottleneck.harness.supervisor import child_command
from bottleneck.harness.trial_program import Program
from bottleneck.pipeline import explain
from bottleneck.recording import kept_environment


def record_program(program: Program, folder: Path, stand: Stand, ceilings: Ceilings) -> Case:
    """The case of a program that runs in the stand's folder, from which its target is named.

    Its steps are timed without the profiler first, and judged by the ceilings, which all sides share. WorkloadError,
    with what it said last, where it fails or makes no trace.
    """
    plan = _plan(program, folder)
    kills = MemoryKills(count_memory_kills())
    environment = {**os.environ, **stand.variables}
    heard = run_quietly(child_command(plan, program.arguments), folder / LOG_FILE, environment, stand.folder)
    if heard.end.status != 0 or not RankFiles(folder, 0).partial.exists():
        raise WorkloadError(
            f"{program.target} could not be recorded at {stand.label}",
            why=why_it_failed(heard, kills.since()),
            fix=f"see that it runs there: bottleneck run {program.target}",
        )
    notes = read_all_notes(folder)
    ending = Ending(
        (program.target, *program.arguments), 0, ceilings.busy_processors, environment=kept_environment(environment)
    )
    finish_recording(plan, notes, ending, ceilings.of(notes[0]))
    return explain([folder])


def _plan(program: Program, folder: Path) -> Plan:
    return Plan(
        folder=str(folder),
        form=program.form,
        target=program.target,
        module=False,
        settings=program.settings,
        train=program.train,
        steps=None,
        warmup=None,
        stop=program.form == "script",
        shapes=True,
        stacks=True,
        batch_test=False,
        option_costs=False,
        seed=program.seed,
    )
