"""Gives kernels their time on a device.

It is floors over efficiencies by kind of work, learned from timed programs. The time of a kernel is that of its launch,
a smooth maximum of two parts, and the stores that follow the arithmetic. The bytes take their time at a share of the
device's bandwidth that its kind reaches.
The arithmetic takes its time at a share of the peak that its kind reaches with much work; little of it (a short inner
dimension, few columns, fewer tiles than multiprocessors) lowers the share. Products on tensor cores have a model of
their own (tensor_products.py). schema/learned_rates.csv holds the shares and sizes with the number of timings behind
each. `python -m benchmarks.kernelbench FOLDER --ship` fits them.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct

from bottleneck.analysis.floors import FP32_ATTENTION_PASSES, MATRIX_PEAKS, arithmetic_us, first_peak, memory_us
from bottleneck.analysis.tiles import count_tiles, fill_of_tiles, fill_of_waves
from bottleneck.predict.step_kernels import Kernel
from bottleneck.predict.tensor_products import (
    ALIGNED_BYTES,
    TensorProducts,
    of_generation,
    product_rates,
    width_of,
)
from bottleneck.predict.tensor_products import arithmetic_us as tensor_arithmetic_us
from bottleneck.predict.vector_products import vector_rates
from bottleneck.schema.device import Device
from bottleneck.schema.device_facts import USUAL_LANES, board_of, generation_of
from bottleneck.schema.intervals import Flags, Floats, Integers
from bottleneck.schema.learned_rates import learned_rates, tensor_share, use_of_channels
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import EngineSettings

_PER_US = 1e-6

PRODUCTS = frozenset({"product", "attention", "lstm", "gru", "rnn"})
CONVOLUTIONS = frozenset(
    {
        "convolution",
        "convolution 3d",
        "transposed convolution",
        "transposed convolution 3d",
        "grouped convolution",
        "pointwise convolution",
        "convolution backward",
    }
)
# cuDNN has kernels in channels last for depthwise windows that are square; others take a general one.
DEPTHWISE = (
    "depthwise convolution",
    "depthwise convolution channels last",
    "uneven depthwise convolution channels last",
)
# Kernels of libraries, which compiled code calls through ATen.
LIBRARY_KINDS = PRODUCTS | CONVOLUTIONS | {*DEPTHWISE, "convolution channels last", "max pooling", "average pooling"}
# Copies of the input and of the result of a convolution, into the order that tensor cores want and back.
LAYOUTS = ("layout", "result layout")
# Kinds that follow the settings of cuDNN. Layouts are only changed for tensor cores.
_IN_CUDNN = CONVOLUTIONS | {"lstm", "gru", "rnn", *LAYOUTS, "convolution channels last"}
_RECURRENT = ("lstm", "gru", "rnn")
KINDS = (
    *sorted(PRODUCTS),
    *sorted(CONVOLUTIONS),
    *DEPTHWISE,
    *LAYOUTS,
    "pointwise",
    "normalize",
    "copy",
    "reduction",
    "softmax",
    "softmax across rows",
    "statistics",
    "layer norm",
    "max pooling",
    "average pooling",
    "scan",
    "fused pointwise",
    "fused reduction",
    "fused statistics",
    "convolution channels last",
    "vector product",
)
_CODE = {kind: code for code, kind in enumerate(KINDS)}
# Rows and columns that a block computes: cuBLAS's kernels for fp32 are named for them (ampere_sgemm_128x64_nn).
_TILE_ROWS, _TILE = 128.0, 64.0
# Where tiles fill less than this part of the multiprocessors, the inner dimension is split into parts of this length.
_SPLIT_WAVES, _SPLIT_INNER = 0.125, 256.0
# Fewer channels do not pay for the transforms of Winograd's algorithm.
_WINOGRAD_CHANNELS = 32.0
_SHARPNESS = 4.0
# ATen's softmax gives a row to a block of 1024 threads, of which a multiprocessor holds two. A public trace of an H100
# (timesformer) has 301,152 rows of 3137 elements in bf16 in 5.72 ms, which is a row in 5 microseconds.
_ROW_US, _ROWS_AT_ONCE = 5.0, 2.0
# Of devices that do not say their clock.
_USUAL_CYCLES = 1500.0
# Blocks of 16 rows, of which a multiprocessor holds four (ATen's ScanUtils.cuh: 512 threads).
_SCANS_AT_ONCE = 64.0
# FLOPs per microsecond of the lanes of one multiprocessor, at which a step of a recurrent layer takes its learned time.
_STEP_LANES = 5e5


class KernelCeilings(Struct, frozen=True):
    """Ceilings per kernel, each an array or one number: per microsecond, bytes, and multiprocessors.

    The factors are the shares of bandwidth, fp32 peak and tensor peak that a board sustains, relative to others. Large
    products on tensor cores reach ``product_share`` of the peak, and attention no more than ``attention_share``.
    ``cycles`` are those of the clock.
    """

    peak: Floats
    lanes: Floats
    is_tensor: Flags
    bandwidth: Floats
    cache: Floats
    multiprocessors: Floats
    memory_factor: Floats
    lanes_factor: Floats
    tensor_factor: Floats
    attention_share: Floats
    product_share: Floats
    cycles: Floats


class KernelColumns(Struct, frozen=True):
    """Kernels as arrays, one for each field, with one entry per kernel."""

    kind: Integers
    call: Floats
    bytes: Floats
    least_bytes: Floats
    flops: Floats
    least_flops: Floats
    elements: Floats
    results: Floats
    blocks: Floats
    rows: Floats
    columns: Floats
    inner: Floats
    batch: Floats
    channels: Floats
    steps: Floats
    launches: Floats
    dilated: Flags
    winograd: Flags
    load_bytes: Floats
    element_bytes: Floats
    padding_bytes: Floats
    autotuned: Flags
    long_rows: Floats
    stored_bytes: Floats
    count: Floats

    def are(self, *kinds: str) -> Flags:
        """Mask of the kernels of these kinds."""
        return np.isin(self.kind, [_CODE[kind] for kind in kinds])


class PredictedTimes(Struct, frozen=True):
    """Predicted microseconds per kernel.

    The whole, and the parts of arithmetic, memory traffic and launch. Where it ``waits``, its arithmetic takes that
    long because parts of it depend on one another or on loads, or are too few to fill the device.
    """

    us: Floats
    compute_us: Floats
    memory_us: Floats
    launch_us: Floats
    waits: Flags


_FLAGS = frozenset({"dilated", "winograd", "autotuned"})


def as_columns(kernels: Sequence[Kernel]) -> KernelColumns:
    """Kernels as columns."""
    columns = {
        name: np.array([getattr(kernel, name) for kernel in kernels], dtype=bool if name in _FLAGS else np.float64)
        for name in KernelColumns.__struct_fields__
        if name != "kind"
    }
    return KernelColumns(kind=np.array([_CODE[kernel.kind] for kernel in kernels], dtype=np.int64), **columns)


def engine_of(kernel: Kernel, settings: EngineSettings, device: Device) -> str:
    """Returns the ceiling that a kernel's arithmetic is held against.

    By the program's settings and what the device has.
    """
    dtype = kernel.dtype
    if kernel.kind not in PRODUCTS | _IN_CUDNN:
        return "fp64_vector" if dtype == "fp64" else "fp32_vector"
    if dtype == "fp32":
        products = settings.matmul_allow_tf32 or settings.float32_matmul_precision in ("high", "medium")
        in_cudnn = kernel.kind in _IN_CUDNN and settings.cudnn_allow_tf32 is not False
        if not (products or in_cudnn or kernel.kind == "attention"):
            return "fp32_vector"
        dtype = "tf32"
    return first_peak(device, MATRIX_PEAKS.get(dtype, ())) or "fp32_vector"


def ceilings_of(
    kernels: Sequence[Kernel], settings: EngineSettings, device: Device
) -> tuple[KernelCeilings, list[str]]:
    """The ceilings for each kernel on one device, and the names of the engines."""
    engines = [engine_of(kernel, settings, device) for kernel in kernels]
    peaks, board = device.peaks_flops_per_s, board_of(device.name)
    facts = generation_of(device.architecture)
    is_split = (
        kernel.kind == "attention" and kernel.dtype == "fp32" and engine == "tf32_tensor"
        for kernel, engine in zip(kernels, engines, strict=True)
    )
    passes = np.array([FP32_ATTENTION_PASSES if is_slow else 1.0 for is_slow in is_split])
    of_products, generation = product_rates(), device.architecture
    return (
        KernelCeilings(
            peak=np.array([peaks.get(engine, np.nan) * _PER_US for engine in engines]) / passes,
            lanes=np.full(len(kernels), peaks.get("fp32_vector", np.nan) * _PER_US),
            is_tensor=np.array([engine.endswith("_tensor") for engine in engines], dtype=bool),
            bandwidth=np.full(len(kernels), (device.bandwidth_bytes_per_s or np.nan) * _PER_US),
            cache=np.full(len(kernels), device.cache_bytes or 0.0),
            multiprocessors=np.full(len(kernels), float(device.sm_count or 100)),
            memory_factor=np.full(len(kernels), board.memory_share),
            lanes_factor=np.full(len(kernels), board.lanes_share / USUAL_LANES),
            tensor_factor=np.full(len(kernels), facts.tensor_share),
            attention_share=np.full(len(kernels), facts.attention_share),
            product_share=np.array([of_generation(of_products, generation, width_of(engine)) for engine in engines]),
            cycles=np.array([device.peak_clocks_mhz.get(engine, _USUAL_CYCLES) for engine in engines]),
        ),
        engines,
    )


def floors(work: KernelColumns, ceilings: KernelCeilings, device: Device) -> tuple[Floats, Floats, Floats]:
    """Returns the floors of each kernel.

    Arithmetic, bytes without a cache, and the larger with what the cache may spare.
    """
    compute = arithmetic_us(work.least_flops, ceilings.peak / _PER_US)
    spared, memory = memory_us(work.least_bytes, device)
    return compute, memory, np.maximum(np.nan_to_num(compute), np.nan_to_num(spared))


def times(
    work: KernelColumns,
    ceilings: KernelCeilings,
    rates: Mapping[str, float],
    of_products: Mapping[str, float] | None = None,
) -> PredictedTimes:
    """Returns the predicted time of each kernel.

    ``of_products`` are other rates of products on tensor cores than those of the package.
    """
    memory = _memory_us(work, ceilings, rates)
    of_products = of_products or product_rates()
    compute, waits = _compute_us(work, ceilings, rates, of_products)
    launch = rates["launch"] * np.where(work.are(*LAYOUTS) & ~ceilings.is_tensor, 0.0, work.launches)
    launch = launch + np.where(work.are("product") & ceilings.is_tensor, of_products["start"], 0.0)
    stored = memory * work.stored_bytes / np.maximum(work.bytes, 1.0)
    hidden = memory - stored
    busy = (compute**_SHARPNESS + hidden**_SHARPNESS) ** (1 / _SHARPNESS) + stored
    return PredictedTimes(busy + launch, compute, memory, launch, waits)


def _memory_us(work: KernelColumns, ceilings: KernelCeilings, rates: Mapping[str, float]) -> Floats:
    share = np.array([rates.get(f"{kind}:memory", 1.0) for kind in KINDS])[work.kind] * rates["memory"]
    share = np.where(work.are("vector product"), vector_rates()["share of bandwidth"], share)
    spared = np.clip(1.0 - work.bytes / np.maximum(ceilings.cache, 1.0), 0.0, 1.0)
    faster = 1.0 + (rates["cache"] - 1.0) * spared
    needless = work.are(*LAYOUTS) & ~ceilings.is_tensor

    return np.where(needless, 0.0, work.bytes / (ceilings.bandwidth * share * ceilings.memory_factor * faster))


def _compute_us(
    work: KernelColumns, ceilings: KernelCeilings, rates: Mapping[str, float], of_products: Mapping[str, float]
) -> tuple[Floats, Flags]:
    """Returns the time of the arithmetic of each kernel.

    And whether it is one of waiting.
    """
    folds = np.array([rates.get(f"{kind}:operations", 0.0) for kind in KINDS])[work.kind]
    filled = np.clip(work.blocks / (rates["blocks"] * ceilings.multiprocessors), 1e-6, 1.0)
    spread = np.clip(work.blocks / ceilings.multiprocessors, 1e-6, 1.0) * (0.5 + 0.5 * filled)
    fold_us = (work.elements * folds / spread + work.results * rates["window"]) / ceilings.lanes
    per_step = np.array([rates.get(f"{kind}:step", 0.0) for kind in KINDS])[work.kind]
    step_us = work.steps * per_step * (_STEP_LANES / (ceilings.lanes / ceilings.multiprocessors)) ** 0.2
    turns = np.where(work.are("scan"), np.maximum(work.rows / (_SCANS_AT_ONCE * ceilings.multiprocessors), 1.0), 1.0)
    ideal = work.flops / ceilings.peak
    share = np.where(ceilings.is_tensor, _tensor_share(work, ceilings, rates), _lanes_share(work, ceilings, rates))
    on_tensor, on_lanes = (
        np.array([rates.get(f"{kind}:{part}", 1.0) for kind in KINDS])[work.kind] for part in ("compute", "lanes")
    )
    ratio = np.where(work.are(*CONVOLUTIONS) & ~ceilings.is_tensor, on_lanes, on_tensor)
    is_product = work.are(*PRODUCTS, *CONVOLUTIONS, "convolution channels last")
    moved = work.are("convolution channels last")
    ratio = ratio * np.where(moved, use_of_channels(rates, work.channels), 1.0)
    ratio = ratio * np.where(moved & ~ceilings.is_tensor, rates["channels last on lanes"], 1.0)
    is_transposed = work.are("transposed convolution", "transposed convolution 3d", "grouped convolution")
    dilated = np.where(is_transposed, rates["dilated transposed"], rates["dilated"])
    # The transforms of Winograd's algorithm pay off over many channels and filters.
    least = np.minimum(work.channels, work.columns)
    saved = np.where(work.winograd & ~ceilings.is_tensor, least / (least + _WINOGRAD_CHANNELS), 0.0)
    ratio = ratio * (1.0 + (rates["winograd"] - 1.0) * saved)
    # Of products, those on lanes were timed: for tensor cores cuBLAS's own choice is as good.
    of_product = np.where(ceilings.is_tensor, 1.0, rates["autotuned product"])
    chosen = np.where(work.are("product"), of_product, rates["autotuned convolution"])
    ratio = ratio * np.where(work.dilated, dilated, 1.0) * np.where(work.autotuned, chosen, 1.0)
    most = np.where(work.are("attention"), ceilings.attention_share, np.inf)
    product_us = ideal / np.minimum(share * ratio, most)
    tensor_us = _tensor_product_us(work, ceilings, rates, of_products)
    product_us = np.where(work.are("product") & ceilings.is_tensor, tensor_us, product_us)
    direct = work.are(*DEPTHWISE)
    direct_us = work.flops / (ceilings.lanes * ratio * ceilings.lanes_factor)
    plain = np.where(is_product, product_us, np.where(direct, direct_us, ideal))
    # Blocks of long rows wait for their loads and for one another's sums, whatever their length.
    row_us = work.long_rows * _ROW_US / (_ROWS_AT_ONCE * ceilings.multiprocessors)
    throughput = np.where(work.are(*_RECURRENT), ideal, plain + fold_us)
    waiting = np.maximum(step_us * turns, row_us)
    waits = (waiting > throughput) | ((work.blocks < ceilings.multiprocessors) & (fold_us > plain))
    return np.nan_to_num(np.maximum(throughput, waiting)), waits


def _lanes_share(work: KernelColumns, ceilings: KernelCeilings, rates: Mapping[str, float]) -> Floats:
    """Returns the share of the fp32 lanes' peak that a product reaches.

    A product of these sizes is padded to whole tiles. A product with a vector has no tiles: each element of the matrix
    is one multiplication.
    """
    by_vector = np.minimum(work.rows, work.columns) == 1
    padding = np.where(by_vector, 1.0, fill_of_tiles(work.rows, 32.0) * fill_of_tiles(work.columns, 32.0))
    waves = _waves(work, ceilings)
    quantised = np.where(waves > 8, 1.0, fill_of_waves(waves))
    split = np.clip(np.minimum(work.inner / _SPLIT_INNER, 1.0 / np.maximum(waves, 1e-9)), 1.0, None)
    used = np.minimum(1.0, quantised * np.where(waves <= _SPLIT_WAVES, split, 1.0))
    short = work.inner / (work.inner + rates["lanes:inner"])
    return np.asarray(np.maximum(rates["lanes"] * ceilings.lanes_factor * padding * used * short, 1e-6))


def _tensor_share(work: KernelColumns, ceilings: KernelCeilings, rates: Mapping[str, float]) -> Floats:
    """Share of the tensor cores' peak that a product of these sizes reaches."""
    used = np.clip(_waves(work, ceilings), 0.1, 1.0)
    share = tensor_share(rates, ceilings.tensor_factor, work.inner, work.columns)
    return np.asarray(np.maximum(share * used, 1e-6))


def _tensor_product_us(
    work: KernelColumns, ceilings: KernelCeilings, rates: Mapping[str, float], of_products: Mapping[str, float]
) -> Floats:
    """Returns the time of the arithmetic of products on tensor cores.

    Only that of products means anything. A product with a vector runs on lanes. Where rows can be padded, they are if
    that is quicker.
    """
    products = TensorProducts(
        rows=work.rows,
        columns=work.columns,
        inner=work.inner,
        batch=work.batch,
        load_bytes=work.load_bytes,
        element_bytes=work.element_bytes,
        peak=ceilings.peak,
        share=ceilings.product_share,
        multiprocessors=ceilings.multiprocessors,
        cycles=ceilings.cycles,
        bandwidth=ceilings.bandwidth,
    )
    aligned = replace(products, load_bytes=np.full(work.rows.shape, ALIGNED_BYTES))
    copied = work.padding_bytes / (ceilings.bandwidth * rates["memory"] * ceilings.memory_factor) + rates["launch"]
    as_is, padded = (tensor_arithmetic_us(way, of_products) for way in (products, aligned))
    by_vector = np.minimum(work.rows, work.columns) == 1
    return np.where(by_vector, work.flops / ceilings.lanes, np.minimum(as_is, padded + copied))


def _waves(work: KernelColumns, ceilings: KernelCeilings) -> Floats:
    tiles = count_tiles(work.rows, work.columns, work.batch, _TILE_ROWS, _TILE)
    return np.asarray(tiles / ceilings.multiprocessors)


@lru_cache(maxsize=1)
def read_rates() -> Mapping[str, float]:
    """The learned shares and sizes by name."""
    return {name: value for name, (value, _) in learned_rates().items()}
