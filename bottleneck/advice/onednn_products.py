"""Rule of fp32 products that oneDNN multiplies faster than MKL."""

import math
import re

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, requires_gain, work_of
from bottleneck.advice.quantities import format_per_step, smallest_op_us
from bottleneck.advice.ranking import Draft
from bottleneck.schema.analysis import Interval
from bottleneck.schema.device import ONEDNN_PEAK
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.op_names import MULTIPLIES
from bottleneck.units import format_si

# Less than this is in the spread of the ceilings.
_FASTER = 1.25
_LEAST_SHARE = 0.05
# What a call of oneDNN takes beside its arithmetic, in times of the machine's smallest op: 9 to 12 us for products of
# 32x64x64 to 128x128x128 by `python -m benchmarks.onednn_products` (torch 2.13, EPYC with AVX-512, two threads).
_CALL_OPS = (17.0, 24.0)
# Only arithmetic becomes faster: of what it saves at the two ceilings, so much is sure of products with so many FLOPs
# and more, and of smaller ones. Products of 50 MFLOP gained 14 % to 74 % in training of small language models, those of
# 300 MFLOP 120 % (the same machine).
_LARGE_FLOPS, _SURE_OF_LARGE, _SURE_OF_SMALL = 1e8, 0.9, 0.5
# A result of so many bytes may come in new pages, which take as long as its arithmetic and longer: 24 MB took 9.96 for
# 8.56 ms, 38 MB 9.0 for 10.4 ms.
_BYTES, _LARGE_RESULT = 4.0, 16e6
# torch's fused attention on a CPU multiplies blocks of so many queries, from so many on, with 512 keys: twice forward,
# five times backward (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp). Each product is a call of oneDNN: that of
# 16 x 6 heads on 64 tokens took 2.59 for 0.56 ms, backward 7.42 for 1.06 ms: 10.6 and 13.2 us for each call. On one
# thread 16 to 96 heads of 32 or 64 numbers on 32 to 128 tokens took 8.5 to 9.8 us, backward 12 to 13 us.
_QUERIES, _KEYS = ((768, 256), (192, 64), (0, 32)), 512
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
ATTENDS_ON_HOST, ATTENDS_BACKWARD = re.compile(f"^{_ATTENTION}$"), re.compile(f"^{_ATTENTION}_backward$")
_PRODUCTS = ((ATTENDS_ON_HOST, 2), (ATTENDS_BACKWARD, 5))
# Backward products read some of their matrices transposed: their calls take so many smallest ops.
_BACKWARD_CALL_OPS = (22.0, 32.0)
_CODE = 'torch.set_float32_matmul_precision("medium")  # at the start of the program'


@requires_gain
def onednn_products(evidence: Evidence) -> Draft | None:
    """Finds fp32 products that oneDNN multiplies faster than MKL.

    torch multiplies fp32 matrices by MKL, which is slow on AMD's processors, unless the program allows a lower
    precision: then oneDNN gets them, and rounds no more than before where it has no unit for bf16 (AMX). The ceiling of
    oneDNN is there only if calibration saw that. Gain: the time of each product less its time at that ceiling and that
    of the call, which small products lose by.
    """
    if not onednn_is_faster(evidence):
        return None
    device = evidence.analysis.device
    multiplied, faster = (device.peaks_flops_per_s[peak] for peak in ("fp32_tensor", ONEDNN_PEAK))
    work = work_of(evidence)
    rows = work.family("matmul") & work.dtype("fp32") & work.op_like(MULTIPLIES) & (work.cost("matrix_flops") > 0)
    if work.share(rows) < _LEAST_SHARE:
        return None
    low, high = _saved_us(work, rows, multiplied / faster)
    if low.sum() + high.sum() <= 0:
        return None
    return Draft(
        slug="onednn-products",
        title="torch multiplies fp32 matrices by a library that is slow on this CPU",
        evidence=(
            f"fp32 products take {format_per_step(evidence, work.us_of(rows))}",
            f"that library multiplies at {format_si(multiplied, 'FLOP/s')}, oneDNN at {format_si(faster, 'FLOP/s')}",
            *work.describe(rows),
        ),
        advice='Set the precision of fp32 products to "medium", at which torch gives them to oneDNN. On this CPU it '
        "multiplies them in fp32 all the same, on one with AMX in bf16.",
        brief='Let oneDNN multiply: torch.set_float32_matmul_precision("medium")',
        code=_CODE,
        # What small products and attention lose may be more than what the others save.
        gain_us=Interval(min(float(low.sum()), float(high.sum())), float(high.sum())),
        claims=work.claims(np.maximum(high, 0.0)),
        tries=("onednn-products",),
    )


def onednn_is_faster(evidence: Evidence) -> bool:
    """True on a CPU where oneDNN multiplies fp32 far faster than MKL.

    Ceilings that are measured say so; a program that allows oneDNN has the same ceiling for both.
    """
    usual, faster = (evidence.analysis.device.peaks_flops_per_s.get(peak) for peak in ("fp32_tensor", ONEDNN_PEAK))
    return evidence.is_host_only and bool(usual and faster and faster >= _FASTER * usual)


def _saved_us(work: KernelWork, rows: Flags, ratio: float) -> tuple[Floats, Floats]:
    """Returns what each product saves, at least and at most.

    Less than nothing where it takes longer. ``ratio`` is the time of arithmetic by oneDNN in that of the usual library.
    """
    op_us = smallest_op_us(work.evidence) / work.evidence.steps
    is_backward = work.op_like(ATTENDS_BACKWARD)
    least_us, most_us = (
        op_us * np.where(is_backward, backward, usual)
        for usual, backward in zip(_CALL_OPS, _BACKWARD_CALL_OPS, strict=True)
    )
    flops = work.cost("matrix_flops")
    sure = np.where(flops >= _LARGE_FLOPS, _SURE_OF_LARGE, _SURE_OF_SMALL)
    is_large = _BYTES * flops >= 2 * _LARGE_RESULT * work.cost("k")
    sure = np.where(rows & is_large, 0.0, sure)
    arithmetic_us = np.nan_to_num(np.minimum(work.compute_us(), work.us))
    fastest = np.maximum(work.memory_us(), arithmetic_us * ratio) + least_us
    saved_us, attention = (1 - ratio) * arithmetic_us, attention_calls(work)
    is_attention = attention > 0
    low = np.where(rows | is_attention, sure * saved_us, 0.0) - most_us * np.where(rows, 1.0, attention)
    high = np.where(is_attention, saved_us, 0.0) - least_us * attention
    return low, np.where(rows, work.us - fastest, high)


def attention_calls(work: KernelWork) -> Floats:
    """Counts the products, one after the other, of each call of fused attention.

    On a CPU each is a call of oneDNN, unless fp32 stays with the usual library. 0 for other rows.
    """
    threads = (None if work.evidence.recording is None else work.evidence.recording.threads) or 1
    calls = np.zeros(work.us.size)
    for name, products in _PRODUCTS:
        rows = work.op_like(name)
        for signature in np.unique(work.signature[rows & (work.signature >= 0)]).tolist():
            sizes = [size for size in work.sizes_of(signature) if len(size) == _OF_HEADS]
            if len(sizes) >= products // 2 + 1:
                (batch, heads, queries, _), keys = sizes[0], sizes[products // 2][2]
                of_one = next(block for least, block in _QUERIES if queries >= least)
                blocks = batch * heads * math.ceil(queries / of_one) * math.ceil(keys / _KEYS)
                calls[rows & (work.signature == signature)] = products * blocks / threads
    return calls


_OF_HEADS = 4  # dimensions of queries and keys: batch, heads, tokens, numbers

RULES = (onednn_products,)
