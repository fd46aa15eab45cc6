"""``bottleneck verify``: tries changes on a step, each against the original in turns, and tells what they are worth."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class VerifyFormat(StrEnum):
    """How the trials are rendered."""

    TERMINAL = "terminal"
    MARKDOWN = "markdown"
    JSON = "json"


def verify_command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="A file with workload(), or `model` and `inputs`; or a recording of one, a folder."
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The program's own arguments, untouched.")
    ] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try", metavar="NAME,…|all", help="Changes to try, each alone; those that the findings name unless given."
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Then add up the winners, and measure each combination on the way.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of workload(); repeat for several."),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Bare model: full training steps with AdamW.")] = False,
    budget: Annotated[
        float, typer.Option("--budget", min=0.1, metavar="SECONDS", help="Seconds of measuring for each change.")
    ] = 30.0,
    precision: Annotated[
        float,
        typer.Option("--precision", min=0.001, max=1.0, metavar="SHARE", help="How close an interval has to be."),
    ] = 0.02,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Begins the program's random numbers, and draws who goes first.")
    ] = 0,
    form: Annotated[
        VerifyFormat, typer.Option("--format", "-f", metavar="terminal|markdown|json", help="How to render the trials.")
    ] = VerifyFormat.TERMINAL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the trials to this file.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the changes that can be tried, and leave.")] = False,
    scoreboard: Annotated[
        bool, typer.Option("--scoreboard", help="Show how the predictions of each rule have done here, and leave.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tries what the findings advise, each change against the original in turns, and says what it is really worth.

    \b
    bottleneck verify model.py
    bottleneck verify --try compile,bf16-autocast --set batch_size=64 model.py
    bottleneck verify --best bottleneck-model-20260101-120000-ab12/
    bottleneck verify --list

    A change is faster or slower only where a fresh process shows it again, and wrong where it alters results by more
    than it may. Exit code 0 whatever the verdicts are; 4 where the program fails without any change.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.verifying import Wanted, list_changes, show_scoreboard, verify

    if show_list:
        list_changes(form.value)
        return
    if scoreboard:
        show_scoreboard(form.value, output)
        return
    wanted = Wanted(
        target=target or "",
        arguments=tuple(arguments or ()),
        settings=tuple(settings or ()),
        train=train,
        tries=tuple(name.strip() for text in tries or () for name in text.split(",") if name.strip()),
        best=best,
        budget_s=budget,
        precision=precision,
        seed=seed,
        quiet=quiet,
    )
    verify(wanted, form.value, output)
