"""``bottleneck attach``: records a window of a program that runs already, and leaves."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.report_options import (
    TEXT_FORMATS,
    AllFindings,
    Force,
    Full,
    Quiet,
    RecordingOutput,
    StepEnd,
    Steps,
    TelemetryMs,
    Warmup,
    choice_of_format,
    extent_of,
)
from bottleneck.errors import UndecidedError, UsageError
from bottleneck.recorder.finish_run import ReportSettings, finish_and_report, known_ceilings, say
from bottleneck.report.output import write_note
from bottleneck.system.interrupts import Interrupted, answered
from bottleneck.units import counted

if TYPE_CHECKING:
    from bottleneck.harness.folder import RecordingFolder
    from bottleneck.harness.messages import Plan
    from bottleneck.harness.running_process import Attached
    from bottleneck.recorder.finish_run import Render


@dataclass(frozen=True)
class _WindowOptions:
    """The bound of a window, the period of its sensors and the form of its report."""

    seconds: float
    sensor_period_s: float
    render: "Render"


_ENDED = "the program ended in the recorded window"
_UNANSWERED = "the program did not say that it was done"


def attach_command(
    process: Annotated[int, typer.Argument(min=1, metavar="PID", help="The process of the program.")],
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600.0, metavar="S", help="End the window after so many seconds.")
    ] = 60.0,
    events: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="End the window before it holds more events; 200,000 unless given."),
    ] = None,
    steps: Steps = None,
    warmup: Warmup = None,
    step: StepEnd = None,
    output: RecordingOutput = None,
    force: Force = False,
    telemetry_ms: TelemetryMs = 20,
    form: Annotated[str, choice_of_format("How to print the report.", TEXT_FORMATS)] = "terminal",
    full: Full = False,
    all_findings: AllFindings = False,
    quiet: Quiet = False,
) -> None:
    """Records a window of a program that runs already, then says what holds it back.

    \b
    bottleneck attach 4242
    bottleneck attach --seconds 10 --steps 3 4242

    Start the program with BOTTLENECK_ATTACH=1 in its environment, or have it call bottleneck.attachable(); one that was
    started with KINETO_USE_DAEMON=1 records itself. It goes on as before, also where this command is killed. Ctrl-C
    ends the window with what there is. The window is bounded by --steps, --seconds and --events, whichever comes first,
    and by 1 GB of memory; one step is recorded in any case.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.harness.folder import RecordingFolder, program_name
    from bottleneck.harness.messages import EVENT_BUDGET, Plan, RecordOptions
    from bottleneck.harness.running_process import connect
    from bottleneck.report.screen import report_text

    render = partial(report_text, form=form, extent=extent_of(full=full, all_findings=all_findings))
    most_events = EVENT_BUDGET if events is None else events
    options = RecordOptions(steps=steps, warmup=warmup, step=step, option_costs=False, most_events=most_events)
    target = connect(process)
    try:
        folder = RecordingFolder(output, program_name(target.program), force=force)
        plan = Plan(str(folder.make().absolute()), target.program, options)
        if not quiet:
            most = counted(most_events, "event")
            write_note(f"attached to process {process}; records a window of {seconds:g} s or {most} at most")
        try:
            with answered():
                is_done = _record(target, process, plan, folder, _WindowOptions(seconds, telemetry_ms / 1e3, render))
        finally:
            folder.give_up()
    finally:
        target.close()
    raise typer.Exit(0 if is_done else UndecidedError.exit_code)


def _record(target: "Attached", process: int, plan: "Plan", folder: "RecordingFolder", window: _WindowOptions) -> bool:
    """Records the window and reports on it; true if there was something to report."""
    from bottleneck.harness.finish import Ending, SensorReading
    from bottleneck.harness.folder import RunState

    # What keeps the machine busy is this very program.
    ending = Ending(None, busy_processors=0.0, environment=target.environment)
    state = RunState(plan, ending.environment, ending.busy_processors, process, versions=ending.versions)
    sampling = SensorReading(Path(plan.folder), window.sensor_period_s)
    target.begin(plan, window.seconds)
    folder.note(replace(state, processors=ending.processors))
    sampling.start(process)
    stopped: Interrupted | None = None
    try:
        remarks = _wait(target, window.seconds)
    except Interrupted as signal:
        target.stop()
        stopped, remarks = signal, _wait(target, 0.0)
    ending = replace(ending, telemetry=sampling.stop(), remarks=remarks)
    result = finish_and_report(plan, ending, ReportSettings(say, known_ceilings, window.render))
    folder.leave(is_worth_keeping=result.is_worth_keeping, is_finished=result.is_finished)
    if stopped is not None:
        raise stopped
    return result.succeeded


def _wait(target: "Attached", seconds: float) -> tuple[str, ...]:
    """Waits for the window's end, and gives remarks on it."""
    try:
        return () if target.wait(seconds) else (_ENDED,)
    except UsageError as error:
        return (f"{_UNANSWERED}: {error.why}",)
