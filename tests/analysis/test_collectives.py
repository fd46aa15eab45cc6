"""Collectives by kind and size: payload, bus bandwidth, transfer and waiting, from hand-made and public traces."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.analysis.collectives import NO_GROUP, NO_SIZES, ONE_CALL, kind_of
from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis, CollectiveSummary
from tests import trace_cache
from tests.builders import Event, kernel, launch, op, step, write_trace

MEGA = 1_000_000
HTA = "facebookresearch+HolisticTraceAnalysis__tests__data__"


def collective(number: int, ts: float, dur: float, **more: object) -> list[Event]:
    """A call with its kernel; ``more`` are arguments of the kernel as the profiler spells them."""
    name = str(more.pop("name", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"))
    args = {key.replace("_", " "): value for key, value in more.items()}
    return [launch(number, ts - 5, 2), kernel(number, ts, dur, name, stream=20, args=args)]


def all_reduce(number: int, ts: float, dur: float, elements: int = MEGA, ranks: int = 4) -> list[Event]:
    """One with all that today's profiler tells of it."""
    told = {"Collective_name": "allreduce", "In_msg_nelems": elements, "Out_msg_nelems": elements}
    return collective(number, ts, dur, **told, Group_size=ranks, dtype="Float")


def analysed(folder: Path, *events: Event, **top: object) -> Analysis:
    return analyse([write_trace(folder / "trace.json", [step(1, 0, 1000), step(2, 1000, 1000), *events], **top)])


def only(analysis: Analysis) -> CollectiveSummary:
    assert len(analysis.collectives) == 1
    return analysis.collectives[0]


class TestOneTrace:
    def test_the_quickest_call_is_transfer_and_the_rest_waiting(self, tmp_path: Path) -> None:
        found = only(analysed(tmp_path, *all_reduce(1, 100, 200), *all_reduce(2, 1100, 500)))
        assert (found.name, found.dtype, found.group_size, found.calls) == ("all_reduce", "fp32", 4, 1.0)
        assert (found.us, found.transfer_us, found.wait_us) == (350.0, 200.0, 150.0)
        assert found.bytes == 4 * MEGA and found.reason is None
        # nccl-tests: payload over time, times 2 (n - 1) / n.
        assert found.bus_bytes_per_s == pytest.approx(4 * MEGA / 200e-6 * 1.5)

    def test_other_sizes_are_other_rows_most_time_first(self, tmp_path: Path) -> None:
        small = all_reduce(1, 100, 20, elements=10)
        found = analysed(tmp_path, *small, *all_reduce(2, 300, 200), *all_reduce(3, 1300, 200)).collectives
        assert [one.bytes for one in found] == [4 * MEGA, 20]
        assert [one.reason for one in found] == [None, ONE_CALL]

    def test_one_call_cannot_tell_transfer_from_waiting(self, tmp_path: Path) -> None:
        found = only(analysed(tmp_path, *all_reduce(1, 100, 200)))
        assert (found.transfer_us, found.wait_us, found.reason) == (None, None, ONE_CALL)
        assert found.bus_bytes_per_s == pytest.approx(4 * MEGA / 200e-6 * 1.5)

    def test_time_beside_computation_is_not_exposed(self, tmp_path: Path) -> None:
        work = [launch(9, 120, 2), kernel(9, 150, 100)]
        found = only(analysed(tmp_path, *all_reduce(1, 100, 200), *work, *all_reduce(2, 1100, 200)))
        assert (found.us, found.exposed_us) == (200.0, 150.0)

    def test_a_call_outside_the_steps_sets_the_pace_but_counts_for_nothing(self, tmp_path: Path) -> None:
        found = only(analysed(tmp_path, *all_reduce(1, 100, 300), *all_reduce(2, 1100, 300), *all_reduce(3, 3000, 90)))
        assert (found.calls, found.us, found.transfer_us) == (1.0, 300.0, 90.0)

    @pytest.mark.parametrize(
        ("told", "elements", "name", "factor"),
        [
            ("_allgather_base", (100, 400), "all_gather", 3 / 4),
            ("_reduce_scatter_base", (400, 100), "reduce_scatter", 3 / 4),
            ("reduce_scatter_tensor_coalesced", (400, 100), "reduce_scatter", 3 / 4),
            ("all_to_allv", (400, 400), "all_to_all", 3 / 4),
            ("broadcast", (400, 400), "broadcast", 1.0),
            ("reduce", (400, 400), "reduce", 1.0),
            ("send", (400, 400), "send_recv", 1.0),
        ],
    )
    def test_each_kind_has_its_payload_and_factor(
        self, tmp_path: Path, told: str, elements: tuple[int, int], name: str, factor: float
    ) -> None:
        args = {"Collective_name": told, "In_msg_nelems": elements[0], "Out_msg_nelems": elements[1]}
        more = {"name": "ncclDevKernel_Generic", "Group_size": 4, "dtype": "BFloat16"}
        found = only(analysed(tmp_path, *collective(1, 100, 50, **args, **more)))
        assert (found.name, found.dtype, found.bytes) == (name, "bf16", 800 * found.calls)
        assert found.bus_bytes_per_s == pytest.approx(800 / 50e-6 * factor)

    def test_without_arguments_sizes_are_unknown_and_say_so(self, tmp_path: Path) -> None:
        found = only(analysed(tmp_path, *collective(1, 100, 200), *collective(2, 1100, 500)))
        assert (found.name, found.bytes, found.transfer_us, found.reason) == ("all_reduce", None, None, NO_SIZES)

    def test_the_op_tells_what_the_kernel_does_not(self, tmp_path: Path) -> None:
        calls = [
            op("c10d::alltoall_base_", 80, 30, dims=[[], []]),
            op("record_param_comms", 85, 20, dims=[[500, 2], []], types=["float", ""]),
            *collective(1, 100, 50, name="ncclDevKernel_SendRecv"),
        ]
        found = only(analysed(tmp_path, *calls))
        assert (found.name, found.dtype, found.bytes) == ("all_to_all", "fp32", 4000 * found.calls)
        assert (found.bus_bytes_per_s, found.reason) == (None, NO_GROUP)

    @pytest.mark.parametrize("dims", ['[[500, "2"], []]', '[[[500, "2"]], []]', "[]", "no list", "7"])
    def test_shapes_that_are_no_tensor_tell_nothing(self, tmp_path: Path, dims: str) -> None:
        calls = [op("record_param_comms", 85, 20), *collective(1, 100, 50)]
        calls[0]["args"] |= {"Input Dims": dims, "Input type": ["float", ""]}
        assert only(analysed(tmp_path, *calls)).bytes is None

    @pytest.mark.parametrize(
        ("kernel_name", "dtype", "item"),
        [
            ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "fp32", 4),
            ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", "fp16", 2),
            ("ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclWorkElem)", "bf16", 2),
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "bf16", 2),
        ],
    )
    def test_a_list_of_tensors_has_the_dtype_that_the_kernel_reduces(
        self, tmp_path: Path, kernel_name: str, dtype: str, item: int
    ) -> None:
        lists = {"types": ["TensorList", "", ""]}
        calls = [op("c10d::allreduce_", at, 30, dims=[[[500], [20, 5]], [], []], **lists) for at in (80, 1080)]
        kernels = (*collective(1, 100, 50, name=kernel_name), *collective(2, 1100, 2500, name=kernel_name))
        found = only(analysed(tmp_path, *calls, *kernels))
        assert (found.dtype, found.bytes) == (dtype, 600 * item * found.calls)
        # One size, 50 times as long: the rest is waiting, from one rank.
        assert (found.transfer_us, found.reason) == (50.0 * found.calls, NO_GROUP)
        assert found.wait_us == found.us - found.transfer_us > 0

    def test_a_kernel_that_only_moves_bytes_tells_no_dtype_of_a_list(self, tmp_path: Path) -> None:
        call = op("c10d::broadcast_", 80, 30, dims=[[[500]], []], types=["TensorList", ""])
        name = "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
        assert only(analysed(tmp_path, call, *collective(1, 100, 50, name=name))).bytes is None

    @pytest.mark.parametrize(
        ("name", "dims", "payload"),
        [
            ("c10d::_allgather_base_", [[400], [100]], 1600),
            ("c10d::_reduce_scatter_base_", [[100], [400]], 1600),
            ("c10d::_allgather_base_", [[], [100]], None),
        ],
    )
    def test_the_larger_side_is_the_payload_where_sides_differ(
        self, tmp_path: Path, name: str, dims: list[list[int]], payload: int | None
    ) -> None:
        types = ["float" if size else "" for size in dims]
        calls = [op(name, 80, 30, dims=dims, types=types), op("record_param_comms", 85, 20)]
        found = only(analysed(tmp_path, *calls, *collective(1, 100, 50, name="ncclDevKernel_Generic")))
        assert found.bytes == (None if payload is None else payload * found.calls)

    def test_a_group_of_no_ranks_is_no_group(self, tmp_path: Path) -> None:
        found = only(analysed(tmp_path, *all_reduce(1, 100, 50, ranks=0)))
        assert (found.group_size, found.bus_bytes_per_s) == (None, None)

    def test_calls_before_the_backward_pass_of_a_step_are_counted(self, tmp_path: Path) -> None:
        nodes = [op("autograd::engine::evaluate_function: MmBackward0", at, 50) for at in (400, 1400)]
        sums = [each for at in (100, 600, 1100, 1600) for each in all_reduce(at, at, 20)]
        found = only(analysed(tmp_path, *nodes, *sums))
        assert (found.calls, found.forward_calls) == (2.0, 1.0)
        assert only(analysed(tmp_path, *sums)).forward_calls == 0.0

    def test_computation_alone_has_no_collectives(self, tmp_path: Path) -> None:
        assert analysed(tmp_path, launch(1, 10, 2), kernel(1, 100, 50)).collectives == ()

    def test_a_kernel_without_a_kind_keeps_its_name(self) -> None:
        assert kind_of("ncclDevKernel_Generic").name == ""
        assert kind_of("ncclKernel_ReduceScatter_RING_LL").name == "reduce_scatter"


class TestRanks:
    def ranks(self, folder: Path, *durations: tuple[float, float], sized: bool = True) -> list[Path]:
        """Traces of ranks whose two collectives end together, at 600 and 1600."""
        files = []
        for rank, both in enumerate(durations):
            make = all_reduce if sized else collective
            events = [make(at + 1, 600.0 + 1000 * at - dur, dur) for at, dur in enumerate(both)]
            named = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": len(durations)}}
            marks = [step(1, 0, 1000), step(2, 1000, 1000)]
            files.append(
                write_trace(folder / f"rank{rank}.json", [*marks, *(one for two in events for one in two)], **named)
            )
        return files

    def test_the_quickest_call_of_any_rank_sets_the_pace(self, tmp_path: Path) -> None:
        found = only(analyse(self.ranks(tmp_path, (500.0, 400.0), (300.0, 100.0))))
        assert found.transfer_us == 100.0

    def test_where_sizes_are_unknown_the_rank_that_comes_last_tells(self, tmp_path: Path) -> None:
        found = only(analyse(self.ranks(tmp_path, (500.0, 100.0), (300.0, 400.0), sized=False)))
        assert found.bytes is None and found.transfer_us == pytest.approx((300 + 100) / 2)
        assert found.wait_us == pytest.approx(found.us - 200)
        assert found.reason == f"{NO_SIZES}; transfer is the time of the rank that came last"

    @pytest.mark.parametrize("sized", [True, False])
    def test_the_order_of_ranks_changes_nothing(self, tmp_path: Path, sized: bool) -> None:
        files = self.ranks(tmp_path, (500.0, 400.0), (300.0, 100.0), (350.0, 450.0), sized=sized)
        plain, chance = analyse(files).collectives, random.Random(3)
        for _ in range(5):
            chance.shuffle(files)
            assert analyse(files).collectives == plain


class TestPublicTraces:
    def test_two_gpus_reduce_31_megabytes_at_13_gigabytes_per_second(self, traces: Path) -> None:
        found = trace_cache.analysed(traces / f"{HTA}nccl_parser_config__nccl_data.json.gz").collectives
        largest = max(found, key=lambda one: (one.bytes or 0) / one.calls)
        assert largest.bytes == 7875584 * 4 and largest.group_size == 2
        assert largest.bus_bytes_per_s == pytest.approx(13.0e9, rel=5e-3)
        assert largest.transfer_us is not None and largest.transfer_us < largest.us

    def test_traces_of_2022_have_no_sizes(self, traces: Path) -> None:
        found = trace_cache.analysed(traces / f"{HTA}trace_diff__control__control.json.gz").collectives
        assert {one.name for one in found} == {"all_reduce", "all_to_all", "send_recv"}
        assert {one.reason for one in found} == {NO_SIZES}

    def test_four_ranks_tell_transfer_from_waiting_without_sizes(self, torchrec: Sequence[Path]) -> None:
        found = trace_cache.analysed(*torchrec).collectives
        assert found and all(one.transfer_us is not None and one.bytes is None for one in found)
        assert all(one.transfer_us + one.wait_us == pytest.approx(one.us) for one in found)

    @pytest.fixture
    def torchrec(self, traces: Path) -> Sequence[Path]:
        return sorted(traces.glob("pytorch+torchrec__examples__golden_training__trace__sst_long*"))
