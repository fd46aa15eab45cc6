"""``bottleneck whatif``: predicts a changed step from a trace.

It tells what the step would take if the program were changed.
"""

from pathlib import Path
from typing import Annotated

import typer

from bottleneck.commands.analysis_options import (
    StepsOption,
    WholeOption,
    WindowOption,
    chosen_device,
    refuse_unfinished,
    window_options,
)
from bottleneck.commands.report_options import (
    TEXT_FORMATS,
    completion_of,
    form_of,
    format_option,
    output_option,
    output_style,
    typed_devices,
    write_report,
)

_UNDECIDED = 5


def whatif_command(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace, a recording, or a folder of rank traces.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="WHAT=VALUE",
            help="Work at a factor, a time or its floor: 'kernel:softmax*=0.5x', collective=2x, batch=4x; repeatable.",
        ),
    ] = None,
    removed: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="WHAT", help="Without this: sync@model.py:57, op:aten::item, input, gc."),
    ] = None,
    fused: Annotated[
        list[str] | None,
        typer.Option("--fuse", metavar="WHAT", help="One kernel for those that follow one another: module:RMSNorm."),
    ] = None,
    overlapped: Annotated[
        list[str] | None,
        typer.Option("--overlap", metavar="WHAT", help="Nothing waits for this any more: collective, copy, input."),
    ] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="All work issued at once, as a CUDA graph or compiled code does.")
    ] = False,
    form: Annotated[str | None, format_option("the answer", TEXT_FORMATS)] = None,
    output: Annotated[Path | None, output_option("the answer", TEXT_FORMATS)] = None,
    steps: StepsOption = None,
    window: WindowOption = None,
    whole: WholeOption = False,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Judge against this device, as `report` does.",
            autocompletion=completion_of(lambda: ("cpu", *typed_devices())),
        ),
    ] = None,
) -> None:
    """Predicts what a step would take if the program were changed, from a replay of its trace.

    \b
    bottleneck whatif trace.json.gz
    bottleneck whatif trace.json.gz --remove sync@model.py:57
    bottleneck whatif trace.json.gz --set 'kernel:softmax*=0.5x' --overlap copy
    bottleneck whatif recording/ --fuse module:RMSNorm --graph -f json

    All changes are taken together. Without any it shows the critical path and the changes that would help most.
    The kind of work is kernel, copy, collective, op, module, line, sync, host, input, gc, allocator or batch; a pattern
    of names and a line of the program narrow it. Exit code 5 where the trace cannot tell.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.reading_progress import reading_progress
    from bottleneck.errors import UsageError
    from bottleneck.pipeline import explain, saved_analysis
    from bottleneck.report.whatif import render
    from bottleneck.simulate.whatif import ask
    from bottleneck.system.files import located

    rendered_as = form_of(form, output, TEXT_FORMATS)
    path = located(path)
    given = {"set": settings, "remove": removed, "fuse": fused, "overlap": overlapped}
    changes = [f"{verb} {what}" for verb, targets in given.items() for what in targets or ()]
    changes += ["graph"] if graph else []
    options = window_options(steps, window, chosen_device(device), whole=whole)
    if saved_analysis([path], options) is not None:
        raise UsageError(f"{path} is a finished analysis, without the events of its trace", fix="pass the trace")
    refuse_unfinished([path])
    with reading_progress() as on_trace:
        evidence = explain([path], options, on_trace)
    answer = ask(evidence, changes)
    write_report(render(answer, rendered_as, output_style(output)), output)
    if changes and answer.changed is None:
        raise typer.Exit(_UNDECIDED)
