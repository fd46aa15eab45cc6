"""Costs of ops that write without reading: constants, ranges and random numbers."""

import math
from functools import partial

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, Unmodelled, recorded
from bottleneck.cost.traffic import Streams, dtype_argument, named, stream

FILL, RANDOM = "fill", "random"

# Philox spends about 40 integer operations on four numbers; the transformation to a distribution comes on top.
RANDOM_FLOPS = 10.0

# dtype, layout, device and pin_memory close every factory that is not given an out= tensor.
_FACTORY_OPTIONS = 4


def _like(family: str, dtype_position: int, call: OpCall) -> Cost:
    """The cost of zeros_like(x, dtype) and similar ops: a tensor shaped like x written."""
    x = call.tensor(0)
    return _written(family, Tensor(x.shape, dtype_argument(call, dtype_position, x.dtype)))


def _sized(family: str, size_position: int, default: str, call: OpCall) -> Cost:
    """Prices zeros(size, dtype) and similar ops.

    The size is among the recorded scalars.
    """
    out = _given(call)
    if out is not None and size_position == 0:
        return _written(family, out)
    return _written(family, Tensor(call.result_size(size_position), dtype_argument(call, size_position + 1, default)))


def _given(call: OpCall) -> Tensor | None:
    """The ``out=`` tensor, the last one that has elements; null where none was given."""
    return next((tensor for tensor in reversed(call.tensors()) if tensor.numel), None)


def _full(call: OpCall) -> Cost:
    """full(size, value, dtype): the value gives the dtype unless one is named."""
    default = "float" if "." in call.text(1) else "long int"
    size = call.result_size(0)
    return _written(FILL, _given(call) or Tensor(size, dtype_argument(call, 2, default)))


def _arange(call: OpCall) -> Cost:
    """Prices arange([start, ]end[, step]).

    The bounds give the length, and the dtype unless one is named.
    """
    tail = 1 if call.tensors() else _FACTORY_OPTIONS
    count = len(call.arguments) - tail
    texts = [call.text(position) for position in range(count)]
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = []
    if count not in {1, 2, 3} or not numbers:
        raise Unmodelled("no_bounds")
    start, end, step = {1: (0.0, *numbers, 1.0), 2: (*numbers, 1.0), 3: tuple(numbers)}[count]
    default = "float" if any("." in text for text in texts) else "long int"
    dtype = call.tensors()[-1].dtype if call.tensors() else dtype_argument(call, count, default)
    return _written(FILL, Tensor((max(0, math.ceil((end - start) / step)),), dtype))


def _triangle(call: OpCall) -> Cost:
    """tril_indices(rows, columns, offset, dtype), triu_indices …: two coordinates of each element of the triangle."""
    rows, columns, offset = (call.integer(position) for position in range(3))
    if rows is None or columns is None or offset is None or min(rows, columns) < 0:
        raise Unmodelled("no_result_size")
    below = _lower_triangle(rows, columns, offset if call.name == "aten::tril_indices" else offset - 1)
    count = below if call.name == "aten::tril_indices" else rows * columns - below
    return _written(FILL, Tensor((2, count), dtype_argument(call, 3, "long int")))


def _lower_triangle(rows: int, columns: int, offset: int) -> int:
    """Elements (i, j) of a matrix with j - i <= offset."""
    first = min(max(offset + 1, 0), columns)
    empty = min(max(-offset - 1, 0), rows) if first == 0 else 0
    slanted = min(max(columns - first, 0), rows - empty)
    start = first if empty == 0 else 0
    slant = slanted * start + slanted * (slanted - 1) // 2
    return slant + (rows - empty - slanted) * columns


def _eye(call: OpCall) -> Cost:
    """eye(n[, m], dtype): a matrix cleared, its diagonal set."""
    out = _given(call)
    if out is not None:
        return _written(FILL, out)
    square = len(call.arguments) == 1 + _FACTORY_OPTIONS
    rows, columns = call.integer(0), call.integer(0 if square else 1)
    if rows is None or columns is None:
        raise Unmodelled("no_result_size")
    return _written(FILL, Tensor((rows, columns), dtype_argument(call, 1 if square else 2, "float")))


def _counted(family: str, count_position: int, default: str, call: OpCall) -> Cost:
    """Prices linspace(start, end, steps) and randperm(n).

    One argument gives the number of elements.
    """
    count = recorded(call.integer(count_position), "no_result_size")
    return _written(family, Tensor((count,), dtype_argument(call, count_position + 1, default)))


def _written(family: str, tensor: Tensor) -> Cost:
    flops = RANDOM_FLOPS * tensor.numel if family == RANDOM else 0.0
    return stream(family, tensor, vector_flops=flops)


_DRAWN = Streams(RANDOM, 1, (), RANDOM_FLOPS, optional=(1,))

FORMULAS: Formulas = named(
    {
        "fill_ zero_ fill zero fill_diagonal_": Streams(FILL, 1, ()),
        # (x, …) and bernoulli_(x, p): x written, and probabilities read where p is a tensor.
        "normal_ uniform_ bernoulli_ random_ exponential_ geometric_ log_normal_ cauchy_": _DRAWN,
        "zeros_like ones_like": partial(_like, FILL, 1),
        "full_like": partial(_like, FILL, 2),
        "rand_like randn_like": partial(_like, RANDOM, 1),
        "zeros ones": partial(_sized, FILL, 0, "float"),
        "full": _full,
        "new_zeros new_ones": partial(_sized, FILL, 1, "float"),
        "rand randn": partial(_sized, RANDOM, 0, "float"),
        "bernoulli": Streams(RANDOM, 1, flops=RANDOM_FLOPS),  # the probabilities read, as many draws written
        "arange": _arange,
        "tril_indices triu_indices": _triangle,
        "eye": _eye,
        "linspace logspace": partial(_counted, FILL, 2, "float"),
        "randperm": partial(_counted, RANDOM, 0, "long int"),
    }
)
