"""The document of predicted changes: sentences, tables that fit 80 columns, and hostile names."""

import json

import pytest

from bottleneck.devices.match import device_by_name
from bottleneck.predict.changes import PRICED, ChangedSteps, predict_changes
from bottleneck.report.document import Intervals, TableSection
from bottleneck.report.predicted_changes import CHANGE_WORDS, build, render, verdict_words
from bottleneck.report.text import as_sentence
from bottleneck.schema.predicted_changes import PredictedChanges, PredictedVerdict
from bottleneck.schema.records import replace
from bottleneck.units import format_memory, format_us
from tests.predict.test_changes import Program

A100, T4 = device_by_name("A100"), device_by_name("Tesla T4")


@pytest.fixture(scope="module")
def answer() -> PredictedChanges:
    names = ["bf16-autocast", "tf32", "fused-optimizer", "channels-last", "compile", "compile-max-autotune"]
    return predict_changes(ChangedSteps(Program().record, {}), [A100, T4], names, lambda *_: None)


def test_the_sentence_says_what_to_change_first_and_all_together(answer: PredictedChanges) -> None:
    sentence = build(answer).sentence
    first, total = answer.devices[0].order[0], answer.devices[0].total
    assert f"First: {CHANGE_WORDS[first.change]}, {first.speedup:.2f} (" in sentence
    assert total is None or f"{total.speedup:.2f} (" in sentence
    assert "On a T4 this step takes" in sentence


def test_all_devices_have_a_picture_on_one_axis(answer: PredictedChanges) -> None:
    pictures = [part for part in build(answer).sections if isinstance(part, Intervals)]
    assert [picture.title.rpartition(" ")[2] for picture in pictures] == ["A100-SXM4-80GB", "T4"]
    assert pictures[0].scale == pictures[1].scale and not pictures[0].has_both
    best = pictures[0].bars[0]
    assert best.predicted and best.tone == "good" and pictures[0].share(1.0) < pictures[0].share(best.predicted[0])
    assert render(answer, "html").count('class="intervals"') == 2


def test_a_device_on_which_nothing_helps_says_so(answer: PredictedChanges) -> None:
    open_changes = tuple(replace(change, verdict="open") for change in answer.devices[0].alone)
    nothing = replace(answer, devices=(replace(answer.devices[0], alone=open_changes, order=(), total=None),))
    assert build(nothing).sentence.endswith("no change brings more than the error of its prediction.")
    assert build(nothing).lines[0].text.startswith("Nothing is certain to help on ")


def test_a_change_that_helps_alone_is_said_where_no_order_is_certain(answer: PredictedChanges) -> None:
    device = replace(answer.devices[0], order=(), total=None)
    (best, *_) = (change for change in device.alone if change.verdict == "helps")
    document = build(replace(answer, devices=(device,)))
    words = CHANGE_WORDS[best.change]
    assert f"{words} helps alone, {best.speedup:.2f} (" in document.sentence
    assert document.lines[0].text.startswith(f"{as_sentence(words)} first: {best.speedup:.2f} (")


def test_a_first_change_of_two_devices_is_said_once(answer: PredictedChanges) -> None:
    """The headline of two devices named the same change twice, on eight lines of a phone."""
    device = answer.devices[0]
    two = build(replace(answer, devices=(device, replace(device, device="NVIDIA H100 80GB HBM3"))))
    labels = {line.label: line.text for line in two.lines}
    assert labels[""].count(" times as fast on ") == 1 and labels[""].count(" on H100 80GB HBM3") == 1
    assert labels["Then"] == "nothing certain after the first on A100-SXM4-80GB and on H100 80GB HBM3"


def test_sentences_name_every_change_in_words() -> None:
    assert set(CHANGE_WORDS) == set(PRICED)


def test_the_first_screen_says_what_holds_the_step_and_where(answer: PredictedChanges) -> None:
    labels = {line.label: line.text for line in build(answer).lines}
    bound = answer.devices[0].step.bound
    assert labels["Bound"].startswith(f"{bound}-bound on A100-SXM4-80GB")
    assert labels["Now"].startswith(f"{format_us(answer.devices[0].step.us or 0.0)} (")
    assert "% of the kernels' time on A100-SXM4-80GB" in labels["Worst"]


def test_the_first_change_has_its_interval_on_the_first_screen(answer: PredictedChanges) -> None:
    first = answer.devices[0].order[0]
    interval = f"{first.speedup:.2f} ({first.interval.low:.2f} to {first.interval.high:.2f}) times as fast"
    assert interval in build(answer).lines[0].text


def test_a_step_that_waits_for_its_host_names_no_kernel_as_the_worst(answer: PredictedChanges) -> None:
    device = answer.devices[0]
    waiting = replace(device, step=replace(device.step, host_us=9000.0, device_us=1000.0))
    labels = {line.label: line.text for line in build(replace(answer, devices=(waiting,))).lines}
    words = "the host: it issues the step in 9.00 ms on A100-SXM4-80GB (its kernels take 1.00 ms)"
    assert labels["Worst"] == words and "kept waiting by the host" in labels["Bound"]


def test_a_picture_says_what_its_cells_stand_for_and_memory_is_in_units_of_makers(answer: PredictedChanges) -> None:
    text = render(answer, "terminal")
    assert text.count("░ interval  │ as fast as now") == 2
    assert [format_memory(size) for size in (80 * 2**30, 59.6e6, 512)] == ["80 GiB", "56.8 MiB", "512 B"]


def test_a_note_stands_under_the_first_table_only(answer: PredictedChanges) -> None:
    text = render(answer, "terminal")
    assert text.count("Each change alone on") == 2 and text.count("bottleneck verify --list") == 1


def test_the_unchanged_step_has_no_verdict_among_those_of_changes(answer: PredictedChanges) -> None:
    tables = [part for part in build(answer).sections if isinstance(part, TableSection)]
    assert tables[0].rows[0].cells[0] == "now, unchanged" and tables[0].rows[0].cells[-1] == ""
    assert all(row.cells[-1] for row in tables[0].rows[1:])


def test_the_text_fits_80_columns_and_names_what_does_not_apply(answer: PredictedChanges) -> None:
    text = render(answer, "terminal")
    assert max(map(len, text.splitlines())) <= 80
    assert "channels-last: needs convolutions" in text and "tf32 on T4: it has no units" in text


def test_names_are_made_safe_for_their_medium(answer: PredictedChanges) -> None:
    hostile = replace(answer, program="<script>x</script>\x1b[31m|`x`")
    assert "\x1b[31m" not in render(hostile, "terminal") and "\x1b" not in render(hostile, "markdown")
    assert "<script>x" not in render(hostile, "html")
    assert "\x1b" not in json.loads(render(hostile, "json"))["program"]


def test_a_step_that_does_not_fit_says_so_in_its_sentence(answer: PredictedChanges) -> None:
    device = answer.devices[0]
    assert device.fits and "does not fit" not in build(answer).sentence
    large = replace(device, peak_bytes=122 * 2**30, fits=False)
    assert (
        "but its memory does not fit: 122 GiB at its peak, of 80 GiB"
        in build(replace(answer, devices=(large,))).sentence
    )


@pytest.mark.parametrize(
    ("verdict", "speedup", "words"),
    [
        ("open", 1.29, "probably helps"),
        ("open", 1.02, "about the same"),
        ("open", 0.98, "about the same"),
        ("open", 0.91, "probably slower"),
        ("hurts", 0.99, "slower"),
        ("nothing", 1.0, "nothing"),
    ],
)
def test_an_interval_that_holds_1_says_what_is_expected(verdict: PredictedVerdict, speedup: float, words: str) -> None:
    assert verdict_words(verdict, speedup) == words


def test_both_tables_begin_with_the_step_as_it_is(answer: PredictedChanges) -> None:
    device = answer.devices[0]
    ordered = replace(answer, devices=(replace(device, order=device.alone[:2], total=device.alone[0]),))
    tables = [part for part in build(ordered).sections if isinstance(part, TableSection)]
    assert {table.title.split(" on ")[0] for table in tables} == {"Each change alone", "In which order"}
    assert {table.rows[0].cells[0] for table in tables} == {"now, unchanged"}
