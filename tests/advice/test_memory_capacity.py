"""Findings about memory: when twice the batch fits, and what freeing memory would cost."""

from pathlib import Path

import pandas as pd
import pytest

from bottleneck.advice.memory_capacity import forward_work, memory_nearly_full, room_for_batch, unused_reserve
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import BatchProof, PageFaults, PeakMemory, Ratio, Timing
from bottleneck.schema.records import replace
from tests.advice.cases import case_of, cpu_events, gpu_events, with_analysis, with_recording
from tests.analysis.frames import CPU
from tests.builders import H100, Event, complete, frame, kernel, launch, op, step

GB = 10**9
CAPACITY = int(str(H100["totalGlobalMem"]))


def with_memory(case: Evidence, peak_bytes: int | None, ratio: float | None = None) -> Evidence:
    """The case whose program used so much at most, and whose step was tried with twice the batch."""
    totals = replace(case.analysis.totals, peak_memory_bytes=peak_bytes)
    proof = None
    if ratio is not None:
        told = Ratio(ratio, ratio - 0.02, ratio + 0.02, 40)
        proof = BatchProof(64, ratio=told, fixed_us=Timing(120.0, 110.0, 130.0, 40))
    return with_analysis(case, totals=totals, batch_test=proof)


def on_backward_thread(event: Event) -> Event:
    return {**event, "tid": 101}


def training(forward_us: float, backward_us: float) -> list[Event]:
    """One step: a forward kernel, one of the backward thread, one of the optimizer."""
    return [
        frame("train.py(12): train", 0, 10_000),
        step(0, 0, 9_999),
        op("aten::mm", 10, 20, dims=[[512, 512], [512, 512]], external_id=1),
        launch(1, 15, 5),
        kernel(1, 40, forward_us),
        on_backward_thread(op("autograd::engine::evaluate_function: MmBackward0", 50, 100, external_id=2)),
        on_backward_thread(op("aten::mm", 60, 50, dims=[[512, 512], [512, 512]], external_id=3)),
        on_backward_thread(launch(3, 70, 5)),
        kernel(3, 50 + forward_us, backward_us),
        complete("Optimizer.step#AdamW.step", "user_annotation", 200, 60),
        op("aten::_foreach_add_", 210, 20, external_id=4),
        launch(4, 215, 5),
        kernel(4, 60 + forward_us + backward_us, 100),
    ]


def test_room_is_worth_the_time_per_sample_that_a_larger_batch_saves(tmp_path: Path) -> None:
    case = with_memory(case_of(tmp_path, gpu_events(20, 30.0, 40.0)), 10 * GB, ratio=1.5)
    draft = room_for_batch(case)
    assert draft is not None and draft.gain_us is not None and draft.tries == ("batch-x2",)
    assert draft.basis == "timed"
    assert draft.gain_us.low == pytest.approx(case.step_us * (1 - 1.52 / 2))
    assert draft.gain_us.high == pytest.approx(case.step_us * (1 - 1.48 / 2))


def test_twice_the_batch_of_inference_on_a_cpu_may_come_in_new_pages(tmp_path: Path) -> None:
    device, faults = replace(CPU, fresh_bytes_per_s=4e9, memory_bytes=16 * GB), PageFaults(4096, 0.0, 100.0)
    case = with_memory(
        case_of(tmp_path, cpu_events(20, 900.0, 1000.0), device=device, page_faults=faults), GB, ratio=1.5
    )

    def low_us(held_bytes: int) -> float | None:
        events = pd.DataFrame({"ts_us": [10.0, 500.0], "bytes": [held_bytes, -held_bytes], "on_device": False})
        trace = replace(case.linked.trace, memory=events)
        draft = room_for_batch(replace(case, linked=replace(case.linked, trace=trace)))
        return None if draft is None or draft.gain_us is None else draft.gain_us.low

    touched_us = 100 * 4096 / 4e9 * 1e6
    beside_us = 1.52 * (case.step_us - touched_us)
    assert low_us(0) == pytest.approx(case.step_us - (beside_us + 2 * touched_us) / 2)
    assert low_us(8_000_000) == pytest.approx(case.step_us - (beside_us + 2 * 8_000_000 / 4e9 * 1e6) / 2)
    assert low_us(80_000_000) is None  # the middle is a loss


@pytest.mark.parametrize(("peak", "ratio"), [(10 * GB, 1.95), (10 * GB, 1.1), (60 * GB, 1.5), (None, 1.5), (10, None)])
def test_without_room_or_a_step_that_grows_slowly_there_is_nothing_to_say(
    tmp_path: Path, peak: int | None, ratio: float | None
) -> None:
    assert room_for_batch(with_memory(case_of(tmp_path, gpu_events(20, 30.0, 40.0)), peak, ratio)) is None


def test_what_freeing_memory_costs_is_modelled(tmp_path: Path) -> None:
    case = with_memory(case_of(tmp_path, training(3_000, 5_000)), int(0.95 * CAPACITY), ratio=1.5)
    draft = memory_nearly_full(case)
    assert draft is not None and draft.gain_us is None and draft.gain_reason and draft.tries == ("checkpoint",)
    told = " ".join(draft.evidence)
    assert "3.00 ms" in told and "30." in told  # the forward pass again, as a time and a share of the step
    assert "per GB over this link" in told and "another 120 us" in told and "bf16" in told


def test_only_the_forward_pass_is_computed_again(tmp_path: Path) -> None:
    forward = forward_work(case_of(tmp_path, training(3_000, 5_000)))
    assert forward.us == pytest.approx(3_000)
    assert forward.flops == pytest.approx(2 * 512**3)


def test_inference_and_half_full_memory_need_no_recomputation(tmp_path: Path) -> None:
    inference = case_of(tmp_path / "inference", gpu_events(20, 30.0, 40.0))
    assert memory_nearly_full(with_memory(inference, int(0.95 * CAPACITY))) is None
    trained = case_of(tmp_path / "training", training(3_000, 5_000))
    assert memory_nearly_full(with_memory(trained, CAPACITY // 2)) is None
    assert memory_nearly_full(with_memory(trained, None)) is None


def memory_event(at: float, allocated: int, reserved: int) -> Event:
    args = {"Bytes": 512, "Device Type": 1, "Device Id": 0, "Total Allocated": allocated, "Total Reserved": reserved}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100, "tid": 100, "ts": at} | {
        "args": args
    }


def test_memory_that_is_held_and_not_handed_out_at_the_peak_is_reported(tmp_path: Path) -> None:
    events = gpu_events(20, 30.0, 40.0)
    told = [memory_event(5, 2 * GB, 60 * GB), memory_event(9, 36 * GB, 60 * GB), memory_event(12, GB, 60 * GB)]
    draft = unused_reserve(case_of(tmp_path / "fragmented", events + told))
    assert draft is not None and draft.gain_us is None
    assert "24.0 GB (40.0 %)" in draft.evidence[0]
    full = [memory_event(5, 2 * GB, 60 * GB), memory_event(9, 55 * GB, 60 * GB)]
    assert unused_reserve(case_of(tmp_path / "full", events + full)) is None
    little = [memory_event(5, 6 * GB, 12 * GB)]
    assert unused_reserve(case_of(tmp_path / "little", events + little)) is None
    assert unused_reserve(case_of(tmp_path / "unknown", events)) is None


def test_what_was_measured_without_the_profiler_comes_first(tmp_path: Path) -> None:
    case = case_of(tmp_path, gpu_events(20, 30.0, 40.0), threads=1)
    peak = PeakMemory(40 * GB, "device", "steps", reserved_bytes=80 * GB)
    draft = unused_reserve(with_recording(case, peak_memory=peak))
    assert draft is not None and "40.0 GB (50.0 %)" in draft.evidence[0]


def test_a_step_on_the_host_has_no_segments(tmp_path: Path) -> None:
    case = with_memory(case_of(tmp_path, cpu_events(4, 100.0, 120.0)), GB)
    assert unused_reserve(case) is None and room_for_batch(case) is None and memory_nearly_full(case) is None
