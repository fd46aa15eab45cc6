"""Rules of norms and activations that are written out op by op."""

import math
import re
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, work_of
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import backward_of, issued_by, main_source, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.records import replace
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted

# Of the step; and numbers of a tensor below which one call costs as much as several.
_LEAST, _LEAST_NUMBERS = 0.03, 16_384


class _Layer(Struct, frozen=True):
    """Call that does what several ops do, and its part of their time.

    It is the least and the most of it. On a CPU as timed forward and with the backward pass, on 98,304 to 4,194,304
    numbers (torch 2.13, one and two threads of a Xeon); rms_norm is a row of ops there itself. On a device by the
    passes over memory.
    """

    call: str
    code: str
    on_host: tuple[float, float] | None
    on_device: tuple[float, float] = (0.1, 0.4)


_LAYER_NORM = _Layer("F.layer_norm", "y = F.layer_norm(x, (x.shape[-1],), weight, bias, eps)", (0.1, 0.3))
_RMS_NORM = _Layer("F.rms_norm", "y = F.rms_norm(x, (x.shape[-1],), weight, eps)", None)
_TANH_GELU = _Layer('F.gelu(x, approximate="tanh")', 'y = F.gelu(x, approximate="tanh")', (0.3, 0.8))
_GELU = _Layer("F.gelu", "y = F.gelu(x)", (0.15, 0.4))


class _Written(Struct, frozen=True):
    """Ops of a layer, its tensor's size, and what does the same."""

    rows: tuple[int, ...]
    size: Size
    layer: _Layer


class _Ops(Struct, frozen=True):
    """Outermost forward ops of the window, in order."""

    rows: tuple[int, ...]
    names: tuple[str, ...]
    calls: tuple[int, ...]
    work: KernelWork

    def sizes(self, at: int) -> tuple[Size, ...]:
        """Returns the sizes of an op's tensors; a number has none."""
        return tuple(tuple(size) for size in self.work.sizes_of(self.calls[at]) if size)

    def number(self, at: int) -> str:
        """Returns the second of an op's arguments as text, where it is a number."""
        return next(iter(str(value) for value in self.work.text_column("concrete", self.calls[at])[1:2]), "")


def _ops(evidence: Evidence) -> _Ops:
    ops, top = evidence.linked.ops, top_rows(evidence)
    top = top[~ops["is_autograd"].to_numpy()[top]]
    order = np.lexsort((ops["ts_us"].to_numpy()[top], ops["thread"].cat.codes.to_numpy()[top]))
    rows = top[order]
    names = tuple(str(name).removeprefix("aten::") for name in ops["name"].iloc[rows])
    return _Ops(tuple(rows.tolist()), names, tuple(as_integers(ops["signature"])[rows].tolist()), work_of(evidence))


_ROOTS = re.compile(r"^aten::r?sqrt_?$")
_STATISTICS = frozenset({"mean", "var", "std", "var_mean"})
_BEFORE_ROOT = _STATISTICS | {"sub", "pow", "square", "mul", "add", "add_", "to", "_to_copy"}
_AFTER_ROOT = frozenset({"mul", "mul_", "div", "div_", "add", "add_", "sub", "to", "_to_copy", "type_as"})
# Steps of a norm: before its root from the mean on, and after it to the bias.
_MOST_BEFORE, _MOST_AFTER, _LEAST_OF_NORM = 9, 6, 5


def _norms(ops: _Ops) -> Iterator[_Written]:
    """Yields norms.

    They are a mean of squares along the last dimension, its root, and a product or quotient with it.
    """
    for at in (place for place, name in enumerate(ops.names) if _ROOTS.match(f"aten::{name}")):
        column = next(iter(ops.sizes(at)), ())
        if not column or column[-1] != 1:
            continue
        first, last, size = at, at, None
        while first > max(at - _MOST_BEFORE, 0) and ops.names[first - 1] in _BEFORE_ROOT:
            first -= 1
            wide = next((one for one in ops.sizes(first) if one[:-1] == column[:-1] and one[-1] > 1), None)
            size = wide or size
        if size is None:
            continue
        fits = {size, column, size[-1:]}
        while last + 1 < len(ops.names) and last < at + _MOST_AFTER and ops.names[last + 1] in _AFTER_ROOT:
            taken = ops.sizes(last + 1)
            if not set(taken) <= fits or taken.count(size) > 1:
                break
            last += 1
        while first < at and not (
            ops.names[first] in _STATISTICS | {"pow", "square"} and set(ops.sizes(first)) <= fits
        ):
            first += 1
        names = ops.names[first : last + 1]
        if last > at and len(names) >= _LEAST_OF_NORM and _STATISTICS & set(names):
            is_centred = "sub" in names or bool({"var", "var_mean", "std"} & set(names))
            yield _Written(ops.rows[first : last + 1], size, _LAYER_NORM if is_centred else _RMS_NORM)


_BENDS = re.compile(r"^(?:tanh|erf)_?$")
_OF_ACTIVATION = frozenset({"mul", "mul_", "add", "add_", "div", "pow"})
_MOST_OF_ACTIVATION, _LEAST_OF_ACTIVATION = 6, 4


def _activations(ops: _Ops) -> Iterator[_Written]:
    """Yields GELU.

    It is tanh of a cubic polynomial, or erf of a multiple, plus one and times the input.
    """
    for at in (place for place, name in enumerate(ops.names) if _BENDS.match(name)):
        size = next(iter(ops.sizes(at)), ())
        first, last = at, at
        while first > max(at - _MOST_OF_ACTIVATION, 0) and _is_step(ops, first - 1, size):
            first -= 1
        while first < at and ops.names[first] in {"add", "add_"}:  # a sum of before, such as a residual's
            first += 1
        while last + 1 < min(at + 4, len(ops.names)) and _is_step(ops, last + 1, size):
            last += 1
        before, after = ops.names[first:at], ops.names[at + 1 : last + 1]
        is_cubic = any(ops.names[place] == "pow" and ops.number(place).startswith("3") for place in range(first, at))
        is_bent = is_cubic if ops.names[at].startswith("tanh") else bool({"mul", "div"} & set(before))
        is_shifted = after[:1] in (("add",), ("add_",)) and bool({"mul", "mul_"} & set(after))
        if is_bent and is_shifted and last - first + 1 >= _LEAST_OF_ACTIVATION:
            yield _Written(ops.rows[first : last + 1], size, _TANH_GELU if is_cubic else _GELU)


def _is_step(ops: _Ops, at: int, size: Size) -> bool:
    return ops.names[at] in _OF_ACTIVATION and bool(ops.sizes(at)) and set(ops.sizes(at)) == {size}


def _draft(evidence: Evidence, layers: Iterable[_Written]) -> Draft | None:
    """The draft for layers of the most frequent kind.

    Null where they take too little.
    """
    on_host = evidence.is_host_only
    several = [one for one in layers if math.prod(one.size) >= _LEAST_NUMBERS and (one.layer.on_host or not on_host)]
    if not several:
        return None
    layer = max((one.layer for one in several), key=lambda kind: sum(one.layer is kind for one in several))
    alike = [one for one in several if one.layer is layer]
    rows = [row for one in alike for row in one.rows]
    removal, work = removal_of(evidence, [*rows, *backward_of(evidence, rows)], certain=1.0), work_of(evidence)
    least, most = (on_host and layer.on_host) or layer.on_device
    gain_us = Interval((1 - most) * removal.gain.low, (1 - least) * removal.gain.high)
    if evidence.share_of_step(gain_us.high) < _LEAST:
        return None
    line, ops = main_source(evidence, rows), counted(format_count(len(rows) / len(alike)), "op")
    return Draft(
        slug="written-norm",
        title="A norm is written out op by op",
        evidence=(
            f"{counted(format_count(len(alike) / evidence.steps), 'time')} per step {ops} in a row, on tensors such as "
            f"{'x'.join(map(str, alike[0].size))}: {format_per_step(evidence, removal.us)} with their backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Call {layer.call} {at_source(line)}: it reads and writes the tensor once, where each of these ops "
        "does, and keeps less for the backward pass.",
        brief=f"Call {layer.call} {at_source(line)} in place of {ops} in a row",
        places=(line,),
        code=layer.code,
        gain_us=gain_us,
        claims={name: (1 - least) * us for name, us in removal.claims.items()},
        removes=True,
    )


def written_norm(evidence: Evidence) -> Draft | None:
    """Finds norms along the last dimension that are written out.

    Gain: the time of their ops with their backward pass, less the part of it that one call takes.
    """
    return _draft(evidence, _norms(_ops(evidence)))


def written_activation(evidence: Evidence) -> Draft | None:
    """Finds GELU written out, by tanh or by erf.

    Gain as for ``written_norm``.
    """
    draft = _draft(evidence, _activations(_ops(evidence)))
    return draft and replace(draft, slug="written-activation", title="GELU is written out op by op")


RULES = (written_norm, written_activation)
