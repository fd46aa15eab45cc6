"""Costs of FBGEMM's ops for the sparse side of recommendation models.

They work on embedding tables and ragged features.

The rows that a batch looks up, and the number of distinct ones, are data: bytes lie between the least for any indices
and one row per index. Positions follow the schemas of FBGEMM 0.1 to 1.2.
"""

import math
from functools import partial

from msgspec import Struct

from bottleneck.cost.call import Cost, Formula, Formulas, OpCall, Tensor, TensorList, Unmodelled
from bottleneck.cost.traffic import SECTOR_BYTES, named, stream

LOOKUP, RAGGED = "lookup", "ragged"

# Rows are read four elements at a time, so that no table is narrower; the widest that the kernels take is 1024.
NARROWEST_ROW, WIDEST_ROW = 4, 1024

# Indices are sorted by row with their position: 8 + 4 bytes read and written for each 8 bits of at most 32.
_SORT_BYTES = 4 * 2 * (8.0 + 4.0)


class LookupLayout(Struct, frozen=True):
    """Positions of the arguments of a lookup.

    ``rows`` is the state of a row-wise optimizer, one number per row.
    """

    weights: tuple[int, ...]
    d_offsets: int
    total_width: int
    indices: int
    offsets: int
    rows: int | None = None


CLASSIC = LookupLayout(weights=(1, 2, 3), d_offsets=6, total_width=7, indices=11, offsets=12, rows=20)
_LISTED = LookupLayout(weights=(1,), d_offsets=2, total_width=3, indices=7, offsets=8)

OPTIMIZERS = [
    "adagrad",
    "adam",
    "lamb",
    "lars_sgd",
    "none",
    "partial_rowwise_adam",
    "partial_rowwise_lamb",
    "rowwise_adagrad",
    "rowwise_weighted_adagrad",
    "sgd",
]


class _Lookup(Struct, frozen=True):
    """One pooled lookup: tables, bags (sequences times tables), indices, and row widths in elements."""

    tables: int
    bags: int
    indices: Tensor
    offsets: Tensor
    item_bytes: float
    table_elements: float
    narrow: float
    mean: float

    @property
    def row_bytes(self) -> float:
        """Bytes of a row of mean width, whole sectors."""
        return math.ceil(self.mean * self.item_bytes / SECTOR_BYTES) * SECTOR_BYTES


def _lookup(call: OpCall, layout: LookupLayout, first: int = 0, total_width: int | None = None) -> _Lookup:
    """Gives the sizes of the lookup whose arguments start at ``first``.

    Raises Unmodelled when the width of rows is unknown.
    """
    tables = max(call.tensor(first + layout.d_offsets).numel - 1, 1)
    offsets, indices = call.tensor(first + layout.offsets), call.tensor(first + layout.indices)
    elements, item_bytes = _tables(call, layout, first)
    width = total_width or call.integer(first + layout.total_width)
    rows = None if layout.rows is None else call.optional_tensor(first + layout.rows)
    if width is None and (rows is None or not elements):
        raise Unmodelled("no_table_widths")
    mean = width / tables if width is not None else elements / rows.numel if rows is not None else 0.0
    return _Lookup(
        tables=tables,
        bags=max(offsets.numel - 1, 0),
        indices=indices,
        offsets=offsets,
        item_bytes=item_bytes,
        table_elements=elements,
        narrow=mean if width is not None else float(NARROWEST_ROW),
        mean=mean,
    )


def _tables(call: OpCall, layout: LookupLayout, first: int) -> tuple[float, float]:
    """Gives the elements of all tables, and bytes per element.

    The bytes are 2 at least where only a list was recorded.
    """
    arguments = [call.arguments[first + position] for position in layout.weights]
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    lists = [argument for argument in arguments if isinstance(argument, TensorList)]
    elements = float(sum(tensor.numel for tensor in tensors) + sum(tables.numel for tables in lists))
    return elements, max((tensor.item_bytes for tensor in tensors if tensor.numel), default=2.0)


def _forward(layout: LookupLayout, call: OpCall) -> Cost:
    """Prices a pooled lookup.

    Indices and offsets are read, one row per bag is written, empty bags as zeros.

    The rows that the indices name are one at least; at most one per index comes from DRAM.
    """
    lookup = _lookup(call, layout)
    read = lookup.indices.bytes + lookup.offsets.bytes
    low = read + lookup.bags * lookup.narrow * lookup.item_bytes
    written = lookup.bags * lookup.mean * lookup.item_bytes
    high = read + written + lookup.indices.numel * (lookup.row_bytes + lookup.indices.item_bytes)
    flops = lookup.indices.numel * float(NARROWEST_ROW)
    return Cost(LOOKUP, vector_flops=flops, bytes_low=low, bytes_high=max(low, high), math_dtype="fp32")


def _backward(call: OpCall) -> Cost:
    """Prices the gradient of a pooled lookup with its optimizer step.

    Its arguments are (gradient [batch, width], the forward call …).

    Without the forward call no number of indices is known. The gradient of a bag is read once per index of it at most,
    and every row that is met is read and written with its optimizer state.
    """
    grad = call.tensor(0)
    if len(call.arguments) < 2:
        raise Unmodelled("no_lookup_indices")
    lookup = _lookup(call, CLASSIC, first=1, total_width=grad.shape[-1] if grad.shape else None)
    count = lookup.indices.numel
    low = lookup.indices.bytes + min(count, 1) * lookup.narrow * grad.item_bytes
    met = min(count * lookup.row_bytes, lookup.table_elements * lookup.item_bytes)
    high = low + grad.bytes + count * (_SORT_BYTES + lookup.row_bytes) + 4 * met + lookup.offsets.bytes
    return Cost(LOOKUP, vector_flops=float(count), bytes_low=low, bytes_high=high, math_dtype="fp32")


def _copied(call: OpCall) -> Cost:
    """permute_pooled_embs(x, …), recat_embedding_grad_output(x, …): blocks of columns moved to other places."""
    x, *tables = call.tensors()
    return stream(RAGGED, x, Tensor(x.shape, x.dtype), *tables)


def _bounds_check(call: OpCall) -> Cost:
    """Prices bounds_check_indices(rows per table, indices, offsets, …).

    All are read, and written where they are out of bounds.
    """
    rows, indices, offsets = (call.tensor(position) for position in range(3))
    low = rows.bytes + indices.bytes + offsets.bytes
    high = low + indices.bytes + offsets.bytes
    return Cost(RAGGED, vector_flops=float(indices.numel), bytes_low=low, bytes_high=high, math_dtype="fp32")


def _permute_sparse(call: OpCall) -> Cost:
    """permute_sparse_features(permutation, lengths [features, batch], indices, weights): whole features reordered.

    Lengths of the chosen features are written and summed; their values may be none (low) or all, as often as features
    are chosen (high).
    """
    permutation, lengths, values = (call.tensor(position) for position in range(3))
    weights = call.optional_tensor(3)
    features = lengths.shape[0] if lengths.shape else 1
    chosen_bytes = permutation.numel * (lengths.bytes / max(features, 1))
    moved = values.bytes + (weights.bytes if weights is not None else 0.0)
    repeats = max(1.0, permutation.numel / max(features, 1))
    low = permutation.bytes + chosen_bytes
    # Offsets of both orders are sums of the lengths, in up to 8 bytes, written and read.
    scans = 2 * 8.0 * (lengths.numel + chosen_bytes / max(lengths.item_bytes, 1.0))
    high = low + lengths.bytes + scans + (1 + repeats) * moved
    return Cost(RAGGED, bytes_low=low, bytes_high=high, math_dtype="fp32")


def _complete_sum(call: OpCall) -> Cost:
    """asynchronous_complete_cumsum(x), …_inclusive_cumsum, …_exclusive_cumsum: one pass with look-back."""
    x = call.tensor(0)
    return stream(RAGGED, x, Tensor((x.numel + 1,), x.dtype), vector_flops=float(x.numel))


def _bucketize(call: OpCall) -> Cost:
    """block_bucketize_sparse_features(lengths, indices, …): values dealt out to buckets, in two passes.

    The lengths per bucket are as many per length as there are buckets, a number that old traces do not hold.
    """
    tensors = call.tensors()
    read = sum(tensor.bytes for tensor in tensors)
    return Cost(RAGGED, vector_flops=sum(t.numel for t in tensors), bytes_low=read, bytes_high=6 * read + SECTOR_BYTES)


def _ranges(call: OpCall) -> Cost:
    """offsets_range(offsets, size), lengths_range(lengths, …): as many positions written as the ranges hold."""
    offsets, size = call.tensor(0), call.integer(1)
    second = call.arguments[1] if len(call.arguments) > 1 else None
    if size is None and not isinstance(second, Tensor):
        raise Unmodelled("no_result_size")
    count = size if size is not None else second.numel if isinstance(second, Tensor) else 0
    return stream(RAGGED, offsets, Tensor((count,), offsets.dtype))


def _segment_sum(call: OpCall) -> Cost:
    """segment_sum_csr(batch size, offsets, values): values read, one sum per segment written."""
    offsets, values = call.tensor(1), call.tensor(2)
    return stream(RAGGED, offsets, values, Tensor((max(offsets.numel - 1, 0),), values.dtype))


def _dense(call: OpCall) -> Cost:
    """to_dense_representation(values, lengths, …): one value or zero per length written."""
    tensors = call.tensors()
    read = tensors[-1].bytes + Tensor(tensors[-1].shape, tensors[0].dtype).bytes
    return Cost(RAGGED, bytes_low=read, bytes_high=read + sum(tensor.bytes for tensor in tensors), math_dtype="fp32")


_LOOKUPS = {
    f"split_embedding_codegen_lookup_{optimizer}_function": partial(_forward, CLASSIC) for optimizer in OPTIMIZERS
}
_PT2_LOOKUPS = {f"{name}_pt2": partial(_forward, _LISTED) for name in _LOOKUPS}
_RAGGED: dict[str, Formula] = {
    "permute_pooled_embs permute_pooled_embs_auto_grad permute_duplicate_pooled_embs": _copied,
    "recat_embedding_grad_output recat_embedding_grad_output_mixed_D": _copied,
    "recat_embedding_grad_output_mixed_D_batch": _copied,
    "bounds_check_indices": _bounds_check,
    "permute_sparse_features permute_2D_sparse_data permute_1D_sparse_data permute_sparse_data": _permute_sparse,
    "asynchronous_complete_cumsum asynchronous_inclusive_cumsum asynchronous_exclusive_cumsum": _complete_sum,
    "block_bucketize_sparse_features bucketize_sparse_features": _bucketize,
    "offsets_range lengths_range": _ranges,
    "segment_sum_csr": _segment_sum,
    "to_dense_representation": _dense,
}
_NODE = "torch::autograd::CppNode<{}>"

FORMULAS: Formulas = {
    **named({**_LOOKUPS, **_PT2_LOOKUPS, **_RAGGED}, prefix="fbgemm::"),
    **named({**_LOOKUPS, **_RAGGED}, prefix="fb::"),
    **{_NODE.format(f"SplitLookupFunction_{optimizer}_Op"): _backward for optimizer in OPTIMIZERS},
    _NODE.format("fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> "): _copied,
    _NODE.format("fbgemm_gpu::PermutePooledEmbsFunctionSplit<&fbgemm_gpu::permute_pooled_embs_split_gpu> "): _copied,
}
