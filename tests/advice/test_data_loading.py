"""Findings about waiting for input: what the wait is worth, and how far workers can hide it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.advice.data_loading import input_wait, loader_hot_spot, loader_restarts, loader_without_workers
from bottleneck.pipeline import examine
from bottleneck.schema.analysis import TelemetrySummary
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.records import replace
from bottleneck.schema.sources import find_traces
from tests.advice.cases import case_of, gpu_events, with_analysis, with_ledger, with_recording
from tests.builders import Event, complete, frame, op, step

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
ONE, SEVERAL = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
LENGTH = 20_000.0


def loading_events(load_us: float, kind: str = ONE, steps: int = 2, inside: tuple[Event, ...] = ()) -> list[Event]:
    """Steps of 20 ms on the host: a loader runs first, then ops to the end of the step. ``inside`` is in each load."""
    events = [frame("train.py(12): train", 0, LENGTH * steps)]
    for number in range(steps):
        at = LENGTH * number
        events += [
            step(number, at, LENGTH - 1),
            frame("torch/utils/data/dataloader.py(720): __next__", at + 0.5, load_us + 1),
            complete(f"enumerate(DataLoader)#{kind}.__next__", "user_annotation", at + 1, load_us),
            *({**event, "ts": at + event["ts"]} for event in inside),
        ]
        events.append(op("aten::mm", at + load_us + 2, LENGTH - load_us - 10, dims=[[64, 64], [64, 64]]))
    return events


def loading_case(folder: Path, load_us: float, **more: object) -> Evidence:
    events = loading_events(load_us, more.pop("kind", ONE), inside=more.pop("inside", ()))  # type: ignore[arg-type]
    return case_of(folder, events, unprofiled_us=LENGTH, **{"processors": 2, "threads": 1, **more})


def gain_of(case: Evidence) -> tuple[float, float]:
    draft = loader_without_workers(case)
    assert draft is not None and draft.gain_us is not None
    return draft.gain_us.low, draft.gain_us.high


def test_a_wait_for_data_is_worth_that_wait(tmp_path: Path) -> None:
    draft = input_wait(loading_case(tmp_path, 12_000.0))
    assert draft is not None and draft.gain_us is not None
    assert draft.tries == ("replay-batch",) and draft.confidence == "high"
    assert draft.gain_us.low < 12_000 < draft.gain_us.high
    assert draft.gain_us.high <= sum(draft.claims.values()) * (1 + 1e-9)
    assert draft.claims["overhead.input"] == pytest.approx(12_000, rel=0.01)
    assert "severe" in draft.evidence[0]
    remedy, diagnosis = (draft.code or "").splitlines()
    assert "num_workers=" in remedy and diagnosis.startswith("# diagnosis, no remedy:")


def test_a_wait_below_a_twentieth_of_the_step_is_none(tmp_path: Path) -> None:
    case = loading_case(tmp_path, 900.0)
    assert input_wait(case) is None
    assert loader_without_workers(case) is None
    assert loader_hot_spot(case) is None


def test_a_wait_that_is_shorter_than_a_handover_is_not_answered_by_workers(tmp_path: Path) -> None:
    """A loader of Lightning's took 43 us of a step of 179 us, and was advised to start two processes."""
    events = loading_events(150.0)
    brief = [each for each in events if each["name"] != "aten::mm"]
    brief += [op("aten::mm", LENGTH * number + 160, 1000, dims=[[64, 64], [64, 64]]) for number in range(2)]
    draft = input_wait(with_ledger(case_of(tmp_path, brief), {"compute": 800.0, "overhead.input": 150.0}))
    assert draft is not None and "num_workers" not in (draft.code or "")
    assert "a worker process takes longer" in draft.advice
    longer = input_wait(with_ledger(case_of(tmp_path, brief), {"compute": 800.0, "overhead.input": 250.0}))
    assert longer is not None and "num_workers" in (longer.code or "")


def test_a_loader_that_the_device_does_not_wait_for_is_worth_nothing(tmp_path: Path) -> None:
    events = gpu_events(kernels=8, kernel_us=4_000, every_us=100)
    loads = [
        complete(f"enumerate(DataLoader)#{ONE}.__next__", "user_annotation", each["ts"] + 900, 2_500)
        for each in events
        if each["name"].startswith("ProfilerStep")
    ]
    case = case_of(tmp_path, events + loads)
    assert any("DataLoader" in name for name in case.mark_sums)
    assert input_wait(case) is None and loader_without_workers(case) is None


def test_workers_that_do_not_keep_up_are_told_from_none(tmp_path: Path) -> None:
    case = loading_case(tmp_path, 12_000.0, kind=SEVERAL)
    draft = input_wait(case)
    assert draft is not None and "worker processes" in draft.evidence[1]
    assert loader_without_workers(case) is None


def bunches(waits_us: Sequence[float], work_us: float = 10_000) -> list[Event]:
    """Steps of work after a wait for the batch of a worker."""
    events, at = [], 0.0
    for number, wait_us in enumerate(waits_us):
        length = wait_us + work_us
        events += [
            step(number, at, length - 1),
            complete(f"enumerate(DataLoader)#{SEVERAL}.__next__", "user_annotation", at + 1, wait_us),
            op("aten::mm", at + wait_us + 2, work_us - 10, dims=[[64, 64], [64, 64]]),
        ]
        at += length
    return [frame("train.py(12): train", 0, at), *events]


def test_workers_that_deliver_together_are_counted_by_the_waits_between(tmp_path: Path) -> None:
    draft = input_wait(case_of(tmp_path, bunches([40_000, 100, 100, 100] * 3)))
    assert draft is not None
    assert "one batch in 4 is waited for 40.0 ms, the others 100 us" in draft.evidence[2]
    # 4 batches in 80.3 ms, one in 10 ms.
    assert "about 9 workers" in draft.evidence[3] and "num_workers=9" in (draft.code or "")


@pytest.mark.parametrize(
    "waits_us",
    [[10_000] * 12, [40_000, 100, 100, 40_000, 100, 40_000, 100, 100, 100, 100, 100, 100], [40_000, 100, 100, 100]],
    ids=["even", "irregular", "too few"],
)
def test_waits_without_a_rhythm_are_no_bunches(tmp_path: Path, waits_us: list[float]) -> None:
    draft = input_wait(case_of(tmp_path, bunches(waits_us)))
    assert draft is None or not any("one batch in" in line for line in draft.evidence)


@pytest.mark.parametrize(("waits_us", "keep_up"), [([700, 900, 800], True), ([700, 1400, 800], False)])
def test_more_workers_are_not_advised_where_each_batch_was_there(
    tmp_path: Path, waits_us: list[float], keep_up: bool
) -> None:
    """A recorded loop on small images took each batch over in 0.7 to 0.9 ms, and was advised more workers."""
    case = case_of(tmp_path, bunches(waits_us, work_us=4_000))
    draft = input_wait(case)
    assert draft is not None
    assert ("keep up: each call" in draft.evidence[1]) is keep_up
    assert ("num_workers" not in (draft.code or "")) is keep_up
    assert ("cheaper to take over" in (draft.brief or "")) is keep_up


def test_on_two_processors_workers_halve_a_step_that_only_loads(tmp_path: Path) -> None:
    low, high = gain_of(loading_case(tmp_path, 18_000.0))
    assert LENGTH / (LENGTH - high) <= 2.3
    assert 0 < low < high < 18_000


def test_a_loader_that_computes_cannot_win_more_than_the_processors_have(tmp_path: Path) -> None:
    case = loading_case(tmp_path, 18_000.0)
    busy = TelemetrySummary(5, None, None, None, None, None, (), process_processors=1.0, host_utilization=0.5)
    _, high = gain_of(with_analysis(case, telemetry=busy))
    assert high == pytest.approx(LENGTH - LENGTH / 2, rel=0.02)
    # Other programs on the second one may be gone when workers are tried, or still be there.
    crowded = replace(busy, host_utilization=1.0)
    low, least_left = gain_of(with_analysis(case, telemetry=crowded))
    assert low < 0 < least_left == high
    # Where the middle is a loss, nothing is advised.
    short = with_analysis(loading_case(tmp_path / "short", 2_000.0), telemetry=crowded)
    assert loader_without_workers(short) is None


def test_where_threads_take_all_processors_a_sample_has_to_become_cheaper(tmp_path: Path) -> None:
    case = with_recording(loading_case(tmp_path, 10_000.0), processors=2, threads=2)
    low, high = gain_of(case)
    assert low < 0 < high
    draft = input_wait(case)
    assert draft is not None and draft.gain_us is not None and draft.brief == "Make a sample cheaper to load"
    assert draft.gain_us.low == pytest.approx(0.3 * draft.gain_us.high)
    spare = input_wait(with_recording(case, processors=16, threads=2))
    assert spare is not None and (spare.brief or "").startswith("Load the next batches while the step computes")


def test_a_trace_that_does_not_tell_the_processors_promises_what_a_cheaper_sample_gains(tmp_path: Path) -> None:
    case = loading_case(tmp_path, 10_000.0)
    draft = input_wait(replace(case, recording=None))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.low == pytest.approx(0.3 * draft.gain_us.high)
    assert draft.brief == "Make a sample cheaper to load, or load ahead where processors are left"


def test_with_processors_to_spare_workers_hide_the_whole_wait(tmp_path: Path) -> None:
    low, high = gain_of(with_recording(loading_case(tmp_path, 8_000.0), processors=16))
    assert high == pytest.approx(8_000, rel=0.03) and low > 3_000


def test_ranks_share_the_processors_of_their_machine(tmp_path: Path) -> None:
    case = with_recording(loading_case(tmp_path, 18_000.0), processors=8)
    assert case.recording is not None
    alone, shared = gain_of(case), gain_of(with_recording(case, traces=4 * case.recording.traces))
    assert shared[1] < alone[1] and shared[0] < alone[0]
    assert shared[1] == gain_of(with_recording(case, processors=2))[1]


def test_a_loader_of_another_kind_has_no_batch_to_replay(tmp_path: Path) -> None:
    events = [
        {**event, "name": "load_batch"} if event["name"].startswith("enumerate") else event
        for event in loading_events(12_000.0)
        if "dataloader.py" not in event["name"]
    ]
    case = case_of(tmp_path, events, unprofiled_us=LENGTH)
    draft = input_wait(case)
    assert draft is not None and draft.tries == () and (draft.code or "").startswith("ready = executor.submit(next")
    assert loader_without_workers(case) is None


def test_unknown_processors_are_said_to_be_unknown(tmp_path: Path) -> None:
    case = replace(loading_case(tmp_path, 8_000.0), recording=None)
    draft = loader_without_workers(case)
    assert draft is not None and draft.confidence == "low"
    assert any("not recorded" in line for line in draft.evidence)


def test_a_batch_that_is_quicker_made_than_handed_over_needs_no_worker(tmp_path: Path) -> None:
    events = [
        {**event, "ts": event["ts"] / 100, "dur": event["dur"] / 100} for event in loading_events(load_us=8_000.0)
    ]
    case = case_of(tmp_path, events, unprofiled_us=LENGTH / 100, processors=16, threads=1)
    assert input_wait(case) is not None
    assert loader_without_workers(case) is None


def test_workers_started_in_the_steps_should_be_kept(tmp_path: Path) -> None:
    start = frame("multiprocessing/process.py(110): start", 2, 4_000)
    events = loading_events(12_000.0, SEVERAL, inside=(start,))
    assert loader_restarts(case_of(tmp_path / "kept", loading_events(12_000.0, SEVERAL))) is None
    draft = loader_restarts(case_of(tmp_path / "restarted", events))
    assert draft is not None and draft.gain_us is not None
    assert draft.gain_us.high <= 12_000 * 1.01
    assert "persistent_workers=True" in (draft.code or "")


def started_for(folder: Path, batches: int) -> Evidence:
    """Two workers that start and end in a window, and deliver so many batches: the first one after 12 ms."""
    marks = [complete(f"enumerate(DataLoader)#{SEVERAL}.__next__", "user_annotation", 1_000, 12_000)]
    marks += [{**marks[0], "ts": 13_000 + 100 * number, "dur": 20} for number in range(1, batches)]
    return case_of(
        folder,
        [
            frame("train.py(12): train", 0, LENGTH),
            step(0, 0, LENGTH - 1),
            frame("torch/utils/data/dataloader.py(481): __iter__", 10, 900),
            *(frame("multiprocessing/process.py(110): start", at, 300) for at in (20, 420)),
            *marks,
            op("aten::mm", 14_500, 100, dims=[[64, 64], [64, 64]]),
            frame("torch/utils/data/dataloader.py(1572): _shutdown_workers", 15_000, 4_000),
        ],
    )


def test_workers_that_live_for_one_batch_are_not_worth_their_start(tmp_path: Path) -> None:
    """An evaluation waited 12.5 s for four workers that then made one batch, and was advised to take more."""
    case = started_for(tmp_path, 1)
    draft = loader_restarts(case)
    assert input_wait(case) is None
    assert draft is not None and draft.gain_us is not None and "num_workers=0" in (draft.code or "")
    assert draft.gain_us.high == pytest.approx(12_000 + 4_000, rel=0.01)  # their start is Python, and no wait


def test_more_workers_do_not_make_the_first_batch_come_sooner(tmp_path: Path) -> None:
    case = started_for(tmp_path, 8)
    draft = input_wait(case)
    restarts = loader_restarts(case)
    assert draft is not None and "num_workers" not in (draft.code or "") and "take longer to start" in draft.advice
    assert restarts is not None and "persistent_workers=True" in (restarts.code or "")


def test_the_op_that_holds_most_of_the_loading_is_named(tmp_path: Path) -> None:
    decode = op("torchvision::decode_jpeg", 10, 9_000)
    draft = loader_hot_spot(loading_case(tmp_path / "one", 12_000.0, inside=(decode,)))
    assert draft is not None and draft.gain_us is not None
    assert "torchvision::decode_jpeg" in draft.title
    assert draft.gain_us.high == pytest.approx(9_000, rel=0.02)
    several = tuple(op(f"aten::op{index}", 10 + 2_000 * index, 1_500) for index in range(5))
    assert loader_hot_spot(loading_case(tmp_path / "several", 12_000.0, inside=several)) is None


def test_the_line_that_calls_the_loader_is_no_hot_spot(tmp_path: Path) -> None:
    assert loader_hot_spot(loading_case(tmp_path, 12_000.0)) is None


def test_the_recorded_slow_loader_waits_for_its_data_and_has_no_workers() -> None:
    case = examine(find_traces(SAMPLES / "slow_loader")[0])
    bound, workers = input_wait(case), loader_without_workers(case)
    assert bound is not None and bound.gain_us is not None and workers is not None and workers.gain_us is not None
    assert bound.gain_us.low / case.step_us > 0.7
    # Both processors together load and train no faster than in half of the time.
    assert workers.gain_us.high < 0.5 * case.step_us < bound.gain_us.low
    spot = loader_hot_spot(case)
    assert spot is not None and "slow_loader.py:27" in spot.title


def test_a_recording_without_a_loader_is_silent() -> None:
    case = examine(find_traces(SAMPLES / "mlp")[0])
    assert all(rule(case) is None for rule in (input_wait, loader_without_workers, loader_restarts, loader_hot_spot))
