"""The program under test: its file with settings, and the side of a comparison that its processes run on."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.harness.process_setup import VARIABLE
from bottleneck.schema.recording import Form

if TYPE_CHECKING:
    from bottleneck.experiment.interventions.subject import Change


@dataclass(frozen=True)
class Program:
    """A workload or a bare model, and how it is to be made; travels to its process as one JSON argument.

    ``settings`` are the texts of ``--set``. ``seed`` sets the random numbers before the program is loaded;
    null leaves them alone in a recording. ``channel`` is the number of the file descriptor of its channel.
    """

    target: str
    arguments: tuple[str, ...] = ()
    form: Form = "workload"
    settings: tuple[tuple[str, str], ...] = ()
    train: bool = False
    seed: int | None = 0
    channel: int = -1

    @classmethod
    def from_json(cls, text: str) -> "Program":
        """The program that ``to_json`` wrote."""
        values = json.loads(text)
        settings = tuple((name, value) for name, value in values["settings"])
        return cls(**{**values, "arguments": tuple(values["arguments"]), "settings": settings})

    def to_json(self) -> str:
        """The program as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def words(self) -> tuple[str, ...]:
        """Its words on a command line."""
        options = [word for name, value in self.settings for word in ("--set", f"{name}={value}")]
        return (*options, *(("--train",) if self.train else ()), self.target, *self.arguments)


def make_program(
    file: str, arguments: Sequence[str] = (), settings: Sequence[str] = (), *, train: bool = False, seed: int | None = 0
) -> Program:
    """The program of a file, whose form is found and whose settings (NAME=VALUE) are checked; UsageError for others."""
    from bottleneck.harness.target import check_program

    form, pairs = check_program(file, settings, arguments, train=train)
    return Program(file, tuple(arguments), form, pairs, train, seed)


def environment_of(changes: "Sequence[Change]") -> Mapping[str, str]:
    """The variables that hold before the program is loaded."""
    return {name: value for change in changes for name, value in change.environment.items()}


@dataclass(frozen=True)
class Side:
    """A side: ``label`` names it, ``folder`` is the root of its sources, in which its processes start.

    ``environment`` holds the variables that it sets besides those of this process.
    """

    label: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def roots(self) -> tuple[Path, ...]:
        """Folders that hold its packages: the folder itself, and `src` in it."""
        folder = self.folder.resolve()
        return tuple(each for each in (folder, folder / "src") if each.is_dir())

    @property
    def variables(self) -> dict[str, str]:
        """Variables of its processes besides those of this one, by which they import the packages of this side."""
        own = os.pathsep.join(map(str, self.roots))
        theirs = self.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        return {**self.environment, "PYTHONPATH": os.pathsep.join(filter(None, (own, theirs))), VARIABLE: own}


def relative_to_root(program: Program, root: Path) -> Program:
    """The program with its target named from this root, so that each side runs its own file.

    A file outside the root is the same one on both sides.
    """
    target = Path(program.target)
    if target.is_absolute() and target.resolve().is_relative_to(root.resolve()):
        return replace(program, target=str(target.resolve().relative_to(root.resolve())))
    return program
