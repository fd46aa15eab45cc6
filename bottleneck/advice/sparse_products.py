"""Rule of products with a sparse matrix that cost too much.

They cost more than those with a dense one, or with another sparse layout.
"""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import Size, work_of
from bottleneck.advice.quantities import format_count, format_per_step, ops_in_window
from bottleneck.advice.ranking import Draft
from bottleneck.advice.removal import (
    LEAST_SHARE,
    autograd_records,
    backward_of,
    issued_by,
    main_source,
    removal_of,
    roots_of,
)
from bottleneck.schema.analysis import Interval
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.op_names import at_source
from bottleneck.schema.tables import as_integers, text_matches
from bottleneck.units import counted, format_us

# Ops that only products with a sparse operand run inside, and those of compressed layouts (CSR, CSC, BSR) among them.
_SPARSE = re.compile(
    r"^aten::(?:_sparse_(?:addmm|mm|mm_reduce_impl|sparse_matmul)|_nnz|_indices|_values|c?c(?:row|ol)_indices|hspmm)$"
)
_COMPRESSED = re.compile(r"^aten::(?:crow|ccol|col|row)_indices$")
_PRODUCT = re.compile(
    r"^aten::(?:matmul|mm|mv|bmm|addmm|addmv|linear|smm|hspmm|_?sparse_mm|_sparse_\w*mm|_sparse_addmm)$"
)
# The part of its peak that a dense product of such sizes reaches at worst, and at best.
_DENSE_REACHES, _DENSE_AT_BEST = 0.25, 0.8
# Of the time of a product in coordinates (COO) so much is left in compressed rows (CSR) on a CPU: 0.14 to 0.22 in four
# sizes and densities that were timed with torch 2.13 and MKL on one thread.
_OF_CSR, _OF_CSR_AT_WORST = 0.14, 0.5


class _SparseCall(Struct, frozen=True):
    """The outermost products with sparse operands, their layout, and the sizes of the longest."""

    rows: tuple[int, ...]
    is_compressed: bool
    sizes: tuple[Size, ...]


def _sparse_calls(evidence: Evidence) -> _SparseCall | None:
    ops = evidence.linked.ops
    inner = np.flatnonzero(text_matches(ops["name"], _SPARSE.search) & ops_in_window(evidence))
    if not inner.size:
        return None
    roots = np.unique(roots_of(evidence)[inner])
    names = ops["name"].astype(object).to_numpy()[roots].tolist()
    roots = roots[[bool(_PRODUCT.search(str(name))) for name in names]]
    if not roots.size:
        return None
    compressed = inner[text_matches(ops["name"], _COMPRESSED.search)[inner]]
    longest = int(roots[np.argmax(ops["dur_us"].to_numpy()[roots])])
    sizes = work_of(evidence).tensors_of(int(as_integers(ops["signature"])[longest]))
    is_compressed = bool(np.isin(longest, roots_of(evidence)[compressed]))
    return _SparseCall(tuple(roots.tolist()), is_compressed, tuple(sizes))


def sparse_product(evidence: Evidence) -> Draft | None:
    """Finds products with a sparse matrix that take far longer than dense.

    Or than those with one in CSR, of its sizes. A cost formula counts a sparse operand as dense, so that its floor is
    that of the dense product. Gain: the time of these ops with their backward nodes, less a dense product at 80 % of
    its floor's pace at best and 25 % at worst; of coordinates (COO) on a CPU less what compressed rows leave, if that
    is less.
    """
    call = _sparse_calls(evidence)
    if call is None:
        return None
    rows = [*call.rows, *backward_of(evidence, call.rows)]
    removal, work = removal_of(evidence, rows, certain=1.0), work_of(evidence)
    if evidence.share_of_step(removal.us) < 2 * LEAST_SHARE:
        return None
    is_mine = issued_by(evidence, work, rows) & work.family("matmul")
    dense_us = float(np.nansum(np.fmax(work.roof("compute_us"), work.roof("memory_us"))[is_mine]))
    dense_us *= work.scale / evidence.steps
    has_dense = bool(is_mine.any()) and dense_us > 0
    dense = (dense_us / _DENSE_AT_BEST, dense_us / _DENSE_REACHES) if has_dense else (np.inf, np.inf)
    # Gradients of a sparse matrix take more than its product, in any layout.
    records = bool(autograd_records(evidence, np.array(call.rows, dtype=np.int64)).any())
    has_csr = evidence.is_host_only and not call.is_compressed and not records
    csr = (_OF_CSR * removal.us, _OF_CSR_AT_WORST * removal.us) if has_csr else (np.inf, np.inf)
    gain = Interval(
        max(0.0, removal.gain.low - min(dense[1], csr[1])), max(0.0, removal.gain.high - min(dense[0], csr[0]))
    )
    if evidence.share_of_step(gain.high) < 2 * LEAST_SHARE or gain.low <= 0:
        return None
    line, pays_dense = main_source(evidence, call.rows), dense[1] < removal.us / 2
    return Draft(
        slug="sparse-product",
        title="A sparse product takes longer than " + ("a dense one" if pays_dense else "it has to"),
        evidence=(
            f"{counted(format_count(len(call.rows) / evidence.steps), 'product')} per step with a sparse matrix "
            f"({'compressed: CSR, CSC or BSR' if call.is_compressed else 'coordinates: COO'}), "
            f"most time {at_source(line)}: " + " by ".join("x".join(map(str, size)) for size in call.sizes[:2]),
            f"that takes {format_per_step(evidence, removal.us)}"
            + (
                f"; dense products of these sizes need {format_us(dense[0])} to {format_us(dense[1])}"
                if has_dense
                else ""
            ),
            *work.describe(issued_by(evidence, work, rows)),
        ),
        advice=_advice(at_source(line), call, is_dense=pays_dense, has_csr=has_csr),
        places=(line,),
        code="self.weight = weight.to_dense()  # zeros and all; nearly all zeros: weight.to_sparse_csr(), once"
        if pays_dense
        else "matrix = matrix.coalesce().to_sparse_csr()  # once, before the loop",
        gain_us=gain,
        claims=removal.claims,
        removes=True,
    )


def _advice(place: str, call: _SparseCall, *, is_dense: bool, has_csr: bool) -> str:
    layout = "compressed" if call.is_compressed else "COO"
    csr = (
        "keep the matrix in compressed rows (to_sparse_csr(), once): a product in coordinates (COO) runs on one "
        "thread, number by number"
    )
    if not is_dense:
        return f"Where the sparse matrix is multiplied {place}, {csr}."
    rest = f" Where it is nearly all zeros, {csr}." if has_csr else ""
    return (
        f"Keep the sparse ({layout}) matrix dense that is multiplied {place}: per number a sparse product is far "
        "slower than a dense one, so that it pays only where 95 % of a matrix and more are zeros. Pruned weights gain "
        f"by structure (whole rows or blocks, 2:4), not by scattered zeros.{rest}"
    )


RULES = (sparse_product,)
