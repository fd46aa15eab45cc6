"""Tests of the aids to debugging that the harness reads in its process, and of the time that it takes of them."""

import sys
import tracemalloc
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bottleneck.harness.debug_modes import CaptureClock, DebugWatch, call_us, merged, read_debug_modes
from bottleneck.schema.measurements import DebugMode
from tests.harness.driver import record


def names(environment: dict[str, str], torch: Any = None) -> list[tuple[str, str]]:
    """Names and details of what is on, besides what runs these tests."""
    without = {"trace-function", "profile-function", "monitoring", "development-mode", "debug-build"}
    return [(mode.name, mode.detail) for mode in read_debug_modes(torch, environment) if mode.name not in without]


def test_variables_that_log_or_check_are_told_and_those_that_are_off_are_not() -> None:
    assert names({}) == []
    assert names({"CUDA_LAUNCH_BLOCKING": "0", "TORCH_LOGS": "", "NCCL_DEBUG": "WARN", "PYTHONMALLOC": "malloc"}) == []
    preload = "/usr/lib/gcc/libasan.so.8:/usr/lib/libjemalloc.so.2"
    assert names(
        {
            "CUDA_LAUNCH_BLOCKING": "1",
            "PYTHONMALLOC": "debug",
            "LD_PRELOAD": preload,
            "CUDA_INJECTION64_PATH": "/opt/tools/libsanitizer-collection.so",
            "TORCH_LOGS": "+dynamo",
        }
    ) == [
        ("launch-blocking", ""),
        ("debug-allocator", "PYTHONMALLOC=debug"),
        ("sanitizer", "libasan.so.8"),
        ("injected-tool", "libsanitizer-collection.so"),
        ("environment", "TORCH_LOGS=+dynamo"),
    ]


def test_modes_of_torch_are_asked_for_and_a_version_without_the_question_has_none() -> None:
    torch = SimpleNamespace(
        is_anomaly_enabled=lambda: True,
        is_anomaly_check_nan_enabled=lambda: False,
        are_deterministic_algorithms_enabled=lambda: True,
        version=SimpleNamespace(debug=False),
    )
    assert names({}, torch) == [("anomaly-detection", "without NaN checks"), ("deterministic-algorithms", "")]
    assert names({}, SimpleNamespace()) == []


def test_allocations_that_are_traced_are_told() -> None:
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        assert ("memory-tracing", "") in names({})
    finally:
        if not was_tracing:
            tracemalloc.stop()
    assert was_tracing or names({}) == []


def test_a_foreign_trace_function_is_told_with_the_cost_of_a_call() -> None:
    def follow(*_: object) -> Any:
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        found = DebugWatch().read((), None)
    finally:
        sys.settrace(before)
    mode = next(mode for mode in found if mode.name == "trace-function")
    assert "test_a_foreign_trace_function" in mode.detail and mode.call_us is not None and mode.call_us > 0


def test_what_was_known_of_an_aid_stays_when_it_is_read_again() -> None:
    known = DebugMode("anomaly-detection", source="train.py:5", share=0.3)
    assert merged((known,), (DebugMode("anomaly-detection"), DebugMode("memory-tracing"))) == (
        known,
        DebugMode("memory-tracing"),
    )


def test_a_call_is_timed_by_the_quickest_of_three_rounds() -> None:
    ticks = iter([0, 20_000, 0, 8_000, 0, 40_000])
    assert call_us(lambda: next(ticks)) == pytest.approx(0.4)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of torch that records stack traces, with a function in place of the real one."""
    module = ModuleType("torch.fx.traceback")
    module.__dict__["format_stack"] = lambda: ["File train.py", f"File {sys._getframe(1).f_code.co_filename}"]
    monkeypatch.setitem(sys.modules, "torch.fx.traceback", module)
    return module


def test_stack_traces_are_timed_and_are_the_same_as_before(captures: ModuleType) -> None:
    original = captures.format_stack
    ticks = iter([0, 3_000, 10_000, 15_000])
    clock = CaptureClock(lambda: next(ticks))
    clock.start()
    assert captures.format_stack() == ["File train.py"] and captures.format_stack() == ["File train.py"]
    assert clock.stop() == pytest.approx(8.0)
    assert captures.format_stack is original and clock.stop() is None


def test_the_part_of_the_quickest_of_three_steps_is_kept(captures: ModuleType) -> None:
    ticks = iter([1_000, 2_000, 5_000, 21_000, 31_000, 32_000, 35_000, 41_000, 51_000, 52_000, 59_000, 71_000])
    watch, known = DebugWatch(lambda: next(ticks)), (DebugMode("anomaly-detection"), DebugMode("memory-tracing"))
    watch.begin_step(known)
    for _ in range(2):
        assert watch.is_timing
        captures.format_stack()
        assert watch.end_step(known) == known
    captures.format_stack()
    assert [mode.share for mode in watch.end_step(known)] == [pytest.approx(0.3), None]
    assert not watch.is_timing
    watch.begin_step(known[1:])
    assert not watch.is_timing


def test_a_program_that_ends_early_keeps_the_part_of_its_only_step(captures: ModuleType) -> None:
    ticks = iter([1_000, 2_000, 5_000, 11_000])
    watch, known = DebugWatch(lambda: next(ticks)), (DebugMode("anomaly-detection"),)
    watch.begin_step(known)
    captures.format_stack()
    assert [mode.share for mode in watch.end_step(known, is_last=True)] == [pytest.approx(0.3)]
    assert not watch.is_timing


PROGRAM = """
import torch
torch.autograd.set_detect_anomaly(True)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(80):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(torch.is_anomaly_enabled(), torch.fx.traceback.format_stack.__name__, len(torch.fx.traceback.format_stack()))
"""


@pytest.mark.process
def test_a_recording_keeps_the_mode_the_line_and_the_part_of_a_step(tmp_path: Path) -> None:
    run = record(tmp_path, PROGRAM)
    (mode,) = [each for each in run.recording.debug_modes if each.name == "anomaly-detection"]
    assert mode.source == "program.py:2" and mode.share is not None and 0 < mode.share < 1
    assert run.stdout.startswith("True format_stack ")
    assert run.recording.source_texts["program.py:2"] == "torch.autograd.set_detect_anomaly(True)"


@pytest.mark.process
def test_a_program_without_such_aids_has_none_and_our_own_profiler_is_none(tmp_path: Path) -> None:
    run = record(tmp_path, PROGRAM.replace("set_detect_anomaly(True)", "set_detect_anomaly(False)"))
    assert run.recording.debug_modes == () and run.recording.profiled is not None


@pytest.mark.process
def test_a_workload_is_read_as_well(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
        import torch

        def workload():
            torch.autograd.set_detect_anomaly(True)
            model = torch.nn.Linear(4, 4)
            return lambda: model(torch.ones(2, 4)).sum().backward()
        """,
    )
    (mode,) = run.recording.debug_modes
    assert (mode.name, mode.source) == ("anomaly-detection", "program.py:4") and mode.share is not None
