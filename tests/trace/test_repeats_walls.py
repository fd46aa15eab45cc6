"""Steps on host and device together: a window holds the work of its steps, for the time that the device takes."""

from pathlib import Path

import pytest

from bottleneck.pipeline import analyse
from bottleneck.schema.linked_trace import Window
from bottleneck.trace.steps import find_steps
from tests.builders import Event, kernel, launch, op, step, write_trace
from tests.trace.traces import linked, read


def run_ahead(steps: int, host_us: float, device_us: float, *, backlog_us: float = 0.0) -> list[Event]:
    """Steps whose host takes less time than their device; before the first one, the device works off a backlog."""
    events: list[Event] = [kernel(1000, 100, backlog_us)] if backlog_us else []
    free = 100 + backlog_us
    for number in range(steps):
        start = 100 + number * host_us
        begun = max(free, start + 15)
        free = begun + device_us
        events += [step(number, start, host_us), op("aten::mm", start + 10, 20)]
        events += [launch(number + 1, start + 12, 2), kernel(number + 1, begun, device_us)]
    return events


def walls(window: Window) -> list[float]:
    return [each.us for each in window.steps]


def test_a_device_that_lags_behind_gives_its_own_period(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, run_ahead(3, 100, 190, backlog_us=500)))
    assert walls(window) == [190, 190, 190]
    assert (window.start_us, window.end_us) == (500, 500 + 3 * 190)
    assert window.host_us == (0, 300)


def test_the_window_of_a_device_that_lags_holds_the_work_of_its_steps_only(tmp_path: Path) -> None:
    analysis = analyse([write_trace(tmp_path / "trace.json", run_ahead(3, 100, 190, backlog_us=500))])
    assert analysis.steps.wall_us == pytest.approx(190)
    assert analysis.totals.busy_us == pytest.approx(190)
    assert (analysis.totals.kernel_count, analysis.totals.op_count) == (1, 1)


def test_without_a_backlog_the_first_step_begins_on_the_host(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, run_ahead(3, 100, 190)))
    assert walls(window) == [15 + 190, 190, 190]
    assert window.start_us == 0


def test_a_device_that_keeps_up_leaves_the_bounds_to_the_host(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, run_ahead(3, 100, 60)))
    assert walls(window) == [100, 100, 100]
    assert (window.start_us, window.end_us) == (0, 300)


def test_a_later_step_begins_when_the_work_of_those_set_aside_has_ended(tmp_path: Path) -> None:
    events = [step(0, 100, 900), op("aten::mm", 120, 20), launch(50, 130, 5), kernel(50, 140, 1000)]
    events += [step(1 + number, 1000 + 100 * number, 100) for number in range(4)]
    for number in range(4):
        start = 1000 + 100 * number
        events += [op("aten::mm", start + 5, 20), launch(number + 1, start + 7, 2)]
        events += [kernel(number + 1, 1140 + 120 * number, 120)]
    window = find_steps(read(tmp_path, events))
    assert [name.name for name, _ in window.set_aside] == ["ProfilerStep#0"]
    assert (window.start_us, window.wall_us) == (1040, 480)


def test_work_without_a_launch_that_follows_the_first_step_is_no_backlog(tmp_path: Path) -> None:
    events = [step(0, 100, 100), op("aten::mm", 110, 20), launch(1, 115, 5), kernel(1, 130, 20), kernel(77, 150, 20)]
    window = find_steps(read(tmp_path, events))
    assert (window.start_us, window.end_us) == (0, 100)


def test_work_that_outlasts_whole_steps_moves_only_the_end(tmp_path: Path) -> None:
    events = [step(0, 100, 100), op("aten::mm", 110, 20), launch(1, 115, 5), kernel(1, 130, 700, stream=9)]
    events += [step(1, 200, 100), op("aten::mm", 210, 20), launch(2, 215, 5), kernel(2, 230, 20)]
    window = find_steps(read(tmp_path, events))
    assert walls(window) == [100, 630]
    assert (window.start_us, window.end_us) == (0, 730)


def test_kernels_belong_to_the_step_that_launched_them_however_late_they_run(tmp_path: Path) -> None:
    result = linked(tmp_path, run_ahead(3, 100, 190, backlog_us=500))
    assert result.kernels["step"].astype(object).where(result.kernels["step"].notna(), None).tolist() == [None, 0, 1, 2]


def test_the_checkpointed_resnet_on_an_mi300_takes_what_its_device_takes(traces: Path) -> None:
    analysis = analyse([traces / "AMD-AGI+TraceLens__tests__traces__mi300__resnet_act_checkpoint.json.gz"])
    assert analysis.steps.wall_us == pytest.approx(18_839, abs=1)
    assert [each.us for each in analysis.steps.each] == pytest.approx([18_980, 18_983, 18_554], abs=1)
    assert analysis.totals.kernel_count + analysis.totals.copy_count == pytest.approx(895, abs=30)
