"""Costs of Inductor's Triton kernels and of compiled graphs' own ops.

The latter occur only in graphs of torch.compile.

A kernel's cost follows from its launch arguments and the ops in its name. Inductor launches it inside an op of the
kernel's name whose arguments are those of the kernel: buffers, then the sizes of the iteration space, outer ones first,
of which the reduced one is the last. Buffers come whole though a kernel may read but a slice of them, so none counts
for more elements than the kernel has iterations: the rule of Inductor's own ``estimate_kernel_num_bytes``. The name of
a kernel lists the ops that it fuses, each once.
"""

import math
import re
from itertools import permutations

from bottleneck.cost.call import Cost, Formula, Formulas, OpCall, Scalar, Tensor, Unmodelled
from bottleneck.cost.creation import RANDOM_FLOPS
from bottleneck.cost.pointwise import FUNCTIONAL, WITH_IN_PLACE
from bottleneck.cost.pooling import FORMULAS as POOLING
from bottleneck.cost.traffic import broadcast, math_dtype, named, promote, stream

# The prefixes of torch/_inductor/codegen/triton.py: pointwise, foreach; looped and persistent reductions, split scans.
_PREFIX = re.compile(r"triton_(poi|for|red|per|spl|tem|mm|bmm|convolution)_")
_FAMILIES = {
    "poi": "pointwise",
    "for": "pointwise",
    "red": "reduction",
    "per": "reduction",
    "spl": "reduction",
    "tem": "matmul",
    "mm": "matmul",
    "bmm": "matmul",
    "convolution": "convolution",
}
_CONVOLUTION = re.compile(r"^triton_tem\w*_convolution")

# FLOPs and special ops per element of the fused ops, by the name that Inductor gives them; those of pointwise ops are
# the cheapest path of their rules. Squares and roots are what compilers fuse of pow.
_POINTWISE = {
    word: (rule.vector_flops, rule.special_ops)
    for table in (FUNCTIONAL, WITH_IN_PLACE)
    for key, rule in table.items()
    for word in key.split()
} | {"pow": (1.0, 0.0), "native_layer_norm": (2.0, 0.0), "native_group_norm": (2.0, 0.0)}
# FLOPs per element read of the fused reductions.
_REDUCTIONS = dict.fromkeys(
    ["sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all"], 1.0
) | dict.fromkeys(["var_mean", "native_layer_norm", "native_group_norm", "_softmax", "_log_softmax"], 2.0)
_WORDS = re.compile(rf"_({'|'.join(sorted(map(re.escape, (*_POINTWISE, *_REDUCTIONS)), key=len, reverse=True))})(?=_)")


def family(name: str) -> str | None:
    """The family of a generated kernel by its name; null for every other name."""
    kind = _PREFIX.match(name)
    if kind is None:
        return None
    return "convolution" if _CONVOLUTION.match(name) else _FAMILIES[kind[1]]


def formula(name: str) -> Formula | None:
    """The formula of a generated kernel of this name; null for every other name."""
    return {
        None: None,
        "pointwise": _generated,
        "reduction": _generated,
        "matmul": _product,
        "convolution": _convolution,
    }[family(name)]


def _generated(call: OpCall) -> Cost:
    """Prices pointwise and reduction kernels.

    Each buffer moves once at least. At most the largest one is also written in place.

    The trace does not record which buffers are read, written or both. FLOPs are a lower bound: every op in the name
    counts once, and what is computed behind a reduction counts once per result.
    """
    buffers = _buffers(call)
    low, high = _iterations(call, buffers)
    sizes = [(min(buffer.numel, low) * buffer.item_bytes, min(buffer.numel, high)) for buffer in buffers]
    most = [elements * buffer.item_bytes for (_, elements), buffer in zip(sizes, buffers, strict=True)]
    is_reduction = family(call.name) == "reduction"
    reduced = call.integer(len(call.arguments) - 1) if is_reduction else None
    flops, special = _arithmetic(call.name, low, low // reduced if reduced else low, is_reduction)
    return Cost(
        str(family(call.name)),
        vector_flops=flops,
        special_ops=special,
        bytes_low=sum(least for least, _ in sizes) if low else min(most),
        bytes_high=sum(most) + max(most),
        math_dtype=math_dtype(*buffers),
    )


def _product(call: OpCall) -> Cost:
    """Prices products from templates.

    They make 2mnk FLOPs of the three buffers that fit as A[m,k], B[k,n] and C[m,n].

    The last buffer is the result; fused epilogues read others. Raises Unmodelled where no two buffers fit, or where
    different ones do that would make another product.
    """
    buffers = _buffers(call)
    *operands, result = buffers
    if "attention" in call.name:
        raise Unmodelled("block_mask")
    flops = {_product_flops(a, b, result) for a, b in permutations(operands, 2)} - {None}
    if len(flops) != 1:
        raise Unmodelled("open_factors")
    return _template("matmul", float(flops.pop() or 0), buffers)


def _convolution(call: OpCall) -> Cost:
    """Convolutions from templates: x[N,C,…], w[Cout,C/groups,…] in front, the result last."""
    buffers = _buffers(call)
    ranks = {len(buffer.shape) for buffer in (*buffers[:2], buffers[-1])}
    if len(buffers) < 3 or len(ranks) != 1 or min(ranks) < 3:
        raise Unmodelled("open_convolution")
    x, w, y = buffers[0], buffers[1], buffers[-1]
    if y.shape[1] != w.shape[0] or y.shape[0] != x.shape[0]:
        raise Unmodelled("open_convolution")
    return _template("convolution", 2.0 * y.numel * math.prod(w.shape[1:]), buffers)


def _template(family: str, flops: float, buffers: list[Tensor]) -> Cost:
    moved = sum(buffer.bytes for buffer in buffers)
    return Cost(family, matrix_flops=flops, bytes_low=moved, bytes_high=moved, math_dtype=buffers[0].short_dtype)


def _product_flops(a: Tensor, b: Tensor, c: Tensor) -> int | None:
    """Gives 2mnk, or 2bmnk for a batch, where sizes allow it.

    Null where they do not.

    The sizes of A, B and C alone fix k: |A| |B| / |C| is k squared, however the buffers are laid out.
    """
    if not 2 <= len(c.shape) <= 3 or not c.numel or len(a.shape) < len(c.shape) or len(b.shape) < len(c.shape):
        return None
    batch = c.shape[0] if len(c.shape) == 3 else 1
    squared, rest = divmod(a.numel * b.numel, batch * c.numel)
    k = math.isqrt(squared)
    fits = not rest and k * k == squared and k in a.shape and k in b.shape
    m, n = (side.numel // (batch * max(k, 1)) for side in (a, b))
    return 2 * batch * m * n * k if fits and {m, n} == set(c.shape[-2:]) else None


def _buffers(call: OpCall) -> list[Tensor]:
    """The buffers of the kernel; raises Unmodelled when none was recorded."""
    buffers = [argument for argument in call.tensors() if argument.numel]
    if not buffers:
        raise Unmodelled("no_buffers")
    return buffers


def _iterations(call: OpCall, buffers: list[Tensor]) -> tuple[int, int]:
    """Gives the least and most iterations of the kernel.

    It is 0 at least where no size was recorded.

    Kernels for changing sizes are also passed those sizes, in front of their own. So as many of the last numbers count
    as the largest buffer has room for: a product of more would be no iteration space of it.
    """
    numbers: list[int] = []
    for position in range(len(call.arguments) - 1, -1, -1):
        value = call.integer(position) if isinstance(call.arguments[position], Scalar) else None
        if value is None or value <= 0:
            break
        numbers.append(value)
    largest = max(buffer.numel for buffer in buffers)
    if not numbers:
        return 0, largest
    fitting = [total for count in range(1, len(numbers) + 1) if (total := math.prod(numbers[:count])) <= largest]
    return max(fitting, default=numbers[0]), math.prod(numbers)


def _arithmetic(name: str, elements: int, results: int, is_reduction: bool) -> tuple[float, float]:
    """Gives the least FLOPs and special ops of a kernel.

    Reductions count per element, pointwise ops per result.
    """
    words = {match[1] for match in _WORDS.finditer(name)}
    reduced = max((_REDUCTIONS.get(word, 0.0) for word in words), default=0.0) * elements if is_reduction else 0.0
    flops, special = (sum(_POINTWISE.get(word, (0.0, 0.0))[part] for word in words) for part in (0, 1))
    return reduced + flops * results, special * results


def _move(_: OpCall) -> Cost:
    """Prices ops that only move data, without arithmetic.

    In a compiled kernel the buffers give the bytes. Outside of one these ops do not occur.
    """
    return Cost("copy")


def _fused_multiply_add(call: OpCall) -> Cost:
    """Prices fma(a, b, c), with two FLOPs per element.

    The result has the shape that the operands broadcast to.
    """
    operands = call.tensors()
    result = Tensor(broadcast([operand.shape for operand in operands]), promote(operands))
    return stream("pointwise", *operands, result, vector_flops=2.0 * result.numel)


def _random(call: OpCall) -> Cost:
    """inductor_random(size, seed, kind): as many numbers as the size gives."""
    result = Tensor(call.result_size(0), "float")
    return stream("random", result, vector_flops=RANDOM_FLOPS * result.numel)


def _accumulate(call: OpCall) -> Cost:
    """_unsafe_masked_index_put_accumulate(x, mask, indices, values): one addition per value."""
    x, mask, values = call.tensor(0), call.tensor(1), call.tensor(3)
    return stream("indexing", x, mask, values, Tensor(x.shape, x.dtype), vector_flops=float(values.numel))


FORMULAS: Formulas = {
    "prims::fma": _fused_multiply_add,
    "prims::inductor_random": _random,
    "prims::_low_memory_max_pool_with_offsets": POOLING["aten::max_pool2d_with_indices"],
    "aten::_unsafe_masked_index_put_accumulate": _accumulate,
    **named({"select_scatter slice_scatter as_strided_scatter diagonal_scatter": _move}),
    **named(
        {
            "convert_element_type device_put iota inductor_lookup_seed inductor_seeds": _move,
            "_low_memory_max_pool_offsets_to_indices": _move,
        },
        prefix="prims::",
    ),
}
