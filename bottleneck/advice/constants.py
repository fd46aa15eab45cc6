"""Rule of tensors that are computed anew in every step though constant.

They depend on neither data nor weights.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, broadcast, work_of
from bottleneck.advice.quantities import format_count, format_per_step, outermost_spans
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    issued_by,
    main_source,
    removal_of,
    sequence_numbers,
    top_rows,
    with_python,
)
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.intervals import Flags, Integers
from bottleneck.schema.loading import NOT_THE_PROGRAMS
from bottleneck.schema.op_names import IN_PLACE, at_source, is_backward, is_line, place_of
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted

# Ops that make a tensor from numbers alone, and where its sizes stand among their arguments.
_FILLED, _COUNTED = frozenset({"aten::zeros", "aten::ones", "aten::full"}), frozenset({"aten::arange", "aten::eye"})
_SPACED = frozenset({"aten::linspace", "aten::logspace"})
_OPTIONS = 4  # dtype, layout, device and pinning follow
_RANDOM = re.compile(r"rand|normal|uniform|bernoulli|multinomial|dropout|exponential")
_NUMBERS = re.compile(r"-?\d{1,18}(?:\.\d{0,18})?")
# Views, and ops whose result has the sizes of their operands; results of others are not followed.
_VIEWS = frozenset(f"aten::{name}" for name in ("unsqueeze", "slice", "t", "transpose", "expand", "view", "reshape"))
_COPYING = frozenset({"aten::to", "aten::copy_", "aten::clone", "aten::contiguous", "aten::fill_", "aten::lift_fresh"})
_SAME_SIZES = frozenset({"aten::tril", "aten::triu", "aten::cumsum", "aten::masked_fill", *_COPYING})
_MOST_ROUNDS = 5
_MOST_LINES = 4


class _OuterOp(Struct, frozen=True):
    """An outermost op as the search for constants reads it.

    ``makes_node`` is true where autograd recorded it.
    """

    row: int
    name: str
    signature: int
    makes_node: bool


@remembered
def _constant_rows(evidence: Evidence) -> tuple[int, ...]:
    """Finds outermost ops that compute from numbers of the program alone.

    Their operands descend from such numbers, and they are alike in each step. A trace has no names of tensors: they are
    told apart by their sizes, within the ops of one module and file in one step. Sizes that data has as well are not
    followed.
    """
    ops = evidence.linked.ops
    rows = _program_rows(evidence)
    files = {text: place.file for text in ops["source"].cat.categories if (place := place_of(str(text))) is not None}
    keys = ["thread", "module", "file", "step"]
    table = ops.iloc[rows][["thread", "module", "step", "name", "signature", "source"]].astype({"name": object})
    table = table.assign(file=table["source"].astype(object).map(files), row=rows, node=_makes_node(evidence, rows))
    scopes: dict[tuple[object, ...], list[list[_OuterOp]]] = {}
    for key, group in table.groupby(keys, observed=True, dropna=False, sort=False):
        calls = zip(group["row"], group["name"], as_integers(group["signature"]), group["node"], strict=True)
        scope = tuple(str(part) for part in key[:-1])
        scopes.setdefault(scope, []).append([_OuterOp(int(r), str(n), int(s), bool(m)) for r, n, s, m in calls])
    work, constant_rows = work_of(evidence), []
    for steps in scopes.values():
        chains = [_constants_in(evidence, work, calls) for calls in steps]
        kinds = {tuple(call.signature for call in chain) for chain in chains}
        if len(chains) == evidence.steps and len(kinds) == 1:
            constant_rows += [call.row for chain in chains for call in chain]
    return tuple(constant_rows)


def _program_rows(evidence: Evidence) -> Integers:
    """Gives the outermost ops of the program that have recorded sizes.

    Those of a loader, an optimizer or a backward pass are left out.
    """
    ops, rows = evidence.linked.ops, top_rows(evidence)
    rows = rows[ops["signature"].notna().to_numpy()[rows] & ops["source"].notna().to_numpy()[rows]]
    rows = rows[~text_matches(ops["source"], is_backward)[rows]]
    return rows[~outermost_spans(evidence, NOT_THE_PROGRAMS).hold(ops["ts_us"].to_numpy()[rows])]


def _makes_node(evidence: Evidence, rows: Integers) -> Flags:
    """Masks the ops in which autograd records a node.

    The next op of the thread then has a higher sequence number.
    """
    number, thread = sequence_numbers(evidence)[rows], evidence.linked.ops["thread"].cat.codes.to_numpy()[rows]
    makes = np.zeros(rows.size, dtype=bool)
    numbered = np.flatnonzero(number >= 0)
    rises = (np.diff(number[numbered]) > 0) & (np.diff(thread[numbered]) == 0)
    makes[numbered[:-1]] = rises
    return makes


def _constants_in(evidence: Evidence, work: KernelWork, calls: Sequence[_OuterOp]) -> list[_OuterOp]:
    """Gives the calls that compute constants, without the views at the end.

    They are found anew until no more sizes are data's.
    """
    of_data: set[Size] = set()
    for _ in range(_MOST_ROUNDS):
        chain, more = _follow(evidence, work, calls, of_data)
        if more <= of_data:
            break
        of_data |= more
    else:
        return []
    while chain and chain[-1].name in _VIEWS:
        chain.pop()
    read = {size for call in chain for size in work.tensors_of(call.signature)}
    # What only data reads may be a state, which is written to.
    return [call for call in chain if (made := _made_size(work, call)) is None or made in read]


def _follow(
    evidence: Evidence, work: KernelWork, calls: Sequence[_OuterOp], of_data: set[Size]
) -> tuple[list[_OuterOp], set[Size]]:
    """The calls on constants in their order, and the sizes that data has."""
    constants, chain, data = Counter[Size](), list[_OuterOp](), set[Size]()
    for call in calls:
        made = _made_size(work, call)
        sizes = work.tensors_of(call.signature)
        if made is not None:
            if made not in of_data:
                constants[made] += 1
                chain.append(call)
        elif _RANDOM.search(call.name):
            data |= set(sizes) | {_integers(text) for text in work.text_column("concrete", call.signature)}
        elif sizes and not call.makes_node and _are_constant(sizes, constants, of_data):
            chain.append(call)
            result = _result_size(evidence, work, call, sizes)
            if result is not None and not IN_PLACE.search(call.name) and result not in sizes[:1] * _is_view(call):
                constants[result] += 1
        else:
            data |= {size for size in sizes if not constants[size]} | {broadcast(sizes)}
            data |= set(sizes[:1]) if IN_PLACE.search(call.name) or call.makes_node else set()
    return chain, data


def _is_view(call: _OuterOp) -> bool:
    return call.name in _VIEWS


def _are_constant(sizes: Sequence[Size], constants: Counter[Size], of_data: set[Size]) -> bool:
    """True if as many constants have these sizes and data has none."""
    return all(count <= constants[size] and size not in of_data for size, count in Counter(sizes).items())


def _made_size(work: KernelWork, call: _OuterOp) -> Size | None:
    """Gives the sizes of a tensor made from numbers alone.

    Null for other calls.
    """
    concrete = [str(argument) for argument in work.text_column("concrete", call.signature)]
    numbers = [float(match[0]) if (match := _NUMBERS.match(argument)) else math.nan for argument in concrete]
    if call.name in _FILLED and concrete:
        return _integers(concrete[0]) or None
    given = numbers[: max(len(numbers) - _OPTIONS, 0)]
    if call.name in _SPACED:
        given = given[2:3]
    elif call.name == "aten::arange" and len(given) >= 2:
        start, end, step = (*given, 1.0)[:3]
        given = [math.ceil((end - start) / step)] if step and not math.isnan(end - start) else []
    elif call.name == "aten::eye":
        given = [given[0], given[-1]] if given else []
    if call.name not in _COUNTED | _SPACED or not given or any(math.isnan(argument) for argument in given):
        return None
    return tuple(int(argument) for argument in given)


def _integers(text: object) -> Size:
    """Gives the numbers of '[5000, 128]'.

    () for other texts.
    """
    words = str(text)
    return tuple(int(digits) for digits in re.findall(r"-?\d{1,15}", words)) if words.startswith("[") else ()


def _result_size(evidence: Evidence, work: KernelWork, call: _OuterOp, sizes: Sequence[Size]) -> Size | None:
    """Gives the sizes of the result of a call on constants.

    Null where they do not follow from its record.
    """
    if call.name in _VIEWS:
        return _view_size(work, call, sizes[0])
    if call.name == "aten::outer":
        return (*sizes[0], *sizes[-1])
    family = evidence.costs["family"].iloc[call.signature]
    return broadcast(sizes) if call.name in _SAME_SIZES or family == "pointwise" else None


def _view_size(work: KernelWork, call: _OuterOp, size: Size) -> Size | None:
    """Gives the sizes of a view of a tensor.

    Null where the call does not state them.
    """
    concrete = [str(argument) for argument in work.text_column("concrete", call.signature)][1:]
    if call.name == "aten::t":
        return size[::-1]
    if call.name in {"aten::view", "aten::reshape", "aten::expand"}:
        asked = _integers(concrete[0] if concrete else "")
        return asked if asked and min(asked) >= 0 else None
    numbers = [int(match[0]) if (match := _WHOLE_NUMBER.match(argument)) else 0 for argument in concrete]
    rank = len(size)
    if not numbers or not -rank - 1 <= numbers[0] <= rank:
        return None
    at = numbers[0] if numbers[0] >= 0 else numbers[0] + rank + (call.name == "aten::unsqueeze")
    if call.name == "aten::unsqueeze":
        return (*size[:at], 1, *size[at:])
    return _along(call.name, size, at, numbers[1:]) if 0 <= at < rank else None


def _along(name: str, size: Size, at: int, numbers: Sequence[int]) -> Size | None:
    """Gives the sizes of a tensor transposed or cut along a dimension.

    Null where the numbers of the call do not fit.
    """
    made = list(size)
    if name == "aten::transpose" and numbers and -len(size) <= numbers[0] < len(size):
        made[at], made[numbers[0]] = made[numbers[0]], made[at]
        return tuple(made)
    if name == "aten::slice" and len(numbers) >= 3 and numbers[2] > 0:
        made[at] = len(range(size[at])[numbers[0] : numbers[1] : numbers[2]])
        return tuple(made)
    return None


_WHOLE_NUMBER = re.compile(r"^-?\d{1,19}$")


def constant_in_step(evidence: Evidence) -> Draft | None:
    """Finds a tensor that is computed anew in each step though constant.

    It depends on neither data nor weights: positions, masks, grids. Gain: the time of the ops that make it and of
    Python at their lines, from 90 % of it. Ops that only fill a tensor do not count.
    """
    ops, rows = evidence.linked.ops, _constant_rows(evidence)
    names: list[str] = ops["name"].astype(object).to_numpy()[list(rows)].tolist() if rows else []
    if all(name in _FILLED | _COUNTED | _SPACED | _VIEWS | _COPYING for name in names):
        return None
    removal, work = with_python(evidence, removal_of(evidence, rows), rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < LEAST_SHARE:
        return None
    us = ops.iloc[list(rows)].groupby("source", observed=True)["dur_us"].sum().sort_values(ascending=False)
    lines = [str(source) for source in us.index if is_line(str(source))]
    line = main_source(evidence, rows)
    count = format_count(len(rows) / evidence.steps)
    return Draft(
        slug="constant-in-step",
        title="A constant is computed anew in every step",
        evidence=(
            f"{counted(count, 'op')} per step, with the same sizes in each, compute from numbers of the program only, "
            f"not from data or weights: {', '.join(lines[:_MOST_LINES]) or line}",
            f"that takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Compute once what is made {at_source(line)}, and keep it as a buffer of the module.",
        places=(line,),
        code='self.register_buffer("table", make_table(), persistent=False)  # in __init__; self.table in forward',
        gain_us=removal.gain,
        claims=removal.claims,
        removes=True,
    )


RULES = (constant_in_step,)
