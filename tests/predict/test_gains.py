"""Predicted speedups: errors that both steps share cancel, and what differs widens the interval."""

import math

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.gains import PredictedGain, half_width, predict_gain
from bottleneck.predict.price import PricedWork, price_work
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCalls
from tests.predict.steps import call, in_dtype, step, use

A100 = device_by_name("A100")


def stream(ops: int, size: int = 1 << 26) -> StepCalls:
    return step(*(call("relu", [use(at, size)], use(at + 1, size)) for at in range(ops)))


def square(size: int) -> StepCalls:
    return step(call("mm", [use(0, size, size), use(1, size, size)], use(2, size, size)))


def priced(calls: StepCalls, backend: Backend = "eager") -> PricedWork:
    work = price_work(calls, A100, backend)
    assert not isinstance(work, str)
    return work


def width(gain: PredictedGain) -> float:
    return gain.interval.high / gain.interval.low


def test_a_change_that_changes_nothing_gains_nothing_for_certain() -> None:
    gain = predict_gain(priced(stream(4)), priced(stream(4)))
    assert (gain.speedup, gain.interval.low, gain.interval.high) == (1.0, 1.0, 1.0)


def test_a_gain_there_and_back_is_none() -> None:
    more, less = priced(stream(4)), priced(stream(3))
    there, back = predict_gain(more, less), predict_gain(less, more)
    assert there.speedup * back.speedup == pytest.approx(1.0)
    assert there.interval.low * back.interval.high == pytest.approx(1.0)
    assert there.interval.low < there.speedup < there.interval.high


def test_the_less_of_a_step_changes_the_narrower_is_the_interval() -> None:
    small, large = (predict_gain(priced(stream(20)), priced(stream(20 - removed))) for removed in (1, 15))
    assert 1.0 < small.speedup < large.speedup and width(small) < width(large)


def test_another_way_to_run_a_step_may_change_kernels_that_seem_to_stay_but_little() -> None:
    gain = predict_gain(priced(square(8192)), priced(square(8192), "compile"))
    # Of KernelBench's pairs whose kernels stay, eight of ten changed by less than 5 %.
    assert gain.speedup == pytest.approx(1.0, abs=0.05) and 1.1 < width(gain) < 1.3


def test_errors_of_products_of_other_shapes_add_up_to_less_than_those_of_one() -> None:
    one, several = ([square(8192)] * 4, [square(size) for size in (7168, 7680, 8192, 8704)])
    widths = []
    for squares in (one, several):
        before = in_dtype(step(*(call for each in squares for call in each.calls)), "c10::BFloat16")
        widths.append(width(predict_gain(priced(before), priced(stream(1)))))
    assert widths[0] > widths[1]


def test_products_on_tensor_cores_are_less_certain_than_on_lanes() -> None:
    lanes = predict_gain(priced(square(8192)), priced(square(6144)))
    tensor = predict_gain(*(priced(in_dtype(square(size), "c10::BFloat16")) for size in (8192, 6144)))
    assert width(tensor) > width(lanes)


def test_a_host_of_unknown_pace_widens_what_the_host_decides() -> None:
    before, after = priced(stream(50, 1 << 8)), priced(stream(50, 1 << 8), "reduce-overhead")
    known, unknown = half_width(before, after), half_width(before, after, pace=2.0)
    assert sum(unknown) > sum(known)


def test_a_gain_is_per_sample() -> None:
    gain = predict_gain(priced(stream(4)), priced(stream(4)), samples=2.0)
    assert gain.speedup == pytest.approx(2.0) and math.isclose(gain.interval.low, 2.0)


def test_a_type_with_an_engine_of_its_own_is_another_kernel() -> None:
    plain = square(8192)
    allowed = replace(plain, settings=replace(plain.settings, matmul_allow_tf32=True))
    gain = predict_gain(priced(plain), priced(allowed))
    assert gain.speedup > 3 and width(gain) > 1.3


def test_a_captured_graph_replays_the_very_kernels_of_eager_mode() -> None:
    captured, compiled = (
        predict_gain(priced(square(8192)), priced(square(8192), way)) for way in ("captured", "compile")
    )
    assert captured.speedup == pytest.approx(1.0, abs=0.01)
    assert 1.02 < width(captured) < 1.04 < width(compiled)
