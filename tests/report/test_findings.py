"""The section of what to change: ranked, bounded by the step, and open about what it leaves out."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from bottleneck.advice.ranking import Draft, rank, up_to
from bottleneck.report import render_report
from bottleneck.report.analysis_document import to_markdown, to_terminal
from bottleneck.report.findings import findings, findings_in_brief, first_findings
from bottleneck.report.terminal import TerminalStyle
from bottleneck.schema.analysis import Bound, Caveat, Confidence, Finding, Interval
from bottleneck.schema.records import replace
from tests.report.samples import ADVICE, gpu_overhead
from tests.report.test_terminal import section

WALL_US = gpu_overhead().steps.wall_us


def told(found: Sequence[Finding], *, all_findings: bool = False, width: int = 80) -> str:
    """The section of a report with these findings."""
    text = to_terminal(replace(gpu_overhead(), findings=tuple(found)), TerminalStyle(width), all_findings=all_findings)
    return "\n".join(section(text, "What to change"))


def flat(text: str) -> str:
    return " ".join(text.split())


def gaining(count: int, *, us: float = 100.0, within_noise: bool = False) -> list[Finding]:
    gain = Interval(us / 2, us)
    return [
        replace(ADVICE[0], slug=f"rule-{number}", predicted_gain_us=gain, added_gain_us=gain, within_noise=within_noise)
        for number in range(count)
    ]


def test_a_report_without_findings_has_no_such_section() -> None:
    assert findings(replace(gpu_overhead(), findings=())) is None


def test_a_finding_tells_gain_evidence_advice_code_and_the_command_that_tries_it() -> None:
    text = told(ADVICE[:1])
    assert text.startswith("1. The device waits for the data loader: train.py:70 [input-wait]\n")
    assert "   gain  3.90 ms to 5.12 ms per step: 1.47 to 1.73 times as fast\n" in text
    assert "   seen  5.12 ms of every step, at train.py:70; num_workers is 0\n" in text
    assert "   do    Give the DataLoader workers that read ahead, into pinned memory.\n" in text
    assert (
        "\n         for batch in DataLoader(dataset, num_workers=4, pin_memory=True):\n             train(batch)\n"
        in text
    )
    assert "\n   try   bottleneck verify --try loader-workers,loader-pinned" in text
    assert text.endswith("\nWhy and how: `bottleneck explain input-wait`")


def test_why_a_formula_gave_several_gains_is_said_once_above_them() -> None:
    words = "estimated by formula: nothing was timed"
    both = [replace(each, evidence=(f"seen at {each.slug}",), by_formula="nothing was timed") for each in gaining(2)]
    text = flat(told(both))
    assert text.startswith("Estimated by formula: nothing was timed. 1. ") and text.lower().count(words) == 1
    assert "seen at rule-0" in text and "seen at rule-1" in text
    one = flat(told([both[0], *gaining(1, us=50.0)]))
    assert f"seen at rule-0; {words}" in one and not one.startswith("Estimated")


def test_what_others_save_already_is_reported_once_only() -> None:
    text = flat(told(ADVICE))
    assert "adds 1.24 ms to 2.48 ms to those above, which save some of the same time" in text
    together = "Together 5.50 ms to 7.24 ms, 45.2 % to 59.5 % of the step"
    assert f"{together}; that all gain their least or all their most is unlikely." in text
    assert "adds" not in told(ADVICE[:1]) and "Together" not in told(ADVICE[:1])


def test_another_way_to_save_the_same_time_is_reported_in_one_sentence() -> None:
    text = flat(told(ADVICE))
    assert (
        "Other ways to save some of the same time: • A .item() in the loop stops the host 3 times per step: keep the "
        "loss on the device and read it every 100 steps (up to 880 us per step: up to 1.08 times as fast) "
        "[item-sync] total += loss.detach()"
    ) in text
    whole = flat(told(ADVICE, all_findings=True))
    assert "3. A .item() in the loop" in whole and "adds nothing to those above, which save the same time" in whole


@pytest.mark.parametrize(
    ("claims", "most"), [({}, 99.0), ({"overhead.input": 4000.0}, 42.1)], ids=["the whole step", "one account"]
)
def test_together_is_never_more_than_what_they_share(claims: Mapping[str, float], most: float) -> None:
    drafts = [Draft(f"rule-{part}", "t", (), "a", up_to(WALL_US * part / 10), claims) for part in range(4, 9)]
    text = flat(told(rank(drafts, gpu_overhead())))
    found = re.search(r"Together .*?([\d.]+) % of the step;", text)
    assert found is not None and text.count(" times as fast") == 5
    assert float(found[1]) <= most


def test_what_noise_would_hide_is_counted_and_comes_with_the_option() -> None:
    hidden = told(ADVICE)
    assert "[pageable-copy]" not in hidden
    assert (
        "1 finding is not shown: at most 21.3 us per step, less than the steps vary by; see --all-findings."
    ) in flat(hidden)
    shown = told(ADVICE, all_findings=True)
    assert "[pageable-copy]" in shown and "not shown" not in shown


def test_where_noise_hides_every_gain_the_first_is_shown_and_the_others_are_counted() -> None:
    text = flat(told(gaining(3, us=1000.0, within_noise=True)))
    assert "[rule-0] gain 500 us to 1.00 ms per step: 1.47 to 1.73 times as fast; single steps differ" in text
    assert "2 findings are not shown" in text and "[rule-1]" not in text


def test_where_noise_hides_little_gains_none_of_them_is_shown() -> None:
    text = flat(told(gaining(3, within_noise=True)))
    assert text.startswith("3 findings are not shown: at most 100 us per step") and "[rule-" not in text


def test_a_finding_without_a_gain_is_reported_shortly_with_its_reason_and_command() -> None:
    text = told([ADVICE[0], ADVICE[4]])
    assert flat(text[text.index("Without") :]).startswith(
        "Without a predicted gain: • Convolutions run without cudnn.benchmark: let cuDNN choose by trying (only trying "
        "tells which algorithm is quicker) [cudnn-benchmark] torch.backends.cudnn.benchmark = True try bottleneck "
        "verify --try cudnn-benchmark examples/train.py"
    )
    assert "Together" not in text


def test_where_no_finding_has_a_gain_the_first_is_told_in_full() -> None:
    text = flat(told([ADVICE[4], replace(ADVICE[4], slug="another")]))
    assert text.startswith(
        "1. Convolutions run without cudnn.benchmark [cudnn-benchmark] gain only trying tells which algorithm is "
    )
    assert "Without a predicted gain: • " in text and text.count("Let cuDNN") == 1


def test_a_finding_that_comes_first_stands_before_gains() -> None:
    first = replace(ADVICE[4], slug="record-anew", comes_first=True)
    assert re.findall(r"^(\d)\. .*\[([\w-]+)\]", told([first, ADVICE[0]]), re.MULTILINE)[0] == ("1", "record-anew")


def test_only_the_first_few_are_shown_and_the_rest_is_counted() -> None:
    text = told([*gaining(7), *[ADVICE[4]] * 6])
    assert re.findall(r"^(\d)\. ", text, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    assert "2 more with smaller gains and 1 more without one: see --all-findings." in text
    whole = told([*gaining(12), *[ADVICE[4]] * 6], all_findings=True)
    assert re.findall(r"^(\d+)\. ", whole, re.MULTILINE)[-1] == "12"
    assert whole.count("[cudnn-benchmark]") == 6 and "see --all-findings" not in whole


@pytest.mark.parametrize(("confidence", "is_said"), [("low", True), ("medium", False), ("high", False)])
def test_low_confidence_is_said_beside_the_gain(confidence: Confidence, is_said: bool) -> None:
    text = flat(told([replace(ADVICE[0], confidence=confidence)]))
    assert ("gain 3.90 ms to 5.12 ms per step (low confidence): 1.47 to 1.73" in text) is is_said


@pytest.mark.parametrize(
    ("speedup", "per", "words"),
    [
        (Interval(1.75, 2.0), "step", "1.75 to 2.00 times as fast"),
        (Interval(1.75, 2.0), "sample", "1.75 to 2.00 times as many samples per second"),
        (Interval(1.99, 100.0), "step", "at least 1.99 times as fast"),
        (Interval(1.2, 1.2), "step", ": 1.20 times as fast"),
    ],
)
def test_a_speedup_is_of_the_step_or_of_samples_and_no_wider_than_threefold(
    speedup: Interval, per: Literal["step", "sample"], words: str
) -> None:
    text = flat(told([replace(ADVICE[0], predicted_speedup=speedup, per=per)]))
    assert words in text
    assert ("for the samples of a step" in text) == (per == "sample")
    assert "100" not in text


def test_what_is_shown_on_request_comes_with_the_option_alone() -> None:
    finding = replace(
        ADVICE[0], slug="other-backends", predicted_gain_us=None, gain_reason="only tried", on_request=True
    )
    assert findings(replace(gpu_overhead(), findings=(finding,))) is None
    assert "[other-backends]" in told([finding], all_findings=True)
    assert "other-backends" not in told([ADVICE[0], finding])


def test_long_evidence_is_cut_and_counted() -> None:
    many = replace(ADVICE[0], evidence=tuple(f"part {number}{'.' * 100}" for number in range(6)))
    shown = flat(told([many]))
    assert "seen part 0" in shown and "part 1..." in shown and "part 2" not in shown and "; and 4 more" in shown
    assert "part 5" in flat(told([many], all_findings=True))
    assert "part 0" in flat(told([replace(many, evidence=(f"part 0 {'x' * 300}", "part 1"))]))


def test_findings_of_an_undecided_analysis_come_with_a_word_of_caution() -> None:
    undecided = replace(gpu_overhead().verdict, bound="inconclusive")
    text = to_terminal(replace(gpu_overhead(), verdict=undecided))
    assert section(text, "What to change")[0].startswith("The verdict is inconclusive: these go by the part")
    assert "these go by the part" not in told(ADVICE)
    remarks = to_terminal(replace(gpu_overhead(), verdict=undecided, findings=ADVICE[4:]))
    assert "these go by the part" not in remarks
    parted = to_terminal(replace(gpu_overhead(), caveats=(Caveat("two-sided", "idle, then busy"),)))
    assert section(parted, "What to change")[0].startswith("The device is idle in one part of the window")


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (Interval(0.0, 880.0), "up to 880 us per step"),
        (Interval(880.0, 880.0), "about 880 us per step"),
        (Interval(440.0, 880.0), "440 us to 880 us per step"),
    ],
)
def test_an_interval_reads_as_people_say_it(gain: Interval, words: str) -> None:
    assert f"gain {words}" in flat(told([replace(ADVICE[0], predicted_gain_us=gain, added_gain_us=gain)]))


def test_a_change_that_may_cost_time_says_how_much_wherever_its_speedup_shows_it() -> None:
    gain = Interval(-120.0, 880.0)
    finding = replace(ADVICE[0], predicted_gain_us=gain, added_gain_us=gain, predicted_speedup=Interval(0.97, 1.10))
    costly = flat(told([finding]))
    assert "gain up to 880 us per step, at worst 120 us lost: from 3 % slower to 1.10 times as fast" in costly
    hidden = flat(told([replace(finding, predicted_speedup=Interval(0.999, 1.10))]))
    assert "gain up to 880 us per step: up to 1.10 times as fast" in hidden


def test_a_command_that_is_broken_into_lines_is_still_the_command() -> None:
    command = f"bottleneck verify --try {','.join(['channels-last'] * 3)} --set a=1 'my programs/train it.py' --x 'a b'"
    finding = replace(ADVICE[0], verify=command, code=None)
    for width in range(60, 130):
        lines = told([finding], width=width).splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("   try   "))
        last = next(number for number in range(first, len(lines)) if not lines[number].endswith("\\"))
        copied = "\n".join(line.removeprefix("   try   ") for line in lines[first : last + 1])
        # A shell joins the lines at such a backslash; shlex does not know that.
        assert shlex.split(copied.replace("\\\n", "")) == shlex.split(command)


def test_code_keeps_its_indentation_on_the_screen_and_its_fence_in_markdown() -> None:
    code = "for step, batch in enumerate(loader):\n    loss = train(batch)\n\n    total += loss  # ``` no fence"
    found = replace(gpu_overhead(), findings=(replace(ADVICE[0], code=code, verify=None),))
    shown = [line.removeprefix(" " * 9) for line in to_terminal(found).splitlines()]
    start = shown.index(code.splitlines()[0])
    assert "\n".join(shown[start : start + 4]) == code
    fenced = re.search(r"^ +````python\n(.*?)\n +````$", to_markdown(found), re.MULTILINE | re.DOTALL)
    assert fenced is not None
    assert [line.removeprefix("   ") for line in fenced[1].splitlines()] == code.splitlines()


@pytest.mark.parametrize("name", ["terminal", "markdown"])
def test_the_option_reaches_every_format_for_people(name: str) -> None:
    assert "pageable-copy" not in render_report(gpu_overhead(), name)
    assert "pageable-copy" in render_report(gpu_overhead(), name, all_findings=True)


def test_json_holds_every_finding_always() -> None:
    assert all(finding.slug in render_report(gpu_overhead(), "json") for finding in ADVICE)


def test_a_heading_without_anything_below_is_left_out() -> None:
    analysis = gpu_overhead()
    asked = replace(analysis.findings[0], on_request=True, predicted_gain_us=None, predicted_speedup=None)
    assert first_findings(replace(analysis, findings=(asked,)), 3, 200, 4) is None
    assert first_findings(replace(analysis, findings=(replace(asked, on_request=False),)), 3, 200, 4) is not None


def test_the_short_form_sets_another_way_apart_as_every_report_does() -> None:
    """A notebook had another third finding than the page and the terminal of the same trace."""
    first = gaining(1, us=0.5 * WALL_US)[0]
    small = replace(gaining(1, us=0.01 * WALL_US)[0], slug="small")
    other = replace(gaining(1, us=0.4 * WALL_US)[0], slug="other", added_gain_us=Interval(0.0, 0.0))
    analysis = replace(gpu_overhead(), findings=(first, small, other))
    brief, screen = first_findings(analysis, 3, 200, 4), findings_in_brief(analysis, 3, 3, 80)
    assert brief is not None
    assert (
        [action.key for action in brief.items]
        == [action.key for action in screen.items]
        == ["rule-0", "small", "other"]
    )
    same = ["another way to save the same time" in action.lines[0].text for action in brief.items]
    assert same == [False, False, True]


@pytest.mark.parametrize(("bound", "order"), [("device", ["words", "small"]), ("overhead", ["small", "words"])])
def test_where_the_device_limits_a_change_without_a_figure_comes_before_little_gains(
    bound: Bound, order: list[str]
) -> None:
    small = replace(gaining(1, us=0.01 * WALL_US)[0], slug="small")
    words = replace(small, slug="words", predicted_gain_us=None, added_gain_us=None, gain_reason="a trial tells")
    analysis = replace(gpu_overhead(), findings=(small, words))
    brief = first_findings(replace(analysis, verdict=replace(analysis.verdict, bound=bound)), 3, 200, 4)
    assert brief is not None
    assert [action.key for action in brief.items] == order  # type: ignore[index]


def test_the_short_form_keeps_the_order_of_findings_that_add_up() -> None:
    found = tuple(replace(each, slug=f"rule-{number}") for number, each in enumerate(gaining(3, us=0.1 * WALL_US)))
    brief = first_findings(replace(gpu_overhead(), findings=found), 3, 200, 4)
    assert [action.key for action in brief.items] == ["rule-0", "rule-1", "rule-2"]


def test_a_finding_shows_the_text_of_the_lines_that_it_names() -> None:
    assert "   line  train.py:70: for images, labels in loader:\n" in told(ADVICE[:1])
    unnamed = replace(ADVICE[0], evidence=("5.12 ms of every step",), seen_at=())
    assert "   line" not in told([unnamed])


def test_the_short_form_shows_the_text_of_a_line_in_its_advice_only() -> None:
    named = replace(ADVICE[0], advice="Take what runs at train.py:91 out of the step.", places=("train.py:91",))
    for finding, lines in ((ADVICE[0], ()), (named, ("train.py:91: running_loss += loss.item()",))):
        short = first_findings(replace(gpu_overhead(), findings=(finding,)), 3, 200, 4)
        assert short is not None
        assert tuple(line.text for line in short.items[0].lines if line.label == "line") == lines


@pytest.mark.parametrize(("spare", "gain"), [(0, "1.25-1.67x samples"), (30, "1.25 to 1.67 times as many")])
def test_a_title_in_one_row_is_whole_where_the_short_form_of_its_gain_has_room(spare: int, gain: str) -> None:
    title = "t" * (50 - spare)
    other = replace(
        gaining(2)[1], title=title, per="sample", predicted_speedup=Interval(1.25, 1.667), seen_at=(), places=()
    )
    analysis = replace(gpu_overhead(), findings=(gaining(1)[0], other))
    section_of_two = findings_in_brief(analysis, most=2, advised=-1, characters=74)
    assert section_of_two.items[1].lead.startswith(f"{title} ({gain}")


@pytest.mark.parametrize(
    ("low", "high", "per", "words", "brief"),
    [
        (1.02, 1.03, "step", "1.02 to 1.03 times as fast", "1.02-1.03x"),
        (1.72, 2.0, "sample", "1.72 to 2.00 times as many samples per second", "1.72-2.00x samples"),
        (0.9, 1.14, "step", "may help or hurt, try it: 0.90 to 1.14 times as fast", "try it: 0.90-1.14x"),
        (1.001, 30.0, "step", "may help little or much, try it", "try it"),
        (1.7, 30.0, "step", "at least 1.70 times as fast", "at least 1.70x"),
    ],
)
def test_a_speedup_is_told_in_words_and_briefly(
    low: float, high: float, per: Literal["step", "sample"], words: str, brief: str
) -> None:
    """A gain that is only known from below read 'at least 1.00 times as fast'."""
    finding = replace(ADVICE[0], predicted_speedup=Interval(low, high), per=per)
    assert (finding.describe_speedup(), finding.describe_speedup_briefly()) == (words, brief)


def test_a_long_title_in_one_row_keeps_its_end_and_not_a_gain_that_may_be_a_loss() -> None:
    title = "t" * 60
    unsure = replace(gaining(2)[1], title=title, predicted_speedup=Interval(0.9, 1.2), seen_at=(), places=())
    in_brief = findings_in_brief(
        replace(gpu_overhead(), findings=(gaining(1)[0], unsure)), most=2, advised=-1, characters=74
    )
    assert in_brief.items[1].lead == title
