"""Gain of a shorter kernel: nothing before a late launch, all of it before a wait of the host."""

from pathlib import Path

import numpy as np
import pytest

from bottleneck.advice.kernel_work import saved_us, work_of
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, cpu_events, gpu_events
from tests.advice.programs import Call, on_cpu
from tests.builders import Event, kernel, launch, memcpy, step


def halved(case: Evidence) -> float:
    return saved_us(case, case.linked.kernels["dur_us"].to_numpy() / 2)


def test_on_a_cpu_every_microsecond_counts(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(ops=10, op_us=6, every_us=9))
    assert saved_us(case, np.full(len(case.linked.kernels), 2.0)) == pytest.approx(20)


def test_a_queue_that_never_empties_hands_savings_on_to_the_end(tmp_path: Path) -> None:
    events = [event for at in range(10) for event in (launch(at + 1, at, 0.5), kernel(at + 1, 20 + 100 * at, 100))]
    events.append(step(0, 0, 15))
    assert halved(case_of(tmp_path, events)) == pytest.approx(500)


@pytest.mark.parametrize(("blocks", "saved"), [(True, 1), (False, 0)])
def test_a_host_that_waits_for_a_place_in_the_queue_launches_earlier_on_a_faster_device(
    tmp_path: Path, blocks: bool, saved: float
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
    assert halved(case_of(tmp_path, events)) == pytest.approx(all_us if saved else min(all_us, last_us), rel=0.05)


def test_a_slow_host_leaves_the_last_kernel_only(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=4, every_us=10, steps=1))
    assert halved(case) == pytest.approx(2)


def test_launches_that_fall_away_bring_later_ones_forward_until_the_host_waits(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=4, every_us=10, steps=1))
    nothing, even = np.zeros(20), np.arange(20) % 2 == 1
    assert saved_us(case, nothing + 1e-6, even) == pytest.approx(10 * 10, abs=4.1)  # the last kernel still runs
    # A launch that comes after a wait is spared only from there on.
    waits = case_of(tmp_path / "waits", waited("cudaStreamSynchronize"))
    assert saved_us(waits, np.array([0.0, 1e-6]), np.array([False, True])) == pytest.approx(0, abs=1e-3)


def test_a_kernel_cannot_start_before_its_launch(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        *(launch(1, 0, 1), kernel(1, 5, 100)),
        *(launch(2, 95, 1), kernel(2, 105, 100)),
    ]
    assert halved(case_of(tmp_path, events)) == pytest.approx(5 + 50)


def waited(name: str) -> list[Event]:
    """A kernel, a call that ends with it, and a kernel that is launched after that."""
    return [
        step(0, 0, 150),
        *(launch(1, 0, 1), kernel(1, 5, 100)),
        launch(9, 2, 104, name=name),
        *(launch(2, 120, 1), kernel(2, 125, 100)),
    ]


def test_what_the_host_waits_for_comes_earlier_and_brings_the_rest_forward(tmp_path: Path) -> None:
    assert halved(case_of(tmp_path / "waits", waited("cudaStreamSynchronize"))) == pytest.approx(100)
    assert halved(case_of(tmp_path / "works", waited("cudaLaunchHostFunc"))) == pytest.approx(50)


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
    assert halved(case_of(tmp_path, read_back("hipMemcpyWithStream", ends))) == pytest.approx(27 + 22 + 20)


def test_a_call_that_only_queues_a_copy_waits_for_nothing(tmp_path: Path) -> None:
    pinned = read_back("cudaMemcpyAsync", 75.0, kind="DtoH (Device -> Pinned)", read_ends=10.0)
    assert halved(case_of(tmp_path, pinned)) == pytest.approx(20)


def test_other_waits_may_end_as_early_as_the_clocks_disagree(tmp_path: Path) -> None:
    """A synchronization that ends 5 us before its kernel, where a copy ends 6 us after the call that waited for it."""
    wait = [event for event in waited("hipStreamSynchronize") if event["args"].get("correlation") != 9]
    wait.append(launch(9, 2, 98, name="hipStreamSynchronize"))
    assert halved(case_of(tmp_path / "unknown", wait)) == pytest.approx(50)
    wait += [launch(8, 126, 100, name="hipMemcpyWithStream"), memcpy(8, 228, 4, 8, "DtoH (Device -> Host)")]
    assert halved(case_of(tmp_path / "known", wait)) == pytest.approx(102)


def test_what_waits_for_something_else_starts_when_it_did(tmp_path: Path) -> None:
    events = [step(0, 0, 3), *(launch(1, 0, 1), kernel(1, 5, 100)), *(launch(2, 2, 1), kernel(2, 500, 100))]
    assert halved(case_of(tmp_path, events)) == pytest.approx(50)


def test_no_less_time_saves_nothing(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(kernels=20, kernel_us=4, every_us=10))
    assert saved_us(case, np.zeros(len(case.linked.kernels))) == 0


def test_rules_that_compare_calls_with_each_other_look_at_a_thousand(tmp_path: Path) -> None:
    calls = [Call("aten::relu", 2 + number % 3, [[64, 64 + number]]) for number in range(1200)]
    work = work_of(on_cpu(tmp_path, calls, steps=1))
    rows = np.ones(work.row.size, dtype=bool)
    chosen = work.largest_calls(rows)
    assert np.unique(work.signature[chosen]).size == 1000
    assert work.us[chosen].min() >= work.us[~chosen].max()
    few = np.arange(work.row.size) < 10
    assert (work.largest_calls(few & chosen) == (few & chosen)).all()


def test_a_type_that_is_a_list_is_no_number(tmp_path: Path) -> None:
    call = Call("aten::linear", 50.0, [[8, 16], [16, 16], []], more={"types": ["float", "float", [-1, 0]]})
    work = work_of(on_cpu(tmp_path, [call]))
    assert work.tensors_of(int(work.evidence.linked.ops["signature"].iloc[0])) == [(8, 16), (16, 16), ()]
