"""Rules of matrices that hold next to nothing but zeros.

They are multiplied as dense ones, or mask out nearly all that attention over all pairs computes.
"""

import math
import re
from collections.abc import Sequence

import numpy as np

from bottleneck.advice.kernel_work import Size, size_words, work_of
from bottleneck.advice.quantities import format_count, format_per_step, ops_in_window
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    main_source,
    removal_of,
    roots_of,
    with_freeing,
    with_unseen_faults,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import OddTensor
from bottleneck.schema.op_names import at_known, at_source, forward_of, is_backward
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_share, format_us_range

_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::mv"})
# A number of a sparse product takes so many times as long as one of a dense product, at best and at worst.
_PER_NUMBER = (3.0, 15.0)
# The backward pass of a product with a sparse matrix turns that first: microseconds for each number that is not zero,
# at worst. With torch.sparse.mm of to_sparse_csr it took 0.03 to 0.10 us longer than forward, of a coalesced COO tensor
# 0.02 to 0.03 us (1,000 to 4,000 rows, 0.1 to 4 % filled, 7 to 128 columns; torch 2.13, one thread of an EPYC). A list
# of edges turns nothing.
_TURNED_US = 0.105
# Microseconds per number of a matrix to find those that are not zero: to_sparse_csr and nonzero took 15 to 40 ms for 8
# million (torch 2.13, two threads of an EPYC).
_FOUND_US = (0.002, 0.005)
_FINDING = "each step has another such matrix, and finding what is not zero in it takes about {us}"
_SOFTMAX, _MASKS = re.compile(r"^aten::(?:_safe_)?_?softmax$"), re.compile(r"^aten::(?:where|masked_fill_?)$")
# Of the step: ops on pairs that take less are not worth another way to write them.
_LEAST_MASKED = 0.15


def zero_matrix_product(evidence: Evidence) -> Draft | None:
    """Finds a matrix of 95 % zeros and more multiplied as a dense one.

    By a look at its values. A mask of attention is another rule's. Gain: the time of the products with a matrix of its
    sizes, and of its making in the step, less that of the numbers that are not zero, each at three times the time at
    best and at 15 times at worst, less the turning of a sparse matrix in each backward product at worst, and less that
    of finding these numbers where each step has another matrix.
    """
    look = None if evidence.recording is None else evidence.recording.values
    if look is None or not look.zeros:
        return None
    multiplied = [one for one in look.zeros if _masking_line(evidence, one) is None]
    pairs = [(one, rows) for one in multiplied if (rows := _products_with(evidence, one))]
    if not pairs:
        return None
    matrix, rows = max(pairs, key=lambda one: removal_of(evidence, one[1], certain=1.0).us)
    making = _making(evidence, matrix, rows)
    removal = with_unseen_faults(evidence, removal_of(evidence, [*rows, *making], certain=1.0), [*rows, *making])
    work, filled = work_of(evidence), 1 - matrix.zero_share
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    high, low = (max(0.0, 1 - times * filled) for times in _PER_NUMBER)
    # What makes it in the step knows where its numbers lie.
    numbers = math.prod(matrix.sizes) if not making and _is_new(evidence, matrix) else 0
    least_us, most_us = (us * numbers for us in _FOUND_US)
    forward = [row for row in rows if not _is_of_backward(evidence, row)]
    turned_us = _TURNED_US * filled * math.prod(matrix.sizes) * (len(rows) - len(forward)) / evidence.steps
    gain = (low * removal.gain.low - most_us - turned_us, high * removal.gain.high - least_us)
    line, size = main_source(evidence, forward or rows), size_words(matrix.sizes)
    made = "" if matrix.source is None else f", made {at_source(matrix.source)},"
    return Draft(
        slug="zero-matrix-product",
        title="A dense product multiplies a matrix of zeros",
        evidence=(
            f"{matrix.place} {matrix.name} ({size}){made} held {format_share(matrix.zero_share)} zeros",
            f"{counted(format_count(len(rows) / evidence.steps), 'product')} per step with such a matrix, "
            f"most time {at_source(line)}: {format_per_step(evidence, removal.us)}"
            + (", with the making of the matrix" if making else ""),
            *([_FINDING.format(us=format_us_range(least_us, most_us))] if numbers else []),
            *work.describe(np.isin(work.op, np.flatnonzero(np.isin(roots_of(evidence), rows)))),
        ),
        advice=f"Multiply only what is not zero {at_source(line)}: keep {matrix.name} as a sparse matrix "
        "(to_sparse_csr() once, then torch.sparse.mm), or gather and add by its indices (x[src] and index_add, "
        "scatter_add: an edge list in place of an adjacency matrix; nn.EmbeddingBag in place of rows of flags). Where "
        "the zeros lie in blocks, multiply the blocks.",
        brief=f"Multiply only what is not zero {at_source(line)}: a sparse matrix, or gather and add",
        places=(
            matrix.source,
            line,
        ),
        code=f"{_plain(matrix.name)} = {_plain(matrix.name)}.to_sparse_csr()  # once, where it stays the same\n"
        "out = torch.zeros_like(x).index_add_(0, dst, x[src] * weight[:, None])  # or by a list of edges",
        gain_us=Interval(*(max(0.0, us) for us in gain)),
        claims=removal.claims,
        removes=True,
    )


def _is_of_backward(evidence: Evidence, row: int) -> bool:
    ops = evidence.linked.ops
    return bool(ops["is_autograd"].iloc[row]) or is_backward(str(ops["source"].iloc[row]))


def _is_new(evidence: Evidence, matrix: OddTensor) -> bool:
    """True where ops of the forward pass make a matrix of these sizes.

    Or they change one.
    """
    work, ops = work_of(evidence), evidence.linked.ops
    makes = work.calls_that(work.family("pointwise", "copy"), lambda call: matrix.sizes in work.tensors_of(call))
    rows = work.op[makes]
    sources = ops["source"].astype(object).to_numpy()[rows[rows >= 0]].tolist()
    return any(isinstance(source, str) and not is_backward(source) for source in sources)


def _plain(name: str) -> str:
    return name if name.replace(".", "").isidentifier() else "matrix"


def _products_with(evidence: Evidence, matrix: OddTensor) -> list[int]:
    """Returns the outermost ops in which a product takes such a matrix.

    It is of these sizes, or its transpose; its backward pass too. A matrix that is made anew in each call may have
    other sizes there: a line that multiplies it by name takes it too.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    wanted: set[Size] = {matrix.sizes, matrix.sizes[::-1]}
    inner = np.flatnonzero(text_matches(ops["name"], _PRODUCTS.__contains__) & ops_in_window(evidence))
    signatures = as_integers(ops["signature"])[inner].tolist()
    exact = {
        signature
        for signature in set(signatures)
        if any(size[-2:] in wanted for size in work.tensors_of(signature)[-2:])
    }
    texts = evidence.source_texts
    name = rf"(?<![.\w]){re.escape(matrix.name)}"
    multiplies = re.compile(rf"{name}(?:\s*@|\.(?:mm|matmul)\()|\b(?:mm|matmul)\(\s*{name}\s*,")
    named = text_matches(ops["source"], lambda source: bool(multiplies.search(texts.get(forward_of(source), ""))))[
        inner
    ]
    mine = [
        row
        for row, signature, is_named in zip(inner.tolist(), signatures, named.tolist(), strict=True)
        if signature in exact or is_named
    ]
    return [int(row) for row in np.unique(roots_of(evidence)[mine])] if math.prod(matrix.sizes) else []


def _making(evidence: Evidence, matrix: OddTensor, products: Sequence[int]) -> list[int]:
    """Returns the outermost ops that make the matrix in the step.

    They are those on tensors of its sizes at other lines that name it.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    signatures = as_integers(ops["signature"])
    sizes: set[Size] = {matrix.sizes}
    for row in np.flatnonzero(
        np.isin(roots_of(evidence), products) & text_matches(ops["name"], _PRODUCTS.__contains__)
    ):
        sizes.update(size for size in work.tensors_of(int(signatures[row]))[-2:-1] if len(size) == 2)
    texts = evidence.source_texts
    word = re.compile(rf"(?<![.\w]){re.escape(matrix.name)}\b")
    named = text_matches(ops["source"], lambda source: bool(word.search(texts.get(source, ""))))
    rows = np.flatnonzero(named & ops_in_window(evidence) & ~np.isin(roots_of(evidence), products))
    own = {
        signature: any(size in sizes for size in work.tensors_of(signature))
        for signature in set(signatures[rows].tolist())
        if signature >= 0
    }
    return [int(root) for root in np.unique(roots_of(evidence)[[row for row in rows if own.get(int(signatures[row]))]])]


def masked_attention(evidence: Evidence) -> Draft | None:
    """Finds attention over all pairs of which a mask keeps few.

    By a look at its values, of which 95 % and more are zeros: an adjacency matrix, a window. Gain: the time of the ops
    on all pairs, forward and backward, less that of the pairs that are kept, each at three times the time at best and
    at 15 times at worst. The zeros of a mask leave out pairs where the line turns them over (``~mask``, ``mask == 0``)
    or ``where`` takes them first.
    """
    look = None if evidence.recording is None else evidence.recording.values
    for mask in () if look is None else look.zeros:
        line = _masking_line(evidence, mask)
        if line is None:
            continue
        rows = _ops_on_pairs(evidence, mask.sizes)
        removal = with_unseen_faults(evidence, removal_of(evidence, rows, certain=1.0), rows)
        if evidence.share_of_step(removal.us) < _LEAST_MASKED:
            continue
        high, low = (max(0.0, 1 - times * (1 - mask.zero_share)) for times in _PER_NUMBER)
        removal = with_freeing(evidence, removal, rows)
        size, made = size_words(mask.sizes), "" if mask.source is None else f", made {at_source(mask.source)},"
        work = work_of(evidence)
        return Draft(
            slug="masked-attention",
            title="Nearly all of what attention computes is masked out",
            evidence=(
                f"{mask.place} {mask.name} ({size}){made} held {format_share(mask.zero_share)} zeros, and masks "
                f"{at_source(line)}",
                f"ops on tensors of all pairs: {format_per_step(evidence, removal.us)}",
                *work.describe(np.isin(work.op, np.flatnonzero(np.isin(roots_of(evidence), rows)))),
            ),
            advice=f"Compute only the pairs that the mask keeps {at_source(line)}: scores by a list of edges, their "
            "softmax by scatter_reduce and index_add; of a window, by blocks of neighbours (unfold, or flex_attention "
            "with a block mask).",
            brief=f"Compute only the pairs that the mask keeps {at_source(line)}: a list of edges, or blocks of a "
            "window",
            places=(line, mask.source),
            code=f"src, dst = {_plain(mask.name)}.nonzero(as_tuple=True)  # once: the pairs that are kept\n"
            "score = act(left[src] + right[dst]).exp()  # one number per edge\n"
            "out = torch.zeros_like(x).index_add_(0, src, score[:, None] * x[dst])\n"
            "out = out / torch.zeros(len(x), 1).index_add_(0, src, score[:, None])",
            gain_us=Interval(low * removal.gain.low, high * removal.gain.high),
            claims=removal.claims,
            removes=True,
        )
    return None


def _masking_line(evidence: Evidence, mask: OddTensor) -> str | None:
    """Returns the line at which this matrix masks scores; null without one.

    A softmax of such scores follows.
    """
    work, kernels = work_of(evidence), evidence.linked.kernels

    def is_on_pairs(signature: int) -> bool:
        return any(size[-2:] == mask.sizes for size in work.tensors_of(signature))

    def is_masked(signature: int) -> bool:
        return sum(size[-2:] == mask.sizes for size in work.tensors_of(signature)) > 1

    if not work.calls_that(work.op_like(_SOFTMAX), is_on_pairs).any():
        return None
    texts = evidence.source_texts
    rows = work.row[work.calls_that(work.op_like(_MASKS), is_masked)]
    for source in dict.fromkeys(kernels["source"].iloc[rows].dropna().astype(str)):
        if not is_backward(source) and _leaves_out_zeros(texts.get(source, ""), mask.name.rpartition(".")[2]):
            return source
    return None


def _leaves_out_zeros(text: str, name: str) -> bool:
    """True if a line masks where this tensor is zero."""
    word = rf"(?:\w+\.)*{re.escape(name)}\b"
    return bool(
        re.search(rf"\bwhere\(\s*{word}(?!\s*(?:==|<|\.logical_not))", text)
        or re.search(rf"\bmasked_fill_?\([^,]*(?:~\s*\(?{word}|{word}\)?\s*(?:==\s*(?:0|False)|<|\.logical_not))", text)
    )


def _ops_on_pairs(evidence: Evidence, sizes: Sequence[int]) -> list[int]:
    """Returns the outermost ops on tensors of all pairs.

    Products that make such a tensor are among them.
    """
    ops, work, pairs = evidence.linked.ops, work_of(evidence), tuple(sizes)
    inner = np.flatnonzero(ops_in_window(evidence))
    signatures = as_integers(ops["signature"])[inner].tolist()

    def is_on_pairs(signature: int) -> bool:
        tensors = [size for size in work.tensors_of(signature) if len(size) >= 2]
        makes = len(tensors) >= 2 and (tensors[0][-2], tensors[1][-1]) == pairs and tensors[0][-1] == tensors[1][-2]
        return makes or any(size[-2:] == pairs for size in tensors)

    mine = {signature: is_on_pairs(signature) for signature in set(signatures) if signature >= 0}
    rows = [row for row, signature in zip(inner.tolist(), signatures, strict=True) if mine.get(signature)]
    return [int(row) for row in np.unique(roots_of(evidence)[rows])]


# A square matrix of fewer rows is no graph of many nodes. Of the step: what its products take to be asked about, and to
# be asked first.
_LEAST_NODES, _LEAST_ASKED, _FIRST = 512, 0.15, 0.5
# Of the time of its products: a step in which other ops take more on tensors of its sizes makes or changes the matrix.
_OTHERS = 0.02


def zeros_not_known(evidence: Evidence) -> Draft | None:
    """Finds a square matrix that may be an adjacency, whose values nobody looked at.

    Each step multiplies it, in front, with as many rows of data, and neither makes it nor has a gradient for it. No
    gain is predicted, since a trace has no values.
    """
    if evidence.recording is not None and evidence.recording.values is not None:
        return None
    nodes, rows = _square_products(evidence)
    if not rows:
        return None
    removal, work = removal_of(evidence, rows, certain=1.0), work_of(evidence)
    share = evidence.share_of_step(removal.us)
    if share < _LEAST_ASKED:
        return None
    forward = [row for row in rows if not is_backward(str(evidence.linked.ops["source"].iloc[row]))]
    line, size = main_source(evidence, forward or rows), size_words((nodes, nodes))
    return Draft(
        slug="zero-matrix-product",
        title="A square matrix without a gradient is multiplied in every step",
        evidence=(
            f"{counted(format_count(len(rows) / evidence.steps), 'product')} per step with a matrix of {size} in "
            f"front, which no op of the step makes: {format_per_step(evidence, removal.us)}",
            *work.describe(np.isin(work.op, np.flatnonzero(np.isin(roots_of(evidence), rows)))),
        ),
        advice=f"If the matrix of {size}{at_known(line)} is mostly zeros (an adjacency), make it sparse: "
        "to_sparse_csr() once, then torch.sparse.mm, or gather and add by its list of edges (x[src] and index_add). A "
        "dense product multiplies all of its zeros.",
        brief=f"If the matrix of {size}{at_known(line)} is mostly zeros (an adjacency), make it sparse",
        places=(line,),
        code="adjacency = adjacency.to_sparse_csr()  # once\nout = torch.sparse.mm(adjacency, x)",
        gain_reason="no figure: the trace does not show how many of its numbers are zeros",
        claims=removal.claims,
        comes_first=share >= _FIRST,
    )


_MATRIX = 2  # dimensions


def _square_products(evidence: Evidence) -> tuple[int, list[int]]:
    """Gives the size of the largest such matrix, and its products."""
    ops, work = evidence.linked.ops, work_of(evidence)
    inner = np.flatnonzero(text_matches(ops["name"], _PRODUCTS.__contains__) & ops_in_window(evidence))
    signatures = as_integers(ops["signature"])[inner]
    sizes = {call: work.tensors_of(call)[-2:] for call in set(signatures.tolist()) if call >= 0}
    pairs = {call: (given[0], given[1]) for call, given in sizes.items() if len(given) > 1 and len(given[0]) == _MATRIX}
    squares = {left[0] for left, right in pairs.values() if left[0] == left[1] > max(right[1:], default=1)}
    for nodes in sorted(squares, reverse=True):
        mine = [call for call, (left, _) in pairs.items() if left == (nodes, nodes)]
        calls = int(np.isin(signatures, mine).sum())
        has_gradient = any(left[0] == nodes == right[-1] != left[1] for left, right in pairs.values())
        has_data = any(left[0] == nodes != left[1] for left, _ in pairs.values())
        # Data of as many rows as columns stands behind in the gradient of a weight.
        is_data = any(right == (nodes, nodes) for _, right in pairs.values())
        if nodes < _LEAST_NODES or calls < evidence.steps or has_gradient or is_data or not has_data:
            continue
        holds = [call for call in set(work.signature.tolist()) if call >= 0 and (nodes, nodes) in work.tensors_of(call)]
        is_other = np.isin(work.signature, holds) & ~work.family("matmul")
        if work.us_of(is_other) <= _OTHERS * work.us_of(np.isin(work.signature, mine)):
            return nodes, [int(row) for row in np.unique(roots_of(evidence)[inner[np.isin(signatures, mine)]])]
    return 0, []


RULES = (zero_matrix_product, masked_attention, zeros_not_known)
