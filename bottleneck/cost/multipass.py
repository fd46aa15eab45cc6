"""Costs of ops that pass over their data several times.

These are scans, sorting, selection and Fourier transforms.
"""

import math
from functools import partial

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, Unmodelled, recorded
from bottleneck.cost.traffic import (
    SECTOR_BYTES,
    Streams,
    as_complex,
    as_real,
    as_sum,
    dtype_argument,
    math_dtype,
    named,
    stream,
)

SCAN, SORT, FFT = "scan", "sort", "fft"

_INDEX_BYTES = 8.0
# A radix sort reads and writes keys and indices once per 8 bits of the key, up to 8 times.
_SORT_PASSES = 8
# A radix selection reads its row once per digit.
_SELECT_PASSES = 8
# Points that a block transforms in one pass over memory.
_FFT_POINTS_PER_PASS = 4096


def _cumulative(call: OpCall) -> Cost:
    """cumsum(x, dim, dtype), cumprod …: one pass with decoupled look-back."""
    x = call.tensor(0)
    dtype = x.dtype if call.name.endswith("_") else dtype_argument(call, 2, as_sum(x.dtype))
    return stream(SCAN, x, Tensor(x.shape, dtype), vector_flops=x.numel)


def _nonzero(call: OpCall) -> Cost:
    """Prices nonzero(x).

    x is read (once more to write), and as many coordinates are written as the data has.

    A scan compacts them. It is extra work of an index by a mask, which still fetches its elements itself.
    """
    x = call.tensor(0)
    return Cost(
        SCAN,
        vector_flops=float(x.numel),
        bytes_low=x.bytes,
        bytes_high=2 * x.bytes + x.numel * len(x.shape) * _INDEX_BYTES,
        math_dtype="fp32",
    )


def _sort(call: OpCall) -> Cost:
    """Prices sort(x, …).

    x is read, values and indices are written, at most in as many passes as a radix sort makes.
    """
    x = call.tensor(0)
    once = x.bytes + x.numel * (x.item_bytes + _INDEX_BYTES)
    passes = _SORT_PASSES * 2 * x.numel * (x.item_bytes + _INDEX_BYTES)
    return _passes(SORT, x, once, passes)


def _unique(call: OpCall) -> Cost:
    """_unique2(x, …), unique_consecutive(x, …): the number of results is data."""
    x = call.tensor(0)
    return _passes(SORT, x, x.bytes, (_SORT_PASSES + 2) * 2 * x.numel * (x.item_bytes + _INDEX_BYTES))


def _topk(call: OpCall) -> Cost:
    """Prices topk(x, k, dim, …).

    x is read once at least. At most it is read once per digit and sorted.
    """
    x, k, dim = call.tensor(0), call.integer(1), call.integer(2)
    row = x.shape[-1 if dim is None else dim] if x.shape else 1
    results = 0.0 if k is None else x.numel / max(1, row) * k * (x.item_bytes + _INDEX_BYTES)
    return _passes(SORT, x, x.bytes + results, _SELECT_PASSES * x.bytes + 2 * _SORT_PASSES * results)


def _select(call: OpCall) -> Cost:
    """median(x, …), kthvalue, mode: x read once at least, once per digit at most."""
    x = call.tensor(0)
    return _passes(SORT, x, x.bytes, _SELECT_PASSES * x.bytes + 2 * x.numel * _INDEX_BYTES)


def _histogram(call: OpCall) -> Cost:
    """Prices histc(x, bins, …) and bincount(x, weights, …).

    x is read. Each element counts in a bin, at worst in DRAM.
    """
    x, weights = call.tensor(0), call.optional_tensor(1)
    read = x.bytes + (weights.bytes if weights is not None else 0.0)
    return Cost(SORT, vector_flops=x.numel, bytes_low=read, bytes_high=read + 2 * x.numel * SECTOR_BYTES)


def _draws(call: OpCall) -> Cost:
    """Prices multinomial(p, draws, …).

    The probabilities are read, and summed along each row at worst. The draws are written.
    """
    p, draws = call.tensor(0), recorded(call.integer(1), "no_draws")
    written = p.numel // max(p.shape[-1] if p.shape else 1, 1) * draws * _INDEX_BYTES
    return _passes(SORT, p, p.bytes + written, 5 * p.bytes + written)


def _passes(family: str, x: Tensor, low: float, high: float) -> Cost:
    return Cost(
        family,
        vector_flops=float(x.numel),
        bytes_low=low,
        bytes_high=max(low, high),
        math_dtype=math_dtype(x),
    )


def _fft(result: str, flops_per_point: float, call: OpCall) -> Cost:
    """Prices _fft_c2c, _fft_r2c and _fft_c2r.

    Their arguments are (x, dims, …), then ``onesided`` for _fft_r2c and the last size for _fft_c2r.

    FLOPs are the usual 5 n log2 n of a complex transform of n points, half of that where one side is real. A dimension
    of more points than a block holds takes a second pass.
    """
    x, dims = call.tensor(0), call.integers(1)
    if not dims:
        raise Unmodelled("no_transformed")
    shape = list(x.shape)
    if result == "half" and call.flag(3) is not False:
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    elif result == "real":
        shape[dims[-1]] = call.integer(3) or 2 * (shape[dims[-1]] - 1)
    y = Tensor(tuple(shape), as_real(x.dtype) if result == "real" else as_complex(as_real(x.dtype)))
    points = max(x.numel, y.numel)
    length = math.prod(max(x.shape[dim], shape[dim]) for dim in dims)
    passes = sum(1 + (max(x.shape[dim], shape[dim]) > _FFT_POINTS_PER_PASS) for dim in dims)
    return Cost(
        FFT,
        vector_flops=flops_per_point * points * math.log2(max(2, length)),
        bytes_low=x.bytes + y.bytes,
        bytes_high=x.bytes + y.bytes + (passes - 1) * 2 * max(x.bytes, y.bytes),
        math_dtype=math_dtype(x, y),
    )


SORTS: Formulas = named(
    {
        "sort": _sort,
        "_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive": _unique,
        "topk": _topk,
        "median nanmedian kthvalue mode": _select,
        "histc bincount histogram": _histogram,
        "multinomial": _draws,
    }
)
SCANS: Formulas = named(
    {
        "cumsum cumprod cumsum_ cumprod_": _cumulative,
        "_cummax_helper _cummin_helper": Streams(
            SCAN, 1, (0, (0, "long int")), 1.0
        ),  # values, and where they came from
        "_logcumsumexp": Streams(SCAN, 1, flops=4.0, special_ops=2.0),
        "nonzero": _nonzero,
        "_fft_c2c": partial(_fft, "complex", 5.0),
        "_fft_r2c": partial(_fft, "half", 2.5),
        "_fft_c2r": partial(_fft, "real", 2.5),
    }
)
FORMULAS: Formulas = {**SORTS, **SCANS}
