"""What explains a step that grew adds up to the growth that was timed, whatever the profiler made of it."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bottleneck.compare.build import compare
from bottleneck.compare.sides import ComparedSide
from bottleneck.errors import WorkloadError
from bottleneck.experiment import record_once
from bottleneck.experiment.side import Side
from bottleneck.experiment.worktree import Base
from bottleneck.gate import run_gate
from bottleneck.gate.count import count
from bottleneck.gate.run_gate import GateRun
from bottleneck.gate.settings import GateSettings
from bottleneck.harness.messages import Program
from bottleneck.pipeline import explain
from bottleneck.schema.comparison import Comparison
from bottleneck.schema.gate_result import TimeResult, WorkloadResult
from bottleneck.schema.measurements import Timing
from bottleneck.schema.records import replace
from tests.builders import frame, op
from tests.test_pipeline import loop_on_cpu, record, taking, with_light_window

PRODUCT = op("aten::mm", 0, 43, dims=[[64, 64], [64, 64]])


def side_with_loop(folder: Path) -> Path:
    """A step of 100 us, told as one of 283 us by its detailed window."""
    rich = record(folder, loop_on_cpu(), marks_us=(0, 283), unprofiled=taking(100.0))
    return with_light_window(rich, [op("aten::mm", 0, 42), op("aten::zeros", 102, 5)], 102)


def side_without(folder: Path) -> Path:
    """The same step without its loop: 80 us."""
    tail = [frame("train.py(1): main", 0, 100), frame("train.py(20): tail", 43, 40)]
    rich = record(folder, [PRODUCT, *tail, op("aten::zeros", 84, 5)], marks_us=(0, 83), unprofiled=taking(80.0))
    return with_light_window(rich, [op("aten::mm", 0, 42), op("aten::zeros", 82, 5)], 82)


def changes(comparison: Comparison) -> dict[str, float]:
    return {bar.account: bar.change_us for bar in comparison.bars}


def test_the_change_of_the_ledger_is_the_change_of_the_step_and_goes_to_python(tmp_path: Path) -> None:
    cases = [explain([made]) for made in (side_without(tmp_path / "a"), side_with_loop(tmp_path / "b"))]
    sides = [ComparedSide(name, name, case=case) for name, case in zip("ab", cases, strict=True)]
    found = compare(*sides)
    assert math.fsum(changes(found).values()) == pytest.approx(20.0)
    assert changes(found)["overhead.python"] == pytest.approx(20.0, rel=0.05)


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Comparison]:
    """Explains a gate whose steps were timed in turns, with recordings made by hand instead of a program's."""

    def write(_: object, program: Program, folder: Path, *__: object) -> None:
        (side_without if folder.name.endswith("base") else side_with_loop)(folder)

    def counted(_: object, folder: Path, *__: object, **___: object) -> Any:
        case = explain([side_with_loop(folder)])
        return SimpleNamespace(case=case, counts=count(case))

    monkeypatch.setattr(record_once.Recorder, "record", write)
    monkeypatch.setattr(run_gate, "count_program", counted)
    monkeypatch.setattr(run_gate, "lacks", lambda *_: None)
    base = Base(Side("before", tmp_path), "before")
    run = GateRun(tmp_path, GateSettings(), tmp_path / "scratch", base)

    def explained(base_us: Timing | None, candidate_us: Timing | None) -> Comparison:
        timed = TimeResult("slower", base_us=base_us, candidate_us=candidate_us)
        result = WorkloadResult("step", ("step.py",), "fail", "", time=timed)
        comparison = run_gate._explain(run, Program("step.py"), result, None).comparison
        assert comparison is not None
        return comparison

    return explained


def test_a_gate_explains_the_growth_that_it_timed(gated: Callable[..., Comparison]) -> None:
    found = gated(taking(90.0), taking(111.0))
    assert math.fsum(changes(found).values()) == pytest.approx(21.0)
    assert changes(found)["overhead.python"] == pytest.approx(21.0, rel=0.2)
    assert found.notes[0] == run_gate._AS_TIMED


def test_without_times_or_another_recording_the_counted_ones_are_compared(
    gated: Callable[..., Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gated(None, None).notes[0] == run_gate._ONE_BY_ONE

    def fail(*_: object, **__: object) -> None:
        raise WorkloadError("it failed", why="", fix="")

    monkeypatch.setattr(run_gate, "record_as_timed", fail)
    assert gated(taking(90.0), taking(111.0)).notes[0] == run_gate._ONE_BY_ONE


def test_a_step_timed_elsewhere_takes_the_place_of_the_recorded_one(tmp_path: Path) -> None:
    source = replace(record_once.find_traces(side_with_loop(tmp_path / "rec"))[0], unprofiled=taking(120.0))
    ledger = record_once.finish(record_once.examine(source)).analysis.ledger
    assert math.fsum(entry.us for entry in ledger) == pytest.approx(120.0)
