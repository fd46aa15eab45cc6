"""Costs of the ops of inference servers: vLLM, SGLang, aiter, FlashInfer and similar.

Most take the tensor that they write as an argument, so that every recorded tensor moves once. The length of each
sequence in a cache of keys and values, and the experts that the tokens of a batch choose, are data that no trace has.
"""

import re
from collections.abc import Sequence
from functools import partial

from bottleneck.cost import attention
from bottleneck.cost.call import Cost, Formula, Formulas, OpCall, Tensor, Unmodelled
from bottleneck.cost.matmul import FAMILY as MATMUL
from bottleneck.cost.matmul import extra_bytes, item_bytes, matrix_sizes, product_cost
from bottleneck.cost.traffic import dtype_argument, named, stream
from bottleneck.schema.records import replace

POINTWISE, NORM, CACHE, ATTENTION = "pointwise", "normalization", "copy", "attention"

# Dtypes of bytes that hold packed weights; the arithmetic is that of the activations.
_PACKED = frozenset({"unsigned char", "int"})

CACHED = "lower end: how long the cached sequences are is data"
ROUTED = "which experts the tokens choose is data"


def _all_once(family: str, flops: float, special_ops: float, call: OpCall) -> Cost:
    """Prices an op whose recorded tensors move once each.

    All of them are recorded, the written ones too.

    FLOPs count per element of the largest one.
    """
    tensors = [tensor for tensor in call.tensors() if tensor.numel]
    if not tensors:
        raise Unmodelled("no_tensor")
    most = max(tensor.numel for tensor in tensors)
    return stream(family, *tensors, vector_flops=flops * most, special_ops=special_ops * most)


def _gated(flops: float, call: OpCall) -> Cost:
    """Prices silu_and_mul(out, x) and similar ops.

    One half of x gates the other. FLOPs are per result.
    """
    tensors = call.tensors()
    gated = min(tensor.numel for tensor in tensors[:2]) if len(tensors) > 1 else call.tensor(0).numel // 2
    written = () if len(tensors) > 1 else (Tensor((gated,), tensors[0].dtype),)
    return stream(POINTWISE, *tensors, *written, vector_flops=flops * gated, special_ops=gated)


def _norm(returned: int, in_place: Sequence[int], call: OpCall) -> Cost:
    """Prices an RMS norm that returns ``returned`` results.

    They are shaped like its first argument.

    Arguments at ``in_place`` are read and written. A residual that is added is one of the recorded tensors.
    """
    x = call.tensor(0)
    written = [*[Tensor(x.shape, x.dtype)] * returned, *(call.tensor(position) for position in in_place)]
    return stream(NORM, *(t for t in call.tensors() if t.numel), *written, vector_flops=4.0 * x.numel)


def _group_norm(call: OpCall) -> Cost:
    """_groupnorm_run(x, groups, weight, bias, eps): statistics first, then x is read again."""
    x = call.tensor(0)
    cost = stream(NORM, *call.tensors(), Tensor(x.shape, x.dtype), vector_flops=8.0 * x.numel)
    return replace(cost, bytes_high=cost.bytes_high + x.bytes)


def _rotary(query: int, key: int, table: int, positions: int, call: OpCall) -> Cost:
    """Prices a rotary embedding in place.

    Query and key are turned by a row of sines and cosines per position.
    """
    turned = [tensor for at in (query, key) if (tensor := call.optional_tensor(at)) is not None]
    rows, places = call.tensor(table), call.tensor(positions)
    row_bytes = rows.shape[-1] * rows.item_bytes if rows.shape else 0.0
    flops = 3.0 * sum(tensor.numel for tensor in turned)
    cost = stream(POINTWISE, *turned, *turned, places, vector_flops=flops)
    return cost + Cost(POINTWISE, bytes_low=min(places.numel, 1) * row_bytes, bytes_high=places.numel * row_bytes)


def _cache_write(call: OpCall) -> Cost:
    """reshape_and_cache(key, value, key cache, value cache, slots …): new rows written to their slots."""
    key, value, key_cache, value_cache, slots = (call.tensor(position) for position in range(5))
    written = (Tensor(key.shape, key_cache.dtype), Tensor(value.shape, value_cache.dtype))
    return stream(CACHE, key, value, *written, slots)


def _mla_cache_write(call: OpCall) -> Cost:
    """concat_and_cache_mla(latent, rotated key, cache, slots …): both written side by side."""
    rows = [call.tensor(position) for position in range(2)]
    cache = call.tensor(2)
    return stream(CACHE, *rows, *(Tensor(row.shape, cache.dtype) for row in rows), call.tensor(3))


def _paged_attention(query: int, table: int, longest: int, block: int | None, call: OpCall) -> Cost:
    """Prices attention over a paged cache.

    Its arguments are (…, query, key cache, value cache, …, block table, lengths, …).

    Every query sees one key at least. At most every sequence is as long as ``longest``, or as its row of the block
    table has room for.
    """
    queries, keys, values = (call.tensor(query + offset) for offset in range(3))
    blocks, most = call.tensor(table), call.integer(longest)
    size = None if block is None else call.integer(block)
    if len(queries.shape) < 3 or not blocks.shape:
        raise Unmodelled("no_block_table")
    longest_keys = most or (blocks.shape[-1] * size if size else None)
    if longest_keys is None:
        raise Unmodelled("cached_lengths")
    width, capacity = queries.shape[-1], keys.numel + values.numel
    heads = _cache_heads(keys, width)
    in_cache = min(capacity, 2.0 * blocks.shape[0] * longest_keys * heads * width) * keys.item_bytes
    fixed = 2 * queries.bytes
    return Cost(
        ATTENTION,
        matrix_flops=4.0 * queries.numel,
        special_ops=queries.numel / max(width, 1),
        bytes_low=fixed + min(2.0 * heads * width * keys.item_bytes, in_cache),
        bytes_high=fixed + in_cache + blocks.bytes,
        math_dtype=queries.short_dtype,
        note=CACHED,
    )


def _no_cost(why: str, _: OpCall) -> Cost:
    """Raises Unmodelled, as the cost has no upper end.

    The op's cache of keys and values, or its experts, are no argument.
    """
    raise Unmodelled(why)


def _packed_or_paged(layout: attention.AttentionLayout, table: int, longest: int, call: OpCall) -> Cost:
    """Prices attention over packed sequences or a paged cache.

    The arguments are (query, key, value, …). The cache is paged where it has a table.
    """
    if call.optional_tensor(table) is None:
        return attention.forward(layout, call)
    return _paged_attention(0, table, longest, None, call)


def _cache_heads(keys: Tensor, width: int) -> int:
    """Gives the heads of a cache.

    It is [blocks, heads, width / x, block, x] or [blocks, block, heads, width].
    """
    if len(keys.shape) == 5:
        return keys.shape[1]
    return keys.shape[-2] if keys.shape and keys.shape[-1] == width else 1


def _experts(hidden: int, first: int, ids: int, call: OpCall) -> Cost:
    """Prices fused experts.

    Their arguments are (…, hidden [tokens, h], w1 [E, 2f, h], w2 [E, h, f], weights, ids [tokens, k] …).

    FLOPs are exact: k experts for every token. A token's experts differ, so that k are read at least, and at most all
    experts or k per token.
    """
    tokens, up, down, chosen = (call.tensor(at) for at in (hidden, first, first + 1, ids))
    if len(up.shape) != 3 or len(down.shape) != 3 or len(chosen.shape) != 2:
        raise Unmodelled("unfit_experts")
    # Weights of 4 bits hold two numbers per byte along the inner size.
    width, packed = tokens.shape[-1], max(1, tokens.shape[-1] // max(up.shape[2], 1))
    rows, inner, experts = up.shape[1], down.shape[2] * packed, up.shape[0]
    per_expert, used = (up.bytes + down.bytes) / max(experts, 1), chosen.numel
    moved = 2 * tokens.bytes + chosen.bytes
    between = 2 * used * (rows + inner + width) * tokens.item_bytes
    return Cost(
        MATMUL,
        matrix_flops=2.0 * used * width * (rows + inner),
        bytes_low=moved + min(chosen.shape[1], used, experts) * per_expert,
        bytes_high=moved + min(experts, used) * per_expert + between,
        math_dtype=tokens.short_dtype if up.dtype in _PACKED else up.short_dtype,
        note=ROUTED,
    )


def _scaled_mm_into(call: OpCall) -> Cost:
    """cutlass_scaled_mm(out, a, b, scales of a, scales of b, bias)."""
    out, left, right = (call.tensor(position) for position in range(3))
    return _scaled(call, left, right, out.item_bytes, beside=3)


def _scaled_mm(call: OpCall) -> Cost:
    """fp8_scaled_mm(a, b, scales of a, scales of b, out_dtype, bias), int8_scaled_mm …"""
    left, right = call.tensor(0), call.tensor(1)
    return _scaled(call, left, right, item_bytes(dtype_argument(call, 4, "c10::BFloat16")), beside=2)


def _scaled(call: OpCall, left: Tensor, right: Tensor, out_item_bytes: float, beside: int) -> Cost:
    product = matrix_sizes(left, right)
    more = sum(tensor.bytes for at in range(beside, beside + 4) if (tensor := call.optional_tensor(at)) is not None)
    return product_cost(product, left, right.bytes, product.numel * out_item_bytes) + extra_bytes(more)


def _awq(call: OpCall) -> Cost:
    """Prices awq_gemm(x, weight [k, n / 8], scales, zeros, …).

    Each integer holds eight weights of 4 bits.
    """
    x, weight = call.tensor(0), call.tensor(1)
    unpacked = Tensor((weight.shape[0], 8 * weight.shape[1]), x.dtype)
    product = matrix_sizes(x, unpacked)
    tables = call.tensor(2).bytes + call.tensor(3).bytes
    return product_cost(product, x, weight.bytes + tables, product.numel * x.item_bytes)


def _top_experts(call: OpCall) -> Cost:
    """topk_softmax(weights, ids, …, gates): every gate is read, the chosen ones are written."""
    tensors = [tensor for tensor in call.tensors() if tensor.numel]
    gates = max(tensors, key=lambda tensor: tensor.numel)
    return stream("softmax", *tensors, vector_flops=4.0 * gates.numel, special_ops=gates.numel)


def _align(call: OpCall) -> Cost:
    """Prices moe_align_block_size(ids, …).

    ids are read, and sorted by expert into tensors that are padded to blocks.
    """
    tensors = call.tensors()
    ids = call.tensor(0)
    everything = sum(tensor.bytes for tensor in tensors)
    return Cost("sort", vector_flops=float(ids.numel), bytes_low=ids.bytes, bytes_high=ids.bytes + 2 * everything)


_QUANTIZE = partial(_all_once, POINTWISE, 2.0, 0.0)
_NORM_INTO, _NORM_IN_PLACE, _NORM_NEW = partial(_norm, 0, ()), partial(_norm, 0, (0, 1)), partial(_norm, 1, ())
_SILU, _GELU = partial(_gated, 6.0), partial(_gated, 13.0)
_VLLM: dict[str, Formula] = {
    "rms_norm rms_norm_static_fp8_quant rms_norm_dynamic_per_token_quant": _NORM_INTO,
    "fused_add_rms_norm": _NORM_IN_PLACE,
    "silu_and_mul mul_and_silu fatrelu_and_mul swigluoai_and_mul silu_and_mul_quant": _SILU,
    "gelu_and_mul gelu_tanh_and_mul": _GELU,
    "gelu_new gelu_fast gelu_quick": partial(_all_once, POINTWISE, 12.0, 1.0),
    "rotary_embedding": partial(_rotary, 1, 2, 4, 0),
    "static_scaled_fp8_quant static_scaled_int8_quant dynamic_per_token_scaled_fp8_quant": _QUANTIZE,
    "dynamic_scaled_int8_quant per_token_group_fp8_quant per_token_group_quant_fp8": _QUANTIZE,
    "cutlass_scaled_mm": _scaled_mm_into,
    "awq_gemm": _awq,
    "paged_attention_v1": partial(_paged_attention, 1, 6, 9, 8),
    "paged_attention_v2": partial(_paged_attention, 4, 9, 12, 11),
}

_CACHED_ELSEWHERE = re.compile(
    r"(?:aiter|flashinfer|sgl_kernel|sglang_profiler)::(?:\w*_)?(?:paged_|batch_decode|mla_decode)\w*"
)


def formula(name: str) -> Formula | None:
    """Gives the formula of attention over a cache by its name.

    The formula gives the reason alone. Null for every other name.
    """
    return partial(_no_cost, "cached_lengths") if _CACHED_ELSEWHERE.fullmatch(name) else None


# FlashAttention 2 and 3 as vLLM and SGLang build them.
_FLASH_2 = attention.AttentionLayout(
    heads_last=True, bottom_right=True, lengths=(4, 5, 10, 11), dropout=12, causal=15, window=16, unknown_with=(6, 7)
)

FORMULAS: Formulas = {
    "_vllm_fa2_C::varlen_fwd": partial(_packed_or_paged, _FLASH_2, 8, 11),
    "_vllm_fa3_C::fwd": partial(_packed_or_paged, attention.FORWARD["flash_attn_3::fwd"], 14, 13),
    "sgl_kernel::fwd": partial(_packed_or_paged, attention.FORWARD["flash_attn_3::fwd"], 14, 13),
    **named(
        {
            "unified_attention unified_attention_with_output unified_mla_attention": partial(
                _no_cost, "cached_lengths"
            ),
            "unified_mla_attention_with_output": partial(_no_cost, "cached_lengths"),
            "moe_forward moe_forward_shared": partial(_no_cost, "no_expert_weights"),
        },
        prefix="vllm::",
    ),
    "sglang::unified_attention_with_output": partial(_no_cost, "cached_lengths"),
    **named(_VLLM, prefix="_C::"),
    **named(
        {
            "reshape_and_cache reshape_and_cache_flash": _cache_write,
            "concat_and_cache_mla": _mla_cache_write,
        },
        prefix="_C_cache_ops::",
    ),
    **named(
        {
            "topk_softmax": _top_experts,
            "moe_align_block_size": _align,
            "moe_sum": partial(_all_once, POINTWISE, 1.0, 0.0),
        },
        prefix="_moe_C::",
    ),
    **named({"paged_attention": partial(_paged_attention, 4, 9, 12, 11)}, prefix="_rocm_C::"),
    **named(
        {
            "inplace_fused_experts outplace_fused_experts fused_experts": partial(_experts, 0, 1, 4),
            "rocm_aiter_rms_norm": _NORM_NEW,
            "rocm_aiter_rmsnorm2d_fwd_with_add": partial(_norm, 2, ()),
        },
        prefix="vllm::",
    ),
    **named(
        {
            "_groupnorm_run": _group_norm,
            "rms_norm rmsnorm2d_fwd": _NORM_NEW,
            "rmsnorm rmsnorm2d_fwd_ck rmsnorm2d_fwd_with_add rmsnorm2d_fwd_with_add_ck add_rmsnorm": _NORM_INTO,
            "silu_and_mul scaled_silu_and_mul": _SILU,
            "gelu_and_mul gelu_tanh_and_mul": _GELU,
            "fused_moe_": partial(_experts, 0, 1, 4),
            "dynamic_per_token_scaled_quant dynamic_per_tensor_quant static_per_tensor_quant": _QUANTIZE,
        },
        prefix="aiter::",
    ),
    **named(
        {
            "rmsnorm gemma_rmsnorm": _NORM_INTO,
            "fused_add_rmsnorm gemma_fused_add_rmsnorm": _NORM_IN_PLACE,
            "silu_and_mul": _SILU,
            "gelu_and_mul gelu_tanh_and_mul": _GELU,
            "rotary_embedding": partial(_rotary, 1, 2, 4, 0),
            "fp8_scaled_mm int8_scaled_mm fp8_blockwise_scaled_mm": _scaled_mm,
            "sgl_per_token_quant_fp8 sgl_per_tensor_quant_fp8 sgl_per_token_group_quant_fp8": _QUANTIZE,
            "topk_softmax": _top_experts,
            "moe_align_block_size": _align,
        },
        prefix="sgl_kernel::",
    ),
    "sglang::store_cache": _cache_write,
}
