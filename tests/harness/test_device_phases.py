"""Phases on the device are timed by events that are asked for later, and copies from the host are told apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bottleneck.harness.device_phases import PhaseEvents
from bottleneck.harness.step_log import StepLog
from bottleneck.harness.step_watch import StepWatch
from bottleneck.schema.watch_log import PHASES, DevicePhases
from bottleneck.watched.read_log import read_watched

DATA, FORWARD, BACKWARD, OPTIMIZER, REST = range(len(PHASES))


class Device:
    """A device whose clock the test sets, and which has passed what the test says."""

    def __init__(self) -> None:
        self.now_ms, self.passed_ms = 0.0, float("inf")
        self.events = 0
        self.is_capturing = self.is_broken = False

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def Event(self, *, enable_timing: bool) -> "Event":  # noqa: N802 - as torch calls it
        assert enable_timing
        if self.is_broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.events += 1
        return Event(self)


class Event:
    """An event as torch's; to wait for it is an error."""

    def __init__(self, device: Device) -> None:
        self._device, self.at_ms = device, 0.0

    def record(self) -> None:
        self.at_ms = self._device.now_ms

    def query(self) -> bool:
        return self.at_ms <= self._device.passed_ms

    def elapsed_time(self, later: "Event") -> float:
        assert self.query() and later.query(), "the device has not passed it"
        return later.at_ms - self.at_ms


class Above:
    """The class that has the methods, as TensorBase has them for Tensor."""

    def __init__(self, device: Device, *, is_cuda: bool = False) -> None:
        self.device, self.is_cuda = device, is_cuda

    @property
    def is_cpu(self) -> bool:
        return not self.is_cuda

    def to(self, *, is_cuda: bool = True) -> "Above":
        self.device.now_ms += 3.0
        return type(self)(self.device, is_cuda=is_cuda)

    def cuda(self) -> "Above":
        return self.to()

    def copy_(self, other: "Above") -> "Above":
        self.device.now_ms += 5.0
        return self


class Tensor(Above):
    """A tensor of which nothing is known but where it lies."""


def steps(events: PhaseEvents, device: Device, count: int, in_forward: Callable[[], object] = lambda: None) -> None:
    """Takes steps of 1, 10, 20, 4 and 2 ms for data, forward, backward, optimizer and the rest."""
    for _ in range(count):
        for phase, ms in ((DATA, 1.0), (FORWARD, 10.0), (BACKWARD, 20.0), (OPTIMIZER, 4.0), (REST, 2.0)):
            events.begin_phase(phase)
            device.now_ms += ms
            if phase == FORWARD:
                in_forward()
        events.begin_step(REST)


def test_phases_are_timed_in_one_step_of_some() -> None:
    device = Device()
    events = PhaseEvents(device, Tensor, every=4)
    steps(events, device, 13)
    assert events.result() == DevicePhases(3, (1e3, 10e3, 20e3, 4e3, 2e3), 0.0)
    # The beginning, five phases and the end of each.
    assert device.events == 3 * 7


def test_events_that_the_device_has_not_passed_are_asked_for_again_and_bounded() -> None:
    device = Device()
    device.passed_ms = -1.0
    events = PhaseEvents(device, Tensor, every=1)
    steps(events, device, 50)
    made = device.events
    steps(events, device, 50)
    assert device.events == made, "nothing more is recorded while so many wait"
    assert events.result() is None
    device.passed_ms = float("inf")
    result = events.result()
    assert result is not None and result.steps == 4


def test_copies_from_the_host_before_the_backward_pass_are_told_apart() -> None:
    device = Device()
    events, batch, on_device = PhaseEvents(device, Tensor, every=2), Tensor(device), Tensor(device, is_cuda=True)

    def move() -> None:
        batch.to()
        on_device.copy_(batch)
        on_device.to()  # as a change of dtype
        on_device.to(is_cuda=False)  # to the host

    steps(events, device, 9, move)
    result = events.result()
    assert result is not None and result.copies_us == 8e3 and result.phases_us[FORWARD] == 24e3


def test_a_copy_from_the_host_after_the_backward_pass_is_no_batch() -> None:
    device = Device()
    events = PhaseEvents(device, Tensor, every=2)
    for _ in range(9):
        events.begin_phase(BACKWARD)
        Tensor(device).to()
        events.begin_step(REST)
    result = events.result()
    assert result is not None and result.copies_us == 0.0 and result.phases_us[BACKWARD] == 3e3


def test_the_methods_of_tensors_are_as_they_were_outside_of_timed_steps() -> None:
    device = Device()
    events = PhaseEvents(device, Tensor, every=2)
    events.begin_step(REST)
    assert "to" not in vars(Tensor)
    events.begin_step(REST)
    assert {"to", "cuda", "copy_"} <= vars(Tensor).keys()
    events.drop()
    assert not {"to", "cuda", "copy_"} & vars(Tensor).keys()
    assert Tensor.to is Above.to


def test_what_fails_ends_the_timing_alone() -> None:
    device = Device()
    events = PhaseEvents(device, Tensor, every=1)
    steps(events, device, 3)
    device.is_broken = True
    steps(events, device, 3)
    assert events.is_off and "to" not in vars(Tensor)
    result = events.result()
    assert result is not None and result.steps >= 2


def test_nothing_is_recorded_into_a_graph_that_is_captured() -> None:
    device = Device()
    device.is_capturing = True
    events = PhaseEvents(device, Tensor, every=1)
    steps(events, device, 5)
    assert device.events == 0 and events.result() is None and not events.is_off


@pytest.mark.parametrize("has_device", [True, False])
def test_a_watched_run_has_them_where_there_is_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_device: bool
) -> None:
    torch: Any = pytest.importorskip("torch")
    device = Device()
    monkeypatch.setattr("bottleneck.harness.step_watch.is_on_gpu", lambda _: has_device)
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", device.is_current_stream_capturing)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    watch = StepWatch(StepLog(tmp_path, 0), None, 0, 1)
    watch.start()
    try:
        for _ in range(100):
            torch.ones(1).to(torch.float64)
            device.now_ms += 7.0
            parameter.sum().backward()
            device.now_ms += 2.0
            optimizer.step()
    finally:
        watch.finish(0)
    (rank,) = read_watched(tmp_path)
    phases = rank.header.device_phases
    if has_device:
        assert phases is not None and phases.steps >= 5
        assert phases.phases_us == (0.0, 0.0, 2e3, 0.0, 7e3)
    else:
        assert phases is None and device.events == 0
    assert "to" not in vars(torch.Tensor)
