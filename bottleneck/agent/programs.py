"""Runs commands of ours on programs of folders that the server may run."""

import itertools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bottleneck.agent.reading import Progress
from bottleneck.errors import UsageError, WorkloadError
from bottleneck.experiment.git_clone import find_root
from bottleneck.gate.settings import find_pyproject
from bottleneck.report.text import clean
from bottleneck.schema.recording import is_recording
from bottleneck.system.child_process import Child

OPTION = "--allow-run"
_LOOK_S = 0.1
# A client that ends the server waits for two seconds.
_PATIENCE_S = 1.0
_LAST_LINES, _LAST_BYTES = 3, 4000
_RUNS = "bottleneck-runs"


class RefusedError(UsageError):
    """The server was not started for this program."""


@dataclass(frozen=True)
class AllowedProgram:
    """A program that may run, and its allowed folder, both without links."""

    file: Path
    folder: Path


class AllowedFolders:
    """Folders whose programs a client may run."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"{OPTION} {folder} is no folder", fix="name the folder of your programs")
        self.folders = tuple(folder.resolve() for folder in folders)

    def program(self, text: str) -> AllowedProgram:
        """Finds a program; RefusedError where it may not run, UsageError where there is none.

        A relative path is looked for in each of the folders.
        """
        path = Path(text)
        for folder in self.folders:
            file = (folder / path).resolve()
            if file.is_file() and file.is_relative_to(folder):
                if file.suffix != ".py":
                    raise UsageError(f"{path.name} is no program of Python", fix="pass a .py file")
                return AllowedProgram(file, folder)
        self._refuse_outside(path)
        raise UsageError(
            f"there is no file {text}", fix=f"pass a .py file of {' or '.join(map(str, self.folders))} by its path"
        )

    def check_sources(self, text: str, folder: Path) -> str:
        """Gives one side of a patch as the judge takes it.

        It is a folder or a patch file that may be used, or the name of a commit. RefusedError for a path outside of
        the allowed folders.
        """
        if not text or text.startswith("-") or "\0" in text:
            raise UsageError(f"{clean(text, 80)} names no sources", fix="name a commit, a folder, or a patch file")
        path = (folder / text).resolve()
        if not path.exists() or text == ".":
            return text
        self._check_inside(path)
        return str(path)

    def check_project(self, folder: Path) -> None:
        """RefusedError where the project of an allowed folder is more than that.

        A commit is checked out whole, and the settings of the project may name commands.
        """
        for root in (find_root(folder), find_pyproject(folder)):
            if root is not None:
                self._check_inside(root)

    def _check_inside(self, path: Path) -> None:
        if not any(path.is_relative_to(folder) for folder in self.folders):
            raise self._refusal(path)

    def _refuse_outside(self, path: Path) -> None:
        candidates = [path] if path.is_absolute() else [folder / path for folder in self.folders]
        inside = [one for one in candidates for folder in self.folders if one.resolve().is_relative_to(folder)]
        if not inside:
            raise self._refusal(path)

    def _refusal(self, path: Path) -> RefusedError:
        allowed = f"it runs those in {', '.join(map(str, self.folders))}" if self.folders else "it runs none"
        wanted = path if path.is_dir() else path.parent
        return RefusedError(
            f"this server does not run {path}",
            why=allowed,
            fix=f"a person has to start it for that folder: bottleneck mcp {OPTION} {shlex.quote(str(wanted))}",
        )


@dataclass(frozen=True)
class CommandEnd:
    """End of a command: its exit status, and the file of its output."""

    status: int
    log: Path

    def last_lines(self) -> str:
        """The last lines that were printed, in one."""
        text = self.log.read_bytes()[-_LAST_BYTES:].decode("utf-8", "replace")
        return "; ".join([line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:])


def run_command(arguments: Sequence[str], folder: Path, tell: Progress, timeout_s: float) -> CommandEnd:
    """Runs a command of ours in a process of its own, in this folder.

    What it and its program print goes to a file, and they read nothing. They end with all that they started where the
    work is cancelled, and after ``timeout_s``, with WorkloadError.
    """
    # As with `python -m`, but without what lies in the folder before our own modules.
    code = f"import sys; sys.path[:] = {sys.path!r}; from bottleneck.cli import main; main({list(arguments)!r})"
    number, name = tempfile.mkstemp(prefix="bottleneck-mcp-", suffix=".log")
    with os.fdopen(number, "wb") as log:
        child = Child(
            [sys.executable, "-c", code],
            at_our_death=None,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        _await(child, arguments[0], tell, timeout_s)
    finally:
        child.end_tree(_PATIENCE_S, lambda: child.send(signal.SIGTERM, to_group=False))
    return CommandEnd(child.wait().status, Path(name))


def _await(child: Child, name: str, tell: Progress, timeout_s: float) -> None:
    """Waits for the process; WorkloadError where it takes too long."""
    started_s = time.monotonic()
    while not child.has_ended:
        time.sleep(_LOOK_S)
        spent_s = time.monotonic() - started_s
        if spent_s > timeout_s:
            raise WorkloadError(
                f"`bottleneck {name}` took longer than {timeout_s:g} s and was ended",
                fix="ask for more with timeout_s, or give the program less to do",
            )
        tell(spent_s, None, "seconds")


def run_for_output(arguments: Sequence[str], folder: Path, tell: Progress, timeout_s: float, output: Path) -> None:
    """Runs a command of ours that writes a file; WorkloadError where it did not."""
    end = run_command(arguments, folder, tell, timeout_s)
    if not output.is_file():
        raise WorkloadError(
            f"`bottleneck {arguments[0]}` gave no answer, and ended with status {end.status}",
            why=end.last_lines(),
            fix=f"read what it printed: {end.log}",
        )


def record(
    program: AllowedProgram, arguments: Sequence[str], tell: Progress, timeout_s: float
) -> tuple[Path, CommandEnd]:
    """Records a program with ``bottleneck run``, and gives the recording.

    The program is ended once it is measured. WorkloadError where nothing was recorded.
    """
    runs = program.folder / _RUNS
    names = (f"{clean(program.file.stem, 60)}-mcp-{number}" for number in itertools.count(1))
    folder = next(runs / name for name in names if not (runs / name).exists())
    words = ["run", "--quiet", "--stop", "-o", str(folder), str(program.file), *arguments]
    end = run_command(words, program.folder, tell, timeout_s)
    if not is_recording(folder):
        raise WorkloadError(
            f"nothing was recorded of {program.file.name}, which ended with status {end.status}",
            why=end.last_lines(),
            fix=f"read what it printed: {end.log}",
        )
    return folder, end
