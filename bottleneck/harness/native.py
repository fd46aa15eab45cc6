"""Small loops compiled here and now: what a CPU's vector units do apart from matrix products, and its first cache.

No op of torch multiplies numbers that stay in registers, and none touches memory often enough to be quicker than its
own call. The loops are our own text, compiled in a folder of their own that is gone afterwards.
"""

import ctypes
import os
import random
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
    """The compiled loops, run by several threads at once: while a call of ctypes lasts, other threads go on."""

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
        """C = a + 3 b over a working set of random numbers of each thread's own."""
        count = max(1, bytes_per_thread // 12)
        vectors = [[_random_floats(count) for _ in range(3)] for _ in self._threads]
        calls = [partial(self._library.triad, *each, ctypes.c_long(count), ctypes.c_long(rounds)) for each in vectors]
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
    """The loops, compiled within a fraction of a second; null where there is no compiler, or none that can do it."""
    named = (os.environ.get("CXX", ""), "g++", "clang++", "c++", "cc")
    compiler = next((path for name in named if name and (path := shutil.which(name))), None)
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
