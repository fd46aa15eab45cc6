"""``bottleneck accept``: edits lock-files to the counts of now.

It keeps a reason, and shows what each edit gives up.
"""

import os
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.report_options import Quiet, send
from bottleneck.errors import UsageError
from bottleneck.report.output import write_note

if TYPE_CHECKING:
    from bottleneck.gate.acceptance import LockedWorkload
    from bottleneck.gate.settings import Project
    from bottleneck.schema.counters import Counts


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
        str | None, typer.Option(metavar="TEXT", help="Why; kept in the lock-file for those who review it.")
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="Have creep budgets count from the lock-file of this commit or tag."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Accepts what the gate found: writes the present counters to the lock-file, with the reason.

    \b
    bottleneck accept --reason "one norm per head, +0.4 BLEU"
    bottleneck accept examples-mlp --metric ops,syncs --reason "logs the loss"
    bottleneck accept --anchor v1.2

    Takes the counts of the last `bottleneck gate`, or counts again where the sources have changed since. It changes no
    budget, and refuses in CI: the change of the lock-file is to be reviewed. Exit code 0 where nothing is to accept.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.gate.acceptance import accept_counts, locked_workloads, move_anchor, refuse_in_ci
    from bottleneck.gate.lockfile import write_lock
    from bottleneck.gate.settings import read_project

    refuse_in_ci(os.environ)
    reason = (reason or "").strip()
    if not reason and anchor is None:
        raise UsageError(
            "an acceptance has a reason", why="those who review it have nothing else to go by", fix='--reason "…"'
        )
    names = tuple(name.strip() for text in metrics or () for name in text.split(",") if name.strip())
    project = read_project(Path.cwd())
    edits = []
    for workload in locked_workloads(project, tuple(workloads or ())):
        if anchor is not None:
            edited = move_anchor(workload, anchor, is_required=bool(workloads))
        else:
            edited = accept_counts(workload, _counts(workload, project, quiet=quiet), project, names, reason)
        edits.append((workload, *edited))
    for workload, lock, text in edits:  # everything that can fail is done: either all are written or none
        if lock != workload.lock:
            write_lock(workload.path, lock)
        send(text)


def _counts(workload: "LockedWorkload", project: "Project", *, quiet: bool) -> "Counts":
    """Gives the counts of the gate's last run.

    Counts again where there are none, or a source has changed since.
    """
    from bottleneck.gate.acceptance import last_counts, last_path, write_last

    counts = last_counts(workload, project)
    lacks_outputs = counts is not None and workload.lock.counts.numerics is not None and counts.numerics is None
    if counts is None or lacks_outputs:
        if not quiet:
            write_note(f"counting {workload.name}")
        counts = _count(workload, project)
        write_last(last_path(project.root, workload.name), counts)
    return counts


def _count(workload: "LockedWorkload", project: "Project") -> "Counts":
    from bottleneck.experiment.side import Side
    from bottleneck.gate.count_program import count_program
    from bottleneck.gate.settings import find_program

    program = find_program(shlex.join(workload.lock.program), project)
    with tempfile.TemporaryDirectory(prefix="bottleneck-accept-", ignore_cleanup_errors=True) as scratch:
        side = Side("this folder", project.root, project.settings.environment)
        has_outputs = workload.lock.counts.numerics is not None
        return count_program(program, Path(scratch), side, numerics=has_outputs).counts
