"""What a report says of its steps: which are explained, how they vary, and which are left out for what reason."""

from dataclasses import replace

import pytest

from bottleneck.report import analysis_document as steps
from bottleneck.report.analysis_document import to_markdown, to_terminal
from bottleneck.report.terminal import TerminalStyle
from bottleneck.schema.measurements import StepTime, StepTimes
from tests.report.samples import gpu_overhead

COLD = "still warming up: 3 times the median of the later steps"
AWAY = "cut off from the longest steady stretch by an outlier"
EACH = (
    StepTime("ProfilerStep#4", 30_000, COLD),
    StepTime("ProfilerStep#5", 10_000, AWAY),
    StepTime("ProfilerStep#6", 11_000, AWAY),
    StepTime("ProfilerStep#7", 99_000, "an outlier: 9.9 times the median"),
    StepTime("ProfilerStep#8", 12_000),
    StepTime("ProfilerStep#9", 10_000),
    StepTime("ProfilerStep#10", 9_000),
)


def times(*each: StepTime, source: str = "profiler") -> StepTimes:
    kept = [step.us for step in each if step.set_aside is None] or [100.0]
    return StepTimes(len(kept), sum(kept) / len(kept), None, None, None, source, each)


def test_the_window_tells_which_of_the_steps_are_explained() -> None:
    assert steps.window(times(*EACH)).startswith("3 steps (4:7 of 7) found by: profiler; times below are per step of")


def test_the_window_gives_no_numbers_where_all_steps_are_explained() -> None:
    assert steps.window(times(*EACH[4:])).startswith("3 steps found by: profiler;")


@pytest.mark.parametrize(
    ("source", "words"), [("repeats", "the op sequence repeating"), ("whole", "the whole trace, taken as one")]
)
def test_the_window_tells_how_its_steps_were_found(source: str, words: str) -> None:
    assert f"found by: {words};" in steps.window(times(source=source))


def test_the_window_tells_what_a_step_of_the_program_was() -> None:
    known = replace(times(*EACH[4:], source="marks"), boundary="optimizer.step of AdamW", seen=412)
    assert steps.window(known).startswith("3 steps of the program (step = optimizer.step of AdamW, 412 seen); times")


def test_the_variation_is_that_of_the_steps_that_count() -> None:
    assert steps.variation(times(*EACH)) == (
        "quickest step 6 (ProfilerStep#10, 9.00 ms), slowest step 4 (ProfilerStep#8, 12.0 ms), 1.33 times as long"
    )


def test_a_step_that_is_named_by_its_number_is_named_once() -> None:
    two = times(StepTime("step 0", 5), StepTime("step 1", 6))
    assert steps.variation(two) == "quickest step 0 (5.00 us), slowest step 1 (6.00 us), 1.20 times as long"


def test_one_step_does_not_vary() -> None:
    assert steps.variation(times(EACH[4], *EACH[:2])) == ""


def test_steps_without_duration_have_no_ratio() -> None:
    assert steps.variation(times(StepTime("step 0", 0), StepTime("step 1", 6))).endswith("slowest step 1 (6.00 us)")


def test_steps_are_left_out_with_their_reason_neighbours_together() -> None:
    assert steps.left_out(times(*EACH)) == (
        f"step 0 (ProfilerStep#4, 30.0 ms) is {COLD}; steps 1:3 are {AWAY};"
        " step 3 (ProfilerStep#7, 99.0 ms) is an outlier: 9.9 times the median"
    )


def test_neighbours_with_figures_of_their_own_are_told_as_one_kind() -> None:
    warming = [
        StepTime(f"step {at}", us, f"still warming up: {us / 100} times") for at, us in enumerate((300.0, 150.0))
    ]
    told = steps.left_out(times(*warming, StepTime("step 2", 100.0)))
    assert told == "steps 0:2 (150 us to 300 us) are still warming up"


def test_nothing_is_said_where_nothing_was_left_out() -> None:
    assert steps.left_out(times(*EACH[4:])) == ""


def test_of_many_stretches_the_first_are_told_and_the_rest_counted() -> None:
    each = [StepTime(f"step {number}", 10, f"odd {number}" if number < 9 else None) for number in range(12)]
    assert steps.left_out(times(*each)).endswith("step 3 (10.0 us) is odd 3; 5 more, all in --format json")


def test_terminal_and_markdown_show_what_was_left_out_and_how_steps_vary() -> None:
    analysis = replace(gpu_overhead(), steps=replace(gpu_overhead().steps, each=EACH))
    for text in (to_terminal(analysis, TerminalStyle(200)), to_markdown(analysis)):
        assert "9.9 times the median" in text
        assert "1.33 times as long" in text
