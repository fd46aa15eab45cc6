"""``bottleneck run``: records the user's program, then reports on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.plan import RunOptions, make_plan
from bottleneck.commands.telling import tell

if TYPE_CHECKING:
    from bottleneck.harness.notes import Plan
    from bottleneck.harness.telemetry import Monitor

# What `--strict` makes of a failure of ours (design section 8).
_STRICT_STATUS = 4


def run_command(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A script, a file with workload(), or a file with `model` and `inputs`."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own arguments, untouched.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", metavar="MODULE", help="Run a module, as `python -m` does.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of workload(); repeat for several."),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Bare model: full training steps with AdamW.")] = False,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps to profile; 5 unless given, up to 20 where they are short."),
    ] = None,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Steps to let pass before any is measured.")] = 3,
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
        bool | None, typer.Option("--shapes/--no-shapes", help="Record shapes: prices of ops need them.")
    ] = None,
    stacks: Annotated[
        bool | None, typer.Option("--stacks/--no-stacks", help="Record Python calls: source lines need them.")
    ] = None,
    memory: Annotated[
        bool | None, typer.Option("--memory/--no-memory", help="Record allocations: page faults need them.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder for the recording.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the recording in a folder that is not empty.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if only the measurement failed.")] = False,
    telemetry_ms: Annotated[
        int, typer.Option("--telemetry-ms", min=0, max=60_000, help="Period at which sensors are read; 0 for never.")
    ] = 20,
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
    )
    raise typer.Exit(run(options))


def run(options: RunOptions) -> int:
    """The exit status of the program; UsageError before it starts when the options make no sense."""
    from bottleneck.harness.cpu import busy_processors
    from bottleneck.harness.finish import Ending
    from bottleneck.harness.supervisor import Child, child_command, supervise

    plan, busy = make_plan(options), busy_processors()
    monitor = _monitor(plan, options.telemetry_ms / 1e3)

    def start_sampling(child: Child) -> None:
        if monitor is not None:
            monitor.start(child.process)

    status = supervise(child_command(plan, options.arguments), start_sampling).status
    telemetry = monitor.stop() if monitor is not None else None
    flag = ("-m",) if options.module else ()
    succeeded = tell(plan, Ending((*flag, options.target, *options.arguments), status, busy, telemetry))
    return _STRICT_STATUS if options.strict and status == 0 and not succeeded else status


def _monitor(plan: "Plan", period_s: float) -> "Monitor | None":
    from bottleneck.harness.finish import measured_spans
    from bottleneck.harness.host import HostSampler
    from bottleneck.harness.nvml import NvmlSampler
    from bottleneck.harness.sensor_log import SensorLog
    from bottleneck.harness.telemetry import Monitor

    if not period_s:
        return None
    log = SensorLog(lambda: measured_spans(Path(plan.folder)))
    return Monitor((NvmlSampler(), HostSampler()), period_s, log)
