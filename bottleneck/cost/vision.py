"""Costs of torchvision's own ops, and of Segment Anything's fused attention."""

import math

from bottleneck.cost.call import Cost, Formulas, OpCall, Tensor, Unmodelled
from bottleneck.cost.traffic import SECTOR_BYTES, named, stream
from bottleneck.schema.records import replace

REGION, BOXES = "pooling", "boxes"

# Two corners, two sides, the overlap, the union and a comparison for each pair of boxes.
_OVERLAP_FLOPS = 10.0
# The mask of suppressed boxes holds one bit per pair.
_PAIRS_PER_BYTE = 8
# Weights and sums of the four neighbours of a sampling point.
_SAMPLE_FLOPS = 8.0


def _suppress(call: OpCall) -> Cost:
    """Prices nms(boxes, scores, threshold).

    Every pair of boxes is compared once. The mask of pairs is written and walked at worst.

    The boxes are sorted by score first, in a child op of its own.
    """
    boxes = call.tensor(0)
    count = boxes.shape[0] if boxes.shape else 0
    pairs = count * (count - 1) / 2
    return Cost(
        BOXES,
        vector_flops=_OVERLAP_FLOPS * pairs,
        bytes_low=boxes.bytes,
        bytes_high=boxes.bytes + 2 * count * math.ceil(count / 64) * 64 / _PAIRS_PER_BYTE + count * 8.0,
        math_dtype="fp32",
    )


def _pooled(call: OpCall) -> Cost:
    """Prices roi_align(x, rois, scale, height, width, …), roi_pool and others.

    Samples of x are read where the regions lie.

    Regions may all lie on one spot of x (low), or every sample in a sector of its own (high).
    """
    x, rois = call.tensor(0), call.tensor(1)
    height, width = call.integer(3), call.integer(4)
    if height is None or width is None or len(x.shape) != 4:
        raise Unmodelled("no_result_size")
    y = Tensor((rois.shape[0], x.shape[1], height, width), x.dtype)
    samples = max(1, call.integer(5) or 1) ** 2 if call.name.endswith("roi_align") else 1
    cost = stream(REGION, rois, y, vector_flops=_SAMPLE_FLOPS * y.numel * samples)
    read = max(x.bytes, 4.0 * y.numel * samples * SECTOR_BYTES)
    return replace(cost, bytes_high=cost.bytes_high + read)


def _deformed(call: OpCall) -> Cost:
    """Prices deform_conv2d(x, weight, offset, mask, bias, …).

    Every window is sampled into a matrix, which is then multiplied.
    """
    x, weight, offset = (call.tensor(position) for position in range(3))
    if len(offset.shape) != 4 or len(weight.shape) != 4:
        raise Unmodelled("no_offsets")
    positions = offset.shape[0] * math.prod(offset.shape[2:])
    columns = positions * x.shape[1] * math.prod(weight.shape[2:])
    fixed = sum(tensor.bytes for tensor in call.tensors()) + positions * weight.shape[0] * x.item_bytes
    return Cost(
        "convolution",
        matrix_flops=2.0 * positions * weight.numel,
        vector_flops=_SAMPLE_FLOPS * columns,
        bytes_low=fixed,
        bytes_high=fixed + 2 * columns * x.item_bytes + 4.0 * columns * SECTOR_BYTES,
        math_dtype=x.short_dtype,
    )


def _relative_attention(call: OpCall) -> Cost:
    """custom_flash_aligned(query, key, value, relative positions, scale), [batch, heads, length, width]: all pairs."""
    query, key, value, positions = (call.tensor(place) for place in range(4))
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return Cost(
        "attention",
        matrix_flops=2.0 * pairs * (query.shape[-1] + value.shape[-1]),
        vector_flops=6.0 * pairs,
        special_ops=float(pairs),
        bytes_low=2 * query.bytes + key.bytes + value.bytes + positions.bytes,
        bytes_high=2 * query.bytes + key.bytes + value.bytes + positions.bytes,
        math_dtype=query.short_dtype,
    )


FORMULAS: Formulas = {
    **named(
        {"nms": _suppress, "roi_align roi_pool ps_roi_align ps_roi_pool": _pooled, "deform_conv2d": _deformed},
        prefix="torchvision::",
    ),
    "customflash::custom_flash_aligned": _relative_attention,
}
