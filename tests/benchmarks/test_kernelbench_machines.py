"""Paces of hosts in public traces, and intervals of machines that were left out."""

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.kernelbench.hosts import pace_half, traced_hosts
from benchmarks.kernelbench.judge import Judged
from benchmarks.kernelbench.learn import Timing
from benchmarks.kernelbench.machines import LeftOut, Unseen, board_half, with_boards

H100 = "NVIDIA H100 80GB HBM3"


def trace(folder: Path, name: str, durations: Sequence[float], device: str = H100, launches: int = 1) -> None:
    events = []
    for at, duration in enumerate(durations):
        op = {"ph": "X", "name": "aten::add", "pid": 1, "tid": 1, "ts": at * 1e3, "dur": duration}
        kernels = [{**op, "name": "cudaLaunchKernel", "ts": at * 1e3 + 1.0, "dur": 1.0}] * launches
        events += [op, *kernels]
    content = json.dumps({"deviceProperties": [{"name": device}], "traceEvents": events})
    (folder / name).write_bytes(gzip.compress(content.encode()))


def test_traces_of_one_repository_and_device_are_one_host(tmp_path: Path) -> None:
    trace(tmp_path, "a+b__one.json.gz", [10.0] * 20)
    trace(tmp_path, "a+b__two.json.gz", [14.0] * 20)
    trace(tmp_path, "c+d__one.json.gz", [30.0] * 20)
    (tmp_path / "broken.json").write_text("{")
    assert [(host.source, host.op_us) for host in traced_hosts(tmp_path)] == [("a+b", 12.0), ("c+d", 30.0)]


def test_only_ops_that_launch_one_kernel_on_a_device_of_nvidia_tell_a_pace(tmp_path: Path) -> None:
    trace(tmp_path, "a+b__none.json.gz", [10.0] * 20, launches=0)
    trace(tmp_path, "c+d__several.json.gz", [10.0] * 20, launches=2)
    trace(tmp_path, "e+f__amd.json.gz", [10.0] * 20, device="AMD Instinct MI300X")
    trace(tmp_path, "g+h__few.json.gz", [10.0] * 3)
    assert traced_hosts(tmp_path) == []


def test_host_of_an_older_board_is_held_against_hosts_of_its_year(tmp_path: Path) -> None:
    trace(tmp_path, "a+b__t4.json.gz", [14.641] * 20, device="Tesla T4")
    trace(tmp_path, "c+d__h100.json.gz", [10.0] * 20)
    old, new = traced_hosts(tmp_path)
    assert old.score == pytest.approx(new.score)


def test_interval_of_a_host_holds_four_of_five_others_whatever_the_middle_of_their_group() -> None:
    near, far = [0.0, 0.1, 0.2, 0.3], [5.0, 5.1, 5.2, 5.3]
    half = pace_half((near, far))
    assert half == pytest.approx(0.15 * 4 / 3)
    assert pace_half(([2 * score for score in near], [2 * score for score in far])) == pytest.approx(2 * half)


def left_out(ratio: float, host_part: float = 0.0, half: float = 0.1, machine: str = "one") -> LeftOut:
    timing = Timing("1", "level1", 1, "name", machine, "device", "eager", 100.0 * ratio)
    return LeftOut(Judged(timing, 100.0, (), "many"), half, half, host_part)


def unseen(ratios: Sequence[float], machine: str, *, is_board: bool = True) -> Unseen:
    timings = tuple(left_out(ratio, machine=machine) for ratio in ratios)
    return Unseen(machine, is_board, timings, timings)


def test_spread_between_boards_brings_enough_timings_of_each_into_their_intervals() -> None:
    board = unseen([1.0 + 0.01 * at for at in range(100)], "one")
    half = board_half([board])
    inside = sum(timing.widened(half).is_inside for timing in board.given)
    assert 82 <= inside <= 83
    assert half > 0.0


def test_timings_that_lie_inside_or_wait_for_the_host_ask_for_no_spread_between_boards() -> None:
    assert board_half([unseen([1.0] * 10, "one")]) == 0.0
    waiting = tuple(left_out(3.0, host_part=0.9) for _ in range(10))
    quick = unseen([1.0] * 10, "one").given
    assert board_half([Unseen("one", True, waiting, (*waiting, *quick))]) == 0.0


def test_spread_between_boards_comes_from_the_other_boards() -> None:
    good, bad = unseen([1.0] * 10, "one"), unseen([2.0] * 10, "two")
    first, second = with_boards([good, bad])
    assert second.given[0].width == pytest.approx(bad.given[0].width)
    assert first.given[0].width == pytest.approx(math.exp(2 * math.log(2.0)))


def test_machine_whose_board_was_learned_from_gets_no_spread_between_boards() -> None:
    seen = unseen([1.0] * 10, "one", is_board=False)
    boards = [unseen([2.0] * 10, name) for name in ("two", "three")]
    as_it_was, *widened = with_boards([seen, *boards])
    assert as_it_was == seen
    assert all(one.given[0].width > board.given[0].width for one, board in zip(widened, boards, strict=True))
