"""Work that the host does itself: random numbers, masks, counters."""

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.gains import predict_gain
from bottleneck.predict.host_work import host_work_us
from bottleneck.predict.price import PricedWork, predict_step, price_work
from bottleneck.schema.predicted_step import Backend
from bottleneck.schema.records import replace
from bottleneck.schema.step_calls import StepCall, StepCalls
from tests.predict.steps import call, step, use

A100 = device_by_name("A100")
USUAL = 14.58


def drawing(
    *, on_host: bool, name: str = "normal_", numbers: int = 1 << 23, then: tuple[StepCall, ...] = ()
) -> StepCalls:
    draw = replace(call(name, [use(0, numbers)], use(0, numbers)), on_host=on_host, source="train.py:7")
    return step(draw, call("relu", [use(0, numbers)], use(1, numbers)), *then)


def priced(calls: StepCalls, backend: Backend = "eager", pace: float | None = None) -> PricedWork:
    work = price_work(calls, A100, backend, pace)
    assert not isinstance(work, str)
    return work


def test_numbers_drawn_on_the_host_take_nanoseconds_each_and_no_kernel() -> None:
    there, here = predict_step(drawing(on_host=False), A100), predict_step(drawing(on_host=True), A100)
    assert there.us is not None and here.us is not None and here.by_host is not None
    assert here.launches == there.launches - 1
    assert 3e-3 * (1 << 23) < here.us < 10e-3 * (1 << 23) and here.us > 100 * there.us
    assert here.bound == "overhead" and here.by_host.high > 2.5 * here.by_host.low
    assert any("the host itself works about" in reason and "train.py:7" in reason for reason in here.reasons)
    assert not any("the host itself" in reason for reason in there.reasons)


def test_work_of_the_host_grows_with_its_numbers_and_with_its_pace() -> None:
    (one,) = host_work_us(drawing(on_host=True, numbers=1 << 20)).values()
    (two,) = host_work_us(drawing(on_host=True, numbers=1 << 21)).values()
    assert two == pytest.approx(2 * one)
    slow, quick = (priced(drawing(on_host=True), pace=pace).us() for pace in (2 * USUAL, USUAL))
    assert slow == pytest.approx(2 * quick, rel=0.01)


def test_device_works_on_the_step_before_meanwhile_unless_the_host_waits_for_it() -> None:
    long = tuple(call("relu", [use(2 + at, 1 << 30)], use(3 + at, 1 << 30)) for at in range(6))
    read = replace(call("_local_scalar_dense", [use(3, 1)], use(3, 1)), waits=True)
    apart, together = (priced(drawing(on_host=True, then=then)) for then in ((*long, read), long))
    work_us = sum(together.own_work) * together.pace
    assert apart.own_work[0] == together.own_work[1] > 0
    assert together.us() == pytest.approx(max(work_us, together.busy_us), rel=0.15)
    assert apart.us() == pytest.approx(work_us + apart.busy_us, rel=0.15)


def test_nothing_gained_on_the_device_shows_behind_work_of_the_host() -> None:
    more = tuple(call("relu", [use(at, 1 << 23)], use(at + 1, 1 << 23)) for at in range(1, 9))
    hidden, shown = (drawing(on_host=is_on_host, then=more) for is_on_host in (True, False))
    gain = predict_gain(priced(hidden), priced(hidden, "compile"))
    assert gain.speedup == pytest.approx(1.0, abs=0.01) and gain.interval.high < 1.05
    assert predict_gain(priced(shown), priced(shown, "compile")).speedup > 1.5


def test_counters_of_an_optimizer_are_raised_one_by_one() -> None:
    counters = [use(at) for at in range(200)]
    raised = replace(call("_foreach_add_", counters, use(0)), outputs=tuple(counters), phase="optimizer", on_host=True)
    (us,) = host_work_us(step(raised)).values()
    assert us == pytest.approx(200 * 0.38)
