"""Graphs of traces of a few events: who waits for whom."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bottleneck.schema.evidence import Evidence
from bottleneck.simulate.graph import ALL_WORK, NOTHING_AWAITED, graph_of
from bottleneck.simulate.replay import replay_once
from bottleneck.simulate.whatif import check_replay
from tests.advice.cases import case_of, gpu_events
from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step


def launches(times: Sequence[float], kernel_us: float, latency_us: float = 6.0) -> list[Event]:
    """Launches at these times by train.py, each with a kernel that starts so long after it."""
    events = [frame("train.py(12): train", 0, times[-1] + 500), step(1, 0, times[-1] + 400)]
    for number, at in enumerate(times, 1):
        events += [
            op("aten::add", at - 1, 8, external_id=number),
            launch(number, at, 5),
            kernel(number, at + latency_us, kernel_us),
        ]
    return events


def replayed_error(case: Evidence) -> float:
    graph = graph_of(case)
    return replay_once(graph).wall_us / graph.wall_us - 1


def test_a_sync_waits_for_the_work_that_ends_in_it(tmp_path: Path) -> None:
    events = [*launches([10], 300), launch(9, 30, 290, "cudaStreamSynchronize")]
    graph = graph_of(case_of(tmp_path, events))
    assert graph.awaited.tolist() == [NOTHING_AWAITED, 0]
    assert replay_once(graph).waited_us[1] == pytest.approx(286, abs=1)


def test_a_sync_of_the_device_waits_for_all_work(tmp_path: Path) -> None:
    events = [*launches([10], 300), launch(9, 30, 290, "cudaDeviceSynchronize")]
    assert graph_of(case_of(tmp_path, events)).awaited.tolist() == [NOTHING_AWAITED, ALL_WORK]


def test_a_launch_that_loads_code_issues_its_kernel_at_its_end(tmp_path: Path) -> None:
    events = [frame("train.py(12): train", 0, 9000), step(1, 0, 8000)]
    events += [op("aten::add", 9, 5010, external_id=1), launch(1, 10, 5000), kernel(1, 5008, 50)]
    graph = graph_of(case_of(tmp_path, events))
    assert not graph.waits.any()
    assert graph.device.held_us.tolist() == [0]
    assert replay_once(graph).starts_us[0] == pytest.approx(5008, abs=2)


@pytest.mark.parametrize(("kernel_us", "is_full"), [(200.0, True), (5.0, False)])
def test_a_launch_without_room_in_the_queue_waits_to_its_end(tmp_path: Path, kernel_us: float, is_full: bool) -> None:
    events = [frame("train.py(12): train", 0, 32_000), step(1, 0, 31_000)]
    for number in range(150):
        at = 10 + 10 * number
        starts_us = max(at + 6, 16 + number * (kernel_us + 1))
        events += [op("aten::add", at - 1, 8, external_id=number + 1), launch(number + 1, at, 5)]
        events.append(kernel(number + 1, starts_us, kernel_us))
    last_us = 16 + 150 * (kernel_us + 1) if is_full else 2310
    events += [op("aten::add", 1599, 710, external_id=151), launch(151, 1600, 700), kernel(151, last_us, kernel_us)]
    graph = graph_of(case_of(tmp_path, events))
    in_launch = (graph.host.start_us >= 1600) & (graph.host.start_us < 2300)
    assert (graph.host.us[in_launch].sum() > 600) != is_full


def test_a_blocking_copy_is_waited_for_by_its_own_call(tmp_path: Path) -> None:
    events = [frame("train.py(12): train", 0, 900), step(1, 0, 800), op("aten::copy_", 9, 420, external_id=1)]
    events += [launch(1, 10, 410, "cudaMemcpyAsync"), memcpy(1, 20, 395, 4096, "DtoH (Device -> Pageable)")]
    graph = graph_of(case_of(tmp_path, events))
    assert graph.awaited.tolist() == [NOTHING_AWAITED, 0]


def test_every_start_has_the_usual_lag_of_its_trace(tmp_path: Path) -> None:
    case = case_of(tmp_path, launches([100, 300, 500, 700], 50, latency_us=9.0))
    graph = graph_of(case)
    assert graph.device.latency_us == pytest.approx(9.0)
    assert abs(replayed_error(case)) < 1e-9


def test_a_start_that_nothing_explains_is_counted_as_a_delay(tmp_path: Path) -> None:
    events = launches([100, 300, 500, 700], 50)
    events += [op("aten::add", 799, 8, external_id=9), launch(9, 800, 5), kernel(9, 1090, 200)]
    case = case_of(tmp_path, events)
    assert graph_of(case).device.held_us[-1] == pytest.approx(284, abs=1)
    check = check_replay(case)
    assert 0 < check.held_share < 1


def test_a_step_of_unexplained_delays_predicts_nothing(tmp_path: Path) -> None:
    events = [frame("train.py(12): train", 0, 500), step(1, 0, 400)]
    for number in range(1, 5):
        events += [op("aten::add", 20 * number, 8, external_id=number), launch(number, 20 * number + 1, 5)]
        events += [kernel(number, 400.0 * number, 50)]
    check = check_replay(case_of(tmp_path, events))
    assert check.reason is not None
    assert "does not show" in check.reason


def test_work_that_starts_as_another_stream_ends_depends_on_it(tmp_path: Path) -> None:
    events = launches([10, 30], 300)
    events[-1] = kernel(2, 318, 50, stream=9)
    graph = graph_of(case_of(tmp_path, events))
    assert graph.device.after.tolist() == [-1, 0]
    assert graph.device.held_us.tolist() == [0, 0]


def test_the_autograd_thread_goes_on_where_the_main_thread_waits_for_it(tmp_path: Path) -> None:
    events = [frame("train.py(12): train", 0, 900), step(1, 0, 800)]
    node = "autograd::engine::evaluate_function: MulBackward0"
    events += [op(node, 100, 300, external_id=1, tid=200), op("aten::mul", 120, 200, external_id=1, tid=200)]
    events += [launch(1, 130, 5, tid=200), kernel(1, 136, 50)]
    graph = graph_of(case_of(tmp_path, events))
    assert graph.foreign_share == 0
    assert graph.host.us[graph.host.op >= 0].sum() == pytest.approx(300)


def test_launches_of_other_threads_are_counted_and_predict_nothing(tmp_path: Path) -> None:
    events = launches([10, 60], 30)
    for number in range(5, 9):
        events += [
            complete("cudaLaunchKernel", "cuda_runtime", 100 + 40.0 * number, 5, tid=300, args={"correlation": number}),
            kernel(number, 108 + 40.0 * number, 20),
        ]
    check = check_replay(case_of(tmp_path, events))
    assert check.reason is not None
    assert "threads that the replay does not follow" in check.reason


def test_a_batch_of_workers_keeps_its_own_pace(tmp_path: Path) -> None:
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events = [*launches([2000], 50), complete(loader, "user_annotation", 100, 1500)]
    graph = graph_of(case_of(tmp_path, events))
    assert graph.ready_us[graph.ready_us > 0].tolist() == [1600]
    assert graph.host.us.sum() == pytest.approx(graph.length_us - 1500)


@pytest.mark.parametrize(("calls_us", "waits"), [((700, 900, 800), 0), ((700, 1400, 800), 3), ((1700, 1900, 1800), 3)])
def test_taking_over_batches_that_were_there_is_work_of_the_host(
    tmp_path: Path, calls_us: tuple[int, ...], waits: int
) -> None:
    """Calls that are all alike and short do not wait for workers, which would take longer now and then."""
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events = [frame("train.py(12): train", 0, 9000)]
    for number, us in enumerate(calls_us):
        at = 3000.0 * number
        events += [step(number, at, 2999), complete(loader, "user_annotation", at + 10, us)]
        events += [launch(number + 1, at + 2500, 5), kernel(number + 1, at + 2510, 50)]
    graph = graph_of(case_of(tmp_path, events))
    assert np.count_nonzero(graph.ready_us > 0) == waits


def shifted(events: Sequence[Event], us: float) -> list[Event]:
    return [{**event, "ts": event["ts"] + us} for event in events]


def stretched(events: Sequence[Event], factor: float) -> list[Event]:
    return [{**event, "ts": event["ts"] * factor, "dur": event["dur"] * factor} for event in events]


def test_the_time_of_the_recording_plays_no_part(tmp_path: Path) -> None:
    events = gpu_events(20, 15, 10, steps=3)
    one, other = (case_of(tmp_path / name, each) for name, each in (("a", events), ("b", shifted(events, 5e6))))
    assert replay_once(graph_of(one)).wall_us == pytest.approx(replay_once(graph_of(other)).wall_us)


def test_a_trace_of_half_the_durations_takes_half_as_long(tmp_path: Path) -> None:
    events = gpu_events(20, 15, 10, steps=3)
    one, half = (case_of(tmp_path / name, each) for name, each in (("a", events), ("b", stretched(events, 0.5))))
    ratio = replay_once(graph_of(half)).wall_us / replay_once(graph_of(one)).wall_us
    assert ratio == pytest.approx(0.5, rel=0.01)


def device_bound_events(steps: int = 4) -> list[Event]:
    """Steps in which the host issues 30 kernels of 30 us, one each 10 us, and waits for them."""
    events, number = [frame("train.py(12): train", 0, 1000.0 * steps)], 0
    for index in range(steps):
        at = 1000.0 * index
        events += [step(index, at, 999), launch(1000 + index, at + 310, 610, "cudaDeviceSynchronize")]
        for order in range(30):
            number += 1
            events += [
                op("aten::add", at + 10 * order, 9, external_id=number),
                launch(number, at + 10 * order + 1, 4),
                kernel(number, at + 9 + 30.3 * order, 30),
            ]
    return events


@pytest.mark.parametrize(
    "events", [gpu_events(30, 5, 40, steps=4), gpu_events(30, 20, 20, steps=4), device_bound_events()], ids=len
)
def test_made_steps_are_reproduced_whoever_binds_them(tmp_path: Path, events: Sequence[Event]) -> None:
    check = check_replay(case_of(tmp_path, events))
    assert check.reason is None
    assert abs(check.error) < 0.01
    assert np.isclose(check.held_share, 0.0)
