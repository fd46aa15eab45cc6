"""The window of a trace, its sources of steps, and the steps that are set aside as warm-up or outliers."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.analysis.faults import step_caveats
from bottleneck.schema.linked_trace import Window
from bottleneck.schema.op_names import BACKWARD_NODE
from bottleneck.trace.steps import find_steps, set_aside_reasons, whole_window
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


def calling_closures(count: int, optimizers: Sequence[str] = ("LBFGS",)) -> list[Event]:
    """Set-up, then a step of each optimizer of so many calls of its closure, of 50 us; a critic resets its own too."""
    events = [op("aten::copy_", 0, 20)]
    for turn, name in enumerate(optimizers):
        at = 100 + 1000 * turn
        events.append(optimizer(name, at, 50 * count + 10))
        for number in range(count):
            begun = at + 5 + 50 * number
            events += [
                complete(f"Optimizer.zero_grad#{kind}.zero_grad", "user_annotation", begun + late, 2)
                for late, kind in ((0, name), (4, "Critic"))
            ]
            events.append(op("aten::mm", begun + 10, 30 + number % 2))
    return events


def test_the_closures_that_one_step_of_an_optimizer_calls_are_the_steps(tmp_path: Path) -> None:
    """A network was trained by one step of L-BFGS, and what ran before it was part of the one step."""
    window = find_steps(read(tmp_path, calling_closures(6)))
    assert window.source == "closure"
    assert spans(window) == [(105 + 50 * number, 155 + 50 * number) for number in range(5)]


def test_few_closures_and_those_of_several_steps_are_no_steps(tmp_path: Path) -> None:
    assert find_steps(read(tmp_path, calling_closures(3))).source == "whole"
    assert find_steps(read(tmp_path, calling_closures(6, ("LBFGS", "LBFGS")))).source == "optimizer"


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


def test_a_device_held_by_work_from_before_the_recording_is_cut_from_the_window(tmp_path: Path) -> None:
    # Held for 5 ms, though one tiny piece of work of another stream got through.
    early = [op("aten::mul", 100, 10), launch(9, 102, 4), kernel(9, 115, 2, stream=3)]
    queued = [op("aten::mm", 200, 10), launch(1, 202, 4), kernel(1, 5200, 700), kernel(1, 5900, 100)]
    window = find_steps(read(tmp_path, [*early, *queued]))
    assert (window.start_us, window.end_us, window.lead_in_us) == (5100, 5900, 5100)
    assert (spans(window), window.steps[0].us) == ([(0, 5900)], 800)
    assert [each.slug for each in step_caveats(window)] == ["lead-in"]
    assert find_steps(read(tmp_path, [*early, *queued, step(0, 100, 300)]), None, slice(0, 1)).lead_in_us == 0


@pytest.mark.parametrize(
    ("launched_at", "dur", "earlier"), [(202, 4900, 2), (202, 4, 900), (5100, 4, 2)], ids=["call", "work", "late"]
)
def test_a_host_that_comes_late_is_no_lead_in(tmp_path: Path, launched_at: float, dur: float, earlier: float) -> None:
    # The launch call itself lasts as long, the device has worked before, or the launch comes late.
    early = [op("aten::mul", 100, 10), launch(9, 102, 4), kernel(9, 115, earlier, stream=3)]
    work = [op("aten::mm", 200, 5000), launch(1, launched_at, dur), kernel(1, 5200, 700)]
    window = find_steps(read(tmp_path, [*early, *work]))
    assert (window.start_us, window.lead_in_us, step_caveats(window)) == (0, 0, ())


def test_the_first_of_several_steps_is_left_out_if_earlier_work_holds_the_device(tmp_path: Path) -> None:
    queued = [op("aten::mm", 110, 10), launch(1, 112, 4), kernel(1, 5200, 700)]
    steps = [step(3, 100, 100), *queued, step(4, 6000, 150), *work(6010, 2)]
    window = find_steps(read(tmp_path, steps))
    assert (window.start_us, [each.name for each in window.steps]) == (5800, ["ProfilerStep#4"])
    assert window.set_aside[0][1].code == "held_before"


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


@pytest.mark.parametrize(
    ("fetches", "first"), [([10, 110, 210], 10), ([50, 110, 210], 100), ([10, 150, 210], 100), ([110, 210], 100)]
)
def test_the_first_step_begins_with_the_fetch_that_begins_the_recording(
    tmp_path: Path, fetches: list[float], first: float
) -> None:
    """Each step but for the fetch launches a kernel 20 us after it began."""
    loads = [
        complete("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", at, 5)
        for at in fetches
    ]
    updates = [event for end in (100, 200, 300) for event in (optimizer("SGD", end - 5, 5), *work(end - 80, end))]
    window = find_steps(read(tmp_path, [*loads, *updates]))
    assert window.source == "optimizer"
    assert window.steps[0].start_us == first - min(*fetches, 20)  # a trace begins with its first event


def test_only_the_first_optimizer_ends_steps(tmp_path: Path) -> None:
    events = [
        optimizer("SGD", 100, 10),
        optimizer("Adam", 120, 10),
        optimizer("SGD", 200, 10),
        optimizer("Adam", 220, 9),
    ]
    window = find_steps(read(tmp_path, [*events, op("aten::mul", 100, 5)]))
    assert spans(window) == [(10, 110)]


def updates(ends: Sequence[float]) -> list[Event]:
    """Updates that end there, each with an op."""
    return [event for end in ends for event in (optimizer("Adam", end - 5, 5), op("aten::add_", end - 4, 2))]


def test_rounds_of_collecting_and_some_updates_are_steps(tmp_path: Path) -> None:
    """Each round of 1000 us ends with updates 20 us apart, as in reinforcement learning."""
    rounds = [round_us + at for round_us in (1000, 2000, 3010) for at in (0, 20, 41)]
    window = find_steps(read(tmp_path, updates(rounds)))
    assert window.source == "optimizer"
    assert [round(one.us) for one in window.steps] == [1000, 1010]


def test_intervals_that_take_no_turns_are_steps_each(tmp_path: Path) -> None:
    window = find_steps(read(tmp_path, updates([100, 300, 1200, 1300, 1500, 1530])))
    assert len(window.steps) + len(window.set_aside) == 5


def trained(letters: str, joined: str = "") -> list[Event]:
    """Updates that end 100 us apart, of one optimizer of Adam for each letter.

    Its step calls one op for a, two for b and so on, after a backward pass of its own; none comes before ``joined``. A
    capital is the same optimizer in a step with ten more ops.
    """
    events = []
    for at, letter in zip(range(0, 100 * len(letters), 100), letters, strict=True):
        count = "abcdefghij".index(letter.lower()) + 1 + 10 * letter.isupper()
        passes = [op("aten::mm", at, 40), op(f"{BACKWARD_NODE}: {letter.lower()}Backward0", at + 50, 30, tid=7)]
        events += [] if letter in joined else passes
        events += [optimizer("Adam", at + 84, 16), *(op("aten::add_", at + 85 + row / 2, 0.25) for row in range(count))]
    return events


@pytest.mark.parametrize(
    ("letters", "ends"),
    [
        ("abababab", [200, 400, 600, 800]),  # a GAN
        ("babababa", [200, 400, 600, 800]),  # of which the recording began within an iteration
        ("ABababab", [200, 400, 600, 800]),  # of which the recording holds the first steps
        ("ababa", [100, 300, 500]),  # the optimizer that is seen most often
        ("aaabaaab", [400, 800]),  # a critic that steps three times for each step of the generator
        ("aabcbcaabcbc", [100, 200, 700, 800]),  # a critic in all iterations, an actor and a temperature in some
        ("bcaabcbcaabc", [300, 400, 900, 1000]),
    ],
)
@pytest.mark.parametrize("later_us", [0.0, 7777.0])
def test_one_turn_of_several_optimizers_is_a_step(
    tmp_path: Path, letters: str, ends: list[float], later_us: float
) -> None:
    first = op("aten::zeros", later_us, 1)
    events = [{**event, "ts": event["ts"] + 10 + later_us} for event in trained(letters)]
    window = find_steps(read(tmp_path, [first, *events]))
    steps = sorted([*window.steps, *(one for one, _ in window.set_aside)], key=lambda one: one.start_us)
    assert window.source == "optimizer"
    assert [(one.start_us - 10, one.end_us - 10) for one in steps] == list(pairwise(ends))


def test_optimizers_that_step_right_after_one_another_are_of_one_step(tmp_path: Path) -> None:
    assert spans(find_steps(read(tmp_path, trained("abcabcabc", joined="bc")))) == [(300, 600), (600, 900)]


@pytest.mark.parametrize(
    "letters",
    [
        "aaaaaa",  # one optimizer
        "aaAaaA",  # which averages its parameters now and then
        "AAaaaa",  # and makes its state when it first steps
        "abaabbab",  # no pattern
        "aba",  # seen only once
    ],
)
def test_each_update_ends_a_step_without_turns(tmp_path: Path, letters: str) -> None:
    window = find_steps(read(tmp_path, trained(letters)))
    assert len(window.steps) + len(window.set_aside) == len(letters) - 1


@pytest.mark.parametrize(("letters", "first"), [("ababab", 0), ("ababa", 100), ("Aaaaa", 0)])
def test_a_fetch_begins_the_first_step_only_where_that_holds_a_whole_turn(
    tmp_path: Path, letters: str, first: float
) -> None:
    """The optimizer that ends the steps of the second recording does not end the iterations. The third has only one."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    loads = [
        complete(name, "user_annotation", at, 5) for at in range(0, 100 * len(letters), 200 if "b" in letters else 100)
    ]
    assert find_steps(read(tmp_path, [*loads, *trained(letters)])).steps[0].start_us == first


def test_the_last_update_ends_with_its_ops_where_the_profiler_stopped_in_it(tmp_path: Path) -> None:
    """Its annotation lasts until then. Those of the others end soon after their ops."""
    *events, _, last_op = trained("aaaa")
    stopped = [*events, optimizer("Adam", 384, 5000), last_op]
    assert spans(find_steps(read(tmp_path, stopped)))[-1] == (300, 400)


@pytest.mark.parametrize("more", [op("aten::add_", 386, 4990), op("aten::mul", 5390, 1)])
def test_the_last_update_ends_as_marked_where_something_ran_until_then(tmp_path: Path, more: Event) -> None:
    """An op takes long in it, or another one comes after it."""
    *events, _, last_op = trained("aaaa")
    window = find_steps(read(tmp_path, [*events, optimizer("Adam", 384, 5000), last_op, more]))
    assert window.steps[-1].end_us == 5384


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


def test_calls_with_which_the_profiler_starts_the_device_to_stop_do_not_count(tmp_path: Path) -> None:
    """A CPU program on a machine with a GPU: stopping the profiler initialises CUDA, in 0.7 s of a public trace."""
    events = [
        frame("train.py(1): <module>", 0, 1000),
        *work(100, 1),
        frame("torch/profiler/profiler.py(698): __exit__", 200, 800),
        launch(8, 205, 2, "cudaGetDeviceCount"),
        launch(9, 208, 2, "cudaGetDeviceProperties_v2"),
        launch(10, 215, 780, "cudaDeviceSynchronize"),
    ]
    assert whole_window(read(tmp_path, events)).end_us == 200
    called = [*events, op("aten::mul", 1010, 20)]  # the program goes on
    assert whole_window(read(tmp_path, called)).end_us == 1030


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


def kinds(*us: float) -> list[str]:
    """The first word or two of each step's reason; empty for steps that count."""
    return ["" if reason is None else reason.kind for reason in set_aside_reasons(us)]


def worded(us: Sequence[float]) -> list[str | None]:
    """Each step's reason in words; null for steps that count."""
    return [None if reason is None else reason.words for reason in set_aside_reasons(us)]


def test_a_first_step_that_takes_longer_than_the_later_ones_is_warming_up() -> None:
    assert worded([13, 10, 10.2, 9.9, 10]) == [
        "still warming up: 1.3 times the median of the later steps",
        *[None] * 4,
    ]


def test_all_first_steps_are_set_aside_up_to_the_first_that_is_like_the_later_ones() -> None:
    assert kinds(90, 30, 14, 10, 10, 10, 10, 10) == ["still warming up"] * 3 + [""] * 5


def test_a_slow_step_that_a_usual_one_precedes_is_not_warming_up() -> None:
    assert kinds(10, 14, 10, 10, 10, 10) == [""] * 6


def test_a_first_step_within_the_scatter_of_the_later_ones_counts() -> None:
    assert kinds(13, 8, 12, 9, 11, 10) == [""] * 6


def test_a_first_step_that_is_a_little_longer_counts() -> None:
    assert kinds(11.5, 10, 10, 10, 10) == [""] * 5


def test_of_three_steps_only_a_first_one_far_above_both_others_is_set_aside() -> None:
    assert kinds(134, 44, 42) == ["still warming up", "", ""]
    assert kinds(80, 44, 42) == [""] * 3
    assert kinds(42, 134, 44) == [""] * 3


def test_first_steps_far_shorter_than_every_later_one_were_fed_from_what_was_queued() -> None:
    assert worded([31.9, 79, 83, 80, 81]) == [
        "fed from work that was queued before it: 0.396 times the median of the later steps",
        *[None] * 4,
    ]
    assert kinds(20, 31.9, 79, 83, 80, 81) == ["fed from work that was queued before"] * 2 + [""] * 4


@pytest.mark.parametrize(
    "us", [(45, 79, 83, 80, 81), (31.9, 79, 83), (31.9, 79, 40, 83, 80), (79, 31.9, 83, 80, 81)], ids=str
)
def test_a_step_that_is_a_little_shorter_or_not_the_first_counts(us: tuple[float, ...]) -> None:
    assert kinds(*us) == [""] * len(us)


def profiled(at: float, numbers: Sequence[int]) -> list[Event]:
    """A window of the profiler that begins at an instant, with steps of 100 us."""
    events = [complete("PyTorch Profiler (0)", "Trace", at, 100 * len(numbers))]
    for place, number in enumerate(numbers):
        events += [step(number, at + 100 * place, 100), *work(at + 100 * place + 10, 1000 * number + place)]
    return events


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [((3, 4), (13, 14, 15), (13, 14, 15)), ((3, 4, 5), (6, 7), (3, 4, 5)), ((3, 4), (5, 6), (5, 6))],
)
def test_of_two_windows_of_the_profiler_in_one_file_one_is_judged(
    tmp_path: Path, first: Sequence[int], second: Sequence[int], chosen: Sequence[int]
) -> None:
    window = find_steps(read(tmp_path, [*profiled(0, first), *profiled(5000, second)]))
    assert [each.number for each in window.steps] == [*chosen]
    assert window.wall_us == pytest.approx(100 * len(chosen))
    assert {reason.code for _, reason in window.set_aside} == {"other_window"}


def test_numbers_that_jump_bound_a_window_and_numbers_that_follow_one_another_do_not(tmp_path: Path) -> None:
    def numbers(*them: int) -> list[int | None]:
        events = [event for event in profiled(0, them) if event["cat"] != "Trace"]
        return [each.number for each in find_steps(read(tmp_path, events)).steps]

    assert numbers(3, 4, 13, 14, 15) == [13, 14, 15]
    assert numbers(3, 4, 5, 6, 7) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("us", [(), (5.0,), (50.0, 5.0)])
def test_too_few_steps_are_not_judged(us: tuple[float, ...]) -> None:
    assert set_aside_reasons(us) == [None] * len(us)


def test_an_outlier_leaves_the_longest_stretch_beside_it() -> None:
    assert worded([10, 11, 25, 10, 10, 12]) == [
        "cut off from the longest steady stretch by an outlier",
        "cut off from the longest steady stretch by an outlier",
        "an outlier: 2.38 times the median",
        None,
        None,
        None,
    ]


def test_of_stretches_of_one_length_the_later_counts() -> None:
    assert kinds(10, 11, 30, 10, 12)[3:] == ["", ""]


def test_steps_that_vary_less_than_twofold_count() -> None:
    assert kinds(210, 219, 425, 210, 220) == [""] * 5


def test_slow_steps_at_equal_distances_are_the_rhythm_of_the_program() -> None:
    """Eight workers of a loader that deliver their batches together: one step in eight waits for them."""
    assert kinds(*[80, 10, 10, 10, 10, 10, 10, 10] * 3) == [""] * 24
    assert kinds(*[10, 10, 10, 80] * 3) == [""] * 12
    assert "an outlier" in kinds(*[10] * 3, 80, *[10] * 9, 80, *[10] * 6, 80, *[10] * 3)
    assert "an outlier" in kinds(*[10] * 8, 80, *[10] * 8, 80, *[10] * 8)


def test_slow_steps_that_come_often_are_the_rhythm_of_the_program() -> None:
    assert kinds(10, 10, 10, 40, 10, 10, 10, 40, 10) == [""] * 9
    assert "an outlier" in kinds(10, 10, 10, 40, 10, 10, 10, 10, 10)


times = st.lists(st.floats(min_value=1e-3, max_value=1e9), max_size=40)


@settings(deadline=None)
@given(times)
def test_the_steps_that_count_lie_side_by_side_and_are_never_none(us: list[float]) -> None:
    kept = [row for row, reason in enumerate(set_aside_reasons(us)) if reason is None]
    assert kept == list(range(kept[0], kept[-1] + 1)) if us else kept == []
    assert len(kept) >= min(len(us), 2)


@settings(deadline=None)
@given(times, st.sampled_from([0.5, 4.0, 1024.0]))
def test_the_unit_of_time_does_not_matter(us: list[float], scale: float) -> None:
    assert set_aside_reasons([one * scale for one in us]) == set_aside_reasons(us)


@settings(deadline=None)
@given(st.floats(min_value=1e-3, max_value=1e9), st.integers(min_value=1, max_value=30))
def test_of_equal_steps_none_is_set_aside(us: float, count: int) -> None:
    assert set_aside_reasons([us] * count) == [None] * count
