"""The side of a comparison that a program's processes run on.

It is a folder and the variables that the side sets.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bottleneck.harness.messages import Program
from bottleneck.harness.process_setup import VARIABLE

if TYPE_CHECKING:
    from bottleneck.experiment.interventions.subject import Change


def environment_of(changes: "Sequence[Change]") -> Mapping[str, str]:
    """The variables that hold before the program is loaded."""
    return {name: value for change in changes for name, value in change.environment.items()}


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    ``label`` names it, and ``folder`` is the root of its sources, in which its processes start. ``environment`` holds
    the variables that it sets besides those of this process.
    """

    label: str
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def roots(self) -> tuple[Path, ...]:
        """Folders that hold its packages: the folder itself, and `src` in it."""
        folder = self.folder.resolve()
        return tuple(path for path in (folder, folder / "src") if path.is_dir())

    @property
    def variables(self) -> dict[str, str]:
        """Variables of its processes besides those of this one.

        By them the processes import the packages of this side.
        """
        own = os.pathsep.join(map(str, self.roots))
        theirs = self.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        return {**self.environment, "PYTHONPATH": os.pathsep.join(filter(None, (own, theirs))), VARIABLE: own}


def relative_to_root(program: Program, root: Path) -> Program:
    """Names the target of a program from this root.

    So each side runs its own file. A file outside the root is the same one on both sides.
    """
    target = Path(program.target)
    if target.is_absolute() and target.resolve().is_relative_to(root.resolve()):
        return replace(program, target=str(target.resolve().relative_to(root.resolve())))
    return program
