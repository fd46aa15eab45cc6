"""The three floors of each group: the least time that its arithmetic, its bytes and its launches can take."""

import re
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from bottleneck.analysis.ceilings import matrix_peak, vector_peak
from bottleneck.analysis.groups import PRODUCT_FAMILIES, Flags, Floats, Rows, Work, by_name
from bottleneck.analysis.thresholds import (
    LAUNCH_FLOOR_BLOCKS,
    LAUNCH_FLOOR_KERNELS,
    LAUNCH_FLOOR_LONGEST_US,
    LAUNCH_FLOOR_PERCENTILE,
    thresholds_for,
)
from bottleneck.records import Device
from bottleneck.units import US_PER_S

# Algorithms that need fewer multiplications than the op's formula counts: Winograd F(2x2, 3x3) saves 2.25x, F(4x4, 3x3)
# (cuDNN's route outside one kernel) and the Fourier route up to 4x, F(5x5, 5x5) in 9x9 tiles 25·25/81x.
# Memory-efficient attention in fp32 takes three TF32 passes for one.
_SAVINGS = (
    (re.compile(r"winograd\w*9x9", re.IGNORECASE), 625 / 81),
    (re.compile(r"winograd_nonfused|winograd\w*4x4", re.IGNORECASE), 4.0),
    (re.compile(r"winograd", re.IGNORECASE), 2.25),
    (re.compile(r"fft|cgemm", re.IGNORECASE), 4.0),
    (re.compile(r"fmha_cutlass[fb]_f32\w*_sm[89]", re.IGNORECASE), 1 / 3),
)

_FETCHED_BEFORE_WRITTEN = 4 / 3
_ABOUT = 1.01  # working sets are measured in whole elements


@dataclass(frozen=True)
class Floors:
    """Microseconds per group; NaN where it cannot be told.

    ``compute_us`` takes the higher end of an uncertain peak, ``compute_slow_us`` the lower, both at the clock at which
    the steps ran; ``compute_least_us`` the higher end at the clock at which the peak holds. ``warm_us`` is the time of
    the bytes if all that fits was in cache, ``cold_us`` if nothing was; the ``eager`` pair is the same for the traffic
    of the usual eager kernels. ``guessed`` marks a peak that no kernel name confirms.
    """

    compute_us: Floats
    compute_slow_us: Floats
    compute_least_us: Floats
    warm_us: Floats
    cold_us: Floats
    eager_warm_us: Floats
    eager_cold_us: Floats
    launch_us: Floats
    guessed: Flags


def launch_floor_us(kernels: pd.DataFrame, device: Device) -> float | None:
    """The least that any launch costs, in microseconds; null when the trace has too few small kernels to tell.

    That of the device where it was calibrated; else the 10th percentile of compute kernels with at most 32 blocks, or
    that of all of them where it is lower: a floor holds for every kernel, and a trace may have few small ones. Only
    kernels under 20 us count: a longer one works, however few its blocks.
    """
    if device.launch_floor_us is not None:
        return device.launch_floor_us
    duration = kernels["dur_us"].to_numpy()
    short = (kernels["kind"] == "compute").to_numpy() & (duration < LAUNCH_FLOOR_LONGEST_US) & (duration > 0)
    few_blocks = kernels["blocks"].le(LAUNCH_FLOOR_BLOCKS).fillna(value=False).to_numpy(dtype=bool)
    found = [
        float(np.percentile(duration[chosen], LAUNCH_FLOOR_PERCENTILE))
        for chosen in (short & few_blocks, short)
        if np.count_nonzero(chosen) >= LAUNCH_FLOOR_KERNELS
    ]
    return min(found, default=None)


def floors(work: Work) -> Floors:
    """The floors of every group; those without a payer have only a launch floor."""
    floor = launch_floor_us(work.kernels, work.device)
    least, _, _ = _compute_us(work)
    fast, slow, guessed = _compute_us(replace(work, device=work.conditions.slowed(work.device)))
    warm, cold = memory_us(work.cost("bytes_low"), work.device)
    eager_warm, eager_cold = memory_us(work.cost("bytes_high"), work.device)
    return Floors(
        compute_us=fast,
        compute_slow_us=slow,
        compute_least_us=least,
        warm_us=warm,
        cold_us=cold,
        eager_warm_us=eager_warm,
        eager_cold_us=eager_cold,
        launch_us=work.groups.kernels * (np.nan if floor is None else floor),
        guessed=guessed,
    )


def memory_us(traffic: Floats, device: Device) -> tuple[Floats, Floats]:
    """Microseconds for bytes if all that fits was in cache, and if nothing was; NaN without a bandwidth.

    A measured CPU has a bandwidth per working set; a GPU spares the bytes that its last cache can hold.
    """
    cold = traffic / (device.bandwidth_bytes_per_s or np.nan) * US_PER_S
    if not device.bandwidth_by_bytes:
        spared = np.maximum(0.0, traffic - (device.cache_bytes or 0.0))
        return spared / (device.bandwidth_bytes_per_s or np.nan) * US_PER_S, cold
    sizes, rates = np.log(np.array(device.bandwidth_by_bytes, dtype=np.float64)).T
    warm = traffic / np.exp(np.interp(np.log(np.maximum(traffic, 1.0)), sizes, rates)) * US_PER_S
    return np.minimum(warm, cold), cold


def settle_memory_us(warm: Floats, cold: Floats, time: Floats, device: Device) -> Floats:
    """The memory floor that fits the measured time: cold, unless the time proves that a cache served it.

    On a GPU the cache then served just enough to explain the time. On a CPU every level has a measured bandwidth, so an
    op faster than DRAM is held against the level that its bytes fit in, or in place against its uncounted traffic too.
    """
    if not device.bandwidth_by_bytes:
        return np.minimum(cold, np.maximum(warm, time))
    was_cold = time >= thresholds_for(device).cold_share * cold
    cached = np.minimum(warm, np.maximum(fastest_us(warm, device), time))
    return np.where(was_cold, np.minimum(cold, np.maximum(warm, time)), cached)


def settle_compute_us(slowed: Floats, least: Floats, time: Floats) -> Floats:
    """The compute floor that fits the measured time: that at the clock of the steps, unless the time refutes it.

    The clock is a median over the steps; a kernel that was faster than it allows had a higher one.
    """
    return np.minimum(slowed, np.maximum(least, time))


def fastest_us(warm: Floats, device: Device) -> Floats:
    """The least time that the bytes may take: on a CPU less than at the measured bandwidth.

    That is measured with c = a + 3 b, which counts three streams and moves a fourth: the cache fetches c before it is
    written. An op in place has read what it writes, so that all of the traffic is its own. Nothing is known of caches
    smaller than the least working set that was measured, of which an op in place moves twice its size.
    """
    if not device.bandwidth_by_bytes:
        return warm
    size, rate = device.bandwidth_by_bytes[0]
    return np.where(warm <= 2.0 * _ABOUT * size / rate * US_PER_S, 0.0, warm / _FETCHED_BEFORE_WRITTEN)


def _compute_us(work: Work) -> tuple[Floats, Floats, Flags]:
    """Floors of the arithmetic at the higher and at the lower end of the peak, and whether the peak is a guess."""
    matrix = work.cost("matrix_flops") / _savings(work)
    high, low, guessed = _matrix_peaks(work)
    vector = _seconds(work.cost("vector_flops"), _vector_peaks(work))
    special = work.cost("special_ops") / (work.device.special_ops_per_s or np.inf)
    others = np.maximum(vector, special)
    fast, slow = (np.maximum(_seconds(matrix, peak), others) * US_PER_S for peak in (high, low))
    return fast, slow, guessed & (matrix > 0)


def _seconds(amount: Floats, rate: Floats) -> Floats:
    """No work takes no time, even at an unknown rate."""
    return np.where(amount == 0, 0.0, amount / rate)


def _savings(work: Work) -> Floats:
    """The saving per group: the largest that a kernel of it announces, the threefold pass where the main one does.

    Winograd outside one kernel multiplies in a plain product between transforms, and only these bear its name.
    """
    announced = by_name(work.kernels, _saving)
    saving = announced[work.groups.main]
    np.maximum.at(saving, work.groups.of_kernel, np.where(announced > 1, announced, 0.0))
    return saving


def _saving(name: str) -> float:
    return next((factor for pattern, factor in _SAVINGS if pattern.search(name)), 1.0)


def _matrix_peaks(work: Work) -> tuple[Floats, Floats, Flags]:
    """Higher end, lower end and guess per group, from a table over every engine and pair of dtypes that occurs."""
    engine, kernel_dtype = work.kernels["engine"].cat, work.kernels["math_dtype"].cat
    # Code -1 is null: the last entry of each axis.
    labels = [[*column.categories, None] for column in (engine, kernel_dtype, work.costs["math_dtype"].cat)]
    found = [matrix_peak(work.device, *names) for names in product(*labels)]
    ends = np.array([(peak.high, peak.low, peak.guessed) for peak in found], dtype=np.float64)
    products = work.kernels["family"].isin(PRODUCT_FAMILIES).to_numpy()
    # A pointwise kernel does not tell where a product ran whose kernel is missing or has an unknown name.
    engines = np.where(products, engine.codes.to_numpy(), -1)[work.groups.main]
    kernel_dtypes = kernel_dtype.codes.to_numpy()[work.groups.main]
    chosen = ends.reshape([*map(len, labels), 3])[engines, kernel_dtypes, _op_dtype_codes(work)]
    return chosen[:, 0], chosen[:, 1], chosen[:, 2] > 0


def _vector_peaks(work: Work) -> Floats:
    dtypes = [*work.costs["math_dtype"].cat.categories, None]
    peaks = np.array([vector_peak(work.device, dtype) for dtype in dtypes], dtype=np.float64)
    return peaks[_op_dtype_codes(work)]


def _op_dtype_codes(work: Work) -> Rows:
    """Position in the categories of COSTS.math_dtype per group, -1 for none."""
    codes = work.costs["math_dtype"].cat.codes.to_numpy(dtype=np.int64)
    return np.append(codes, -1)[work.groups.signature]
