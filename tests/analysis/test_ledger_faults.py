"""Page faults on a CPU: charged to the allocator where new pages, a known rate and the op's own time all show them."""

from dataclasses import replace
from typing import Any

import pytest

from bottleneck.analysis.ledger import FRESH_FROM_BYTES, LedgerResult, build_ledger
from bottleneck.schema.analysis import Device
from bottleneck.schema.tables import MEMORY
from tests.analysis.scenes import MAIN, Event, Op, Scene, table

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
    assert result.overlap.busy_us == pytest.approx(9_300)


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


def test_op_without_a_price_shows_no_faults() -> None:
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


def test_faults_inside_a_data_loader_are_waiting_for_data() -> None:
    loader = Event("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 30_000)
    result = _charged(_MUL, memory=[_allocated(1_100)], events=[loader])
    assert _allocator_us(result) == 0
