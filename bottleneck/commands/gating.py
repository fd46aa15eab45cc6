"""What ``bottleneck gate`` does: finds workloads, base and settings, gates, writes every format, and only then ends."""

import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from bottleneck.errors import UsageError

if TYPE_CHECKING:
    from bottleneck.experiment.program import Program
    from bottleneck.experiment.worktree import Base
    from bottleneck.gate.run_gate import Job, Part
    from bottleneck.schema.gate_result import Gate, GateSettings

_USUAL_FORMATS = ("terminal",)
_USUAL_FILES = ("markdown", "json", "junit", "sarif", "github", "gitlab")


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    workloads: tuple[str, ...] = ()
    against: str | None = None
    only: str | None = None
    update: bool = False
    strict: bool = False
    selftest: bool = False
    output: Path | None = None
    formats: tuple[str, ...] = ()
    pairs: int | None = None
    seed: int | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Place:
    """Where the gate works: the folder of pyproject.toml (else the working folder), and what that file says."""

    root: Path
    settings: "GateSettings"


def gate(wanted: Wanted) -> None:
    """Gates what is asked for; leaves with the exit code of the verdicts once everything is written."""
    from bottleneck.commands.interrupts import answered

    formats = _checked_formats(wanted)
    place = _place(wanted)
    with answered(), tempfile.TemporaryDirectory(prefix="bottleneck-gate-", ignore_cleanup_errors=True) as scratch:
        if recorded := _recorded(wanted):
            done = _gate_recorded(wanted, place, recorded)
        else:
            programs = _programs(wanted, place)
            with _job(wanted, place, Path(scratch)) as job:
                if wanted.update:
                    _update(job, programs)
                    return
                if wanted.selftest:
                    _prove(job, programs)
                    return
                from bottleneck.gate.run_gate import gate_programs

                done = gate_programs(job, programs, _label(place.root))
        _present(done, wanted, formats)
    raise typer.Exit(done.exit_code)


def _place(wanted: Wanted) -> Place:
    from bottleneck.gate.settings import find_pyproject, read_settings

    found = find_pyproject(Path.cwd())
    settings = read_settings(found)
    if wanted.seed is not None:
        settings = replace(settings, seed=wanted.seed)
    return Place(Path.cwd() if found is None else found.parent, settings)


def _programs(wanted: Wanted, place: Place) -> list["Program"]:
    texts = wanted.workloads or place.settings.workloads
    if not texts:
        raise UsageError(
            "nothing to gate",
            why="neither the command line nor [tool.bottleneck.gate] of pyproject.toml names a workload",
            fix='name a file: bottleneck gate model.py, or write workloads = ["model.py"] there',
        )
    return [find_program(_configured(text, place), place) for text in texts]


def _configured(text: str, place: Place) -> str:
    """The configured command line that a name on the command line means, else the text itself."""
    from bottleneck.gate.settings import workload_name

    for known in place.settings.workloads:
        if text in {known, workload_name(shlex.split(known))}:
            return known
    return text


def find_program(text: str, place: Place) -> "Program":
    """The program that a command line names, as `bottleneck run` would take it, from the folder of the settings."""
    from bottleneck.experiment.program import make_program

    words = [text] if (place.root / text).is_file() or Path(text).is_file() else shlex.split(text)
    settings, train, target, arguments = _split(words, text)
    path = _from_root(target, place.root)
    if not (place.root / path).is_file():
        raise UsageError(
            f"there is no workload {target}",
            why=f"it is looked for from {place.root}",
            fix="name a file with workload(), with `model` and `inputs`, or a script",
        )
    program = make_program(str(place.root / path), arguments, settings, train=train, seed=place.settings.seed)
    return replace(program, target=path)


def _split(words: Sequence[str], text: str) -> tuple[list[str], bool, str, list[str]]:
    """Settings, --train, file and arguments of a command line."""
    settings, train, rest = [], False, list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--set" and rest:
            settings.append(rest.pop(0))
        elif option.startswith("--set="):
            settings.append(option.removeprefix("--set="))
        elif option == "--train":
            train = True
        else:
            raise UsageError(
                f"the gate does not know {option} of the workload {text}",
                fix="write --set NAME=VALUE or --train before the file, the program's own arguments behind it",
            )
    if not rest:
        raise UsageError(f"the workload {text!r} names no file", fix="write it as `bottleneck run` takes it")
    return settings, train, rest[0], rest[1:]


def _from_root(target: str, root: Path) -> str:
    """The file as it is named from the root, where it lies inside of it."""
    path = Path(target)
    if not path.is_absolute() and (root / path).is_file():
        return path.as_posix()
    found = path.absolute()
    return found.relative_to(root).as_posix() if found.is_relative_to(root) else str(found)


@contextmanager
def _job(wanted: Wanted, place: Place, scratch: Path) -> "Iterator[Job]":
    """The job with its base, which is checked out only where something is to be timed."""
    from bottleneck.experiment.worktree import find_root, touched_lines
    from bottleneck.gate.run_gate import Job

    clone = find_root(place.root)
    with progress(quiet=wanted.quiet) as say, _base(wanted, place, scratch, clone) as base:
        yield Job(
            root=place.root,
            settings=place.settings,
            scratch=scratch,
            base=base,
            touched=touched_lines(place.root, base.commit) if clone is not None and base.commit else None,
            only=cast("Part | None", wanted.only),
            pairs=wanted.pairs,
            is_strict=wanted.strict,
            tell=say,
        )


@contextmanager
def _base(wanted: Wanted, place: Place, scratch: Path, clone: Path | None) -> "Iterator[Base]":
    from bottleneck.experiment.sources import find_base, git_in
    from bottleneck.experiment.worktree import Base, base_side

    against = wanted.against or place.settings.against
    if wanted.only != "counters" and not wanted.update and not wanted.selftest:
        with base_side(clone, against, place.settings.setup, scratch, place.root) as base:
            yield base
        return
    # To know which lines changed, its name is enough.
    found = None if clone is None else find_base(git_in(clone), against, os.environ)
    yield Base(None, "the lock-file", "" if found is None else found.commit or "", "only counters were asked for")


def _label(root: Path) -> str:
    from bottleneck.experiment.worktree import find_root, identify

    clone = find_root(root)
    identity = identify(clone) if clone is not None else None
    return "this folder" if identity is None else identity.label


def _recorded(wanted: Wanted) -> tuple[Path, ...]:
    """The recordings that are to be gated; empty where workloads are."""
    from bottleneck.gate.recordings import is_recorded

    found = tuple(Path(text) for text in wanted.workloads if is_recorded(Path(text)))
    if found and len(found) < len(wanted.workloads):
        raise UsageError("recordings and workloads cannot be gated together", fix="name either programs or recordings")
    if not found and wanted.against is not None and is_recorded(Path(wanted.against)):
        raise UsageError(
            f"{wanted.against} is a recording, and no other is named",
            why="a program is held against sources, a recording against a recording",
            fix=f"bottleneck gate NOW.json.gz --against {wanted.against}",
        )
    return found


def _gate_recorded(wanted: Wanted, place: Place, recorded: Sequence[Path]) -> "Gate":
    from bottleneck.gate.recordings import gate_recordings

    if wanted.against is None:
        raise UsageError(
            "a recording is gated against another one", fix=f"bottleneck gate {recorded[0]} --against BEFORE.json.gz"
        )
    if wanted.update or wanted.selftest or wanted.only == "time":
        raise UsageError("a recording cannot be run again", fix="name the program's file for that option")
    return gate_recordings(recorded, Path(wanted.against), place.settings, is_strict=wanted.strict)


def _update(job: "Job", programs: Sequence["Program"]) -> None:
    from bottleneck.commands.report_options import send
    from bottleneck.gate.run_gate import tell_update, update_lock

    for program in programs:
        before, path, lock = update_lock(job, program)
        send(tell_update(os.path.relpath(path), before, lock))


def _prove(job: "Job", programs: Sequence["Program"]) -> None:
    from bottleneck.commands.report_options import send
    from bottleneck.gate.selftest import prove

    proofs = [prove(job, program) for program in programs]
    send("".join(proof.text for proof in proofs))
    raise typer.Exit(0 if all(proof.is_proven for proof in proofs) else 1)


def _checked_formats(wanted: Wanted) -> tuple[str, ...]:
    from bottleneck.report.ci.outputs import GATE_FORMATS

    for name in wanted.formats:
        if name not in GATE_FORMATS:
            raise UsageError(f"there is no format {name}", fix=f"choose from {', '.join(GATE_FORMATS)}")
    if wanted.output is None and len(wanted.formats) > 1:
        raise UsageError("one format can be printed", fix="name a folder for the others: --out gate")
    return wanted.formats or (_USUAL_FORMATS if wanted.output is None else _USUAL_FILES)


def _present(done: "Gate", wanted: Wanted, formats: Sequence[str]) -> None:
    """Writes the files first, then prints: nothing that was found is lost to a reader that has gone."""
    from bottleneck.commands.report_options import send, stream_style
    from bottleneck.report.ci.gate_terminal import render
    from bottleneck.report.ci.outputs import GATE_FORMATS, write_formats

    if wanted.output is not None:
        paths = write_formats(done, wanted.output, formats)
        print(f"bottleneck: wrote {', '.join(map(str, paths))}", file=sys.stderr)
    if wanted.output is None and formats[0] != "terminal":
        send(GATE_FORMATS[formats[0]].render(done))
        return
    send(render(done, stream_style(sys.stdout)))


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Where progress is told: lines on standard error, or nowhere."""
    yield (lambda _: None) if quiet else _say


def _say(text: str) -> None:
    if not text.startswith(" ") or sys.stderr.isatty():
        print(f"bottleneck: {text.strip()}", file=sys.stderr, flush=True)
