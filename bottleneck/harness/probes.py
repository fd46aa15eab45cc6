"""Small measurements with torch on this CPU: matrix products, streams by working set, and the cost of a tiny op."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import Any

from bottleneck.harness.native import Loop, build_native
from bottleneck.units import US_PER_S

Clock = Callable[[], float]

# Streamed between two looks at the clock: long against reading it, short against the time slices of a busy machine.
_BATCH_BYTES = 8e6

# Blocks that the system gives at once; each first write then takes milliseconds and frees nothing.
_FRESH_PARTS = 8

# fp16 is left out: most CPUs only emulate it, and one product then takes seconds.
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp64": "float64"}


@dataclass(frozen=True)
class Effort:
    """How hard to measure. One probe repeats until its two best runs agree within ``tolerance``, or time is up."""

    scout_size: int = 256
    product_sizes: tuple[int, ...] = (1024, 2048)
    scout_seconds: float = 0.15
    product_seconds: float = 0.7
    stream_seconds: float = 0.3
    fewest_runs: int = 3
    tolerance: float = 0.03
    tiny_calls: int = 2000
    native_rounds: int = 500_000


@dataclass(frozen=True)
class Reading:
    """Seconds of the best run, and whether a second one came close to it."""

    seconds: float
    stable: bool


@dataclass(frozen=True)
class Readings:
    """What was measured: FLOP/s by dtype, bytes/s by working set, and seconds per tiny op without the profiler.

    ``vector_flops_per_s`` holds multiplications outside of products, and nothing where there is no compiler.
    ``profiled_us`` is the duration that the profiler reports for one tiny op, ``fresh_bytes_per_s`` the rate at which
    the system hands out new pages, null where a first write takes no longer than a second.
    """

    flops_per_s: Mapping[str, float]
    bandwidth_by_bytes: tuple[tuple[float, float], ...]
    tiny_us: float
    profiled_us: float
    fresh_bytes_per_s: float | None
    vector_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    unstable: tuple[str, ...] = field(default=())


def best_of(run: Callable[[], object], seconds: float, effort: Effort, clock: Clock = time.perf_counter) -> Reading:
    """The best of several runs: until the two best agree, or ``seconds`` have passed. One run comes before, uncounted.

    The best, because a machine can be disturbed only towards slower.
    """
    run()
    taken: list[float] = []
    begin = clock()
    while len(taken) < effort.fewest_runs or not _agree(taken, effort.tolerance):
        start = clock()
        if taken and start - begin >= seconds:
            break
        run()
        taken.append(clock() - start)
    return Reading(min(taken), len(taken) >= effort.fewest_runs and _agree(taken, effort.tolerance))


def _agree(taken: list[float], tolerance: float) -> bool:
    best, second = sorted(taken)[:2]
    return second <= best * (1 + tolerance)


def measure(torch: Any, working_sets: Mapping[str, int], l1_bytes: int, effort: Effort) -> Readings:
    """All probes in turn; ``working_sets`` holds bytes by the level of memory that they are meant for.

    The first cache is beyond the reach of ops, which take longer to call than its bytes to move.
    """
    unstable: list[str] = []
    vectors, first_cache = _native_rates(torch.get_num_threads(), l1_bytes, effort)
    with torch.inference_mode():
        tiny_us = _tiny_us(torch, effort)
        products = {name: _product_rate(torch, name, effort, unstable) for name in _DTYPES}
        streams = [_stream(torch, label, size, tiny_us, effort, unstable) for label, size in working_sets.items()]
        return Readings(
            flops_per_s={name: rate for name, rate in products.items() if rate is not None},
            bandwidth_by_bytes=descending([*first_cache, *streams]),
            tiny_us=tiny_us,
            profiled_us=_profiled_us(torch, effort),
            fresh_bytes_per_s=_fresh_rate(torch, max(working_sets.values()) // 4, effort),
            vector_flops_per_s=vectors,
            unstable=tuple(unstable),
        )


def _native_rates(threads: int, l1_bytes: int, effort: Effort) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """FLOP/s of multiplications by dtype, and (working set, bytes/s) in the first caches; empty without a compiler."""
    native = build_native(threads)
    if native is None:
        return {}, []
    try:
        vectors = {
            name: max(_native_rate(loop, effort) for loop in native.multiplications(name, effort.native_rounds))
            for name in ("fp32", "fp64")
        }
        share = l1_bytes // 2
        loop = native.triad(share, max(1, int(_BATCH_BYTES * 8 / share)))
        return vectors, [(float(threads * share), _native_rate(loop, effort))]
    finally:
        native.close()


def _native_rate(loop: Loop, effort: Effort) -> float:
    """FLOP/s or bytes/s of the best run in a fixed time: on a busy machine the first two to agree may both be slow."""
    return loop.amount / best_of(loop.run, effort.stream_seconds, replace(effort, tolerance=0.0)).seconds


def _product_rate(torch: Any, name: str, effort: Effort, unstable: list[str]) -> float | None:
    """FLOP/s of the fastest square product of a dtype; null where torch has none.

    The largest size need not win: with matrix tiles the middle one stays in cache. Sizes that would take too long are
    left out, because a dtype that the CPU only emulates can be a hundred times slower than fp32. One thread alone
    tells how long: on a busy machine several threads spend a whole time slice waiting for one another.
    """
    threads = torch.get_num_threads()
    try:
        with _one_thread(torch):
            best = _product(torch, name, effort.scout_size, effort.scout_seconds, effort)
    except RuntimeError:
        return None
    for size in effort.product_sizes:
        if 2.0 * size**3 / (threads * best[0]) <= effort.product_seconds:
            best = max(best, _product(torch, name, size, effort.product_seconds, effort))
    if not best[1]:
        unstable.append(f"{name} product")
    return best[0]


def _product(torch: Any, name: str, size: int, seconds: float, effort: Effort) -> tuple[float, bool]:
    """FLOP/s of one square product of random numbers, and whether the measurement settled."""
    dtype = getattr(torch, _DTYPES[name])
    left, right = (torch.randn(size, size).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype)
    reading = best_of(partial(torch.mm, left, right, out=out), seconds, effort)
    return 2.0 * size**3 / reading.seconds, reading.stable


def _stream(
    torch: Any, label: str, working_set: int, tiny_us: float, effort: Effort, unstable: list[str]
) -> tuple[float, float]:
    """Working set in bytes and bytes/s of c = a + 3 b over it; what the cache fetches before a write is not counted.

    One thread alone may win on a busy machine, for the reason given at ``_product_rate``.
    """
    count = max(1, working_set // 12)
    left, right, out = torch.rand(count), torch.rand(count), torch.empty(count)
    moved = 12.0 * count
    calls = max(1, int(_BATCH_BYTES / moved))

    def run() -> None:
        for _ in range(calls):
            torch.add(left, right, alpha=3, out=out)

    together = best_of(run, effort.stream_seconds, effort)
    with _one_thread(torch):
        alone = best_of(run, effort.stream_seconds / 2, effort)
    if not together.stable:
        unstable.append(f"{label} stream")
    each = min(together.seconds, alone.seconds) / calls
    return moved, moved / max(each - tiny_us / US_PER_S, each / 2)


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def descending(streams: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points by working set, none slower than a larger one: what holds for more bytes holds for fewer."""
    kept: list[tuple[float, float]] = []
    for size, rate in sorted(streams, reverse=True):
        kept.append((size, max(rate, kept[-1][1] if kept else 0.0)))
    return tuple(reversed(kept))


def _tiny_us(torch: Any, effort: Effort) -> float:
    """Microseconds of one op on one number."""
    left, right, out = torch.rand(1), torch.rand(1), torch.empty(1)

    def run() -> None:
        for _ in range(effort.tiny_calls):
            torch.add(left, right, alpha=3, out=out)

    return best_of(run, effort.stream_seconds, effort).seconds / effort.tiny_calls * US_PER_S


def _profiled_us(torch: Any, effort: Effort) -> float:
    """Median duration that the profiler reports for a tiny op, recording what a recording records."""
    left, right = torch.rand(1), torch.rand(1)
    quiet = "KINETO_LOG_LEVEL"
    given = os.environ.setdefault(quiet, "99")
    profiler = torch.autograd.profiler.profile(record_shapes=True, with_stack=True, use_kineto=True)
    with profiler:
        for _ in range(effort.tiny_calls):
            torch.add(left, right)
    if given == "99":
        os.environ.pop(quiet, None)
    taken = [event.duration_ns() for event in profiler.kineto_results.events() if event.name() == "aten::add"]
    return float(statistics.median(taken)) / 1e3


def _fresh_rate(torch: Any, size: int, effort: Effort) -> float | None:
    """Bytes/s of new pages alone: the first write of memory, less a second write of the same memory.

    A difference of two times: both repeat for as long as they may, since an early agreement could be that of two
    disturbed runs.
    """
    thorough = replace(effort, tolerance=0.0)
    fresh, used = _untouched(torch, size), cycle(torch.ones(size, dtype=torch.uint8).chunk(_FRESH_PARTS))
    first = best_of(lambda: next(fresh).fill_(1), effort.stream_seconds, thorough)
    again = best_of(lambda: next(used).fill_(1), effort.stream_seconds, thorough)
    taken = first.seconds - again.seconds
    return size / _FRESH_PARTS / taken if taken > 0 else None


def _untouched(torch: Any, size: int) -> Iterator[Any]:
    """Parts of memory that nobody has written to yet; the change to the next whole costs time, the rest is free."""
    while True:
        yield from torch.empty(size, dtype=torch.uint8).chunk(_FRESH_PARTS)
