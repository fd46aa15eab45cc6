"""Reports of verify in each format: within the width, re-readable, and nothing of a program acts as markup."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bottleneck.report.document import Intervals
from bottleneck.report.terminal import TerminalStyle
from bottleneck.report.verification import build, details, render, sentence
from bottleneck.schema.analysis import Interval
from bottleneck.schema.measurements import Difference, LoaderSetting, Ratio, Timing
from bottleneck.schema.trials import LoaderSearch, Trial, TriedSetting, Verification

FASTER = Trial(
    change="compile",
    title="torch.compile",
    verdict="faster",
    findings=("launches",),
    predicted_speedup=Interval(1.2, 1.5),
    speedup=Ratio(1.314, 1.291, 1.349, 21),
    original_us=Timing(1000.0, 990.0, 1010.0, 21),
    changed_us=Timing(760.0, 750.0, 770.0, 21),
    smallest_visible=0.01,
    setup_s=12.0,
    break_even_steps=50_000.0,
    peak_before_bytes=300_000_000,
    peak_after_bytes=320_000_000,
    differences=(
        Difference("outputs", 1e-6, 1e-6, 1e-4, True),
        Difference("gradients", 2e-5, 4e-5, 1e-4, True),
    ),
)
NO_EFFECT = Trial("gc-freeze", "", "no effect", speedup=Ratio(1.001, 0.996, 1.004, 40), smallest_visible=0.006)
WRONG = replace(
    FASTER,
    change="bf16-autocast",
    verdict="wrong",
    reason="its loss differs by 2.0e-01 of the largest value, where 1.0e-02 is allowed",
    differences=(Difference("loss", 0.2, 0.2, 0.01, False),),
    break_even_steps=None,
)
MISSING = Trial("backend-tvm", "", "missing", reason="pip install apache-tvm")
DONE = Verification(("examples/mlp.py",), 1000.0, (FASTER, NO_EFFECT, WRONG, MISSING))


def test_the_first_screen_says_what_to_keep_and_what_to_leave() -> None:
    slower = replace(NO_EFFECT, change="channels-last", verdict="slower", speedup=Ratio(0.91, 0.88, 0.94, 30))
    labels = {line.label: line.text for line in build(replace(DONE, trials=(*DONE.trials, slower))).lines}
    assert labels["First"].startswith("Keep compile, 1.00 ms → 760 us per step over 21 pairs")
    assert labels["First"].endswith("why it helps: `bottleneck explain launches`")
    assert labels["Leave"] == "gc-freeze (no effect), bf16-autocast (wrong results), channels-last (slower)"
    nothing = build(replace(DONE, trials=(NO_EFFECT,))).lines
    assert nothing[1].text == "Keep the program as it is"


def rows(done: Verification) -> list[str]:
    """The lines of the table on a terminal, without the picture above it."""
    return render(done, "terminal").partition("\nEach change")[2].splitlines()


def test_predicted_stands_beside_measured_and_verdict() -> None:
    line = next(line for line in rows(DONE) if line.startswith("compile"))
    assert line.split() == ["compile", "1.20", "to", "1.50", "1.31", "(1.29", "to", "1.35)", "faster"]
    assert next(line for line in rows(DONE) if line.startswith("gc-freeze")).split()[1] == "-"


def pictured(done: Verification, **style: object) -> dict[str, str]:
    """The cells of the picture on a terminal by change, and those of its axis under ''."""
    text = render(done, "terminal", TerminalStyle(**style)) if style else render(done, "terminal")
    lines = text.partition("\nHow many times as fast")[2].partition("\n\n")[0].splitlines()[1:-1]
    start = max(len(trial.change) for trial in done.trials if trial.speedup or trial.predicted_speedup) + 2
    return {line[:start].strip(): line[start:].ljust(60) for line in lines}


def test_the_picture_has_the_measured_interval_over_the_predicted_one_beside_1() -> None:
    cells = pictured(DONE)
    assert list(cells) == ["compile", "gc-freeze", "bf16-autocast", ""]
    one, axis = cells["compile"].index("│"), cells[""]
    assert axis[one] == "1" and one < cells["compile"].index("░") < cells["compile"].index("█")
    assert cells["compile"].rindex("█") < cells["compile"].rindex("░")
    assert cells["gc-freeze"][one] == "█"  # its interval holds 1
    tick = axis.index("1.3") + 1
    assert "█" in cells["compile"][tick - 1 : tick + 3]
    assert cells["bf16-autocast"].rstrip().endswith("1.31x, wrong")


def test_a_change_without_any_interval_is_not_in_the_picture_but_in_the_table() -> None:
    assert "How many times as fast" not in render(replace(DONE, trials=(MISSING,)), "terminal")
    assert any(line.startswith("backend-tvm") for line in rows(replace(DONE, trials=(MISSING,))))
    skipped = replace(MISSING, verdict="skipped", predicted_speedup=Interval(1.1, 1.2))
    cells = pictured(replace(DONE, trials=(skipped,)))["backend-tvm"]
    assert "░" in cells and "█" not in cells and "skipped" in cells


def test_the_picture_needs_no_unicode_and_leaves_its_bars_out_where_they_do_not_fit() -> None:
    cells = pictured(DONE, encoding="ascii")["compile"]
    assert "|" in cells and "-##" in cells
    narrow = render(DONE, "terminal", TerminalStyle(30))
    assert "█" not in narrow and max(map(len, narrow.splitlines())) <= 30


def test_noise_of_a_thousandth_does_not_fill_the_axis() -> None:
    (picture,) = (part for part in build(replace(DONE, trials=(NO_EFFECT,))).sections if isinstance(part, Intervals))
    assert picture.share(1.004) - picture.share(0.996) < 0.05
    assert [words for _, words in picture.ticks] == ["0.9", "0.95", "1", "1.05", "1.1"]


def test_the_page_draws_each_interval_on_one_axis() -> None:
    page = render(DONE, "html")
    picture = page.partition('class="intervals"')[2].partition("</section>")[0]
    assert "<h1" in page and "1 of 4 changes makes the step faster" in page.partition("</h1>")[0]
    assert picture.count('<rect class="measured') == 3 and picture.count('<rect class="predicted') == 2
    assert picture.count('<rect class="measured good"') == 1  # a wrong change is none that helps
    places = [float(x) for x in re.findall(r'x1?="([\d.]+)%"', picture)]
    assert len(places) > 20 and min(places) >= 0 and max(places) <= 100
    assert "style=" not in picture


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = replace(DONE, trials=(replace(FASTER, change="+".join(["compile-reduce-overhead"] * 4)), *DONE.trials))
    assert max(map(len, render(long, "terminal", TerminalStyle(width)).splitlines())) <= width


def test_what_a_trial_showed_is_reported_in_phrases() -> None:
    told = details(FASTER)
    assert "1.00 ms → 760 us per step over 21 pairs" in told
    assert "set-up 12.0 s, paid back after 50,000 steps" in told
    assert "peak memory 300 MB → 320 MB" in told
    assert "gradients differ by 4e-05 (allowed 1e-04)" in told
    assert "its loss differs by 2.0e-01 of the largest value, where 1.0e-02 is allowed" in details(WRONG)
    assert "a change of 0.6 % or more would have been seen" in details(NO_EFFECT)
    assert details(MISSING) == ("pip install apache-tvm",)


def test_a_small_speedup_shows_on_which_side_of_one_it_lies() -> None:
    assert "1.001 (0.996 to 1.004)" in render(DONE, "terminal")


def test_results_that_are_the_same_are_said_to_be() -> None:
    same = replace(FASTER, differences=(Difference("outputs", 0.0, 0.0, 0.0, True),))
    assert "results the same bit for bit" in details(same)


def test_what_could_not_be_compared_says_why() -> None:
    unknown = replace(FASTER, differences=(Difference("outputs", None, None, None, None, "it does other work"),))
    assert "it does other work" in details(unknown)


def test_the_sentence_counts_winners_and_a_wrong_change_is_none() -> None:
    assert (
        sentence(DONE) == "1 of 4 changes makes the step faster; best: torch.compile, 1.31 times as fast (1.29 to 1.35)"
    )
    assert (
        sentence(replace(DONE, trials=(WRONG, NO_EFFECT)))
        == "of 2 changes that were measured none makes the step faster"
    )
    skipped = replace(MISSING, verdict="skipped")
    assert (
        sentence(replace(DONE, trials=(WRONG, skipped))) == "the change does not make the step faster; 1 not measured"
    )
    assert sentence(replace(DONE, trials=(skipped, skipped))) == "none of 2 changes was measured"
    assert "--try all" in sentence(replace(DONE, trials=()))
    best = replace(FASTER, change="compile+tf32", speedup=Ratio(2.0, 1.9, 2.1, 14))
    assert "best: compile+tf32, 2.00 times as fast (1.90 to 2.10)" in sentence(replace(DONE, best=best))


def test_a_step_with_more_samples_is_faster_per_sample_and_says_so() -> None:
    """A step of 371 us was said to be faster than one of 346 us."""
    larger = replace(
        FASTER,
        change="batch-x2",
        title="twice as many samples in a step",
        speedup=Ratio(1.84, 1.79, 1.86, 14),
        original_us=Timing(346.0, 344.0, 348.0, 14),
        changed_us=Timing(371.0, 370.0, 372.0, 14),
        samples=2.0,
    )
    assert sentence(replace(DONE, trials=(larger,))) == (
        "1 of 1 change makes each sample faster; best: twice as many samples in a step, "
        "1.84 times as many samples per second (1.79 to 1.86)"
    )
    assert "346 us → 371 us per step of 2 times the samples over 14 pairs" in details(larger)


def test_the_step_of_the_first_line_is_the_one_that_was_timed() -> None:
    assert build(replace(DONE, step_us=3_000.0)).subject == "examples/mlp.py, 1.00 ms per step"
    assert build(replace(DONE, step_us=3_000.0, trials=(MISSING,))).subject == "examples/mlp.py, 3.00 ms per step"


def test_a_change_that_is_undecided_does_not_count_as_one_without_effect() -> None:
    undecided = replace(NO_EFFECT, verdict="inconclusive", speedup=Ratio(12.28, 1.02, 144.74, 7))
    skipped = replace(MISSING, verdict="skipped")
    done = replace(DONE, trials=(undecided, skipped, skipped))
    assert sentence(done) == "the change is undecided; 2 not measured"
    assert build(done).lines[1].text.startswith("Measure again with more time (--within)")
    assert build(replace(DONE, trials=(skipped,))).lines[0].text == "The change was not measured"
    both = replace(DONE, trials=(undecided, NO_EFFECT))
    assert sentence(both) == "of 2 changes that were measured none makes the step faster; 1 undecided"
    assert sentence(replace(DONE, trials=(undecided, undecided))) == "of 2 changes that were measured all are undecided"


def test_a_wrong_result_is_told_once() -> None:
    assert sum("differ" in phrase for phrase in details(WRONG)) == 1


def test_a_bound_is_reported_as_one_and_counts_as_no_winner() -> None:
    bound = replace(FASTER, change="replay-batch", is_bound=True)
    assert "a bound that no fix can pass, not a change to keep" in details(bound)
    assert "figures of a part of the step alone" in details(replace(bound, is_part=True))
    assert sentence(replace(DONE, trials=(bound,))) == "the change does not make the step faster"


def test_json_holds_every_field_and_no_number_that_json_has_not() -> None:
    odd = replace(FASTER, setup_s=float("inf"), reason="\x1b[31mred")
    document = json.loads(render(replace(DONE, trials=(odd,)), "json"), parse_constant=pytest.fail)
    assert document["schema"] == "bottleneck/verify/1"
    assert document["trials"][0]["setup_s"] is None
    assert document["trials"][0]["reason"] == "\\x1b[31mred"
    assert document["trials"][0]["speedup"] == {"median": 1.314, "low": 1.291, "high": 1.349, "n": 21}


HOSTILE = "RuntimeError: \x1b]0;x\x07 | <script>@user\n#1 `code` [link](http://x)"


def test_text_of_a_program_acts_nowhere() -> None:
    done = replace(DONE, program=(HOSTILE,), trials=(replace(MISSING, verdict="failed", reason=HOSTILE),))
    assert "\x1b" not in render(done, "terminal") + render(done, "markdown")
    row = next(line for line in render(done, "markdown").splitlines() if line.startswith("| backend"))
    cells = row.replace("\\|", "").split("|")
    assert len(cells) == 7
    assert "`" in cells[5] and "<script>" not in cells[5].split("`")[0]


def test_markdown_has_a_row_for_every_trial_and_for_combinations() -> None:
    done = replace(DONE, combinations=(replace(FASTER, change="compile+tf32"),))
    assert sum(line.startswith("| ") for line in render(done, "markdown").splitlines()) == 1 + 5


def test_the_reference_names_every_key_that_json_has() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text().split("## verify\n")[1]
    for record in (Verification, Trial, Difference, Ratio, LoaderSearch, TriedSetting, LoaderSetting):
        for field in fields(record):
            assert f"`{field.name}`" in page, field.name


AT_MOST = replace(NO_EFFECT, change="compile", predicted_most=1 / (1 - 0.0041))
UNTRIED = Trial("read-later", "", "not applicable", reason="verify has no such change", predicted_most=1.004)


def test_what_would_bring_nothing_has_its_speedup_at_most_beside_the_measured_one() -> None:
    done = replace(DONE, trials=(AT_MOST, UNTRIED), tried="no-gain")
    lines = rows(done)
    line = next(line for line in lines if line.startswith("compile"))
    assert line.split()[:4] == ["compile", "at", "most", "1.005"]
    assert sentence(done) == "1 of 1 change gains no more than predicted; 1 not measured"
    assert any("verify has no such change" in line for line in lines)


def test_a_change_that_gains_more_than_it_should_is_counted() -> None:
    faster = replace(AT_MOST, speedup=Ratio(1.1, 1.05, 1.15, 20), verdict="faster")
    assert (
        sentence(replace(DONE, trials=(AT_MOST, faster), tried="no-gain"))
        == "1 of 2 changes gain no more than predicted"
    )
    assert sentence(replace(DONE, trials=(UNTRIED,), tried="no-gain")) == "none of 1 change was measured"
    assert "no change is listed" in sentence(replace(DONE, trials=(), tried="no-gain"))


OWN, QUICK = LoaderSetting(), LoaderSetting(2, 4, persistent_workers=True)
SEARCH = LoaderSearch(
    settings=(
        TriedSetting(OWN, Timing(400.0, 380.0, 420.0, 9), rungs=1, is_own=True),
        TriedSetting(QUICK, Timing(200.0, 190.0, 210.0, 21), rungs=2),
        TriedSetting(LoaderSetting(1, 2, persistent_workers=True), reason="[red]no[/red] <b>"),
    ),
    best=QUICK,
    constructor="DataLoader(data, num_workers=2, prefetch_factor=4, persistent_workers=True)",
    line="train.py:40",
    samples=64,
    seconds=41.0,
    notes=("the program may use 2 processors",),
)
SEARCHED = Verification(("model.py",), 1000.0, (replace(FASTER, change="workers", loader_search=SEARCH),))


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_the_settings_of_a_loader_stand_in_every_form_with_the_call(form: str) -> None:
    shown = " ".join(render(SEARCHED, form).split())
    assert "Settings of the loader" in shown and "num_workers=2" in shown and "train.py:40" in shown
    assert "3 settings timed in 41 s" in shown and "the program may use 2 processors" in shown
    failed = {"terminal": "[red]no[/red] <b>", "markdown": "`[red]no[/red] <b>`", "html": "[red]no[/red] &lt;b&gt;"}
    assert failed[form] in shown


def _settings_table(search: LoaderSearch) -> Any:
    done = replace(SEARCHED, trials=(replace(SEARCHED.trials[0], loader_search=search),))
    return next((part for part in build(done).sections if getattr(part, "title", "") == "Settings of the loader"), None)


def test_a_search_that_was_interrupted_says_what_led_and_leaves_an_empty_table_out() -> None:
    assert _settings_table(replace(SEARCH, stopped_by="user")).rows[0].cells[-1] == "led"
    untimed = tuple(replace(tried, sample_us=None) for tried in SEARCH.settings)
    assert _settings_table(replace(SEARCH, stopped_by="user", settings=untimed)) is None


def test_the_quickest_setting_of_a_loader_is_first_in_ms_per_sample() -> None:
    table = next(part for part in build(SEARCHED).sections if getattr(part, "title", "") == "Settings of the loader")
    assert [row.cells for row in table.rows] == [
        ("2 workers, prefetch 4", "0.2", "0.19 to 0.21", "2", "tried"),
        ("0 workers", "0.4", "0.38 to 0.42", "1", "own"),
        ("1 worker, prefetch 2", "-", "-", "0", "[red]no[/red] <b>"),
    ]
    assert table.columns[1].title == "ms per sample"


def test_larger_batches_have_a_table_of_their_own() -> None:
    sizes = tuple(
        TriedSetting(replace(QUICK, batch_size=size), None if us is None else Timing(us, us, us, 3), is_own=size == 64)
        for size, us in ((64, 200.0), (128, 150.0), (256, None))
    )
    search = replace(SEARCH, batches=(*sizes[:2], replace(sizes[2], reason="out of memory")))
    done = replace(SEARCHED, trials=(replace(SEARCHED.trials[0], loader_search=search),))
    table = next(part for part in build(done).sections if getattr(part, "title", "") == "Batches of the loader")
    assert [row.cells for row in table.rows] == [
        ("64", "0.2", "0.2 to 0.2", "own"),
        ("128", "0.15", "0.15 to 0.15", ""),
        ("256", "-", "-", "out of memory"),
    ]
    assert "Batches of the loader" not in render(SEARCHED, "terminal")


def test_a_search_that_found_nothing_faster_writes_no_call() -> None:
    slower = replace(FASTER, verdict="no effect", loader_search=replace(SEARCH, constructor=None, line=None))
    assert "Write" not in render(replace(SEARCHED, trials=(slower,)), "terminal")
    assert "Write" in render(SEARCHED, "terminal")


def test_beside_other_programs_a_change_is_measured_again_before_it_is_kept() -> None:
    quiet, busy = (replace(DONE, other_processors=others, processors=2) for others in (0.3, 1.6))
    assert [line.label for line in build(quiet).lines] == ["", "First", "Leave"]
    labels = {line.label: line.text for line in build(busy).lines}
    assert labels["But"].startswith("Other programs kept 1.6 of 2 processors busy meanwhile")
    assert labels["First"].startswith(f"Measure again on a quiet machine: keep {FASTER.change}")
