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
