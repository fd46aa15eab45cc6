"""The window at the start of a script: it stays open while it is cheap, so that a slow import does not end it."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.harness import script as opening
from bottleneck.harness.script import MOST_CHUNKS, Opening, keep_remainder
from bottleneck.harness.stopwatch import Stopwatch
from bottleneck.harness.window import Detail
from bottleneck.schema.measurements import ChildWork

MB = 1e6


class ProfilerWindow:
    """Stands in for a window of the profiler, and remembers whether it was stopped."""

    events = 5
    is_running = False

    def __init__(self, _torch: object = None, detail: Detail = Detail()) -> None:  # noqa: B008 - frozen
        self.detail = detail
        self.is_mine = True
        self.stopped = False

    def open(self) -> bool:
        return True

    def stop(self) -> None:
        self.stopped = True

    def event_count(self) -> int:
        return self.events


class Machine:
    """The program's memory, its GPU, and the clock that calls back."""

    def __init__(self, patch: pytest.MonkeyPatch, detail: Detail, finds_nothing: bool) -> None:
        self.bytes, self.uses_gpu, self.later, self.windows = 100 * MB, False, [], []  # type: ignore[var-annotated]
        patch.setattr(opening, "ProfilerWindow", self.window)
        patch.setattr(opening, "resident_bytes", lambda: self.bytes)
        patch.setattr(opening, "call_in_main_thread_after", lambda _, callback: self.later.append(callback))
        patch.setattr(opening.os, "register_at_fork", lambda **_: None)
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(is_initialized=lambda: self.uses_gpu, synchronize=lambda: None)
        )
        self.finds_nothing = finds_nothing
        self.opening = Opening(self.torch, detail, self.tell, lambda: self.finds_nothing)
        self.opening.start()

    def tell(self, when: str, exc: Exception) -> None:
        raise AssertionError(when) from exc

    def window(self, *arguments: Any) -> ProfilerWindow:
        self.windows.append(ProfilerWindow(*arguments))
        return self.windows[-1]

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            callbacks, self.later = self.later, []
            for callback in callbacks:
                callback()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, Detail(), finds_nothing=False)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A program in which nothing was met that makes steps, with a window of 5,000 events."""
    monkeypatch.setattr(ProfilerWindow, "events", 5000)
    return Machine(monkeypatch, Detail(stacks=False), finds_nothing=True)


def test_a_program_of_ops_alone_is_recorded_again_with_stacks(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CHUNK_SECONDS", 0.0)
    bare.wait(4)
    assert [(window.detail.stacks, window.stopped) for window in bare.windows] == [(False, True), (True, True)]
    assert bare.opening.finish() is bare.windows[1]


def test_a_second_window_that_the_program_ends_at_once_gives_way_to_the_first(
    bare: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bare.opening.stopwatch
    bare.wait()
    monkeypatch.setattr(bare.windows[1], "events", 50)
    assert bare.opening.finish() is bare.windows[0]
    assert bare.opening.stopwatch is first and bare.windows[1].stopped


@pytest.mark.parametrize("why", ["met", "few events", "import", "GPU"])
def test_stacks_are_not_taken_where_steps_or_imports_may_come(
    bare: Machine, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "met":
        bare.finds_nothing = False
    elif why == "few events":
        monkeypatch.setattr(ProfilerWindow, "events", 50)
    elif why == "import":
        monkeypatch.setattr(opening, "_is_importing", lambda: True)
    else:
        bare.uses_gpu = True
    bare.wait(3)
    assert not any(window.detail.stacks for window in bare.windows)
    assert bare.opening.finish() is not None


def test_code_that_runs_while_a_module_is_imported_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asks_at_import.py").write_text(
        "from bottleneck.harness.script import _is_importing\nIS = _is_importing()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("asks_at_import").IS and not opening._is_importing()


def test_a_window_with_few_events_stays_open_until_the_first_step(machine: Machine) -> None:
    machine.wait(5)
    assert [window.stopped for window in machine.windows] == [False]
    assert machine.opening.finish() is machine.windows[0]
    assert machine.windows[0].stopped


def test_a_window_is_closed_for_good_when_the_process_has_grown(machine: Machine) -> None:
    machine.bytes += 600 * MB
    machine.wait(3)
    assert [window.stopped for window in machine.windows] == [True]
    assert machine.opening.finish() is machine.windows[0]


def test_a_window_is_not_closed_inside_a_backward_pass(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd gives the thread its profiler back when the node ends: no window could be opened any more."""
    machine.bytes += 600 * MB
    monkeypatch.setattr(opening, "is_inside_backward", lambda: True)
    machine.wait(3)
    assert [window.stopped for window in machine.windows] == [False]
    monkeypatch.setattr(opening, "is_inside_backward", lambda: False)
    machine.wait()
    assert [window.stopped for window in machine.windows] == [True]


def test_a_window_is_closed_after_a_minute(machine: Machine) -> None:
    machine.wait(MOST_CHUNKS - 1)
    assert not machine.windows[0].stopped
    machine.wait()
    assert machine.windows[0].stopped


def test_an_empty_window_that_had_to_close_is_followed_by_another(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProfilerWindow, "events", 0)
    machine.bytes += 600 * MB
    machine.wait()
    assert [window.stopped for window in machine.windows] == [True, False]


def test_a_window_that_saw_nothing_of_the_gpu_is_followed_by_another(machine: Machine) -> None:
    machine.uses_gpu = True
    machine.wait()
    assert [window.stopped for window in machine.windows] == [True, False]
    assert machine.opening.finish() is machine.windows[1]


def test_a_system_that_does_not_tell_its_memory_gets_one_short_window(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "resident_bytes", lambda: float("inf"))
    machine.wait()
    assert machine.windows[0].stopped


def test_the_ends_of_the_window_are_marked(machine: Machine) -> None:
    machine.wait(2)
    assert machine.opening.finish() is not None
    assert machine.opening.stopwatch.steps == 1


def test_a_window_that_follows_has_marks_of_its_own(machine: Machine) -> None:
    first = machine.opening.stopwatch
    machine.uses_gpu = True
    machine.wait()
    machine.opening.finish()
    assert machine.opening.stopwatch is not first
    assert machine.opening.stopwatch.steps == 1


@pytest.mark.parametrize(("children_s", "is_told"), [(9.0, True), (1.0, False)])
def test_processes_that_worked_longer_than_the_program_are_told(children_s: float, is_told: bool) -> None:
    said: list[str] = []
    session: Any = SimpleNamespace(
        options=SimpleNamespace(wanted_steps=5),
        setting=SimpleNamespace(is_bounded=False, what="the program"),
        notes=SimpleNamespace(child_work=ChildWork(4.0, children_s, 2)),
        has_profiled_steps=False,
        has_trace=False,
        warn=said.append,
    )
    keep_remainder(session, seen=0, window=None, stopwatch=Stopwatch(None), opening=None)
    (line,) = said
    assert line.startswith("the program ended before it did anything that could be profiled")
    assert ("by 2 processes that the program started, which were not recorded: --follow-children" in line) == is_told
