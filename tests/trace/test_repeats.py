"""Steps found without marks from repeated work, sequences that do not loop, and windows with their work."""

import csv
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.pipeline import analyse
from bottleneck.schema.linked_trace import Window
from bottleneck.trace.read import read_trace
from bottleneck.trace.repeats import find_repeats, period_of, repeating_end
from bottleneck.trace.steps import find_steps
from tests.builders import Event, complete, frame, kernel, launch, op, step, write_trace
from tests.trace.traces import linked, read
from tests.trace_cache import analysed

FORWARD = ("aten::linear", "aten::relu", "aten::linear")


def passes(count: int, names: Sequence[str] = FORWARD, *, at: float = 100, period: float = 50) -> list[Event]:
    """Equal passes over ops of 10 us, one pass every ``period``."""
    return [op(name, at + row * period + 12 * place, 10) for row in range(count) for place, name in enumerate(names)]


def annotation(name: str, at: float, dur: float) -> Event:
    return complete(name, "user_annotation", at, dur)


def starts(window: Window) -> list[float]:
    return [each.start_us for each in window.steps]


def spans(window: Window) -> list[tuple[float, float, float]]:
    return [(each.start_us, each.end_us, each.us) for each in window.steps]


def test_equal_passes_are_steps(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, passes(4)))
    assert window.source == "repeats"
    assert starts(window) == [0, 50, 100, 150]
    assert (window.start_us, window.end_us) == (0, 184)


def test_two_passes_are_no_loop(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, passes(2, FORWARD * 3))).source == "whole"


def test_a_few_calls_of_one_op_are_no_loop(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, passes(7, ["aten::mm"]))).source == "whole"
    assert len(find_steps(read(tmp_path, passes(8, ["aten::mm"]))).steps) == 8


def test_a_pass_that_the_recording_cut_short_belongs_to_no_step(tmp_path: Path) -> None:
    calls = [frame("nn.Module: Net_0", 99 + 50 * row, 15) for row in range(4)]
    window = find_steps(read(tmp_path, [*calls, *passes(3), *passes(1, FORWARD[:2], at=250)]))
    assert starts(window) == [0, 50, 100]
    assert window.end_us == 150


def test_a_pass_through_equal_layers_that_ends_with_half_of_one_is_one_step(tmp_path: Path) -> None:
    layers = ["aten::linear", "aten::relu"] * 6
    assert find_steps(read(tmp_path, passes(1, [*layers, "aten::linear"]))).source == "whole"


def test_equal_layers_between_an_embedding_and_a_head_are_one_step(tmp_path: Path) -> None:
    model = [op("aten::embedding", 50, 10), *passes(12), op("aten::log_softmax", 900, 10)]
    assert find_steps(read(tmp_path, model)).source == "whole"


def test_equal_layers_inside_one_module_are_one_step(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, [frame("nn.Module: Net_0", 90, 700), *passes(12)])).source == "whole"


SIMULATION = tuple(f"aten::{name}" for name in ["roll", "add", "mul", "sub", "roll", "mul", "add", "mean", "div"])


def simulation(count: int, *before: Event) -> list[Event]:
    """A program of ops alone that prepares, then goes through so many rounds of nine ops."""
    prepares = [op(name, 10.0 + 12 * place, 10) for place, name in enumerate(("aten::rand", "aten::ones", "aten::mul"))]
    return [*before, *prepares, *passes(count, SIMULATION, period=120)]


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_rounds_of_ops_alone_that_a_program_prepares_are_steps(tmp_path: Path) -> None:
    """A simulation without a module was one step of two seconds."""
    window = find_steps(read(tmp_path, simulation(25)))
    assert (window.source, len(window.steps)) == ("repeats", 25)
    assert starts(window)[:2] == [90, 210]
    cut_short = [*simulation(25), *passes(1, SIMULATION[:4], at=100 + 25 * 120)]
    assert len(find_steps(read(made(tmp_path / "cut"), cut_short)).steps) == 25


def test_fewer_rounds_may_be_layers_unless_calls_of_python_show_that_there_are_none(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, simulation(12))).source == "whole"
    calls = frame("sim.py(20): main", 0, 5000)
    assert len(find_steps(read(made(tmp_path / "calls"), simulation(12, calls))).steps) == 12
    module = frame("nn.Module: Encoder_0", 1, 4000)
    assert find_steps(read(made(tmp_path / "module"), simulation(12, calls, module))).source == "whole"


def test_layers_of_other_shapes_are_no_repeats(tmp_path: Path) -> None:
    layers = [op("aten::mm", 100 + 20 * row, 10, dims=[[64 + row % 5, 64], [64, 64]]) for row in range(12)]
    assert find_steps(read(tmp_path, layers)).source == "whole"
    same = [op("aten::mm", 100 + 20 * row, 10, dims=[[64, 64], [64, 64]]) for row in range(12)]
    assert len(find_steps(read(tmp_path, same)).steps) == 12


def test_passes_of_different_ops_inside_are_no_repeats(tmp_path: Path) -> None:
    inside = [op(f"aten::kernel_{row}", 102 + 50 * row, 5) for row in range(4)]
    assert find_steps(read(tmp_path, [*passes(4), *inside])).source == "whole"


def test_a_first_pass_that_compiles_is_found_but_does_not_count(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [*passes(5), op("inductor::compile", 102, 5)]))
    assert starts(window) == [50, 100, 150, 200]
    assert [(each.name, why.code) for each, why in window.set_aside] == [("step 0", "other_ops")]


def test_beside_an_odd_pass_the_longest_stretch_of_equal_ones_counts(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [*passes(6), op("aten::print", 152, 5)]))
    assert starts(window) == [100, 150, 200, 250]
    assert [why.code for _, why in window.set_aside] == ["cut_by_others", "other_ops"]


def test_one_annotation_around_the_loop_is_looked_into(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, [annotation("model_inference", 95, 400), *passes(4)]))
    assert starts(window) == [5, 55, 105, 155]


def test_annotations_that_repeat_are_steps(tmp_path: Path) -> None:
    regions = [annotation("timed region", 100 + 40 * row, 30) for row in range(5)]
    window = find_steps(read(tmp_path, [*regions, *passes(5, ["aten::mm"], at=105, period=40)]))
    assert starts(window) == [0, 40, 80, 120, 160]


def test_calls_of_one_module_are_steps_whatever_is_prepared_around_them(tmp_path: Path) -> None:
    calls = [frame("nn.Module: Net_0", 195 + 50 * row, 40) for row in range(4)]
    around = [op("aten::empty", 110, 5), op("aten::copy_", 120, 50), op("aten::save", 460, 10)]
    window = find_steps(read(tmp_path, [*around, *calls, *passes(4, at=200)]))
    assert starts(window) == [85, 135, 185, 235]
    assert window.end_us == 275


def test_calls_of_a_module_that_fill_less_than_half_of_the_time_are_not(tmp_path: Path) -> None:
    calls = [frame("nn.Module: Net_0", 195 + 50 * row, 40) for row in range(4)]
    around = [op("aten::copy_", 100, 80), op("aten::save", 400, 900)]
    assert find_steps(read(tmp_path, [*around, *calls, *passes(4, at=200)])).source == "whole"


def test_batches_of_a_data_loader_are_steps_though_the_loader_is_set_up_before(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    setup = [op("aten::empty", 100, 2), op("aten::random_", 103, 2)]
    fetches = [annotation(name, 110 + 50 * row, 10) for row in range(5)]
    window = find_steps(read(tmp_path, [*setup, *fetches, *passes(4, at=122)]))
    assert starts(window) == [10, 60, 110, 160]
    assert window.end_us == 210


def graph_decode(tokens: int) -> list[Event]:
    """A decode loop that replays a graph: copy the token in, launch, pick the next token."""
    events: list[Event] = []
    for row in range(tokens):
        at = 100 + 60 * row
        events += [op("aten::copy_", at, 4), launch(3 * row + 1, at + 10, 5, "cudaGraphLaunch")]
        events += [kernel(3 * row + 1, at + 16 + 9 * place, 8) for place in range(3)]
        events += [op("aten::argmax", at + 20, 4), launch(3 * row + 2, at + 21, 2), kernel(3 * row + 2, at + 44, 5)]
    return events


def test_a_decode_loop_of_graph_launches_has_one_step_per_token(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, graph_decode(6)))
    assert window.source == "repeats"
    assert len(window.steps) == 6
    analysis = analyse([write_trace(tmp_path / "decode.json", graph_decode(6))])
    assert (analysis.totals.kernel_count, analysis.totals.launch_count) == (4, 2)
    assert sum(entry.us for entry in analysis.ledger) == pytest.approx(analysis.steps.wall_us)


def test_graph_launches_of_one_piecewise_step_are_one_step(tmp_path: Path) -> None:
    pieces: list[Event] = [op("aten::embedding", 60, 10)]
    for row in range(9):
        at = 100 + 20 * row
        pieces += [op("aten::attention", at, 5), launch(row, at + 8, 5, "cudaGraphLaunch"), kernel(row, at + 14, 4)]
    assert find_steps(read(tmp_path, [*pieces, op("aten::argmax", 400, 5)])).source == "whole"


def test_what_repeats_many_thousand_times_is_no_step(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, passes(10_001, ["aten::add"], period=12))).source == "whole"


def test_marks_of_the_profiler_come_before_repeats(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, [*passes(4), step(1, 95, 100), step(2, 195, 100)])).source == "profiler"


def test_the_backward_thread_neither_counts_nor_is_cut(tmp_path: Path) -> None:
    backward = [op("autograd::engine::evaluate_function: MmBackward0", 136 + 100 * row, 60, tid=7) for row in range(3)]
    window = find_steps(read(tmp_path, [*passes(3, period=100), *backward]))
    assert starts(window) == [0, 100, 200]
    assert window.end_us == 296


def test_an_op_of_another_thread_across_the_bounds_forbids_them(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, [*passes(4), op("aten::index", 130, 40, tid=7)])).source == "whole"
    assert find_steps(read(tmp_path, [*passes(4), op("aten::index", 152, 40, tid=7)])).source == "repeats"


def test_device_work_that_no_call_of_the_loop_explains_forbids_steps(tmp_path: Path) -> None:
    loose = [kernel(900 + row, 110 + 50 * row, 30) for row in range(4)]
    assert find_steps(read(tmp_path, [*passes(4), *loose])).source == "whole"


def test_a_server_whose_threads_each_answer_one_request_is_one_window(tmp_path: Path) -> None:
    requests = [event for row in range(6) for event in passes(1, FORWARD * 2, at=100 + 15 * row)]
    for row, event in enumerate(requests):
        event["tid"] = 500 + row // 6
    window = find_steps(read(tmp_path, requests))
    assert window.source == "whole"
    assert window.wall_us == 75 + 70


def test_several_devices_of_one_process_share_the_steps_of_its_host(tmp_path: Path) -> None:
    events = passes(4)
    for row in range(4):
        for device in (0, 1):
            number = 2 * row + device
            events.append(launch(number, 101 + 50 * row + 12 * device, 2))
            work = kernel(number, 110 + 50 * row, 20 + 14 * device, args={"device": device})
            events.append({**work, "pid": device})
    result = linked(tmp_path, events)
    assert [each.us for each in result.window.steps] == [50, 50, 50, 44]
    assert result.kernels["step"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    analysis = analyse([write_trace(tmp_path / "two.json", events)])
    assert analysis.totals.busy_us == pytest.approx((20 + 34) / 2)
    assert "several-devices" in {caveat.slug for caveat in analysis.caveats}
    assert sum(entry.us for entry in analysis.ledger) == pytest.approx(analysis.steps.wall_us)


@settings(max_examples=settings.default.max_examples // 5, deadline=None)
@given(st.randoms(), st.integers(1, 10**6))
def test_neither_the_order_of_events_nor_ids_nor_the_hour_matter(
    tmp_path_factory: pytest.TempPathFactory, random: Random, later_us: int
) -> None:
    folder = tmp_path_factory.mktemp("moved")
    events = [*graph_decode(4), op("aten::index", 122, 3, tid=7)]
    moved = [{**event, "ts": event["ts"] + later_us, "pid": event["pid"] + 5} for event in events]
    random.shuffle(moved)
    before, after = find_steps(read(folder, events)), find_steps(read(folder, moved))
    assert (before.source, spans(before)) == ("repeats", spans(after))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 6), st.integers(0, 7))
def test_the_period_divides_what_is_made_of_one_unit(unit: list[int], count: int, rest: int) -> None:
    sequence = np.array(unit * count + unit[: min(rest, len(unit))])
    period = period_of(sequence)
    assert (sequence[period:] == sequence[: len(sequence) - period]).all()
    assert period <= len(unit)
    assert all((sequence[less:] != sequence[: len(sequence) - less]).any() for less in range(1, period))


@given(
    st.lists(st.integers(10, 19), max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=5, unique=True),
    st.integers(2, 6),
    st.data(),
)
def test_the_end_that_repeats_begins_behind_what_comes_before(
    before: list[int], unit: list[int], count: int, data: st.DataObject
) -> None:
    rest = unit[: data.draw(st.integers(0, len(unit) - 1))]
    codes = np.array([*before, *unit * count, *rest], dtype=np.int64)
    assert repeating_end(codes, 2) == (len(before), len(unit))
    assert repeating_end(codes, count + 2) == (0, 0)


def test_the_period_of_what_never_repeats_is_its_length() -> None:
    assert period_of(np.arange(5)) == 5
    assert period_of(np.arange(0)) == 0


def marked_often(traces: Path) -> list[Path]:
    """The traces with three or more steps of the profiler, by their catalogue."""
    with (traces / "catalog.csv").open() as file:
        return [traces / row["file"] for row in csv.DictReader(file) if int(row["n_profilerstep"] or 0) > 2]


def test_where_the_profiler_marks_steps_the_same_are_found_without_its_marks(traces: Path) -> None:
    agreed = 0
    for path in marked_often(traces):
        trace = read_trace(path)
        found = find_repeats(trace)
        if not found:
            continue
        window = find_steps(trace)
        assert window.source == "profiler"
        every = sorted([*window.steps, *(each for each, _ in window.set_aside)], key=lambda each: each.start_us)
        assert len(found) == len(every), path.name
        length_us = np.median([each.end_us - each.start_us for each in every])
        for (mine, _), theirs in zip(found, every, strict=True):
            assert abs(mine.start_us - theirs.start_us) < 0.05 * length_us, path.name
        agreed += 1
    assert agreed >= 15


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ("elementwise__elem_01", 10),
        ("HarrisNH+dtu_mlops_fork", 10),
        ("Peetzie+dtu_mlops__log__resnet34", 10),
        ("log__resnet18__DESKTOP", 10),
        ("Lightning-AI", 64),
        ("4096_8_128_qlora", 5),
        ("4096_8_128_bnb", 5),
        ("JupyterTracerViz", 3),
        ("pytorch+ao__trace", 100),
        ("quantize_vit__quant_at_8caa43d", 5),
    ],
)
def test_loops_of_public_traces_are_found(traces: Path, part: str, count: int) -> None:
    (path,) = (each for each in traces.iterdir() if part in each.name)
    window = find_steps(read_trace(path))
    assert window.source == "repeats"
    assert len(window.steps) + len(window.set_aside) == count


@pytest.mark.parametrize(
    "part",
    ["trace_100Kpar_4exp", "profiler_trace_single_sample", "sglang_Qwen3-8B_decode", "graph_execution", "Vaksth"],
)
def test_single_passes_of_public_traces_are_one_step(traces: Path, part: str) -> None:
    (path,) = (each for each in traces.iterdir() if part in each.name)
    assert find_steps(read_trace(path)).source == "whole"


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
    analysis = analysed(traces / "AMD-AGI+TraceLens__tests__traces__mi300__resnet_act_checkpoint.json.gz")
    assert analysis.steps.wall_us == pytest.approx(18_839, abs=1)
    assert [each.us for each in analysis.steps.each] == pytest.approx([18_980, 18_983, 18_554], abs=1)
    assert analysis.totals.kernel_count + analysis.totals.copy_count == pytest.approx(895, abs=30)


def _marked(marks: Sequence[str], ops: Sequence[int], *, at: float = 0) -> list[Event]:
    """Marks of 100 us, one after the other, each with so many ops inside."""
    events = []
    for place, (name, count) in enumerate(zip(marks, ops, strict=True)):
        begin = at + 100 * place
        events += [annotation(name, begin, 99)]
        events += [op(f"aten::op{number}", begin + 2 + 9 * number, 8) for number in range(count)]
    return events


LOAD, REPLAY = "load", "replay[tokens={}]"


def test_marks_that_come_in_the_same_order_bound_steps_of_different_ops(tmp_path: Path) -> None:
    marks = [LOAD, REPLAY.format(2901), LOAD, REPLAY.format(1706), LOAD, REPLAY.format(512)]
    window = find_steps(read(tmp_path, _marked(marks, [9, 2, 5, 1, 7, 3])))
    assert window.source == "repeats"
    assert starts(window) == [0, 200, 400]
    assert window.end_us == 599


@pytest.mark.parametrize(
    "marks",
    [
        [LOAD, "replay"] * 2,
        [LOAD, "replay"] * 3 + [LOAD],
        ["layer"] * 6,
        ["layer_0", "layer_1", "layer_2", "head", "layer_3", "loss"],
    ],
    ids=["twice", "one left over", "one mark", "other names"],
)
def test_marks_that_may_be_one_pass_are_no_loop(tmp_path: Path, marks: Sequence[str]) -> None:
    counts = [9, 2, 5, 1, 7, 3, 4][: len(marks)]
    assert find_steps(read(tmp_path, _marked(marks, counts))).source == "whole"


def test_marks_that_cover_little_of_the_time_are_no_steps(tmp_path: Path) -> None:
    late = op("aten::evaluate", 700, 5000)
    events = [*_marked([LOAD, "replay"] * 3, [9, 2, 5, 1, 7, 3]), late]
    assert find_steps(read(tmp_path, events)).source == "whole"
