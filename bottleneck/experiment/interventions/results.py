"""Compares the results of a changed step with the original's.

It uses the tolerance that the change implies.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bottleneck.experiment.interventions.subject import Change, Precision, Subject, seed_all
from bottleneck.harness.torch_private import has_own_parameters
from bottleneck.schema.measurements import Difference
from bottleneck.units import counted

What = Literal["outputs", "loss", "gradients", "parameters"]
KINDS: tuple[What, ...] = ("outputs", "loss", "gradients", "parameters")

# A state that goes wrong from one step to the next shows in the second; rounding has not grown much by the third.
STEPS = 3
_DEEPEST = 32


@dataclass(frozen=True)
class Results:
    """Tensors on the host by kind, in an order that repeats.

    The same program repeats the order. Null where a gradient was dropped.

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
    """Runs the first steps of a fresh subject, changed or not.

    All random numbers start from this seed.

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
            returned = [_copy(tensor) for tensor in _tensors(torch, subject.step())]
            losses += [tensor for tensor in returned if _is_loss(tensor)]
            outputs += [tensor for tensor in returned if not _is_loss(tensor)]
            if gradients is None:
                gradients = tuple(None if parameter.grad is None else _copy(parameter.grad) for parameter in trained)
    return Results(
        outputs=tuple(outputs),
        loss=tuple(losses),
        gradients=gradients or (),
        parameters=tuple(_copy(parameter) for parameter in trained),
        seen=tuple(seen),
    )


@contextlib.contextmanager
def _losses_seen(torch: Any, seen: list[Any]) -> Iterator[None]:
    """Keeps what `backward` starts from; `Tensor.backward` calls this function by its name."""
    backward = torch.autograd.backward

    def watched(tensors: Any, *arguments: Any, **options: Any) -> None:
        seen.extend(copied for copied in map(_copy, _tensors(torch, tensors)) if _is_loss(copied))
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
    return tensor.detach().to("cpu", copy=True)


def _tensors(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    """Yields every dense tensor and number in a step's result.

    The nesting of containers and records does not matter.
    """
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


# Distance from 1 to the next number: 10 bits of mantissa in TF32 (NVIDIA A100 whitepaper, "TF32") and in fp16, 7 in
# bf16, 7 bits and a sign in int8.
EPS: Mapping[Precision, float] = {"tf32": 2.0**-10, "fp16": 2.0**-10, "bf16": 2.0**-7, "int8": 2.0**-7}
_FP32_EPS = 2.0**-23

# What torch.testing.assert_close allows by default, in such distances: 1.6e-2 for bf16, 1e-3 for fp16, 1.3e-6 for fp32,
# 1e-7 for fp64 (table in its docstring). That is for one operation.
_ROUNDINGS: Mapping[str, float] = {"torch.bfloat16": 2.05, "torch.float16": 1.03, "torch.float32": 10.9}
_ROUNDINGS_OF_FEW_BITS = 2.05

# The error of a sum of n numbers grows as the root of n where roundings are independent: Higham and Mary 2019, "A new
# approach to probabilistic rounding error analysis", theorem 2.4; with this factor it holds but once in a thousand.
_SUM = 4.0


def allowance(subject: Subject, precision: Precision) -> float:
    """The largest alteration that a change may cause, relative to the largest value.

    0 where the bits have to be the same. Else each layer rounds, and these errors add up as a root; besides, sums are
    added up in another order, in fp32 or finer.
    """
    if precision == "same":
        return 0.0
    torch, kinds = subject.torch, _kinds(subject)
    rounded: float = max(_ROUNDINGS.get(str(kind), 1.0) * torch.finfo(kind).eps for kind in kinds)
    if precision in EPS or _rounds_to_tf32(subject):
        rounded = max(rounded, _ROUNDINGS_OF_FEW_BITS * EPS.get(precision, EPS["tf32"]))
    summed: float = _SUM * math.sqrt(_longest_sum(subject)) * min(_FP32_EPS, *(torch.finfo(kind).eps for kind in kinds))
    return summed + rounded * math.sqrt(_layers(subject))


def shake(subject: Subject, precision: Precision, seed: int) -> Subject:
    """Moves each number of the subject's parameters by one distance.

    The distance is one of this precision, up or down at random.

    ``seed`` leaves the program's random numbers alone.
    """
    torch = subject.torch
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in _parameters(subject):
            eps = max(EPS.get(precision, 0.0), torch.finfo(parameter.dtype).eps)
            signs = torch.randint(0, 2, parameter.shape, generator=draw, dtype=torch.int8) * 2 - 1
            parameter.mul_(1.0 + eps * signs.to(parameter.device, torch.float64).to(parameter.dtype))
    return subject


def _parameters(subject: Subject) -> list[Any]:
    is_lazy = subject.torch.nn.parameter.is_lazy
    return [parameter for parameter in subject.trained() if not is_lazy(parameter) and parameter.is_floating_point()]


def _kinds(subject: Subject) -> set[Any]:
    return {tensor.dtype for tensor in subject.floating()} or {subject.torch.float32}


def _layers(subject: Subject) -> int:
    """Counts the modules that hold parameters of their own.

    They are 1 at least. Each works on what the one before has rounded.
    """
    parts = (part for module in subject.modules for part in module.modules())
    return max(1, sum(map(has_own_parameters, parts)))


def _longest_sum(subject: Subject) -> float:
    """Returns the most numbers that a sum is likely to have.

    It is the fan-in of a layer, or all of a loose tensor.
    """
    fans = [parameter.numel() / max(1, parameter.shape[0]) for parameter in _parameters(subject) if parameter.dim()]
    return float(max([1.0, *fans, *(tensor.numel() for tensor in subject.tensors)]))


def _rounds_to_tf32(subject: Subject) -> bool:
    """Returns whether the original itself may round to TF32.

    Convolutions on a GPU do by default, but not in every kernel.
    """
    if "cuda" not in subject.device_types():
        return False
    torch = subject.torch
    return bool(torch.backends.cudnn.allow_tf32 or torch.get_float32_matmul_precision() != "highest")


# A perturbation stands for one rounding of each parameter by a whole distance; a step makes many smaller ones. bf16
# reached a third of this on 96 small networks (convolutions, attention, 17 linear layers; SGD and AdamW).
_SHAKES, _SHAKEN = 2, 3.0
# Draws of other random numbers, and how much further than all of those one more may lie: for a normally distributed
# loss about once in 300 times.
_DRAWS, _DRAWN = 4, 3.0
# After so long there is no second perturbation or draw.
_SECONDS = 30.0

Make = Callable[[], Subject]


@dataclass(frozen=True)
class Reference:
    """Results of the original, and the differences between its runs.

    The differences are the largest absolute ones between its own runs, by kind.

    ``allowed`` is what may differ relative to the largest value in any case. ``shaken`` is the difference that
    perturbed parameters make: it shows how the step amplifies roundings (Parker 1997, "Monte Carlo Arithmetic").
    ``drawn`` is the one that other random numbers make; 0 throughout if the step draws none and repeats its bits.
    Infinite where shapes change, or numbers become infinite.
    """

    results: Results
    precision: Precision
    allowed: float
    shaken: Mapping[What, float]
    drawn: Mapping[What, float]


@dataclass(frozen=True)
class Distance:
    """The largest absolute difference and the largest magnitude.

    ``broken`` states why there is no difference.
    """

    absolute: float = 0.0
    largest: float = 0.0
    broken: str | None = None


def compare(make: Make, change: Change, seed: int = 0, steps: int = STEPS) -> tuple[Difference, ...]:
    """Measures the differences that a change causes.

    The change is none that is process-wide. ``make`` makes equal subjects each time.
    """
    if change.precision == "other work":
        return (incomparable("outputs", "the changed step does other work"),)
    reference = refer(make, change.precision, seed, steps)
    subject = make()
    return judge(reference, observe(replace(subject, step=change.apply(subject)), seed, steps))


def refer(make: Make, precision: Precision, seed: int = 0, steps: int = STEPS) -> Reference:
    """Runs the original as it is, perturbed, and with other random numbers.

    Its parameters are perturbed.
    """
    subject = make()
    allowed = allowance(subject, precision)
    results = observe(subject, seed, steps)
    del subject
    is_floating, until = precision in EPS, time.monotonic() + _SECONDS
    shaken, drawn = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    for number in range(_SHAKES if precision != "same" else 0):
        again = observe(shake(make(), precision, number), seed, steps)
        shaken = _furthest(shaken, results, again, is_floating=is_floating)
        if time.monotonic() > until:
            break
    for number in range(_DRAWS):
        again = observe(make(), seed + 1 + number, steps)
        drawn = _furthest(drawn, results, again, is_floating=is_floating)
        if not any(drawn.values()) or time.monotonic() > until:
            break
    return Reference(results, precision, allowed, shaken, drawn)


def judge(reference: Reference, changed: Results) -> tuple[Difference, ...]:
    """A record for each kind of result that the original has."""
    differences = tuple(_judge(reference, changed, what) for what in KINDS if reference.results.of(what))
    return differences or (incomparable("outputs", "the step returns nothing, and trains nothing that was found"),)


def incomparable(what: What, reason: str) -> Difference:
    """The record of what cannot be compared."""
    return Difference(what, absolute=None, relative=None, allowed=None, is_within=None, reason=reason)


def _judge(reference: Reference, changed: Results, what: What) -> Difference:
    original, other = reference.results.of(what), changed.of(what)
    is_seen = what == "loss" and not reference.results.loss
    if not other or (is_seen and len(other) != len(original)):
        return incomparable(what, f"the changed step shows no {what}")
    distance = distance_of(original, other, is_floating=reference.precision in EPS)
    shaken, drawn = reference.shaken[what], reference.drawn[what]
    if math.isinf(shaken) or math.isinf(drawn):
        return incomparable(what, "roundings or random numbers change the shape of the original's, or make it infinite")
    if distance.broken is not None:
        return replace(incomparable(what, distance.broken), is_within=False)
    scale = distance.largest or distance.absolute or 1.0
    # Flushing takes from a number at most what lies below the smallest normal one of fp32.
    tiny = 0.0 if reference.precision == "same" else 2.0**-126
    strict = max(reference.allowed, (_SHAKEN * shaken + tiny) / scale)
    allowed = strict if distance.absolute <= strict * scale else max(strict, _DRAWN * drawn / scale)
    return Difference(
        what=what,
        absolute=distance.absolute,
        relative=distance.absolute / scale,
        allowed=allowed,
        is_within=distance.absolute <= allowed * scale,
        reason=f"other random numbers alone change it by {drawn / scale:.1e}" if allowed > strict else None,
    )


def distance_of(first: Sequence[Any], second: Sequence[Any], *, is_floating: bool) -> Distance:
    """Measures the distance of two rows of tensors.

    With ``is_floating``, tensors of whole numbers do not count. A rounding can turn one index into any other.
    """
    if len(first) != len(second):
        return Distance(broken=f"{counted(len(first), 'tensor')} became {len(second)}")
    pairs = [pair for pair in zip(first, second, strict=True) if not is_floating or _is_floating(pair)]
    distances = [_distance(mine, other) for mine, other in pairs]
    broken = next((distance.broken for distance in distances if distance.broken is not None), None)
    absolute = max((distance.absolute for distance in distances), default=0.0)
    return Distance(absolute, max((distance.largest for distance in distances), default=0.0), broken)


def _distance(first: Any, second: Any) -> Distance:
    """Measures the distance of two tensors.

    They must agree where they are not finite. A dropped gradient counts as zeros.
    """
    if first is None or second is None:
        present = second if first is None else first
        size = 0.0 if present is None or not present.numel() else float(present.abs().max())
        return Distance(size, 0.0 if first is None else size)
    if first.shape != second.shape:
        return Distance(broken=f"the shape {list(first.shape)} became {list(second.shape)}")
    first, second = _widened(first, second), _widened(second, first)
    is_finite = first.isfinite() & second.isfinite()
    is_same = is_finite | (first == second) | (first.isnan() & second.isnan())
    if not bool(is_same.all()):
        return Distance(
            broken=f"infinite, or not a number, in one of both only: {counted(int((~is_same).sum()), 'value')}"
        )
    if not first.numel():
        return Distance()
    apart, size = (first - second).abs().where(is_finite, 0.0), first.abs().where(is_finite, 0.0)
    return Distance(float(apart.max()), float(size.max()))


def _widened(tensor: Any, other: Any) -> Any:
    """Converts a tensor to a type that holds the values of both.

    That is fp32 unless one of them is wider.
    """
    is_narrow = all(operand.is_floating_point() and operand.element_size() <= 4 for operand in (tensor, other))
    return tensor.float() if is_narrow else tensor.double()


def _is_floating(pair: tuple[Any, Any]) -> bool:
    return all(tensor is None or tensor.is_floating_point() for tensor in pair)


def _furthest(known: Mapping[What, float], results: Results, again: Results, *, is_floating: bool) -> dict[What, float]:
    """The largest of the differences that are known and of these."""
    furthest = {}
    for what in KINDS:
        distance = distance_of(results.of(what), again.of(what), is_floating=is_floating)
        furthest[what] = max(known[what], distance.absolute if distance.broken is None else math.inf)
    return furthest
