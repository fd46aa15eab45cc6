import random

import pytest

from bottleneck.harness.stopwatch import Stopwatch, is_disturbed, summarise_durations


def test_no_steps_have_no_timing() -> None:
    assert summarise_durations([]) is None


@pytest.mark.parametrize("count", range(1, 6))
def test_below_six_steps_the_interval_is_the_whole_range(count: int) -> None:
    timing = summarise_durations([float(value) for value in range(count)])
    assert timing is not None
    assert (timing.low, timing.high, timing.n) == (0, count - 1, count)


def test_the_interval_takes_the_tabulated_ranks() -> None:
    # Ranks of the 95 % interval of a median for n = 20 and n = 100, as in any table of the sign test: 6-15 and 40-61.
    for count, low, high in ((20, 6, 15), (100, 40, 61)):
        timing = summarise_durations([float(value) for value in range(1, count + 1)])
        assert timing is not None
        assert (timing.low, timing.high) == (low, high)


@pytest.mark.parametrize("count", [7, 40, 1500])
def test_the_interval_holds_the_true_median_at_least_as_often_as_it_says(count: int) -> None:
    source = random.Random(7)
    hits = 0
    for _ in range(400):
        timing = summarise_durations([source.expovariate(1.0) for _ in range(count)])
        assert timing is not None
        hits += timing.low <= 0.6931471805599453 <= timing.high
    assert hits >= 0.92 * 400


def test_marks_bound_steps() -> None:
    stopwatch = Stopwatch(None)
    assert (stopwatch.steps, stopwatch.elapsed_s) == (0, 0.0)
    for _ in range(3):
        stopwatch.mark()
    assert stopwatch.steps == 2
    assert stopwatch.marks_ns == sorted(stopwatch.marks_ns)
    assert len(stopwatch.durations_us()) == 2


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
