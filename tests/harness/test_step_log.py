"""The log of a watched run on disk: bounded, and whole up to where the process was killed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bottleneck.harness.step_log import MOST_SLOW, StepLog, fold
from bottleneck.schema.watch_log import (
    STEP_FIELDS,
    STEP_RECORD,
    DeadWorker,
    SeenLine,
    SlowStep,
    WatchHeader,
)

SLOW = SlowStep(1, 1.0, 9.0, 1.0, (9.0, 0, 0, 0, 0), (1.0, 0, 0, 0, 0), 0.0, 1.0, 1.0, 0, 0.0, 0, 0, 0.0)
NAMES = [name for name, _ in STEP_FIELDS]


def record(step: int, us: float = 100.0) -> tuple[Any, ...]:
    values = dict.fromkeys(NAMES, 1.0) | {"end_s": float(step), "first": step, "count": 1, "us": us, "longest_us": us}
    whole = {"first", "count", "batches", "passes", "switches", "faults"}
    return tuple(int(values[name]) if name in whole else values[name] for name in NAMES)


def read(folder: Path) -> list[dict[str, Any]]:
    data = (folder / "steps.rank0.bin").read_bytes()
    return [dict(zip(NAMES, values, strict=True)) for values in STEP_RECORD.iter_unpack(data)]


def test_folding_keeps_sums_the_longest_step_and_where_it_begins_and_ends() -> None:
    folded = dict(zip(NAMES, fold([record(3, 10.0), record(4, 30.0)]), strict=True))
    assert (folded["first"], folded["end_s"], folded["count"]) == (3, 4.0, 2)
    assert (folded["us"], folded["longest_us"], folded["data_us"]) == (40.0, 30.0, 2.0)
    assert folded["memory_bytes"] == 1.0


def test_a_log_never_outgrows_its_bound_and_loses_no_time(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 0, most_records=100)
    for step in range(1, 2_001):
        log.add([record(step, us=float(step))])
        if step % 50 == 0:
            log.flush()
            assert len(read(tmp_path)) <= 100
    log.close()
    rows = read(tmp_path)
    assert sum(row["count"] for row in rows) == 2_000
    assert sum(row["us"] for row in rows) == pytest.approx(sum(range(1, 2_001)), rel=1e-6)
    assert max(row["longest_us"] for row in rows) == 2_000.0
    assert [row["first"] for row in rows] == sorted(row["first"] for row in rows)


def test_steps_that_wait_to_be_folded_are_written_at_the_end(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 0, most_records=10)
    for step in range(1, 24):
        log.add([record(step)])
        log.flush()
    log.close()
    assert sum(row["count"] for row in read(tmp_path)) == 23


def test_slow_steps_reach_the_disk_with_the_steps_and_go_with_parts_of_steps(tmp_path: Path) -> None:
    log, line = StepLog(tmp_path, 0), SeenLine("train.py:3", "load", 2)
    log.add_slow(replace(SLOW, step=1))
    log.start_over()
    log.add_slow(replace(SLOW, step=7, lines=(line,), dead_workers=(DeadWorker(0, -9),)))
    log.flush()
    log.add_slow(replace(SLOW, step=9))
    log.close()
    lines = (tmp_path / "slow.rank0.jsonl").read_bytes().splitlines()
    first, second = (msgspec.json.decode(text, type=SlowStep) for text in lines)
    assert (first.step, first.lines, first.dead_workers[0].exit_code, second.step) == (7, (line,), -9, 9)


def test_no_more_slow_steps_are_kept_than_it_may_hold(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 0)
    for count in range(MOST_SLOW + 1):
        assert log.takes_slow == (count < MOST_SLOW)
        log.add_slow(SLOW)
    log.close()
    assert len((tmp_path / "slow.rank0.jsonl").read_bytes().splitlines()) == MOST_SLOW


def test_the_header_is_replaced_whole(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 2)
    for steps in (1, 2):
        log.write_header(WatchHeader(2, 4, 0, "optimizer", "optimizer.step of SGD", steps=steps))
    assert json.loads((tmp_path / "watch.rank2.json").read_text())["steps"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["watch.rank2.json"]
