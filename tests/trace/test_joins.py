"""The join on ids that repeat, against a search by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.trace.joins import match_latest

ROWS = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 9)), max_size=12)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([key for key, _ in rows], dtype=np.int64), np.array([at for _, at in rows], dtype=np.int64)


@settings(deadline=None)
@given(ROWS, ROWS)
def test_match_is_the_latest_before_and_the_first_of_the_same_id(
    rows: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    match = match_latest(*columns(rows), *columns(asked))
    for position, (key, at) in enumerate(asked):
        times = [time for each, time in rows if each == key and key >= 0]
        before = [time for time in times if time <= at]
        for row, expected in ((match.before[position], before), (match.first[position], times)):
            assert (row == -1) == (not expected)
            assert row == -1 or rows[row][0] == key
        if before:
            assert rows[match.before[position]][1] == max(before)
        if times:
            assert rows[match.first[position]][1] == min(times)


def test_nearest_falls_back_to_the_first_when_all_come_after() -> None:
    match = match_latest(np.array([7, 7]), np.array([20, 10]), np.array([7]), np.array([5]))
    assert match.before.tolist() == [-1]
    assert match.nearest.tolist() == [1]
