"""Kernels tied to launches, ops and steps, rule by rule."""

import random
from pathlib import Path

import pandas as pd
import pytest

from bottleneck.analysis.faults import find_faults
from bottleneck.errors import TraceError
from bottleneck.schema.linked_trace import Linked
from bottleneck.trace.link import link
from bottleneck.trace.read import read_trace
from bottleneck.trace.steps import find_steps, whole_window
from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step, write_trace
from tests.trace.traces import linked, ops_of_kernels

LEGACY = {"baseTimeNanoseconds": None}


def caveats(result: Linked) -> list[str]:
    return [caveat.slug for caveat in find_faults(result)]


def test_a_kernel_belongs_to_the_innermost_op_open_at_its_launch(tmp_path: Path) -> None:
    ops = [op("aten::linear", 0, 100), op("aten::addmm", 10, 50), op("aten::t", 70, 5)]
    result = linked(tmp_path, [*ops, launch(1, 20, 5), kernel(1, 60, 30), launch(2, 65, 2), kernel(2, 95, 5)])
    assert ops_of_kernels(result) == ["aten::addmm", "aten::linear"]
    assert result.linked_share == 1.0
    assert result.kernels["launch_ts_us"].tolist() == [20, 65]
    assert result.kernels["launch_end_us"].tolist() == [25, 67]
    assert not result.kernels["unlinked"].notna().any()
    assert caveats(result) == []


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_work_that_starts_together_stays_in_the_order_of_its_launches(first: int, second: int, tmp_path: Path) -> None:
    launches = [launch(first, 10, 2), launch(second, 14, 2)]
    together = [kernel(first, 20, 5, "first"), kernel(second, 20, 5, "second", stream=8)]
    for work in (together, together[::-1]):
        assert linked(tmp_path, [*launches, *work]).kernels["name"].tolist() == ["first", "second"]


def test_an_op_of_another_thread_does_not_take_the_kernel(tmp_path: Path) -> None:
    other = op("aten::mm", 0, 100, tid=7)
    result = linked(tmp_path, [other, op("aten::add", 10, 20), launch(1, 15, 5), kernel(1, 30, 10)])
    assert ops_of_kernels(result) == ["aten::add"]


def test_the_tree_gives_parents_depth_children_and_self_time(tmp_path: Path) -> None:
    ops = [op("a", 0, 100), op("b", 10, 30), op("c", 15, 5), op("d", 50, 20)]
    table = linked(tmp_path, ops).ops
    assert table["name"].tolist() == ["a", "b", "c", "d"]
    assert table["parent"].astype(object).where(table["parent"].notna(), None).tolist() == [None, 0, 1, 0]
    assert table["depth"].tolist() == [0, 1, 2, 1]
    assert table["children"].tolist() == [2, 1, 0, 0]
    assert table["self_us"].tolist() == [50, 25, 5, 20]


def test_an_op_that_outlasts_its_parent_is_cut(tmp_path: Path) -> None:
    table = linked(tmp_path, [op("a", 0, 100), op("b", 90, 15)]).ops
    assert table["dur_us"].tolist() == [100, 10]
    assert table["self_us"].tolist() == [90, 10]


def test_of_ops_with_equal_times_the_lower_id_is_the_outer_one(tmp_path: Path) -> None:
    ops = [op("inner", 0, 10, external_id=8), op("outer", 0, 10, external_id=7)]
    assert linked(tmp_path, ops).ops["name"].tolist() == ["outer", "inner"]


def test_of_calls_with_one_correlation_the_latest_before_the_kernel_counts(tmp_path: Path) -> None:
    calls = [
        op("early", 0, 10),
        launch(1, 5, 2),
        op("late", 20, 10),
        launch(1, 25, 2),
        op("after", 90, 9),
        launch(1, 95, 2),
    ]
    assert ops_of_kernels(linked(tmp_path, [*calls, kernel(1, 40, 10)])) == ["late"]


def test_a_kernel_that_seems_to_start_before_its_launch_keeps_it(tmp_path: Path) -> None:
    result = linked(tmp_path, [op("aten::mm", 100, 20), launch(1, 105, 5), kernel(1, 90, 10)])
    assert ops_of_kernels(result) == ["aten::mm"]
    assert caveats(result) == ["clock-skew"]
    assert "by up to 15.0 us" in find_faults(result)[0].message
    assert result.kernels["ts_us"].tolist() == [0]


def test_a_kernel_without_a_launch_is_kept_and_says_so(tmp_path: Path) -> None:
    linked_work = [op("aten::mm", 10, 20), launch(2, 15, 5), kernel(2, 40, 30)]
    result = linked(tmp_path, [kernel(1, 0, 10), *linked_work])
    assert result.kernels["unlinked"].tolist()[0] == "launched_before"
    assert result.kernels["launch"].isna().tolist() == [True, False]
    assert result.kernels["step"].isna().tolist() == [True, False]
    assert result.linked_share == pytest.approx(0.75)
    assert caveats(result) == ["orphans"]
    assert "25.0 % of the device's busy time" in find_faults(result)[0].message
    assert find_faults(result)[0].share == pytest.approx(10 / 70)


@pytest.mark.parametrize(("grid", "blocks"), [([0, 0, 0], None), ([4, 3, 2], 24)])
def test_a_grid_of_nothing_is_an_unknown_grid(tmp_path: Path, grid: list[int], blocks: int | None) -> None:
    result = linked(tmp_path, [op("aten::mm", 10, 20), launch(1, 15, 5), kernel(1, 40, 30, grid=grid)])
    assert result.kernels["blocks"].astype(object).where(lambda column: column.notna(), None).tolist() == [blocks]


@pytest.mark.parametrize(
    ("call", "blocks"),
    [("hipExtModuleLaunchKernel", 31200), ("hipModuleLaunchKernel", 7987200), ("hipLaunchKernel", 7987200)],
)
def test_one_call_of_hip_counts_its_grid_in_threads(tmp_path: Path, call: str, blocks: int) -> None:
    issued = kernel(1, 40, 30, "Cijk_MT128x256x32", grid=[7987200, 1, 1])
    result = linked(tmp_path, [op("aten::bmm", 10, 20), launch(1, 15, 5, call), issued])
    assert result.kernels[["blocks", "threads"]].to_numpy().tolist() == [[blocks, 256]]


@pytest.mark.parametrize(
    ("name", "shared", "family"),
    [
        ("triton_", 12288, "other"),
        ("triton__0d1d2de", 12288, "other"),
        ("triton_", 32, "triton"),
        ("triton_poi_fused_relu_0", 12288, "triton"),
        ("some_pointwise_kernel", 12288, "elementwise"),
    ],
)
def test_a_kernel_of_a_compiler_with_tiles_in_shared_memory_is_of_no_known_kind(
    name: str, shared: int, family: str, tmp_path: Path
) -> None:
    result = linked(tmp_path, [launch(1, 0, 5), kernel(1, 10, 5, name, args={"shared memory": shared})])
    assert result.kernels["family"].tolist() == [family]


def test_an_op_named_after_its_library_tells_that_of_kernels_whose_names_do_not(tmp_path: Path) -> None:
    names = ["sgemm_like", "void at::native::add_kernel<float>", "sgemm_like", "sgemm_like"]
    ops = [op("aten::cudnn_convolution", 0, 40), op("aten::mm", 50, 20), op("aten::add", 80, 9)]
    starts = [10, 20, 55, 95]  # the last one lies outside any op
    calls = [launch(number, at, 2) for number, at in enumerate(starts, 1)]
    work = [kernel(number, 100 + 10 * number, 5, name) for number, name in enumerate(names, 1)]
    library = linked(tmp_path, [*ops, *calls, *work]).kernels["library"]
    assert library.astype(object).where(library.notna(), None).tolist() == ["cuDNN", "ATen", None, None]


def test_the_library_of_an_op_of_a_cpu_is_told_by_its_own_name(tmp_path: Path) -> None:
    ops = [op("aten::conv2d", 0, 90), op("aten::mkldnn_convolution", 10, 70), op("mine::op", 95, 5)]
    library = linked(tmp_path, ops).kernels["library"]
    assert library.astype(object).where(library.notna(), None).tolist() == ["ATen", "oneDNN", None]


def test_the_share_of_a_caveat_counts_overlapping_work_once_and_only_inside_the_window(tmp_path: Path) -> None:
    loose = [kernel(1, 120, 10), kernel(2, 125, 15, stream=8), kernel(3, 126, 5, stream=9), kernel(4, 190, 50)]
    marked = [step(1, 100, 100), op("aten::mm", 101, 20), launch(9, 102, 5), kernel(9, 110, 10)]
    result = linked(tmp_path, [*loose, *marked])
    assert caveats(result) == ["orphans"]
    assert find_faults(result)[0].share == pytest.approx(0.3)


def test_a_trace_without_any_call_does_not_blame_the_window(tmp_path: Path) -> None:
    result = linked(tmp_path, [op("aten::mm", 10, 20), kernel(2, 40, 30)])
    assert result.kernels["unlinked"].tolist() == ["no_launches"]


def test_a_kernel_without_correlation_is_kept_and_says_so(tmp_path: Path) -> None:
    bare = kernel(1, 40, 30)
    del bare["args"]["correlation"]
    result = linked(tmp_path, [op("aten::mm", 10, 20), launch(2, 15, 5), bare])
    assert result.kernels["unlinked"].tolist() == ["no_correlation"]


@pytest.mark.parametrize(("first", "dtype"), [(12, "Int32"), (2**31, "Int64"), (2**40, "Int64")])
def test_ids_beyond_32_bits_tie_a_kernel_to_its_op_too(first: int, dtype: str, tmp_path: Path) -> None:
    bare = kernel(1, 60, 5, args={"External id": first + 1})
    del bare["args"]["correlation"]
    ops = [op("aten::mm", 10, 20, external_id=first), op("aten::add", 35, 20, external_id=first + 1)]
    result = linked(tmp_path, [*ops, bare])
    assert ops_of_kernels(result) == ["aten::add"]
    assert str(result.trace.op_args["external_id"].dtype) == dtype


def test_without_correlation_the_external_id_ties_a_kernel_to_its_op(tmp_path: Path) -> None:
    bare = kernel(1, 40, 30, args={"External id": 12})
    del bare["args"]["correlation"]
    ops = [op("aten::mm", 10, 20, external_id=12), op("aten::add", 35, 20, external_id=13)]
    assert ops_of_kernels(linked(tmp_path, [*ops, bare])) == ["aten::mm"]


def test_an_external_id_that_a_call_shares_with_its_work_is_the_correlation(tmp_path: Path) -> None:
    ops = [op("aten::mm", 10, 20, external_id=12), op("aten::add", 35, 20, external_id=13)]
    work = [launch(1, 15, 2), launch(2, 40, 2), kernel(1, 50, 30), kernel(2, 80, 30)]
    for event in work:
        # Ids of their own, of which one is that of another op.
        event["args"]["External id"] = event["args"].pop("correlation") + 11
    result = linked(tmp_path, [*ops, *work])
    assert result.kernels["launch_ts_us"].notna().all()
    assert ops_of_kernels(result) == ["aten::mm", "aten::add"]


def test_correlation_overrules_the_external_id(tmp_path: Path) -> None:
    ops = [op("aten::mm", 10, 20, external_id=12), op("aten::add", 35, 20, external_id=13)]
    work = [launch(1, 40, 2), kernel(1, 50, 30, args={"External id": 12})]
    assert ops_of_kernels(linked(tmp_path, [*ops, *work])) == ["aten::add"]


def test_external_ids_that_copy_the_correlation_make_no_links(tmp_path: Path) -> None:
    ops = [op("wrong", 10, 20, external_id=1), op("wrong", 35, 20, external_id=2)]
    kernels = [kernel(each, 60 + 10 * each, 5, args={"External id": each}) for each in (1, 2)]
    assert ops_of_kernels(linked(tmp_path, [*ops, *kernels])) == [None, None]


def test_a_launch_outside_any_op_is_no_orphan(tmp_path: Path) -> None:
    result = linked(tmp_path, [op("aten::mm", 0, 20), launch(1, 30, 5), kernel(1, 40, 30)])
    assert result.kernels["unlinked"].tolist() == ["outside_op"]
    assert result.kernels["step"].tolist() == [0]
    assert caveats(result) == ["launched-outside-ops"]


def test_all_kernels_of_a_replayed_graph_are_kept_and_marked(tmp_path: Path) -> None:
    replay = [launch(5, 30, 5, "cudaGraphLaunch"), *(kernel(5, 40 + 10 * each, 9) for each in range(3))]
    result = linked(tmp_path, [op("aten::mm", 0, 20), launch(1, 5, 2), kernel(1, 10, 9), *replay])
    assert result.kernels["replayed"].tolist() == [False, True, True, True]
    assert result.kernels["unlinked"].astype(object).tolist()[1:] == ["graph_replay"] * 3
    assert result.kernels["launch_ts_us"].tolist()[1:] == [30] * 3
    assert caveats(result) == ["graph-replay"]


def test_a_replay_inside_an_op_is_linked_to_it_and_marked(tmp_path: Path) -> None:
    replay = [launch(5, 30, 5, "hipGraphLaunch"), kernel(5, 40, 9), kernel(5, 50, 9)]
    result = linked(tmp_path, [op("Torch-Compiled Region: 0/0", 20, 30), *replay])
    assert ops_of_kernels(result) == ["Torch-Compiled Region: 0/0"] * 2
    assert result.kernels["replayed"].all()
    assert result.kernels["unlinked"].isna().all()


def test_many_kernels_under_one_plain_call_count_as_replayed(tmp_path: Path) -> None:
    work = [launch(5, 5, 5, "cuLaunchSomething"), kernel(5, 40, 9), kernel(5, 50, 9)]
    assert linked(tmp_path, [op("aten::mm", 0, 20), *work]).kernels["replayed"].all()


def test_a_graph_id_marks_a_replay(tmp_path: Path) -> None:
    work = [launch(5, 5, 5), kernel(5, 40, 9, args={"graph id": 3, "graph node id": 1})]
    assert linked(tmp_path, [op("aten::mm", 0, 20), *work]).kernels["replayed"].tolist() == [True]


def test_kinds_separate_computation_collectives_copies_and_fills(tmp_path: Path) -> None:
    fill = {**memcpy(4, 80, 9, 64), "cat": "gpu_memset", "name": "Memset (Device)"}
    named = kernel(5, 100, 9, "my_all_reduce", args={"Collective name": "allreduce", "Group size": 2})
    events = [
        op("aten::x", 0, 20),
        *(launch(each, each, 1) for each in range(1, 6)),
        kernel(1, 30, 9, "ampere_sgemm_128x64_nn"),
        kernel(2, 50, 9, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        memcpy(3, 70, 9, 4096),
        fill,
        named,
    ]
    table = linked(tmp_path, events).kernels
    assert table["kind"].tolist() == ["compute", "collective", "copy", "fill", "collective"]
    assert table["family"].tolist() == ["matmul", "collective", "copy", "fill", "collective"]
    assert table["engine"].tolist() == ["vector", "none", "none", "none", "none"]
    assert table["math_dtype"].astype(object).tolist()[0] == "fp32"
    assert table["bytes"].tolist()[2] == 4096


def test_shape_of_the_launch_is_passed_on(tmp_path: Path) -> None:
    table = linked(tmp_path, [op("aten::x", 0, 20), launch(1, 5, 2), kernel(1, 30, 9, grid=[4, 3, 2])]).kernels
    assert table[["blocks", "threads", "device"]].to_numpy().tolist() == [[24, 256, 0]]
    assert table["stream"].tolist() == ["0/7"]


def test_a_kernel_belongs_to_the_step_of_its_launch(tmp_path: Path) -> None:
    def work(at: float, correlation: int) -> list[Event]:
        return [op("aten::mm", at, 10), launch(correlation, at + 1, 2), kernel(correlation, at + 60, 30)]

    result = linked(tmp_path, [step(0, 100, 50), step(1, 150, 50), *work(110, 1), *work(160, 2), *work(260, 3)])
    steps = result.kernels["step"]
    assert steps.astype(object).where(steps.notna(), None).tolist() == [0, 1, None]
    assert result.ops["step"].isna().tolist() == [False, False, True]


def test_kernels_are_sorted_by_start(tmp_path: Path) -> None:
    work = [launch(1, 5, 1), launch(2, 6, 1), kernel(2, 30, 9, stream=9), kernel(1, 20, 9)]
    assert linked(tmp_path, [op("aten::x", 0, 20), *work]).kernels["ts_us"].tolist() == [20, 30]


def test_a_trace_without_device_work_has_a_kernel_per_op(tmp_path: Path) -> None:
    result = linked(tmp_path, [op("a", 0, 100), op("b", 10, 30), op("c", 0, 5, tid=9)], deviceProperties=[])
    table = result.kernels
    assert result.linked_share is None
    assert table["op"].tolist() == list(range(len(result.ops)))
    assert table["dur_us"].tolist() == result.ops["self_us"].tolist()
    assert set(table["family"]) == {"host"} and set(table["kind"]) == {"compute"}
    assert table["name"].tolist() == result.ops["name"].tolist()
    assert table["stream"].tolist() == result.ops["thread"].tolist()
    assert table["engine"].isna().all() and table["launch"].isna().all()


def test_launches_without_a_kernel_are_reported_when_they_are_many(tmp_path: Path) -> None:
    calls = [launch(each, each, 0.5) for each in range(1, 101)]
    kernels = [kernel(each, 0.6 + each, 0.3) for each in range(1, 98)]
    few = linked(tmp_path, [op("aten::x", 0, 150), *calls, *kernels, kernel(98, 98.6, 0.3)])
    many = linked(tmp_path, [op("aten::x", 0, 150), *calls, *kernels])
    assert caveats(few) == []
    assert caveats(many) == ["kernels-missing"]
    assert "3 of 100" in find_faults(many)[0].message


def test_launches_that_entered_a_graph_are_a_capture_and_not_lost(tmp_path: Path) -> None:
    begin, end = launch(901, 20, 1, "cudaStreamBeginCapture"), launch(902, 80, 1, "cudaStreamEndCapture")
    entered = [launch(each, each, 0.5) for each in range(30, 70)]
    result = linked(tmp_path, [op("aten::x", 0, 150), launch(1, 5, 1), kernel(1, 100, 5), begin, *entered, end])
    assert caveats(result) == ["graph-capture"]
    assert "40 of 41" in find_faults(result)[0].message
    replayed = [kernel(each, 100 + each, 0.5) for each in range(30, 70)]
    assert caveats(linked(tmp_path, [op("aten::x", 0, 150), begin, *entered, end, *replayed])) == []


def test_a_call_that_dwarfs_its_kind_beside_an_idle_device_is_a_one_off(tmp_path: Path) -> None:
    pairs = [(launch(at, 6000 + 100 * at, 50), kernel(at, 6080 + 100 * at, 20)) for at in range(1, 20)]
    steady = [event for pair in pairs for event in pair]
    first = [launch(99, 100, 5000), kernel(99, 5120, 20)]
    result = linked(tmp_path, [op("aten::x", 0, 10000), *first, *steady])
    assert caveats(result) == ["one-off"]
    assert find_faults(result)[0].share == pytest.approx(0.5, abs=0.01)
    assert result.trace.events["dur_us"].iloc[list(result.one_offs)].tolist() == [5000]
    assert caveats(linked(tmp_path, [op("aten::x", 0, 10000), *steady])) == []


@pytest.mark.parametrize(("stalls", "wall"), [(0, 20e3), (4, 60e3), (0, 500e3)], ids=["most", "a quarter", "little"])
def test_a_first_launch_of_milliseconds_is_start_up_whatever_its_share_of_the_window(
    tmp_path: Path, stalls: int, wall: float
) -> None:
    """Two ranks of a job were told start-up at 52.8 % of the window, and compiling at 52.4 %."""
    first = [launch(99, 100, 12_000), kernel(99, 12_120, 20)]
    steady = [
        event for at in range(1, 9) for event in (launch(at, 13e3 + 100 * at, 5), kernel(at, 13e3 + 100 * at, 20))
    ]
    late = [
        event
        for at in range(stalls)
        for event in (launch(200 + at, 15e3 + 9e3 * at, 8e3), kernel(200 + at, 23.1e3 + 9e3 * at, 20))
    ]
    result = linked(tmp_path, [op("aten::x", 0, wall), *first, *steady, *late])
    assert result.trace.events["dur_us"].iloc[list(result.one_offs)].tolist() == [12_000]
    assert caveats(result) == ([] if wall > 120e3 else ["one-off"])


def test_start_up_before_the_steps_is_told(tmp_path: Path) -> None:
    """995 ms of cudaFree, in which a context began, stood before the first of 39 steps, and nothing said so."""
    steps = [
        event
        for at in range(3)
        for event in (
            step(at, 40e3 + 1000 * at, 990),
            op("aten::x", 40e3 + 1000 * at, 900),
            launch(1 + at, 40e3 + 1000 * at + 10, 5),
            kernel(1 + at, 40e3 + 1000 * at + 20, 500),
        )
    ]
    opened = [launch(90, 10, 8e3, "cudaFree"), launch(91, 9e3, 20e3, "cudaFree")]
    result = linked(tmp_path, [op("aten::x", 0, 30e3), *opened, *steps])
    (caveat,) = (fault for fault in find_faults(result) if fault.slug == "start-up-before")
    assert (
        caveat.message.startswith("one-time start-up before these steps (28.0 ms) is not counted")
        and "(20.0 ms)" in caveat.message
    )
    assert result.one_offs == ()
    warm = [launch(90, 10, 400, "cudaFree"), launch(91, 9e3, 500, "cudaFree")]
    assert "start-up-before" not in caveats(linked(tmp_path, [op("aten::x", 0, 30e3), *warm, *steps]))


def test_a_call_of_microseconds_is_no_start_up_however_short_the_window(tmp_path: Path) -> None:
    steady = [event for at in range(1, 20) for event in (launch(at, 60 + at, 0.5), kernel(at, 60.8 + at, 0.2))]
    first = [launch(99, 1, 50), kernel(99, 51.2, 0.2)]
    assert caveats(linked(tmp_path, [op("aten::x", 0, 100), *first, *steady])) == []


def test_a_later_call_that_dwarfs_its_kind_is_no_one_off(tmp_path: Path) -> None:
    steady = [event for at in range(1, 20) for event in (launch(at, 100 * at, 50), kernel(at, 80 + 100 * at, 20))]
    late = [launch(99, 3000, 5000), kernel(99, 8120, 20)]
    assert caveats(linked(tmp_path, [op("aten::x", 0, 10000), *steady, *late])) == []
    first_of_kernel = [launch(99, 3000, 5000), kernel(99, 8120, 20, "another_kernel")]
    assert caveats(linked(tmp_path, [op("aten::x", 0, 10000), *steady, *first_of_kernel])) == ["one-off"]


def test_a_long_call_beside_a_busy_device_is_a_wait_and_no_one_off(tmp_path: Path) -> None:
    work = [launch(1, 50, 20), kernel(1, 80, 5900), launch(2, 6100, 20), kernel(2, 6200, 20)]
    waits = [launch(3, 100, 5900, "cudaDeviceSynchronize"), launch(4, 6300, 20, "cudaDeviceSynchronize")]
    assert caveats(linked(tmp_path, [op("aten::x", 0, 10000), *work, *waits])) == []


def test_calls_that_launch_nothing_are_not_missed(tmp_path: Path) -> None:
    calls = [launch(each, each, 0.5, "cudaEventRecord") for each in range(10, 60)]
    assert caveats(linked(tmp_path, [op("aten::x", 0, 150), *calls, launch(1, 5, 1), kernel(1, 200, 5)])) == []


def test_more_devices_than_any_machine_has_are_refused(tmp_path: Path) -> None:
    def on_devices(count: int) -> list[Event]:
        work = [kernel(each, 10 * each, 2) for each in range(1, count + 1)]
        return [event | {"args": event["args"] | {"device": number}} for number, event in enumerate(work)]

    assert linked(tmp_path, on_devices(72)).kernels["device"].nunique() == 72
    with pytest.raises(TraceError, match="257 devices"):
        linked(tmp_path, on_devices(257))


def test_events_of_unknown_categories_change_nothing(tmp_path: Path) -> None:
    events = [op("aten::x", 0, 20), launch(1, 5, 1), kernel(1, 30, 5)]
    odd = [complete("what", "never_heard_of", 3, 4), complete("Event Sync", "cuda_sync", 8, 40)]
    pd.testing.assert_frame_equal(
        linked(tmp_path, [*events, *odd]).kernels.drop(columns=["event", "launch"]),
        linked(tmp_path, events).kernels.drop(columns=["event", "launch"]),
    )


IDS = [1, 2, 3, None, "x", 2**64, -1]


def odd_event(random_: random.Random) -> Event:
    at = random_.choice([random_.uniform(0, 100), float(random_.randint(0, 30)), 1e12, -5.0, 3.0, 1e300])
    dur = random_.choice([0.0, 1.0, random_.uniform(0, 50), -3.0, 1e13])
    odd = random_.choice(IDS)
    thread = random_.choice([1, 2, "stream 7", -5])
    node = {"Sequence number": odd, "Fwd thread id": random_.choice([0, 1, None, 2**70])}
    return random_.choice(
        [
            op(random_.choice(["a", ""]), at, dur, tid=thread, external_id=odd),
            complete("backward", "cpu_op", at, dur, tid=thread, args=node),
            launch(odd, at, dur, random_.choice(["cudaLaunchKernel", "cudaGraphLaunch", "cudaDeviceSynchronize"])),
            kernel(odd, at, dur, random_.choice(["k", ""]), args={"External id": odd, "graph id": odd}),
            memcpy(odd, at, dur, random_.choice([0, 5, -1])),
            step(random_.randint(0, 2), at, dur),
            frame(random_.choice(["nn.Module: X_0", "a.py(3): f", "torch/profiler/profiler.py(3): stop"]), at, dur),
            complete("Optimizer.step#SGD.step", "user_annotation", at, dur),
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_an_odd_trace_is_linked_and_keeps_its_work(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    events = [odd_event(random_) for _ in range(random_.randint(1, 12))]
    try:
        trace = read_trace(write_trace(tmp_path / "trace.json", events))
    except TraceError:
        return
    for window in (find_steps(trace), whole_window(trace), find_steps(trace, [0, 10**9, 2 * 10**18])):
        result = link(trace, window)
        assert window.wall_us >= 0
        assert len(result.ops) == len(trace.op_args)
        assert len(result.kernels) == (len(trace.device_args) or len(result.ops))


def test_an_annotation_that_is_open_at_the_last_mark_ends_there(tmp_path: Path) -> None:
    closed, left_open = (
        complete("Optimizer.step#Adam.step", "user_annotation", *span) for span in ((10, 30), (150, 900))
    )
    trace = read_trace(write_trace(tmp_path / "trace.json", [op("a", 0, 5), closed, op("a", 100, 5), left_open]))
    assert trace.start_unix_ns is not None
    marks_ns = [trace.start_unix_ns + at_us * 1000 for at_us in (0, 50, 200)]
    spans = link(trace, find_steps(trace, marks_ns)).trace.events.query("category == 'annotation'")
    assert spans["dur_us"].tolist() == [30, 50]
    whole = link(trace, whole_window(trace)).trace.events.query("category == 'annotation'")
    assert whole["dur_us"].tolist() == [30, 900]


@pytest.mark.parametrize(
    ("args", "module"),
    [
        ({"annotation": '[{"name": "layer 3"}, {"name": "attention"}]'}, "layer 3.attention"),
        ({"annotation": [{"name": "attention"}]}, "attention"),
        ({"annotation": "{'str': 'attention', 'stream': 8}"}, "attention"),
        ({"annotation": "attention"}, "attention"),
        ({"str": "attention"}, "attention"),
        ({"annotation": "[]"}, None),
        ({"annotation": "null"}, None),
        ({"annotation": None}, None),
        ({"annotation": 7}, None),
        ({}, None),
    ],
)
def test_marks_of_a_graph_are_the_modules_of_its_kernels(
    tmp_path: Path, args: dict[str, object], module: str | None
) -> None:
    events = [launch(1, 0, 5, "cudaGraphLaunch"), *(kernel(1, 10 + 10 * row, 9, args=args) for row in range(2))]
    found = linked(tmp_path, events).kernels["module"].astype(object)
    assert [each if isinstance(each, str) else None for each in found] == [module] * 2


def test_marks_of_kernels_outside_graphs_are_no_modules(tmp_path: Path) -> None:
    events = [launch(1, 0, 5), kernel(1, 10, 9, args={"annotation": "attention"})]
    assert linked(tmp_path, events).kernels["module"].isna().all()
