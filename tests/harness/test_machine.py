import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.harness import machine as memory
from bottleneck.harness.machine import (
    available_bytes,
    cache_folder,
    cpu_flags,
    measure_child_work,
    peak_memory,
    peak_of_script,
    peak_resident_bytes,
    reset_peak,
)


def fake_torch(peaks: list[int]) -> Any:
    reset: list[int] = []
    cuda = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: len(peaks),
        max_memory_allocated=lambda index: peaks[index],
        max_memory_reserved=lambda index: 2 * peaks[index],
        reset_peak_memory_stats=reset.append,
        reset=reset,
    )
    return SimpleNamespace(cuda=cuda)


def test_the_peak_of_a_process_grows_with_what_it_writes_and_can_begin_anew() -> None:
    if not reset_peak(None):
        pytest.skip("this system does not let a process reset its peak")
    before = peak_resident_bytes()
    # A mapping of its own: a block from the heap may lie in pages that are resident already, after many tests.
    with mmap.mmap(-1, 64_000_000) as block:
        block.write(b"x" * 64_000_000)
        during = peak_resident_bytes()
    assert before is not None and during is not None and during >= before + 60_000_000
    assert reset_peak(None)
    after = peak_resident_bytes()
    assert after is not None and after < during - 30_000_000


def test_a_gpu_has_the_peak_of_its_fullest_device() -> None:
    torch = fake_torch([10, 30])
    assert reset_peak(torch)
    assert torch.cuda.reset == [0, 1]
    found = peak_memory(torch, was_reset=True)
    assert (found.bytes, found.of, found.since, found.reason) == (30, "device", "steps", None)
    assert found.reserved_bytes == 60


class Counter:
    def __repr__(self) -> str:
        return "count(3)"


@pytest.mark.parametrize(("counter", "processes"), [(Counter(), 2), (None, None), (object(), None)])
def test_the_work_of_other_processes_is_that_of_those_waited_for(
    counter: object, processes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.os, "times", lambda: os.times_result((3.0, 1.0, 9.0, 3.0, 20.0)))
    monkeypatch.setitem(sys.modules, "multiprocessing.process", SimpleNamespace(_process_counter=counter))  # type: ignore[arg-type]
    found = measure_child_work()
    assert (found.own_cpu_s, found.children_cpu_s, found.processes) == (4.0, 12.0, processes)
    assert found.children_share == 0.75


def test_a_script_has_the_peak_of_its_gpu_but_none_of_its_process() -> None:
    assert peak_of_script(fake_torch([10, 30])).bytes == 30
    found = peak_of_script(None)
    assert found.bytes is None and found.reason is not None


def test_a_system_that_does_not_tell_leaves_it_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_STATUS", "_CLEAR"):
        monkeypatch.setattr(memory, name, tmp_path / "missing" / name)
    assert available_bytes(*(tmp_path / "missing" / name for name in ("groups", "membership", "meminfo"))) is None
    assert not reset_peak(None)
    found = peak_memory(None, was_reset=False)
    assert found.bytes is None and found.since == "start" and found.reason is not None


def test_the_limit_of_the_control_group_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   1000 kB\n")
    (tmp_path / "cgroup").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "memory.current").write_text("300000\n")
    for limit, available in (("max", 1_024_000), ("500000", 200_000), ("5000000", 1_024_000), ("100000", 0)):
        (tmp_path / "job" / "memory.max").write_text(f"{limit}\n")
        assert available_bytes(tmp_path, tmp_path / "cgroup", tmp_path / "meminfo") == available


def test_a_user_without_a_home_has_a_cache_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as Python does without HOME and passwd entry
    assert cache_folder().name.startswith("bottleneck-")


def test_instructions_are_those_of_the_first_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 fma\n\nprocessor : 1\nflags : other\n")
    assert cpu_flags(cpuinfo) == {"fpu", "avx2", "fma"}
    cpuinfo.write_text("processor : 0\nFeatures : asimd sve\n")
    assert cpu_flags(cpuinfo) == {"asimd", "sve"}
    assert cpu_flags(tmp_path / "missing") == frozenset()
