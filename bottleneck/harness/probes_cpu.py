"""What is measured of a CPU: products, arithmetic in registers, streams by working set, the cost of a tiny op."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from bottleneck.harness.native import Loop, Native
from bottleneck.harness.probes import Clock, Effort, Look, Probe, Take, best_of

# Streamed between two looks at the clock: long against reading it, short against the time slices of a busy machine.
_BATCH_BYTES = 8e6

# Larger products keep several threads busy for longer than they wait.
_SMALL_PRODUCT = 512

# Blocks that the system gives at once; each first write then takes milliseconds and frees nothing.
_FRESH_PARTS = 8
_WRITES_AGAIN = 3

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}

DISPATCH, LAUNCH = "op dispatch", "op, profiled"
NEW_PAGES = "new pages"


@dataclass(frozen=True)
class Sizes:
    """How large the work is: sides of square products, calls of a tiny op, rounds of the loops in registers.

    One thread alone multiplies ``scout`` first: what would take several threads longer than ``product_seconds`` is left
    out, since a dtype that a CPU only emulates can be a hundred times slower than fp32.
    """

    products: tuple[int, ...] = (256, 384, 512, 1024, 2048)
    scout: int = 256
    product_seconds: float = 0.4
    tiny_calls: int = 500
    profiled_calls: int = 500
    native_rounds: int = 500_000


@dataclass(frozen=True)
class Bench:
    """Where the work is done: torch, the compiled loops where there is a compiler, and the clock."""

    torch: Any
    native: Native | None
    sizes: Sizes
    clock: Clock = time.perf_counter

    def timed(self, run: Callable[[], object]) -> Take:
        """One run on the stopwatch; the processors' clock is looked at just after it."""

        def take(look: Look) -> float:
            start = self.clock()
            run()
            seconds = self.clock() - start
            look()
            return seconds

        return take


def product_name(dtype: str) -> str:
    """The ceiling of matrix products of a dtype."""
    return f"{dtype} product"


def vector_name(dtype: str) -> str:
    """The ceiling of multiplications of a dtype outside of products."""
    return f"{dtype} multiply"


def stream_name(level: str) -> str:
    """The ceiling of the bandwidth of a level of memory."""
    return f"{level} stream"


def cpu_probes(bench: Bench, working_sets: Mapping[str, int], l1_bytes: int, effort: Effort) -> list[Probe]:
    """Every probe of this CPU; ``working_sets`` holds bytes by the level of memory that they are meant for."""
    probes = [probe for dtype in DTYPES for probe in _products(bench, dtype, effort)]
    if bench.native is not None:
        probes += _vectors(bench, bench.native)
        probes += _native_streams(bench, bench.native, working_sets, l1_bytes)
    for level, size in working_sets.items():
        probes += _streams(bench, level, size)
    return [*probes, _fresh(bench, max(working_sets.values()) // 4), *_tiny(bench)]


def _products(bench: Bench, dtype: str, effort: Effort) -> list[Probe]:
    """Square products of random numbers. The largest need not win: with matrix tiles the middle one stays in cache.

    One thread alone may win on a busy machine, where several spend whole time slices waiting for one another.
    """
    torch, sizes = bench.torch, bench.sizes
    threads = torch.get_num_threads()
    try:
        with _one_thread(torch):
            take = _product(bench, dtype, sizes.scout)
            scouted = best_of(lambda: take(lambda: None), effort.slice_seconds, effort, bench.clock).seconds
    except RuntimeError:  # torch has no product of this dtype
        return []
    rate = threads * sizes.scout**3 / scouted
    feasible = [size for size in sizes.products if size**3 / rate <= sizes.product_seconds] or [min(sizes.products)]
    makes = {size: cache(partial(_product, bench, dtype, size)) for size in feasible}
    together = [Probe(product_name(dtype), f"{size} x {size}", 2.0 * size**3, make) for size, make in makes.items()]
    alone = [
        Probe(product_name(dtype), f"{size} x {size}, one thread", 2.0 * size**3, partial(_by_one, bench, make))
        for size, make in makes.items()
        if size <= _SMALL_PRODUCT and threads > 1
    ]
    return [*together, *alone]


def _product(bench: Bench, dtype: str, size: int) -> Take:
    torch = bench.torch
    kind = getattr(torch, DTYPES[dtype])
    left, right = (torch.randn(size, size).to(kind) for _ in range(2))
    out = torch.empty(size, size, dtype=kind)
    return bench.timed(partial(torch.mm, left, right, out=out))


def _vectors(bench: Bench, native: Native) -> list[Probe]:
    return [
        Probe(vector_name(dtype), f"loop {number}", loop.amount, partial(bench.timed, loop.run))
        for dtype in ("fp32", "fp64")
        for number, loop in enumerate(native.multiplications(dtype, bench.sizes.native_rounds))
    ]


def _native_streams(bench: Bench, native: Native, working_sets: Mapping[str, int], l1_bytes: int) -> list[Probe]:
    """Compiled triads: each thread works on a part of its own. They alone reach the first cache, which no op does."""
    threads = bench.torch.get_num_threads()
    sizes = {"L1": threads * l1_bytes // 2, **working_sets}
    loops = {level: partial(_triad, bench, native, size // threads) for level, size in sizes.items()}
    return [
        Probe(stream_name(level), "loop", _triad_amount(size // threads, threads), loops[level])
        for level, size in sizes.items()
    ]


def _triad_rounds(share: int) -> int:
    return max(1, int(_BATCH_BYTES / share))


def _triad_amount(share: int, threads: int) -> float:
    return 12.0 * max(1, share // 12) * _triad_rounds(share) * threads


def _triad(bench: Bench, native: Native, share: int) -> Take:
    loop: Loop = native.triad(share, _triad_rounds(share))
    return bench.timed(loop.run)


def _streams(bench: Bench, level: str, working_set: int) -> list[Probe]:
    """C = a + 3 b by torch, together and by one thread; what the cache fetches before a write is not counted."""
    count = max(1, working_set // 12)
    calls = max(1, int(_BATCH_BYTES / (12 * count)))
    add = cache(partial(_add, bench, count, calls))
    return [
        Probe(stream_name(level), "torch", 12.0 * count * calls, add),
        Probe(stream_name(level), "one thread", 12.0 * count * calls, partial(_by_one, bench, add)),
    ]


def _add(bench: Bench, count: int, calls: int) -> Take:
    torch = bench.torch
    left, right, out = torch.rand(count), torch.rand(count), torch.empty(count)

    def run() -> None:
        for _ in range(calls):
            torch.add(left, right, alpha=3, out=out)

    return bench.timed(run)


def _by_one(bench: Bench, make: Callable[[], Take]) -> Take:
    """The same by one thread alone."""
    made = make()

    def take(look: Look) -> float:
        with _one_thread(bench.torch):
            return made(look)

    return take


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _tiny(bench: Bench) -> list[Probe]:
    """One op on one number: on the stopwatch, and as the profiler shows it."""
    calls = bench.sizes.tiny_calls
    return [
        Probe(DISPATCH, "add", float(calls), partial(_call, bench, calls)),
        Probe(LAUNCH, "add", 1.0, lambda: partial(_profiled_s, bench)),
    ]


def _call(bench: Bench, calls: int) -> Take:
    torch = bench.torch
    left, right, out = torch.rand(1), torch.rand(1), torch.empty(1)

    def run() -> None:
        for _ in range(calls):
            torch.add(left, right, alpha=3, out=out)

    return bench.timed(run)


def _profiled_s(bench: Bench, look: Look) -> float:
    """Median duration that the profiler reports for a tiny op, recording what a recording records."""
    torch = bench.torch
    left, right = torch.rand(1), torch.rand(1)
    quiet = "KINETO_LOG_LEVEL"
    given = os.environ.setdefault(quiet, "99")
    profiler = torch.autograd.profiler.profile(record_shapes=True, with_stack=True, use_kineto=True)
    with profiler:
        for _ in range(bench.sizes.profiled_calls):
            torch.add(left, right)
    if given == "99":
        os.environ.pop(quiet, None)
    taken = [event.duration_ns() for event in profiler.kineto_results.events() if event.name() == "aten::add"]
    look()
    return float(statistics.median(taken)) / 1e9


def _fresh(bench: Bench, size: int) -> Probe:
    """Writing memory for the first time, less writing it again: what the system takes to hand out new pages."""
    part = float(size // _FRESH_PARTS)
    return Probe(NEW_PAGES, "first write", part, partial(_first_write, bench, untouched(bench.torch, size)))


def _first_write(bench: Bench, blocks: Iterator[Any]) -> Take:
    """The second write is the quickest of some: one that is disturbed must not make new pages look cheap."""

    def take(look: Look) -> float:
        write = bench.timed(partial(next(blocks).fill_, 1))
        first = write(look)
        again = min(write(look) for _ in range(_WRITES_AGAIN))
        if first <= again:
            raise RuntimeError("writing new memory takes no longer here than writing it again")
        return first - again

    return take


def untouched(torch: Any, size: int) -> Iterator[Any]:
    """Parts of memory that nobody has written to yet; the change to the next whole costs time, the rest is free."""
    while True:
        yield from torch.empty(size, dtype=torch.uint8).chunk(_FRESH_PARTS)
