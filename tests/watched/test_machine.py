"""What the machine did to a watched run: a clock that fell, and processors that others had."""

from typing import Any

import numpy as np
import pytest

from bottleneck.schema.telemetry import HOST, Sample
from bottleneck.schema.watch_log import WatchHeader
from bottleneck.watched.machine import describe_busy_machine, find_clock_falls, others_meanwhile
from bottleneck.watched.read_log import _DTYPE, WatchedRank

STEPS, ZERO_NS, GPU = 1_000, 10**18, "GPU-1"


def rank(us: Any) -> WatchedRank:
    """A run of 100 s."""
    records = np.zeros(STEPS, dtype=_DTYPE)
    records["count"], records["us"] = 1, us
    records["first"] = np.arange(1, STEPS + 1)
    records["end_s"] = 0.1 * records["first"]
    return WatchedRank(WatchHeader(0, 1, ZERO_NS, "optimizer", "optimizer.step of SGD"), records, ())


def samples(clocks_mhz: Any, **values: float) -> list[Sample]:
    """One sample a second."""
    return [
        Sample(ZERO_NS + int(1e9 * second), float(second), GPU, {"sm_clock_mhz": float(clock), **values})
        for second, clock in enumerate(clocks_mhz)
    ]


FALLS = np.where(np.arange(100) < 50, 1_980.0, 1_200.0)
SLOWER = np.where(np.arange(STEPS) < 500, 100_000.0, 150_000.0)


def test_a_clock_that_falls_is_named_with_its_steps_and_reason() -> None:
    (fall,) = find_clock_falls(rank(SLOWER), samples(FALLS, throttle_bits=0x4, utilization=1.0))
    assert fall.kind == "clock"
    assert "fell from 1.98 to 1.20 GHz from step 500 on (power cap)" in fall.what and "50.0 % longer" in fall.what
    assert "power limit" in fall.advice


def test_a_clock_that_comes_back_is_named_with_where_it_ends() -> None:
    clocks = np.where((np.arange(100) >= 20) & (np.arange(100) < 50), 1_200.0, 1_980.0)
    us = np.where((np.arange(STEPS) >= 200) & (np.arange(STEPS) < 490), 150_000.0, 100_000.0)
    (fall,) = find_clock_falls(rank(us), samples(clocks, throttle_bits=0x20))
    assert "in steps 200 to 490 (thermal slowdown)" in fall.what and "cooling" in fall.advice


@pytest.mark.parametrize(
    ("us", "readings"),
    [
        pytest.param(100_000.0, samples(FALLS), id="no step was slower"),
        pytest.param(SLOWER, samples(FALLS, utilization=0.0), id="the device rested"),
        pytest.param(SLOWER, samples(np.full(100, 1_980.0)), id="the clock stayed"),
        pytest.param(SLOWER, samples(FALLS)[45:58], id="too few samples"),
        pytest.param(SLOWER, [], id="no sensor"),
    ],
)
def test_nothing_is_said_of_a_clock(us: Any, readings: list[Sample]) -> None:
    assert find_clock_falls(rank(us), readings) == ()


def test_processors_of_others_are_those_of_the_stretch() -> None:
    busy_s = np.cumsum(np.where(np.arange(100) < 50, 1.0, 3.0))
    host = [
        Sample(ZERO_NS + int(1e9 * second), float(second), HOST, {"busy_cpu_s": busy, "process_cpu_s": float(second)})
        for second, busy in enumerate(busy_s)
    ]
    assert others_meanwhile(rank(SLOWER), host, 60.0, 90.0) == pytest.approx(2.0)
    assert others_meanwhile(rank(SLOWER), host, 10.0, 40.0) == pytest.approx(0.0)
    assert others_meanwhile(rank(SLOWER), host, 60.0, 61.0) is None
    assert others_meanwhile(rank(SLOWER), [], 60.0, 90.0) is None


def host_readings(busy: float, own: float, processors: float = 2.0) -> list[Sample]:
    """A reading a second of a machine on which all programs, and the watched one, use so many processors."""
    rates = {"busy_cpu_s": busy, "process_cpu_s": own, "total_cpu_s": processors}
    return [
        Sample(ZERO_NS + int(1e9 * at), float(at), HOST, {name: rate * at for name, rate in rates.items()})
        for at in range(-5, 120)
    ]


def test_a_machine_that_others_kept_busy_is_told() -> None:
    told = describe_busy_machine(rank(SLOWER), host_readings(busy=2.0, own=0.5))
    assert told == (
        "other programs kept 1.5 of 2 processors busy while the steps ran, and the program got 0.50: "
        "step times may be too long"
    )


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param(host_readings(busy=2.0, own=1.9), id="the program itself"),
        pytest.param(host_readings(busy=1.5, own=0.5), id="room is left"),
        pytest.param([], id="nobody looked"),
        pytest.param(host_readings(busy=2.0, own=0.5)[:6], id="before the steps"),
    ],
)
def test_a_machine_with_room_is_not_said_to_be_busy(readings: list[Sample]) -> None:
    assert describe_busy_machine(rank(SLOWER), readings) is None
