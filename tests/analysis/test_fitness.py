"""The list of a trace's fitness: what each trace lacks for a full report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bottleneck.analysis.fitness import FULL_REPORT, check_trace
from bottleneck.pipeline import examine, finish
from bottleneck.schema.checks import Check
from bottleneck.schema.sources import TraceSource
from tests.builders import Event, complete, frame, kernel, launch, op, step, write_trace

RELU = "void at::native::vectorized_elementwise_kernel<4, relu>(int)"


def steps(**shapes: Any) -> list[Event]:
    """Three marked steps of one op with one kernel."""
    events = []
    for number in range(1, 4):
        at = 100.0 * number
        events += [step(number, at, 100), op("aten::relu", at + 5, 20, external_id=number, **shapes)]
        events += [launch(number, at + 10, 5), kernel(number, at + 20, 40, RELU)]
    return events


FULL = steps(dims=[[4096, 4096]], strides=[[4096, 1]])


def contents(folder: Path, events: Sequence[Event], **top: Any) -> dict[str, Check]:
    explained = finish(examine(TraceSource(write_trace(folder / "trace.json", events, **top))))
    rows = check_trace(explained.linked, explained.analysis)
    return {check.slug: check for check in rows if check.group == FULL_REPORT}


def test_a_full_trace_lacks_only_what_was_not_recorded(tmp_path: Path) -> None:
    rows = contents(tmp_path, FULL)
    lacking = {slug for slug, check in rows.items() if check.status != "ok"}
    assert lacking == {"source-lines", "memory", "sync-events", "honest-time"}


def test_steps_say_by_what_they_were_found(tmp_path: Path) -> None:
    assert contents(tmp_path, FULL)["steps"].fact == "3 by ProfilerStep marks"
    check = contents(tmp_path, [op("aten::relu", 1, 5, dims=[[4]])])["steps"]
    assert check.status == "missing"
    assert "schedule" in check.command


def test_a_missing_number_between_profiler_steps_is_reported(tmp_path: Path) -> None:
    events = [event for event in FULL if event["name"] != "ProfilerStep#2"]
    assert "numbers missing between them: 1" in contents(tmp_path, events)["steps"].fact


def test_shapes_that_are_missing_cost_their_share_of_the_busy_time(tmp_path: Path) -> None:
    check = contents(tmp_path, steps())["shapes"]
    assert (check.status, check.share) == ("missing", 1.0)
    assert check.why == "100.0 % of the busy time cannot be modelled"
    assert check.command == "torch.profiler.profile(record_shapes=True)"


def test_shapes_of_some_ops_only_are_a_limit(tmp_path: Path) -> None:
    bare = [op("aten::mm", 100 * number + 70, 9, external_id=9 + number) for number in range(1, 4)]
    bare += [launch(9 + number, 100 * number + 72, 5) for number in range(1, 4)]
    bare += [kernel(9 + number, 100 * number + 75, 20, "sgemm_128x128") for number in range(1, 4)]
    check = contents(tmp_path, [*FULL, *bare])["shapes"]
    assert check.status == "limited"
    assert check.fact == "known for 50.0 % of the ops"


def test_work_that_no_shape_would_model_is_kept_apart(tmp_path: Path) -> None:
    unknown = steps(dims=[[4096, 4096]])
    unknown = [{**event, "name": "mine::secret"} if event["name"] == "aten::relu" else event for event in unknown]
    unknown = [{**event, "name": "secret_kernel"} if event["name"] == RELU else event for event in unknown]
    rows = contents(tmp_path, unknown)
    assert rows["shapes"].status == "ok"
    assert rows["unmodelled-work"].status == "limited"
    assert "mine::secret" in rows["unmodelled-work"].fact
    assert contents(tmp_path, FULL)["unmodelled-work"].status == "ok"


def test_strides_are_asked_for_only_where_there_are_shapes(tmp_path: Path) -> None:
    assert contents(tmp_path, FULL)["strides"].status == "ok"
    assert contents(tmp_path, steps(dims=[[4096, 4096]]))["strides"].status == "missing"
    assert "strides" not in contents(tmp_path, steps())


def test_frames_give_source_lines_and_modules(tmp_path: Path) -> None:
    frames = [frame("train.py(5): step", 100, 300), frame("nn.Module: Linear_0", 100, 300)]
    assert contents(tmp_path, [*FULL, *frames])["source-lines"].status == "ok"
    check = contents(tmp_path, FULL)["source-lines"]
    assert check.command == "torch.profiler.profile(with_stack=True)"
    assert "of the waiting has none" in check.why


def test_with_modules_alone_is_told_to_have_no_effect(tmp_path: Path) -> None:
    check = contents(tmp_path, FULL, with_modules=1)["modules"]
    assert check.status == "missing"
    assert "no effect in eager mode" in check.why
    assert "modules" not in contents(tmp_path, FULL)


def test_allocations_are_found_or_asked_for(tmp_path: Path) -> None:
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 100, "ts": 150, "s": "t",
              "args": {"Bytes": 64, "Device Type": 1, "Device Id": 0, "Total Allocated": 64}}  # fmt: skip
    assert contents(tmp_path, [*FULL, memory])["memory"].status == "ok"
    assert contents(tmp_path, FULL)["memory"].command == "torch.profiler.profile(profile_memory=True)"


def test_sync_events_concern_only_cuda(tmp_path: Path) -> None:
    wait = complete("Stream Wait Event", "cuda_sync", 150, 5, args={"stream": 7})
    assert contents(tmp_path, [*FULL, wait])["sync-events"].status == "ok"
    assert "enable_cuda_sync_events" in contents(tmp_path, FULL)["sync-events"].command
    assert "sync-events" not in contents(tmp_path, [op("aten::relu", 1, 5)])


def test_the_option_that_is_named_for_sync_events_exists() -> None:
    torch = pytest.importorskip("torch")
    assert torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)


def collectives(**args: Any) -> list[Event]:
    events = steps(dims=[[4096, 4096]])
    for number in range(1, 4):
        at = 100.0 * number
        events += [launch(50 + number, at + 50, 2)]
        events += [kernel(50 + number, at + 62, 20, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", args=args)]
    return events


def test_collectives_without_sizes_or_ranks_say_what_they_cost(tmp_path: Path) -> None:
    rows = contents(tmp_path, collectives())
    assert (rows["collective-sizes"].status, rows["collective-sizes"].share) == ("missing", 1.0)
    assert rows["ranks"].status == "missing"


def test_collectives_with_sizes_of_a_known_rank_are_fine(tmp_path: Path) -> None:
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "Group size": 2,
        "dtype": "Float",
    }
    rows = contents(tmp_path, collectives(**args), distributedInfo={"rank": 1, "world_size": 2, "backend": "nccl"})
    assert rows["collective-sizes"].status == "ok"
    assert rows["ranks"].fact == "rank 1 of 2"


def test_a_single_program_has_no_rows_about_ranks(tmp_path: Path) -> None:
    assert not {"ranks", "collective-sizes"} & contents(tmp_path, FULL).keys()


def test_a_device_without_ceilings_can_be_named(tmp_path: Path) -> None:
    check = contents(tmp_path, FULL, deviceProperties=[])["unknown-device"]
    assert (check.status, check.command) == ("missing", "bottleneck report TRACE --device NAME")
    assert contents(tmp_path, FULL)["unknown-device"].fact == "NVIDIA H100 80GB HBM3: datasheet"


def test_whole_microseconds_are_a_limit_where_kernels_last_none(tmp_path: Path) -> None:
    short = [launch(9, 410, 1), kernel(9, 415, 0)]
    assert contents(tmp_path, _whole([*FULL, *short]))["resolution"].share == 0.25
    assert contents(tmp_path, _whole(FULL))["resolution"].status == "ok"
    assert "resolution" not in contents(tmp_path, [*FULL, op("aten::a", 500.5, 1.5)])


def _whole(events: Sequence[Event]) -> list[Event]:
    return [{**event, "ts": int(event["ts"]), "dur": int(event["dur"])} for event in events]


def test_flags_are_those_that_the_trace_names(tmp_path: Path) -> None:
    assert contents(tmp_path, FULL, record_shapes=1, with_flops=1)["flags"].fact == "on: record_shapes, with_flops"
    assert contents(tmp_path, FULL)["flags"].fact == "the trace names none that is on"


def test_a_graph_whose_kernels_have_no_op_is_a_limit(tmp_path: Path) -> None:
    replay = [launch(90, 420, 5, "cudaGraphLaunch"), *(kernel(90, 430 + 50 * place, 45) for place in range(6))]
    rows = contents(tmp_path, [*FULL, *replay])
    assert rows["ops"].status == "limited"
    assert "--capture" in rows["graph-replay"].remedy
    assert contents(tmp_path, FULL)["ops"].status == "ok"


def test_an_inconclusive_verdict_is_reported_in_its_own_words(tmp_path: Path) -> None:
    rows = contents(tmp_path, [op("aten::relu", 1, 9), launch(1, 2, 2)])
    assert rows["verdict"].status == "limited"
    assert contents(tmp_path, FULL)["verdict"].status == "ok"
