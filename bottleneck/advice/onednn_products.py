"""Rule of fp32 products that oneDNN multiplies faster than MKL."""

import numpy as np

from bottleneck.advice.kernel_work import KernelWork, requires_gain, work_of
from bottleneck.advice.quantities import format_per_step
from bottleneck.advice.ranking import Draft
from bottleneck.schema.device import ONEDNN_PEAK, Device
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.schema.op_names import MULTIPLIES
from bottleneck.units import format_si

# Less than this is in the spread of the ceilings.
_FASTER = 1.25
_LEAST_SHARE = 0.05
# What a call of oneDNN takes beside its arithmetic, in times of the machine's smallest op: 9 to 12 us for products of
# 32x64x64 to 128x128x128 by `python -m benchmarks.onednn_products` (torch 2.13, EPYC with AVX-512, two threads).
_CALL_OPS, _OP_US = (17.0, 24.0), 0.54
# Products near their ceiling in MKL may be a little further from it in oneDNN, by the same table.
_FURTHER = 1.15
# Fused attention multiplies small blocks, whose calls of oneDNN may take longer: a small ViT took 8.7 for 2.3 ms in it,
# that of 256 queries as long as before.
_SLOWER_ATTENTION = 3.0
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
    low, high = _saved_us(work, rows, device, multiplied / faster)
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
        gain_us=work.gain(low, high),
        claims=work.claims(np.maximum(high, 0.0)),
        tries=("onednn-products",),
    )


def onednn_is_faster(evidence: Evidence) -> bool:
    """True on a CPU where oneDNN multiplies fp32 far faster than MKL.

    Ceilings that are measured say so; a program that allows oneDNN has the same ceiling for both.
    """
    usual, faster = (evidence.analysis.device.peaks_flops_per_s.get(peak) for peak in ("fp32_tensor", ONEDNN_PEAK))
    return evidence.is_host_only and bool(usual and faster and faster >= _FASTER * usual)


def _saved_us(work: KernelWork, rows: Flags, device: Device, ratio: float) -> tuple[Floats, Floats]:
    """Returns what each product saves, at least and at most.

    Less than nothing where it takes longer. ``ratio`` is the time of arithmetic by oneDNN in that of the usual library.
    """
    calls_us = [ops * (device.launch_floor_us or _OP_US) / work.evidence.steps for ops in _CALL_OPS]
    bytes_us = work.memory_us()
    slowest = np.maximum(bytes_us, np.minimum(work.us * ratio * _FURTHER, work.us)) + calls_us[1]
    fastest = np.maximum(bytes_us, np.minimum(work.compute_us(), work.us) * ratio) + calls_us[0]
    attention = work.family("attention") & work.dtype("fp32")
    low = np.where(attention, -_SLOWER_ATTENTION * work.us, np.where(rows, work.us - slowest, 0.0))
    return low, np.where(rows, work.us - fastest, 0.0)


RULES = (onednn_products,)
