from pathlib import Path

import pytest

from bottleneck.harness.messages import Plan, Program, RecordOptions
from bottleneck.harness.session import Session
from bottleneck.harness.stopwatch import Clocks, Stopwatch, WarmUp, is_disturbed, time_steps, warm_up
from bottleneck.harness.window import Detail, ProfilerWindow


def test_marks_bound_steps() -> None:
    stopwatch = Stopwatch(None)
    assert (stopwatch.steps, stopwatch.elapsed_s) == (0, 0.0)
    for _ in range(3):
        stopwatch.mark()
    assert stopwatch.steps == 2
    assert stopwatch.marks_ns == sorted(stopwatch.marks_ns)
    assert len(stopwatch.durations_us()) == 2


class FakeClocks:
    """A step lasts 5 ms; the wall clock may be set while it lasts."""

    def __init__(self) -> None:
        self.now_ns, self.wrong_ns = 10**18, 0

    def stopwatch(self, *jumps_ns: int) -> Stopwatch:
        """One that has marked the end of so many steps, in each of which the wall clock jumped so far."""
        stopwatch = Stopwatch(None, Clocks(lambda: self.now_ns + self.wrong_ns, lambda: self.now_ns - 10**17))
        stopwatch.mark()
        for jump_ns in jumps_ns:
            self.now_ns += 5_000_000
            self.wrong_ns += jump_ns
            stopwatch.mark()
        return stopwatch


HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS, 20_000_000])
def test_setting_the_wall_clock_changes_no_interval(jump_ns: int) -> None:
    stopwatch = FakeClocks().stopwatch(0, jump_ns, -jump_ns, jump_ns, 0)
    assert stopwatch.durations_us() == [5000.0] * 5
    assert [mark - 10**18 for mark in stopwatch.marks_ns] == [5_000_000 * step for step in range(6)]
    assert stopwatch.elapsed_s == 0.025
    assert stopwatch.is_clock_set


def test_a_clock_that_is_tuned_was_not_set() -> None:
    clocks = FakeClocks()
    assert not clocks.stopwatch().is_clock_set
    assert not clocks.stopwatch(*[2_500] * 200).is_clock_set  # 500 ppm, the most that the system tunes by, for a second
    assert not Stopwatch(None).is_clock_set


@pytest.mark.parametrize("disturbed", [0, 1, 3, 5])
def test_a_clock_that_was_read_late_was_not_set(disturbed: int) -> None:
    """Another program ran between two readings, at the first mark or when the question is asked."""
    walls = iter([1000 + (20_000_000 if number == disturbed else 0) for number in range(6)])
    stopwatch = Stopwatch(None, Clocks(lambda: next(walls), lambda: 0))
    stopwatch.mark()
    assert stopwatch.marks_ns == [1000]
    assert not stopwatch.is_clock_set


def test_a_window_in_which_the_clock_was_set_is_not_kept(tmp_path: Path) -> None:
    session = Session(Plan(str(tmp_path), Program("x.py"), RecordOptions(warmup=3)))
    assert not session.offer(ProfilerWindow(None, Detail()), FakeClocks().stopwatch(0, HOUR_NS))
    assert not session.has_profiled_steps
    assert "clock was set" in session.notes.warnings[0]


class FakeEvent:
    clock_ms = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.clock_ms += 2.5
        self.at = FakeEvent.clock_ms

    def elapsed_time(self, end: "FakeEvent") -> float:
        return end.at - self.at

    def synchronize(self) -> None:
        pass


class FakeCuda:
    Event = FakeEvent
    available = initialised = True
    waits = 0

    def is_available(self) -> bool:
        return self.available

    def is_initialized(self) -> bool:
        return self.initialised

    def synchronize(self) -> None:
        self.waits += 1


class FakeTorch:
    def __init__(self) -> None:
        self.cuda = FakeCuda()


def test_a_gpu_times_the_steps_by_its_own_clock() -> None:
    stopwatch = Stopwatch(FakeTorch())
    for _ in range(3):
        stopwatch.mark()
    assert stopwatch.durations_us() == [2500.0, 2500.0]


def test_warming_up_ends_when_times_settle_or_the_time_is_over() -> None:
    calls: list[int] = []
    bounds = WarmUp(seconds=1e9, many=40, seconds_for_many=0.0)
    warmed = warm_up(lambda: calls.append(1), FakeTorch(), bounds)
    assert len(calls) == warmed.steps <= 40
    assert warm_up(lambda: None, FakeTorch(), WarmUp(0.0, 50, 0.0)).steps == 0
    assert warm_up(lambda: None, FakeTorch(), WarmUp(0.0, 50, 0.0), least=3).steps == 3


def test_without_bounds_a_step_is_repeated_as_often_as_requested() -> None:
    assert warm_up(lambda: None, FakeTorch(), None, least=7).steps == 7


def test_steps_that_lead_in_are_made_but_not_timed() -> None:
    calls: list[int] = []
    torch = FakeTorch()
    assert time_steps(lambda: calls.append(1), torch, steps=3, lead=2) == [2500.0] * 3
    assert (len(calls), torch.cuda.waits) == (5, 2)


def test_a_gpu_that_the_program_has_not_woken_stays_asleep() -> None:
    torch = FakeTorch()
    torch.cuda.initialised = False
    stopwatch = Stopwatch(torch)
    stopwatch.mark()
    stopwatch.wait()
    assert torch.cuda.waits == 0


@pytest.mark.parametrize(
    ("profiled", "undisturbed", "expected"),
    [
        ([2.0, 2.0, 2.1], [1.0] * 20, False),
        ([2.0, 2.0, 90.0], [1.0] * 20, True),
        ([90.0, 90.0, 90.0], [1.0] * 20, True),
        ([2.0, 2.0, 90.0], [1.0, 1.0, 45.0] * 7, False),
        ([2.0], [], False),
    ],
    ids=["alike", "outlier", "all slow", "varies by itself", "nothing to compare with"],
)
def test_foreign_disturbance_is_told_from_the_profilers_own(
    profiled: list[float], undisturbed: list[float], expected: bool
) -> None:
    assert is_disturbed(profiled, undisturbed) is expected


def test_all_but_the_last_steps_can_be_forgotten() -> None:
    stopwatch = Stopwatch(FakeTorch())
    for _ in range(8):
        stopwatch.mark()
    last = stopwatch.durations_us()[-3:]
    stopwatch.keep_last(3)
    assert (stopwatch.steps, len(stopwatch.marks_ns), stopwatch.durations_us()) == (3, 4, last)
    stopwatch.keep_last(0)
    assert stopwatch.steps == 0 and len(stopwatch.marks_ns) == 1
