"""Folds kernels into groups of one cost and computes their floors.

The three floors are those of arithmetic, bytes and launches.
"""

import math
import re
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pandas as pd
from msgspec import Struct

from bottleneck.analysis.telemetry import UNKNOWN_CONDITIONS, Conditions
from bottleneck.schema.device import ONEDNN_PEAK, Device
from bottleneck.schema.intervals import Flags, Floats, Integers, tally
from bottleneck.schema.records import replace
from bottleneck.schema.tables import as_integers
from bottleneck.units import US_PER_S

# Matrix work by dtype: the first peak that the device has. Older parts do narrow types on wider units: a V100 has no
# bf16 tensor path and uses its fp32 lanes, an A100 widens fp8 to fp16. A CPU calibration measures no fp16: where a
# CPU has units for it, they are those for bf16.
MATRIX_PEAKS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64_tensor", "fp64_vector"),
    "fp32": ("fp32_matrix", "fp32_tensor", "tf32_tensor", "fp32_vector"),
    "tf32": ("tf32_tensor", "fp32_matrix", "fp32_tensor", "fp32_vector"),
    "bf16": ("bf16_tensor", "fp32_vector"),
    "fp16": ("fp16_tensor", "bf16_tensor", "fp16_vector", "fp32_vector"),
    "fp8": ("fp8_tensor", "fp16_tensor"),
    "int8": ("int8_tensor",),
    "fp4": ("fp4_tensor", "fp8_tensor", "fp16_tensor"),
}

# Vector work by dtype: the highest of these. Eager kernels widen half types to fp32, compiled ones may not; no table
# lists integer lanes, and none are faster than those for fp32.
VECTOR_PEAKS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64_vector",),
    "bf16": ("bf16_vector", "fp32_vector"),
    "fp16": ("fp16_vector", "fp32_vector"),
}
_FP32_LANES = ("fp32_vector",)


class Peak(Struct, frozen=True):
    """A peak as an interval in FLOP/s.

    Null when the device has none. ``guessed`` when no kernel name confirms it.
    """

    low: float | None
    high: float | None
    guessed: bool = False


def matrix_peak(device: Device, engine: str | None, kernel_dtype: str | None, op_dtype: str | None) -> Peak:
    """Gives the peak for matrix FLOPs.

    The kernel's name decides where it tells, the op's dtype otherwise.

    fp32 without a telling name may run on tensor cores as tf32 or not: both ends are kept. On a CPU the op tells all.
    """
    dtype = kernel_dtype or op_dtype or "fp32"
    if engine == "vector":
        return _exactly(vector_peak(device, dtype))
    if engine == "matrix" or device.kind == "cpu":
        return _exactly(_first(device, MATRIX_PEAKS.get(dtype, ())))
    if dtype == "fp32":
        slow = _first(device, ("fp32_matrix", "fp32_vector"))
        fast = device.peaks_flops_per_s.get("tf32_tensor", slow)
        return Peak(slow if slow is not None else fast, fast, guessed=slow != fast)
    peak = _first(device, MATRIX_PEAKS.get(dtype, ()))
    return Peak(peak, peak, guessed=True)


def vector_peak(device: Device, dtype: str | None) -> float | None:
    """Gives the peak in FLOP/s for pointwise arithmetic in a dtype.

    Null when the device has none.
    """
    peaks = [
        device.peaks_flops_per_s[key]
        for key in VECTOR_PEAKS.get(dtype or "fp32", _FP32_LANES)
        if key in device.peaks_flops_per_s
    ]
    return max(peaks, default=None)


def _exactly(value: float | None) -> Peak:
    return Peak(value, value)


def first_peak(device: Device, keys: tuple[str, ...]) -> str | None:
    """The first of these peaks that a device has; null for none."""
    return next((key for key in keys if key in device.peaks_flops_per_s), None)


def _first(device: Device, keys: tuple[str, ...]) -> float | None:
    key = first_peak(device, keys)
    return None if key is None else device.peaks_flops_per_s[key]


class Thresholds(Struct, frozen=True):
    """Shares of a duration unless said otherwise.

    "Prototype" is a classifier tried on 58 public traces of B200, H100, A100, V100, MI210, MI250 and MI300X.
    """

    # The launch floor takes this part of the time, and arithmetic and bytes less than the next one. (prototype)
    launch_share: float = 0.5
    work_share: float = 0.5
    # Without a cost only this much launch floor proves overhead: a fifth is too little for work. (ours)
    launch_alone: float = 0.8
    # A kernel with idle multiprocessors, shorter than this many launch floors, is mostly ramp-up. (prototype)
    short_floors: float = 4.0
    # A kernel longer than this many launch floors is not bound by its launch, however little its work. (ours)
    longest_floors: float = 4.0
    # The best large ops of the traces reach 71-97 % of a data sheet; half of that is bound by it. (prototype)
    compute_share: float = 0.4
    # Against a data sheet; real streams reach 79-97 % of it. (prototype)
    memory_share: float = 0.4
    # Against a measured bandwidth, which real code can reach. (prototype)
    measured_memory_share: float = 0.6
    # A floor this far above the time is our error, not noise: 0 of 41,798 modelled ops had one once the cache was
    # counted. (prototype)
    beyond: float = 1.03
    # Real clocks against data sheets: H100 +8 %, A100 under its power limit -8 %. (device table)
    peak_spread: float = 0.08
    # Layout changes beside the main kernel; 14 % of matrix time is usual on an A100 with fp32. (prototype)
    auxiliary_share: float = 0.3
    # Part of the multiprocessors' slots that the waves of a tiled product fill; 83 % cost an H100 a tenth. (prototype)
    wave_efficiency: float = 0.85
    # Tiles that fill less than this come before what a name proves, which costs a factor of two and more. (ours)
    slot_waste: float = 0.4
    # Other work beside a kernel for this part of its time leaves it only a part of the device. (ours)
    shared_share: float = 0.5
    # CPU: a product thinner than this in any direction cannot fill the panels of a matrix library. (ours)
    thin_product: float = 96
    # CPU: data was cold, not cached, if the op took at least this part of what DRAM would need. (ours)
    cold_share: float = 0.8


LAUNCH_FLOOR_PERCENTILE = 10  # of the durations of the smallest kernels (prototype: 1.4-4.7 us on every device)
LAUNCH_FLOOR_BLOCKS = 32  # a kernel of so few blocks has hardly any work
LAUNCH_FLOOR_KERNELS = 5  # fewer kernels say nothing
LAUNCH_FLOOR_LONGEST_US = 20.0  # a longer kernel does real work however few its blocks

GPU = Thresholds()
# An op's self time under the profiler is overhead below three dispatch floors: the profiler hides most of what it adds.
# What an op costs per call differs from op to op on a CPU, so that no number of floors excludes overhead.
CPU = replace(GPU, launch_share=1 / 3, launch_alone=1 / 3, longest_floors=math.inf)


def thresholds_for(device: Device) -> Thresholds:
    """Gives the thresholds for a kind of device.

    They also depend on the way in which its ceilings were found.
    """
    chosen = CPU if device.kind == "cpu" else GPU
    return replace(chosen, memory_share=chosen.measured_memory_share) if device.source == "measured" else chosen


# Kernels of these families do matrix FLOPs; any other kernel of the same op, however long, does not pick their peak.
PRODUCT_FAMILIES = ("matmul", "convolution", "attention")
NAME_LIMIT = 1000


class Groups(Struct, frozen=True):
    """Arrays with one element per group of kernels.

    ``of_kernel`` is the group of each row of KERNELS.

    ``main`` is the longest kernel that is not auxiliary, products first (row in KERNELS): its name picks the peak.
    ``modelled`` marks groups of known cost; ``signature`` is a row in COSTS, -1 for none. ``blocks``, ``threads``
    per block and ``registers`` per thread are the main kernel's, NaN where the trace does not tell. ``resolution_us``
    is how far the time may be off because the trace counts whole microseconds.
    """

    of_kernel: Integers
    main: Integers
    modelled: Flags
    signature: Integers
    kernels: Floats
    time_us: Floats
    auxiliary_us: Floats
    blocks: Floats
    threads: Floats
    registers: Floats
    resolution_us: Floats


class RooflineInput(Struct, frozen=True):
    """The tables of one trace, their groups, device and thresholds.

    The groups are compared with the device and thresholds.

    ``conditions`` are what its sensors said while the steps ran.
    """

    kernels: pd.DataFrame
    ops: pd.DataFrame
    costs: pd.DataFrame
    attribution: pd.DataFrame
    device: Device
    groups: Groups
    conditions: Conditions = UNKNOWN_CONDITIONS

    @property
    def limits(self) -> Thresholds:
        """The thresholds for this device."""
        return thresholds_for(self.device)

    def cost(self, column: str) -> Floats:
        """One amount of COSTS per group, NaN where it is unmodelled."""
        return np.append(self.costs[column].to_numpy(), np.nan)[self.groups.signature]

    def per_name(self, value: Callable[[str], object]) -> Floats:
        """Gives a number per group from its main kernel's name.

        It is computed once per distinct name.
        """
        return by_name(self.kernels, value)[self.groups.main]


def fold(kernels: pd.DataFrame, attribution: pd.DataFrame) -> Groups:
    """Gives the groups of ATTRIBUTION.

    Neither the order of rows nor a shift in time changes them.
    """
    _, of_kernel = np.unique(attribution["group"].to_numpy(), return_inverse=True)
    count = int(of_kernel.max()) + 1 if len(of_kernel) else 0
    duration = kernels["dur_us"].to_numpy()
    auxiliary = kernels["auxiliary"].to_numpy()
    main = _main_rows(kernels, of_kernel, count)
    size = np.bincount(of_kernel, minlength=count).astype(np.float64)
    whole = bool(len(duration)) and bool((duration == np.floor(duration)).all())
    return Groups(
        of_kernel=of_kernel,
        main=main,
        modelled=attribution["share"].notna().to_numpy()[main],
        signature=as_integers(attribution["signature"])[main],
        kernels=size,
        time_us=tally(of_kernel, duration, count),
        auxiliary_us=tally(of_kernel, np.where(auxiliary, duration, 0.0), count),
        **{
            name: kernels[name].to_numpy(dtype=np.float64, na_value=np.nan)[main]
            for name in ("blocks", "threads", "registers")
        },
        resolution_us=size * (0.5 if whole else 0.0),
    )


def _main_rows(kernels: pd.DataFrame, of_kernel: Integers, count: int) -> Integers:
    """Gives the main row of each group.

    It is the last one by: not auxiliary, product, duration, then name, so that ties do not depend on the order.
    """
    order = np.lexsort(
        (
            kernels["name"].cat.codes.to_numpy(),
            kernels["dur_us"].to_numpy(),
            kernels["family"].isin(PRODUCT_FAMILIES).to_numpy(),
            ~kernels["auxiliary"].to_numpy(),
            of_kernel,
        )
    )
    last = np.cumsum(np.bincount(of_kernel, minlength=count)) - 1
    return order[last].astype(np.int64)


def by_name(kernels: pd.DataFrame, value: Callable[[str], object]) -> Floats:
    """Gives a number per row of KERNELS from its name.

    It is computed once per distinct name. A match counts as 1.

    Only the beginning of a name is looked at: C++ template arguments can be megabytes long.
    """
    names = kernels["name"].cat
    values = [value(str(name)[:NAME_LIMIT]) for name in names.categories]
    numbers = [float(item) if isinstance(item, int | float) else float(bool(item)) for item in values]
    return np.array(numbers, dtype=np.float64)[names.codes.to_numpy()]


# Memory-efficient attention in fp32 takes three TF32 passes for one product (CUTLASS OpMultiplyAddFastF32).
FP32_ATTENTION_PASSES = 3.0
# Algorithms that need fewer multiplications than the op's formula counts: Winograd F(2x2, 3x3) saves 2.25x, F(4x4, 3x3)
# (cuDNN's route outside one kernel) and the Fourier route up to 4x, F(5x5, 5x5) in 9x9 tiles 25·25/81x.
_SAVINGS = (
    (re.compile(r"winograd\w*9x9", re.IGNORECASE), 625 / 81),
    (re.compile(r"winograd_nonfused|winograd\w*4x4", re.IGNORECASE), 4.0),
    (re.compile(r"winograd", re.IGNORECASE), 2.25),
    (re.compile(r"fft|cgemm", re.IGNORECASE), 4.0),
    (re.compile(r"fmha_cutlass[fb]_f32\w*_sm[89]", re.IGNORECASE), 1 / FP32_ATTENTION_PASSES),
)

_FETCHED_BEFORE_WRITTEN = 4 / 3
_ABOUT = 1.01  # working sets are measured in whole elements


class Floors(Struct, frozen=True):
    """Microseconds per group; NaN where it is not known.

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
    """Gives the least that any launch costs, in microseconds.

    Null when the trace has too few small kernels to tell.

    That of the device where it was calibrated; else the 10th percentile of compute kernels with at most 32 blocks, or
    that of all of them where it is lower: a floor holds for every kernel, and a trace may have few small ones. Only
    kernels under 20 us count: a longer one works, however few its blocks.
    """
    if device.launch_floor_us is not None:
        return device.launch_floor_us
    duration = kernels["dur_us"].to_numpy()
    short = (kernels["kind"] == "compute").to_numpy() & (duration < LAUNCH_FLOOR_LONGEST_US) & (duration > 0)
    few_blocks = kernels["blocks"].le(LAUNCH_FLOOR_BLOCKS).fillna(value=False).to_numpy(dtype=bool)
    candidates = [
        float(np.percentile(duration[chosen], LAUNCH_FLOOR_PERCENTILE))
        for chosen in (short & few_blocks, short)
        if np.count_nonzero(chosen) >= LAUNCH_FLOOR_KERNELS
    ]
    return min(candidates, default=None)


def floors(work: RooflineInput) -> Floors:
    """Gives the floors of every group.

    Groups attributed to no op have only a launch floor.
    """
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
    """Gives microseconds for bytes with a warm and a cold cache.

    A warm one holds all that fits, a cold one nothing. NaN without a bandwidth.

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
    """Gives the memory floor that fits the measured time.

    It is the cold one, unless the time proves that a cache served it.

    On a GPU the cache then served just enough to explain the time. On a CPU every level has a measured bandwidth, so an
    op faster than DRAM is held against the level that its bytes fit in, or in place against its uncounted traffic too.
    """
    if not device.bandwidth_by_bytes:
        return np.minimum(cold, np.maximum(warm, time))
    was_cold = time >= thresholds_for(device).cold_share * cold
    cached = np.minimum(warm, np.maximum(fastest_us(warm, device), time))
    return np.where(was_cold, np.minimum(cold, np.maximum(warm, time)), cached)


def settle_compute_us(slowed: Floats, least: Floats, time: Floats) -> Floats:
    """Gives the compute floor that fits the measured time.

    It is that at the clock of the steps, unless the time refutes it.

    The clock is a median over the steps; a kernel that was faster than it allows had a higher one.
    """
    return np.minimum(slowed, np.maximum(least, time))


def fastest_us(warm: Floats, device: Device) -> Floats:
    """Gives the least time that the bytes may take.

    On a CPU it is less than at the measured bandwidth.

    That is measured with c = a + 3 b, which counts three streams and moves a fourth: the cache fetches c before it is
    written. An op in place has read what it writes, so that all of the traffic is its own. Nothing is known of caches
    smaller than the least working set that was measured, of which an op in place moves twice its size.
    """
    if not device.bandwidth_by_bytes:
        return warm
    size, rate = device.bandwidth_by_bytes[0]
    return np.where(warm <= 2.0 * _ABOUT * size / rate * US_PER_S, 0.0, warm / _FETCHED_BEFORE_WRITTEN)


def _compute_us(work: RooflineInput) -> tuple[Floats, Floats, Flags]:
    """Gives floors of the arithmetic at both ends of the peak.

    The higher end comes first. The flags are true where the peak is a guess.
    """
    matrix = work.cost("matrix_flops") / _savings(work)
    high, low, guessed = _matrix_peaks(work)
    vector = arithmetic_us(work.cost("vector_flops"), _vector_peaks(work))
    special = arithmetic_us(work.cost("special_ops"), work.device.special_ops_per_s or np.inf)
    others = np.maximum(vector, special)
    fast, slow = (np.maximum(arithmetic_us(matrix, peak), others) for peak in (high, low))
    return fast, slow, guessed & (matrix > 0)


def arithmetic_us(amount: Floats, per_s: Floats | float) -> Floats:
    """Gives microseconds of so much arithmetic at a peak.

    No work takes no time, even at an unknown rate.
    """
    return np.where(amount == 0, 0.0, amount / per_s * US_PER_S)


def _savings(work: RooflineInput) -> Floats:
    """Gives the saving per group.

    It is the largest that a kernel of it announces, the threefold pass where the main one does.

    Winograd outside one kernel multiplies in a plain product between transforms, and only these bear its name.
    """
    announced = by_name(work.kernels, _saving)
    saving = announced[work.groups.main]
    np.maximum.at(saving, work.groups.of_kernel, np.where(announced > 1, announced, 0.0))
    return saving


def _saving(name: str) -> float:
    return next((factor for pattern, factor in _SAVINGS if pattern.search(name)), 1.0)


def _matrix_peaks(work: RooflineInput) -> tuple[Floats, Floats, Flags]:
    """Gives higher end, lower end and guess per group.

    They come from a table over every engine and pair of dtypes that occurs.
    """
    engine, kernel_dtype = work.kernels["engine"].cat, work.kernels["math_dtype"].cat
    # Code -1 is null: the last entry of each axis.
    labels = [[*column.categories, None] for column in (engine, kernel_dtype, work.costs["math_dtype"].cat)]
    peaks = [matrix_peak(work.device, *names) for names in product(*labels)]
    ends = np.array([(peak.high, peak.low, peak.guessed) for peak in peaks], dtype=np.float64)
    products = work.kernels["family"].isin(PRODUCT_FAMILIES).to_numpy()
    # A pointwise kernel does not tell where a product ran whose kernel is missing or has an unknown name.
    engines = np.where(products, engine.codes.to_numpy(), -1)[work.groups.main]
    kernel_dtypes = kernel_dtype.codes.to_numpy()[work.groups.main]
    chosen = ends.reshape([*map(len, labels), 3])[engines, kernel_dtypes, op_dtype_codes(work)]
    by_onednn = work.device.peaks_flops_per_s.get(ONEDNN_PEAK)
    if by_onednn is not None:
        chosen[_fp32_convolutions(work), :2] = by_onednn
    return chosen[:, 0], chosen[:, 1], chosen[:, 2] > 0


def _fp32_convolutions(work: RooflineInput) -> Flags:
    """Marks the groups of fp32 convolutions, which oneDNN multiplies on a CPU."""
    rows = (work.costs["family"] == "convolution") & (work.costs["math_dtype"] == "fp32")
    return np.append(rows.to_numpy(dtype=bool, na_value=False), [False])[work.groups.signature]


def _vector_peaks(work: RooflineInput) -> Floats:
    dtypes = [*work.costs["math_dtype"].cat.categories, None]
    peaks = np.array([vector_peak(work.device, dtype) for dtype in dtypes], dtype=np.float64)
    return peaks[op_dtype_codes(work)]


def op_dtype_codes(work: RooflineInput) -> Integers:
    """Position in the categories of COSTS.math_dtype per group, -1 for none."""
    codes = work.costs["math_dtype"].cat.codes.to_numpy(dtype=np.int64)
    return np.append(codes, -1)[work.groups.signature]
