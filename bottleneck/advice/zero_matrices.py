"""Rule of dense products with a matrix that holds next to nothing but zeros."""

import math
from collections.abc import Sequence

import numpy as np

from bottleneck.advice.kernel_work import Size, work_of
from bottleneck.advice.quantities import format_count, format_per_step, ops_in_window
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import LEAST_SHARE, main_source, removal_of, roots_of
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source, is_backward
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_share

_PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::mv"})
# A number of a sparse product takes so many times as long as one of a dense product, at best and at worst.
_PER_NUMBER = (3.0, 15.0)


def zero_matrix_product(evidence: Evidence) -> Draft | None:
    """Finds a matrix of 95 % zeros and more multiplied as a dense one.

    By a look at its values. Gain: the time of the products with a matrix of its sizes, less that of the numbers that
    are not zero, each at three times the time at best and at 15 times at worst.
    """
    look = None if evidence.recording is None else evidence.recording.values
    if look is None or not look.zeros:
        return None
    pairs = [(one, rows) for one in look.zeros if (rows := _products_with(evidence, one.sizes))]
    if not pairs:
        return None
    matrix, rows = max(pairs, key=lambda one: removal_of(evidence, one[1], certain=1.0).us)
    removal, work, filled = removal_of(evidence, rows, certain=1.0), work_of(evidence), 1 - matrix.zero_share
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    high, low = (max(0.0, 1 - times * filled) for times in _PER_NUMBER)
    forward = [row for row in rows if not is_backward(str(evidence.linked.ops["source"].iloc[row]))]
    line, size = main_source(evidence, forward or rows), "x".join(map(str, matrix.sizes))
    made = "" if matrix.source is None else f", made {at_source(matrix.source)},"
    return Draft(
        slug="zero-matrix-product",
        title="A dense product multiplies a matrix of zeros",
        evidence=(
            f"{matrix.place} {matrix.name} ({size}){made} held {format_share(matrix.zero_share)} zeros",
            f"{counted(format_count(len(rows) / evidence.steps), 'product')} per step with a matrix of these sizes, "
            f"most time {at_source(line)}: {format_per_step(evidence, removal.us)}",
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
        code=f"{_plain(matrix.name)} = {_plain(matrix.name)}.to_sparse_csr()  # once, before the loop\n"
        "out = torch.zeros_like(x).index_add_(0, dst, x[src] * weight[:, None])  # or by a list of edges",
        gain_us=Interval(low * removal.gain.low, high * removal.gain.high),
        claims=removal.claims,
        removes=True,
    )


def _plain(name: str) -> str:
    return name if name.replace(".", "").isidentifier() else "matrix"


def _products_with(evidence: Evidence, sizes: Sequence[int]) -> list[int]:
    """Returns the outermost ops in which a product takes such a matrix.

    It is of these sizes, or its transpose; its backward pass too.
    """
    ops, work = evidence.linked.ops, work_of(evidence)
    wanted: set[Size] = {tuple(sizes), tuple(sizes)[::-1]}
    inner = np.flatnonzero(text_matches(ops["name"], _PRODUCTS.__contains__) & ops_in_window(evidence))
    signatures = as_integers(ops["signature"])[inner].tolist()
    takes = {
        signature: any(size[-2:] in wanted for size in work.tensors_of(signature)[-2:]) for signature in set(signatures)
    }
    mine = [row for row, signature in zip(inner.tolist(), signatures, strict=True) if takes[signature]]
    return [int(row) for row in np.unique(roots_of(evidence)[mine])] if math.prod(sizes) else []


RULES = (zero_matrix_product,)
