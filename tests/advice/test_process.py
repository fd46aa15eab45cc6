"""Rules for how the process is set up: threads, replicas, gradients."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.advice.process import (
    data_parallel,
    threads_for_small_work,
    threads_side_by_side,
    too_few_threads,
    too_many_threads,
    unused_gradients,
)
from bottleneck.schema.evidence import Evidence
from tests.advice.cases import case_of, cpu_events, gpu_events, with_recording
from tests.builders import Event, complete, kernel, launch, op

MM: dict[str, Any] = {"name": "aten::mm", "dims": [[16, 16], [16, 16]]}


def threads(case: Evidence, count: int | None, processors: int | None) -> Evidence:
    return with_recording(case, threads=count, processors=processors)


def test_more_threads_than_processors_are_worth_what_ops_take_beyond_their_floors(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60, **MM), unprofiled_us=600.0)
    draft = too_many_threads(threads(case, 16, 2))
    assert draft is not None and draft.gain_us is not None and "threads-cores" in draft.tries
    assert 0 < draft.gain_us.low == draft.gain_us.high / 4
    assert draft.gain_us.high <= sum(draft.claims.values()) + 1e-6
    assert draft.evidence[0] == "16 threads on 2 processors"


@pytest.mark.parametrize(("count", "processors"), [(2, 2), (1, 8), (None, 2), (16, None)])
def test_threads_that_fit_or_are_not_known_are_left_alone(tmp_path: Path, count: int, processors: int) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60, **MM), unprofiled_us=600.0)
    assert too_many_threads(threads(case, count, processors)) is None


LARGE_MM: dict[str, Any] = {"name": "aten::mm", "dims": [[512, 512], [512, 512]]}


def test_long_ops_on_fewer_threads_than_processors_may_gain_the_ideal_and_a_fifth_at_least(tmp_path: Path) -> None:
    case = threads(case_of(tmp_path, cpu_events(5, 2000, 2100, **LARGE_MM), unprofiled_us=10_500.0), 1, 4)
    draft = too_few_threads(case)
    assert draft is not None and draft.gain_us is not None and draft.title == "Ops compute on 1 of 4 processors"
    long_us = sum(row.us for row in case.analysis.kernels)
    assert draft.gain_us.high == pytest.approx(0.75 * long_us)
    assert draft.gain_us.low == pytest.approx(0.2 * draft.gain_us.high)
    assert "torch.set_num_threads(4)" in (draft.code or "")


def test_where_each_processor_is_a_core_half_of_the_ideal_is_sure_and_the_line_that_asks_for_less_is_named(
    tmp_path: Path,
) -> None:
    case = case_of(tmp_path, cpu_events(5, 2000, 2100, **LARGE_MM), unprofiled_us=10_500.0)
    known: dict[str, Any] = {"threads": 1, "processors": 4, "cores": 4}
    draft = too_few_threads(with_recording(case, **known, setting_lines={"threads": ("train.py:5",)}))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.low == pytest.approx(0.5 * draft.gain_us.high)
    assert draft.brief == "Let torch compute on all 4 processors: take out what asks for fewer at train.py:5"
    several = too_few_threads(with_recording(case, **known, setting_lines={"threads": ("a.py:5", "b.py:6")}))
    assert several is not None and several.brief == "Let torch compute on all 4 processors"


def test_long_products_without_a_known_cost_are_worth_threads_too(tmp_path: Path) -> None:
    """A quantized BERT on one of two processors: up to 1.29 times was said, and 2.0 to 2.3 measured."""
    quantized: dict[str, Any] = {"name": "quantized::linear_dynamic", "dims": [[256, 512], [], []]}
    case = case_of(tmp_path, cpu_events(5, 2000, 2100, **quantized), unprofiled_us=5 * 2100.0)
    draft = too_few_threads(threads(case, 1, 2))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high == pytest.approx(0.5 * 5 * 2000, rel=0.02)


@pytest.mark.parametrize(("count", "processors", "op_us"), [(4, 4, 2000), (None, 4, 2000), (1, None, 2000), (1, 4, 50)])
def test_all_threads_and_short_ops_are_left_alone(
    tmp_path: Path, count: int | None, processors: int | None, op_us: float
) -> None:
    events = cpu_events(5, op_us, op_us + 100, **LARGE_MM)
    case = case_of(tmp_path, events, unprofiled_us=5 * (op_us + 100))
    assert too_few_threads(threads(case, count, processors)) is None


def test_small_products_on_several_threads_are_worth_a_trial(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 50, 60, **MM), unprofiled_us=600.0)
    draft = threads_for_small_work(threads(case, 4, 4))
    assert draft is not None and draft.gain_us is None and draft.tries == ("threads-1",)
    assert threads_for_small_work(threads(case, 1, 4)) is None
    assert threads_for_small_work(threads(case_of(tmp_path / "b", cpu_events(10, 50, 60), threads=4), 4, 4)) is None


def test_products_that_want_their_threads_speak_against_one_thread(tmp_path: Path) -> None:
    """One thread took 0.57 times as fast where small products stood beside convolutions."""
    small = cpu_events(20, 50, 400, steps=1, **MM)
    large = [op("aten::mm", 400 * at + 80, 300, dims=[[1024, 1024], [1024, 1024]]) for at in range(20)]
    alone, beside = (
        threads_for_small_work(threads(case_of(tmp_path / name, events, threads=4), 4, 4))
        for name, events in (("alone", small), ("beside", [*small, *large]))
    )
    assert alone is not None and beside is None


def recorded(events: list[Event]) -> list[Event]:
    """The same with every op in autograd's order, as ops are that a gradient could be asked for."""
    for number, event in enumerate(event for event in events if event["cat"] == "cpu_op"):
        event["args"] |= {"Sequence number": number, "Fwd thread id": 0}
    return events


def test_a_graph_that_nobody_walks_is_worth_its_records(tmp_path: Path) -> None:
    case = case_of(tmp_path, recorded(cpu_events(30, 3, 8)), unprofiled_us=200.0)
    draft = unused_gradients(case)
    assert draft is not None and draft.gain_us is not None and draft.tries == ("inference-mode",)
    assert draft.gain_us.low == pytest.approx(29 * 2.5)
    assert draft.gain_us.low < draft.gain_us.high <= 200


def test_steps_that_train_or_record_nothing_are_left_alone(tmp_path: Path) -> None:
    assert unused_gradients(case_of(tmp_path / "none", cpu_events(30, 3, 8))) is None
    node = op("autograd::engine::evaluate_function: MulBackward0", 1, 2)
    assert unused_gradients(case_of(tmp_path / "back", [*recorded(cpu_events(30, 3, 8)), node])) is None
    mark = complete("Optimizer.step#SGD.step", "user_annotation", 1, 2)
    assert unused_gradients(case_of(tmp_path / "step", [*recorded(cpu_events(30, 3, 8)), mark])) is None


def test_results_that_autograd_keeps_may_need_new_pages_in_each_step(tmp_path: Path) -> None:
    relu: dict[str, Any] = {"name": "aten::relu", "dims": [[1024, 1024]]}
    kept, fresh = (
        unused_gradients(
            case_of(tmp_path / str(rows), recorded(cpu_events(30, 1990, 2000, **relu | {"dims": [[rows, 1024]]})))
        )
        for rows in (1024, 8192)
    )
    # Half of 29 results of 4 MiB, at 2 GB/s; results of 32 MiB are new pages in any case.
    assert kept is not None and kept.gain_us is not None and "keeps 122 MB" in kept.evidence[1]
    assert kept.gain_us.high == pytest.approx(29 * 4.19e6 / 2 / 2e9 * 1e6, rel=0.01)
    assert fresh is None or (fresh.gain_us is not None and fresh.gain_us.high <= 29 * 7.0)


def test_a_host_that_is_ahead_gains_nothing_by_recording_less(tmp_path: Path) -> None:
    assert unused_gradients(case_of(tmp_path, recorded(gpu_events(20, 200, 10)))) is None


def replicas(device: int) -> list[Event]:
    events = [*gpu_events(12, 3, 20, steps=1), op("Broadcast", 42, 15), op("Gather", 102, 12)]
    other = kernel(900, 130, 3, args={"device": device})
    return [*events, launch(900, 125, 2), other | {"pid": device}]


def test_replicas_on_several_devices_are_worth_what_copying_the_model_takes(tmp_path: Path) -> None:
    draft = data_parallel(case_of(tmp_path, replicas(device=1)))
    assert draft is not None and draft.gain_us is not None
    assert 0 < draft.gain_us.high <= 27


def test_replicas_on_one_device_are_only_noted(tmp_path: Path) -> None:
    draft = data_parallel(case_of(tmp_path / "one", replicas(device=0)))
    assert draft is not None and draft.gain_us is None and draft.gain_reason
    assert data_parallel(case_of(tmp_path / "none", gpu_events(12, 3, 20))) is None


def side_by_side(count: int, dur: float = 180.0) -> list[Event]:
    """So many threads that run an op each, over and over."""
    return [
        op("aten::addmm", 200.0 * number + 10, dur, dims=[[8, 8], [8, 8], []], tid=100 + thread)
        for thread in range(count)
        for number in range(5)
    ]


def test_threads_of_a_server_are_told_to_share_a_batch(tmp_path: Path) -> None:
    draft = threads_side_by_side(case_of(tmp_path, side_by_side(4)))
    assert draft is not None and draft.gain_us is None and draft.comes_first
    assert draft.title == "Ops of 4 threads run side by side" and "set_num_threads(1)" in draft.advice
    assert threads_side_by_side(case_of(tmp_path / "two", side_by_side(2))) is None
    assert threads_side_by_side(case_of(tmp_path / "idle", side_by_side(4, 40.0))) is None
