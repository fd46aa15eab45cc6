"""``bottleneck watch``: times every step of a whole run."""

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.report_options import (
    RESULT_FORMATS,
    Module,
    ProgramArguments,
    Quiet,
    StepEnd,
    form_of,
    format_option,
    output_style,
    write_report,
)
from bottleneck.errors import BottleneckError, UsageError
from bottleneck.recorder.finish_run import from_here, shown
from bottleneck.report.output import marked, write_note, write_status, write_text
from bottleneck.system.interrupts import answered

if TYPE_CHECKING:
    from bottleneck.harness.messages import Plan, Program, RecordOptions
    from bottleneck.harness.rank_coordination import LaunchedRank

# Clocks and loads that last matter here; a log of steps needs no finer ones.
_SENSOR_PERIOD_S = 1.0
_ENTRY = "bottleneck.harness.watch_child:watch_child"


def watch_command(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A script; or the folder of a watched run, to report on it again."),
    ] = None,
    arguments: ProgramArguments = None,
    module: Module = None,
    step: StepEnd = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR|FILE",
            help="Folder for the log, else one in bottleneck-runs/; of a watched run the file for its report.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier run left in the folder.")] = False,
    windows: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Profiler windows to record at most at slow steps; 0 for none."),
    ] = 3,
    every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Record a profiler window every so often: 90s, 10m or 2h."),
    ] = None,
    form: Annotated[str | None, format_option("the report")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Follow a run that goes on: name its folder, in another terminal.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Times every step of a program, and says why some were slow.

    \b
    bottleneck watch train.py --epochs 10
    bottleneck watch -m package.train
    bottleneck watch bottleneck-runs/train-1
    bottleneck watch --live bottleneck-runs/train-1

    A step costs some microseconds more. The profiler runs for some steps after a slow one, three times at most and
    not in the first minute, and at the times of --every. Options stand before FILE; everything after it belongs to
    the program. The report goes to stderr at the program's end, and the exit status is the program's own. A program
    that is killed leaves its log: give the folder in place of FILE.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.harness.messages import RecordOptions
    from bottleneck.harness.target import make_program, refuse_arguments
    from bottleneck.watched.read_log import is_watched

    words = [word for word in (module, file, *(arguments or [])) if word is not None]
    if not words:
        raise UsageError("name a script to watch, or the folder of a watched run", fix="bottleneck watch train.py")
    target, *rest = words
    if live:
        _refuse_to_follow(target, is_folder=module is None and is_watched(Path(target)))
        from bottleneck.commands.live_view import LiveView, follow

        with LiveView() as view, contextlib.suppress(KeyboardInterrupt):
            follow(Path(target), view.draw)
    if module is None and is_watched(Path(target)):
        refuse_arguments(target, "the log of a run", rest)
        _report(Path(target), form_of(form, output, RESULT_FORMATS), output)
        return
    program = make_program(target, rest, (), train=False, seed=None, module=module is not None)
    if program.form != "script":
        raise UsageError(
            f"{target} is a {program.form}, which has no run of its own to watch",
            fix=f"measure its step: bottleneck run {target}",
        )
    options = RecordOptions(step=step, windows=windows, every_s=None if every is None else _seconds(every))
    raise typer.Exit(_watch(program, options, output, form or "terminal", force=force, quiet=quiet))


_TIME, _UNITS_S = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(s|m|h)"), {"s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(text: str) -> float:
    """The seconds of '90s', '10m' or '2h'. UsageError for anything else."""
    match = _TIME.fullmatch(text)
    if match is None or not float(match[1]):
        raise UsageError(f"--every {text} is no time", fix="write a number and s, m or h, as in --every 10m")
    return float(match[1]) * _UNITS_S[match[2]]


def _refuse_to_follow(target: str, *, is_folder: bool) -> None:
    """Raises UsageError for what cannot be followed on this terminal."""
    if not is_folder:
        raise UsageError(
            f"--live follows a run that goes on, and {target} is no folder of one",
            why="the program itself writes to the terminal that it was started from",
            fix="start it by `bottleneck watch`, then in another terminal: bottleneck watch --live FOLDER",
        )
    if not sys.stdout.isatty():
        raise UsageError(
            "--live draws on a terminal, and the output is none", fix=f"leave it out: bottleneck watch {target}"
        )


def _report(folder: Path, form: str, output: Path | None) -> None:
    from bottleneck.report.watched import render
    from bottleneck.watched.summary import summarise

    _finish_windows(folder)
    write_report(render(summarise(from_here(folder)), form, output_style(output)), output)


def _watch(
    program: "Program", options: "RecordOptions", output: Path | None, form: str, *, force: bool, quiet: bool
) -> int:
    """Runs the program, reports, and gives its exit status."""
    from bottleneck.harness.folder import RecordingFolder, program_name
    from bottleneck.harness.messages import Plan
    from bottleneck.harness.rank_coordination import launched_rank

    job = launched_rank(os.environ)
    if job is not None:
        return _watch_rank(program, options, output, job)
    folder = RecordingFolder(output, program_name(program), force=force)
    plan = Plan(str(folder.make()), program, options)
    if not quiet:
        where = shown(folder.folder)
        write_note(f"watching {program.target}; the log is in {where}; to look on: bottleneck watch --live {where}")
    try:
        with answered():
            status = _supervise(plan, has_sensors=True)
        folder.leave(is_worth_keeping=_say(folder.folder, form), is_finished=True)
    finally:
        folder.give_up()
    return status


def _supervise(plan: "Plan", *, has_sensors: bool) -> int:
    """Runs the program beside the sensors, whose readings are left in its folder, and gives its exit status."""
    from bottleneck.harness.finish import SensorReading
    from bottleneck.harness.supervise import child_command, supervise
    from bottleneck.schema.telemetry import write_samples

    folder = Path(plan.folder)
    sensors = SensorReading(folder, _SENSOR_PERIOD_S if has_sensors else 0.0)
    status = supervise(child_command(plan, _ENTRY), lambda child: sensors.start(child.process)).status
    readings = sensors.stop()
    if readings is not None and readings.samples:
        with contextlib.suppress(OSError):  # the steps are worth a report without them
            write_samples(folder, readings.samples)
    return status


def _watch_rank(program: "Program", options: "RecordOptions", output: Path | None, job: "LaunchedRank") -> int:
    """Watches one rank of a job that a launcher started.

    The last to end reports on all.
    """
    from bottleneck.commands.run import RunOptions, make_rank_plan

    plan, group = make_rank_plan(program, options, RunOptions(output), job)
    with answered():
        status = _supervise(plan, has_sensors=job.rank == 0)
    if group.leave(in_order=status == 0):
        _say(Path(plan.folder), "terminal")
        group.close()
    return status


def _say(folder: Path, form: str) -> bool:
    """Says the report of a run that has ended, and whether there is any."""
    from bottleneck.report.watched import render
    from bottleneck.watched.summary import summarise

    _finish_windows(folder)
    _say_memory(folder)
    try:
        run = summarise(from_here(folder), is_over=True)
    except BottleneckError as error:
        write_status("\n".join(error.lines()))
        return False
    page = folder / "report.html"
    write_text(render(run, "html"), page)
    write_status(marked(f"the page for a browser: {shown(page)}"))
    write_status(render(run, form, output_style(None)).rstrip("\n"))
    return True


def _say_memory(folder: Path) -> None:
    from bottleneck.recorder.finish_run import say_memory

    say_memory(folder, write_note)


def _finish_windows(folder: Path) -> None:
    from bottleneck.recorder.finish_run import finish_windows

    try:
        finish_windows(folder)
    except (OSError, BottleneckError) as error:
        write_status(f"error: a recorded window could not be finished: {error}")
