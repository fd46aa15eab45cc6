"""The self-test adds to a step exactly one more of a kind, or so much more time, and nothing unless asked."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bottleneck.harness.forms import (
    VARIABLE,
    Undisturbed,
    inference_step,
    more_ops,
    more_syncs,
    slower,
    step_with,
    training_step,
    with_injection,
)

torch: Any = pytest.importorskip("torch")


@pytest.fixture
def step() -> Callable[[], Any]:
    """A step with a few ops."""
    left = torch.ones(4, 4)

    def step() -> Any:
        return (left @ left).relu()

    return step


def ops(step: Callable[[], Any]) -> dict[str, int]:
    """The ops of one warm step, as the profiler counts them."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    return {event.key: event.count for event in profiler.key_averages() if event.key.startswith("aten::")}


def added(step: Callable[[], Any], longer: Callable[[], Any]) -> Mapping[str, int]:
    """The calls that the longer step makes beyond the other."""
    before, after = ops(step), ops(longer)
    return {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def test_one_more_op_is_one_more_op(step: Callable[[], Any]) -> None:
    assert added(step, more_ops(step, 1)) == {"aten::neg": 1}
    assert added(step, more_ops(step, 3)) == {"aten::neg": 3}


def test_one_more_sync_waits_for_one_value(step: Callable[[], Any]) -> None:
    assert added(step, more_syncs(step, 1)) == {"aten::item": 1, "aten::_local_scalar_dense": 1}


class Clock:
    """A clock that goes on by a microsecond whenever it is looked at."""

    now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1000
        return self.now_ns


@pytest.mark.parametrize(("share", "least_us", "expected_us"), [(0.5, 0.0, 500), (0.1, 0.0, 100), (0.1, 300.0, 300)])
def test_a_slower_step_goes_on_for_a_share_of_its_own_time(share: float, least_us: float, expected_us: int) -> None:
    clock = Clock()

    def step() -> str:
        clock.now_ns += 1_000_000
        return "result"

    longer = slower(step, share, least_us, clock)
    assert longer() == "result"
    before = clock.now_ns
    longer()
    spent_us = (clock.now_ns - before) / 1000 - 1000
    assert expected_us <= spent_us <= expected_us * 1.01 + 5


@pytest.mark.parametrize(
    ("told", "waited_ns"), [(b"900 5000 3\n", 5000), (b"", 0), (b"no numbers here", 0), (None, 0)], ids=repr
)
def test_waiting_for_a_processor_is_no_time_of_the_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: bytes | None, waited_ns: int
) -> None:
    file = tmp_path / "schedstat"
    if told is not None:
        file.write_bytes(told)
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened(file, flags))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 7000)
    clock = Undisturbed()
    assert [clock(), clock()] == [7000 - waited_ns] * 2


def test_the_result_and_what_the_step_raises_come_through(step: Callable[[], Any]) -> None:
    for longer in (more_ops(step, 1), more_syncs(step, 1), slower(step, 0.1, 0.0)):
        assert torch.equal(longer(), step())

    def fails() -> None:
        raise ValueError("theirs")

    for longer in (more_ops(fails, 1), more_syncs(fails, 1), slower(fails, 0.1, 0.0)):
        with pytest.raises(ValueError, match="theirs"):
            longer()


def test_nothing_is_added_unless_asked_for(step: Callable[[], Any]) -> None:
    for environment in ({}, {VARIABLE: ""}, {VARIABLE: "nothing"}):
        assert with_injection(step, environment) is step
    assert with_injection(step, {VARIABLE: "op:1"}) is not step


@pytest.mark.parametrize("told", ["op:2", "sync:1", "slowdown:0.06:0"])
def test_every_form_of_a_step_takes_it(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    module = ModuleType("program")
    left = torch.ones(4, 4)
    module.__dict__.update(workload=lambda: lambda: left @ left, model=torch.nn.Linear(4, 4), inputs=left)
    usual = [ops(step_with(module, {})), ops(inference_step(module)), ops(training_step(module))]
    monkeypatch.setenv(VARIABLE, told)
    longer = [ops(step_with(module, {})), ops(inference_step(module)), ops(training_step(module))]
    for before, after in zip(usual, longer, strict=True):
        assert sum(after.values()) > sum(before.values())
