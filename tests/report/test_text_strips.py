"""Strips: the height of a character is the mean of its part, and something never looks like nothing."""

from hypothesis import given
from hypothesis import strategies as st

from bottleneck.report.text import sparkline_cells

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
