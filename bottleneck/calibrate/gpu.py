"""Measures the ceilings of a GPU.

These are products by dtype, arithmetic, memory streams, launches, and the host link.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from bottleneck.calibrate.cache import keep, kept_calibrations
from bottleneck.calibrate.calibration import Calibration, Ceiling, Group, Unit, ceilings_of, noise_caveats
from bottleneck.calibrate.probes import (
    REFUSALS,
    Clock,
    ClockWatch,
    Look,
    NvmlClock,
    OnProgress,
    Probe,
    ProbeEffort,
    ProbeResults,
    Take,
    clock_stamp,
    no_progress,
    product_name,
    settle,
    stream_name,
)
from bottleneck.devices.catalogue import ridges
from bottleneck.devices.match import match_device
from bottleneck.harness.torch_private import gpu_function
from bottleneck.harness.torch_state import describe_torch
from bottleneck.harness.window import quiet_profiler
from bottleneck.schema.analysis import Caveat
from bottleneck.schema.device import Device
from bottleneck.schema.linked_trace import DeviceProperties
from bottleneck.units import format_share

# One batch between two events: long against launching it, short enough for a few in each slice.
_BATCH_S = 0.02
_MOST_CALLS = 400  # launches that a queue holds without making the host wait
_SLEEP_CYCLES_PER_CALL = 20_000  # about 10 us: the device sleeps until the host has queued the batch

# Multiplications fused with additions, as the compilers for GPUs make them, in four chains that wait for nothing.
_FLOPS_PER_NUMBER = 2048.0
_FUSED = """
template <typename T> T fused(T x) {
  T y = x + T(1), z = x + T(2), w = x + T(3);
  for (int i = 0; i < 256; ++i) {
    x = x * T(0.999) + T(0.001); y = y * T(0.999) + T(0.001);
    z = z * T(0.999) + T(0.001); w = w * T(0.999) + T(0.001);
  }
  return x + y + z + w;
}
"""

LAUNCH, BACK_TO_BACK, ENQUEUE = "smallest kernel, profiled", "smallest kernels, back to back", "enqueue by the host"


class LinkWay(NamedTuple):
    """A way of copies between host and device.

    Holds where they begin, and whether the host's memory is pinned.
    """

    from_host: bool
    pinned: bool


LINKS: Mapping[str, LinkWay] = {
    "host to device, pinned": LinkWay(from_host=True, pinned=True),
    "device to host, pinned": LinkWay(from_host=False, pinned=True),
    "host to device, pageable": LinkWay(from_host=True, pinned=False),
    "device to host, pageable": LinkWay(from_host=False, pinned=False),
}


@dataclass(frozen=True)
class GpuProduct:
    """A product of a dtype.

    Holds torch's names of its operands, and what fp32 may be rounded to.
    """

    dtype: str
    item_bytes: float
    fp32_precision: str | None = None


PRODUCTS: Mapping[str, GpuProduct] = {
    "fp64": GpuProduct("float64", 8.0),
    "fp32": GpuProduct("float32", 4.0, "ieee"),
    "tf32": GpuProduct("float32", 4.0, "tf32"),
    "bf16": GpuProduct("bfloat16", 2.0),
    "fp16": GpuProduct("float16", 2.0),
    "fp8": GpuProduct("float8_e4m3fn", 1.0),
    "int8": GpuProduct("int8", 1.0),
}
VECTORS: Mapping[str, str] = {"fp64": "float64", "fp32": "float32"}


@dataclass(frozen=True)
class GpuSizes:
    """Sizes of the work.

    The time of a ``scout`` product shows which of the others take longer than ``product_s``.
    """

    products: tuple[int, ...] = (8192, 4096, 2048)
    scout: int = 1024
    product_s: float = 0.25
    numbers: int = 2**22
    link_bytes: int = 128 * 2**20
    tiny_calls: int = 400
    largest_stream_bytes: float = 2.0**32


@dataclass(frozen=True)
class CudaBench:
    """Tools of a measurement.

    They are torch, the device by torch's name ('cuda:0'), its memory, and the host's clock.
    """

    torch: Any
    device: str
    free_bytes: float
    cache_bytes: float
    sizes: GpuSizes = GpuSizes()
    clock: Clock = time.perf_counter

    def batch(self, run: Callable[[], object], calls: int) -> Take:
        """Times a call on the device, in seconds.

        Takes the mean of ``calls`` calls between two events. The device waits until they are queued.
        """

        def take(look: Look) -> float:
            cuda = self.torch.cuda
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            gpu_function(self.torch, "sleep")(_SLEEP_CYCLES_PER_CALL * calls)
            start.record()
            for _ in range(calls):
                run()
            end.record()
            look()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / calls

        return take

    def waited_for(self, run: Callable[[], object]) -> Take:
        """Seconds on the host's clock from the call to the end of its work."""

        def take(look: Look) -> float:
            self.torch.cuda.synchronize()
            start = self.clock()
            run()
            self.torch.cuda.synchronize()
            seconds = self.clock() - start
            look()
            return seconds

        return take

    def long_batch(self, make: Callable[[], Callable[[], object]]) -> Take:
        """Times what ``make`` gives to run, in a long batch.

        The batch has as many calls as it should have.
        """
        run = make()
        one = self.once(run)
        return self.batch(run, max(1, min(_MOST_CALLS, int(_BATCH_S / max(one, 1e-6)))))

    def once(self, run: Callable[[], object]) -> float:
        """Seconds of the second call."""
        take = self.batch(run, 1)
        take(lambda: None)
        return take(lambda: None)


def cuda_probes(bench: CudaBench) -> Iterator[Probe]:
    """Gives every probe of the device.

    Data are random, and handed back before the next probe makes its own.
    """
    for dtype in PRODUCTS:
        yield from _products(bench, dtype)
    for dtype in VECTORS:
        yield _vector(bench, dtype)
    for level, size in stream_sizes(bench).items():
        yield from _streams(bench, level, size)
    yield from _links(bench)
    yield from _launches(bench)


def vector_name(dtype: str) -> str:
    """The ceiling of arithmetic of a dtype outside of products."""
    return f"{dtype} multiply-add"


def stream_sizes(bench: CudaBench) -> dict[str, float]:
    """Gives the bytes to stream over, by level of memory.

    They are half of the cache, four times it, and far beyond.
    """
    room = min(bench.free_bytes / 4, bench.sizes.largest_stream_bytes)
    return {
        "L2": min(bench.cache_bytes / 2, room),
        "4 x L2": min(bench.cache_bytes * 4, room),
        "DRAM": min(max(64 * bench.cache_bytes, 2.0**30), room),
    }


def _products(bench: CudaBench, dtype: str) -> list[Probe]:
    """Makes the probes of square products.

    They are the two largest that fit into a quarter of the free memory and do not take too long. Some devices do fp64
    at a sixty-fourth of the rate of fp32.
    """
    if not hasattr(bench.torch, PRODUCTS[dtype].dtype):
        return []
    fitting = [size for size in bench.sizes.products if _fits(bench, dtype, size)][:2] or [bench.sizes.scout]
    return [
        _probe(bench, product_name(dtype), f"{size} x {size}", 2.0 * size**3, partial(_product, bench, dtype, size))
        for size in fitting
    ]


def _probe(bench: CudaBench, ceiling: str, how: str, amount: float, make: Callable[[], Callable[[], object]]) -> Probe:
    return Probe(ceiling, how, amount, lambda: bench.long_batch(make))


def _fits(bench: CudaBench, dtype: str, size: int) -> bool:
    if 4 * size**2 * PRODUCTS[dtype].item_bytes > bench.free_bytes / 4:
        return False
    scout = bench.sizes.scout
    try:
        seconds = bench.once(_product(bench, dtype, scout))
    except REFUSALS:  # the measurement finds out too, and keeps the reason
        return False
    return bool(seconds * (size / scout) ** 3 <= bench.sizes.product_s)


def _product(bench: CudaBench, dtype: str, size: int) -> Callable[[], object]:
    torch, product = bench.torch, PRODUCTS[dtype]
    kind = getattr(torch, product.dtype)
    if dtype == "int8":
        left, right = (torch.randint(-128, 127, (size, size), dtype=kind, device=bench.device) for _ in range(2))
        return partial(gpu_function(torch, "int8 product"), left, right.t())
    left, right = (torch.randn(size, size, device=bench.device).to(kind) for _ in range(2))
    if dtype == "fp8":
        one = torch.ones((), device=bench.device)
        kwargs = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        return partial(gpu_function(torch, "fp8 product"), left, right.t(), **kwargs)
    out = torch.empty(size, size, dtype=kind, device=bench.device)
    multiply = partial(torch.mm, left, right, out=out)
    return multiply if product.fp32_precision is None else partial(_rounded, torch, product.fp32_precision, multiply)


def _rounded(torch: Any, precision: str, multiply: Callable[[], object]) -> None:
    """Multiplies fp32 numbers that may or may not be rounded to tf32.

    ``precision`` says which. The user's setting is put back.
    """
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, precision
    try:
        multiply()
    finally:
        matmul.fp32_precision = before


def _vector(bench: CudaBench, dtype: str) -> Probe:
    """Chains of fused multiply-adds in registers: a kernel that torch compiles while it runs."""
    count = bench.sizes.numbers
    make = partial(_chain, bench, dtype, count)
    return _probe(bench, vector_name(dtype), "four chains", count * _FLOPS_PER_NUMBER, make)


def _chain(bench: CudaBench, dtype: str, count: int) -> Callable[[], object]:
    torch = bench.torch
    numbers = torch.rand(count, device=bench.device, dtype=getattr(torch, VECTORS[dtype]))
    return partial(gpu_function(torch, "jit")(_FUSED), numbers)


def _streams(bench: CudaBench, level: str, size: float) -> list[Probe]:
    """Makes the probes of memory streams.

    They are a copy and c = a + 3 b. Each moves ``size`` bytes in all.
    """
    copied, added = int(size // 8), int(size // 12)
    return [
        _probe(bench, stream_name(level), "copy", 8.0 * copied, partial(_copy, bench, copied)),
        _probe(bench, stream_name(level), "a + 3 b", 12.0 * added, partial(_add, bench, added)),
    ]


def _copy(bench: CudaBench, count: int) -> Callable[[], object]:
    source, target = (bench.torch.rand(count, device=bench.device) for _ in range(2))
    return partial(target.copy_, source)


def _add(bench: CudaBench, count: int) -> Callable[[], object]:
    left, right, out = (bench.torch.rand(count, device=bench.device) for _ in range(3))
    return partial(bench.torch.add, left, right, alpha=3, out=out)


def _links(bench: CudaBench) -> list[Probe]:
    """Makes the probes of copies between host and device.

    The host's memory is one that the system may move, or one that it may not.
    """
    size = float(bench.sizes.link_bytes)
    return [Probe(name, "copy", size, partial(_transfer, bench, way)) for name, way in LINKS.items()]


def _transfer(bench: CudaBench, way: LinkWay) -> Take:
    torch, count = bench.torch, bench.sizes.link_bytes // 4
    host, device = torch.rand(count), torch.rand(count, device=bench.device)
    host = host.pin_memory() if way.pinned else host
    source, target = (host, device) if way.from_host else (device, host)
    return bench.waited_for(partial(target.copy_, source, non_blocking=way.pinned))


def _launches(bench: CudaBench) -> list[Probe]:
    """Makes the probes of the smallest kernel.

    They are its time on the device, queued behind others, and what queueing it costs the host.
    """
    return [
        Probe(LAUNCH, "add", 1.0, lambda: partial(_profiled_s, bench)),
        Probe(BACK_TO_BACK, "add", 1.0, lambda: bench.batch(_add(bench, 1), bench.sizes.tiny_calls)),
        Probe(ENQUEUE, "add", 1.0, lambda: partial(_enqueue_s, bench, _add(bench, 1))),
    ]


def _enqueue_s(bench: CudaBench, run: Callable[[], object], look: Look) -> float:
    """Seconds that the host takes to queue a call."""
    bench.torch.cuda.synchronize()
    start = bench.clock()
    for _ in range(bench.sizes.tiny_calls):
        run()
    seconds = bench.clock() - start
    bench.torch.cuda.synchronize()
    look()
    return seconds / bench.sizes.tiny_calls


def _profiled_s(bench: CudaBench, look: Look) -> float:
    """Gives the 10th percentile of the smallest kernel's seconds.

    By the profiler. RuntimeError where it shows none.
    """
    torch, run = bench.torch, _add(bench, 1)
    with quiet_profiler(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(bench.sizes.tiny_calls):
            run()
        torch.cuda.synchronize()
    look()
    cuda = torch.autograd.DeviceType.CUDA
    durations_ns = [
        event.duration_ns() for event in profiler.profiler.kineto_results.events() if event.device_type() == cuda
    ]
    if len(durations_ns) < 20:
        raise RuntimeError("the profiler shows no kernels")
    return float(statistics.quantiles(durations_ns, n=10)[0]) / 1e9


# Under a minute in all: rounds end after 35 s, and one of them takes some 8 s.
GPU_EFFORT = ProbeEffort(most_seconds=35.0)

_L2_BYTES = 32.0 * 2**20  # where torch does not report it
_LEAST_SHARE = 0.5  # of a data sheet; the best products of the slowest boards under their power limit reach 54 %
_BUSY = 0.05  # share of the second before in which kernels ran, of whoever
_ABOVE = 1.005  # of a data sheet: more is none of its rounding

# Peaks of the table by what is measured. An NVIDIA board multiplies fp32 on its vector units, an AMD one on others.
_PRODUCT_PEAKS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64_tensor", "fp64_vector"),
    "fp32": ("fp32_matrix", "fp32_vector"),
    **{dtype: (f"{dtype}_tensor",) for dtype in ("tf32", "bf16", "fp16", "fp8", "int8")},
}

Facts = Mapping[str, str | int | float | None]


def calibrate_gpu(
    index: int = 0, on_progress: OnProgress = no_progress, effort: ProbeEffort = GPU_EFFORT, *, fresh: bool = False
) -> Calibration:
    """Measures the ceilings of a GPU and keeps them for later.

    ``index`` is torch's number of the GPU. It takes under a minute.

    As with a CPU, a result that was disturbed is only improved on, unless it is ``fresh``.
    """
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    with torch.cuda.device(index):
        now = measure_gpu(torch, index, effort, on_progress)
    before = None if fresh else read_gpu_calibration(now.identity, now.driver)
    return keep(before, now)


def measure_gpu(
    torch: Any, index: int, effort: ProbeEffort, on_progress: OnProgress, sizes: GpuSizes | None = None
) -> Calibration:
    """A calibration made now, of the device that torch has at hand."""
    facts = describe_torch(torch)["device_facts"][index]
    sheet, doubtful = data_sheet(torch, facts)
    sensors = NvmlClock(facts)
    watch, before, used = ClockWatch(sensors.clock_mhz), sensors.clock_mhz(), sensors.used_share() or 0.0
    cache_bytes = float(facts.get("L2_cache_size") or _L2_BYTES)
    bench = CudaBench(torch, f"cuda:{index}", float(torch.cuda.mem_get_info(index)[0]), cache_bytes)
    bench = bench if sizes is None else replace(bench, sizes=sizes)
    try:
        with torch.inference_mode():
            outcome = settle(list(cuda_probes(bench)), effort, watch, on_progress)
        clock = clock_stamp(before, watch.seen_mhz(), sensors.clock_mhz(), sensors.memory_mhz())
    finally:
        sensors.close()
    ceilings = as_ceilings(outcome, bench, sheet)
    busy = f"it was busy with other work ({format_share(used)} of the time) as we began" if used > _BUSY else ""
    return Calibration(
        device=as_device(sheet, facts, ceilings),
        identity=identity(facts),
        dispatch_us=next((ceiling.value for ceiling in ceilings if ceiling.name == ENQUEUE), None),
        caveats=(
            *noise_caveats(ceilings, "this device", busy, f"--device cuda:{index}"),
            *off_sheet(ceilings),
            *doubtful,
        ),
        ceilings=ceilings,
        clock=clock,
        driver=sensors.driver,
        missing=dict(outcome.missing),
    )


def identity(facts: Facts) -> str:
    """Identity of a device model: name, multiprocessors, memory, highest clock; no serial number."""
    keys = ("name", "multi_processor_count", "total_memory", "major", "minor", "clock_rate", "gcnArchName")
    return ", ".join(f"{key}={facts[key]}" for key in keys if facts.get(key) is not None)


def read_gpu_calibration(wanted: str, driver: str) -> Calibration | None:
    """Reads the kept calibration of such a device.

    It has to be of this driver and version of torch. Null if there is none.
    """
    calibrations = (calibration for kind in ("cuda", "rocm") for calibration in kept_calibrations(kind))
    return next(
        (calibration for calibration in calibrations if (calibration.identity, calibration.driver) == (wanted, driver)),
        None,
    )


def data_sheet(torch: Any, facts: Facts) -> tuple[Device, tuple[Caveat, ...]]:
    """Finds the device's row of the catalogue, with caveats.

    The rules are the same as for a trace.
    """
    flavour = "rocm" if getattr(torch.version, "hip", None) else "cuda"
    properties = DeviceProperties(
        index=int(facts["index"] or 0),
        name=str(facts["name"] or ""),
        memory_bytes=int(facts["total_memory"] or 0) or None,
        sm_count=int(facts["multi_processor_count"] or 0) or None,
        compute_capability=f"{facts.get('major')}.{facts.get('minor')}",
        warp_size=None,
    )
    return match_device([properties], [properties.index], flavour)


def as_ceilings(outcome: ProbeResults, bench: CudaBench, sheet: Device) -> tuple[Ceiling, ...]:
    """The results as ceilings beside the data sheet, in reading order."""
    streams = {stream_name(level): size for level, size in stream_sizes(bench).items()}
    nominal: dict[str, float | None] = {stream_name("DRAM"): sheet.bandwidth_bytes_per_s}
    nominal |= {product_name(dtype): _nominal(sheet, _PRODUCT_PEAKS[dtype]) for dtype in PRODUCTS}
    nominal |= {vector_name(dtype): _nominal(sheet, (f"{dtype}_vector",)) for dtype in VECTORS}
    groups: tuple[tuple[Group, Unit, Iterable[str]], ...] = (
        ("matrix", "FLOP/s", map(product_name, PRODUCTS)),
        ("vector", "FLOP/s", map(vector_name, VECTORS)),
        ("memory", "B/s", streams),
        ("link", "B/s", LINKS),
        ("time", "us", (LAUNCH, BACK_TO_BACK, ENQUEUE)),
    )
    return ceilings_of(outcome, groups, streams, nominal)


def _nominal(sheet: Device, peaks: tuple[str, ...]) -> float | None:
    return next((sheet.peaks_flops_per_s[peak] for peak in peaks if peak in sheet.peaks_flops_per_s), None)


def as_device(sheet: Device, facts: Facts, ceilings: tuple[Ceiling, ...]) -> Device:
    """The data sheet with what was measured in place of it.

    Vector units are held against chains of multiply-adds, or products where these were faster. Without the chains the
    data sheet stands: products reach less. Dtypes that the data sheet does not have run on other units than their own,
    as bf16 does on a V100, and give no peak.
    """
    by_name = {ceiling.name: ceiling for ceiling in ceilings}
    best = _peaks(sheet, by_name)
    peaks = {**sheet.peaks_flops_per_s, **{peak: entry.value for peak, entry in best.items()}}
    clocks = {**sheet.peak_clocks_mhz, **{peak: entry.clock_mhz for peak, entry in best.items() if entry.clock_mhz}}
    dram, floor = by_name.get(stream_name("DRAM")), by_name.get(LAUNCH)
    bandwidth = sheet.bandwidth_bytes_per_s if dram is None else dram.value
    pinned = (by_name[name].value for name, way in LINKS.items() if name in by_name and way.pinned)
    link = max(pinned, default=None)
    cache = facts.get("L2_cache_size")
    return replace(
        sheet,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        launch_floor_us=None if floor is None else floor.value,
        source="measured",
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        cache_bytes=max(float(cache or 0.0), sheet.cache_bytes or 0.0) or None,
        link_bytes_per_s=link or sheet.link_bytes_per_s,
        peak_clocks_mhz={peak: clock for peak, clock in clocks.items() if peak in peaks},
    )


def _peaks(sheet: Device, by_name: Mapping[str, Ceiling]) -> dict[str, Ceiling]:
    """The ceiling that each peak of the device is, where it was measured."""
    sheet_peaks = sheet.peaks_flops_per_s
    best: dict[str, Ceiling] = {}
    for dtype in VECTORS:
        if vector_name(dtype) in by_name:
            best[f"{dtype}_vector"] = by_name[vector_name(dtype)]
    for dtype, names in _PRODUCT_PEAKS.items():
        ceiling = by_name.get(product_name(dtype))
        peak = next((name for name in names if name in sheet_peaks), None if sheet_peaks else names[-1])
        if ceiling is None or peak is None:
            continue
        # Of vector units the data sheet is a better ceiling than products, which reach less, but not if it is beaten.
        stands = sheet_peaks.get(peak, 0.0) if peak.endswith("_vector") else 0.0
        if ceiling.value > (best[peak].value if peak in best else stands):
            best[peak] = ceiling
    return best


def off_sheet(ceilings: tuple[Ceiling, ...]) -> tuple[Caveat, ...]:
    """Gives a caveat on ceilings that differ from the data sheet.

    Those above it cannot be, and something holds those below half of it back.
    """
    odd = [ceiling for ceiling in ceilings if ceiling.share is not None and not _LEAST_SHARE <= ceiling.share <= _ABOVE]
    if not odd:
        return ()
    named = ", ".join(f"{ceiling.name} {format_share(ceiling.share or 0.0)}" for ceiling in odd)
    message = (
        f"measured against the data sheet: {named}; above it the sheet is not this device's, below half of it another "
        "program, a power limit or heat holds the device back"
    )
    return (Caveat("off-data-sheet", message),)
