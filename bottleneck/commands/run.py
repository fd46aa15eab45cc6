"""``bottleneck run``: records the user's program, then reports on it."""

import hashlib
import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bottleneck.commands.report_options import (
    PROBE_BUDGET_S,
    TEXT_FORMATS,
    AllFindings,
    ExampleCommand,
    Force,
    Full,
    Module,
    Probe,
    ProgramArguments,
    Quiet,
    RecordingOutput,
    RunProbeBudget,
    Settings,
    StepEnd,
    Steps,
    TelemetryMs,
    Train,
    Warmup,
    choice_of_format,
    extent_of,
)
from bottleneck.errors import UsageError
from bottleneck.recorder.finish_run import (
    FinishResult,
    Reporter,
    ReportSettings,
    finish_and_report,
    load_reporting,
    measured_ceilings,
    say,
)
from bottleneck.report.output import write_note
from bottleneck.system.interrupts import Interrupted, answered
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.harness.finish import Ending, SensorReading
    from bottleneck.harness.folder import RecordingFolder
    from bottleneck.harness.messages import Plan, Program, RecordOptions
    from bottleneck.harness.rank_coordination import LaunchedRank, RankGroup
    from bottleneck.recorder.finish_run import Render
    from bottleneck.report.screen import Extent
    from bottleneck.schema.analysis import Analysis

# The seconds that `run` adds to a script, and that a step takes that can be repeated (benchmarks/run_cost.py).
_ADDED_S = {"script": 4, "workload": 5, "model": 5}
_GPU_DRIVERS = ("/proc/driver/nvidia/version", "/dev/kfd")

# What `--strict` makes of a failure of ours (design section 8).
_STRICT_STATUS = 4
_MODULE = "-m", "--module"


@dataclass(frozen=True)
class RunOptions:
    """The options of the command line besides those of the program and its measurement."""

    output: Path | None = None
    force: bool = False
    strict: bool = False
    telemetry_ms: int = 20
    quiet: bool = False
    render: "Render | None" = None
    probe_budget_s: float | None = None


class ProgramCommand(ExampleCommand):
    """A command whose options end at FILE or a module.

    The module is what `-m` names. Options of `python` end there too.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses our own options; the rest are arguments."""
        options = [one for one in self.params if not getattr(one, "is_flag", True)]
        return super().parse_args(ctx, end_at_module(args, {name for option in options for name in option.opts}))


def end_at_module(arguments: Sequence[str], with_value: Collection[str]) -> list[str]:
    """Puts `--` after `-m MODULE` in the arguments, unless it is there.

    ``with_value`` are options that take one.
    """
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
    module: Module = None,
    settings: Settings = None,
    train: Train = False,
    steps: Steps = None,
    warmup: Warmup = None,
    step: StepEnd = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the program as soon as it is measured.")] = False,
    nproc_per_node: Annotated[
        str | None, typer.Option(metavar="N", help="Start N ranks with torchrun, each with a trace.")
    ] = None,
    follow_children: Annotated[
        bool,
        typer.Option("--follow-children", help="Record the Python processes that it starts and that import torch."),
    ] = False,
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
    inspect_padding: Annotated[
        bool,
        typer.Option(
            "--inspect-padding", help="Look in one step how much of the ids on a device is padding, as on a CPU always."
        ),
    ] = False,
    startup: Annotated[
        bool,
        typer.Option("--startup", help="Print what the program does until its first steady step, part by part."),
    ] = False,
    probe: Probe = False,
    probe_budget: RunProbeBudget = None,
    output: RecordingOutput = None,
    force: Force = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if only the measurement failed.")] = False,
    telemetry_ms: TelemetryMs = 20,
    form: Annotated[str, choice_of_format("How to print the report.", TEXT_FORMATS)] = "terminal",
    full: Full = False,
    all_findings: AllFindings = False,
    quiet: Quiet = False,
) -> None:
    """Records a program while it runs, then says what holds it back.

    \b
    bottleneck run train.py --epochs 1
    bottleneck run --set batch_size=64 workload.py
    bottleneck run -m package.train --config small

    Options stand before FILE; everything after it belongs to the program. The report goes to stderr, in any --format:
    stdout stays the program's own. The exit status is the program's own.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.harness.messages import RecordOptions
    from bottleneck.harness.target import make_program

    words = [word for word in (module, file, *(arguments or [])) if word is not None]
    target, *rest = words or [""]
    if module is None:
        _refuse_what_is_no_program(target)
    program = make_program(target, rest, settings or (), train=train, seed=None, module=module is not None)
    record = RecordOptions(
        steps=steps,
        warmup=warmup,
        step=step,
        stop=stop,
        nproc_per_node=nproc_per_node,
        follow_children=follow_children,
        shapes=shapes,
        stacks=stacks,
        memory=memory,
        batch_test=batch_test,
        option_costs=probe,
        inspect_padding=inspect_padding,
        startup=startup,
    )

    render = partial(_render, form=form, extent=extent_of(full=full, all_findings=all_findings))
    budget_s = PROBE_BUDGET_S if probe and probe_budget is None else probe_budget
    options = RunOptions(output, force, strict, telemetry_ms, quiet, render, budget_s)
    raise typer.Exit(run(program, record, options))


def _render(analysis: "Analysis", stream: TextIO, form: str, extent: "Extent") -> str:
    from bottleneck.report.screen import report_text  # takes a tenth of a second, while the program runs

    return report_text(analysis, stream, form=form, extent=extent)


def _refuse_what_is_no_program(target: str) -> None:
    """Raises UsageError for a file that is no program.

    It is not there, as Python says with the same status, or it is a trace or a recording.
    """
    from bottleneck.schema.recording import is_recording
    from bottleneck.schema.sources import is_trace_file

    path = Path(target)
    if not path.exists():
        raise UsageError(f"there is no file {target}", fix="check the path: it is looked for from the working folder")
    if is_recording(path) or (path.is_file() and is_trace_file(path)):
        kind = "a recording, not a program" if path.is_dir() else "no program"
        raise UsageError(f"{target} is {kind}", fix=f"explain it: bottleneck report {shlex.quote(target)}")


def run(program: "Program", record: "RecordOptions", options: RunOptions) -> int:
    """Runs the program and gives its exit status.

    UsageError before it starts when the options make no sense.
    """
    from bottleneck.harness.rank_coordination import check_ranks, launched_rank

    _check_following(program, record)
    check_ranks(record.nproc_per_node, program.form, program.target, os.environ)
    job = launched_rank(os.environ) if record.nproc_per_node is None else None
    if job is not None:
        return _run_as_rank(program, record, options, job)
    from bottleneck.harness.folder import RecordingFolder, program_name
    from bottleneck.harness.messages import Plan

    folder = RecordingFolder(options.output, program_name(program), force=options.force)
    plan = Plan(str(folder.make()), program, record)
    if not options.quiet:
        _announce(plan, options.probe_budget_s)
    try:
        with answered():
            return _run(options, plan, folder)
    finally:
        folder.give_up()


def _check_following(program: "Program", record: "RecordOptions") -> None:
    """UsageError where processes cannot be followed in this way of running."""
    others = {"--nproc-per-node": record.nproc_per_node is not None, "--stop": record.stop}
    for option, is_given in others.items() if record.follow_children else ():
        if is_given:
            raise UsageError(f"--follow-children and {option} do not go together", fix="leave one of them out")
    if record.follow_children and program.form != "script":
        raise UsageError(
            f"{program.target} is a {program.form}, whose step is repeated in one process",
            fix="leave --follow-children out, or run a script that starts processes",
        )


def _announce(plan: "Plan", probe_budget_s: float | None = None) -> None:
    """Says what will be done and how much longer it takes."""
    from bottleneck.calibrate.cache import SHORT_S, reason_to_measure
    from bottleneck.harness.machine import threads_from_environment
    from bottleneck.harness.messages import MOST_STEPS

    program, wanted = plan.program, plan.options.steps
    has_gpu = any(Path(driver).exists() for driver in _GPU_DRIVERS)
    reason = None if has_gpu else reason_to_measure(threads_from_environment())
    steps = f"up to {counted(MOST_STEPS, 'step')}" if wanted is None else counted(wanted, "step")
    added_s = _ADDED_S[program.form] + round(probe_budget_s or 0.0)
    parts = [f"up to {probe_budget_s:g} s of them to time pieces of the step alone"] if probe_budget_s else []
    if reason is not None:
        added_s += SHORT_S
        parts = [f"{SHORT_S} s of them to measure this CPU ({reason})", *parts]
    verb, longer = ("adds", "") if program.form == "script" else ("takes", ", longer where a step does")
    time = ", ".join([f"{verb} about {added_s} s{longer}", *parts])
    write_note(f"running {program.target}; records {steps} after warm-up; {time}")


def _run_as_rank(program: "Program", record: "RecordOptions", options: RunOptions, job: "LaunchedRank") -> int:
    """Runs one rank of a job, as ``run`` does.

    A launcher of the user's started the job.
    """
    from bottleneck.harness.finish import Ending, SensorReading
    from bottleneck.harness.machine import busy_processors

    plan, group = make_rank_plan(program, record, options, job)
    if job.rank == 0 and not options.quiet:
        _announce(plan)
    # The sensors are those of the machine: one rank reads them for all.
    sampling = SensorReading(Path(plan.folder), options.telemetry_ms / 1e3 if job.rank == 0 else 0.0)
    with answered():
        ending = Ending(None, busy_processors())
        status, result = run_rank(plan, ending, group, sampling, options)
    if not result.is_worth_keeping and options.output is None:
        from bottleneck.harness.folder import remove_made

        remove_made(Path(plan.folder))
    return _exit_status(options, status, result)


def _run(options: RunOptions, plan: "Plan", folder: "RecordingFolder") -> int:
    from bottleneck.harness.finish import Ending, Follower, SensorReading
    from bottleneck.harness.folder import RunState
    from bottleneck.harness.machine import busy_processors, count_memory_kills
    from bottleneck.harness.supervise import MemoryKills, program_command, supervise
    from bottleneck.system.child_process import Child

    ending = Ending(None, busy_processors())
    state = RunState(plan, ending.environment, ending.busy_processors)
    state = replace(state, versions=ending.versions, processors=ending.processors)
    sampling = SensorReading(Path(plan.folder), options.telemetry_ms / 1e3)
    reporter = Reporter(
        plan,
        ending,
        sampling,
        render=options.render,
        is_quiet=options.quiet,
        probe_budget_s=options.probe_budget_s,
    )
    # Nobody knows how many processes there will be: the report waits for the end of the program.
    early = (lambda _: None) if plan.options.follow_children else reporter.report_early
    follower = Follower(Path(plan.folder), early)
    kills = MemoryKills(count_memory_kills())

    def accompany(child: Child) -> None:
        folder.note(replace(state, process=child.process))
        sampling.start(child.process)
        follower.start(child)
        load_reporting()

    end = supervise(program_command(plan), accompany)
    status = 0 if follower.is_forced else end.status
    try:
        folder.note(replace(state, status=status))
        result = reporter.conclude(follower, end, kills.since())
    except Interrupted:  # between two of our answers; the next command finishes what is left
        result = FinishResult(succeeded=False, is_finished=False)
    folder.leave(is_worth_keeping=result.is_worth_keeping, is_finished=result.is_finished)
    return _exit_status(options, status, result)


def _exit_status(options: RunOptions, status: int, result: FinishResult) -> int:
    return _STRICT_STATUS if options.strict and status == 0 and not result.succeeded else status


def make_rank_plan(
    program: "Program", record: "RecordOptions", options: RunOptions, job: "LaunchedRank"
) -> "tuple[Plan, RankGroup]":
    """Makes the plan of a rank and joins its job.

    The plan has the folder that all ranks of the job share. UsageError if it cannot be joined.
    """
    from bottleneck.harness.folder import RUNS_FOLDER, RecordingFolder, program_name
    from bottleneck.harness.messages import Plan
    from bottleneck.harness.rank_coordination import RankGroup

    # The same for all ranks: none of them can ask another before the program has made its process group.
    code = hashlib.sha256(job.name.encode()).hexdigest()[:8]
    name = program_name(program)
    output = options.output or Path(RUNS_FOLDER, f"{name}-{code}")
    # What an earlier attempt of the same job left is replaced.
    folder = RecordingFolder(output, name, force=options.force or _number("TORCHELASTIC_RESTART_COUNT") > 0)
    group = RankGroup(output.absolute(), job, _number("LOCAL_WORLD_SIZE"))
    folder.make_shared(group.join)
    return Plan(str(folder.folder), program, record), group


def run_rank(
    plan: "Plan",
    ending: "Ending",
    group: "RankGroup",
    sampling: "SensorReading",
    options: RunOptions,
) -> tuple[int, FinishResult]:
    """Runs this rank's program and gives its exit status.

    The rank that leaves last finishes the recording and reports.
    """
    from bottleneck.harness.finish import Follower
    from bottleneck.harness.supervise import describe_end, program_command, supervise
    from bottleneck.system.child_process import Child

    follower = Follower(Path(plan.folder), lambda _: None)

    def accompany(child: Child) -> None:
        sampling.start(child.process)
        follower.start(child)

    end = supervise(program_command(plan), accompany)
    follower.stop()
    telemetry = sampling.stop()
    status = 0 if follower.is_forced else end.status
    words = describe_end(end, None, None)
    if end.signal is not None and not follower.is_forced:
        ending = replace(ending, remarks=(words,))
    result = FinishResult(succeeded=True)
    if _is_last(group, in_order=status == 0):
        ceilings = partial(measured_ceilings, is_quiet=options.quiet)
        report = ReportSettings(say, ceilings, options.render, words if status else None)
        result = finish_and_report(plan, replace(ending, status=status, telemetry=telemetry), report)
        group.close()
    return status, result


def _is_last(group: "RankGroup", *, in_order: bool) -> bool:
    """Tells whether this rank has to finish the recording.

    One that is interrupted leaves it to the others.
    """
    try:
        return group.leave(in_order=in_order)
    except Interrupted:
        return False


def _number(name: str) -> int:
    """A number that the launcher gives in the environment; 0 where it does not."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0
