"""Cost of ops that go through an index.

These are gather, scatter, embedding and masks. A cost that depends on data is an interval.
"""

import math
from functools import partial

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, Unmodelled
from bottleneck.cost.traffic import SECTOR_BYTES, dtype_argument, named
from bottleneck.schema.records import replace

FAMILY = "indexing"

_INDEX_BYTES = 8.0
# Equal destinations are found by a radix sort of index and position, four passes or more; each reads and writes both.
_SORT_BYTES = 4 * 2 * 2 * _INDEX_BYTES


def _interval(low: float, high: float, flops: float = 0.0) -> Cost:
    return Cost(FAMILY, vector_flops=flops, bytes_low=low, bytes_high=max(low, high), math_dtype="fp32")


def _rows(count: int, row_elements: int, item_bytes: float) -> float:
    """Bytes of ``count`` scattered rows, each of whole sectors."""
    return count * math.ceil(row_elements * item_bytes / SECTOR_BYTES) * SECTOR_BYTES


def _row_elements(tensor: Tensor, dim: int) -> int:
    """Neighbouring elements that one index along ``dim`` selects."""
    return math.prod(tensor.shape[dim:][1:]) if dim >= 0 else math.prod(tensor.shape[len(tensor.shape) + dim + 1 :])


def _dim(call: OpCall, tensor: Tensor) -> int:
    if len(tensor.shape) <= 1:
        return 0
    dim = call.integer(1)
    if dim is None or not -len(tensor.shape) <= dim < len(tensor.shape):
        raise Unmodelled("no_dimension")
    return dim


def _index_select(call: OpCall) -> Cost:
    """Prices index_select(x, dim, index), which copies rows of x.

    They are one row at least, all different at most.
    """
    x, index = call.tensor(0), call.tensor(2)
    dim = _dim(call, x)
    selected = x.numel // max(1, x.shape[dim] if x.shape else 1)
    row = _row_elements(x, dim)
    written = index.numel * selected * x.item_bytes
    return _interval(
        index.bytes + written + selected * x.item_bytes,
        index.bytes + written + _rows(index.numel * (selected // max(1, row)), row, x.item_bytes),
    )


def _embedding(call: OpCall) -> Cost:
    """embedding(table, index): one row per index read and written."""
    table, index = call.tensor(0), call.tensor(1)
    width = math.prod(table.shape[1:])
    written = index.numel * width * table.item_bytes
    row = width * table.item_bytes
    return _interval(
        index.bytes + written + min(index.numel, 1) * row,
        index.bytes + written + _rows(index.numel, width, table.item_bytes),
    )


def _embedding_dense_backward(call: OpCall) -> Cost:
    """embedding_dense_backward(dy, index, …): one row of the gradient added to per index.

    A child op clears the gradient. The rows are one at least; all different at most, with the indices sorted.
    """
    dy, index = call.tensor(0), call.tensor(1)
    width = dy.numel // max(1, index.numel)
    return _rows_added(dy, index, dy.bytes, width)


def _rows_added(dy: Tensor, index: Tensor, read_bytes: float, width: int) -> Cost:
    low = read_bytes + index.bytes + min(1, index.numel) * width * dy.item_bytes
    high = low + 2 * _rows(index.numel, width, dy.item_bytes) + index.numel * _SORT_BYTES
    return _interval(low, high, index.numel * width)


def _embedding_bag(call: OpCall) -> Cost:
    """One row read per index, one written per bag: (table, index, offsets, …)."""
    table, index, offsets = (call.tensor(position) for position in range(3))
    width = math.prod(table.shape[1:])
    fixed = index.bytes + offsets.bytes + offsets.numel * width * table.item_bytes
    return _interval(
        fixed + min(index.numel, 1) * width * table.item_bytes,
        fixed + _rows(index.numel, width, table.item_bytes) + 2 * index.bytes + 2 * offsets.bytes,
        index.numel * width,
    )


def _embedding_bag_backward(call: OpCall) -> Cost:
    """Prices the backward pass (dy, index, offset2bag, bag_size, …).

    One row of dy is read, and one row of the gradient added to, per index.
    """
    dy, index = call.tensor(0), call.tensor(1)
    width = math.prod(dy.shape[1:])
    cost = _rows_added(dy, index, dy.bytes, width)
    return replace(cost, bytes_high=cost.bytes_high + _rows(index.numel, width, dy.item_bytes))


def _gather(call: OpCall) -> Cost:
    """Prices gather(x, dim, index) and take(x, index).

    One element is read per index, from a sector of its own at most.
    """
    x = call.tensor(0)
    index = call.tensor(1 if call.name == "aten::take" else 2)
    fixed = index.bytes + index.numel * x.item_bytes
    return _interval(fixed, fixed + index.numel * max(SECTOR_BYTES, x.item_bytes))


def _scatter(accesses: int, call: OpCall) -> Cost:
    """Prices scatter(x, dim, index, source).

    Each element of the source goes to its index.

    ``accesses`` is 1 where the destination is only written and 2 where it is added to. Destinations may all be the same
    (low) or each in a sector of its own (high). The copy of x that an out-of-place form makes is a child ``copy_``.
    """
    x, index, source = call.tensor(0), call.tensor(2), call.optional_tensor(3)
    read = index.bytes + (index.numel * source.item_bytes if source is not None and source.shape else 0.0)
    touched = index.numel * max(SECTOR_BYTES, x.item_bytes)
    return _interval(read, read + accesses * touched, (accesses - 1) * index.numel)


def _index_write(accesses: int, call: OpCall) -> Cost:
    """Prices index_add_(x, dim, index, source), index_copy_ and index_fill_.

    Whole rows of x are written.
    """
    x, index, source = call.tensor(0), call.tensor(2), call.optional_tensor(3)
    row = _row_elements(x, _dim(call, x))
    selected = index.numel * (x.numel // max(1, x.shape[_dim(call, x)] if x.shape else 1))
    read = index.bytes + (source.bytes if source is not None else 0.0)
    return _interval(
        read, read + accesses * _rows(selected // max(1, row), row, x.item_bytes), (accesses - 1) * selected
    )


def _index_put(call: OpCall) -> Cost:
    """Prices index_put_(x, indices, values, accumulate).

    The cost follows from the values, since the trace has no indices.
    """
    x, values = call.tensor(0), call.tensor(2)
    if values.numel <= 1 < x.numel:
        raise Unmodelled("no_indices")
    passes = 2 if call.flag(3) else 1
    touched = passes * values.numel * max(SECTOR_BYTES, x.item_bytes)
    sorting = (passes - 1) * values.numel * _SORT_BYTES
    indices = values.numel * _INDEX_BYTES
    return _interval(values.bytes, values.bytes + indices + touched + sorting, (passes - 1) * values.numel)


def _index(call: OpCall) -> Cost:
    """Prices index(x, indices) from the sizes of the result.

    The trace has no indices.

    The sizes are those of an ``out=`` tensor, or of the view of x that the op makes. Every element is written; all may
    come from one place (low), or each from a sector of its own, whose index may be as large as the result (high).
    """
    x, out = call.tensor(0), call.tensors()[1:]
    if out and out[-1].numel:
        result = out[-1]
    elif call.result is not None:
        result = Tensor(call.result, x.dtype)
    else:
        raise Unmodelled("no_indices")
    return _interval(result.bytes, result.bytes + result.numel * (_INDEX_BYTES + max(SECTOR_BYTES, x.item_bytes)))


def _put(call: OpCall) -> Cost:
    """put_(x, index, source, accumulate): single elements written, or added to, anywhere in x."""
    x, index, source = (call.tensor(position) for position in range(3))
    accesses = 2 if call.flag(3) else 1
    read = index.bytes + source.bytes
    return _interval(
        read, read + accesses * index.numel * max(SECTOR_BYTES, x.item_bytes), (accesses - 1) * index.numel
    )


def _contained(call: OpCall) -> Cost:
    """isin(elements, candidates): sorted together, or each compared with each, whichever is less work."""
    one, other = call.tensor(0), call.tensor(1)
    read = one.bytes + other.bytes
    return _interval(read + one.numel, read + one.numel + 2 * _SORT_BYTES * (one.numel + other.numel), one.numel)


def _masked_select(call: OpCall) -> Cost:
    """Prices masked_select(x, mask).

    The mask is read. Of x between nothing and everything is read, sorted out and written.
    """
    x, mask = call.tensor(0), call.tensor(1)
    count = max(x.numel, mask.numel)
    return _interval(mask.bytes, 2 * mask.bytes + count * (2 * x.item_bytes + _INDEX_BYTES), count)


def _masked_scatter(call: OpCall) -> Cost:
    """masked_scatter(x, mask, source): the mask read and summed; between nothing and everything replaced."""
    x, mask = call.tensor(0), call.tensor(1)
    return _interval(mask.bytes, 2 * mask.bytes + x.numel * (2 * x.item_bytes + 2 * _INDEX_BYTES), mask.numel)


def _searchsorted(call: OpCall) -> Cost:
    """searchsorted(boundaries, values), bucketize(values, boundaries): a binary search per value."""
    first, second = call.tensor(0), call.tensor(1)
    values, boundaries = (first, second) if call.name == "aten::bucketize" else (second, first)
    steps = math.log2(max(2, boundaries.shape[-1] if boundaries.shape else 1))
    fixed = values.bytes + values.numel * _INDEX_BYTES
    return _interval(fixed, fixed + boundaries.bytes, values.numel * steps)


def _one_hot(call: OpCall) -> Cost:
    """one_hot(index, classes): the result cleared and one element per index set, by child ops."""
    index, classes = call.tensor(0), call.integer(1)
    if classes is None or classes < 0:
        raise Unmodelled("classes_are_data")
    written = index.numel * classes * Tensor((), dtype_argument(call, 2, "long int")).item_bytes
    return _interval(index.bytes + written, index.bytes + written + index.numel * SECTOR_BYTES)


FORMULAS: Formulas = named(
    {
        "index _unsafe_index": _index,
        "index_put index_put_ _index_put_impl_ _unsafe_index_put": _index_put,
        "index_select": _index_select,
        "index_copy index_copy_ index_fill index_fill_": partial(_index_write, 1),
        "index_add index_add_ index_reduce index_reduce_": partial(_index_write, 2),
        "gather take": _gather,
        "put put_": _put,
        "isin": _contained,
        "scatter scatter_": partial(_scatter, 1),
        "scatter_add scatter_add_ scatter_reduce scatter_reduce_": partial(_scatter, 2),
        "embedding": _embedding,
        "embedding_dense_backward": _embedding_dense_backward,
        "_embedding_bag _embedding_bag_forward_only": _embedding_bag,
        "_embedding_bag_dense_backward": _embedding_bag_backward,
        "masked_select": _masked_select,
        "masked_scatter masked_scatter_": _masked_scatter,
        "searchsorted bucketize": _searchsorted,
        "one_hot": _one_hot,
    }
)
