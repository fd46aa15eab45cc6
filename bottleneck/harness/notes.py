"""What the child leaves for its supervisor: the plan that it follows and the notes on what it measured."""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bottleneck.compiled import compiled_file
from bottleneck.measured import Timing
from bottleneck.recording import Form, StepSource

NOTES_FILE = ".notes.json"

USUAL_STEPS = 5


@dataclass(frozen=True)
class Plan:
    """What to run and how to measure it; travels from the supervisor to the child as one JSON argument.

    ``target`` is a file, or a module name where ``module`` is true. ``settings`` are the texts of ``--set``. ``steps``
    is null where the user leaves their number to us.
    """

    folder: str
    form: Form
    target: str
    module: bool
    settings: tuple[tuple[str, str], ...]
    train: bool
    steps: int | None
    warmup: int
    rank: int
    step: str | None = None
    stop: bool = False
    nproc_per_node: str | None = None
    shapes: bool | None = None
    stacks: bool | None = None
    memory: bool | None = None

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan that ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "settings": tuple((name, value) for name, value in values["settings"])})

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def wanted_steps(self) -> int:
        """Steps to profile."""
        return self.steps or USUAL_STEPS

    @property
    def trace_file(self) -> str:
        """Final name of the trace inside the folder."""
        return f"trace.rank{self.rank}.json.gz"

    @property
    def partial_file(self) -> Path:
        """Where the trace lies until the supervisor has found it whole."""
        return Path(self.folder) / f".partial.{self.trace_file}"

    @property
    def compiled_file(self) -> Path:
        """Where the kernels of a compiled program are described, for the trace that lies beside it."""
        return Path(self.folder) / compiled_file(self.rank)


@dataclass(frozen=True)
class Notes:
    """What the child measured. Times in ``unprofiled`` and ``profiled`` are microseconds per step.

    ``timed_ns`` is the stretch of the wall clock in which the unprofiled steps ran.
    ``is_complete`` turns true at the regular end of the program; false means that it died or left by `os._exit`.
    """

    step_source: StepSource = "none"
    framework: str | None = None
    step_marks_ns: tuple[int, ...] = ()
    unprofiled: Timing | None = None
    timed_ns: tuple[int, int] | None = None
    profiled: Timing | None = None
    threads: int | None = None
    device_facts: tuple[Mapping[str, str | int | float | None], ...] = ()
    warnings: tuple[str, ...] = ()
    is_complete: bool = False


def write_notes(folder: str, notes: Notes) -> None:
    """Leaves the notes in the folder, whole or not at all."""
    path = Path(folder) / NOTES_FILE
    partial = path.with_name(f"{NOTES_FILE}.{os.getpid()}")
    partial.write_text(json.dumps(dataclasses.asdict(notes)))
    partial.replace(path)
