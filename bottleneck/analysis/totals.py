"""Sums per step and how much of the busy time they rest on."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bottleneck.analysis.charged import Charged, codes_of
from bottleneck.analysis.ledger import ACCOUNTS, LedgerResult
from bottleneck.analysis.timeline import Flags, Integers
from bottleneck.records import Coverage, Device, KernelSummary, Totals, UnknownWork
from bottleneck.units import US_PER_S

_NO_PEAK = "a trace counts host memory from where it begins, not what was in use before"
_UNKNOWN = tuple(ACCOUNTS).index("unknown")


def total(rows: Charged, result: LedgerResult, kernels: Sequence[KernelSummary], device: Device) -> Totals:
    """Work, traffic and counts of one step, and the part of the device's ceilings that they use.

    ``kernels`` are the folded kernels, which know their dtype and engine. Sums over several devices are their mean.
    """
    kind = rows.linked.kernels["kind"]
    copies = (kind == "copy").to_numpy()
    works = ~(copies | (kind == "fill").to_numpy()) & (rows.codes("bound") != _code(rows.labels("bound"), "dispatch"))
    amounts = {name: _known_total(rows, name) for name in ("flops", "bytes_low", "bytes_high")}
    wall_us, steps = result.ledger.wall_us, max(len(rows.linked.window.steps), 1)
    peak = _peak(kernels, device)
    return Totals(
        busy_us=result.overlap.busy_us,
        idle_us=max(wall_us - result.overlap.busy_us, 0.0),
        **amounts,
        kernel_count=float(rows.runs[works].sum()) / rows.repeats,
        op_count=_ops_inside(rows) / steps,
        launch_count=_launches(rows) / rows.repeats,
        sync_count=result.sync_count / steps,
        copy_count=float(rows.runs[copies].sum()) / rows.repeats,
        h2d_bytes=_copied(rows, copies, r"HtoD|HostToDevice"),
        d2h_bytes=_copied(rows, copies, r"DtoH|DeviceToHost"),
        peak_memory_bytes=_peak_memory(rows, result),
        peak_memory_reason=_NO_PEAK if result.host_only else None,
        model_flops_utilization=_utilisation(amounts["flops"], device.peaks_flops_per_s.get(peak or ""), wall_us),
        bandwidth_utilization=_utilisation(amounts["bytes_low"], _bandwidth(device), wall_us),
        peak=peak,
    )


def cover(rows: Charged, result: LedgerResult) -> Coverage:
    """Shares of busy time that are tied to ops and priced, and what has no price, most time first."""
    busy_us = result.overlap.busy_us
    unknown = np.flatnonzero((rows.account == _UNKNOWN) & (rows.us > 0))
    unknown_us = float(rows.us[unknown].sum())
    return Coverage(
        linked_share=rows.linked.linked_share,
        priced_share=max(1.0 - unknown_us / busy_us, 0.0) if busy_us > 0 else None,
        unknown=_unknown_work(rows, unknown),
    )


def _unknown_work(rows: Charged, unknown: Integers) -> tuple[UnknownWork, ...]:
    """Unpriced time by op (by kernel where no op is known) and reason."""
    reasons, ops, kernels = rows.labels("reason"), rows.linked.ops["name"].cat.categories, rows.labels("name")
    op, kernel, reason = rows.op_codes("name"), rows.codes("name"), rows.codes("reason")
    us: dict[tuple[str, str], float] = {}
    keys = np.stack((op[unknown], np.where(op[unknown] < 0, kernel[unknown], -1), reason[unknown]), axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    sums = np.bincount(inverse.ravel(), weights=rows.us[unknown], minlength=len(distinct))
    for (op_code, kernel_code, reason_code), amount in zip(distinct.tolist(), sums.tolist(), strict=True):
        name = str(ops[op_code]) if op_code >= 0 else str(kernels[kernel_code])
        key = name, str(reasons[reason_code]) if reason_code >= 0 else "no price"
        us[key] = us.get(key, 0.0) + amount
    ranked = sorted(us.items(), key=lambda item: -item[1])
    return tuple(UnknownWork(name, amount, reason) for (name, reason), amount in ranked)


def _code(labels: "pd.Index[str]", label: str) -> int:
    return list(labels).index(label) if label in labels else -2


def _known_total(rows: Charged, column: str) -> float | None:
    values = rows.roofline[column].to_numpy()
    known = ~np.isnan(values) & (rows.runs > 0)
    return float((values[known] * rows.runs[known]).sum()) / rows.repeats if known.any() else None


def _ops_inside(rows: Charged) -> int:
    start, (low, high) = rows.linked.ops["ts_us"].to_numpy(), rows.linked.window.host_us
    return int(np.count_nonzero((start >= low) & (start < high)))


def _launches(rows: Charged) -> int:
    launch = codes_of(rows.linked.kernels["launch"])[rows.runs > 0]
    return int(np.unique(launch[launch >= 0]).size)


def _copied(rows: Charged, copies: Flags, pattern: str) -> float | None:
    """Bytes per step that copies of this direction moved; null when one of them does not say how many."""
    labels = rows.labels("name")
    matches = labels.str.contains(pattern, regex=True) if len(labels) else np.zeros(0, dtype=bool)
    named = np.append(np.asarray(matches, dtype=bool), False)[rows.codes("name")]
    mine = np.flatnonzero(copies & named & (rows.runs > 0))
    amount = rows.linked.kernels["bytes"].to_numpy(dtype=np.float64, na_value=np.nan)[mine] * rows.runs[mine]
    return None if np.isnan(amount).any() else float(amount.sum()) / rows.repeats


def _peak_memory(rows: Charged, result: LedgerResult) -> int | None:
    """The most that the device's allocator had handed out; null on a CPU, where a trace counts from its own start."""
    if result.host_only:
        return None
    memory = rows.linked.trace.memory
    totals = memory["total_allocated"][memory["on_device"]].dropna()
    return int(totals.max()) if len(totals) and totals.max() > 0 else None


def _peak(kernels: Sequence[KernelSummary], device: Device) -> str | None:
    """The key of the peak for the dtype and engine that most of the FLOPs use; null when the device has none for it."""
    flops: defaultdict[tuple[str, str | None], float] = defaultdict(float)
    for kernel in kernels:
        if kernel.flops and kernel.dtype:
            flops[kernel.dtype, _peak_of(kernel, device)] += kernel.flops
    return max(flops, key=lambda key: flops[key])[1] if flops else None


def _peak_of(kernel: KernelSummary, device: Device) -> str | None:
    """The peak that a kernel is held against. The name of a CPU's tells no engine: that which its floor was made of."""
    peaks = device.peaks_flops_per_s
    units = ("vector", "tensor") if kernel.engine == "vector" else ("tensor", "vector")
    keys = [key for unit in units if peaks.get(key := f"{kernel.dtype}_{unit}")]
    if kernel.engine is None and kernel.flops and kernel.compute_us:
        rate = kernel.flops / kernel.compute_us * US_PER_S
        return min(keys, key=lambda key: abs(math.log(peaks[key] / rate)), default=None)
    return next(iter(keys), None)


def _bandwidth(device: Device) -> float | None:
    """Bytes per second from memory: of a CPU, that of its largest measured working set."""
    if device.bandwidth_bytes_per_s is None and device.bandwidth_by_bytes:
        return device.bandwidth_by_bytes[-1][1]
    return device.bandwidth_bytes_per_s


def _utilisation(amount: float | None, per_s: float | None, wall_us: float) -> float | None:
    """Part of a ceiling that an amount per step uses; null where unknown, or where it exceeds the ceiling.

    More than the ceiling means that the bytes came from a cache, or that the ceiling is not this device's.
    """
    if amount is None or not per_s or not wall_us:
        return None
    share = amount / (per_s * wall_us / US_PER_S)
    return share if share <= 1.0 else None
