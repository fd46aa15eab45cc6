"""The sampler of the host: what psutil tells, and what it does not."""

import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from bottleneck.harness import sensors as host_module
from bottleneck.harness.sensors import HostSampler, newest_process
from bottleneck.schema.telemetry import COLUMNS, HOST

Times = namedtuple("Times", "user system children_user children_system")
Machine = namedtuple("Machine", "user nice system idle iowait steal guest")


class Process:
    """A process that exists for the sampler only."""

    def __init__(self, used_s: float = 0.0, children: tuple["Process", ...] = ()) -> None:
        self.used_s, self.waited_for_s, self.offspring, self.is_gone = used_s, 0.0, list(children), False

    def cpu_times(self) -> Times:
        if self.is_gone:
            raise psutil.NoSuchProcess(1)
        return Times(self.used_s, 0.0, self.waited_for_s, 0.0)

    def memory_info(self) -> Any:
        if self.is_gone:
            raise psutil.NoSuchProcess(1)
        return SimpleNamespace(rss=100)

    def children(self, recursive: bool) -> list["Process"]:
        return list(self.offspring)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process()
    monkeypatch.setattr(psutil, "Process", lambda pid: process)
    return process


def sampler(newest: Callable[[], str | None] = lambda: None) -> HostSampler:
    """One that finds its calls to cost nothing."""
    host = HostSampler(clock=lambda: 0.0, newest=newest)
    assert host.open(os.getpid())
    return host


def ask(host: HostSampler, now_s: float) -> dict[str, float]:
    rows = host.sample(now_s)
    assert [sensor for sensor, _ in rows] in ([], [HOST])
    return dict(rows[0][1]) if rows else {}


def test_a_live_process_tells_its_time_and_memory_and_those_of_the_machine() -> None:
    program = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()  # it has started: before, it has next to no memory
        host = HostSampler()
        assert host.open(child.pid)
        values = ask(host, 0.0)
        child.communicate(b"\n")
    assert values.keys() <= COLUMNS.keys()
    assert {"process_cpu_s", "process_memory_bytes", "memory_used_bytes"} <= values.keys()
    assert values["process_memory_bytes"] > 1e6
    assert 0 < values["busy_cpu_s"] <= values["total_cpu_s"]
    assert host.notes == []


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count waits")
def test_waits_of_threads_only_grow_and_those_of_ended_threads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostSampler()
    assert host.open(os.getpid())
    real = ask(host, 0.0)["process_wait_s"]
    assert 0 <= real < 1e6
    seen = iter([{1: 2_000_000_000, 2: 1_000_000_000}, {1: 3_000_000_000}])
    monkeypatch.setattr("bottleneck.harness.sensors.waits_by_thread", lambda _: next(seen))
    fresh = HostSampler()
    assert fresh.open(os.getpid())
    assert [ask(fresh, at)["process_wait_s"] for at in (0.0, 1.0)] == [3.0, 4.0]


def test_a_process_that_has_ended_takes_only_its_own_figures_along() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    host = HostSampler()
    child.wait()
    host.open(child.pid)
    values = ask(host, 0.0)
    assert "memory_used_bytes" in values
    assert "process_cpu_s" not in values and "process_memory_bytes" not in values


def test_each_figure_has_its_own_pace(root: Process) -> None:
    host = sampler()
    rows = [ask(host, 0.2 * beat) for beat in range(7)]
    assert sum("process_cpu_s" in row for row in rows) == 7
    assert sum("process_memory_bytes" in row for row in rows) == 3
    assert sum("memory_used_bytes" in row for row in rows) == 2


def test_children_count_from_when_they_are_found(root: Process) -> None:
    root.used_s = 1.0
    host = sampler()
    assert ask(host, 0.0)["process_cpu_s"] == 1.0
    worker = Process(used_s=5.0)
    root.offspring.append(worker)
    assert ask(host, 1.0)["process_cpu_s"] == 1.0
    worker.used_s = 5.5
    assert ask(host, 1.2)["process_cpu_s"] == pytest.approx(1.5)


def test_children_are_looked_for_only_where_something_was_started(root: Process) -> None:
    newest = "71"
    host = sampler(lambda: newest)
    ask(host, 0.0)
    worker = Process(used_s=5.0)
    root.offspring.append(worker)
    ask(host, 1.0)
    worker.used_s = 6.0
    assert ask(host, 2.0)["process_cpu_s"] == 0.0  # never looked for
    newest = "72"
    ask(host, 3.0)
    worker.used_s = 6.5
    assert ask(host, 4.0)["process_cpu_s"] == pytest.approx(0.5)


def test_the_system_tells_which_process_is_the_newest() -> None:
    before = newest_process()
    with subprocess.Popen([sys.executable, "-c", ""]):
        assert newest_process() != before or before is None


@pytest.mark.parametrize("text", ["0.00 0.00 0.00 0/0 0\n", "", None], ids=["a stub", "empty", "missing"])
def test_a_system_that_does_not_tell_it_has_no_newest_process(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "loadavg"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(host_module, "_NEWEST", file)
    assert newest_process() is None


def test_a_child_that_ends_leaves_no_jump_behind(root: Process) -> None:
    worker = Process(used_s=5.0)
    root.offspring.append(worker)
    host = sampler()
    assert ask(host, 0.0)["process_cpu_s"] == 0.0
    worker.used_s = 6.0
    assert ask(host, 0.2)["process_cpu_s"] == pytest.approx(1.0)
    worker.is_gone, root.waited_for_s = True, 6.0
    assert ask(host, 0.4)["process_cpu_s"] == pytest.approx(1.0)


def test_memory_is_that_of_all_processes(root: Process) -> None:
    root.offspring += [Process(), Process()]
    assert ask(sampler(), 0.0)["process_memory_bytes"] == 300


@pytest.mark.parametrize("answer", [None, SimpleNamespace(current=0.0)], ids=["none", "zero"])
def test_a_clock_that_the_system_does_not_tell_is_absent(
    answer: object, root: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_freq", lambda: answer)
    assert "cpu_clock_mhz" not in ask(sampler(), 0.0)


def test_a_figure_that_fails_again_and_again_is_given_up(root: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(percpu: bool = False) -> None:
        calls.append(1)
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", refuse)
    host = sampler()
    rows = [ask(host, 0.2 * beat) for beat in range(20)]
    assert len(calls) == 5
    assert all("process_cpu_s" in row and "busy_cpu_s" not in row for row in rows)


def test_time_of_guests_counts_once_and_stolen_time_is_not_work(root: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(10.0, 1.0, 2.0, 80.0, 4.0, 3.0, 7.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: [machine] if percpu else machine)
    values = ask(sampler(), 0.0)
    assert (values["busy_cpu_s"], values["total_cpu_s"]) == (13.0, 100.0)


def test_what_runs_on_processors_that_the_program_may_not_use_takes_nothing_from_it(
    root: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = [Machine(busy_s, 0.0, 0.0, 100.0 - busy_s, 0.0, 0.0, 0.0) for busy_s in (5.0, 90.0, 7.0)]
    whole = Machine(*map(sum, zip(*each, strict=True)))
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: each if percpu else whole)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2}, raising=False)
    values = ask(sampler(), 0.0)
    assert (values["busy_cpu_s"], values["total_cpu_s"]) == (12.0, 200.0)


def test_without_psutil_the_host_is_silent_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    host = HostSampler()
    assert not host.open(1)
    assert "psutil" in host.notes[0]
