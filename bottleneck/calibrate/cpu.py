"""Measures the ceilings of this CPU.

These are products, arithmetic in registers, memory streams, and the cost of a tiny op.

No op of torch multiplies numbers that stay in registers, and none touches memory often enough to be quicker than its
own call. The loops are our own text, compiled in a folder of their own that is gone afterwards.
"""

import ctypes
import os
import random
import statistics
import subprocess
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from bottleneck.calibrate.cache import keep, read_calibration
from bottleneck.calibrate.calibration import Calibration, Ceiling, Group, Unit, ceilings_of, noise_caveats
from bottleneck.calibrate.probes import (
    Clock,
    ClockStamp,
    ClockWatch,
    Look,
    OnProgress,
    OtherLoad,
    Probe,
    ProbeEffort,
    ProbeResults,
    Take,
    best_of,
    clock_stamp,
    cpu_clock_mhz,
    descending,
    no_progress,
    product_name,
    settle,
    stream_name,
)
from bottleneck.devices.catalogue import ridges
from bottleneck.harness.machine import COMPILATIONS, CpuFacts, allowance, cache_folder, cpu_facts, find_compiler
from bottleneck.harness.window import quiet_profiler
from bottleneck.schema.device import ONEDNN_PEAK, Device

# Independent numbers in flight: enough for two units of the widest vectors at four cycles each, and few enough for the
# registers of narrow ones. The faster of the two counts.
_FLIGHTS = {"fp32": (96, 192), "fp64": (48, 96)}
_C_TYPES: dict[str, Any] = {"fp32": ctypes.c_float, "fp64": ctypes.c_double}

# Multiplications and additions are not fused here: torch's compiler does not fuse them either (`-ffp-contract=off`).
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-x", "c")
_WIDE = "-mprefer-vector-width=512"

_MULTIPLY = """
void multiply_{name}_{flight}({type} factor, long rounds, {type} *result) {{
    {type} x[{flight}];
    for (int i = 0; i < {flight}; i++) x[i] = 1 + i;
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i < {flight}; i++) x[i] *= factor;
    for (int i = 0; i < {flight}; i++) result[i] = x[i];
}}
"""
_TRIAD = """
void triad(float *restrict c, const float *restrict a, const float *restrict b, long count, long rounds) {
    for (long round = 0; round < rounds; round++) {
        for (long i = 0; i < count; i++) c[i] = a[i] + 3 * b[i];
        __asm__ volatile("" ::: "memory");
    }
}
"""


@dataclass(frozen=True)
class Loop:
    """Something to run, and how much it does each time: FLOPs or bytes."""

    run: Callable[[], object]
    amount: float


class Native:
    """Compiled loops that several threads run at once.

    While a call of ctypes lasts, other threads go on.
    """

    def __init__(self, library: Any, threads: int) -> None:
        self._library = library
        self._threads = range(threads)
        self._pool = ThreadPoolExecutor(threads)

    def multiplications(self, name: str, rounds: int) -> list[Loop]:
        """Numbers of one dtype multiplied over and over in registers, in several flights."""
        return [self._multiplication(name, flight, rounds) for flight in _FLIGHTS[name]]

    def _multiplication(self, name: str, flight: int, rounds: int) -> Loop:
        kind = _C_TYPES[name]
        function = getattr(self._library, f"multiply_{name}_{flight}")
        results = [(kind * flight)() for _ in self._threads]
        calls = [partial(function, kind(1.0000001), ctypes.c_long(rounds), result) for result in results]
        return Loop(partial(self._run_all, calls), float(flight * rounds * len(self._threads)))

    def triad(self, bytes_per_thread: int, rounds: int) -> Loop:
        """Makes a loop of c = a + 3 b.

        Each thread has a working set of random numbers of its own.
        """
        count = max(1, bytes_per_thread // 12)
        vectors = [[_random_floats(count) for _ in range(3)] for _ in self._threads]
        calls = [
            partial(self._library.triad, *triple, ctypes.c_long(count), ctypes.c_long(rounds)) for triple in vectors
        ]
        return Loop(partial(self._run_all, calls), 12.0 * count * rounds * len(self._threads))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def _run_all(self, calls: Sequence[Callable[[], object]]) -> None:
        for done in [self._pool.submit(call) for call in calls]:
            done.result()


def _random_floats(count: int) -> Any:
    """So many numbers in 0.5-1; those of one page again and again."""
    page = array("f", (random.uniform(0.5, 1.0) for _ in range(min(count, 1024))))  # noqa: S311 - nothing is kept secret
    return (ctypes.c_float * count).from_buffer(page * (count // len(page) + 1))


def build_native(threads: int) -> Native | None:
    """Compiles the loops within a fraction of a second.

    Null where there is no compiler, or none that can do it.
    """
    compiler = find_compiler()
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bottleneck-") as folder:
        source, library = Path(folder) / "loops.c", Path(folder) / "loops.so"
        source.write_text(_source(), encoding="utf-8")
        for flags in ((*_FLAGS, _WIDE), _FLAGS):
            command = [compiler, *flags, str(source), "-o", str(library)]
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(command, capture_output=True, check=True, timeout=20)  # noqa: S603 - our own text
                return Native(ctypes.CDLL(str(library)), threads)
    return None


def _source() -> str:
    spelled = {"fp32": "float", "fp64": "double"}
    loops = [
        _MULTIPLY.format(name=name, type=spelled[name], flight=flight)
        for name, flights in _FLIGHTS.items()
        for flight in flights
    ]
    return "".join([*loops, _TRIAD])


# Streamed between two looks at the clock: long against reading it, short against the time slices of a busy machine.
_BATCH_BYTES = 8e6

# Larger products keep several threads busy for longer than they wait.
_SMALL_PRODUCT = 512

# Blocks that the system gives at once; each first write then takes milliseconds and frees nothing.
_FRESH_PARTS = 8
_WRITES_AGAIN = 3

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}

ONEDNN = "fp32 product, oneDNN"
# Sides of products, and images, channels and side of a convolution, at which oneDNN is near its best.
_ONEDNN_PRODUCTS, _CONVOLVED, _SCOUTED = (512, 1024), (8, 128, 28), 256

DISPATCH, LAUNCH = "op dispatch", "op, profiled"
COMPILED, COMPILED_BACKWARD = "compiled call", "compiled call, backward"
# A small model, entered so many times per look at the clock.
_SMALL_LAYERS, _SMALL_SIZE, _ENTRIES = 8, 16, 50
NEW_PAGES = "new pages"


@dataclass(frozen=True)
class CpuSizes:
    """Sizes of the work.

    They are sides of square products, calls of a tiny op, and rounds of the loops in registers.

    One thread alone multiplies ``scout`` first: what would take several threads longer than ``product_seconds`` is left
    out, since a dtype that a CPU only emulates can be a hundred times slower than fp32. ``compiles`` is false where no
    compiler is to be waited for. ``dtypes`` are those of the products.
    """

    products: tuple[int, ...] = (256, 384, 512, 1024, 2048)
    scout: int = 256
    product_seconds: float = 0.4
    tiny_calls: int = 500
    profiled_calls: int = 500
    native_rounds: int = 500_000
    compiles: bool = True
    dtypes: tuple[str, ...] = tuple(DTYPES)


@dataclass(frozen=True)
class CpuBench:
    """Tools of a measurement.

    They are torch, the compiled loops where there is a compiler, and the clock.
    """

    torch: Any
    native: Native | None
    sizes: CpuSizes
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


def vector_name(dtype: str) -> str:
    """The ceiling of multiplications of a dtype outside of products."""
    return f"{dtype} multiply"


def cpu_probes(bench: CpuBench, sizes: Mapping[str, int], effort: ProbeEffort) -> list[Probe]:
    """Lists every probe of this CPU.

    ``sizes`` holds bytes to stream over, by the level of memory that should hold them.
    """
    probes = [probe for dtype in bench.sizes.dtypes for probe in _products(bench, dtype, effort)]
    probes += _onednn_products(bench)
    if bench.native is not None:
        probes += _vectors(bench, bench.native)
        probes += _native_streams(bench, bench.native, sizes)
    for level, size in sizes.items():
        # No op reaches the first caches: calling it takes longer.
        probes += _streams(bench, level, size) if level != "L1" else []
    return [*probes, _fresh(bench, max(sizes.values()) // 4), *_tiny(bench)]


def _products(bench: CpuBench, dtype: str, effort: ProbeEffort) -> list[Probe]:
    """Makes the probes of square products of random numbers.

    The largest need not win: with matrix tiles the middle one stays in cache. One thread alone may win on a busy
    machine, where several spend whole time slices waiting for one another.
    """
    torch, sizes = bench.torch, bench.sizes
    threads = torch.get_num_threads()
    try:
        with _one_thread(torch):
            take = _product(bench, dtype, sizes.scout)
            scouted = best_of(lambda: take(lambda: None), effort.slice_seconds, effort, bench.clock)
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


def _product(bench: CpuBench, dtype: str, size: int) -> Take:
    torch = bench.torch
    kind = getattr(torch, DTYPES[dtype])
    left, right = (torch.randn(size, size).to(kind) for _ in range(2))
    out = torch.empty(size, size, dtype=kind)
    return bench.timed(partial(torch.mm, left, right, out=out))


def _onednn_products(bench: CpuBench) -> list[Probe]:
    """Makes the probes of fp32 products and of a convolution by oneDNN.

    torch multiplies by MKL, which is slow on some CPUs, and gives products to oneDNN where a program allows a lower
    precision and the CPU has AVX-512. None where oneDNN then rounds to bf16, as it does on CPUs with AMX.
    """
    if not _keeps_fp32(bench.torch):
        return []
    made = [
        Probe(
            ONEDNN,
            f"{size} x {size}",
            2.0 * size**3,
            partial(_within, partial(_medium_precision, bench.torch), partial(_product, bench, "fp32", size)),
        )
        for size in _ONEDNN_PRODUCTS
    ]
    images, channels, side = _CONVOLVED
    flops = 2.0 * 9 * images * channels**2 * side**2
    return [*made, Probe(ONEDNN, "convolution", flops, partial(_convolution, bench))]


def _keeps_fp32(torch: Any) -> bool:
    """Tells whether oneDNN gets products, and keeps fp32 in them.

    At the precision ``medium`` it gets them on CPUs with AVX-512 alone (torch 2.13, `mkldnn_bf16_device_check`).
    """
    has_avx512 = str(torch.backends.cpu.get_cpu_capability()).startswith("AVX512")
    if not has_avx512 or not torch.backends.mkldnn.is_available():
        return False
    left, right = (torch.randn(_SCOUTED, _SCOUTED) for _ in range(2))
    with _medium_precision(torch):
        error = (torch.mm(left, right) - torch.mm(left.double(), right.double())).abs().max()
    # Sums of so many products of fp32 err by 1e-5 to 1e-4, those of bf16 by 1e-1.
    return bool(error < 1e-2)


def _convolution(bench: CpuBench) -> Take:
    torch, (images, channels, side) = bench.torch, _CONVOLVED
    numbers, weight = torch.randn(images, channels, side, side), torch.randn(channels, channels, 3, 3)
    by_channel = [tensor.to(memory_format=torch.channels_last) for tensor in (numbers, weight)]
    return bench.timed(partial(torch.conv2d, *by_channel, padding=1))


@contextmanager
def _medium_precision(torch: Any) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _vectors(bench: CpuBench, native: Native) -> list[Probe]:
    return [
        Probe(vector_name(dtype), f"loop {number}", loop.amount, partial(bench.timed, loop.run))
        for dtype in ("fp32", "fp64")
        for number, loop in enumerate(native.multiplications(dtype, bench.sizes.native_rounds))
    ]


def _native_streams(bench: CpuBench, native: Native, sizes: Mapping[str, int]) -> list[Probe]:
    """Makes the probes of compiled triads, by level of memory.

    Each thread works on a part of its own. They alone reach the first cache, which no op does.
    """
    threads = bench.torch.get_num_threads()
    probes = []
    for level, size in sizes.items():
        share = size // threads
        rounds = max(1, int(_BATCH_BYTES / share))
        amount = 12.0 * max(1, share // 12) * rounds * threads
        probes.append(Probe(stream_name(level), "loop", amount, partial(_triad, bench, native, share, rounds)))
    return probes


def _triad(bench: CpuBench, native: Native, share: int, rounds: int) -> Take:
    return bench.timed(native.triad(share, rounds).run)


def _streams(bench: CpuBench, level: str, working_set: int) -> list[Probe]:
    """Makes the probes of torch's c = a + 3 b.

    All threads run it together, or one thread alone. What the cache fetches before a write is not counted.
    """
    count = max(1, working_set // 12)
    calls = max(1, int(_BATCH_BYTES / (12 * count)))
    add = cache(partial(_add, bench, count, calls))
    return [
        Probe(stream_name(level), "torch", 12.0 * count * calls, add),
        Probe(stream_name(level), "one thread", 12.0 * count * calls, partial(_by_one, bench, add)),
    ]


_BLOCK = 2**18  # random numbers that are drawn; a working set repeats them


def _add(bench: CpuBench, count: int, calls: int) -> Take:
    torch = bench.torch
    # Numbers of one block again and again: to draw all of them takes longer than to stream them.
    block = torch.rand(min(count, _BLOCK))
    left, right = (block.repeat(count // block.numel() + 1)[:count] for _ in range(2))
    out = torch.empty(count)

    def run() -> None:
        for _ in range(calls):
            torch.add(left, right, alpha=3, out=out)

    return bench.timed(run)


def _by_one(bench: CpuBench, make: Callable[[], Take]) -> Take:
    """The same by one thread alone."""
    return _within(partial(_one_thread, bench.torch), make)


def _within(context: Callable[[], AbstractContextManager[None]], make: Callable[[], Take]) -> Take:
    """The same, each time inside a new context of this kind."""
    made = make()

    def take(look: Look) -> float:
        with context():
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


def _tiny(bench: CpuBench) -> list[Probe]:
    """One op on one number: on the stopwatch, and as the profiler shows it."""
    calls = bench.sizes.tiny_calls
    return [
        Probe(DISPATCH, "add", float(calls), partial(_add, bench, 1, calls)),
        Probe(LAUNCH, "add", 1.0, lambda: partial(_profiled_s, bench)),
    ]


def compiled_probes(bench: CpuBench) -> list[Probe]:
    """Makes the probes of entering compiled code.

    They call a small model, compiled, whose loop over a few numbers takes next to nothing.

    With a backward pass: the call and its pass less those of one op, which autograd begins in either case.
    """
    if not bench.sizes.compiles:
        return []
    forward, both = cache(partial(_entry, bench)), cache(partial(_entry_backward, bench))
    return [
        Probe(COMPILED, "small model", float(_ENTRIES), lambda: forward()),  # noqa: PLW0108 - mypy: a cache is no Make
        Probe(COMPILED_BACKWARD, "small model", float(_ENTRIES), lambda: both()),  # noqa: PLW0108
    ]


def _small_model(torch: Any) -> Any:
    """Layers with a parameter each, which a compiler makes one loop of."""
    return torch.nn.Sequential(*(torch.nn.PReLU() for _ in range(_SMALL_LAYERS)))


def _entry(bench: CpuBench) -> Take:
    torch = bench.torch
    with _kept_compilations():
        compiled, numbers = torch.compile(_small_model(torch), dynamic=False), torch.rand(_SMALL_SIZE)
        compiled(numbers)

    def run() -> None:
        for _ in range(_ENTRIES):
            compiled(numbers)

    return bench.timed(run)


def _entry_backward(bench: CpuBench) -> Take:
    torch = bench.torch
    with torch.inference_mode(mode=False), torch.enable_grad():
        model, numbers = _small_model(torch), torch.rand(_SMALL_SIZE, requires_grad=True)
        with _kept_compilations():
            compiled = torch.compile(model, dynamic=False)
            compiled(numbers).sum().backward()

    def calls(function: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            with torch.inference_mode(mode=False), torch.enable_grad():
                for _ in range(_ENTRIES):
                    function(numbers).sum().backward()

        return run

    of_compiled, of_one_op = bench.timed(calls(compiled)), bench.timed(calls(lambda x: x * 1.5))

    def take(look: Look) -> float:
        whole, one_op = of_compiled(look), of_one_op(look)
        if whole <= one_op:
            raise RuntimeError("a compiled call with its backward pass takes no longer here than that of one op")
        return whole - one_op

    return take


@contextmanager
def _kept_compilations() -> Iterator[None]:
    """Lets the compiler keep its results where pieces of recordings find them.

    The pieces start sooner by that.
    """
    name, folder = "TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / COMPILATIONS)
    before = os.environ.get(name)
    os.environ[name] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _profiled_s(bench: CpuBench, look: Look) -> float:
    """Gives the median duration of a tiny op by the profiler.

    The profiler records what a recording records.
    """
    torch = bench.torch
    left, right = torch.rand(1), torch.rand(1)
    profiler = torch.autograd.profiler.profile(record_shapes=True, with_stack=True, use_kineto=True)
    with quiet_profiler(), profiler:
        for _ in range(bench.sizes.profiled_calls):
            torch.add(left, right)
    taken = [event.duration_ns() for event in profiler.kineto_results.events() if event.name() == "aten::add"]
    look()
    return float(statistics.median(taken)) / 1e9


def _fresh(bench: CpuBench, size: int) -> Probe:
    """Makes the probe of new memory pages.

    It times writing memory for the first time, less writing it again: what the system takes to hand out new pages.
    """
    part = float(size // _FRESH_PARTS)
    return Probe(NEW_PAGES, "first write", part, partial(_first_write, bench, untouched(bench.torch, size)))


def _first_write(bench: CpuBench, blocks: Iterator[Any]) -> Take:
    """Times the first write of a block, less the second.

    The second write is the quickest of some: one that is disturbed must not make new pages look cheap.
    """

    def take(look: Look) -> float:
        write = bench.timed(partial(next(blocks).fill_, 1))
        first = write(look)
        again = min(write(look) for _ in range(_WRITES_AGAIN))
        if first <= again:
            raise RuntimeError("writing new memory takes no longer here than writing it again")
        return first - again

    return take


def untouched(torch: Any, size: int) -> Iterator[Any]:
    """Gives parts of memory that nobody has written to yet.

    The change to the next whole costs time, the rest is free.
    """
    while True:
        yield from torch.empty(size, dtype=torch.uint8).chunk(_FRESH_PARTS)


# What a first run can wait for: two rounds of short slices, without compilers, and without the dtype that most CPUs
# emulate. It takes 4 s on two cores, of which torch takes 1.5 to start.
SHORT_EFFORT = ProbeEffort(slice_seconds=0.03, fewest_runs=4, most_rounds=2, most_seconds=2.0, is_short=True)
_SHORT_SIZES = CpuSizes(dtypes=("fp32", "bf16", "fp64"), products=(256, 512, 1024), compiles=False)
_QUIET_LOAD = 0.5  # processors kept busy by others while we measure
_LARGEST_STREAM_BYTES = 384 * 2**20
_MEMORY_SHARE = 16  # of physical memory at most one part in so many


def calibrate_cpu(
    threads: int | None = None,
    on_progress: OnProgress = no_progress,
    effort: ProbeEffort | None = None,
    *,
    fresh: bool = False,
) -> Calibration:
    """Measures the ceilings of this CPU and keeps them for later.

    They are those at a number of threads, where null is torch's choice.

    Takes half a minute on two cores, and five seconds with SHORT_EFFORT. Random data, since zeros need less power.
    Results that do not settle within 3 %, or that other programs disturbed, are kept with a caveat, and the next
    calibration can only improve on them, unless it is ``fresh``.
    """
    now = measure_cpu(threads, effort or ProbeEffort(), on_progress)
    return keep(None if fresh else read_calibration(now.threads), now)


def measure_cpu(
    threads: int | None,
    effort: ProbeEffort,
    on_progress: OnProgress,
    sizes: CpuSizes | None = None,
) -> Calibration:
    """A calibration made now; torch's own number of threads is put back afterwards."""
    import torch

    facts, usual = cpu_facts(), torch.get_num_threads()
    chosen = threads or usual
    torch.set_num_threads(chosen)
    load, before = OtherLoad(), cpu_clock_mhz()
    watch, native = ClockWatch(cpu_clock_mhz), build_native(chosen)
    usual_sizes = _SHORT_SIZES if effort.is_short else CpuSizes()
    bench, sizes_of_levels = CpuBench(torch, native, sizes or usual_sizes), working_sets(facts, chosen)
    try:
        with torch.inference_mode():
            outcome = settle(cpu_probes(bench, sizes_of_levels, effort), effort, watch, on_progress)
            # Afterwards: rounds of ceilings end by the time, of which a compiler takes most.
            entering = settle(compiled_probes(bench), effort, watch, on_progress)
            outcome = ProbeResults({**outcome.measured, **entering.measured}, {**outcome.missing, **entering.missing})
    finally:
        torch.set_num_threads(usual)
        if native is not None:
            native.close()
    busy, clock = load.busy_processors(), clock_stamp(before, watch.seen_mhz(), cpu_clock_mhz(), None)
    ceilings = as_ceilings(outcome, sizes_of_levels)
    options = "--device cpu" if chosen == usual else f"--device cpu --threads {chosen}"
    return Calibration(
        device=as_device(facts, ceilings, clock),
        identity=facts.identity,
        threads=chosen,
        is_default=chosen == usual,
        allowance=allowance(),
        dispatch_us=next((ceiling.value for ceiling in ceilings if ceiling.name == DISPATCH), None),
        caveats=noise_caveats(ceilings, "this CPU", load_note(busy), options, is_short=effort.is_short),
        ceilings=ceilings,
        clock=clock,
        missing=dict(outcome.missing),
    )


def load_note(busy: float) -> str:
    """A note on processors that other programs kept busy; empty for few."""
    return f"other programs kept {busy:.1f} processors busy" if busy > _QUIET_LOAD else ""


def working_sets(facts: CpuFacts, threads: int) -> dict[str, int]:
    """Gives the bytes to stream over, by level of memory.

    They are half of the caches, twice the last, and far beyond. Each thread has its own caches of the first and second
    level.
    """
    last = facts.last_level_bytes
    room = (facts.memory_bytes or 2**33) // _MEMORY_SHARE
    return {
        "L1": threads * facts.l1_bytes // 2,
        "L2": min(facts.l2_bytes * threads, last) // 2,
        "LLC": last // 2,
        "2 x LLC": min(2 * last, room),
        # Of a huge cache, which machines of several users share, at least four times as much.
        "DRAM": min(max(8 * last, 2**27), max(_LARGEST_STREAM_BYTES, 4 * last), room),
    }


def as_ceilings(outcome: ProbeResults, sizes: Mapping[str, int]) -> tuple[Ceiling, ...]:
    """The results as ceilings, in reading order."""
    streams = {stream_name(level): float(size) for level, size in sizes.items()}
    groups: tuple[tuple[Group, Unit, Iterable[str]], ...] = (
        ("matrix", "FLOP/s", (*map(product_name, DTYPES), ONEDNN)),
        ("vector", "FLOP/s", map(vector_name, DTYPES)),
        ("memory", "B/s", (*streams, NEW_PAGES)),
        ("time", "us", (DISPATCH, LAUNCH, COMPILED, COMPILED_BACKWARD)),
    )
    return ceilings_of(outcome, groups, streams)


def as_device(facts: CpuFacts, ceilings: tuple[Ceiling, ...], clock: ClockStamp) -> Device:
    """The ceilings as a device.

    Pointwise work is held against multiplications outside of products: these fuse a multiplication with an addition,
    which neither torch's ops nor its compiler do, and so reach up to twice as much. Where there is no compiler the rate
    of products stands for both, an upper bound. The launch floor is a tiny op's time as the profiler shows it, which is
    what an op's self time in a trace is compared with. Clocks are given only where the sensor moves.
    """
    by_name = {ceiling.name: ceiling for ceiling in ceilings}
    best = {f"{dtype}_tensor": by_name[product_name(dtype)] for dtype in DTYPES if product_name(dtype) in by_name} | {
        f"{dtype}_vector": by_name.get(vector_name(dtype), by_name[product_name(dtype)])
        for dtype in ("fp32", "fp64")
        if product_name(dtype) in by_name
    }
    best |= {peak: by_name[name] for peak, name in ((ONEDNN_PEAK, ONEDNN),) if name in by_name}
    peaks = {peak: ceiling.value for peak, ceiling in best.items()}
    streams = descending([(entry.working_set_bytes, entry.value) for entry in ceilings if entry.working_set_bytes])
    bandwidth = streams[-1][1] if streams else None
    return Device(
        name=facts.model,
        vendor=facts.vendor,
        kind="cpu",
        count=1,
        peaks_flops_per_s=peaks,
        bandwidth_bytes_per_s=bandwidth,
        launch_floor_us=by_name[LAUNCH].value if LAUNCH in by_name else None,
        source="measured",
        ridge_flops_per_byte=ridges(peaks, bandwidth),
        memory_bytes=facts.memory_bytes,
        cache_bytes=float(facts.last_level_bytes),
        bandwidth_by_bytes=streams,
        fresh_bytes_per_s=by_name[NEW_PAGES].value if NEW_PAGES in by_name else None,
        peak_clocks_mhz={peak: entry.clock_mhz for peak, entry in best.items() if clock.is_sensed and entry.clock_mhz},
        compiled_call_us=_settled(by_name.get(COMPILED)),
        compiled_call_backward_us=_settled(by_name.get(COMPILED_BACKWARD)),
    )


def _settled(ceiling: Ceiling | None) -> float | None:
    """Gives a ceiling's value where rounds agree, else null.

    On a busy machine a call with a backward pass takes up to ten times as long.
    """
    return ceiling.value if ceiling is not None and ceiling.stable else None
