"""Rules on aids to debugging that were left on."""

from pathlib import Path

import pytest

from bottleneck.advice import advise
from bottleneck.advice.debug_modes import (
    anomaly_detection,
    blocking_launches,
    debug_settings,
    deterministic_fills,
    gradient_check,
    traced_python,
)
from bottleneck.schema.evidence import Evidence
from bottleneck.schema.measurements import DebugMode
from tests.advice.cases import case_of, cpu_events, gpu_events, with_ledger, with_recording
from tests.advice.programs import Call, on_gpu
from tests.builders import Event, complete, frame, kernel, launch, op, step

NODE = "autograd::engine::evaluate_function: MulBackward0"
SIZES = [[64, 64]]


def backward(nodes: int, at: float, *, is_checked: bool = True) -> list[Event]:
    """Nodes of a backward pass of 50 us, one after the other, with the NaN check of anomaly detection in 30 of them."""
    events = []
    for index in range(nodes):
        begin = at + 60 * index
        events += [op(NODE, begin, 50), op("MulBackward0", begin + 1, 15), op("aten::mul", begin + 2, 10, dims=SIZES)]
        if is_checked:
            events += [
                op("aten::isnan", begin + 18, 12, dims=SIZES),
                op("aten::ne", begin + 19, 10, dims=SIZES * 2),
                op("aten::_is_any_true", begin + 31, 10, dims=SIZES),
                op("aten::any", begin + 32, 8, dims=SIZES),
                op("aten::item", begin + 44, 4, dims=[[]]),
            ]
    return events


def training(nodes: int = 20, **more: bool) -> list[Event]:
    """Two steps with a backward pass."""
    length = 60.0 * nodes + 20
    frames = [frame("train.py(12): train", 0, 2 * length)]
    steps = [step(number, length * number, length - 1) for number in range(2)]
    return [*frames, *steps, *backward(nodes, 10, **more), *backward(nodes, length + 10, **more)]


def test_nan_checks_between_backward_nodes_are_the_first_thing_to_take_away(tmp_path: Path) -> None:
    case = case_of(tmp_path, training(), unprofiled_us=1200.0)
    draft = anomaly_detection(case)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    # 30 of the 50 us of each of 20 nodes, and at least 15 us for each stack trace of the forward pass.
    assert 20 * 30 * 0.5 < draft.gain_us.low < 20 * 30 + 20 * 15 < draft.gain_us.high
    assert "20 backward ops" in draft.evidence[0] and "no-anomaly" in draft.tries
    assert advise(case)[0].slug == "anomaly-detection"


def test_the_stack_traces_that_the_program_timed_count_with_the_checks(tmp_path: Path) -> None:
    mode = DebugMode("anomaly-detection", source="train.py:5", share=0.25)
    case = case_of(tmp_path, training(), unprofiled_us=1200.0, debug_modes=(mode,))
    draft = anomaly_detection(case)
    assert draft is not None and draft.gain_us is not None and draft.confidence == "high"
    assert draft.evidence[0] == "switched on at train.py:5"
    assert "300 us per step (25.0 %), timed without the profiler" in draft.evidence[2]
    checks_only = anomaly_detection(with_recording(case, debug_modes=(DebugMode("anomaly-detection", share=0.0),)))
    assert checks_only is not None and checks_only.gain_us is not None
    # Checks take 30 of the 50 us of each node: so much of what is left of the step's ops without stack traces.
    ops_us = checks_only.gain_us.low / 0.6 / 0.9
    assert checks_only.gain_us.high == pytest.approx(1.4 * 0.6 * ops_us)
    assert draft.gain_us.low == pytest.approx(300 + 0.9 * 0.6 * (ops_us - 300))
    assert draft.gain_us.high == pytest.approx(1.2 * 300 + 1.4 * 0.6 * (ops_us - 300))


def test_a_mode_that_shows_in_no_recorded_step_has_no_gain(tmp_path: Path) -> None:
    case = case_of(tmp_path, cpu_events(10, 20, 30), debug_modes=(DebugMode("anomaly-detection"),))
    draft = anomaly_detection(case)
    assert draft is not None and draft.gain_us is None and draft.gain_reason is not None and not draft.comes_first


def test_a_backward_pass_without_checks_and_one_hook_that_looks_for_nan_are_left_alone(tmp_path: Path) -> None:
    assert anomaly_detection(case_of(tmp_path / "a", training(is_checked=False), unprofiled_us=1200.0)) is None
    hooked = [*training(is_checked=False), *(event for event in backward(2, 10) if event["name"] != NODE)]
    assert anomaly_detection(case_of(tmp_path / "b", hooked, unprofiled_us=1200.0)) is None


def test_frames_of_stack_traces_count_less_what_their_own_frames_cost(tmp_path: Path) -> None:
    frames = [
        each
        for begin in (20, 1240)
        for each in (
            frame("torch/fx/traceback.py(497): format_stack", begin, 100),
            *(frame("traceback.py(313): line", begin + 10 + 2 * index, 1) for index in range(20)),
        )
    ]
    draft = anomaly_detection(case_of(tmp_path, [*training(), *frames], unprofiled_us=1200.0))
    assert draft is not None and draft.gain_us is not None
    assert draft.evidence[1] == "1 stack trace of a forward op per step: 100 us under the profiler"
    checks_us = anomaly_detection(
        case_of(
            tmp_path / "b", training(), unprofiled_us=1200.0, debug_modes=(DebugMode("anomaly-detection", share=0),)
        )
    )
    assert checks_us is not None and checks_us.gain_us is not None
    # 20 frames and the one around them. The ops take 1000 us per step, and 100 of them for the stack trace.
    own_us, ops_us = 100 - 1.1 * 21, checks_us.gain_us.low / 0.6 / 0.9
    checks = 600 / 900 * (ops_us - own_us)
    assert draft.gain_us.low == pytest.approx(own_us + 0.9 * checks, rel=0.02)
    assert draft.gain_us.high == pytest.approx(100 + 1.4 * checks, rel=0.02)


def launches(kernel_us: float, *, is_blocking: bool) -> list[Event]:
    """Two steps of 30 kernels, whose launches take as long as they do, or 5 us."""
    length = 30 * (kernel_us + 40)
    events = [frame("train.py(12): train", 0, 2 * length)]
    for number in range(2):
        events.append(step(number, length * number, length - 1))
        for index in range(30):
            at, correlation = length * number + index * (kernel_us + 40), 30 * number + index + 1
            events += [
                op("aten::mm", at, kernel_us + 30 if is_blocking else 20, external_id=correlation),
                launch(correlation, at + 10, kernel_us + 12 if is_blocking else 5),
                kernel(correlation, at + 18, kernel_us),
            ]
    return events


def test_launches_that_outlast_their_kernels_cost_what_both_could_do_side_by_side(tmp_path: Path) -> None:
    draft = blocking_launches(case_of(tmp_path, launches(60, is_blocking=True)))
    assert draft is not None and draft.gain_us is not None
    assert 0 < draft.gain_us.high <= 30 * 40 and ">99.9" not in draft.evidence[0]
    assert draft.evidence == ("100.0 % of 60 launches ended after their kernel",)


def test_launches_that_return_at_once_are_left_alone_unless_the_variable_is_set(tmp_path: Path) -> None:
    events = launches(60, is_blocking=False)
    assert blocking_launches(case_of(tmp_path / "a", events)) is None
    told = case_of(tmp_path / "b", events, debug_modes=(DebugMode("launch-blocking"),))
    draft = blocking_launches(told)
    assert draft is not None and draft.evidence[0] == "CUDA_LAUNCH_BLOCKING is set"


def test_an_outer_profiler_is_worth_a_part_of_python(tmp_path: Path) -> None:
    mode = DebugMode("profile-function", "cProfile.Profile", source="train.py:3", call_us=0.27)
    case = case_of(tmp_path, cpu_events(10, 5, 30), unprofiled_us=310.0, debug_modes=(mode,))
    case = with_ledger(case, {"overhead.python": 200.0, "compute": 100.0})
    draft = traced_python(case)
    assert draft is not None and draft.gain_us is not None and draft.comes_first
    assert (draft.gain_us.low, draft.gain_us.high) == pytest.approx((50.0, 120.0))
    assert draft.evidence[:2] == ("a profiler of Python functions is on: cProfile.Profile", "switched on at train.py:3")
    assert traced_python(with_recording(case, debug_modes=(DebugMode("environment", "TORCH_LOGS=+all"),))) is None


def test_a_gradient_check_in_the_step_is_worth_its_time(tmp_path: Path) -> None:
    events = cpu_events(10, 20, 30)
    check = frame("torch/autograd/gradcheck.py(1800): gradcheck", 20, 200)
    draft = gradient_check(case_of(tmp_path / "a", [*events, check]))
    assert draft is not None and draft.gain_us is not None and draft.gain_us.high == pytest.approx(100.0)
    assert gradient_check(case_of(tmp_path / "b", events)) is None


def test_other_settings_are_named_without_a_figure(tmp_path: Path) -> None:
    modes = (
        DebugMode("deterministic-algorithms", source="train.py:9"),
        DebugMode("dispatch-mode", "FlopCounterMode"),
        DebugMode("sanitizer", "libasan.so.6"),
    )
    case = case_of(tmp_path, cpu_events(10, 20, 30), debug_modes=modes)
    draft = debug_settings(case)
    assert draft is not None and draft.gain_us is None and draft.gain_reason is not None
    assert draft.evidence[0].endswith("new memory is filled (train.py:9)")
    assert draft.evidence[1].startswith("FlopCounterMode sees every op") and "libasan" in draft.evidence[2]
    assert debug_settings(with_recording(case, debug_modes=())) is None


def test_programs_without_such_aids_are_left_alone(tmp_path: Path) -> None:
    for name, case in {
        "cpu": case_of(tmp_path / "cpu", cpu_events(10, 20, 30)),
        "gpu": case_of(tmp_path / "gpu", gpu_events(10, 20, 30)),
    }.items():
        rules = (anomaly_detection, blocking_launches, traced_python, gradient_check, debug_settings)
        assert [rule(case) for rule in rules] == [None] * 5, name


def test_nan_checks_on_a_device_cost_their_kernels_and_the_waits_for_them(tmp_path: Path) -> None:
    events: list[Event] = [step(number, 4000 * number, 3999) for number in range(2)]
    for number in range(2):
        for index in range(20):
            at, first = 4000.0 * number + 150 * index, 3 * (20 * number + index) + 1
            events += [
                op(NODE, at, 140),
                op("MulBackward0", at + 1, 20),
                op("aten::mul", at + 2, 15, dims=SIZES, external_id=first),
                launch(first, at + 5, 5),
                kernel(first, at + 20, 30),
                op("aten::isnan", at + 25, 15, dims=SIZES),
                op("aten::ne", at + 26, 13, dims=SIZES * 2, external_id=first + 1),
                launch(first + 1, at + 28, 5),
                kernel(first + 1, at + 50, 10),
                op("aten::_is_any_true", at + 42, 15, dims=SIZES),
                op("aten::any", at + 43, 13, dims=SIZES, external_id=first + 2),
                launch(first + 2, at + 45, 5),
                kernel(first + 2, at + 61, 10),
                op("aten::item", at + 60, 40, dims=[[]]),
                complete("cudaStreamSynchronize", "cuda_runtime", at + 65, 30),
            ]
    draft = anomaly_detection(case_of(tmp_path, events))
    assert draft is not None and draft.gain_us is not None
    # Two kernels of 10 us for each of 20 nodes; at most the host's 75 us of each besides.
    assert draft.gain_us.low >= 20 * 20 and draft.gain_us.high <= 20 * (20 + 75 + 95)


LARGE = [[4000, 4000]]


def filled(folder: Path, parent: str) -> Evidence:
    """A tensor of new memory that is filled for 300 us, beside a kernel of 600 us."""
    return on_gpu(
        folder,
        [
            Call("aten::fill_", 300, [*LARGE, []], "FillFunctor<float>", inside=parent),
            Call("aten::mul", 600, LARGE * 2),
        ],
    )


@pytest.mark.parametrize("parent", ["aten::empty", "aten::empty_like", "aten::resize_"])
def test_new_memory_that_is_filled_is_worth_the_fill(tmp_path: Path, parent: str) -> None:
    draft = deterministic_fills(filled(tmp_path, parent))
    assert draft is not None and draft.gain_us is not None
    assert 0.8 * 300 < draft.gain_us.low < draft.gain_us.high == pytest.approx(300.0, rel=0.1)
    assert "fill_uninitialized_memory" in (draft.code or "")


@pytest.mark.parametrize("parent", ["aten::full", "aten::zeros"])
def test_fills_that_the_program_asked_for_are_left_alone(tmp_path: Path, parent: str) -> None:
    assert deterministic_fills(filled(tmp_path, parent)) is None
