"""Cost of ops that slide or stretch a grid.

These are pooling, upsampling and grid sampling, and their backward passes.
"""

import math
from functools import partial

from msgspec import Struct

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, recorded
from bottleneck.cost.traffic import SECTOR_BYTES, named, op_names, stream
from bottleneck.schema.records import replace

FAMILY = "pooling"

_INDEX = ("long int",)


class PoolingWindow(Struct, frozen=True):
    """The sliding window of a pooling call, one entry per spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    rounds_up: bool

    def outputs(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Counts the positions of the window per dimension.

        The last one starts inside the input or its left padding.
        """
        return tuple(self._positions(size, dim) for dim, size in enumerate(sizes))

    def _positions(self, size: int, dim: int) -> int:
        stride, padding = self.stride[dim], self.padding[dim]
        reach = size + 2 * padding - self.dilation[dim] * (self.kernel[dim] - 1) - 1
        count = (reach + stride - 1 if self.rounds_up else reach) // stride + 1
        return count - 1 if self.rounds_up and (count - 1) * stride >= size + padding else count


def _window(call: OpCall, rank: int, dilation_position: int | None, ceil_position: int) -> PoolingWindow | None:
    """The window of pool(x, kernel, stride, padding, …); null when it was not recorded."""
    kernel = _spread(call.integers(1), rank)
    if kernel is None:
        return None
    ones, zeros = (1,) * rank, (0,) * rank
    dilation = ones if dilation_position is None else _spread(call.integers(dilation_position), rank) or ones
    return PoolingWindow(
        kernel,
        _spread(call.integers(2), rank) or kernel,
        _spread(call.integers(3), rank) or zeros,
        dilation,
        rounds_up=call.flag(ceil_position) is True,
    )


def _spread(values: tuple[int, ...] | None, rank: int) -> tuple[int, ...] | None:
    """One value per spatial dimension; a single value holds for all."""
    return None if not values else values if len(values) == rank else values[:1] * rank


def _pool(rank: int, dilation_position: int | None, ceil_position: int, index: tuple[str, ...], call: OpCall) -> Cost:
    """The cost of max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil) or avg_pool2d(…, ceil, …).

    Where the window was not recorded, it is taken to cover x; the result is as large as x at most.
    """
    x = call.tensor(0)
    window = _window(call, rank, dilation_position, ceil_position)
    if window is None:
        largest = _pooled(x, Tensor(x.shape, x.dtype), 1.0, index)
        return replace(largest, bytes_low=x.bytes)
    taps = math.prod(window.kernel)
    shape = (*x.shape[:-rank], *window.outputs(x.shape[-rank:]))
    return _pooled(x, Tensor(shape, x.dtype), taps, index)


def _adaptive(rank: int, index: tuple[str, ...], call: OpCall) -> Cost:
    """The cost of _adaptive_avg_pool2d(x, output size): windows that tile the input."""
    x, y = call.tensor(0), _resized(call, rank)
    return _pooled(x, y, max(1.0, x.numel / max(1, y.numel)), index)


def _resized(call: OpCall, rank: int) -> Tensor:
    """Gives the result of an op (x, output size, …).

    It is like x, but of the recorded size in the last dimensions.
    """
    x, size = call.tensor(0), recorded(_spread(call.integers(1), rank), "no_result_size")
    return Tensor((*x.shape[:-rank], *size), x.dtype)


def _pooled(x: Tensor, y: Tensor, taps: float, index: tuple[str, ...]) -> Cost:
    """Prices reading x where windows cover it and writing y.

    The indices of y are written where the op gives them.
    """
    written = (y, *(Tensor(y.shape, dtype) for dtype in index))
    cost = stream(FAMILY, x, *written, vector_flops=taps * y.numel)
    return replace(cost, bytes_low=cost.bytes_low - max(0.0, x.bytes - y.numel * taps * x.item_bytes))


def _max_pool_backward(index_position: int, call: OpCall) -> Cost:
    """Prices max_pool2d_with_indices_backward(dy, x, …, indices).

    x is not read, its gradient is written.

    The gradient is cleared by a child op; at least one element per result is written then, at most each twice.
    """
    dy, x, indices = call.tensor(0), call.tensor(1), call.tensor(index_position)
    dx = Tensor(x.shape, dy.dtype)
    cost = stream(FAMILY, dy, indices, dx, vector_flops=dy.numel)
    return replace(cost, bytes_low=dy.bytes + indices.bytes + min(dy.bytes, dx.bytes))


def _average_backward(call: OpCall) -> Cost:
    """avg_pool2d_backward(dy, x, …), _adaptive_avg_pool2d_backward(dy, x): x is not read, its gradient is written."""
    dy, x = call.tensor(0), call.tensor(1)
    return stream(FAMILY, dy, Tensor(x.shape, dy.dtype), vector_flops=max(dy.numel, x.numel))


def _upsample(rank: int, flops: float, call: OpCall) -> Cost:
    """The cost of upsample_bilinear2d(x, output size, …); ``flops`` per element of the result."""
    x, y = call.tensor(0), _resized(call, rank)
    return stream(FAMILY, x, y, vector_flops=flops * y.numel)


def _upsample_backward(flops: float, call: OpCall) -> Cost:
    """The cost of upsample_bilinear2d_backward(dy, output size, input size, …); ``flops`` per element of dy."""
    dy = call.tensor(0)
    return stream(FAMILY, dy, Tensor(call.result_size(2), dy.dtype), vector_flops=flops * dy.numel)


def _grid_sample(call: OpCall) -> Cost:
    """grid_sampler_2d(x, grid, …): four neighbours per result at positions that the grid gives."""
    x, grid = call.tensor(0), call.tensor(1)
    y = Tensor((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    fixed = stream(FAMILY, grid, y, vector_flops=8.0 * y.numel)
    return replace(fixed, bytes_high=fixed.bytes_high + max(x.bytes, 2.0 * y.numel * SECTOR_BYTES))


def _grid_sample_backward(call: OpCall) -> Cost:
    """Prices grid_sampler_2d_backward(dy, x, grid, …).

    It makes gradients of x, at the same places, and of the grid.
    """
    dy, x, grid = (call.tensor(position) for position in range(3))
    fixed = stream(FAMILY, dy, grid, Tensor(grid.shape, grid.dtype), vector_flops=20.0 * dy.numel)
    scattered = max(2 * x.bytes, 4.0 * dy.numel * SECTOR_BYTES)
    return replace(fixed, bytes_high=fixed.bytes_high + x.bytes + scattered)


_UPSAMPLERS = {
    "upsample_nearest": (0.0, (1, 2, 3)),
    "_upsample_nearest_exact": (0.0, (1, 2, 3)),
    "upsample_linear": (4.0, (1,)),
    "upsample_bilinear": (8.0, (2,)),
    "upsample_trilinear": (16.0, (3,)),
    "upsample_bicubic": (40.0, (2,)),
}

# Ops that only choose an implementation and call it.
COMPOSITES = op_names("""
    max_pool1d max_pool2d max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d
    adaptive_max_pool1d grid_sampler
""")

FORMULAS: Formulas = {
    **{
        f"aten::{name}{rank}d{suffix}": make
        for name, (flops, ranks) in _UPSAMPLERS.items()
        for rank in ranks
        for suffix, make in (("", partial(_upsample, rank, flops)), ("_backward", partial(_upsample_backward, flops)))
    },
    **named({f"max_pool{rank}d_with_indices": partial(_pool, rank, 4, 5, _INDEX) for rank in (2, 3)}),
    **named({f"mkldnn_max_pool{rank}d": partial(_pool, rank, 4, 5, ()) for rank in (2, 3)}),
    **named({f"max_pool{rank}d_with_indices_backward": partial(_max_pool_backward, 7) for rank in (2, 3)}),
    **named({f"avg_pool{rank}d": partial(_pool, rank, None, 4, ()) for rank in (2, 3)}),
    **named({f"_adaptive_avg_pool{rank}d": partial(_adaptive, rank, ()) for rank in (2, 3)}),
    **named({f"adaptive_max_pool{rank}d": partial(_adaptive, rank, _INDEX) for rank in (2, 3)}),
    **named({f"adaptive_max_pool{rank}d_backward": partial(_max_pool_backward, 2) for rank in (2, 3)}),
    **named(
        {
            "avg_pool2d_backward avg_pool3d_backward": _average_backward,
            "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward": _average_backward,
            "_upsample_bilinear2d_aa": partial(_upsample, 2, 8.0),
            "_upsample_bicubic2d_aa": partial(_upsample, 2, 40.0),
            "_upsample_bilinear2d_aa_backward": partial(_upsample_backward, 8.0),
            "_upsample_bicubic2d_aa_backward": partial(_upsample_backward, 40.0),
            "mkldnn_adaptive_avg_pool2d": partial(_adaptive, 2, ()),
            "mkldnn_adaptive_avg_pool2d_backward": _average_backward,
            "grid_sampler_2d cudnn_grid_sampler grid_sampler_3d": _grid_sample,
            "grid_sampler_2d_backward grid_sampler_3d_backward": _grid_sample_backward,
        }
    ),
}
