"""``bottleneck run``: records the user's program, then reports on it."""

import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from bottleneck.commands.finish_run import (
    FinishResult,
    Reporter,
    ReportSettings,
    SensorReading,
    finish_and_report,
    measured_ceilings,
    say,
)
from bottleneck.commands.interrupts import Interrupted, answered
from bottleneck.commands.report_options import (
    AllFindings,
    Extent,
    Full,
    ProgramArguments,
    Settings,
    Train,
    extent_of,
)
from bottleneck.harness.messages import RecordOptions

if TYPE_CHECKING:
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.folder import RecordingFolder
    from bottleneck.harness.messages import Plan
    from bottleneck.harness.rank_coordination import RankGroup
    from bottleneck.harness.sensors import Monitor
    from bottleneck.harness.supervise import Job

# What `--strict` makes of a failure of ours (design section 8).
_STRICT_STATUS = 4
_MODULE = "-m", "--module"


@dataclass(frozen=True)
class RunOptions(RecordOptions):
    """The options of the command line; ``settings`` are the name=value texts of ``--set``."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    settings: tuple[str, ...] = ()
    train: bool = False
    output: Path | None = None
    force: bool = False
    strict: bool = False
    telemetry_ms: int = 20
    step: str | None = None
    stop: bool = False
    nproc_per_node: str | None = None
    extent: Extent = "screen"

    @property
    def program_name(self) -> str:
        """The name of the program, from which that of its recording is made."""
        from bottleneck.harness.folder import program_name

        return program_name(self.target, is_module=self.module)


class ProgramCommand(TyperCommand):
    """A command whose options end at FILE, or at the module that `-m` names, as those of `python` do."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses our own options; the rest are arguments."""
        options = [one for one in self.params if not getattr(one, "is_flag", True)]
        return super().parse_args(ctx, end_at_module(args, {name for option in options for name in option.opts}))


def end_at_module(arguments: Sequence[str], with_value: Collection[str]) -> list[str]:
    """The arguments with `--` after `-m MODULE`, unless it stands there. ``with_value`` are options that take one."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-") and arguments[position] != "--":
        argument = arguments[position]
        position += 2 if argument in with_value else 1
        is_module = argument.startswith("--module=") or (argument.startswith("-m") and not argument.startswith("--"))
        if (argument in _MODULE or is_module) and arguments[position : position + 1] != ["--"]:
            return [*arguments[:position], "--", *arguments[position:]]
    return list(arguments)


def run_command(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A script, a file with workload(), or a file with `model` and `inputs`."),
    ] = None,
    arguments: ProgramArguments = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does.")
    ] = None,
    settings: Settings = None,
    train: Train = False,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps to profile; 5 unless given, up to 20 where they are short."),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            "--warmup", min=0, help="Steps to let pass before any is measured; until their times settle unless given."
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            "--step", metavar="NAME", help="What ends a step: optimizer, module, loader, or the name of one's class."
        ),
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the program as soon as it is measured.")] = False,
    nproc_per_node: Annotated[
        str | None,
        typer.Option("--nproc-per-node", metavar="N", help="Start N ranks with torchrun, each with a trace."),
    ] = None,
    shapes: Annotated[
        bool | None, typer.Option("--shapes/--no-shapes", help="Record shapes, which the costs of ops need.")
    ] = None,
    stacks: Annotated[
        bool | None, typer.Option("--stacks/--no-stacks", help="Record Python calls: source lines need them.")
    ] = None,
    memory: Annotated[
        bool | None, typer.Option("--memory/--no-memory", help="Record allocations: page faults need them.")
    ] = None,
    batch_test: Annotated[
        bool | None,
        typer.Option(
            "--batch-test/--no-batch-test", help="Workload: time twice the batch_size too; left out by itself if long."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the recording; else one in bottleneck-runs/."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the recording in a folder that is not empty.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if only the measurement failed.")] = False,
    telemetry_ms: Annotated[
        int, typer.Option("--telemetry-ms", min=0, max=60_000, help="Period at which sensors are read; 0 for never.")
    ] = 20,
    full: Full = False,
    all_findings: AllFindings = False,
) -> None:
    """Records a program while it runs, then says what holds it back.

    \b
    bottleneck run train.py --epochs 1
    bottleneck run --set batch_size=64 workload.py
    bottleneck run -m package.train --config small

    Options stand before FILE; everything after it belongs to the program. The exit status is the program's own.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    program = [*([file] if file is not None else []), *(arguments or [])]
    options = RunOptions(
        target=module if module is not None else (program[0] if program else ""),
        arguments=tuple(program if module is not None else program[1:]),
        module=module is not None,
        settings=tuple(settings or ()),
        train=train,
        steps=steps,
        warmup=warmup,
        output=output,
        force=force,
        strict=strict,
        telemetry_ms=telemetry_ms,
        step=step,
        stop=stop,
        nproc_per_node=nproc_per_node,
        shapes=shapes,
        stacks=stacks,
        memory=memory,
        batch_test=batch_test,
        extent=extent_of(full=full, all_findings=all_findings),
    )
    raise typer.Exit(run(options))


def run(options: RunOptions) -> int:
    """The exit status of the program; UsageError before it starts when the options make no sense."""
    from bottleneck.harness.supervise import job_of

    job = job_of(os.environ) if options.nproc_per_node is None else None
    if job is not None:
        return _run_as_rank(options, job)
    from bottleneck.harness.folder import RecordingFolder

    folder = RecordingFolder(options.output, options.program_name, force=options.force)
    plan = make_plan(options, folder.make)
    try:
        with answered():
            return _run(options, plan, folder)
    finally:
        folder.give_up()


def _run_as_rank(options: RunOptions, job: "Job") -> int:
    """As ``run``, for one rank of a job that a launcher of the user's started."""
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.machine import busy_processors

    plan, group = make_rank_plan(options, job)
    # The sensors are those of the machine: one rank reads them for all.
    monitor = _monitor(plan, options.telemetry_ms / 1e3) if job.rank == 0 else None
    with answered():
        ending = Ending(_command(options), None, busy_processors())
        status, result = run_rank(plan, ending, group, monitor, options.extent)
    if not result.is_worth_keeping and options.output is None:
        from bottleneck.harness.folder import remove_made

        remove_made(Path(plan.folder))
    return _exit_status(options, status, result)


def _run(options: RunOptions, plan: "Plan", folder: "RecordingFolder") -> int:
    from bottleneck.harness.finish import Ending, Follower
    from bottleneck.harness.folder import RunState
    from bottleneck.harness.machine import busy_processors, count_memory_kills
    from bottleneck.harness.supervise import Child, MemoryKills, program_command, supervise

    command = _command(options)
    ending = Ending(command, None, busy_processors())
    state = RunState(plan, command, ending.environment, ending.busy_processors)
    state = replace(state, versions=ending.versions, processors=ending.processors)
    sampling = SensorReading(_monitor(plan, options.telemetry_ms / 1e3))
    reporter = Reporter(plan, ending, sampling, extent=options.extent)
    follower = Follower(Path(plan.folder), reporter.report_early)
    kills = MemoryKills(count_memory_kills())

    def accompany(child: Child) -> None:
        folder.note(replace(state, process=child.process))
        sampling.start(child.process)
        follower.start(child)

    end = supervise(program_command(plan, options.arguments), accompany)
    status = 0 if follower.is_forced else end.status
    try:
        folder.note(replace(state, status=status))
        result = reporter.conclude(follower, end, kills.since())
    except Interrupted:  # between two of our answers; the next command finishes what is left
        result = FinishResult(succeeded=False, is_finished=False)
    folder.leave(is_worth_keeping=result.is_worth_keeping, is_finished=result.is_finished)
    return _exit_status(options, status, result)


def _command(options: RunOptions) -> tuple[str, ...]:
    return (*(("-m",) if options.module else ()), options.target, *options.arguments)


def _exit_status(options: RunOptions, status: int, result: FinishResult) -> int:
    return _STRICT_STATUS if options.strict and status == 0 and not result.succeeded else status


def _monitor(plan: "Plan", period_s: float) -> "Monitor | None":
    from bottleneck.harness.finish import measured_spans
    from bottleneck.harness.sensors import Monitor, SensorLog, make_samplers

    if not period_s:
        return None
    log = SensorLog(lambda: measured_spans(Path(plan.folder)))
    return Monitor(make_samplers(), period_s, log)


def make_rank_plan(options: RunOptions, job: "Job") -> "tuple[Plan, RankGroup]":
    """The plan with the folder that all ranks of the job share, joined; UsageError if it cannot be."""
    from bottleneck.harness.folder import RUNS_FOLDER, RecordingFolder
    from bottleneck.harness.rank_coordination import RankGroup

    # The same for all ranks: none of them can ask another before the program has made its process group.
    code = hashlib.sha256(job.name.encode()).hexdigest()[:8]
    output = options.output or Path(RUNS_FOLDER, f"{options.program_name}-{code}")
    # What an earlier attempt of the same job left is replaced.
    is_again = _number("TORCHELASTIC_RESTART_COUNT") > 0
    folder = RecordingFolder(output, options.program_name, force=options.force or is_again)
    group = RankGroup(output.absolute(), job, _number("LOCAL_WORLD_SIZE"))

    def make_folder() -> Path:
        folder.make_shared(group.join)
        return folder.folder

    return make_plan(options, make_folder), group


def run_rank(
    plan: "Plan",
    ending: "Ending",
    group: "RankGroup",
    monitor: "Monitor | None",
    extent: Extent = "screen",
) -> tuple[int, FinishResult]:
    """The exit status of this rank's program; the rank that leaves last finishes the recording and reports."""
    from bottleneck.harness.finish import Follower
    from bottleneck.harness.supervise import Child, describe_end, program_command, supervise

    follower = Follower(Path(plan.folder), lambda _: None)

    def accompany(child: Child) -> None:
        if monitor is not None:
            monitor.start(child.process)
        follower.start(child)

    end = supervise(program_command(plan, ending.command[2 if plan.module else 1 :]), accompany)
    follower.stop()
    telemetry = monitor.stop() if monitor is not None else None
    status = 0 if follower.is_forced else end.status
    words = describe_end(end, None, None)
    if end.signal is not None and not follower.is_forced:
        ending = replace(ending, remarks=(words,))
    result = FinishResult(succeeded=True)
    if _is_last(group, in_order=status == 0):
        report = ReportSettings(say, measured_ceilings, extent, words if status else None)
        result = finish_and_report(plan, replace(ending, status=status, telemetry=telemetry), report)
        group.close()
    return status, result


def _is_last(group: "RankGroup", *, in_order: bool) -> bool:
    """True if this rank has to finish the recording; one that is interrupted leaves it to the others."""
    try:
        return group.leave(in_order=in_order)
    except Interrupted:
        return False


def _number(name: str) -> int:
    """A number that the launcher gives in the environment; 0 where it does not."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


def make_plan(options: RunOptions, make_folder: Callable[[], Path]) -> "Plan":
    """The plan, with its folder made when all else is found right; UsageError for a request that cannot be met."""
    from bottleneck.harness.messages import Plan
    from bottleneck.harness.supervise import check_ranks
    from bottleneck.harness.target import check_program

    form, settings = check_program(
        options.target, options.settings, options.arguments, train=options.train, is_module=options.module
    )
    check_ranks(options.nproc_per_node, form, options.target, os.environ)
    return Plan(
        folder=str(make_folder()),
        form=form,
        target=options.target,
        module=options.module,
        settings=settings,
        train=options.train,
        step=options.step,
        stop=options.stop,
        nproc_per_node=options.nproc_per_node,
        **options.record_options,
    )
