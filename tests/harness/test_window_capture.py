from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from bottleneck.harness import window as capture
from bottleneck.harness.messages import RecordOptions
from bottleneck.harness.window import Detail, Guard, ProfilerWindow, detail_of


class Scope:
    """Stands for torch's record_function: open as long as it lives."""


class FakeProfile:
    running: ClassVar[list["FakeProfile"]] = []

    def __init__(self, **_: Any) -> None:
        self.kineto_results = SimpleNamespace(trace_activities=lambda: [1, 2, 3])

    def __enter__(self) -> None:
        FakeProfile.running.append(self)

    def __exit__(self, *_: object) -> None:
        FakeProfile.running.remove(self)


def fake_torch() -> Any:
    class Config:
        def __init__(self, **_: Any) -> None: ...

    started: list[str] = []
    profiler = SimpleNamespace(
        profile=FakeProfile, record_function=Scope, _prepare_profiler=lambda: started.append("theirs")
    )
    return SimpleNamespace(
        started=started,
        autograd=SimpleNamespace(profiler=profiler, _profiler_enabled=lambda: False),
        cuda=SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False),
        distributed=SimpleNamespace(is_available=lambda: False),
        _C=SimpleNamespace(_profiler=SimpleNamespace(_ExperimentalConfig=Config)),
    )


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    guard = Guard()
    monkeypatch.setattr(capture, "GUARD", guard)
    monkeypatch.setattr(FakeProfile, "running", [])
    return guard


def test_the_user_decides_what_is_recorded_and_the_form_what_they_leave_open() -> None:
    default = Detail(shapes=True, stacks=True, memory=False)
    assert detail_of(RecordOptions(), default) == default
    chosen = detail_of(RecordOptions(shapes=False, memory=True), default)
    assert chosen == Detail(shapes=False, stacks=True, memory=True)


def test_a_window_opens_and_closes_once(guard: Guard) -> None:
    window = ProfilerWindow(fake_torch(), Detail())
    assert window.open()
    assert len(FakeProfile.running) == 1
    window.stop()
    window.stop()
    assert not FakeProfile.running
    assert window.event_count() == 3


@pytest.mark.parametrize("is_only_timed", [False, True])
def test_modules_are_looked_for_where_a_trace_will_name_them(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, is_only_timed: bool
) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(capture, "find_modules", looked.append)
    window = ProfilerWindow(fake_torch(), Detail(stacks=True), is_only_timed=is_only_timed)
    assert window.open()
    window.stop()
    assert len(looked) == (not is_only_timed)


def test_two_windows_are_never_open_at_once(guard: Guard) -> None:
    torch = fake_torch()
    first = ProfilerWindow(torch, Detail())
    assert first.open()
    assert not ProfilerWindow(torch, Detail()).open()
    first.stop()
    assert ProfilerWindow(torch, Detail()).open()


def test_a_profiler_of_the_program_finds_ours_stopped_and_none_follows(guard: Guard) -> None:
    torch = fake_torch()
    assert ProfilerWindow(torch, Detail()).open()
    torch.autograd.profiler._prepare_profiler()
    assert torch.started == ["theirs"]
    assert not FakeProfile.running
    assert not ProfilerWindow(torch, Detail()).open()


def test_our_own_start_does_not_count_as_the_programs(guard: Guard) -> None:
    torch = fake_torch()
    torch.autograd.profiler.profile = lambda **keywords: torch.autograd.profiler._prepare_profiler() or FakeProfile()
    assert ProfilerWindow(torch, Detail()).open()
    assert not guard.yielded


def test_no_window_opens_while_a_scope_of_the_last_one_is_open(guard: Guard) -> None:
    torch = fake_torch()
    window = ProfilerWindow(torch, Detail())
    assert window.open()
    scope = Scope()
    window.stop()
    assert not guard.is_clear()
    assert not ProfilerWindow(torch, Detail()).open()
    del scope
    assert ProfilerWindow(torch, Detail()).open()


def test_a_fork_does_not_stop_the_window_of_its_parent(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    window = ProfilerWindow(fake_torch(), Detail())
    assert window.open()
    monkeypatch.setattr(capture.os, "getpid", lambda: -1)
    window.stop()
    assert FakeProfile.running
