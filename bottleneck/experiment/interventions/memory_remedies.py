"""Changes that make a step need less memory, for `predict --fit`: they are run under fake tensors only.

Blocks that are recomputed, micro-batches whose gradients add up, and activations that overwrite their input.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bottleneck.experiment.interventions.recompute import recompute_block
from bottleneck.experiment.interventions.subject import Change, NotApplicable, Subject
from bottleneck.harness.forms import BATCH
from bottleneck.harness.module_paths import find_modules
from bottleneck.harness.stopwatch import Step

PARTS = (2, 4, 8, 16)
# Their backward passes need what they return and not what they were given (derivatives.yaml of PyTorch).
_IN_PLACE = ("ReLU", "LeakyReLU", "ReLU6", "Hardtanh", "ELU", "Dropout")


def _recompute_blocks(subject: Subject, values: Mapping[str, object]) -> Step:
    """The step with the blocks of these paths recomputed in the backward pass."""
    paths = values["blocks"]
    assert isinstance(paths, Sequence)
    if not subject.train:
        raise NotApplicable("needs a step that trains: without a backward pass nothing is kept")
    mine = {id(part) for module in subject.modules for part in module.modules()}
    parts = {id(part): part for module in subject.modules for part in module.modules()}
    by_path = {
        place.path: parts[number]
        for number, held in find_modules(subject.torch).items()
        if number in mine
        for place in held.places
    }
    missing = [path for path in paths if path not in by_path]
    if missing:
        raise NotApplicable(f"needs the block {missing[0]}, which the step does not reach")
    for path in paths:
        recompute_block(by_path[path])
    return subject.step


def _divided(parts: int, values: Mapping[str, object]) -> Mapping[str, object]:
    """The parameters of a workload with one of so many equal parts of the batch."""
    size = values.get(BATCH)
    if not isinstance(size, int) or size % parts or size < parts:
        raise NotApplicable(f"needs a parameter {BATCH} that {parts} divides")
    return {**values, BATCH: size // parts}


def _accumulated(parts: int, subject: Subject) -> Step:
    """The step as so many smaller ones, of which the last updates the parameters.

    A call that drops gradients does so only after an update.
    """
    inner = subject.step
    calls = dict.fromkeys(map(id, subject.optimizers), 0)
    updates = {id(optimizer): optimizer.step for optimizer in subject.optimizers}

    def update(optimizer: Any, *positional: Any, **named: Any) -> Any:
        calls[id(optimizer)] = (calls[id(optimizer)] + 1) % parts
        return updates[id(optimizer)](*positional, **named) if not calls[id(optimizer)] else None

    def drop(holder: Any, *positional: Any, **named: Any) -> None:
        if not any(calls.values()):
            type(holder).zero_grad(holder, *positional, **named)

    for optimizer in subject.optimizers:
        optimizer.__dict__["step"] = partial(update, optimizer)
    for holder in (*subject.optimizers, *subject.modules):
        holder.__dict__["zero_grad"] = partial(drop, holder)

    def step() -> Any:
        for _ in range(parts - 1):
            inner()
        return inner()

    return step


def _in_place(subject: Subject) -> Step:
    """The step with activations that overwrite their input; torch refuses those whose input is needed."""
    changed = 0
    for module in subject.modules:
        for part in module.modules():
            if type(part).__name__ in _IN_PLACE and getattr(part, "inplace", None) is False:
                part.inplace = True
                changed += 1
    if not changed:
        raise NotApplicable(f"needs modules such as {', '.join(_IN_PLACE[:2])} that are not in place yet")
    return subject.step


REMEDIES: Mapping[str, Change] = {
    change.name: change
    for change in (
        Change("checkpoint-blocks", "torch.utils.checkpoint on these blocks", "same", tune=_recompute_blocks),
        Change("inplace-activations", "activations overwrite their input: inplace=True", "same", _in_place),
        *(
            Change(
                f"accumulate-{parts}",
                f"{parts} micro-batches whose gradients add up",
                "reordered",
                partial(_accumulated, parts),
                settings=partial(_divided, parts),
            )
            for parts in PARTS
        ),
    )
}
