"""The ledger on scenes of a few events, and on two public traces whose busy time others have measured."""

from pathlib import Path
from typing import Any

import pytest

from bottleneck.analysis.ledger import LedgerResult, build_ledger, ledger_of
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import GROUPS
from bottleneck.schema.device import Device
from bottleneck.schema.evidence import TwoSided
from bottleneck.schema.records import replace
from bottleneck.schema.tables import FRESH_FROM_BYTES, MEMORY
from tests.analysis.scenes import MAIN, Event, Kernel, Op, Scene, table
from tests.trace_cache import analysed

_TRACELENS = "AMD-AGI+TraceLens__tests__traces__"


def _build(scene: Scene) -> LedgerResult:
    return build_ledger(scene.linked(), scene.roofline())


def _accounts(scene: Scene) -> dict[str, float]:
    return {entry.account: entry.us for entry in _build(scene).ledger.entries}


def test_every_bound_has_an_account_and_every_account_a_group() -> None:
    kernels = [
        Kernel(0, 10, "compute"),
        Kernel(10, 10, "memory"),
        Kernel(20, 10, "overhead"),
        Kernel(30, 10, "unknown"),
        Kernel(40, 10, "communication", kind="collective"),
        Kernel(50, 10, "copy", kind="copy"),
        Kernel(60, 10, "copy", kind="fill"),
        Kernel(70, 10, "transfer", kind="copy"),
    ]
    assert _accounts(Scene(80, kernels)) == {
        "compute": 10.0,
        "memory": 10.0,
        "memory.copy": 20.0,
        "overhead.launch_floor": 10.0,
        "communication": 10.0,
        "transfer": 10.0,
        "unknown": 10.0,
    }
    assert {account.group for account in ACCOUNTS.values()} == set(GROUPS)


def test_computation_hides_collectives_and_collectives_hide_copies() -> None:
    kernels = [
        Kernel(0, 50, "compute"),
        Kernel(20, 50, "communication", kind="collective", stream="0/20"),
        Kernel(30, 60, "copy", kind="copy", stream="0/21"),
    ]
    result = _build(Scene(90, kernels))
    assert result.kernel_us.tolist() == [50.0, 20.0, 20.0]
    assert result.busy_us == 90.0


def test_a_copy_over_the_link_goes_before_one_inside_the_device_and_after_a_collective() -> None:
    kernels = [
        Kernel(0, 20, "communication", kind="collective", stream="0/20"),
        Kernel(10, 30, "transfer", kind="copy", stream="0/21"),
        Kernel(20, 40, "copy", kind="copy"),
    ]
    assert _accounts(Scene(60, kernels)) == {"communication": 20.0, "transfer": 20.0, "memory.copy": 20.0}


def test_concurrent_kernels_share_the_instant_equally() -> None:
    kernels = [Kernel(0, 30, "compute"), Kernel(10, 20, "memory", stream="0/8"), Kernel(20, 10, "memory", stream="0/9")]
    assert _build(Scene(30, kernels)).kernel_us.tolist() == pytest.approx([10 + 5 + 10 / 3, 5 + 10 / 3, 10 / 3])


def test_work_outside_the_window_is_charged_only_inside_it() -> None:
    result = _build(Scene(50, [Kernel(0, 20), Kernel(140, 40), Kernel(300, 5)], start=100))
    assert result.kernel_us.tolist() == [0.0, 10.0, 0.0]


def test_durations_are_per_step() -> None:
    result = _build(Scene(100, [Kernel(0, 40), Kernel(50, 40)], steps=4))
    assert result.ledger.wall_us == 25.0
    assert result.busy_us == 20.0
    assert result.kernel_us.sum() == 80.0


def test_window_without_any_device_work_is_all_idle() -> None:
    scene = Scene(100, [Kernel(500, 10)], events=[Event("annotation", "train", 0, 600)])
    assert _accounts(scene) == {"overhead.python": 100.0}


def test_kernels_without_duration_leave_the_ledger_whole() -> None:
    scene = Scene(100, [Kernel(10, 0), Kernel(20, 0)], events=[Event("annotation", "train", 0, 100)])
    assert _accounts(scene) == {"overhead.python": 100.0}


def test_window_without_length_has_a_ledger() -> None:
    assert _build(Scene(0, [Kernel(0, 0)])).ledger.wall_us == 0.0


def test_several_devices_are_averaged_and_said_to_be() -> None:
    result = _build(Scene(100, [Kernel(0, 100), Kernel(0, 50, device=1, stream="1/7")]))
    assert result.busy_us == 75.0
    assert result.kernel_us.tolist() == [50.0, 25.0]
    assert [caveat.slug for caveat in result.caveats] == ["several-devices"]


def test_device_that_does_nothing_in_the_window_is_not_averaged_in() -> None:
    result = _build(Scene(100, [Kernel(0, 100), Kernel(500, 50, device=1, stream="1/7")]))
    assert (result.devices, result.caveats) == ((0,), ())


def test_host_time_belongs_to_the_innermost_op() -> None:
    ops = [Op(0, 100, "aten::linear", "dispatch"), Op(20, 60, "aten::addmm", "compute", parent=0)]
    assert _accounts(Scene(100, ops=ops)) == {"compute": 60.0, "overhead.dispatch": 40.0}


def test_host_time_outside_ops_is_python_between_annotations() -> None:
    scene = Scene(100, ops=[Op(40, 20)], events=[Event("annotation", "train", 0, 90)])
    assert _accounts(scene) == {"memory": 20.0, "overhead.python": 70.0, "overhead.unknown": 10.0}


@pytest.mark.parametrize(
    ("name", "account"),
    [
        ("aten::empty", "overhead.allocator"),
        ("aten::empty_strided", "overhead.allocator"),
        ("aten::new_empty", "overhead.allocator"),
        ("aten::resize_", "overhead.allocator"),
        ("aten::view", "overhead.dispatch"),
        ("mylib::empty_cache", "overhead.dispatch"),
    ],
)
def test_op_that_only_allocates_is_charged_to_the_allocator(name: str, account: str) -> None:
    assert _accounts(Scene(10, ops=[Op(0, 10, name, "dispatch")])) == {account: 10.0}


def test_ops_of_a_data_loader_are_waiting_for_data() -> None:
    loader = Event("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 50)
    scene = Scene(100, ops=[Op(10, 20, source="data.py:3"), Op(50, 50)], events=[loader])
    assert _accounts(scene) == {"memory": 50.0, "overhead.input": 50.0}
    assert _build(scene).idle.sort_values("us")["source"].tolist() == [None, "data.py:3"]


def test_ops_of_a_compiler_are_compilation() -> None:
    compiling = Event("python", "torch/_dynamo/convert_frame.py(1000): __call__", 0, 50)
    timed = Op(0, 45, "bytecode_tracing (dynamo_timed)", "unknown", source="train.py:8")
    scene = Scene(100, ops=[timed, Op(20, 10, "aten::mul", parent=0), Op(50, 50)], events=[compiling])
    assert _accounts(scene) == {"memory": 50.0, "overhead.compile": 50.0}
    idle = _build(scene).idle
    assert set(idle["detail"]) == {"torch/_dynamo/convert_frame.py: __call__"}
    assert idle.loc[idle["source"] == "train.py:8", "us"].tolist() == [35.0]


def test_threads_that_run_ops_at_once_share_the_instant() -> None:
    ops = [Op(0, 100, bound="compute"), Op(50, 50, bound="memory", thread="1/2")]
    assert _accounts(Scene(100, ops=ops)) == {"compute": 75.0, "memory": 25.0}


def test_neighbours_that_overlap_by_rounding_count_each_microsecond_once() -> None:
    ops = [Op(0, 100, bound="dispatch"), Op(0, 51, bound="compute", parent=0), Op(50, 51, bound="memory", parent=0)]
    assert _accounts(Scene(100, ops=ops)) == {"compute": 50.0, "memory": 50.0}


def test_accounts_that_miss_the_wall_time_are_refused() -> None:
    with pytest.raises(AssertionError, match="miss the wall time"):
        ledger_of({"compute": 99.0}, 100.0)


def test_two_sides_of_a_window_are_told_apart() -> None:
    assert _build(Scene(100, [Kernel(60, 40)])).sides == TwoSided(split=0.6, busy_before=0.0, busy_after=1.0)
    assert _build(Scene(100, [Kernel(0, 30)])).sides == TwoSided(split=0.3, busy_before=1.0, busy_after=0.0)


@pytest.mark.parametrize(
    "kernels",
    [
        [Kernel(0, 100)],
        [Kernel(90, 10)],
        [Kernel(at, 5) for at in range(0, 100, 10)],
        [Kernel(0, 30), *(Kernel(at, 5) for at in range(30, 100, 10))],
    ],
)
def test_window_that_is_alike_throughout_has_one_side(kernels: list[Kernel]) -> None:
    assert _build(Scene(100, kernels)).sides is None


def test_small_bert_on_an_h100_is_busy_for_a_third_of_a_millisecond(traces: Path) -> None:
    analysis = analysed(traces / f"{_TRACELENS}h100__gaunernst_bert-small-uncased__1016001.json.gz")
    assert analysis.totals.busy_us == pytest.approx(309, abs=0.5)
    assert analysis.verdict.bound == "overhead"


def test_timesformer_on_an_h100_is_idle_first_and_busy_then(traces: Path) -> None:
    analysis = analysed(traces / f"{_TRACELENS}h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz")
    assert analysis.totals.busy_us == pytest.approx(158_400, rel=1e-3)
    assert "two-sided-step" in [caveat.slug for caveat in analysis.caveats]
    assert "For the first 57.0 % of the step the device is idle, after that it works" in analysis.verdict.sentence


def test_python_time_behind_freed_tensors_of_a_cpu_trace_is_the_allocators(traces: Path) -> None:
    name = "cpu_tensorboard_logs__hmoss-6a49xb_4025559.1732704788383329918.pt.trace.json.gz"
    shares = {
        entry.account: entry.share for entry in analysed(traces / f"harryjmoss+particle_transformer__{name}").ledger
    }
    assert shares["overhead.allocator"] == pytest.approx(0.088, abs=0.005)  # 9.0 % were Python
    assert shares["overhead.python"] < 0.01


_SIZE = 64 * 2**20
_CPU = Device("a CPU", None, "cpu", 1, {}, None, None, "measured", {}, fresh_bytes_per_s=_SIZE / 10e-3)
_FLOORS = {"compute_us": 0.0, "memory_us": 3_000.0, "launch_us": 1.0}
_MUL = Op(1_000, 19_300, "aten::mul", source="train.py:8", roofline=_FLOORS)


def _allocated(ts: float, size: int = _SIZE, *, on_device: bool = False) -> dict[str, Any]:
    return {"ts_us": ts, "thread": MAIN, "bytes": size, "on_device": on_device}


def _charged(*ops: Op, memory: list[dict[str, Any]], device: Device | None = _CPU, **more: Any) -> LedgerResult:
    scene = Scene(30_000, ops=ops, more={"memory": table(MEMORY, memory)}, **more)
    return build_ledger(scene.linked(), scene.roofline(), device)


def _allocator_us(result: LedgerResult) -> float:
    return sum(entry.us for entry in result.ledger.entries if entry.account == "overhead.allocator")


def test_fresh_result_is_split_into_its_work_and_the_faults_of_its_pages() -> None:
    result = _charged(_MUL, memory=[_allocated(1_100)])
    assert result.kernel_us.tolist() == pytest.approx([9_300])
    told = result.idle[result.idle["cause"] == "allocator"]
    assert told[["source", "detail"]].to_numpy().tolist() == [["train.py:8", "aten::mul > first touch of fresh pages"]]
    assert told["us"].tolist() == pytest.approx([10_000])
    assert result.busy_us == pytest.approx(9_300)


@pytest.mark.parametrize(
    ("memory", "device"),
    [
        ([], _CPU),
        ([_allocated(1_100, FRESH_FROM_BYTES - 1)], _CPU),
        ([_allocated(1_100, -_SIZE)], _CPU),
        ([_allocated(1_100, on_device=True)], _CPU),
        ([_allocated(500)], _CPU),
        ([_allocated(1_100)], replace(_CPU, fresh_bytes_per_s=None)),
        ([_allocated(1_100)], None),
    ],
    ids=["nothing allocated", "small", "freed", "on a device", "outside ops", "no rate", "no device"],
)
def test_op_without_evidence_of_fresh_pages_keeps_its_time(memory: list[dict[str, Any]], device: Device | None) -> None:
    assert _allocator_us(_charged(_MUL, memory=memory, device=device)) == 0


def test_no_more_is_charged_than_the_op_took_beyond_its_floor() -> None:
    quick = replace(_MUL, dur=3_300)
    assert _allocator_us(_charged(quick, memory=[_allocated(1_100)])) == pytest.approx(300)
    at_its_floor = replace(_MUL, dur=3_000)
    assert _allocator_us(_charged(at_its_floor, memory=[_allocated(1_100)])) == 0


def test_op_without_a_cost_shows_no_faults() -> None:
    assert _allocator_us(_charged(replace(_MUL, roofline={}), memory=[_allocated(1_100)])) == 0


def test_op_around_the_allocation_touches_it() -> None:
    outer = replace(_MUL, dur=20_000)
    inner = Op(1_050, 10, "aten::empty", bound="dispatch", parent=0)
    result = _charged(outer, inner, memory=[_allocated(1_055)])
    assert result.idle.loc[result.idle["cause"] == "allocator", "us"].tolist() == pytest.approx([10_000])


def test_next_op_of_the_same_tree_touches_what_an_op_only_handed_out() -> None:
    ops = [
        Op(1_000, 20_000, "aten::ones_like", bound="dispatch"),
        Op(1_010, 20, "aten::empty_like", bound="dispatch", parent=0),
        replace(_MUL, ts=1_100, name="aten::fill_", parent=0),
    ]
    result = _charged(*ops, memory=[_allocated(1_020)])
    assert result.idle.loc[result.idle["detail"] == "aten::fill_ > first touch of fresh pages", "us"].tolist() == [
        10_000
    ]


def test_who_touches_memory_of_a_tree_that_only_hands_it_out_is_not_known() -> None:
    ops = [Op(500, 20, "aten::empty", bound="dispatch"), _MUL]
    assert _charged(*ops, memory=[_allocated(510)]).kernel_us.tolist() == pytest.approx([20, 19_300])


def _freed_after(ts: float, *, on_device: bool = False, size: int = _SIZE) -> list[dict[str, Any]]:
    return [_allocated(ts, -size, on_device=on_device)]


_NEXT = Op(28_000, 2_000, "aten::add", roofline=_FLOORS)


def test_gap_after_a_large_block_is_freed_is_the_allocators_up_to_the_next_event() -> None:
    result = _charged(_MUL, replace(_NEXT, ts=25_300), memory=_freed_after(20_300))
    assert _allocator_us(result) == pytest.approx(5_000)
    told = result.idle[result.idle["cause"] == "allocator"]
    assert told["detail"].tolist() == ["giving freed pages back"]


def test_a_gap_longer_than_giving_the_pages_back_can_take_is_split() -> None:
    result = _charged(replace(_MUL, dur=300), _NEXT, memory=_freed_after(1_300))
    accounts = {entry.account: entry.us for entry in result.ledger.entries}
    assert accounts["overhead.allocator"] == pytest.approx(_SIZE / 4096)
    assert accounts["overhead.python"] >= 28_000 - 1_300 - _SIZE / 4096 - 1


@pytest.mark.parametrize(
    "memory",
    [_freed_after(20_300, size=FRESH_FROM_BYTES - 1), _freed_after(20_300, on_device=True), _freed_after(29_990)],
    ids=["small", "on a device", "nothing after it"],
)
def test_a_gap_without_evidence_of_a_large_block_stays_python(memory: list[dict[str, Any]]) -> None:
    assert _allocator_us(_charged(_MUL, replace(_NEXT, dur=1_990), memory=memory)) == 0


def test_block_freed_inside_an_op_without_work_of_its_own_is_the_allocators() -> None:
    node = Op(1_000, 9_000, "autograd::engine::evaluate_function: MulBackward0", bound="dispatch")
    inner = Op(1_100, 3_000, "aten::mul", parent=0, roofline=_FLOORS)
    result = _charged(node, inner, memory=_freed_after(5_000))
    assert _allocator_us(result) == pytest.approx(5_000)
    assert result.idle.loc[result.idle["cause"] == "allocator", "detail"].tolist() == [
        "MulBackward0 > giving freed pages back"
    ]


def test_host_block_freed_between_ops_of_a_gpu_program_is_the_allocators() -> None:
    ops = [Op(0, 1_000), Op(6_000, 1_000)]
    kernels = [Kernel(500, 500), Kernel(6_500, 500)]
    with_memory = Scene(7_000, kernels, ops=ops, more={"memory": table(MEMORY, _freed_after(1_000))})
    assert _accounts(with_memory)["overhead.allocator"] == pytest.approx(5_000)
    assert "overhead.allocator" not in _accounts(replace(with_memory, more={}))


def test_faults_inside_a_data_loader_are_waiting_for_data() -> None:
    loader = Event("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 30_000)
    result = _charged(_MUL, memory=[_allocated(1_100)], events=[loader])
    assert _allocator_us(result) == 0
