"""Costs of fused attention, forward and backward, for every backend's argument order.

Positions follow the schemas of torch 2.0 to 2.13, FlashAttention 2 (flash_attn::) and 3 (flash_attn_3::).

For every pair of a query and a key that it may see, a head takes 2·(width of keys + width of values) FLOPs on the
matrix engine and one exponential; the backward pass computes the scores again. The scores never reach memory.

Queries and keys are rounded to 8 bits first, values to fp8; the products run on 8 bits, their sums in fp32.
"""

import math
import re
from functools import partial
from typing import Any

from msgspec import Struct

from bottleneck.cost.call import Cost, Formula, OpCall, Tensor, Unmodelled
from bottleneck.cost.traffic import op_names, stream
from bottleneck.schema.records import replace


class AttentionLayout(Struct, frozen=True):
    """Positions of the arguments of an attention op; null where its schema has none.

    ``heads_last``: tensors are [batch, length, heads, width] and not [batch, heads, length, width].
    ``bottom_right``: a causal mask lets the last query see the last key; else query i sees keys 0 … i.
    ``lengths`` holds cumulative query and key lengths and their maxima, for sequences packed one after the other.
    ``mask_type`` replaces ``causal`` where an integer chooses the mask: 0 none, 1 top-left, 2 bottom-right; of two
    positions (it moved in torch 2.5), the one before a flag is right. A tensor at ``unknown_with`` makes lengths depend
    on data that no trace holds.
    """

    query: int = 0
    causal: int | None = None
    mask_type: tuple[int, ...] = ()
    dropout: int | None = None
    bias: int | None = None
    window: int | None = None
    lengths: tuple[int, int, int, int] | None = None
    unknown_with: tuple[int, ...] = ()
    heads_last: bool = False
    bottom_right: bool = False


def _backward_layout(**positions: Any) -> AttentionLayout:
    """Gives the layout of a backward op.

    Its first argument is the gradient of the output, before query, key and value.
    """
    return replace(AttentionLayout(query=1), **positions)


# The position of an argument that an op does not have.
_NOWHERE = 99

# Kernels of FlashAttention 2.1 and later align bottom-right; torch's front doors check that it makes no difference.
_FLASH = AttentionLayout(heads_last=True, bottom_right=True)
_SDPA_FLASH = AttentionLayout(dropout=3, causal=4)
_FLASH_BACKWARD = _backward_layout(lengths=(6, 7, 8, 9), dropout=10, causal=11)
_CUDNN_BACKWARD = _backward_layout(bias=8, lengths=(9, 10, 11, 12), dropout=13, causal=14)
_FLASH_3 = replace(_FLASH, lengths=(7, 8, 12, 13), causal=24, window=25, unknown_with=(3, 9, 10, 11, 14))

# The op in C++ takes the gradients that it writes before the lengths, the one in Python behind them.
_FLASH_3_BACKWARD = _backward_layout(
    lengths=(9, 10, 13, 14), causal=16, window=17, unknown_with=(11, 12), heads_last=True, bottom_right=True
)
_FLASH_3_BACKWARD_IN_PYTHON = replace(_FLASH_3_BACKWARD, lengths=(6, 7, 10, 11), unknown_with=(8, 9))

FORWARD = {
    "aten::scaled_dot_product_attention": AttentionLayout(bias=3, dropout=4, causal=5),
    "aten::_scaled_dot_product_flash_attention": _SDPA_FLASH,
    "aten::_scaled_dot_product_flash_attention_for_cpu": replace(_SDPA_FLASH, bias=5),
    "aten::_scaled_dot_product_efficient_attention": AttentionLayout(bias=3, dropout=5, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": AttentionLayout(bias=3, dropout=5, causal=6),
    "aten::_scaled_dot_product_fused_attention_overrideable": AttentionLayout(bias=3, dropout=4, causal=5),
    "aten::_cudnn_attention_forward": AttentionLayout(bias=3, lengths=(4, 5, 6, 7), dropout=9, causal=10),
    "aten::_flash_attention_forward": replace(
        _FLASH, lengths=(3, 4, 5, 6), dropout=7, causal=8, window=11, unknown_with=(13, 15)
    ),
    "aten::_flash_attention_forward_no_dropout_inplace": replace(
        _FLASH, query=1, lengths=(4, 5, 6, 7), dropout=8, causal=9, window=12, unknown_with=(14, 16)
    ),
    "aten::_efficient_attention_forward": AttentionLayout(
        bias=3, lengths=(4, 5, 6, 7), mask_type=(9, 8), unknown_with=(12,), heads_last=True
    ),
    "flash_attn::_flash_attn_forward": replace(_FLASH, dropout=3, causal=5, window=6),
    "flash_attn::_flash_attn_varlen_forward": replace(
        _FLASH, lengths=(3, 4, 5, 6), dropout=7, causal=9, window=10, unknown_with=(15, 16, 17)
    ),
    # Functions of the package before 2.7, whose kernels no op launches: the mask is none of their tensors.
    "FlashAttnFunc": _FLASH,
    "FlashAttnVarlenFunc": replace(_FLASH, lengths=(3, 4, _NOWHERE, _NOWHERE)),
    "flash_attn_3::fwd": _FLASH_3,
    "flash_attn_3::_flash_attn_forward": _FLASH_3,
}

BACKWARD = {
    "aten::_scaled_dot_product_flash_attention_backward": _FLASH_BACKWARD,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _backward_layout(dropout=6, causal=7, bias=8),
    "aten::_scaled_dot_product_efficient_attention_backward": _backward_layout(bias=4, dropout=9, causal=11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _CUDNN_BACKWARD,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _backward_layout(
        bias=4, lengths=(8, 9, 10, 11), dropout=12, causal=13
    ),
    "aten::_cudnn_attention_backward": _CUDNN_BACKWARD,
    "aten::_flash_attention_backward": replace(_FLASH_BACKWARD, window=15, heads_last=True, bottom_right=True),
    "aten::_efficient_attention_backward": _backward_layout(
        bias=4, lengths=(6, 7, 8, 9), dropout=11, mask_type=(14,), heads_last=True
    ),
    "flash_attn::_flash_attn_backward": _backward_layout(
        dropout=9, causal=11, window=12, heads_last=True, bottom_right=True
    ),
    "FlashAttnFuncBackward": _backward_layout(heads_last=True, bottom_right=True),
    "FlashAttnVarlenFuncBackward": _backward_layout(
        lengths=(4, 5, _NOWHERE, _NOWHERE), heads_last=True, bottom_right=True
    ),
    "flash_attn_3::bwd": _FLASH_3_BACKWARD,
    "flash_attn_3::_flash_attn_backward": _FLASH_3_BACKWARD_IN_PYTHON,
    "flash_attn::_flash_attn_varlen_backward": _backward_layout(
        lengths=(9, 10, 11, 12), dropout=13, causal=15, window=16, heads_last=True, bottom_right=True
    ),
}


FAMILY = "attention"

# Ops that only call others: products, softmax and dropout, each with a cost of its own.
COMPOSITES = op_names("_native_multi_head_attention _scaled_dot_product_attention_math _transformer_encoder_layer_fwd")

# Operations of the vector units per pair: scale, running maximum, subtraction, sum; and dropout's random bits (Philox).
_VECTOR_FLOPS = 4.0
_DROPOUT_FLOPS = 10.0
_FLOAT_BYTES = 4.0

# The lengths of packed sequences are known when they differ so little that no split of the total moves FLOPs by 10 %.
_UNEVENNESS = 1.05
PACKED = "lower end: the lengths of the packed sequences are data"
UNMASKED = "lower end: whether the mask is causal was not recorded"


class Attention(Struct, frozen=True):
    """Sizes of one attention.

    ``heads`` counts heads times sequences, ``pairs`` query-key pairs per head and sequence. ``seen`` is the part of the
    keys that any query sees at the low end.
    """

    heads: float
    queries: float
    keys: float
    pairs: float
    seen: float
    key_width: int
    value_width: int
    note: str | None = None

    @property
    def rows(self) -> float:
        """Query rows of all heads."""
        return self.heads * self.queries


def visible_pairs(queries: float, keys: float, *, last: float, first: float | None = None) -> float:
    """Counts pairs of a query i and an existing key j.

    A pair has i + ``first`` ≤ j ≤ i + ``last``. Where ``first`` is null, the keys start from 0.
    """

    def up_to(limit: float) -> float:
        return _ramp(queries + limit, keys) - _ramp(limit, keys)

    return up_to(last) - (0.0 if first is None else up_to(first - 1))


def _ramp(count: float, ceiling: float) -> float:
    """Sum of min(v, ceiling) over v = 1 … count."""
    steps = min(max(count, 0.0), ceiling)
    return steps * (steps + 1) / 2 + max(count - ceiling, 0.0) * ceiling


def _mask(call: OpCall, layout: AttentionLayout) -> tuple[bool | None, bool]:
    """The mask is causal (null: not recorded), and it is aligned bottom-right."""
    for position in layout.mask_type:
        kind = call.integer(position)
        if kind is not None and call.text(position + 1) in {"True", "False"}:
            return kind > 0, kind == 2
    return None if layout.causal is None else call.flag(layout.causal), layout.bottom_right


def _band(call: OpCall, layout: AttentionLayout, queries: float, keys: float) -> tuple[float | None, float]:
    """Gives the first and last key that a query sees.

    Both are relative to the query's own index. A sliding window has a negative size if off. Without a recorded mask
    these are the keys of a causal one, which sees fewest.
    """
    causal, bottom_right = _mask(call, layout)
    shift = keys - queries if bottom_right else 0.0
    left, right = (-1 if layout.window is None else call.integer(layout.window + side) for side in (0, 1))
    first = None if left is None or left < 0 else shift - left
    if causal is not False:
        return first, shift
    return first, keys if right is None or right < 0 else shift + right


def _lengths(call: OpCall, layout: AttentionLayout, query: Tensor, key: Tensor) -> tuple[float, float, str | None]:
    """Gives queries and keys of one sequence, and what is unknown.

    The lengths are the means where sequences are packed. The third value is a note on what is unknown.

    Pairs grow faster than lengths, so that even lengths have the fewest pairs of all splits of a total: where all
    sequences have as many queries, and where each has at least as many keys as queries, the further ones left out.
    """
    at = -3 if layout.heads_last else -2
    packed = None if layout.lengths is None else call.optional_tensor(layout.lengths[0])
    if layout.lengths is None or packed is None or packed.numel < 2:
        return query.shape[at], key.shape[at], None
    sequences = packed.numel - 1
    totals = [tensor.shape[at if layout.heads_last else 0] for tensor in (query, key)]
    longest = [call.integer(position) for position in layout.lengths[2:]]
    queries, keys = (total / sequences for total in totals)
    if all(
        most is not None and most <= _UNEVENNESS * mean for most, mean in zip(longest, (queries, keys), strict=True)
    ):
        return queries, keys, None
    if queries > keys:
        raise Unmodelled("packed_lengths")
    return queries, keys if longest[0] == queries else queries, PACKED


def _is_packed_unseen(call: OpCall, layout: AttentionLayout, query: Tensor) -> bool:
    """Tells whether sequences are packed and their lengths were not recorded.

    The rank of the query's tensor shows that they are packed.
    """
    if layout.lengths is None or not layout.heads_last or len(query.shape) != 3:
        return False
    return call.optional_tensor(layout.lengths[0]) is None


def _sizes(call: OpCall, layout: AttentionLayout) -> Attention:
    """Gives the sizes of the call.

    Raises Unmodelled when they depend on data, or on arguments that were not recorded.
    """
    query, key, value = (call.tensor(layout.query + offset) for offset in range(3))
    if min(len(tensor.shape) for tensor in (query, key, value)) < 3 or query.shape[-1] != key.shape[-1]:
        raise Unmodelled("unfit_attention")
    if any(call.optional_tensor(position) for position in layout.unknown_with):
        raise Unmodelled("cached_lengths")
    queries, keys, note = _lengths(call, layout, query, key)
    first, last = _band(call, layout, queries, keys)
    pairs = visible_pairs(queries, keys, last=last, first=first)
    seen = min(1.0, max(queries + last, 0.0) / max(keys, 1))
    if _is_packed_unseen(call, layout, query):
        # Each query sees one key at least.
        pairs, seen, note = queries, min(1.0, queries / max(keys, 1)), PACKED
    return Attention(
        heads=query.numel / max(query.shape[-1] * queries, 1),
        queries=queries,
        keys=keys,
        pairs=pairs,
        seen=seen,
        key_width=query.shape[-1],
        value_width=value.shape[-1],
        note=note or (UNMASKED if _mask(call, layout)[0] is None else None),
    )


def _arithmetic(call: OpCall, layout: AttentionLayout, sizes: Attention, width: int) -> Cost:
    """Prices products over ``width`` numbers per pair.

    The softmax and the dropout around them are included.
    """
    pairs = sizes.heads * sizes.pairs
    dropout = None if layout.dropout is None else call.number(layout.dropout)
    return Cost(
        FAMILY,
        matrix_flops=2.0 * pairs * width,
        vector_flops=pairs * (_VECTOR_FLOPS + (_DROPOUT_FLOPS if dropout else 0.0)),
        special_ops=pairs,
        math_dtype=call.tensor(layout.query).short_dtype,
        m=sizes.queries,
        n=sizes.keys,
        k=sizes.key_width,
        batch=sizes.heads,
        note=sizes.note,
    )


def _traffic(call: OpCall, layout: AttentionLayout, sizes: Attention) -> Cost:
    """Prices moving query, key, value, bias and the results once.

    The results are the output and the log of its softmax's sums. Where a causal mask hides the last keys from all
    queries, the low end leaves them out.
    """
    query, key, value = (call.tensor(layout.query + offset) for offset in range(3))
    bias = None if layout.bias is None else call.optional_tensor(layout.bias)
    out_bytes = sizes.rows * sizes.value_width * query.item_bytes
    always = query.bytes + out_bytes + _FLOAT_BYTES * sizes.rows + (bias.bytes if bias else 0.0)
    cached = key.bytes + value.bytes
    return Cost(FAMILY, bytes_low=always + sizes.seen * cached, bytes_high=always + cached)


def forward(layout: AttentionLayout, call: OpCall) -> Cost:
    """The cost of the forward pass: scores and their weighted sum of values."""
    sizes = _sizes(call, layout)
    return _arithmetic(call, layout, sizes, sizes.key_width + sizes.value_width) + _traffic(call, layout, sizes)


def _backward(layout: AttentionLayout, call: OpCall) -> Cost:
    """Prices the backward pass, which has five products.

    Three are as wide as keys (scores again, dq, dk), two as wide as values.

    It reads what the forward pass read and wrote, and the output's gradient, and writes the gradients of query, key
    and value. At the high end it sums the query's gradient in fp32, and reads output and gradient once more for their
    products per row.
    """
    sizes = _sizes(call, layout)
    query, key, value = (call.tensor(layout.query + offset) for offset in range(3))
    written = query.bytes + key.numel * key.item_bytes + value.numel * value.item_bytes
    out_bytes = sizes.rows * sizes.value_width * query.item_bytes
    again = 2 * out_bytes + 2 * _FLOAT_BYTES * sizes.rows * (sizes.key_width + 1)
    gradients = Cost(FAMILY, bytes_low=out_bytes + written, bytes_high=out_bytes + written + again)
    arithmetic = _arithmetic(call, layout, sizes, 3 * sizes.key_width + 2 * sizes.value_width)
    return arithmetic + _traffic(call, layout, sizes) + gradients


FORMULAS: dict[str, Formula] = {
    **{name: partial(forward, layout) for name, layout in FORWARD.items()},
    **{name: partial(_backward, layout) for name, layout in BACKWARD.items()},
}


# Inductor numbers the kernels that users wrote: 'sage_fwd_1'.
_NAME = re.compile(r"sage_(fwd|quant_kernel)(?:_\d+)?")


def formula(name: str) -> Formula | None:
    """The formula of a SageAttention kernel of this name; null for every other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else {"fwd": _sage_forward, "quant_kernel": _round}[match[1]]


def family(name: str) -> str | None:
    """The family of such a kernel; null for every other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else {"fwd": "attention", "quant_kernel": "pointwise"}[match[1]]


def _sage_forward(call: OpCall) -> Cost:
    """sage_fwd(query, key, value, …, result, …), [batch, heads, length, width]: buffers moved once each.

    The mask is a compile-time constant of the kernel and in no trace: at least half of all pairs are seen.
    """
    query, key, value = (call.tensor(position) for position in range(3))
    if min(len(tensor.shape) for tensor in (query, key, value)) != 4 or query.shape[-1] != key.shape[-1]:
        raise Unmodelled("unfit_attention")
    queries, keys = query.shape[-2], key.shape[-2]
    seen = min(queries, keys)
    pairs = math.prod(query.shape[:-2]) * seen * (seen + 1) / 2
    moved = float(sum(tensor.bytes for tensor in call.tensors()))
    return Cost(
        "attention",
        matrix_flops=2.0 * pairs * (query.shape[-1] + value.shape[-1]),
        vector_flops=4.0 * pairs,
        special_ops=pairs,
        bytes_low=moved,
        bytes_high=moved,
        math_dtype="fp8",
        note=UNMASKED,
    )


def _round(call: OpCall) -> Cost:
    """Prices sage_quant_kernel(query, rounded query, scales, key, …).

    The query is read, rounded to 8 bits by block, and written.
    """
    tensors = call.tensors()
    return stream("pointwise", *tensors, vector_flops=1.5 * sum(tensor.numel for tensor in tensors))
