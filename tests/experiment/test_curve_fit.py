import itertools
import random
from collections.abc import Callable

import pytest

from bottleneck.experiment.curve_fit import fit_series, quantile
from bottleneck.schema.measurements import Timing
from bottleneck.schema.trials import Fit, Point, Roof

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def point(
    batch: int | str, us: float | None, *, spread: float = 0.0, peak: int | None = None, series: str = "eager"
) -> Point:
    timing = None if us is None else Timing(us, us * (1 - spread), us * (1 + spread), 20)
    return Point(
        {"batch_size": batch}, series, timing, peak_memory_bytes=peak, reason="it failed" if us is None else None
    )


def points_of(law: Callable[[int], float], batches: tuple[int, ...] = BATCHES, **more: object) -> list[Point]:
    return [point(batch, law(batch), **more) for batch in batches]  # type: ignore[arg-type]


def fit_of(points: list[Point], *roofs: Roof) -> Fit:
    (fit,) = fit_series(points, ["batch_size"], roofs)
    return fit


def straight(batch: int) -> float:
    return 100.0 + 7.0 * batch


def test_points_on_a_line_give_its_coefficients() -> None:
    fit = fit_of(points_of(straight))
    assert (fit.fixed_mid_us, fit.each_mid_us) == pytest.approx((100.0, 7.0))
    assert fit.model == "sum" and fit.points == len(BATCHES)
    assert fit.fixed_us is not None and fit.fixed_us.low < 100.0 < fit.fixed_us.high
    assert fit.each_us is not None and fit.each_us.low < 7.0 < fit.each_us.high
    assert fit.knee == pytest.approx(100 / 7)
    assert fit.residual_share == pytest.approx(0.0, abs=1e-9)
    assert fit.step_us(1000) == pytest.approx(7100.0)


def test_the_order_of_the_points_changes_nothing() -> None:
    points = [point(batch, straight(batch) * factor) for batch, factor in zip(BATCHES, [1, 1.1, 0.9] * 3, strict=False)]
    shuffled = random.Random(1).sample(points, len(points))
    assert fit_of(points) == fit_of(shuffled)


@pytest.mark.parametrize("factor", [1e-3, 10.0, 1e6])
def test_times_that_are_scaled_scale_the_coefficients_and_leave_the_knee(factor: float) -> None:
    noisy = [straight(batch) * (1 + 0.05 * (-1) ** index) for index, batch in enumerate(BATCHES)]
    once = fit_of([point(batch, us) for batch, us in zip(BATCHES, noisy, strict=True)])
    scaled = fit_of([point(batch, us * factor) for batch, us in zip(BATCHES, noisy, strict=True)])
    assert once.fixed_us is not None and scaled.fixed_us is not None
    assert scaled.fixed_us.high == pytest.approx(once.fixed_us.high * factor)
    assert scaled.each_mid_us == pytest.approx((once.each_mid_us or 0.0) * factor)
    assert scaled.knee == pytest.approx(once.knee)


def test_a_parameter_in_another_unit_scales_the_knee() -> None:
    fit = fit_of([point(1000 * batch, straight(batch)) for batch in BATCHES])
    assert fit.knee == pytest.approx(1000 * 100 / 7)


def test_noise_leaves_the_truth_inside_the_intervals_as_often_as_they_promise() -> None:
    inside, draw = 0, random.Random(3)
    for _ in range(200):
        fit = fit_of([point(batch, straight(batch) * draw.gauss(1.0, 0.04), spread=0.01) for batch in BATCHES])
        assert fit.fixed_us is not None
        inside += fit.fixed_us.low <= 100.0 <= fit.fixed_us.high
    assert inside >= 180


def test_one_disturbed_point_moves_the_line_little() -> None:
    points = [point(batch, straight(batch) * (1.8 if batch == 16 else 1.0)) for batch in BATCHES]
    fit = fit_of(points)
    assert fit.step_us(64) == pytest.approx(straight(64), rel=0.03)
    assert fit.residual_share == pytest.approx(0.0, abs=0.01) and fit.apart == 16
    assert fit.points == len(BATCHES)


def test_points_that_lie_on_no_line_have_none() -> None:
    us = (900.0, 100.0, 2000.0, 300.0)
    fit = fit_of([point(batch, time) for batch, time in zip(BATCHES[:4], us, strict=True)])
    assert fit.fixed_us is fit.residual_share is fit.apart is None
    assert fit.reason is not None and fit.reason.startswith("no line describes the points: they lie up to ")
    assert fit.knee_reason == fit.reason


def test_a_batch_that_was_left_out_is_predicted() -> None:
    for left_out in BATCHES[1:-1]:
        fit = fit_of([each for each in points_of(straight) if each.values["batch_size"] != left_out])
        assert fit.step_us(left_out) == pytest.approx(straight(left_out))


def test_parts_that_overlap_are_told_from_parts_in_a_row() -> None:
    fit = fit_of(points_of(lambda batch: max(100.0, 10.0 * batch)))
    assert fit.model == "max"
    assert (fit.fixed_mid_us, fit.each_mid_us, fit.knee) == pytest.approx((100.0, 10.0, 10.0))
    assert fit.step_us(4) == pytest.approx(100.0) and fit.step_us(40) == pytest.approx(400.0)


def test_beyond_a_cliff_the_line_holds_for_the_longer_side() -> None:
    fit = fit_of(points_of(lambda batch: 100.0 + (2.0 if batch <= 32 else 20.0) * batch))
    assert fit.over is not None and (fit.over.low, fit.over.high) == (1, 32)
    assert fit.each_mid_us == pytest.approx(2.0)
    assert fit.points == 6


def test_parts_that_overlap_are_found_before_a_cliff_and_past_a_disturbed_point() -> None:
    # Measured with the intensity experiment: long chains of multiplications find too little to do meanwhile.
    def law(repeat: int) -> float:
        return max(7400.0, (360.0 if repeat <= 128 else 510.0) * repeat)

    repeats = (*BATCHES, 256)
    fit = fit_of([point(repeat, law(repeat) * (1.3 if repeat == 8 else 1.0)) for repeat in repeats])
    assert fit.model == "max" and fit.over is not None
    assert (fit.over.low, fit.over.high) == (1, 128)
    assert fit.knee == pytest.approx(7400 / 360, rel=0.05)


def test_an_end_that_leaves_the_line_is_left_out_of_it() -> None:
    # Measured with the intensity experiment on a busy machine: only the last point is off.
    us = {1: 16.0, 2: 16.0, 4: 16.0, 8: 16.5, 16: 16.4, 32: 26.6, 64: 48.2, 128: 102.0, 256: 267.0}
    fit = fit_of([point(repeat, 1000 * ms, spread=0.05) for repeat, ms in us.items()])
    assert fit.model == "max" and fit.over is not None
    assert (fit.over.low, fit.over.high) == (1, 128)
    assert fit.residual_share is not None and fit.residual_share < 0.1
    assert fit.knee == pytest.approx(20.9, rel=0.05)


def test_no_part_is_ever_negative() -> None:
    steep = fit_of(points_of(lambda batch: max(7.0 * batch - 3.0, 1.0), batches=(1, 2, 4, 8)))
    falling = fit_of(points_of(lambda batch: 100.0 - 0.1 * batch))
    assert steep.fixed_us is not None and steep.fixed_us.low >= 0 and (steep.fixed_mid_us or 0) >= 0
    assert falling.each_us is not None and falling.each_us.low >= 0 and falling.each_mid_us == 0


def test_a_step_that_does_not_grow_has_no_knee_and_says_so() -> None:
    fit = fit_of(points_of(lambda batch: 100.0))
    assert fit.knee is None
    assert fit.knee_reason == "the step does not grow with batch_size from 1 to 128"


def test_a_knee_whose_parts_may_be_nothing_is_not_reported() -> None:
    # Measured on examples/mlp.py: three points that no line meets, whose intervals both reach zero.
    bent = fit_of([point(16, 607.0), point(64, 986.0), point(256, 1456.0)])
    assert bent.each_us is not None and bent.each_us.low == 0
    assert bent.knee is None and bent.knee_reason is not None and "its interval reaches zero" in bent.knee_reason
    straight_enough = fit_of([point(16, 212.0), point(64, 548.0), point(256, 1892.0)])
    assert straight_enough.knee == pytest.approx(100 / 7)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_values_make_no_line(count: int) -> None:
    points = [*points_of(straight)[:count], point(256, None)]
    fit = fit_of(points)
    assert (fit.fixed_us, fit.each_us, fit.knee, fit.step_us(1)) == (None, None, None, None)
    assert fit.reason is not None and f"there are {count}" in fit.reason


ROOF = Roof("eager", "a machine", None, None, None, memory_bytes=10**9)


def test_the_largest_batch_fits_the_memory_exactly() -> None:
    points = [point(batch, straight(batch), peak=100_000_000 + 1_000_000 * batch) for batch in BATCHES]
    fit = fit_of(points, ROOF)
    assert (fit.largest, fit.largest_reason) == (900, None)


def test_a_larger_batch_that_failed_bounds_the_largest() -> None:
    points = [point(batch, straight(batch), peak=100_000_000 + 1_000_000 * batch) for batch in BATCHES]
    fit = fit_of([*points, point(512, None)], ROOF)
    assert fit.largest == 128
    assert fit.largest_reason == "batch_size=512 failed, though its memory should fit"


@pytest.mark.parametrize(
    ("peak", "roofs", "words"),
    [
        (None, (ROOF,), "it is known of 0"),
        (10**8, (), "is not known"),
        (10**8, (ROOF,), "hardly grows"),
    ],
)
def test_why_the_largest_batch_is_not_known(peak: int | None, roofs: tuple[Roof, ...], words: str) -> None:
    fit = fit_of([point(batch, straight(batch), peak=peak) for batch in BATCHES], *roofs)
    assert fit.largest is None and fit.largest_reason is not None and words in fit.largest_reason


def test_each_series_and_each_value_of_the_other_parameter_has_a_fit() -> None:
    points = [
        Point({"hidden": hidden, "batch_size": batch}, series, Timing(us, us, us, 5))
        for series, hidden, batch in itertools.product(("eager", "inductor"), (64, 128), BATCHES)
        if (us := hidden + batch)
    ]
    fits = fit_series(points, ["hidden", "batch_size"])
    assert [(fit.series, fit.others, round(fit.fixed_mid_us or 0)) for fit in fits] == [
        ("eager", {"hidden": 64}, 64),
        ("eager", {"hidden": 128}, 128),
        ("inductor", {"hidden": 64}, 64),
        ("inductor", {"hidden": 128}, 128),
    ]


def test_words_make_no_line() -> None:
    assert fit_series([point("small", 1.0), point("large", 2.0)], ["batch_size"]) == ()


@pytest.mark.parametrize(("freedom", "published"), [(1, 12.706), (10, 2.228), (11, 2.201), (30, 2.042), (1000, 1.962)])
def test_the_quantiles_are_those_of_the_tables(freedom: int, published: float) -> None:
    assert quantile(freedom) == pytest.approx(published, abs=3e-3)
