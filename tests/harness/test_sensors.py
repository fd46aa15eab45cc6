"""The monitor that runs samplers beside a program: its beat, its log, and what it survives."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from bottleneck.harness.sensors import Beat, Clock, Monitor, SensorLog, Telemetry
from bottleneck.schema.telemetry import Sample, write_samples
from tests.harness.replay import ReplaySampler

NOON_NS = 1_700_000_000_000_000_000


class Time:
    """A clock for tests: waiting moves it and takes no time. ``until_s`` is when the program ends."""

    def __init__(self, until_s: float = 1.0, late_s: float = 0.0) -> None:
        self.now_s, self.until_s, self.late_s, self.jump_ns = 100.0, 100.0 + until_s, late_s, 0
        self.used_s = 0.0

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        self.now_s += max(0.0, seconds) + self.late_s
        if self.now_s >= self.until_s:
            ended.set()
        return ended.is_set()

    def clock(self) -> Clock:
        return Clock(
            unix_ns=lambda: NOON_NS + round((self.now_s - 100.0) * 1e9) + self.jump_ns,
            monotonic_s=lambda: self.now_s,
            thread_s=lambda: self.used_s,
            wait=self.wait,
        )


class Counter:
    """A sampler that counts; ``trouble`` is called at each sample."""

    shortest_beat_s = 0.0

    def __init__(self, trouble: Callable[[float], None] = lambda now_s: None) -> None:
        self.notes: list[str] = []
        self.asked_s: list[float] = []
        self.is_closed = False
        self.trouble = trouble

    def open(self, process: int) -> bool:
        self.process = process
        return True

    def sample(self, now_s: float) -> Sequence[tuple[str, Mapping[str, float]]]:
        self.asked_s.append(now_s)
        self.trouble(now_s)
        return [("GPU-0", {"sm_clock_mhz": 1000.0 + len(self.asked_s)})]

    def close(self) -> None:
        self.is_closed = True


def watch(sampler: Counter, time: Time, period_s: float = 0.02) -> Telemetry:
    monitor = Monitor([sampler], period_s, clock=time.clock())
    monitor.start(4711)
    for thread in monitor._threads:
        thread.join()
    return monitor.stop()


def test_samples_come_at_multiples_of_the_period_from_start_to_end() -> None:
    sampler = Counter()
    told = watch(sampler, Time(until_s=0.1))
    assert sampler.process == 4711
    assert sampler.asked_s == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08])
    assert [sample.elapsed_s for sample in told.samples] == pytest.approx(sampler.asked_s)
    assert [sample.unix_ns for sample in told.samples] == [NOON_NS + round(1e9 * at) for at in sampler.asked_s]
    assert told.missed_share == 0
    assert sampler.is_closed


def test_waking_late_makes_no_drift() -> None:
    sampler = Counter()
    told = watch(sampler, Time(until_s=1.0, late_s=0.003))
    assert sampler.asked_s == pytest.approx([0.02 * tick for tick in range(50)])
    assert told.missed_share == 0


def test_ticks_that_come_a_period_late_are_left_out_and_counted() -> None:
    time = Time(until_s=1.0)

    def stand_still(now_s: float) -> None:
        if now_s == pytest.approx(0.2):
            time.now_s += 0.5  # the machine was stopped, or the driver took its time

    sampler = Counter(stand_still)
    told = watch(sampler, time)
    assert len(sampler.asked_s) == 25
    assert sampler.asked_s[10:12] == pytest.approx([0.2, 0.72])
    assert told.missed_share == pytest.approx(25 / 50)


def test_a_jump_of_the_wall_clock_leaves_intervals_alone() -> None:
    time = Time(until_s=0.2)

    def jump(now_s: float) -> None:
        time.jump_ns = -3_600_000_000_000 if now_s > 0.1 else 0

    told = watch(Counter(jump), time)
    steps = [after.elapsed_s - before.elapsed_s for before, after in zip(told.samples, told.samples[1:], strict=False)]
    assert steps == pytest.approx([0.02] * len(steps))


def costing(time: Time, cost_s: float) -> Counter:
    def spend(now_s: float) -> None:
        time.used_s += cost_s

    return Counter(spend)


def test_the_cost_of_sampling_is_reported() -> None:
    time = Time()
    assert watch(costing(time, 20e-6), time).cpu_share == pytest.approx(0.001, rel=0.05)


def test_sampling_that_is_dear_is_done_less_often() -> None:
    time = Time(until_s=10.0)
    sampler = costing(time, 1e-3)
    told = watch(sampler, time)
    # 1 % of ten seconds, and the credit of ten samples with which it begins.
    assert len(sampler.asked_s) == pytest.approx(110, abs=2)
    assert told.cpu_share == pytest.approx(0.011, rel=0.05)
    assert told.missed_share == pytest.approx(1 - 110 / 500, abs=0.02)


def test_a_sampler_that_fails_leaves_a_note_and_the_others() -> None:
    def fail(now_s: float) -> None:
        raise RuntimeError("the binding broke")

    sound = Counter()
    monitor = Monitor([Counter(fail), sound], 0.02, clock=Time().clock())
    monitor.start(1)
    for thread in monitor._threads:
        thread.join()
    told = monitor.stop()
    assert told.notes == ("the sensors failed: RuntimeError: the binding broke",)
    assert len(told.samples) == len(sound.asked_s) == 50


def test_a_sampler_with_nothing_to_sample_is_not_asked() -> None:
    class Nothing(Counter):
        def open(self, process: int) -> bool:
            return False

    sampler = Nothing()
    told = watch(sampler, Time())
    assert (sampler.asked_s, told.samples, told.missed_share) == ([], (), None)


def test_a_driver_that_never_answers_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bottleneck.harness.sensors._PATIENCE_S", 0.0)
    asked, answered = threading.Event(), threading.Event()

    def hang(now_s: float) -> None:
        asked.set()
        answered.wait()

    monitor = Monitor([Counter(hang)], 0.02)
    monitor.start(1)
    asked.wait()
    told = monitor.stop()
    assert told.notes == ("a driver did not answer: the sensors were left alone",)
    answered.set()
    monitor._threads[0].join()


def test_a_sampler_is_asked_no_more_often_than_it_has_news() -> None:
    sampler = Counter()
    sampler.shortest_beat_s = 0.1
    watch(sampler, Time(until_s=1.0))
    assert len(sampler.asked_s) == 10


@pytest.mark.parametrize("period_s", [0.001, 0.02, 0.3])
def test_the_next_tick_lies_after_now_on_the_grid(period_s: float) -> None:
    beat, now_s = Beat(period_s), 0.0
    for late_s in (0.0, 0.4 * period_s, 3.7 * period_s, 0.0):
        now_s += late_s
        tick_s = beat.next_s(now_s)
        assert now_s < tick_s + 1e-9 <= now_s + period_s + 2e-9
        assert tick_s / period_s == pytest.approx(round(tick_s / period_s))
        now_s = tick_s
    assert beat.missed == 3


def at(tick: int, sensor: str = "GPU-0") -> Sample:
    return Sample(NOON_NS + 20_000_000 * tick, 0.02 * tick, sensor, {"sm_clock_mhz": float(tick)})


def test_a_log_that_is_full_drops_every_second_old_sample_of_each_sensor() -> None:
    log = SensorLog(most=2000)
    for tick in range(1001):
        log.add(at(tick))
        log.add(at(tick, "host"))
    for sensor in ("GPU-0", "host"):
        kept = [sample.values["sm_clock_mhz"] for sample in log.samples() if sample.sensor == sensor]
        assert kept[:3] == [0.0, 2.0, 4.0]
        assert kept[-500:] == [float(tick) for tick in range(501, 1001)]  # the newest ten seconds


def test_samples_of_measured_steps_are_never_dropped() -> None:
    span = (NOON_NS + 20_000_000 * 3000, NOON_NS + 20_000_000 * 3500)
    log = SensorLog(lambda: [span], most=2000)
    for tick in range(30_000):
        log.add(at(tick))
    kept = {sample.values["sm_clock_mhz"] for sample in log.samples()}
    assert kept >= {float(tick) for tick in range(3000, 3501)}


def test_a_log_stays_small_however_long_the_run() -> None:
    log = SensorLog(most=2000)
    for tick in range(100_000):
        log.add(at(tick))
    assert len(log.samples()) <= 2001
    assert log.samples()[0].elapsed_s < 100 and log.samples()[-1].elapsed_s == pytest.approx(1999.98)


def test_a_recorded_log_replays_as_a_sensor(tmp_path: Path) -> None:
    original = watch(Counter(), Time())
    write_samples(tmp_path, original.samples)
    time = Time()
    monitor = Monitor([ReplaySampler(tmp_path)], 0.02, clock=time.clock())
    monitor.start(1)
    for thread in monitor._threads:
        thread.join()
    replayed = monitor.stop()
    assert [sample.values for sample in replayed.samples] == [sample.values for sample in original.samples]
    assert [sample.elapsed_s for sample in replayed.samples] == pytest.approx([s.elapsed_s for s in original.samples])


def test_a_slow_replay_tells_the_newest_value_of_each_column(tmp_path: Path) -> None:
    write_samples(tmp_path, [at(0), at(1), Sample(at(2).unix_ns, 0.04, "GPU-0", {"power_w": 300.0}), at(9)])
    sampler = ReplaySampler(tmp_path)
    assert sampler.open(1)
    assert sampler.sample(0.1) == [("GPU-0", {"sm_clock_mhz": 1.0, "power_w": 300.0})]
    assert sampler.sample(0.1) == []


def test_an_empty_folder_replays_nothing(tmp_path: Path) -> None:
    assert not ReplaySampler(tmp_path).open(1)
