"""``bottleneck compare``: what changed between two recordings, or two commits, adding up to the change of the step."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class CompareFormat(StrEnum):
    """How the comparison is rendered; the names are the keys of ``report.comparison_formats.FORMATS``."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"


def compare_command(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Before: a trace, a recording, a folder of rank traces, analysis.json, a lock-file, or a git ref.",
        ),
    ],
    after: Annotated[
        str,
        typer.Argument(metavar="B", help="After: any of these; `.` or `worktree` are the sources as they lie here."),
    ],
    workload: Annotated[
        Path | None,
        typer.Option("--workload", "-w", metavar="FILE", help="The program to record at a git ref or in the worktree."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of workload(); repeat for several."),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Bare model: full training steps with AdamW.")] = False,
    form: Annotated[
        CompareFormat,
        typer.Option("--format", "-f", metavar="terminal|markdown|json", help="How to render the comparison."),
    ] = CompareFormat.TERMINAL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the comparison to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the waterfall to this .png or .svg file.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=1000, metavar="N", help="Show so many ops; 10 unless given.")
    ] = 10,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="LIMITS",
            help="Exit code 1 beyond these: step=+3%,syncs=+0; counters as in a lock-file.",
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="A:B", help="Compare these steps, as `report --steps` counts them.")
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Take each trace whole, counted as one step.")] = False,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Judge both against this device, as `report` does.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Says what changed between two recordings: by account, then by module and op, adding up to the change of the step.

    \b
    bottleneck compare before.json.gz after.json.gz
    bottleneck compare recording/ other-recording/ --plot waterfall.png
    bottleneck compare main . --workload examples/mlp.py
    bottleneck compare .bottleneck/mlp.lock.toml recording/ --fail-on syncs=+0

    A file or folder goes before a git ref of the same name. Exit code 0 whatever changed, unless --fail-on says so.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.comparing import Wanted, compare_sides

    compare_sides(
        Wanted(
            before=before,
            after=after,
            workload=workload,
            settings=tuple(settings or ()),
            train=train,
            steps=steps,
            whole=whole,
            device=device,
            top=top,
            fail_on=fail_on,
            quiet=quiet,
        ),
        form.value,
        output,
        plot,
    )
