"""Holds a step's outputs against its lock-file, within rounding.

The tolerance follows the formats and the number of roundings. With roundings that are independent, the error of a sum
of n numbers is about u sqrt(n) of its size, u being the unit roundoff (Higham and Mary, "A new approach to
probabilistic rounding error analysis", 2019); so is that of n results that follow from one another.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bottleneck.schema.counters import Counts, Lock
from bottleneck.schema.numerics import Numerics, NumericsResult, NumericsVerdict, OutputChange, TensorDigest
from bottleneck.units import counted

# Unit roundoff: half the distance from 1 to the next number.
_ROUNDOFF: Mapping[str, float] = {
    **dict.fromkeys(("float64", "complex128", "fp64"), 2.0**-53),
    **dict.fromkeys(("float32", "complex64", "fp32"), 2.0**-24),
    **dict.fromkeys(("float16", "fp16", "tf32"), 2.0**-11),
    **dict.fromkeys(("bfloat16", "bf16"), 2.0**-8),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz"), 2.0**-4),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz", "fp8"), 2.0**-3),
}
_LEAST_PRECISE_FIRST = ("fp8", "bf16", "fp16", "tf32", "fp32", "fp64")
# Sums are kept in float32 at least, whatever the format of what is added.
_SUMS = 2.0**-24
# Two runs each have an error of their own, and few errors are larger than twice the usual one.
_SAFETY = 4.0
# A library adds up as many parts of a sum side by side as a vector register has lanes.
_PARTS = 16
# The longest sum of a step is at least this long where the shapes of its outputs show none that is longer.
_LEAST_TERMS = 1024
_SUMMING = re.compile(
    r"^aten::(_?(fused_)?(addmm|baddbmm|bmm|mm|mv|dot|sum|mean|var|std|norm|linalg_vector_norm|cumsum|logsumexp)"
    r"|.*(convolution|softmax|norm|loss|attention|embedding|pool|lstm|gru).*)(_|_forward|_backward.*)?$"
)


def count_summing(ops: Mapping[str, int]) -> int:
    """Counts the ops of a step that sum over elements."""
    return sum(calls for name, calls in ops.items() if _SUMMING.match(name))


def tolerance_of(digest: TensorDigest, numerics: Numerics) -> float:
    """Bounds what rounding may explain, as a part of the norm.

    0 for whole numbers.
    """
    own = _ROUNDOFF.get(digest.dtype)
    if own is None:
        return 0.0
    chain = max(1, numerics.reductions) * max(1, numerics.steps)
    terms = max([_LEAST_TERMS, *(size for tensor in numerics.tensors.values() for size in tensor.shape)])
    rounding = max(own, _ROUNDOFF.get(numerics.precision, 0.0)) * math.sqrt(chain)
    summing = min(own, _SUMS) * math.sqrt(chain * terms / _PARTS)
    return _SAFETY * (rounding + summing)


def merge_numerics(runs: Sequence[Numerics | None]) -> Numerics | None:
    """Merges digests of runs; what differs is ``unstable``."""
    recorded = [run for run in runs if run is not None]
    if not recorded or len(recorded) < len(runs):
        return None
    first = recorded[0]
    unstable = {name: text for run in recorded for name, text in run.unstable.items()}
    for other in recorded[1:]:
        for change in _changes(first, other):
            unstable.setdefault(change.name, _why_unstable(change))
    stable = {name: digest for name, digest in first.tensors.items() if name not in unstable}
    return replace(first, tensors=stable, unstable=unstable)


def _why_unstable(change: OutputChange) -> str:
    return f"runs differ: {change.what}"


def judge_numerics(lock: Lock | None, counts: Counts, gap: str = "") -> NumericsResult:
    """Judges the outputs against those of the lock-file.

    ``gap`` is why nothing of this run can be compared with it.
    """
    ours = counts.numerics
    if ours is None or ours.reason:
        return NumericsResult(
            "not compared", reason=ours.reason if ours else "the outputs of this program are not known"
        )
    theirs = None if lock is None else lock.counts.numerics
    if theirs is None:
        return NumericsResult("new", reason="the lock-file holds no outputs: bottleneck gate --update --numerics")
    if gap or ours.steps != theirs.steps:
        why = gap or f"the lock-file holds outputs after {counted(theirs.steps, 'step')}, these are after {ours.steps}"
        return NumericsResult("not compared", unstable=theirs.unstable, reason=why)
    return compare_numerics(theirs, ours)


def compare_numerics(before: Numerics, after: Numerics) -> NumericsResult:
    """Compares the outputs of two runs, and their gradients where both have some."""
    pairs = _paired(before, after)
    rows = [row for name, old, new in pairs if (row := _compared(name, old, new, before, after)) is not None]
    changes = tuple(row for row in rows if not row.is_rounding)
    unstable = {**before.unstable, **after.unstable}
    if not changes and not pairs:
        return NumericsResult("not compared", unstable=unstable, reason="every output differs from run to run")
    sized = [row for row in rows if row.difference is not None and row.tolerance]
    closest = max(sized, key=lambda row: (row.difference or 0.0) / (row.tolerance or 1.0), default=None)
    gradients = sum(name.startswith(_GRADIENT) for name, _, _ in pairs)
    verdict: NumericsVerdict = "differs" if changes else "same"
    bounds: dict[str, float] = {}
    for _, old, new in pairs:
        for digest, side in ((old, before), (new, after)):
            if digest is not None:
                bounds[digest.dtype] = max(bounds.get(digest.dtype, 0.0), tolerance_of(digest, side))
    return NumericsResult(verdict, len(pairs), changes, unstable, gradients=gradients, bounds=bounds, closest=closest)


_GRADIENT = "gradient of "

_Pair = tuple[str, TensorDigest | None, TensorDigest | None]


def _paired(before: Numerics, after: Numerics) -> list[_Pair]:
    """Pairs the outputs of both runs, in the order of their making.

    Null where a side lacks one.

    Parameters that have other names on the two sides and the same shapes in the same order are renamed ones.
    """
    left_out = {*before.unstable, *after.unstable}
    names = [name for name in dict.fromkeys((*before.tensors, *after.tensors)) if name not in left_out]
    gone = [name for name in names if name not in after.tensors]
    new = [name for name in names if name not in before.tensors]
    are_renamed = [before.tensors[name].shape for name in gone] == [after.tensors[name].shape for name in new]
    renamed = dict(zip(gone, new, strict=True)) if are_renamed else {}
    pairs: list[_Pair] = [
        (name, before.tensors.get(name), after.tensors.get(renamed.get(name, name)))
        for name in names
        if name not in renamed.values()
    ]
    gradients = [
        (f"{_GRADIENT}{name}", before.gradients[name], after.gradients.get(renamed.get(name, name)))
        for name in before.gradients
        if renamed.get(name, name) in after.gradients
    ]
    return [*pairs, *(pair for pair in gradients if pair[0] not in left_out)]


def _compared(
    name: str, old: TensorDigest | None, new: TensorDigest | None, before: Numerics, after: Numerics
) -> OutputChange | None:
    """Finds the difference of an output, also where rounding may explain it.

    Null where there is none.
    """
    if old is None or new is None:
        return OutputChange(name, "it is new" if old is None else "it is not there any more")
    return _change(name, old, new, max(tolerance_of(old, before), tolerance_of(new, after)))


def _changes(before: Numerics, after: Numerics) -> Iterator[OutputChange]:
    """The outputs that differ by more than rounding, in the order of their making."""
    for name, old, new in _paired(before, after):
        change = _compared(name, old, new, before, after)
        if change is not None and not change.is_rounding:
            yield change


def _change(name: str, old: TensorDigest, new: TensorDigest, tolerance: float) -> OutputChange | None:
    """The difference of an output that is largest for its tolerance."""
    for what, one, other in (
        ("dtype", old.dtype, new.dtype),
        ("shape", list(old.shape), list(new.shape)),
        ("NaN", old.nan, new.nan),
        ("infinite elements", old.inf, new.inf),
    ):
        if one != other:
            return OutputChange(name, f"{what} {one} to {other}")
    worst = max(_differences(old, new, tolerance), key=lambda row: row[1] / row[2] if row[2] else row[1])
    what, difference, allowed = worst
    return OutputChange(name, what, difference, allowed) if difference else None


def _differences(old: TensorDigest, new: TensorDigest, tolerance: float) -> Iterable[tuple[str, float, float]]:
    """Compares each quantity: words, difference, and what rounding may explain.

    Both are parts of the norm.
    """
    norm = max(old.norm, new.norm)
    count = max(1, math.prod(old.shape))
    rows = [
        ("norm", old.norm, new.norm, norm, tolerance),
        ("mean", old.mean * math.sqrt(count), new.mean * math.sqrt(count), norm, tolerance),
        ("projection", old.projection, new.projection, norm, tolerance),
    ]
    if None not in (old.moved, new.moved, old.moved_projection, new.moved_projection):
        moved = max(old.moved or 0.0, new.moved or 0.0)
        # Each parameter is rounded when it is changed, however small the change.
        allowed = tolerance + (_SAFETY * _ROUNDOFF.get(old.dtype, 0.0) * norm / moved if moved else 0.0)
        rows += [
            ("change by the steps", old.moved or 0.0, new.moved or 0.0, moved, allowed),
            ("direction of that change", old.moved_projection or 0.0, new.moved_projection or 0.0, moved, allowed),
        ]
    for what, one, other, scale, allowed in rows:
        shown = (one / math.sqrt(count), other / math.sqrt(count)) if what == "mean" else (one, other)
        yield f"{what} {shown[0]:.6g} to {shown[1]:.6g}", abs(other - one) / scale if scale else 0.0, allowed


def with_precision(numerics: Numerics, dtypes: Iterable[str | None], ops: Mapping[str, int]) -> Numerics:
    """Adds what tolerances follow from: formats and number of sums."""
    all_formats = set(dtypes)
    least = next((dtype for dtype in _LEAST_PRECISE_FIRST if dtype in all_formats), "")
    return replace(numerics, precision=least, reductions=count_summing(ops))
