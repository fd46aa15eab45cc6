"""Rules of products with a sparse matrix.

Some cost more than those with a dense one, or with another layout; some are written out as gather, multiply, scatter.
"""

import re

import numpy as np
from msgspec import Struct

from bottleneck.advice.kernel_work import KernelWork, Size, size_words, work_of
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
from bottleneck.schema.intervals import Flags
from bottleneck.schema.op_names import at_known, at_source
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
            f"most time {at_source(line)}: " + " by ".join(size_words(size) for size in call.sizes[:2]),
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


# A message along each edge of a graph: features of the sender are read, weighted, and added up at the receiver. The
# backward pass has the same three ops, with sender and receiver exchanged.
_GATHERS = re.compile(r"^aten::(?:index_select|gather|index|embedding)$")
_WEIGHTS = re.compile(r"^aten::mul_?$")
_ADDS_UP = re.compile(r"^aten::(?:scatter_add_?|index_add_?|scatter_reduce_?|_index_put_impl_|index_put_?)$")
_CLEARS = re.compile(r"^aten::(?:new_)?(?:zeros|full|empty)(?:_like)?$|^aten::(?:zero_|fill_)$")
# Once is a lookup that happens to come before a sum.
_LEAST_MESSAGES = 2
# Fewer edges than so many for each node: the rows of edges are hardly more than those of nodes.
_EDGES_EACH = 2.0
# A sparse product reads a row of features for each edge, as the gather does, and writes no row for it: from half of the
# gather's time to twice, where rows of the matrix are uneven.
_OF_GATHER, _OF_GATHER_AT_WORST = 0.5, 2.0


def _messages(work: KernelWork) -> tuple[Flags, Flags]:
    """Masks the rows of messages along edges, and the gathers among them.

    They are device work that follows one another on a stream: a gather, a multiplication and a sum, with nothing
    between but new tensors of zeros.
    """
    rows = np.flatnonzero(~work.op_like(_CLEARS))
    gathers, weights, sums = (work.op_like(pattern)[rows] for pattern in (_GATHERS, _WEIGHTS, _ADDS_UP))
    stream = work.evidence.linked.kernels["stream"].cat.codes.to_numpy()[work.row[rows]]
    first = np.flatnonzero(gathers[:-2] & weights[1:-1] & sums[2:] & (stream[:-2] == stream[2:]))
    first = first[[_are_edges(work, *(int(work.signature[rows[at + place]]) for place in range(3))) for at in first]]
    chosen, reading = np.zeros(work.row.size, dtype=bool), np.zeros(work.row.size, dtype=bool)
    reading[rows[first]] = True
    for place in range(3):
        chosen[rows[first + place]] = True
    return chosen, reading


def _are_edges(work: KernelWork, gather: int, weight: int, add: int) -> bool:
    """True if calls are of one row per edge, many more than nodes.

    Also where sizes were not recorded.
    """
    tensors = [work.tensors_of(call) for call in (gather, weight, add)]
    if not all(sizes and sizes[0] for sizes in tensors):
        return True
    edges, nodes = max(size[0] for size in tensors[1] if size), tensors[2][0][0]
    has_edges = all(any(edges in size for size in sizes) for sizes in (tensors[0], tensors[2]))
    return has_edges and edges >= _EDGES_EACH * nodes


def edge_messages(evidence: Evidence) -> Draft | None:
    """Finds messages along the edges of a graph that a sparse product sums.

    Gain: the time of multiplications and sums, and what the product takes less than the gather: from half of the
    gather's time to twice.
    """
    work = work_of(evidence)
    rows, gathers = _messages(work)
    count = np.count_nonzero(gathers) / evidence.steps
    if count < _LEAST_MESSAGES or work.share(rows) < 2 * LEAST_SHARE:
        return None
    low, high = (
        np.where(gathers, (1.0 - part) * work.us, np.where(rows, work.us, 0.0))
        for part in (_OF_GATHER_AT_WORST, _OF_GATHER)
    )
    gain = work.gain(low, high)
    if evidence.share_of_step(gain.high) < LEAST_SHARE or gain.low <= 0:
        return None
    sources = evidence.linked.kernels["source"].astype(object).to_numpy()[work.row[rows]]
    line = next((str(source) for source in sources if isinstance(source, str)), None)
    knows_sizes = bool((work.signature[rows] >= 0).all())
    return Draft(
        slug="edge-messages",
        title="Messages along the edges of a graph are gathered, multiplied and scattered one op at a time",
        evidence=(
            f"{counted(format_count(count), 'time')} per step rows are gathered, multiplied and added up elsewhere: "
            f"{format_per_step(evidence, work.us_of(rows))}",
            "each op writes and reads a row for every edge; a sparse product reads it once, and writes a row for every "
            "node",
            *work.describe(rows),
        ),
        advice="Multiply features by the sparse matrix of the graph, which holds the weights of its edges, in place of "
        "gathering, multiplying and scattering a row per edge (PyG: adj_t, a SparseTensor; DGL: its g-SpMM).",
        brief=f"Multiply by the graph's sparse matrix in place of gather, multiply and scatter{at_known(line)}",
        places=(line,),
        code="edges = torch.stack((receiver, sender))\n"
        "graph = torch.sparse_coo_tensor(edges, weight, (nodes, nodes)).to_sparse_csr()  # once, beforehand\n"
        "out = torch.sparse.mm(graph, x)",
        gain_us=gain,
        claims=work.claims(high),
        confidence="medium" if knows_sizes else "low",
    )


RULES = (sparse_product, edge_messages)
