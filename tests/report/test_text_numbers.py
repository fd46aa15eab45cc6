"""Numbers on screen: parts re-add to the total beside them, and rounding never lies."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bottleneck.report.text import UNKNOWN, apportion, apportion_groups, percents, scale_of

DURATIONS = st.lists(st.floats(0, 1e12), min_size=1, max_size=30)


def printed(text: str) -> Decimal:
    """The value that a printed number stands for: what rounds to nothing counts nothing."""
    number = text.removesuffix(" %")
    return Decimal(0) if number.startswith("<") else Decimal(100) if number.startswith(">") else Decimal(number)


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


def test_a_group_shows_the_share_that_is_told_of_it_elsewhere() -> None:
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
        (9_999.0, "us", "9999"),
        (12_177.0, "ms", "12.18"),
        (9_999_000.0, "ms", "9999"),
        (1.4e7, "s", "14.00"),
        (3.6e12, "s", "3600000"),
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
