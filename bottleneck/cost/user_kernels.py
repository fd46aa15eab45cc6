"""Costs of Triton kernels that users wrote, from the arguments of their launch.

A compiled graph launches such a kernel inside an op of the kernel's name and a number, whose arguments are those of the
kernel and, last, its grid: buffers as tensors, sizes as numbers. Neither tells what the kernel computes. The name says
of which kind it is; the sizes have to agree, else there is no cost. A cost is what the kind takes at least.
"""

import re
from collections.abc import Callable

from bottleneck.cost.call import Cost, OpCall, Scalar, Tensor, Unmodelled
from bottleneck.cost.traffic import stream
from bottleneck.schema.records import replace

ONCE = "lower end: what a kernel of the user does beyond moving its buffers once was not recorded"
HALF = "lower end: a product that is symmetric, half of which a kernel may copy"

_NUMBERED = re.compile(r"[A-Za-z_]\w*_\d+")


def _words(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:^|_)(?:{words})(?=_|\d|$)", re.IGNORECASE)


def _buffers(call: OpCall) -> list[Tensor]:
    buffers = [tensor for tensor in call.tensors() if tensor.numel]
    if not buffers:
        raise Unmodelled("no_buffers")
    return buffers


def _product(call: OpCall) -> Cost:
    """Prices a product by 2mnk FLOPs.

    It is one where three numbers m, n, k in a row are the sizes of buffers [m, k], [n, k] and [m, n].
    """
    buffers = _buffers(call)
    numbers = [call.integer(at) or 0 for at in range(len(call.arguments)) if isinstance(call.arguments[at], Scalar)]
    counts = [tensor.numel for tensor in buffers]
    products = {
        m * n * k: (m, n, k)
        for m, n, k in zip(numbers, numbers[1:], numbers[2:], strict=False)
        if min(m, n, k) > 1 and _holds(counts, m * k, n * k, m * n)
    }
    if len(products) != 1:
        raise Unmodelled("open_factors")
    ((m, n, k),) = products.values()
    sizes = {"m": float(m), "n": float(n), "k": float(k), "batch": 1.0}
    return replace(_moved("matmul", buffers), matrix_flops=2.0 * m * n * k, **sizes)


def _holds(counts: list[int], *wanted: int) -> bool:
    """Tells whether each wanted count is of a buffer of its own."""
    left = list(counts)
    for count in wanted:
        if count not in left:
            return False
        left.remove(count)
    return True


def _symmetric(call: OpCall) -> Cost:
    """Prices a product of a matrix and itself.

    It is [.., m, k] x [.., k, m], and takes half of 2mmk FLOPs at least.
    """
    buffers = _buffers(call)
    matrices = [tensor for tensor in buffers if len(tensor.shape) >= 2]
    square = next((tensor for tensor in matrices if tensor.shape[-1] == tensor.shape[-2]), None)
    other = next((tensor for tensor in matrices if tensor is not square), square)
    if square is None or other is None or square.shape[-1] not in other.shape[-2:]:
        raise Unmodelled("open_factors")
    m = square.shape[-1]
    batch = square.numel // (m * m)
    k = other.numel // (batch * m)
    return replace(_moved("matmul", buffers), matrix_flops=float(batch * m * m * k), note=HALF)


def _streamed(family: str, flops: float, special_ops: float) -> Callable[[OpCall], Cost]:
    """Gives the formula of a kernel that passes over its buffers.

    It passes over them once at least, twice at most.
    """

    def formula(call: OpCall) -> Cost:
        buffers = _buffers(call)
        most = max(tensor.numel for tensor in buffers)
        cost = stream(family, *buffers, vector_flops=flops * most, special_ops=special_ops * most)
        return replace(cost, bytes_high=2 * cost.bytes_high, note=ONCE)

    return formula


def _moved(family: str, buffers: list[Tensor]) -> Cost:
    moved = float(sum(buffer.bytes for buffer in buffers))
    return Cost(family, bytes_low=moved, bytes_high=moved, math_dtype=buffers[0].short_dtype)


# Kinds of kernels by words in their names; the first that fits.
_KINDS: tuple[tuple[re.Pattern[str], Callable[[OpCall], Cost]], ...] = (
    (_words("xxt|xtx|aat|ata|ba_plus_caa|syrk"), _symmetric),
    (_words("matmul|gemm|linear|mm|bmm"), _product),
    (_words("cross_?entropy|entropy|ce_loss|nll"), _streamed("loss", 4.0, 1.0)),
    (_words("softmax"), _streamed("softmax", 4.0, 1.0)),
    (_words("rms_?norm|layer_?norm|group_?norm"), _streamed("normalization", 4.0, 0.0)),
    (_words("swiglu|geglu|silu|gelu|relu|rope|rotary|residual"), _streamed("pointwise", 1.0, 0.0)),
)


def formula(name: str) -> Callable[[OpCall], Cost] | None:
    """The formula of a user's kernel of this name; null for every other name."""
    if not _NUMBERED.fullmatch(name):
        return None
    return next((kind for words, kind in _KINDS if words.search(name)), None)
