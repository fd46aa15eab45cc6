"""Causes injected into hand-built GPU timelines: each is charged under its name, at its line, within 10 %."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.analysis import Analysis, IdleCause
from tests.builders import Event, complete, frame, kernel, launch, memcpy, op, step, write_trace

_STEPS, _STEP_US, _WORK_US = 4, 30_000.0, 3_000.0
_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _timeline(folder: Path, injected: Sequence[Event]) -> Analysis:
    """Four steps of a training loop, with one injection in each: 3 ms of kernels, then the host is held up.

    Times of the injection count from 5 ms into the step, where the device has nothing left to do.
    """
    events = []
    for number in range(_STEPS):
        start, base = number * _STEP_US, 10 * number
        events += [
            step(number, start, _STEP_US),
            frame("train.py(30): main", start, _STEP_US),
            op("aten::mm", start + 10, 40),
            launch(base + 1, start + 20, 10),
            kernel(base + 1, start + 40, _WORK_US, "ampere_sgemm_128x64_nn"),
            *(_moved(event, start + 5_000, base) for event in injected),
        ]
    return analyse([write_trace(folder / "trace.json", events)])


def _moved(event: Event, by: float, correlation: int) -> Event:
    args = dict(event.get("args", {}))
    if "correlation" in args:
        args["correlation"] += correlation
    return {**event, "ts": event["ts"] + by, "args": args}


def _of(analysis: Analysis, cause: str, source: str) -> list[IdleCause]:
    return [row for row in analysis.idle if row.cause == cause and row.source == source]


@pytest.mark.parametrize(
    ("injected", "cause", "source", "detail", "us"),
    [
        (
            [frame("train.py(41): main", 0, 10_000), frame("<built-in function sleep>", 1, 9_998)],
            "wait",
            "main() (train.py:41)",
            "sleep",
            10_000,
        ),
        (
            [frame("train.py(41): main", 0, 10_000), frame("<built-in function compile>", 1, 9_998)],
            "python",
            "main() (train.py:41)",
            "main > compile",
            10_000,
        ),
        (
            [
                frame("train.py(42): main", 0, 8_000),
                op("aten::item", 10, 7_980),
                op("aten::_local_scalar_dense", 12, 7_976),
                launch(2, 20, 6, "cudaMemcpyAsync"),
                memcpy(2, 32, 2, 4, "DtoH (Device -> Pageable)"),
                launch(3, 28, 7_940, "cudaStreamSynchronize"),
            ],
            "sync",
            "main() (train.py:42)",
            "aten::item > cudaStreamSynchronize",
            8_000,
        ),
        (
            [
                frame("train.py(43): main", 0, 12_100),
                complete(_LOADER, "user_annotation", 20, 12_060),
                frame("data.py(6): __getitem__", 40, 12_000),
                frame("data.py(7): __getitem__", 50, 11_950),
                frame("<built-in function sleep>", 51, 11_940),
            ],
            "input",
            "__getitem__() (data.py:7)",
            _LOADER,
            12_000,
        ),
        (
            [
                frame("train.py(44): main", 0, 15_000),
                frame("<built-in function collect>", 5, 14_990),
                complete("Python GC", "user_annotation", 9, 14_980),
            ],
            "gc",
            "main() (train.py:44)",
            "collect",
            15_000,
        ),
        (
            [
                frame("model.py(57): forward", 0, 20_000),
                op("aten::mm", 10, 19_980),
                launch(8, 20, 19_900, "cudaMalloc"),
            ],
            "allocator",
            "forward() (model.py:57)",
            "cudaMalloc",
            19_900,
        ),
        (
            [
                frame("model.py(58): forward", 0, 20_000),
                frame("torch/_dynamo/convert_frame.py(1800): __call__", 5, 19_990),
                op("_compile.compile_inner (dynamo_timed)", 10, 19_900),
                op("aten::mm", 50, 10_000),
            ],
            "compile",
            "forward() (model.py:58)",
            "torch/_dynamo/convert_frame.py: __call__",
            20_000,
        ),
        (
            [
                frame("model.py(59): forward", 0, 20_000),
                op("aten::mm", 10, 19_980),
                launch(8, 20, 19_900, "cuModuleLoadData"),
            ],
            "compile",
            "forward() (model.py:59)",
            "cuModuleLoadData",
            19_900,
        ),
    ],
    ids=["sleep", "python", "item", "getitem", "gc", "cold cudaMalloc", "recompile", "module load"],
)
def test_injected_cause_has_its_name_its_line_and_its_time(
    tmp_path: Path, injected: list[Event], cause: str, source: str, detail: str, us: float
) -> None:
    analysis = _timeline(tmp_path, injected)
    rows = _of(analysis, cause, source)
    assert sum(row.us for row in rows) == pytest.approx(us, rel=0.1)
    assert max(rows, key=lambda row: row.us).detail == detail
    if cause != "python":  # of which the rest of the step is full
        account = {entry.account: entry.us for entry in analysis.ledger}[f"overhead.{cause}"]
        assert account == pytest.approx(us, rel=0.1)
    line = next(fold for fold in analysis.lines if fold.name == source)
    assert line.idle_us == pytest.approx(us, rel=0.1)


def test_timeline_without_an_injection_shows_none_of_these_causes(tmp_path: Path) -> None:
    analysis = _timeline(tmp_path, [])
    assert not {"sync", "input", "wait", "gc", "allocator", "compile"} & {row.cause for row in analysis.idle}
    assert not _of(analysis, "python", "main() (train.py:41)")


def test_injected_wait_of_the_host_leaves_the_queue_empty(tmp_path: Path) -> None:
    queue = _timeline(tmp_path, [frame("<built-in function sleep>", 0, 10_000)]).queue
    assert queue is not None
    assert queue.empty_idle_share == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("length", [10_000.0])
def test_cause_under_cover_of_device_work_costs_nothing(tmp_path: Path, length: float) -> None:
    covered = [launch(5, -4_900, 10), kernel(5, -1_900, length + 2_000)]
    analysis = _timeline(tmp_path, [*covered, frame("train.py(41): main", 0, length)])
    assert sum(row.us for row in _of(analysis, "python", "main() (train.py:41)")) == pytest.approx(0, abs=1)
