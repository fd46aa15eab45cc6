"""``bottleneck judge``: one verdict on a patch: time, results, counts, and why."""

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bottleneck.commands.report_options import (
    RESULT_FORMATS,
    Quiet,
    Settings,
    Train,
    form_of,
    format_option,
    output_option,
    output_style,
    write_report,
)
from bottleneck.errors import UsageError
from bottleneck.report.output import write_note
from bottleneck.system.interrupts import answered, says_what_is_kept

if TYPE_CHECKING:
    from bottleneck.gate.settings import Project
    from bottleneck.harness.messages import Program
    from bottleneck.judge.judge_patch import JudgeEffort
    from bottleneck.schema.judgement import PatchJudgement

_KEPT = "nothing is kept; the same command begins anew"


def judge_command(
    base: Annotated[
        str,
        typer.Argument(
            metavar="BASE",
            help="Before: a git ref, a folder, `.`, a patch to apply here; results of a benchmark; - for numbers.",
        ),
    ],
    changed: Annotated[
        str | None,
        typer.Argument(
            metavar="[HEAD]",
            help="After: any of these; the sources as they lie here unless given. A patch is applied to BASE.",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            "-w",
            metavar="FILE",
            help="A program to judge by, quoted with its options; repeatable; those of pyproject.toml unless given.",
        ),
    ] = None,
    settings: Settings = None,
    train: Train = False,
    budget: Annotated[
        float, typer.Option(min=30.0, max=7200.0, metavar="SECONDS", help="Time for each workload; it stops early.")
    ] = 300.0,
    resolve: Annotated[
        float, typer.Option(min=0.1, max=50.0, metavar="PERCENT", help="The smallest change that has to be seen.")
    ] = 1.0,
    precision: Annotated[
        str,
        typer.Option(
            "--rounding", metavar="FORMAT", help="Results may differ by the rounding of this: tf32, fp16, bf16, fp8."
        ),
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Show the tables of counters and times too.")] = False,
    form: Annotated[str | None, format_option("the judgement")] = None,
    output: Annotated[Path | None, output_option("the judgement")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Draws who goes first.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Judges a patch: whether it is faster, computes the same, what it does less often, and why.

    \b
    bottleneck judge main --workload bench.py
    bottleneck judge main feature -w bench.py -w "train.py --steps 50"
    bottleneck judge change.patch -w bench.py
    bottleneck judge before/ after/ -w bench.py -o verdict.md
    bottleneck judge base.json changed.json

    Exit code 0 where it is faster or makes no difference, 1 where it is slower or results differ, 4 where a side fails,
    5 where it stays undecided.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.judge.judge_patch import JudgeEffort
    from bottleneck.judge.other_results import is_result_file
    from bottleneck.report.judgement import render

    rendered_as = form_of(form, output, RESULT_FORMATS)
    if precision and precision not in _FORMATS:
        raise UsageError(f"there is no rounding of {precision}", fix=f"choose from {', '.join(_FORMATS)}")
    if is_result_file(base):
        judgement = _judge_results(base, changed, resolve / 100)
    else:
        effort = JudgeEffort(budget, resolve / 100, seed, precision)
        words = tuple(workload or ()), tuple(settings or ())
        judgement = judge_sources(base, changed, *words, effort, train=train, quiet=quiet)
    write_report(render(judgement, rendered_as, output_style(output), full=full), output)
    raise typer.Exit(judgement.exit_code)


def _judge_results(base: str, changed: str | None, resolve: float) -> "PatchJudgement":
    """Judges numbers that others measured: two files, or standard input."""
    from bottleneck.judge.other_results import STDIN, judge_files, judge_numbers

    if base == STDIN:
        return judge_numbers(sys.stdin.read(), resolve)
    if changed is None:
        raise UsageError(
            f"{base} is a file of results, and no other is named", fix=f"bottleneck judge {base} CHANGED.json"
        )
    return judge_files(Path(base), Path(changed), resolve)


_FORMATS = ("tf32", "fp16", "bf16", "fp8")


def judge_sources(
    base: str,
    changed: str | None,
    workloads: tuple[str, ...],
    settings: tuple[str, ...],
    effort: "JudgeEffort",
    *,
    train: bool = False,
    quiet: bool = False,
) -> "PatchJudgement":
    """Judges the change between two sources by workloads, those of pyproject.toml unless given."""
    from bottleneck.commands.compare import shared_ceilings
    from bottleneck.gate.settings import read_project
    from bottleneck.judge.judge_patch import JudgeRun, judge_patch
    from bottleneck.judge.sides import patch_sides

    def say(line: str) -> None:
        if not quiet:
            write_note(line)

    project = read_project(Path.cwd(), effort.seed)
    with (
        says_what_is_kept(_KEPT),
        answered(),
        tempfile.TemporaryDirectory(prefix="bottleneck-judge-", ignore_cleanup_errors=True) as scratch,
    ):
        folders = [Path(text).resolve() for text in (base, changed) if text is not None and Path(text).is_dir()]
        programs = _programs(workloads, settings, project, folders, train=train)
        with patch_sides(base, changed, project.root, project.settings, Path(scratch)) as sides:
            run = JudgeRun(sides, project.root, Path(scratch), effort, shared_ceilings(say), say)
            return judge_patch(run, programs)


def _programs(
    workloads: tuple[str, ...], settings: tuple[str, ...], project: "Project", folders: Sequence[Path], *, train: bool
) -> "list[Program]":
    texts = workloads or project.settings.workloads
    if not texts:
        raise UsageError(
            "nothing to judge by",
            why="neither the command line nor [tool.bottleneck.gate] of pyproject.toml names a workload",
            fix="name a program with workload(), or a script: bottleneck judge BASE --workload bench.py",
        )
    options = " ".join([*(f"--set {shlex.quote(text)}" for text in settings), *(["--train"] if train else [])])
    return [_program(f"{options} {text}" if options else text, project, folders) for text in texts]


def _program(text: str, project: "Project", folders: Sequence[Path]) -> "Program":
    """Finds a program in the project, or in the folders that are the sides."""
    from bottleneck.gate.settings import find_program

    try:
        return find_program(text, project)
    except UsageError:
        for folder in folders:
            with contextlib.suppress(UsageError):
                return find_program(text, replace(project, root=folder))
        raise
