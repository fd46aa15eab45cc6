"""Rules of large tensors that are only reduced or only meet others.

They are made to be added up, or to match the size of another tensor.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, broadcast, is_size, size_words, work_of
from bottleneck.advice.quantities import format_per_step, ops_in_window
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    backward_of,
    issued_by,
    main_source,
    removal_of,
    roots_of,
    top_rows,
    with_freeing,
    with_unseen_faults,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence, remembered
from bottleneck.schema.op_names import at_known, at_source
from bottleneck.schema.tables import FRESH_FROM_BYTES, as_integers, text_matches
from bottleneck.units import counted

_PAIRS = {"aten::mul": "product", "aten::sub": "difference"}
# Ops that broadcast their operands and add up at once.
_COMPARES = {"aten::cosine_similarity": "product", "aten::pairwise_distance": "difference"}
_FP32_BYTES = 4.0
_CHAIN = re.compile(r"^aten::(?:pow|square|abs|mul|neg|exp|sqrt)$")
_SUMS = re.compile(r"^aten::(?:sum|mean|norm|linalg_vector_norm)$")
_REPEATS = re.compile(r"^aten::(?:repeat|repeat_interleave|tile)$")
_LEAST_NUMBERS = 2**18
# A result is so many times as large as each operand, at least, for the finding.
_TIMES_LARGER = 4
_LOW_OF_DIFFERENCES, _LOW_OF_REPEATS = 0.5, 0.5
_MOST_BETWEEN = 4
_BATCHED = re.compile(r"^aten::(?:bmm|baddbmm)$")
# Rows of each place of a batch that meet one matrix, at most; places of the batch, and numbers of the matrix, at least.
_MOST_THIN, _LEAST_BATCH, _LEAST_MATRIX = 8, 8, 256
# Parts of the peak that one product in their place reaches.
_ONE_AT_BEST, _ONE_AT_WORST = 0.8, 0.2


# Products of a broadcast batch, at least, and the multiplications of each at most. Of their time with the copies of
# what is expanded and with their backward nodes einsum spared 82 to 98 %: stacks of 65,536 to 655,360 products of up to
# 16x32 (torch 2.13, one thread of an EPYC).
_LEAST_PRODUCTS, _MOST_EACH, _SPARED_BY_EINSUM = 4096, 1024, (0.75, 0.95)


class _Spread(Struct, frozen=True):
    """A broadcast of two operands whose result is added up.

    It holds its ops, its kind, and the sizes of operands and result.
    """

    rows: tuple[int, ...]
    kind: str
    operands: tuple[Size, Size]
    result: Size


@remembered
def _spreads(evidence: Evidence) -> tuple[_Spread, ...]:
    """Finds broadcast products and differences that are then reduced.

    The reduction is along a dimension which both operands have.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    calls = as_integers(ops["signature"])[top].tolist()
    spreads = []
    for at, (row, name) in enumerate(zip(top.tolist(), names, strict=True)):
        sizes = _operands(work, calls[at]) if name in _PAIRS or name in _COMPARES else []
        result = broadcast(sizes)
        if len(sizes) < 2 or math.prod(result) < _LEAST_NUMBERS:
            continue
        if any(math.prod(size) * _TIMES_LARGER > math.prod(result) for size in sizes):
            continue
        if name in _COMPARES:
            spreads.append(_Spread((row,), _COMPARES[name], (sizes[0], sizes[1]), result))
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
                    spreads.append(_Spread(tuple(rows), _PAIRS[name], (sizes[0], sizes[1]), result))
                break
            if not _CHAIN.search(names[later]):
                break
    return tuple(spreads)


def _operands(work: KernelWork, call: int) -> list[Size]:
    """Sizes of the two operands of a call, with 1 for what expand() repeats.

    A dimension that is repeated has a stride of 0.
    """
    sizes, strides = work.tensors_of(call)[:2], work.text_column("strides", call)
    if len(strides) < len(sizes):
        return sizes
    return [
        tuple(
            1 if isinstance(steps, list) and len(steps) == len(size) and steps[axis] == 0 else length
            for axis, length in enumerate(size)
        )
        for size, steps in zip(sizes, strides, strict=False)
    ]


_ADDS_DIMENSION = re.compile(r"^aten::(?:unsqueeze|expand)$")
_MOST_BEFORE = 3


def _spreads_by_name(evidence: Evidence) -> tuple[_Spread, ...]:
    """Finds the same where no sizes are recorded.

    An operand gets another dimension just before the product or difference, and a sum follows it.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()[top].tolist()
    calls = as_integers(ops["signature"])[top].tolist()
    spreads = []
    for at, name in enumerate(names):
        if name not in _PAIRS or work.tensors_of(calls[at]):
            continue
        if not any(_ADDS_DIMENSION.search(before) for before in names[max(at - _MOST_BEFORE, 0) : at]):
            continue
        end = at + 1
        while end < min(at + _MOST_BETWEEN, len(names) - 1) and _CHAIN.search(names[end]):
            end += 1
        if end < len(names) and _SUMS.search(names[end]):
            spreads.append(_Spread(tuple(top[at : end + 1].tolist()), _PAIRS[name], ((), ()), ()))
    return tuple(spreads)


def _axes(concrete: Sequence[object], rank: int) -> list[int]:
    """Gives the dimensions that a reduction names, counted from the front.

    None where it reduces all.
    """
    text = next((str(part) for part in concrete[1:] if str(part).startswith("[")), "")
    return [int(part) % rank for part in re.findall(r"-?\d{1,3}", text) if -rank <= int(part) < rank]


def _has_all(size: Size, axes: Sequence[int], result: Size) -> bool:
    """True if an operand has these dimensions of the result itself."""
    padded = (1,) * (len(result) - len(size)) + tuple(size)
    return all(padded[axis] == result[axis] and result[axis] > 1 for axis in axes)


def spread_product(evidence: Evidence) -> Draft | None:
    """Finds a large result of broadcast operands that is only added up.

    A matrix product does that. Gain: the time of these ops and of their backward nodes. It is counted from 90 % for
    products, from half for differences, whose norm needs more than a product.
    """
    spreads = _spreads(evidence) or _spreads_by_name(evidence)
    if not spreads:
        return None
    forward = [row for one in spreads for row in one.rows]
    rows = [*forward, *backward_of(evidence, forward)]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    largest = max(spreads, key=lambda one: math.prod(one.result))
    if _FP32_BYTES * math.prod(largest.result) >= FRESH_FROM_BYTES:
        removal = with_freeing(evidence, with_unseen_faults(evidence, removal, rows), rows)
    line, is_product, is_sized = main_source(evidence, forward), largest.kind == "product", bool(largest.result)
    made = (
        f"{size_words(largest.operands[0])} and {size_words(largest.operands[1])} make a {largest.kind} of "
        f"{size_words(largest.result)} numbers{at_known(line)}"
        if is_sized
        else f"operands get another dimension, and make a {largest.kind}{at_known(line)} (sizes were not recorded)"
    )
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
            f"{made}, which is then reduced",
            f"that takes {format_per_step(evidence, removal.us)}, with the backward pass",
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Where the sum is all that is used{at_known(line)}, {way}.",
        places=(line,),
        code="scores = a @ b.T  # in place of (a[:, None] * b[None]).sum(-1)"
        if is_product
        else "distances = torch.cdist(a, b)  # in place of (a[:, None] - b[None]).norm(dim=-1)",
        gain_us=Interval(low, removal.gain.high),
        claims=removal.claims,
        removes=True,
        confidence="medium" if is_sized else "low",
    )


def repeated_tensor(evidence: Evidence) -> Draft | None:
    """Finds a tensor repeated by copies where broadcasting would do.

    The copies are made by repeat, repeat_interleave or tile. Gain: the time of these copies and of their backward
    nodes, from half of it.
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
        brief=f"Broadcast in place of repeating {at_source(line)} (expand, or a dimension of length 1)",
        places=(line,),
        code="y = a[:, None] + b[None]  # in place of a.repeat(...) + b",
        gain_us=Interval(_LOW_OF_REPEATS * removal.gain.low, removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


class _ThinProducts(Struct, frozen=True):
    """Batched products of few rows with one matrix expanded over the batch.

    It holds the least time of all of them in one product.
    """

    rows: tuple[int, ...]
    expands: tuple[int, ...]
    batch: int
    matrix: Size
    floor_us: float


def _thin_products(evidence: Evidence) -> _ThinProducts | None:
    ops, work, roots = evidence.linked.ops, work_of(evidence), roots_of(evidence)
    top = top_rows(evidence)
    forward = np.zeros(len(ops), dtype=bool)
    forward[top] = True
    shared_of_row: dict[int, tuple[int, Size]] = {}
    floor_us = 0.0
    for row in np.flatnonzero(text_matches(ops["name"], _BATCHED.search) & ops_in_window(evidence)).tolist():
        signature = int(as_integers(ops["signature"])[row])
        if not forward[roots[row]] or (shared := _shared_matrix(work, signature)) is None:
            continue
        shared_of_row[int(roots[row])] = shared
        floor_us += float(np.nansum(np.fmax(work.roof("compute_us"), 0.0)[work.op == row]))
    if not shared_of_row:
        return None
    expanded = {(pair[0], *pair[1]) for pair in shared_of_row.values()}
    names = ops["name"].astype(object).to_numpy()
    expands = [row for row in top.tolist() if names[row] == "aten::expand" and _expands_to(evidence, row) in expanded]
    batch, matrix = max(shared_of_row.values(), key=lambda pair: pair[0] * math.prod(pair[1]))
    return _ThinProducts(tuple(shared_of_row), tuple(expands), batch, matrix, floor_us * work.scale / evidence.steps)


def _shared_matrix(work: KernelWork, signature: int) -> tuple[int, Size] | None:
    """Gives the batch and the matrix of a product that shares one.

    All of the batch's few rows meet the same matrix. Null where they do not.
    """
    dims, strides = (work.text_column(name, signature)[:2] for name in ("dims", "strides"))
    for at, (size, stride) in enumerate(zip(dims, strides, strict=False)):
        if not is_size(size) or not is_size(stride) or len(size) != 3 or len(stride) != 3 or stride[0] != 0:
            continue
        other = dims[1 - at] if len(dims) == 2 else None
        thin = other[2 if at == 0 else 1] if is_size(other) and len(other) == 3 else _MOST_THIN + 1
        if size[0] >= _LEAST_BATCH and thin <= _MOST_THIN and size[1] * size[2] >= _LEAST_MATRIX:
            return size[0], (size[1], size[2])
    return None


def _expands_to(evidence: Evidence, row: int) -> Size:
    concrete = work_of(evidence).text_column("concrete", int(as_integers(evidence.linked.ops["signature"])[row]))
    return tuple(int(digits) for digits in re.findall(r"\d{1,9}", str(concrete[1:2])))


def expanded_product(evidence: Evidence) -> Draft | None:
    """Finds a matrix expanded over the batch, where one product would do.

    It is multiplied with a few rows of each place. Gain: the time of these products with their backward nodes, less
    that of one product. That one runs at 80 % of the peak at best and at 20 % at worst, and counts three times with a
    backward pass.
    """
    products = _thin_products(evidence)
    if products is None:
        return None
    behind = backward_of(evidence, [*products.rows, *products.expands])
    rows = [*products.rows, *behind]
    removal, work = removal_of(evidence, rows), work_of(evidence)
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    one_us = products.floor_us * (3 if behind else 1)
    gain = Interval(
        max(0.0, removal.gain.low - one_us / _ONE_AT_WORST), max(0.0, removal.gain.high - one_us / _ONE_AT_BEST)
    )
    if gain.low <= 0 or evidence.share_of_step(gain.high) < 2 * LEAST_SHARE:
        return None
    line, size = main_source(evidence, products.rows), size_words(products.matrix)
    return Draft(
        slug="expanded-product",
        title="One matrix is multiplied with each place of a batch by itself",
        evidence=(
            f"a matrix of {size} is expanded to {products.batch} places {at_source(line)} and read for each of them",
            f"that takes {format_per_step(evidence, removal.us)}"
            + (
                f", with the backward pass, which makes {products.batch} gradients of {size} and adds them up"
                if behind
                else ""
            ),
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=f"Multiply all rows of the batch with the one matrix of {size} {at_source(line)}, as one product of two "
        "matrices (x @ w), without expand, unsqueeze and bmm: each number of the matrix is then read once for many "
        "rows, and it has one gradient.",
        brief=f"Multiply all rows with the one matrix {at_source(line)} as one product, without expand and bmm",
        places=(line,),
        code="y = x @ w  # x: batch x k, w: k x n; in place of torch.bmm(x.unsqueeze(1), w.expand(batch, -1, -1))",
        gain_us=gain,
        claims=removal.claims,
        removes=True,
    )


def broadcast_product(evidence: Evidence) -> Draft | None:
    """Finds matmul of stacks of tiny matrices that broadcasting copies first.

    Each operand lacks dimensions of the other: matmul writes both out, and multiplies every pair by itself. Gain: 75 to
    95 % of its time and of its backward nodes, as einsum spared: it makes fewer, larger products.
    """
    ops, work, top = evidence.linked.ops, work_of(evidence), top_rows(evidence)
    names = ops["name"].astype(object).to_numpy()
    calls = as_integers(ops["signature"])
    sizes_of_row = {
        row: sizes
        for row in top.tolist()
        if names[row] == "aten::matmul" and _multiplies_tiny(sizes := work.tensors_of(int(calls[row]))[:2])
    }
    if not sizes_of_row or not evidence.is_host_only:
        return None
    forward = list(sizes_of_row)
    rows = [*forward, *backward_of(evidence, forward)]
    removal = with_unseen_faults(evidence, removal_of(evidence, rows, certain=1.0), rows)
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    removal = with_freeing(evidence, removal, rows)
    line, (one, other) = main_source(evidence, forward), sizes_of_row[forward[0]]
    count, (low, high) = math.prod(broadcast([one[:-2], other[:-2]])), _SPARED_BY_EINSUM
    return Draft(
        slug="broadcast-product",
        title="A matmul of broadcast stacks copies them, and multiplies tiny matrices one by one",
        evidence=(
            f"matmul of {size_words(one)} and {size_words(other)}{at_known(line)} makes {counted(count, 'product')} of "
            f"{one[-2]}x{one[-1]} and {other[-2]}x{other[-1]}",
            f"that takes {format_per_step(evidence, removal.us)}, with the copies and the backward pass",
            *work.describe(issued_by(evidence, work, np.array(rows))),
        ),
        advice=f"Write the product as torch.einsum over the dimensions as they are{at_known(line)}: it joins those of "
        "one operand alone into the rows and columns of fewer, larger products, and copies nothing.",
        brief=f"Take torch.einsum in place of the matmul of broadcast stacks{at_known(line)}",
        places=(line,),
        code='priors = torch.einsum("bik,jikn->jbin", x, w)  # in place of x[None, :, :, None] @ w[:, None]',
        gain_us=Interval(low * removal.gain.low, high * removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def _multiplies_tiny(sizes: Sequence[Size]) -> bool:
    """True for two stacks of many tiny matrices.

    Each lacks dimensions of the other.
    """
    if len(sizes) < 2 or min(map(len, sizes)) < 3:
        return False
    one, other = sizes
    batch = broadcast([one[:-2], other[:-2]])
    lacks = [math.prod(batch) > math.prod(size[:-2]) for size in sizes]
    return all(lacks) and math.prod(batch) >= _LEAST_PRODUCTS and one[-2] * one[-1] * other[-1] <= _MOST_EACH


RULES = (spread_product, repeated_tensor, expanded_product, broadcast_product)
