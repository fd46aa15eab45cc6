"""The lines of what will not help: one row of a terminal each, whatever the cause and the line of the program."""

from pathlib import Path

import pytest

from bottleneck.advice import no_gain as advice
from bottleneck.report import no_gain as words
from bottleneck.report.analysis_document import to_markdown, to_terminal
from bottleneck.report.no_gain import describe_no_gain, most_text, no_gain_in_brief
from bottleneck.report.page import to_html
from bottleneck.report.screen import to_screen
from bottleneck.schema.analysis import NoGain
from bottleneck.schema.records import replace
from tests.report.samples import gpu_overhead

NUMBERS = dict.fromkeys(
    ("queued_us", "spent_us", "waited_us", "update_us", "loading_us", "copied_us", "idle_us"), 123_456.0
) | dict.fromkeys(("library_share", "stays_share", "grouped_share", "moves_share", "busy_share"), 0.98765)
LONG = "a_very_long_name_of_a_file.py:12345"
READ = NoGain("read-later", 0.0042, "replayed", "queued_work", {"queued_us": 31_000.0, "calls": 1.0}, "train.py:88")


CAUSES = {
    "read-later": ("queued_work", "own_calls"),
    "compile": ("products", "attention", "recurrent_layers", "library_calls"),
    "graph": ("launched_in_time",),
    "fused-optimizer": ("queued_work", "short_update"),
    "workers": ("no_wait", "short_loading"),
    "pin-memory": ("short_copies", "pinned"),
    "channels-last": ("grouped",),
    "larger-batch": ("grows",),
    "faster-arithmetic": ("moves_bytes",),
    "faster-device": ("host_sets_pace",),
}


@pytest.mark.parametrize(("code", "cause"), [(code, cause) for code in CAUSES for cause in CAUSES[code]])
def test_a_line_fits_a_row_and_says_what_it_gains_at_most(code: str, cause: str) -> None:
    source = LONG if code == "read-later" else None
    line = NoGain(code, 0.0187, "replayed", cause, {**NUMBERS, "ratio": 1.99}, source)  # type: ignore[arg-type]
    for stays in (0.98765, 0.9999):
        text = describe_no_gain(replace(line, numbers={**line.numbers, "stays_share": stays}))
        assert len(text) <= 78
        assert text.endswith("; at most 1.9 %") and ": " in text


def test_every_cause_that_is_given_has_words() -> None:
    source = Path(advice.__file__).read_text(encoding="utf-8")
    assert all(f'"{cause}"' in source for cause in words._CAUSES)
    assert set(words._CHANGES) == set(advice._MAKERS) == set(CAUSES)
    assert {cause for causes in CAUSES.values() for cause in causes} == set(words._CAUSES)


def test_a_read_is_told_with_its_line_and_the_work_that_is_queued() -> None:
    assert describe_no_gain(READ) == "fewer .item() (train.py:88): 31.0 ms of work lies ahead; at most 0.5 %"


def test_a_cause_of_a_later_version_is_left_out() -> None:
    assert describe_no_gain(replace(READ, cause="something_new")) == "fewer .item() (train.py:88); at most 0.5 %"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "gains nothing"), (0.00001, "at most 0.1 %"), (0.004, "at most 0.4 %"), (0.0041, "at most 0.5 %")],
)
def test_a_bound_is_rounded_up(share: float, text: str) -> None:
    assert most_text(share) == text


def test_a_sentence_names_whole_changes_only() -> None:
    several = (READ, replace(READ, code="fused-optimizer", source=None))
    (whole,) = no_gain_in_brief(several, 300)
    assert whole.count("at most") == 2 and whole.endswith(").")
    (short,) = no_gain_in_brief(several, len(whole) - 1)
    assert short == whole.partition(", ")[0] + "."


def test_every_medium_lists_them_and_a_hostile_line_acts_as_no_markup() -> None:
    analysis = replace(gpu_overhead(), no_gain=(READ, replace(READ, source="<b>`x`</b>:1")))
    assert "Will not help: fewer .item() (at most " in to_screen(analysis)
    for text in (to_terminal(analysis), to_markdown(analysis), to_html(analysis)):
        # On a page no line breaks between a number and its unit.
        assert "What will not help" in text and "31.0 ms of work lies ahead" in text.replace("\u00a0", " ")
    assert "<b>`x`" not in to_html(analysis).partition('id="findings"')[2].partition("<script")[0]
    assert "What will not help" not in to_terminal(gpu_overhead())
