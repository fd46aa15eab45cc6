"""``bottleneck sweep``: measures a step over values of its parameters.

It fits what is fixed and what grows.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.report_options import (
    PICTURE_SUFFIXES,
    RESULT_FORMATS,
    Quiet,
    Train,
    check_picture,
    form_of,
    format_option,
    output_style,
    picture_option,
    write_report,
)
from bottleneck.errors import UsageError
from bottleneck.report.output import draw_picture, make_folder, write_note
from bottleneck.system.interrupts import Interrupted, answered
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.experiment.sweep import Parameter, SweepPlan, SweepProgress
    from bottleneck.harness.messages import Program
    from bottleneck.schema.trials import Sweep

_FAILED, _INTERRUPTED = 4, 130
# Processes that are alive together while points take turns.
_MOST_AT_ONCE = 64


def sweep_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file with workload(), or with `model` and `inputs`.")],
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            "-p",
            metavar="NAME=VALUES",
            help="Values of a parameter of workload(): 1,2,4 or 1:256:x2 or 0:100:25; of two parameters every pair.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set another parameter of workload(); repeat for several."),
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="A curve for each: eager, inductor, openvino, tvm, xla … or all."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="A,B", help="A curve for each default device of torch: cpu, cuda.")
    ] = None,
    threads: Annotated[
        str | None, typer.Option(metavar="N,M", help="A curve for each number of threads of torch.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Measure every point N times, take medians.")
    ] = 1,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=600, metavar="S", help="Time every point for S seconds.")
    ] = 1.0,
    turns: Annotated[
        int, typer.Option(min=0, max=10_000, metavar="N", help="Time the points again by turns, in N rounds.")
    ] = 0,
    train: Train = False,
    steps: Annotated[int | None, typer.Option(min=1, metavar="N", help="Steps to profile at each point.")] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Steps to let pass first; until they settle unless given.")
    ] = None,
    form: Annotated[str | None, format_option("the sweep")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the sweep to this file; .png, .svg, .pdf draws it."),
    ] = None,
    plot: Annotated[Path | None, picture_option("Also draw the sweep to this .png, .svg or .pdf file.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the recording of every point in this folder.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measures a step over values of its parameters: what stays the same, what grows, and where they are equal.

    \b
    bottleneck sweep model.py --param batch_size=1:256:x2 --plot sweep.png
    bottleneck sweep model.py --param batch_size=1,8,64 --backends eager,inductor
    bottleneck sweep model.py --param batch_size=1,64 --threads 1,2

    Each point is measured in a process of its own, which takes about ten seconds, in an order that has nothing to do
    with the parameters. A point that fails has its reason in the table. Ctrl-C shows what was measured so far. On a
    machine that others use too, --turns 60 times all points side by side.
    """  # noqa: D301 - backspace is how click is told to keep the lines of an example
    from bottleneck.experiment.sweep import SweepPlan, configurations_of, make_series, parse_parameter
    from bottleneck.harness.messages import RecordOptions
    from bottleneck.harness.target import check_source
    from bottleneck.report.sweep import render

    check_source(Path(file))
    picture, output = _picture(plot, output)
    rendered_as = form_of(form, output, RESULT_FORMATS)
    named = [parse_parameter(text) for text in parameters or ()]
    points = configurations_of(named, make_series(backends, device, threads))
    if len(points) < 2:
        raise UsageError(
            "there is nothing to compare: this makes one point",
            fix="name several values: --param batch_size=1,2,4, or several --backends, --device or --threads",
        )
    _check_turns(turns, len(points), device)
    options = RecordOptions(steps=steps, warmup=warmup, batch_test=False, option_costs=False, timed_s=seconds)
    program = _program(file, settings or (), named, train=train)
    plan = SweepPlan(program, options, tuple(named), points, repeats, turns)
    sweep, is_whole = _measure(plan, keep, quiet=quiet)
    draw_picture("sweep", picture, sweep)
    write_report(render(sweep, rendered_as, output_style(output)), output)
    # That a point fails may be what the sweep is to find out.
    status = 0 if any(point.step_us is not None for point in sweep.points) else _FAILED
    raise typer.Exit(status if is_whole else _INTERRUPTED)


def _check_turns(turns: int, points: int, device: str | None) -> None:
    """UsageError where turns cannot be taken."""
    if turns and device is not None:
        raise UsageError(
            "--turns and --device do not go together",
            why="the processes that take turns run on torch's own default device",
            fix="name the device in workload(), or leave --turns out",
        )
    if turns and points > _MOST_AT_ONCE:
        raise UsageError(
            f"--turns keeps a process of each of the {points} points alive, and {_MOST_AT_ONCE} is the most",
            fix="name fewer values, or leave --turns out",
        )


def _program(file: str, settings: "Sequence[str]", parameters: "Sequence[Parameter]", *, train: bool) -> "Program":
    """Makes the program of all points, with the settings they share.

    It is checked with the first value of each parameter.
    """
    from bottleneck.harness.target import make_program

    names = {parameter.name for parameter in parameters}
    fixed = {text.partition("=")[0] for text in settings}
    if names & fixed:
        name = min(names & fixed)
        raise UsageError(f"{name} has a value by --set and several by --param", fix=f"leave --set {name}=… out")
    firsts = [f"{parameter.name}={parameter.values[0]}" for parameter in parameters]
    try:
        program = make_program(file, settings=[*settings, *firsts], train=train, seed=None)
    except UsageError as error:
        if not any(f"--set {name}=" in error.what for name in names):
            raise
        # The same in the words of a sweep, whose parameters are named by --param.
        raise UsageError(error.what.replace("--set", "--param"), why=error.why, fix=error.fix) from None
    if program.form == "script":
        raise UsageError(
            f"{file} is a script, which runs once and has no parameters of ours",
            why="a sweep makes the step anew at every point",
            fix="give it a function workload(batch_size=32) that returns the step; --param names its parameters",
        )
    return replace(program, settings=tuple((name, value) for name, value in program.settings if name not in names))


def _measure(plan: "SweepPlan", keep: Path | None, *, quiet: bool) -> "tuple[Sweep, bool]":
    """Measures the sweep, and tells whether it came to its end.

    After a signal it has the points measured so far.
    """
    from bottleneck.calibrate.cache import find_calibration
    from bottleneck.experiment.record_once import Ceilings
    from bottleneck.experiment.sweep import SweepProgress, run_sweep
    from bottleneck.report.sweep import render

    tell: Callable[[str], None] = (lambda _: None) if quiet else write_note
    progress, is_whole = SweepProgress(plan), False
    with tempfile.TemporaryDirectory(prefix="bottleneck-sweep-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch) if keep is None else _kept(keep)

        def make(name: str) -> Path:
            (folder / name).mkdir()
            return folder / name

        try:
            with answered():
                ceilings = Ceilings(
                    lambda notes: find_calibration(notes.device_facts, notes.threads, tell, is_quiet=quiet)
                )
                run_sweep(progress, ceilings, make, tell)
            is_whole = True
        except Interrupted:
            write_note(_interrupted(progress, keep))
        sweep = progress.sum_up("not measured: the sweep was interrupted")
        if keep is not None:
            write_report(render(sweep, "json"), folder / "sweep.json")
    return sweep, is_whole


def _interrupted(progress: "SweepProgress", keep: Path | None) -> str:
    """Writes the line about a sweep that a signal ended.

    It tells what the sweep has, and how to measure the rest.
    """
    done, total = len(progress.measured), len(progress.plan.configurations)
    recordings = "" if keep is None else f", with their recordings in {keep}"
    return (
        f"interrupted; {done} of {counted(total, 'point')} measured, which follow{recordings}; "
        "the others: the same command with only their values"
    )


def _kept(folder: Path) -> Path:
    """The folder for all recordings, which nothing else may lie in."""
    make_folder(folder)
    if any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty",
            why="a sweep never overwrites what it finds",
            fix="name another folder after --keep",
        )
    return folder.absolute()


def _picture(plot: Path | None, output: Path | None) -> tuple[Path | None, Path | None]:
    """Gives the files for the picture and for the text.

    The name after -o may be that of a picture.
    """
    if output is not None and output.suffix in PICTURE_SUFFIXES:
        if plot is not None:
            raise UsageError("-o and --plot both name a picture", fix="name a text file after -o, or leave --plot out")
        plot, output = output, None
    check_picture(plot)
    return plot, output
