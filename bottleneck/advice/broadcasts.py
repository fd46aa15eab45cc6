"""Rules of large tensors that are made only to be added up, or to meet others of their size."""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from bottleneck.advice.kernel_work import Size, work_of
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import LEAST_SHARE, backward_of, issued_by, main_source, removal_of, top_rows
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers

_PAIRS = {"aten::mul": "product", "aten::sub": "difference"}
# Ops that broadcast their operands and add up at once.
_COMPARES = {"aten::cosine_similarity": "product", "aten::pairwise_distance": "difference"}
_CHAIN = re.compile(r"^aten::(?:pow|square|abs|mul|neg|exp|sqrt)$")
_SUMS = re.compile(r"^aten::(?:sum|mean|norm|linalg_vector_norm)$")
_REPEATS = re.compile(r"^aten::(?:repeat|repeat_interleave|tile)$")
_LEAST_NUMBERS = 2**18
# A result is so many times as large as each operand, at least, for the finding.
_TIMES_LARGER = 4
_LOW_OF_DIFFERENCES, _LOW_OF_REPEATS = 0.5, 0.5
_MOST_BETWEEN = 4


class _Spread(Struct, frozen=True):
    """A broadcast of two operands whose result is added up: its ops, its kind, and the sizes of operands and result."""

    rows: tuple[int, ...]
    kind: str
    operands: tuple[Size, Size]
    result: Size


@remembered
def _spreads(evidence: Evidence) -> tuple[_Spread, ...]:
    """Products and differences of two broadcast operands that are reduced along a dimension which both have."""
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    calls = as_integers(ops["signature"])[top].tolist()
    found = []
    for at, (row, name) in enumerate(zip(top.tolist(), names, strict=True)):
        sizes = work.tensors_of(calls[at])[:2] if name in _PAIRS or name in _COMPARES else []
        result = _broadcast(sizes)
        if len(sizes) < 2 or math.prod(result) < _LEAST_NUMBERS:
            continue
        if any(math.prod(size) * _TIMES_LARGER > math.prod(result) for size in sizes):
            continue
        if name in _COMPARES:
            found.append(_Spread((row,), _COMPARES[name], (sizes[0], sizes[1]), result))
            continue
        rows = [row]
        for later in range(at + 1, min(at + 1 + _MOST_BETWEEN, top.size)):
            read = work.tensors_of(calls[later])[:1]
            if read != [result]:
                break
            rows.append(int(top[later]))
            if _SUMS.search(names[later]):
                axes = _axes(work.text_column("concrete", calls[later]), len(result))
                if axes and all(_has_all(size, axes, result) for size in sizes):
                    found.append(_Spread(tuple(rows), _PAIRS[name], (sizes[0], sizes[1]), result))
                break
            if not _CHAIN.search(names[later]):
                break
    return tuple(found)


def _broadcast(sizes: Sequence[Size]) -> Size:
    rank = max(map(len, sizes), default=0)
    padded = [(1,) * (rank - len(size)) + tuple(size) for size in sizes]
    return tuple(max(column) for column in zip(*padded, strict=True))


def _axes(concrete: Sequence[object], rank: int) -> list[int]:
    """The dimensions that a reduction names, counted from the front; none where it reduces all."""
    text = next((str(each) for each in concrete[1:] if str(each).startswith("[")), "")
    return [int(each) % rank for each in re.findall(r"-?\d{1,3}", text) if -rank <= int(each) < rank]


def _has_all(size: Size, axes: Sequence[int], result: Size) -> bool:
    """True if an operand has these dimensions of the result itself."""
    padded = (1,) * (len(result) - len(size)) + tuple(size)
    return all(padded[axis] == result[axis] and result[axis] > 1 for axis in axes)


def spread_product(evidence: Evidence) -> Draft | None:
    """Two operands are broadcast against each other, and the large result is added up: a matrix product does that.

    Gain: the time of these ops and of their backward nodes; of products from 90 % of it, of differences, whose norm
    needs more than a product, from half.
    """
    found = _spreads(evidence)
    if not found:
        return None
    forward = [row for one in found for row in one.rows]
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    largest = max(found, key=lambda one: math.prod(one.result))
    line, is_product = main_source(evidence, forward), largest.kind == "product"
    way = (
        "multiply matrices instead (torch.matmul or torch.einsum; of normalised rows for cosines): no such tensor is "
        "written"
        if is_product
        else "take torch.cdist, or |a|^2 + |b|^2 - 2 a @ b.T for squared distances: no such tensor is written"
    )
    low = removal.gain.low if is_product else _LOW_OF_DIFFERENCES * removal.gain.low
    return Draft(
        slug="spread-product",
        title=f"A large {largest.kind} of broadcast operands is made only to be added up",
        evidence=(
            f"{_by(largest.operands[0])} and {_by(largest.operands[1])} make a {largest.kind} of "
            f"{_by(largest.result)} numbers {at_source(line)}, "
            "which is then reduced",
            f"that takes {format_per_step(evidence, removal.us)}, with the backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Where the sum is all that is used {at_source(line)}, {way}.",
        code="scores = a @ b.T  # in place of (a[:, None] * b[None]).sum(-1)"
        if is_product
        else "distances = torch.cdist(a, b)  # in place of (a[:, None] - b[None]).norm(dim=-1)",
        gain_us=Interval(low, removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def repeated_tensor(evidence: Evidence) -> Draft | None:
    """A tensor is copied several times over (repeat, repeat_interleave, tile), where broadcasting reads it in place.

    Gain: the time of these copies and of their backward nodes, from half of it.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    forward = [row for row, name in zip(top.tolist(), names, strict=True) if _REPEATS.search(str(name))]
    if not forward:
        return None
    rows = [*forward, *backward_of(evidence, forward)]
    removal = removal_of(evidence, rows)
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    line = main_source(evidence, forward)
    return Draft(
        slug="repeated-tensor",
        title="A tensor is copied several times over to meet a larger one",
        evidence=(
            f"repeating tensors takes {format_per_step(evidence, removal.us)}, most of it {at_source(line)}",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Broadcast in place of repeating {at_source(line)}: expand() or a dimension of length 1 (x[:, None]) "
        "reads the same memory. Heads that share keys: scaled_dot_product_attention(..., enable_gqa=True).",
        code="y = a[:, None] + b[None]  # in place of a.repeat(...) + b",
        gain_us=Interval(_LOW_OF_REPEATS * removal.gain.low, removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def _by(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


RULES = (spread_product, repeated_tensor)
