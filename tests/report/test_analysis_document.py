from dataclasses import replace

import pytest

from bottleneck.report.analysis_document import batch_test, option_costs, peak_memory, to_markdown, to_terminal, windows
from bottleneck.schema.measurements import BatchProof, OptionCost, OptionCosts, ProfilerOption, Ratio
from tests.report.samples import cpu, gpu_overhead


def costs(**ratios: float) -> OptionCosts:
    options: dict[str, ProfilerOption] = {
        "ops": "ops", "shapes": "shapes", "stacks": "stacks", "memory": "memory", "everything": "all"
    }  # fmt: skip
    return OptionCosts(tuple(OptionCost(options[name], Ratio(x, x - 0.1, x + 0.1, 7)) for name, x in ratios.items()))


def test_options_are_told_as_what_they_add_to_the_record_of_ops() -> None:
    assert option_costs(costs(ops=1.5, shapes=1.8, stacks=1.9, memory=1.45, everything=2.4)) == (
        "ops 1.50x, shapes +0.30x, stacks +0.40x, memory nothing that shows, together 2.40x (2.30 to 2.50) of the "
        "unprofiled step, by 7 windows of each"
    )


@pytest.mark.parametrize(
    ("found", "told"),
    [(None, ""), (OptionCosts(reason="steps are too long"), "not known by option: steps are too long")],
)
def test_options_that_were_not_tried_are_told_with_their_reason_or_not_at_all(
    found: OptionCosts | None, told: str
) -> None:
    assert option_costs(found) == told


def test_a_batch_test_that_was_not_run_says_why() -> None:
    part = batch_test(BatchProof(32, reason="the step at batch_size=64 failed: OutOfMemoryError"))
    assert part is not None
    assert part.items == (("Not run: the step at batch_size=64 failed: OutOfMemoryError.",),)
    assert batch_test(None) is None


def test_both_media_tell_the_batch_test_and_leave_it_out_where_there_is_none() -> None:
    for render in (to_terminal, to_markdown):
        assert "Twice the batch" in render(gpu_overhead())
        assert "Batch test" not in render(replace(gpu_overhead(), batch_test=None))


def test_the_kept_window_is_explained_only_where_there_were_several() -> None:
    steps = gpu_overhead().steps
    assert windows(replace(steps, windows_us=(1200.0,))) == ""
    assert windows(replace(steps, windows_us=(1200.0, 1100.0))) == (
        "the quickest of 2 windows, opened anew because steps were disturbed; their mean steps: 1.20 ms, 1.10 ms"
    )


def test_the_peak_of_memory_says_whose_it_is() -> None:
    totals = replace(gpu_overhead().totals, peak_memory_bytes=2_000_000_000)
    assert peak_memory(totals, gpu_overhead().device) == "2.00 GB allocated on the device at most"
    assert peak_memory(totals, cpu().device) == "2.00 GB resident in the process at most"
    since = replace(totals, peak_memory_reason="since the program started")
    assert peak_memory(since, cpu().device).endswith("at most (since the program started)")
    assert peak_memory(replace(totals, peak_memory_bytes=None), cpu().device) == ""
