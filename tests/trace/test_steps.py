"""Where the window begins and ends, and what counts as a step."""

from pathlib import Path

import pytest

from bottleneck.schema.linked_trace import Window
from bottleneck.trace.steps import find_steps, whole_window
from tests.builders import Event, complete, frame, kernel, launch, op, step
from tests.trace.traces import read

START_NS = 1_700_000_000_000_000_000


def work(at: float, correlation: int) -> list[Event]:
    """An op of 10 us that launches a kernel of 20 us."""
    return [op("aten::mul", at, 10), launch(correlation, at + 2, 4), kernel(correlation, at + 15, 20)]


def optimizer(name: str, at: float, dur: float) -> Event:
    return complete(f"Optimizer.step#{name}.step", "user_annotation", at, dur)


def spans(window: Window) -> list[tuple[float, float]]:
    return [(each.start_us, each.end_us) for each in window.steps]


def test_profiler_steps_are_the_steps(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [step(3, 100, 50), *work(110, 1), step(4, 150, 60), *work(160, 2)]))
    assert window.source == "profiler"
    assert [each.name for each in window.steps] == ["ProfilerStep#3", "ProfilerStep#4"]
    assert spans(window) == [(0, 50), (50, 110)]
    assert (window.start_us, window.end_us) == (0, 110)


def test_the_window_ends_with_the_last_work_launched_in_a_step(tmp_path: Path) -> None:
    late = [op("aten::mm", 110, 10), launch(1, 112, 4), kernel(1, 200, 300)]
    window = find_steps(read(tmp_path, [step(0, 100, 50), *late]))
    assert window.end_us == 400


def test_work_launched_after_the_last_step_does_not_stretch_the_window(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [step(0, 100, 50), *work(110, 1), *work(500, 2)]))
    assert window.end_us == 50


def test_work_launched_before_the_first_step_does_not_stretch_the_window(tmp_path: Path) -> None:
    early = [launch(9, 50, 5), kernel(9, 900, 100)]
    window = find_steps(read(tmp_path, [*early, step(0, 100, 50), *work(110, 1)]))
    assert (window.start_us, window.end_us) == (50, 100)


def test_projections_of_steps_on_the_device_are_not_steps(tmp_path: Path) -> None:
    projected = {**step(0, 105, 90), "cat": "gpu_user_annotation", "pid": 0, "tid": 7}
    window = find_steps(read(tmp_path, [step(0, 100, 50), projected, *work(110, 1)]))
    assert spans(window) == [(0, 50)]


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [step(0, 100, 50), step(0, 101, 48), *work(110, 1)]))
    assert spans(window) == [(0, 50)]


def test_a_last_step_without_any_call_is_a_rest(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [step(0, 100, 50), *work(110, 1), step(1, 150, 2)]))
    assert spans(window) == [(0, 50)]


def test_a_lone_step_without_any_call_gives_way_to_the_whole(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [*work(110, 1), step(5, 150, 2)]))
    assert window.source == "whole"


def test_steps_that_overlap_are_set_apart(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [step(0, 100, 50), step(1, 149, 51), *work(110, 1), *work(160, 2)]))
    assert spans(window) == [(0, 50), (50, 100)]


def test_a_step_ends_where_the_optimizer_ends(tmp_path: Path) -> None:
    events = [optimizer("SGD", 100, 10), optimizer("SGD", 200, 20), optimizer("SGD", 300, 5)]
    window = find_steps(read(tmp_path, [*events, op("aten::mul", 100, 5), op("aten::mul", 120, 5)]))
    assert window.source == "optimizer"
    assert spans(window) == [(10, 120), (120, 205)]


def test_only_the_first_optimizer_ends_steps(tmp_path: Path) -> None:
    events = [
        optimizer("SGD", 100, 10),
        optimizer("Adam", 120, 10),
        optimizer("SGD", 200, 10),
        optimizer("Adam", 220, 9),
    ]
    window = find_steps(read(tmp_path, [*events, op("aten::mul", 100, 5)]))
    assert spans(window) == [(10, 110)]


def test_one_optimizer_step_alone_bounds_nothing(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [optimizer("SGD", 100, 10), op("aten::mul", 100, 5)]))
    assert window.source == "whole"


def test_profiler_steps_come_before_optimizer_steps(tmp_path: Path) -> None:
    events = [step(0, 90, 30), optimizer("SGD", 100, 10), optimizer("SGD", 200, 10), *work(100, 1)]
    assert find_steps(read(tmp_path, events)).source == "profiler"


def served(name: str, at: float, dur: float) -> Event:
    return complete(name, "user_annotation", at, dur)


def test_marks_of_an_inference_server_bound_steps_of_any_batch(tmp_path: Path) -> None:
    events = [
        served("execute_8_context_8(sq512sk512sqsq512)_generation_0(sq0sk0)", 100, 80),
        served("execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk520)", 200, 30),
        served("execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk528)", 240, 30),
    ]
    window = find_steps(read(tmp_path, [*events, *work(110, 1), *work(210, 2), *work(250, 3)]))
    assert window.source == "server"
    assert spans(window) == [(0, 100), (100, 140), (140, 170)]
    assert window.end_us == 185


def test_one_mark_of_a_server_bounds_nothing(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, [served("execute_8_context_0()", 100, 80), *work(110, 1)])).source == "whole"


def test_annotations_that_only_begin_like_a_server_s_are_no_steps(tmp_path: Path) -> None:
    events = [
        served(f"execute_model_{part}", 100 * row, 80) for row, part in enumerate(("inputs", "forward", "sample"))
    ]
    assert find_steps(read(tmp_path, [*events, *work(110, 1)])).source == "whole"


def test_marks_of_the_unix_clock_are_laid_on_the_trace(tmp_path: Path) -> None:
    trace = read(tmp_path, [step(0, 100, 50), *work(110, 1), op("aten::mul", 290, 10)])
    assert trace.start_unix_ns == START_NS + 100_000
    window = find_steps(trace, [START_NS + us * 1000 for us in (105, 160, 220)])
    assert window.source == "marks"
    assert spans(window) == [(5, 60), (60, 120)]


def test_marks_that_miss_the_trace_are_not_used(tmp_path: Path) -> None:
    trace = read(tmp_path, [step(0, 100, 50), *work(110, 1)])
    assert find_steps(trace, [START_NS - 9_000_000, START_NS - 8_000_000]).source == "profiler"
    assert find_steps(trace, [START_NS + 110_000]).source == "profiler"


def test_marks_cannot_be_laid_on_a_trace_without_a_wall_clock(tmp_path: Path) -> None:
    trace = read(tmp_path, [step(0, 100, 50), *work(110, 1)], baseTimeNanoseconds=None)
    assert trace.start_unix_ns is None
    assert find_steps(trace, [START_NS, START_NS + 1000]).source == "profiler"


def test_a_trace_without_marks_is_one_step(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [*work(100, 1), *work(200, 2)]))
    assert window.source == "whole"
    assert spans(window) == [(window.start_us, window.end_us)] == [(0, 135)]


def test_orphans_of_the_device_belong_to_the_whole(tmp_path: Path) -> None:
    window = whole_window(read(tmp_path, [kernel(77, 20, 30), *work(100, 1)]))
    assert window.wall_us == 115


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "hipDeviceSynchronize"])
def test_the_synchronisation_with_which_the_profiler_stops_is_not_the_program(tmp_path: Path, name: str) -> None:
    window = whole_window(read(tmp_path, [*work(100, 1), launch(5, 140, 900, name)]))
    assert window.end_us == 35


def test_a_synchronisation_that_the_program_goes_on_after_is_the_program(tmp_path: Path) -> None:
    window = whole_window(read(tmp_path, [launch(5, 90, 10, "cudaDeviceSynchronize"), *work(100, 1)]))
    assert window.start_us == 0
    assert window.end_us == 45


def test_a_synchronisation_inside_an_op_is_the_program(tmp_path: Path) -> None:
    events = [op("aten::mul", 100, 5), op("aten::item", 110, 40), launch(5, 111, 38, "cudaDeviceSynchronize")]
    assert whole_window(read(tmp_path, events)).end_us == 50


def test_spans_of_the_profiler_do_not_count(tmp_path: Path) -> None:
    span = complete("PyTorch Profiler (0)", "Trace", 0, 9000, pid="Spans", tid="PyTorch Profiler")
    overhead = complete("Activity Buffer Request", "overhead", 10, 50, pid=-1, tid=0)
    trace = read(tmp_path, [span, overhead, *work(100, 1)])
    window = whole_window(trace)
    assert (window.start_us, window.end_us) == (100, 135)


def test_python_work_before_the_first_op_counts(tmp_path: Path) -> None:
    window = whole_window(read(tmp_path, [frame("train.py(3): load", 40, 55), *work(100, 1)]))
    assert (window.start_us, window.end_us) == (0, 95)


def test_frames_open_around_the_profiler_count_up_to_its_own_frames(tmp_path: Path) -> None:
    events = [
        frame("train.py(1): <module>", 0, 1000),
        frame("torch/profiler/profiler.py(845): start", 0, 30),
        *work(100, 1),
        frame("torch/profiler/profiler.py(831): __exit__", 200, 800),
        launch(8, 210, 700, "cudaDeviceSynchronize"),
    ]
    window = whole_window(read(tmp_path, events))
    assert (window.start_us, window.end_us) == (30, 200)


def marked(tmp_path: Path, *durations_us: float) -> Window:
    """The window of steps of these durations, marked from the start of the trace."""
    marks_ns, now_us = [START_NS + 100_000], 100.0
    for dur_us in durations_us:
        now_us += dur_us
        marks_ns.append(START_NS + int(now_us * 1000))
    trace = read(tmp_path, [op("aten::mul", 100, now_us - 100)])
    return find_steps(trace, marks_ns)


def test_a_stalled_step_leaves_the_longest_run_beside_it(tmp_path: Path) -> None:
    window = marked(tmp_path, 10, 90, 11, 10, 12)
    assert [round(end - start) for start, end in spans(window)] == [11, 10, 12]
    assert [step.name for step, _ in window.set_aside] == ["step 0", "step 1"]
    assert window.end_us - window.start_us == pytest.approx(33)


def test_steps_that_vary_a_little_are_all_kept(tmp_path: Path) -> None:
    assert marked(tmp_path, 10, 19, 11, 10, 12).set_aside == ()


def test_of_three_steps_none_is_called_unusual(tmp_path: Path) -> None:
    assert len(marked(tmp_path, 10, 90, 10).steps) == 3
