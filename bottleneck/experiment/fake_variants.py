"""Records the step of a program with changes under fake tensors.

It shows what a device that is not here would be given to do.

One process makes all variants, one after another, since bringing torch in takes longer than most steps.
"""

import gc
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bottleneck.experiment.interventions.subject import (
    Change,
    Missing,
    NotApplicable,
    Settings,
    Subject,
    change_named,
    make_subject,
)
from bottleneck.experiment.variants import RequestChannel, refusal, settings_with
from bottleneck.experiment.worker import Worker
from bottleneck.harness.fake_step import FakeSession, StepDone, refusal_of, workload_batch
from bottleneck.harness.messages import Program
from bottleneck.harness.process_setup import seeders
from bottleneck.harness.program import describe_error, load_file
from bottleneck.harness.stopwatch import Step
from bottleneck.harness.supervise import CHILD
from bottleneck.harness.torch_state import TorchHook
from bottleneck.schema.step_calls import StepCalls

FAKES_CHILD = (CHILD, "bottleneck.experiment.child_entry:serve_fakes")
RECORD_SECONDS_AT_MOST = 600.0
# These capture the graph of a module, and change it.
_CAPTURING, _FUSED = frozenset({"fused-attention"}), "scaled_dot_product"
# A script is within these from its first step on.
_ENTERED: Mapping[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "bf16-autocast": lambda torch: torch.autocast("cuda", dtype=torch.bfloat16)
}


class FakeWorker(Worker):
    """The process that records variants, from the side that asks."""

    def __init__(self, program: Program, log: Path) -> None:
        super().__init__(program, log, child=FAKES_CHILD)
        self._folder = log.parent

    def record(self, changes: Sequence[str]) -> StepCalls:
        """The calls of the step with these changes; Refused where it cannot be had."""
        import msgspec

        file = self._folder / "calls.json"
        self._ask(RECORD_SECONDS_AT_MOST, do="record", changes=list(changes), file=str(file))
        return msgspec.json.decode(file.read_bytes(), type=StepCalls)


class FakeHost:
    """Makes the variants of one program, in the process that runs it."""

    def __init__(self, program: Program, changes: Mapping[str, Change]) -> None:
        self._program, self._changes = program, changes
        TorchHook(seeders(program.seed), {}).install()
        self._session = FakeSession()
        # Torch 2.13 crashes where a fake optimizer or parameter is freed, as that of a layer which a change replaces.
        self._made: list[tuple[Subject, list[Any]]] = []

    def record(self, changes: Sequence[str], file: str) -> None:
        """Leaves the calls of the step with these changes in a file."""
        chosen = [change_named(self._changes, name) for name in changes]
        if self._program.form == "script":
            calls = self._follow(chosen)
        else:
            # What these load of the file is none of the step's memory: no recorder may see it.
            with self._session.mode:
                values = settings_with(self._program, chosen)
                batch = self._batch_size(values)
            calls = self._session.repeat(self._program, lambda: (self._make(chosen, values), batch))
        # Records as their fields: the process of the program loads no library of ours.
        Path(file).write_text(json.dumps(calls, default=vars), encoding="utf-8")

    def _follow(self, chosen: Sequence[Change]) -> StepCalls:
        """Records the calls of a script's step with changes.

        The script's objects are changed after its first step.
        """
        refused: list[NotApplicable | Missing] = []

        def change(optimizers: Sequence[Any]) -> None:
            try:
                self._change_objects(chosen, optimizers)
            except (NotApplicable, Missing) as state:  # the script might catch it
                refused.append(state)
                raise StepDone from None

        calls = self._session.follow(self._program, change if chosen else None)
        if refused:
            raise refused[0]
        if any(change.name in _CAPTURING for change in chosen) and not any(_FUSED in call.name for call in calls.calls):
            raise NotApplicable("needs attention that is written out: a softmax between two batched products")
        return calls

    def _change_objects(self, chosen: Sequence[Change], optimizers: Sequence[Any]) -> None:
        """Applies the changes to what the script has made.

        They apply as far as they need no step that can be called.
        """
        torch = self._session.torch
        alive = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
        inner = {id(part) for module in alive for part in module.modules() if part is not module}
        modules = tuple(item for item in alive if id(item) not in inner and any(True for _ in item.parameters()))
        subject = Subject(torch, _nothing, modules, tuple(optimizers), train=bool(optimizers), stands_for="cuda")
        for change in chosen:
            if change.settings is not None:
                raise NotApplicable("needs a workload, whose parameters can be set")
            with self._session.compiling() if change.name in _CAPTURING else nullcontext():
                step = change.apply(subject)
            if change.name in _ENTERED:
                _ENTERED[change.name](torch).__enter__()
            elif step is not _nothing and change.name not in _CAPTURING:
                raise NotApplicable("needs a workload, whose step can be called")

    def _make(self, chosen: Sequence[Change], values: Settings) -> Step:
        program = self._program
        subject = make_subject(
            program.target, program.arguments, program.form, values, train=program.train, seed=program.seed or 0
        )
        subject = replace(subject, stands_for="cuda")
        self._made.append((subject, [one for module in subject.modules for one in module.modules()]))
        for change in chosen:
            with self._session.compiling() if change.name in _CAPTURING else nullcontext():
                subject = replace(subject, step=change.apply(subject))
        return subject.step

    def _batch_size(self, values: Settings) -> int | None:
        if self._program.form != "workload":
            return None
        settings = tuple((name, str(value)) for name, value in dict(values).items())
        return workload_batch(load_file(self._program.target, self._program.arguments), settings)


def _nothing() -> None:
    """Stands for the step of a script, which nobody can call."""


def serve_steps(requested: Program, descriptor: str, changes: Mapping[str, Change]) -> NoReturn:
    """Answers requests for steps with changes.

    It does so as long as there are any on this file descriptor.
    """
    channel, host = RequestChannel(descriptor), FakeHost(requested, changes)
    while True:
        channel.reply(**_answer(host, channel.wait()))


def _answer(host: FakeHost, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        host.record(request["changes"], request["file"])
    except (NotApplicable, Missing) as state:
        return refusal(state.verdict, str(state))
    except (Exception, SystemExit) as error:  # the user's code, or what torch makes of it under fake tensors
        traceback.print_exc()
        refused = refusal_of(error)
        return {**refusal("failed", refused.get("refused") or describe_error(error)), "fix": refused.get("fix", "")}
    return {"value": None}
