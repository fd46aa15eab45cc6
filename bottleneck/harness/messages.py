"""Messages between the supervisor and the profiled process.

They are the program, the plan, and notes on what was measured.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bottleneck.schema.numerics import Numerics
from bottleneck.schema.recording import Form, LightWindow, Measured, StepSource

# By launcher: the variables of the rank and of the number of ranks. Those of torchrun come first, which Slurm may have
# started; Slurm sets its second one only for what `srun` starts.
LAUNCHERS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))

USUAL_STEPS, MOST_STEPS, USUAL_WARMUP = 5, 20, 3
TIMED_SECONDS = 0.5
# Roughly 0.7 GB while it is held, 60-100 MB of JSON, 4 MB compressed.
EVENT_BUDGET = 200_000


@dataclass(frozen=True)
class Program:
    """A program: which it is, and how it is to be made.

    ``target`` is a file, or the name of a module where ``module`` is true. ``settings`` are the names and texts of
    ``--set``. ``seed`` sets the random numbers before it is loaded; null leaves them alone. ``assumed`` are conditions
    on values of tensors, by line, and what each is taken to be where no tensor has a value (``--assume``).
    """

    target: str
    arguments: tuple[str, ...] = ()
    form: Form = "workload"
    settings: tuple[tuple[str, str], ...] = ()
    train: bool = False
    seed: int | None = 0
    module: bool = False
    assumed: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "Program":
        """The program of values that were written as JSON."""
        settings = tuple((name, value) for name, value in values["settings"])
        assumed = tuple((line, is_true) for line, is_true in values.get("assumed", ()))
        return cls(**{**values, "arguments": tuple(values["arguments"]), "settings": settings, "assumed": assumed})

    @property
    def options(self) -> tuple[str, ...]:
        """Returns the words that stand before it on our command line.

        The line is made with them.
        """
        settings = (word for name, value in self.settings for word in ("--set", f"{name}={value}"))
        assumed = (f"--assume={line}={'true' if is_true else 'false'}" for line, is_true in self.assumed)
        return (*settings, *assumed, *(("--train",) if self.train else ()))

    @property
    def command(self) -> tuple[str, ...]:
        """Its own words, as `python` gets them."""
        return (*(("-m",) if self.module else ()), self.target, *self.arguments)

    @property
    def words(self) -> tuple[str, ...]:
        """All its words on our command line."""
        return (*self.options, *self.command)


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Way to run a program and to measure its steps.

    The defaults are those of ``bottleneck run``. Null leaves a number or a choice to the harness. ``step`` names what
    ends a step; with ``stop`` the program ends as soon as it is measured. ``nproc_per_node`` is how many ranks torchrun
    starts. ``changes`` are applied to the step of a workload or a model, by their names there; ``device`` is torch's
    default one and ``threads`` its number of threads, both set before the program is loaded. Without ``option_costs``
    the cost of the profiler's options is not measured. With ``counting`` steps are profiled, and none is timed; with
    ``numerics`` what the first steps return and change is digested. ``timed_s`` is how long a step that can be repeated
    is timed. With ``follow_children`` the processes that the program starts are ranks of the recording. With
    ``inspect_padding`` the ids in the inputs of embeddings are looked at. With ``startup`` the stack is sampled until
    the first steady step, and compiled kernels get no names of ours. ``windows`` is how many windows of the profiler a
    watched run may open at slow steps, ``every_s`` the seconds between those that open in any case. ``most_events`` is
    how many events a window of several steps may hold.
    """

    steps: int | None = None
    warmup: int | None = None
    step: str | None = None
    stop: bool = False
    nproc_per_node: str | None = None
    shapes: bool | None = None
    stacks: bool | None = None
    memory: bool | None = None
    batch_test: bool | None = None
    option_costs: bool = True
    inspect_padding: bool = False
    counting: bool = False
    numerics: bool = False
    timed_s: float = TIMED_SECONDS
    changes: tuple[str, ...] = ()
    device: str | None = None
    threads: int | None = None
    follow_children: bool = False
    startup: bool = False
    windows: int = 0
    every_s: float | None = None
    most_events: int = EVENT_BUDGET

    @property
    def wanted_steps(self) -> int:
        """Steps to profile."""
        return self.steps or USUAL_STEPS

    @property
    def least_warmup(self) -> int:
        """Returns how many steps pass before any is measured.

        Exactly so many where the user named their number.
        """
        return USUAL_WARMUP if self.warmup is None else self.warmup


@dataclass(frozen=True)
class Plan:
    """Program to run, way to measure it, and folder of its recording.

    The supervisor gives it to the child. It is the same for all ranks: each child knows its own.
    """

    folder: str
    program: Program
    options: RecordOptions

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan that ``to_json`` wrote."""
        values = json.loads(text)
        options = {**values["options"], "changes": tuple(values["options"]["changes"])}
        return cls(values["folder"], Program.from_values(values["program"]), RecordOptions(**options))

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_words(cls, text: str, *arguments: str) -> "Plan":
        """The plan on the command line of a child."""
        plan = cls.from_json(text)
        return dataclasses.replace(plan, program=dataclasses.replace(plan.program, arguments=arguments))

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the plan on the command line of a child.

        The program's arguments may be too long for one word.
        """
        program = dataclasses.replace(self.program, arguments=())
        return (dataclasses.replace(self, program=program).to_json(), *self.program.arguments)


def rank_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns rank and number of ranks.

    As the launcher tells its processes; (0, 1) for a process on its own.
    """
    for of_rank, of_ranks in LAUNCHERS:
        rank, ranks = environment.get(of_rank, ""), environment.get(of_ranks, "")
        if rank.isdecimal() and (of_rank == "RANK" or ranks.isdecimal()):
            return int(rank), int(ranks) if ranks.isdecimal() else 1
    return 0, 1


@dataclass(frozen=True, kw_only=True)
class Notes(Measured):
    """Measurements of the child, as far as they are made.

    ``ranks`` is how many processes the program consists of, by the launcher that started them. ``steps_seen`` tells how
    often a step was seen to end until all was measured. ``first_step`` is the number of the step at whose beginning the
    first of ``step_marks_ns`` is, counted from 0; null where no steps are watched. ``setup_s`` is what the first two
    steps took, with the changes that were applied before them, beyond usual steps. ``is_measured`` turns true as soon
    as nothing more will be measured, while the program goes on; ``stopped`` where it was then told to end.
    ``is_complete`` turns true at the regular end of the program; false means that it died or left by `os._exit`.
    ``exit_status`` is that of its own end, before Python takes the interpreter apart; null without one. ``light`` is
    the window with the fewest options, null where none was kept.
    """

    ranks: int = 1
    step_source: StepSource = "none"
    steps_seen: int = 0
    framework: str | None = None
    step_marks_ns: tuple[int, ...] = ()
    first_step: int | None = None
    light: LightWindow | None = None
    setup_s: float | None = None
    is_measured: bool = False
    stopped: bool = False
    is_complete: bool = False
    numerics: Numerics | None = None
    exit_status: int | None = None
