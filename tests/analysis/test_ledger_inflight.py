"""Collectives that threads of the host carry out: what hides them, who waits for them, and what they carry."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis
from bottleneck.schema.records import replace
from tests.builders import Event, complete, frame, kernel, launch, op, step, write_trace

WORKER, OTHER_WORKER = 201, 202
WALL = 1000.0


def gloo(ts: float, dur: float, name: str = "all_reduce", thread: int = WORKER) -> Event:
    """The events that a thread of gloo records for one collective of 4000 bytes."""
    args = {"External id": 9, "Input Dims": [[1000]], "Input type": ["float"], "Concrete Inputs": [""]}
    return complete(f"gloo:{name}", "user_annotation", ts, dur, tid=thread, args=args)


def handed_over(ts: float) -> Event:
    """The op that hands a collective over."""
    return op("c10d::allreduce_", ts, 20, dims=[[[1000]]], types=["TensorList"])


def analysed(folder: Path, events: Sequence[Event], **top: object) -> Analysis:
    """One step of a program on the CPU, with an op at its beginning and its end."""
    ends = (op("aten::mm", 0, 100, dims=[[64, 64], [64, 64]]), op("aten::mm", 900, 100, dims=[[64, 64], [64, 64]]))
    return analyse([write_trace(folder / "trace.json", [step(1, 0, WALL), *ends, *events], deviceProperties=[], **top)])


def share_us(analysis: Analysis, group: str) -> float:
    """Time of a group; the ledger as a whole adds up to the step."""
    assert math.fsum(entry.us for entry in analysis.ledger) == pytest.approx(WALL, rel=1e-12)
    return math.fsum(entry.us for entry in analysis.ledger if entry.group == group)


def test_waiting_for_a_collective_is_communication(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, [handed_over(100), gloo(130, 500)])
    assert share_us(analysis, "communication") == pytest.approx(500)
    [one] = analysis.collectives
    assert (one.name, one.dtype, one.bytes) == ("all_reduce", "fp32", 4000)
    assert (one.us, one.exposed_us) == (pytest.approx(500), pytest.approx(500))


def test_a_program_without_collectives_has_no_communication(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, [handed_over(100), complete("mine:all_reduce", "user_annotation", 130, 500)])
    assert share_us(analysis, "communication") == 0
    assert analysis.collectives == ()


def test_work_hides_the_collective_that_runs_beside_it(tmp_path: Path) -> None:
    analysis = analysed(
        tmp_path, [handed_over(100), gloo(130, 500), op("aten::mm", 130, 300, dims=[[64, 64], [64, 64]])]
    )
    assert share_us(analysis, "communication") == pytest.approx(200)
    [one] = analysis.collectives
    assert (one.us, one.exposed_us) == (pytest.approx(500), pytest.approx(200))


def test_python_hides_it_too_unless_it_waits_inside_a_call(tmp_path: Path) -> None:
    main = frame("train.py(3): main", 0, WALL)
    busy = [handed_over(100), gloo(130, 500), main]
    assert share_us(analysed(tmp_path, busy), "communication") == 0
    waits = frame("<built-in method wait of Work object at 0x7f>", 330, 310)
    assert share_us(analysed(tmp_path, [*busy, waits]), "communication") == pytest.approx(300)


def test_a_data_loader_that_is_waited_for_meanwhile_keeps_its_time(tmp_path: Path) -> None:
    loader = complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", 400, 400)
    analysis = analysed(tmp_path, [handed_over(100), gloo(130, 500), loader])
    assert share_us(analysis, "communication") == pytest.approx(270)
    assert math.fsum(entry.us for entry in analysis.ledger if entry.account == "overhead.input") == pytest.approx(400)


def test_an_op_that_only_waits_hides_nothing(tmp_path: Path) -> None:
    waits = op("_c10d_functional::wait_tensor", 200, 600, dims=[[1000]])
    analysis = analysed(tmp_path, [handed_over(100), gloo(130, 500), waits])
    assert share_us(analysis, "communication") == pytest.approx(500)


def test_two_in_flight_are_counted_once(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, [handed_over(100), gloo(130, 500), gloo(330, 400, "broadcast", OTHER_WORKER)])
    assert share_us(analysis, "communication") == pytest.approx(600)
    exposed = {one.name: one.exposed_us for one in analysis.collectives}
    assert exposed == {"all_reduce": pytest.approx(500), "broadcast": pytest.approx(100)}


def test_a_collective_lies_where_it_was_handed_over(tmp_path: Path) -> None:
    lines = [
        frame("train.py(3): main", 0, WALL),
        frame("train.py(7): sync", 90, 40),
        frame("train.py(9): rest", 140, 800),
    ]
    waits = frame("<built-in method wait of Work object at 0x7f>", 150, 700)
    analysis = analysed(tmp_path, [*lines, handed_over(100), gloo(125, 500), waits])
    row = next(row for row in analysis.kernels if row.op == "gloo:all_reduce")
    handed = next(row for row in analysis.kernels if row.op == "c10d::allreduce_")
    assert row.source == handed.source and row.source is not None
    assert row.bound == "communication"


def test_beside_a_device_the_host_s_collectives_are_no_work(tmp_path: Path) -> None:
    device = [launch(5, 110, 5), kernel(5, 120, 700)]
    with_gloo = analysed(tmp_path, [handed_over(100), *device, gloo(130, 500)])
    without = analysed(tmp_path, [handed_over(100), *device])
    assert share_us(with_gloo, "communication") == 0
    assert replace(with_gloo, recording=without.recording).ledger == without.ledger
    assert with_gloo.totals.op_count == without.totals.op_count


def test_the_rank_that_comes_late_to_gloo_is_named(tmp_path: Path) -> None:
    for rank, ready in enumerate((100, 500)):
        late = [op("aten::mm", 100, ready - 100, dims=[[64, 64], [64, 64]])] if rank else []
        events = [step(1, 0, WALL), op("aten::mm", 0, 90, dims=[[64, 64], [64, 64]]), *late]
        events += [
            handed_over(ready),
            gloo(ready + 25, 600 - ready),
            op("aten::mm", 900, 100, dims=[[64, 64], [64, 64]]),
        ]
        info = {"backend": "gloo", "rank": rank, "world_size": 2}
        write_trace(tmp_path / f"rank{rank}.json", events, deviceProperties=[], distributedInfo=info)
    analysis = analyse([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    assert "Rank 1 is late: rank 0 waits 400 us of 1.00 ms per step in collectives for it" in analysis.verdict.sentence
    assert [rank.skew_us for rank in analysis.ranks] == [0, pytest.approx(400)]
    waiting = [
        math.fsum(entry.us for entry in rank.ledger if entry.group == "communication") for rank in analysis.ranks
    ]
    assert waiting == [pytest.approx(500), pytest.approx(100)]
