"""Where each fused attention op keeps its arguments, and how it aligns its causal mask.

Positions follow the schemas of torch 2.0 to 2.13, FlashAttention 2 (flash_attn::) and 3 (flash_attn_3::).
"""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Layout:
    """Positions of the arguments of an attention op; null where its schema has none.

    ``heads_last`` says that tensors are [batch, length, heads, width] and not [batch, heads, length, width].
    ``bottom_right`` says that a causal mask lets the last query see the last key; else query i sees keys 0 … i.
    ``lengths`` holds cumulative query and key lengths and their maxima, for sequences packed one after the other.
    ``mask_type`` stands for ``causal`` where an integer chooses the mask: 0 none, 1 top-left, 2 bottom-right; of two
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


def _backward(**positions: Any) -> Layout:
    """A backward op: the gradient of the output stands before query, key and value."""
    return replace(Layout(query=1), **positions)


# Kernels of FlashAttention 2.1 and later align bottom-right; torch's front doors check that it makes no difference.
_FLASH = Layout(heads_last=True, bottom_right=True)
_SDPA_FLASH = Layout(dropout=3, causal=4)
_FLASH_BACKWARD = _backward(lengths=(6, 7, 8, 9), dropout=10, causal=11)
_CUDNN_BACKWARD = _backward(bias=8, lengths=(9, 10, 11, 12), dropout=13, causal=14)
_FLASH_3 = replace(_FLASH, lengths=(7, 8, 12, 13), causal=24, window=25, unknown_with=(3, 9, 10, 11, 14))

FORWARD = {
    "aten::scaled_dot_product_attention": Layout(bias=3, dropout=4, causal=5),
    "aten::_scaled_dot_product_flash_attention": _SDPA_FLASH,
    "aten::_scaled_dot_product_flash_attention_for_cpu": replace(_SDPA_FLASH, bias=5),
    "aten::_scaled_dot_product_efficient_attention": Layout(bias=3, dropout=5, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": Layout(bias=3, dropout=5, causal=6),
    "aten::_scaled_dot_product_fused_attention_overrideable": Layout(bias=3, dropout=4, causal=5),
    "aten::_cudnn_attention_forward": Layout(bias=3, lengths=(4, 5, 6, 7), dropout=9, causal=10),
    "aten::_flash_attention_forward": replace(
        _FLASH, lengths=(3, 4, 5, 6), dropout=7, causal=8, window=11, unknown_with=(13, 15)
    ),
    "aten::_flash_attention_forward_no_dropout_inplace": replace(
        _FLASH, query=1, lengths=(4, 5, 6, 7), dropout=8, causal=9, window=12, unknown_with=(14, 16)
    ),
    "aten::_efficient_attention_forward": Layout(
        bias=3, lengths=(4, 5, 6, 7), mask_type=(9, 8), unknown_with=(12,), heads_last=True
    ),
    "flash_attn::_flash_attn_forward": replace(_FLASH, dropout=3, causal=5, window=6),
    "flash_attn::_flash_attn_varlen_forward": replace(
        _FLASH, lengths=(3, 4, 5, 6), dropout=7, causal=9, window=10, unknown_with=(15, 16, 17)
    ),
    "flash_attn_3::fwd": _FLASH_3,
    "flash_attn_3::_flash_attn_forward": _FLASH_3,
}

BACKWARD = {
    "aten::_scaled_dot_product_flash_attention_backward": _FLASH_BACKWARD,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _backward(dropout=6, causal=7, bias=8),
    "aten::_scaled_dot_product_efficient_attention_backward": _backward(bias=4, dropout=9, causal=11),
    "aten::_scaled_dot_product_cudnn_attention_backward": _CUDNN_BACKWARD,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _backward(
        bias=4, lengths=(8, 9, 10, 11), dropout=12, causal=13
    ),
    "aten::_cudnn_attention_backward": _CUDNN_BACKWARD,
    "aten::_flash_attention_backward": replace(_FLASH_BACKWARD, window=15, heads_last=True, bottom_right=True),
    "aten::_efficient_attention_backward": _backward(
        bias=4, lengths=(6, 7, 8, 9), dropout=11, mask_type=(14,), heads_last=True
    ),
    "flash_attn::_flash_attn_backward": _backward(dropout=9, causal=11, window=12, heads_last=True, bottom_right=True),
    "flash_attn::_flash_attn_varlen_backward": _backward(
        lengths=(9, 10, 11, 12), dropout=13, causal=15, window=16, heads_last=True, bottom_right=True
    ),
}
