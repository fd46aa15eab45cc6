"""Stretches and cuts: pieces add up to what was cut, and each instant has one holder."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottleneck.schema import intervals as module
from bottleneck.schema.intervals import (
    NOTHING,
    Segments,
    by_track,
    cut,
    hold_on_tracks,
    longest_first,
    numbered,
    outermost,
)

_intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12)
_law = settings(max_examples=settings.default.max_examples * 8 // 10, deadline=None)


@_law
@given(_intervals)
def test_an_instant_belongs_to_the_interval_that_began_first_and_is_still_open(
    intervals: list[tuple[int, int]],
) -> None:
    start = np.array([start for start, _ in intervals], dtype=float)
    end = start + np.array([length for _, length in intervals], dtype=float)
    segments = outermost(start, end, np.arange(start.size))
    for cell in range(55):
        open_ = [row for row in range(start.size) if start[row] <= cell + 0.5 < end[row]]
        found = int(segments.at(np.array([cell + 0.5]))[0])
        assert (found >= 0) == bool(open_)
        if open_:
            reach_before = [end[row] for row in range(start.size) if start[row] < start[found]]
            assert start[found] == min(start[row] for row in open_) or max(reach_before) <= cell + 0.5


@_law
@given(_intervals, st.integers(1, 4), st.randoms(use_true_random=False))
def test_it_does_not_matter_how_many_intervals_are_looked_at_together(
    intervals: list[tuple[int, int]], at_once: int, random: Random
) -> None:
    start = np.array([start for start, _ in intervals], dtype=float)
    end = start + np.array([length for _, length in intervals], dtype=float)
    chosen = np.array([row for row in range(start.size) if random.random() < 0.7], dtype=np.int64)
    rows = np.arange(100, 100 + start.size)
    whole = outermost(start[chosen], end[chosen], rows[chosen])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", at_once)
        parts = outermost(start, end, rows, chosen)
    assert [*map(list, (whole.start, whole.end, whole.row))] == [*map(list, (parts.start, parts.end, parts.row))]


@_law
@given(st.lists(st.integers(1, 9), max_size=8), st.lists(st.integers(0, 60), max_size=30))
def test_pieces_add_up_to_their_intervals_and_meet_at_the_points(lengths: list[int], points: list[int]) -> None:
    edges = np.cumsum([0, *lengths]).astype(float)
    start, end = edges[:-1][::2], edges[1:][::2]
    pieces = cut(start, end, [np.array(points, dtype=float)])
    sums = np.bincount(pieces.interval, weights=pieces.end - pieces.start, minlength=start.size)
    assert sums.tolist() == (end - start).tolist()
    assert (pieces.end > pieces.start).all()
    inside = {point for point in points if any(low < point < high for low, high in zip(start, end, strict=True))}
    assert set(pieces.start.tolist()) == {*start.tolist(), *inside}


def test_points_closer_than_the_clock_counts_make_no_piece() -> None:
    pieces = cut(np.array([10.0]), np.array([20.0]), [np.array([10.0001, 15.0, 15.0002, 19.9999])])
    assert pieces.start.tolist() == [10.0, 15.0]


def test_nothing_holds_no_instant() -> None:
    assert NOTHING.at(np.array([1.0])).tolist() == [-1]
    assert outermost(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64)).start.size == 0


@pytest.mark.parametrize("count", [0, 1])
def test_cutting_without_points_gives_the_intervals(count: int) -> None:
    start = np.zeros(count)
    assert cut(start, start + 1, []).end.tolist() == [1.0] * count


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 3), st.sampled_from([-1, 0, 5, 2**40]), st.integers(-1, 2)), max_size=30))
def test_combinations_are_numbered_in_sorted_order_with_their_first_rows(rows: list[tuple[int, int, int]]) -> None:
    keys = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    number, first = numbered(*keys)
    distinct = sorted(set(rows))
    assert number.tolist() == [distinct.index(row) for row in rows]
    assert first.tolist() == [rows.index(row) for row in distinct]


@_law
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_of_intervals_that_begin_at_once_the_longest_comes_first_and_equals_stay_as_they_are(
    intervals: list[tuple[int, int]],
) -> None:
    start = np.array([begin for begin, _ in intervals], dtype=np.float64)
    end = start + np.array([length for _, length in intervals], dtype=np.float64)
    rows = sorted(range(len(intervals)), key=lambda row: (start[row], -end[row]))
    assert longest_first(start, end).tolist() == rows


def test_intervals_are_ordered_as_a_sort_by_all_keys_orders_them() -> None:
    random = np.random.default_rng(7)
    track, start, end, tie = (random.integers(0, 9, 500) for _ in range(4))
    assert by_track(track, start, -end, tie).tolist() == np.lexsort((tie, -end, start, track)).tolist()
    assert by_track(track[:0], start[:0]).size == 0


def test_many_instants_in_order_get_the_rows_that_each_alone_gets() -> None:
    bounds = np.array([0.0, 2.0, 2.0, 5.0, 7.0, 7.5])
    segments = Segments(bounds[::2], bounds[1::2], np.array([4, 1, 9]))
    times = np.linspace(-1.0, 9.0, 401)
    assert segments.at(times).tolist() == [int(segments.at(times[row : row + 1])[0]) for row in range(times.size)]


_INSTANTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=12)
_STRETCHES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9)), max_size=12)


@_law
@given(_STRETCHES, _INSTANTS)
def test_an_instant_is_held_where_an_interval_of_its_track_holds_it(
    stretches: list[tuple[int, int, int]], instants: list[tuple[int, int]]
) -> None:
    track, start, length = np.array(stretches, dtype=np.int64).reshape(-1, 3).T
    asked, at = np.array(instants, dtype=np.int64).reshape(-1, 2).T
    expected = [
        any(of == mine and begin <= when < begin + long for of, begin, long in stretches) for mine, when in instants
    ]
    held = hold_on_tracks(track, start.astype(float), (start + length).astype(float), asked, at.astype(float))
    assert held.tolist() == expected
