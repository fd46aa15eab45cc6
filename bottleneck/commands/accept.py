"""``bottleneck accept``: moves a lock-file to what a step counts now, with a reason, and shows what is given up."""

from typing import Annotated

import typer


def accept_command(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...", help="Workloads as `bottleneck gate` takes them, or their names; all unless given."
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME,…", help="Counters to accept; all beyond their budget unless given."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the lock-file for those who review it.")
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            "--anchor", metavar="COMMIT", help="Have creep budgets count from the lock-file of this commit or tag."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Accepts what the gate found: the lock-file then says what a step counts now, and why that is right.

    \b
    bottleneck accept --reason "one norm per head, +0.4 BLEU"
    bottleneck accept examples-mlp --metric ops,syncs --reason "logs the loss"
    bottleneck accept --anchor v1.2

    Takes the counts of the last `bottleneck gate`, or counts again where the sources have changed since. It changes no
    budget, and refuses in CI: the change of the lock-file is to be reviewed. Exit code 0 where nothing is to accept.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.accepting import Wanted, accept

    accept(
        Wanted(
            workloads=tuple(workloads or ()),
            metrics=tuple(name.strip() for text in metrics or () for name in text.split(",") if name.strip()),
            reason=(reason or "").strip(),
            anchor=anchor,
            quiet=quiet,
        )
    )
