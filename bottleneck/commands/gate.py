"""``bottleneck gate``: fails a build when a step does more work than it may, or takes longer, and says why."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Only(StrEnum):
    """What is gated, where not both."""

    COUNTERS = "counters"
    TIME = "time"


def gate_command(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...",
            help="Files as `bottleneck run` takes them, quoted with their options; traces or recordings with "
            "--against; those of pyproject.toml unless given.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="merge-base[:BRANCH]|REF|DIR|RECORDING",
            help="What the time is held against: a commit, a folder with its sources, or a trace or recording.",
        ),
    ] = None,
    only: Annotated[
        Only | None, typer.Option("--only", metavar="counters|time", help="Gate the counters alone, or the time.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Count each workload twice and write its lock-file; gate nothing.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 5 for whatever was not measured or not decided.")
    ] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Inject regressions and demand red; then the base against itself: green.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the formats of --format into this folder.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME,…",
            help="To print, or to write to --out: terminal, markdown, json, junit, sarif, github, gitlab, openmetrics.",
        ),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option("--pairs", min=7, max=40, metavar="N", help="Pairs of processes at most; 20 unless given."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Draws who goes first; that of the settings unless given.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Holds a program's steps to what its lock-file says they do, and to the time that its base takes.

    \b
    bottleneck gate --update               the first lock-files: commit them
    bottleneck gate                        all workloads of pyproject.toml, against the merge-base
    bottleneck gate model.py --only counters
    bottleneck gate now.json.gz --against before.json.gz
    bottleneck gate --out gate --format markdown,junit,sarif

    Exit code 0 where all is within its budget, 1 for a regression, 4 where a workload fails, 5 where nothing could be
    measured; 5 too for what stays undecided or is new, where the settings or --strict ask for it.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.commands.gating import Wanted, gate

    gate(
        Wanted(
            workloads=tuple(workloads or ()),
            against=against,
            only=None if only is None else only.value,
            update=update,
            strict=strict,
            selftest=selftest,
            output=output,
            formats=tuple(name.strip() for name in (formats or "").split(",") if name.strip()),
            pairs=pairs,
            seed=seed,
            quiet=quiet,
        )
    )
