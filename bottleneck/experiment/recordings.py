"""Runs a program where one side of a comparison stands, under the harness: what counting and recording share."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bottleneck.experiment.points import LOG_FILE, why_it_failed
from bottleneck.experiment.stand import Stand
from bottleneck.harness.deaths import MemoryKills, count_memory_kills
from bottleneck.harness.finish import Ending
from bottleneck.harness.notes import Plan
from bottleneck.harness.quiet import run_quietly
from bottleneck.harness.supervisor import child_command
from bottleneck.harness.trial_program import Program
from bottleneck.recording import kept_environment


@dataclass(frozen=True)
class Outcome:
    """How a run ended; ``why`` is what the program said last, or how it died."""

    failed: bool
    why: str


def plan_of(program: Program, folder: Path, steps: int | None = None, warmup: int | None = None, **chosen: Any) -> Plan:
    """How to record the program's steps in this folder: a script ends with them, and nothing else is tried."""
    return Plan(
        folder=str(folder),
        form=program.form,
        target=program.target,
        module=False,
        settings=program.settings,
        train=program.train,
        steps=steps,
        warmup=warmup,
        stop=program.form == "script",
        batch_test=False,
        option_costs=False,
        seed=program.seed,
        **chosen,
    )


def run_at(stand: Stand, program: Program, plan: Plan, environment: Mapping[str, str]) -> Outcome:
    """Runs the program in the stand's folder; what it prints goes into the log beside its recording."""
    kills = MemoryKills(count_memory_kills())
    log = Path(plan.folder) / LOG_FILE
    heard = run_quietly(child_command(plan, program.arguments), log, dict(environment), stand.folder)
    return Outcome(heard.end.status != 0, why_it_failed(heard, kills.since()))


def ending_of(program: Program, environment: Mapping[str, str], busy_processors: float = 0.0) -> Ending:
    """What the recording is to say of a run that ended well."""
    command = (program.target, *program.arguments)
    return Ending(command, 0, busy_processors, environment=kept_environment(environment))
