"""The room on the heap: how much a window needs, and what it does to a program's page faults."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from bottleneck.harness import heap
from bottleneck.harness.heap import Room, StepFaults

PAGE = os.sysconf("SC_PAGE_SIZE")

# Blocks like tensors, taken and given back; what that costs in page faults without a room, in one, and after it.
PROGRAM = """
import ctypes, json, resource
from bottleneck.harness.heap import Room

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def resident():
    return int(open("/proc/self/statm").read().split()[1])

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(100_000) for _ in range(100)]
    for block in blocks:
        libc.memset(block, 1, 100_000)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

bare = step()
empty = resident()
room = Room(4000)
filled = resident()
inside = step()
room.leave()
room.leave()
print(json.dumps({"bare": bare, "inside": inside, "grew": filled - empty, "left": resident() - empty}))
"""


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    def make(amount: int | None) -> None:
        monkeypatch.setattr(heap, "available_bytes", lambda: amount)

    make(64_000_000_000)
    return make


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets so many page faults happen."""
    faults = [0]

    def add(number: int) -> None:
        faults[0] += number

    monkeypatch.setattr(heap, "_page_faults", lambda: faults[0])
    return add


def counted(count: Callable[[int], None], profiled: int, unprofiled: int) -> StepFaults:
    """The counts of one profiled step and of ten unprofiled ones with so many each."""
    faults = StepFaults()
    faults.begin(2)
    count(profiled)
    faults.end_profiled(3)
    faults.begin(3)
    count(10 * unprofiled)
    faults.end_unprofiled(13)
    return faults


@pytest.mark.usefixtures("available")
def test_a_room_holds_what_the_steps_will_take_twice_over(count: Callable[[int], None]) -> None:
    faults = counted(count, profiled=1000, unprofiled=0)
    assert faults.pages_wanted(in_first=0, steps=5) == 2 * 1000 * 5
    assert faults.pages_wanted(in_first=1500, steps=5) == 2 * 1500 * 5


@pytest.mark.usefixtures("available")
def test_a_program_with_page_faults_of_its_own_keeps_them(count: Callable[[int], None]) -> None:
    faults = counted(count, profiled=1000, unprofiled=251)
    assert faults.pages_wanted(in_first=0, steps=5) == 0


@pytest.mark.usefixtures("available")
def test_a_few_page_faults_are_worth_no_room(count: Callable[[int], None]) -> None:
    assert counted(count, profiled=127, unprofiled=0).pages_wanted(in_first=127, steps=5) == 0
    assert counted(count, profiled=128, unprofiled=0).pages_wanted(in_first=0, steps=5) > 0


def test_a_room_takes_little_of_the_memory_that_is_left(
    count: Callable[[int], None], available: Callable[[int | None], None]
) -> None:
    faults = counted(count, profiled=100_000, unprofiled=0)
    assert PAGE * faults.pages_wanted(in_first=0, steps=100) <= 256_000_000
    available(80_000_000)
    assert PAGE * faults.pages_wanted(in_first=0, steps=100) <= 10_000_000
    available(None)
    assert faults.pages_wanted(in_first=0, steps=100) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap is the one that needs a room")
def test_a_room_spares_the_steps_their_page_faults_and_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    if told["grew"] == 0:
        pytest.skip("this libc is not glibc")
    assert told["bare"] > 8_000_000 / PAGE
    assert told["grew"] >= 3900
    assert told["inside"] < 100
    assert told["left"] < 1000


def test_no_room_is_made_of_nothing() -> None:
    room = Room(0)
    room.leave()
