"""Reads the published cases: beside each program its number, its device, and the times that were stated.

A case is a file of this folder with a ``workload`` and these constants:

ITEM      its number in the list of published cases
DEVICE    the device of the stated times, as ``--device`` takes it
SOURCE    where they were read
NEEDS     packages that the program takes its model from
TIMES     by the name of a step: settings of the workload, changes as `verify` names them, stated milliseconds or null
GAINS     pairs of names, each with a stated gain where no times are, and the word "nothing" where none was had
IS_STEP   false where the stated times hold more than the program's step
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
_US_PER_MS = 1e3
NOTHING = "nothing"
# A change that `verify` does not try: backward pass and optimizer are in the graph too.
WHOLE_GRAPH = "whole-graph"


@dataclass(frozen=True)
class StatedStep:
    """A step of a published case: how it is made, and its time."""

    name: str
    settings: tuple[tuple[str, str], ...]
    changes: tuple[str, ...]
    us: float | None


@dataclass(frozen=True)
class StatedGain:
    """How many times as fast one step was stated to be as another; nothing where the source says so, or a loss."""

    before: str
    after: str
    gain: float
    is_negative: bool = False


@dataclass(frozen=True)
class Case:
    """A published case. ``is_step`` where its times are those of the program's step and of nothing else."""

    item: int
    file: Path
    device: str
    source: str
    needs: tuple[str, ...]
    steps: Mapping[str, StatedStep]
    gains: tuple[StatedGain, ...]
    is_step: bool

    @property
    def lacks(self) -> tuple[str, ...]:
        """Packages of the program that are not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


def read_cases(folder: Path = FOLDER) -> list[Case]:
    """The cases of a folder by their numbers."""
    modules = ((path, _load(path)) for path in sorted(folder.glob("*.py")) if "\nITEM = " in path.read_text())
    return sorted((_case(path, module) for path, module in modules), key=lambda case: (case.item, case.file.stem))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"published_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _case(path: Path, module: ModuleType) -> Case:
    steps = {
        name: StatedStep(
            name,
            tuple((key, str(value)) for key, value in settings.items()),
            tuple(changes),
            None if ms is None else ms * _US_PER_MS,
        )
        for name, (settings, changes, ms) in module.TIMES.items()
    }
    return Case(
        module.ITEM,
        path,
        module.DEVICE,
        module.SOURCE,
        getattr(module, "NEEDS", ()),
        steps,
        tuple(_gain(steps, *pair) for pair in module.GAINS),
        getattr(module, "IS_STEP", True),
    )


def _gain(steps: Mapping[str, StatedStep], before: str, after: str, *stated: float | str) -> StatedGain:
    numbers = [value for value in stated if not isinstance(value, str)]
    if numbers:
        gain = float(numbers[0])
    else:
        times = steps[before].us, steps[after].us
        if times[0] is None or times[1] is None:
            raise ValueError(f"no time is stated for {before!r} or {after!r}, and no gain")
        gain = times[0] / times[1]
    return StatedGain(before, after, gain, NOTHING in stated)
