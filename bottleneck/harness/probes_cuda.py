"""What is measured of a GPU: products by dtype, arithmetic, streams by working set, launches, the link to the host."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from bottleneck.harness.probes import REFUSALS, Clock, Look, Probe, Take

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
LINKS = ("host to device, pinned", "device to host, pinned", "host to device, pageable", "device to host, pageable")


@dataclass(frozen=True)
class Product:
    """How a product of a dtype is made: torch's names of its operands, and what fp32 may be rounded to."""

    dtype: str
    item_bytes: float
    fp32_precision: str | None = None


PRODUCTS: Mapping[str, Product] = {
    "fp64": Product("float64", 8.0),
    "fp32": Product("float32", 4.0, "ieee"),
    "tf32": Product("float32", 4.0, "tf32"),
    "bf16": Product("bfloat16", 2.0),
    "fp16": Product("float16", 2.0),
    "fp8": Product("float8_e4m3fn", 1.0),
    "int8": Product("int8", 1.0),
}
VECTORS: Mapping[str, str] = {"fp64": "float64", "fp32": "float32"}


@dataclass(frozen=True)
class Sizes:
    """How large the work is. A product of ``scout`` tells which of the others take longer than ``product_s``."""

    products: tuple[int, ...] = (8192, 4096, 2048)
    scout: int = 1024
    product_s: float = 0.25
    numbers: int = 2**22
    link_bytes: int = 128 * 2**20
    tiny_calls: int = 400
    largest_stream_bytes: float = 2.0**32


@dataclass(frozen=True)
class CudaBench:
    """Where the work is done: torch, the device by torch's name ('cuda:0'), its memory, and the host's clock."""

    torch: Any
    device: str
    free_bytes: float
    cache_bytes: float
    sizes: Sizes = Sizes()
    clock: Clock = time.perf_counter

    def batch(self, run: Callable[[], object], calls: int) -> Take:
        """Seconds of a call, by so many between two events; the device waits until they are queued."""

        def take(look: Look) -> float:
            cuda = self.torch.cuda
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(_SLEEP_CYCLES_PER_CALL * calls)
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
        """A batch of what ``make`` gives to run, with as many calls as it should have."""
        run = make()
        one = self.once(run)
        return self.batch(run, max(1, min(_MOST_CALLS, int(_BATCH_S / max(one, 1e-6)))))

    def once(self, run: Callable[[], object]) -> float:
        """Seconds of the second call."""
        take = self.batch(run, 1)
        take(lambda: None)
        return take(lambda: None)


def cuda_probes(bench: CudaBench) -> Iterator[Probe]:
    """Every probe of the device. Data are random, and handed back before the next probe makes its own."""
    for dtype in PRODUCTS:
        yield from _products(bench, dtype)
    for dtype in VECTORS:
        yield _vector(bench, dtype)
    for level, size in stream_sizes(bench).items():
        yield from _streams(bench, level, size)
    yield from _links(bench)
    yield from _launches(bench)


def product_name(dtype: str) -> str:
    """The ceiling of matrix products of a dtype."""
    return f"{dtype} product"


def vector_name(dtype: str) -> str:
    """The ceiling of arithmetic of a dtype outside of products."""
    return f"{dtype} multiply-add"


def stream_name(level: str) -> str:
    """The ceiling of the bandwidth of a level of memory."""
    return f"{level} stream"


def stream_sizes(bench: CudaBench) -> dict[str, float]:
    """Bytes to stream over, by the memory that should hold them: half of the cache, four times it, and far beyond."""
    room = min(bench.free_bytes / 4, bench.sizes.largest_stream_bytes)
    return {
        "L2": min(bench.cache_bytes / 2, room),
        "4 x L2": min(bench.cache_bytes * 4, room),
        "DRAM": min(max(64 * bench.cache_bytes, 2.0**30), room),
    }


def _products(bench: CudaBench, dtype: str) -> list[Probe]:
    """Square products: the two largest that fit into a quarter of the free memory and do not take too long.

    Some devices do fp64 at a sixty-fourth of the rate of fp32.
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
        return partial(torch._int_mm, left, right.t())
    left, right = (torch.randn(size, size, device=bench.device).to(kind) for _ in range(2))
    if dtype == "fp8":
        one = torch.ones((), device=bench.device)
        kwargs = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        return partial(torch._scaled_mm, left, right.t(), **kwargs)
    out = torch.empty(size, size, dtype=kind, device=bench.device)
    multiply = partial(torch.mm, left, right, out=out)
    return multiply if product.fp32_precision is None else partial(_rounded, torch, product.fp32_precision, multiply)


def _rounded(torch: Any, precision: str, multiply: Callable[[], object]) -> None:
    """A product of fp32 numbers that may, or may not, be rounded to tf32; the user's setting is put back."""
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
    return partial(torch.cuda.jiterator._create_jit_fn(_FUSED), numbers)


def _streams(bench: CudaBench, level: str, size: float) -> list[Probe]:
    """A copy and c = a + 3 b over so many bytes in all."""
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
    """Copies between host and device, from memory that the system may move and from memory that it may not."""
    return [Probe(name, "copy", float(bench.sizes.link_bytes), partial(_transfer, bench, name)) for name in LINKS]


def _transfer(bench: CudaBench, name: str) -> Take:
    torch, count = bench.torch, bench.sizes.link_bytes // 4
    pinned = name.endswith("pinned")
    host, device = torch.rand(count), torch.rand(count, device=bench.device)
    host = host.pin_memory() if pinned else host
    source, target = (host, device) if name.startswith("host") else (device, host)
    return bench.waited_for(partial(target.copy_, source, non_blocking=pinned))


def _launches(bench: CudaBench) -> list[Probe]:
    """The smallest kernel: on the device, queued behind others, and what queueing it costs the host."""
    return [
        Probe(LAUNCH, "add", 1.0, lambda: partial(_profiled_s, bench)),
        Probe(BACK_TO_BACK, "add", 1.0, lambda: bench.batch(_tiny(bench), bench.sizes.tiny_calls)),
        Probe(ENQUEUE, "add", 1.0, lambda: partial(_enqueue_s, bench, _tiny(bench))),
    ]


def _tiny(bench: CudaBench) -> Callable[[], object]:
    left, right, out = (bench.torch.rand(1, device=bench.device) for _ in range(3))
    return partial(bench.torch.add, left, right, alpha=3, out=out)


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
    """A tenth of the smallest kernels is shorter, by the profiler; RuntimeError where it shows none."""
    torch, run = bench.torch, _tiny(bench)
    with _quiet(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(bench.sizes.tiny_calls):
            run()
        torch.cuda.synchronize()
    look()
    cuda = torch.autograd.DeviceType.CUDA
    found = [event.duration_ns() for event in profiler.profiler.kineto_results.events() if event.device_type() == cuda]
    if len(found) < 20:
        raise RuntimeError("the profiler shows no kernels")
    return float(statistics.quantiles(found, n=10)[0]) / 1e9


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the profiler says on stderr."""
    name = "KINETO_LOG_LEVEL"
    given = os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if given == "99":
            os.environ.pop(name, None)
