"""Rules on what tensors hold.

Subnormal numbers, NaN in parameters, gradients that nobody resets.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

from bottleneck.advice.kernel_work import size_words
from bottleneck.advice.quantities import format_count, format_per_step, ops_in_window, optimizer_names
from bottleneck.advice.ranking import Draft, SourcedLine
from bottleneck.advice.removal import top_rows
from bottleneck.advice.untrained_parameters import ACCUMULATES, ADDS
from bottleneck.schema.analysis import Interval, KernelSummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import OddTensor, ValuePlace
from bottleneck.schema.op_names import at_known, at_source
from bottleneck.schema.tables import text_matches
from bottleneck.units import format_share, format_us

# Ops that take this many times their largest floor for no reason that we know.
_FAR = 0.1
_LEAST_FAR = 0.1
# Part of the numbers of a tensor from which ops on it meet some in most of their vectors.
_LEAST_SHARE = 1e-4
# What ops reach of their floors: slow ones less than the first, ordinary ones that to the second. Of eight planted
# programs the products of ordinary numbers reached 0.3 to 0.8.
_SLOW, _USUAL = 0.2, 0.6
# Those on other tensors have to reach so many times what those on subnormal ones reach.
_APART = 2.0
_SURE, _LEAST_GAIN, _FIRST = 0.7, 0.03, 0.1
_NAMED = 3
# Where such numbers are best kept out: what the program keeps before what it computes anew.
_ORIGINS: tuple[ValuePlace, ...] = ("buffer", "parameter", "variable", "state", "input", "output", "gradient")


def subnormal_numbers(evidence: Evidence) -> Draft | None:
    """Finds tensors with subnormal numbers, by a look at their values.

    Ops on tensors of such sizes are far too slow. Gain: at least 70 % of what these ops take beyond five times their
    largest floor; at most what all arithmetic takes beyond its floor at 60 %. Where nobody looked, ten times the floor
    for no known reason is a remark without a gain.
    """
    if not evidence.is_host_only:
        return None
    look = None if evidence.recording is None else evidence.recording.values
    if look is None:
        return _maybe_subnormal(evidence)
    odd = [one for one in look.odd if one.subnormal_share >= _LEAST_SHARE]
    if look.flushes or not odd:
        return None
    rows = dict(_arithmetic(evidence))
    slow = {at: row for at, row in rows.items() if (row.explained or 0.0) < _SLOW and _is_on(row, odd)}
    low_us = _SURE * math.fsum(row.us * (1 - (row.explained or 0.0) / _SLOW) for row in slow.values())
    if not slow or evidence.share_of_step(low_us) < _LEAST_GAIN or not _stand_apart(rows, slow, odd):
        return None
    beyond = {at: row.us * (1 - (row.explained or 0.0) / _USUAL) for at, row in rows.items()}
    claims = {f"kernel:{at}": us for at, us in beyond.items() if us > 0}
    tensor = min(odd, key=lambda one: (one.source is None, _ORIGINS.index(one.place), -one.subnormal_share))
    return Draft(
        slug="subnormal-numbers",
        title="Subnormal numbers make the processor compute in its slow way",
        evidence=(*_held(odd), *_reached(evidence, rows, slow)),
        advice=f"Flush subnormal (denormal) numbers to zero, or cut them to zero where {tensor.name} is made"
        f"{at_known(tensor.source)}.",
        places=(tensor.source,),
        code="torch.set_flush_denormal(True)  # at the start; or: x = x.masked_fill(x.abs() < 1e-30, 0)",
        gain_us=Interval(low_us, max(math.fsum(claims.values()), low_us)),
        claims=claims,
        tries=("flush-denormal",),
        comes_first=evidence.share_of_step(low_us) >= _FIRST and not evidence.is_broken,
    )


def _arithmetic(evidence: Evidence) -> Iterator[tuple[int, KernelSummary]]:
    """Returns the rows that compute with floating-point numbers for long.

    They are of the analysis, and longer than their launch needs.
    """
    for at, row in enumerate(evidence.analysis.kernels):
        is_long = row.us > 2 * (row.launch_us or 0.0)
        if row.dtype in {"fp32", "fp64", "bf16"} and row.flops and row.explained is not None and is_long:
            yield at, row


def _is_on(row: KernelSummary, odd: Sequence[OddTensor]) -> bool:
    """True for an op with an operand of the sizes of such a tensor.

    Perhaps transposed or in a batch.
    """
    sizes = list(_sizes_in(_read(row.shapes)))
    wanted = {tuple(sorted(one.sizes[-2:])) for one in odd if len(one.sizes) > 1}
    counts = {math.prod(one.sizes) for one in odd}
    return any(math.prod(size) in counts or (len(size) > 1 and tuple(sorted(size[-2:])) in wanted) for size in sizes)


def _read(text: str | None) -> object:
    try:
        return json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None


def _sizes_in(value: object, depth: int = 0) -> Iterator[list[int]]:
    """The sizes of the tensors of a call, also of those in lists."""
    if not isinstance(value, list) or depth > 3:
        return
    if value and all(isinstance(entry, int) for entry in value):
        yield value
    for entry in value:
        yield from _sizes_in(entry, depth + 1)


def _stand_apart(rows: dict[int, KernelSummary], slow: dict[int, KernelSummary], odd: Sequence[OddTensor]) -> bool:
    """True unless ops on other tensors are as slow.

    Then something else slows them all.
    """
    others = [row for row in rows.values() if not _is_on(row, odd)]
    return not others or _reach(others) >= _APART * _reach(list(slow.values()))


def _reach(rows: Sequence[KernelSummary]) -> float:
    """The part of their time that the floors of these rows are."""
    us = math.fsum(row.us for row in rows)
    return math.fsum(row.us * (row.explained or 0.0) for row in rows) / us if us > 0 else 0.0


def _held(odd: Sequence[OddTensor]) -> tuple[str, ...]:
    """Words the tensors and their share of such numbers.

    One with several names goes by the first.
    """
    seen: set[tuple[float, tuple[int, ...]]] = set()
    lines = []
    for one in odd:
        if (one.subnormal_share, one.sizes) not in seen:
            seen.add((one.subnormal_share, one.sizes))
            sizes = size_words(one.sizes)
            lines.append(
                f"{one.place} {one.name}{at_known(one.source)}: {format_share(one.subnormal_share)} of its numbers "
                f"({sizes}) are subnormal, nearer to zero than any normal number"
            )
    return tuple(lines[:_NAMED])


def _reached(evidence: Evidence, rows: dict[int, KernelSummary], slow: dict[int, KernelSummary]) -> tuple[str, ...]:
    others = [row for at, row in rows.items() if at not in slow]
    rest = f", others {format_share(_reach(others))}" if others else ""
    us = math.fsum(row.us for row in slow.values())
    return (
        f"ops on tensors of such sizes take {format_per_step(evidence, us)}; their floors are "
        f"{format_share(_reach(list(slow.values())))} of that{rest}",
        *(
            SourcedLine(f"{row.name} {at_source(row.source)}: {format_us(row.us)}", row.source)
            for row in list(slow.values())[:_NAMED]
        ),
    )


def _maybe_subnormal(evidence: Evidence) -> Draft | None:
    """Finds CPU ops that take ten times what they need for no known reason.

    Numbers near zero make them so. A trace does not hold values, so no gain is predicted: a trial with flushing
    switched on shows it. Silent where the trace is broken: other programs that take the processors make ops as slow.
    """
    slow = [row for row in evidence.analysis.kernels if row.reason_code == "unexplained" and row.explained is not None]
    rows = [row for row in slow if row.dtype in {"fp32", "fp64"} and row.flops and (row.explained or 0.0) < _FAR]
    spent_us = sum(row.us for row in rows)
    if evidence.is_broken or evidence.share_of_step(spent_us) < _LEAST_FAR:
        return None
    return Draft(
        slug="subnormal-numbers",
        title="Arithmetic is far slower than its floors, as it is with numbers near zero",
        evidence=tuple(
            SourcedLine(
                f"{row.name} {at_source(row.source)}: {format_us(row.us)}, "
                f"{format_share(row.explained or 0.0)} of it explained",
                row.source,
            )
            for row in rows[:_NAMED]
        ),
        advice="Flush subnormal numbers to zero and see whether the step gets faster.",
        code="torch.set_flush_denormal(True)",
        gain_reason="a trace does not hold the values",
        tries=("flush-denormal",),
    )


def nan_parameters(evidence: Evidence) -> Draft | None:
    """Finds NaN in parameters, by a look at the values.

    All that the program computes from them is NaN too.
    """
    look = None if evidence.recording is None else evidence.recording.values
    odd = [one for one in look.odd if one.place == "parameter" and one.nan_share > 0] if look is not None else []
    if not odd:
        return None
    return Draft(
        slug="nan-parameters",
        title="Parameters hold NaN: the program computes nothing of use",
        evidence=tuple(
            f"parameter {one.name}: {format_share(one.nan_share)} of its numbers are NaN" for one in odd[:_NAMED]
        ),
        advice="Find the step in which the loss becomes NaN before making anything faster.",
        code="with torch.autograd.set_detect_anomaly(True):  # for that search only\n    loss.backward()",
        gain_reason="it is about results, not about time",
        corrects_results=True,
    )


# Gradients per step: fewer may be anything.
_LEAST_SUMS = 2
_RESETS = re.compile(r"zero_grad")
_CHANGES = re.compile(r"^aten::(?:_foreach_)?(?:zero|fill|mul|div|copy)_+$")


def gradients_add_up(evidence: Evidence) -> Draft | None:
    """Finds gradients that add up from step to step.

    Nothing sets them to zero or changes them. Certain where every accumulation of every step adds to what is there:
    after `zero_grad` the first one does not.
    """
    ops, events = evidence.linked.ops, evidence.linked.trace.events
    if (
        evidence.is_incomplete
        or not optimizer_names(evidence)
        or events["name"].cat.categories.str.contains(_RESETS).any()
    ):
        return None
    sums = np.flatnonzero(text_matches(ops["name"], lambda name: name == ACCUMULATES) & ops_in_window(evidence))
    parents = ops["parent"].to_numpy()[text_matches(ops["name"], ADDS.__contains__)]
    changed = [name for name in ops["name"].iloc[top_rows(evidence)].unique() if _CHANGES.search(str(name))]
    if sums.size < _LEAST_SUMS * evidence.steps or changed or not np.isin(sums, parents).all():
        return None
    return Draft(
        slug="gradients-add-up",
        title="Gradients add up from step to step",
        evidence=(
            f"all {format_count(sums.size / evidence.steps)} gradients of a step are added to those of the step "
            "before; nothing sets them to zero in the recorded steps",
        ),
        advice="Set gradients to zero before each backward pass, unless it is meant that they add up.",
        code="optimizer.zero_grad()  # before loss.backward()",
        gain_reason="it is about results: what is learned, not how fast",
        corrects_results=True,
    )


RULES = (nan_parameters, gradients_add_up, subnormal_numbers)
