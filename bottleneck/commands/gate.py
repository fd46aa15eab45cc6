"""``bottleneck gate``: fails a build when a step does more work.

The limit is what its lock-file allows. A step that takes longer fails it too.
"""

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from bottleneck.commands.report_options import Quiet, form_of_suffix, output_style, send
from bottleneck.errors import UsageError
from bottleneck.report.output import write_note, write_text
from bottleneck.system.interrupts import answered, says_what_is_kept

if TYPE_CHECKING:
    from bottleneck.gate.run_gate import GateRun
    from bottleneck.gate.settings import Project
    from bottleneck.harness.messages import Program
    from bottleneck.schema.gate_result import Gate

_PRINTED_FORMATS = ("terminal",)
_WRITTEN_FORMATS = ("markdown", "json", "html", "junit", "sarif", "github", "gitlab")


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
            metavar="merge-base[:BRANCH]|REF|DIR|RECORDING",
            help="The base of the time: a commit, a folder with its sources, or a trace or recording.",
        ),
    ] = None,
    only: Annotated[
        Literal["counters", "time"] | None,
        typer.Option(metavar="counters|time", help="Gate the counters alone, or the time."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Count each workload four times and write its lock-file; gate nothing.")
    ] = False,
    numerics: Annotated[
        bool, typer.Option("--numerics", help="Hold what the step computes against the lock-file too.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 5 for whatever was not measured or not decided.")
    ] = False,
    selftest: Annotated[
        bool, typer.Option("--selftest", help="Inject regressions and demand red; then the base against itself: green.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR|FILE",
            help="Write the formats of --format into this folder, or one into a file that ends in .html, .md or .json.",
        ),
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME,…",
            help="To print, or to write to --out: terminal, markdown, json, html, junit, sarif, github, gitlab, "
            "openmetrics.",
        ),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(min=7, max=40, metavar="N", help="Pairs of processes at most; 20 unless given.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draws who goes first; that of the settings unless given.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compares the counters of a program's step with its lock-file, and its time with that of the base.

    \b
    bottleneck gate --update               the first lock-files: commit them
    bottleneck gate                        all of pyproject.toml
    bottleneck gate model.py --only counters
    bottleneck gate now.json.gz --against before.json.gz
    bottleneck gate --out gate --format markdown,junit,sarif
    bottleneck gate -o gate.html           a page for a browser

    Exit code 0 where all is within its budget, 1 for a regression, 4 where a workload fails, 5 where nothing could be
    measured; 5 too for what stays undecided or is new, where the settings or --strict require it.
    """  # noqa: D301 - the escape keeps the lines of the examples apart
    from bottleneck.gate.run_gate import GateRun, base_of, gate_programs, gate_recordings, touched_since
    from bottleneck.gate.settings import read_project

    chosen = _checked_formats(formats, output)
    project = _with_numerics(read_project(Path.cwd(), seed), is_asked=numerics)
    texts = tuple(workloads or ())
    if recordings := _recordings(texts, against):
        is_rerun = update or selftest or numerics or only == "time"
        before = _recording_before(recordings, against, is_rerun=is_rerun)
        with answered():
            done = gate_recordings(recordings, before, project.settings, is_strict=strict)
            _present(done, output, chosen)
        raise typer.Exit(done.exit_code)
    is_timed = only != "counters" and not update and not selftest
    state = "lock-files named above are written, others are as they were" if update else "there is no verdict"
    with (
        says_what_is_kept(f"{state}; the same command begins anew"),
        answered(),
        tempfile.TemporaryDirectory(prefix="bottleneck-gate-", ignore_cleanup_errors=True) as scratch,
    ):
        programs = _programs(texts, project)
        with base_of(project, against, Path(scratch), is_timed=is_timed) as base:
            run = GateRun(
                root=project.root,
                settings=project.settings,
                scratch=Path(scratch),
                base=base,
                touched=touched_since(project.root, base),
                only=only,
                pairs=pairs,
                is_strict=strict,
                say=(lambda _: None) if quiet else write_note,
            )
            if update:
                _update(run, programs)
                return
            if selftest:
                _prove(run, programs)
            done = gate_programs(run, programs)
        _present(done, output, chosen)
    raise typer.Exit(done.exit_code)


def _with_numerics(project: "Project", *, is_asked: bool) -> "Project":
    """The project, with outputs held to the lock-file where that is asked for."""
    if not is_asked:
        return project
    return replace(project, settings=replace(project.settings, numerics=True))


def _programs(texts: Sequence[str], project: "Project") -> "list[Program]":
    from bottleneck.gate.settings import find_program, workload_name

    configured = project.settings.workloads
    if not texts and not configured:
        raise UsageError(
            "nothing to gate",
            why="neither the command line nor [tool.bottleneck.gate] of pyproject.toml names a workload",
            fix='name a file: bottleneck gate model.py, or write workloads = ["model.py"] there',
        )
    # A name on the command line means the configured command line of that name.
    by_name = {workload_name(shlex.split(line)): line for line in reversed(configured)}
    return [find_program(by_name.get(text, text), project) for text in texts or configured]


def _recordings(texts: Sequence[str], against: str | None) -> tuple[Path, ...]:
    """The recordings to gate; empty where workloads are to be gated."""
    from bottleneck.gate.run_gate import is_recorded

    recordings = tuple(Path(text) for text in texts if is_recorded(Path(text)))
    if recordings and len(recordings) < len(texts):
        raise UsageError("recordings and workloads cannot be gated together", fix="name either programs or recordings")
    if not recordings and against is not None and is_recorded(Path(against)):
        raise UsageError(
            f"{against} is a recording, and no other is named",
            why="a program is compared with sources, a recording with a recording",
            fix=f"bottleneck gate NOW.json.gz --against {against}",
        )
    return recordings


def _recording_before(recordings: Sequence[Path], against: str | None, *, is_rerun: bool) -> Path:
    """Gives the recording of --against.

    UsageError without one, or where an option needs to run a program again.
    """
    if against is None:
        raise UsageError(
            "a recording is gated against another one", fix=f"bottleneck gate {recordings[0]} --against BEFORE.json.gz"
        )
    if is_rerun:
        raise UsageError("a recording cannot be run again", fix="name the program's file for that option")
    return Path(against)


def _update(run: "GateRun", programs: "Sequence[Program]") -> None:
    from bottleneck.gate.run_gate import describe_update, update_lock

    for program in programs:
        before, path, lock = update_lock(run, program)
        send(describe_update(os.path.relpath(path), before, lock))


def _prove(run: "GateRun", programs: "Sequence[Program]") -> NoReturn:
    from bottleneck.gate.selftest import prove

    proofs = [prove(run, program) for program in programs]
    send("".join(proof.text for proof in proofs))
    raise typer.Exit(0 if all(proof.is_proven for proof in proofs) else 1)


def _checked_formats(formats: str | None, output: Path | None) -> tuple[str, ...]:
    from bottleneck.report.ci.outputs import GATE_FORMATS

    names = tuple(name.strip() for name in (formats or "").split(",") if name.strip())
    for name in names:
        if name not in GATE_FORMATS:
            raise UsageError(f"there is no format {name}", fix=f"choose from {', '.join(GATE_FORMATS)}")
    file_form = _form_of_file(output)
    if len(names) > 1 and (output is None or file_form is not None):
        raise UsageError("one format can be printed or be in one file", fix="name a folder for all of them: --out gate")
    if file_form is not None:
        return names or (file_form,)
    return names or (_PRINTED_FORMATS if output is None else _WRITTEN_FORMATS)


def _form_of_file(output: Path | None) -> str | None:
    """The format that the suffix of a file names; null for a folder."""
    named = None if output is None or output.is_dir() else form_of_suffix(output)
    return named if named in _WRITTEN_FORMATS else None


def _present(done: "Gate", output: Path | None, formats: Sequence[str]) -> None:
    """Writes the files first, then prints: a closed pipe loses no file."""
    from bottleneck.report.ci.gate_document import to_terminal
    from bottleneck.report.ci.outputs import GATE_FORMATS, write_formats

    if output is not None:
        if _form_of_file(output) is None:
            written = ", ".join(map(str, write_formats(done, output, formats)))
        else:
            write_text(GATE_FORMATS[formats[0]].render(done), output)
            written = str(output)
        write_note(f"wrote {written}")
    if output is None and formats[0] != "terminal":
        send(GATE_FORMATS[formats[0]].render(done))
        return
    send(to_terminal(done, output_style(None)))
