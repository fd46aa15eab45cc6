"""Gain of shorter kernels: nothing while the host binds, all of it before a wait of the host."""

from pathlib import Path

import numpy as np
import pytest

from bottleneck.schema.evidence import Evidence, ShorterKernels
from bottleneck.schema.intervals import Flags, Floats
from bottleneck.simulate.whatif import gain_of_kernels_us
from tests.advice.cases import case_of, gpu_events
from tests.builders import Event, kernel, launch, memcpy, op, step


def saved_us(case: Evidence, less_us: Floats, spared: Flags | None = None) -> float:
    return gain_of_kernels_us(case, ShorterKernels(less_us, spared))


def halved(case: Evidence) -> float:
    return saved_us(case, case.linked.kernels["dur_us"].to_numpy() / 2)


def test_a_queue_that_never_empties_hands_savings_on_to_the_end(tmp_path: Path) -> None:
    events = [event for at in range(10) for event in (launch(at + 1, at, 0.5), kernel(at + 1, 20 + 100 * at, 100))]
    events.append(step(0, 0, 15))
    assert halved(case_of(tmp_path, events)) == pytest.approx(500, rel=0.03)


@pytest.mark.parametrize("blocks", [True, False])
def test_a_host_that_waits_for_a_place_in_the_queue_launches_earlier_on_a_faster_device(
    tmp_path: Path, blocks: bool
) -> None:
    kernels, ahead, us = 3000, 1022, 100
    # The host launches as far ahead as it may; from then on once the device has begun a kernel more.
    calls = [
        (at, 5.0) if at < ahead else (ahead + us * (at - ahead), us - 2.0 if blocks else 5.0) for at in range(kernels)
    ]
    events = [step(0, 0, ahead + us * (kernels - ahead))]
    for at, (begins, takes) in enumerate(calls):
        events += [launch(at + 1, begins, takes), kernel(at + 1, 20 + us * at, us)]
    # Half of all kernel time, or no more than what the queue held when the last launch came.
    all_us, last_us = kernels * us / 2, kernels * us - calls[-1][0]
    assert halved(case_of(tmp_path, events)) == pytest.approx(all_us if blocks else min(all_us, last_us), rel=0.05)


def test_a_slow_host_leaves_nothing(tmp_path: Path) -> None:
    assert halved(case_of(tmp_path, gpu_events(kernels=20, kernel_us=4, every_us=10, steps=1))) == 0


def test_launches_that_fall_away_bring_later_ones_forward(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=4, every_us=10, steps=1))
    nothing, even = np.zeros(20), np.arange(20) % 2 == 1
    assert saved_us(case, nothing, even) == pytest.approx(10 * 10, abs=4.1)
    # Of a launch that comes after a wait, what the host does since falls away.
    waits = case_of(tmp_path / "waits", waited("cudaStreamSynchronize"))
    assert saved_us(waits, np.zeros(2), np.array([False, True])) == pytest.approx(120 - 106, rel=0.03)


def test_an_op_that_launches_other_kernels_too_is_called_all_the_same(tmp_path: Path) -> None:
    """Without the kernels that turn its images a convolution is still dispatched; that was counted as gained."""
    events, nothing = [step(0, 0, 1010)], np.zeros(20)
    for at in range(10):
        now, first = 100 * at, 2 * at + 1
        events += [
            op("aten::cudnn_convolution", now + 1, 95, dims=[[1, 3, 8, 8], [3, 3, 1, 1]], external_id=first),
            *(launch(first, now + 60, 5), kernel(first, now + 66, 4)),
            *(launch(first + 1, now + 80, 5), kernel(first + 1, now + 86, 4)),
        ]
    case = case_of(tmp_path, events)
    turns = np.arange(20) % 2 == 0
    assert saved_us(case, nothing, turns) == pytest.approx(10 * 5, abs=6)


def test_a_kernel_cannot_start_before_its_launch(tmp_path: Path) -> None:
    events = [
        step(0, 0, 207),
        *(launch(1, 0, 1), kernel(1, 5, 100)),
        *(launch(2, 95, 1), kernel(2, 105, 100)),
        launch(9, 97, 109, name="cudaDeviceSynchronize"),
    ]
    assert halved(case_of(tmp_path, events)) == pytest.approx(5 + 50, rel=0.01)


def waited(name: str) -> list[Event]:
    """A kernel, a call that ends with it, and a kernel that is launched after that."""
    return [
        step(0, 0, 150),
        *(launch(1, 0, 1), kernel(1, 5, 100)),
        launch(9, 2, 104, name=name),
        *(launch(2, 120, 1), kernel(2, 125, 100)),
    ]


def test_what_the_host_waits_for_comes_earlier_and_brings_the_rest_forward(tmp_path: Path) -> None:
    waits, works = (
        halved(case_of(tmp_path / name, waited(name))) for name in ("cudaStreamSynchronize", "cudaLaunchHostFunc")
    )
    assert waits == pytest.approx(100, rel=0.03)
    # The host binds then, of a step in which the device did.
    assert works == pytest.approx((200 - 150) * 225 / 200, rel=0.05)


def read_back(call: str, ends: float, *, kind: str = "DtoH (Device -> Host)", read_ends: float = 60.0) -> list[Event]:
    """Two pairs of a kernel and a copy of its result, whose call ends then; the host launches the rest afterwards."""
    return [
        step(0, 0, 200),
        *(launch(1, 0, 1), kernel(1, 5, 50), launch(2, 2, read_ends - 2, name=call), memcpy(2, 56, 4, 8, kind)),
        *(launch(3, 70, 1), kernel(3, 75, 40), launch(4, 72, ends - 72, name=call), memcpy(4, 116, 4, 8, kind)),
        *(launch(5, 135, 1), kernel(5, 140, 40)),
    ]


@pytest.mark.parametrize("ends", [120.0, 116.0, 114.0])
def test_the_call_that_reads_back_waits_for_its_copy_though_the_clocks_disagree(tmp_path: Path, ends: float) -> None:
    assert halved(case_of(tmp_path, read_back("hipMemcpyWithStream", ends))) == pytest.approx(27 + 22, rel=0.05)


def test_a_call_that_only_queues_a_copy_waits_for_nothing(tmp_path: Path) -> None:
    pinned = read_back("cudaMemcpyAsync", 75.0, kind="DtoH (Device -> Pinned)", read_ends=10.0)
    assert halved(case_of(tmp_path, pinned)) == 0


def test_other_waits_may_end_as_early_as_the_clocks_disagree(tmp_path: Path) -> None:
    """A synchronization that ends 5 us before its kernel."""
    wait = [event for event in waited("hipStreamSynchronize") if event["args"].get("correlation") != 9]
    wait.append(launch(9, 2, 98, name="hipStreamSynchronize"))
    assert halved(case_of(tmp_path, wait)) == pytest.approx(100, rel=0.03)


def test_a_delay_that_nothing_explains_stays(tmp_path: Path) -> None:
    events = [step(0, 0, 3), *(launch(1, 0, 1), kernel(1, 5, 100)), *(launch(2, 2, 1), kernel(2, 500, 100))]
    assert halved(case_of(tmp_path, events)) == pytest.approx(100, rel=0.03)


def test_no_less_time_saves_nothing(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=4, every_us=10))
    assert saved_us(case, np.zeros(len(case.linked.kernels))) == 0
