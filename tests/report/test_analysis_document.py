"""The facts of an analysis: window, steps, batch test, profiler options, memory, sensors and coverage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.report import analysis_document as facts
from bottleneck.report import analysis_document as steps
from bottleneck.report.analysis_document import (
    _details,
    batch_test,
    option_costs,
    peak_memory,
    to_markdown,
    to_terminal,
    windows,
)
from bottleneck.report.analysis_tables import ledger
from bottleneck.report.screen import SCREEN_LINES, to_screen
from bottleneck.report.terminal import TerminalStyle
from bottleneck.schema.accounts import ACCOUNTS
from bottleneck.schema.analysis import (
    Analysis,
    Caveat,
    Clause,
    Coverage,
    Finding,
    Interval,
    LedgerEntry,
    TelemetrySummary,
    UnknownWork,
    join_clauses,
)
from bottleneck.schema.measurements import (
    BatchProof,
    BetweenPlace,
    OptionCost,
    OptionCosts,
    ProfilerOption,
    Ratio,
    RunSteps,
    StepTime,
    StepTimes,
    Timing,
)
from bottleneck.schema.records import replace
from tests.report.samples import SAMPLES, cpu, gpu_overhead, kernel


def costs(**ratios: float) -> OptionCosts:
    options: dict[str, ProfilerOption] = {
        "ops": "ops", "shapes": "shapes", "stacks": "stacks", "memory": "memory", "everything": "all"
    }  # fmt: skip
    return OptionCosts(tuple(OptionCost(options[name], Ratio(x, x - 0.1, x + 0.1, 7)) for name, x in ratios.items()))


def test_options_are_reported_as_what_they_add_to_the_record_of_ops() -> None:
    assert option_costs(costs(ops=1.5, shapes=1.8, stacks=1.9, memory=1.45, everything=2.4)) == (
        "ops 1.50x, shapes +0.30x, stacks +0.40x, memory nothing that shows, together 2.40x (2.30 to 2.50) of the "
        "unprofiled step, by 7 windows of each"
    )


@pytest.mark.parametrize(
    ("found", "told"),
    [(None, ""), (OptionCosts(reason="steps are too long"), "not known by option: steps are too long")],
)
def test_options_that_were_not_tried_are_reported_with_their_reason_or_not_at_all(
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
        "the quickest of 2 windows, recorded again because steps were disturbed; their mean steps: 1.20 ms, 1.10 ms"
    )


def test_the_peak_of_memory_says_whose_it_is() -> None:
    totals = replace(gpu_overhead().totals, peak_memory_bytes=2_000_000_000)
    assert peak_memory(totals, gpu_overhead().device) == "2.00 GB allocated on the device at most"
    assert peak_memory(totals, cpu().device) == "2.00 GB resident in the process at most"
    since = replace(totals, peak_memory_reason="since the program started")
    assert peak_memory(since, cpu().device).endswith("at most (since the program started)")
    assert peak_memory(replace(totals, peak_memory_bytes=None), cpu().device) == ""


KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, std::array<char*, 3ul>)"
)


@pytest.mark.parametrize(
    ("source", "words"),
    [("whole", ": the whole trace, taken as one;"), ("marks", ", found by the marks of"), ("odd", " found by: odd;")],
)
def test_the_window_tells_how_its_steps_were_found(source: str, words: str) -> None:
    analysis = gpu_overhead()
    told = dict(facts.facts(replace(analysis, steps=replace(analysis.steps, source=source))))
    assert f"10 steps{words}" in told["window"]


@pytest.mark.parametrize(("settled", "is_told"), [(False, True), (True, False), (None, False)])
def test_steps_that_had_not_settled_are_reported(settled: bool | None, is_told: bool) -> None:
    analysis = gpu_overhead()
    told = dict(facts.facts(replace(analysis, steps=replace(analysis.steps, settled=settled))))
    assert ("step times still had a trend" in told["step"]) is is_told


@pytest.mark.parametrize(
    ("name", "shown"), [(KERNEL, "vectorized_elementwise_kernel<MulFunctor<float>>"), ("aten::mm", "aten::mm")]
)
def test_only_names_with_all_their_template_arguments_are_shortened(name: str, shown: str) -> None:
    coverage = Coverage(1.0, 0.5, (UnknownWork(name, 2000.0, "no cost"),))
    (lines,) = facts.coverage(replace(gpu_overhead(), coverage=coverage)).items
    assert lines[1] == f"2.00 ms {shown}: no cost"


def test_a_cpu_has_a_peak_of_matrix_products_and_a_gpu_one_of_tensor_cores() -> None:
    for sample, words in ((cpu(), "peak of fp32 matrix products (MFU)"), (gpu_overhead(), "fp32 tensor peak (MFU)")):
        totals = replace(sample.totals, peak="fp32_tensor", model_flops_utilization=0.5)
        assert facts.reached(replace(sample, totals=totals))[0][-1] == words


@pytest.mark.parametrize(("modelled", "lead"), [(1.0, ""), (0.5, "at least ")])
def test_what_was_reached_is_a_lower_bound_where_work_is_unmodelled(modelled: float, lead: str) -> None:
    analysis = replace(gpu_overhead(), coverage=Coverage(1.0, modelled, ()))
    reached = dict(facts.facts(analysis))["reached"]
    assert reached.startswith("at least ") == bool(lead)
    assert reached.removeprefix(lead)[0].isdigit()


def test_a_lower_bound_below_a_tenth_of_a_percent_is_left_out() -> None:
    """A trace with 1 % of its work modelled "reached at least <0.1 % of the peak"."""
    whole = gpu_overhead()
    totals = replace(whole.totals, model_flops_utilization=0.0004, bandwidth_utilization=0.25)
    part = replace(whole, totals=totals, coverage=replace(whole.coverage, modelled_share=0.1))
    assert dict(facts.facts(part))["reached"] == "at least 25.0 % of the memory bandwidth, over the whole step"
    all_of_it = replace(part, coverage=replace(whole.coverage, modelled_share=1.0))
    assert "<0.1 %" in dict(facts.facts(all_of_it))["reached"]
    nothing = replace(part, totals=replace(totals, bandwidth_utilization=0.0004))
    assert not dict(facts.facts(nothing)).get("reached")


NOTHING_READ = TelemetrySummary(3, None, None, None, None, None, ())


def test_what_no_sensor_told_is_absent_and_not_zero() -> None:
    told = dict(facts.facts(replace(gpu_overhead(), telemetry=NOTHING_READ)))
    assert not {"sensors", "host"} & set(told)


def test_energy_is_reported_only_with_how_wrong_it_may_be() -> None:
    telemetry = replace(NOTHING_READ, energy_j=3.84, energy_error_j=0.21)
    assert dict(facts.facts(replace(gpu_overhead(), telemetry=telemetry)))["sensors"] == (
        "3.84 J per step (give or take 0.2 J)"
    )
    unsure = replace(telemetry, energy_error_j=None)
    assert "sensors" not in dict(facts.facts(replace(gpu_overhead(), telemetry=unsure)))


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
    assert steps.window(times(*EACH)).startswith(
        "3 steps (4:7 of 7), found by the marks of the profiler; times below are"
    )


def test_the_window_gives_no_numbers_where_all_steps_are_explained() -> None:
    assert steps.window(times(*EACH[4:])).startswith("3 steps, found by the marks of the profiler;")


@pytest.mark.parametrize(
    ("source", "words"),
    [("repeats", "step, found by repeats of the op sequence"), ("whole", "step: the whole trace, taken as one")],
)
def test_the_line_on_the_window_states_how_its_steps_were_found(source: str, words: str) -> None:
    assert f"{words};" in steps.window(times(source=source))


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


def test_neighbours_with_figures_of_their_own_are_reported_as_one_kind() -> None:
    warming = [
        StepTime(f"step {at}", us, f"still warming up: {us / 100} times", "warming_up")
        for at, us in enumerate((300.0, 150.0))
    ]
    told = steps.left_out(times(*warming, StepTime("step 2", 100.0)))
    assert told == "steps 0:2 (150 us to 300 us) are still warming up"


def test_nothing_is_said_where_nothing_was_left_out() -> None:
    assert steps.left_out(times(*EACH[4:])) == ""


def test_of_many_stretches_the_first_are_reported_and_the_rest_counted() -> None:
    each = [StepTime(f"step {number}", 10, f"odd {number}" if number < 9 else None) for number in range(12)]
    assert steps.left_out(times(*each)).endswith("step 3 (10.0 us) is odd 3; 5 more, all in --format json")


def test_terminal_and_markdown_show_what_was_left_out_and_how_steps_vary() -> None:
    analysis = replace(gpu_overhead(), steps=replace(gpu_overhead().steps, each=EACH))
    for text in (to_terminal(analysis, TerminalStyle(200)), to_markdown(analysis)):
        assert "9.9 times the median" in text
        assert "1.33 times as long" in text


def rows_of(text: str) -> int:
    """Rows that a terminal of 80 columns needs for the text."""
    return sum(max(1, -(-len(line) // 80)) for line in text.splitlines())


@pytest.mark.parametrize("analysis", SAMPLES.values(), ids=SAMPLES)
def test_every_sample_fits_one_screen(analysis: Analysis) -> None:
    assert rows_of(to_screen(analysis)) <= SCREEN_LINES


def test_the_screen_leads_from_verdict_to_bar_to_findings_to_the_rest_and_ends_as_it_begins() -> None:
    text = to_screen(gpu_overhead())
    order = ["OVERHEAD-BOUND · train", "░ overhead", "1. ", "Why and how:", "Full report: ", "OVERHEAD-BOUND: "]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert text.rstrip().splitlines()[-1].startswith(("First: ", "(predicted: "))
    assert "Top kernels" not in text and "Top kernels" in to_terminal(gpu_overhead())


@given(
    words=st.integers(1, 200),
    accounts=st.integers(1, len(ACCOUNTS)),
    findings=st.integers(0, 9),
    caveats=st.integers(0, 9),
)
def test_no_analysis_takes_more_than_one_screen(words: int, accounts: int, findings: int, caveats: int) -> None:
    text = " ".join(["word"] * words)
    entries = [LedgerEntry(key, each.group, 10.0, 10.0 / accounts) for key, each in [*ACCOUNTS.items()][:accounts]]
    gain = Interval(1.0, 2.0)
    finding = Finding("a-slug", text, (text,), gain, gain, text, f"bottleneck verify {text[:120]}", text)
    long = replace(
        gpu_overhead(),
        verdict=replace(gpu_overhead().verdict, sentence=text),
        ledger=tuple(entries),
        findings=(finding,) * findings,
        caveats=(Caveat("a-caveat", text, 0.5),) * caveats,
    )
    shown = to_screen(long)
    assert rows_of(shown) <= SCREEN_LINES
    assert shown.count("[a-slug]") >= min(findings, 1)


def test_a_long_verdict_keeps_its_first_action_on_the_screen() -> None:
    whole = gpu_overhead()
    caveats = (Caveat("a-caveat", "word " * 60, 0.5),) * 9
    action = "raise the batch size"
    clauses = (
        Clause("bound", "Much holds it back"),
        *[Clause("sides", "It varies")] * 40,
        Clause("first", action, label="First"),
    )
    verdict = replace(whole.verdict, sentence=join_clauses(clauses), first_step=action, clauses=clauses)
    shown = to_screen(replace(whole, verdict=verdict, caveats=caveats))
    assert rows_of(shown) <= SCREEN_LINES
    assert shown.splitlines()[1] == "Much holds it back" and "Raise the batch size" in shown


def test_what_is_not_in_every_step_and_the_first_advice_are_whole_on_a_full_screen() -> None:
    whole = gpu_overhead()
    caveats = (Caveat("a-caveat", "word " * 60, 0.5),) * 9
    advice = "Do this instead of that. " * 6 + "That is all."
    finding = Finding("a-slug", "word " * 20, ("seen",), Interval(1, 2), Interval(1, 2), advice, None, "word")
    places = tuple(BetweenPlace(f"min_epoch.py:{line}", 0.5, "evaluate_on_a_part_of_the_data") for line in (12, 88))
    run = RunSteps(100, 1e6, 1000.0, 9.26e5, 10, places)
    clauses = (Clause("bound", "Much holds it back"), Clause("first", advice, source="a-slug", label="First"))
    verdict = replace(whole.verdict, sentence=join_clauses(clauses), clauses=clauses)
    full = replace(whole, run=run, findings=(finding,) * 9, caveats=caveats, verdict=verdict)
    shown = to_screen(full)
    assert rows_of(shown) <= SCREEN_LINES
    words = " ".join(shown.split())
    assert "min_epoch.py:12 (46.3 %), evaluate_on_a_part_of_the_data(), min_epoch.py:88 (46.3 %)" in words
    assert words.count("That is all") == 2  # at the top, and in the line that ends the screen


def test_the_verdict_stays_whole_where_the_words_on_the_run_can_be_shorter() -> None:
    whole = gpu_overhead()
    bound = "Arithmetic takes most of your program's time: 4.53 of 8.36 ms per step (54.2 %), at 39.4 % of the peak"
    advice = "Do this instead of that. " * 6 + "That is all."
    finding = Finding("a-slug", "word " * 20, ("seen",), Interval(1, 2), Interval(1, 2), advice, None, "word")
    places = tuple(BetweenPlace(f"min_epoch.py:{line}", 0.5, "evaluate_on_a_part_of_the_data") for line in (12, 88))
    run = RunSteps(100, 1e6, 1000.0, 4e5, 10, places, held_us=2e5)
    clauses = (Clause("bound", bound), Clause("first", advice, source="a-slug", label="First"))
    verdict = replace(whole.verdict, sentence=join_clauses(clauses), clauses=clauses)
    shown = to_screen(replace(whole, run=run, findings=(finding,) * 9, verdict=verdict))
    assert rows_of(shown) <= SCREEN_LINES
    words = " ".join(shown.split())
    assert words.count("That is all") == 2 and words.count(bound) == 2
    assert "the 10 recorded steps are" in words and "held up" not in words


def test_a_late_rank_is_the_headline_and_its_cause_and_the_bound_are_lines_below() -> None:
    late = "Rank 2 is late: ranks 0, 1 and 3 wait 1.01 of 1.10 s per step in collectives for it"
    clauses = (
        Clause("late_rank", late),
        Clause("late_cause", "Python between ops 1.00 s per step", label="Why"),
        Clause("bound", "Your GPU waits for Python: 1.00 of 1.09 s per step (92.1 %)"),
        Clause("place", "train.py:9, 1.00 s", label="Worst"),
        Clause("first", "find what rank 2 does longer than the others", label="First"),
    )
    verdict = replace(gpu_overhead().verdict, sentence=join_clauses(clauses), clauses=clauses)
    assert [(line.label, line.text) for line in facts.verdict_lines(verdict)] == [
        ("", late),
        ("Why", "Python between ops 1.00 s per step"),
        ("Step", "Your GPU waits for Python: 1.00 of 1.09 s per step (92.1 %)"),
        ("Worst", "train.py:9, 1.00 s"),
        ("First", "Find what rank 2 does longer than the others"),
    ]
    assert f"{late}. Why: Python between ops" in verdict.sentence


def test_caveats_are_named_where_the_main_one_has_no_room() -> None:
    analysis = gpu_overhead()
    whole = facts.trust_in_brief(analysis, 1_000)
    names = facts.trust_in_brief(analysis, 20)
    assert all(caveat.slug in names for caveat in analysis.caveats) and names.endswith(".")
    assert analysis.caveats[0].message[1:40] in whole and "…" not in whole + names


def test_the_only_slow_rank_of_the_headline_is_not_listed_again() -> None:
    analysis = SAMPLES["multi_rank"]
    assert analysis.job is not None
    (slow, *_) = analysis.job.slow
    late = replace(analysis.verdict, clauses=(Clause("late-rank", f"{slow.name.capitalize()} is late"),))
    one = replace(analysis, job=replace(analysis.job, slow=(slow,), slow_links=()), verdict=late)
    assert f"{slow.name} costs" not in to_screen(one)
    two = replace(slow, name="rank 9")
    assert f"{slow.name} costs" in to_screen(replace(one, job=replace(analysis.job, slow=(slow, two), slow_links=())))


def test_the_verdict_of_an_older_analysis_is_one_line() -> None:
    older = replace(gpu_overhead().verdict, clauses=())
    (line,) = facts.verdict_lines(older)
    assert line.text == older.sentence


def test_accounts_that_a_screen_has_no_room_for_are_one_row_and_the_ledger_still_adds_up() -> None:
    entries = tuple(LedgerEntry(f"overhead.{name}", "overhead", us, us / 100) for name, us in PARTS.items())
    whole = replace(gpu_overhead(), ledger=entries)
    rows = [row.cells for row in ledger(whole, 3).rows]
    assert [row[0] for row in rows] == ["overhead", "dispatch", "python", "3 more", "total"]
    assert sum(float(row[2]) for row in rows[1:4]) == float(rows[-1][2]) == 100.0
    assert len(ledger(whole, 5).rows) == len(ledger(whole).rows) == 7


PARTS = {"dispatch": 40.0, "python": 30.0, "launch": 20.0, "sync": 6.0, "input": 4.0}


@pytest.mark.parametrize(("profiled_us", "times"), [(300.0, "3.00"), (60.0, "0.60"), (0.2, "<0.01")])
def test_the_cost_of_profiling_is_the_ratio_of_the_times_beside_it(profiled_us: float, times: str) -> None:
    slow = StepTimes(3, 100.0, Timing(profiled_us, 0.1, 9e3, 3), Timing(100.0, 90.0, 110.0, 3), 20.0, "optimizer")
    assert f"with it; that is {times} times as long" in to_terminal(
        replace(gpu_overhead(), steps=slow), TerminalStyle(300)
    )


def test_a_heading_names_a_device_without_signs_and_clock() -> None:
    whole = gpu_overhead()
    named = replace(whole, device=replace(whole.device, name="Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", count=1))
    assert " · Intel Xeon Platinum 8370C · " in facts.about(named)


def test_libraries_are_named_by_their_share_of_the_kernels_and_the_unknown_comes_last() -> None:
    rows = [
        kernel("gemm", 500.0, 1000.0, library="cuBLASLt"),
        kernel("gemm_2", 120.0, 1000.0, library="cuBLASLt"),
        kernel("mine", 80.0, 1000.0, library_reason="its name tells no library"),
        kernel("add", 210.0, 1000.0, library="ATen"),
        kernel("flash", 90.0, 1000.0, library="FlashAttention"),
        kernel("aten::linear", 700.0, 1000.0, bound="dispatch"),
    ]
    assert facts.libraries(rows) == "cuBLASLt 62.0 %, ATen 21.0 %, FlashAttention 9.0 %; 8.0 % unknown"
    assert facts.libraries(rows[:2]) == "cuBLASLt 100.0 %"
    assert facts.libraries(rows[2:3]) == ""
    assert facts.libraries([kernel("old", 10.0, 100.0)]) == ""  # an analysis of before libraries were named
    assert facts.libraries(rows[5:]) == ""


def test_libraries_of_little_time_are_counted_together() -> None:
    rows = [kernel(name, us, 1000.0, library=name) for name, us in zip("abcdefgh", range(80, 0, -10), strict=True)]
    assert facts.libraries(rows) == "a 22.2 %, b 19.5 %, c 16.7 %, d 13.9 %, e 11.1 %, f 8.3 %, 2 more 8.3 %"


def test_the_facts_of_a_report_name_the_libraries() -> None:
    analysis = gpu_overhead()
    assert "library" not in dict(facts.facts(analysis))
    named = replace(analysis, kernels=tuple(replace(row, library="cuDNN") for row in analysis.kernels))
    assert dict(facts.facts(named))["library"] == "cuDNN 100.0 %"


def test_the_line_on_all_numbers_fits_into_a_terminal() -> None:
    assert _details("trace.json") == "details: bottleneck report trace.json --format json (or markdown)"
    assert _details("traces/" + 20 * "long_name_") == "details: the same command with --format json (or markdown)"
    assert max(len(_details("x" * length)) for length in range(1, 120)) <= 80
