"""How far the results of a changed step lie from the original's, judged against what the change implies."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bottleneck.harness.changes.change import Change, Precision
from bottleneck.harness.changes.results import KINDS, STEPS, Results, What, observe
from bottleneck.harness.changes.subject import Subject
from bottleneck.harness.changes.tolerances import EPS, allowance, shake
from bottleneck.trials import Difference

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
    """What the original gives, and how far it lies from itself, as largest absolute differences by kind.

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

    def save(self, path: Path, torch: Any) -> None:
        """Leaves it in a file, for a comparison in another process."""
        results = {name: list(values) for name, values in vars(self.results).items()}
        torch.save({**vars(self), "results": results}, path)

    @classmethod
    def load(cls, path: Path, torch: Any) -> "Reference":
        """What ``save`` left; nothing but tensors, numbers and texts is read."""
        values = torch.load(path, weights_only=True)
        results = Results(**{name: tuple(tensors) for name, tensors in values["results"].items()})
        return cls(**{**values, "results": results})


@dataclass(frozen=True)
class Distance:
    """The largest absolute difference and the largest magnitude; ``broken`` says why there is no difference."""

    absolute: float = 0.0
    largest: float = 0.0
    broken: str | None = None


def compare(make: Make, change: Change, seed: int = 0, steps: int = STEPS) -> tuple[Difference, ...]:
    """What a change alters that is not process-wide; ``make`` makes equal subjects, again and again."""
    if change.precision == "other work":
        return (incomparable("outputs", "the changed step does other work"),)
    reference = refer(make, change.precision, seed, steps)
    subject = make()
    return judge(reference, observe(replace(subject, step=change.apply(subject)), seed, steps))


def refer(make: Make, precision: Precision, seed: int = 0, steps: int = STEPS) -> Reference:
    """Runs the original as it is, with its parameters perturbed, and with other random numbers."""
    subject = make()
    allowed = allowance(subject, precision)
    results = observe(subject, seed, steps)
    del subject
    is_floating, until = precision in EPS, time.monotonic() + _SECONDS
    shaken, drawn = _nowhere(), _nowhere()
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
    found = tuple(_judge(reference, changed, what) for what in KINDS if reference.results.of(what))
    return found or (incomparable("outputs", "the step returns nothing, and trains nothing that was found"),)


def incomparable(what: What, reason: str) -> Difference:
    """The record of what cannot be compared."""
    return Difference(what, absolute=None, relative=None, allowed=None, is_within=None, reason=reason)


def _judge(reference: Reference, changed: Results, what: What) -> Difference:
    original, other = reference.results.of(what), changed.of(what)
    is_seen = what == "loss" and not reference.results.loss
    if not other or (is_seen and len(other) != len(original)):
        return incomparable(what, f"the changed step shows no {what}")
    found = distance_of(original, other, is_floating=reference.precision in EPS)
    shaken, drawn = reference.shaken[what], reference.drawn[what]
    if math.isinf(shaken) or math.isinf(drawn):
        return incomparable(what, "roundings or random numbers change the shape of the original's, or make it infinite")
    if found.broken is not None:
        return replace(incomparable(what, found.broken), is_within=False)
    scale = found.largest or found.absolute or 1.0
    strict = max(reference.allowed, (_SHAKEN * shaken + _tiny(reference.precision)) / scale)
    allowed = strict if found.absolute <= strict * scale else max(strict, _DRAWN * drawn / scale)
    return Difference(
        what=what,
        absolute=found.absolute,
        relative=found.absolute / scale,
        allowed=allowed,
        is_within=found.absolute <= allowed * scale,
        reason=f"other random numbers alone change it by {drawn / scale:.1e}" if allowed > strict else None,
    )


def _tiny(precision: Precision) -> float:
    """What flushing may take from a number: anything below the smallest normal one of fp32."""
    return 0.0 if precision == "same" else 2.0**-126


def distance_of(first: Sequence[Any], second: Sequence[Any], *, is_floating: bool) -> Distance:
    """How far two rows of tensors lie apart; whole numbers count unless only those that ``is_floating`` may be rounded.

    A rounding can turn one index into any other.
    """
    if len(first) != len(second):
        return Distance(broken=f"{len(first)} tensors became {len(second)}")
    pairs = [pair for pair in zip(first, second, strict=True) if not is_floating or _is_floating(pair)]
    found = [_distance(mine, other) for mine, other in pairs]
    broken = next((each.broken for each in found if each.broken is not None), None)
    absolute = max((each.absolute for each in found), default=0.0)
    return Distance(absolute, max((each.largest for each in found), default=0.0), broken)


def _distance(first: Any, second: Any) -> Distance:
    """What is not finite has to be the same at the same place; a gradient that was dropped is one of zeros."""
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
        return Distance(broken=f"{int((~is_same).sum())} values are infinite, or not a number, in one of both only")
    if not first.numel():
        return Distance()
    apart, size = (first - second).abs().where(is_finite, 0.0), first.abs().where(is_finite, 0.0)
    return Distance(float(apart.max()), float(size.max()))


def _widened(tensor: Any, other: Any) -> Any:
    """In a type that holds the values of both: fp32 unless one of them is wider."""
    is_narrow = all(each.is_floating_point() and each.element_size() <= 4 for each in (tensor, other))
    return tensor.float() if is_narrow else tensor.double()


def _is_floating(pair: tuple[Any, Any]) -> bool:
    return all(each is None or each.is_floating_point() for each in pair)


def _nowhere() -> dict[What, float]:
    return dict.fromkeys(KINDS, 0.0)


def _furthest(known: Mapping[What, float], results: Results, again: Results, *, is_floating: bool) -> dict[What, float]:
    """The largest of the differences that are known and of these."""
    furthest = {}
    for what in KINDS:
        found = distance_of(results.of(what), again.of(what), is_floating=is_floating)
        furthest[what] = max(known[what], found.absolute if found.broken is None else math.inf)
    return furthest
