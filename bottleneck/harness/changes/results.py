"""What the first steps of a subject give: outputs, losses, gradients and parameters, copied to the host."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bottleneck.harness.changes.subject import Subject, seed_all

What = Literal["outputs", "loss", "gradients", "parameters"]
KINDS: tuple[What, ...] = ("outputs", "loss", "gradients", "parameters")

# A state that goes wrong from one step to the next shows in the second; rounding has not grown much by the third.
STEPS = 3
_DEEPEST = 32


@dataclass(frozen=True)
class Results:
    """Tensors on the host by kind, in an order that the same program repeats; null where a gradient was dropped.

    ``outputs`` and ``loss`` are of all steps; a loss is a single floating number that a step returns. ``seen`` are
    those whose ``backward()`` it calls, which stand in where it returns none; a step that is replayed calls none.
    ``gradients`` are those after the first step, ``parameters`` those after the last: an optimizer that divides by the
    size of a gradient makes much of roundings, and all later gradients then differ. Empty where nothing trains.
    """

    outputs: tuple[Any, ...] = ()
    loss: tuple[Any, ...] = ()
    gradients: tuple[Any, ...] = ()
    parameters: tuple[Any, ...] = ()
    seen: tuple[Any, ...] = ()

    def of(self, what: What) -> tuple[Any, ...]:
        """The tensors of one kind."""
        if what == "loss" and not self.loss:
            return self.seen
        values: tuple[Any, ...] = getattr(self, what)
        return values


def observe(subject: Subject, seed: int = 0, steps: int = STEPS) -> Results:
    """Runs the first steps of a fresh subject, changed or not, from this seed of all random numbers.

    What the step raises comes through. Memory: a copy of all parameters and gradients, and of each step's outputs.
    """
    torch = subject.torch
    seed_all(torch, seed)
    outputs: list[Any] = []
    losses: list[Any] = []
    seen: list[Any] = []
    gradients: tuple[Any, ...] | None = None
    trained = subject.trained() if subject.train else ()
    with _losses_seen(torch, seen):
        for _ in range(steps):
            found = [_copy(tensor) for tensor in _tensors(torch, subject.step())]
            losses += [tensor for tensor in found if _is_loss(tensor)]
            outputs += [tensor for tensor in found if not _is_loss(tensor)]
            if gradients is None:
                gradients = tuple(None if each.grad is None else _copy(each.grad) for each in trained)
    return Results(
        outputs=tuple(outputs),
        loss=tuple(losses),
        gradients=gradients or (),
        parameters=tuple(_copy(each) for each in trained),
        seen=tuple(seen),
    )


@contextlib.contextmanager
def _losses_seen(torch: Any, seen: list[Any]) -> Iterator[None]:
    """Keeps what `backward` starts from; `Tensor.backward` calls this function by its name."""
    backward = torch.autograd.backward

    def watched(tensors: Any, *arguments: Any, **options: Any) -> None:
        seen.extend(each for each in map(_copy, _tensors(torch, tensors)) if _is_loss(each))
        backward(tensors, *arguments, **options)

    torch.autograd.backward = watched
    try:
        yield
    finally:
        torch.autograd.backward = backward


def _is_loss(tensor: Any) -> bool:
    return bool(tensor.numel() == 1 and tensor.is_floating_point())


def _copy(tensor: Any) -> Any:
    """A copy on the host that no later step overwrites."""
    tensor = tensor.detach()
    return tensor.to("cpu", copy=True)


def _tensors(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    """Every dense tensor and number in what a step returned, whatever the nesting of containers and records."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_quantized:
            yield torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    elif isinstance(value, float):
        yield torch.tensor(value, dtype=torch.float64)
    elif depth < _DEEPEST:
        for inner in _items(value):
            yield from _tensors(torch, inner, depth + 1)


def _items(value: Any) -> Any:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, tuple | list):
        return value
    is_record = hasattr(type(value), "__dataclass_fields__") and hasattr(value, "__dict__")
    return vars(value).values() if is_record else ()
