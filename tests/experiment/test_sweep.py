"""Sweeps: single points, the sum of their repeats, their order, and turns that remove what slows whole rounds."""

import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.errors import TraceError
from bottleneck.experiment import sweep
from bottleneck.experiment.record_once import Ceilings
from bottleneck.experiment.sweep import (
    Configuration,
    MeasuredPoint,
    Series,
    SweepPlan,
    SweepProgress,
    TurnTimings,
    combine,
    describe,
    environment_of,
    level,
    measure_point,
    run_sweep,
    take_turns,
    with_work,
)
from bottleneck.harness.messages import Program, RecordOptions
from bottleneck.schema.analysis import Interval
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace as with_values
from bottleneck.schema.trials import Point, Roof, Sweep
from tests.report.samples import cpu

EAGER = Series("eager")
# A workload that never imports torch is timed, not profiled, and its process starts at once.
PROGRAM = """
import os, sys

def workload(n=1, batch_size=1, how="well"):
    print("a word of the program's own")
    if how == "badly":
        raise ValueError(f"cannot do {n}\\nas it is")
    if how == "leaves":
        sys.exit("no, thank you")
    if how == "is killed":
        os.kill(os.getpid(), 9)
    if how == "says nothing":
        sys.exit(3)
    return lambda: sum(range(200 * n))
"""


def sizes(*numbers: int) -> tuple[Configuration, ...]:
    return tuple(Configuration({"batch_size": number}, EAGER) for number in numbers)


def no_ceilings() -> Ceilings:
    """This machine without measured ceilings."""
    return Ceilings(lambda notes: None)


@pytest.fixture
def plan(tmp_path: Path) -> SweepPlan:
    (tmp_path / "program.py").write_text(PROGRAM)
    options = RecordOptions(steps=1, warmup=0, batch_test=False, option_costs=False)
    return SweepPlan(Program(str(tmp_path / "program.py")), options, (), ())


def measured(tmp_path: Path, plan: SweepPlan, **settings: str) -> MeasuredPoint:
    (tmp_path / "out").mkdir()
    own = replace(plan, program=replace(plan.program, settings=tuple(settings.items())))
    return measure_point(own, Configuration({"batch_size": 8}, EAGER), tmp_path / "out", no_ceilings())


def test_the_work_of_a_step_is_unknown_where_most_of_it_has_no_cost() -> None:
    """A network in one call of ExecuTorch was said to run at 0.00 FLOP/s."""
    seen, point = cpu(), Point({}, "executorch", Timing(10.0, 9.0, 11.0, 5))
    assert with_work(point, seen).flops == seen.totals.flops is not None
    hidden = with_values(seen, coverage=with_values(seen.coverage, modelled_share=0.1))
    mine = with_work(point, hidden)
    assert (mine.flops, mine.flops_per_s, mine.bytes_low, mine.bytes_per_s) == (None, None, None, None)
    assert mine.bound == seen.verdict.bound


@pytest.mark.process
def test_a_point_has_the_unprofiled_step_and_its_throughput(
    plan: SweepPlan, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = measured(tmp_path, plan)
    assert done.point.step_us is not None and done.point.step_us.n >= 5
    assert done.point.samples_per_s == pytest.approx(8e6 / done.point.step_us.median)
    assert done.point.setup_s is not None and done.point.repeats == 1
    assert done.point.reason is None
    assert any("never imported torch" in warning for warning in done.warnings)
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in tmp_path.glob("out/*")) == ["recording.json"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("badly", "ValueError: cannot do 1"),
        ("leaves", "no, thank you"),
        ("says nothing", "the program ended with status 3, and nothing was measured"),
    ],
)
def test_a_point_that_fails_has_what_the_program_said_as_its_reason(
    plan: SweepPlan, tmp_path: Path, how: str, reason: str
) -> None:
    point = measured(tmp_path, plan, how=how).point
    assert (point.step_us, point.reason, point.values) == (None, reason, {"batch_size": 8})


@pytest.mark.process
def test_a_point_that_is_killed_says_so(plan: SweepPlan, tmp_path: Path) -> None:
    point = measured(tmp_path, plan, how="is killed").point
    assert point.step_us is None and point.reason is not None
    assert point.reason.startswith("the program ended by signal 9 (SIGKILL)")


@pytest.mark.process
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TraceError("the trace is no trace", fix="record it again"), "the trace is no trace"),
        (OSError(28, "No space left on device"), "the recording could not be written: No space left on device"),
    ],
)
def test_what_cannot_be_analysed_is_a_point_with_a_reason(
    plan: SweepPlan, tmp_path: Path, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("bottleneck.experiment.record_once.finish_recording", fail)
    point = measured(tmp_path, plan).point
    assert (point.step_us, point.reason) == (None, reason)


def test_threads_are_told_to_openmp_before_the_process_starts() -> None:
    assert environment_of(Configuration({}, Series("1 thread", threads=1)))["OMP_NUM_THREADS"] == "1"
    assert environment_of(Configuration({}, EAGER)) == dict(os.environ)


def timed(us: float, spread: float = 0.0, **more: object) -> Point:
    timing = Timing(us, us - spread, us + spread, 10)
    return Point({"batch_size": 4}, "eager", timing, samples_per_s=4e6 / us, repeats=1, **more)  # type: ignore[arg-type]


def test_repeats_become_their_median_and_an_interval_around_all_of_them() -> None:
    one = combine([timed(30.0), timed(10.0, 1.0), timed(20.0, 15.0)])
    assert one.step_us == Timing(20.0, 5.0, 35.0, 30)
    assert one.repeats == 3
    assert one.samples_per_s == pytest.approx(4e6 / 20.0)


def test_rates_follow_the_median_of_an_even_number_of_repeats() -> None:
    first = timed(10.0, flops=100.0, flops_per_s=100.0 / 10.0, bytes_per_s=Interval(1.0, 2.0))
    one = combine([first, timed(30.0)])
    assert one.step_us is not None and one.step_us.median == 20.0
    assert one.samples_per_s == pytest.approx(4e6 / 20.0)
    assert one.flops_per_s == pytest.approx(100.0 / 20.0)
    assert one.bytes_per_s == Interval(0.5, 1.0)


def test_a_repeat_that_failed_counts_only_if_all_did() -> None:
    bad = Point({"batch_size": 4}, "eager", reason="it failed")
    assert combine([bad, timed(10.0)]).repeats == 1
    assert combine([bad, bad]).reason == "it failed"


class Order:
    """Stands in for measuring: notes which batch sizes were asked for, in order."""

    def __init__(self) -> None:
        self.sizes: list[object] = []

    def __call__(self, plan: SweepPlan, point: Configuration, folder: Path, _: Ceilings) -> MeasuredPoint:
        assert folder.is_dir()
        self.sizes.append(point.values["batch_size"])
        return MeasuredPoint(timed(10.0), Roof("eager", "cpu", None, None, None), ("a warning",))


def swept(plan: SweepPlan, order: Order, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SweepProgress:
    monkeypatch.setattr(sweep, "measure_point", order)
    program = replace(plan.program, settings=(("how", "well"),))
    progress = SweepProgress(replace(plan, program=program, configurations=sizes(*range(1, 9)), repeats=2))
    folder = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    folder.mkdir()

    def make(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    run_sweep(progress, no_ceilings(), make, lambda text: None)
    return progress


def test_everything_is_measured_once_before_anything_again_in_the_same_random_order_every_time(
    plan: SweepPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = Order(), Order()
    swept(plan, first, monkeypatch, tmp_path)
    swept(plan, second, monkeypatch, tmp_path)
    assert first.sizes == second.sizes
    assert sorted(first.sizes[:8]) == sorted(first.sizes[8:]) == list(range(1, 9))  # type: ignore[type-var]
    assert list(range(1, 9)) not in (first.sizes[:8], first.sizes[8:])
    assert first.sizes[:8] != first.sizes[8:]


def test_the_sum_keeps_the_order_that_was_asked_for_and_each_warning_once(
    plan: SweepPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = swept(plan, Order(), monkeypatch, tmp_path).sum_up()
    assert len(result.points) == 8 and all(point.repeats == 2 for point in result.points)
    assert result.warnings == ("a warning",)
    assert len(result.roofs) == 1
    assert result.settings == {"how": "well"}


def test_what_was_not_measured_has_the_reason_that_is_given(plan: SweepPlan) -> None:
    progress = SweepProgress(replace(plan, configurations=sizes(1, 2)), {1: [MeasuredPoint(timed(10.0))]})
    first, second = progress.sum_up("interrupted").points
    assert (first.reason, first.values) == ("interrupted", {"batch_size": 1})
    assert second.reason is None


def test_a_point_is_described_by_its_values_and_series() -> None:
    assert describe(Configuration({"batch_size": 4, "hidden": 8}, EAGER)) == "batch_size=4, hidden=8, eager"


def in_turns(
    order: Callable[..., MeasuredPoint],
    turns: TurnTimings,
    plan: SweepPlan,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Sweep:
    """The sweep of eight points whose turns give this."""

    def take(_: Program, points: Mapping[int, Configuration], rounds: int, *more: object) -> TurnTimings:
        assert (sorted(points), rounds) == (list(range(8)), 60)
        return turns

    monkeypatch.setattr(sweep, "measure_point", order)
    monkeypatch.setattr(sweep, "take_turns", take)
    progress = SweepProgress(replace(plan, configurations=sizes(*range(1, 9)), turns=60))
    run_sweep(progress, no_ceilings(), lambda name: tmp_path / name, lambda text: None)
    return progress.sum_up()


def test_turns_give_points_their_time_and_rates_and_the_recording_the_rest(
    plan: SweepPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns = TurnTimings({0: Timing(20.0, 19.0, 21.0, 60)}, {3: "its process was killed by SIGKILL"})
    found = in_turns(
        lambda *_: MeasuredPoint(timed(10.0, flops=7.0, flops_per_s=7e5)), turns, plan, monkeypatch, tmp_path
    )
    first, second = found.points[:2]
    assert (first.step_us, second.step_us) == (Timing(20.0, 19.0, 21.0, 60), timed(10.0).step_us)
    assert (first.flops, first.flops_per_s, first.samples_per_s) == (7.0, 3.5e5, 2e5)
    assert second.flops_per_s == 7e5
    assert found.how == "60 rounds of turns"
    assert found.warnings == ("batch_size=4, eager took no turns: its process was killed by SIGKILL",)


def test_processes_that_would_not_fit_into_memory_together_take_no_turns(
    plan: SweepPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bottleneck.experiment.record_once.available_bytes", lambda: 10**9)
    found = in_turns(
        lambda *_: MeasuredPoint(timed(10.0, peak_memory_bytes=200_000_000)), TurnTimings(), plan, monkeypatch, tmp_path
    )
    assert all(point.step_us == timed(10.0).step_us for point in found.points)
    assert found.how == ""
    assert "together need 1.60 GB, and 1.00 GB are free" in found.warnings[0]


USUAL_US = {0: 600.0, 1: 640.0, 2: 1200.0, 3: 9000.0, 4: 20_000.0}


def rounds_of(seed: int, rounds: int = 40) -> dict[int, list[float]]:
    """Turns on a machine that is up to twice as slow for whole rounds, with 2 % of scatter for each turn."""
    draw = random.Random(seed)
    slower = [draw.choice((1.0, 1.3, 2.0)) for _ in range(rounds)]
    return {index: [us * each * draw.gauss(1, 0.02) for each in slower] for index, us in USUAL_US.items()}


@given(st.integers(0, 10_000))
def test_what_slows_a_whole_round_makes_no_difference_between_places(seed: int) -> None:
    found = level(rounds_of(seed))
    for index, us in USUAL_US.items():
        assert found[index].median / found[0].median == pytest.approx(us / USUAL_US[0], rel=0.03)


@given(st.integers(0, 10_000), st.floats(0.1, 10.0))
def test_a_slower_machine_scales_all_places(seed: int, factor: float) -> None:
    taken = rounds_of(seed)
    usual, slow = level(taken), level({index: [factor * us for us in times] for index, times in taken.items()})
    for index in taken:
        assert slow[index].median == pytest.approx(factor * usual[index].median)


@given(st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_order_of_rounds_and_places_changes_nothing(seed: int, luck: random.Random) -> None:
    taken = rounds_of(seed)
    order, places = list(range(40)), list(taken)
    luck.shuffle(order)
    luck.shuffle(places)
    other = level({index: [taken[index][number] for number in order] for index in places})
    for index, timing in level(taken).items():
        assert other[index].median == pytest.approx(timing.median, rel=1e-9)


def test_one_disturbed_turn_is_not_taken_for_a_slow_round() -> None:
    taken = {index: [us] * 9 for index, us in USUAL_US.items()}
    taken[2][4] *= 50
    found = level(taken)
    assert {index: timing.median for index, timing in found.items()} == pytest.approx(USUAL_US)
    assert all(math.isclose(timing.low, timing.high) for index, timing in found.items() if index != 2)


def test_a_process_that_cannot_be_started_leaves_the_recorded_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(sweep, "Worker", refuse)
    point = Configuration({"n": 1}, Series("eager"))
    found = take_turns(Program("step.py"), {3: point}, 4, tmp_path, lambda text: None)
    assert found.timings == {}
    assert found.reasons == {3: "no process could be started: [Errno 11] Resource temporarily unavailable"}


def test_without_places_there_is_nothing_to_level() -> None:
    assert level({}) == {}
