"""Text from traces is made safe, numbers re-add as printed, and a sparkline never shows something as nothing."""

import math
import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.report.text import (
    UNKNOWN,
    as_sentence,
    clean,
    cut_text,
    first_clauses,
    percents,
    scale_of,
    sparkline_cells,
)
from bottleneck.units import apportion, apportion_groups, format_ratio, format_ratio_range, format_share, trimmed
from tests.report.samples import HOSTILE_NAMES


def test_a_bracket_goes_with_the_sentence_that_it_ends() -> None:
    """A line read "shapes were not recorded. (12.2 %)"."""
    text = "This is a guess: shapes were not recorded. Most of it is random numbers (49.0 %), pointwise work (12.2 %)"
    assert cut_text(text, 74) == "This is a guess: shapes were not recorded."
    assert cut_text(text, 97).endswith("random numbers (49.0 %) …")
    places = "80.4 % of the run is elsewhere: advantages(), a.py:80 (65.9 %), rollout(), a.py:77 (11.0 %)"
    assert "11.0" not in cut_text(places, 50)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain <4, x>", "plain <4, x>"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\rd\x00", "a\\x0ab\\x09c\\x0dd\\x00"),
        ("\x7f\x9b2J", "\\x7f\\x9b2J"),
        ("\u202egnp\u2069", "\\u202egnp\\u2069"),
        ("a\u200bb\ufeff\u2060\u00ad", "a\\u200bb\\ufeff\\u2060\\xad"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\x85"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("62\u00a0%", "62 %"),
        ("核心 ü 🧮", "核心 ü 🧮"),
    ],
)
def test_what_cannot_be_printed_becomes_a_visible_escape(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize("text", HOSTILE_NAMES, ids=ascii)
def test_nothing_unprintable_is_left(text: str) -> None:
    shown = clean(text, 5000)
    assert shown.isprintable()
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_text_is_cut_at_the_limit_and_says_so() -> None:
    assert clean("x" * 200) == "x" * 200
    assert clean("x" * 201) == "x" * 199 + "…"
    assert len(clean("\x1b" * 300, 50)) == 50


DURATIONS = st.lists(st.floats(0, 1e12), min_size=1, max_size=30)


def printed(text: str) -> Decimal:
    """The value that a printed number stands for: what rounds to nothing counts nothing."""
    number = text.removesuffix(" %")
    return (
        Decimal(0)
        if number.startswith("<")
        else Decimal(100)
        if number.startswith(">")
        else Decimal(number.replace(",", ""))
    )


@given(DURATIONS)
def test_a_printed_column_re_adds_to_its_printed_total(values: list[float]) -> None:
    *parts, total = scale_of(sum(values)).column(values)
    assert sum(map(printed, parts)) == printed(total)


@given(DURATIONS)
def test_a_printed_part_is_within_one_step_of_the_truth(values: list[float]) -> None:
    scale = scale_of(sum(values))
    for part, value in zip(apportion([scale.quanta(value) for value in values]), values, strict=True):
        assert abs(part - scale.quanta(value)) <= 1 + 1e-6


@given(st.lists(DURATIONS, min_size=1, max_size=6))
def test_groups_are_rounded_as_if_alone_and_their_parts_re_add_to_them(groups: list[list[float]]) -> None:
    rounded = apportion_groups(groups)
    assert [sum(parts) for parts in rounded] == apportion([math.fsum(group) for group in groups])
    for parts, values in zip(rounded, groups, strict=True):
        assert all(abs(part - value) <= 1 + 1e-3 for part, value in zip(parts, values, strict=True))


def test_a_group_shows_the_share_that_is_reported_of_it_elsewhere() -> None:
    """Rounded part by part, the first group of 586.3 would read 587."""
    groups = [[577.8, 4.8, 2.9, 0.5, 0.3], [379.0, 9.4], [25.3]]
    assert [sum(parts) for parts in apportion_groups(groups)] == [586, 389, 25]
    assert sum(apportion([part for group in groups for part in group])[:5]) == 587


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda parts: sum(parts) > 0))
def test_printed_shares_of_a_whole_add_up_to_100_percent(parts: list[float]) -> None:
    *shown, total = percents([part / sum(parts) for part in parts])
    assert total == "100.0 %"
    assert sum(map(printed, shown)) == 100


@pytest.mark.parametrize(
    ("us", "unit", "shown"),
    [
        (0.0, "us", "0.000"),
        (0.5, "us", "0.500"),
        (3.0, "us", "3.000"),
        (250.0, "us", "250.0"),
        (9_999.0, "us", "9,999"),
        (12_177.0, "ms", "12.18"),
        (9_999_000.0, "ms", "9,999"),
        (1.4e7, "s", "14.00"),
        (3.6e12, "s", "3,600,000"),
    ],
)
def test_a_table_is_in_the_unit_in_which_its_total_has_four_digits(us: float, unit: str, shown: str) -> None:
    scale = scale_of(us)
    assert (scale.unit, scale.one(us)) == (unit, shown)


def test_a_nonzero_number_never_prints_as_zero_and_zero_does() -> None:
    scale = scale_of(12_000.0)
    assert (scale.one(0.4), scale.one(0.0)) == ("<0.01", "0.00")


def test_an_unknown_number_is_no_number() -> None:
    scale = scale_of(1.0)
    assert [scale.one(None), scale.one(float("nan")), scale.one(float("inf"))] == [UNKNOWN] * 3


def test_a_partial_share_never_prints_as_everything() -> None:
    assert percents([0.99999, 0.00001]) == (">99.9 %", "<0.1 %", "100.0 %")
    assert percents([1.0]) == ("100.0 %", "100.0 %")


LEVELS = ".123456789"


def test_a_strip_shows_nothing_and_the_most_as_its_first_and_last_level() -> None:
    assert sparkline_cells([0.0, 9.0, 1.0, 4.5], 4, LEVELS) == ".915"


def test_parts_of_a_strip_that_is_too_long_are_means() -> None:
    assert sparkline_cells([0.0, 4.0, 8.0, 8.0], 2, LEVELS) == "39"


def test_a_little_is_never_shown_as_nothing() -> None:
    assert sparkline_cells([1e-9, 1.0], 2, LEVELS) == "19"
    assert sparkline_cells([0.0, 0.0], 2, LEVELS) == ".."


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(0, 80))
def test_a_strip_is_never_wider_than_its_room_or_its_values(values: list[float], width: int) -> None:
    assert len(sparkline_cells(values, width, LEVELS)) == min(width, len(values))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a step took long", "A step took long"),
        ("left out: rank 3, job/trace.rank3.json: it is empty", "Left out: rank 3, job/trace.rank3.json: it is empty"),
        ("host-side causes are scaled", "Host-side causes are scaled"),
        ("of 4 ranks, no trace was given of 1", "Of 4 ranks, no trace was given of 1"),
        ("job/rank1.json is cut off", "job/rank1.json is cut off"),
        ("trace.json is cut off", "trace.json is cut off"),
        ("aten::mm takes long", "aten::mm takes long"),
        ("train.py:31 sleeps", "train.py:31 sleeps"),
        ("cudaMalloc is called", "cudaMalloc is called"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name(text: str, shown: str) -> None:
    assert as_sentence(text) == shown


@pytest.mark.parametrize(
    ("limit", "shown"),
    [(31, "elsewhere: train.py:12 …"), (29, "elsewhere: train.py:12 …"), (24, "elsewhere: train.py:12 …"), (80, None)],
)
def test_a_number_is_not_cut_from_its_unit(limit: int, shown: str | None) -> None:
    text = "elsewhere: train.py:12 (72.9 %), and the rest"
    assert cut_text(text, limit) == (text if shown is None else shown)


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (40, "Keep one layout from end to end."),  # a whole sentence bears no mark: it read 'end to end. …'
        (25, "Keep one layout from end …"),
        (70, "Keep one layout from end to end. Copies cost time, as all do"),
        (55, "Keep one layout from end to end."),
        (14, "Keep one …"),
        (90, "Keep one layout from end to end. Copies cost time, as all do; so do casts"),
    ],
)
def test_a_text_is_cut_where_a_thought_ends(limit: int, shown: str) -> None:
    text = "Keep one layout from end to end. Copies cost time, as all do; so do casts"
    assert cut_text(text, limit) == shown


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("2.50 us", "2.5 us"),
        ("5.00 us", "5 us"),
        ("100 us", "100 us"),
        ("10.0 G", "10 G"),
        ("1.05 s", "1.05 s"),
        ("10.0 ", "10"),
    ],
)
def test_ticks_have_no_decimals_that_are_zero(amount: str, shown: str) -> None:
    assert trimmed(amount) == shown


@pytest.mark.parametrize(
    ("limit", "shown"),
    [(200, "Use a set: it is quicker. Or sort"), (30, "Use a set: it is quicker"), (12, "Use a set"), (6, "Use a …")],
)
def test_advice_without_room_keeps_whole_clauses(limit: int, shown: str) -> None:
    """Advice on the first screen ended in 'then take that out of …'."""
    assert first_clauses("Use a set: it is quicker. Or sort. ", limit) == shown


@pytest.mark.parametrize(
    ("ratio", "words"),
    [(0.984, "0.98"), (2.351, "2.35"), (12.34, "12.3"), (118.2, "118"), (2609.7, "2,610"), (99999.0, "100,000")],
)
def test_a_ratio_has_three_digits_and_its_thousands_apart(ratio: float, words: str) -> None:
    assert format_ratio(ratio) == words


def test_an_interval_of_ratios_has_one_form() -> None:
    assert format_ratio_range(1.32, 2.35) == "1.32 to 2.35"
    assert format_ratio_range(118.2, 500.15, "-") == "118-500"
    assert format_ratio_range(1.001, 1.002) == "1.00"


def test_a_share_of_more_than_all_has_three_digits() -> None:
    assert [format_share(share) for share in (1.0, 1.2345, 13.336)] == ["100.0 %", "123 %", "1,330 %"]


def test_a_cut_inside_of_brackets_closes_them() -> None:
    text = "Write into tensors that are kept (predicted: 1.00 to 1.45 times as fast; the steps vary by more than that)."
    assert cut_text(text, 90) == "Write into tensors that are kept (predicted: 1.00 to 1.45 times as fast)"


def test_what_stands_in_the_last_bracket_outlives_the_words_before_it() -> None:
    gain = " (predicted: at least 2.65 times as fast)."
    text = "First: keep keys and values of past tokens, and pass the newest token only to the model" + gain
    cut = cut_text(text, 100)
    assert len(cut) <= 100 and cut.endswith(gain) and cut.startswith("First: keep keys and values of past tokens")
    # A bracket as long as half of the room is cut with the rest.
    assert not cut_text(text, 80).endswith(gain)
