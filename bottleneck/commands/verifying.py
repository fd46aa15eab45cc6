"""What ``bottleneck verify`` does: finds the step and its findings, tries the changes, keeps score, and tells."""

import difflib
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bottleneck.errors import UsageError, WorkloadError

if TYPE_CHECKING:
    from bottleneck.experiment.program import Program
    from bottleneck.experiment.trial import Lab
    from bottleneck.experiment.verify import Announce
    from bottleneck.schema.analysis import Analysis
    from bottleneck.schema.trials import Verification

# Where the scoreboard lies instead of beside the calibrations; "" keeps no score.
SCOREBOARD_VARIABLE = "BOTTLENECK_SCOREBOARD"
_SCOREBOARD_FILE = "scoreboard.jsonl"
_ALL = "all"
_LOG_TAIL_LINES, _INTERRUPTED = 30, 130
# Without the folder that Python puts first: a file of the user's that is called rich.py is not ours to import. Not -P,
# which the user's program would inherit.
_RUN = "import sys; sys.flags.safe_path or sys.path.pop(0); from bottleneck.cli import main; main()"


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    target: str
    arguments: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    train: bool = False
    tries: tuple[str, ...] = ()
    best: bool = False
    budget_s: float = 30.0
    precision: float = 0.02
    seed: int = 0
    quiet: bool = False


def verify(wanted: Wanted, form: str, output: Path | None) -> None:
    """Tries the changes and presents what they showed."""
    from bottleneck.commands.interrupts import answered
    from bottleneck.experiment.verify import is_interrupted
    from bottleneck.pipeline import analyse
    from bottleneck.schema.recording import is_recording

    if not wanted.target:
        raise UsageError("nothing to verify", fix="name a file with a workload: bottleneck verify FILE")
    is_folder = is_recording(Path(wanted.target))
    program = _recorded_program(wanted) if is_folder else _program(wanted)
    names = _checked(wanted.tries)
    with answered(), tempfile.TemporaryDirectory(prefix="bottleneck-verify-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        with _progress(quiet=wanted.quiet) as say:
            recording = Path(wanted.target) if is_folder else _record(program, folder, say)
            analysis = analyse([recording])
            done = _try(_lab(wanted, program, folder, recording, say), names, analysis, wanted, say)
    _keep_score(done, analysis)
    _present(done, form, output)
    if is_interrupted(done):
        raise typer.Exit(_INTERRUPTED)


def list_changes(form: str) -> None:
    """Prints the changes that can be tried."""
    import json

    from bottleneck.commands.report_options import send
    from bottleneck.experiment.interventions import CHANGES

    rows = [{"name": each.name, "title": each.title, "precision": each.precision} for each in CHANGES.values()]
    if form == "json":
        send(json.dumps({"changes": rows}, indent=1) + "\n")
        return
    width = max((len(row["name"]) for row in rows), default=0)
    send("".join(f"{row['name'].ljust(width)}  {row['title']} ({row['precision']})\n" for row in rows))


def show_scoreboard(form: str, output: Path | None) -> None:
    """Prints how the predictions of each rule have done on this machine."""
    from bottleneck.experiment.verify import read_entries, scores
    from bottleneck.report.verification import FORMATS

    path = _scoreboard()
    _write(FORMATS[form](scores(read_entries(path) if path else [])), output)


def _try(
    lab: "Lab", names: tuple[str, ...], analysis: "Analysis", wanted: Wanted, say: Callable[[str, float | None], None]
) -> "Verification":
    from bottleneck.experiment.verify import add_best, tries_of, verify

    known = tuple(name for name in tries_of(analysis.findings) if name in lab.changes)
    announce = _announce(say)
    done = verify(lab, names or known, analysis, announce)
    if wanted.best:
        done = add_best(lab, done, analysis, announce)
    return done


def _announce(say: Callable[[str, float | None], None]) -> "Announce":
    return lambda name, number, total: say(f"trying {name} ({number + 1} of {total})", number / max(total, 1))


def _lab(
    wanted: Wanted, program: "Program", folder: Path, recording: Path, say: Callable[[str, float | None], None]
) -> "Lab":
    from bottleneck.experiment.trial import Effort, Lab
    from bottleneck.schema.compiled_kernels import compiled_file

    effort = Effort(wanted.budget_s, math.log1p(wanted.precision), wanted.seed)
    # A program that compiles for itself would do it anew for each change.
    is_cold = not (recording / compiled_file(0)).exists()
    return Lab(program, folder, effort, is_cold=is_cold, tell=lambda text: say(f"  {text}", None))


def _program(wanted: Wanted) -> "Program":
    """The program that the command line names, found fit; UsageError says what is missing."""
    from bottleneck.commands.run_options import RunOptions, make_plan
    from bottleneck.experiment.program import Program

    path = Path(wanted.target)
    if not path.is_file():
        raise UsageError(
            f"{wanted.target} is neither a file nor a recording",
            fix="name a file with workload() or with `model` and `inputs`, or a folder that `bottleneck run` made",
        )
    options = RunOptions(wanted.target, wanted.arguments, settings=wanted.settings, train=wanted.train)
    plan = make_plan(options, Path)
    if plan.form == "script":
        raise _is_a_script(wanted.target)
    return Program(wanted.target, wanted.arguments, plan.form, plan.settings, plan.train, wanted.seed)


def _is_a_script(target: str) -> UsageError:
    return UsageError(
        f"{target} is a script, whose step cannot be made twice",
        why="verify makes the step afresh for each change, and runs the copies in turns",
        fix="move the step into a function: def workload(batch_size=32): build model and data, define step(), "
        "return step",
    )


def _recorded_program(wanted: Wanted) -> "Program":
    """The program of a recording, with the options that it was recorded with."""
    from bottleneck.schema.recording import read_recording

    recording = read_recording(Path(wanted.target))
    if recording.form == "script":
        raise _is_a_script(recording.command[0] if recording.command else wanted.target)
    if wanted.settings or wanted.train or wanted.arguments:
        raise UsageError(
            f"{wanted.target} is a recording, which has its own settings",
            fix="leave --set, --train and arguments out, or name the program's file instead",
        )
    if not recording.command or not Path(recording.command[0]).is_file():
        raise UsageError(
            f"the program of {wanted.target} is not found from here: {' '.join(recording.command[:1])}",
            fix="go to the folder in which it was recorded, or name the program's file instead",
        )
    options = recording.options
    settings = tuple(text for flag, text in itertools.pairwise(options) if flag == "--set")
    again = replace(wanted, target=recording.command[0], arguments=recording.command[1:])
    return _program(replace(again, settings=settings, train="--train" in options))


def _checked(tries: Sequence[str]) -> tuple[str, ...]:
    """The changes that are asked for, all of which exist; empty for those that the findings name."""
    from bottleneck.experiment.interventions import CHANGES

    if _ALL in tries:
        return tuple(CHANGES)
    for name in tries:
        if name not in CHANGES:
            near = difflib.get_close_matches(name, CHANGES, n=3)
            raise UsageError(
                f"there is no change called {name}",
                why=f"near it: {', '.join(near)}" if near else "",
                fix="see them all: bottleneck verify --list",
            )
    return tuple(dict.fromkeys(tries))


def _record(program: "Program", folder: Path, say: Callable[[str, float | None], None]) -> Path:
    """A recording of the program as it is; WorkloadError, with what it said, if it fails."""
    from bottleneck.harness.supervise import run_quietly
    from bottleneck.schema.recording import is_recording

    say(f"recording {program.target}", None)
    target = folder / "recording"
    command = [sys.executable, "-c", _RUN, "run", "-o", str(target), *program.words]
    heard = run_quietly(command, folder / "recording.txt", os.environ)
    if heard.end.status or not is_recording(target):
        print("\n".join(heard.stderr.splitlines()[-_LOG_TAIL_LINES:]), file=sys.stderr)
        raise WorkloadError(
            f"{program.target} could not be recorded",
            why=f"it ended with status {heard.end.status}; the last that it wrote is above",
            fix=f"see that it runs: bottleneck run {program.target}",
        )
    return target


def _scoreboard() -> Path | None:
    """Where the scoreboard lies; null where none is to be kept."""
    from bottleneck.calibrate.calibration import cache_folder

    named = os.environ.get(SCOREBOARD_VARIABLE)
    if named is None:
        return cache_folder() / _SCOREBOARD_FILE
    return Path(named) if named else None


def _keep_score(done: "Verification", analysis: "Analysis") -> None:
    from bottleneck.experiment.verify import append_entries, entries_of

    path = _scoreboard()
    if path is None:
        return
    created = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        append_entries(path, entries_of(done, analysis.findings, created))
    except OSError as exc:
        print(f"bottleneck: the scoreboard could not be kept: {exc.strerror}", file=sys.stderr)


def _present(done: "Verification", form: str, output: Path | None) -> None:
    from bottleneck.commands.report_options import stream_look
    from bottleneck.report.verification import to_json, to_markdown, to_terminal

    if form == "json":
        text = to_json(done)
    elif form == "markdown":
        text = to_markdown(done)
    elif output is not None and str(output) != "-":
        text = to_terminal(done)
    else:
        look = stream_look(sys.stdout)
        text = to_terminal(done, look.width, color=look.color, encoding=look.encoding)
    _write(text, output)


def _write(text: str, output: Path | None) -> None:
    from bottleneck.commands.report_options import send
    from bottleneck.report.output import write_text

    if output is None or str(output) == "-":
        send(text)
    else:
        write_text(text, output)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, float | None], None]]:
    """Where progress is told: a bar on a terminal, a line for each trial elsewhere, or nowhere."""
    if quiet:
        yield lambda _text, _share: None
    elif sys.stderr.isatty():
        with _bar() as tell:
            yield tell
    else:
        yield _say


def _say(text: str, _share: float | None) -> None:
    if not text.startswith(" "):
        print(f"bottleneck: {text}", file=sys.stderr, flush=True)


@contextmanager
def _bar() -> Iterator[Callable[[str, float | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from bottleneck.report.text import clean

    columns = (BarColumn(24), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    # Drawn by us between two stages: a thread that refreshes it would disturb what is measured.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("getting ready", total=None)
        trial = ""

        def tell(text: str, share: float | None) -> None:
            nonlocal trial
            trial = trial if text.startswith(" ") else text
            stage = f": {text.strip()}" if text.startswith(" ") else ""
            if share is not None:
                progress.update(task, total=1.0, completed=share)
            progress.update(task, description=clean(f"{trial}{stage}"))
            progress.refresh()

        yield tell
