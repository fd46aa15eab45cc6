"""Prices of fused attention, forward and backward (cost stage).

For every pair of a query and a key that it may see, a head takes 2·(width of keys + width of values) FLOPs on the
matrix engine and one exponential; the backward pass computes the scores again. The scores never reach memory.
"""

from dataclasses import dataclass
from functools import partial

from bottleneck.cost.attention_layouts import BACKWARD, FORWARD, Layout
from bottleneck.cost.call import Cost, Formula, OpCall, Tensor, Unpriced

FAMILY = "attention"

# Ops that only call others: products, softmax and dropout, each priced by itself.
COMPOSITES = frozenset(
    {
        "aten::_native_multi_head_attention",
        "aten::_scaled_dot_product_attention_math",
        "aten::_transformer_encoder_layer_fwd",
    }
)

# Operations of the vector units per pair: scale, running maximum, subtraction, sum; and dropout's random bits (Philox).
_VECTOR_FLOPS = 4.0
_DROPOUT_FLOPS = 10.0
_FLOAT_BYTES = 4.0

# The lengths of packed sequences are known when they differ so little that no split of the total moves FLOPs by 10 %.
_UNEVENNESS = 1.05
PACKED = "lower end: the lengths of the packed sequences are data"


@dataclass(frozen=True)
class Attention:
    """Sizes of one attention: ``heads`` counts heads times sequences, ``pairs`` what one head sees in one sequence.

    ``seen`` is the part of the keys that any query sees at the low end.
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
    """Pairs of a query i and an existing key j with i + ``first`` ≤ j ≤ i + ``last``; ``first`` null: from key 0."""

    def up_to(limit: float) -> float:
        return _ramp(queries + limit, keys) - _ramp(limit, keys)

    return up_to(last) - (0.0 if first is None else up_to(first - 1))


def _ramp(count: float, ceiling: float) -> float:
    """Sum of min(v, ceiling) over v = 1 … count."""
    steps = min(max(count, 0.0), ceiling)
    return steps * (steps + 1) / 2 + max(count - ceiling, 0.0) * ceiling


def _mask(call: OpCall, layout: Layout) -> tuple[bool, bool]:
    """Whether the mask is causal, and whether it is aligned bottom-right."""
    for position in layout.mask_type:
        kind = call.integer(position)
        if kind is not None and call.text(position + 1) in {"True", "False"}:
            return kind > 0, kind == 2
    if layout.mask_type:
        raise Unpriced("the kind of attention mask was not recorded")
    causal = None if layout.causal is None else call.flag(layout.causal)
    if causal is None:
        raise Unpriced("is_causal was not recorded")
    return causal, layout.bottom_right


def _band(call: OpCall, layout: Layout, queries: float, keys: float) -> tuple[float | None, float]:
    """First and last key, relative to its own index, that a query sees; a sliding window has a negative size if off."""
    causal, bottom_right = _mask(call, layout)
    shift = keys - queries if bottom_right else 0.0
    left, right = (-1 if layout.window is None else call.integer(layout.window + side) for side in (0, 1))
    first = None if left is None or left < 0 else shift - left
    if causal:
        return first, shift
    return first, keys if right is None or right < 0 else shift + right


def _lengths(call: OpCall, layout: Layout, query: Tensor, key: Tensor) -> tuple[float, float, str | None]:
    """Queries and keys of one sequence, and what they leave open: the mean where sequences are packed.

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
        raise Unpriced("the lengths of the packed sequences are not in the trace")
    return queries, keys if longest[0] == queries else queries, PACKED


def _sizes(call: OpCall, layout: Layout) -> Attention:
    """The sizes of the call; Unpriced when they depend on data, or on arguments that were not recorded."""
    query, key, value = (call.tensor(layout.query + offset) for offset in range(3))
    if min(len(tensor.shape) for tensor in (query, key, value)) < 3 or query.shape[-1] != key.shape[-1]:
        raise Unpriced("query, key and value do not fit each other")
    if any(call.optional_tensor(position) for position in layout.unknown_with):
        raise Unpriced("the lengths of cached sequences are not in the trace")
    queries, keys, note = _lengths(call, layout, query, key)
    first, last = _band(call, layout, queries, keys)
    return Attention(
        heads=query.numel / max(query.shape[-1] * queries, 1),
        queries=queries,
        keys=keys,
        pairs=visible_pairs(queries, keys, last=last, first=first),
        seen=min(1.0, max(queries + last, 0.0) / max(keys, 1)),
        key_width=query.shape[-1],
        value_width=value.shape[-1],
        note=note,
    )


def _arithmetic(call: OpCall, layout: Layout, sizes: Attention, width: int) -> Cost:
    """The arithmetic of products over ``width`` numbers per pair, with the softmax and the dropout around them."""
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


def _traffic(call: OpCall, layout: Layout, sizes: Attention) -> Cost:
    """Reading query, key, value and bias, and moving the output and the log of its softmax's sums once.

    Where a causal mask hides the last keys from all queries, the low end leaves them out.
    """
    query, key, value = (call.tensor(layout.query + offset) for offset in range(3))
    bias = None if layout.bias is None else call.optional_tensor(layout.bias)
    out_bytes = sizes.rows * sizes.value_width * query.item_bytes
    always = query.bytes + out_bytes + _FLOAT_BYTES * sizes.rows + (bias.bytes if bias else 0.0)
    cached = key.bytes + value.bytes
    return Cost(FAMILY, bytes_low=always + sizes.seen * cached, bytes_high=always + cached)


def _forward(layout: Layout, call: OpCall) -> Cost:
    """The cost of the forward pass: scores and their weighted sum of values."""
    sizes = _sizes(call, layout)
    return _arithmetic(call, layout, sizes, sizes.key_width + sizes.value_width) + _traffic(call, layout, sizes)


def _backward(layout: Layout, call: OpCall) -> Cost:
    """The cost of the backward pass: five products, three as wide as keys (scores again, dq, dk), two as values.

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
    **{name: partial(_forward, layout) for name, layout in FORWARD.items()},
    **{name: partial(_backward, layout) for name, layout in BACKWARD.items()},
}
