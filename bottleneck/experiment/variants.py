"""Holds variants of one step in one process.

It runs their turns at the requests of the parent process.
"""

import gc
import json
import math
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from bottleneck.experiment.interventions.loaders import LoaderTurns, calls_noted
from bottleneck.experiment.interventions.results import (
    KINDS,
    Reference,
    Results,
    incomparable,
    judge,
    observe,
    refer,
)
from bottleneck.experiment.interventions.subject import (
    Change,
    Location,
    Missing,
    NotApplicable,
    Precision,
    Settings,
    Subject,
    change_named,
    default_parameters,
    load_torch,
    make_subject,
)
from bottleneck.harness.forms import parse_value
from bottleneck.harness.machine import peak_memory, reset_peak
from bottleneck.harness.messages import Program
from bottleneck.harness.process_setup import prefer_roots
from bottleneck.harness.program import (
    describe_error,
    leave_at_once,
    load_file,
    says_out_of_memory,
    show_only_their_frames,
)
from bottleneck.harness.stopwatch import Stopwatch, WarmUp, time_steps, warm_up
from bottleneck.harness.torch_private import loader_iterator, prefetched_by
from bottleneck.schema.measurements import LoaderSetting, TrialVerdict

# What compilers and captures do at the first calls belongs to the set-up, not to a step.
SETUP_CALLS = 3
PEAK_STEPS = 2
WARM_UP = WarmUp(seconds=10.0, many=50, seconds_for_many=1.0, least_s=0.25)

_LOOSER: tuple[Precision, ...] = ("same", "reordered", "tf32", "fp16", "bf16", "int8", "other work")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Built:
    """Costs of making a variant: set-up seconds and peak memory.

    The seconds are those of applying the changes and of the first calls.

    ``samples`` is how many times as many samples its step works on, ``prefetched`` how many batches its loaders may
    have ready before a turn begins.
    """

    setup_s: float
    peak_bytes: int | None
    samples: float
    step_us: float
    prefetched: int = 0


class VariantHost:
    """The variants of one program, by name; exceptions of the user's code propagate."""

    def __init__(self, program: Program, changes: Mapping[str, Change]) -> None:
        self._program, self._changes = program, changes
        self._variants: dict[str, Subject] = {}
        self._loader_turns: LoaderTurns | None = None
        self._references: dict[Precision, Reference] = {}

    def build(self, name: str, changes: Sequence[str], keep: str | None, against: Sequence[str] = ()) -> Built:
        """Makes a variant and runs it until it is warm.

        The results of its first steps are left in the file ``keep``.

        An original is made for what it is compared with: the changes that ``against`` names.
        """
        chosen = [change_named(self._changes, change_name) for change_name in changes]
        subject = self._make(chosen)
        started = time.perf_counter()
        for change in chosen:
            subject = replace(subject, step=change.apply(subject))
        for base in (change_named(self._changes, change_name).against for change_name in against):
            subject = replace(subject, step=base(subject)) if base is not None else subject
        results = observe(subject, self._program.seed or 0, SETUP_CALLS)
        Stopwatch(subject.torch).wait()
        setup_s = time.perf_counter() - started
        if keep is not None:
            save(results, Path(keep), subject.torch)
        del results
        samples = math.prod((change.samples for change in chosen), start=1.0)
        return self._warmed(name, subject, Built(setup_s, _peak_bytes(subject), samples, 0.0))

    def make(self, name: str) -> Built:
        """Makes the step as it stands, and warms it up.

        That is all that its time needs.
        """
        with few_collections():
            subject = self._make(())
            started = time.perf_counter()
            for _ in range(SETUP_CALLS):
                subject.step()
            Stopwatch(subject.torch).wait()
        return self._warmed(name, subject, Built(time.perf_counter() - started, None, 1.0, 0.0))

    def _warmed(self, name: str, subject: Subject, built: Built) -> Built:
        """Keeps the variant under its name, and warms it up.

        It returns its costs with the time of its step.
        """
        self._variants[name] = subject
        stopwatch = warm_up(subject.step, subject.torch, WARM_UP)
        return replace(built, step_us=usual_us(stopwatch), prefetched=prefetched(subject))

    def turn(self, name: str, steps: int, lead: int) -> list[float]:
        """Returns microseconds of each step of a turn.

        The ``lead`` ones before find the caches full of another's data.
        """
        variant = self._variants[name]
        return time_steps(variant.step, variant.torch, steps, lead)

    def open_loader(self) -> dict[str, Any]:
        """Makes the step for turns of its loader, and describes that loader."""
        with calls_noted(load_torch(self._program.target, self._program.arguments)) as calls:
            subject = self._make(())
        self._loader_turns = LoaderTurns(subject, calls)
        return self._loader_turns.describe()

    def loader_turn(self, setting: Mapping[str, Any], limit_s: float) -> float | None:
        """Times the step with another setting of its loader, in microseconds."""
        assert self._loader_turns is not None
        return self._loader_turns.turn(LoaderSetting(**setting), limit_s)

    def compare(self, changes: Sequence[str], kept: str) -> list[dict[str, Any]]:
        """Compares a changed variant's kept results with the original's.

        It uses the precision that the changes imply. What the original gives at a precision is computed once.
        """
        precision = loosest([change_named(self._changes, change).precision for change in changes])
        if precision == "other work":
            return [asdict(incomparable("outputs", "it does other work, whose results are not compared"))]
        if precision not in self._references:
            self._references[precision] = refer(lambda: self._make(()), precision, self._program.seed or 0, SETUP_CALLS)
        changed = load(Path(kept), sys.modules["torch"])
        return [asdict(difference) for difference in judge(self._references[precision], changed)]

    def _make(self, changes: Sequence[Change]) -> Subject:
        program = self._program
        return make_subject(
            program.target,
            program.arguments,
            program.form,
            settings_with(program, changes),
            train=program.train,
            seed=program.seed or 0,
        )


def settings_with(program: Program, changes: Sequence[Change]) -> Settings:
    """The settings of a program, with those that the changes set."""
    asking = [change.settings for change in changes if change.settings is not None]
    if not asking:
        return program.settings
    if program.form != "workload":
        raise NotApplicable("needs a workload, whose parameters can be set")
    module = load_file(program.target, program.arguments)
    set_values = {name: parse_value(text) for name, text in program.settings}
    values: Mapping[str, object] = {**default_parameters(module), **set_values}
    for ask in asking:
        values = {**values, **ask(values)}
    return values


class RequestChannel:
    """Requests of the process that started this one, and replies.

    Each is one line of JSON.
    """

    def __init__(self, descriptor: str) -> None:
        show_only_their_frames()
        prefer_roots()
        self._lines = socket.socket(fileno=int(descriptor)).makefile("rw", encoding="utf-8")

    def wait(self) -> Mapping[str, Any]:
        """Waits for the next request.

        It ends this process at a request to quit, or where the channel is closed.
        """
        line = self._lines.readline()
        request: Mapping[str, Any] = json.loads(line) if line else {"do": "quit"}
        if request["do"] == "quit":
            # Threads and workers of the program must not keep it alive.
            leave_at_once()
        return request

    def reply(self, **reply: object) -> None:
        """The answer to the request under way."""
        self._lines.write(json.dumps(reply) + "\n")
        self._lines.flush()


def serve(program: Program, descriptor: str, changes: Mapping[str, Change]) -> NoReturn:
    """Answers requests about variants of the program.

    It does so as long as there are any on this file descriptor.
    """
    channel, host = RequestChannel(descriptor), VariantHost(program, changes)
    while True:
        channel.reply(**answer(host, channel.wait()))


def answer(host: VariantHost, request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to a request: its value, or why there is none."""
    arguments = {name: value for name, value in request.items() if name != "do"}
    try:
        value = getattr(host, request["do"])(**arguments)
    except (NotApplicable, Missing) as state:
        return refusal(state.verdict, str(state))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the user's code, or what a library makes of it
        traceback.print_exc()
        description = describe_error(error)
        return refusal("failed", description, is_for_memory=says_out_of_memory(description))
    return {"value": asdict(value) if isinstance(value, Built) else value}


def prefetched(subject: Subject) -> int:
    """Returns how many batches workers of the step's loader may have ready.

    0 without workers.
    """
    places = [place for of_one in subject.places.values() for place in of_one]
    return max((_ready_in(place) for place in places), default=0)


def _ready_in(place: Location) -> int:
    """Returns the batches that the loader at this place may have ready.

    It may also be the iterator of a loader. 0 for anything else.
    """
    try:
        held, iterator = place.get(), loader_iterator()
        if iterator is not None and issubclass(type(held), iterator):
            return prefetched_by(held)
        attributes = getattr(held, "__dict__", {})
        return int(attributes.get("num_workers", 0) or 0) * int(attributes.get("prefetch_factor", 0) or 0)
    except (LookupError, AttributeError, TypeError, ValueError):  # a place that is gone, or a namesake of theirs
        return 0


def save(results: Results, path: Path, torch: Any) -> None:
    """Leaves results in a file: the process that compares them may be another."""
    torch.save({what: list(results.of(what)) for what in KINDS}, path)


def load(path: Path, torch: Any) -> Results:
    """The results that ``save`` wrote; nothing but tensors is read."""
    values = torch.load(path, weights_only=True)
    return Results(**{what: tuple(values[what]) for what in KINDS})


def loosest(precisions: Sequence[Precision]) -> Precision:
    """The precision that several changes together imply."""
    return max(precisions, key=_LOOSER.index, default="same")


def refusal(verdict: TrialVerdict, reason: str, *, is_for_memory: bool = False) -> dict[str, Any]:
    """The reply that says so."""
    shown = " ".join(reason.split())[:_LONGEST_REASON]
    return {"verdict": verdict, "reason": shown, "is_for_memory": is_for_memory}


def _peak_bytes(subject: Subject) -> int | None:
    """Returns the peak memory of a few steps in bytes.

    Null where the system cannot make it begin anew.
    """
    if not reset_peak(subject.torch):
        return None
    for _ in range(PEAK_STEPS):
        subject.step()
    return peak_memory(subject.torch, was_reset=True).bytes


def usual_us(stopwatch: Stopwatch) -> float:
    """The typical step among the last ones."""
    recent = sorted(stopwatch.durations_us()[-WARM_UP.many :])
    return recent[len(recent) // 2]


@contextmanager
def few_collections() -> Iterator[None]:
    """Spares the garbage collector most runs while torch is imported.

    They are a sixth of that time. Settings that the program makes of its own stay.
    """
    usual, rare = gc.get_threshold(), (100_000, 50, 1000)
    gc.set_threshold(*rare)
    try:
        yield
    finally:
        if gc.get_threshold() == rare:
            gc.set_threshold(*usual)
