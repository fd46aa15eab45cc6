"""One small file per era and vendor, in the words of its writer."""

from pathlib import Path

import pytest

from bottleneck.schema.linked_trace import DeviceProperties, ProcessGroup
from bottleneck.trace.read import read_trace
from tests.builders import complete, kernel, launch, memcpy, op, step, write_trace
from tests.trace.read_files import categories, names, read_bytes, read_list, slugs

pytestmark = pytest.mark.usefixtures("read_with_workers_too")

# ruff: noqa: E501 - lines stand as their writers write them

LEGACY = """[{"name": "aten::add", "ph": "X", "ts": 434.706, "dur": 4.123999999999967, "tid": 1, "pid": "CPU functions", "args": {}},
{"name": "add_kernel", "ph": "X", "ts": 436.5, "dur": 2.0, "tid": 3, "pid": "CUDA functions", "args": {}},
{"name": "launch", "ph": "s", "ts": 434.706, "tid": 1, "pid": "CPU functions", "id": 1, "cat": "cpu_to_cuda", "args": {}}]"""

TORCH_1_8 = """{"traceEvents": [
{"ph": "X", "cat": "Operator", "name": "aten::copy_", "pid": 5, "tid": "3340707648", "ts": 1606911006433250, "dur": 10,
 "args": {"Input dims": [[2, 3], []], "Input type": [], "Device": 0, "External id": 2, "Trace name": "PyTorch Profiler"}},
{"ph": "X", "cat": "Operator", "name": "ProfilerStep#5", "pid": 5, "tid": "3340707648", "ts": 1606911006433240, "dur": 900,
 "args": {"Input dims": [], "External id": 1}},
{"ph": "X", "cat": "Runtime", "name": "cudaMemcpyAsync", "pid": 5, "tid": "3340707648", "ts": 1606911006433252, "dur": 4,
 "args": {"cbid": 41, "correlation": 65448, "external id": 2, "external ts": 1606911006439756}},
{"ph": "X", "cat": "Kernel", "name": "fill", "pid": 0, "tid": "stream 7", "ts": 1606911006433418, "dur": 4, "args":
 {"queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 59629, "external id": 9, "registers per thread": 20,
  "shared memory": 16, "warps per SM": 25.6, "grid": [1024, 2, 1], "block": [64, 1, 1]}},
{"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": "stream 7", "ts": 1606911006433430, "dur": 3,
 "args": {"device": 0, "stream": 7, "correlation": 65448, "external id": 2, "bytes": 19267584}},
{"ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 0, "tid": "stream 7", "ts": 1606911006433440, "dur": 1,
 "args": {"device": 0, "stream": 7, "correlation": 59825, "external id": 0, "bytes": 1048576}},
{"ph": "s", "id": 65448, "pid": 5, "tid": 3340707648, "ts": 1606911006433252, "cat": "async", "name": "launch"},
{"ph": "i", "s": "t", "name": "[memory]", "pid": 5, "tid": 5, "ts": 1606911006433260, "args": {"Device Type": 1, "Device Id": 0,
 "Bytes": -512}},
{"ph": "X", "cat": "Trace", "ts": 1606911006433240, "dur": 1000, "pid": "Traces", "tid": "PyTorch Profiler",
 "name": "PyTorch Profiler (0)", "args": {"Op count": 0}}
]}"""


def test_a_legacy_array_names_kernels_by_their_process(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, LEGACY)
    assert categories(trace) == ["op", "kernel"]
    assert trace.device_args["device"].tolist() == [3]
    assert trace.start_unix_ns is None
    assert trace.events["ts_us"].tolist() == [0.0, 1.794]
    assert trace.events["dur_us"].tolist() == [4.123999999999967, 2.0]
    assert not trace.integer_timestamps


def legacy_array(*names: str) -> str:
    """A legacy array of ops on the CPU that follow one another."""
    event = '{{"name": "{}", "ph": "X", "ts": {}.0, "dur": 5.0, "tid": 1, "pid": "CPU functions", "args": {{}}}}'
    return f"[{', '.join(event.format(name, 10 * at) for at, name in enumerate(names))}]"


def test_a_range_of_the_program_is_no_op_of_a_legacy_array(tmp_path: Path) -> None:
    """Two fifths of a step were said to be an unmodelled op called predict."""
    trace = read_bytes(tmp_path, legacy_array("predict", "aten::mm", "MmBackward"))
    assert categories(trace) == ["annotation", "op", "op"]
    # Torch 1.4 names its ops without a namespace: nothing tells a range from them.
    assert categories(read_bytes(tmp_path, legacy_array("predict", "mm", "MmBackward"))) == ["op", "op", "op"]


def test_torch_1_8_capital_categories_and_string_threads_are_understood(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, TORCH_1_8)
    assert categories(trace) == ["profiler", "annotation", "op", "runtime", "kernel", "copy", "fill"]
    assert trace.flavour == "cuda"
    assert trace.integer_timestamps
    assert trace.start_unix_ns == 1606911006433240_000
    assert list(trace.events["thread"])[-1] == "0/stream 7"
    assert trace.signatures.to_dict("records") == [
        {"name": "aten::copy_", "dims": "[[2, 3], []]", "types": "[]", "strides": None, "concrete": None}
    ]
    device = trace.device_args
    assert device["external_id"].tolist() == [9, 2, 0]
    assert device["stream"].tolist() == [7, 7, 7]
    assert device[["blocks", "threads", "registers", "shared_bytes"]].iloc[0].tolist() == [2048, 64, 20, 16]
    assert device["bytes"].astype(object).tolist()[1:] == [19267584, 1048576]
    assert trace.launch_args["external_id"].tolist() == [2]
    assert trace.memory[["ts_us", "bytes", "on_device"]].values.tolist() == [[20.0, -512, True]]


def test_the_step_mark_of_an_old_era_is_an_annotation_and_has_no_op_arguments(tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, TORCH_1_8)
    by_name = dict(zip(names(trace), categories(trace), strict=True))
    assert by_name["ProfilerStep#5"] == "annotation"
    assert len(trace.op_args) == 1
    assert trace.events["name"][trace.op_args["event"][0]] == "aten::copy_"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("cpu_op", "op"),
        ("Operator", "op"),
        ("user_annotation", "annotation"),
        ("python_function", "python"),
        ("cuda_runtime", "runtime"),
        ("cuda_driver", "runtime"),
        ("Runtime", "runtime"),
        ("xpu_runtime", "runtime"),
        ("mtia_runtime", "runtime"),
        ("privateuse1_runtime", "runtime"),
        ("privateuse1_driver", "runtime"),
        ("KERNEL", "kernel"),
        ("mtia_ccp_events", "kernel"),
        ("Memcpy", "copy"),
        ("gpu_memset", "fill"),
        ("cuda_sync", "sync"),
        ("gpu_user_annotation", "gpu_annotation"),
        ("overhead", "profiler"),
        ("Trace", "profiler"),
        ("cuda_profiler_range", "profiler"),
        ("a category of the year 2030", "other"),
    ],
)
def test_a_raw_category_of_any_case_has_its_place(tmp_path: Path, raw: str, expected: str) -> None:
    event = {"ph": "X", "cat": raw, "name": "thing", "pid": 1, "tid": 1, "ts": 2, "dur": 1}
    trace = read_list(tmp_path, [op("aten::mm", 1, 1), event])
    assert categories(trace) == ["op", expected]
    assert trace.counts == {"cpu_op": 2} if raw == "cpu_op" else trace.counts[raw] == 1
    assert slugs(trace) == []


@pytest.mark.parametrize(
    "name", ["ProfilerStep#3", "enumerate(DataLoader)#_Single", "Optimizer.step#SGD", "Optimizer.zero_grad#SGD"]
)
def test_marks_written_as_ops_are_annotations(tmp_path: Path, name: str) -> None:
    trace = read_list(tmp_path, [op(name, 1, 10), op("aten::mm", 2, 1)])
    assert categories(trace) == ["annotation", "op"]
    assert trace.op_args["event"].tolist() == [1]


def test_external_ids_that_repeat_the_correlation_are_not_believed(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 9), launch(5, 1, 1), kernel(5, 3, 1), kernel(6, 5, 1)]
    for event in events[1:]:
        event["args"]["External id"] = event["args"]["correlation"]
    trace = read_list(tmp_path, events)
    assert trace.device_args["external_id"].isna().all()
    assert trace.launch_args["external_id"].isna().all()
    assert trace.device_args["correlation"].tolist() == [5, 6]
    assert trace.op_args["external_id"].tolist() == [1]


def test_without_device_work_the_launches_decide_on_external_ids(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 9), launch(5, 1, 1), launch(6, 3, 1)]
    for event in events[1:]:
        event["args"]["External id"] = event["args"]["correlation"]
    assert read_list(tmp_path, events).launch_args["external_id"].isna().all()


def test_external_ids_are_believed_when_most_differ_from_the_correlation(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 9, external_id=7), launch(5, 1, 1), kernel(5, 3, 1), kernel(6, 5, 1)]
    for event, external_id in zip(events[1:], (7, 7, 6), strict=True):
        event["args"]["External id"] = external_id
    trace = read_list(tmp_path, events)
    assert trace.device_args["external_id"].tolist() == [7, 6]
    assert trace.launch_args["external_id"].tolist() == [7]


def test_rocm_before_2_3_takes_device_and_stream_from_the_track(tmp_path: Path) -> None:
    run = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 456, "tid": 456, "ts": 1, "dur": 1}
    work = {"ph": "X", "cat": "kernel", "name": "igemm", "pid": 2, "tid": 3, "ts": 2, "dur": 5}
    trace = read_list(
        tmp_path, [{**run, "args": {"External id": 30, "stream": "0x0"}}, {**work, "args": {"External id": 30}}]
    )
    assert trace.flavour == "rocm"
    # Such files call the correlation 'External id'.
    assert trace.device_args[["device", "stream", "correlation"]].values.tolist() == [[2, 3, 30]]
    assert trace.launch_args["correlation"].tolist() == [30]


@pytest.mark.parametrize(
    ("grid", "blocks"), [([4, 3, 2], 24), ([0, 0, 0], None), ([], None), (None, None), ("[4, 2]", 8)]
)
def test_a_grid_of_nothing_is_unknown(tmp_path: Path, grid: object, blocks: int | None) -> None:
    found = read_list(tmp_path, [kernel(1, 1, 1, grid=grid)]).device_args["blocks"].astype(object)
    assert found.where(found.notna(), None).tolist() == [blocks]


def test_a_process_number_is_not_taken_for_a_device(tmp_path: Path) -> None:
    work = {"ph": "X", "cat": "kernel", "name": "k", "pid": 31_337, "tid": 99_999_999, "ts": 2, "dur": 5}
    trace = read_list(tmp_path, [work])
    assert trace.device_args[["device", "stream"]].isna().all().all()


def test_mtia_waits_are_no_work_and_requests_are_copies(tmp_path: Path) -> None:
    common = {"ph": "X", "cat": "mtia_ccp_events", "pid": 17, "dur": 1}
    trace = read_list(
        tmp_path,
        [
            {**common, "name": "event_wait", "tid": 1, "ts": 1, "args": {"stream": 108}},
            {**common, "name": "pe_exe", "tid": 1, "ts": 2, "args": {"stream": 112, "correlation": 8}},
            {**common, "name": "dma_request", "tid": 1, "ts": 3, "args": {"stream": 105, "size": 1024}},
        ],
    )
    assert trace.flavour == "mtia"
    assert categories(trace) == ["sync", "kernel", "copy"]
    assert trace.device_args[["device", "stream"]].values.tolist() == [[17, 112], [17, 105]]
    assert trace.device_args["bytes"].astype(object).tolist()[1] == 1024


def test_ascend_times_are_strings_of_nineteen_digits_and_tasks_have_no_category(tmp_path: Path) -> None:
    trace = read_bytes(
        tmp_path,
        """[{"ph": "X", "name": "aten::empty", "pid": 437675, "tid": 437675, "ts": "1704161511420306.491", "dur": 13.08,
        "cat": "cpu_op", "args": {"Sequence number": -1, "Fwd thread id": 0}},
        {"name": "aclnnZero", "pid": 800, "tid": 3, "ts": "1704161511420306.492", "dur": 1.35, "args": {"Task Type": "Other",
        "Stream Id": 3, "connection_id": 8}, "ph": "X"},
        {"name": "AscendCL@aclrtSynchronizeStream", "pid": 43767502, "tid": 437675, "ts": "1704161511420589.043",
        "dur": 12.77012757357446, "args": {"level": "acl", "connection_id": 0}, "ph": "X"}]""",
    )
    assert trace.flavour == "npu"
    assert categories(trace) == ["op", "kernel", "runtime"]
    assert trace.events["ts_us"].tolist() == [0.0, 0.001, 282.552]
    assert trace.start_unix_ns == 1704161511420306491
    assert trace.device_args["stream"].tolist() == [3]
    assert trace.device_args["device"].isna().all()


def test_relative_decimal_times_start_at_the_base_of_the_quarter(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [op("a", 7691357119982.877, 1), op("b", 7691357119982.878, 1)])
    trace = read_trace(path)
    assert trace.events["ts_us"].tolist() == [0.0, 0.001]
    assert trace.start_unix_ns == 1_700_000_000_000_000_000 + 7691357119982877
    assert not trace.integer_timestamps


def test_the_base_is_found_behind_the_events_too(tmp_path: Path) -> None:
    events = '[{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 5.5, "dur": 1}]'
    tail = '"traceName": "x", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1000'
    trace = read_bytes(tmp_path, f'{{"schemaVersion": 1, "traceEvents": {events}, {tail}}}')
    assert trace.start_unix_ns == 6500
    assert trace.facts["schemaVersion"] == "1"


def test_epoch_times_with_three_decimals_keep_every_nanosecond(tmp_path: Path) -> None:
    starts = ["1712195495559554.693", "1712195495559554.694", "1712195495559555.001"]
    events = [f'{{"ph": "X", "cat": "cpu_op", "name": "n{ts}", "ts": {ts}, "dur": 0.25}}' for ts in starts]
    trace = read_bytes(tmp_path, f'{{"traceEvents": [{",".join(events)}]}}')
    assert trace.events["ts_us"].tolist() == [0.0, 0.001, 0.308]
    assert trace.start_unix_ns == 1712195495559554693


def test_a_memory_event_of_the_python_exporter_is_no_event_of_the_timeline(tmp_path: Path) -> None:
    memory = {"ph": "X", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 2, "ts": 3, "dur": 0}
    args = {"Bytes": 512, "Device Type": 0, "Device Id": -1, "Addr": 7, "Total Allocated": 2048, "Total Reserved": 4096}
    other = {**memory, "name": "marker"}
    trace = read_list(tmp_path, [op("aten::empty", 1, 5), {**memory, "args": args}, other])
    assert categories(trace) == ["op", "other"]
    assert trace.memory.values.tolist() == [[2.0, "1/2", 512, False, -1, 7, 2048, 4096]]
    assert trace.counts["cpu_instant_event"] == 2


def test_collectives_carry_what_the_trace_says_of_them(tmp_path: Path) -> None:
    reduce = kernel(1, 0, 9, "ncclDevKernel_AllReduce")
    reduce["args"] |= {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "Out msg nelems": 16,
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "4",
        "graph id": 3,
    }
    trace = read_list(tmp_path, [reduce, kernel(2, 20, 1)])
    columns = [
        "collective",
        "input_elements",
        "output_elements",
        "group_size",
        "message_dtype",
        "process_group",
        "graph",
    ]
    assert trace.device_args[columns].iloc[0].tolist() == ["allreduce", 8, 16, 2, "Float", "4", 3]
    assert trace.device_args[columns].iloc[1].isna().all()


def test_equal_calls_share_one_signature_and_calls_without_shapes_have_none(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 1, 1, dims=[[2, 3], [3, 4]], strides=[[3, 1], [4, 1]]),
        op("aten::mm", 3, 1, dims=[[2, 3], [3, 4]], strides=[[3, 1], [4, 1]]),
        op("aten::mm", 5, 1, dims=[[2, 3], [3, 5]], strides=[[3, 1], [5, 1]]),
        op("aten::add", 7, 1, dims=[[2, 3], [3, 4]], strides=[[3, 1], [4, 1]]),
        op("aten::t", 9, 1),
    ]
    trace = read_list(tmp_path, events)
    rows = trace.op_args["signature"]
    assert rows.isna().tolist() == [False] * 4 + [True]
    assert rows[0] == rows[1] != rows[2]
    assert len({rows[0], rows[2], rows[3]}) == 3
    assert trace.signatures.loc[rows[2]].tolist() == [
        "aten::mm",
        "[[2, 3], [3, 5]]",
        '["float", "float"]',
        "[[3, 1], [5, 1]]",
        '["", ""]',
    ]


def test_shapes_that_post_processing_made_a_string_are_unpacked(tmp_path: Path) -> None:
    event = op("aten::mm", 1, 1)
    event["args"]["Input Dims"] = "[[64, 768], [768, 3072]]"
    trace = read_list(tmp_path, [event])
    assert trace.signatures["dims"].tolist() == ["[[64, 768], [768, 3072]]"]


def test_attribute_paths_of_modules_come_from_the_top_of_our_own_traces(tmp_path: Path) -> None:
    paths = {"Linear_0": "encoder.layer.0\x1b[31m", "Odd_0": ["x"], "Long_0": "x" * 301, "Empty_0": ""}
    trace = read_trace(write_trace(tmp_path / "t.json", [op("aten::mm", 1, 1)], bottleneckModules=paths))
    assert trace.module_paths == {"Linear_0": "encoder.layer.0\\x1b[31m"}


def test_devices_ranks_and_versions_come_from_the_top(tmp_path: Path) -> None:
    trace = read_trace(
        write_trace(
            tmp_path / "t.json",
            [op("aten::mm", 1, 1), kernel(1, 2, 2), memcpy(2, 5, 1, 640)],
            distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
            cuda_driver_version=12040,
            host_name="secret-host",
            with_stack=1,
        )
    )
    assert trace.devices == (DeviceProperties(0, "NVIDIA H100 80GB HBM3", 85018279936, 132, "9.0", 32),)
    assert (trace.rank, trace.world_size) == (3, 8)
    assert trace.facts["cuda_driver_version"] == "12040"
    assert trace.facts["backend"] == "nccl"
    assert "host_name" not in trace.facts


def test_process_groups_come_from_the_top(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "7", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [3, 2]},
        {"pg_name": "8", "uid": 3, "pg_size": 2},
        {"pg_name": "9", "pg_size": "many", "ranks": [1, "x"]},
        {"pg_desc": "without a name", "ranks": [0]},
        "no group",
    ]
    info = {"rank": 3, "world_size": 4, "pg_count": 6, "pg_config": groups}
    trace = read_trace(write_trace(tmp_path / "t.json", [op("aten::mm", 1, 1)], distributedInfo=info))
    assert trace.process_groups == (
        ProcessGroup("0", "default_pg", 4, (0, 1, 2, 3)),
        ProcessGroup("7", "mesh_tp", 2, (2, 3)),
        ProcessGroup("8", "", 2),
        ProcessGroup("9", "", 0),
    )


def test_a_cpu_run_on_a_machine_with_devices_is_a_cpu_trace(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "t.json", [step(0, 0, 10), op("aten::mm", 1, 1)]))
    assert trace.flavour == "cpu"
    assert len(trace.devices) == 1
    assert slugs(trace) == ["device-listed-alone"]


def test_launches_without_any_recorded_kernel_are_reported(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "t.json", [op("aten::mm", 1, 9), launch(1, 2, 3)]))
    assert trace.flavour == "cpu"
    assert slugs(trace) == ["no-device-events"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nccl:all_reduce", ["device-not-recorded"]),
        ("aten::cudnn_convolution", ["device-not-recorded"]),
        ("fbgemm::permute_1D_sparse_data_cuda", ["device-not-recorded"]),
        ("aten::cudnn_is_acceptable", ["device-listed-alone"]),
        ("gloo:all_reduce", ["device-listed-alone"]),
        ("aten::mkldnn_convolution", ["device-listed-alone"]),
    ],
)
def test_ops_of_a_device_without_its_work_are_half_a_recording(name: str, found: list[str], tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "t.json", [op("aten::mm", 1, 1), op(name, 3, 1)]))
    assert slugs(trace) == found


@pytest.mark.parametrize(
    "text", ['{{"traceEvents": {}}}', "{}", '\n\n  {{ "a" : [1, {{"traceEvents": []}}], "traceEvents" :\n{} }}']
)
def test_an_object_or_a_bare_array_with_any_spacing_is_read(tmp_path: Path, text: str) -> None:
    assert names(read_list(tmp_path, [op("aten::mm", 1, 1)], text)) == ["aten::mm"]


def test_events_nested_deeper_in_metadata_are_not_taken_for_the_list(tmp_path: Path) -> None:
    inner = '"config": {"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "wrong", "ts": 1, "dur": 1}]}'
    trace = read_list(
        tmp_path, [op("right", 1, 1)], "{{" + inner.replace("{", "{{").replace("}", "}}") + ', "traceEvents": {}}}'
    )
    assert names(trace) == ["right"]


def test_frames_of_the_same_microseconds_stand_caller_first(tmp_path: Path) -> None:
    calls = [("zebra", 4), ("apple", 7), ("mango", 5)]
    frames = [complete(name, "python_function", 10, 5, args={"Python id": number}) for name, number in calls]
    assert names(read_list(tmp_path, [op("aten::mm", 10, 5), *frames])) == ["zebra", "mango", "apple", "aten::mm"]


def test_ops_of_the_same_microseconds_stand_caller_first(tmp_path: Path) -> None:
    inner, outer = op("aten::a", 10, 5, external_id=9), op("aten::z", 10, 5, external_id=8)
    mark = complete("forward", "user_annotation", 10, 5)
    call = launch(3, 10, 5)
    assert names(read_list(tmp_path, [call, inner, outer, mark])) == [
        "forward",
        "aten::z",
        "aten::a",
        "cudaLaunchKernel",
    ]
