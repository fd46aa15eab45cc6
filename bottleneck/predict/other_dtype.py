"""Prices calls of a trace as if their numbers were of another type.

Findings on the precision of products take their gains from these times.
"""

import math

import numpy as np

from bottleneck.predict.gains import half_width_of_work
from bottleneck.predict.price import price_kernels
from bottleneck.predict.step_kernels import Kernel, split
from bottleneck.schema.device_facts import board_of
from bottleneck.schema.evidence import Evidence, PricedCalls
from bottleneck.schema.intervals import Floats
from bottleneck.schema.reasons import Reason
from bottleneck.schema.step_calls import EngineSettings, StepCall

_FP32 = '"float"'
# How traces write the types; TF32 is the engine of numbers that stay in fp32.
_SPELLED = {"bf16": '"c10::BFloat16"', "fp16": '"c10::Half"'}
_TEXTS = ["name", "dims", "types", "strides", "concrete"]


def price_in_dtype(evidence: Evidence, runs: Floats, dtype: str) -> PricedCalls:
    """Prices calls whose tensors in fp32 are of another type.

    They stay in fp32 where that is 'tf32' or 'fp32': their products are multiplied in TF32 or not. ``runs`` is how
    often each row of CALLS runs; those that never do have no price. Nothing has one on a device whose ceilings are not
    known.
    """
    low_us, high_us = np.full(runs.size, np.nan), np.full(runs.size, np.nan)
    device, kernels = evidence.analysis.device, list[Kernel]()
    peak = "fp32_vector" if dtype == "fp32" else f"{dtype}_tensor"
    settings = EngineSettings(matmul_allow_tf32=dtype == "tf32", cudnn_allow_tf32=dtype == "tf32")
    if device.kind == "cuda" and device.bandwidth_bytes_per_s and peak in device.peaks_flops_per_s:
        for row in np.flatnonzero(runs).tolist():
            name, dims, types, strides, concrete = (
                text if isinstance(text, str) else "" for text in evidence.linked.trace.signatures.loc[row, _TEXTS]
            )
            types = types.replace(_FP32, _SPELLED.get(dtype, _FP32))
            of_call = split(StepCall(name, dims, types, strides, concrete, calls=float(runs[row])), row)
            kernels += [] if isinstance(of_call, Reason) else of_call
    if not kernels:
        return PricedCalls(low_us, high_us)
    priced = price_kernels(kernels, settings, device)
    reach = math.exp(half_width_of_work(priced, device.name in board_of(device.name).timed))
    rows = priced.work.call.astype(np.int64)
    shortest = np.maximum(priced.found.us / reach, priced.floor[2])
    for ends, us in ((low_us, shortest), (high_us, priced.found.us * reach)):
        total = np.bincount(rows, us, runs.size)
        ends[rows] = np.where(total[rows] > 0, total[rows], np.nan)
    return PricedCalls(low_us, high_us)
