"""Finds the program that an argument of the gate, a workload of pyproject.toml or a lock-file names."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bottleneck.errors import UsageError
from bottleneck.experiment.program import Program, make_program
from bottleneck.gate.settings import Project


def find_program(text: str, project: Project) -> Program:
    """The program that a command line names, as `bottleneck run` takes it, from the folder of the settings."""
    root = project.root
    words = [text] if (root / text).is_file() or Path(text).is_file() else shlex.split(text)
    settings, train, target, arguments = _split(words, text)
    path = _from_root(target, root)
    if not (root / path).is_file():
        raise UsageError(
            f"there is no workload {target}",
            why=f"it is looked for from {root}",
            fix="name a file with workload(), with `model` and `inputs`, or a script",
        )
    program = make_program(str(root / path), arguments, settings, train=train, seed=project.settings.seed)
    return replace(program, target=path)


def _split(words: Sequence[str], text: str) -> tuple[list[str], bool, str, list[str]]:
    """The values of --set, whether --train is given, the file, and its arguments."""
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
    """The path relative to the root, if the file lies inside it."""
    path = Path(target)
    if not path.is_absolute() and (root / path).is_file():
        return path.as_posix()
    found = path.absolute()
    return found.relative_to(root).as_posix() if found.is_relative_to(root) else str(found)
