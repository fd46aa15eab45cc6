"""The spare part of the heap: free, touched, and given back."""

import subprocess
import sys

import pytest

from bottleneck.system import heap
from bottleneck.system.heap import SpareHeap, free_heap_bytes

pytestmark = pytest.mark.skipif(heap._c_library() is None, reason="the C library is not glibc of 2.33 or later")

MB = 1 << 20
BLOCKS = f"""
import ctypes
from bottleneck.system.heap import SpareHeap
from bottleneck.system.process_usage import minor_page_faults

library, spare = ctypes.CDLL(None), SpareHeap()
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
for _ in range(2):  # what the interpreter itself needs for this loop is there the second time
    before = minor_page_faults()
    for _ in range(200):
        library.memset(library.malloc(100_000), 1, 100_000)
    faults = minor_page_faults() - before
    spare.provide(32 * {MB})
print(faults)
"""


def test_it_is_free_memory_until_it_is_given_back() -> None:
    spare, before = SpareHeap(), free_heap_bytes()
    spare.provide(64 * MB)
    assert spare.bytes == 64 * MB
    assert free_heap_bytes() - before > 60 * MB
    spare.provide(32 * MB)  # there is more already
    assert spare.bytes == 64 * MB
    spare.provide(80 * MB)
    assert spare.bytes == 80 * MB
    spare.release()
    assert spare.bytes == 0
    assert free_heap_bytes() - before < 16 * MB


def test_blocks_that_fit_in_take_no_new_pages() -> None:
    """20 MB in blocks below the size that glibc maps apart are 4,900 pages."""
    done = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500


def test_without_glibc_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_c_library", lambda: None)
    spare = SpareHeap()
    spare.provide(64 * MB)
    assert spare.bytes == 0 == free_heap_bytes()
    spare.release()


FREED = f"""
import ctypes
from bottleneck.system.heap import UsualHeap, read_limits
from bottleneck.system.process_usage import minor_page_faults

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def step():
    before = minor_page_faults()
    blocks = [library.malloc(4 * {MB}) for _ in range(4)]
    for block in blocks:
        library.memset(block, 1, 4 * {MB})
    for block in blocks:
        library.free(block)
    return minor_page_faults() - before

def records():  # as a profiler makes them: many small ones, and one that is mapped apart and raises the limits
    small = [library.malloc(4000) for _ in range(20_000)]
    for record in small:
        library.memset(record, 1, 4000)
    large = library.malloc(24 * {MB})
    for record in (*small, large):
        library.free(record)

heap = UsualHeap()
usual = [step() for _ in range(6)][3:]
before = read_limits()
records()
if KEEPS:
    heap.restore()
later = [step() for _ in range(6)][3:]
print(before == read_limits(), sum(later) >= 0.5 * sum(usual), sum(usual))
"""


@pytest.mark.skipif(heap.read_limits() is None, reason="glibc's limits were set, or are not where they are known to be")
@pytest.mark.parametrize("keeps", [True, False])
def test_what_a_profiler_frees_does_not_mend_a_program_that_takes_new_pages(*, keeps: bool) -> None:
    """A step of 37 ms took 25 under `run`: its tensors came from what our own window had freed."""
    script = FREED.replace("KEEPS", str(keeps))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    same_limits, takes_pages, usual = done.stdout.split()
    assert int(usual) > 3 * 4 * 1000
    assert (same_limits, takes_pages) == (str(keeps), str(keeps))
