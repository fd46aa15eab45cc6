"""Rule of writes to few rows that copy a whole large tensor.

Out of place, or into a clone.
"""

import ast
import math
import re
from collections.abc import Sequence

from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, size_words, work_of
from bottleneck.advice.line_patterns import dotted
from bottleneck.advice.quantities import format_count, format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import issued_by, main_source, removal_of, top_rows, with_python
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_source
from bottleneck.schema.source_text import parse_line
from bottleneck.schema.tables import as_integers
from bottleneck.units import counted, format_share

_WRITES = re.compile(
    r"^aten::(?P<name>index_(?:copy|add|fill|put|reduce)|scatter(?:_add|_reduce)?|(?:slice|select)_scatter)(?P<place>_?)$"
)
_CHOOSES = re.compile(r"^aten::(?P<name>masked_fill|where)$")
_WHOLE_NUMBER = re.compile(r"^-?\d{1,9}$")
# Of the tensor: what is written at most; of the step: what the copy takes at least.
_MOST_WRITTEN, _MOST_IN_MASK, _LEAST = 0.25, 0.125, 0.05
# Of the copies so much goes at least; of those by a mask the mask is still gone through.
_SURE, _SURE_OF_MASK = 0.8, 0.4
# Ops after a clone in which it is written to.
_NEXT = 8


class _WholeCopy(Struct, frozen=True):
    """Outermost op that copies a tensor to write a part of it.

    The tensor is of this size, the part is ``written``; with the op's in-place form.
    """

    row: int
    name: str
    size: Size
    written: float
    instead: str
    sure: float = _SURE


class _TopCall(Struct, frozen=True):
    """An outermost op, with the sizes of its tensors and its line's text."""

    row: int
    name: str
    sizes: list[Size]
    concrete: list[str]
    text: str


def whole_tensor_copy(evidence: Evidence) -> Draft | None:
    """Finds a large tensor that is copied as a whole to write few rows.

    By index_copy, scatter, where, or a clone before. Gain: the time of these ops, less the part that is written, from
    80 % of it, with a mask from 40 %; at most with Python at their lines, which hands the old tensor back.
    """
    by_line: dict[str, list[_WholeCopy]] = {}
    for copy in _copies(evidence):
        line = main_source(evidence, [copy.row])
        if line is not None:
            by_line.setdefault(line, []).append(copy)
    if not by_line:
        return None
    us = evidence.linked.ops["dur_us"].to_numpy()
    line, mine = max(by_line.items(), key=lambda item: float(us[[copy.row for copy in item[1]]].sum()))
    rows, work = [copy.row for copy in mine], work_of(evidence)
    of_ops = removal_of(evidence, rows, certain=1.0)
    removal = with_python(evidence, of_ops, rows, certain=0.0)
    first = max(mine, key=lambda copy: math.prod(copy.size))
    left = 1 - first.written
    if evidence.share_of_step(left * of_ops.gain.high) < _LEAST:
        return None
    size = size_words(first.size)
    return Draft(
        slug="whole-tensor-copy",
        title="A whole tensor is copied to change few of its rows",
        evidence=(
            f"{first.name} {at_source(line)} makes a new tensor of {size}, and changes {format_share(first.written)} "
            f"of it, {counted(format_count(len(rows) / evidence.steps), 'time')} per step",
            f"the copy takes {format_per_step(evidence, removal.us)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Write in place {at_source(line)}: {first.instead} in place of {first.name}, which allocates a new "
        f"tensor of {size} and copies all of it in each step. Do it under torch.no_grad(), or with detached values, "
        "where no gradient goes through the old ones; nothing else may still need those.",
        brief=f"Write in place {at_source(line)}: {first.instead} in place of {first.name}",
        places=(line,),
        code="bank[rows] = new  # or bank.index_copy_(0, rows, new): in place of bank = bank.index_copy(0, rows, new)",
        gain_us=Interval(first.sure * left * removal.gain.low, left * removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def whole_copy_rows(evidence: Evidence) -> frozenset[int]:
    """Returns the ops that copy a whole tensor to write few of its rows.

    They are outermost; of no such row samples tell anything.
    """
    return frozenset(copy.row for copy in _copies(evidence))


@remembered
def _copies(evidence: Evidence) -> tuple[_WholeCopy, ...]:
    calls = _top_calls(evidence, work_of(evidence))
    copies = []
    for at, call in enumerate(calls):
        copy = _out_of_place(call) or _by_mask(call) or _into_clone(call, calls[at + 1 : at + 1 + _NEXT])
        if copy is not None:
            copies.append(copy)
    return tuple(copies)


def _top_calls(evidence: Evidence, work: KernelWork) -> list[_TopCall]:
    top = top_rows(evidence)
    ops = evidence.linked.ops.iloc[top]
    texts = evidence.source_texts
    names, sources = (ops[column].astype(object).tolist() for column in ("name", "source"))
    calls = []
    for row, name, source, number in zip(
        top.tolist(), names, sources, as_integers(ops["signature"]).tolist(), strict=True
    ):
        concrete = [str(text) for text in work.text_column("concrete", number)]
        calls.append(_TopCall(row, str(name), work.tensors_of(number), concrete, texts.get(str(source), "")))
    return calls


def _written(call: _TopCall, size: Size) -> float | None:
    """Returns the part of a tensor of this size that a write changes.

    By the sizes of what it writes; null where not told.
    """
    others = [math.prod(shape) for shape in call.sizes[1:]]
    if not others or not math.prod(size):
        return None
    most = max(others)
    if "index_fill" in call.name:
        dim = next((int(shape) for shape in call.concrete[1:2] if _WHOLE_NUMBER.match(shape)), None)
        if dim is None or not -len(size) <= dim < len(size):
            return None
        most *= math.prod(size) // size[dim]
    return most / math.prod(size)


def _out_of_place(call: _TopCall) -> _WholeCopy | None:
    match = _WRITES.match(call.name)
    if match is None or match["place"] or not call.sizes:
        return None
    size, name = call.sizes[0], match["name"]
    written = _written(call, size)
    if written is None or written > _MOST_WRITTEN:
        return None
    instead = "x[at] = value" if name in {"index_put", "slice_scatter", "select_scatter"} else f"{name}_"
    return _WholeCopy(call.row, name, size, written, f"{instead}{'' if ' = ' in instead else ' (or x[rows] = new)'}")


def _by_mask(call: _TopCall) -> _WholeCopy | None:
    """``bank = torch.where(mask[:, None], new, bank)`` and ``bank = bank.masked_fill(mask, 0)``, by rows."""
    match = _CHOOSES.match(call.name)
    if match is None or not call.sizes or not _takes_its_target(call.text, match["name"]):
        return None
    size = max(call.sizes, key=math.prod)
    mask = call.sizes[0] if match["name"] == "where" else (call.sizes[1] if len(call.sizes) > 1 else size)
    part = math.prod(mask) / max(math.prod(size), 1)
    # A mask over the last dimension chooses no rows: a causal one is as large as the scores of one head.
    if part > _MOST_IN_MASK or (len(mask) > 0 and mask[-1] == size[-1] > 1):
        return None
    return _WholeCopy(call.row, match["name"], size, part, "x[mask] = new[mask] (or masked_fill_)", _SURE_OF_MASK)


def _takes_its_target(text: str, name: str) -> bool:
    """True for a line that gives this call's result to what the call takes."""
    statement = parse_line(text)
    if not isinstance(statement, ast.Assign):
        return False
    target = ast.unparse(statement.targets[0])
    for call in (node for node in ast.walk(statement.value) if isinstance(node, ast.Call)):
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        if dotted(call.func).endswith(f".{name}") and any(
            ast.unparse(operand) == target for operand in (*owner, *call.args)
        ):
            return True
    return False


def _into_clone(call: _TopCall, after: Sequence[_TopCall]) -> _WholeCopy | None:
    """A clone of which one of the next ops writes a part."""
    if call.name != "aten::clone" or not call.sizes:
        return None
    size = call.sizes[0]
    for later in after:
        match = _WRITES.match(later.name)
        if match is not None and match["place"] and later.sizes[:1] == [size]:
            written = _written(later, size)
            if written is None or written > _MOST_WRITTEN:
                return None
            return _WholeCopy(call.row, "clone", size, written, f"{match['name']}_ on the tensor itself")
    return None


RULES = (whole_tensor_copy,)
