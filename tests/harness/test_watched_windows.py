"""When a watched run opens a window of the profiler."""

import threading
from pathlib import Path

import pytest

from bottleneck.harness.messages import Program
from bottleneck.harness.watched_windows import WatchedWindows, WindowWishes

SECOND = 1_000_000_000
PROGRAM = Program("train.py", form="script")


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> int:
        return int(self.now_s * SECOND)


class Measurement:
    """A measurement that ends with its first step."""

    is_measured = True

    def tell_step(self, source: str, name: str) -> None:
        """Nothing is to be timed."""

    def finish(self) -> None:
        """Nothing is to be kept."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(WatchedWindows, "_begin", lambda self, folder: None)
    return Clock()


def windows(clock: Clock, at_slow_steps: int = 0, every_s: float | None = None) -> WatchedWindows:
    made = WatchedWindows(Path("run"), WindowWishes(PROGRAM, at_slow_steps, every_s), clock)
    assert not made.open_if_due(1)
    return made


def opens_after_slow_step(made: WatchedWindows, clock: Clock, at_s: float) -> bool:
    clock.now_s = at_s
    made.tell_slow(3.0)
    return made.open_if_due(int(at_s))


def test_a_slow_step_of_the_first_minute_opens_none(clock: Clock) -> None:
    made = windows(clock, at_slow_steps=3)
    assert not opens_after_slow_step(made, clock, 59.0)
    assert opens_after_slow_step(made, clock, 61.0)


def test_no_slow_step_and_no_wish_opens_none(clock: Clock) -> None:
    made = windows(clock, at_slow_steps=3)
    clock.now_s = 1_000.0
    assert not made.open_if_due(1_000)
    assert not opens_after_slow_step(windows(clock, every_s=1e9), clock, 2_000.0)


def test_windows_at_slow_steps_are_so_many_at_most(clock: Clock) -> None:
    made = windows(clock, at_slow_steps=2)
    assert [opens_after_slow_step(made, clock, at_s) for at_s in (100.0, 5_000.0, 10_000.0)] == [True, True, False]


def test_windows_at_slow_steps_take_a_fiftieth_of_the_run(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made = windows(clock, at_slow_steps=3)
    assert opens_after_slow_step(made, clock, 100.0)
    clock.now_s += 10.0
    monkeypatch.setattr(made, "_measurement", Measurement())
    made.tell_step("optimizer", "optimizer.step of SGD")
    assert not made.is_open and made.recorded[0].trigger == "slow" and made.recorded[0].steps == 1
    assert not opens_after_slow_step(made, clock, 400.0)
    assert opens_after_slow_step(made, clock, 501.0)


@pytest.mark.parametrize(("later_us", "opens"), [(1_190.0, False), (1_210.0, True)])
def test_steps_that_stay_longer_open_one(clock: Clock, later_us: float, opens: bool) -> None:
    made = windows(clock, at_slow_steps=3)
    made.tell_usual(1_500.0)
    made.tell_usual(1_000.0)
    clock.now_s = 100.0
    made.tell_usual(later_us)
    assert made.open_if_due(100) is opens
    made.tell_usual(later_us)
    assert not made.open_if_due(101)


def test_ranks_share_a_folder_and_each_names_its_windows(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedWindows, "_begin", lambda self, folder: setattr(self, "_measurement", Measurement()))
    names = []
    for rank in (0, 3):
        made = WatchedWindows(Path("run"), WindowWishes(PROGRAM, 1), clock, rank)
        clock.now_s = 0.0
        assert not made.open_if_due(1)
        assert opens_after_slow_step(made, clock, 100.0)
        made.tell_step("optimizer", "optimizer.step of SGD")
        names.append(made.recorded[0].folder)
    assert names == ["windows/step-100", "windows/step-100-rank-3"]


def test_those_that_were_asked_for_open_at_their_times(clock: Clock) -> None:
    """So long after the one before has ended: on a slow machine they would follow one another else."""
    made = windows(clock, every_s=10.0)
    opened = []
    for second in range(1, 61):
        clock.now_s = float(second)
        if made.is_open and second - opened[-1] == 3:
            made._measurement = Measurement()
            made.tell_step("optimizer", "optimizer.step of SGD")
        if not made.is_open and made.open_if_due(second):
            opened.append(second)
    assert opened == [10, 23, 36, 49]


def test_steps_in_another_thread_open_none_and_say_so(clock: Clock) -> None:
    made = windows(clock, every_s=1.0)
    clock.now_s = 2.0
    thread = threading.Thread(target=made.open_if_due, args=(5,))
    thread.start()
    thread.join()
    assert not made.is_open and made.problem == "the steps run in a thread other than the main one"
