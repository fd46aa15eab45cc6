"""The phases of a script in this process: what ends them, and what is kept of each."""

import gc
import gzip
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness import messages
from bottleneck.harness import script as windows
from bottleneck.harness import session as sessions
from bottleneck.harness import window as bounds
from bottleneck.harness.messages import Plan, RecordOptions
from bottleneck.harness.script import Script
from bottleneck.harness.session import Session
from bottleneck.harness.window import GUARD

torch: Any = pytest.importorskip("torch")

OPTIONS = RecordOptions(steps=4, warmup=3)


class Program:
    """A training loop whose steps the script watches; ``during`` is done in the middle of each."""

    def __init__(self, plan: Plan) -> None:
        self.session = Session(plan)
        self.script = Script(self.session)
        self._model = torch.nn.Linear(4, 4)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)

    def train(self, steps: int, during: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            self._optimizer.zero_grad()
            self._model(torch.ones(2, 4)).sum().backward()
            during()
            self._optimizer.step()

    def end(self) -> None:
        self.script.finish()

    @property
    def told(self) -> str:
        return "\n".join(self.session.notes.warnings)

    def names(self) -> list[str]:
        """The names in the trace that was kept."""
        return [
            event["name"]
            for event in json.loads(gzip.decompress(self.session.files.partial.read_bytes()))["traceEvents"]
        ]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Program]]:
    # Another test of this process may have used a profiler.
    monkeypatch.setattr(GUARD, "yielded", False)
    # One step that the machine stops for a second ends the timing early; these tests count steps.
    monkeypatch.setattr(windows, "TIMED_SECONDS", math.inf)
    # Scopes of theirs count as open until they are collected.
    gc.collect()
    programs: list[Program] = []

    def begin(**changes: Any) -> Program:
        program = messages.Program("program.py", form="script", seed=None)
        programs.append(Program(Plan(str(tmp_path), program, replace(OPTIONS, **changes))))
        programs[-1].script.on_torch(torch)
        return programs[-1]

    yield begin
    for program in programs:
        program.end()
    assert GUARD.window is None


def test_all_phases_are_passed_and_the_hooks_are_gone_afterwards(start: Callable[..., Program]) -> None:
    program = start()
    program.train(60)
    notes = program.session.notes
    assert notes.is_measured and not notes.stopped
    assert notes.unprofiled is not None and notes.unprofiled.n == 20
    assert len(notes.step_marks_ns) == 5
    seen = notes.steps_seen
    program.train(5)
    program.end()
    assert program.session.notes.steps_seen == seen


@pytest.fixture
def first_of_two(start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch) -> Program:
    """Rank 0, which decides when the windows open, of two that record into one folder."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return start()


def test_a_rank_profiles_no_more_steps_than_the_others_can(first_of_two: Program, tmp_path: Path) -> None:
    first_of_two.train(4)
    (tmp_path / ".notes.window.budget.rank1").write_text("2")
    first_of_two.train(60)
    notes = first_of_two.session.notes
    assert notes.is_measured and len(notes.step_marks_ns) == 3
    assert "profiled 2 of 4 steps, as many as another rank can record" in first_of_two.told


def test_a_rank_that_can_profile_no_whole_window_leaves_all_with_the_step_that_told(
    first_of_two: Program, tmp_path: Path
) -> None:
    first_of_two.train(4)
    (tmp_path / ".notes.window.budget.rank1").write_text("0")
    first_of_two.train(60)
    notes = first_of_two.session.notes
    assert notes.is_measured and len(notes.step_marks_ns) == 2
    assert notes.first_step == 2


def test_a_window_is_closed_once_another_rank_has_closed_its_own(first_of_two: Program, tmp_path: Path) -> None:
    def close_theirs() -> None:
        if first_of_two.script._next == first_of_two.script._profile and first_of_two.script._stopwatch.steps == 1:
            (tmp_path / ".notes.window.closed.full").touch()

    first_of_two.train(60, during=close_theirs)
    notes = first_of_two.session.notes
    assert notes.is_measured and len(notes.step_marks_ns) == 3
    assert "profiled 2 of 4 steps: another rank had closed its window" in first_of_two.told


def test_a_window_that_closes_is_told_to_the_others_before_its_trace_is_written(
    first_of_two: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    offer = first_of_two.session.offer

    def offered(*arguments: Any) -> bool:
        told.append((tmp_path / ".notes.window.closed.full").exists())
        return offer(*arguments)

    monkeypatch.setattr(first_of_two.session, "offer", offered)
    first_of_two.train(60)
    assert told == [True]
    notes = first_of_two.session.notes
    assert len(notes.step_marks_ns) == 5 and "another rank" not in first_of_two.told
    assert notes.first_step is not None and 2 < notes.first_step < notes.steps_seen


def touch_new_pages() -> None:
    """Four hundred page faults at the least."""
    pages = 400 * mmap.PAGESIZE
    with mmap.mmap(-1, pages, flags=mmap.MAP_PRIVATE) as block:
        block.write(bytes(pages))


def test_page_faults_that_only_profiled_steps_have_are_noted(start: Callable[..., Program]) -> None:
    program = start()
    program.train(60, during=lambda: touch_new_pages() if GUARD.window is not None else None)
    faults = program.session.notes.page_faults
    assert faults is not None and faults.profiled is not None and faults.unprofiled is not None
    assert faults.profiled >= 400 > faults.unprofiled
    assert faults.page_bytes == mmap.PAGESIZE


def test_page_faults_of_the_programs_own_are_noted_for_both_kinds_of_steps(start: Callable[..., Program]) -> None:
    program = start()
    program.train(60, during=touch_new_pages)
    faults = program.session.notes.page_faults
    assert faults is not None and min(faults.profiled or 0, faults.unprofiled or 0) >= 400


def test_a_window_whose_steps_take_new_pages_is_followed_by_others_with_spare_memory(
    start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, asked = start(), list[float]()
    monkeypatch.setattr(windows.SpareHeap, "provide", lambda _, size_bytes: asked.append(size_bytes))

    def touch() -> None:
        windows_now = program.script._windows
        if windows_now.current is not None and not windows_now.is_light:
            with mmap.mmap(-1, 20_000_000) as pages:
                for at in range(0, len(pages), mmap.PAGESIZE):
                    pages[at] = 1

    program.train(80, during=touch)
    notes = program.session.notes
    # The window is given up after its first step, twice; the third one is whole.
    assert notes.is_measured and len(notes.windows_us) == 1
    wanted = [size for size in asked if size]
    assert min(wanted) > 5 * 20e6 and max(wanted) < 2 * 5 * 20e6  # four steps, and the one before them
    assert len(notes.step_marks_ns) == 5


def test_a_window_that_takes_too_long_keeps_its_complete_steps(
    start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_SECONDS", 0.0)
    program = start()
    program.train(60)
    assert program.session.notes.is_measured
    assert len(program.session.notes.step_marks_ns) == 2
    assert "profiled 1 of 4 steps: the window had reached 0 s" in program.told


def test_a_step_that_fills_memory_is_cut_off_in_the_middle(
    start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start()
    program.train(1)
    monkeypatch.setattr(windows, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(bounds, "MOST_GROWTH_BYTES", -1e15)

    def wait() -> None:
        while not program.session.notes.is_measured and program.script._windows.current is not None:
            torch.ones(2)

    # A scope that the first window left open may keep the next from opening at once.
    while not program.session.notes.is_measured:
        program.train(1, during=wait)
    assert program.session.notes.step_marks_ns == ()
    assert program.session.has_trace
    assert "not all of it was recorded" in program.told


def test_profiled_steps_before_one_that_fills_memory_are_kept(
    start: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WATCH_SECONDS", 0.0)
    program = start()
    program.train(26)
    monkeypatch.setattr(bounds, "resident_bytes", lambda: 1e15)

    def wait() -> None:
        while program.script._windows.current is not None:
            torch.ones(2)

    program.train(1, during=wait)
    assert len(program.session.notes.step_marks_ns) == 3
    assert program.session.notes.is_measured


def test_a_program_that_is_to_stop_leaves_at_the_boundary_that_ends_the_measurement(
    start: Callable[..., Program],
) -> None:
    program = start(stop=True)
    with pytest.raises(SystemExit) as leave:
        program.train(60)
    assert leave.value.code == 0
    assert program.session.notes.stopped and program.session.notes.is_measured


def test_a_program_that_swallows_the_order_is_not_told_again(start: Callable[..., Program]) -> None:
    program = start(stop=True)
    with pytest.raises(SystemExit):
        program.train(60)
    program.train(60)


def test_steps_without_a_number_to_warm_up_pass_until_they_settle(start: Callable[..., Program]) -> None:
    program = start(warmup=None)
    program.train(150)
    notes = program.session.notes
    assert notes.is_measured
    assert notes.unprofiled is not None and notes.unprofiled.n == 20


def test_a_program_that_ends_while_its_steps_settle_has_times_all_the_same(start: Callable[..., Program]) -> None:
    program = start(warmup=30)
    program.train(20)
    program.end()
    assert program.session.notes.unprofiled is not None
    assert len(program.session.notes.step_marks_ns) == 2


def test_a_profiler_of_the_programs_own_keeps_what_was_recorded_before(start: Callable[..., Program]) -> None:
    program = start()
    program.train(15)
    with torch.autograd.profiler.profile() as profiler:
        program.train(2)
    assert sum(event.name == "aten::addmm" for event in profiler.function_events) == 2
    assert program.session.notes.is_measured
    assert program.session.notes.unprofiled is not None and program.session.notes.unprofiled.n >= 10
    assert "aten::addmm" in program.names()
    assert "profiler of its own" in program.told


def test_a_profiler_before_any_step_leaves_the_start(start: Callable[..., Program]) -> None:
    program = start()
    torch.ones(2).exp()
    with torch.autograd.profiler.profile():
        program.train(2)
    assert program.session.notes.step_source == "whole program"
    assert "aten::exp" in program.names() and "aten::addmm" not in program.names()


@pytest.mark.usefixtures("calm")
def test_a_profile_hook_that_the_program_sets_in_our_window_is_given_back(start: Callable[..., Program]) -> None:
    import cProfile

    program, profile = start(), cProfile.Profile()
    program.train(25)
    assert program.script._windows.current is not None
    profile.enable()
    try:
        program.train(20)
        still = torch.tensor(1.0)
        still.item()
    finally:
        profile.disable()
    assert program.session.notes.is_measured
    calls = {entry.code if isinstance(entry.code, str) else entry.code.co_name for entry in profile.getstats()}
    assert any("item" in name for name in calls)


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without other programs: on one that disturbs every window there is no second kind of window."""
    monkeypatch.setattr(sessions, "is_disturbed", lambda *_: False)


def train_until(program: Program, is_reached: Callable[[], bool]) -> None:
    while not is_reached():
        assert not program.session.notes.is_measured, "the measurement ended before"
        program.train(1)


@pytest.mark.usefixtures("calm")
def test_a_program_that_ends_in_the_second_window_keeps_the_steps_that_were_whole(
    start: Callable[..., Program],
) -> None:
    program = start()
    train_until(program, lambda: program.script._windows.is_light and program.script._stopwatch.steps == 1)
    program.end()
    notes = program.session.notes
    assert len(notes.step_marks_ns) == 5 and notes.light is not None
    assert len(notes.light.step_marks_ns) >= 2
    assert program.session.files.partial_light.exists()
    # Whether the step times settle depends on what else the machine does.
    assert not [line for line in program.told.splitlines() if "had not settled" not in line]


@pytest.mark.usefixtures("calm")
def test_a_program_that_ends_before_the_second_window_has_one(start: Callable[..., Program]) -> None:
    program = start()
    train_until(program, lambda: program.script._windows.is_light)
    program.end()
    assert len(program.session.notes.step_marks_ns) == 5 and program.session.notes.light is None
    # Whether the step times settle depends on what else the machine does.
    assert not [line for line in program.told.splitlines() if "had not settled" not in line]


def test_a_program_that_forks_in_every_step_is_told_that_no_step_can_be_recorded(start: Callable[..., Program]) -> None:
    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)

    program = start()
    program.train(30, during=fork)
    assert "the program starts processes" in program.told and "start them once, before the loop" in program.told
    assert program.told.count("starts processes") == 1


def test_a_fork_now_and_then_is_nothing_to_tell(start: Callable[..., Program]) -> None:
    program = start()
    program.train(40)
    assert program.session.notes.is_measured and "starts processes" not in program.told
